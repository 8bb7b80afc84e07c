"""Decides whether rows fit a Delta table, and whether this writer supports the table. Pure: facts in, one sentence or a new schema out.

A Delta table may require work of its writers whose absence no reader notices at once: computed values, checked constraints, row
identifiers. Requirements not implemented here are refused by name; a feature that is enabled but unused is no reason to refuse. A fence
adds no row and changes no file, so nearly every table accepts one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkonce.sink.delta.widths import DECLARED, widths
from sparkonce.sink.groups import COLLATIONS

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
_COLLATION = re.compile(rf'"{COLLATIONS}": \{{"[^"]*": "([^"]*)"')
"""The first collation in a column's declaration, as `json.dumps` writes it."""
_LOCAL_TIME = re.compile(r'"(?:type|elementType|keyType|valueType)": "timestamp_ntz"')
"""In a declaration as `json.dumps` writes it."""
_IMPLIED = {
    "appendOnly": 2, "invariants": 2, "checkConstraints": 3, "changeDataFeed": 4, "generatedColumns": 4, "columnMapping": 5,
    "identityColumns": 6,
}  # fmt: skip
"""The writer version since which a table without a list of features has each of these."""
_BAD_NAME = re.compile(r"[ ,;{}()\n\t=]")
_NOT_FOLDERS = ("binary", "timestamp", "struct", "array", "map")
"""Types without a canonical text: Spark names folders of a `timestamp` in the session's time zone."""

Field = dict[str, Any]


@dataclass(frozen=True)
class RowLayout:
    """How rows of one schema are laid out in a table."""

    schema: Field | None
    """The table's new schema, when columns or fields of structs are added."""
    partition_by: tuple[str, ...]
    """The table's own partition columns; the rows' where the table had no columns."""
    staged_by: tuple[str, ...]
    """Those of them that the rows have, by which staging partitions."""
    enables: frozenset[str] = frozenset()
    """Table features that come with the rows, into a table whose columns were not defined before."""


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
    for column in schema["fields"]:
        for name, called in _OF_COLUMNS.items():
            if f'"{name}"' in json.dumps(column):  # includes the metadata of nested columns
                return f"its column {column['name']} has {called}, which this version does not compute"
    declared = widths(schema["fields"])
    return declared if isinstance(declared, str) else None


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
        enables = frozenset(needed_features(first)) - features
        return RowLayout(first if first["fields"] else None, tuple(asked), tuple(asked), enables)
    if asked and tuple(asked) != tuple(partition_by):
        own = ", ".join(partition_by) or "no column"
        return f"it is partitioned by {own}, not by {', '.join(asked)}; leave partition_by out"
    if why := _bad_columns(rows):
        return why
    found = _Comparison()
    merged = _fields(table, rows, (), found)
    if found.misfits:
        return found.misfits[0]
    kinds = {column["name"]: column["type"] for column in rows["fields"]}
    for name in partition_by:
        if name in kinds and (kind := _text(kinds[name])) in _NOT_FOLDERS:
            return f"it is partitioned by the {kind} {name}, which this version does not write"
    if found.new and not merge:
        named = ", ".join(".".join(path) for path, _ in found.new)
        return f"it does not have the column(s) {named}; pass merge_schema=True to add them, or drop them"
    added = [column for _, column in found.new]
    for column in table["fields"]:
        deeper = [path for path, _ in found.new if path[0] == column["name"]]
        if deeper and DECLARED in json.dumps(column):
            return (
                f"the metadata of its column {column['name']} declares the type with its widths ({DECLARED}), which would lack the new "
                f"{'.'.join(deeper[0])}; add it with ALTER TABLE first, or drop it"
            )
    if why := _unkept(added):
        return why
    for column in added:
        for feature in needed_features(column) - features:
            return (
                f"its new column {column['name']} holds timestamp_ntz, which needs the table feature {feature}; enable that feature "
                "first, or cast the column to timestamp"
            )
    schema = {**table, "fields": merged} if added else None
    return RowLayout(schema, tuple(partition_by), tuple(name for name in partition_by if name in kinds))


@dataclass
class _Comparison:
    """What a comparison of types has found."""

    new: list[tuple[tuple[str, ...], Field]] = field(default_factory=list)
    """Path and declaration of the fields that the table lacks."""
    misfits: list[str] = field(default_factory=list)
    """Sentences."""


def _fields(
    table: Field, rows: Field, path: tuple[str, ...], found: _Comparison, *, fixed: bool = False
) -> list[Field]:
    """The fields of a struct of the table, then those that only the rows have. Fields are matched by name, as all readers match them.

    fixed: the struct is in a map, where readers of delta-rs do not fill in fields that a file lacks, so both must have the same."""
    known = {column["name"]: column for column in table["fields"]}
    given = {column["name"]: column for column in rows["fields"]}
    by_lower, lower = {name.lower(): name for name in known}, {name.lower() for name in given}
    here = ".".join(path)
    for name, column in given.items():
        called = ".".join((*path, name))
        if name in known:
            continue
        if (other := by_lower.get(name.lower())) is not None:
            found.misfits.append(
                f"its column is called {'.'.join((*path, other))}, and the rows call it {called}; rename it"
            )
        elif fixed:
            found.misfits.append(f"its column {here} has no field {name}, and no field is added inside a map; drop it")
        else:
            found.new.append(((*path, name), nullable(column)))
    merged = [
        {**column, "type": _merged(column["type"], given[name]["type"], (*path, name), found, fixed=fixed)}
        if name in given
        else column
        for name, column in known.items()
    ]
    for name, column in known.items():
        called = ".".join((*path, name))
        if name in given:
            if column["nullable"] is False and given[name]["nullable"] is not False:
                found.misfits.append(_nulls(called))
        elif not column["nullable"] and name.lower() not in lower:
            found.misfits.append(f"its column {called} is NOT NULL, and the rows do not have it")
        elif fixed:
            found.misfits.append(
                f"its column {here} has a field {name}, which the rows lack; add it, inside a map nothing is filled in"
            )
    return [*merged, *(column for at, column in found.new if at[:-1] == path)]


def _merged(table: Any, rows: Any, path: tuple[str, ...], found: _Comparison, *, fixed: bool) -> Any:
    """A type of the table, with the fields that only the rows have."""
    called = ".".join(path)
    if _text(table) != _text(rows):
        found.misfits.append(f"its column {called} is {_text(table)}, and the rows have {_text(rows)}; cast it")
        return table
    if not isinstance(table, dict):
        return table
    match table["type"]:
        case "struct":
            return {**table, "fields": _fields(table, rows, path, found, fixed=fixed)}
        case "array":
            if table["containsNull"] is False and rows["containsNull"] is not False:
                found.misfits.append(_nulls(f"{called}.element"))
            element = _merged(table["elementType"], rows["elementType"], (*path, "element"), found, fixed=fixed)
            return {**table, "elementType": element}
        case _:
            if table["valueContainsNull"] is False and rows["valueContainsNull"] is not False:
                found.misfits.append(_nulls(f"{called}.value"))
            for part in ("key", "value"):
                _merged(table[f"{part}Type"], rows[f"{part}Type"], (*path, part), found, fixed=True)
            return table


def _nulls(called: str) -> str:
    return f"its column {called} is NOT NULL, and the rows may hold nulls there; coalesce them"


def new_schema(rows: Field, asked: Sequence[str], *, declared: bool = False) -> Field | str:
    """The schema of the table that these rows create, or one sentence why they cannot. declared: the columns are those of a table, and may
    be NOT NULL."""
    if why := _bad_columns(rows):
        return why
    types = {field["name"]: field["type"] for field in rows["fields"]}
    for name in asked:
        if name not in types:
            return f"the rows have no column {name} to partition by"
        kind = types[name] if isinstance(types[name], str) else types[name]["type"]
        if kind in _NOT_FOLDERS:
            return f"column {name} is {kind}, by which this version does not partition; use a date or a string"
    if why := _unkept(rows["fields"]):
        return why
    return {"type": "struct", "fields": rows["fields"] if declared else [nullable(column) for column in rows["fields"]]}


def _unkept(columns: Sequence[Field]) -> str | None:
    """Why a table cannot keep the metadata of new columns; None when it can."""
    for column in columns:
        if (collation := _COLLATION.search(json.dumps(column))) is not None:
            return f"column {column['name']} has the collation {collation[1]}, which this version does not write; cast it to string"
    declared = widths(columns)
    return declared if isinstance(declared, str) else None


EMPTY: Field = {"type": "struct", "fields": []}
_NOTHING_YET: Field = {"name": "_sparkonce_nothing_yet", "type": "string", "nullable": True, "metadata": {}}
"""Placeholder in a table created before its first rows: delta-rs reads no table without columns."""
BLANK: Field = {"type": "struct", "fields": [_NOTHING_YET]}


def is_blank(table: Field) -> bool:
    """Whether the table's columns are not defined yet."""
    return [field["name"] for field in table["fields"]] in ([], [_NOTHING_YET["name"]])


def needed_features(schema: Mapping[str, Any]) -> set[str]:
    """Table features that the types of some columns need."""
    return {"timestampNtz"} if _LOCAL_TIME.search(json.dumps(schema)) else set()


def new_protocol(features: Collection[str]) -> Field:
    """The body of the `protocol` action of a new table, the lowest that has these features of readers and writers."""
    if not features:
        return {"minReaderVersion": 1, "minWriterVersion": 2}
    named = sorted(features)
    return {"minReaderVersion": READER, "minWriterVersion": WRITER, "readerFeatures": named, "writerFeatures": named}


def raised_protocol(
    *, reader: int, writer: int, reader_features: frozenset[str], features: frozenset[str], enables: frozenset[str]
) -> Field:
    """The body of the `protocol` action of a table that keeps its features and enables others, of readers and writers.

    Raising a version names the features that the version before implied (Delta's protocol, section *Table features*)."""
    implied = {name for name, since in _IMPLIED.items() if since <= writer < WRITER}
    mapped = {"columnMapping"} if reader == READER - 1 else set()
    return {
        "minReaderVersion": READER,
        "minWriterVersion": WRITER,
        "readerFeatures": sorted(reader_features | mapped | enables),
        "writerFeatures": sorted(features | implied | enables),
    }


def nullable(column: Field) -> Field:
    """A field as a table declares it: nullable, whatever one job's rows promise, and without writers' metadata except comments and the
    widths of texts."""
    own = column.get("metadata") or {}
    metadata = {name: own[name] for name in ("comment", DECLARED) if isinstance(own.get(name), str)}
    return {"name": column["name"], "type": _loose(column["type"]), "nullable": True, "metadata": metadata}


def _loose(kind: Any) -> Any:
    if not isinstance(kind, dict):
        return kind
    match kind["type"]:
        case "struct":
            return {"type": "struct", "fields": [nullable(column) for column in kind["fields"]]}
        case "array":
            return {"type": "array", "elementType": _loose(kind["elementType"]), "containsNull": True}
        case _:
            return {
                "type": "map",
                "keyType": _loose(kind["keyType"]),
                "valueType": _loose(kind["valueType"]),
                "valueContainsNull": True,
            }


def _text(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])


def _bad_columns(rows: Field) -> str | None:
    if (twice := _twice(rows)) is not None:
        return f"the rows have two columns called {twice}; rename one"
    for column in rows["fields"]:
        if why := _bad_type(column["name"], column["type"]) or _bad_name(column["name"]):
            return why
    return None


def _twice(struct: Field) -> str | None:
    """A name that equals an earlier one, ignoring case."""
    seen: set[str] = set()
    for each in struct["fields"]:
        if (lower := each["name"].lower()) in seen:
            return str(each["name"])
        seen.add(lower)
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
            if (twice := _twice(kind)) is not None:
                return f"column {name} has two fields called {twice}; rename one"
            inner = ((each["name"], each["type"]) for each in kind["fields"])
            return next(
                (why for each, of in inner if (why := _bad_type(f"{name}.{each}", of) or _bad_name(each))), None
            )
        case "array":
            return _bad_type(f"{name}.element", kind["elementType"])
        case "map":
            return _bad_type(f"{name}.key", kind["keyType"]) or _bad_type(f"{name}.value", kind["valueType"])
        case other:
            return f"column {name} is {other}, which a Delta table cannot hold here; cast it"
