"""The number of requests that a slot log sends to its store: it must not grow with the keys of a sweep or the batches of a stream."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from harness.arrow_stage import arrow_stage, table_of
from sparkonce.audit.cleanup import sweep
from sparkonce.audit.places import AuditedTable
from sparkonce.blocking import run
from sparkonce.sink import stream
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.objects.protocol import TableObjects
from sparkonce.sink.protocol import Committed, Evidence, SinkKey
from sparkonce.sink.slotlog import layout
from sparkonce.sink.slotlog.sink import SlotLogSink, digest_of
from sparkonce.sink.slotlog.snapshot import SNAPSHOT_AFTER, write_snapshot
from sparkonce.sink.stream import Chain


class Asked:
    """Wraps `Objects` and counts requests by verb and path."""

    def __init__(self, objects: TableObjects) -> None:
        self._objects, self.counts = objects, Counter[tuple[str, str]]()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._objects, name)
        if not callable(found):
            return found

        async def asked(path: Any, *more: Any) -> Any:
            self.counts[name, str(path)] += 1
            return await found(path, *more)

        return found if name == "where" else asked

    def lists(self, path: str) -> int:
        return self.counts["list", path] + self.counts["folders", path]

    @property
    def slots_read(self) -> int:
        return sum(n for (verb, path), n in self.counts.items() if verb == "get" and layout.is_slot(path))


@pytest.fixture
def objects(table: Path) -> FolderObjects:
    """A folder, since the tests' stagers write to folders; the number of requests is the same on any store."""
    return FolderObjects(table, durable=False)


def opened(objects: TableObjects) -> tuple[SlotLogSink, Asked]:
    asked = Asked(objects)
    return SlotLogSink(asked, name="orders", stage=arrow_stage), asked


@pytest.mark.parametrize("keys", [2, 12])
def test_a_sweep_lists_the_log_once(objects: TableObjects, keys: int) -> None:
    """However many keys need a sweep, the slot log is listed twice: once for the inventory and once for the snapshot. Slots of keys without
    orphans are not read for their own sweep."""
    sink = SlotLogSink(objects, name="orders", stage=arrow_stage)
    for number in range(20):
        key = SinkKey(key_hash=f"k{number}", output="orders", generation=1)
        assert isinstance(run(sink.commit(key, sink.stage(table_of(number), key, 1, fingerprint="f"))), Committed)
        if number < keys:
            sink.stage(table_of(number), key, 2, fingerprint="f")
    counted, asked = opened(objects)
    [done] = sweep([AuditedTable(counted)], dry_run=False)
    assert (done.folders, done.problems) == (keys, ())
    assert asked.lists(layout.SLOTS) == 2
    assert asked.slots_read <= 20 + 2 * keys  # those of the inventory, then two per swept key


def test_what_is_only_counted_is_not_read(objects: TableObjects, key: SinkKey) -> None:
    """One listing shows whether a snapshot is worth writing: no other key's slot is read to find out."""
    sink = SlotLogSink(objects, name="orders", stage=arrow_stage)
    for number in range(SNAPSHOT_AFTER - 1):
        other = SinkKey(key_hash=f"k{number}", output="orders", generation=1)
        run(sink.fence(other, 2, fingerprint="f", by="test"))
    run(sink.commit(key, sink.stage(table_of(1), key, 1, fingerprint="f")))
    counted, asked = opened(objects)
    run(counted.sweep(key))
    assert asked.slots_read <= 2


def streamed(sink: SlotLogSink, key: SinkKey, batches: int) -> Chain:
    """An ended stream in which every batch has rows."""
    first = stream.opening_of(key, 1, query_id="q", first_batch=0, fingerprint="f", on_rerun=sink.on_rerun)
    assert run(sink.commit(key, first)) == Committed(first)
    chain = Chain(first, first)
    for number in range(batches):
        place = stream.place(key, number)
        slot = stream.batch_of(chain, number, sink.stage(table_of(number), place, 1, fingerprint="f"), plan="p")
        assert run(stream.commit(sink, key, chain, slot)) == Committed(slot)
        chain = chain.followed_by(slot)
    return run(stream.finish(sink, key, chain, 1, by="test"))[0]


@pytest.mark.parametrize("batches", [3, 40])
def test_a_probe_of_a_stream_takes_a_few_requests(objects: TableObjects, key: SinkKey, batches: int) -> None:
    """With a snapshot, which every long stream has, a probe sends as few requests for forty batches as for three; it still notices a
    batch's missing slot or file."""
    sink = SlotLogSink(objects, name="orders", stage=arrow_stage)
    end = streamed(sink, key, batches).last
    assert run(write_snapshot(objects, after=0))
    counted, asked = opened(objects)
    assert run(counted.probe(key, digest_of(end))) is Evidence.PRESENT
    assert asked.counts.total() <= 8
    slot = run(sink.find(stream.place(key, 1)))
    assert slot is not None
    path = slot.files[0].path
    data = run(objects.get(path))
    run(objects.delete(path))
    assert run(counted.probe(key, digest_of(end))) is Evidence.GONE
    assert run(objects.create(path, data or b""))
    assert run(counted.probe(key, digest_of(end))) is Evidence.PRESENT
    run(objects.delete(layout.slot_path(stream.place(key, 1), 1)))
    assert run(counted.probe(key, digest_of(end))) is Evidence.GONE


def test_a_short_stream_in_a_large_table(objects: TableObjects, key: SinkKey) -> None:
    """If the stream is a small part of the table, the probe lists only the stream's own folders."""
    sink = SlotLogSink(objects, name="orders", stage=arrow_stage)
    end = streamed(sink, key, 2).last
    for number in range(250):
        run(sink.fence(SinkKey(key_hash=f"k{number}", output="orders", generation=1), 2, fingerprint="f", by="test"))
    counted, asked = opened(objects)
    assert run(counted.probe(key, digest_of(end))) is Evidence.PRESENT
    assert asked.counts["list", layout.DATA] == 0
