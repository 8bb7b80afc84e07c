"""What a person does to a key: the outputs are asked first, and a word replaces evidence only where there is none."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from driver.granted import Granted, document, prepared
from engine.owned import Applications, Driver, Lossy, Owner, owner
from harness.arrow_stage import table_of
from sparkonce.blocking import run
from sparkonce.engine import operate
from sparkonce.engine.embedded import Embedded, Ending
from sparkonce.engine.operate import Explanation, How
from sparkonce.engine.prepare import Prepared, assemble
from sparkonce.engine.request import Answer
from sparkonce.errors import InvalidInput, RecordUnreadable
from sparkonce.launch.protocol import Phase
from sparkonce.model.assignment import Assignment
from sparkonce.model.record import HeldReason, Outcome, Record, State
from sparkonce.model.spec import IdempotentJob
from sparkonce.store.memory import MemoryStore
from sparkonce.store.protocol import Page, Query

T = TypeVar("T")


@dataclass
class Desk:
    """A person at a ledger with one key."""

    owner: Owner
    requested: Prepared
    store: Any = None

    @property
    def granted(self) -> Granted:
        return self.owner.granted

    @property
    def applications(self) -> Applications:
        return self.owner.applications

    @property
    def record(self) -> Record:
        return self.granted.now()

    def do(self, work: Callable[[Embedded], Awaitable[T]]) -> T:
        """As a command of its own."""

        async def command() -> T:
            embedded = Embedded(
                store=self.store or self.owner.store,
                attempts=self.granted.folder / "attempts",
                launcher=self.applications,
                patience=1.0,
                sleep=lambda _: asyncio.sleep(0),
            )
            return await work(embedded)

        return asyncio.run(command())

    def orphaned(self) -> Desk:
        """Its owner died."""
        self.owner.store._leases[self.granted.claim.lease].expire()
        return self

    def driven(self) -> Desk:
        """To its end, by its owner."""
        self.owner.run()
        return self

    def submit(self) -> Ending:
        return self.do(lambda embedded: embedded.submit(self.requested))

    def cancel(self) -> Ending:
        return self.do(lambda embedded: operate.cancel(embedded, self.record, by="ann", reason="too slow"))

    def rerun(self, record: Record | None = None) -> Ending:
        return self.do(lambda embedded: operate.rerun(embedded, self.requested, record or self.record))

    def resolve(self, how: How) -> Ending:
        return self.do(lambda embedded: operate.resolve(embedded, self.record, how, by="ann", reason="I looked"))

    def explain(self) -> Explanation:
        return self.do(lambda embedded: operate.explain(embedded, self.record))


def desk(folder: Path, *outputs: str, plays: tuple[Driver | Phase, ...] = (), **spec: Any) -> Desk:
    return Desk(owner(folder, *outputs, plays=plays, **spec), prepared(folder, *outputs, **spec))


def writes(made: Desk, *outputs: str, phase: Phase = Phase.SUCCEEDED) -> Driver:
    def play(assignment: Assignment) -> Phase:
        job = made.owner.job(assignment)
        for name in outputs:
            job.write(table_of(assignment.generation), name)
        return phase

    return play


def succeeded(folder: Path) -> Desk:
    made = desk(folder, "orders")
    made.applications.plays = [writes(made, "orders")]
    return made.driven()


def partial(folder: Path) -> Desk:
    """Held: `a` is committed, `b` is not, and the only attempt is used up."""
    made = desk(folder, "a", "b", retry={"maxAttempts": 1})
    made.applications.plays = [writes(made, "a", phase=Phase.FAILED_KNOWN)]
    made.driven()
    assert made.record.held is HeldReason.PARTIAL
    return made


def conflicting(folder: Path, *ours: str) -> Desk:
    """Held: `b` holds a commit of the key for another job; `ours` are committed by this one."""
    made = desk(folder, "a", "b")
    other = made.owner.job(made.granted.assignment.model_copy(update={"fingerprint": "of another job"}))
    other.write(table_of(9), "b")
    made.applications.plays = [writes(made, *ours, phase=Phase.FAILED_KNOWN)]
    made.driven()
    assert made.record.held is HeldReason.KEY_CONFLICT
    return made


def unknown(folder: Path) -> Desk:
    """Held: an opaque job whose end nobody saw."""
    made = desk(folder, plays=(Phase.UNKNOWN,)).driven()
    assert made.record.held is HeldReason.UNKNOWN
    return made


def name_taken(folder: Path) -> Desk:
    made = desk(folder, "orders")
    stem = made.granted.assignment.name.removesuffix("1")
    for attempt in (1, 2, 3):
        made.applications.squat(f"{stem}{attempt}")
    made.driven()
    assert made.record.held is HeldReason.NAME_TAKEN
    return made


# --- find


def several(folder: Path, *keys: str) -> MemoryStore:
    store = MemoryStore()
    lease = run(store.open_lease(owner="o"))
    for key in keys:
        job = IdempotentJob.of(document({"a": "a"}, idempotencyKey=key))
        run(store.reserve(assemble(job, contents={}, base=str(folder)).request(key), lease=lease, floor=0))
    return store


def test_a_key_or_the_start_of_its_hash_names_a_record(tmp_path: Path) -> None:
    """The whole key, the whole hash, or enough of the hash; over all pages of a listing."""
    store = several(tmp_path, *(f"key-{number}" for number in range(120)))
    found = run(operate.find(store, "key-77"))
    assert found.key == "key-77"
    assert run(operate.find(store, found.key_hash)).key == "key-77"
    assert run(operate.find(store, found.key_hash[:16])).key == "key-77"


def test_a_name_of_several_or_of_none_is_refused(tmp_path: Path) -> None:
    """Several: their hashes are named. A key that reads like a prefix of others' hashes is still the key."""
    store = several(tmp_path, *(f"key-{number}" for number in range(40)))
    first = run(store.list(Query(limit=1))).records[0].key_hash[0]
    with pytest.raises(InvalidInput, match=rf"{first} names \d+ records \({first}.*name one by more of its hash"):
        run(operate.find(store, first))
    with pytest.raises(InvalidInput, match="no record of key-99 is in memory:; `sparkonce keys list`"):
        run(operate.find(store, "key-99"))

    assert run(operate.find(several(tmp_path, "key-1", "key-2", first), first)).key == first


def test_a_record_that_does_not_parse_is_not_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named by its hash, it is an error that says why, never "no record"."""
    store = several(tmp_path, "key-1")
    address = run(operate.find(store, "key-1")).address

    async def broken(_: Query) -> Page:
        return Page((), unreadable=((address, "the record local/1 cannot be read"),))

    monkeypatch.setattr(store, "list", broken)
    with pytest.raises(RecordUnreadable, match="cannot be read"):
        run(operate.find(store, address.key_hash[:12]))


# --- cancel


def test_cancelling_an_unowned_key_settles_it_here(tmp_path: Path) -> None:
    """Its runner died while the attempt ran: the attempt is stopped and fenced, the end is Cancelled with who and why."""
    made = desk(tmp_path, "orders")
    run(made.applications.launch(made.granted.assignment))
    made.orphaned()

    ending = made.cancel()

    assert ending.record is not None
    assert ending.record.outcome is Outcome.CANCELLED
    assert "cancelled by ann: too slow" in ending.reason
    assert made.applications.stopped == [made.granted.assignment.name]
    assert made.granted.slots("orders") == [(1, "closed")]


def test_cancelling_an_owned_key_waits_for_its_owner(tmp_path: Path) -> None:
    """The wish is written once; the owner carries it out, and the command tells the end."""
    made = desk(tmp_path, "orders")

    def looked(record: Record, *_: object) -> None:
        assert record.stop_wanted is not None
        made.owner.run()  # the owner, in its own process

    def work(embedded: Embedded) -> Awaitable[Ending]:
        embedded.on_look = looked
        return operate.cancel(embedded, made.record, by="ann", reason="too slow")

    ending = made.do(work)
    assert ending.record is not None
    assert ending.record.outcome is Outcome.CANCELLED
    assert made.owner.rows[:2] == ["a stop is wanted", "settled: None"]


def test_cancelling_what_has_committed_succeeded(tmp_path: Path) -> None:
    """The end is whichever is true."""
    made = desk(tmp_path, "orders")
    made.applications.plays = [writes(made, "orders", phase=Phase.RUNNING)]
    run(made.applications.launch(made.granted.assignment))
    made.orphaned()

    ending = made.cancel()
    assert ending.result is not None
    assert ending.result.outcome is Outcome.SUCCEEDED


def test_cancelling_an_ended_or_a_held_key_changes_nothing(tmp_path: Path) -> None:
    """Ended: its result. Held: the command that decides it."""
    ended = succeeded(tmp_path)
    before = ended.record.revision
    assert (ended.cancel().answer, ended.record.revision) == (Answer.REPLAY, before)

    (tmp_path / "held").mkdir()
    held = partial(tmp_path / "held")
    ending = held.cancel()
    assert (ending.answer, ending.unblock) == (Answer.HELD, "sparkonce keys resolve load-may --failed")


# --- rerun


def test_a_rerun_replaces_the_result_by_a_new_generation(tmp_path: Path) -> None:
    """Generation 2 writes its own slot; the first one's stays."""
    made = succeeded(tmp_path)

    ending = made.rerun()

    assert ending.record is not None
    assert (ending.record.generation, ending.record.attempt, ending.record.outcome) == (2, 1, Outcome.SUCCEEDED)
    assert made.granted.rows("orders") == [1]
    made.granted.record = ending.record
    assert made.granted.rows("orders") == [2]


@pytest.mark.parametrize("lands", [True, False])
def test_a_rerun_whose_reply_was_lost_opens_one_generation(tmp_path: Path, *, lands: bool) -> None:
    """The repetition recognises itself."""
    made = succeeded(tmp_path)
    made.store = Lossy(made.owner.store, "reopen", times=2, lands=lands)
    ending = made.rerun()
    assert ending.record is not None
    assert (ending.record.generation, made.applications.launched) == (2, [1, 1])


def test_a_key_in_progress_is_not_rerun(tmp_path: Path) -> None:
    """Owned: wait or cancel. Unowned: send it again. Nothing is written."""
    made = desk(tmp_path, "orders")
    ending = made.rerun()
    assert (ending.answer, ending.unblock) == (Answer.IN_PROGRESS, "wait until it ends, or sparkonce cancel load-may")

    ending = made.orphaned().rerun()
    assert ending.answer is Answer.IN_PROGRESS
    assert "send the job again to finish it" in ending.unblock
    assert made.record.generation == 1


def test_a_held_key_that_is_settled_may_be_rerun_and_another_may_not(tmp_path: Path) -> None:
    """Partial is settled: a new generation may follow. Unknown is not: a person decides first."""
    made = partial(tmp_path)
    made.applications.plays = [writes(made, "a", "b")]
    ending = made.rerun()
    assert ending.record is not None
    assert (ending.record.generation, ending.record.outcome) == (2, Outcome.SUCCEEDED)

    (tmp_path / "unknown").mkdir()
    ending = unknown(tmp_path / "unknown").rerun()
    assert (ending.answer, "keys resolve" in ending.unblock) == (Answer.HELD, True)


def test_a_rerun_of_what_changed_meanwhile_says_so(tmp_path: Path) -> None:
    """Somebody else reran it between the look and the command; or it was forgotten."""
    made = succeeded(tmp_path)
    seen = made.record
    made.rerun()
    with pytest.raises(InvalidInput, match="load-may changed while it was to be rerun"):
        made.rerun(seen)
    assert made.record.generation == 2

    run(operate.forget(made.owner.store, made.record, by="ann", reason="again"))
    with pytest.raises(InvalidInput, match="load-may was forgotten meanwhile"):
        made.rerun(seen)


# --- resolve


def test_partial_is_never_called_failed_or_succeeded(tmp_path: Path) -> None:
    """One output is committed: both words are refused with what is committed and the remedy; the key stays held and unowned."""
    made = partial(tmp_path)
    with pytest.raises(InvalidInput, match="cannot be called failed: a is committed; --retry writes what is missing"):
        made.resolve("failed")
    with pytest.raises(InvalidInput, match="cannot be called succeeded: not committed: b; --retry"):
        made.resolve("succeeded")
    view = run(made.owner.store.load(made.record.address))
    assert (made.record.held, view.claim) == (HeldReason.PARTIAL, None)


def test_partial_is_completed_by_a_retry(tmp_path: Path) -> None:
    """Attempt 2 is granted and not counted; sending the job again runs it, and only what is missing is written."""
    made = partial(tmp_path)

    ending = made.resolve("retry")
    assert ending.record is not None
    assert (ending.answer, ending.record.attempt, ending.record.uncounted) == (Answer.TAKE_OVER, 2, 1)
    assert (ending.record.state, ending.unblock) == (State.IN_PROGRESS, "send the job again to run it")

    made.applications.plays = [writes(made, "a", "b")]
    done = made.submit()
    assert done.result is not None
    assert (done.result.outcome, done.result.attempts) == (Outcome.SUCCEEDED, 2)


def test_what_was_committed_meanwhile_counts_more_than_the_word(tmp_path: Path) -> None:
    """The outputs are asked anew: where all of them are committed by now, the end is Succeeded whatever is said."""
    made = partial(tmp_path)
    late = made.owner.job(
        made.granted.assignment.model_copy(update={"attempt": 2})
    )  # a store was lost once: a higher token
    late.write(table_of(5), "b")

    ending = made.resolve("failed")
    assert ending.result is not None
    assert ending.result.outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize(("how", "outcome"), [("succeeded", Outcome.SUCCEEDED), ("failed", Outcome.FAILED)])
def test_an_unknown_end_is_what_a_person_says(tmp_path: Path, how: How, outcome: Outcome) -> None:
    """There is no evidence: the word is the evidence, with who and why, and duplicates get it."""
    made = unknown(tmp_path)

    ending = made.resolve(how)

    assert ending.result is not None
    assert (ending.result.outcome, ending.result.evidence) == (outcome, f"ann said {how}: I looked")
    assert made.submit().result == ending.result


def test_an_unknown_end_may_be_tried_again(tmp_path: Path) -> None:
    """The old application is stopped first."""
    made = unknown(tmp_path)
    made.resolve("retry")
    assert made.applications.stopped[-1].endswith("-a1")

    made.applications.plays = [Phase.SUCCEEDED]
    done = made.submit()
    assert done.result is not None
    assert (done.result.outcome, made.applications.launched) == (Outcome.SUCCEEDED, [1, 2])


def test_what_may_still_run_is_not_decided(tmp_path: Path) -> None:
    """An opaque attempt that cannot be stopped: no word ends it; the key stays held."""
    made = unknown(tmp_path)
    made.applications.unstoppable = True
    for how in ("succeeded", "failed", "retry"):
        with pytest.raises(InvalidInput, match="still runs and could not be stopped: it does not listen; end it first"):
            made.resolve(how)
    assert made.record.state is State.HELD


def test_a_taken_name_is_tried_again_or_given_up(tmp_path: Path) -> None:
    """Nothing of it ever ran: Failed is true. Or a retry, under the next name."""
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
    """Another job's rows are no effect of this one: Failed, and every output is fenced against the attempt."""
    made = conflicting(tmp_path)
    with pytest.raises(InvalidInput, match="another attempt of load-may would be held again, for KeyConflict"):
        made.resolve("retry")
    with pytest.raises(
        InvalidInput, match="cannot be called succeeded: output b holds a commit of this key for another"
    ):
        made.resolve("succeeded")

    ending = made.resolve("failed")
    assert ending.result is not None
    assert ending.result.outcome is Outcome.FAILED
    assert made.granted.slots("a") == [(1, "closed")]


def test_a_conflict_is_not_failed_when_something_is_ours(tmp_path: Path) -> None:
    """Failed says that no effect exists: `a` is one."""
    made = conflicting(tmp_path, "a")
    with pytest.raises(InvalidInput, match=r"cannot be called failed: a is committed$"):
        made.resolve("failed")


def test_a_conflict_that_was_cleared_away_may_be_tried_again(tmp_path: Path) -> None:
    """The outputs are asked anew: what held it is gone."""
    made = conflicting(tmp_path)
    shutil.rmtree(tmp_path / "b")
    assert made.resolve("retry").answer is Answer.TAKE_OVER


@pytest.mark.parametrize("verb", ["finalize", "update", "drop"])
def test_a_word_whose_reply_was_lost_is_said_once(tmp_path: Path, verb: str) -> None:
    """The command asks again and finds what it did."""
    made = unknown(tmp_path)
    made.store = Lossy(made.owner.store, verb, times=1, lands=True)
    ending = made.resolve("retry" if verb == "update" else "failed")
    assert ending.record is not None
    assert ending.record.attempt == (2 if verb == "update" else 1)
    made.store = None
    assert made.record.state is (State.IN_PROGRESS if verb == "update" else State.FINALIZED)


def test_only_a_held_key_is_resolved(tmp_path: Path) -> None:
    """One sentence; and two people at once: one decides."""
    made = succeeded(tmp_path)
    with pytest.raises(InvalidInput, match="load-may is Finalized, not held"):
        made.resolve("failed")

    (tmp_path / "held").mkdir()
    held = unknown(tmp_path / "held")
    held.owner.take_over("of somebody else")
    with pytest.raises(InvalidInput, match="somebody else is resolving load-may"):
        held.resolve("failed")


# --- forget, purge


def test_what_is_forgotten_is_unknown_and_its_generations_stay_used(tmp_path: Path) -> None:
    """Sent again it runs as generation 2: the old commit never comes back as new."""
    made = succeeded(tmp_path)
    assert run(operate.forget(made.owner.store, made.record, by="ann", reason="by mistake")) == 1

    done = made.submit()
    assert done.record is not None
    assert (done.record.generation, done.replayed, made.applications.launched) == (2, False, [1, 1])
    events = run(made.owner.store.events(done.record.address))
    assert [(e.by, e.why) for e in events if e.what == "Forgotten"] == [("ann", "by mistake")]


def test_what_has_not_ended_is_not_forgotten(tmp_path: Path) -> None:
    """In progress or held: refused, the record stays."""
    made = partial(tmp_path)
    with pytest.raises(InvalidInput, match="only a finalized key can be forgotten"):
        run(operate.forget(made.owner.store, made.record, by="ann", reason="x"))
    assert made.record.state is State.HELD


def test_purging_removes_what_is_due_and_leaves_the_floor(tmp_path: Path) -> None:
    """By the store's clock: not before its retention is over; the key then runs as generation 2."""
    now = [1000.0]
    spec: dict[str, Any] = {"retention": {"succeeded": "1h"}}
    made = Desk(owner(tmp_path, "orders", clock=lambda: now[0], **spec), prepared(tmp_path, "orders", **spec))
    made.applications.plays = [writes(made, "orders")]
    made.driven()
    assert run(operate.purge(made.owner.store)) == []
    now[0] += 3601.0
    told: list[Record] = []

    removed = run(operate.purge(made.owner.store, on_removed=told.append))

    assert ([r.key for r in removed], told) == (["load-may"], removed)
    assert run(made.owner.store.load(removed[0].address)).floor == 1


# --- explain


def explained(made: Desk) -> tuple[str, str, str]:
    said = made.explain()
    return said.row, said.waits_for, said.unblock


def test_explain_names_row_and_remedy_of_a_running_key(tmp_path: Path) -> None:
    """Owned: who owns it and what is being waited for. Its owner gone: the next request goes on, and what it would do."""
    made = desk(tmp_path, "orders")
    said = made.explain()
    assert (said.row, said.owner) == ("running elsewhere: granted and not launched", "owner")
    run(made.applications.launch(made.granted.assignment))
    run(made.owner.drive().step(made.record, made.granted.claim))
    assert explained(made) == ("running elsewhere: running", "the attempt's end", "sparkonce cancel load-may")

    said = made.orphaned().explain()
    assert (said.row, said.owner, said.waits_for) == ("stale owner", None, "the next time the job is sent")
    assert "next: running" in said.evidence
    assert "send the job again" in said.unblock


def test_explain_names_row_and_remedy_of_an_ended_key(tmp_path: Path) -> None:
    """Finalized; its output gone; failed, with why; cancelled."""
    made = succeeded(tmp_path)
    assert explained(made) == ("finalized", "nothing", "sparkonce rerun load-may")
    shutil.rmtree(tmp_path / "orders")
    said = made.explain()
    assert (said.row, said.unblock) == ("result gone", "sparkonce rerun load-may")
    assert "orders is gone" in said.evidence

    (tmp_path / "failed").mkdir()
    failed = desk(tmp_path / "failed", "orders", plays=(Phase.SUCCEEDED,)).driven()
    assert "committed nothing" in failed.explain().evidence

    (tmp_path / "cancelled").mkdir()
    cancelled = desk(tmp_path / "cancelled", "orders").orphaned()
    cancelled.cancel()
    assert cancelled.explain().row == "cancelled"


def test_explain_names_row_and_remedy_of_a_held_key(tmp_path: Path) -> None:
    """What holds it, and the command that decides."""
    said = partial(tmp_path).explain()
    assert (said.row, said.waits_for) == ("held", "a person")
    assert said.evidence.startswith("Partial: some outputs are committed")
    assert said.unblock == "sparkonce keys resolve load-may --succeeded | --failed | --retry"


def test_explain_writes_nothing(tmp_path: Path) -> None:
    """No revision moves and no slot is made."""
    made = desk(tmp_path, "orders").orphaned()
    before = run(made.owner.store.load(made.record.address))
    made.explain()
    assert run(made.owner.store.load(made.record.address)) == before
    assert not (tmp_path / "orders").exists()
