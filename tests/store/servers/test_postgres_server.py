"""A PostgreSQL server, or a client of it, is killed, frozen or cut off: acknowledged writes stay, and no call waits for ever."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
import pytest

from harness.eventually import assert_eventually
from harness.patience import Patience, stretched, within
from harness.postgres import PostgresServer
from harness.proxy import Flow, Proxy
from sparkonce.blocking import run
from sparkonce.errors import StoreUnavailable
from sparkonce.model.record import Address
from sparkonce.store.postgres import database as postgres_database
from sparkonce.store.postgres.address import lock_of
from sparkonce.store.postgres.database import AGAIN, PostgresTransaction, RolledBack
from sparkonce.store.postgres.store import PostgresStore
from sparkonce.store.protocol import Duplicate, Finalized, IdempotencyStore, KeyChange, Lease, Owned, Query, Request
from store.backends import Postgres
from store.samples import address_of, fresh, request, reserved, result
from store.worker import Worker

PATIENCE = 1.0
"""The stores' timeout, in seconds."""
CALLERS, KILLS = 4, 3
EACH_TIME = 20
"""Minimum number of answers per caller between two kills."""
WRITTEN = 6
"""Keys per process, each written three times."""


@pytest.fixture
def fragile() -> Iterator[PostgresServer]:
    """A server for this test alone, which it may kill."""
    made = PostgresServer()
    made.start()
    yield made
    made.close()


def until_answered(call: Callable[[], Any]) -> Any:
    """Repeats the call until the store answers, as every caller must."""
    patience = Patience(60)
    while True:
        try:
            return run(call())
        except StoreUnavailable:
            if patience.over():
                raise


def test_no_reserve_that_won_is_reported_lost(fragile: PostgresServer) -> None:
    """While the server is killed and restarted, four callers reserve the same keys, each repeating until answered: each key has one owner,
    all agree on it, and nothing happened twice."""
    stores = [PostgresStore(fragile.url, timeout=5.0, ttl=3600) for _ in range(CALLERS)]
    answers: list[list[tuple[Request, Any]]] = [[] for _ in stores]
    stop = threading.Event()

    def reserve_on(number: int) -> None:
        store, made = stores[number], 0
        lease = until_answered(partial(store.open_lease, owner=f"caller {number}"))
        while not stop.is_set():
            asked = request(f"key {made}", nonce=fresh())
            answers[number].append((asked, until_answered(partial(store.reserve, asked, lease=lease, floor=0))))
            made += 1

    threads = [threading.Thread(target=reserve_on, args=(number,)) for number in range(CALLERS)]
    for thread in threads:
        thread.start()
    for _ in range(KILLS):
        made_enough(answers, more_than=min(len(each) for each in answers) + EACH_TIME)
        fragile.kill()
        fragile.start()
    stop.set()
    for thread in threads:
        thread.join()

    least = min(len(each) for each in answers)
    assert least > KILLS * EACH_TIME
    look = stores[0]
    for number in range(least):
        said = [each[number] for each in answers]
        owners = [asked.nonce for asked, done in said if isinstance(done, Owned)]
        view = run(look.load(address_of(f"key {number}")))
        assert view.record is not None and view.claim is not None
        assert owners == [view.claim.nonce] == [view.record.nonce]
        assert all(done.record.nonce == owners[0] for _, done in said)
        assert {type(done) for asked, done in said if asked.nonce != owners[0]} == {Duplicate}
        assert len(run(look.events(address_of(f"key {number}")))) == 1
    for store in stores:
        run(store.close())


def made_enough(answers: list[list[tuple[Request, Any]]], *, more_than: int) -> None:
    assert_eventually(lambda: min(len(each) for each in answers) > more_than, 60)


def test_a_restart_between_two_calls_is_not_noticed(fragile: PostgresServer) -> None:
    """Idle connections that the server closed are replaced before anything is sent on them; leases and records stay."""
    store = PostgresStore(fragile.url, timeout=30.0)
    key = reserved(store)
    fragile.kill()
    with pytest.raises(StoreUnavailable, match="is it running"):
        key.view()
    fragile.start()
    assert key.change(phase="Running").phase == "Running"
    fragile.kill()
    fragile.start()
    assert run(key.lease.keep_alive()) is True
    assert key.view().claim == key.claim
    run(store.close())


def test_a_frozen_server_is_not_waited_for(fragile: PostgresServer) -> None:
    """With a server that does not answer, calls are unavailable within the store's timeout, on an open connection and on a new one."""
    store = PostgresStore(fragile.url, timeout=PATIENCE)
    key = reserved(store)
    with fragile.frozen():
        for call in (key.view, partial(key.change, phase="x"), lambda: PostgresStore(fragile.url, timeout=PATIENCE)):
            began = time.monotonic()
            with pytest.raises(StoreUnavailable):
                call()
            assert time.monotonic() - began < stretched(10 * PATIENCE)
    again = until_answered(partial(store.update, key.record, key.claim, key.record.changed(phase="x")))
    assert again.record.phase == "x"
    run(store.close())


# --- lost and late messages


@pytest.fixture
def line(postgres: Postgres) -> Iterator[Proxy]:
    made = Proxy(f"127.0.0.1:{postgres.server.port}")
    yield made
    made.close()


def over(line: Proxy, postgres: Postgres) -> PostgresStore:
    url = postgres.server.url.replace(f"127.0.0.1:{postgres.server.port}", line.address)
    return PostgresStore(url, **(postgres._options | {"timeout": PATIENCE}))


def at_commit(monkeypatch: pytest.MonkeyPatch, do: Callable[[], None]) -> None:
    """Calls the function once, when the next transaction is about to commit."""
    rest = [do]

    def hit(name: str) -> None:
        if name == "store.sql.commit.before" and rest:
            rest.pop()()

    monkeypatch.setattr(postgres_database, "hit", hit)


@pytest.mark.parametrize("fate", ["reply lost", "cut", "late"])
def test_a_commit_whose_reply_does_not_come(
    postgres: Postgres, line: Proxy, monkeypatch: pytest.MonkeyPatch, fate: str
) -> None:
    """A COMMIT whose reply is lost, or that arrives long after its caller gave up, is StoreUnavailable; the caller repeats the call and is
    recognised: the key is owned, taken over and finalized once."""
    store = over(line, postgres)

    def spoil() -> None:
        if fate == "late":
            line.requests = Flow.HOLD
            return
        line.replies, dropped = Flow.DROP, line.dropped
        if fate == "cut":
            threading.Thread(target=cut_after, args=(dropped,)).start()

    def cut_after(dropped: int) -> None:
        assert_eventually(lambda: line.dropped > dropped, 20)
        line.cut()

    def twice(call: Callable[[], Any]) -> Any:
        at_commit(monkeypatch, spoil)
        with pytest.raises(StoreUnavailable):
            run(call())
        line.heal()
        return until_answered(call)

    asked = request(fresh("key"), nonce=fresh())
    lease = run(store.open_lease(owner="me"))
    owned = twice(partial(store.reserve, asked, lease=lease, floor=0))
    assert isinstance(owned, Owned) and owned.claim.nonce == asked.nonce
    run(store.drop(owned.claim))
    taken = twice(partial(store.take_over, owned.record, lease=lease, nonce=fresh()))
    assert isinstance(taken, Owned)
    ended = twice(partial(store.finalize, taken.record, taken.claim, result(), retention=60.0))
    assert isinstance(ended, Finalized)
    assert [event.what for event in run(store.events(asked.address))] == ["Reserved", "TakenOver", "Finalized"]
    run(store.close())


def test_an_unanswered_keepalive_adds_nothing(postgres: Postgres, line: Proxy) -> None:
    """The deadline moves only when an answer arrives, and counts from when its request was sent."""
    store = over(line, postgres)
    lease = run(store.open_lease(owner="me"))
    before = lease.deadline
    line.replies = Flow.DROP
    with pytest.raises(StoreUnavailable):
        run(lease.keep_alive())
    assert lease.deadline == before
    line.heal()
    line.delay = 0.05
    sent = time.monotonic()
    assert run(lease.keep_alive()) is True
    assert before < lease.deadline <= sent + postgres._options["ttl"] + 0.05
    run(store.close())


# --- clients that block others


def test_a_client_frozen_in_a_transaction_is_thrown_out(postgres: Postgres) -> None:
    """A process frozen while it holds a step's locks blocks others no longer than its timeout; when it resumes, it has changed nothing and
    gets an unknown outcome."""
    store = postgres.open()
    key = reserved(store, key="contested")
    frozen = Worker(postgres.opening(timeout=PATIENCE))
    try:
        frozen.do(nothing)
        frozen.ask(attach_here, key.record, fail="store.sql.commit.before=stop")
        frozen.wait_until_frozen()
        began = time.monotonic()
        assert key.change(phase="Running").phase == "Running"  # the same key
        assert reserved(store).record.generation == 1  # another one, which needs the store's revision
        assert time.monotonic() - began < stretched(20 * PATIENCE)
        frozen.wake()
        with pytest.raises(StoreUnavailable):
            frozen.answer()
        assert key.now().objects == ()
        assert len(run(store.events(key.address))) == 1
    finally:
        frozen.end()


def nothing(store: IdempotencyStore, lease: Lease) -> None:
    """Does nothing; its answer shows that the process is ready."""


def attach_here(store: IdempotencyStore, lease: Lease, record: Any) -> object:
    return run(store.attach(record, "uid"))


def test_a_lock_that_somebody_holds(postgres: Postgres) -> None:
    """A key that another session has locked is unavailable after the timeout, with one sentence; reading it needs no lock."""
    patient = postgres.open()
    key = reserved(patient)
    store = postgres.open(timeout=PATIENCE)
    with holding(postgres, key.address):
        with pytest.raises(StoreUnavailable, match=r"was locked by others for 0.8 s; try again"):
            run(store.attach(key.record, "uid"))
        assert run(store.load(key.address)).record == key.record
    assert run(store.attach(key.record, "uid")).record.objects == ("uid",)  # type: ignore[union-attr]  # Attached


def holding(postgres: Postgres, address: Address) -> psycopg.Connection[Any]:
    """A connection that holds the key's lock until it is closed."""
    connection = postgres.server.connect()
    number = lock_of(postgres.schema, address.realm, address.key_hash)
    connection.execute(f"SELECT pg_advisory_lock({number})".encode())
    return connection


def test_a_deadlock_is_repeated(postgres: Postgres) -> None:
    """A step that the server picked as a deadlock's victim is repeated and carried out once; its caller does not notice."""
    store = postgres.open()
    key = reserved(store)
    answers: list[Any] = []
    with postgres.server.connect() as other:
        other.execute(f'SET search_path TO "{postgres.schema}"'.encode())
        other.execute("SET deadlock_timeout = '60s'")  # so that the store's session detects the deadlock first
        other.execute("BEGIN")
        other.execute("SELECT revision FROM meta FOR UPDATE")
        step = threading.Thread(target=lambda: answers.append(run(store.attach(key.record, "uid"))))
        step.start()
        assert_eventually(lambda: waits(postgres) == 1, 20)
        deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        number = lock_of(postgres.schema, key.address.realm, key.address.key_hash)
        other.execute(f"SELECT pg_advisory_xact_lock({number})".encode())  # returns when the store's session gave way
        other.execute("COMMIT")
        step.join()
    assert answers[0].record.objects == ("uid",)
    assert_eventually(lambda: bool(postgres.sql(deadlocks)[0][0]), 20)
    assert len(run(store.events(key.address))) == 1


def waits(postgres: Postgres) -> int:
    return int(postgres.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")[0][0])


def test_what_cannot_be_repeated_for_ever(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the server keeps rolling back, the store is unavailable after a number of repetitions; if it stops, the step succeeds."""
    store = postgres.open()
    key = reserved(store)
    real, tries = PostgresTransaction.commit, []

    def rolls_back(self: PostgresTransaction) -> None:
        tries.append(1)
        if len(tries) <= limit:
            raise psycopg.errors.SerializationFailure("could not serialize access")
        real(self)

    monkeypatch.setattr(PostgresTransaction, "commit", rolls_back)
    limit = AGAIN
    assert run(store.attach(key.record, "uid")).record.objects == ("uid",)  # type: ignore[union-attr]  # Attached
    tries.clear()
    limit = 10 * AGAIN
    with pytest.raises(RolledBack, match="rolled back the transaction"):
        run(store.attach(key.now(), "other"))
    assert len(tries) == AGAIN + 1


# --- revisions


def test_a_watch_misses_no_change_that_commits_late(postgres: Postgres) -> None:
    """While one change is delayed between taking its revision and its commit, another key changes: a watcher that polls all the time sees
    both, in the order of their revisions."""
    store = postgres.open()
    first, second = reserved(store), reserved(store)
    since = second.view().revision
    slow = Worker(postgres.opening())
    seen: list[KeyChange] = []

    async def watch() -> None:
        async for change in store.watch(since):
            seen.append(change)
            if len(seen) == 2:
                return

    try:
        slow.do(nothing)
        slow.ask(attach_here, first.record, fail="store.sql.commit.before=sleep(700)")
        watcher = threading.Thread(target=lambda: asyncio.run(within(watch(), 30)))
        watcher.start()
        assert_eventually(lambda: has_begun(postgres), 20)
        run(postgres.open().attach(second.record, "uid"))
        slow.answer()
        watcher.join()
    finally:
        slow.end()
    assert [change.address for change in seen] == [first.address, second.address]
    assert [change.revision for change in seen] == [since + 1, since + 2]


def has_begun(postgres: Postgres) -> bool:
    rows = postgres.sql("SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'")
    return bool(rows[0][0])


def test_a_watch_sees_what_four_processes_write(postgres: Postgres) -> None:
    """Four processes write at once: the last change of every key is seen, and no revision is given twice."""
    store = postgres.open()
    workers = [Worker(postgres.opening()) for _ in range(4)]
    newest: dict[Address, int] = {}
    stop = threading.Event()

    async def watch() -> None:
        async for change in store.watch(0):
            assert change.address is not None and not change.gap
            assert change.revision > newest.get(change.address, 0)
            newest[change.address] = change.revision
            if stop.is_set() and change.revision == last:
                return

    last = 0
    watcher = threading.Thread(target=lambda: asyncio.run(within(watch(), 60)))
    watcher.start()
    try:
        for number, worker in enumerate(workers):
            worker.ask(write_many, f"w{number}")
        written = [revision for worker in workers for revision in worker.answer()]
    finally:
        for worker in workers:
            worker.end()
    last = run(store.load(address_of("any"))).revision + 1
    stop.set()
    reserved(store)
    watcher.join()
    assert len(set(written)) == len(written) == 4 * 3 * WRITTEN
    stands = {record.address: record.revision for record in listed(store)}
    assert newest == stands


def write_many(store: IdempotencyStore, lease: Lease, name: str) -> list[int]:
    revisions = []
    for number in range(WRITTEN):
        key = reserved(store, lease, f"{name}-{number}")
        revisions += [key.record.revision, key.change(phase="a").revision, key.change(phase="b").revision]
    return revisions


def listed(store: IdempotencyStore) -> list[Any]:
    return list(run(store.list(Query(limit=1000))).records)
