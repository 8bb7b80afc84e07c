"""Iceberg tables with a real Spark: files that it stages natively, read back by pyiceberg and by Iceberg's own runtime for Spark."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from harness import iceberg_tables
from harness.delta_stage import numbers_in
from harness.delta_tables import ORDERS
from harness.iceberg_rest import rest_server, spark_runtime
from harness.iceberg_tables import opened, rest_catalog, sql_catalog
from harness.patience import completed
from sparkonce.blocking import run
from sparkonce.errors import InvalidInput, OutputUnsupported
from sparkonce.sink.delta.sink import open_delta
from sparkonce.sink.iceberg.sink import IcebergTableSink
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.protocol import Committed, Evidence, Sink, SinkKey, Slot, Stuck, WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

CHILD = Path(__file__).resolve().parents[2] / "harness" / "iceberg_read.py"
CHILD_TIMEOUT = 300.0  # seconds: a JVM start and a few small queries; only a defect takes this long
MERGE = WriteOptions(merge_schema=True)
TIMESTAMPS = "spark.sql.parquet.outputTimestampType"


@pytest.fixture
def sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IcebergTableSink:
    """Stages with Spark into a table that does not exist yet, in a SQL catalog."""
    for name, value in sql_catalog(tmp_path).items():
        monkeypatch.setenv(name, value)
    return opened(stage=None)


def write(sink: IcebergTableSink, key: SinkKey, frame: DataFrame, **options: Any) -> Slot:
    slot = sink.stage(frame, key, 1, fingerprint="f", options=WriteOptions(**options))
    assert run(sink.commit(key, slot)) == Committed(slot)
    return slot


def other(number: int) -> SinkKey:
    return SinkKey(key_hash=f"c{number}", output="orders", generation=1)


def read() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = iceberg_tables.table().scan().to_arrow().to_pylist()
    return rows


def everything(spark: SparkSession) -> DataFrame:
    """A column of each type that Spark and Iceberg share."""
    return spark.range(0, 100, 1, 2).selectExpr(
        "id", "cast(id as tinyint) as b", "cast(id as smallint) as s", "cast(id as int) as i", "cast(id as float) as f",
        "cast(id as double) / 3 as d", "id % 2 = 0 as even", "cast(id as string) as name", "cast('x' as binary) as bytes",
        "cast(id as decimal(9,2)) as small", "cast(id as decimal(30,5)) as large", "date_add(date'2024-01-01', cast(id as int)) as day",
        "timestamp'2024-01-01 12:00:00' + make_interval(0,0,0,0,cast(id as int)) as at",
        "timestamp_ntz'2024-01-01 12:00:00' as local", "named_struct('a', id, 'b', array(named_struct('c', id))) as nested",
        "map('k', id) as pairs", "cast(null as string) as nothing",
    )  # fmt: skip


def test_every_type_is_read_back(spark: SparkSession, sink: IcebergTableSink, key: SinkKey) -> None:
    """Rows of every type that both have are written natively, and pyiceberg reads the values that Spark had; the session's settings are
    left as they were."""
    before = spark.conf.get(TIMESTAMPS)
    slot = write(sink, key, everything(spark))
    assert spark.conf.get(TIMESTAMPS) == before
    assert (slot.rows, slot.application) == (100, spark.sparkContext.applicationId)
    found = sorted(read(), key=lambda row: row["id"])
    expected = [row.asDict(recursive=True) for row in everything(spark).orderBy("id").collect()]
    for mine, theirs in zip(found, expected, strict=True):
        mine["pairs"] = dict(mine["pairs"])
        mine["at"] = mine["at"].astimezone().replace(tzinfo=None)
        theirs["bytes"] = bytes(theirs["bytes"])
        assert mine == theirs
    assert run(sink.probe(key, None)) is Evidence.PRESENT


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_a_task_that_fails_is_not_counted_twice(
    spark: SparkSession, sink: IcebergTableSink, key: SinkKey, tmp_path: Path, kind: str
) -> None:
    """A UDF fails twice in the middle of a partition: the third attempt's rows are there, each once, and the counts agree."""
    from pyspark.sql.functions import udf

    def fails_twice(number: int) -> int:
        if number == 77:
            for attempt in ("first", "second"):
                try:
                    os.close(os.open(f"{tmp_path}/{attempt}", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                raise RuntimeError(attempt)
        return number

    frame = spark.range(0, 100, 1, 2).select(udf(lambda n: fails_twice(n), "long")("id").alias("n"))  # noqa: PLW0108 - Spark takes text annotations amiss
    output: Sink = sink if kind == "iceberg" else open_delta(ORDERS, FolderObjects(tmp_path / "delta"))
    slot = output.stage(frame, key, 1, fingerprint="f")
    assert run(output.commit(key, slot)) == Committed(slot)
    assert (tmp_path / "second").exists()
    assert slot.rows == 100
    assert (iceberg_tables.rows() if kind == "iceberg" else numbers_in(tmp_path / "delta")) == list(range(100))


def test_a_type_that_iceberg_has_not_is_refused(spark: SparkSession, sink: IcebergTableSink, key: SinkKey) -> None:
    """An interval column is refused in one sentence that names it, before the DataFrame runs."""
    frame = spark.range(3).selectExpr(
        "id", "named_struct('x', make_dt_interval(1)) as deep", "raise_error('ran') as boom"
    )
    with pytest.raises(InvalidInput, match=r"column deep\.x has Spark's type interval day to second"):
        sink.stage(frame, key, 1, fingerprint="f")


def test_new_columns_come_only_when_asked_for(spark: SparkSession, sink: IcebergTableSink, key: SinkKey) -> None:
    """New columns are refused by name before the DataFrame runs. With merge_schema they are added in the commit that brings their rows,
    nested ones too; older rows have nulls there. A column that the rows lack is null."""
    write(sink, key, spark.range(2).selectExpr("id", "named_struct('a', id) as nested"))
    wider = "id", "named_struct('a', id, 'b', 'deep') as nested", "'new' as extra"
    with pytest.raises(InvalidInput, match=r"has no column nested\.b, extra; .* merge_schema=True"):
        sink.stage(
            spark.range(2).selectExpr(*wider, "raise_error('ran') as boom").drop("boom"), other(1), 1, fingerprint="f"
        )
    staged = sink.stage(
        spark.range(10, 12).selectExpr(*wider), other(1), 1, fingerprint="f", options=WriteOptions(merge_schema=True)
    )
    assert [each.name for each in iceberg_tables.table().schema().fields] == ["id", "nested"]
    assert run(opened().commit(other(1), Slot.model_validate(staged.dump()))) == Committed(staged)
    write(sink, other(2), spark.range(20, 21).select("id"))
    found = {row["id"]: (row["nested"], row["extra"]) for row in read()}
    assert found[0] == ({"a": 0, "b": None}, None)
    assert found[10] == ({"a": 10, "b": "deep"}, "new")
    assert found[20] == (None, None)


def test_new_fields_come_inside_lists_of_lists_and_maps(
    spark: SparkSession, sink: IcebergTableSink, key: SinkKey
) -> None:
    """With merge_schema new fields are added in the commit that brings their rows. The keys of a map gain no field, which is said before
    the rows run."""
    row = (
        "id",
        "array(array(named_struct({0}))) as ll",
        "array(map('k', named_struct({0}))) as lm",
        "map(named_struct({1}), 1) as m",
    )
    write(sink, key, spark.range(1).selectExpr(*(each.format("'a', id", "'a', id") for each in row)))
    wider = spark.range(1, 2).selectExpr(*(each.format("'b', 'new', 'a', id", "'a', id") for each in row))
    write(sink, other(1), wider, merge_schema=True)
    found = {each["id"]: (each["ll"], each["lm"]) for each in read()}
    assert found[0] == ([[{"a": 0, "b": None}]], [[("k", {"a": 0, "b": None})]])
    assert found[1] == ([[{"a": 1, "b": "new"}]], [[("k", {"a": 1, "b": "new"})]])
    keys = spark.range(1).selectExpr("map(named_struct('a', id, 'b', cast(raise_error('ran') AS string)), 1) as m")
    with pytest.raises(
        InvalidInput,
        match=r"keys of a map must have the same fields in the table and in the rows, and m\.key\.b differ",
    ):
        sink.stage(keys, other(2), 1, fingerprint="f", options=WriteOptions(merge_schema=True))


def test_a_type_change_is_refused(spark: SparkSession, sink: IcebergTableSink, key: SinkKey) -> None:
    """A change of type is refused even with merge_schema, and even where Iceberg could widen the type; the sentence names both types."""
    write(sink, key, spark.range(2).selectExpr("id", "cast(id as int) as n"))
    for kind in ("long", "string"):
        frame = spark.range(2).selectExpr("id", f"cast(id as {kind}) as n")
        with pytest.raises(InvalidInput, match=f"n is int in the table and {kind} in the rows; cast them"):
            sink.stage(frame, other(1), 1, fingerprint="f", options=WriteOptions(merge_schema=True))


def test_a_required_column_stays_required(spark: SparkSession, sink: IcebergTableSink, key: SinkKey) -> None:
    """A table that allows no nulls in a column takes only rows that cannot have any."""
    iceberg_tables.catalog().create_namespace("sales")
    iceberg_tables.catalog().create_table(
        iceberg_tables.TABLE, Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "n", LongType()))
    )
    for frame in (spark.range(2).selectExpr("nullif(id, 7) as id"), spark.range(2).selectExpr("id as n")):
        with pytest.raises(InvalidInput, match="required there, and the rows may hold nulls in them: id"):
            sink.stage(frame, key, 1, fingerprint="f")
    write(sink, key, spark.range(2).selectExpr("id", "id as n"))
    assert len(read()) == 2


def test_partition_by_makes_identity_partitions(spark: SparkSession, sink: IcebergTableSink, key: SinkKey) -> None:
    """The first commit of a new table defines its partitions; each file lies in one of them; nulls and special characters have their own.
    Later writes may leave `partition_by` out, and may not name other columns."""
    frame = spark.range(0, 12).selectExpr(
        "id", "case id % 4 when 0 then 'a/b=c %' when 1 then 'ü' when 2 then '' end as day", "id % 2 as n"
    )
    write(sink, key, frame, partition_by=("day", "n"))
    table = iceberg_tables.table()
    assert [str(each.transform) for each in table.spec().fields] == ["identity", "identity"]
    found = [
        (task.file.partition[0], task.file.partition[1], task.file.record_count) for task in table.scan().plan_files()
    ]
    sums: Counter[tuple[Any, Any]] = Counter()
    for day, number, count in found:
        sums[day, number] += count
    assert sums == {("a/b=c %", 0): 3, ("ü", 1): 3, ("", 0): 3, (None, 1): 3}
    assert [row["id"] for row in table.scan(row_filter="day = 'ü'").to_arrow().to_pylist()] == [1, 5, 9]
    write(sink, other(1), spark.range(100, 101).selectExpr("id", "'ü' as day", "1L as n"))
    with pytest.raises(InvalidInput, match=r"is partitioned by .*partition_by=\['n'\] differs"):
        sink.stage(frame, other(2), 1, fingerprint="f", options=WriteOptions(partition_by=("n",)))
    assert len(iceberg_tables.table().scan(row_filter="day = 'ü'").to_arrow()) == 4


TRANSFORMS: list[tuple[Any, Any, str]] = [
    (YearTransform(), DateType(), "date_add(date'1969-12-30', cast(id * 200 as int))"),
    (MonthTransform(), TimestamptzType(), "timestamp'1969-12-30 23:30:00' + make_dt_interval(cast(id * 20 as int), 1)"),
    (DayTransform(), TimestamptzType(), "timestamp'1969-12-31 12:00:00' + make_dt_interval(0, cast(id * 7 as int), 59, 59.999999)"),
    (HourTransform(), TimestamptzType(), "timestamp'1969-12-31 22:00:00' + make_dt_interval(0, 0, cast(id * 25 as int), 0.000001)"),
    (DayTransform(), TimestampType(), "timestamp_ntz'2024-03-31 00:30:00' + make_dt_interval(0, cast(id * 5 as int))"),
    (HourTransform(), TimestampType(), "timestamp_ntz'2024-03-31 00:30:00' + make_dt_interval(0, 0, cast(id * 20 as int))"),
    (TruncateTransform(2), StringType(), "concat('ü', cast(id as string), 'x')"),
    (TruncateTransform(10), IntegerType(), "cast(id * 7 - 30 as int)"),
    (TruncateTransform(10), LongType(), "id * 7 - 30"),
    (TruncateTransform(50), DecimalType(9, 2), "cast(id * 0.37 - 2 as decimal(9,2))"),
    (TruncateTransform(1), BinaryType(), "cast(cast(id as string) as binary)"),
    (IdentityTransform(), DecimalType(9, 2), "cast(id * 0.5 as decimal(9,2))"),
]  # fmt: skip


@pytest.mark.parametrize("of", TRANSFORMS, ids=[f"{transform}-{kind}" for transform, kind, _ in TRANSFORMS])
def test_transforms_of_the_table_are_honoured(
    spark: SparkSession, sink: IcebergTableSink, key: SinkKey, of: tuple[Any, Any, str]
) -> None:
    """Every file has one partition value, the one that Iceberg computes from its rows, in any session time zone; nulls have their own."""
    transform, kind, value = of
    iceberg_tables.catalog().create_namespace("sales")
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "v", kind))
    spec = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=transform, name="p"))
    iceberg_tables.catalog().create_table(iceberg_tables.TABLE, schema, partition_spec=spec)
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/St_Johns")
    try:
        frame = spark.range(0, 24, 1, 2).selectExpr("id", f"case when id < 23 then {value} end as v")
        write(sink, key, frame)
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    table = iceberg_tables.table()
    rows = {row["id"]: row["v"] for row in read()}
    assert len(rows) == 24
    partitions = set()
    for task in table.scan().plan_files():
        one = pa.parquet.read_table(task.file.file_path.removeprefix("file://"), partitioning=None)
        compute = transform.transform(kind)
        values = {compute(_internal(rows[number])) for number in one["id"].to_pylist()}
        assert values == {task.file.partition[0]}
        partitions |= values
    assert len(partitions) > 2
    assert None in partitions


def _internal(value: Any) -> Any:
    """The value in the form that Iceberg's transforms take."""
    if isinstance(value, dt.datetime):
        return (value.replace(tzinfo=None) - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)  # noqa: DTZ001 - both are UTC
    if isinstance(value, dt.date):
        return (value - dt.date(1970, 1, 1)).days
    return value


def test_bucket_partitions_are_refused(spark: SparkSession, sink: IcebergTableSink, key: SinkKey) -> None:
    """One sentence, at start and before the DataFrame runs."""
    iceberg_tables.catalog().create_namespace("sales")
    spec = PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=BucketTransform(4), name="p"))
    iceberg_tables.catalog().create_table(
        iceberg_tables.TABLE, Schema(NestedField(1, "id", LongType())), partition_spec=spec
    )
    with pytest.raises(OutputUnsupported, match=r"partitioned by bucket\[4\]\(id\)"):
        run(sink.check())
    with pytest.raises(OutputUnsupported, match=r"partitioned by bucket\[4\]\(id\)"):
        sink.stage(spark.range(3).selectExpr("raise_error('ran') as id"), key, 1, fingerprint="f")


def test_partition_values_without_statistics(spark: SparkSession, sink: IcebergTableSink, key: SinkKey) -> None:
    """NaN and both zeros are partitions of their own, and so is a text too long for a folder's name. A text of more than 4 kB, for which
    Parquet keeps no statistics, is refused, and no file of it is left."""
    values = "(0, double('NaN'), ''), (1, -0d, repeat('x', 200)), (2, 0d, repeat('x', 201)), (3, null, null)"
    write(sink, key, spark.sql(f"select * from values {values} as t(id, v, s)"), partition_by=("v", "s"))
    found = {}
    for task in iceberg_tables.table().scan().plan_files():
        [number] = pa.parquet.read_table(task.file.file_path.removeprefix("file://"), partitioning=None)[
            "id"
        ].to_pylist()
        found[number] = repr(task.file.partition[0]), task.file.partition[1]
    assert found == {0: ("nan", ""), 1: ("-0.0", "x" * 200), 2: ("0.0", "x" * 201), 3: ("None", None)}
    assert [row["id"] for row in iceberg_tables.table().scan(row_filter="s = ''").to_arrow().to_pylist()] == [0]
    with pytest.raises(
        InvalidInput, match=r"column s partitions it and holds a value that Parquet keeps no statistics of"
    ):
        sink.stage(
            spark.range(2).selectExpr("cast(id as int) as id", "1d as v", "repeat('x', 5000) as s"),
            other(1),
            1,
            fingerprint="f",
        )
    assert list(iceberg_tables.folder_of().glob("data/so-c1-*/*")) == []


def test_executors_without_arrow_are_one_sentence(spark: SparkSession, sink: IcebergTableSink, key: SinkKey) -> None:
    """Rows with lists and maps need pyarrow on the executors: without it one sentence says so. The remedy in it, another interpreter,
    works; other rows need no pyarrow."""
    context: Any = spark.sparkContext
    own, context.pythonExec = context.pythonExec, "/usr/bin/python3"
    try:
        write(sink, key, spark.range(2))
        with pytest.raises(
            OutputUnsupported, match=r"^the executors' Python lacks pyiceberg, .* or set PYSPARK_PYTHON to"
        ):
            sink.stage(spark.range(2).selectExpr("id", "array(id) as ids"), other(1), 1, fingerprint="f", options=MERGE)
    finally:
        context.pythonExec = own
    assert list(iceberg_tables.folder_of().glob("data/so-c1-*/*")) == []
    write(sink, other(1), spark.range(2).selectExpr("id", "array(id) as ids"), merge_schema=True)


def test_a_table_that_was_repartitioned_under_the_rows_is_stuck_or_right(
    spark: SparkSession, sink: IcebergTableSink, key: SinkKey
) -> None:
    """Rows that were staged for one partition spec are never committed under another: the slot is Stuck, or each file lies in exactly one
    partition."""
    write(sink, key, spark.range(4).selectExpr("id", "id % 2 as n"))
    slot = sink.stage(spark.range(10, 14).selectExpr("id", "id % 2 as n"), other(1), 1, fingerprint="f")
    with iceberg_tables.table().update_spec() as spec:
        spec.add_identity("n")
    decision = run(sink.commit(other(1), slot))
    assert isinstance(decision, Stuck)
    assert "partition" in decision.why
    assert len(read()) == 4


def test_an_empty_result_is_a_result(spark: SparkSession, sink: IcebergTableSink, key: SinkKey) -> None:
    """A write of no rows is committed and found, and the table has its columns."""
    slot = write(sink, key, spark.range(3).where("false"))
    assert (slot.rows, read()) == (0, [])
    assert [each.name for each in iceberg_tables.table().schema().fields] == ["id"]
    assert run(sink.probe(key, None)) is Evidence.PRESENT


def test_many_files_are_named_beside_the_slot(spark: SparkSession, sink: IcebergTableSink, key: SinkKey) -> None:
    """A slot with more than 32 files refers to a list of them; reads, probe and a rerun follow that list."""
    slot = write(sink, key, spark.range(0, 80, 1, 40))
    assert slot.listing is not None
    assert slot.file_count == 40
    write(sink, key.model_copy(update={"generation": 2}), spark.range(0, 3, 1, 1))
    assert sorted(row["id"] for row in read()) == [0, 1, 2]


def test_icebergs_own_runtime_reads_compacts_and_expires(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: SinkKey
) -> None:
    """Iceberg's runtime for Spark, through a REST catalog, reads natively staged rows, prunes partitions, adds rows of its own, compacts,
    expires snapshots and removes orphan files. The evidence survives, compacted rows are not reported as gone, staged files that await
    their commit survive, a rerun is refused because its files were rewritten, and the space of old files is freed."""
    jar = spark_runtime()
    with rest_server(tmp_path) as url:
        for name, value in rest_catalog(url).items():
            monkeypatch.setenv(name, value)
        sink = opened(stage=None)
        frame = everything(spark).withColumnRenamed("even", "p")
        slot = write(sink, key, frame, partition_by=("p",))
        write(
            sink, other(1), spark.range(1000, 1010).selectExpr("id", "true as p", "'new' as extra"), merge_schema=True
        )
        waiting = sink.stage(spark.range(2000, 2001).selectExpr("id", "true as p"), other(2), 1, fingerprint="f")
        assert run(sink.fence(other(3), 2, fingerprint="f", by="settle")) is None
        files = [
            Path(task.file.file_path.removeprefix("file://")) for task in iceberg_tables.table().scan().plan_files()
        ]
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        done = completed([sys.executable, str(CHILD), str(jar), url, str(tmp_path)], CHILD_TIMEOUT, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
        said = json.loads(done.stdout.strip().splitlines()[-1])
        assert said["ids"] == [*range(100), *range(1000, 1010)]
        assert said["odd"] == 50
        assert said["extra"] == 10
        assert said["large"] == str(decimal.Decimal("99.00000"))
        assert said["at"] == "2024-01-01 12:00:00"
        assert said["after"] == 111
        assert [each for each in files if each.exists()] == []
        assert run(sink.find(key)) == slot
        assert run(sink.fence(key, 9, fingerprint="f", by="settle")) == slot
        assert run(sink.probe(key, None)) in (Evidence.PRESENT, Evidence.NOT_CHECKED)
        assert isinstance(run(sink.commit(other(2), waiting)), Committed)
        with pytest.raises(InvalidInput, match="so a rerun cannot replace them"):
            sink.stage(frame, key.model_copy(update={"generation": 2}), 1, fingerprint="f")
