"""A PostgreSQL store on an event loop, as operators and gateways open it: nothing blocks the loop, and a pool that is used up says so."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from harness.eventually import assert_eventually
from harness.patience import stretched, within
from harness.postgres import PostgresServer
from sparkonce.blocking import run
from sparkonce.controller.lease_guard import LeaseGuard, NotOwner
from sparkonce.errors import InvalidInput, PoolExhausted, StoreUnavailable
from sparkonce.store.open import open_shared
from sparkonce.store.postgres.address import lock_of, schema_of
from sparkonce.store.postgres.database import TooManyConnections
from sparkonce.store.postgres.store import PostgresStore
from sparkonce.store.protocol import Duplicate, IdempotencyStore, KeyChange, LostOwnership, Owned, Updated
from store.backends import Postgres
from store.samples import address_of, fresh, request

PATIENCE = 1.0
"""Seconds for one request here."""
POOL = 2


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKONCE_POSTGRES_POOL", str(POOL))
    monkeypatch.setenv("SPARKONCE_POSTGRES_TIMEOUT", str(PATIENCE))


@pytest.fixture
def fragile() -> Iterator[PostgresServer]:
    made = PostgresServer()
    made.start()
    yield made
    made.close()


@asynccontextmanager
async def opened(server: PostgresServer, install: str, **options: Any) -> AsyncIterator[IdempotencyStore]:
    store = open_shared(server.url, install=install, by="the operator", **({"ttl": 3600} | options))
    try:
        yield store
    finally:
        await store.close()


def scene(play: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(within(play(), 120))


async def ticks(gaps: list[float]) -> None:
    """The longest time for which the loop did nothing else."""
    before = time.monotonic()
    while True:
        await asyncio.sleep(0.01)
        now = time.monotonic()
        gaps.append(now - before)
        before = now


async def owned(store: IdempotencyStore, key: str) -> Owned:
    lease = await store.open_lease(owner="me")
    done = await store.reserve(request(key), lease=lease, floor=0)
    assert isinstance(done, Owned)
    return done


@pytest.mark.usefixtures("settings")
def test_verbs_work_and_leases_pass(postgres: Postgres) -> None:
    """A key is reserved, watched, given up and taken over under leases of two processes; a revoked lease is no owner's any more."""
    install = fresh("install")

    async def play() -> None:
        async with opened(postgres.server, install) as first, opened(postgres.server, install) as second:
            mine, theirs = await first.open_lease(owner="first"), await second.open_lease(owner="second")
            asked = request("precious")
            done = await first.reserve(asked, lease=mine, floor=0)
            assert isinstance(done, Owned)
            assert isinstance(await second.reserve(request("precious"), lease=theirs, floor=0), Duplicate)
            changes: asyncio.Queue[KeyChange] = asyncio.Queue()
            watching = asyncio.create_task(heard(second, done.record.revision, changes))
            await mine.revoke()
            change = await changes.get()
            assert change.address == asked.address and change.unowned
            taken = await second.take_over(done.record, lease=theirs, nonce=fresh())
            assert isinstance(taken, Owned)
            assert await first.update(done.record, done.claim, done.record.changed(phase="x")) == LostOwnership()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    scene(play)


async def heard(store: IdempotencyStore, since: int, changes: asyncio.Queue[KeyChange]) -> None:
    async for change in store.watch(since):
        changes.put_nowait(change)


@pytest.mark.usefixtures("settings")
def test_a_frozen_server_does_not_block_the_loop(fragile: PostgresServer) -> None:
    """While no request is answered the loop goes on; each request ends as unavailable within its time and the next one is tried anew."""

    async def play() -> None:
        async with opened(fragile, "prod") as store:
            key = await owned(store, "key")
            gaps: list[float] = []
            ticking = asyncio.create_task(ticks(gaps))
            await asyncio.to_thread(fragile.freeze)
            try:
                began = time.monotonic()
                said = await asyncio.gather(
                    *(store.load(key.record.address) for _ in range(2 * POOL)), return_exceptions=True
                )
                assert time.monotonic() - began < stretched(5 * PATIENCE)
            finally:
                await asyncio.to_thread(fragile.thaw)
            assert {type(each) for each in said} <= {StoreUnavailable, PoolExhausted}
            done = await until_answered(
                lambda: store.update(key.record, key.claim, key.record.changed(phase="Running"))
            )
            assert isinstance(done, Updated)
            ticking.cancel()
            assert max(gaps) < stretched(PATIENCE / 2), "the loop was blocked"

    scene(play)


async def until_answered(call: Callable[[], Awaitable[Any]]) -> Any:
    while True:
        try:
            return await call()
        except StoreUnavailable:
            await asyncio.sleep(0.05)


async def until_refused(call: Callable[[], Awaitable[Any]]) -> TooManyConnections:
    """A busy server may first be too slow for `PATIENCE`."""
    while True:
        try:
            await call()
        except TooManyConnections as refusal:
            return refusal
        except StoreUnavailable:
            await asyncio.sleep(0.05)
        else:
            pytest.fail("the server had room for a connection")


@pytest.mark.usefixtures("settings")
def test_an_exhausted_pool_is_named_and_recovers(postgres: Postgres) -> None:
    """While keys whose locks others hold use up every connection, a further request is PoolExhausted and changes nothing, the lease is
    kept, and the watch reports changes; once the locks are free, everything goes on."""
    install = fresh("install")

    async def play() -> None:
        async with opened(postgres.server, install, ttl=2) as store:
            guard = LeaseGuard(store, owner="me", on_lost=lambda: None, margin=0.2)
            keeping = asyncio.create_task(guard.keep())
            await guard.held()
            free = request("free")
            done = await store.reserve(free, lease=guard.lease, floor=0)
            assert isinstance(done, Owned)
            since = done.record.revision
            changes: asyncio.Queue[KeyChange] = asyncio.Queue()
            watching = asyncio.create_task(heard(store, since, changes))
            held = [request(f"held {number}") for number in range(POOL)]
            named: list[PoolExhausted] = []
            blocker = postgres.server.connect()
            for each in held:
                number = lock_of(schema_of(install), each.address.realm, each.address.key_hash)
                blocker.execute(f"SELECT pg_advisory_lock({number})".encode())
            began = time.monotonic()
            waiting = [
                asyncio.create_task(until_answered(partial(store.reserve, each, lease=guard.lease, floor=0)))
                for each in held * 3
            ]
            while time.monotonic() - began < 3.0:  # longer than the lease
                try:
                    await store.load(free.address)
                except PoolExhausted as exhausted:
                    named.append(exhausted)
                guard.guard()
            assert named, "the pool was never exhausted"
            assert "all 2 connections" in str(named[0]) and "SPARKONCE_POSTGRES_POOL" in str(named[0])
            assert postgres.server.url not in str(named[0])
            other = PostgresStore(postgres.server.url, install=install, ttl=3600)
            await asyncio.to_thread(lambda: blocking_change(other, free.address))
            change = await changes.get()
            while change.address != free.address:
                change = await changes.get()
            await asyncio.to_thread(blocker.close)
            answers = await asyncio.gather(*waiting)
            assert all(isinstance(each, Owned | Duplicate) for each in answers)
            assert isinstance(await store.load(free.address), object)
            for task in (keeping, watching):
                task.cancel()
            await asyncio.gather(keeping, watching, return_exceptions=True)
            await other.close()

    scene(play)


def blocking_change(store: PostgresStore, address: Any) -> None:
    record = run(store.load(address)).record
    assert record is not None
    run(store.attach(record, "uid"))


@pytest.mark.usefixtures("settings")
def test_a_server_without_room_for_connections_is_named() -> None:
    """A server that takes no more connections is unavailable by a name of its own, and is used again once it has room."""
    crowded = PostgresServer(max_connections="8", superuser_reserved_connections="0", max_wal_senders="0")
    try:
        crowded.start()

        async def play() -> None:
            async with opened(crowded, "prod") as store:
                others = []
                while True:
                    try:
                        others.append(await asyncio.to_thread(crowded.connect))
                    except Exception:
                        break
                refusal = await until_refused(lambda: store.load(address_of("any")))
                assert re.search("takes no more connections .* SPARKONCE_POSTGRES_POOL", str(refusal))
                for each in others:
                    each.close()
                assert (await until_answered(lambda: store.load(address_of("any")))).record is None

        scene(play)
    finally:
        crowded.close()


@pytest.mark.usefixtures("settings")
def test_a_cancelled_caller_leaves_its_verb(postgres: Postgres) -> None:
    """What was sent is carried out, and its connection is free again afterwards: a hundred callers that leave use up nothing."""
    install = fresh("install")

    async def play() -> None:
        async with opened(postgres.server, install) as store:
            key = await owned(store, "key")
            for number in range(100):
                leaving = asyncio.create_task(store.attach(key.record, f"uid {number}"))
                await asyncio.sleep(0.001)
                leaving.cancel()
                await asyncio.gather(leaving, return_exceptions=True)
            for _ in range(2 * POOL):
                assert (await store.load(key.record.address)).record is not None

    scene(play)


@pytest.mark.usefixtures("settings")
def test_a_process_may_start_before_its_database(fragile: PostgresServer) -> None:
    """Until the server is there every request is unavailable, and no lease is held; then the ledger is created and work begins."""
    fragile.kill()

    async def play() -> None:
        async with opened(fragile, "prod", ttl=2) as store:
            guard = LeaseGuard(store, owner="me", on_lost=lambda: None)
            keeping = asyncio.create_task(guard.keep())
            with pytest.raises(StoreUnavailable, match="is it running"):
                await store.load(address_of("any"))
            with pytest.raises(NotOwner):
                guard.guard()
            await asyncio.to_thread(fragile.start)
            await guard.held()
            assert (await until_answered(lambda: store.load(address_of("any")))).floor == 0
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    scene(play)


@pytest.mark.usefixtures("settings")
def test_an_emptied_database_is_an_empty_ledger(fragile: PostgresServer) -> None:
    """A process that goes on while its database is replaced by an empty one finds an empty ledger, which statuses disprove, and not an
    error for ever."""

    async def play() -> None:
        async with opened(fragile, "prod") as store:
            key = await owned(store, "key")
            await asyncio.to_thread(fragile.put_back, None)
            view = await until_answered(lambda: store.load(key.record.address))
            assert (view.record, view.revision, view.epoch) == (None, 0, 1)

    scene(play)


def test_what_is_not_shared_is_refused(postgres: Postgres) -> None:
    """A file is no ledger of an operator, and the install of commands on PostgreSQL is not either."""
    with pytest.raises(InvalidInput, match=r"the operator needs a store .* and sqlite:///ledger.db is not one"):
        open_shared("sqlite:///ledger.db", install="prod", by="the operator")
    with pytest.raises(InvalidInput, match="give a gateway another --install"):
        open_shared(postgres.server.url, install="local", by="a gateway")


def test_connections_of_a_process_are_bounded(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many verbs run at once: the pool, one for the lease, one for the watch."""
    monkeypatch.setenv("SPARKONCE_POSTGRES_POOL", "3")
    install = fresh("install")
    counted = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'sparkonce%%'"
    before = int(postgres.sql(counted)[0][0])

    async def play() -> None:
        most = 0
        async with opened(postgres.server, install) as store:
            lease = await store.open_lease(owner="me")
            changes: asyncio.Queue[KeyChange] = asyncio.Queue()
            watching = asyncio.create_task(heard(store, 0, changes))
            verbs = asyncio.gather(
                *(store.reserve(request(f"key {n}"), lease=lease, floor=0) for n in range(60)), return_exceptions=True
            )
            while not verbs.done():
                most = max(most, int((await asyncio.to_thread(postgres.sql, counted))[0][0]) - before)
            assert 3 <= most <= 5
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        assert_eventually(lambda: int(postgres.sql(counted)[0][0]) <= before, 20)

    scene(play)


@pytest.mark.usefixtures("settings")
def test_a_lease_is_revoked_while_the_pool_is_used_up(postgres: Postgres) -> None:
    """A process that stops acting ends its lease although every connection waits: nothing renews it any more, and others take over."""
    install = fresh("install")

    async def play() -> None:
        async with opened(postgres.server, install, ttl=2) as store, opened(postgres.server, install) as other:
            lease = await store.open_lease(owner="me")
            done = await store.reserve(request("precious"), lease=lease, floor=0)
            assert isinstance(done, Owned)
            held = request("held")
            blocker = postgres.server.connect()
            number = lock_of(schema_of(install), held.address.realm, held.address.key_hash)
            blocker.execute(f"SELECT pg_advisory_lock({number})".encode())
            waiting = [
                asyncio.create_task(until_answered(lambda: store.reserve(held, lease=lease, floor=0)))
                for _ in range(4 * POOL)
            ]
            await asyncio.sleep(0.2)
            began = time.monotonic()
            await lease.revoke()
            assert time.monotonic() - began < stretched(PATIENCE / 2)
            successor = await other.open_lease(owner="other")
            assert isinstance(await other.take_over(done.record, lease=successor, nonce=fresh()), Owned)
            blocker.close()
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    scene(play)
