"""The verbs of the slot log, one process at a time. Races between processes are in test_races.py."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal, cast

import pytest
from obstore.exceptions import AlreadyExistsError
from obstore.store import MemoryStore

from harness.arrow_stage import arrow_stage, table_of
from harness.slots import Unanswered, committing
from sparkonce.blocking import run
from sparkonce.errors import OutputCorrupt, OutputUnavailable, OutputUnsafe
from sparkonce.model.spec import OnRerun
from sparkonce.sink import stream
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.objects.protocol import StoreObjects, TableObjects
from sparkonce.sink.protocol import (
    NEWEST_SCHEMA,
    AlreadyCommitted,
    Committed,
    Conflicting,
    Evidence,
    FencedOff,
    SinkKey,
    Slot,
    SlotState,
)
from sparkonce.sink.slotlog import layout
from sparkonce.sink.slotlog.sink import RESEND_AFTER, SlotLogSink, digest_of

STEPS = ("sink.slots.create.before", "sink.slots.create.after", "sink.slots.close.before", "sink.slots.close.after")


def states(objects: TableObjects, key: SinkKey) -> dict[int, str]:
    """State of each token's slot."""
    found = {}
    for each in run(objects.list(layout.slots_folder(key))):
        data = run(objects.get(each.path))
        assert data is not None
        found[layout.numbered(each.path) or 0] = json.loads(data)["state"]
    return found


def log_on(objects: TableObjects) -> SlotLogSink:
    return SlotLogSink(objects, name="orders")


def test_commit_then_find(objects: TableObjects, key: SinkKey) -> None:
    """Any later call finds the committed slot, with the same bytes."""
    sink, slot = log_on(objects), committing(key, 1)
    assert run(sink.find(key)) is None
    assert run(sink.commit(key, slot)) == Committed(slot)
    assert run(sink.find(key)) == slot
    assert run(objects.get("_idem/a1b2-orders-g1/0000000001.json")) == layout.encode(slot)


def test_commit_twice_is_one_commit(objects: TableObjects, key: SinkKey) -> None:
    """A commit that is sent again (after a lost reply, or to roll forward) recognises itself by its nonce."""
    sink, slot = log_on(objects), committing(key, 1)
    run(sink.commit(key, slot))
    assert run(sink.commit(key, slot)) == Committed(slot)
    assert run(sink.commit(key, Slot.model_validate(slot.dump()))) == Committed(slot)


def test_rule_r_closes_every_lower_slot_first(objects: TableObjects, key: SinkKey) -> None:
    """A commit in slot 4 closes slots 1 to 3, so that none of them can be committed later."""
    sink = log_on(objects)
    run(sink.commit(key, committing(key, 4)))
    assert states(objects, key) == {1: "closed", 2: "closed", 3: "closed", 4: "committed"}
    for token in (1, 2, 3):
        assert isinstance(run(sink.commit(key, committing(key, token))), FencedOff)


def test_commit_above_a_committed_slot_is_already_committed(objects: TableObjects, key: SinkKey) -> None:
    """A lower token's commit decides the key for a higher attempt, whose own slot is not created."""
    sink, first = log_on(objects), committing(key, 1)
    run(sink.commit(key, first))
    assert run(sink.commit(key, committing(key, 3))) == AlreadyCommitted(first)
    assert states(objects, key) == {1: "committed"}


def test_two_writes_of_one_attempt_commit_once(objects: TableObjects, key: SinkKey) -> None:
    """Two drivers of one attempt have the same token and different nonces: the second gets the first one's commit, as AlreadyCommitted."""
    sink, first = log_on(objects), committing(key, 1, nonce="a")
    run(sink.commit(key, first))
    assert run(sink.commit(key, committing(key, 1, nonce="b"))) == AlreadyCommitted(first)


@pytest.mark.parametrize("token", [1, 2])
def test_commit_of_another_job_is_a_conflict(objects: TableObjects, key: SinkKey, token: int) -> None:
    """A slot that was committed under another fingerprint is a KeyConflict, never this job's result."""
    sink, foreign = log_on(objects), committing(key, 1, fingerprint="other")
    run(sink.commit(key, foreign))
    assert run(sink.commit(key, committing(key, token, nonce="mine"))) == Conflicting(foreign)


def test_commit_under_another_key_is_refused(objects: TableObjects, key: SinkKey) -> None:
    """A slot names its key, so it cannot be committed under another one by mistake."""
    other = key.model_copy(update={"generation": 2})
    with pytest.raises(ValueError, match="is not a commit of a1b2-orders-g2"):
        run(log_on(objects).commit(other, committing(key, 1)))


def test_fence_closes_what_is_open_and_bars_it(objects: TableObjects, key: SinkKey) -> None:
    """A fence that answers None has closed every lower slot: a zombie's commit is refused at the output."""
    sink = log_on(objects)
    assert run(sink.fence(key, 3, fingerprint="f", by="settle of attempt 2")) is None
    assert states(objects, key) == {1: "closed", 2: "closed"}
    decision = run(sink.commit(key, committing(key, 2)))
    assert isinstance(decision, FencedOff)
    assert decision.slot.closed_by == "settle of attempt 2"
    assert isinstance(run(sink.commit(key, committing(key, 3))), Committed)


def test_fence_returns_the_commit_of_any_lower_token(objects: TableObjects, key: SinkKey) -> None:
    """A commit that took effect before the fence is the fence's answer, at every call."""
    sink, slot = log_on(objects), committing(key, 2)
    run(sink.commit(key, slot))
    for token in (3, 4, 9):
        assert run(sink.fence(key, token, fingerprint="f", by="settle")) == slot


def test_fence_looks_above(objects: TableObjects, key: SinkKey) -> None:
    """After the ledger was wiped attempts count from 1 again: the fence of attempt 1 finds a commit of token 5."""
    sink, slot = log_on(objects), committing(key, 5)
    run(sink.commit(key, slot))
    assert run(sink.fence(key, 2, fingerprint="f", by="settle")) == slot


def test_abort_closes_the_slot_and_deletes_the_files(sink: SlotLogSink, key: SinkKey, table: Path) -> None:
    """An aborted write can never be committed, and its files are gone."""
    slot = sink.stage(table_of(1, 2), key, 1, fingerprint="f")
    assert (table / slot.files[0].path).exists()
    assert run(sink.abort(key, slot)).state is SlotState.CLOSED
    assert not (table / slot.files[0].path).parent.exists()
    assert isinstance(run(sink.commit(key, slot)), FencedOff)


def test_abort_after_the_commit_landed_keeps_the_data(sink: SlotLogSink, key: SinkKey, table: Path) -> None:
    """An abort may follow a commit whose reply was lost: the committed rows stay."""
    slot = sink.stage(table_of(1, 2), key, 1, fingerprint="f")
    run(sink.commit(key, slot))
    assert run(sink.abort(key, slot)) == slot
    assert run(sink.probe(key, digest_of(slot))) is Evidence.PRESENT


def test_abort_closes_before_it_deletes(
    sink: SlotLogSink, key: SinkKey, table: Path, failpoint: Callable[[str], None]
) -> None:
    """If the process dies inside an abort, its slot is closed and nothing is deleted, never the reverse."""
    slot = sink.stage(table_of(1, 2), key, 1, fingerprint="f")
    failpoint("driver.abort.closed=raise")
    with pytest.raises(RuntimeError, match=r"driver\.abort\.closed"):
        run(sink.abort(key, slot))
    assert states(FolderObjects(table), key) == {1: "closed"}
    assert all((table / file.path).exists() for file in slot.files)


def test_discard_deletes_the_files_and_decides_nothing(sink: SlotLogSink, key: SinkKey, table: Path) -> None:
    """A write that never sent a commit leaves no files and no slot, and its attempt may write again."""
    slot = sink.stage(table_of(1), key, 1, fingerprint="f")
    run(sink.discard(key, slot))
    run(sink.discard(key, slot))
    assert not (table / slot.files[0].path).exists()
    again = sink.stage(table_of(1), key, 1, fingerprint="f")
    assert isinstance(run(sink.commit(key, again)), Committed)


@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("times", [1, 2, len(RESEND_AFTER)])
def test_a_lost_answer_is_resolved(objects: TableObjects, key: SinkKey, times: int, lands: bool) -> None:
    """Whether or not the slot was created, it is read, created again if missing, and ends as our own commit."""
    sink, slot = log_on(cast("TableObjects", Unanswered(objects, times=times, lands=lands))), committing(key, 1)
    assert run(sink.commit(key, slot)) == Committed(slot)
    assert run(log_on(objects).find(key)) == slot


def test_a_lost_answer_of_a_create_that_landed_is_not_sent_again(objects: TableObjects, key: SinkKey) -> None:
    """One read of the slot is enough: its nonce proves that it is ours."""
    lossy = Unanswered(objects, times=99, lands=True)
    assert isinstance(run(log_on(cast("TableObjects", lossy)).commit(key, committing(key, 1))), Committed)
    assert lossy.creates == 1


def test_no_answer_at_all_is_unknown(objects: TableObjects, key: SinkKey) -> None:
    """After a bounded number of attempts one sentence says that the commit may still have taken effect."""
    lossy = Unanswered(objects, times=99, lands=False)
    with pytest.raises(
        OutputUnavailable, match=r"no answer; whether slot 1 of a1b2-orders-g1 is committed is unknown$"
    ):
        run(log_on(cast("TableObjects", lossy)).commit(key, committing(key, 1)))
    assert lossy.creates == len(RESEND_AFTER) + 1


@pytest.mark.parametrize("point", STEPS)
def test_a_step_that_fails_once_is_repeated(
    objects: TableObjects, key: SinkKey, point: str, failpoint: Callable[[str], None]
) -> None:
    """A failure before or after either create of a commit does not change its outcome."""
    failpoint(f"{point}=1*raise->off")
    slot = committing(key, 2)
    assert run(log_on(objects).commit(key, slot)) == Committed(slot)
    assert states(objects, key) == {1: "closed", 2: "committed"}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_probe_sees_what_is_there(sink: SlotLogSink, key: SinkKey, table: Path) -> None:
    """Present means that the slot has the recorded digest and each of its files the recorded size; the probe reads no data and writes
    nothing."""
    slot = sink.stage(table_of(1, 2, 3), key, 1, fingerprint="f")
    assert run(sink.probe(key, None)) is Evidence.GONE
    run(sink.commit(key, slot))
    for file in table.glob("_data/**/*.parquet"):  # the same size, and no longer Parquet
        file.write_bytes(b"\0" * file.stat().st_size)
    before = contents(table)
    assert run(sink.probe(key, digest_of(slot))) is Evidence.PRESENT
    assert run(sink.probe(key, None)) is Evidence.PRESENT
    assert run(sink.probe(key, "0" * 64)) is Evidence.GONE
    assert contents(table) == before


def test_probe_of_a_table_that_does_not_exist_makes_none(sink: SlotLogSink, key: SinkKey, table: Path) -> None:
    """The probe of a deleted table says gone and does not recreate its folder."""
    assert run(sink.probe(key, None)) is Evidence.GONE
    assert run(sink.find(key)) is None
    assert not table.exists()


@pytest.mark.parametrize("damage", ["delete", "shorten"])
def test_probe_misses_a_file(sink: SlotLogSink, key: SinkKey, table: Path, damage: str) -> None:
    """A file that is missing, or has another size, makes the result gone."""
    slot = sink.stage(table_of(1, 2, 3), key, 1, fingerprint="f")
    run(sink.commit(key, slot))
    file = table / slot.files[1].path
    if damage == "delete":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1])
    assert run(sink.probe(key, digest_of(slot))) is Evidence.GONE


def test_probe_sees_a_replacement(sink: SlotLogSink, appending: SlotLogSink, key: SinkKey) -> None:
    """A later generation with `onRerun: Replace` makes the result replaced once it is committed: not before, and not with Append."""
    slot = sink.stage(table_of(1), key, 1, fingerprint="f")
    run(sink.commit(key, slot))
    second, third = (key.model_copy(update={"generation": g}) for g in (2, 3))
    run(appending.commit(second, appending.stage(table_of(2), second, 1, fingerprint="f")))
    later = sink.stage(table_of(3), third, 1, fingerprint="f")
    assert run(sink.probe(key, digest_of(slot))) is Evidence.PRESENT
    run(sink.commit(third, later))
    assert run(sink.probe(key, digest_of(slot))) is Evidence.REPLACED
    assert run(sink.probe(second, None)) is Evidence.REPLACED
    assert run(sink.probe(third, digest_of(later))) is Evidence.PRESENT


def staged_folders(table: Path, key: SinkKey) -> set[str]:
    return {folder.name for folder in (table / layout.DATA / str(key)).iterdir()}


def folder_of(slot: Slot) -> str:
    return f"{slot.token:010d}-{slot.nonce}"


def test_sweep_deletes_only_what_can_never_be_committed(sink: SlotLogSink, key: SinkKey, table: Path) -> None:
    """Before any commit the files of closed slots are deleted and those of an open slot stay."""
    fenced, undecided, later = (sink.stage(table_of(1, 2), key, token, fingerprint="f") for token in (1, 2, 3))
    assert run(sink.sweep(key)).folders == 0
    run(sink.fence(key, 2, fingerprint="f", by="settle"))
    swept = run(sink.sweep(key))
    assert (swept.folders, swept.bytes) == (1, fenced.bytes)
    assert staged_folders(table, key) == {folder_of(undecided), folder_of(later)}
    assert run(sink.sweep(key)).folders == 0


def test_sweep_after_a_commit_leaves_only_its_files(sink: SlotLogSink, key: SinkKey, table: Path) -> None:
    """After a commit, rule R bars every other write of the key, of a lower, the same or a higher token, so only the committed files
    stay."""
    lower, twin, winner, higher = (sink.stage(table_of(1, 2), key, token, fingerprint="f") for token in (1, 2, 2, 3))
    run(sink.commit(key, winner))
    assert run(sink.sweep(key)).folders == 3
    assert staged_folders(table, key) == {folder_of(winner)}
    for slot in (lower, twin, higher):
        assert not isinstance(run(sink.commit(key, slot)), Committed)
    assert run(sink.probe(key, digest_of(winner))) is Evidence.PRESENT


def test_sweep_deletes_what_the_chain_rule_bars(sink: SlotLogSink, key: SinkKey, table: Path) -> None:
    """In a place of a stream the tokens below that of the place before are barred, and their slots stay empty for ever."""
    opening = stream.opening_of(key, 2, query_id="q", first_batch=0, fingerprint="f", on_rerun=OnRerun.REPLACE)
    assert isinstance(run(sink.commit(key, opening)), Committed)
    first, second = stream.place(key, 0), stream.place(key, 1)
    lower, batch, higher = (sink.stage(table_of(1), first, token, fingerprint="f") for token in (1, 2, 3))
    assert run(sink.sweep(key)).folders == 1
    assert staged_folders(table, first) == {folder_of(batch), folder_of(higher)}
    chain = run(stream.walk(sink, key, opening))
    assert not isinstance(run(stream.commit(sink, key, chain, stream.batch_of(chain, 0, lower, plan="0"))), Committed)
    assert isinstance(run(stream.commit(sink, key, chain, stream.batch_of(chain, 0, higher, plan="0"))), Committed)
    staged = [sink.stage(table_of(2), second, token, fingerprint="f") for token in (2, 3, 4)]
    found = {(each.sink_key, each.token): each.unreachable for each in run(sink.inventory()).staged}
    assert found == {
        (str(first), 2): True,
        (str(first), 3): False,
        (str(second), 2): True,
        (str(second), 3): False,
        (str(second), 4): False,
    }
    assert run(sink.sweep(key)).folders == 2  # the files of `batch` as well
    assert staged_folders(table, second) == {folder_of(slot) for slot in staged[1:]}


def test_sweep_leaves_strangers_alone(sink: SlotLogSink, key: SinkKey, table: Path) -> None:
    """A folder whose name is not one of ours is never deleted, whatever the slots contain."""
    run(sink.fence(key, 2, fingerprint="f", by="settle"))
    stranger = table / layout.DATA / str(key) / "backup"
    stranger.mkdir(parents=True)
    assert run(sink.sweep(key)).folders == 0
    assert stranger.exists()


def test_check_leaves_nothing_behind(objects: TableObjects) -> None:
    """A good place passes the start-up probe repeatedly and contains no object of it afterwards."""
    for _ in range(3):
        run(log_on(objects).check())
    assert run(objects.list("")) == ()


@pytest.mark.parametrize("mode", ["overwrite", "create"])
def test_check_refuses_a_store_that_ignores_create_if_absent(mode: Literal["overwrite", "create"]) -> None:
    """Some old servers answer a conditional create with success although the object exists, whether or not they replace it: nothing is ever
    written there."""

    class Ignorant(StoreObjects):
        async def create(self, path: str, data: bytes) -> bool:
            with contextlib.suppress(AlreadyExistsError):
                self._store.put(self._full(path), data, mode=mode)
            return True

    with pytest.raises(OutputUnsafe, match=r"^memory:///t does not honour create-if-absent"):
        run(log_on(Ignorant(MemoryStore(), "t", uri="memory:///t")).check())


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'"committed"', b'{"schema":1}', b'{"state":"closed"}', b"\xff\xfe"]
)
def test_a_slot_that_does_not_parse_is_not_empty(objects: TableObjects, key: SinkKey, content: bytes) -> None:
    """Each verb that reads it stops with one sentence; none takes the slot for open, closed or committed."""
    sink = log_on(objects)
    run(objects.create(layout.slot_path(key, 1), content))
    for verb in (
        sink.find(key),
        sink.probe(key, None),
        sink.fence(key, 2, fingerprint="f", by="settle"),
        sink.commit(key, committing(key, 1)),
        sink.commit(key, committing(key, 2)),
        sink.abort(key, committing(key, 1)),
    ):
        with pytest.raises(OutputCorrupt, match=r"^the slot \S+0000000001.json cannot be read \([^\n]*\); restore"):
            run(verb)
    assert run(objects.get(layout.slot_path(key, 1))) == content


def test_a_slot_of_a_later_version_asks_for_an_upgrade(objects: TableObjects, key: SinkKey) -> None:
    """A slot with a later schema is refused, whatever its other fields contain."""
    later = NEWEST_SCHEMA + 1
    body = committing(key, 1).dump() | {"schema": later, "state": "delegated"}
    run(objects.create(layout.slot_path(key, 1), json.dumps(body).encode()))
    with pytest.raises(
        OutputCorrupt, match=f"has schema {later} and this version reads up to {NEWEST_SCHEMA}; upgrade sparkonce"
    ):
        run(log_on(objects).fence(key, 2, fingerprint="f", by="settle"))


def test_a_slot_in_the_wrong_place_is_corrupt(objects: TableObjects, key: SinkKey) -> None:
    """A slot that was copied to another token's or another key's path decides nothing there."""
    run(objects.create(layout.slot_path(key, 1), layout.encode(committing(key, 7))))
    with pytest.raises(OutputCorrupt, match="it is the slot of a1b2-orders-g1, token 7"):
        run(log_on(objects).find(key))
    other = key.model_copy(update={"key_hash": "c3d4"})
    run(objects.create(layout.slot_path(other, 1), layout.encode(committing(key, 1))))
    with pytest.raises(OutputCorrupt, match="it is the slot of a1b2-orders-g1, token 1"):
        run(log_on(objects).find(other))


def test_unknown_fields_of_a_slot_survive_a_roll_forward(objects: TableObjects, key: SinkKey) -> None:
    """A slot that a newer version sealed is committed with its own bytes, by an older version as well."""
    body = committing(key, 1).dump() | {"partitions": ["2024-01"]}
    slot = Slot.model_validate(body)
    run(log_on(objects).commit(key, slot))
    stands = run(objects.get(layout.slot_path(key, 1)))
    assert stands is not None
    assert json.loads(stands) == body


def test_a_sink_knows_how_reruns_are_meant(sink: SlotLogSink, appending: SlotLogSink, key: SinkKey) -> None:
    """The slot records the output's `onRerun`, so readers need no job file."""
    assert sink.stage(table_of(1), key, 1, fingerprint="f").on_rerun is OnRerun.REPLACE
    assert appending.stage(table_of(1), key, 1, fingerprint="f").on_rerun is OnRerun.APPEND


def test_a_path_with_odd_characters_works(tmp_path: Path, key: SinkKey) -> None:
    """Folder names may contain spaces, percent signs, hashes, colons and letters beyond ASCII."""
    folder = tmp_path / "my lake %20 #1" / "a:b=c~ü" / "orders"
    sink = SlotLogSink(FolderObjects(folder), name="orders", stage=arrow_stage)
    run(sink.check())
    slot = sink.stage(table_of(1, 2, 3), key, 1, fingerprint="f")
    run(sink.commit(key, slot))
    assert run(sink.find(key)) == slot
    assert run(sink.probe(key, digest_of(slot))) is Evidence.PRESENT
    assert (folder / slot.files[0].path).exists()


@pytest.mark.parametrize("place", [{}, {"batch": 0}, {"batch": 12}, {"batch": 3, "native": True}])
@pytest.mark.parametrize("output", ["orders", "b-g2", "a-b1-s2"])
def test_the_text_of_a_sink_key_names_that_key_alone(output: str, place: dict[str, int]) -> None:
    """Outputs may look like the end of a sink key; the lineage and the run make up the text."""
    key = SinkKey(key_hash="0f" * 32, output=output, generation=7, **place)  # type: ignore[arg-type]  # batch and native
    assert SinkKey.parse(str(key)) == key
    assert f"{key.lineage}-{key.run}" == str(key)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "orders",
        "-orders-g1",
        "f-orders",
        "f-orders-g",
        "f-orders-g01",
        "f-orders-g1-c1",
        "f-orders-g1\n",
        f"f-orders-g{'9' * 5000}",
    ],
)
def test_what_is_no_sink_key_is_none(text: str) -> None:
    """Also texts that would spell a key otherwise than the key itself, and numbers too long to be read."""
    assert SinkKey.parse(text) is None
