"""Reads YAML to JSON values as kubectl does, or refuses it: libyaml parses, and kubectl's rules decide what the result means.

kubectl reads YAML with sigs.k8s.io/yaml (go.yaml.in/yaml/v2): `0123` is 83, `08` is 8, `y` is true, `1_000` is 1000, a date and `12:30` are
text, and a last line without a line break has one. PyYAML's loaders and its resolver know another dialect, so only the events of its parser
are used here; `plain` is a port of kubectl's rules for scalars, line by line. `tests/api/test_documents.py` compares both.

Refused although kubectl reads it, because one of two meanings would be lost in silence: a duplicate key; a key that is not text (`on`,
`1.0`, `~`); a key written before a `<<` that merges the same key (kubectl takes the merged value, other readers the written one); numbers
that do not survive an API server (integers beyond 64 bits, floats of whole numbers beyond 2**53); tags other than those of JSON's types; a
second document.

A small text can describe a huge document (aliases and merges of aliases), and a deep one overflows the stack of a parser. So nodes are
counted while events are read, aliases expanded, and values are built only of what passed.

Together with `manifest`, which writes YAML, the only module that imports PyYAML at run time: a driver's image has none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import yaml

from sparkonce.model.validation import InvalidJob, Loc, path_text

DEPTH = 100
"""Levels of nesting; no manifest is nested deeper. Bounds recursion."""
_UNPRINTABLE = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # YAML 1.1, section 4.1.1
_MARK = re.compile("(^|[\n\r\x85\u2028\u2029])\ufeff")
"""A byte order mark that begins a line: kubectl's parser skips it, libyaml does not."""
_DIRECTIVE = re.compile(r"^%", re.MULTILINE)
_DIRECTIVES = 100  # a parser compares each %TAG with all others
_PARSER: type[yaml.CSafeLoader] | None = getattr(yaml, "CSafeLoader", None)
"""libyaml's. PyYAML's own is not used: it reads `[a:, b]` and tabs otherwise."""

_INT64, _EXACT = 1 << 63, 1 << 53
_INTEGER = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|[1-9][0-9]*|0)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_AFTER_A_POINT = re.compile(r"\.[0-9]+(_[0-9]+)*([eE][-+]?[0-9]+(_[0-9]+)*)?")
_BINARY = re.compile(r"(-0b|0b[-+]?)([01]+)")
_KEY = re.compile(r"-?[1-9][0-9]*|0")
_WORDS: dict[str, bool | None] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    **{each: True for word in ("y", "yes", "true", "on") for each in (word, word.capitalize(), word.upper())},
    **{each: False for word in ("n", "no", "false", "off") for each in (word, word.capitalize(), word.upper())},
}  # fmt: skip
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_NONSPECIFIC = re.compile(r"(&\S+\s+)?!(\s|$)")
_TAG = "tag:yaml.org,2002:"
_SCALARS = {"while parsing a quoted scalar", "while scanning a double-quoted scalar", "while scanning a plain scalar"}
"""Contexts of libyaml's and PyYAML's errors inside a scalar."""

UNREADABLE = "is not readable as YAML"
"""Beginning of the message about text that is not YAML."""
AFTER = "after the end of its document, where kubectl stops reading"
LARGE = "is a number that Kubernetes does not keep digit by digit; put it in quotes"


@dataclass(slots=True)
class Node:
    """A value as the parser found it."""

    kind: Literal["scalar", "list", "map", "alias"]
    line: int
    """Counted from 1."""
    tag: str | None = None
    text: str = ""
    """Of a scalar; of an alias, the anchor's name."""
    plain: bool = False
    """A scalar without quotes."""
    children: list[Node] = field(default_factory=list)
    """Of a list its entries, of a map keys and values in turn, of an alias the node that it names."""


def documents(text: str, *, source: str, most: int, above: int = 0, counted: int = 0) -> tuple[list[Node], int]:
    """The documents of a text that are not empty, and how many nodes the file has, aliases expanded.

    most: nodes of the file. above, counted: lines and nodes of the file before this text.

    Raises: InvalidJob: not YAML, too large, or what kubectl's parser refuses."""
    if _PARSER is None:
        told = "cannot be read: PyYAML has no libyaml here, and its own parser differs from kubectl's; install a wheel of PyYAML"
        raise refused(told, source, None)
    if len(_DIRECTIVE.findall(text)) > _DIRECTIVES:
        told = f"has more than {_DIRECTIVES} YAML directives; remove the lines that begin with %"
        raise refused(told, source, None)
    if found := _UNPRINTABLE.search(text):
        line = above + text.count("\n", 0, found.start()) + 1
        raise refused(f"{UNREADABLE}: unacceptable character #x{ord(found[0]):04x}", source, line)
    if found := _MARK.search(text):
        line = above + text.count("\n", 0, found.end()) + 1
        raise refused("has a byte order mark within the file; remove it", source, line)
    composer = _Composer(text, source, most, above, counted)
    return composer.documents(), composer.nodes


def check_aliases(node: Node, source: str) -> None:
    """Raises: InvalidJob: too many values of a document come from aliases. Nothing to check where none stands (`*name`)."""
    _Decodes(source).count(node)


def values(node: Node, source: str) -> tuple[Any, dict[Loc, int]]:
    """JSON values of a document, and the line of each key and entry. Raises: InvalidJob: a value that JSON does not have, or that is read
    in two ways."""
    builder = _Builder(source)
    return builder.value((), node), builder.lines


def refused(message: str, source: str, line: int | None, path: str = "") -> InvalidJob:
    return InvalidJob([(path, message)], source=source, lines=[line])


def lone_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def plain(text: str) -> str | float | bool | None:
    """What a scalar without quotes is for kubectl. Infinity and NaN come out as floats, which JSON does not have."""
    if text in _WORDS:
        return _WORDS[text]
    return _number_or_text(text) if text[0] in "+-.0123456789" else text


def _number_or_text(text: str) -> str | float:
    if _NOT_FINITE.fullmatch(text):
        return float(text.replace(".", "", 1).lower())
    if text[0] == ".":
        return _finite(text.replace("_", ""), text) if _AFTER_A_POINT.fullmatch(text) else text
    digits = text.replace("_", "")
    if _INTEGER.fullmatch(digits) and (number := _integer(digits)) is not None:
        return number
    if _FLOAT.fullmatch(digits):
        return _finite(digits, text)
    if (binary := _BINARY.fullmatch(digits)) and len(binary[2]) <= 64:
        number = int(binary[2], 2) * (-1 if "-" in binary[1] else 1)
        return number if -_INT64 <= number < (_INT64 if binary[1][-1] in "-+" else 2 * _INT64) else text
    return text


def _integer(text: str) -> int | None:
    """The integer; None if it does not fit into 64 bits (signed if it has a sign, else unsigned), where kubectl reads no integer."""
    digits = text.lstrip("+-")
    if len(digits) > 70:  # the longest is binary; bounds the conversion
        return None
    octal = len(digits) > 1 and digits[0] == "0" and digits[1].isdigit()
    number = int(digits, 8 if octal else 0) * (-1 if text[0] == "-" else 1)
    return number if -_INT64 <= number < (_INT64 if text[0] in "+-" else 2 * _INT64) else None


def _finite(digits: str, text: str) -> str | float:
    """The number, or the text if it is too large for a float."""
    number = float(digits)
    return number if math.isfinite(number) else text


def number(value: float) -> int | float | None:
    """A number as an API server returns it: `8.0` and `1e3` are the integers 8 and 1000. None: it would be another number, or none."""
    if isinstance(value, int):
        return value if -_INT64 <= value < _INT64 else None
    if not math.isfinite(value):
        return None
    if value.is_integer():
        return int(value) if abs(value) < _EXACT else None
    return value


@dataclass
class _Open:
    """A map or list whose end has not been read."""

    node: Node
    anchor: str | None
    flow: bool
    """In braces or brackets, so that its end is seen before anything after it is read."""
    nodes: int = 1
    """Values and keys in it, itself included, aliases expanded."""
    depth: int = 1

    @property
    def mapping(self) -> bool:
        return self.node.kind == "map"

    @property
    def key(self) -> str:
        children = self.node.children
        return children[-1 - (len(children) + 1) % 2].text if children else ""

    @property
    def place(self) -> Loc | None:
        """Where the next value belongs, below this node; None: perhaps after its end."""
        entries = len(self.node.children)
        if self.mapping and entries % 2:
            return (self.key,)
        if not self.flow:
            return None
        return () if self.mapping else (entries,)


class _Composer:
    """Makes nodes of the parser's events, and counts them: nothing here recurses."""

    def __init__(self, text: str, source: str, most: int, above: int, counted: int) -> None:
        self._text, self._source, self._most, self._above = text, source, most, above
        self._open: list[_Open] = []
        self._known: dict[str, tuple[Node, int, int]] = {}
        """What is anchored: the node, and how many nodes and levels it has."""
        self._roots: list[Node] = []
        self.nodes = counted
        self._line = above + 1

    def documents(self) -> list[Node]:
        assert _PARSER is not None
        try:
            parser = _PARSER(self._text)
            while (event := parser.get_event()) is not None:
                self._line = self._above + event.start_mark.line + 1  # type: ignore[union-attr] # every event has marks
                self._take(event)
        except yaml.MarkedYAMLError as broken:
            raise self._unreadable(broken) from None
        except (yaml.YAMLError, OverflowError, ValueError) as broken:
            if isinstance(broken, InvalidJob):
                raise
            # A directive with a version of thousands of digits.
            told = str(broken).splitlines()[0]
            raise self._refused(f"{UNREADABLE}: {told}", self._loc()) from None
        return [each for each in self._roots if each.kind != "scalar" or each.text or each.tag or not each.plain]

    def _refused(self, sentence: str, loc: Loc = ()) -> InvalidJob:
        return refused(sentence, self._source, self._line, path_text(loc))

    def _unreadable(self, broken: yaml.MarkedYAMLError) -> InvalidJob:
        # A key without a colon is reported one line late; for other errors the context is where the structure began.
        late = broken.context == "while scanning a simple key"
        mark = (broken.context_mark if late else None) or broken.problem_mark or broken.context_mark
        told = " ".join(part for part in (broken.context, broken.problem) if part)
        # Only a scalar that is wrong in itself belongs to the field being read; a wrong structure has been wrong since somewhere above.
        path = path_text(self._loc()) if broken.context in _SCALARS else ""
        line = self._above + mark.line + 1 if mark else None
        after = f" {AFTER}" if self._roots and not self._open else ""
        return refused(f"{UNREADABLE}{after}: {told}", self._source, line, path)

    def _loc(self) -> Loc:
        """The field that is read now; empty: unknown."""
        if not self._open or (last := self._open[-1].place) is None:
            return ()
        above = (each.key if each.mapping else len(each.node.children) for each in self._open[:-1])
        return (*above, *last)

    def _take(self, event: yaml.Event) -> None:
        match event:
            case yaml.DocumentStartEvent():
                self._known = {}
            case yaml.ScalarEvent():
                self._scalar(event)
            case yaml.AliasEvent():
                self._alias(event)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._count(1, 1)
                kind: Literal["map", "list"] = "map" if isinstance(event, yaml.MappingStartEvent) else "list"
                node = Node(kind, self._line, tag=event.tag)
                if event.anchor is not None:  # an alias within the node refers to it
                    self._known[event.anchor] = (node, 1, 1)
                self._open.append(_Open(node, event.anchor, bool(event.flow_style)))
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                ended = self._open.pop()
                self.nodes -= ended.nodes  # counted one by one
                # Unless a node below it has taken the anchor: the nearest one above an alias counts.
                if ended.anchor is not None and self._known[ended.anchor][0] is ended.node:
                    self._known[ended.anchor] = (ended.node, ended.nodes, ended.depth)
                self._add(ended.node, None, ended.nodes, ended.depth)

    def _alias(self, event: yaml.AliasEvent) -> None:
        name = event.anchor
        if name not in self._known:
            raise self._refused(f"{UNREADABLE}: *{name} has no anchor &{name} above it", self._loc())
        node, nodes, depth = self._known[name]
        self._add(Node("alias", self._line, text=name, children=[node]), None, nodes, depth)

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        written = self._text[event.start_mark.index : event.end_mark.index]  # type: ignore[union-attr] # PyYAML's stubs
        if event.style == '"' and "/" in written and re.search(r"(?<!\\)(\\\\)*\\/", written):
            raise self._refused("has the escape \\/, which kubectl refuses in YAML; write / alone", self._loc())
        if event.tag in (None, "!") and _NONSPECIFIC.match(written):
            raise self._refused("has the YAML tag !; a manifest is plain JSON, so put text in quotes", self._loc())
        bare = event.style not in ("'", '"', "|", ">")
        if bare and "?" in event.value and self._open and self._open[-1].flow:
            told = "has a ? within braces or brackets, where kubectl takes it for the mark of a key; put it in quotes"
            raise self._refused(told, self._loc())
        self._add(Node("scalar", self._line, event.tag, event.value, plain=bare), event.anchor, 1, 1)

    def _add(self, node: Node, anchor: str | None, nodes: int, depth: int) -> None:
        self._count(nodes, depth)
        if anchor is not None:
            self._known[anchor] = (node, nodes, depth)
        if not self._open:
            self._roots.append(node)
            return
        above = self._open[-1]
        above.nodes += nodes
        above.depth = max(above.depth, depth + 1)
        above.node.children.append(node)

    def _count(self, nodes: int, depth: int) -> None:
        self.nodes += nodes
        if self.nodes > self._most:
            told = (
                f"holds more than {self._most} values, aliases expanded; move long lists into a file that the job reads"
            )
            raise self._refused(told)
        if len(self._open) + depth > DEPTH:
            raise self._refused(f"is nested more than {DEPTH} levels deep")


class _Decodes:
    """kubectl's bound on aliases: of more than 1,000 values 99 % may come from them."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._all = self._by_alias = self._within = 0
        self._open: set[int] = set()

    def count(self, node: Node) -> None:
        """Counts a node. Raises: InvalidJob: too many values come from aliases."""
        self._all += 1
        self._by_alias += self._within > 0
        if self._by_alias > 100 and self._all > 1000 and self._by_alias > 0.99 * self._all:
            told = "repeats one part by aliases more often than kubectl reads; write the parts out"
            raise refused(told, self._source, node.line)
        if id(node) in self._open:  # refers to itself, as the builder says
            return
        self._open.add(id(node))
        self._within += node.kind == "alias"
        for each in _decoded(node):
            self.count(each)
        self._within -= node.kind == "alias"
        self._open.discard(id(node))


def _decoded(node: Node) -> Iterator[Node]:
    """The nodes below a node that kubectl decodes for it."""
    if node.kind != "map":
        yield from node.children
        return
    for key, each in _pairs(node):
        if not _merges(key):
            yield key
            yield each
        elif each.kind == "list":
            yield from each.children
        else:
            yield each


def _pairs(node: Node) -> Iterator[tuple[Node, Node]]:
    return zip(node.children[::2], node.children[1::2], strict=True)


def _merges(key: Node) -> bool:
    return key.kind == "scalar" and key.plain and key.tag is None and key.text == "<<"


Entries = dict[str, tuple[Node, Node]]


class _Builder:
    """Builds JSON values of nodes and records their lines."""

    def __init__(self, source: str) -> None:
        self.lines: dict[Loc, int] = {}
        self._source = source
        self._open: set[int] = set()

    def _refuse(self, loc: Loc, node: Node, sentence: str) -> InvalidJob:
        return refused(sentence, self._source, node.line, path_text(loc))

    def value(self, loc: Loc, node: Node) -> Any:
        self.lines.setdefault(loc, node.line)
        if node.kind == "alias":
            return self.value(loc, node.children[0])
        if node.kind == "scalar":
            return self._scalar(loc, node)
        if node.tag not in (None, f"{_TAG}{'map' if node.kind == 'map' else 'seq'}"):
            raise self._refuse(loc, node, f"has the YAML tag {node.tag}; a manifest is plain JSON")
        with self._opened(loc, node):
            if node.kind == "list":
                return [self.value((*loc, index), each) for index, each in enumerate(node.children)]
            built: dict[str, Any] = {}
            for name, (key, each) in self._entries(loc, node).items():
                at = (*loc, name)
                self.lines[at] = key.line
                built[name] = self.value(at, each)
            return built

    @contextmanager
    def _opened(self, loc: Loc, node: Node) -> Iterator[None]:
        if id(node) in self._open:
            raise self._refuse(loc, node, "refers to itself")
        self._open.add(id(node))
        try:
            yield
        finally:
            self._open.discard(id(node))

    def _entries(self, loc: Loc, node: Node) -> Entries:
        """The entries by key: what `<<: *other` merges is replaced by own entries after it; of a list of maps the earlier ones win."""
        entries: Entries = {}
        own: Entries = {}
        merges: Node | None = None
        for key, each in _pairs(node):
            if _merges(key):
                if merges is not None:
                    raise self._refuse((*loc, "<<"), key, f"duplicate key, first on line {merges.line}")
                merges = key
                entries |= self._merged_below((*loc, "<<"), key, each, own)
                continue
            name = self._key(loc, key)
            if name in own:
                raise self._refuse((*loc, name), key, f"duplicate key, first on line {own[name][0].line}")
            own[name] = (key, each)
            entries[name] = (key, each)
        return entries

    def _merged_below(self, loc: Loc, key: Node, node: Node, own: Entries) -> Entries:
        """What `<<` brings. own: the entries above it, of which it may bring none."""
        merged = self._merged(loc, node)
        if twice := [name for name in merged if name in own]:
            told = f"merges {twice[0]}, which is also set above it, and kubectl takes the merged value; write << first"
            raise self._refuse(loc, key, told)
        return merged

    def _merged(self, loc: Loc, node: Node) -> Entries:
        if node.kind == "list":
            merged: Entries = {}
            for each in reversed(node.children):
                merged |= self._map_to_merge(loc, each)
            return merged
        return self._map_to_merge(loc, node)

    def _map_to_merge(self, loc: Loc, node: Node) -> Entries:
        named = node.children[0] if node.kind == "alias" else node
        if named.kind != "map":
            raise self._refuse(loc, node, "must be a map, or a list of maps, to be merged")
        with self._opened(loc, named):
            return self._entries(loc, named)

    def _key(self, loc: Loc, node: Node) -> str:
        key = node.children[0] if node.kind == "alias" else node
        if key.kind != "scalar":
            raise self._refuse(loc, node, "has a key that is not text")
        if key.tag not in (None, f"{_TAG}str"):
            raise self._refuse(loc, node, f"has a key with the YAML tag {key.tag}; put it in quotes")
        name = key.text
        if lone_surrogate(name):
            raise self._refuse(loc, node, "has a key that is not valid Unicode text")
        if key.tag is None and key.plain and not isinstance(read := plain(name), str):
            small = isinstance(read, int) and not isinstance(read, bool) and number(read) is not None
            if not (small and _KEY.fullmatch(name)):
                told = f"has the key {name or '~'}, which YAML does not read as text; put it in quotes"
                raise self._refuse(loc, node, told)
        return name

    def _scalar(self, loc: Loc, node: Node) -> Any:
        kind = "str" if node.tag is None and not node.plain else (node.tag or "").removeprefix(_TAG)
        if kind == "str":
            if lone_surrogate(node.text):
                raise self._refuse(loc, node, "is not valid Unicode text")
            return node.text
        if kind not in ("", "int", "float", "bool", "null"):
            raise self._refuse(loc, node, f"has the YAML tag {node.tag}; a manifest is plain JSON")
        read = plain(node.text)
        found = {bool: "bool", int: "int", float: "float", str: "str"}.get(type(read), "null")
        if kind and found != kind and (kind, found) != ("float", "int"):
            raise self._refuse(loc, node, f"is {node.text[:60]!r}, which is not of type {kind}; put it in quotes")
        if found in ("int", "float"):
            return self._number(loc, node, float(read or 0) if kind == "float" else read)
        if isinstance(read, str) and lone_surrogate(read):
            raise self._refuse(loc, node, "is not valid Unicode text")
        return read

    def _number(self, loc: Loc, node: Node, read: Any) -> int | float:
        kept = number(read)
        if kept is None:
            told = LARGE if math.isfinite(read) else f"is {node.text}, which is not a JSON number; put it in quotes"
            raise self._refuse(loc, node, told)
        return kept
