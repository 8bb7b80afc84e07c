"""A reader's view is a function of the slots alone; snapshots save reads and change no answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore

import sparkonce
from harness import effort
from harness.arrow_stage import table_of
from harness.slots import committing
from sparkonce.blocking import run
from sparkonce.errors import OutputCorrupt
from sparkonce.model.spec import OnRerun
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.objects.protocol import Listed, StoreObjects, TableObjects
from sparkonce.sink.protocol import SinkKey, Slot, SlotState
from sparkonce.sink.slotlog import layout
from sparkonce.sink.slotlog.sink import SlotLogSink
from sparkonce.sink.slotlog.snapshot import (
    SNAPSHOTS_KEPT,
    Decided,
    Table,
    _write,
    committed_slots,
    decided,
    missing_files,
    write_snapshot,
)
from sparkonce.sink.slotlog.visibility import visible

# --- the pure rule -----------------------------------------------------------------------------------------------------


def slot_of(lineage: str, generation: int, *, state: SlotState = SlotState.COMMITTED, on_rerun: OnRerun) -> Slot:
    key = SinkKey(key_hash=lineage, output="orders", generation=generation)
    return committing(key, 1, on_rerun=on_rerun).model_copy(update={"state": state})


TABLES = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(1, 12), st.sampled_from(SlotState), st.sampled_from(OnRerun)),
    max_size=16,
    unique_by=lambda each: each[:2],
).map(lambda rows: [slot_of(lineage, g, state=state, on_rerun=on_rerun) for lineage, g, state, on_rerun in rows])


def by_the_book(slots: list[Slot]) -> set[str]:
    """The rule as the docs state it: a committed generation is visible unless a higher committed one of its lineage says Replace."""
    found = set()
    for slot in slots:
        lineage, _, generation = slot.sink_key.rpartition("-g")
        replaced = any(
            other.state is SlotState.COMMITTED
            and other.on_rerun is OnRerun.REPLACE
            and other.sink_key.rpartition("-g")[0] == lineage
            and int(other.sink_key.rpartition("-g")[2]) > int(generation)
            for other in slots
        )
        if slot.state is SlotState.COMMITTED and not replaced:
            found.add(slot.sink_key)
    return found


@given(TABLES)
def test_visible_is_the_rule(slots: list[Slot]) -> None:
    """For all mixtures of lineages, generations, states and rerun policies, `visible` agrees with the definition."""
    assert {slot.sink_key for slot in visible(slots)} == by_the_book(slots)


@given(TABLES, st.randoms())
def test_visible_does_not_depend_on_order(slots: list[Slot], random: object) -> None:
    """The same slots in another order give the same table, file for file."""
    shuffled = list(slots)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis types its Random as object
    assert visible(slots) == visible(shuffled)


def test_generations_are_numbers() -> None:
    """Generation 10 is later than 9, although it sorts before it as text."""
    nine, ten = (slot_of("a", generation, on_rerun=OnRerun.REPLACE) for generation in (9, 10))
    assert visible([ten, nine]) == [ten]


def test_outputs_and_keys_do_not_replace_each_other() -> None:
    """A rerun replaces only rows of its own key in its own output: similar names are other lineages."""
    keys = [
        SinkKey(key_hash="ab", output="orders", generation=1),
        SinkKey(key_hash="ab", output="orders-g1", generation=2),
        SinkKey(key_hash="abc", output="orders", generation=2),
    ]
    assert len(visible(committing(key, 1) for key in keys)) == 3


# --- snapshots ---------------------------------------------------------------------------------------------------------


class Counted:
    """Wraps `Objects` and counts the slots that are read."""

    def __init__(self, objects: TableObjects) -> None:
        self._objects, self.slots_read = objects, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._objects, name)

    async def get(self, path: str) -> bytes | None:
        self.slots_read += not path.startswith(layout.SNAPSHOTS)
        return await self._objects.get(path)


def memory() -> TableObjects:
    return StoreObjects(MemoryStore(), "t", uri="memory:///t")


def commit(
    objects: TableObjects, lineage: str, generation: int = 1, *, token: int = 1, on_rerun: OnRerun = OnRerun.REPLACE
) -> None:
    key = SinkKey(key_hash=lineage, output="orders", generation=generation)
    run(
        SlotLogSink(objects, name="orders").commit(
            key, committing(key, token, nonce=f"{lineage}{generation}", on_rerun=on_rerun)
        )
    )


def seen(objects: TableObjects) -> list[Slot]:
    return visible(run(committed_slots(objects)))


def without_snapshots(objects: TableObjects) -> list[Slot]:
    """The table computed from the slots alone, which are read one by one."""
    return visible(run(committed_slots(cast("TableObjects", Blind(objects)))))


class Blind:
    """`Objects` that list no snapshots."""

    def __init__(self, objects: TableObjects) -> None:
        self._objects = objects

    def __getattr__(self, name: str) -> object:
        return getattr(self._objects, name)

    async def list(self, prefix: str) -> object:
        return tuple(each for each in await self._objects.list(prefix) if not each.path.startswith(layout.SNAPSHOTS))


def test_a_snapshot_saves_the_reads(objects: TableObjects) -> None:
    """A reader that finds a snapshot reads none of the slots in it, committed or closed, and sees the same table."""
    for number in range(10):
        commit(objects, f"k{number}", token=2)
    before = seen(objects)
    assert run(write_snapshot(objects, after=19))
    commit(objects, "late")
    counted = Counted(objects)
    after = seen(cast("TableObjects", counted))
    assert counted.slots_read == 1
    assert [slot for slot in after if not slot.sink_key.startswith("late")] == before
    assert len(before) == 10


def test_a_snapshot_is_written_when_it_is_worth_it(objects: TableObjects) -> None:
    """A snapshot is written once more slots than the limit are unlisted, and again after as many new ones."""
    for number in range(3):
        commit(objects, f"k{number}")
    assert not run(write_snapshot(objects, after=3))
    assert run(write_snapshot(objects, after=2))
    assert not run(write_snapshot(objects, after=0))
    assert [layout.numbered(each.path) for each in run(objects.list(layout.SNAPSHOTS))] == [1]


def test_sweep_writes_snapshots(objects: TableObjects, key: SinkKey) -> None:
    """The sweep of a key in a table with more than 64 slots outside of a snapshot writes one for readers."""
    for number in range(65):
        commit(objects, f"k{number}")
    run(SlotLogSink(objects, name="orders").sweep(key))
    assert len(run(objects.list(layout.SNAPSHOTS))) == 1
    assert run(decided(objects)).unlisted == 0


def test_old_snapshots_go(objects: TableObjects) -> None:
    """Only the newest snapshots are kept."""
    for number in range(8):
        commit(objects, f"k{number}")
        assert run(write_snapshot(objects, after=0))
    numbers = [layout.numbered(each.path) for each in run(objects.list(layout.SNAPSHOTS))]
    assert numbers == list(range(8 - SNAPSHOTS_KEPT + 1, 9))
    assert seen(objects) == without_snapshots(objects)


@pytest.mark.parametrize("later", [0, 1, 6])
def test_a_snapshot_of_a_process_that_was_frozen_is_harmless(objects: TableObjects, later: int) -> None:
    """A process reads the slots, freezes while others write `later` snapshots, and then writes its own: no reader's view changes."""
    commit(objects, "a")
    old = run(decided(objects))
    commit(objects, "a", 2)
    for number in range(later):
        commit(objects, f"k{number}")
        run(write_snapshot(objects, after=0))
    before = without_snapshots(objects)
    run(_write(objects, old))
    assert seen(objects) == before == without_snapshots(objects)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"schema":2,"committed":[],"closed":[]}', b'{"schema":1,"committed":[{}]}']
)
def test_a_snapshot_that_cannot_be_read_is_passed_over(objects: TableObjects, content: bytes) -> None:
    """A snapshot only repeats what the slots say; an unreadable one is ignored, and the next one is written beside it."""
    commit(objects, "a")
    run(write_snapshot(objects, after=0))
    commit(objects, "b")
    run(objects.create(layout.snapshot_path(2), content))
    assert {slot.sink_key for slot in seen(objects)} == {"a-orders-g1", "b-orders-g1"}
    commit(objects, "c")
    assert run(write_snapshot(objects, after=0))
    assert run(objects.get(layout.snapshot_path(3))) is not None
    assert len(seen(objects)) == 3


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("commit"), st.sampled_from("ab"), st.integers(1, 4), st.integers(1, 3), st.sampled_from(OnRerun)
        ),
        st.tuples(st.just("fence"), st.sampled_from("ab"), st.integers(1, 4), st.integers(2, 4)),
        st.tuples(st.just("look")),
        st.tuples(st.just("write"), st.integers(0, 30)),
    ),
    min_size=4,
    max_size=30,
)


@given(STEPS)
@settings(max_examples=effort.size("hypothesis examples") * 2)
def test_snapshots_never_change_the_table(steps: list[tuple[object, ...]]) -> None:
    """After any sequence of commits, fences and snapshot writers that read the slots at any earlier moment, a reader's view is that of the
    slots."""
    objects = memory()
    looks: list[Decided] = []
    for step in steps:
        match step:
            case ("commit", str(lineage), int(generation), int(token), OnRerun() as on_rerun):
                commit(objects, lineage, generation, token=token, on_rerun=on_rerun)
            case ("fence", str(lineage), int(generation), int(token)):
                key = SinkKey(key_hash=lineage, output="orders", generation=generation)
                run(SlotLogSink(objects, name="orders").fence(key, token, fingerprint="f", by="settle"))
            case ("look",):
                looks.append(run(decided(objects)))
            case ("write", int(which)) if looks:
                run(_write(objects, looks[which % len(looks)]))
        assert seen(objects) == without_snapshots(objects)


# --- the table ---------------------------------------------------------------------------------------------------------


def test_files_are_those_of_the_slots(sink: SlotLogSink, appending: SlotLogSink, key: SinkKey, table: Path) -> None:
    """Staged, fenced and replaced files lie in the same folder and do not belong to the table."""
    second, third = (key.model_copy(update={"generation": g}) for g in (2, 3))
    first = sink.stage(table_of(1), key, 1, fingerprint="f")
    run(sink.commit(key, first))
    sink.stage(table_of(9), second, 1, fingerprint="f")
    assert Table(table).files() == [str(table / file.path) for file in first.files]
    replacing = sink.stage(table_of(2), second, 2, fingerprint="f")
    run(sink.commit(second, replacing))
    assert Table(table).slots() == [replacing]
    added = appending.stage(table_of(3), third, 1, fingerprint="f")
    run(appending.commit(third, added))
    assert Table(table).slots() == [replacing, added]
    assert Table(table).files() == [str(table / file.path) for slot in (replacing, added) for file in slot.files]


def test_a_table_that_does_not_exist_is_empty(table: Path) -> None:
    """Reading it does not create it."""
    assert Table(table).slots() == []
    assert not table.exists()


def test_a_corrupt_slot_stops_readers(objects: TableObjects, key: SinkKey) -> None:
    """The read fails, since the slot's rows may be committed."""
    commit(objects, "a")
    run(objects.create(layout.slot_path(key, 1), b"{"))
    with pytest.raises(OutputCorrupt, match=r"a1b2-orders-g1/0000000001.json cannot be read"):
        seen(objects)


def test_another_keys_corrupt_slot_does_not_stop_a_sweep(objects: TableObjects, key: SinkKey) -> None:
    """The sweep only skips writing the snapshot, which is a cache."""
    run(objects.create(layout.slot_path("b-orders-g1", 1), b"{"))
    run(objects.create(f"{layout.staging_folder(key, 1, 'aa')}/part-0.parquet", b"data"))
    sink = SlotLogSink(objects, name="orders")
    run(sink.fence(key, 2, fingerprint="f", by="settle"))
    assert run(sink.sweep(key)).bytes == 4


def test_the_probe_object_is_no_slot(objects: TableObjects) -> None:
    """Readers ignore the object of another process's start-up probe."""
    run(objects.create(f"{layout.SLOTS}/_probe-1234.json", b"1"))
    assert run(committed_slots(objects)) == []


def test_missing_files(sink: SlotLogSink, key: SinkKey, table: Path) -> None:
    """Each file that is missing or has another size is named, and no other."""
    slot = sink.stage(table_of(1, 2, 3), key, 1, fingerprint="f")
    objects = FolderObjects(table)
    assert run(missing_files(objects, [slot])) == []
    (table / slot.files[0].path).unlink()
    assert run(missing_files(objects, [slot])) == [slot.files[0].path]
    (table / slot.files[1].path).write_bytes(b"")
    assert run(missing_files(objects, [slot])) == [file.path for file in slot.files]


def test_the_files_of_many_writes_are_looked_for_by_one_listing(
    sink: SlotLogSink, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object store has a request for each listing: it is not one for each write."""
    for number in range(20):
        key = SinkKey(key_hash=f"a{number}", output="orders", generation=1)
        run(sink.commit(key, sink.stage(table_of(number), key, 1, fingerprint="f")))
    listed: list[str] = []
    original = FolderObjects.list

    async def listing(self: FolderObjects, prefix: str) -> tuple[Listed, ...]:
        listed.append(prefix)
        return await original(self, prefix)

    monkeypatch.setattr(FolderObjects, "list", listing)
    assert len(sparkonce.files(table)) == 40
    assert listed == [layout.SLOTS, layout.DATA]


def test_a_snapshot_holds_whole_slots_and_names(objects: TableObjects, key: SinkKey) -> None:
    """The snapshot's JSON has the schema number, the committed slots unchanged, and the paths of closed ones."""
    slot = committing(key, 2)
    run(SlotLogSink(objects, name="orders").commit(key, slot))
    run(write_snapshot(objects, after=0))
    data = run(objects.get("_idem/_snapshot/0000000001.json"))
    assert data is not None
    assert json.loads(data) == {
        "schema": 1,
        "committed": [slot.dump()],
        "closed": ["_idem/a1b2-orders-g1/0000000001.json"],
    }
