"""Version 1 of the canonical form of a job. Frozen, because fingerprints in ledgers were made by it: changes go into a version 2 beside it.

Treated as equal: any order of keys; a default written out or not (the table here, not the model's current defaults); a field that is
absent, null or empty; `3` and `"3"` where the value is text anyway; any order of environment entries and of outputs. Tunable and ignored
fields, identity, and the spec's policies are left out.

Operation and resource are identity where the key is derived from them. Beside an `idempotencyKey` they must match: no job had them there
when this version was made, so no earlier fingerprint depends on it. The same holds for `stream`, `series` and `capture`, and for
an output's `mode` and `capture`; defaults are left out.

An empty map or list *inside an entry of a list* is kept: entries are often unions (`emptyDir: {}`), where the empty member is the choice.
Environment entries whose values refer to one another (`$(NAME)`) keep their order, which matters then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from sparkonce.model.fields import (
    FieldClass,
    FieldClasses,
    argument_texts,
    as_text,
    dotted,
    field_classes,
    tunable_positions,
)
from sparkonce.model.spec import Capture, IdempotentJob, JobSpec, Output, Series, Undeclared, WriteMode
from sparkonce.model.validation import Loc, path_text

VERSION = 1

SPEC_CLASSES: Mapping[str, FieldClass] = {
    "idempotencyKey": FieldClass.IDENTITY,
    "operation": FieldClass.IDENTITY,
    "resource": FieldClass.IDENTITY,
    "revision": FieldClass.IDENTITY,
    "keyFrom": FieldClass.IDENTITY,
    "template": FieldClass.MUST_MATCH,
    "outputs": FieldClass.MUST_MATCH,
    "stream": FieldClass.MUST_MATCH,
    "series": FieldClass.MUST_MATCH,
    "capture": FieldClass.MUST_MATCH,
    "bind": FieldClass.IGNORED,
    "onDuplicate": FieldClass.IGNORED,
    "onMismatch": FieldClass.IGNORED,
    "onFinalized": FieldClass.IGNORED,
    "onResultChanged": FieldClass.IGNORED,
    "onUnknown": FieldClass.IGNORED,
    "onDelete": FieldClass.IGNORED,
    "retry": FieldClass.IGNORED,
    "startTimeoutSeconds": FieldClass.IGNORED,
    "activeDeadlineSeconds": FieldClass.IGNORED,
    "heartbeatTimeoutSeconds": FieldClass.IGNORED,
    "stopTimeoutSeconds": FieldClass.IGNORED,
    "lingerSeconds": FieldClass.IGNORED,
    "retention": FieldClass.IGNORED,
    "applicationTTL": FieldClass.IGNORED,
    "ttlSecondsAfterFinished": FieldClass.IGNORED,
    "suspend": FieldClass.IGNORED,
    "tunableArguments": FieldClass.IGNORED,
    "ignoredConf": FieldClass.IGNORED,  # no job had it when this version was made; the settings that it names still match here
}
"""Classes of the fields of `spec`; a field that is not named must match."""

OUTPUT_DEFAULTS: Mapping[str, JsonValue] = {"onRerun": "Replace", "expect.minRows": 0}
"""Values of absent fields of an output."""

_INTEGER = 2**53 - 1  # RFC 8785 has no larger integers


@dataclass(frozen=True)
class Leaf:
    path: str
    """Equal for the same field of two documents; the key of the field's digest."""
    value: JsonValue


@dataclass(frozen=True)
class Canonical:
    """What must match, as JSON, and where its arguments are in the manifest."""

    document: Mapping[str, JsonValue]
    contents: Mapping[str, str]
    arguments_path: str
    argument_positions: tuple[int, ...]
    """Position in the manifest of each argument that must match; the others are tunable."""
    argument_count: int

    def leaves(self) -> list[Leaf]:
        """Every value of the document with its path: documents are equal if their leaves are."""
        found = list(_leaves((), dict(self.document)))
        return found + [Leaf(name, digest) for name, digest in self.contents.items()]

    def shown(self, path: str) -> str:
        """A leaf's path in the manifest, where tunable arguments count although the canonical form leaves them out."""
        prefix = f"{self.arguments_path}["
        if not path.startswith(prefix) or not path.endswith("]"):
            return path
        index = int(path.removeprefix(prefix).removesuffix("]"))
        kept = len(self.argument_positions)
        position = self.argument_positions[index] if index < kept else index + self.argument_count - kept
        return f"{prefix}{position}]"


def canonical(job: IdempotentJob, contents: Mapping[str, str]) -> Canonical:
    """The must-match part of a job. Raises: UnknownTemplateKind: no field classes are registered."""
    template = job.spec.template
    classes = field_classes(template.api_version, template.kind, version=VERSION)
    texts = argument_texts(template.spec.get(classes.arguments))
    tunable = tunable_positions(texts, job.spec.tunable_arguments)
    kept = tuple(index for index in range(len(texts)) if index not in tunable)
    spec = _template_spec(template.spec, classes, [texts[index] for index in kept])
    document: dict[str, JsonValue] = {
        **_unnamed(job.spec),
        **_beside_key(job.spec),
        **_stream(job.spec),
        **(_series(job.spec.series) if job.spec.series else {}),
        **(_capture(job.spec.capture) if job.spec.capture else {}),
        "template": {"apiVersion": template.api_version, "kind": template.kind, "spec": spec},
        "outputs": {output.name: _output(output) for output in job.resolved_outputs},
    }
    return Canonical(
        document={"spec": document},
        contents=contents,
        arguments_path=path_text(("spec", "template", "spec", classes.arguments)),
        argument_positions=kept,
        argument_count=len(texts),
    )


def _unnamed(spec: JobSpec) -> dict[str, JsonValue]:
    """Fields of the spec that this version does not name, which must match."""
    unnamed = [name for name, field in type(spec).model_fields.items() if (field.alias or name) not in SPEC_CLASSES]
    dumped = spec.model_dump(mode="json", by_alias=True, exclude_unset=True, include=set(unnamed))
    return _map(dumped, within_entry=False)


def _beside_key(spec: JobSpec) -> dict[str, JsonValue]:
    """Operation and resource beside a client's key, if the job names them."""
    if spec.idempotency_key is None or spec.operation is None:
        return {}
    return {"operation": spec.operation, "resource": spec.resource}


def _stream(spec: JobSpec) -> dict[str, JsonValue]:
    """What streams may do, if that is not the default."""
    return {"stream": {"restart": True}} if spec.restarts_streams else {}


def _series(series: Series) -> dict[str, JsonValue]:
    """The place among other keys; what the job does if it is late is a policy."""
    return {"series": {"name": series.name, "position": series.position}}


def _capture(capture: Capture) -> dict[str, JsonValue]:
    """What a captured script may do, if that is not the default."""
    return {"capture": {"undeclared": "Warn"}} if capture.undeclared is Undeclared.WARN else {}


def _output(output: Output) -> dict[str, JsonValue]:
    left_out = {"name"} if output.capture else {"name", "capture"}
    given: dict[str, Any] = output.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude=left_out)
    _fill(given, OUTPUT_DEFAULTS)
    if output.mode is WriteMode.APPEND:
        del given["mode"]
    return _map(given, within_entry=False)


def _template_spec(spec: Mapping[str, JsonValue], classes: FieldClasses, arguments: list[str]) -> dict[str, JsonValue]:
    must_match = _selected(spec, (), classes)
    must_match.pop(classes.arguments, None)
    if arguments:
        must_match[classes.arguments] = list(arguments)
    _fill(must_match, classes.defaults)
    return must_match


def _selected(fields: Mapping[str, JsonValue], at: tuple[str, ...], classes: FieldClasses) -> dict[str, JsonValue]:
    """Drops tunable, ignored and empty fields. Classes apply to map keys only, so lists are kept whole."""
    kept: dict[str, JsonValue] = {}
    for name, value in fields.items():
        path = (*at, name)
        if classes.of(path) is not FieldClass.MUST_MATCH:
            continue
        if dotted(at) in classes.conf and value is not None:
            canonical_value: JsonValue = as_text(value)
        elif dotted(path) in classes.environment and isinstance(value, list):
            canonical_value = _environment(value)
        elif isinstance(value, dict):
            canonical_value = _selected(value, path, classes)
        else:
            canonical_value = _value(value, within_entry=False)
        if canonical_value not in (None, {}, []):
            kept[name] = canonical_value
    return kept


def _environment(entries: list[JsonValue]) -> JsonValue:
    """Environment entries by name; in order if a name repeats or a value refers to another."""
    names = [entry.get("name") if isinstance(entry, dict) else None for entry in entries]
    refers = any(isinstance(entry, dict) and "$(" in str(entry.get("value")) for entry in entries)
    if refers or None in names or len(set(map(str, names))) != len(names):
        return _value(entries, within_entry=False)
    by_name: dict[str, JsonValue] = {}
    for entry in entries:
        if isinstance(entry, dict):
            rest = _map({key: value for key, value in entry.items() if key != "name"}, within_entry=True)
            plain = set(rest) <= {"value"}
            value = rest.get("value")
            by_name[str(entry["name"])] = ("" if value is None else as_text(value)) if plain else rest
    return by_name


def _value(value: JsonValue, *, within_entry: bool) -> JsonValue:
    match value:
        case dict():
            return _map(value, within_entry=within_entry)
        case list():
            return [_value(each, within_entry=True) for each in value]
        case bool() | None | str() | float():
            return value
        case int():
            return value if abs(value) <= _INTEGER else str(value)


def _map(fields: Mapping[str, JsonValue], *, within_entry: bool) -> dict[str, JsonValue]:
    values = {name: _value(value, within_entry=within_entry) for name, value in fields.items()}
    dropped: tuple[JsonValue, ...] = (None,) if within_entry else (None, {}, [])
    return {name: value for name, value in values.items() if value not in dropped}


def _fill(fields: dict[str, Any], defaults: Mapping[str, JsonValue]) -> None:
    """Writes out each default whose field is absent or null."""
    for path, default in defaults.items():
        *above, name = path.split(".")
        place = fields
        for step in above:
            inner = place.get(step)
            place[step] = inner = dict(inner) if isinstance(inner, dict) else {}
            place = inner
        if place.get(name) is None:
            place[name] = default


def _leaves(loc: Loc, value: JsonValue) -> list[Leaf]:
    if isinstance(value, dict) and value:
        return [leaf for name, each in value.items() for leaf in _leaves((*loc, name), each)]
    if isinstance(value, list) and value:
        return [leaf for index, each in enumerate(value) for leaf in _leaves((*loc, index), each)]
    return [Leaf(path_text(loc), value)]
