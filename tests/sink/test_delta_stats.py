"""Statistics of each file in the log of a Delta table: readers that skip files by them miss no row."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from harness.delta_stage import entries
from harness.delta_tables import later, sink_on
from sparkonce.blocking import run
from sparkonce.sink.delta.log import TEXT
from sparkonce.sink.protocol import Committed, SinkKey

NAN = math.nan
COLUMNS: dict[str, Any] = {
    "tiny": pa.array([-128, None, 127, 5], pa.int8()),
    "whole": pa.array([-(2**63), 7, None, 2**63 - 1], pa.int64()),
    "day": pa.array([dt.date(1970, 1, 1), dt.date(2024, 2, 29), None, dt.date(9999, 12, 31)], pa.date32()),
    "old": pa.array([dt.date(1582, 10, 4), dt.date(2024, 2, 29), None, None], pa.date32()),
    "far": pa.array([2932897, 0, None, 5], pa.int32()).cast(pa.date32()),
    "ancient": pa.array([-719163, 0, None, -(2**31)], pa.int32()).cast(pa.date32()),
    "name": pa.array(["", "b", None, "ä"], pa.string()),
    "odd": pa.array(["\x00", '"\\\n\u2028', None, "\ud7ff"], pa.string()),
    "broken": pa.array([b"\xff", b"a", None, b""], pa.binary()).view(pa.string()),
    "long": pa.array(["a" * (TEXT + 1), "b", None, "c"], pa.string()),
    "emoji": pa.array(["a", "\U0001f600", None, "\uffee"], pa.string()),
    "ratio": pa.array([1.0, NAN, None, -0.0], pa.float64()),
    "flag": pa.array([True, False, None, True], pa.bool_()),
    "price": pa.array([Decimal("1.50"), None, Decimal("-2.25"), Decimal("0.00")], pa.decimal128(9, 2)),
    "at": pa.array([0, 1, None, 2], pa.timestamp("us", tz="UTC")),
    "raw": pa.array([b"a", b"\xff", None, b""], pa.binary()),
    "none": pa.array([None] * 4, pa.int64()),
    "deep": pa.array([{"x": 1}, {"x": 2}, None, {"x": 3}], pa.struct([("x", pa.int64())])),
}
"""Rows per file: two."""


@pytest.fixture
def stats(key: SinkKey, table: Path) -> list[dict[str, Any]]:
    """Of the two files of one commit, in order."""
    sink = sink_on(table)
    slot = sink.stage(pa.table(COLUMNS), key, 1, fingerprint="f")  # type: ignore[arg-type]  # any frame
    assert run(sink.commit(key, slot)) == Committed(slot)
    adds = [action["add"] for entry in entries(table) for action in entry if "add" in action]
    return [json.loads(each["stats"]) for each in sorted(adds, key=lambda each: str(each["path"]))]


def test_bounds_are_those_of_the_rows(stats: list[dict[str, Any]]) -> None:
    """Integers, dates and short text have exact bounds; nulls are counted in every column without fields."""
    first, second = stats
    assert first["numRecords"] == second["numRecords"] == 2
    assert first["minValues"] == {"tiny": -128, "whole": -(2**63), "day": "1970-01-01", "name": "", "odd": "\x00"}
    assert first["maxValues"] == {"tiny": -128, "whole": 7, "day": "2024-02-29", "name": "b", "odd": '"\\\n\u2028'}
    assert second["maxValues"]["whole"] == 2**63 - 1
    assert second["maxValues"]["day"] == "9999-12-31"
    assert first["nullCount"]["none"] == 2
    assert first["nullCount"]["tiny"] == 1
    assert second["nullCount"]["ratio"] == 1
    assert "deep" not in first["nullCount"]


def test_what_engines_order_differently_has_no_bounds(stats: list[dict[str, Any]]) -> None:
    """Engines order these differently: floats with NaN, times, decimals, bytes, dates before the calendar reform or outside the years 1 to
    9999, long text, text that is not UTF-8 or beyond the Basic Multilingual Plane."""
    for name in (
        "old",
        "far",
        "ancient",
        "broken",
        "long",
        "emoji",
        "ratio",
        "flag",
        "price",
        "at",
        "raw",
        "none",
        "deep",
    ):
        assert name not in stats[0]["minValues"], name
        assert name not in stats[0]["maxValues"], name


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("whole = 7", 1), ("whole > 7", 1), ("whole < 0", 1), ("whole IS NULL", 1), ("whole IS NOT NULL", 3), ("tiny = 127", 1),
        ("day = DATE '2024-02-29'", 1), ("day > DATE '2024-02-29'", 1), ("old < DATE '1600-01-01'", 1), ("name = ''", 1),
        ("odd < 'a'", 2), ("odd = '\x00'", 1), ("far IS NULL", 1), ("ancient < DATE '1900-01-01'", 2),
        ("name >= 'b'", 2), ("name = 'ä'", 1), ("long > 'a'", 3), ("emoji > 'b'", 2), ("ratio = 1.0", 1), ("ratio = 0.0", 1),
        ("isnan(ratio)", 1), ("flag", 2), ("price < 0", 1), ("price = 1.5", 1), ("none IS NULL", 4), ("none = 1", 0),
        ("raw = X'FF'", 1), ("at > TIMESTAMP '1970-01-01T00:00:00.000001Z'", 1), ("whole = 7 OR day IS NULL", 2),
    ],
)  # fmt: skip
def test_a_reader_that_skips_files_finds_the_same_rows(
    stats: list[dict[str, Any]], table: Path, condition: str, rows: int
) -> None:
    """For each filter delta-rs's engine, which skips files, finds as many rows as a scan of all files would."""
    del stats
    query = QueryBuilder().register("t", DeltaTable(str(table)))
    found = pa.table(query.execute(f"SELECT tiny FROM t WHERE {condition}"))
    assert found.num_rows == rows


def test_a_filter_skips_files_by_their_bounds(stats: list[dict[str, Any]], table: Path) -> None:
    """The scan opens only the files whose bounds allow a match."""
    del stats
    query = QueryBuilder().register("t", DeltaTable(str(table)))
    plan = str(pa.table(query.execute("EXPLAIN SELECT tiny FROM t WHERE whole = 7"))["plan"].to_pylist())
    assert plan.count("part-00000.parquet") == 1
    assert "part-00001.parquet" not in plan


def test_whoever_rolls_a_slot_forward_knows_the_number_of_rows(key: SinkKey, table: Path) -> None:
    """A process that rolls forward has not read the footers: it records the number of rows and no bounds, so its files are never
    skipped."""
    slot = sink_on(table).stage(pa.table({"n": [1, 2]}), key, 1, fingerprint="f")  # type: ignore[arg-type]  # any frame
    assert run(sink_on(table).commit(key, slot)) == Committed(slot)
    said = [json.loads(action["add"]["stats"]) for entry in entries(table) for action in entry if "add" in action]
    assert said == [{"numRecords": 1}, {"numRecords": 1}]


def test_partition_columns_have_no_bounds(key: SinkKey, table: Path) -> None:
    """They are not stored in the files; the other columns have bounds as usual, and a rerun's rows replace the old ones."""
    from sparkonce.sink.protocol import WriteOptions

    sink = sink_on(table)
    rows: Any = pa.table({"d": ["a", "b"], "n": [1, 2]})
    for each in (key, later(key, 2)):
        slot = sink.stage(rows, each, 1, fingerprint="f", options=WriteOptions(partition_by=("d",)))
        assert run(sink.commit(each, slot)) == Committed(slot)
    adds = [action["add"] for entry in entries(table) for action in entry if "add" in action]
    assert all(set(json.loads(each["stats"])["minValues"]) == {"n"} for each in adds)
    found = pa.table(QueryBuilder().register("t", DeltaTable(str(table))).execute("SELECT n FROM t WHERE n = 2"))
    assert found.num_rows == 1
