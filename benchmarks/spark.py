"""The Spark session of a benchmark's writes, and frames whose rows are cheap to make."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
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
"""A long, an int, a double, a string of few values and one of many: 301 MB of Parquet for ten million rows. The columns are those of the
research notes, so that numbers can be compared, and cheap to make: with expensive rows, every ratio would be close to 1."""

LIST = "array(cast(id % 1009 as int), cast(id % 1013 as int)) as pair"
"""A column more. Where rows have a list, Arrow writes the files of an Iceberg table: Spark gives a list's elements no ids."""


@contextmanager
def session(scratch: Path, more: Mapping[str, str] = MappingProxyType({})) -> Iterator[SparkSession]:
    """A session on local[2]: two tasks at a time, however many cores the machine has. more: settings."""
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
        **more,
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def end_jvm() -> None:
    """Ends the sessions' JVM and waits for it: if it outlived this process, its CPU would be counted as that of other programs."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway  # noqa: SLF001 - Spark leaves its JVM to the end of the process
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM exits when its standard input ends
    gateway.proc.wait(60)


def frame_of(spark: SparkSession, rows: int, *, lists: bool = False) -> DataFrame:
    return spark.range(0, rows, 1, PARTITIONS).selectExpr(*COLUMNS, *([LIST] if lists else ()))


def idle_frame(spark: SparkSession, rows: int, *, lists: bool = False) -> DataFrame:
    """A new frame for each run, as in a job; collects the heap and flushes the disk first, so that nothing is left from the last run."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - Spark has no public way to collect its heap
    jvm.System.gc()
    os.sync()
    return frame_of(spark, rows, lists=lists)
