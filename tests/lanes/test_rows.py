"""Rows keep their types and values on the way to a Parquet file, or are refused with the name of the column."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import sparkonce
from sparkonce.errors import InvalidInput
from sparkonce.lanes import rows
from sparkonce.lanes.rows import arrow_of, arrow_schema, joined, parquet_of, spark_schema, with_columns_of

NONE = pa.schema([])
UTC = dt.UTC
DAY = dt.date(2026, 1, 1)

KEPT: dict[str, tuple[Any, Any]] = {
    # what is given -> what a file has
    "bool": (pa.array([True, None, False]), None),
    "int8": (pa.array([-128, 127, None], pa.int8()), None),
    "int16": (pa.array([-(2**15), 2**15 - 1], pa.int16()), None),
    "int32": (pa.array([-(2**31), 2**31 - 1], pa.int32()), None),
    "int64": (pa.array([-(2**63), 2**63 - 1], pa.int64()), None),
    "float": (pa.array([1.5, float("inf"), -0.0], pa.float32()), None),
    "double": (pa.array([1e308, 5e-324, float("-inf")], pa.float64()), None),
    "string": (pa.array(["", "ä\0\n", "__HIVE_DEFAULT_PARTITION__", None]), None),
    "large_string": (pa.array(["a"], pa.large_string()), pa.string()),
    "string_view": (pa.array(["a"], pa.string_view()), pa.string()),
    "dictionary": (pa.array(["a", "b", "a"]).dictionary_encode(), pa.string()),
    "binary": (pa.array([b"", b"\xff\x00", None], pa.binary()), None),
    "fixed_size_binary": (pa.array([b"abcd"], pa.binary(4)), pa.binary()),
    "large_binary": (pa.array([b"a"], pa.large_binary()), pa.binary()),
    "date32": (pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31)], pa.date32()), None),
    "date64": (pa.array([dt.date(1500, 2, 28)], pa.date64()), pa.date32()),
    "timestamp": (
        pa.array([dt.datetime(1, 1, 1, tzinfo=UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)]),
        pa.timestamp("us", tz="UTC"),
    ),
    "timestamp of a zone": (
        pa.array([0, 1], pa.timestamp("us", tz="Europe/Zurich")),
        pa.timestamp("us", tz="UTC"),
    ),
    "timestamp_ntz": (pa.array([-(2**50)], pa.timestamp("us")), pa.timestamp("us")),
    "timestamp of seconds": (pa.array([-1, 1], pa.timestamp("s")), pa.timestamp("us")),
    "timestamp of whole microseconds": (pa.array([5000], pa.timestamp("ns")), pa.timestamp("us")),
    "decimal": (pa.array([Decimal("-9" * 1 + "9" * 37), Decimal(0)], pa.decimal128(38, 0)), None),
    "decimal256": (pa.array([Decimal("1.25")], pa.decimal256(10, 2)), pa.decimal128(10, 2)),
    "list": (pa.array([[1, None], [], None], pa.list_(pa.int64())), pa.list_(pa.field("element", pa.int64()))),
    "large_list": (pa.array([[1]], pa.large_list(pa.int64())), pa.list_(pa.field("element", pa.int64()))),
    "struct": (pa.array([{"a": 1, "b": "x"}, {"a": None, "b": None}]), None),
    "map": (pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())), None),
    "nested": (
        pa.array([[{"a": [1]}], None]),
        pa.list_(pa.field("element", pa.struct([pa.field("a", pa.list_(pa.field("element", pa.int64())))]))),
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_type_is_kept(name: str) -> None:
    """The file has the values that were given, in the type that the table's columns say; the columns survive a restart."""
    given, expected = KEPT[name]
    table = arrow_of(pa.table({"c": given}), NONE)
    assert table.schema.field("c").type == (expected or given.type)
    found = parquet.read_table(pa.BufferReader(parquet_of(table))).column("c")
    assert found.to_pylist() == given.to_pylist()
    assert found.type == table.schema.field("c").type
    assert arrow_schema(spark_schema(table.schema)) == table.schema
    assert json.loads(spark_schema(table.schema))["fields"][0]["nullable"] is True


REFUSED = {
    "uint8": (pa.array([1], pa.uint8()), "is uint8, which Spark has no type for; cast it"),
    "uint64": (pa.array([2**64 - 1], pa.uint64()), "is uint64, which Spark has no type for; cast it"),
    "float16": (pa.array([1], pa.float16()), "is halffloat, which Spark has no type for; cast it"),
    "time": (pa.array([dt.time(1)]), "is time64"),
    "duration": (pa.array([dt.timedelta(1)]), "is duration"),
    "null": (pa.nulls(2), "has only nulls, so its type is not known; pass schema= to the writer"),
    "list of nulls": (pa.array([[None]]), r"has only nulls"),
    "decimal of 39 digits": (pa.array([Decimal(1)], pa.decimal256(39, 0)), "is decimal256"),
    "empty struct": (pa.array([{}], pa.struct([])), "is struct<>"),
    "nanoseconds": (pa.array([1], pa.timestamp("ns")), "and is written as timestamp"),
    "too late": (pa.array([2**62], pa.timestamp("s")), "and is written as timestamp"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_type_that_cannot_be_kept_is_refused(name: str) -> None:
    """By the column's name, before anything is taken."""
    given, why = REFUSED[name]
    with pytest.raises(InvalidInput, match=rf"^column c(\.element)? .*{why}"):
        arrow_of(pa.table({"c": given}), NONE)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (pa.table([[1], [2]], names=["a", "A"]), "^the columns a and A are one to Spark"),
        (pa.table([[1], [2]], names=["a", "a"]), "^the columns a and a are one to Spark"),
        (pa.table([[1]], names=[""]), "^a column has no name"),
        ([{"n": 1}, 7], "^row 1 is int, not a mapping"),
        ([{1: 2}], "^row 0 is dict, not a mapping of column names"),
        ([{"n": 1}, {"n": "x"}], "^column n cannot be written: "),
        ([{"n": 2**64}], "^column n cannot be written: "),
        ([{}], "^the rows have no column with a value"),
        ([{"n": object()}], "^column n cannot be written: "),
        (
            pa.table(
                {
                    "c": pa.Array.from_buffers(
                        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")]
                    )
                }
            ),
            "^the rows are not valid Arrow data: ",
        ),
    ],
)
def test_rows_that_are_none_are_refused(given: Any, why: str) -> None:
    """One sentence, which names the row or the column."""
    with pytest.raises(InvalidInput, match=why):
        arrow_of(given, NONE)


COLUMNS: list[pa.Field[Any]] = [
    pa.field("n", pa.int64()),
    pa.field("small", pa.int32()),
    pa.field("x", pa.float64()),
    pa.field("day", pa.date32()),
    pa.field("at", pa.timestamp("us", tz="UTC")),
    pa.field("local", pa.timestamp("us")),
    pa.field("price", pa.decimal128(10, 2)),
    pa.field("tags", pa.list_(pa.field("element", pa.string()))),
    pa.field("who", pa.struct([pa.field("name", pa.string()), pa.field("age", pa.int64())])),
    pa.field("m", pa.map_(pa.string(), pa.int64())),
]
KNOWN = pa.schema(COLUMNS)
NAIVE = dt.datetime(2026, 1, 1)  # noqa: DTZ001 - without a zone on purpose
AT = dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 1), ("n", None), ("small", 2**31 - 1), ("x", 1), ("x", float("nan")), ("day", dt.date(2026, 1, 1)), ("at", AT),
        ("local", NAIVE), ("price", Decimal("1.5")), ("price", Decimal("12345678.90")), ("tags", []),
        ("tags", [None]), ("who", {"name": "a"}), ("who", {}), ("m", {"a": 1}), ("m", [("a", 1)]),
    ],
)  # fmt: skip
def test_a_value_that_fits_the_lanes_type_takes_it(name: str, value: Any) -> None:
    """Python's types are converted where the value stays the same."""
    table = arrow_of({name: value}, KNOWN)
    assert table.schema.field(name).type == KNOWN.field(name).type
    assert rows._same(table.column(name)[0].as_py(), value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 1.5), ("n", "1"), ("n", True), ("small", 2**31), ("x", "1"), ("x", True), ("day", AT), ("day", "2026-01-01"),
        ("at", NAIVE), ("local", AT), ("at", dt.date(2026, 1, 1)), ("price", Decimal("1.005")), ("price", 1.5),
        ("tags", ["a", 1]), ("tags", "ab"), ("who", {"name": "a", "size": 1}), ("who", {"age": "1"}), ("m", {"a": "x"}),
    ],
)  # fmt: skip
def test_a_value_that_would_be_changed_is_refused(name: str, value: Any) -> None:
    """No truncation, no parsing, no guess of a time zone, no field that is dropped."""
    with pytest.raises(InvalidInput, match=f"^column {name} "):
        arrow_of([{name: value}], KNOWN)


def test_columns_come_and_go() -> None:
    """Mappings with different keys are one table; a column without any value is as if it were absent."""
    table = arrow_of([{"n": 1}, {"m": "x"}, {"n": 2, "k": None}], NONE)
    assert table.to_pylist() == [{"n": 1, "m": None}, {"n": None, "m": "x"}, {"n": 2, "m": None}]
    known = with_columns_of(NONE, table.schema)
    other = arrow_of([{"k": 1.5}], known)
    known = with_columns_of(known, other.schema)
    both = joined([table, other], known)
    assert both.schema.names == ["n", "m", "k"]
    assert both.to_pylist()[3] == {"n": None, "m": None, "k": 1.5}


def test_a_writer_reads_back_what_it_wrote(tmp_path: Path) -> None:
    """All kept types through a writer and a file; a second writer knows the columns, and refuses another type by name."""
    table = pa.table(
        {name: pa.array([given[0].as_py()], given.type) for name, (given, _) in KEPT.items() if name != "dictionary"}
    )
    with sparkonce.writer(tmp_path / "t", name="tap", linger=0.0) as writer:
        writer.append(table)
    (file,) = sparkonce.files(tmp_path / "t")
    assert parquet.read_table(file.removeprefix("file://")).to_pylist() == table.to_pylist()
    with sparkonce.writer(tmp_path / "t", name="tap", linger=0.0) as writer:
        with pytest.raises(InvalidInput, match=r"^column int64 is string, and the lane has it as int64; cast it"):
            writer.append(pa.table({"int64": ["x"]}))
        writer.append({"int64": 5})
    assert len(sparkonce.files(tmp_path / "t")) == 2


def test_a_declared_schema_gives_types_beforehand(tmp_path: Path) -> None:
    """Nulls and empty lists have a type then; a schema against the lane's is refused."""
    schema = pa.schema([pa.field("n", pa.int32()), pa.field("tags", pa.list_(pa.string()))])
    with sparkonce.writer(tmp_path / "t", name="tap", schema=schema, linger=0.0) as writer:
        writer.append({"n": None, "tags": []})
    (file,) = sparkonce.files(tmp_path / "t")
    assert parquet.read_schema(file.removeprefix("file://")).field("n").type == pa.int32()
    with pytest.raises(InvalidInput, match=r"^schema has the column n as int64, and the lane has it as int32"):
        sparkonce.writer(tmp_path / "t", name="tap", schema=pa.schema([pa.field("n", pa.int64())]))
    with pytest.raises(InvalidInput, match=r"^schema is str, not a pyarrow.Schema"):
        sparkonce.writer(tmp_path / "t", name="tap", schema="n int")  # type: ignore[arg-type]


@pytest.mark.parametrize(("folder", "kind"), [("_delta_log", "a Delta table"), ("metadata", "an Iceberg table")])
def test_a_path_with_another_kind_of_table_is_refused(tmp_path: Path, folder: str, kind: str) -> None:
    """Before anything is written there."""
    (tmp_path / "t" / folder).mkdir(parents=True)
    (tmp_path / "t" / folder / "00000000000000000000.json").write_text("{}")
    with pytest.raises(InvalidInput, match=rf"^file://\S+ is {kind}, and a lane is a slot log; give another path"):
        sparkonce.writer(tmp_path / "t", name="tap")
    assert sorted(each.name for each in (tmp_path / "t").iterdir()) == [folder]


def test_a_stranger_cannot_make_a_writer_read_what_is_no_json(tmp_path: Path) -> None:
    """A place that another program changed is named; nothing is appended behind it."""
    with sparkonce.writer(tmp_path / "t", name="tap", linger=0.0) as writer:
        writer.append({"n": 1}, position=1)
    newest = max((tmp_path / "t" / "_idem").glob("*-lane-g1-b1/*.json"))
    body = json.loads(newest.read_text())
    body["stream"]["lane"]["position"] = "{"
    newest.write_text(json.dumps(body))
    with pytest.raises(
        sparkonce.SparkonceError, match=r"^the position of the lane 'tap' after number 1 is not JSON; restore"
    ):
        sparkonce.writer(tmp_path / "t", name="tap")


@pytest.mark.parametrize(
    "values",
    [
        [DAY, dt.datetime.combine(DAY, dt.time(23, 59, 59))],
        [dt.datetime(2026, 1, 1, 5, tzinfo=dt.timezone(dt.timedelta(hours=2))), dt.datetime.combine(DAY, dt.time(5))],
        ["x", b"x"],
        [1.5, True],
        [[DAY], [dt.datetime.combine(DAY, dt.time(23))]],
        [{"at": DAY}, {"at": dt.datetime.combine(DAY, dt.time(23))}],
    ],
    ids=str,
)
def test_values_of_two_types_are_refused_in_a_new_column_too(values: list[Any]) -> None:
    """Arrow takes the type of the first ones and converts the others, without a word about what it drops."""
    given = [{"value": each} for each in values]
    with pytest.raises(InvalidInput, match="column value cannot be written"):
        arrow_of(given, NONE)
    known = pa.schema([pa.field("value", pa.array(values[:1]).type)])
    with pytest.raises(InvalidInput, match=r"column value is .* in this lane"):
        arrow_of(given, known)


@pytest.mark.parametrize(
    "values",
    [
        [np.bool_(True), np.bool_(False)],
        [np.float32("nan"), np.float32(1.5)],
        [np.float64("nan"), -0.0],
        [np.int64(2**40), 1],
        [np.array([True, False])],
        [np.datetime64("2026-01-01T05:00:00.000001", "us")],
    ],
    ids=str,
)
def test_scalars_of_numpy_are_taken_in_a_new_column(values: list[Any]) -> None:
    """They are equal to what Arrow makes of them, also where they are no number of Python's."""
    table = arrow_of([{"value": each} for each in values], NONE)
    assert table.column("value").null_count == 0
    assert table.num_rows == len(values)
