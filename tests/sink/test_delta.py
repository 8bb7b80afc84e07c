"""The verbs of a Delta output, one process at a time. What several processes do to each other is in test_delta_races.py."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from deltalake import DeltaTable, write_deltalake

from harness.arrow_stage import table_of
from harness.delta_stage import delta_stage, entries, numbers_in, transactions
from harness.slots import Unanswered
from sparkonce.blocking import run
from sparkonce.errors import InvalidInput, OutputCorrupt, OutputUnavailable, OutputUnsafe, OutputUnsupported
from sparkonce.sink import delta_evidence as evidence
from sparkonce.sink import delta_log
from sparkonce.sink.delta import RESENDS, DeltaTableSink, digest_of, open_delta
from sparkonce.sink.delta_inventory import staging_folder
from sparkonce.sink.folder_objects import FolderObjects
from sparkonce.sink.objects import Objects
from sparkonce.sink.open import Declared, open_sink
from sparkonce.sink.protocol import (
    AlreadyCommitted,
    Committed,
    Conflicting,
    DataFile,
    Evidence,
    FencedOff,
    OnRerun,
    SinkKey,
    Slot,
    SlotState,
    Stuck,
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


def sink_on(table: Path, on_rerun: OnRerun = OnRerun.REPLACE) -> DeltaTableSink:
    return open_delta(FolderObjects(table, durable=False), name="orders", on_rerun=on_rerun, stage=delta_stage)


def staged(sink: DeltaTableSink, key: SinkKey, token: int, *numbers: int, fingerprint: str = "f") -> Slot:
    return sink.stage(table_of(*numbers), key, token, fingerprint=fingerprint)


def later(key: SinkKey, generation: int) -> SinkKey:
    return key.model_copy(update={"generation": generation})


def idem_commits(table: Path, key: SinkKey) -> int:
    """How many entries of the log commit the key."""
    return sum(each["appId"] == f"idem:{key}" for each in transactions(table))


def test_commit_then_find(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """A committed slot is found, whole, by any later call, and its rows are in the table as every reader sees it."""
    slot = staged(delta, key, 1, 1, 2, 3)
    assert run(delta.find(key)) is None
    assert run(delta.commit(key, slot)) == Committed(slot)
    assert run(sink_on(table).find(key)) == slot
    assert numbers_in(table) == [1, 2, 3]


def test_a_table_is_created_by_the_first_commit_only(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """Staging, looking and fencing make no table: one that is there has a commit, or is about to."""
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
    """There is no token below it: a first attempt leaves no trace before it has something to commit."""
    assert run(delta.fence(key, 1, fingerprint="f", by="attempt 1")) is None
    assert not table.exists()


def test_commit_twice_is_one_commit(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """A commit that is sent again (a lost reply, a roll-forward) recognises itself, from the table alone."""
    slot = staged(delta, key, 1, 1, 2)
    run(delta.commit(key, slot))
    assert run(delta.commit(key, slot)) == Committed(slot)
    assert run(sink_on(table).commit(key, Slot.model_validate(slot.dump()))) == Committed(slot)
    assert idem_commits(table, key) == 1
    assert numbers_in(table) == [1, 2]


def test_a_lower_token_is_told_of_the_commit_of_a_higher_one(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """After token 4's commit nobody commits the key: whoever tries is told whose rows stand."""
    low, high = staged(delta, key, 2, 7), staged(delta, key, 4, 7)
    run(delta.commit(key, high))
    assert run(delta.commit(key, low)) == AlreadyCommitted(high)
    assert run(delta.commit(key, staged(delta, key, 5, 7))) == AlreadyCommitted(high)
    assert numbers_in(table) == [7]


def test_two_writes_of_one_attempt_commit_once(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """Twins share the token and not the nonce: the second is told of the first, and is not taken for it."""
    first, second = staged(delta, key, 1, 1), staged(delta, key, 1, 1)
    run(delta.commit(key, first))
    assert run(delta.commit(key, second)) == AlreadyCommitted(first)
    assert numbers_in(table) == [1]


@pytest.mark.parametrize("token", [1, 2])
def test_commit_of_another_job_is_a_conflict(delta: DeltaTableSink, key: SinkKey, token: int) -> None:
    """A slot that was committed under another fingerprint is never taken for this job's result."""
    foreign = staged(delta, key, 1, 1, fingerprint="other")
    run(delta.commit(key, foreign))
    assert run(delta.commit(key, staged(delta, key, token, 1))) == Conflicting(foreign)


def test_commit_under_another_key_is_refused(delta: DeltaTableSink, key: SinkKey) -> None:
    """A slot says which key it belongs to; it cannot be committed for another by mistake."""
    with pytest.raises(ValueError, match="is no commit of a1b2-orders-g2"):
        run(delta.commit(later(key, 2), staged(delta, key, 1, 1)))


@pytest.mark.parametrize("exists", [True, False])
def test_fence_bars_what_is_below_and_only_that(delta: DeltaTableSink, key: SinkKey, table: Path, exists: bool) -> None:
    """A fence that answers None is final for lower tokens, whether there is a table yet or not; the token itself may commit."""
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
    """The note alone bars: the attempt finds it beside a table that another writer made after the fence."""
    zombie = staged(delta, key, 1, 1)
    assert run(delta.fence(key, 2, fingerprint="f", by="settle")) is None
    write_deltalake(str(table), table_of(100))
    assert isinstance(run(delta.commit(key, zombie)), FencedOff)
    assert delta_log.fence(key) in {each["appId"] for each in transactions(table)}
    assert numbers_in(table) == [100]


def test_fences_never_fall(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """A late fence of a lower token answers, and lowers nothing."""
    write_deltalake(str(table), table_of(100))
    for token in (4, 2, 3, 4):
        assert run(delta.fence(key, token, fingerprint="f", by="settle")) is None
    assert [each["version"] for each in transactions(table)] == [4]
    assert isinstance(run(delta.commit(key, staged(delta, key, 3, 1))), FencedOff)


@pytest.mark.parametrize("token", [1, 2, 3, 9])
def test_fence_returns_the_commit_of_any_token(delta: DeltaTableSink, key: SinkKey, token: int) -> None:
    """A commit that landed, of a lower or a higher token, is the fence's answer, however often it is asked."""
    slot = staged(delta, key, 2, 1)
    run(delta.commit(key, slot))
    for _ in range(2):
        assert run(delta.fence(key, token, fingerprint="f", by="settle")) == slot


def test_abort_closes_and_deletes(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """An aborted write can never be committed, and its files are gone."""
    slot = staged(delta, key, 1, 1, 2)
    assert (table / slot.files[0].path).exists()
    assert run(delta.abort(key, slot)).state is SlotState.CLOSED
    assert not (table / slot.files[0].path).parent.exists()
    assert isinstance(run(delta.commit(key, slot)), FencedOff)


def test_abort_after_the_commit_landed_keeps_the_data(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """A commit whose reply was lost may be followed by an abort: what is committed stays, whole."""
    slot = staged(delta, key, 1, 1, 2)
    run(delta.commit(key, slot))
    assert run(delta.abort(key, slot)) == slot
    assert run(delta.probe(key, digest_of(slot))) is Evidence.PRESENT
    assert numbers_in(table) == [1, 2]


def test_abort_closes_before_it_deletes(
    delta: DeltaTableSink, key: SinkKey, table: Path, failpoint: Callable[[str], None]
) -> None:
    """A process that dies inside an abort has closed its slot and deleted nothing: never the other way round."""
    slot = staged(delta, key, 1, 1, 2)
    failpoint("driver.abort.closed=raise")
    with pytest.raises(RuntimeError, match=r"driver\.abort\.closed"):
        run(delta.abort(key, slot))
    assert all((table / file.path).exists() for file in slot.files)
    assert isinstance(run(delta.commit(key, slot)), FencedOff)


def test_discard_deletes_the_files_and_decides_nothing(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """A write that never sent a commit leaves nothing: its attempt may write again."""
    slot = staged(delta, key, 1, 1)
    run(delta.discard(key, slot))
    run(delta.discard(key, slot))
    assert not (table / slot.files[0].path).exists()
    assert isinstance(run(delta.commit(key, staged(delta, key, 1, 1))), Committed)


@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("times", [1, RESENDS - 1])
@pytest.mark.parametrize("exists", [True, False])
def test_a_lost_answer_is_resolved(key: SinkKey, table: Path, times: int, lands: bool, exists: bool) -> None:
    """Whether the entry had landed or not: the table is loaded again, and the commit is there once."""
    sink = sink_on(table)
    if exists:
        write_deltalake(str(table), table_of(100))
    slot = staged(sink, key, 1, 1, 2)
    lossy = Unanswered(sink._objects, times=0, lands=lands)
    sink._objects = sink._log.objects = cast("Objects", lossy)
    run(evidence.put_slot(sink._objects, slot))
    lossy.times = times
    with contextlib.suppress(
        OutputUnavailable
    ):  # the evidence's own create may be the one that is lost: the driver comes again
        run(sink.commit(key, slot))
    lossy.times = 0
    assert run(sink.commit(key, slot)) == Committed(slot)
    assert idem_commits(table, key) == 1
    assert numbers_in(table) == ([1, 2, 100] if exists else [1, 2])


@pytest.mark.parametrize("point", COMMIT_POINTS)
def test_a_step_that_fails_once_is_repeated(
    delta: DeltaTableSink, key: SinkKey, table: Path, point: str, failpoint: Callable[[str], None]
) -> None:
    """A failure before or after either create of a commit changes nothing about its outcome."""
    slot = staged(delta, key, 2, 1)
    failpoint(f"{point}=1*raise->off")
    assert run(delta.commit(key, slot)) == Committed(slot)
    assert idem_commits(table, key) == 1
    assert numbers_in(table) == [1]


@pytest.mark.parametrize("point", ["sink.delta.fence.before", "sink.delta.fence.after"])
def test_a_fence_that_fails_once_is_repeated(
    delta: DeltaTableSink, key: SinkKey, table: Path, point: str, failpoint: Callable[[str], None]
) -> None:
    """A failure before or after the entry of a fence changes nothing about what it bars."""
    write_deltalake(str(table), table_of(100))
    failpoint(f"{point}=1*raise->off")
    assert run(delta.fence(key, 2, fingerprint="f", by="settle")) is None
    assert len(transactions(table)) == 1
    assert isinstance(run(delta.commit(key, staged(delta, key, 1, 1))), FencedOff)


def test_no_answer_at_all_is_unknown(delta: DeltaTableSink, key: SinkKey, failpoint: Callable[[str], None]) -> None:
    """After a bounded number of tries the caller is told that the commit may still have landed, in one sentence."""
    slot = staged(delta, key, 1, 1)
    failpoint("sink.delta.commit.before=raise")
    with pytest.raises(
        OutputUnavailable, match=r"; whether attempt 1 of a1b2-orders-g1 is committed to .* is unknown$"
    ):
        run(delta.commit(key, slot))


def test_an_entry_that_lands_where_a_cleaned_log_has_room_again_is_no_commit(
    delta: DeltaTableSink, key: SinkKey, table: Path, failpoint: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that froze before its create wakes when the log has gone on, was checkpointed and cleaned: its create succeeds, below
    the checkpoint. It believes the table, not the create."""
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
    """When every entry that told of them is cleaned up, both are still found: in checkpoints, and beside the table."""
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
    """Our own commits keep the log short, at the interval that the table says."""
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
    """The commit stands; the next one tries again."""
    write_deltalake(str(table), table_of(100), configuration={"delta.checkpointInterval": "1"})
    monkeypatch.setattr(DeltaTable, "create_checkpoint", lambda self: (_ for _ in ()).throw(OSError("disk full")))
    slot = staged(delta, key, 1, 1)
    assert run(delta.commit(key, slot)) == Committed(slot)


# --- reruns -------------------------------------------------------------------------------------------------------------------


def test_replace_removes_the_older_rows_in_the_same_entry(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """No version of the table shows both generations, or neither."""
    run(delta.commit(key, staged(delta, key, 1, 1, 2)))
    run(delta.commit(later(key, 2), staged(delta, later(key, 2), 1, 3)))
    assert numbers_in(table) == [3]
    versions = [numbers_in(table, version) for version in (0, 1, 2)]
    assert versions == [[], [1, 2], [3]]
    assert run(delta.probe(key, None)) is Evidence.REPLACED
    run(delta.commit(later(key, 3), staged(delta, later(key, 3), 1, 4)))
    assert numbers_in(table) == [4]


def test_append_keeps_the_older_rows(key: SinkKey, table: Path) -> None:
    """`onRerun: Append` adds; a later Replace removes all that stands."""
    appending, replacing = sink_on(table, OnRerun.APPEND), sink_on(table)
    for generation in (1, 2):
        each = later(key, generation)
        run(appending.commit(each, staged(appending, each, 1, generation)))
    assert numbers_in(table) == [1, 2]
    assert run(appending.probe(key, None)) is Evidence.PRESENT
    run(replacing.commit(later(key, 3), staged(replacing, later(key, 3), 1, 3)))
    assert numbers_in(table) == [3]


def test_other_keys_and_writers_are_never_replaced(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """A rerun touches the files of its own key and output alone."""
    other = SinkKey(key_hash="ffff", output="orders", generation=1)
    run(delta.commit(key, staged(delta, key, 1, 1)))
    run(delta.commit(other, staged(delta, other, 1, 50)))
    write_deltalake(str(table), table_of(100), mode="append")
    run(delta.commit(later(key, 2), staged(delta, later(key, 2), 1, 2)))
    assert numbers_in(table) == [2, 50, 100]


def test_replace_after_optimize_is_refused_before_the_rows_run(
    delta: DeltaTableSink, key: SinkKey, table: Path
) -> None:
    """Rows that were rewritten into others' files cannot be removed by file: one sentence, nothing staged; the old rows stay."""
    run(delta.commit(key, staged(delta, key, 1, 1, 2)))
    DeltaTable(str(table)).optimize.compact()
    with pytest.raises(InvalidInput, match=r"another writer rewrote or deleted 2 file\(s\).*declare onRerun: Append"):
        staged(delta, later(key, 2), 1, 3)
    assert not (table / f"so-{later(key, 2)}").exists()
    appending = sink_on(table, OnRerun.APPEND)
    run(appending.commit(later(key, 2), staged(appending, later(key, 2), 1, 3)))
    assert numbers_in(table) == [1, 2, 3]


def test_optimize_between_staging_and_commit_makes_a_replacing_slot_stuck(
    delta: DeltaTableSink, key: SinkKey, table: Path
) -> None:
    """Never both generations, never neither: nothing of the new one becomes visible."""
    run(delta.commit(key, staged(delta, key, 1, 1, 2)))
    slot = staged(delta, later(key, 2), 1, 3)
    DeltaTable(str(table)).optimize.compact()
    decision = run(delta.commit(later(key, 2), slot))
    assert isinstance(decision, Stuck)
    assert "another writer rewrote" in decision.why
    assert numbers_in(table) == [1, 2]


def test_replace_whose_older_slot_is_lost_is_corrupt(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """Evidence that is gone is never taken for "there is nothing to replace"."""
    slot = staged(delta, key, 1, 1, 2)
    run(delta.commit(key, slot))
    (table / evidence.slot_path(slot)).unlink()
    with pytest.raises(OutputCorrupt, match="is gone or cannot be read; restore that folder"):
        staged(delta, later(key, 2), 1, 3)


# --- tables that change under a job ------------------------------------------------------------------------------------------


def test_a_table_that_was_dropped_is_stuck(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """A slot that was staged for a table is committed to no other: not to none, and not to one of the same name."""
    write_deltalake(str(table), table_of(100))
    slot = staged(delta, key, 1, 1)
    for path in (table / "_delta_log").iterdir():
        path.unlink()
    decision = run(delta.commit(key, slot))
    assert isinstance(decision, Stuck)
    assert "was dropped after the rows were staged" in decision.why
    write_deltalake(str(table), table_of(7), mode="overwrite")
    decision = run(delta.commit(key, slot))
    assert isinstance(decision, Stuck)
    assert "made anew" in decision.why
    assert numbers_in(table) == [7]


def test_staged_files_that_vanished_are_stuck(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """VACUUM without retention deletes what no version names: then nothing is committed, rather than rows that cannot be read."""
    write_deltalake(str(table), table_of(100))
    slot = staged(delta, key, 1, 1, 2)
    DeltaTable(str(table)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    decision = run(delta.commit(key, slot))
    assert isinstance(decision, Stuck)
    assert "2 staged file(s) are gone" in decision.why
    assert numbers_in(table) == [100]


def test_vacuum_leaves_evidence_and_committed_rows(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """After VACUUM the table reads, its slot is found whole, and replaced files are gone."""
    many = open_delta(FolderObjects(table, durable=False), name="orders", stage=delta_stage)
    slot = staged(many, key, 1, 1, 2)
    run(many.commit(key, slot))
    second = later(key, 2)
    newer = staged(many, second, 1, 3)
    run(many.commit(second, newer))
    DeltaTable(str(table)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert numbers_in(table) == [3]
    assert (run(many.find(key)), run(many.find(second))) == (slot, newer)
    assert run(many.probe(second, digest_of(newer))) is Evidence.PRESENT
    assert not (table / slot.files[0].path).exists()


# --- probe, sweep, inventory ---------------------------------------------------------------------------------------------


def test_probe_sees_what_is_there(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """Present: the slot with the recorded digest, and its files, live and whole; nothing is written."""
    slot = staged(delta, key, 1, 1, 2, 3)
    assert run(delta.probe(key, None)) is Evidence.GONE
    run(delta.commit(key, slot))
    assert run(delta.probe(key, digest_of(slot))) is Evidence.PRESENT
    assert run(delta.probe(key, None)) is Evidence.PRESENT
    assert run(delta.probe(key, "0" * 64)) is Evidence.GONE


@pytest.mark.parametrize("damage", ["delete", "shorten", "slot"])
def test_probe_misses_what_is_lost(delta: DeltaTableSink, key: SinkKey, table: Path, damage: str) -> None:
    """A file that is missing or has another size, or a slot that is not there, makes the result gone."""
    slot = staged(delta, key, 1, 1, 2, 3)
    run(delta.commit(key, slot))
    file = table / (evidence.slot_path(slot) if damage == "slot" else slot.files[1].path)
    if damage == "shorten":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        file.unlink()
    assert run(delta.probe(key, digest_of(slot))) is Evidence.GONE


def test_probe_tells_rewritten_rows_from_deleted_ones(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """OPTIMIZE moves rows and the result stands; a DELETE or an overwrite takes them; past the log's memory nobody knows."""
    slot = staged(delta, key, 1, 1, 2, 3)
    run(delta.commit(key, slot))
    DeltaTable(str(table)).optimize.compact()
    assert run(delta.probe(key, digest_of(slot))) is Evidence.PRESENT
    DeltaTable(str(table)).create_checkpoint()
    newest = max((table / "_delta_log").glob("*.json"))
    aside = newest.with_name("aside")
    newest.rename(aside)
    assert run(delta.probe(key, digest_of(slot))) is Evidence.NOT_CHECKED
    aside.rename(newest)
    other = later(SinkKey(key_hash="ffff", output="orders", generation=1), 1)
    gone = staged(delta, other, 1, 9)
    run(delta.commit(other, gone))
    DeltaTable(str(table)).delete("n = 9")
    assert run(delta.probe(other, digest_of(gone))) is Evidence.GONE


def test_sweep_deletes_only_what_can_never_be_committed(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """While nothing is committed: files of barred tokens go, those of an open one stay; after a commit only its own stay."""
    fenced, open_, newer = (staged(delta, key, token, 1, 2) for token in (1, 2, 3))
    assert run(delta.sweep(key)).folders == 0
    run(delta.fence(key, 2, fingerprint="f", by="settle"))
    swept = run(delta.sweep(key))
    assert (swept.folders, swept.bytes) == (1, fenced.bytes)
    run(delta.commit(key, open_))
    assert run(delta.sweep(key)).folders == 1
    assert not (table / newer.files[0].path).exists()
    assert run(delta.probe(key, digest_of(open_))) is Evidence.PRESENT
    assert run(delta.sweep(key)).folders == 0


def test_inventory_names_effects_staging_and_live_files(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """What an audit compares: commits with their files and whether they are seen, folders of writes, and every live file."""
    write_deltalake(str(table), table_of(100))
    first, lost = staged(delta, key, 1, 1, 2), staged(delta, key, 1, 1, 2)
    run(delta.commit(key, first))
    second = staged(delta, later(key, 2), 1, 3)
    run(delta.commit(later(key, 2), second))
    found = run(delta.inventory())
    assert {(effect.slot.sink_key, effect.visible) for effect in found.effects} == {
        (str(key), False),
        (str(later(key, 2)), True),
    }
    assert {folder.nonce: folder.unreachable for folder in found.staged} == {
        first.nonce: False,
        lost.nonce: True,
        second.nonce: False,
    }
    live = {file.path for file in second.files}
    assert live < set(found.live)
    assert len(found.live) == len(live) + 1
    assert set(found.live) < set(found.present)
    assert found.unreadable == ()
    (table / evidence.slot_path(first)).unlink()
    assert len(run(delta.inventory()).unreadable) == 1


# --- opening ----------------------------------------------------------------------------------------------------------------


def test_many_files_stand_in_a_list_that_vacuum_leaves(
    delta: DeltaTableSink, key: SinkKey, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of a slot's files lies beside the table, not among the files that VACUUM looks through."""
    monkeypatch.setattr("sparkonce.sink.listing.FILES_IN_SLOT", 1)
    slot = staged(delta, key, 1, 1, 2)
    assert slot.listing is not None
    run(delta.commit(key, slot))
    DeltaTable(str(table)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert run(delta.probe(key, digest_of(slot))) is Evidence.PRESENT
    run(delta.commit(later(key, 2), staged(delta, later(key, 2), 1, 3)))
    assert numbers_in(table) == [3]


def test_check_finds_a_place_that_replaces_what_is_there(
    delta: DeltaTableSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place where the same object can be created twice is refused before anything runs."""

    async def careless(path: str, data: bytes) -> bool:
        return True

    run(delta.check())
    monkeypatch.setattr(delta._objects, "create", careless)
    with pytest.raises(OutputUnsafe, match="does not honour create-if-absent"):
        run(delta.check())


def test_check_refuses_a_table_that_forgets(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """A table whose evidence expires is refused at start, before the rows run, and by a fence, whose answer would not be final."""
    slot = staged(delta, key, 2, 1)
    write_deltalake(
        str(table), table_of(100), configuration={"delta.setTransactionRetentionDuration": "interval 7 days"}
    )
    forgets = "forgets who committed after interval 7 days"
    with pytest.raises(OutputUnsupported, match=forgets):
        run(delta.check())
    with pytest.raises(OutputUnsupported, match=forgets):
        staged(delta, key, 1, 1)
    with pytest.raises(OutputUnsupported, match=forgets):
        run(delta.fence(key, 2, fingerprint="f", by="settle"))
    assert isinstance(run(delta.commit(key, slot)), Stuck)


def test_open_sink_knows_delta(tmp_path: Path) -> None:
    """A declared Delta output is a Delta sink, and opening it touches nothing."""
    sink = open_sink(Declared(name="orders", kind="delta", location="lake/orders"), base=str(tmp_path))
    assert (sink.kind, sink.uri) == ("delta", (tmp_path / "lake" / "orders").as_uri())
    assert list(tmp_path.iterdir()) == []


def test_a_percent_sign_in_the_path_is_refused(tmp_path: Path) -> None:
    """delta-rs decodes such a path twice: refused when the output is opened, not found out after the rows ran."""
    with pytest.raises(InvalidInput, match="paths with a percent sign"):
        open_sink(Declared(name="orders", kind="delta", location=str(tmp_path / "a%20b")), base=None)


def test_a_path_with_odd_characters_works(tmp_path: Path, key: SinkKey) -> None:
    """Spaces, hashes, colons and letters beyond ASCII in a folder's name are nothing special."""
    table = tmp_path / "my lake #1" / "a:b=c~ü" / "orders"
    sink = sink_on(table)
    slot = staged(sink, key, 1, 1, 2, 3)
    assert run(sink.commit(key, slot)) == Committed(slot)
    assert run(sink.probe(key, digest_of(slot))) is Evidence.PRESENT
    assert numbers_in(table) == [1, 2, 3]


def test_slots_without_rows_are_committed(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """A stream's opening has no columns and no files: it stands in the log, and the first rows say what the table's columns are."""
    opening = Slot(state=SlotState.COMMITTED, sink_key=str(key), token=1, nonce="a1", fingerprint="f")
    assert run(delta.commit(key, opening)) == Committed(opening)
    batch = key.model_copy(update={"batch": 0})
    slot = staged(delta, batch, 1, 1, 2)
    assert slot.files[0].path.startswith(staging_folder(batch, 1, slot.nonce))
    assert run(delta.commit(batch, slot)) == Committed(slot)
    assert numbers_in(table) == [1, 2]


def test_the_number_of_a_slot_is_golden() -> None:
    """Logs of every version name slots by it: it never changes, and fits a signed 64-bit number."""
    slot = Slot(
        state=SlotState.COMMITTED,
        sink_key="a-o-g1",
        token=1,
        nonce="n",
        files=(DataFile(path="p", rows=1, bytes=2, digest="d"),),
    )
    assert delta_log.slot_number(slot) == int(digest_of(slot)[:16], 16) >> 1
    assert 0 <= delta_log.slot_number(slot) < 2**63
