"""Overwrites of slot logs: what readers see after any interleaving, what each step leaves behind, and what releases without them do."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from harness.arrow_stage import arrow_stage, table_of
from harness.lakes import SlotLake, days
from harness.slots import Unanswered, committing
from harness.turns import DAYS, Schedule, outcomes, slot_of
from sparkonce.audit.tables import of_table, rows_seen, to_read
from sparkonce.blocking import run
from sparkonce.errors import InvalidInput, OutputCorrupt, OutputUnavailable
from sparkonce.model.spec import OnRerun, WriteMode
from sparkonce.sink import stream
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.objects.protocol import Listed, TableObjects
from sparkonce.sink.protocol import (
    OVERWRITING_SCHEMA,
    Committed,
    Evidence,
    Replacement,
    SinkKey,
    Slot,
    SlotState,
    Stuck,
    WriteOptions,
)
from sparkonce.sink.slotlog import layout
from sparkonce.sink.slotlog.reader import files
from sparkonce.sink.slotlog.sink import SlotLogSink, digest_of
from sparkonce.sink.slotlog.snapshot import Table, decided, newest_snapshot, write_snapshot
from sparkonce.sink.slotlog.visibility import of_partitions, replacement, visible

OVERWRITE, PARTITIONS = WriteMode.OVERWRITE, WriteMode.OVERWRITE_PARTITIONS
A, B, C = (SinkKey(key_hash=name * 4, output="orders", generation=1) for name in "abc")


def again(key: SinkKey) -> SinkKey:
    return key.model_copy(update={"generation": key.generation + 1})


def opened(objects: TableObjects, mode: WriteMode | None = None, on_rerun: OnRerun = OnRerun.REPLACE) -> SlotLogSink:
    return SlotLogSink(objects, name="orders", mode=mode, on_rerun=on_rerun, stage=arrow_stage)


@pytest.fixture
def objects(table: Path) -> FolderObjects:
    return FolderObjects(table, durable=False)


def written(objects: TableObjects, key: SinkKey, *numbers: int, mode: WriteMode | None = None) -> Slot:
    sink = opened(objects, mode)
    done = run(sink.commit(key, sink.stage(table_of(*numbers), key, 1, fingerprint="f")))
    assert isinstance(done, Committed)
    return done.slot


def rows(table: Path) -> list[int]:
    """As pyarrow and DuckDB read the files that `sparkonce.files` names."""
    paths = [path.removeprefix("file://") for path in files(table)]
    found = sorted(n for path in paths for n in cast("list[int]", parquet.read_table(path)["n"].to_pylist()))
    assert found == sorted(n for (n,) in duckdb.read_parquet(paths).fetchall())
    return found


# --- what readers see: pure ------------------------------------------------------------------------------------------------


MODES = (None, OVERWRITE, PARTITIONS)
STEPS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 9), st.sampled_from([DAYS, DAYS[:1], DAYS[1:], ()])), max_size=12
)


@settings(max_examples=100)
@given(st.permutations("pqrstu"), STEPS)
def test_readers_see_a_table_that_writers_taking_turns_could_have_left(
    names: list[str], steps: list[tuple[int, int, Sequence[str]]]
) -> None:
    """Appends, overwrites of tables and partitions, and reruns of all, with any interleaving of looks and creates: after each step the
    table is that of some order of the finished writers which agrees with real time."""
    schedule, fresh = Schedule(), iter(names)
    for what, number, on in steps:
        if what >= 4 and schedule.looking:
            schedule.create(number)
        elif what == 3 and (rerun := rerunnable(schedule, number)) is not None:
            schedule.begin(rerun, MODES[number % 3], on)
        elif (name := next(fresh, None)) is not None:
            schedule.begin(SinkKey(key_hash=name, output="orders", generation=1), MODES[what % 3], on)
        assert schedule.seen() in outcomes(schedule.done)


def rerunnable(schedule: Schedule, number: int) -> SinkKey | None:
    """The next generation of a key that is not running."""
    running = {writer.key.lineage for writer in schedule.looking}
    latest = {writer.key.lineage: writer.key for writer in schedule.done if writer.key.lineage not in running}
    return again(list(latest.values())[number % len(latest)]) if latest and len(schedule.done) < 6 else None


def overwriting(key: SinkKey, order: int, *replaced: SinkKey) -> Slot:
    paths = tuple(layout.slot_path(each, 1) for each in replaced)
    change = {"replaces": Replacement(order=order, slots=paths), "schema_": OVERWRITING_SCHEMA}
    return committing(key, 1).model_copy(update=change)


def names(slots: list[Slot]) -> list[str]:
    return [slot.sink_key for slot in visible(slots)]


def test_of_two_overwrites_that_did_not_see_one_another_one_shows() -> None:
    """Never both, whichever is created first: the sink key decides between equal orders."""
    one, two = overwriting(A, 0), overwriting(B, 0)
    assert names([one, two]) == names([two, one]) == [str(B)]


def test_an_overwrite_that_looked_earlier_is_before_one_that_saw_more() -> None:
    """Its key sorts last, and it is created last: the order decides."""
    assert names([committing(A, 1), overwriting(C, 0), overwriting(B, 1, A)]) == [str(B)]


def test_an_overwrite_of_partitions_that_looked_earlier_is_before_one_that_saw_more() -> None:
    """Its key sorts last, it is created last, and neither saw an overwrite. If the order counted only those, C would replace B's Tuesday,
    and A's Monday, which was there before B, would have been added after C."""
    schedule = Schedule()
    schedule.begin(C, PARTITIONS)
    schedule.begin(A)
    schedule.begin(B, PARTITIONS, ("tue",))
    schedule.create(1)
    schedule.create(0)
    assert schedule.seen() == {(str(C), "mon"), (str(A), "mon"), (str(B), "tue")}


def test_rows_that_an_overwrite_hid_do_not_come_back(objects: FolderObjects, table: Path) -> None:
    """Not when a rerun replaces the overwrite, not when another one follows, and not by a rerun of the key that wrote them: that one adds
    its new rows."""
    written(objects, A, 1)
    written(objects, B, 2, mode=OVERWRITE)
    written(objects, again(B), 3)
    assert rows(table) == [3]
    written(objects, again(A), 4)
    assert rows(table) == [3, 4]
    written(objects, C, 5, mode=OVERWRITE)
    assert rows(table) == [5]


def test_batches_of_a_stream_that_an_overwrite_saw_are_hidden(objects: FolderObjects, table: Path) -> None:
    """Those that follow are not. A rerun of the stream replaces nothing before its end, and then shows all its rows."""
    sink = opened(objects)
    first = stream.opening_of(A, 1, query_id="q", first_batch=0, fingerprint="f", on_rerun=OnRerun.REPLACE)
    assert run(sink.commit(A, first)) == Committed(first)
    chain = batch(sink, A, stream.Chain(first, first), 1)
    written(objects, B, 2, mode=OVERWRITE)
    chain = batch(sink, A, chain, 3)
    assert rows(table) == [2, 3]
    run(stream.finish(sink, A, chain, 1, by="test"))
    rerun = again(A)
    second = stream.opening_of(rerun, 1, query_id="r", first_batch=0, fingerprint="f", on_rerun=OnRerun.REPLACE)
    assert run(sink.commit(rerun, second)) == Committed(second)
    chain = batch(sink, rerun, stream.Chain(second, second), 4)
    written(objects, C, 5, mode=OVERWRITE)
    assert rows(table) == [5]
    run(stream.finish(sink, rerun, chain, 1, by="test"))
    assert rows(table) == [4, 5]


def batch(sink: SlotLogSink, key: SinkKey, chain: stream.Chain, number: int) -> stream.Chain:
    place = stream.place(key, chain.next)
    slot = stream.batch_of(chain, chain.next, sink.stage(table_of(number), place, 1, fingerprint="f"), plan="p")
    done = run(stream.commit(sink, key, chain, slot))
    assert done == Committed(slot)
    return chain.followed_by(slot)


# --- the look --------------------------------------------------------------------------------------------------------------


def test_a_slot_says_what_it_replaces(objects: FolderObjects) -> None:
    """The slots that were visible, and an order above that of each overwrite and at least the number of slots."""
    first = written(objects, A, 1)
    second = written(objects, B, 2, mode=OVERWRITE)
    third = written(objects, C, 3, mode=OVERWRITE)
    assert (first.replaces, first.schema_) == (None, 1)
    assert second.replaces == Replacement(order=1, slots=(layout.slot_path(A, 1),))
    assert third.replaces == Replacement(order=2, slots=(layout.slot_path(B, 1),))
    assert replacement([overwriting(A, 9)], {})[0] == 10


@pytest.mark.parametrize("lands", [True, False])
def test_a_lost_reply_is_answered_by_the_bytes_that_were_sent(
    objects: FolderObjects, table: Path, monkeypatch: pytest.MonkeyPatch, lands: bool
) -> None:
    """The create is repeated as it was, without another look: what came in between stays, whether the first create had landed or not."""
    written(objects, A, 1)
    sink = opened(objects, OVERWRITE)
    slot = sink.stage(table_of(2), B, 1, fingerprint="f")
    sent: list[bytes] = []

    class Losing(Unanswered):
        async def create(self, path: str, data: bytes) -> bool:
            if path != layout.slot_path(B, 1):
                return await objects.create(path, data)
            sent.append(data)
            if len(sent) == 1:
                try:
                    return await super().create(path, data)
                finally:
                    written(objects, C, 3)
            return await super().create(path, data)

    monkeypatch.setattr(sink, "_objects", Losing(objects, times=1, lands=lands))
    done = run(sink.commit(B, slot))
    assert isinstance(done, Committed)
    assert set(sent) == {layout.encode(done.slot)}
    assert rows(table) == [2, 3]


def test_a_later_attempt_looks_anew(objects: FolderObjects, table: Path, failpoint: Callable[[str], None]) -> None:
    """The first attempt had looked and never created its slot; what came since is replaced by the second one."""
    sink = opened(objects, OVERWRITE)
    slot = sink.stage(table_of(1), A, 1, fingerprint="f")
    failpoint("sink.slots.looked=1*raise->off")
    with pytest.raises(Exception, match=r"sink\.slots\.looked"):
        run(sink.commit(A, slot))
    written(objects, B, 2)
    assert run(sink.fence(A, 2, fingerprint="f", by="attempt 2")) is None
    assert isinstance(run(sink.commit(A, sink.stage(table_of(3), A, 2, fingerprint="f"))), Committed)
    assert rows(table) == [3]


class Lagging:
    """A place whose first listing of slots lacks what was created after it began: the slots in `late`."""

    def __init__(self, objects: TableObjects, late: set[str]) -> None:
        self._objects, self._late, self.listings = objects, late, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._objects, name)

    async def list(self, prefix: str) -> tuple[Listed, ...]:
        self.listings += prefix == layout.SLOTS
        found = await self._objects.list(prefix)
        return tuple(each for each in found if self.listings > 1 or each.path not in self._late)


def test_a_reader_knows_all_that_an_overwrite_saw(objects: FolderObjects) -> None:
    """A listing that shows B's overwrite, but not that of A, which B saw and which alone names C's rows: the table is listed again."""
    written(objects, C, 1)
    written(objects, A, 2, mode=OVERWRITE)
    written(objects, B, 3, mode=OVERWRITE)
    place = Lagging(objects, {layout.slot_path(A, 1)})
    seen = run(decided(place)).visible  # type: ignore[arg-type]  # the rest of the protocol is passed on
    assert [slot.sink_key for slot in seen] == [str(B)]
    place = Lagging(objects, {layout.slot_path(A, 1)})
    live = run(SlotLogSink(place, name="orders").inventory()).live  # type: ignore[arg-type]
    assert {path.split("/")[1] for path in live} == {str(B)}


def test_a_table_that_is_overwritten_all_the_time_cannot_be_read_for_now(objects: FolderObjects) -> None:
    """Each further listing shows another overwrite: one sentence, after a bounded number of them."""
    written(objects, A, 1, mode=OVERWRITE)

    class Busy(Lagging):
        async def list(self, prefix: str) -> tuple[Listed, ...]:
            self.listings += 1
            key = SinkKey(key_hash=f"k{self.listings}", output="orders", generation=1)
            await objects.create(layout.slot_path(key, 1), layout.encode(overwriting(key, self.listings)))
            return await objects.list(prefix)

    with pytest.raises(OutputUnavailable, match=r"was overwritten 20 times while it was listed; try again"):
        run(decided(Busy(objects, set())))  # type: ignore[arg-type]


# --- long lists ------------------------------------------------------------------------------------------------------------


def many(objects: FolderObjects) -> Slot:
    for number in range(40):
        key = SinkKey(key_hash=f"k{number}", output="orders", generation=1)
        written(objects, key, number)
    return written(objects, A, 1, mode=OVERWRITE)


def test_a_long_list_is_beside_the_files(objects: FolderObjects, table: Path) -> None:
    """The slot names it by path and digest; readers, audits and snapshots follow it, and a sweep leaves it."""
    slot = many(objects)
    assert slot.replaces is not None
    assert (slot.replaces.slots, slot.replaces.listing and slot.replaces.listing.slots) == ((), 40)
    assert len(layout.encode(slot)) < 2000
    assert rows(table) == [1]
    assert run(opened(objects).sweep(A)).folders == 0
    assert run(write_snapshot(objects, after=0))
    assert rows(table) == [1]
    found = run(opened(objects).inventory())
    assert [each for each in found.effects if each.visible] == [
        each for each in found.effects if each.slot.sink_key == str(A)
    ]
    assert of_table(found, now=0.0) == []


@pytest.mark.parametrize("damage", ["gone", "changed"])
def test_a_list_that_is_not_the_committed_one_is_an_error(objects: FolderObjects, table: Path, damage: str) -> None:
    """Readers would show rows that the table does not have; an audit names the list."""
    slot = many(objects)
    assert slot.replaces is not None
    assert slot.replaces.listing is not None
    path = table / slot.replaces.listing.path
    text = path.read_bytes()
    path.unlink()
    if damage == "changed":
        path.write_bytes(text.replace(b"k39", b"k38"))
    with pytest.raises(OutputCorrupt, match=r"the list of replaced slots .*restore it from a backup"):
        files(table)
    assert any("the list of replaced slots" in said for said in run(opened(objects).inventory()).unreadable)
    path.write_bytes(text)
    assert rows(table) == [1]


# --- snapshots, and releases without overwrites ------------------------------------------------------------------------------


def test_a_snapshot_with_overwrites_is_one_that_earlier_releases_ignore(objects: FolderObjects, table: Path) -> None:
    """They keep unknown fields and would show the rows of every slot in it. A table without overwrites has the snapshot that it had."""
    written(objects, A, 1)
    assert run(write_snapshot(objects, after=0))
    assert json.loads((table / layout.snapshot_path(1)).read_bytes())["schema"] == 1
    written(objects, B, 2, mode=OVERWRITE)
    assert run(write_snapshot(objects, after=0))
    assert json.loads((table / layout.snapshot_path(2)).read_bytes())["schema"] == 2
    committed, _ = run(newest_snapshot(objects, [1, 2]))
    assert committed[layout.slot_path(B, 1)].replaces == Replacement(order=1, slots=(layout.slot_path(A, 1),))
    assert rows(table) == [2]
    written(objects, C, 3)
    assert rows(table) == [2, 3]


def test_an_earlier_release_refuses_the_table(objects: FolderObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it does first with the slots: it reads those of the schemas that it knows, and none that replaces others."""
    written(objects, A, 1)
    written(objects, B, 2, mode=OVERWRITE)
    monkeypatch.setattr(layout, "NEWEST_SCHEMA", OVERWRITING_SCHEMA - 1)
    with pytest.raises(OutputCorrupt, match=r"has schema 8 and this version reads up to 7; upgrade sparkonce"):
        Table(Path(objects.where("").removeprefix("file://"))).files()


# --- evidence --------------------------------------------------------------------------------------------------------------


def test_rows_that_an_overwrite_hid_are_changed_by_it(objects: FolderObjects) -> None:
    """Of an append and of an overwrite, whether their files are still there or not: the key that replaced them is named, and a rerun works.
    The first that did is named, not the newest overwrite."""
    one, two = written(objects, A, 1), written(objects, B, 2, mode=OVERWRITE)
    three = written(objects, C, 3, mode=OVERWRITE)
    run(objects.delete(one.files[0].path))
    for key, slot, by in ((A, one, B), (B, two, C)):
        found = run(opened(objects).probe(key, digest_of(slot)))
        assert (found.verdict, [each.key for each in found.changes]) == (Evidence.CHANGED, [str(by)])
        assert found.why == f"rows of it were replaced by _idem/{by}/0000000001.json (Overwrite, key {by.key_hash})"
        assert found.remedy == ""
    assert run(opened(objects).probe(C, digest_of(three))) is Evidence.PRESENT


def test_a_hidden_result_without_rows_is_present(objects: FolderObjects) -> None:
    """There was nothing to replace; a slot that is gone is gone all the same."""
    slot = written(objects, A)
    written(objects, B, 2, mode=OVERWRITE)
    assert run(opened(objects).probe(A, digest_of(slot))) is Evidence.PRESENT
    run(objects.delete(layout.slot_path(A, 1)))
    assert run(opened(objects).probe(A, None)) is Evidence.GONE


def test_a_probe_reads_no_other_slots_where_nothing_is_overwritten(objects: FolderObjects) -> None:
    """It is on the path of every replay. The first overwrite leaves a note for it, before its slot."""
    slot = written(objects, A, 1)
    for number in range(5):
        written(objects, SinkKey(key_hash=f"k{number}", output="orders", generation=1), number)
    read: list[str] = []

    class Counting(Lagging):
        async def get(self, path: str) -> bytes | None:
            read.append(path)
            return await objects.get(path)

    assert run(opened(Counting(objects, set())).probe(A, digest_of(slot))) is Evidence.PRESENT  # type: ignore[arg-type]
    assert read == [layout.slot_path(A, 1)]
    assert not run(objects.list(layout.OVERWRITTEN))


def test_files_of_hidden_rows_are_kept(objects: FolderObjects, table: Path) -> None:
    """They belong to committed slots: no sweep deletes them, and no audit counts them as uncommitted."""
    slot = written(objects, A, 1)
    written(objects, B, 2, mode=OVERWRITE)
    for key in (A, B):
        assert run(opened(objects).sweep(key)).folders == 0
    assert all((table / file.path).exists() for file in slot.files)
    found = run(opened(objects).inventory())
    assert (found.uncommitted, of_table(found, now=0.0)) == ({}, [])


# --- modes of a write --------------------------------------------------------------------------------------------------------


def test_a_write_may_choose_its_mode(objects: FolderObjects, table: Path) -> None:
    """Where the job file leaves it open. An append is what it was in releases before, byte for byte."""
    written(objects, A, 1)
    sink = opened(objects)
    slot = sink.stage(table_of(2), B, 1, fingerprint="f", options=WriteOptions(mode=OVERWRITE))
    assert isinstance(run(sink.commit(B, slot)), Committed)
    assert rows(table) == [2]
    plain = written(objects, C, 3, mode=WriteMode.APPEND)
    assert "mode" not in json.loads(layout.encode(plain))
    assert plain.state is SlotState.COMMITTED
    assert rows(table) == [2, 3]


# --- partitions --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def lake(tmp_path: Path) -> SlotLake:
    """A table that is partitioned by day."""
    found = SlotLake(tmp_path)
    found.partition_by = ("day",)
    return found


def test_rows_in_other_folders_are_refused_before_anything_is_staged(lake: SlotLake) -> None:
    """The sentence says where they are and what to do; what it says works: the table is replaced once, and then its partitions are."""
    lake.partition_by = ()
    first = lake.write(A, None, days(mon=1))
    lake.partition_by = ("day",)
    with pytest.raises(
        InvalidInput, match=r"the rows of _idem/aaaa-orders-g1/0{9}1\.json lie in folders by no column, and the new"
    ):
        lake.stage(lake.sink(PARTITIONS), B, days(mon=2))
    assert list(lake.folder.glob("_data/*/*")) == [lake.folder / first.files[0].path.rpartition("/")[0]]
    lake.write(B, OVERWRITE, days(mon=2, tue=3))
    lake.write(C, PARTITIONS, days(tue=4))
    assert lake.rows() == {"mon": [2], "tue": [4]}


def test_rows_in_other_folders_that_come_later_stop_the_commit(lake: SlotLake) -> None:
    """Between staging and commit: nothing is replaced and nothing is added."""
    sink = lake.sink(PARTITIONS)
    slot = lake.stage(sink, A, days(mon=1))
    lake.partition_by = ()
    lake.write(B, None, days(mon=2))
    decided = run(sink.commit(A, slot))
    assert isinstance(decided, Stuck)
    assert "lie in folders by no column" in decided.why
    assert lake.rows() == {"mon": [2]}


def test_of_two_overwrites_with_other_folders_that_did_not_see_one_another_the_first_shows() -> None:
    """Which of their rows the second replaces cannot be told: showing both would show rows twice. One that has seen the first, whose rows
    others have replaced since, shows."""
    first = slot_of(A, OVERWRITE, DAYS, column="week").model_copy(update={"replaces": Replacement(order=0)})
    second = slot_of(B, PARTITIONS, DAYS).model_copy(update={"replaces": Replacement(order=0)})
    assert names([first, second]) == names([second, first]) == [str(A)]
    saw = Replacement(order=1, slots=(layout.slot_path(A, 1),))
    assert names([first, second.model_copy(update={"replaces": saw})]) == [str(A), str(B)]
    rerun = slot_of(again(A), None, DAYS)
    assert layout.slot_path(A, 1) in of_partitions([first, rerun], [(rerun, rerun.files)], ("day",), second.files)


def test_a_key_with_some_partitions_replaced_is_changed(lake: SlotLake) -> None:
    """The probe names the overwrite of partitions; one of other partitions is not named. An audit says that jobs of sparkonce replaced
    rows, counts what readers see, and finds a file missing only where it is seen."""
    slot = lake.write(A, None, days(mon=1, tue=2, wed=3))
    lake.write(B, PARTITIONS, days(tue=4))
    lake.write(C, PARTITIONS, days(thu=5))
    found = run(lake.sink().probe(A, digest_of(slot)))
    assert (found.verdict, [each.key for each in found.changes]) == (Evidence.CHANGED, [str(B)])
    (lake.folder / next(file.path for file in slot.files if "day=tue" in file.path)).unlink()
    assert lake.rows() == {"mon": [1], "tue": [4], "wed": [3], "thu": [5]}
    assert len(files(lake.folder)) == 4
    table = run(lake.sink().inventory())
    assert [(str(each.kind), each.subject) for each in of_table(table, now=0.0)] == [("rewritten", str(A))]
    assert rows_seen(table, (), {}) == 4
    assert len(to_read(table)) == 4
    lake.write(SinkKey(key_hash="dddd", output="orders", generation=1), PARTITIONS, days(mon=6, wed=7))
    assert not {effect.slot.sink_key: effect.visible for effect in run(lake.sink().inventory()).effects}[str(A)]
    assert lake.rows() == {"mon": [6], "tue": [4], "wed": [7], "thu": [5]}


def test_a_snapshot_that_contradicts_partitions_is_a_defect(lake: SlotLake) -> None:
    """It shows a partition that a slot says was replaced, or hides one that was not."""
    lake.write(A, None, days(mon=1, tue=2))
    lake.write(B, PARTITIONS, days(tue=3))
    assert run(write_snapshot(lake.objects, after=0))
    path = lake.folder / layout.snapshot_path(1)
    body = json.loads(path.read_bytes())
    for slot in body["committed"]:
        if slot["sinkKey"] == str(B):
            slot["files"][0]["path"] = slot["files"][0]["path"].replace("day=tue", "day=mon")
    path.write_text(json.dumps(body))
    kinds = {str(each.kind) for each in of_table(run(lake.sink().inventory()), now=0.0)}
    assert "hidden rows" in kinds


def test_a_long_overwrite_of_partitions(lake: SlotLake) -> None:
    """Its files and the slots that it replaces are in lists; both decide what readers see."""
    for number in range(40):
        lake.write(SinkKey(key_hash=f"k{number}", output="orders", generation=1), None, days(**{f"d{number}": number}))
    lake.write(A, None, days(extra=1))
    slot = lake.write(B, PARTITIONS, days(**{f"d{number}": -number for number in range(40)}))
    assert slot.replaces is not None
    assert slot.replaces.listing is not None
    assert slot.listing is not None
    for _ in range(2):
        assert lake.rows() == {"extra": [1]} | {f"d{number}": [-number] for number in range(40)}
        run(write_snapshot(lake.objects, after=0))


def test_a_commit_that_is_there_stays_one_whatever_the_table_is_now(tmp_path: Path) -> None:
    """A reply was lost, and another key has added rows without partitions since: the same commit is answered as it was."""
    lake = SlotLake(tmp_path)
    lake.partition_by = ("day",)
    sink = lake.sink(PARTITIONS)
    slot = lake.stage(sink, A, days(mon=1))
    assert isinstance(run(sink.commit(A, slot)), Committed)
    lake.partition_by = ()
    lake.write(B, None, days(tue=2))
    assert isinstance(run(sink.commit(A, slot)), Committed)
