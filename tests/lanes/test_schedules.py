"""Random schedules of faults over the real writer: on a log in memory, and on a table whose store loses and delays requests."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
from obstore.store import MemoryStore

from harness import effort
from harness.eventually import assert_eventually
from harness.lane_log import Broker, FakeLog, numbers_of, rows_in
from harness.lane_schedules import Findings, play
from sparkonce.blocking import run
from sparkonce.errors import OutputUnavailable
from sparkonce.lanes import sender
from sparkonce.lanes.protocol import LanePlace
from sparkonce.lanes.sender import WriterOptions
from sparkonce.lanes.table_log import TableLog
from sparkonce.lanes.writer import Writer
from sparkonce.sink.objects.protocol import StoreObjects

SCHEDULES = effort.size("lane schedules")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are repeated at once: time plays no part in what must hold."""
    monkeypatch.setattr(sender, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(sender, "LONGEST_PAUSE", 0.01)
    monkeypatch.setattr("sparkonce.sink.slotlog.sink.RESEND_AFTER", (0.0,))


class LossyStore(StoreObjects):
    """An object store one process's requests of which meet its fates. A late create happens at the next request of any process."""

    def __init__(
        self,
        store: MemoryStore,
        late: list[Callable[[], object]],
        faults: Callable[[str], str],
        freeze: Callable[[], None],
    ) -> None:
        super().__init__(store, "t", uri="memory:///t")
        self._late, self._faults, self._freeze = late, faults, freeze

    async def create(self, path: str, data: bytes) -> bool:
        for each in list(self._late):
            self._late.remove(each)
            each()
        fate = self._faults("create")
        if fate == "frozen":
            self._freeze()
        if fate == "late":
            self._late.append(lambda: run(StoreObjects.create(self, path, data)))
        created = await super().create(path, data) if fate in ("ok", "silent", "frozen") else False
        if fate in ("lost", "silent", "late"):
            raise OutputUnavailable(f"cannot create {path}: no answer")
        return created

    async def get(self, path: str) -> bytes | None:
        if self._faults("get") in ("lost", "silent"):
            raise OutputUnavailable(f"cannot read {path}: no answer")
        return await super().get(path)


def on_memory(seed: int, *, epoch: bool = True, digest: bool = True) -> Findings:
    broker = Broker(checks_epoch=epoch, checks_digest=digest)

    def make_log(faults: Callable[[str], str], freeze: Callable[[], None]) -> FakeLog:
        def fate(verb: str) -> str:
            found = faults(verb)
            return "ok" if found == "frozen" else found

        return FakeLog(broker, fate, batches_limit=random.Random(seed).choice((1, 2, 4)))

    def rows() -> list[int]:
        with broker.lock:
            data = broker.data
        return [n for each in data for n in numbers_of(each)]

    found = play(seed, make_log, rows)
    kept = {(place.place, place.digests) for place in broker.places}
    found.wrong += [
        f"acknowledged and not there: {each}" for each in found.acked if (each.place, each.digests) not in kept
    ]
    return found


def on_table(seed: int) -> Findings:
    store: MemoryStore = MemoryStore()
    late: list[Callable[[], object]] = []
    plain = StoreObjects(store, "t", uri="memory:///t")
    places = random.Random(seed).choice((1, 2, 5, 10_000))

    def make_log(faults: Callable[[str], str], freeze: Callable[[], None]) -> TableLog:
        return TableLog(LossyStore(store, late, faults, freeze), "tap", places=places)

    found = play(seed, make_log, lambda: rows_in(plain))
    kept = {(each.place, each.digests) for each in TableLog(plain, "tap").entries()}
    found.wrong += [
        f"acknowledged and not there: {each}" for each in found.acked if (each.place, each.digests) not in kept
    ]
    return found


def seeds(name: str) -> list[int]:
    """The seeds of one run, divided among a few items so that several processes share them."""
    drawn = random.Random(effort.seed(f"lanes {name}"))
    return [drawn.getrandbits(32) for _ in range(SCHEDULES)]


PARTS = 4


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", ["memory", "table"])
def test_every_row_is_there_once_whatever_happens(kind: str, part: int) -> None:
    """Crashes, frozen writers, late and lost requests, takeovers beside zombies, batch boundaries of each writer's own: no row lost, none
    doubled, none acknowledged and missing, the position never ahead of the rows."""
    print(f"SEED={effort.base()}")
    total = Findings()
    for seed in seeds(kind)[part::PARTS]:
        found = on_memory(seed) if kind == "memory" else on_table(seed)
        assert not found.wrong, f"seed {seed}: {found.wrong}"
        total.acquired += found.acquired
        total.acked += found.acked
    assert total.acked
    assert total.acquired


def test_without_epoch_and_digest_rows_are_lost() -> None:
    """The checks are what makes it hold: without both, the schedules find lost rows. (Each by itself suffices on this log, because numbers
    go on over writers; research notes, section 6.4. The table's token is checked by itself in `test_table_log`.)"""
    wrong = [seed for seed in seeds("memory") if on_memory(seed, epoch=False, digest=False).wrong]
    print(f"{len(wrong)} of {SCHEDULES} schedules lost or doubled rows")
    assert wrong


def test_without_the_same_bytes_rows_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that lets further rows into a place whose append had no answer: they are acknowledged with those that had landed."""
    appended = threading.Event()
    fates = iter(["silent"])

    def faults(verb: str) -> str:
        if verb != "commit":
            return "ok"
        appended.wait(10)
        return next(fates, "ok")

    def commit(self: sender.Sender, flight: sender._Flight) -> object:
        try:
            return self.log.commit(flight.place)
        except OutputUnavailable:
            with self.changed:
                more = self.buffer.take(1)
                flight.batches += more
                batches = [*flight.place.batches, *(self.log.encoded(each.tables, self.known) for each in more)]
            flight.place = LanePlace(flight.place.name, flight.place.first, tuple(batches), None)
            self.log.upload(flight.place, len(batches) - 1)
            raise

    def rows_of_two_appends() -> list[int]:
        broker = Broker(checks_digest=False)
        writer = Writer(FakeLog(broker, faults), WriterOptions(linger=0.0, batch_size=1, max_inflight=1))
        first = writer.append({"n": 1})
        assert_eventually(lambda: len(broker.uploads) == 1, 20.0)
        second = writer.append({"n": 2})
        appended.set()
        assert first.result(40).first == 1
        second.result(40)
        writer._sender.abandon()
        return [n for data in broker.data for n in numbers_of(data)]

    assert rows_of_two_appends() == [1, 2]
    appended.clear()
    fates = iter(["silent"])
    monkeypatch.setattr(sender.Sender, "_send_commit", commit)
    assert rows_of_two_appends() == [1]
