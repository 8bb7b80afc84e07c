"""The verbs of a Delta output, one process at a time. Races between processes are in test_delta_races.py."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from deltalake import DeltaTable, write_deltalake

from harness.arrow_stage import table_of
from harness.delta_stage import entries, numbers_in, transactions
from harness.delta_tables import idem_commits, later, sink_on, staged
from harness.slots import Unanswered
from sparkonce.blocking import run
from sparkonce.errors import OutputUnavailable
from sparkonce.sink.delta import evidence
from sparkonce.sink.delta import log as delta_log
from sparkonce.sink.delta.sink import RESENDS, DeltaTableSink, digest_of
from sparkonce.sink.delta.snapshot import DeltaSnapshot
from sparkonce.sink.objects.protocol import TableObjects
from sparkonce.sink.protocol import (
    AlreadyCommitted,
    Committed,
    Conflicting,
    Evidence,
    FencedOff,
    SinkKey,
    Slot,
    SlotState,
)

COMMIT_POINTS = (
    "sink.delta.table.before",
    "sink.delta.table.after",
    "sink.delta.commit.before",
    "sink.delta.commit.after",
)


@pytest.fixture
def delta(table: Path) -> DeltaTableSink:
    return sink_on(table)


def test_commit_then_find(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """Any later call finds the committed slot, complete, and every reader sees its rows in the table."""
    slot = staged(delta, key, 1, 1, 2, 3)
    assert run(delta.find(key)) is None
    assert run(delta.commit(key, slot)) == Committed(slot)
    assert run(sink_on(table).find(key)) == slot
    assert numbers_in(table) == [1, 2, 3]


def test_a_table_is_created_by_the_first_commit_only(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """Staging, find, probe and fence create no table; only a commit does."""
    slot = staged(delta, key, 1, 1)
    run(delta.find(key))
    run(delta.probe(key, None))
    assert run(delta.fence(key, 2, fingerprint="f", by="settle")) is None
    assert not (table / "_delta_log").exists()
    assert isinstance(run(delta.commit(key, slot)), FencedOff)
    assert not (table / "_delta_log").exists()
    assert isinstance(run(delta.commit(key, staged(delta, key, 2, 1))), Committed)
    assert [next(iter(action)) for action in entries(table)[0]] == ["commitInfo", "protocol", "metaData"]


def test_a_fence_with_token_1_writes_nothing(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """No token is below 1, so fencing for a first attempt leaves no trace before it has something to commit."""
    assert run(delta.fence(key, 1, fingerprint="f", by="attempt 1")) is None
    assert not table.exists()


def test_commit_twice_is_one_commit(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """A commit that is sent again (after a lost reply, or to roll forward) recognises itself from the table alone."""
    slot = staged(delta, key, 1, 1, 2)
    run(delta.commit(key, slot))
    assert run(delta.commit(key, slot)) == Committed(slot)
    assert run(sink_on(table).commit(key, Slot.model_validate(slot.dump()))) == Committed(slot)
    assert idem_commits(table, key) == 1
    assert numbers_in(table) == [1, 2]


def test_a_lower_token_is_told_of_the_commit_of_a_higher_one(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """After token 4's commit every other commit of the key is refused and gets the existing one."""
    low, high = staged(delta, key, 2, 7), staged(delta, key, 4, 7)
    run(delta.commit(key, high))
    assert run(delta.commit(key, low)) == AlreadyCommitted(high)
    assert run(delta.commit(key, staged(delta, key, 5, 7))) == AlreadyCommitted(high)
    assert numbers_in(table) == [7]


def test_two_writes_of_one_attempt_commit_once(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """Two drivers of one attempt have the same token and different nonces: the second gets the first one's commit, as AlreadyCommitted."""
    first, second = staged(delta, key, 1, 1), staged(delta, key, 1, 1)
    run(delta.commit(key, first))
    assert run(delta.commit(key, second)) == AlreadyCommitted(first)
    assert numbers_in(table) == [1]


@pytest.mark.parametrize("token", [1, 2])
def test_commit_of_another_job_is_a_conflict(delta: DeltaTableSink, key: SinkKey, token: int) -> None:
    """A slot that was committed under another fingerprint is a KeyConflict, never this job's result."""
    foreign = staged(delta, key, 1, 1, fingerprint="other")
    run(delta.commit(key, foreign))
    assert run(delta.commit(key, staged(delta, key, token, 1))) == Conflicting(foreign)


def test_commit_under_another_key_is_refused(delta: DeltaTableSink, key: SinkKey) -> None:
    """A slot names its key, so it cannot be committed under another one by mistake."""
    with pytest.raises(ValueError, match="is not a commit of a1b2-orders-g2"):
        run(delta.commit(later(key, 2), staged(delta, key, 1, 1)))


@pytest.mark.parametrize("exists", [True, False])
def test_fence_bars_what_is_below_and_only_that(delta: DeltaTableSink, key: SinkKey, table: Path, exists: bool) -> None:
    """A fence that answers None is final for the lower tokens, with or without a table; the fenced token itself may commit."""
    if exists:
        write_deltalake(str(table), table_of(100))
    low, high = staged(delta, key, 2, 1), staged(delta, key, 3, 1)
    assert run(delta.fence(key, 3, fingerprint="f", by="settle of attempt 2")) is None
    decision = run(delta.commit(key, low))
    assert isinstance(decision, FencedOff)
    assert (decision.slot.state, decision.slot.token) == (SlotState.CLOSED, 2)
    assert decision.slot.closed_by == "settle of attempt 2"
    assert run(delta.commit(key, high)) == Committed(high)
    assert numbers_in(table) == ([1, 100] if exists else [1])


def test_a_fence_before_there_was_a_table_holds_when_somebody_else_makes_it(
    delta: DeltaTableSink, key: SinkKey, table: Path
) -> None:
    """The fence's note, written before the table existed, is enough: the attempt finds it although another writer created the table
    since."""
    zombie = staged(delta, key, 1, 1)
    assert run(delta.fence(key, 2, fingerprint="f", by="settle")) is None
    write_deltalake(str(table), table_of(100))
    assert isinstance(run(delta.commit(key, zombie)), FencedOff)
    assert delta_log.fence(key) in {each["appId"] for each in transactions(table)}
    assert numbers_in(table) == [100]


def test_fences_never_fall(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """A late fence for a lower token gets its answer and lowers nothing."""
    write_deltalake(str(table), table_of(100))
    for token in (4, 2, 3, 4):
        assert run(delta.fence(key, token, fingerprint="f", by="settle")) is None
    assert [each["version"] for each in transactions(table)] == [4]
    assert isinstance(run(delta.commit(key, staged(delta, key, 3, 1))), FencedOff)


def test_a_log_that_never_shows_our_entries_gets_few_of_them(
    delta: DeltaTableSink, key: SinkKey, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each created entry is another version, so a call that did not end would fill the log. It ends as unknown."""
    run(delta.commit(key, staged(delta, key, 1, 1)))
    before = len(entries(table))
    monkeypatch.setattr(DeltaSnapshot, "fenced", lambda *_: 0)
    with pytest.raises(OutputUnavailable, match="the log does not show 3 entries that were created in it"):
        run(delta.fence(later(key, 2), 5, fingerprint="f", by="test"))
    assert len(entries(table)) == before + 3


@pytest.mark.parametrize("token", [1, 2, 3, 9])
def test_fence_returns_the_commit_of_any_token(delta: DeltaTableSink, key: SinkKey, token: int) -> None:
    """The fence returns the committed slot, of a lower or a higher token, at every call."""
    slot = staged(delta, key, 2, 1)
    run(delta.commit(key, slot))
    for _ in range(2):
        assert run(delta.fence(key, token, fingerprint="f", by="settle")) == slot


def test_a_twin_that_committed_and_swept_in_between_is_found(
    delta: DeltaTableSink, key: SinkKey, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second driver of the attempt commits and sweeps between our look at the table and the check of our staged files. The files are
    missing because the key is decided: the answer is the other driver's commit, not Stuck."""
    mine, others = staged(delta, key, 1, 1, 2), staged(delta, key, 1, 1, 2)
    load, twin = delta._log.load, sink_on(table)
    looks: list[object] = []

    async def overtaken() -> object:
        looks.append(seen := await load())
        if len(looks) == 1:
            assert run(twin.commit(key, others)) == Committed(others)
            assert run(twin.sweep(key)).folders == 1
        return seen

    monkeypatch.setattr(delta._log, "load", overtaken)
    assert run(delta.commit(key, mine)) == AlreadyCommitted(others)
    assert len(looks) == 2
    assert numbers_in(table) == [1, 2]


def test_a_slot_that_was_swept_between_two_looks_at_it_is_no_other_slot(
    delta: DeltaTableSink, key: SinkKey, monkeypatch: pytest.MonkeyPatch, table: Path
) -> None:
    """After another writer's commit the attempt creates its slot object again; before it reads the reply that the object exists, a second
    driver commits and sweeps that object. The attempt then finds no slot, and answers with the other driver's commit."""
    write_deltalake(str(table), table_of(100))
    mine, others = staged(delta, key, 1, 1), staged(delta, key, 1, 1)
    create, twin = delta._objects.create, sink_on(table)
    puts: list[bool] = []

    async def overtaken(path: str, data: bytes) -> bool:
        if path.endswith("00001.json"):
            write_deltalake(str(table), table_of(200), mode="append")
        created = await create(path, data)
        if path == evidence.slot_path(mine):
            puts.append(created)
            if len(puts) == 2:
                assert run(twin.commit(key, others)) == Committed(others)
                assert run(twin.sweep(key)).folders == 1
        return created

    monkeypatch.setattr(delta._objects, "create", overtaken)
    assert run(delta.commit(key, mine)) == AlreadyCommitted(others)
    assert puts == [True, False]
    assert numbers_in(table) == [1, 100, 200]


def test_abort_closes_and_deletes(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """An aborted write can never be committed, and its files are gone."""
    slot = staged(delta, key, 1, 1, 2)
    assert (table / slot.files[0].path).exists()
    assert run(delta.abort(key, slot)).state is SlotState.CLOSED
    assert not (table / slot.files[0].path).parent.exists()
    assert isinstance(run(delta.commit(key, slot)), FencedOff)


def test_abort_after_the_commit_landed_keeps_the_data(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """An abort may follow a commit whose reply was lost: the committed rows stay."""
    slot = staged(delta, key, 1, 1, 2)
    run(delta.commit(key, slot))
    assert run(delta.abort(key, slot)) == slot
    assert run(delta.probe(key, digest_of(slot))) is Evidence.PRESENT
    assert numbers_in(table) == [1, 2]


def test_abort_closes_before_it_deletes(
    delta: DeltaTableSink, key: SinkKey, table: Path, failpoint: Callable[[str], None]
) -> None:
    """If the process dies inside an abort, its slot is closed and nothing is deleted, never the reverse."""
    slot = staged(delta, key, 1, 1, 2)
    failpoint("driver.abort.closed=raise")
    with pytest.raises(RuntimeError, match=r"driver\.abort\.closed"):
        run(delta.abort(key, slot))
    assert all((table / file.path).exists() for file in slot.files)
    assert isinstance(run(delta.commit(key, slot)), FencedOff)


def test_discard_deletes_the_files_and_decides_nothing(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """A write that never sent a commit leaves nothing behind, and its attempt may write again."""
    slot = staged(delta, key, 1, 1)
    run(delta.discard(key, slot))
    run(delta.discard(key, slot))
    assert not (table / slot.files[0].path).exists()
    assert isinstance(run(delta.commit(key, staged(delta, key, 1, 1))), Committed)


@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("times", [1, RESENDS - 1])
@pytest.mark.parametrize("exists", [True, False])
def test_a_lost_answer_is_resolved(key: SinkKey, table: Path, times: int, lands: bool, exists: bool) -> None:
    """Whether or not the entry was created, the table is loaded again and ends with one commit."""
    sink = sink_on(table)
    if exists:
        write_deltalake(str(table), table_of(100))
    slot = staged(sink, key, 1, 1, 2)
    lossy = Unanswered(sink._objects, times=0, lands=lands)
    sink._objects = sink._log.objects = cast("TableObjects", lossy)
    run(evidence.put_slot(sink._objects, slot))
    lossy.times = times
    with contextlib.suppress(
        OutputUnavailable
    ):  # the create of the evidence may be the lost one; then the driver commits again
        run(sink.commit(key, slot))
    lossy.times = 0
    assert run(sink.commit(key, slot)) == Committed(slot)
    assert idem_commits(table, key) == 1
    assert numbers_in(table) == ([1, 2, 100] if exists else [1, 2])


@pytest.mark.parametrize("point", COMMIT_POINTS)
def test_a_step_that_fails_once_is_repeated(
    delta: DeltaTableSink, key: SinkKey, table: Path, point: str, failpoint: Callable[[str], None]
) -> None:
    """A failure before or after either create of a commit does not change its outcome."""
    slot = staged(delta, key, 2, 1)
    failpoint(f"{point}=1*raise->off")
    assert run(delta.commit(key, slot)) == Committed(slot)
    assert idem_commits(table, key) == 1
    assert numbers_in(table) == [1]


@pytest.mark.parametrize("point", ["sink.delta.fence.before", "sink.delta.fence.after"])
def test_a_fence_that_fails_once_is_repeated(
    delta: DeltaTableSink, key: SinkKey, table: Path, point: str, failpoint: Callable[[str], None]
) -> None:
    """A failure before or after the log entry of a fence does not change what it bars."""
    write_deltalake(str(table), table_of(100))
    failpoint(f"{point}=1*raise->off")
    assert run(delta.fence(key, 2, fingerprint="f", by="settle")) is None
    assert len(transactions(table)) == 1
    assert isinstance(run(delta.commit(key, staged(delta, key, 1, 1))), FencedOff)


def test_no_answer_at_all_is_unknown(delta: DeltaTableSink, key: SinkKey, failpoint: Callable[[str], None]) -> None:
    """After a bounded number of attempts one sentence says that the commit may still have taken effect."""
    slot = staged(delta, key, 1, 1)
    failpoint("sink.delta.commit.before=raise")
    with pytest.raises(
        OutputUnavailable, match=r"; whether attempt 1 of a1b2-orders-g1 is committed to .* is unknown$"
    ):
        run(delta.commit(key, slot))


def test_an_entry_that_lands_where_a_cleaned_log_has_room_again_is_no_commit(
    delta: DeltaTableSink, key: SinkKey, table: Path, failpoint: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process froze before its create; meanwhile the log grew, was checkpointed and cleaned up. The create succeeds at a version below
    the checkpoint, and the process trusts the reloaded table, not the create."""
    write_deltalake(str(table), table_of(100), configuration={"delta.logRetentionDuration": "interval 0 seconds"})
    zombie = staged(delta, key, 1, 1)
    create = delta._objects.create
    done: list[str] = []

    async def woken_late(path: str, data: bytes) -> bool:
        if path == delta_log.entry_path(1) and not done:
            done.append(path)
            assert run(sink_on(table).fence(key, 2, fingerprint="f", by="settle")) is None
            for number in range(3):
                write_deltalake(str(table), table_of(200 + number), mode="append")
            DeltaTable(str(table)).create_checkpoint()
            (table / delta_log.entry_path(1)).unlink()
        return await create(path, data)

    monkeypatch.setattr(delta._objects, "create", woken_late)
    assert isinstance(run(delta.commit(key, zombie)), FencedOff)
    assert done
    assert (table / delta_log.entry_path(1)).exists()
    assert numbers_in(table) == [100, 200, 201, 202]


def test_evidence_and_fences_survive_checkpoints_and_the_end_of_the_log(
    delta: DeltaTableSink, key: SinkKey, table: Path
) -> None:
    """After every entry that recorded them is cleaned up, both are still found: in checkpoints, and in the files beside the table."""
    fenced = later(key, 2)
    slot = staged(delta, key, 1, 1)
    run(delta.commit(key, slot))
    run(delta.fence(fenced, 3, fingerprint="f", by="settle"))
    DeltaTable(str(table)).create_checkpoint()
    for path in sorted((table / "_delta_log").glob("*.json"))[:-1]:
        path.unlink()
    for path in (table / evidence.folder_of(fenced)).glob("fence-*"):
        path.unlink()
    fresh = sink_on(table)
    assert run(fresh.find(key)) == slot
    assert run(fresh.commit(key, slot)) == Committed(slot)
    assert isinstance(run(fresh.commit(fenced, staged(fresh, fenced, 2, 2))), FencedOff)


def test_a_checkpoint_is_written_when_it_is_due(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """Our own commits write checkpoints at the interval that the table configures."""
    write_deltalake(str(table), table_of(100), configuration={"delta.checkpointInterval": "3"})
    for generation in range(1, 5):
        each = later(key, generation)
        assert isinstance(run(delta.commit(each, staged(delta, each, 1, generation))), Committed)
    names = sorted(path.name for path in (table / "_delta_log").glob("*.checkpoint.parquet"))
    assert names == [f"{3:020d}.checkpoint.parquet"]
    assert numbers_in(table) == [4, 100]


def test_a_checkpoint_that_fails_is_no_failure(
    delta: DeltaTableSink, key: SinkKey, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit succeeds anyway, and the next one tries to write a checkpoint again."""
    write_deltalake(str(table), table_of(100), configuration={"delta.checkpointInterval": "1"})
    monkeypatch.setattr(DeltaTable, "create_checkpoint", lambda self: (_ for _ in ()).throw(OSError("disk full")))
    slot = staged(delta, key, 1, 1)
    assert run(delta.commit(key, slot)) == Committed(slot)
