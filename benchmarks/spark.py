"""Where the writes of a benchmark run: one session, and frames of rows that cost little to make."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 8

COLUMNS = (
    "id",
    "cast(id * 7919 % 1000003 as int) as number",
    "(id * 31 % 999983) / 100D as amount",
    "concat('category-', cast(id % 97 as string)) as category",
    "hex(xxhash64(id)) as token",
)
"""A long, an int, a double, a string of few values and one of many: 301 MB of Parquet for ten million rows. They are those of the
research notes, so that numbers can be compared, and cheap to make: with rows that cost much, every ratio would look like 1."""


@contextmanager
def session(scratch: Path) -> Iterator[SparkSession]:
    """local[2]: two tasks at a time, whatever the machine has."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("sparkonce-bench")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "2g",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.local.dir": str(scratch / "local"),
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def end_jvm() -> None:
    """Waits for the JVM of the sessions that were: one that outlives us is nobody's child, and its CPU would be counted as others'."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway  # noqa: SLF001 - Spark leaves its JVM to the end of the process
    gateway.shutdown()
    gateway.proc.stdin.close()  # at whose end it ends
    gateway.proc.wait(60)


def frame_of(spark: SparkSession, rows: int) -> DataFrame:
    return spark.range(0, rows, 1, PARTITIONS).selectExpr(*COLUMNS)


def idle_frame(spark: SparkSession, rows: int) -> DataFrame:
    """A frame of its own for each run, as a job has, and nothing left over from the last one: the heap is collected, the disk is idle."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - Spark has no public way to collect its heap
    jvm.System.gc()
    os.sync()
    return frame_of(spark, rows)
