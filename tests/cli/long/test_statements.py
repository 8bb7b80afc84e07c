"""The remedies that a job of statements prints, each taken in the state that prints it. delta-rs plays Spark's engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from harness.delta_engine import numbers, rows_of
from harness.desk import Desk

KEY = "write/numbers@1"
STATEMENTS = """
    import json
    from pathlib import Path

    import sparkonce
    from harness.delta_engine import Engine

    engine = Engine(Path("lake/numbers"))
    with sparkonce.current().native("numbers") as block:
        for number in json.loads(Path("statements.json").read_text()):
            if number < 0:
                raise RuntimeError("the input is not there")
            block.statement(engine.statement(number))
"""
"""A job that issues the statements whose numbers stand in a file; -1 stands for an error between two of them."""
DELTA = {"name": "numbers", "delta": {"path": "lake/numbers"}}


def statements(desk: Desk, *numbers: int) -> None:
    (desk.folder / "statements.json").write_text(str(list(numbers)))


@pytest.fixture
def table(desk: Desk) -> Path:
    """The table with one row. Its job has one attempt."""
    where = desk.folder / "lake" / "numbers"
    write_deltalake(str(where), rows_of(0))
    desk.job(STATEMENTS, outputs=[DELTA])
    return where


def test_a_half_block_goes_on_with_the_same_statements(desk: Desk, table: Path) -> None:
    """Held(Partial) with what is done. After `keys resolve --retry` the job, sent again, runs what is missing only."""
    statements(desk, 1, -1, 2)
    said = desk.here("run", "job.yaml", "--json")
    assert (said.code, said.told["phase"], said.told["attempt"]) == (5, "Held", 1), said
    assert "another attempt of the same script skips these and goes on after them" in said.out
    statements(desk, 1, 2)
    retried = desk.here("keys", "resolve", KEY, "--retry", "--reason", "it is there", "--yes")
    assert "send the same job again to run it" in retried.out
    assert desk.here("run", "job.yaml", "--json").told["phase"] == "Succeeded"
    assert numbers(table) == [0, 1, 2]


def test_other_statements_are_refused_until_they_are_as_before(desk: Desk, table: Path) -> None:
    """The refusal says so, and the statements as they were complete the block."""
    statements(desk, 1, -1)
    assert desk.here("run", "job.yaml").code == 5
    statements(desk, 5, 2)
    desk.here("keys", "resolve", KEY, "--retry", "--reason", "again", "--yes")
    said = desk.here("run", "job.yaml")
    assert said.code == 5
    assert "StatementsDiffer" in said.out
    assert "Issue the same statements in the same order as before" in said.out
    assert numbers(table) == [0, 1]
    statements(desk, 1, 2)
    desk.here("keys", "resolve", KEY, "--retry", "--reason", "as before", "--yes")
    assert desk.here("run", "job.yaml").code == 0
    assert numbers(table) == [0, 1, 2]


def test_another_script_runs_once_the_half_block_is_undone(desk: Desk, table: Path) -> None:
    """With `onRerun: Append` and the table restored, `rerun -f` runs the corrected script; before that it is refused and writes nothing."""
    statements(desk, 1, -1)
    assert "undo them, declare onRerun: Append and run `sparkonce rerun -f FILE`" in desk.here("run", "job.yaml").out
    statements(desk, 5, 2)
    desk.job(f"{STATEMENTS}    # corrected\n", outputs=[DELTA])
    assert "sparkonce rerun -f FILE" in desk.here("run", "job.yaml").out
    said = desk.here("rerun", "-f", "job.yaml", "--reason", "corrected")
    assert said.code == 1
    assert "undo it yourself and declare onRerun: Append" in said.out
    assert numbers(table) == [0, 1]

    DeltaTable(str(table)).restore(0)
    desk.job(f"{STATEMENTS}    # corrected\n", outputs=[{**DELTA, "onRerun": "Append"}])
    assert desk.here("rerun", "-f", "job.yaml", "--reason", "corrected").code == 0
    assert numbers(table) == [0, 2, 5]
