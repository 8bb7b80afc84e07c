"""A lane's log in memory, with the broker behind it: for schedules of faults that a real table cannot be made to play on demand.

`Broker` decides as a table does: a number follows the last one, by the owner with the highest epoch, and equal digests are duplicates. A
request passes `faults`, a function of its verb that names what happens to it:

    ok       carried out and answered
    lost     not carried out, no answer
    silent   carried out, no answer
    late     no answer; carried out before the next request of any writer
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from sparkonce.blocking import run
from sparkonce.errors import LaneRetired, OutputUnavailable
from sparkonce.lanes.protocol import AppendKind, AppendOutcome, LaneEntry, LaneOwner, LanePlace, RowBatch
from sparkonce.lanes.rows import parquet_batch
from sparkonce.sink.objects.protocol import TableObjects
from sparkonce.sink.slotlog.snapshot import decided, seen_in


def numbers_of(file: Any) -> list[int]:
    """The column `n` of a Parquet file, given by its path or its bytes."""
    source = pa.BufferReader(file) if isinstance(file, bytes) else file
    return [int(n) for n in parquet.read_table(source, columns=["n"]).column("n").to_pylist() if n is not None]


def rows_in(objects: TableObjects) -> list[int]:
    """The column `n` of what readers of the table see, in the order of its lanes."""
    found: list[int] = []
    for _, files in run(seen_in(objects, run(decided(objects)))):
        for file in files:
            data = run(objects.get(file.path))
            assert data is not None, file.path
            assert len(data) == file.bytes
            found += numbers_of(data)
    return found


Faults = Callable[[str], str]


@dataclass
class Broker:
    """The state that all writers of a lane share."""

    places: list[LaneEntry] = field(default_factory=list)
    uploads: dict[str, bytes] = field(default_factory=dict)
    owner: int = 0
    barred: set[int] = field(default_factory=set)
    """Epochs that were closed by their own writer."""
    late: list[Callable[[], object]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    checks_epoch: bool = True
    checks_digest: bool = True
    lock: threading.RLock = field(default_factory=threading.RLock)
    schema: str = ""
    retired: bool = False

    @property
    def last(self) -> int:
        return self.places[-1].last if self.places else 0

    @property
    def position(self) -> Any:
        return self.places[-1].position if self.places else None

    @property
    def data(self) -> list[bytes]:
        """The batches in order, as readers see them."""
        return [self.uploads[file] for place in self.places for file in place.files]

    def append(self, place: LanePlace, epoch: int) -> AppendOutcome:
        digests = tuple(batch.digest for batch in place.batches)
        if self.checks_epoch and (epoch != self.owner or epoch in self.barred):
            return AppendOutcome(AppendKind.FENCED)
        if place.first <= self.last:
            found = next(each for each in self.places if each.first <= place.first <= each.last)
            same = found.digests == digests or not self.checks_digest
            return AppendOutcome(AppendKind.DUPLICATE if same else AppendKind.CONFLICT, found)
        if place.first > self.last + 1:
            return AppendOutcome(AppendKind.GAP)
        entry = LaneEntry(
            place=place.name,
            epoch=epoch,
            first=place.first,
            last=place.last,
            rows=sum(batch.rows for batch in place.batches),
            bytes=sum(len(batch.data) for batch in place.batches),
            position=self.position if place.position is None else place.position,
            digests=digests,
            files=tuple(file for n in range(len(digests)) if (file := f"{place.name}/{n}") in self.uploads),
        )
        self.places.append(entry)
        self.schema = next((batch.data_schema for batch in place.batches if batch.data_schema), self.schema)
        return AppendOutcome(AppendKind.APPENDED, entry)


class FakeLog:
    """One process's `LaneLog` on a broker."""

    name, uri, batches_limit = "tap", "memory:///lake", 4
    position_limit, linger = 4096, 0.0

    def __init__(self, broker: Broker, faults: Faults = lambda _: "ok", *, batches_limit: int = 4) -> None:
        self.broker, self.faults, self.epoch, self.count = broker, faults, 0, 0
        self.batches_limit = batches_limit

    def _request(self, verb: str, action: Callable[[], Any]) -> Any:
        with self.broker.lock:
            for each in self.broker.late:
                each()
            self.broker.late.clear()
            self.broker.requests.append(verb)
            fate = self.faults(verb)
            if fate == "late":
                self.broker.late.append(action)
            answer = action() if fate in ("ok", "silent") else None
        if fate != "ok":
            raise OutputUnavailable(f"{verb}: no answer")
        return answer

    def acquire(self) -> LaneOwner:
        owner: LaneOwner = self._request("acquire", self._acquire)
        return owner

    def _acquire(self) -> LaneOwner:
        if self.broker.retired:
            raise LaneRetired("the lane tap was retired")
        self.broker.owner += 1
        self.epoch = self.broker.owner
        return LaneOwner(
            epoch=self.epoch, last=self.broker.last, position=self.broker.position, data_schema=self.broker.schema
        )

    def packed(self, table: pa.Table) -> pa.Table:
        return table

    def encoded(self, tables: Sequence[pa.Table], known: pa.Schema) -> RowBatch:
        return parquet_batch(tables, known)

    def refuse_columns(self, data_schema: str) -> None:
        """Nothing else is in the table."""

    def tidy(self) -> None:
        """Nothing to tidy."""

    def next_place(self, batches: Sequence[RowBatch], *, first: int, position: Any) -> LanePlace:
        self.count += 1
        return LanePlace(f"{self.epoch}-{self.count}", first, tuple(batches), position)

    def upload(self, place: LanePlace, number: int) -> None:
        data = place.batches[number].data
        if data:
            self._request("upload", lambda: self.broker.uploads.setdefault(f"{place.name}/{number}", data))

    def commit(self, place: LanePlace) -> AppendOutcome:
        epoch = self.epoch
        outcome: AppendOutcome = self._request("commit", lambda: self.broker.append(place, epoch))
        return outcome

    def abandon(self, place: LanePlace) -> AppendOutcome:
        def close() -> AppendOutcome:
            self.broker.barred.add(self.epoch)
            for each in self.broker.places:
                if each.place == place.name:
                    return AppendOutcome(AppendKind.APPENDED, each)
            return AppendOutcome(AppendKind.FENCED)

        outcome: AppendOutcome = self._request("abandon", close)
        return outcome

    def entries(self) -> Iterator[LaneEntry]:
        yield from self.broker.places

    def retire(self, *, by: str) -> LaneEntry:
        self.broker.owner += 1
        self.broker.retired = True
        return replace(self.broker.places[-1], retired=True)
