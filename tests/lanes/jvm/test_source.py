"""Streaming queries follow lanes: each batch once, whatever ends the query, and as it was written."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import sparkonce
from harness.patience import completed
from lanes.test_rows import KEPT
from lanes.test_trim import log_of, written_to
from sparkonce.lanes.table_log import Trim
from sparkonce.sink.slotlog.snapshot import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "taps"
pytestmark = [pytest.mark.spark, pytest.mark.slow]  # each query starts Python processes of its own


@pytest.fixture
def followed(spark: SparkSession, tmp_path: Path) -> Iterator[Follower]:
    sparkonce.register(spark)
    follower = Follower(spark, tmp_path)
    yield follower
    for query in spark.streams.active:
        query.stop()


class Follower:
    """A table, and a query that appends its lanes' rows to a folder of Parquet files, where a batch that came twice would be seen."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.table, self.folder = spark, folder / "t", folder

    def stream(self, **options: str) -> DataFrame:
        return self.spark.readStream.format("sparkonce").options(**options).load(str(self.table))

    def follow(self, name: str = "copy", **options: str) -> None:
        """One run of the query over all that there is now."""
        self.copy(self.stream(**options), name)

    def copy(self, frame: DataFrame, name: str = "copy") -> None:
        self.run(frame.writeStream.format("parquet").option("path", str(self.folder / name)), name)

    def run(self, writer: DataStreamWriter, name: str = "copy") -> None:
        writer = writer.option("checkpointLocation", str(self.folder / f"{name}.state"))
        writer.trigger(availableNow=True).start().awaitTermination()

    def rows(self, name: str = "copy") -> list[dict[str, Any]]:
        read = self.spark.read.parquet(str(self.folder / name))
        return sorted((row.asDict() for row in read.collect()), key=lambda row: row["n"])


def appended(table: Path, *rows: Any, name: str = "tap") -> None:
    """Each in a place of its own."""
    with sparkonce.writer(table, name=name, linger=0.0) as writer:
        for row in rows:
            writer.append(row)
            writer.flush()


def test_each_batch_comes_once(followed: Follower) -> None:
    """Two lanes grow between runs of a query, one of them begins later, and claims and appends without rows lie between: the sink has each
    row once, in runs over something, over nothing, and over what came while it was stopped."""
    appended(followed.table, {"n": 1}, [], {"n": 2})
    followed.follow()
    followed.follow()
    appended(followed.table, {"n": 3})
    appended(followed.table, [], {"n": 4}, {"n": 5}, name="other")
    followed.follow()
    appended(followed.table, {"n": 6}, name="other")
    followed.follow()
    assert [row["n"] for row in followed.rows()] == [1, 2, 3, 4, 5, 6]


def test_a_query_that_failed_takes_the_same_rows_again(followed: Follower) -> None:
    """A sink fails once it has the rows of its first trigger, and the lane grows: the next run has exactly these rows under the same
    number, then the new ones."""
    appended(followed.table, {"n": 1}, {"n": 2})
    seen: list[tuple[int, list[int]]] = []
    broken = True

    def sink(frame: DataFrame, number: int) -> None:
        seen.append((number, sorted(row.n for row in frame.collect())))
        if broken:
            raise RuntimeError("the sink failed")

    def run() -> None:
        followed.run(followed.stream().writeStream.foreachBatch(sink))

    with pytest.raises(Exception, match="the sink failed"):
        run()
    appended(followed.table, {"n": 3})
    broken = False
    run()  # the trigger that was begun, and no other
    run()
    assert seen == [(0, [1, 2]), (0, [1, 2]), (1, [3])]


def test_a_query_begins_after_what_was_trimmed_or_says_that_it_missed_it(followed: Follower) -> None:
    """Batches 1 to 7 are removed. The query that has read 6 of them ends with the one that it lacks; a new one has the rest."""
    written_to(followed.table, 6)
    followed.follow("behind")
    written_to(followed.table, 12)
    log_of(followed.table).trim(Trim(2, 1, 7))
    log_of(followed.table).remove_trimmed()
    with pytest.raises(
        Exception,
        match=r"the batches tap@7-7 of \S+ were trimmed before this query read them; start it with a new check",
    ):
        followed.follow("behind")
    followed.follow("new")
    written_to(followed.table, 14)
    followed.follow("new")
    assert [[row["n"] for row in followed.rows(name)] for name in ("behind", "new")] == [
        [1, 2, 3, 4, 5, 6],
        [8, 9, 10, 11, 12, 13, 14],
    ]


def test_types_are_kept(followed: Follower) -> None:
    """Each type that a lane keeps, also where a later append adds a column and a field: values equal those of a batch read."""
    followed.spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    columns = {name.replace(" ", "_"): given for name, (given, _) in KEPT.items()}
    for name, given in columns.items():
        with sparkonce.writer(followed.table, name=name, linger=0.0) as writer:
            writer.append(pa.table({name: given, "n": pa.nulls(len(given), pa.int64())}))
    appended(followed.table, {"n": 1, "deep": [{"a": 1}]}, name="narrow")
    appended(followed.table, {"n": 2, "deep": [{"a": 2, "b": "x"}]}, name="wide")
    followed.follow()
    batch = sparkonce.read(followed.spark, str(followed.table))
    copied = followed.spark.read.parquet(str(followed.folder / "copy")).select(batch.columns)
    assert copied.schema.simpleString() == batch.schema.simpleString()
    assert _texts(copied) == _texts(batch)


def _texts(frame: DataFrame) -> list[str]:
    return sorted(str(row) for row in frame.toArrow().to_pylist())


def test_a_new_column_is_not_left_out(followed: Follower) -> None:
    """A running query knows the columns with which it began: a batch with another one ends it by name, and started again it has the column,
    from the batch at which it ended."""
    appended(followed.table, {"n": 1})
    stream = followed.stream()
    appended(followed.table, {"n": 2, "late": "x"})

    with pytest.raises(Exception, match="has the column late since this query was begun; start the query again"):
        followed.copy(stream)
    followed.follow()
    assert [(row["n"], row["late"]) for row in followed.rows()] == [(1, None), (2, "x")]


def test_rows_of_jobs_are_not_left_out(followed: Follower) -> None:
    """Rows of jobs have no order that could be followed: the query is refused unless it names a lane, of which it then has all rows."""
    appended(followed.table, {"n": 1})
    with sparkonce.job(
        "load", outputs={"rows": str(followed.table)}, store=f"sqlite:///{followed.folder}/ledger.db"
    ) as job:
        job.write(followed.spark.createDataFrame([(7,)], "n long"), "rows")
    with pytest.raises(Exception, match=r"also has rows of jobs .* name one with \.option\('lane', NAME\)"):
        followed.follow()
    followed.follow(lane="tap")
    assert [row["n"] for row in followed.rows()] == [1]


def test_a_file_that_was_changed_is_not_read(followed: Follower) -> None:
    """A committed file with other rows ends the query, and it goes on once the file is restored."""
    appended(followed.table, {"n": 1})
    [path] = [Path(each) for each in Table(followed.table).files()]
    was = path.read_bytes()
    path.unlink()  # it may not be writable
    parquet.write_table(pa.table({"n": [99]}), path)
    with pytest.raises(Exception, match="is missing or changed"):
        followed.follow()
    path.unlink()
    path.write_bytes(was)
    followed.follow()
    assert [row["n"] for row in followed.rows()] == [1]


def test_many_files_are_read_by_few_tasks(followed: Follower) -> None:
    """A trigger over a hundred small files has one or two tasks, and rows of one lane keep their order within a task."""
    with sparkonce.writer(followed.table, name="tap", linger=0.0) as writer:
        for n in range(100):
            writer.append({"n": n})
            writer.flush()
    orders: list[list[int]] = []

    def sink(frame: DataFrame, _: int) -> None:
        orders.extend(frame.rdd.map(lambda row: row.n).glom().collect())

    followed.run(followed.stream().writeStream.foreachBatch(sink))
    assert len(orders) <= 2
    assert [n for each in orders for n in each] == list(range(100))


def test_the_example_keeps_delays(tmp_path: Path) -> None:
    """Run twice, while the tap brings the second file in between: the delays are those of all rows, each counted once."""
    landing, table, folder = tmp_path / "landing", tmp_path / "table", tmp_path / "delays"
    landing.mkdir()
    for number in (1, 2):
        shutil.copy(EXAMPLE / "landing" / f"2013-01-0{number}.csv", landing)
        for program, *arguments in (("tap.py", landing, table), ("delays.py", table, folder)):
            done = completed([sys.executable, str(EXAMPLE / program), *map(str, arguments)], 200)
            assert done.returncode == 0, done.stderr
    rows = pa.concat_tables(parquet.read_table(each.removeprefix("file://")) for each in sparkonce.files(table))
    expected = rows.group_by("origin").aggregate([([], "count_all"), ("delay", "mean")]).to_pylist()
    kept = parquet.read_table(folder / "delays").to_pylist()
    assert {each["origin"]: (each["departures"], each["delay"]) for each in kept} == {
        each["origin"]: (each["count_all"], each["delay_mean"]) for each in expected
    }


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"lane": "nobody"}, "has no rows of the lane nobody yet"),
        ({"path": ""}, "the table is missing; pass it to load"),
    ],
)
def test_what_is_no_lane_is_refused(followed: Follower, options: dict[str, str], says: str) -> None:
    """By one sentence, when the query is made."""
    appended(followed.table, {"n": 1})
    with pytest.raises(Exception, match=says):
        followed.spark.readStream.format("sparkonce").options(path=str(followed.table)).options(**options).load()
    assert [each.name for each in followed.folder.iterdir()] == ["t"]
