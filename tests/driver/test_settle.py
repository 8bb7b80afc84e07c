"""`python -m sparkonce.driver.settle`, as a real process: settles for good and reports, or says why it could not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from driver.streamed import dying, settled
from harness.arrow_stage import table_of
from harness.granted import Granted, granted
from harness.stream_source import installed
from sparkonce.blocking import run
from sparkonce.model.record import ENVIRONMENT, Intent, Report, Verdict, Why
from sparkonce.sink.protocol import Slot
from sparkonce.sink.transaction import intent_of
from sparkonce.store.open import open_store

UNKNOWN = 75


@pytest.fixture
def attempt(tmp_path: Path) -> Granted:
    return granted(tmp_path, "a", "b", store=open_store(str(tmp_path / "ledger.db")))


def settle_run(
    attempt: Granted | None,
    intent: Intent | None = None,
    *,
    text: str = "",
    why: Why | None = None,
    patience: str = "0.1",
) -> tuple[int, str]:
    """Exit code and complete output; without an attempt it runs outside any job."""
    told = {name: value for name, value in os.environ.items() if not name.startswith("SPARKONCE_")}
    told["SPARKONCE_PATIENCE"] = patience
    if attempt is not None:
        assignment = attempt.assignment.model_copy(update={"settle": intent, "why": why})
        text = assignment.model_dump_json(by_alias=True, exclude_none=True)
    if text:
        told[ENVIRONMENT] = text
    command = [sys.executable, "-m", "sparkonce.driver.settle"]
    done = subprocess.run(command, env=told, capture_output=True, text=True, check=False)
    assert (done.stdout + done.stderr).count("\n") == 1, done
    return done.returncode, done.stdout + done.stderr


def verdicts(attempt: Granted) -> list[Report]:
    reports = run(attempt.store.reports(attempt.record.address, attempt.record.generation))
    return [report for report in reports if report.kind == "verdict"]


def staged(attempt: Granted, output: str, *rows: int) -> Slot:
    sink = attempt.sinks()[output]
    return sink.stage(table_of(*rows), attempt.key(output), 1, fingerprint=attempt.record.fingerprint)


@pytest.mark.parametrize("why", [Why.CANCELLED, Why.SUPERSEDED, Why.LOST])
def test_a_stream_is_ended_where_its_end_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: Why) -> None:
    """For a cancelled or superseded attempt the end is written after the last batch, and the verdict is All. For a lost one it is Some, and
    another attempt continues the stream."""
    installed(monkeypatch)
    attempt = granted(tmp_path, "orders", store=open_store(str(tmp_path / "ledger.db")))
    dying(attempt, 2)
    attempt.settling(why)

    code, _ = settle_run(attempt, why=why)

    verdict = Verdict.SOME if why is Why.LOST else Verdict.ALL
    assert (code, [report.body["verdict"] for report in verdicts(attempt)]) == (0, [verdict])
    assert settled(attempt).verdict is verdict


def test_an_attempt_without_effect_is_closed_and_reported(attempt: Granted) -> None:
    """Every output is fenced against the attempt before the verdict None is in the ledger."""
    attempt.settling()

    code, said = settle_run(attempt)

    assert (code, said) == (0, "sparkonce: attempt 1 of load-may: None not committed: a, b\n")
    assert (attempt.slots("a"), attempt.slots("b")) == ([(1, "closed")], [(1, "closed")])
    (report,) = verdicts(attempt)
    assert (report.attempt, report.body["verdict"], report.body["slots"]) == (1, "None", {"a": None, "b": None})


def test_the_sealed_intent_that_it_is_handed_is_rolled_forward(attempt: Granted) -> None:
    """Both slots are created with the rows that were staged, and the report lists them."""
    intent = intent_of(1, {"a": staged(attempt, "a", 1, 2), "b": staged(attempt, "b", 3)})
    attempt.settling()

    code, _ = settle_run(attempt, intent)

    assert (code, attempt.rows("a"), attempt.rows("b")) == (0, [1, 2], [3])
    (report,) = verdicts(attempt)
    assert report.body["verdict"] == "All"
    assert {name: slot["rows"] for name, slot in report.body["slots"].items()} == {"a": 2, "b": 1}


def test_without_the_intent_staged_files_are_never_committed(attempt: Granted) -> None:
    """A settle run stages nothing and does not guess: slots that were not sealed are closed."""
    staged(attempt, "a", 1)
    attempt.job().write(table_of(3), "b")
    attempt.settling()

    code, said = settle_run(attempt)

    assert (code, attempt.slots("a"), attempt.rows("b")) == (0, [(1, "closed")], [3])
    assert "Some not committed: a" in said


def test_each_settle_run_has_a_report_of_its_own(attempt: Granted) -> None:
    """Two settle runs agree, and neither replaces the other's report."""
    attempt.settling()
    settle_run(attempt)
    settle_run(attempt)
    assert [report.body["verdict"] for report in verdicts(attempt)] == ["None", "None"]
    assert len({report.reporter for report in verdicts(attempt)}) == 2


def test_an_output_that_cannot_be_reached_is_unknown(attempt: Granted, tmp_path: Path) -> None:
    """Exit code 75 and one sentence with the place; nothing is reported, so another settle run decides."""
    attempt.settling()
    (tmp_path / "b").write_text("a file in the place of the table")

    code, said = settle_run(attempt)

    assert code == UNKNOWN
    assert "attempt 1 of load-may could not be settled" in said
    assert str(tmp_path / "b") in said
    assert verdicts(attempt) == []


def test_an_output_that_answers_again_is_waited_for(attempt: Granted, tmp_path: Path) -> None:
    """Starting another pod would cost more than asking again: one settle run, one report."""
    attempt.settling()
    place = tmp_path / "b"
    place.write_text("a file in the place of the table")
    threading.Timer(2.0, place.unlink).start()

    code, _ = settle_run(attempt, patience="30")

    assert (code, [report.body["verdict"] for report in verdicts(attempt)]) == (0, ["None"])


def test_a_verdict_that_no_record_can_hold_was_not_reported(attempt: Granted) -> None:
    """The ledger no longer has the key (it was restored): exit code 75, never 0, although the outputs are closed."""
    known = attempt.record
    attempt.record = known.changed(key_hash="0" * 64)

    code, said = settle_run(attempt)

    assert code == UNKNOWN
    assert "the ledger has no record" in said
    attempt.record = known


def test_outside_a_settle_run_one_sentence_says_what_to_use() -> None:
    """Exit code 2, as for any invalid input."""
    code, said = settle_run(None)
    assert code == 2
    assert "`sparkonce keys resolve KEY`" in said


def test_an_assignment_of_another_version_is_one_sentence() -> None:
    """Exit code 2, without a traceback."""
    assert settle_run(None, text='{"key": 1}') == (
        2,
        (
            "sparkonce: SPARKONCE_ASSIGNMENT does not hold an assignment that this version reads; "
            "let `sparkonce run` of the same version start the job\n"
        ),
    )
