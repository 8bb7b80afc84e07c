"""`job.write` with rows of Spark Connect: `python -m harness.connect_spark FOLDER`.

Starts a Connect server in this process, writes to one table of each kind, tries what is refused, and writes what was found as one JSON
object. It is a process of its own, because PySpark has one mode per process.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
from deltalake import DeltaTable
from pyarrow import parquet
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import sparkonce
from harness import iceberg_tables
from harness.granted import granted
from sparkonce.driver.context import Job
from sparkonce.errors import SparkonceError
from sparkonce.sink.open import sinks_of
from sparkonce.sink.slotlog.snapshot import Table

PLACES: dict[str, dict[str, Any]] = {
    "slotLog": {"slotLog": {"path": "lake/slots"}},
    "delta": {"delta": {"path": "lake/delta"}},
    "iceberg": {"iceberg": {"catalog": "lake", "table": "sales.orders"}},
}
OLD = dt.datetime(1500, 3, 1, 12, tzinfo=dt.UTC)
"""A moment at which the Julian calendar, that of the session's setting, has another date."""


class Play:
    """One table and the jobs that write it."""

    def __init__(self, folder: Path, spark: SparkSession, kind: str) -> None:
        self.folder, self.spark, self.kind = folder, spark, kind

    def job(self, key: str) -> Job:
        attempt = granted(
            self.folder, idempotencyKey=f"{self.kind}-{key}", outputs=[{"name": "t", **PLACES[self.kind]}]
        )
        return attempt.job(sinks=sinks_of(attempt.prepared.job, str(self.folder)))

    def frame(self, *numbers: int) -> Any:
        rows = [(number, f"g{number % 2}" if number else None, OLD) for number in numbers]
        self.spark.createDataFrame(rows, "n long, g string, at timestamp").createOrReplaceTempView("given")
        return self.spark.sql("select n, g, at from given").withColumn("one", F.lit(1))

    def rows(self) -> list[list[Any]]:
        """By readers that are not ours."""
        if self.kind == "slotLog":
            table = duckdb.read_parquet(self.files(), hive_partitioning=False).to_arrow_table()
        elif self.kind == "delta":
            table = DeltaTable(str(self.folder / "lake" / "delta")).to_pyarrow_table()
        else:
            table = iceberg_tables.table().scan().to_arrow()
        found = sorted(table.to_pylist(), key=lambda row: row["n"])
        return [[row["n"], row["g"], row["at"].astimezone(dt.UTC) == OLD, row["one"]] for row in found]

    def files(self) -> list[str]:
        if self.kind == "slotLog":
            return Table(self.folder / "lake" / "slots").files()
        return [str(path) for path in (self.folder / "lake" / "delta").rglob("*.parquet")]


def said(act: Callable[[], object]) -> str:
    try:
        act()
    except SparkonceError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def facts_of(folder: Path, spark: SparkSession, kind: str) -> dict[str, Any]:
    play = Play(folder, spark, kind)
    found: dict[str, Any] = {}
    job = play.job("first")
    made = job.write(play.frame(0, 1, 2), "t", partition_by=["g"])
    found["first"] = [made.fresh, made.rows, play.rows()]
    found["application"] = next(iter(job._committed_slots.values())).application == spark.conf.get("spark.app.id")
    play.job("second").write(play.frame(3), "t", partition_by=["g"])
    found["second"] = play.rows()
    play.job("third").write(play.frame(5, 6), "t", mode="overwritePartitions", partition_by=["g"])
    found["third"] = play.rows()
    play.job("fourth").write(play.frame(7), "t", mode="overwrite", partition_by=["g"])
    found["fourth"] = play.rows()
    found["session"] = spark.conf.get("spark.sql.parquet.outputTimestampType")
    if kind != "iceberg":
        found["timestamps"] = sorted({parquet.read_schema(file).field("at").type.unit for file in play.files()})
    found["merge"] = said(lambda: play.job("merge").write(play.frame(1), "t", mode="merge", on=["n"]))
    found["stream"] = said(lambda: play.job("stream").stream(play.frame(1)).write("t"))
    found["sql"] = said(lambda: play.job("sql").sql("DELETE FROM t", "t"))

    # The view that the rows come from gets other columns between two looks.
    frame, late = play.frame(8), play.job("late")

    def replaced(*arguments: Any, **named: Any) -> Any:
        spark.createDataFrame([("9", "g1", OLD)], "n string, g string, at timestamp").createOrReplaceTempView("given")
        return stage(*arguments, **named)

    sink = late._sinks["t"]
    stage, sink.stage = sink.stage, replaced  # type: ignore[method-assign]
    try:
        late.write(frame, "t", partition_by=["g"])
    except AnalysisException:
        found["late"] = "AnalysisException"
    found["after all"] = play.rows()
    return found


def main(folder: Path) -> None:
    os.environ.update(iceberg_tables.sql_catalog(folder))
    spark = SparkSession.builder.remote("local[1]").getOrCreate()
    spark.conf.set("spark.sql.parquet.datetimeRebaseModeInWrite", "LEGACY")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    found: dict[str, Any] = {kind: facts_of(folder, spark, kind) for kind in PLACES}
    found["read"] = [[row["n"], row["g"]] for row in sparkonce.read(spark, str(folder / "lake" / "slots")).collect()]
    (folder / "facts.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
