"""Modes with a real Spark: partitions by date, of tables that the job creates, read by readers that are not ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

import sparkonce
from harness import iceberg_tables
from harness.granted import document, granted
from harness.spark import spark
from sparkonce.blocking import run
from sparkonce.driver.context import Job
from sparkonce.model.spec import IdempotentJob
from sparkonce.sink.open import sinks_of
from sparkonce.sink.protocol import Committed, SinkKey, WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]

DELTA, ICEBERG = {"delta": {"path": "lake/orders"}}, {"iceberg": {"catalog": "lake", "table": "sales.orders"}}


def rows_of(folder: Path, kind: str) -> list[tuple[str, int]]:
    if kind == "delta":
        table = DeltaTable(str(folder / "lake" / "orders")).to_pyarrow_table()
    else:
        table = iceberg_tables.table().scan().to_arrow()
    return sorted((str(row["day"]), row["n"]) for row in table.to_pylist())


@pytest.mark.spark
@pytest.mark.parametrize("place", [DELTA, ICEBERG], ids=["delta", "iceberg"])
def test_a_daily_job_replaces_its_day(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: dict[str, Any]
) -> None:
    """Two days in one table; the second day is loaded anew by another key, and then the whole table is overwritten. Null days count as one
    partition."""
    for name, value in iceberg_tables.sql_catalog(tmp_path).items():
        monkeypatch.setenv(name, value)
    kind = next(iter(place))

    def load(key: str, mode: str, *rows: tuple[str | None, int]) -> None:
        job = IdempotentJob.of(document({}, outputs=[{"name": "orders", **place, "mode": mode}]))
        sink = sinks_of(job, str(tmp_path))["orders"]
        frame = spark.createDataFrame(list(rows), "day string, n long").selectExpr("cast(day as date) as day", "n")
        at = SinkKey(key_hash=key, output="orders", generation=1)
        slot = sink.stage(frame, at, 1, fingerprint="f", options=WriteOptions(partition_by=("day",)))
        assert run(sink.commit(at, slot)) == Committed(slot)

    load("a", "OverwritePartitions", ("2024-05-01", 1), ("2024-05-01", 2), (None, 3))
    load("b", "OverwritePartitions", ("2024-05-02", 4))
    assert rows_of(tmp_path, kind) == [("2024-05-01", 1), ("2024-05-01", 2), ("2024-05-02", 4), ("None", 3)]
    load("c", "OverwritePartitions", ("2024-05-01", 5), (None, 6))
    assert rows_of(tmp_path, kind) == [("2024-05-01", 5), ("2024-05-02", 4), ("None", 6)]
    load("d", "Overwrite", ("2024-05-03", 7))
    assert rows_of(tmp_path, kind) == [("2024-05-03", 7)]


@pytest.mark.spark
def test_a_job_overwrites_a_slot_log(spark: SparkSession, tmp_path: Path) -> None:
    """`job.write` with the mode in the call: `sparkonce.read` shows the rows of the second key alone, with its columns, and the first key's
    result is changed by the second."""

    def job(key: str) -> Job:
        attempt = granted(tmp_path, "orders", idempotencyKey=key)
        return attempt.job(sinks=sinks_of(attempt.prepared.job, str(tmp_path)))

    first, second = job("load-may"), job("load-june")
    first.write(spark.createDataFrame([(1, "a"), (2, "b")], "n long, old string"), "orders")
    done = second.write(spark.createDataFrame([(3, "c")], "n long, name string"), "orders", mode="Overwrite")
    assert done.fresh
    rows = sparkonce.read(spark, str(tmp_path / "orders"))
    assert (rows.columns, [tuple(row) for row in rows.collect()]) == (["n", "name"], [(3, "c")])
    assert str(run(first._sinks["orders"].probe(first._key(first._sinks["orders"]), None))) == "changed"
