"""A person's operations on a key: the outputs are read first, and the person's decision counts only where there is no evidence."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from attempt.owned import Lossy, owner
from commands.person import Desk, desk, partial, succeeded, unknown, writes
from harness.granted import document, prepared
from harness.memory_store import MemoryStore
from sparkonce.attempt.request import Answer
from sparkonce.blocking import run
from sparkonce.commands import operate
from sparkonce.errors import InvalidInput, RecordUnreadable
from sparkonce.launch.protocol import Phase
from sparkonce.local.prepare import assemble
from sparkonce.local.runner import Ending, LocalRunner
from sparkonce.model.record import Outcome, Record, State
from sparkonce.model.spec import IdempotentJob
from sparkonce.store.protocol import Lease, Page, Query

# --- find


def several(folder: Path, *keys: str) -> MemoryStore:
    store = MemoryStore()
    lease = run(store.open_lease(owner="o"))
    for key in keys:
        send(store, lease, folder, idempotencyKey=key)
    return store


def send(store: MemoryStore, lease: Lease, folder: Path, output: str = "a", **spec: Any) -> None:
    job = IdempotentJob.of(document({"a": output}, **spec))
    run(store.reserve(assemble(job, contents={}, base=str(folder)).request(str(spec)), lease=lease, floor=0))


def test_a_key_or_the_start_of_its_hash_names_a_record(tmp_path: Path) -> None:
    """The whole key, its whole hash, or the unambiguous start of its hash, over all pages of a listing."""
    store = several(tmp_path, *(f"key-{number}" for number in range(120)))
    found = run(operate.find(store, "key-77"))
    assert found.key == "key-77"
    assert run(operate.find(store, found.key_hash)).key == "key-77"
    assert run(operate.find(store, found.key_hash[:16])).key == "key-77"


def test_a_name_of_several_or_of_none_is_refused(tmp_path: Path) -> None:
    """Of several keys that read alike, the hashes are listed."""
    store = several(tmp_path, "key-1")
    lease = run(store.open_lease(owner="o"))
    for operation, resource in (("a/b", "c"), ("a", "b/c")):
        identity = {"idempotencyKey": None, "operation": operation, "resource": resource, "revision": "1"}
        send(store, lease, tmp_path, "a/{revision}", **identity)
    with pytest.raises(InvalidInput, match=r"a/b/c@1 names 2 records \([0-9a-f]{12}: .*name one by more of its hash"):
        run(operate.find(store, "a/b/c@1"))
    with pytest.raises(InvalidInput, match="no record of key-99 is in memory:; `sparkonce keys list`"):
        run(operate.find(store, "key-99"))


def test_fewer_than_eight_digits_of_a_hash_name_no_record(tmp_path: Path) -> None:
    """They may be a mistyped key. A key that reads like the beginning of another's hash names itself."""
    store = several(tmp_path, "key-1")
    digits = run(operate.find(store, "key-1")).key_hash[:7]
    with pytest.raises(InvalidInput, match=f"no record of {digits} .*, and a hash needs at least 8 of its digits"):
        run(operate.find(store, digits))

    assert run(operate.find(several(tmp_path, "key-1", digits), digits)).key == digits


def test_a_record_that_does_not_parse_is_not_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named by its hash, it raises an error that says why, never "no record"."""
    store = several(tmp_path, "key-1")
    address = run(operate.find(store, "key-1")).address

    async def broken(_: Query) -> Page:
        return Page((), unreadable=((address, "the record local/1 cannot be read"),))

    monkeypatch.setattr(store, "list", broken)
    with pytest.raises(RecordUnreadable, match="cannot be read"):
        run(operate.find(store, address.key_hash[:12]))


# --- cancel


def test_cancelling_an_unowned_key_settles_it_here(tmp_path: Path) -> None:
    """Its runner died while the attempt ran: the attempt is stopped and fenced, and the key is Cancelled with who and why."""
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
    """The cancellation request is recorded, the owner carries it out, and the command returns the end."""
    made = desk(tmp_path, "orders")

    def looked(record: Record, *_: object) -> None:
        assert record.stop_wanted is not None
        made.owner.run()  # as the owner does, in its own process

    def work(embedded: LocalRunner) -> Awaitable[Ending]:
        embedded.on_observation = looked
        return operate.cancel(embedded, made.record, by="ann", reason="too slow")

    ending = made.do(work)
    assert ending.record is not None
    assert ending.record.outcome is Outcome.CANCELLED
    assert made.owner.rows[:2] == ["a stop is wanted", "settled: None"]


def test_cancelling_what_has_committed_succeeded(tmp_path: Path) -> None:
    """An attempt that has already committed ends as Succeeded despite the cancellation."""
    made = desk(tmp_path, "orders")
    made.applications.plays = [writes(made, "orders", phase=Phase.RUNNING)]
    run(made.applications.launch(made.granted.assignment))
    made.orphaned()

    ending = made.cancel()
    assert ending.result is not None
    assert ending.result.outcome is Outcome.SUCCEEDED


def test_cancelling_an_ended_or_a_held_key_changes_nothing(tmp_path: Path) -> None:
    """For an ended key the result is returned, for a held one the command that resolves it is named."""
    ended = succeeded(tmp_path)
    before = ended.record.revision
    assert (ended.cancel().answer, ended.record.revision) == (Answer.REPLAY, before)

    (tmp_path / "held").mkdir()
    held = partial(tmp_path / "held")
    ending = held.cancel()
    assert (ending.answer, ending.unblock) == (Answer.HELD, "sparkonce keys resolve load-may --reason TEXT --failed")


# --- rerun


def test_a_rerun_replaces_the_result_by_a_new_generation(tmp_path: Path) -> None:
    """Generation 2 writes a slot of its own; the first generation's slot stays."""
    made = succeeded(tmp_path)

    ending = made.rerun()

    assert ending.record is not None
    assert (ending.record.generation, ending.record.attempt, ending.record.outcome) == (2, 1, Outcome.SUCCEEDED)
    assert made.granted.rows("orders") == [1]
    made.granted.record = ending.record
    assert made.granted.rows("orders") == [2]


@pytest.mark.parametrize("lands", [True, False])
def test_a_rerun_whose_reply_was_lost_opens_one_generation(tmp_path: Path, *, lands: bool) -> None:
    """The repeated request recognises itself."""
    made = succeeded(tmp_path)
    made.store = Lossy(made.owner.store, "reopen", times=2, lands=lands)
    ending = made.rerun()
    assert ending.record is not None
    assert (ending.record.generation, made.applications.launched) == (2, [1, 1])


def test_a_key_in_progress_is_not_rerun(tmp_path: Path) -> None:
    """With an owner the remedy is to wait or cancel, without one to send the job again. Nothing is written."""
    made = desk(tmp_path, "orders")
    ending = made.rerun()
    assert (ending.answer, ending.unblock) == (Answer.IN_PROGRESS, "wait until it ends, or sparkonce cancel load-may")

    ending = made.orphaned().rerun()
    assert ending.answer is Answer.IN_PROGRESS
    assert "send the job of that generation again to finish it" in ending.unblock
    assert made.record.generation == 1


def test_a_held_key_that_is_settled_may_be_rerun_and_another_may_not(tmp_path: Path) -> None:
    """A key held as Partial is settled, so a new generation may follow. One held as Unknown is not: a person decides first."""
    made = partial(tmp_path)
    made.applications.plays = [writes(made, "a", "b")]
    ending = made.rerun()
    assert ending.record is not None
    assert (ending.record.generation, ending.record.outcome) == (2, Outcome.SUCCEEDED)

    (tmp_path / "unknown").mkdir()
    ending = unknown(tmp_path / "unknown").rerun()
    assert (ending.answer, "keys resolve" in ending.unblock) == (Answer.HELD, True)


def test_a_rerun_of_what_changed_meanwhile_says_so(tmp_path: Path) -> None:
    """Another person reran the key, or forgot it, after this command had read it."""
    made = succeeded(tmp_path)
    seen = made.record
    made.rerun()
    with pytest.raises(InvalidInput, match="load-may changed while it was to be rerun"):
        made.rerun(seen)
    assert made.record.generation == 2

    run(operate.forget(made.owner.store, made.record, by="ann", reason="again"))
    with pytest.raises(InvalidInput, match="load-may was forgotten meanwhile"):
        made.rerun(seen)


# --- forget, purge


def test_what_is_forgotten_is_unknown_and_its_generations_stay_used(tmp_path: Path) -> None:
    """The job sent again runs as generation 2: the old commit never counts as the new one's."""
    made = succeeded(tmp_path)
    assert run(operate.forget(made.owner.store, made.record, by="ann", reason="by mistake")) == 1

    done = made.submit()
    assert done.record is not None
    assert (done.record.generation, done.replayed, made.applications.launched) == (2, False, [1, 1])
    events = run(made.owner.store.events(done.record.address))
    assert [(e.by, e.why) for e in events if e.what == "Forgotten"] == [("ann", "by mistake")]


def test_what_has_not_ended_is_not_forgotten(tmp_path: Path) -> None:
    """A key in progress or held is refused, and its record stays."""
    made = partial(tmp_path)
    with pytest.raises(InvalidInput, match="only a finalized key can be forgotten"):
        run(operate.forget(made.owner.store, made.record, by="ann", reason="x"))
    assert made.record.state is State.HELD


def test_purging_removes_what_is_due_and_leaves_the_floor(tmp_path: Path) -> None:
    """By the store's clock, a result is purged only after its retention; the key then runs as generation 2."""
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
    """With an owner: the owner and what it waits for. Without: that the next request continues the key, and with which row."""
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
    """For a finalized key, one whose output is gone, one that failed (with the reason), and a cancelled one."""
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
    """The reason for which it is held, and the command that resolves it."""
    said = partial(tmp_path).explain()
    assert (said.row, said.waits_for) == ("held", "a person")
    assert said.evidence.startswith("Partial: some outputs are committed")
    assert said.unblock == "sparkonce keys resolve load-may --reason TEXT --succeeded | --failed | --retry"


def test_explain_writes_nothing(tmp_path: Path) -> None:
    """The record's revision stays, and no slot is created."""
    made = desk(tmp_path, "orders").orphaned()
    before = run(made.owner.store.load(made.record.address))
    made.explain()
    assert run(made.owner.store.load(made.record.address)) == before
    assert not (tmp_path / "orders").exists()
