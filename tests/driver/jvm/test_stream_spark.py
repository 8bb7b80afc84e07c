"""Streams with a real Spark: what the checkpoint promises, and a driver that is killed at each step of 20 batches."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from crash.scene import HERE, Scene
from driver.streamed import Dies, next_attempt, settled
from driver.test_stream_kills import STEPS, one_commit_per_place, rows
from harness.granted import Granted, granted
from harness.patience import until_ended
from harness.spark import spark
from sparkonce.driver.source import sources_of
from sparkonce.errors import StreamBroken
from sparkonce.model.record import Verdict
from sparkonce.sink.open import sinks_of
from sparkonce.sink.protocol import StreamSource
from sparkonce.sink.slotlog.reader import read
from sparkonce.sink.stream import mark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparkonce.driver.stream import Stream

__all__ = ["spark"]
pytestmark = pytest.mark.spark

BATCHES, ROWS = 20, 7
LONG = 900  # seconds for five JVMs, one after another, on a machine that others use
KILLS = (
    "driver.stream.opened",
    "driver.stage.after",
    "driver.stream.batch",
    "driver.stream.end.before",
)
"""Only some steps, since each costs a JVM; tests/driver/test_stream_kills.py has all of them without one."""


def files_in(folder: Path, batches: int, *, start: int = 0) -> Path:
    """Writes one file per batch, in order, each with rows of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for at in range(start, start + batches):
        lines = (json.dumps({"n": n, "day": n % 2}) for n in range(at * ROWS, (at + 1) * ROWS))
        (folder / f"{at:03d}.json").write_text("\n".join(lines))
    return folder


def streaming(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema("n long, day long").option("maxFilesPerTrigger", 1).json(str(folder))


def stream_of(attempt: Granted, frame: DataFrame) -> Stream:
    """A stream that Spark's own writer starts."""
    return attempt.job(sinks=sinks_of(attempt.prepared.job, str(attempt.folder))).stream(frame)


def numbers(spark: SparkSession, table: Path) -> list[int]:
    return sorted(row.n for row in read(spark, table).select("n").collect())


def test_a_stream_of_files_and_what_its_checkpoint_delivers_again(spark: SparkSession, tmp_path: Path) -> None:
    """After a driver died after a commit, the batch is delivered again with the same plan and not run again. A reset checkpoint is refused;
    with the old one restored the stream continues. Readers get every row once, in one folder per partition value."""
    attempt = granted(tmp_path, "orders")
    source = files_in(tmp_path / "in", 4)
    ran: list[int] = []

    def until(batch: Any, frame: DataFrame) -> None:
        ran.append(batch.number)
        batch.write(frame, "orders", partition_by=["day"])
        if batch.number == 1:
            raise Dies

    checkpoint = tmp_path / "checkpoint"
    with pytest.raises(Dies):
        stream_of(attempt, streaming(spark, source)).foreach_batch(until, checkpoint=str(checkpoint))
    assert settled(attempt).verdict is Verdict.SOME
    next_attempt(attempt)
    checkpoint.rename(tmp_path / "kept")
    with pytest.raises(StreamBroken, match="started with another checkpoint"):
        stream_of(attempt, streaming(spark, source)).foreach_batch(until, checkpoint=str(checkpoint))
    shutil.rmtree(checkpoint)
    (tmp_path / "kept").rename(checkpoint)

    ran.clear()
    done = stream_of(attempt, streaming(spark, source)).write(
        "orders", checkpoint=str(checkpoint), partition_by=["day"]
    )

    assert ran == []
    assert (done.rows, done.batches, done.last_batch) == (4 * ROWS, 4, 3)
    assert numbers(spark, tmp_path / "orders") == list(range(4 * ROWS))
    assert Counter(row.day for row in read(spark, tmp_path / "orders").collect()) == {0: 14, 1: 14}
    assert settled(attempt).verdict is Verdict.ALL


def test_a_checkpoint_that_was_deleted_between_two_keys_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """One source folder, one checkpoint, two keys: with the checkpoint deleted, the second stream would read all files again, and is
    refused. With `restart` it does so, and a third key continues on the new checkpoint."""
    source, checkpoint = files_in(tmp_path / "in", 2), tmp_path / "checkpoint"
    keys = [granted(tmp_path, "orders", idempotencyKey=day) for day in ("monday", "tuesday", "wednesday")]
    stream_of(keys[0], streaming(spark, source)).write("orders", checkpoint=str(checkpoint))
    shutil.rmtree(checkpoint)
    files_in(source, 1, start=2)

    with pytest.raises(
        StreamBroken,
        match=rf"the stream of tuesday .*, where the stream of monday .* committed 14 rows of the same source, file:{source}: ",
    ):
        stream_of(keys[1], streaming(spark, source)).write("orders", checkpoint=str(checkpoint))
    assert numbers(spark, tmp_path / "orders") == list(range(2 * ROWS))

    stream_of(keys[1], streaming(spark, source)).write("orders", checkpoint=str(checkpoint), restart=True)
    files_in(source, 1, start=3)
    stream_of(keys[2], streaming(spark, source)).write("orders", checkpoint=str(checkpoint))

    assert numbers(spark, tmp_path / "orders") == sorted([*range(2 * ROWS), *range(4 * ROWS)])


def test_a_plan_names_what_a_stream_reads(spark: SparkSession, tmp_path: Path) -> None:
    """A plan names folders in Spark's qualified form, whatever is done with the rows; each source of a union; and options where there is no
    folder."""
    folder = files_in(tmp_path / "a b", 1)
    plain = streaming(spark, folder)
    read = StreamSource(at=f"file:{folder}")
    assert sources_of(plain) == (read,)
    assert sources_of(streaming(spark, Path(f"{folder}//../a b/"))) == (read,)
    other = spark.readStream.schema("value string").option("pathGlobFilter", "*.json").text(str(folder))
    static = spark.range(3).withColumnRenamed("id", "n")
    both = plain.join(static, "n").select("n").union(other.selectExpr("length(value) AS n")).union(plain.select("n"))
    assert sources_of(both) == (read, StreamSource(at=f"file:{folder}", part="*.json"))
    rates = [spark.readStream.format("rate").option("rowsPerSecond", n).load() for n in (1, 1, 2)]
    one, same, faster = (sources_of(each) for each in rates)
    assert one == same != faster


def test_the_default_checkpoint_lies_beside_the_table(spark: SparkSession, tmp_path: Path) -> None:
    """It is separate for each key and generation, and hidden from Spark's listing; a stream that its own function stopped continues from
    there."""
    attempt = granted(tmp_path, "orders")
    source = files_in(tmp_path / "in", 2)

    done = stream_of(attempt, streaming(spark, source)).write("orders")

    assert done.batches == 2
    metadata = tmp_path / "orders" / "_streams" / str(attempt.key("orders")) / "metadata"
    (end,) = settled(attempt).slots.values()
    assert end is not None
    assert json.loads(metadata.read_text())["id"] == mark(end).query_id


def test_a_stream_whose_rows_are_aggregated_keeps_its_state(spark: SparkSession, tmp_path: Path) -> None:
    """Windows are closed by a watermark: batches without rows are committed, too, and the chain has no gap."""
    attempt = granted(tmp_path, "orders")
    folder = tmp_path / "in"
    folder.mkdir()
    for at, second in enumerate((0, 30, 90)):
        file = folder / f"{at}.json"
        file.write_text(json.dumps({"n": at, "at": f"2024-05-01T00:{second // 60:02d}:{second % 60:02d}"}))
        os.utime(file, (at, at))  # Spark reads the oldest file first
    frame = spark.readStream.schema("n long, at timestamp").option("maxFilesPerTrigger", 1).json(str(folder))
    counted = frame.withWatermark("at", "1 second").groupBy("at").agg({"n": "max"}).withColumnRenamed("max(n)", "n")

    done = stream_of(attempt, counted).write("orders")

    assert (done.batches or 0) >= 3
    assert numbers(spark, tmp_path / "orders") == [0, 1]


def test_a_spark_driver_that_is_killed_at_each_step_writes_every_row_once(tmpfs_path: Path) -> None:
    """One stream of 20 batches over real Spark drivers, one killed at each step of a batch and of the stream: every row is there once."""
    source = files_in(tmpfs_path / "in", BATCHES)
    spec = {"heartbeatTimeoutSeconds": 120}
    scene = Scene(tmpfs_path, script=HERE / "stream_spark_job.py", submit=None, spec=spec)
    document = (tmpfs_path / "job.yaml").read_text()
    (tmpfs_path / "job.yaml").write_text(document.replace("- one\n", f"- {source}\n"))
    try:
        plan = ";".join(f"{point}={STEPS[point]}" for point in KILLS)
        assert until_ended(scene.run(plan), LONG) == 0, scene.last_output()

        assert {f"{point}=kill" for point in KILLS} <= set(scene.hits())
        assert rows(scene) == list(range(BATCHES * ROWS))
        assert len(one_commit_per_place(scene)) == BATCHES + 2
        assert scene.said()["result"]["outputs"][0]["rows"] == BATCHES * ROWS
        assert scene.staged() == []
    finally:
        scene.clear()
