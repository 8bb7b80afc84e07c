"""The watch of a PostgreSQL store: woken by notifications, healed by the sweep, in order over reconnects, outages and failovers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from functools import partial
from typing import cast

import pytest

from harness.patience import stretched, within
from harness.postgres import PostgresServer
from sparkonce.blocking import run
from sparkonce.model.record import Address
from sparkonce.store.postgres.address import schema_of
from sparkonce.store.postgres.database import PostgresTransaction
from sparkonce.store.postgres.schema import STATEMENTS
from sparkonce.store.postgres.store import PostgresStore
from sparkonce.store.protocol import IdempotencyStore, KeyChange, Lease
from store.backends import Postgres
from store.samples import reserved
from store.worker import Worker

NEVER = 3600.0
"""Seconds between sweeps where only a notification may bring a change."""
SOON = 30.0
"""Seconds for what takes milliseconds."""
KILL = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'sparkonce watch'"
"""Ends the sessions of watches; they are gone when it returns."""


class Watcher:
    """Changes of a store as one watcher gets them. Used inside of one event loop."""

    def __init__(self, store: IdempotencyStore, since: int) -> None:
        self.seen: list[KeyChange] = []
        self._task = asyncio.create_task(self._watch(store, since))

    async def _watch(self, store: IdempotencyStore, since: int) -> None:
        async with aclosing(cast("AsyncGenerator[KeyChange, None]", store.watch(since))) as changes:
            async for change in changes:
                self.seen.append(change)

    async def until(self, holds: Callable[[], object], seconds: float = SOON) -> float:
        """Waits; returns how long it took."""
        began = time.monotonic()
        while not holds():
            if self._task.done():
                self._task.result()
            assert time.monotonic() - began < stretched(seconds), f"not in time; seen: {self.seen}"
            await asyncio.sleep(0.005)
        return time.monotonic() - began

    def addresses(self) -> list[Address | None]:
        return [change.address for change in self.seen if not change.gap]

    def in_order(self) -> bool:
        revisions = [change.revision for change in self.seen if not change.gap]
        return revisions == sorted(revisions)

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def scene(play: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(within(play(), 120))


async def away(call: Callable[[], object]) -> None:
    await asyncio.to_thread(call)


def test_a_notification_brings_a_change_at_once(postgres: Postgres) -> None:
    """Long before the sweep: of this process, and of another one."""
    store = postgres.open(poll=NEVER)
    first = reserved(store)
    other = Worker(postgres.opening())

    async def play() -> None:
        watcher = Watcher(store, first.record.revision)
        await watcher.until(lambda: True)
        await asyncio.sleep(0.5)  # the first sweep is over; the next one is in an hour
        await away(lambda: first.change(phase="Running"))
        await watcher.until(lambda: watcher.addresses() == [first.address])
        await away(lambda: other.do(reserve_here, "theirs"))
        await watcher.until(lambda: len(watcher.seen) == 2)
        assert watcher.in_order()
        await watcher.end()

    try:
        scene(play)
    finally:
        other.end()


def reserve_here(store: IdempotencyStore, lease: Lease, key: str) -> int:
    return reserved(store, lease, key).record.revision


def test_a_lost_notification_costs_one_sweep(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that dies between its commit and its notification, or is of a version without them: watchers see its change with the next
    sweep, and none of the changes before or after it twice or out of order."""
    sweep = 2.0
    store = postgres.open(poll=sweep)
    keys = [reserved(store) for _ in range(3)]
    since = keys[-1].record.revision

    async def play() -> None:
        watcher = Watcher(store, since)
        await asyncio.sleep(0.5)
        await away(lambda: keys[0].change(phase="heard"))
        await watcher.until(lambda: watcher.addresses() == [keys[0].address])
        with monkeypatch.context() as silent:
            silent.setattr(PostgresTransaction, "_notify", lambda _: None)
            await away(lambda: keys[1].change(phase="not heard"))
            took = await watcher.until(lambda: len(watcher.seen) == 2)
        assert took < stretched(sweep + 1.0)
        await away(lambda: keys[2].change(phase="heard"))
        await watcher.until(lambda: len(watcher.seen) == 3)
        assert watcher.addresses() == [key.address for key in keys]
        assert watcher.in_order() and not any(change.gap for change in watcher.seen)
        await watcher.end()

    scene(play)


def test_a_failed_notification_fails_no_write(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sent after the commit: when the server refuses it the change is written, and its caller is told so."""
    store = postgres.open()
    key = reserved(store)
    monkeypatch.setitem(STATEMENTS, "notify", "SELECT pg_notify(%(channel)s, repeat('x', 9000))")
    assert key.change(phase="Running").phase == "Running"
    assert key.now().phase == "Running"


def test_a_watch_goes_on_after_its_backend_was_terminated(postgres: Postgres) -> None:
    """Each time with a gap, since another server may answer now; every change is delivered, in order, whenever it was written."""
    store, writer = postgres.open(poll=0.2), postgres.open()
    key = reserved(writer)
    since = key.record.revision

    async def play() -> None:
        watcher = Watcher(store, since)
        for number in range(3):
            await away(partial(key.change, phase=f"before {number}"))
            await watcher.until(lambda: key.record.revision in [change.revision for change in watcher.seen])
            postgres.sql(KILL)
            await away(partial(key.change, phase=f"after {number}"))
            await watcher.until(lambda: key.record.revision in [change.revision for change in watcher.seen])
            gaps = sum(change.gap for change in watcher.seen)
            assert gaps == number + 1
        assert watcher.in_order()
        await watcher.end()

    scene(play)


def test_many_writers_and_killed_backends(postgres: Postgres) -> None:
    """Of changes by four processes, while the watcher's backend is killed again and again, each key's last one is delivered, in order."""
    store = postgres.open(poll=0.2)
    workers = [Worker(postgres.opening()) for _ in range(4)]

    async def play() -> None:
        watcher = Watcher(store, 0)
        for number, worker in enumerate(workers):
            worker.ask(write_many, f"w{number}")
        for _ in range(5):
            await asyncio.sleep(0.1)
            postgres.sql(KILL)
        written = {
            address: revision for worker in workers for address, revision in await asyncio.to_thread(worker.answer)
        }
        await watcher.until(
            lambda: {change.address: change.revision for change in watcher.seen if not change.gap} == written
        )
        assert watcher.in_order()
        await watcher.end()

    try:
        scene(play)
    finally:
        for worker in workers:
            worker.end()


def write_many(store: IdempotencyStore, lease: Lease, name: str) -> list[tuple[Address, int]]:
    """Each key's last revision."""
    last = []
    for number in range(8):
        key = reserved(store, lease, f"{name}-{number}")
        key.change(phase="a")
        last.append((key.address, key.change(phase="b").revision))
    return last


@pytest.fixture
def fragile() -> Iterator[PostgresServer]:
    made = PostgresServer()
    made.start()
    yield made
    made.close()


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_watch_waits_through_an_outage(fragile: PostgresServer, how: str) -> None:
    """Nothing is raised while the server is away; what was written before and after is delivered."""
    store = PostgresStore(fragile.url, timeout=1.0, ttl=3600)
    key = reserved(store)

    async def play() -> None:
        watcher = Watcher(store, key.record.revision)
        await asyncio.sleep(0.3)
        if how == "killed":
            await away(fragile.kill)
            await asyncio.sleep(2.0)
            await away(fragile.start)
        else:
            with fragile.frozen():
                await asyncio.sleep(3.0)
        await away(lambda: key.change(phase="after"))
        await watcher.until(lambda: watcher.addresses() == [key.address])
        await watcher.end()

    scene(play)
    run(store.close())


def test_a_store_that_went_back_is_a_gap(fragile: PostgresServer) -> None:
    """A server that was restored to an older state, and has meanwhile passed the watcher's revision, is reported as a gap."""
    store = PostgresStore(fragile.url, timeout=5.0, ttl=3600)
    key = reserved(store)
    kept = fragile.take(fragile.folder / "backup")
    for number in range(3):
        key.change(phase=f"lost {number}")

    async def play() -> None:
        watcher = Watcher(store, key.record.revision)
        await asyncio.sleep(0.3)
        await away(lambda: fragile.put_back(kept))
        for _ in range(5):
            await away(lambda: reserved(store))
        await watcher.until(lambda: any(change.gap for change in watcher.seen))
        await watcher.end()

    scene(play)
    run(store.close())


def test_a_cancelled_watch_leaves_no_connection(postgres: Postgres) -> None:
    """Nor a thread: a command that stops waiting ends at once."""
    store = postgres.open(poll=0.2)
    before = sessions(postgres)

    async def play() -> None:
        watchers = [Watcher(store, 0) for _ in range(5)]
        await asyncio.sleep(0.5)
        assert sessions(postgres) >= before + 5
        for watcher in watchers:
            await watcher.end()
        deadline = time.monotonic() + stretched(SOON)
        while sessions(postgres) > before:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)

    scene(play)


def sessions(postgres: Postgres) -> int:
    return int(postgres.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'sparkonce%%'")[0][0])


def test_a_schema_is_its_own_channel(postgres: Postgres) -> None:
    """Writers of one install do not wake the watchers of another one in the same database."""
    store = postgres.open(poll=NEVER)
    key = reserved(store)
    with postgres.server.connect() as connection:
        connection.execute(f'LISTEN "{postgres.schema}"'.encode())
        connection.execute(f'LISTEN "{schema_of("another")}"'.encode())
        key.change(phase="Running")
        heard = list(connection.notifies(timeout=SOON, stop_after=1))
    assert [(notice.channel, notice.payload) for notice in heard] == [(postgres.schema, "")]
