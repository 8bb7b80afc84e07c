"""Resolving a held key: the outputs are read first, and the person's decision counts only where there is no evidence."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

from attempt.owned import Lossy
from commands.person import conflicting, desk, name_taken, partial, succeeded, unknown, writes
from harness.arrow_stage import table_of
from sparkonce.attempt.request import Answer
from sparkonce.blocking import run
from sparkonce.commands.operate import How
from sparkonce.driver.context import Transaction
from sparkonce.errors import InvalidInput
from sparkonce.launch.protocol import Phase
from sparkonce.model.record import Assignment, HeldReason, Outcome, State


def test_partial_is_never_called_failed_or_succeeded(tmp_path: Path) -> None:
    """One output is committed, so both decisions are refused, naming what is committed and the remedy; the key stays held and unowned."""
    made = partial(tmp_path)
    with pytest.raises(
        InvalidInput, match="cannot be resolved as failed: a is committed; --retry writes what is missing"
    ):
        made.resolve("failed")
    with pytest.raises(InvalidInput, match="cannot be resolved as succeeded: not committed: b; --retry"):
        made.resolve("succeeded")
    view = run(made.owner.store.load(made.record.address))
    assert (made.record.held, view.claim) == (HeldReason.PARTIAL, None)


def test_partial_is_completed_by_a_retry(tmp_path: Path) -> None:
    """Attempt 2 is granted uncounted; the job sent again runs it and writes only the missing output."""
    made = partial(tmp_path)

    ending = made.resolve("retry")
    assert ending.record is not None
    assert (ending.answer, ending.record.attempt, ending.record.uncounted) == (Answer.TAKE_OVER, 2, 1)
    assert (ending.record.state, ending.unblock) == (State.IN_PROGRESS, "send the same job again to run it")

    made.applications.plays = [writes(made, "a", "b")]
    done = made.submit()
    assert done.result is not None
    assert (done.result.outcome, done.result.attempts) == (Outcome.SUCCEEDED, 2)


def test_what_was_committed_meanwhile_counts_more_than_the_word(tmp_path: Path) -> None:
    """The outputs are read again: if all of them are committed by now, the key ends as Succeeded whatever the decision."""
    made = partial(tmp_path)
    late = made.owner.job(
        made.granted.assignment.model_copy(update={"attempt": 2})
    )  # as after a lost ledger: a higher token
    late.write(table_of(5), "b")

    ending = made.resolve("failed")
    assert ending.result is not None
    assert ending.result.outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize(("how", "outcome"), [("succeeded", Outcome.SUCCEEDED), ("failed", Outcome.FAILED)])
def test_an_unknown_end_is_what_a_person_says(tmp_path: Path, how: How, outcome: Outcome) -> None:
    """There is no evidence, so the decision replaces it, with its author and reason; duplicates get that result."""
    made = unknown(tmp_path)

    ending = made.resolve(how)

    assert ending.result is not None
    assert (ending.result.outcome, ending.result.evidence) == (outcome, f"ann said {how}: I looked")
    assert made.submit().result == ending.result


def test_an_unknown_end_may_be_tried_again(tmp_path: Path) -> None:
    """A retry stops the old application first."""
    made = unknown(tmp_path)
    made.resolve("retry")
    assert made.applications.stopped[-1].endswith("-a1")

    made.applications.plays = [Phase.SUCCEEDED]
    done = made.submit()
    assert done.result is not None
    assert (done.result.outcome, made.applications.launched) == (Outcome.SUCCEEDED, [1, 2])


def test_what_may_still_run_is_not_decided(tmp_path: Path) -> None:
    """The attempt cannot be stopped: no decision is accepted, and the key stays held."""
    made = unknown(tmp_path)
    made.applications.unstoppable = True
    for how in ("succeeded", "failed", "retry"):
        with pytest.raises(InvalidInput, match="still runs and could not be stopped: it does not listen; end it first"):
            made.resolve(how)
    assert made.record.state is State.HELD


def test_a_taken_name_is_tried_again_or_given_up(tmp_path: Path) -> None:
    """Nothing of the attempt ever ran: the key is resolved as Failed, or retried under the next name."""
    made = name_taken(tmp_path)
    made.applications.plays = [writes(made, "orders")]
    made.resolve("retry")
    done = made.submit()
    assert done.result is not None
    assert (done.result.outcome, made.applications.launched) == (Outcome.SUCCEEDED, [4])

    (tmp_path / "failed").mkdir()
    ending = name_taken(tmp_path / "failed").resolve("failed")
    assert ending.result is not None
    assert ending.result.outcome is Outcome.FAILED


def test_a_conflict_may_be_failed_when_nothing_is_ours(tmp_path: Path) -> None:
    """The other job's rows are no effect of this one: Failed, and every output is fenced against the attempt."""
    made = conflicting(tmp_path)
    with pytest.raises(InvalidInput, match="another attempt of load-may would be held again, for KeyConflict"):
        made.resolve("retry")
    with pytest.raises(
        InvalidInput, match="cannot be resolved as succeeded: output b holds a commit of this key for another"
    ):
        made.resolve("succeeded")

    ending = made.resolve("failed")
    assert ending.result is not None
    assert ending.result.outcome is Outcome.FAILED
    assert made.granted.slots("a") == [(1, "closed")]


def test_a_sealed_transaction_that_meets_a_conflict_is_fenced_before_it_is_called_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rolling forward ended at the conflict, so the transaction's other output is neither committed nor closed, and a zombie could still
    commit there. After --failed it cannot."""
    made = desk(tmp_path, "b", "a")

    def dies(_: Transaction) -> None:
        other = made.owner.job(made.granted.assignment.model_copy(update={"fingerprint": "of another job"}))
        other.write(table_of(9), "b")
        raise SystemExit

    def play(assignment: Assignment) -> Phase:
        with contextlib.suppress(SystemExit), made.owner.job(assignment).transaction() as tx:
            for output in ("b", "a"):
                tx.write(table_of(1), output)
        return Phase.FAILED_KNOWN

    monkeypatch.setattr(Transaction, "_commit", dies)
    made.applications.plays = [play]
    made.driven()
    assert (made.record.held, made.granted.slots("a")) == (HeldReason.KEY_CONFLICT, [])

    ending = made.resolve("failed")

    assert ending.result is not None
    assert ending.result.outcome is Outcome.FAILED
    assert made.granted.slots("a") == [(1, "closed")]


def test_a_conflict_is_not_failed_when_something_is_ours(tmp_path: Path) -> None:
    """Failed would say that no effect exists, but `a` is committed."""
    made = conflicting(tmp_path, "a")
    with pytest.raises(InvalidInput, match=r"cannot be resolved as failed: a is committed$"):
        made.resolve("failed")


def test_a_conflict_that_was_cleared_away_may_be_tried_again(tmp_path: Path) -> None:
    """The outputs are read again, and the reason for holding the key is gone."""
    made = conflicting(tmp_path)
    shutil.rmtree(tmp_path / "b")
    assert made.resolve("retry").answer is Answer.TAKE_OVER


@pytest.mark.parametrize("verb", ["finalize", "update", "drop"])
def test_a_word_whose_reply_was_lost_is_said_once(tmp_path: Path, verb: str) -> None:
    """The command reads again and finds its own decision."""
    made = unknown(tmp_path)
    made.store = Lossy(made.owner.store, verb, times=1, lands=True)
    ending = made.resolve("retry" if verb == "update" else "failed")
    assert ending.record is not None
    assert ending.record.attempt == (2 if verb == "update" else 1)
    made.store = None
    assert made.record.state is (State.IN_PROGRESS if verb == "update" else State.FINALIZED)


def test_only_a_held_key_is_resolved(tmp_path: Path) -> None:
    """For any other key the refusal is one sentence. Of two people who resolve a key at once, one succeeds."""
    made = succeeded(tmp_path)
    with pytest.raises(InvalidInput, match="load-may is Finalized, not held"):
        made.resolve("failed")

    (tmp_path / "held").mkdir()
    held = unknown(tmp_path / "held")
    held.owner.take_over("of somebody else")
    with pytest.raises(InvalidInput, match="another process is resolving load-may"):
        held.resolve("failed")
