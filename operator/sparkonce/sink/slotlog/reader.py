"""`read(spark, path)`: the rows of a slot log as a DataFrame.

Spark gets the files that the visible slots name, one by one. Folders are never listed to find rows: staged files of failed attempts
lie in the same place. Every named file must exist: Spark's options that skip missing or corrupt files are switched off for this read,
because a table with silently missing rows is worse than an error.

The schema is merged from the schemas that the writers recorded, so partition columns keep the types they were written with; nothing is
inferred. Columns merge by name at any depth of structs, and a column that a slot lacks is null there. A column with two types is refused,
and so are two columns that differ only in case: Spark would confuse them, or fail in the middle of a query with an error about a file.
Widening (int to long) is not supported: whether a reader may widen depends on the encoding of a file, which a schema does not show.

Slots with the same partition columns share one scan, however many they are, in which Spark prunes partitions and columns; scans of
different layouts are joined by a union. One scan per slot was rejected: plans of thousands of scans take minutes. A shared scan needs
`ignoreInvalidPartitionPaths` below one `basePath`, because the folders `day=...` of many writes lie under different parents. That option
also skips files outside partition folders; such files are always in another scan.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkonce import blocking
from sparkonce.errors import FilesMissing, InvalidInput, NothingCommitted
from sparkonce.sink.objects.protocol import TableObjects
from sparkonce.sink.protocol import DataFile, Slot
from sparkonce.sink.slotlog import layout
from sparkonce.sink.slotlog.layout import files_of
from sparkonce.sink.slotlog.snapshot import Table, missing_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NULLS = {"nullable", "containsNull", "valueContainsNull"}

Partitioning = tuple[str, ...]
"""Partition columns in the order of the folders; empty for an unpartitioned layout."""


def read(spark: SparkSession, path: str | Path) -> DataFrame:
    """The current rows of the slot log at `path`: a local path (relative to the working directory) or a URL as in `spec.outputs`.

    Columns that a slot lacks are null in its rows.

    Raises:
        NothingCommitted: no job has committed to the table yet.
        FilesMissing: a committed file is missing, or has another size.
        OutputCorrupt: a slot or a list of files does not parse.
        OutputUnavailable: the store did not answer.
        InvalidInput: not a valid location, or slots whose columns cannot be merged.
        OutputUnsupported: a scheme that is not supported.
    """
    objects, slots = _complete_slots(path)
    where = objects.where("").rstrip("/")
    named = [(layout.slot_path(slot.sink_key, slot.token), slot.data_schema) for slot in slots if slot.data_schema]
    schema = merged(named, where=where) if len(named) == len(slots) else None
    groups: dict[Partitioning, list[str]] = {}
    for slot in slots:
        for file in blocking.run(files_of(objects, slot)):
            groups.setdefault(partitioning(file), []).append(objects.where(file.path))
    return _frame(spark, groups, schema, base=objects.where(layout.DATA))


def files(path: str | Path) -> list[str]:
    """URLs of the files with the table's current rows: `spark.read.parquet(*sparkonce.files(path))`.

    Partition columns are in the names of folders, not in the files.

    Raises:
        SparkonceError: as for `read`.
    """
    objects, slots = _complete_slots(path)
    return [objects.where(file.path) for slot in slots for file in blocking.run(files_of(objects, slot))]


def partitioning(file: DataFile) -> Partitioning:
    """Partition columns of the write that the file belongs to."""
    return tuple(part.partition("=")[0] for part in file.path.split("/")[layout.STAGING_DEPTH : -1])


def _complete_slots(path: str | Path) -> tuple[TableObjects, list[Slot]]:
    """The visible slots, once all their files are known to exist."""
    table = Table(str(path))
    objects, slots = table.objects, table.slots()
    where = objects.where("").rstrip("/").removeprefix("file://")
    if not slots:
        raise NothingCommitted(
            f"no job has committed anything to {where} yet; run one that declares it as an output, or check the path"
        )
    if missing := blocking.run(missing_files(objects, slots)):
        raise FilesMissing(
            f"{len(missing)} committed file(s) of {where} are not there as they were written, the first is {missing[0]}; "
            "restore them from a backup, or rerun the job that wrote them"
        )
    return objects, slots


def _frame(
    spark: SparkSession, groups: dict[Partitioning, list[str]], schema: dict[str, Any] | None, *, base: str
) -> DataFrame:
    from pyspark.sql.types import StructType

    known = None if schema is None else StructType.fromJson(json.loads(json.dumps(schema)))
    union: DataFrame | None = None
    for columns, named in groups.items():
        reader = spark.read.option("ignoreMissingFiles", "false").option("ignoreCorruptFiles", "false")
        # A file name may contain glob characters.
        reader = reader.option("__globPaths__", "false")
        reader = reader.option("mergeSchema", "true") if known is None else reader.schema(known)
        if columns:
            reader = reader.option("basePath", base).option("ignoreInvalidPartitionPaths", "true")
        scan = reader.parquet(*named)
        if known is not None:
            scan = scan.select(
                *[f"`{name.replace('`', '``')}`" for name in known.names]
            )  # Spark puts partition columns last
        union = scan if union is None else union.unionByName(scan, allowMissingColumns=True)
    if union is None:
        return spark.createDataFrame([], known or StructType([]))
    return union


def merged(schemas: Iterable[tuple[str, str]], *, where: str) -> dict[str, Any]:
    """Merges Spark schemas into one, as the dict of Spark's JSON.

    schemas: (path of the slot, schema as JSON) in the order in which new columns are to appear. where: the table, for errors.

    Raises:
        InvalidInput: two schemas cannot be merged; names the column and both slots.
    """
    names: dict[str, str] = {}
    result: dict[str, Any] = {"type": "struct", "fields": []}
    seen: dict[str, Any] = {}
    for slot, text in schemas:
        if text in seen:
            continue
        seen[text] = True
        result = _struct(result, json.loads(text), "", (where, slot, names))
    return result


def _struct(
    one: dict[str, Any], other: dict[str, Any], at: str, context: tuple[str, str, dict[str, str]]
) -> dict[str, Any]:
    where, slot, names = context
    fields = {each["name"]: each for each in one["fields"]}
    folded = {name.lower(): name for name in fields}
    for each in other["fields"]:
        name, path = each["name"], f"{at}{each['name']}"
        known = folded.get(name.lower())
        if known is None:
            folded[name.lower()] = name
            fields[name] = {**each, "nullable": True}
            names[path] = slot
        elif known != name:
            raise InvalidInput(
                f"{where} has a column {at}{known} in {_introduced_by(names, f'{at}{known}')} and {path} in {slot}, which Spark takes for "
                "one; rename it in the job that wrote the later one and rerun that"
            )
        else:
            fields[name] = {**fields[name], "type": _type(fields[name]["type"], each["type"], path, context)}
    return {"type": "struct", "fields": list(fields.values())}


def _type(one: Any, other: Any, path: str, context: tuple[str, str, dict[str, str]]) -> Any:
    if isinstance(one, dict) and isinstance(other, dict) and one.get("type") == other.get("type"):
        kind = one["type"]
        if kind == "struct":
            return _struct(one, other, f"{path}.", context)
        if kind == "array":
            return {
                **one,
                "containsNull": True,
                "elementType": _type(one["elementType"], other["elementType"], path, context),
            }
        if kind == "map":
            key = _type(one["keyType"], other["keyType"], path, context)
            value = _type(one["valueType"], other["valueType"], path, context)
            return {**one, "keyType": key, "valueType": value, "valueContainsNull": True}
    if _without_nullability(one) != _without_nullability(other):
        where, slot, names = context
        raise InvalidInput(
            f"{where} has the column {path} as {_type_name(one)} in {_introduced_by(names, path)} and as {_type_name(other)} in {slot}; "
            "rerun one of the two jobs with the other's type"
        )
    return one


def _without_nullability(value: Any) -> Any:
    return {k: v for k, v in value.items() if k not in _NULLS} if isinstance(value, dict) else value


def _type_name(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind.get("type"))


def _introduced_by(names: dict[str, str], path: str) -> str:
    """The slot that introduced a column, or the struct that contains it."""
    while path and path not in names:
        path = path.rpartition(".")[0]
    return names.get(path, "one slot")
