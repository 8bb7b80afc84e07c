"""YAML as kubectl reads and writes it, with the line of every field.

PyYAML's safe loader differs from the reader in Kubernetes in ways that would make one file two jobs: it takes dates for dates, `12:30` for
750, `1e5` for text, and the last of two equal keys without a word. Here the document is built from the node tree, with those
differences removed. Nothing but JSON comes out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from sparkonce.model.problems import InvalidJob, Loc, path_text

_DEPTH = 100  # no manifest is nested deeper; bounds recursion
_NODES = 100_000  # a few megabytes; aliases could make a small text into a huge document
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./:@+-]*")  # text that no YAML reader takes for anything else...
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}  # ...but these


@dataclass(frozen=True)
class Tree:
    data: Any
    """Plain JSON values."""
    lines: Mapping[Loc, int]
    """Line of each key and entry, counted from 1."""


class _Loader(yaml.SafeLoader):
    """As SafeLoader, but plain scalars mean what they mean to Kubernetes."""


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    kept: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    integer = re.compile(r"[-+]?(0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|[1-9][0-9_]*|0)")
    number = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items():
        others = ("int", "float", "timestamp")
        kept[first] = [(tag, regexp) for tag, regexp in pairs if tag.rpartition(":")[2] not in others]
    for first in "-+.0123456789":
        ours = [("tag:yaml.org,2002:int", integer), ("tag:yaml.org,2002:float", number)]
        kept[first] = [(tag, re.compile(f"(?:{regexp.pattern})$")) for tag, regexp in ours] + kept.get(first, [])
    return kept


_Loader.yaml_implicit_resolvers = _resolvers()


class _Dumper(yaml.SafeDumper):
    """Quotes whatever any reader might take for something else than text; never writes aliases."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')


_Dumper.add_representer(str, _text)


def dump(document: Any) -> str:
    """YAML in the order of the document."""
    # PyYAML folds long texts at blanks; a manifest that is compared and grepped keeps one value on one line.
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6)


def read(text: str, *, source: str) -> Tree:
    """The one document of a text. InvalidJob: it is no YAML, has no or several documents, a key twice, or is no JSON."""
    documents: list[yaml.Node] = []
    try:
        loader = _Loader(text)
        while loader.check_node():
            node = loader.get_node()
            if node is not None and (node.value or not isinstance(node, yaml.ScalarNode)):
                documents.append(node)
    except yaml.MarkedYAMLError as broken:
        # A key without a colon is noticed one line late; of anything else the context is where the structure began.
        late = broken.context == "while scanning a simple key"
        mark = (broken.context_mark if late else None) or broken.problem_mark or broken.context_mark
        told = " ".join(part for part in (broken.context, broken.problem) if part)
        raise _refused(f"is not readable as YAML: {told}", source, mark.line + 1 if mark else None) from None
    except yaml.YAMLError as broken:
        raise _refused(f"is not readable as YAML: {str(broken).splitlines()[0]}", source, None) from None
    except RecursionError:
        raise _refused("is nested too deeply to be a manifest", source, None) from None
    if not documents:
        raise _refused("is empty; it must hold one IdempotentJob", source, None)
    if len(documents) > 1:
        sentence = f"holds {len(documents)} documents; keep one IdempotentJob per file"
        raise _refused(sentence, source, documents[1].start_mark.line + 1)
    builder = _Builder(loader, source)
    return Tree(builder.value((), documents[0]), builder.lines)


def _refused(message: str, source: str, line: int | None, path: str = "") -> InvalidJob:
    return InvalidJob([(path, message)], source=source, lines=[line])


class _Builder:
    """From the node tree to values."""

    def __init__(self, loader: _Loader, source: str) -> None:
        self.lines: dict[Loc, int] = {}
        self._loader = loader
        self._source = source
        self._open: set[int] = set()
        self._nodes = 0

    def value(self, loc: Loc, node: yaml.Node) -> Any:
        self._nodes += 1
        line = node.start_mark.line + 1
        self.lines.setdefault(loc, line)
        if id(node) in self._open:
            raise _refused("refers to itself", self._source, line, path_text(loc))
        if len(loc) > _DEPTH or self._nodes > _NODES:
            raise _refused("is too large to be a manifest", self._source, line)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._map(loc, node)
            if isinstance(node, yaml.SequenceNode):
                return [self.value((*loc, index), each) for index, each in enumerate(node.value)]
            return self._scalar(loc, node)
        finally:
            self._open.discard(id(node))

    def _map(self, loc: Loc, node: yaml.MappingNode) -> dict[str, Any]:
        own: dict[Hashable, int] = {}
        for key, _ in node.value:
            name, line = key.value, key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise _refused("has a key that is no text", self._source, line, path_text(loc))
            if name in own:
                raise _refused(f"stands here and in line {own[name]}", self._source, line, path_text((*loc, name)))
            own[name] = line
        self._loader.flatten_mapping(node)  # `<<: *other`
        built: dict[str, Any] = {}
        for key, each in node.value:
            at = (*loc, key.value)
            self.lines[at] = key.start_mark.line + 1
            built[key.value] = self.value(at, each)
        return built

    def _scalar(self, loc: Loc, node: yaml.Node) -> Any:
        line = node.start_mark.line + 1
        kind = node.tag.rpartition(":")[2]
        text = str(node.value)
        if kind not in {"str", "int", "float", "bool", "null"}:
            raise _refused(f"has the YAML tag {node.tag}; a manifest is plain JSON", self._source, line, path_text(loc))
        if kind == "int":
            digits = text.replace("_", "")
            sign, digits = (-1 if digits.startswith("-") else 1), digits.lstrip("+-")
            octal = len(digits) > 1 and digits.isdigit() and digits.startswith("0")
            return sign * int(digits, 8 if octal else 0)
        if kind == "float":
            number = float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
            if not math.isfinite(number):
                raise _refused(
                    f"is {text}, which is no JSON number; put it in quotes", self._source, line, path_text(loc)
                )
            return number
        if kind != "str":
            return self._loader.construct_object(node)
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise _refused("is no valid Unicode text", self._source, line, path_text(loc))
        return text
