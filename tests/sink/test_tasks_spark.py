"""A real Spark with executors of their own, some of whose tasks fail or run twice at a time, writes every kind of table."""

from __future__ import annotations

from typing import Any

import pytest

from harness.spark import facts_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of it: see harness/tasks_spark.py."""
    return facts_of("harness.tasks_spark", tmp_path_factory.mktemp("tasks"))


@pytest.mark.parametrize("way", ["failed", "speculated"])
@pytest.mark.parametrize("kind", ["slotLog", "delta", "iceberg"])
def test_a_task_that_ran_more_than_once_is_counted_once(facts: dict[str, Any], kind: str, way: str) -> None:
    """A task failed twice in the middle of its rows; one went on only when its speculative copy wrote beside it (the mark shows that it
    did). The slot counts each row once, and readers see each once."""
    assert facts[f"{kind} {way}"] == ["Committed", 100, True]
    assert facts[kind] == list(range(200))
