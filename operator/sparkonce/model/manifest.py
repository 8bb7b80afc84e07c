"""Reads a manifest: YAML text with parameters to an IdempotentJob, or to problems with file and line.

Read as `kubectl` reads it, so that a file is the same job in both places. PyYAML's safe loader takes dates for dates, `12:30` for 750,
`1e5` for text, and the last of two equal keys silently; here the document is built from the node tree without these differences, and only
JSON values come out. Refused where kubectl is lenient: a duplicate key and a second document, because one of the two would be silently
ignored, and a key that YAML does not read as text (`on`, `1.0`, `~`), because readers disagree on what its text is.

A small text can describe a huge document (aliases and merges of aliases), and a deep one overflows the stack of libyaml. So the parser's
events are counted first, aliases expanded; nodes are built only of what passed. libyaml does both in a tenth of the time of PyYAML's own
parser, which is used where libyaml is missing.

Parameters and overridden outputs are filled in before validation, key and fingerprint. Only text values are filled, after parsing, so a
value never becomes YAML structure; templating the text itself would let a value that contains a colon change the document.

The only module that imports PyYAML at run time: a driver's image has none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import yaml

from sparkonce.model import entrance
from sparkonce.model.entrance import DIGITS_LIMIT
from sparkonce.model.spec import IdempotentJob
from sparkonce.model.validation import InvalidJob, Loc, did_you_mean, line_of, path_text

SIZE_LIMIT = 1 << 20
"""Bytes of a text. A ledger keeps 256 KiB of a job; the rest is room for comments."""
_DEPTH = 100  # no manifest is nested deeper; bounds recursion
_NODES = 20_000  # values and keys, aliases expanded: read, validated and fingerprinted in less than a second
_DIRECTIVE = re.compile(r"^%", re.MULTILINE)
_DIRECTIVES = 100  # a parser compares each %TAG with all others
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./:@+-]*")  # text that every YAML reader reads as text...
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}  # ...but these
_UNPRINTABLE = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # YAML 1.1, section 4.1.1


@dataclass(frozen=True)
class Tree:
    data: Any
    """Plain JSON values."""
    lines: Mapping[Loc, int]
    """Line of each key and entry, counted from 1."""


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    kept: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    integer = re.compile(r"[-+]?(0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|[1-9][0-9_]*|0)")
    number = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items():
        others = ("int", "float", "timestamp", "value")
        kept[first] = [(tag, regexp) for tag, regexp in pairs if tag.rpartition(":")[2] not in others]
    for first in "-+.0123456789":
        ours = [("tag:yaml.org,2002:int", integer), ("tag:yaml.org,2002:float", number)]
        kept[first] = [(tag, re.compile(f"(?:{regexp.pattern})$")) for tag, regexp in ours] + kept.get(first, [])
    return kept


def _with_kubernetes_scalars(base: type) -> type[yaml.SafeLoader]:
    """A safe loader with Kubernetes' rules for plain scalars."""
    return cast("type[yaml.SafeLoader]", type("_Loader", (base,), {"yaml_implicit_resolvers": _resolvers()}))


_LOADER = _with_kubernetes_scalars(getattr(yaml, "CSafeLoader", yaml.SafeLoader))


class _Dumper(yaml.SafeDumper):
    """Quotes every text that some reader might not read as text; never writes aliases."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')


_Dumper.add_representer(str, _text)


def dump(document: Any) -> str:
    """Writes YAML in the document's order."""
    # PyYAML folds long texts at blanks; one value per line keeps a manifest easy to diff and grep.
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6)


def read(text: str, *, source: str, manifests: int = 1) -> Tree:
    """Parses the only document of a text. `manifests`: how many times the size of one it may have.

    Raises: InvalidJob: not YAML, too large, not exactly one document, a duplicate key, or a value that JSON does not have."""
    _check_characters(text, source, manifests * SIZE_LIMIT)
    _Count(text, source, manifests * _NODES).check()
    documents: list[yaml.Node] = []
    try:
        loader = _LOADER(text)
        while loader.check_node():
            node = loader.get_node()
            if node is not None and (node.value or not isinstance(node, yaml.ScalarNode)):
                documents.append(node)
    except yaml.MarkedYAMLError as broken:
        raise _unreadable(broken, source, ()) from None
    if not documents:
        raise _refused("is empty; it must hold one IdempotentJob", source, None)
    if len(documents) > 1:
        sentence = f"holds {len(documents)} documents; keep one IdempotentJob per file"
        raise _refused(sentence, source, documents[1].start_mark.line + 1)
    builder = _Builder(source)
    return Tree(builder.value((), documents[0]), builder.lines)


def _refused(message: str, source: str, line: int | None, path: str = "") -> InvalidJob:
    return InvalidJob([(path, message)], source=source, lines=[line])


def _unreadable(broken: yaml.MarkedYAMLError, source: str, loc: Loc) -> InvalidJob:
    # A key without a colon is reported one line late; for other errors the context is where the structure began.
    late = broken.context == "while scanning a simple key"
    mark = (broken.context_mark if late else None) or broken.problem_mark or broken.context_mark
    told = " ".join(part for part in (broken.context, broken.problem) if part)
    # Only a scalar that is wrong in itself belongs to the field being read; a wrong structure has been wrong since somewhere above.
    path = path_text(loc) if broken.context in _SCALARS else ""
    return _refused(f"is not readable as YAML: {told}", source, mark.line + 1 if mark else None, path)


_SCALARS = {"while parsing a quoted scalar", "while scanning a double-quoted scalar", "while scanning a plain scalar"}
"""Contexts of libyaml's and PyYAML's errors inside a scalar."""


def _check_characters(text: str, source: str, most: int) -> None:
    if len(text) > most or len(text.encode(errors="surrogatepass")) > most:
        raise _refused(f"is larger than {most >> 20} MiB, which no manifest is", source, None)
    if len(_DIRECTIVE.findall(text)) > _DIRECTIVES:
        raise _refused(f"has more than {_DIRECTIVES} YAML directives; remove the lines that begin with %", source, None)
    if found := _UNPRINTABLE.search(text):
        line = text.count("\n", 0, found.start()) + 1
        sentence = f"is not readable as YAML: unacceptable character #x{ord(found[0]):04x}"
        raise _refused(sentence, source, line)


@dataclass
class _Open:
    """A map or list whose end has not been read."""

    anchor: str | None
    mapping: bool
    flow: bool
    """In braces or brackets, so that its end is seen before anything after it is read."""
    nodes: int = 1
    """Values and keys in it, itself included, aliases expanded."""
    depth: int = 1
    entries: int = 0
    """Keys and values, or entries of a list, read so far."""
    key: str = ""

    @property
    def place(self) -> Loc | None:
        """What is read next, below it; None: perhaps something after its end."""
        if self.mapping and self.entries % 2:
            return (self.key,)
        if not self.flow:
            return None
        return () if self.mapping else (self.entries,)


class _Count:
    """Counts the nodes of a text from the parser's events: nothing is built, and nothing recurses."""

    def __init__(self, text: str, source: str, most: int) -> None:
        self._loader, self._source, self._most = _LOADER(text), source, most
        self._open: list[_Open] = []
        self._known: dict[str, tuple[int, int]] = {}
        """Nodes and depth of what is anchored."""
        self._nodes = 0
        self._line = 1

    def check(self) -> None:
        """Raises: InvalidJob: broken, too large or nested too deeply."""
        try:
            while (event := self._loader.get_event()) is not None:  # type: ignore[no-untyped-call] # PyYAML's stubs
                self._line = event.start_mark.line + 1
                self._take(event)
        except yaml.MarkedYAMLError as broken:
            raise _unreadable(broken, self._source, self._loc()) from None
        except (yaml.YAMLError, OverflowError, ValueError) as broken:
            if isinstance(broken, InvalidJob):
                raise
            # PyYAML's own parser: an escape beyond Unicode, or a directive with a version of thousands of digits.
            told = str(broken).splitlines()[0]
            raise _refused(
                f"is not readable as YAML: {told}", self._source, self._line, path_text(self._loc())
            ) from None

    def _loc(self) -> Loc:
        """The field that is read now; empty: unknown."""
        if not self._open or (last := self._open[-1].place) is None:
            return ()
        above = (each.key if each.mapping else each.entries for each in self._open[:-1])
        return (*above, *last)

    def _take(self, event: yaml.Event) -> None:
        match event:
            case yaml.ScalarEvent():
                self._add(event.anchor, 1, 1, text=event.value)
            case yaml.AliasEvent():
                self._add(None, *self._known.get(event.anchor or "", (1, 1)))
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._count(1, 1)
                mapping = isinstance(event, yaml.MappingStartEvent)
                self._open.append(_Open(event.anchor, mapping, bool(event.flow_style)))
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                ended = self._open.pop()
                self._nodes -= ended.nodes  # counted one by one
                self._add(ended.anchor, ended.nodes, ended.depth)

    def _add(self, anchor: str | None, nodes: int, depth: int, *, text: str = "") -> None:
        self._count(nodes, depth)
        if anchor is not None:
            self._known[anchor] = (nodes, depth)
        if self._open:
            above = self._open[-1]
            above.nodes += nodes
            above.depth = max(above.depth, depth + 1)
            above.entries += 1
            if above.mapping and above.entries % 2:
                above.key = text

    def _count(self, nodes: int, depth: int) -> None:
        self._nodes += nodes
        if self._nodes > self._most:
            told = (
                f"holds more than {self._most} values, aliases expanded; move long lists into a file that the job reads"
            )
            raise _refused(told, self._source, self._line)
        if len(self._open) + depth > _DEPTH:
            raise _refused(f"is nested more than {_DEPTH} levels deep", self._source, self._line)


_TAGS = {
    yaml.MappingNode: ("map",),
    yaml.SequenceNode: ("seq",),
    yaml.ScalarNode: ("str", "int", "float", "bool", "null"),
}
_MERGE = "tag:yaml.org,2002:merge"
_BOOLEANS = {"yes": True, "no": False, "true": True, "false": False, "on": True, "off": False}


class _Builder:
    """Builds JSON values from the node tree and records their lines."""

    def __init__(self, source: str) -> None:
        self.lines: dict[Loc, int] = {}
        self._source = source
        self._open: set[int] = set()

    def _refuse(self, loc: Loc, node: yaml.Node, sentence: str) -> InvalidJob:
        return _refused(sentence, self._source, node.start_mark.line + 1, path_text(loc))

    def value(self, loc: Loc, node: yaml.Node) -> Any:
        self.lines.setdefault(loc, node.start_mark.line + 1)
        if node.tag.rpartition(":")[2] not in _TAGS[type(node)] or not node.tag.startswith("tag:yaml.org,2002:"):
            raise self._refuse(loc, node, f"has the YAML tag {node.tag}; a manifest is plain JSON")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(loc, node)
        if id(node) in self._open:
            raise self._refuse(loc, node, "refers to itself")
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._map(loc, node)
            return [self.value((*loc, index), each) for index, each in enumerate(node.value)]
        finally:
            self._open.discard(id(node))

    def _map(self, loc: Loc, node: yaml.MappingNode) -> dict[str, Any]:
        built: dict[str, Any] = {}
        for name, (key, each) in self._entries(loc, node).items():
            at = (*loc, name)
            self.lines[at] = key.start_mark.line + 1
            built[name] = self.value(at, each)
        return built

    def _entries(self, loc: Loc, node: yaml.MappingNode) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """The entries by key, those of `<<: *other` first and replaced by own ones; of a list of maps the earlier ones win."""
        own: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, each in node.value:
            name = self._key(loc, key)
            if name in own:
                line = own[name][0].start_mark.line + 1
                raise self._refuse((*loc, name), key, f"duplicate key, first on line {line}")
            own[name] = (key, each)
            if key.tag == _MERGE:
                for other in reversed(each.value if isinstance(each, yaml.SequenceNode) else [each]):
                    merged |= self._merged((*loc, name), other)
        return {**merged, **{name: entry for name, entry in own.items() if entry[0].tag != _MERGE}}

    def _merged(self, loc: Loc, node: yaml.Node) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            raise self._refuse(loc, node, "must be a map, or a list of maps, to be merged")
        if id(node) in self._open:
            raise self._refuse(loc, node, "refers to itself")
        self._open.add(id(node))
        try:
            return self._entries(loc, node)
        finally:
            self._open.discard(id(node))

    def _key(self, loc: Loc, key: yaml.Node) -> str:
        kind = key.tag.rpartition(":")[2]
        if not isinstance(key, yaml.ScalarNode) or kind not in ("str", "merge", *_TAGS[yaml.ScalarNode]):
            raise self._refuse(loc, key, "has a key that is no text")
        name = str(key.value)
        if _lone_surrogate(name):
            raise self._refuse(loc, key, "has a key that is no valid Unicode text")
        if kind in ("str", "merge") or (kind == "int" and re.fullmatch("0|[1-9][0-9]*", name)):
            return name
        raise self._refuse(loc, key, f"has the key {name or '~'}, which YAML does not read as text; put it in quotes")

    def _scalar(self, loc: Loc, node: yaml.ScalarNode) -> Any:
        kind, text = node.tag.rpartition(":")[2], str(node.value)
        try:
            match kind:
                case "null":
                    return None
                case "bool":
                    return _BOOLEANS[text.lower()]
                case "int":
                    return self._integer(loc, node, text.replace("_", ""))
                case "float":
                    number = float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
                    if not math.isfinite(number):
                        raise self._refuse(loc, node, f"is {text}, which is no JSON number; put it in quotes")
                    return number
        except InvalidJob:
            raise
        except (KeyError, ValueError):
            raise self._refuse(loc, node, f"is {text[:60]!r}, which is no {kind}; put it in quotes") from None
        if _lone_surrogate(text):
            raise self._refuse(loc, node, "is no valid Unicode text")
        return text

    def _integer(self, loc: Loc, node: yaml.Node, text: str) -> int:
        if len(text) > DIGITS_LIMIT:
            raise self._refuse(loc, node, f"is a number of more than {DIGITS_LIMIT} digits; put it in quotes")
        sign, digits = (-1 if text.startswith("-") else 1), text.lstrip("+-")
        octal = len(digits) > 1 and digits.isdigit() and digits.startswith("0")
        return sign * int(digits, 8 if octal else 0)


def _lone_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


_REFERENCE = re.compile(r"\$(?P<escaped>\$)?\{(?P<body>params\.[^{}]*)\}|\$\$\{")
_BODY = re.compile(r"params\.(?P<name>[A-Za-z_][A-Za-z0-9_-]*)(?P<has>:-(?P<default>.*))?", re.DOTALL)
_LOCATIONS = ("slotLog", "delta")  # kinds of output that are a folder


def load(
    text: str, *, params: Mapping[str, str], source: str, outputs: Mapping[str, str] | None = None
) -> IdempotentJob:
    """Parses and validates a manifest.

    `params` fill `${params.name}` and `${params.name:-default}` in text values; `$${` is a literal `${`. `outputs`: locations by output
    name that replace the declared ones unchanged; the caller resolves relative ones.

    Raises: InvalidJob: names every problem with its path and line."""
    return _loaded(text, params=params, outputs=outputs or {}, source=source)[1]


def render(text: str, *, params: Mapping[str, str], source: str, outputs: Mapping[str, str] | None = None) -> str:
    """The manifest with parameters and outputs filled in and nothing else changed, as YAML. Raises: InvalidJob, as `load`."""
    return dump(_loaded(text, params=params, outputs=outputs or {}, source=source)[0].data)


def parameters(text: str, *, source: str) -> dict[str, str | None]:
    """Names of the parameters that a manifest uses, with their defaults, None for those without. Raises: InvalidJob: not YAML."""
    filling = _Filling(params={})
    filling.value((), read(text, source=source).data)
    return filling.used


def _loaded(
    text: str, *, params: Mapping[str, str], outputs: Mapping[str, str], source: str
) -> tuple[Tree, IdempotentJob]:
    tree = read(text, source=source)
    filling = _Filling(params=params)
    filled = filling.value((), tree.data)
    problems = list(filling.problems)
    if isinstance(filled, dict):  # else validation reports that it is not a manifest
        problems += [*_unused(params, filling.used), *_override(filled, outputs)]
    if problems:
        lines = [line_of(loc, tree.lines) if loc else None for loc, _, _ in problems]
        raise InvalidJob([(name, message) for _, name, message in problems], source=source, lines=lines)
    job = entrance.admit(filled, source=source, lines=tree.lines)
    return Tree(filled, tree.lines), job.admitted(source=source, lines=tree.lines)


@dataclass
class _Filling:
    """One pass over a document: fills parameters in and collects problems."""

    params: Mapping[str, str]
    used: dict[str, str | None] = field(default_factory=dict)
    problems: list[tuple[Loc, str, str]] = field(default_factory=list)
    _missing: set[str] = field(default_factory=set)

    def value(self, loc: Loc, value: Any) -> Any:
        """A copy with parameters filled in."""
        match value:
            case dict():
                return {name: self.value((*loc, name), each) for name, each in value.items()}
            case list():
                return [self.value((*loc, index), each) for index, each in enumerate(value)]
            case str() if "${" in value:
                return _REFERENCE.sub(lambda found: self._filled(loc, found), value)
        return value

    def _filled(self, loc: Loc, found: re.Match[str]) -> str:
        if found["body"] is None:
            return "${"
        if found["escaped"]:
            return "${" + found["body"] + "}"
        body = _BODY.fullmatch(found["body"])
        if body is None:
            sentence = f"has {found[0]}, which is no parameter; write ${{params.name}}, or $${{ for a plain ${{"
            self.problems.append((loc, path_text(loc), sentence))
            return found[0]
        name, default = body["name"], body["default"] if body["has"] else None
        self.used[name] = self.used.get(name) or default
        value = self.params.get(name, default)
        if value is None:
            if name in self._missing:
                return found[0]
            self._missing.add(name)
            sentence = f"needs the parameter {name}, which is not given; add --param {name}=VALUE"
            self.problems.append((loc, path_text(loc), sentence))
            return found[0]
        return value


def _unused(params: Mapping[str, str], used: Mapping[str, str | None]) -> Iterator[tuple[Loc, str, str]]:
    for name in params:
        if name not in used:
            hint = did_you_mean(name, used) or "; it has none"
            yield (), f"--param {name}", f"is no parameter of this manifest{hint}"


def _override(document: Mapping[str, Any], locations: Mapping[str, str]) -> Iterator[tuple[Loc, str, str]]:
    """Writes the locations into the document's outputs. Malformed outputs are left to validation."""
    spec = document.get("spec")
    declared = spec.get("outputs") if isinstance(spec, dict) else None
    entries = [entry for entry in declared if isinstance(entry, dict)] if isinstance(declared, list) else []
    by_name = {str(entry.get("name")): entry for entry in entries}
    for name, location in locations.items():
        option = f"--output {name}"
        if name not in by_name:
            yield (), option, f"is no output of this job{did_you_mean(name, by_name) or '; it declares none'}"
            continue
        kinds = [by_name[name][kind] for kind in _LOCATIONS if isinstance(by_name[name].get(kind), dict)]
        if "iceberg" in by_name[name]:
            yield (), option, "is an Iceberg table, which a folder cannot stand for"
        for kind in kinds:
            kind["path"] = location
