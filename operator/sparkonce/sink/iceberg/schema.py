"""Converts Spark schemas to Iceberg's and computes the schema change that staged rows need. Pure.

Columns are compared by their exact names. Columns that the table lacks are added at the end, as optional, and only with `merge_schema` or
as the first columns of a new table; columns that the rows lack are null, unless the table requires them. A different type is refused, even
where Iceberg could widen it: the table has other users, and a widening cannot be undone.

New columns are optional even where Spark knows that they contain no null: the next job's plan may not know it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from sparkonce.errors import InvalidInput
from sparkonce.sink.native import PARTITIONS

TRANSFORMS: dict[str, Callable[[], Transform[Any, Any]]] = dict(
    zip(PARTITIONS, (IdentityTransform, YearTransform, MonthTransform, DayTransform, HourTransform), strict=True)
)
WRITABLE = (IdentityTransform, YearTransform, MonthTransform, DayTransform, HourTransform, TruncateTransform)
"""Transforms that Spark can compute and whose value a file's statistics show."""

PRECISION = 37
"""Digits of a decimal that Spark truncates exactly: a difference needs one more, and it has 38."""

_SIMPLE: dict[str, Callable[[], IcebergType]] = {
    "boolean": BooleanType,
    "byte": IntegerType,
    "short": IntegerType,
    "integer": IntegerType,
    "long": LongType,
    "float": FloatType,
    "double": DoubleType,
    "string": StringType,
    "binary": BinaryType,
    "date": DateType,
    "timestamp": TimestamptzType,
    "timestamp_ntz": TimestampType,
}


@dataclass
class SchemaChange:
    """Difference between the rows' columns and a table's."""

    new: list[tuple[tuple[str, ...], IcebergType]] = field(default_factory=list)
    """Path and type of the columns that the table lacks."""
    changed: list[str] = field(default_factory=list)
    """Each: name, the table's type, the rows' type."""
    required: list[str] = field(default_factory=list)
    """Columns that the table requires and the rows may lack."""
    keys: list[str] = field(default_factory=list)
    """Fields in keys of maps that only the rows or only the table have: Iceberg lets no key gain or lose a field."""

    def problem(self, *, merge: bool) -> str | None:
        """Why rows of this schema do not fit the table; None if they do. merge: new columns may be added."""
        if self.changed:
            return f"these columns have another type there: {'; '.join(self.changed)}; cast them"
        if self.keys:
            return f"keys of a map must have the same fields in the table and in the rows, and {', '.join(self.keys)} differ; cast the keys"
        if self.required:
            return f"these columns are required there, and the rows may hold nulls in them: {', '.join(self.required)}"
        if self.new and not merge:
            names = ", ".join(".".join(path) for path, _ in self.new)
            return f"it has no column {names}; drop it from the rows, or write with merge_schema=True to add it"
        return None


def schema_of(data_schema: str) -> Schema:
    """Converts Spark's JSON schema; the field ids are placeholders.

    Raises:
        InvalidInput: names a column whose type Iceberg lacks.
    """
    numbers = itertools.count(1)
    return Schema(*_fields(json.loads(data_schema)["fields"], "", numbers))


def declared_of(data_schema: str) -> Schema:
    """The columns of a new table as `CREATE TABLE` gives them: with their NOT NULL and comments. Raises: as `schema_of`."""
    notes = [each.get("metadata", {}).get("comment") for each in json.loads(data_schema)["fields"]]
    fields = schema_of(data_schema).fields
    return Schema(*(each.model_copy(update={"doc": note}) for each, note in zip(fields, notes, strict=True)))


def nullable(rows: Schema) -> Schema:
    """The columns of a new table as rows give them: all optional."""
    return Schema(
        *(NestedField(each.field_id, each.name, optional(each.field_type), required=False) for each in rows.fields)
    )


def fit(rows: Schema, table: Schema) -> SchemaChange:
    found = SchemaChange()
    _compare(rows.as_struct(), table.as_struct(), (), found)
    return found


def unwritable(metadata: TableMetadata) -> str | None:
    """Why this release cannot write to the table; None if it can."""
    if metadata.format_version != 2:
        return f"it has format version {metadata.format_version}, and this version writes 2"
    for each in metadata.spec().fields:
        name = metadata.schema().find_column_name(each.source_id) or "a dropped column"
        if not isinstance(each.transform, WRITABLE):
            return (
                f"it is partitioned by {each.transform}({name}), which Spark's own writer cannot lay out; drop that partition field, or "
                "partition it by identity, year, month, day, hour or truncate"
            )
        kind = metadata.schema().find_type(each.source_id)
        if (
            isinstance(each.transform, TruncateTransform)
            and isinstance(kind, DecimalType)
            and kind.precision > PRECISION
        ):
            return (
                f"it is partitioned by {each.transform} of the {kind} {name}, which Spark computes exactly up to {PRECISION} digits; "
                "partition it by another column"
            )
    return None


def unmapped(metadata: TableMetadata) -> list[str]:
    """Columns that readers would not find in files without field ids because the table's name mapping lacks them."""
    mapping = metadata.name_mapping()
    if mapping is None:
        return []
    mapped, needed = mapping._field_by_name, metadata.schema().name_mapping._field_by_name  # noqa: SLF001 - it has no other index
    return [name for name, at in needed.items() if name not in mapped or mapped[name].field_id != at.field_id]


def reused(change: SchemaChange, metadata: TableMetadata) -> str | None:
    """Why a column cannot be added: the name was another column's, whose values lie in files without field ids, where readers find columns
    by name. None if it can."""
    mapping = metadata.name_mapping()
    names = [".".join(path) for path, _ in change.new]
    if mapping is None or not (taken := [name for name in names if name in mapping._field_by_name]):  # noqa: SLF001 - as above
        return None
    return (
        f"it had a column {taken[0]} before, which was renamed or dropped, and has files without field ids, in which a new column of that "
        "name would show the old values; rename the column in the rows"
    )


def identity_columns(spec: PartitionSpec, schema: Schema) -> tuple[str, ...]:
    return tuple(
        schema.find_column_name(each.source_id) or ""
        for each in spec.fields
        if isinstance(each.transform, IdentityTransform)
    )


def _fields(fields: list[dict[str, Any]], under: str, numbers: Iterator[int]) -> Iterator[NestedField]:
    for each in fields:
        number = next(numbers)
        name = f"{under}{each['name']}"
        yield NestedField(number, each["name"], _type(each["type"], name, numbers), required=not each["nullable"])


def _type(spark: Any, name: str, numbers: Iterator[int]) -> IcebergType:
    if isinstance(spark, str):
        if (simple := _SIMPLE.get(spark)) is not None:
            return simple()
        if spark.startswith("decimal("):
            precision, scale = spark.removeprefix("decimal(").removesuffix(")").split(",")
            return DecimalType(int(precision), int(scale))
        if spark.startswith(("varchar(", "char(", "string")):
            return StringType()
    elif spark["type"] == "struct":
        return StructType(*_fields(spark["fields"], f"{name}.", numbers))
    elif spark["type"] == "array":
        element = _type(spark["elementType"], f"{name}.element", numbers)
        return ListType(next(numbers), element, element_required=not spark["containsNull"])
    elif spark["type"] == "map":
        key, value = (_type(spark[f"{part}Type"], f"{name}.{part}", numbers) for part in ("key", "value"))
        return MapType(next(numbers), key, next(numbers), value, value_required=not spark["valueContainsNull"])
    what = spark if isinstance(spark, str) else spark["type"]
    raise InvalidInput(f"column {name} has Spark's type {what}, which an Iceberg table cannot hold; cast it or drop it")


def optional(kind: IcebergType) -> IcebergType:
    """The type with all nested fields optional."""
    if isinstance(kind, StructType):
        return StructType(
            *(NestedField(each.field_id, each.name, optional(each.field_type), required=False) for each in kind.fields)
        )
    if isinstance(kind, ListType):
        return ListType(kind.element_id, optional(kind.element_type), element_required=False)
    if isinstance(kind, MapType):
        return MapType(
            kind.key_id, optional(kind.key_type), kind.value_id, optional(kind.value_type), value_required=False
        )
    return kind


def _compare(
    rows: StructType, table: StructType, path: tuple[str, ...], found: SchemaChange, *, in_key: bool = False
) -> None:
    there = {each.name: each for each in table.fields}
    here = {each.name: each for each in rows.fields}
    if in_key and there.keys() != here.keys():
        found.keys += sorted(".".join((*path, name)) for name in there.keys() ^ here.keys())
        return
    for name, mine in here.items():
        if name not in there:
            found.new.append(((*path, name), optional(mine.field_type)))
            continue
        theirs = there[name]
        if theirs.required and not mine.required:
            found.required.append(".".join((*path, name)))
        _compare_types(mine.field_type, theirs.field_type, (*path, name), found, in_key=in_key)
    found.required += [
        ".".join((*path, name)) for name, theirs in there.items() if theirs.required and name not in here
    ]


def _compare_types(
    mine: IcebergType, theirs: IcebergType, path: tuple[str, ...], found: SchemaChange, *, in_key: bool
) -> None:
    """Notes the differences of two types. path: has `element`, `key` and `value`, because pyiceberg adds no column to a list in a list
    without them."""
    if isinstance(mine, StructType) and isinstance(theirs, StructType):
        _compare(mine, theirs, path, found, in_key=in_key)
    elif isinstance(mine, ListType) and isinstance(theirs, ListType):
        if theirs.element_required and not mine.element_required:
            found.required.append(".".join((*path, "element")))
        _compare_types(mine.element_type, theirs.element_type, (*path, "element"), found, in_key=in_key)
    elif isinstance(mine, MapType) and isinstance(theirs, MapType):
        if theirs.value_required and not mine.value_required:
            found.required.append(".".join((*path, "value")))
        _compare_types(mine.key_type, theirs.key_type, (*path, "key"), found, in_key=True)
        _compare_types(mine.value_type, theirs.value_type, (*path, "value"), found, in_key=in_key)
    elif mine != theirs:
        found.changed.append(f"{'.'.join(path)} is {_text(theirs)} in the table and {_text(mine)} in the rows")


def _text(kind: IcebergType) -> str:
    """A type for a sentence: without the fields of a nested one, whose ids mean nothing to a reader."""
    names = {StructType: "a struct", ListType: "a list", MapType: "a map"}
    return names.get(type(kind)) or str(kind)
