"""Rows of Spark Connect: `job.write` appends and overwrites them in tables of every kind; what it cannot do with them is refused."""

from __future__ import annotations

from typing import Any

import pytest

from harness.spark import facts_of, facts_once

pytestmark = pytest.mark.spark
KINDS = ["slotLog", "delta", "iceberg"]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return facts_once(tmp_path_factory, "connect", lambda folder: facts_of("harness.connect_spark", folder))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_written_in_each_mode(facts: dict[str, Any], kind: str) -> None:
    """Readers of each format find the rows as they are, by partition, with a null partition, and moments of the sixteenth century although
    the session has the old calendar. The session itself is not changed."""
    found = facts[kind]
    first = [[0, None, True, 1], [1, "g1", True, 1], [2, "g0", True, 1]]
    assert found["first"] == [True, 3, first]
    assert found["second"] == [*first, [3, "g1", True, 1]]
    assert found["third"] == [[0, None, True, 1], [5, "g1", True, 1], [6, "g0", True, 1]]
    assert found["fourth"] == [[7, "g1", True, 1]]
    assert found["application"] is True
    assert found["session"] == "INT96"
    assert found.get("timestamps", ["us"]) == ["us"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_columns_are_those_that_were_checked(facts: dict[str, Any], kind: str) -> None:
    """A server looks up a view anew with each request. When its columns have changed, the rows are those of before, or there are none."""
    wrote = [] if facts[kind].get("late") == "AnalysisException" else [[8, "g0", True, 1]]
    assert facts[kind]["after all"] == [[7, "g1", True, 1], *wrote]


@pytest.mark.parametrize("kind", KINDS)
def test_what_needs_a_session_in_the_process_is_refused_by_name(facts: dict[str, Any], kind: str) -> None:
    """Streams, SQL and MERGE."""
    found = facts[kind]
    rows = "InvalidInput: the rows belong to a session of Spark Connect, from which sparkonce can append and overwrite, and not "
    assert found["stream"].startswith(f"{rows}write a stream; start the session without remote()")
    assert (
        found["sql"]
        == "InvalidInput: a native block needs a Spark session in this process, and this one uses Spark Connect"
    )
    merge = (
        "OutputUnsupported: output t is a slotLog, which takes no mode Merge" if kind == "slotLog" else f"{rows}merge;"
    )
    assert found["merge"].startswith(merge)


def test_a_slot_log_is_read_from_there(facts: dict[str, Any]) -> None:
    """`sparkonce.read` with a session of Connect shows the rows that are committed."""
    assert facts["read"] == [[7, "g1"]]
