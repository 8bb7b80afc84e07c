"""Rows that a real Spark writes to a Delta table: text and the declared widths of its columns, the order of struct fields, dates far
away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable, Field, Schema

from harness.delta_stage import entries, rows_in
from harness.delta_tables import ORDERS, later
from sparkonce.blocking import run
from sparkonce.errors import InvalidInput
from sparkonce.sink.delta.sink import DeltaTableSink, open_delta
from sparkonce.sink.delta.widths import DECLARED
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.protocol import Committed, SinkKey, WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

DEEP = "struct<v:varchar(4),tags:array<struct<t:char(2)>>,m:map<char(3),array<varchar(1)>>>"
ROW = "named_struct('v', '{v}', 'tags', array(null, named_struct('t', '{t}')), 'm', map('{k}', array('', null, '{e}'))) AS who"


@pytest.fixture
def delta(table: Path) -> DeltaTableSink:
    return open_delta(ORDERS, FolderObjects(table, durable=False))


def create(spark: SparkSession, table: Path, ddl: str, **widths: str) -> None:
    """Creates a table as Spark's SQL does for columns with declared widths."""
    fields = [
        Field.from_json(
            f'{{"name":"{each.name}","type":{each.dataType.json()},"nullable":true,"metadata":{{{declared}}}}}'
        )
        for each in spark.createDataFrame([], ddl).schema.fields
        for declared in [f'"{DECLARED}":"{widths[each.name]}"' if each.name in widths else ""]
    ]
    DeltaTable.create(str(table), schema=Schema(fields))


def write(sink: DeltaTableSink, key: SinkKey, frame: DataFrame, **options: Any) -> None:
    slot = sink.stage(frame, key, 1, fingerprint="f", options=WriteOptions(**options))
    assert run(sink.commit(key, slot)) == Committed(slot)


def test_rows_that_fit_are_stored_as_they_are(
    spark: SparkSession, delta: DeltaTableSink, key: SinkKey, table: Path
) -> None:
    """Rows are stored as Delta's own writer stores them: CHAR is not padded, and a width counts characters, not bytes."""
    create(spark, table, "id int, code string, plant string", code="varchar(5)", plant="char(3)")
    frame = spark.sql(
        "SELECT * FROM VALUES (1, 'ünï\U0001f600x', 'D'), (2, NULL, NULL), (3, '', 'ab ') AS t(id, code, plant)"
    )
    write(delta, key, frame)
    assert sorted((row["id"], row["code"], row["plant"]) for row in rows_in(table)) == [
        (1, "ünï\U0001f600x", "D"),
        (2, None, None),
        (3, "", "ab "),
    ]


def test_a_check_leaves_a_column_without_nulls(
    spark: SparkSession, delta: DeltaTableSink, key: SinkKey, table: Path
) -> None:
    """A NOT NULL column with a width accepts rows that cannot hold nulls there, and refuses rows that may, by name."""
    strict = f'{{"name":"code","type":"string","nullable":false,"metadata":{{"{DECLARED}":"varchar(5)"}}}}'
    DeltaTable.create(str(table), schema=Schema([Field.from_json(strict)]))
    write(delta, key, spark.sql("SELECT 'A-100' AS code"))
    assert rows_in(table) == [{"code": "A-100"}]
    with pytest.raises(InvalidInput, match="its column code is NOT NULL, and the rows may hold nulls there"):
        write(delta, later(key, 2), spark.sql("SELECT nullif('A', 'B') AS code"))


@pytest.mark.parametrize("jvm_traces", ["true", "false"])
def test_a_text_that_is_too_long_is_refused_by_one_sentence(
    spark: SparkSession, delta: DeltaTableSink, key: SinkKey, table: Path, jvm_traces: str
) -> None:
    """The sentence names the column, its width and the text's length; trailing blanks count. Nothing is staged or visible, whether or not
    the session prints Java's stack traces."""
    create(spark, table, "id int, code string, plant string", code="varchar(5)", plant="char(3)")
    before = spark.conf.get("spark.sql.pyspark.jvmStacktrace.enabled")
    spark.conf.set("spark.sql.pyspark.jvmStacktrace.enabled", jvm_traces)
    try:
        for code, plant, why in (
            (
                "A-100-LONG",
                "D",
                r"its column code is varchar\(5\), and a row has a text of 10 characters there; shorten it",
            ),
            ("A", "DE  ", r"its column plant is char\(3\), and a row has a text of 4 characters there"),
        ):
            texts = (f"if(id = 7, '{code}', 'ok') AS code", f"if(id = 7, '{plant}', 'ok') AS plant")
            with pytest.raises(InvalidInput, match=f"output orders does not fit the Delta table file:.*: {why}"):
                write(delta, key, spark.range(0, 10, 1, 2).selectExpr("cast(id AS int) AS id", *texts))
    finally:
        spark.conf.set("spark.sql.pyspark.jvmStacktrace.enabled", str(before))
    assert not list(table.glob("so-*/*"))
    assert rows_in(table) == []


@pytest.mark.parametrize(
    "case",
    [
        ({"v": "12345"}, r"who\.v is varchar\(4\), and a row has a text of 5"),
        ({"t": "123"}, r"who\.tags\.element\.t is char\(2\), and a row has a text of 3"),
        ({"k": "1234"}, r"who\.m\.key is char\(3\), and a row has a text of 4"),
        ({"e": "12"}, r"who\.m\.value\.element is varchar\(1\), and a row has a text of 2"),
        ({}, None),
    ],
)
def test_widths_inside_structs_arrays_and_maps_are_checked(
    spark: SparkSession, delta: DeltaTableSink, key: SinkKey, table: Path, case: tuple[dict[str, str], str | None]
) -> None:
    """Spark records nested widths in the metadata of the top-level column. Nulls on the way to a text are no texts, and fields may come in
    another order."""
    values, path = case
    row = ROW.format(**({"v": "1234", "t": "12", "k": "123", "e": "1"} | values))
    create(spark, table, f"id int, who {spark.sql(f'SELECT {row}').schema['who'].dataType.simpleString()}", who=DEEP)
    frame = spark.sql(f"SELECT 1 AS id, {row} UNION ALL SELECT 2, NULL").selectExpr(
        "named_struct('m', who.m, 'v', who.v, 'tags', who.tags) AS who", "id"
    )
    if path is not None:
        with pytest.raises(InvalidInput, match=f"its column {path} characters"):
            write(delta, key, frame)
        assert rows_in(table) == []
        return
    write(delta, key, frame)
    assert rows_in(table)[0]["who"]["m"] == [("123", ["", None, "1"])]


def test_widths_of_the_rows_are_kept_in_a_new_table(
    spark: SparkSession, delta: DeltaTableSink, key: SinkKey, table: Path
) -> None:
    """A new table keeps the widths as Delta's own writer does, at any depth and for added columns; rows that exceed the width that they
    declare are refused."""
    spark.sql("CREATE TABLE source (id INT, code VARCHAR(5), who STRUCT<name: CHAR(3)>) USING parquet")
    try:
        spark.sql("INSERT INTO source VALUES (1, 'A-100', named_struct('name', 'Ada'))")
        write(delta, key, spark.table("source").drop("who"))
        write(delta, later(key, 2), spark.table("source"), merge_schema=True)
        metadata = {each.name: each.metadata for each in DeltaTable(str(table)).schema().fields}
        assert metadata == {"id": {}, "code": {DECLARED: "varchar(5)"}, "who": {DECLARED: "struct<name:char(3)>"}}
        longer = spark.sql("SELECT 'longer' AS code").withMetadata("code", {DECLARED: "varchar(5)"})
        other = open_delta(ORDERS, FolderObjects(table.with_name("other"), durable=False))
        with pytest.raises(
            InvalidInput, match=r"column code is varchar\(5\), .* cast it to string if the rows brought the width"
        ):
            write(other, key, longer)
        write(other, key, longer.selectExpr("cast(code AS string) AS code"))
        assert rows_in(table.with_name("other")) == [{"code": "longer"}]
    finally:
        spark.sql("DROP TABLE source")


def test_a_collation_is_not_dropped_in_silence(
    spark: SparkSession, delta: DeltaTableSink, key: SinkKey, table: Path
) -> None:
    """A new column with a collation that does not compare by bytes is refused, nested or not. A cast drops the collation; for an existing
    column the table's collation applies."""
    frame = spark.sql("SELECT 'a' COLLATE UTF8_LCASE AS name, named_struct('n', 'b' COLLATE UNICODE_CI) AS who")
    for column, collation in (("name", "spark.UTF8_LCASE"), ("who", "icu.UNICODE_CI")):
        with pytest.raises(InvalidInput, match=f"column {column} has the collation {collation}, .*; cast it to string"):
            write(delta, key, frame.select(column))
    assert not table.exists()
    write(delta, key, frame.selectExpr("cast(name AS string) AS name"))
    write(delta, later(key, 2), frame.select("name"))  # the existing column keeps its own collation
    assert rows_in(table) == [{"name": "a"}]


def test_struct_fields_in_another_order_are_read_by_name(
    spark: SparkSession, delta: DeltaTableSink, key: SinkKey, table: Path
) -> None:
    """Rows whose struct fields come in another order are read by name, by delta-rs, by pyarrow and by plain Spark, inside arrays and maps
    too; so are fields that only newer files have."""
    import pyarrow as pa
    from deltalake import QueryBuilder

    rows = (
        "SELECT {n} AS n, named_struct({one}) AS s, array(named_struct({one})) AS a, "
        "map(named_struct({one}), named_struct({one})) AS m"
    )
    write(delta, key, spark.sql(rows.format(n=1, one="'x', 'x1', 'y', 'y1'")))
    write(
        delta,
        later(key, 2).model_copy(update={"key_hash": "b"}),
        spark.sql(rows.format(n=2, one="'y', 'y2', 'x', 'x2'")),
    )
    wider = spark.sql(
        "SELECT 3 AS n, named_struct('z', 'z3', 'y', 'y3', 'x', 'x3') AS s, array(named_struct('z', 'z3')) AS a"
    )
    write(delta, later(key, 2).model_copy(update={"key_hash": "c"}), wider, merge_schema=True)

    def struct(n: int, *names: str) -> dict[str, str | None]:
        return {name: f"{name}{n}" if name in names else None for name in "xyz"}

    expected = [
        (1, struct(1, "x", "y"), [struct(1, "x", "y")], [({"x": "x1", "y": "y1"}, {"x": "x1", "y": "y1"})]),
        (2, struct(2, "x", "y"), [struct(2, "x", "y")], [({"x": "x2", "y": "y2"}, {"x": "x2", "y": "y2"})]),
        (3, struct(3, "x", "y", "z"), [struct(3, "z")], None),
    ]
    found = pa.table(QueryBuilder().register("t", DeltaTable(str(table))).execute("SELECT * FROM t ORDER BY n"))
    for read in (found.to_pylist(), rows_in(table)):
        assert sorted((row["n"], row["s"], row["a"], row["m"]) for row in read) == expected
    declared = spark.createDataFrame(
        [], "n int, s struct<x:string,y:string,z:string>, a array<struct<x:string,y:string,z:string>>"
    )
    plain = spark.read.schema(declared.schema).parquet(*(str(path.parent) for path in table.glob("so-*/*/*.parquet")))
    assert [(r.n, r.s.asDict(), [e.asDict() for e in r.a]) for r in plain.distinct().orderBy("n").collect()] == [
        each[:3] for each in expected
    ]


def test_dates_outside_of_the_calendar_of_python_are_written_and_never_skipped(
    spark: SparkSession, delta: DeltaTableSink, key: SinkKey, table: Path
) -> None:
    """Spark has years beyond 1 to 9999; a file with such a date has no bounds for that column and keeps those of the others."""
    dates = "date'+10000-01-01', date'-0001-01-01', date'2024-02-29'"
    write(delta, key, spark.sql(f"SELECT explode(array({dates})) AS day, 7 AS n").coalesce(1))
    (stats,) = (json.loads(action["add"]["stats"]) for entry in entries(table) for action in entry if "add" in action)
    assert (stats["minValues"], stats["nullCount"]) == ({"n": 7}, {"day": 0, "n": 0})
    read = spark.read.parquet(*(str(path.parent) for path in table.glob("so-*/*/*.parquet")))
    assert read.where(f"day IN ({dates})").count() == 3
