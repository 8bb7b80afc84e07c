"""A manifest: YAML text, its parameters filled in, to an IdempotentJob or to sentences with file and line.

Read as `kubectl` reads it, so that one file means one job in both places: dates and clock times stay text, `1e5` is a number. Refused
where kubectl is lenient: a key that is there twice, and a second document, because one of the two would be silently lost.

Parameters and overridden outputs are filled in *before* anything is validated, keyed or fingerprinted; a value never becomes YAML
structure, because only text values are filled, after parsing. Templating the text itself was not taken: a value with a colon would
change the document.

PyYAML is imported here alone (and by the CRD's generator): a driver's image has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkonce.model.problems import InvalidJob, Loc, did_you_mean, line_of, path_text
from sparkonce.model.spec import IdempotentJob
from sparkonce.model.yaml_tree import Tree, dump, read

__all__ = ["InvalidJob", "load", "parameters", "render"]

_REFERENCE = re.compile(r"\$(?P<escaped>\$)?\{(?P<body>params\.[^{}]*)\}|\$\$\{")
_BODY = re.compile(r"params\.(?P<name>[A-Za-z_][A-Za-z0-9_-]*)(?P<has>:-(?P<default>.*))?", re.DOTALL)
_LOCATIONS = ("slotLog", "delta")  # kinds of output that are a folder


def load(
    text: str, *, params: Mapping[str, str], source: str, outputs: Mapping[str, str] | None = None
) -> IdempotentJob:
    """The job of a manifest. InvalidJob tells every problem with its path and line.

    `params` fill `${params.name}` and `${params.name:-default}` in text values; `$${` stands for `${`. `outputs` are locations by
    output name that replace the declared ones, as they are: the caller knows what a relative one is relative to.
    """
    return _loaded(text, params=params, outputs=outputs or {}, source=source)[1]


def render(text: str, *, params: Mapping[str, str], source: str, outputs: Mapping[str, str] | None = None) -> str:
    """The manifest with everything filled in and nothing else changed, as YAML that kubectl reads alike."""
    return dump(_loaded(text, params=params, outputs=outputs or {}, source=source)[0].data)


def parameters(text: str, *, source: str) -> dict[str, str | None]:
    """Names of the parameters that a manifest uses, with their defaults where it has them."""
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
    if isinstance(filled, dict):  # else it is no manifest at all, which is what to tell
        problems += [*_unused(params, filling.used), *_override(filled, outputs)]
    if problems:
        lines = [line_of(loc, tree.lines) if loc else None for loc, _, _ in problems]
        raise InvalidJob([(name, message) for _, name, message in problems], source=source, lines=lines)
    return Tree(filled, tree.lines), IdempotentJob.of(filled, source=source, lines=tree.lines)


@dataclass
class _Filling:
    """One pass over a document."""

    params: Mapping[str, str]
    used: dict[str, str | None] = field(default_factory=dict)
    problems: list[tuple[Loc, str, str]] = field(default_factory=list)
    _missing: set[str] = field(default_factory=set)

    def value(self, loc: Loc, value: Any) -> Any:
        """A copy with every text filled in."""
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
    """Writes the locations into the document's outputs. What is malformed there is left for validation to tell."""
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
