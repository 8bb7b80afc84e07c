"""`job.transaction()`: all or nothing in the end, and nothing is deleted that might be sealed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.arrow_stage import table_of
from harness.granted import Granted, granted
from sparkonce.blocking import run
from sparkonce.driver.channel import DirectChannel
from sparkonce.driver.context import Job, Transaction
from sparkonce.errors import Fenced, InvalidInput, OutputUnavailable, StoreUnavailable, UndeclaredOutput
from sparkonce.model.record import Intent, Verdict, Why
from sparkonce.sink.transaction import Settlement, settle
from sparkonce.store.protocol import Refused, Sealed


class Unanswered(DirectChannel):
    """Loses the answers of seals, which are carried out or not; `then` is called after each loss."""

    def __init__(self, attempt: Granted, *, times: int, lands: bool, then: Callable[[], object] = lambda: None) -> None:
        super().__init__(attempt.store, attempt.assignment)
        self.times, self.lands, self.then, self.asked = times, lands, then, 0

    def seal(self, intent: Intent) -> Sealed | Refused:
        self.asked += 1
        if self.asked > self.times:
            return super().seal(intent)
        if self.lands:
            super().seal(intent)
        self.then()
        raise StoreUnavailable("no answer")


A, B = (table_of(1, 2), "a"), (table_of(3), "b")


def transact(job: Job, *writes: tuple[Any, str], then: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """Writes all frames in one transaction; `then` is called at the end of the block. Returns what was written."""
    with job.transaction() as tx:
        for frame, output in writes:
            tx.write(frame, output)
        then()
    return tx.written


def both(job: Job, then: Callable[[], object] = lambda: None) -> dict[str, Any]:
    return transact(job, A, B, then=then)


def raising(error: BaseException) -> Callable[[], object]:
    def fails() -> None:
        raise error

    return fails


def settled(attempt: Granted) -> Settlement:
    """Settles the attempt as an owner does, with `settling` in the record first."""
    intent = run(attempt.store.intent(attempt.record.address, attempt.record.generation))
    return run(
        settle(
            tuple(attempt.sinks().values()),
            key_hash=attempt.record.key_hash,
            generation=attempt.record.generation,
            attempt=attempt.record.attempt,
            fingerprint=attempt.record.fingerprint,
            intent=intent,
            by="the owner",
        )
    )


def test_all_outputs_are_committed_when_the_block_ends_well(tmp_path: Path) -> None:
    """`written` has both outputs, the intent is in the record, and the rows are visible."""
    attempt = granted(tmp_path, "a", "b")

    written = both(attempt.job())

    assert {name: (w.rows, w.fresh) for name, w in written.items()} == {"a": (2, True), "b": (1, True)}
    assert (attempt.rows("a"), attempt.rows("b")) == ([1, 2], [3])
    assert attempt.now().intent == 1


def test_nothing_is_committed_before_the_block_ends(tmp_path: Path) -> None:
    """Inside the block no output has a slot and nothing is sealed."""
    attempt = granted(tmp_path, "a", "b")
    with attempt.job().transaction() as tx:
        tx.write(table_of(1), "a")
        tx.write(table_of(2), "b")
        assert (attempt.slots("a"), attempt.slots("b"), attempt.now().intent) == ([], [], None)
    assert (attempt.slots("a"), attempt.slots("b")) == ([(1, "committed")], [(1, "committed")])


@pytest.mark.parametrize("error", [ValueError("the job's own"), KeyboardInterrupt(), SystemExit(1)])
def test_an_error_in_the_block_discards_what_was_staged(tmp_path: Path, error: BaseException) -> None:
    """The error is raised; no slot is closed, since another driver of the attempt may have sealed; no file stays, and a plain write may
    follow."""
    attempt = granted(tmp_path, "a", "b")
    job = attempt.job()

    with pytest.raises(type(error)):
        transact(job, A, then=raising(error))
    assert (attempt.staged("a"), attempt.slots("a"), attempt.now().intent) == ([], [], None)
    assert job.write(table_of(1), "a").fresh


def test_the_blocks_own_error_is_seen_even_when_its_files_cannot_be_deleted(tmp_path: Path) -> None:
    """Discarding is best effort: an output that is unreachable by then does not hide the block's error."""
    attempt = granted(tmp_path, "a")
    job = attempt.job()

    async def unreachable(*_: object) -> None:
        raise OutputUnavailable("no answer")

    job._sinks["a"].discard = unreachable  # type: ignore[method-assign, assignment]  # the output is unreachable by then
    with pytest.raises(ValueError, match="own"):
        transact(job, A, then=raising(ValueError("the job's own")))


def test_a_seal_after_settling_is_refused_and_the_files_go(tmp_path: Path) -> None:
    """`settling` bars the seal: Fenced says why, and the staged files are deleted, since they were never sealed."""
    attempt = granted(tmp_path, "a", "b")
    job = attempt.job()

    with pytest.raises(Fenced, match="attempt 1 of load-may may not commit its transaction: attempt 1 is being sett"):
        both(job, then=attempt.settling)
    assert (attempt.staged("a"), attempt.staged("b"), attempt.rows("a")) == ([], [], [])


def test_a_seal_whose_answer_was_lost_is_sent_again(tmp_path: Path) -> None:
    """The seal took effect, so the same intent again is Sealed: both outputs are committed."""
    attempt = granted(tmp_path, "a", "b")
    channel = Unanswered(attempt, times=2, lands=True)

    both(attempt.job(channel=channel))

    assert channel.asked == 3
    assert (attempt.rows("a"), attempt.rows("b")) == ([1, 2], [3])


def test_a_seal_that_is_never_answered_deletes_nothing(tmp_path: Path) -> None:
    """The intent may be sealed: the attempt ends with StoreUnavailable, and settling it commits both outputs with all their rows."""
    attempt = granted(tmp_path, "a", "b")

    with pytest.raises(StoreUnavailable):
        both(attempt.job(channel=Unanswered(attempt, times=99, lands=True)))

    assert (attempt.slots("a"), len(attempt.staged("a")), len(attempt.staged("b"))) == ([], 1, 1)
    attempt.settling()
    assert settled(attempt).verdict is Verdict.ALL
    assert (attempt.rows("a"), attempt.rows("b")) == ([1, 2], [3])


def test_a_refusal_after_a_lost_answer_deletes_nothing(tmp_path: Path) -> None:
    """The seal took effect unanswered; a successor rolled it forward and granted the next attempt, since a third output was missing. The
    driver's repetition is refused, and the committed rows stay."""
    attempt = granted(tmp_path, "a", "b", "c")

    def taken_over() -> None:
        if attempt.record.attempt > 1:
            return
        attempt.settling(Why.STALE)
        assert settled(attempt).verdict is Verdict.SOME
        attempt.update(attempt=2, nonce="nonce-2")

    job = attempt.job(channel=Unanswered(attempt, times=1, lands=True, then=taken_over))
    with pytest.raises(Fenced, match="attempt 2 runs now"):
        both(job)
    assert (attempt.rows("a"), attempt.rows("b")) == ([1, 2], [3])


def test_a_sealed_transaction_that_dies_before_its_commits_is_rolled_forward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver died after the seal, before any slot was created: settling creates exactly the sealed slots."""
    attempt = granted(tmp_path, "a", "b")
    job = attempt.job()

    class Killed(BaseException):
        pass

    monkeypatch.setattr(Transaction, "_commit", lambda _: raising(Killed())())  # the driver dies here
    with pytest.raises(Killed):
        both(job)

    assert (attempt.slots("a"), attempt.slots("b")) == ([], [])
    attempt.settling()
    assert settled(attempt).verdict is Verdict.ALL
    assert (attempt.rows("a"), attempt.rows("b")) == ([1, 2], [3])


def test_outputs_that_are_committed_already_are_not_run_again(tmp_path: Path) -> None:
    """The next attempt writes only the missing outputs; if none is missing, nothing is sealed."""
    attempt = granted(tmp_path, "a", "b")
    attempt.job().write(table_of(1, 2), "a")
    attempt.next_attempt()

    with attempt.job().transaction() as tx:
        tx.write(object(), "a")  # type: ignore[arg-type]  # would fail if it ran
        tx.write(table_of(3), "b")
    assert {name: w.fresh for name, w in tx.written.items()} == {"a": False, "b": True}

    attempt.next_attempt()
    with attempt.job().transaction() as tx:
        tx.write(object(), "a")  # type: ignore[arg-type]  # as above
        tx.write(object(), "b")  # type: ignore[arg-type]  # as above
    assert attempt.now().intent == 2


def test_a_job_has_one_transaction(tmp_path: Path) -> None:
    """The record holds one intent per generation, so a second transaction is refused before anything is staged."""
    job = granted(tmp_path, "a", "b").job()
    with job.transaction() as tx:
        tx.write(table_of(1), "a")

    with pytest.raises(InvalidInput, match="one transaction per run"):
        job.transaction()


def test_an_output_is_written_once_in_a_transaction(tmp_path: Path) -> None:
    """A second write of an output ends the block, and nothing is committed."""
    attempt = granted(tmp_path, "a")

    with pytest.raises(InvalidInput, match="'a' is written twice"):
        transact(attempt.job(), A, A)
    assert (attempt.slots("a"), attempt.staged("a")) == ([], [])


def test_an_undeclared_output_ends_the_block(tmp_path: Path) -> None:
    """None of its outputs is committed."""
    attempt = granted(tmp_path, "a")

    with pytest.raises(UndeclaredOutput):
        transact(attempt.job(), A, (table_of(2), "z"))
    assert (attempt.slots("a"), attempt.staged("a")) == ([], [])


def test_a_write_that_failed_ends_the_transaction_although_its_error_was_caught(tmp_path: Path) -> None:
    """The other output is not committed either, unless the failed write was repeated in the block."""
    attempt = granted(tmp_path, "a", "b")
    for repeated in (False, True):
        job = attempt.job()

        def together(job: Job = job, repeated: bool = repeated) -> None:
            with job.transaction() as tx:
                with contextlib.suppress(AttributeError):
                    tx.write(None, "a")  # type: ignore[arg-type]  # a frame that cannot be staged
                tx.write(*B)
                if repeated:
                    tx.write(*A)

        if repeated:
            together()
        else:
            with pytest.raises(InvalidInput, match="the write of a failed inside this transaction"):
                together()
        assert (attempt.committed("a") is not None, attempt.committed("b") is not None) == (repeated, repeated)


def test_a_write_outside_the_block_is_refused(tmp_path: Path) -> None:
    """A write before or after the `with` block would never be committed, so it raises."""
    attempt = granted(tmp_path, "a", "b")
    tx = attempt.job().transaction()

    with pytest.raises(InvalidInput, match="inside its own block"):
        tx.write(table_of(1), "a")
    with tx:
        tx.write(table_of(1), "a")
    with pytest.raises(InvalidInput, match="inside its own block"):
        tx.write(table_of(2), "b")
    assert (attempt.rows("a"), attempt.staged("b")) == ([1], [])


def test_an_empty_transaction_seals_nothing(tmp_path: Path) -> None:
    """Nothing was staged, so the record has no intent."""
    attempt = granted(tmp_path, "a")
    with attempt.job().transaction():
        pass
    assert attempt.now().intent is None


def test_a_sealed_slot_that_was_closed_ends_the_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another ledger's attempt closed the first slot between the seal and the commit: the driver is Fenced, no other slot of the
    transaction is created, and settling is Stuck without creating one, however often it is repeated."""
    attempt = granted(tmp_path, "a", "b")
    seal = Transaction._seal

    def then_closed(tx: Transaction) -> None:
        seal(tx)
        attempt.fence("a", 2)

    monkeypatch.setattr(Transaction, "_seal", then_closed)
    with pytest.raises(Fenced, match="attempt 1 of load-may can never commit to a: its slot was closed by a successor"):
        both(attempt.job())

    assert (attempt.slots("a"), attempt.slots("b")) == ([(1, "closed")], [])
    attempt.settling()
    for _ in range(2):
        settlement = settled(attempt)
        assert settlement.verdict is Verdict.STUCK
        assert settlement.note == "output a: the sealed slot 1 is closed"
        assert (attempt.committed("a"), attempt.slots("b")) == (None, [])


def test_a_later_sealed_slot_that_was_closed_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of three slots was closed: the slot committed before it stays, later ones are never committed, and the attempt is Stuck,
    neither complete nor without effect."""
    attempt = granted(tmp_path, "a", "b", "c")
    seal = Transaction._seal

    def then_closed(tx: Transaction) -> None:
        seal(tx)
        attempt.fence("b", 2)

    monkeypatch.setattr(Transaction, "_seal", then_closed)
    with pytest.raises(Fenced, match="can never commit to b"):
        transact(attempt.job(), A, B, (table_of(4), "c"))

    assert (attempt.rows("a"), attempt.slots("b"), attempt.slots("c")) == ([1, 2], [(1, "closed")], [])
    attempt.settling()
    assert settled(attempt).verdict is Verdict.STUCK
    assert attempt.slots("c") == []
