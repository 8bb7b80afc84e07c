"""`spec.outputs[].expect`: rows that violate it never become visible, and the ledger has the reason."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.arrow_stage import arrow_stage, table_of
from harness.granted import Granted, granted
from sparkonce.blocking import run
from sparkonce.driver.channel import DirectChannel
from sparkonce.driver.context import Job
from sparkonce.driver.current import expected_of
from sparkonce.errors import ExpectationUnmet
from sparkonce.model.record import Report
from sparkonce.model.spec import Expect
from sparkonce.sink.open import sinks_of
from sparkonce.sink.staging import StagedRows


@dataclass(frozen=True)
class Frame:
    """A DataFrame's schema, known before it runs, and its rows."""

    rows: Any
    columns: tuple[str, ...] = ("n",)


def job_of(attempt: Granted, ran: list[str], **expected: Expect) -> Job:
    """A job whose stager records each frame that it runs."""

    def stage(frame: Frame, folder: str, partition_by: Any = ()) -> StagedRows:
        ran.append(folder)
        return arrow_stage(frame.rows, folder, partition_by)

    sinks = sinks_of(attempt.prepared.job, str(attempt.folder), stager=stage)
    return Job(attempt.assignment, sinks, DirectChannel(attempt.store, attempt.assignment), expected=expected)


def said(attempt: Granted) -> list[Report]:
    return [each for each in run(attempt.store.reports(attempt.record.address, 1)) if each.kind == "permanent-error"]


def test_columns_that_are_missing_end_the_write_before_the_frame_runs(tmp_path: Path) -> None:
    """The missing columns are named in the error and in the ledger, with the existing ones; nothing was staged."""
    attempt, ran = granted(tmp_path, "orders"), list[str]()
    job = job_of(attempt, ran, orders=Expect(columns=("n", "day", "fare")))

    with pytest.raises(
        ExpectationUnmet,
        match=r"orders violates spec.outputs\[orders\].expect: it has no column day, fare \(its columns are n\)",
    ):
        job.write(Frame(table_of(1)), "orders")  # type: ignore[arg-type]  # a stand-in for a DataFrame

    assert ran == []
    assert [(each.body["failure"], "day, fare" in each.body["message"]) for each in said(attempt)] == [
        ("Expectation", True)
    ]
    assert not (tmp_path / "orders").exists()


def test_too_few_rows_are_staged_and_never_visible(tmp_path: Path) -> None:
    """Rows are counted after they were written: the staged files are deleted, no slot is created, and the ledger has the reason."""
    attempt, ran = granted(tmp_path, "orders"), list[str]()
    job = job_of(attempt, ran, orders=Expect(min_rows=4))

    with pytest.raises(ExpectationUnmet, match="it has 3 rows and should have at least 4; nothing of it is visible"):
        job.write(Frame(table_of(1, 2, 3)), "orders")  # type: ignore[arg-type]  # see above

    assert len(ran) == 1
    assert attempt.committed("orders") is None
    assert list(tmp_path.glob("orders/_data/*/*")) == []
    assert len(said(attempt)) == 1


def test_one_unmet_expectation_ends_a_whole_transaction(tmp_path: Path) -> None:
    """The output that meets its expectation is not visible either, and its staging is deleted."""
    attempt, ran = granted(tmp_path, "orders", "totals"), list[str]()
    job = job_of(attempt, ran, totals=Expect(min_rows=2))

    def together() -> None:
        with job.transaction() as tx:
            tx.write(Frame(table_of(1)), "orders")  # type: ignore[arg-type]  # see above
            tx.write(Frame(table_of(1)), "totals")  # type: ignore[arg-type]  # see above

    with pytest.raises(ExpectationUnmet, match="output totals"):
        together()

    assert attempt.committed("orders") is None
    assert attempt.committed("totals") is None
    assert list(tmp_path.glob("*/_data/*/*")) == []


def test_what_is_as_expected_is_committed(tmp_path: Path) -> None:
    """Exactly the required number of rows is enough, and additional columns are allowed."""
    attempt = granted(tmp_path, "orders")
    job = job_of(attempt, [], orders=Expect(min_rows=2, columns=("n",)))

    job.write(Frame(table_of(1, 2), ("more", "n")), "orders")  # type: ignore[arg-type]  # see above

    assert attempt.rows("orders") == [1, 2]
    assert said(attempt) == []


def test_the_expectations_of_a_spec_are_its_outputs_own(tmp_path: Path) -> None:
    """Expectations are found by the output's name, for every declared output."""
    spec = granted(tmp_path, "orders", "totals").prepared.job
    assert expected_of(spec) == {"orders": Expect(), "totals": Expect()}
