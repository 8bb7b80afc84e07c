"""A stager without a JVM: writes a pyarrow table as two Parquet files, so that half a result can be distinguished from a whole one.

For tests that start and kill hundreds of driver processes. All later steps (footers, row check, slots) use the same code as files
written by Spark.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from sparkonce.blocking import run
from sparkonce.sink.objects.location import objects_at
from sparkonce.sink.staging import StagedRows

_SPARK_TYPES = {pa.int64(): "long", pa.int32(): "integer", pa.float64(): "double", pa.string(): "string"}


def arrow_stage(frame: pa.Table, folder: str, _partition_by: Sequence[str] = ()) -> StagedRows:
    """A `Stager` for pyarrow tables of the few types that tests use."""
    half = (frame.num_rows + 1) // 2
    there = Path(folder.removeprefix("file://")).glob("part-*.parquet")  # of earlier writes of the same slot
    first = max((int(path.stem[-5:]) + 1 for path in there), default=0)
    for part, rows in enumerate((frame.slice(0, half), frame.slice(half)), first):
        _put(folder, f"part-{part:05d}.parquet", rows)
    fields = [{"name": f.name, "type": _SPARK_TYPES[f.type], "nullable": True, "metadata": {}} for f in frame.schema]
    return StagedRows(
        rows=frame.num_rows, data_schema=json.dumps({"type": "struct", "fields": fields}), application="arrow"
    )


def stage_by_day(frame: pa.Table, folder: str, partition_by: Sequence[str] = ()) -> StagedRows:
    """The same, for rows of `days_of`: a file per row, in the folder that Spark's rows of that day would lie in."""
    for number, day in enumerate(frame["day"].to_pylist()):
        _put(
            f"{folder}/so-group-day={day}" if partition_by else folder,
            f"part-{number:05d}.parquet",
            frame.slice(number, 1),
        )
    staged = arrow_stage(frame.slice(0, 0), f"{folder}/_empty")
    return replace(staged, rows=frame.num_rows)


def days_of(number: int, days: Sequence[str]) -> Any:
    """A `pyarrow.Table` with the columns `day` and `n`: the number once for each day."""
    return pa.table({"day": pa.array(days, pa.string()), "n": pa.array([number] * len(days), pa.int64())})


def _put(folder: str, name: str, rows: pa.Table) -> None:
    if folder.startswith("file://"):
        path = Path(folder.removeprefix("file://"))
        path.mkdir(parents=True, exist_ok=True)
        parquet.write_table(rows, path / name)
        return
    data = pa.BufferOutputStream()
    parquet.write_table(rows, data)
    run(objects_at(folder, field="folder").create(name, data.getvalue().to_pybytes()))


def table_of(*numbers: int) -> Any:
    """A `pyarrow.Table` with one column `n`; it is passed where a sink's types say DataFrame.

    From a buffer: `pyarrow.array` of Python values imports pandas, which costs a driver as much as all that sparkonce imports.
    """
    values = pa.py_buffer(array("q", numbers))
    return pa.table({"n": pa.Array.from_buffers(pa.int64(), len(numbers), [None, values])})
