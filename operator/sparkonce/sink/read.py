"""`read(spark, path)`: the rows of a slot log, as Spark reads them.

The files are those that the visible slots name, given to Spark one by one. A folder is never listed to find rows: staged files of
attempts that lost lie in the same place. All named files must be there: Spark's settings that skip missing or broken files are
switched off for this read, because a table with a silent hole in it is worse than none.

Spark is told the schema that the writers recorded; nothing is inferred, so partition columns come back with the types they were written
with. Slots that are laid out alike are one scan, whatever their number, in which Spark prunes partitions and columns; slots of other
layouts are joined to it by a union. A scan of its own for each slot was not taken: plans of thousands of scans take minutes.
For that Spark must accept that the folders `day=...` of many writes lie in many places: `ignoreInvalidPartitionPaths` below one
`basePath`. Its other meaning, to pass over files that are in no such folder, has nothing to pass over: those are in another scan.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkonce import blocking
from sparkonce.errors import FilesMissing, NothingCommitted
from sparkonce.sink import layout
from sparkonce.sink.listing import files_of
from sparkonce.sink.objects import Objects
from sparkonce.sink.protocol import DataFile, Slot
from sparkonce.sink.schemas import merged
from sparkonce.sink.table import Table, missing_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Partitioning = tuple[str, ...]
"""Names of the columns that folders are named after, as the folders have them; empty for a plain layout."""


def read(spark: SparkSession, path: str | Path) -> DataFrame:
    """The table as it is now. `path`: a local path (a relative one is relative to the working folder) or a URL as outputs declare it.

    NothingCommitted, FilesMissing, OutputCorrupt, OutputUnavailable, InvalidInput (also: slots whose columns cannot be one table),
    OutputUnsupported: one sentence each. Columns that a slot lacks are null in its rows."""
    objects, slots = _whole(path)
    where = objects.where("").rstrip("/")
    named = [(layout.slot_path(slot.sink_key, slot.token), slot.data_schema) for slot in slots if slot.data_schema]
    schema = merged(named, where=where) if len(named) == len(slots) else None
    groups: dict[Partitioning, list[str]] = {}
    for slot in slots:
        for file in blocking.run(files_of(objects, slot)):
            groups.setdefault(partitioning(file), []).append(objects.where(file.path))
    return _frame(spark, groups, schema, base=objects.where(layout.DATA))


def files(path: str | Path) -> list[str]:
    """The files that hold the table's rows now, as Spark takes them: `spark.read.parquet(*sparkonce.files(path))`.

    Columns that folders are named after are not in the files. Errors as `read`."""
    objects, slots = _whole(path)
    return [objects.where(file.path) for slot in slots for file in blocking.run(files_of(objects, slot))]


def partitioning(file: DataFile) -> Partitioning:
    """Of the write that the file belongs to."""
    return tuple(part.partition("=")[0] for part in file.path.split("/")[layout.STAGING_DEPTH : -1])


def _whole(path: str | Path) -> tuple[Objects, list[Slot]]:
    """The visible slots, of which no file is missing."""
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
    whole: DataFrame | None = None
    for columns, named in groups.items():
        reader = spark.read.option("ignoreMissingFiles", "false").option("ignoreCorruptFiles", "false")
        # Names of files are names, not patterns.
        reader = reader.option("__globPaths__", "false")
        reader = reader.option("mergeSchema", "true") if known is None else reader.schema(known)
        if columns:
            reader = reader.option("basePath", base).option("ignoreInvalidPartitionPaths", "true")
        scan = reader.parquet(*named)
        if known is not None:
            scan = scan.select(*[f"`{name.replace('`', '``')}`" for name in known.names])  # partition columns come last
        whole = scan if whole is None else whole.unionByName(scan, allowMissingColumns=True)
    if whole is None:
        return spark.createDataFrame([], known or StructType([]))
    return whole
