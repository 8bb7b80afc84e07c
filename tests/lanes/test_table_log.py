"""The log of a lane in a table: who owns it, what each append proves, and what a reader sees of it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from obstore.store import MemoryStore

from harness.lane_log import rows_in
from sparkonce.blocking import run
from sparkonce.errors import Certainty, InvalidInput, LaneRetired, OutputCorrupt, OutputUnavailable
from sparkonce.lanes.protocol import AppendKind, AppendOutcome, LaneLog, LanePlace, RowBatch
from sparkonce.lanes.rows import parquet_of, spark_schema
from sparkonce.lanes.table_log import TableLog, lanes_of
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.objects.protocol import StoreObjects, TableObjects
from sparkonce.sink.slotlog import layout


@pytest.fixture(params=["memory", "folder"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> TableObjects:
    if request.param == "memory":
        return StoreObjects(MemoryStore(), "t", uri="memory:///t")
    return FolderObjects(tmp_path / "t", durable=False)


def batch(*numbers: int) -> RowBatch:
    """A batch with these values of the column `n`."""
    table = pa.table({"n": pa.array(numbers, pa.int64())})
    return RowBatch(parquet_of(table), len(numbers), spark_schema(table.schema))


def append(log: LaneLog, first: int, *batches: RowBatch, position: Any = None) -> AppendOutcome:
    """Takes the next place, uploads and commits it."""
    place = log.next_place(batches, first=first, position=position)
    return written(log, place)


def written(log: LaneLog, place: LanePlace) -> AppendOutcome:
    for number in range(len(place.batches)):
        log.upload(place, number)
    return log.commit(place)


class Silent:
    """A table that answers nothing while `silent`: creates take effect if `lands`."""

    def __init__(self, objects: TableObjects, *, lands: bool) -> None:
        self.objects, self.lands, self.silent = objects, lands, False

    def __getattr__(self, name: str) -> object:
        return getattr(self.objects, name)

    async def create(self, path: str, data: bytes) -> bool:
        if not self.silent:
            return await self.objects.create(path, data)
        if self.lands:
            await self.objects.create(path, data)
        raise OutputUnavailable(f"cannot create {path}: no answer")

    async def get(self, path: str) -> bytes | None:
        if self.silent:
            raise OutputUnavailable(f"cannot read {path}: no answer")
        return await self.objects.get(path)


def without_answer(objects: TableObjects, name: str, *, lands: bool) -> tuple[TableLog, LanePlace]:
    """An acquired log with a place, uploaded, whose commit had no answer; the table answers again."""
    faulty = Silent(objects, lands=lands)
    log = TableLog(faulty, name)  # type: ignore[arg-type]
    log.acquire()
    place = log.next_place([batch(1)], first=1, position=1)
    log.upload(place, 0)
    faulty.silent = True
    with pytest.raises(OutputUnavailable):
        log.commit(place)
    faulty.silent = False
    return log, place


def test_a_new_lane_begins_at_nothing(objects: TableObjects) -> None:
    """No number, no position, no columns; its first batch is number 1."""
    log = TableLog(objects, "tap")
    owner = log.acquire()
    assert (owner.last, owner.position, owner.data_schema) == (0, None, "")
    outcome = append(log, 1, batch(1, 2), position={"line": 2})
    assert (outcome.kind, outcome.certainty) == (AppendKind.APPENDED, Certainty.APPLIED)
    assert outcome.entry is not None
    assert (outcome.entry.first, outcome.entry.last, outcome.entry.rows) == (1, 1, 2)
    assert rows_in(objects) == [1, 2]


def test_who_comes_back_goes_on_where_the_log_says(objects: TableObjects) -> None:
    """Number, position and columns of the last place; a place without a position leaves it as it was."""
    log = TableLog(objects, "tap")
    log.acquire()
    append(log, 1, batch(1), batch(2), position=["file", 7])
    append(log, 3, batch(3))
    owner = TableLog(objects, "tap").acquire()
    assert (owner.last, owner.position) == (3, ["file", 7])
    assert json.loads(owner.data_schema)["fields"][0]["type"] == "long"
    assert owner.epoch > log.acquire().epoch - 2


def test_the_last_to_acquire_owns_the_lane_before_it_appends(objects: TableObjects) -> None:
    """The second writer's claim bars the first one at once; the third bars the second."""
    writers = [TableLog(objects, "tap") for _ in range(3)]
    for each in writers:
        each.acquire()
    assert [append(each, 1, batch(n)).kind for n, each in enumerate(writers)] == [
        AppendKind.FENCED,
        AppendKind.FENCED,
        AppendKind.APPENDED,
    ]
    assert rows_in(objects) == [2]


def test_a_zombie_is_refused_in_every_later_place(objects: TableObjects) -> None:
    """It uploaded ahead, it was taken over, and it tries what it had prepared, and then new places: nothing of it is seen."""
    zombie = TableLog(objects, "tap")
    zombie.acquire()
    append(zombie, 1, batch(1))
    ahead = [zombie.next_place([batch(n)], first=n, position=None) for n in (2, 3, 4)]
    for place in ahead:
        zombie.upload(place, 0)
    owner = TableLog(objects, "tap")
    assert owner.acquire().last == 1
    append(owner, 2, batch(20))
    assert [zombie.commit(place).kind for place in ahead] == [AppendKind.FENCED] * 3
    assert rows_in(objects) == [1, 20]


def test_a_commit_whose_answer_is_lost_is_found_again(objects: TableObjects) -> None:
    """Whether or not it landed, the same place is committed once, by the repetition."""
    for lands in (True, False):
        log, place = without_answer(objects, f"tap-{lands}", lands=lands)
        assert log.commit(place).kind is AppendKind.APPENDED
        assert log.commit(place).kind is AppendKind.DUPLICATE
    assert rows_in(objects) == [1, 1]


def test_an_abandoned_place_is_decided(objects: TableObjects) -> None:
    """A commit that landed without an answer is APPENDED; one that did not is closed, and its writer can commit nothing more."""
    for lands in (True, False):
        log, place = without_answer(objects, f"tap-{lands}", lands=lands)
        assert log.abandon(place).kind is (AppendKind.APPENDED if lands else AppendKind.FENCED)
        follows = log.next_place([batch(2)], first=2 if lands else 1, position=None)
        expected = AppendKind.APPENDED if lands else AppendKind.FENCED
        assert written(log, follows).kind is expected
        assert TableLog(objects, f"tap-{lands}").acquire().last == (2 if lands else 0)


def test_one_number_with_other_bytes_is_a_conflict(objects: TableObjects) -> None:
    """The same digests are a duplicate, and name the place that has them; others are not written."""
    log = TableLog(objects, "tap")
    log.acquire()
    for n in range(1, 6):
        append(log, n, batch(n))
    again = append(log, 3, batch(3))
    assert (again.kind, again.entry and again.entry.first) == (AppendKind.DUPLICATE, 3)
    assert append(log, 3, batch(4)).kind is AppendKind.CONFLICT
    assert append(log, 7, batch(7)).kind is AppendKind.GAP
    assert rows_in(objects) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("places", [1, 2, 3])
def test_a_lane_goes_on_in_the_next_generation(objects: TableObjects, places: int) -> None:
    """Numbers, position and fences carry on over ends and openings; duplicates are found in earlier generations."""
    log = TableLog(objects, "tap", places=places)
    log.acquire()
    for n in range(1, 9):
        assert append(log, n, batch(n), position=n).kind is AppendKind.APPENDED
    assert append(log, 2, batch(2)).kind is AppendKind.DUPLICATE
    successor = TableLog(objects, "tap", places=places)
    owner = successor.acquire()
    assert (owner.last, owner.position) == (8, 8)
    assert append(log, 9, batch(90)).kind is AppendKind.FENCED
    assert append(successor, 9, batch(9), position=9).kind is AppendKind.APPENDED
    assert rows_in(objects) == list(range(1, 10))
    firsts = [each.first for each in TableLog(objects, "tap").entries() if each.last >= each.first]
    assert firsts == list(range(1, 10))


def test_a_generation_is_opened_with_few_requests(objects: TableObjects) -> None:
    """After many writers a token is high: slots below that of the end are barred already, and are not filled one by one."""
    for _ in range(29):
        TableLog(objects, "tap", places=2).acquire()
    log = TableLog(objects, "tap", places=2)
    log.acquire()
    append(log, 1, batch(1))
    append(log, 2, batch(2))
    newest = log.newest()
    assert newest is not None
    generation = newest.place.partition("-")[0]
    slots = [each for each in run(objects.list(layout.SLOTS)) if f"-lane-{generation}/" in each.path]
    assert len(slots) == 1


def test_a_writer_that_dies_between_an_end_and_an_opening_is_followed(objects: TableObjects) -> None:
    """Its generation has ended and the next one is not open: the successor opens it, and the first writer, if it wakes, is fenced."""
    log = TableLog(objects, "tap", places=2)
    log.acquire()
    append(log, 1, batch(1))
    place = log.next_place([batch(2)], first=2, position=None)
    log.upload(place, 0)
    held = log._held()
    end = log._end(held, retired=False)
    from sparkonce.sink import stream

    run(stream.commit(log._sink, held.key, held.chain, end))
    successor = TableLog(objects, "tap", places=2)
    assert successor.acquire().last == 1
    append(successor, 2, batch(20))
    assert log.commit(place).kind is AppendKind.FENCED
    assert rows_in(objects) == [1, 20]


def test_writers_that_acquire_at_once_get_different_epochs(tmp_path: Path) -> None:
    """Eight threads, each a process of its own as far as the log can tell: the one with the highest epoch writes, the others are fenced."""
    objects = FolderObjects(tmp_path / "t", durable=False)
    logs = [TableLog(objects, "tap") for _ in range(8)]
    owners: dict[int, int] = {}

    def acquire(number: int) -> None:
        owners[number] = logs[number].acquire().epoch

    threads = [threading.Thread(target=acquire, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(set(owners.values())) == 8
    kinds = {number: append(logs[number], 1, batch(number)).kind for number in owners}
    last = max(owners, key=lambda number: owners[number])
    assert kinds == {n: AppendKind.APPENDED if n == last else AppendKind.FENCED for n in owners}
    assert rows_in(objects) == [last]


def test_a_retired_lane_keeps_its_rows_and_takes_no_writer(objects: TableObjects) -> None:
    """Its owner is fenced, nobody acquires it, and it can be retired once."""
    log = TableLog(objects, "tap")
    log.acquire()
    append(log, 1, batch(1), position=5)
    entry = TableLog(objects, "tap").retire(by="ops")
    assert (entry.retired, entry.position) == (True, 5)
    assert append(log, 2, batch(2)).kind is AppendKind.FENCED
    for attempt in (lambda: TableLog(objects, "tap").acquire(), lambda: TableLog(objects, "tap").retire(by="ops")):
        with pytest.raises(LaneRetired, match=r"^the lane tap of \S+ was retired by ops; write to another name$"):
            attempt()
    assert rows_in(objects) == [1]


def test_lanes_of_a_table_are_listed_by_name(objects: TableObjects) -> None:
    """And their rows are the table's, beside each other."""
    for n, name in enumerate(["b/2", "a", "B"]):
        log = TableLog(objects, name)
        log.acquire()
        append(log, 1, batch(n))
    assert lanes_of(objects) == ["B", "a", "b/2"]
    assert sorted(rows_in(objects)) == [0, 1, 2]


def test_a_lane_under_another_ones_name_is_not_listed(objects: TableObjects) -> None:
    """A program that copies an opening cannot give a lane's name to a chain of its own: the name's hash is in the folder's name."""
    log = TableLog(objects, "tap")
    log.acquire()
    opening = next(each.path for each in run(objects.list(layout.SLOTS)) if "-lane-g1/" in each.path)
    data = run(objects.get(opening))
    assert data is not None
    key = opening.split("/")[1]
    forged = f"{'0' * 64}-lane-g1"
    run(objects.create(opening.replace(key, forged), data.replace(key.encode(), forged.encode())))
    assert lanes_of(objects) == ["tap"]


def test_a_slot_that_cannot_be_read_stops_the_lane(objects: TableObjects) -> None:
    """It is never taken for the end of the chain: neither an acquisition nor an append goes over it."""
    log = TableLog(objects, "tap")
    log.acquire()
    append(log, 1, batch(1))
    entry = log.newest()
    assert entry is not None
    path = next(each.path for each in run(objects.list(layout.SLOTS)) if f"-{entry.place}/" in each.path)
    run(objects.delete(path))
    run(objects.create(path, b"{"))
    with pytest.raises(OutputCorrupt):
        TableLog(objects, "tap").acquire()


@pytest.mark.parametrize("name", ["", " ", "two words", "a" * 256, "ä", "tab\t", "nul\0"])
def test_a_name_that_is_no_key_is_refused(name: str) -> None:
    """Before anything is sent."""
    with pytest.raises(InvalidInput, match=r"^the name of a lane has 1 to 255 visible ASCII characters"):
        TableLog(StoreObjects(MemoryStore(), "t", uri="memory:///t"), name)


def test_rows_that_readers_could_not_read_beside_others_are_refused(objects: TableObjects) -> None:
    """Another lane has the column as another type: the reader would refuse the whole table, so these rows are refused before."""
    log = TableLog(objects, "tap")
    log.acquire()
    append(log, 1, batch(1))
    text = spark_schema(pa.schema([pa.field("n", pa.string())]))
    with pytest.raises(InvalidInput, match=r"has the column n as long in \S+ and as string in these rows"):
        TableLog(objects, "other").refuse_columns(text)
