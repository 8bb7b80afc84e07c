"""The one reader of job files: reads documents as kubectl does, so that a file is the same job on a laptop and on a cluster.

As kubectl: a file that begins with `{` is JSON, and YAML if it is not; a line that begins with `---` separates documents of YAML; the last
line has a line break; a byte order mark says whether a file is UTF-8 or UTF-16. Refused are bytes that are not text, which kubectl replaces
by U+FFFD, and a YAML document that continues after `...`, which kubectl ignores. `yaml_reader` and `json_reader` name the rest.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sparkonce.errors import InvalidInput
from sparkonce.model.document import yaml_reader
from sparkonce.model.document.json_reader import JsonReader, NotJson
from sparkonce.model.document.yaml_reader import refused
from sparkonce.model.validation import InvalidJob, Loc

SIZE_LIMIT = 1 << 20
"""Bytes of a text. A ledger keeps 256 KiB of a job; the rest is room for comments."""
_NODES = 20_000  # values and keys, aliases expanded: read, validated and fingerprinted in less than a second
_SPACE = re.compile(
    "[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]*"
)  # as kubectl sees it: the spaces of Unicode
_LIKE_JSON = re.compile(r'\{\s*["}]')
_IDLE = re.compile(r"[ \t]*(#.*)?")
_ENCODINGS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


@dataclass(frozen=True)
class Tree:
    data: Any
    """Plain JSON values."""
    lines: Mapping[Loc, int]
    """Line of each key and entry, counted from 1."""


@dataclass(frozen=True)
class Document:
    tree: Tree
    text: str
    """Its part of the file, preceded by blank lines, so that line numbers are those of the file."""


def decoded(data: bytes, *, source: str) -> str:
    """The text of a file: UTF-8, or UTF-16 with a byte order mark. Raises: InvalidInput: it is neither."""
    if data.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        raise InvalidInput(f"{source} is UTF-32, which kubectl does not read; save it as UTF-8")
    mark = next((each for each in _ENCODINGS if data.startswith(each)), b"")
    encoding = _ENCODINGS.get(mark, "utf-8")
    try:
        return data[len(mark) :].decode(encoding)
    except UnicodeDecodeError as problem:
        name, byte = encoding.upper().removesuffix("-LE").removesuffix("-BE"), len(mark) + problem.start
        raise InvalidInput(f"{source} is not text in {name} (byte {byte}); name a YAML file") from None


def read(text: str, *, source: str) -> Tree:
    """Reads the only document of a text.

    Raises: InvalidJob: not YAML or JSON, too large, not exactly one document, a duplicate key, or a value that JSON does not have."""
    found = read_all(text, source=source)
    if not found:
        raise refused("is empty; it must hold one IdempotentJob", source, None)
    if len(found) > 1:
        sentence = f"holds {len(found)} documents; keep one IdempotentJob per file"
        raise refused(sentence, source, found[1].tree.lines.get(()))
    return found[0].tree


def read_all(text: str, *, source: str, manifests: int = 1) -> list[Document]:
    """Reads the documents of a text that are not empty. manifests: the text may be this many times as large as one.

    Raises: InvalidJob: as `read`."""
    most = manifests * SIZE_LIMIT
    if len(text) > most or len(text.encode(errors="surrogatepass")) > most:
        raise refused(f"is larger than {most >> 20} MiB, the limit for a manifest", source, None)
    nodes = manifests * _NODES
    if text.startswith("{", _spaced(text, 0)):
        return _of_json(text, source=source, most=nodes)
    return list(_of_yaml(text, 0, source=source, most=nodes))


def _of_json(text: str, *, source: str, most: int) -> list[Document]:
    """The documents of a text that begins as JSON does; from the first that is no JSON on they are read as YAML."""
    found: list[Document] = []
    reader, at, broken = JsonReader(text, source=source, most=most), 0, ""
    while text.startswith("{", begins := _spaced(text, at)):
        try:
            value, end = reader.value(at)
        except NotJson as problem:
            broken = "" if found or not _LIKE_JSON.match(text, begins) else str(problem)
            first = text.find("\n", at, begins)  # kubectl leaves out the blanks of a line before it reads on as YAML
            at = begins if first < 0 else first + 1
            break
        found.append(Document(Tree(value, reader.lines), _blanked(text, at) + text[at:end]))
        at = end
    if found and _spaced(text, at) > at:  # JSON's own blanks are read
        raise refused("has blanks after its end that JSON does not know; remove them", source, None)
    try:
        return found + list(_of_yaml(text, at, source=source, most=most))
    except InvalidJob as refusal:
        begins_with, told = f"{yaml_reader.UNREADABLE}: ", refusal.problems[0].message
        if not broken or not told.startswith(begins_with):
            raise
        both = f"is not readable as JSON: {broken}; nor as YAML: {told.removeprefix(begins_with)}"
        raise refused(both, source, None) from None


def _of_yaml(text: str, at: int, *, source: str, most: int) -> Iterator[Document]:
    """The documents from this position on."""
    above = text.count("\n", 0, at)
    parts: list[tuple[int, list[str]]] = []
    lines = [line.removesuffix("\r") for line in text[at:].removesuffix("\n").split("\n")]
    began = counted = 0
    for number, line in enumerate(lines):
        if line.startswith("---"):
            after = line[3:].strip()
            if after and not after.startswith("#"):
                told = f"has {line[:60]!r}, which kubectl refuses as the separator of documents; begin the document in the next line"
                raise refused(told, source, above + number + 1)
            if number > began:  # as kubectl, which leaves a separator in a document that it would begin
                parts.append((above + began, lines[began:number]))
                began = number + 1
    parts.append((above + began, lines[began:]))
    for above_it, part in parts:
        first = next((index for index, line in enumerate(part) if not _IDLE.fullmatch(line)), None)
        if first is None:
            continue
        if part[first].startswith("%"):
            told = "is a YAML directive, which kubectl does not read; remove it"
            raise refused(told, source, above_it + first + 1)
        part_text = "\n".join(part) + "\n"
        nodes, counted = yaml_reader.documents(part_text, source=source, most=most, above=above_it, counted=counted)
        for node in nodes:
            if "*" in part_text:
                yaml_reader.check_aliases(node, source)
            yield Document(Tree(*yaml_reader.values(node, source)), "\n" * above_it + part_text)


def _spaced(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _blanked(text: str, end: int) -> str:
    return "\n" * text.count("\n", 0, end)
