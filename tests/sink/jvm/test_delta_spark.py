"""A real Spark with Delta's own engine on tables that jobs write: what it reads, and how its writes, OPTIMIZE and VACUUM affect them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.delta_jars import delta_jars
from harness.spark import facts_of, facts_once, needed_java

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What every user of the table observed; harness/delta_spark.py collects it."""
    needed_java()  # before minutes are spent on its jars
    jars = ",".join(map(str, delta_jars()))
    return facts_once(tmp_path_factory, "delta-spark", lambda folder: facts_of("harness.delta_spark", folder, jars))


def test_the_engine_reads_what_jobs_wrote(facts: dict[str, Any]) -> None:
    """Every type and partition value is read as it was written: null, special characters, times of another time zone."""
    assert facts["created"] == "Committed"
    texts = ["a b", "x:y/%=", "ü", "100%25", "Ä", None]
    assert facts["rows"] == [
        [text, number, f"2024-05-01 08:0{number}:00", "1.50", ["t", None], number] for number, text in enumerate(texts)
    ]
    assert facts["pruned"] == 1


def test_jobs_and_the_engine_write_by_turns(facts: dict[str, Any]) -> None:
    """Jobs and the engine append, add a column and replace a generation in turns, on tables that either of them created; every row is there
    once."""
    assert [facts[what] for what in ("after the engine's insert", "merged", "replaced", "into the engine's table")] == [
        "Committed"
    ] * 4
    assert facts["extra"] == [{"n": 11, "extra": "new"}]
    assert facts["numbers"] == [0, 1, 2, 3, 4, 5, 11, 12, 100]
    assert facts["of the engine's table"] == [0, 1, 2]
    told = [json.loads(each)["sparkonce"].get("sinkKey") for each in facts["engine's own history"] if each]
    assert [each for each in told if each] == ["bb-orders-g2", "cc-orders-g1", "bb-orders-g1", "aa-orders-g1"]


def test_optimize_and_vacuum_leave_rows_and_evidence(facts: dict[str, Any]) -> None:
    """After both, with zero retention, no committed row is lost, results are still present, and a rerun that would replace rewritten rows
    is refused."""
    assert facts["after optimize and vacuum"] == [0, 1, 2, 3, 4, 5, 11, 12]
    assert facts["probes"] == {"aa": "present", "bb": "replaced", "cc": "present"}
    assert facts["found"] is True
    assert "another writer rewrote or deleted" in facts["replace after optimize"]


def test_fences_hold_while_the_engine_goes_on(facts: dict[str, Any]) -> None:
    """A zombie that resumes after the engine committed on top of the fence is barred."""
    assert facts["fence"] is None
    assert facts["zombie"] == "FencedOff"
    assert facts["at last"] == [0, 1, 2, 3, 4, 5, 11, 12, 200, 201]


def test_texts_are_stored_as_the_engine_stores_them_under_widths(facts: dict[str, Any]) -> None:
    """In CHAR(n) and VARCHAR(n) columns that the engine created, a job stores the same bytes as the engine, and the engine's readers see
    the same rows; what the engine would refuse is refused, trailing blanks too. The engine can rewrite the job's file."""
    assert facts["into widths"] == "Committed"
    engines, ours = facts["stored under widths"]
    assert engines | {"n": 1} == ours == {"n": 1, "code": "A-100", "plant": "D", "who": {"name": "Ada", "age": 36}}
    read = {"code": "A-100", "plant": "D  ", "name": "Ada ", "age": 36}
    assert facts["read under widths"] == [{"n": 0, **read}, {"n": 1, **read}]
    assert len(facts["too long"]) == 3
    for said, column in zip(
        facts["too long"], ("who.name is char(4)", "code is varchar(5)", "plant is char(3)"), strict=True
    ):
        assert f"its column {column}, and a row has a text of " in said
    assert facts["rewritten under widths"] == [0, 1]


def test_the_engine_goes_on_with_a_table_that_was_given_a_feature(facts: dict[str, Any]) -> None:
    """The table had no columns, and its first rows have local times, which need a table feature: the engine reads them and adds its own."""
    assert facts["into a table without columns"] == "Committed"
    assert facts["noons"] == ["2024-05-01 12:00:00"] * 2
