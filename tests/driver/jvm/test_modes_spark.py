"""Modes with a real Spark: partitions by date, of tables that the job creates, read by readers that are not ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
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
from sparkonce.sink.slotlog.snapshot import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]

DELTA, ICEBERG = {"delta": {"path": "lake/orders"}}, {"iceberg": {"catalog": "lake", "table": "sales.orders"}}
SLOTS = {"slotLog": {"path": "lake/orders"}}


def rows_of(folder: Path, kind: str) -> list[tuple[str, int]]:
    if kind == "delta":
        table = DeltaTable(str(folder / "lake" / "orders")).to_pyarrow_table()
    elif kind == "slotLog":
        files = Table(folder / "lake" / "orders").files()
        table = duckdb.read_parquet(files, hive_partitioning=False).to_arrow_table()
    else:
        table = iceberg_tables.table().scan().to_arrow()
    return sorted((str(row["day"]), row["n"]) for row in table.to_pylist())


@pytest.mark.spark
@pytest.mark.parametrize("place", [DELTA, ICEBERG, SLOTS], ids=["delta", "iceberg", "slotLog"])
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
        done = run(sink.commit(at, slot))
        assert isinstance(done, Committed)
        assert done.slot.nonce == slot.nonce

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


@pytest.mark.spark
def test_odd_values_are_partitions_of_their_own_in_a_slot_log(spark: SparkSession, tmp_path: Path) -> None:
    """Null, the empty text, the text that names null's folder, case, slashes, and texts too long for a folder's name: one of each is
    replaced, with a number beside it, and its likes keep their rows."""
    odd = [None, "", "__HIVE_DEFAULT_PARTITION__", "A", "a", "ä/=% ", "x" * 101, "x" * 102]

    def load(key: str, texts: list[str | None], number: int) -> None:
        attempt = granted(tmp_path, "orders", idempotencyKey=key)
        job = attempt.job(sinks=sinks_of(attempt.prepared.job, str(tmp_path)))
        frame = spark.createDataFrame([(text, 1, number) for text in texts], "t string, k int, n long")
        job.write(frame, "orders", mode="overwritePartitions", partition_by=["t", "k"])

    load("all", odd, 0)
    for number, text in enumerate(odd, 1):
        load(f"one-{number}", [text], number)
        found = sparkonce.read(spark, str(tmp_path / "orders")).select("t", "n").collect()
        assert {row["t"]: row["n"] for row in found} == {
            each: at if at <= number else 0 for at, each in enumerate(odd, 1)
        }
        assert len(found) == len(odd)
