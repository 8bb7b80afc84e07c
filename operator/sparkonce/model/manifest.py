"""A job file with parameters to an IdempotentJob, or to problems with file and line; and documents back to YAML.

`document` reads the file. Parameters and overridden outputs are filled in before validation, key and fingerprint. Only text values are
filled, after parsing, so a value never becomes YAML structure; templating the text itself would let a value that contains a colon change
the document.

Together with `yaml_reader` the only module that imports PyYAML at run time: a driver's image has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from sparkonce.model import entrance
from sparkonce.model.document.reader import Tree, read
from sparkonce.model.spec import IdempotentJob
from sparkonce.model.validation import InvalidJob, Loc, did_you_mean, line_of, path_text

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./:@+-]*")  # text that every YAML reader reads as text...
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}  # ...but these


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
    if (params or outputs) and isinstance(filled, dict):  # else validation reports that it is not a manifest
        problems += [*_unused(params, filling.used), *_override(filled, outputs)]
    if problems:
        lines = [line_of(loc, tree.lines) if loc else None for loc, _, _ in problems]
        raise InvalidJob([(name, message) for _, name, message in problems], source=source, lines=lines)
    job = entrance.admit(filled, source=source, lines=tree.lines)
    entrance.check_template(job, source=source, lines=tree.lines)
    return Tree(filled, tree.lines), job


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
            sentence = f"has {found[0]}, which is not a parameter; write ${{params.name}}, or $${{ for a plain ${{"
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
            yield (), f"--param {name}", f"is not a parameter of this manifest{hint}"


def _override(document: Mapping[str, Any], locations: Mapping[str, str]) -> Iterator[tuple[Loc, str, str]]:
    """Writes the locations into the document's outputs. Malformed outputs are left to validation."""
    spec = document.get("spec")
    declared = spec.get("outputs") if isinstance(spec, dict) else None
    entries = [entry for entry in declared if isinstance(entry, dict)] if isinstance(declared, list) else []
    by_name = {str(entry.get("name")): entry for entry in entries}
    for name, location in locations.items():
        option = f"--output {name}"
        if name not in by_name:
            yield (), option, f"is not an output of this job{did_you_mean(name, by_name) or '; it declares none'}"
            continue
        kinds = [by_name[name][kind] for kind in _LOCATIONS if isinstance(by_name[name].get(kind), dict)]
        if "iceberg" in by_name[name]:
            yield (), option, "is an Iceberg table, which a folder cannot stand for"
        for kind in kinds:
            kind["path"] = location
