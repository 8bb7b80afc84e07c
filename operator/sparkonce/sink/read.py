"""`read(spark, path)`: the rows of a slot log, as Spark reads them.

The files are those that the visible slots name, given to Spark one by one. A folder is never listed to find rows: staged files of
attempts that lost lie in the same place. All named files must be there: Spark's settings that skip missing or broken files are
switched off for this read, because a table with a silent hole in it is worse than none.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkonce import blocking
from sparkonce.errors import FilesMissing, NothingCommitted
from sparkonce.sink.listing import files_of
from sparkonce.sink.location import local_folder
from sparkonce.sink.table import Table, missing_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, path: str | Path) -> DataFrame:
    """The table as it is now. `path`: a local path (a relative one is relative to the working folder) or a `file://` URI.

    NothingCommitted, FilesMissing, OutputCorrupt, OutputUnavailable, InvalidInput, OutputUnsupported: one sentence each. Slots whose
    schemas differ are merged as Spark merges Parquet schemas; Spark's own error says when they cannot be."""
    folder = local_folder(str(path), base=str(Path.cwd()), field="path")
    table = Table(folder)
    slots = table.slots()
    if not slots:
        raise NothingCommitted(
            f"no job has committed anything to {folder} yet; run one that declares it as an output, or check the path"
        )
    if missing := blocking.run(missing_files(table.objects, slots)):
        raise FilesMissing(
            f"{len(missing)} committed file(s) of {folder} are not there as they were written, the first is {missing[0]}; "
            "restore them from a backup, or rerun the job that wrote them"
        )
    files = [table.objects.where(file.path) for slot in slots for file in blocking.run(files_of(table.objects, slot))]
    schemas = {json.dumps(_shape(slot.data_schema)): slot.data_schema for slot in slots}
    return _frame(spark, files, list(schemas.values()))


def _frame(spark: SparkSession, files: list[str], schemas: list[str]) -> DataFrame:
    from pyspark.sql.types import StructType

    if not files:
        return spark.createDataFrame([], StructType.fromJson(json.loads(schemas[-1])))
    one = StructType.fromJson(json.loads(schemas[0])) if len(schemas) == 1 and schemas[0] else None
    reader = spark.read.option("ignoreMissingFiles", "false").option("ignoreCorruptFiles", "false")
    return (reader.option("mergeSchema", "true") if one is None else reader.schema(one)).parquet(*files)


def _shape(data_schema: str) -> Any:
    """What tells schemas apart for a reader: a column that may be null in one slot may be null in the table."""
    return (
        _without(json.loads(data_schema), {"nullable", "containsNull", "valueContainsNull", "metadata"})
        if data_schema
        else None
    )


def _without(value: Any, names: set[str]) -> Any:
    if isinstance(value, dict):
        return {name: _without(each, names) for name, each in value.items() if name not in names}
    return [_without(each, names) for each in value] if isinstance(value, list) else value
