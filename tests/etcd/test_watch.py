"""Watches: every event once and in order across restarts and broken connections, only whole revisions, and every gap reported."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from harness.etcd import Etcd
from harness.etcd_traffic import eventually, restart, start
from harness.proxy import in_front_of
from sparkonce.etcd import watch as watching_module
from sparkonce.etcd.calls import Calls
from sparkonce.etcd.channel import Endpoints, connect_async
from sparkonce.etcd.client import Client, WatchBatch
from sparkonce.etcd.errors import EtcdUnavailable
from sparkonce.etcd.kv import Delete, Put, prefix_end
from sparkonce.etcd.watch import Watch


class Reader:
    """Collects a watch's events in a task of its own."""

    def __init__(self, client: Client, prefix: bytes, *, start: int) -> None:
        self.batches: list[WatchBatch] = []
        self._watch = client.watch(prefix, prefix_end(prefix), start=start)
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async with aclosing(self._watch) as batches:
            async for batch in batches:
                self.batches.append(batch)

    @property
    def keys(self) -> list[bytes]:
        return [event.kv.key for batch in self.batches for event in batch.events]

    @property
    def gaps(self) -> list[WatchBatch]:
        return [batch for batch in self.batches if batch.gap]

    async def stands(self) -> None:
        """Waits until etcd has established the watch."""
        await eventually(lambda: bool(self.batches), 20)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@asynccontextmanager
async def watching(endpoints: Sequence[str], prefix: bytes, *, start: int) -> AsyncIterator[tuple[Client, Reader]]:
    client = Client.open(endpoints)
    reader = Reader(client, prefix, start=start)
    try:
        yield client, reader
    finally:
        await reader.stop()
        await client.close()


def assert_revisions_rise(batches: Sequence[WatchBatch]) -> None:
    """Each batch has its last revision, holds only events up to it, and the next batch continues after it."""
    told = [batch.revision for batch in batches]
    assert told == sorted(told)
    for before, batch in itertools.pairwise(batches):
        assert all(before.revision < event.kv.mod_revision <= batch.revision for event in batch.events)


def watchers(etcd: Etcd) -> float:
    return etcd.one.counted("etcd_debugging_mvcc_watcher_total")


def test_a_batch_holds_whole_revisions(server: Etcd, prefix: bytes) -> None:
    """The events of one transaction come in one batch, with their kinds and revisions, from the requested revision on."""

    async def body() -> None:
        begin = server.put(prefix + b"before")
        async with watching(server.endpoints, prefix, start=begin + 1) as (client, reader):
            await reader.stands()
            assert reader.batches == [WatchBatch(begin, (), gap=False)]
            first = await client.txn([], [Put(prefix + b"a", b"1"), Put(prefix + b"b", b"2")])
            second = await client.txn([], [Delete(prefix + b"a"), Put(prefix + b"c", b"3")])
            await eventually(lambda: len(reader.keys) == 4, 10)
            found = [
                (event.kind, event.kv.key[len(prefix) :], event.kv.value, event.kv.mod_revision)
                for batch in reader.batches
                for event in batch.events
            ]
            assert found[:2] == [("put", b"a", b"1", first.revision), ("put", b"b", b"2", first.revision)]
            assert found[2:] == [("delete", b"a", b"", second.revision), ("put", b"c", b"3", second.revision)]
            assert_revisions_rise(reader.batches)

    asyncio.run(body())


def test_a_watch_without_a_start_begins_now(server: Etcd, prefix: bytes) -> None:
    """Start 0 means from now on; the first, empty batch says at which revision that is."""

    async def body() -> None:
        now = server.put(prefix + b"old")
        async with watching(server.endpoints, prefix, start=0) as (_, reader):
            await reader.stands()
            assert reader.batches[0].revision >= now
            server.put(prefix + b"new")
            await eventually(lambda: reader.keys == [prefix + b"new"], 10)

    asyncio.run(body())


def test_a_restart_loses_no_event(own: Etcd, prefix: bytes) -> None:
    """etcd is killed and restarted twice while a writer continues: every event arrives, once and in order, without a gap."""

    async def body() -> None:
        written: list[bytes] = []

        def write(count: int) -> None:
            for _ in range(count):
                key = b"%s%04d" % (prefix, len(written))
                own.put(key)
                written.append(key)

        async with watching(own.endpoints, prefix, start=own.revision() + 1) as (_, reader):
            await reader.stands()
            for _ in range(2):
                await asyncio.to_thread(write, 20)
                await restart(own.one)
                await asyncio.to_thread(write, 20)
                await eventually(lambda: len(reader.keys) >= len(written), 20)
            assert reader.keys == written
            assert reader.gaps == []
            assert_revisions_rise(reader.batches)

    asyncio.run(body())


def test_a_break_in_the_middle_of_catching_up_loses_nothing(own: Etcd, prefix: bytes) -> None:
    """The connection breaks twice while 3,000 old events are sent: all arrive, none twice.

    While etcd sends old events its replies carry the current revision; resuming from that would lose the remaining events.
    """

    async def body() -> None:
        client = Client.open(own.endpoints, timeout=10.0)
        begin = own.revision()
        for number in range(3000):
            await client.txn([], [Put(b"%s%04d" % (prefix, number), bytes(500))])
        await client.close()
        with in_front_of(own.one.address) as proxy:
            proxy.cut_after = 300_000
            async with watching([proxy.address], prefix, start=begin + 1) as (_, reader):
                await eventually(lambda: proxy.cut_after is None, 20)
                proxy.cut_after = 300_000
                await eventually(lambda: proxy.cut_after is None, 20)
                await eventually(lambda: len(reader.keys) >= 3000, 30)
                assert proxy.connections >= 3
                assert reader.keys == [b"%s%04d" % (prefix, number) for number in range(3000)]
                assert reader.gaps == []
                assert_revisions_rise(reader.batches)

    asyncio.run(body())


def test_compaction_during_an_outage_is_told_as_a_gap(own: Etcd, prefix: bytes) -> None:
    """Events happen and are compacted away while the watch is cut off: it reports a gap with the revision from which it continues, and
    continues."""

    async def body() -> None:
        with in_front_of(own.one.address) as proxy:
            async with watching([proxy.address], prefix, start=own.revision() + 1) as (_, reader):
                await reader.stands()
                own.put(prefix + b"seen")
                await eventually(lambda: reader.keys == [prefix + b"seen"], 10)
                proxy.refuse = True
                proxy.cut()
                for number in range(5):
                    own.put(prefix + b"lost", b"%d" % number)
                compacted = own.put(prefix + b"compacted")
                own.compact(compacted)
                last = own.put(prefix + b"kept")
                proxy.heal()
                await eventually(lambda: prefix + b"kept" in reader.keys, 20)
                (gap,) = reader.gaps
                assert gap == WatchBatch(compacted, (), gap=True)
                after = reader.batches[reader.batches.index(gap) + 1 :]
                assert [event.kv.mod_revision for batch in after for event in batch.events] == [last]
                assert_revisions_rise(reader.batches)

    asyncio.run(body())


def test_a_start_that_is_compacted_is_told_as_a_gap(own: Etcd, prefix: bytes) -> None:
    """A watch from a compacted revision first reports a gap, and then the following events."""

    async def body() -> None:
        begin = own.put(prefix + b"a")
        compacted = own.put(prefix + b"b")
        own.compact(compacted)
        own.put(prefix + b"c")
        async with watching(own.endpoints, prefix, start=begin) as (_, reader):
            await eventually(lambda: reader.keys == [prefix + b"c"], 10)
            assert [batch.revision for batch in reader.gaps] == [compacted]

    asyncio.run(body())


def test_a_store_that_was_wiped_is_told_as_a_gap(own: Etcd, prefix: bytes, tmpfs_path: Path) -> None:
    """etcd comes back empty. Its revisions are lower than those seen, so waiting for higher ones would hide events: the watch reports a
    gap."""

    async def body() -> None:
        for number in range(50):
            own.put(prefix + b"before", b"%d" % number)
        async with watching(own.endpoints, prefix, start=own.revision() + 1) as (_, reader):
            await reader.stands()
            own.one.kill()
            for data in tmpfs_path.glob("etcd-*/m0"):
                shutil.rmtree(data)
            await start(own.one)
            await eventually(lambda: bool(reader.gaps), 20)
            assert reader.gaps[0].revision == 1
            own.put(prefix + b"after")
            await eventually(lambda: reader.keys == [prefix + b"after"], 10)

    asyncio.run(body())


def test_a_lagging_member_is_no_gap(own: Etcd, prefix: bytes) -> None:
    """A start ahead of the store is reported as a gap; a start that a linearizable read confirms is not."""

    async def body() -> None:
        ahead = own.revision() + 100
        async with watching(own.endpoints, prefix, start=ahead) as (_, reader):
            await eventually(lambda: bool(reader.gaps), 10)
            assert reader.gaps[0].revision < ahead
        async with watching(own.endpoints, prefix, start=own.revision() + 1) as (_, reader):
            await reader.stands()
            assert reader.gaps == []

    asyncio.run(body())


@pytest.mark.parametrize("how", ["cancelled", "closed", "client"])
def test_a_watch_that_is_left_is_gone_from_etcd(own: Etcd, prefix: bytes, how: str) -> None:
    """Whether cancelled, closed, or with its client closed, a watch leaves no watcher in etcd and no task here."""

    async def body() -> None:
        client = Client.open(own.endpoints)
        readers = [Reader(client, prefix, start=1) for _ in range(10)]
        for reader in readers:
            await reader.stands()
        assert watchers(own) == 10
        if how == "cancelled":
            for reader in readers:
                await reader.stop()
        elif how == "client":
            await client.close()
            await asyncio.gather(*(reader.task for reader in readers))  # they end by themselves
        else:
            for reader in readers:
                await reader.stop()
            for _ in range(10):
                async for _batch in client.watch(prefix, b"", start=1):
                    break  # without aclose: the event loop closes it
        await eventually(lambda: watchers(own) == 0, 10)
        await client.close()
        await eventually(lambda: len(asyncio.all_tasks(loop)) <= 2, 10)

    loop = asyncio.new_event_loop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(body())


def test_an_error_in_the_readers_own_code_ends_its_watch(server: Etcd, prefix: bytes) -> None:
    """An exception of the reader ends its watch, which does not treat it as an outage."""

    async def body() -> None:
        client = Client.open(server.endpoints)

        async def read() -> None:
            async with aclosing(client.watch(prefix, b"", start=1)) as batches:
                async for _ in batches:
                    raise EtcdUnavailable("mine", code="X")

        with pytest.raises(EtcdUnavailable, match="mine"):
            await read()
        await client.close()

    asyncio.run(body())


class Silent(Calls):
    """Calls of an etcd that does not answer; the client is closed after so many tries."""

    def __init__(self, tries: int) -> None:
        super().__init__(Endpoints(["127.0.0.1:1"], None, connect_async), None, timeout=1.0)
        self.left = tries

    async def stream(self, *_: object, **__: object) -> NoReturn:
        self.left -= 1
        self.closed = self.left == 0
        raise EtcdUnavailable("no answer", code="UNAVAILABLE")


def test_a_watch_outlasts_an_outage_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often etcd did not answer, the watch tries again."""
    monkeypatch.setattr(watching_module, "LONGEST_PAUSE", 0.0)

    async def body() -> None:
        calls = Silent(tries=1_500)
        assert [batch async for batch in Watch(calls, b"k", b"", start=1).batches()] == []
        assert calls.left == 0

    asyncio.run(body())
