"""Decides whether rows fit a Delta table, and whether this writer supports the table. Pure: facts in, one sentence or a new schema out.

A Delta table may make demands on writers that no reader would miss at once: computed values, checked constraints, row identifiers. Demands
not implemented here are refused by name; a feature that is enabled but unused is no reason to refuse. A fence adds no row and changes no
file, so nearly every table takes one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

READER, WRITER = 3, 7
"""The highest protocol versions; from there on tables name their features one by one."""

KNOWN = frozenset(
    {
        "appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "identityColumns",
        "columnMapping", "deletionVectors", "domainMetadata", "inCommitTimestamp", "v2Checkpoint", "timestampNtz",
        "vacuumProtocolCheck", "allowColumnDefaults", "variantType", "variantType-preview", "icebergCompatV1",
        "icebergCompatV2",
    }
)  # fmt: skip
"""Features that demand nothing of this writer unless the table's properties or columns use them."""
FENCEABLE = KNOWN | {"rowTracking", "clustering", "typeWidening", "typeWidening-preview", "checkpointProtection"}
"""Features that demand nothing of an entry without files."""

RETENTION = "delta.setTransactionRetentionDuration"

_IN_USE = {
    "delta.columnMapping.mode": ("none", "column mapping"),
    "delta.enableIcebergCompatV1": ("false", "Iceberg compatibility"),
    "delta.enableIcebergCompatV2": ("false", "Iceberg compatibility"),
}
_OF_COLUMNS = {
    "delta.generationExpression": "a generated column",
    "delta.identity.start": "an identity column",
    "delta.invariants": "an invariant",
    "CURRENT_DEFAULT": "a default value",
}
_PRIMITIVE = re.compile(
    r"(string|long|integer|short|byte|float|double|boolean|binary|date|timestamp|timestamp_ntz|decimal\(\d+,\d+\))$"
)
_BAD_NAME = re.compile(r"[ ,;{}()\n\t=]")
_NOT_FOLDERS = ("binary", "timestamp", "struct", "array", "map")
"""Types without a canonical text: Spark names folders of a `timestamp` in the session's time zone."""

Field = dict[str, Any]


@dataclass(frozen=True)
class RowLayout:
    """How rows of one schema are laid out in a table."""

    schema: Field | None
    """The table's new schema, when columns are added."""
    partition_by: tuple[str, ...]
    """The table's own partition columns; the rows' where the table had no columns."""
    staged_by: tuple[str, ...]
    """Those of them that the rows have, by which staging partitions."""


def unwritable(
    *, reader: int, writer: int, features: frozenset[str], configuration: Mapping[str, str], schema: Field
) -> str | None:
    """Why we cannot write rows; None when we can."""
    if why := unfenceable(reader=reader, writer=writer, features=features, configuration=configuration):
        return why
    if unknown := sorted(features - KNOWN):
        return f"it uses {', '.join(unknown)}, which this version does not write"
    for name, (unused, called) in _IN_USE.items():
        if configuration.get(name, unused).lower() != unused:
            return f"it uses {called} ({name}), which this version does not write"
    if constraints := sorted(name for name in configuration if name.startswith("delta.constraints.")):
        return f"it has the constraint {constraints[0]}, which this version does not check"
    for field in schema["fields"]:
        for name, called in _OF_COLUMNS.items():
            if f'"{name}"' in json.dumps(field):  # includes the metadata of nested columns
                return f"its column {field['name']} has {called}, which this version does not compute"
    return None


def unfenceable(*, reader: int, writer: int, features: frozenset[str], configuration: Mapping[str, str]) -> str | None:
    """Why we cannot write even an entry without files; None when we can."""
    if reader > READER or writer > WRITER:
        return f"it demands reader version {reader} and writer version {writer}; upgrade sparkonce"
    if unknown := sorted(features - FENCEABLE):
        return f"it uses {', '.join(unknown)}, which this version does not know"
    if configuration.get("delta.enableInCommitTimestamps", "false").lower() == "true":
        return "it keeps timestamps in its commits (delta.enableInCommitTimestamps), which this version does not write"
    if RETENTION in configuration:
        return (
            f"it forgets who committed after {configuration[RETENTION]} ({RETENTION}), and with that what is committed once could be "
            f"committed again; unset that property"
        )
    return None


def fit(
    rows: Field,
    *,
    table: Field,
    partition_by: Sequence[str],
    asked: Sequence[str],
    merge: bool,
    features: frozenset[str],
) -> RowLayout | str:
    """How rows fit an existing table, or one sentence why they do not. asked: the columns that the job partitions by."""
    if is_blank(table):  # created before its columns were known: the first rows define them
        first = new_schema(rows, asked)
        if isinstance(first, str):
            return first
        if lacking_features := needed_features(first) - features:
            return f"a column needs the table feature {', '.join(sorted(lacking_features))}; enable it first"
        return RowLayout(first if first["fields"] else None, tuple(asked), tuple(asked))
    if asked and tuple(asked) != tuple(partition_by):
        own = ", ".join(partition_by) or "no column"
        return f"it is partitioned by {own}, not by {', '.join(asked)}; leave partition_by out"
    known = {field["name"]: field for field in table["fields"]}
    by_lower = {name.lower(): name for name in known}
    if why := _bad_columns(rows):
        return why
    added: list[Field] = []
    for field in rows["fields"]:
        name = field["name"]
        if name not in known:
            if (other := by_lower.get(name.lower())) is not None:
                return f"its column is called {other}, and the rows call it {name}; rename it"
            added.append(field)
        elif _shape(field["type"]) != _shape(known[name]["type"]):
            return (
                f"its column {name} is {_text(known[name]['type'])}, and the rows have {_text(field['type'])}; cast it"
            )
        elif name in partition_by and _text(field["type"]) in _NOT_FOLDERS:
            return f"it is partitioned by the {_text(field['type'])} {name}, which this version does not write"
        elif _stricter(known[name], field):
            return f"its column {name} is NOT NULL, and the rows may hold nulls there; coalesce them"
    given = {field["name"] for field in rows["fields"]}
    if lacking := [name for name, field in known.items() if not field["nullable"] and name not in given]:
        return f"its column {lacking[0]} is NOT NULL, and the rows do not have it"
    if added and not merge:
        named = ", ".join(field["name"] for field in added)
        return f"it does not have the column(s) {named}; say merge_schema=True to add them, or drop them"
    if lacking_features := needed_features({"fields": added}) - features:
        return f"a new column needs the table feature {', '.join(sorted(lacking_features))}; enable it first"
    schema = {**table, "fields": [*table["fields"], *map(nullable, added)]} if added else None
    return RowLayout(schema, tuple(partition_by), tuple(name for name in partition_by if name in given))


def new_schema(rows: Field, asked: Sequence[str]) -> Field | str:
    """The schema of the table that these rows create, or one sentence why they cannot."""
    if why := _bad_columns(rows):
        return why
    types = {field["name"]: field["type"] for field in rows["fields"]}
    for name in asked:
        if name not in types:
            return f"the rows have no column {name} to partition by"
        kind = types[name] if isinstance(types[name], str) else types[name]["type"]
        if kind in _NOT_FOLDERS:
            return f"column {name} is {kind}, by which this version does not partition; use a date or a string"
    return {"type": "struct", "fields": [nullable(field) for field in rows["fields"]]}


EMPTY: Field = {"type": "struct", "fields": []}
_NOTHING_YET: Field = {"name": "_sparkonce_nothing_yet", "type": "string", "nullable": True, "metadata": {}}
"""Placeholder in a table created before its first rows: delta-rs reads no table without columns."""
BLANK: Field = {"type": "struct", "fields": [_NOTHING_YET]}


def is_blank(table: Field) -> bool:
    """Whether the table's columns are not defined yet."""
    return [field["name"] for field in table["fields"]] in ([], [_NOTHING_YET["name"]])


def needed_features(schema: Mapping[str, Any]) -> set[str]:
    """Table features that the types of some columns need."""
    return {"timestampNtz"} if '"timestamp_ntz"' in json.dumps(schema) else set()


def nullable(field: Field) -> Field:
    """A field as a table declares it: nullable, whatever one job's rows promise, and without writers' metadata except comments."""
    comment = (field.get("metadata") or {}).get("comment")
    metadata = {"comment": comment} if isinstance(comment, str) else {}
    return {"name": field["name"], "type": _loose(field["type"]), "nullable": True, "metadata": metadata}


def _loose(kind: Any) -> Any:
    if not isinstance(kind, dict):
        return kind
    match kind["type"]:
        case "struct":
            return {"type": "struct", "fields": [nullable(field) for field in kind["fields"]]}
        case "array":
            return {"type": "array", "elementType": _loose(kind["elementType"]), "containsNull": True}
        case _:
            return {
                "type": "map",
                "keyType": _loose(kind["keyType"]),
                "valueType": _loose(kind["valueType"]),
                "valueContainsNull": True,
            }


def _shape(kind: Any) -> Any:
    """The part of a type that decides equality: names and types, without nullability and metadata."""
    if not isinstance(kind, dict):
        return kind
    match kind["type"]:
        case "struct":
            return ["struct", [[field["name"], _shape(field["type"])] for field in kind["fields"]]]
        case "array":
            return ["array", _shape(kind["elementType"])]
        case _:
            return ["map", _shape(kind["keyType"]), _shape(kind["valueType"])]


def _stricter(table: Any, rows: Any) -> bool:
    """Whether the table forbids nulls that the rows allow, at any depth. Both must have the same shape."""
    if not isinstance(table, dict) or not isinstance(rows, dict):
        return False
    flags = ("nullable", "containsNull", "valueContainsNull")
    if any(table.get(flag) is False and rows.get(flag) is not False for flag in flags):
        return True
    inner = ("type", "elementType", "keyType", "valueType")
    if any(_stricter(table.get(each), rows.get(each)) for each in inner):
        return True
    return any(_stricter(*pair) for pair in zip(table.get("fields", ()), rows.get("fields", ()), strict=True))


def _text(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])


def _bad_columns(rows: Field) -> str | None:
    seen: set[str] = set()
    for field in rows["fields"]:
        name = field["name"]
        if name.lower() in seen:
            return f"the rows have two columns called {name}; rename one"
        seen.add(name.lower())
        if why := _bad_type(name, field["type"]) or _bad_name(name):
            return why
    return None


def _bad_name(name: str) -> str | None:
    if _BAD_NAME.search(name):
        return f"the column name {name!r} holds a space or one of , ; {{ }} ( ) =, which a Delta table cannot have; rename it"
    return None


def _bad_type(name: str, kind: Any) -> str | None:
    if isinstance(kind, str):
        if not _PRIMITIVE.match(kind):
            return f"column {name} is {kind}, which a Delta table cannot hold here; cast it"
        return None
    match kind.get("type"):
        case "struct":
            inner = ((field["name"], field["type"]) for field in kind["fields"])
            return next(
                (why for each, of in inner if (why := _bad_type(f"{name}.{each}", of) or _bad_name(each))), None
            )
        case "array":
            return _bad_type(f"{name}[]", kind["elementType"])
        case "map":
            return _bad_type(name, kind["keyType"]) or _bad_type(name, kind["valueType"])
        case other:
            return f"column {name} is {other}, which a Delta table cannot hold here; cast it"
