"""`read(spark, path)`: the rows of a slot log as a DataFrame.

Spark gets the files that the visible slots name, one by one. Folders are never listed to find rows: staged files of failed attempts
lie in the same place. Every named file must exist: Spark's options that skip missing or corrupt files are switched off for this read,
because a table with silently missing rows is worse than an error.

The schema is merged from the schemas that the writers recorded, so partition columns keep the types they were written with; nothing is
inferred. Columns merge by name at any depth of structs, and a column that a slot lacks is null there. A column with two types is refused,
and so are two columns that differ only in case: Spark would confuse them, or fail in the middle of a query with an error about a file.
Widening (int to long) is not supported: whether a reader may widen depends on the encoding of a file, which a schema does not show.

The files hold every column. The folders of a partitioned write let Spark skip files that a filter excludes: where their names are the
values' own text (see `sink.groups`), the scan takes the partition columns from them. Files of earlier versions lack those columns.

Files with the same partition columns share one scan, however many they are, in which Spark prunes partitions and columns; scans of
different layouts are joined by a union. One scan per slot was rejected: plans of thousands of scans take minutes. A shared scan needs
`ignoreInvalidPartitionPaths` below one `basePath`, because the folders `day=...` of many writes lie under different parents. That option
also skips files outside partition folders; such files are always in another scan.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from sparkonce import blocking
from sparkonce.errors import FilesMissing, InvalidInput, NothingCommitted
from sparkonce.sink.groups import COLLATIONS, HELPER, NULL, is_plain, named, quoted
from sparkonce.sink.objects.protocol import TableObjects
from sparkonce.sink.protocol import DataFile, Slot
from sparkonce.sink.slotlog import layout
from sparkonce.sink.slotlog.latest import last_of, order_columns, refuse_unordered
from sparkonce.sink.slotlog.snapshot import Table, missing_of, seen_in
from sparkonce.sink.slotlog.visibility import Shown, path_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NULLS = {"nullable", "containsNull", "valueContainsNull"}

_CAST = re.compile(r"(byte|short|integer|long|decimal\(\d+,\d+\)|boolean|date|string)$")
"""Types whose values Spark reads from their text as they were."""

_RANGE = re.compile(r"(.+)@(\d{1,18})-(\d{1,18})")
"""Batches of a lane: its name, the first and the last number."""

Partitioning = tuple[tuple[str, str], ...]
"""The folders' name of each partition column, and the column; in the order of the folders. Empty where all columns are in the files."""


def read(
    spark: SparkSession, path: str | Path, *, batches: str | None = None, latest: Sequence[str] | None = None
) -> DataFrame:
    """The current rows of the slot log at `path`: a local path (relative to the working directory) or a URL as in `spec.outputs`.

    Columns that a slot lacks are null in its rows.

    batches: only these of one lane, as `sparkonce lanes range` prints them: `tap-7@251-300`.

    latest: the keys of the table's lanes: only the last row of each key, and none of keys whose last row has true in `_deleted`; that
    column is left out. Of `batches`, the rows are what has changed: those of deleted keys are there, too, and the last column, `_deleted`,
    tells them. The query fails if two lanes have written one key.

    Raises:
        NothingCommitted: no job has committed to the table yet.
        FilesMissing: a committed file is missing, or has another size.
        OutputCorrupt: a slot or a list of files does not parse.
        OutputUnavailable: the store did not answer.
        InvalidInput: not a valid location, or slots whose columns cannot be merged; or `batches` that are not all there; or `latest` is not
            the keys of each lane, or the table has rows of jobs.
        OutputUnsupported: a scheme that is not supported.
    """
    return rows_of(spark, Table(str(path)), batches=batches, latest=latest)


def rows_of(
    spark: SparkSession, table: Table, *, batches: str | None = None, latest: Sequence[str] | None = None
) -> DataFrame:
    """As `read`."""
    objects, seen = _complete(table, batches)
    where = objects.where("").rstrip("/")
    keys = () if latest is None else refuse_unordered(seen, latest, where=where)
    seen = [(slot, found) for slot, found in seen if not _is_rowless(slot)]
    schemas = [(path_of(slot), slot.data_schema) for slot, _ in seen if slot.data_schema]
    schema = merged(schemas, where=where) if len(schemas) == len(seen) else None
    types = {} if schema is None else {each["name"]: each for each in schema["fields"]}
    scans: dict[Partitioning, list[str]] = {}
    for _, found in seen:
        for file in found:
            scans.setdefault(partitioning(file, types), []).append(objects.where(file.path))
    frame = _frame(spark, scans, schema, base=objects.where(layout.DATA), ordered=latest is not None)
    return frame if latest is None else last_of(frame, keys, deleted=batches is not None)


def files(path: str | Path, *, batches: str | None = None) -> list[str]:
    """URLs of the files with the table's current rows: `spark.read.parquet(*sparkonce.files(path))`.

    Files that an earlier version wrote lack the partition columns, whose values are in the names of their folders. batches: as for `read`.

    Raises:
        SparkonceError: as for `read`.
    """
    objects, seen = _complete(Table(str(path)), batches)
    return [objects.where(file.path) for _, found in seen for file in found]


def partitioned_by(table: Table) -> tuple[str, ...] | None:
    """The partition columns of the current rows, in the order of their folders; empty: they have none. None: writers partitioned them
    differently.

    Raises:
        SparkonceError: as for `read`.
    """
    _, seen = _complete(table)
    found = {_folder_columns(file) for _, own in seen for file in own if file.rows}
    return next(iter(found)) if len(found) == 1 else None


def _folder_columns(file: DataFile) -> tuple[str, ...]:
    return tuple(named(file.path)) or _unmarked(file)


def _unmarked(file: DataFile) -> tuple[str, ...]:
    """The same of a file that an earlier version wrote."""
    folders = file.path.split("/")[layout.STAGING_DEPTH : -1]
    return tuple(unquote(part.partition("=")[0]) for part in folders)


def partitioning(file: DataFile, types: Mapping[str, Any]) -> Partitioning:
    """The columns whose values Spark can take from a file's folders, in the folders' order, each with the name that the folders use.

    types: the table's columns in Spark's JSON."""
    found = named(file.path)
    if not found:  # of an earlier version, whose files lack these columns
        return tuple((column, column) for column in _unmarked(file))
    if all(_told_by_folder(name, types.get(column)) for column, name in found.items()):
        return tuple((f"{HELPER}{column}", column) for column in found)
    return ()


def _told_by_folder(name: str, field: Mapping[str, Any] | None) -> bool:
    """Whether Spark's cast of a folder's name to the column's type is the value that the files hold."""
    if field is None or not isinstance(field["type"], str) or COLLATIONS in field.get("metadata", {}):
        return False
    return bool(_CAST.match(field["type"])) and (name == NULL or is_plain(name))


def _is_rowless(slot: Slot) -> bool:
    """Whether a place of a lane comes before its first row, so that it has no columns either."""
    return slot.lane is not None and not slot.data_schema


def _complete(table: Table, batches: str | None = None) -> tuple[TableObjects, Shown]:
    """The visible slots with the files that readers see, once those are known to exist. batches: see `read`."""
    objects = table.objects
    where = objects.where("").rstrip("/").removeprefix("file://")
    missing: list[str] = []
    for _ in range(2):  # files of a lane that was trimmed meanwhile are gone, and readers do not need them any more
        now = table.now()
        seen = _asked(blocking.run(seen_in(objects, now)), batches, where=where)
        asked = [file for _, found in seen for file in found]
        missing = blocking.run(missing_of(objects, asked, writes=len(now.committed)))
        if not missing:
            return objects, seen
    raise FilesMissing(
        f"{len(missing)} committed file(s) of {where} are missing or changed, the first is {missing[0]}; "
        "restore them from a backup, or rerun the job that wrote them"
    )


def _asked(seen: Shown, batches: str | None, *, where: str) -> Shown:
    if all(_is_rowless(slot) for slot, _ in seen):
        raise NothingCommitted(
            f"no job has committed anything to {where} yet; run one that declares it as an output, or check the path"
        )
    return seen if batches is None else of_batches(seen, batches, where=where)


def range_of(text: str) -> tuple[str, int, int] | None:
    """Lane, first and last number of a range as `sparkonce lanes range` prints it; None: it is none."""
    asked = _RANGE.fullmatch(text)
    if asked is None or not 1 <= int(asked[2]) <= int(asked[3]):
        return None
    return asked[1], int(asked[2]), int(asked[3])


def of_batches(seen: Shown, batches: str, *, where: str) -> Shown:
    """The slots that hold these batches of a lane, with the files of those. where: the table, for errors.

    Raises:
        InvalidInput: not a range, or not all of it is in the table.
    """
    asked = range_of(batches)
    if asked is None:
        raise InvalidInput(
            f"batches is {batches!r}, and must be a range as `sparkonce lanes range` prints it: NAME@FIRST-LAST"
        )
    name, first, last = asked
    found, covered = [], 0
    for slot, own in seen:
        lane = slot.lane
        if lane is None or lane.name != name or not (lane.first <= last and lane.last >= first):
            continue
        covered += min(last, lane.last) - max(first, lane.first) + 1
        found.append((slot, [file for file in own if first <= int(Path(file.path).stem) <= last]))
    if covered < (count := last - first + 1):
        show = f"sparkonce lanes show {where} {name} --all"
        raise InvalidInput(f"{where} has {covered} of the {count} batches {batches}; `{show}` shows those that it has")
    return found


def _frame(
    spark: SparkSession,
    scans: dict[Partitioning, list[str]],
    schema: dict[str, Any] | None,
    *,
    base: str,
    ordered: bool,
) -> DataFrame:
    """ordered: with the columns of `order_columns`; unless there are no files."""
    from pyspark.sql.functions import col
    from pyspark.sql.types import StructField, StructType

    known = None if schema is None else StructType.fromJson(json.loads(json.dumps(schema)))
    union: DataFrame | None = None
    for columns, paths in scans.items():
        reader = spark.read.option("ignoreMissingFiles", "false").option("ignoreCorruptFiles", "false")
        # A file name may contain glob characters.
        reader = reader.option("__globPaths__", "false")
        if known is None:
            reader = reader.option("mergeSchema", "true")
        else:
            helpers = [StructField(folder, known[column].dataType) for folder, column in columns if folder != column]
            reader = reader.schema(StructType([*known.fields, *helpers]))
        if columns:
            reader = reader.option("basePath", base).option("ignoreInvalidPartitionPaths", "true")
        scan = reader.parquet(*paths)
        if known is not None:  # Spark puts partition columns last
            folder_of = {column: folder for folder, column in columns}
            order = order_columns(scan) if ordered else []
            scan = scan.select(*[col(quoted(folder_of.get(name, name))).alias(name) for name in known.names], *order)
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


def one_schema(one: str, other: str, *, where: str) -> str:
    """The schema of rows of two writes that one slot is to hold, in Spark's JSON. where: the table, for errors.

    Raises:
        InvalidInput: they have other columns, or the same in other types.
    """
    if one == other:
        return one
    before, now = (_columns_in(json.loads(text)["fields"]) for text in (one, other))
    if before != now:
        names = {name for name in (*before, *now) if before.get(name) != now.get(name)}
        raise InvalidInput(
            f"rows of one job in the slot log {where} have the same columns, and these differ from those that the script has written there "
            f"before in {', '.join(sorted(names))}; give all of them the same columns, in the same types"
        )
    return json.dumps(merged([("", one), ("", other)], where=where), separators=(",", ":"))


def _columns_in(fields: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The columns by name, without what makes no difference to rows: nullability and comments."""
    return {
        each["name"]: (
            _bare(each["type"]),
            {name: value for name, value in each.get("metadata", {}).items() if name != "comment"},
        )
        for each in fields
    }


def _bare(kind: Any) -> Any:
    """A type without nullability."""
    if not isinstance(kind, dict):
        return kind
    if kind.get("type") == "struct":
        return _columns_in(kind["fields"])
    return {name: _bare(value) for name, value in kind.items() if name not in _NULLS}


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
                f"{where} has a column {at}{known} in {_introduced_by(names, f'{at}{known}')} and {path} in {slot}, which Spark treats as "
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
