"""A real Spark with separate executors writes tables of every kind: with tasks that fail or run speculatively, and with unusual
settings."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from harness.spark import facts_of, facts_once

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What harness/tasks_spark.py observed."""
    return facts_once(tmp_path_factory, "tasks", lambda folder: facts_of("harness.tasks_spark", folder))


@pytest.mark.parametrize("way", ["failed", "speculated"])
@pytest.mark.parametrize("kind", ["slotLog", "delta", "iceberg"])
def test_a_task_that_ran_more_than_once_is_counted_once(facts: dict[str, Any], kind: str, way: str) -> None:
    """Failed: a task failed twice in the middle of its rows. Speculated: a task went on only after its speculative copy wrote beside it, as
    a mark shows. The slot counts each row once, and readers see each once."""
    assert facts[f"{kind} {way}"] == ["Committed", 100, True]
    assert facts[kind] == list(range(200))


Row = tuple[int, dt.datetime, dt.date, str | None, list[str | None] | None]
START = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
OLDER: Row = (0, dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC), dt.date(2024, 5, 1), "1.00", ["x"])
WRITTEN: list[Row] = [
    (1, dt.datetime(9999, 12, 31, tzinfo=dt.UTC), dt.date(1000, 3, 1), "12.50", ["a", None]),
    (2, dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.date(1, 1, 1), "-0.01", []),
    (3, dt.datetime(1883, 11, 18, 12, tzinfo=dt.UTC), dt.date(1582, 10, 10), None, None),
]


@pytest.mark.parametrize("kind", ["slotLog", "delta", "iceberg"])
def test_readers_find_what_was_written_whatever_the_session_says(facts: dict[str, Any], kind: str) -> None:
    """With Spark's legacy calendar, INT96, the legacy Parquet layout of Spark 1.4 and a time zone whose offset has changed, delta-rs,
    pyiceberg and pyarrow see the same instants, days, amounts and lists, also in rows that an earlier version wrote as INT96, and the job's
    session keeps its settings."""
    days, micros = dt.timedelta(days=1), dt.timedelta(microseconds=1)
    expected = [
        [number, (at - START) // micros, (day - START.date()) // days, amount, tags]
        for number, at, day, amount, tags in ([OLDER] if kind != "iceberg" else []) + WRITTEN
    ]
    assert facts[f"{kind} committed"] == "Committed"
    assert facts[f"{kind} values"] == expected
    assert facts["kept"]
    assert facts["older"] == {"slotLog": "INT96", "delta": "INT96"}


@pytest.mark.parametrize("writer", ["Spark", "Arrow"])
def test_a_column_of_an_iceberg_table_is_an_id(facts: dict[str, Any], writer: str) -> None:
    """In existing rows a renamed column keeps its values, and a new column with the old name has none; nested ones as well. Rows written
    later under the old names go to the new columns."""
    assert facts[f"columns by {writer}"] == [
        {"id": 1, "quantity": 10, "s": {"a": 1, "c": "x", "b": None}, "note": None, "qty": None},
        {"id": 2, "quantity": None, "s": {"a": 2, "c": None, "b": "x"}, "note": "old", "qty": 20},
    ]
    assert not facts[f"mapping by {writer}"]
