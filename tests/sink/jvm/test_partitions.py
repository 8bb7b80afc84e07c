"""Partitioned slot logs, and slots with different columns, with a real Spark: which rows come back, and which files Spark does not open."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sparkonce.blocking import run
from sparkonce.errors import InvalidInput
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.protocol import Committed, SinkKey, Slot, WriteOptions
from sparkonce.sink.slotlog.reader import files, read
from sparkonce.sink.slotlog.sink import SlotLogSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ODD = [
    "a/b",
    "50%",
    "%2F",
    "x=y",
    "ü ä",
    "q?u#o",
    "*",
    "{a}",
    "}",
    "[b",
    "'\"",
    "a:b\\c",
    " lead",
    "+&~,;@!$()|^",
    "01",
    "null",
    "",
    "NULL",
    "__HIVE_DEFAULT_PARTITION__",
    "nul\0",
    "line\n",
    "a",
    "A",
    "x" * 200,
    None,
]

AT = dt.datetime(2024, 5, 1, 12, 30)  # noqa: DTZ001 - a time without a zone is the type's meaning


@pytest.fixture
def sink(table: Path) -> SlotLogSink:
    """Stages with Spark."""
    return SlotLogSink(FolderObjects(table), name="orders")


def write(sink: SlotLogSink, key: SinkKey, frame: DataFrame, *partition_by: str) -> Slot:
    slot = sink.stage(frame, key, 1, fingerprint="f", options=WriteOptions(partition_by=partition_by))
    assert run(sink.commit(key, slot)) == Committed(slot)
    return slot


def key_of(name: str) -> SinkKey:
    return SinkKey(key_hash=name, output="orders", generation=1)


def plan(frame: DataFrame) -> str:
    """The physical plan, as Spark prints it."""
    return str(frame._jdf.queryExecution().executedPlan().toString())


def scanned(frame: DataFrame) -> tuple[list[Any], int]:
    """The rows, and how many files Spark's scans report as read."""
    rows = frame.collect()
    total = 0
    waiting = [frame._jdf.queryExecution().executedPlan()]
    while waiting:
        node = waiting.pop()
        if node.getClass().getSimpleName() == "AdaptiveSparkPlanExec":
            waiting.append(node.executedPlan())
        metrics = node.metrics()
        if metrics.contains("numFiles"):
            total += metrics.get("numFiles").get().value()
        children = node.children()
        waiting += [children.apply(at) for at in range(children.size())]
    return rows, total


def test_partitions_are_pruned_over_many_slots(spark: SparkSession, sink: SlotLogSink, table: Path) -> None:
    """Three writes of four days each are one scan; a filter on a day reads only that day's files, and would fail on any other, since those
    are broken; a column that is not selected is not read."""
    for number in range(3):
        frame = spark.range(number * 40, number * 40 + 40, 1, 1).selectExpr(
            "date_add(date'2024-05-01', cast(id % 4 as int)) as day", "id", "repeat('x', 20) as wide"
        )
        write(sink, key_of(f"k{number}"), frame, "day")
    assert len(files(table)) == 12
    whole = read(spark, table)
    assert [(field.name, field.dataType.simpleString()) for field in whole.schema.fields] == [
        ("day", "date"),
        ("id", "bigint"),
        ("wide", "string"),
    ]
    assert plan(whole).count("FileScan") == 1
    for path in table.rglob("*.parquet"):
        if "so-group-day=2024-05-02" not in str(path):
            path.write_bytes(b"\0" * path.stat().st_size)  # opening it would fail
    query = whole.where("day = date'2024-05-02'").select("id")
    assert "PartitionFilters: [isnotnull(so-group-day" in plan(query)
    assert "ReadSchema: struct<id:bigint>" in plan(query)
    rows, opened = scanned(query)
    assert sorted(row.id for row in rows) == list(range(1, 120, 4))
    assert opened == 3
    with pytest.raises(Exception, match=r"Parquet|CANNOT_READ|FAILED_READ"):
        whole.select("id").collect()


def test_odd_values_survive(spark: SparkSession, sink: SlotLogSink, table: Path) -> None:
    """These values survive: characters that are special in paths, URLs and patterns, text that looks like a number, empty text, the name of
    Spark's folder for nulls, text longer than a file name, and null. A filter on a plain value or on null opens no other files."""
    frame = spark.createDataFrame(list(enumerate(ODD)), "id int, kind string").coalesce(1)
    slot = write(sink, key_of("k1"), frame, "kind")
    assert slot.rows == len(ODD)
    assert {row.id: row.kind for row in read(spark, table).collect()} == dict(enumerate(ODD))
    encoded = sum("so-group-kind=_" in path and "__HIVE" not in path for path in files(table))
    for value in ("a", "01", "", "A", None):
        found = read(spark, table)
        rows, opened = scanned(found.where("kind is null") if value is None else found.where(found.kind == value))
        assert [row.id for row in rows] == [ODD.index(value)], value
        assert opened - encoded == (value in ("a", "01", None)), value


def test_types_of_partition_columns_come_back(spark: SparkSession, sink: SlotLogSink, table: Path) -> None:
    """Values have the types they were written with, never types guessed from folder names; on two levels, with nulls in each."""
    row = (1, dt.date(2024, 5, 1), "2024-05-01", 7, Decimal("1.50"), True, 2.5, AT)
    columns = "id bigint, d date, s string, n smallint, c decimal(10,2), b boolean, f double, t timestamp_ntz"
    frame = spark.createDataFrame([row, (2, *[None] * 7)], columns)
    write(sink, key_of("k1"), frame, "d", "s", "n", "c", "b", "f", "t")
    found = read(spark, table)
    assert found.schema.simpleString() == frame.schema.simpleString()
    assert sorted(map(tuple, found.collect())) == [row, (2, *[None] * 7)]


def test_instants_and_bytes_come_back(spark: SparkSession, sink: SlotLogSink, table: Path) -> None:
    """A timestamp partition is the same instant in another session time zone; binary values keep their bytes."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    values = (
        "(1, timestamp'2024-03-10 07:30:00Z', X'00612F62'), (2, timestamp'0001-01-01 00:00:00Z', X'FF01'), "
        "(3, null, X''), (4, null, null)"
    )
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        write(sink, key_of("k1"), spark.sql(f"select * from values {values} as t(id, at, hash)"), "at", "hash")
        spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        found = {
            row.id: (row.micros, row.hash and bytes(row.hash))
            for row in read(spark, table).selectExpr("id", "hash", "unix_micros(at) as micros").collect()
        }
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    assert found == {
        1: (1710055800000000, b"\0a/b"), 2: (-62135596800000000, b"\xff\x01"), 3: (None, b""), 4: (None, None)
    }  # fmt: skip


def test_a_partition_column_must_have_a_text(spark: SparkSession, sink: SlotLogSink, table: Path) -> None:
    """A partition column that is missing, or of a type that has no text form, is refused before the rows are computed."""
    frame = spark.range(3).selectExpr("id", "array(id) as ids", "raise_error('ran') as never")
    with pytest.raises(
        InvalidInput, match=r"^partition_by: ids is of type array<bigint>, which no folder can be named after; use"
    ):
        sink.stage(frame, key_of("k1"), 1, fingerprint="f", options=WriteOptions(partition_by=("ids",)))
    with pytest.raises(InvalidInput, match=r"^partition_by: the rows have no column day; they have id, ids, never$"):
        sink.stage(frame, key_of("k1"), 1, fingerprint="f", options=WriteOptions(partition_by=("day",)))
    assert not table.exists()


def test_rows_of_an_earlier_version_are_read_beside_new_ones(
    spark: SparkSession, sink: SlotLogSink, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions named folders after the values and left the columns out of the files."""
    columns = "id", "cast(id % 2 as string) as kind", "date_add(date'2024-05-01', cast(id as int)) as day"
    with monkeypatch.context() as patch:
        patch.setattr("sparkonce.sink.slotlog.sink.texts_of", lambda _frame, partition_by: partition_by)
        patch.setattr("sparkonce.sink.slotlog.sink.split", lambda frame, partition_by: (frame, partition_by))
        write(sink, key_of("k1"), spark.range(4).selectExpr(*columns), "kind", "day")
    assert any("/kind=1/day=2024-05-02/" in path for path in files(table))
    write(sink, key_of("k2"), spark.range(4, 8).selectExpr(*columns), "kind", "day")
    found = read(spark, table)
    assert {row.id: (row.kind, row.day.day) for row in found.collect()} == {n: (str(n % 2), n + 1) for n in range(8)}
    rows, opened = scanned(found.where("kind = '1'"))
    assert (len(rows), opened) == (4, 4)


def test_slots_of_other_layouts_and_columns(spark: SparkSession, sink: SlotLogSink, table: Path) -> None:
    """One slot is partitioned by day, one by day and kind, one plain with an extra column, one without partitions: every row is read once,
    and missing columns are null."""
    rows = spark.range(4).selectExpr("id", "cast(id % 2 as string) as day", "concat('k', id) as kind")
    write(sink, key_of("k1"), rows, "day")
    write(sink, key_of("k2"), rows.selectExpr("id + 10 as id", "day", "kind"), "day", "kind")
    write(sink, key_of("k3"), rows.selectExpr("kind", "id + 20 as id", "struct(id as a) as more"))
    write(sink, key_of("k4"), rows.selectExpr("id + 30 as id", "struct(id as a, 'b' as b) as more"))
    found = read(spark, table)
    assert found.schema.simpleString() == "struct<id:bigint,day:string,kind:string,more:struct<a:bigint,b:string>>"
    told = {row.id: (row.day, row.kind, row.more and tuple(row.more)) for row in found.collect()}
    expected: dict[int, Any] = {}
    for number in range(4):
        expected[number] = expected[number + 10] = (str(number % 2), f"k{number}", None)
        expected[number + 20] = (None, f"k{number}", (number, None))
        expected[number + 30] = (None, None, (number, "b"))
    assert told == expected
    rows_found, opened = scanned(found.where("day = '1' and kind = 'k3'").select("id"))
    assert sorted(row.id for row in rows_found) == [3, 13]
    assert opened <= len([file for file in files(table) if "day=1" in file or "day=" not in file])


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (
            ["cast(id as string) as id"],
            r"has the column id as long in _idem/k1\S+ and as string in _idem/k2\S+; rerun one",
        ),
        (
            ["id", "cast(1 as int) as Day"],
            r"has a column day in _idem/k1\S+ and Day in _idem/k2\S+, which Spark treats as one",
        ),
    ],
)
def test_columns_that_cannot_be_one_table(
    spark: SparkSession, sink: SlotLogSink, table: Path, second: list[str], why: str
) -> None:
    """A read is refused in one sentence that names the column and both slots, before Spark runs anything."""
    write(sink, key_of("k1"), spark.range(4).selectExpr("id", "'x' as day"))
    write(sink, key_of("k2"), spark.range(4).selectExpr(*second))
    with pytest.raises(InvalidInput, match=f"{why}.*$"):
        read(spark, table)


def test_a_partition_column_with_an_underscore(spark: SparkSession, sink: SlotLogSink, table: Path) -> None:
    """Spark hides folders whose names begin with an underscore; rows partitioned by such a column are still read."""
    write(sink, key_of("k1"), spark.range(6).selectExpr("id", "id % 2 as _part"), "_part")
    assert sorted(map(tuple, read(spark, table).collect())) == [(n, n % 2) for n in range(6)]


def test_empty_slots_have_columns(spark: SparkSession, sink: SlotLogSink, table: Path) -> None:
    """A partitioned write of no rows creates no file; the table still has its columns, also beside a slot with rows."""
    rows = spark.range(4).selectExpr("id", "cast(id as string) as day")
    write(sink, key_of("k1"), rows.where("id > 9"), "day")
    assert read(spark, table).schema.simpleString() == "struct<id:bigint,day:string>"
    assert read(spark, table).count() == 0
    write(sink, key_of("k2"), rows, "day")
    assert read(spark, table).count() == 4


def test_reading_plainly(spark: SparkSession, sink: SlotLogSink, table: Path) -> None:
    """The listed files, read by Spark without our reader, hold every row once, with every column."""
    for number in range(2):
        write(sink, key_of(f"k{number}"), spark.range(4).selectExpr("id", "cast(id % 2 as string) as day"), "day")
    found = spark.read.parquet(*files(str(table)))
    assert found.schema.simpleString() == "struct<id:bigint,day:string>"
    assert sorted(map(tuple, found.collect())) == sorted([(n, str(n % 2)) for n in range(4)] * 2)
