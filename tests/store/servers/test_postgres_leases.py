"""Leases in PostgreSQL: they end by the database's clock, for good, and every watcher sees the end."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter
from functools import partial

import pytest

from harness.eventually import assert_eventually
from harness.patience import stretched, within
from sparkonce.blocking import run
from sparkonce.errors import StoreUnavailable, StoreUnusable
from sparkonce.model.record import Address, Beat, HeldReason, State
from sparkonce.store.postgres.store import PostgresStore
from sparkonce.store.protocol import Finalized, Gone, IdempotencyStore, KeyChange, Lease, Lost, LostOwnership, Owned
from sparkonce.store.roster import Replica
from store.backends import Postgres
from store.racing import at_once
from store.samples import address_of, fresh, reserved, result
from store.worker import Worker

TTL = 1.0
"""Seconds; long enough for a process on a busy machine to keep its lease alive."""
SLACK = 3.0
"""Seconds after the TTL: one to replace a dead owner (docs/design.md, section 1, P2), the rest as allowance for a busy machine."""
_held: list[Lease] = []
"""In a worker: the lease that it opened on request, since the one from its start may have ended by then."""


def lease_of(store: IdempotencyStore) -> Lease:
    return run(store.open_lease(owner=fresh("owner")))


def ends_of(postgres: Postgres, lease: Lease) -> float:
    """Seconds until the database ends the lease; negative once it has."""
    rows = postgres.sql("SELECT ends - extract(epoch FROM clock_timestamp()) FROM leases WHERE id = %s", lease.id)
    return float(rows[0][0]) if rows else -math.inf


def test_a_lease_ends_by_the_databases_clock(postgres: Postgres) -> None:
    """Without a keepalive no read shows the claim after the TTL, the owner's writes are refused, and the lease never revives."""
    store = postgres.open(ttl=TTL)
    silent, kept = reserved(store), reserved(store)
    began = time.monotonic()

    def silent_is_gone() -> bool:
        assert run(kept.lease.keep_alive())
        return silent.view().claim is None

    assert_eventually(silent_is_gone, TTL + 10)
    assert time.monotonic() - began > TTL / 2
    assert kept.view().claim == kept.claim
    assert run(store.update(silent.record, silent.claim, silent.record.changed(phase="x"))) == LostOwnership()
    assert run(silent.lease.keep_alive()) is False
    assert silent.lease.deadline == -math.inf
    assert run(store.take_over(silent.record, lease=silent.lease, nonce=fresh())) == Lost(silent.record)
    assert isinstance(run(store.take_over(silent.record, lease=kept.lease, nonce=fresh())), Owned)


def test_a_lease_is_kept_alive_though_its_process_is_busy(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the caller blocks for longer than the TTL, the lease's own thread renews it, even if replies are lost. After the store is
    closed the lease ends by itself, and when the store reports the end, the database has ended it."""
    store = postgres.open(ttl=TTL, keep=True)
    lease = lease_of(store)
    real, tries = store._prolong, []

    def sometimes(name: str) -> bool:
        tries.append(name)
        if len(tries) % 2:
            raise StoreUnavailable("lost")
        return real(name)

    monkeypatch.setattr(lease, "_prolong", sometimes)
    until = time.monotonic() + 3 * TTL
    assert_eventually(lambda: time.monotonic() > until, 60, interval=TTL)
    assert len(tries) > 4
    assert lease.deadline > time.monotonic()
    assert ends_of(postgres, lease) > 0
    postgres.expire(lease)
    assert_eventually(lambda: lease.deadline == -math.inf, 20)

    other = lease_of(store)
    run(store.close())
    assert_eventually(lambda: ends_of(postgres, other) < 0, 20)


def test_the_deadline_is_on_the_safe_side(postgres: Postgres) -> None:
    """The holder's deadline is before the database's, after opening and after every keepalive; an unanswered keepalive does not move it."""
    store = postgres.open(ttl=60.0)
    lease = lease_of(store)
    for _ in range(3):
        assert run(lease.keep_alive()) is True
        here = lease.deadline - time.monotonic()
        assert here > 50
        there = ends_of(postgres, lease)
        assert here - (lease.deadline - time.monotonic()) < 50  # a stalled machine proves nothing
        assert lease.deadline - time.monotonic() <= there
    before = lease.deadline
    postgres.sql("ALTER TABLE leases RENAME TO elsewhere")
    with pytest.raises(StoreUnavailable, match="looks for them"):  # the database may have been emptied
        run(lease.keep_alive())
    with pytest.raises(StoreUnusable):  # it was not: the ledger is damaged
        run(lease.keep_alive())
    assert lease.deadline == before
    postgres.sql("ALTER TABLE elsewhere RENAME TO leases")
    run(lease.revoke())
    assert (lease.deadline, ends_of(postgres, lease)) == (-math.inf, -math.inf)


def test_a_keepalive_that_is_under_way_wins(postgres: Postgres) -> None:
    """A process that takes over from a lease that looks ended waits for a keepalive that is being written, and decides by its result."""
    store = postgres.open()
    key, other = reserved(store), lease_of(store)
    postgres.expire(key.lease)
    answers: list[Owned | Lost] = []
    with postgres.server.connect() as connection:
        connection.execute(f'SET search_path TO "{postgres.schema}"'.encode())
        connection.execute("BEGIN")
        connection.execute("UPDATE leases SET ends = 1e12 WHERE id = %s", [key.lease.id])
        taking = threading.Thread(
            target=lambda: answers.append(run(store.take_over(key.record, lease=other, nonce=fresh())))
        )
        taking.start()
        assert_eventually(lambda: waits_for_a_lock(postgres), 20)
        connection.execute("COMMIT")
        taking.join()
    assert answers == [Lost(key.record)]
    assert key.view().claim == key.claim
    assert key.change(phase="Running").phase == "Running"


def waits_for_a_lock(postgres: Postgres) -> bool:
    rows = postgres.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    return bool(rows[0][0] == 1)


def test_an_ended_lease_stays_ended(postgres: Postgres) -> None:
    """Once another process has acted on its end, a late keepalive is refused, although its row could still be updated."""
    store = postgres.open()
    key = reserved(store)
    postgres.expire(key.lease)
    assert run(store.heartbeat(key.claim)) == LostOwnership()
    assert ends_of(postgres, key.lease) == -math.inf
    assert run(key.lease.keep_alive()) is False


def test_a_killed_process_is_replaced_within_its_ttl(postgres: Postgres) -> None:
    """After SIGKILL of an owner a watcher learns that its key has no owner, and takes it over, within TTL + 1 s."""
    store = postgres.open(ttl=TTL)
    owner = Worker(postgres.opening(ttl=TTL, keep=True))
    try:
        record = owner.do(reserve_here, "precious").record
        since = run(store.load(record.address)).revision
        owner.kill()
        died = time.monotonic()
        change = asyncio.run(first_unowned(store, since))
        assert change.address == record.address
        assert isinstance(run(store.take_over(record, lease=lease_of(store), nonce=fresh())), Owned)
        assert time.monotonic() - died < TTL + stretched(SLACK)
    finally:
        owner.end()


def reserve_here(store: IdempotencyStore, lease: Lease, key: str) -> Owned:
    _held.append(lease_of(store))
    made = reserved(store, _held[-1], key)
    return Owned(made.record, made.claim)


async def first_unowned(store: IdempotencyStore, since: int) -> KeyChange:
    async def look() -> KeyChange:
        async for change in store.watch(since):
            if change.unowned:
                return change
        raise AssertionError("the watch ended")

    return await within(look(), 20)


def test_a_paused_owner_loses_its_key_and_writes_nothing(postgres: Postgres) -> None:
    """A process that was frozen for longer than its TTL finds, when it resumes, its lease ended and every write refused; its successor's
    writes stay."""
    store = postgres.open(ttl=TTL)
    owner = Worker(postgres.opening(ttl=TTL, keep=True))
    try:
        owned = owner.do(reserve_here, "precious")
        owner.freeze()
        lease = lease_of(store)

        def take() -> Owned | bool:
            run(lease.keep_alive())
            done = run(store.take_over(owned.record, lease=lease, nonce="successor"))
            return isinstance(done, Owned) and done

        successor = assert_eventually(take, TTL + 10)
        assert isinstance(successor, Owned)
        owner.wake()
        assert owner.do(everything_of_an_owner, owned) == [LostOwnership()] * 3
        assert owner.do(keep_here) is False
        view = run(store.load(owned.record.address))
        assert view.record == owned.record
        assert view.claim in (
            successor.claim,
            None,
        )  # None if the machine was so slow that the successor's lease ended, too
    finally:
        owner.end()


def everything_of_an_owner(store: IdempotencyStore, lease: Lease, owned: Owned) -> list[object]:
    record, claim = owned.record, owned.claim
    return [
        run(store.heartbeat(claim)),
        run(store.update(record, claim, record.changed(phase="Running"))),
        run(store.finalize(record, claim, result(), retention=1.0)),
    ]


def keep_here(store: IdempotencyStore, lease: Lease) -> bool:
    return run(_held[-1].keep_alive())


def test_the_end_of_a_claim_is_one_change(postgres: Postgres) -> None:
    """However many watchers notice the dead owner, each of its claims becomes one change, reported as unowned; finalized and taken-over
    keys do not."""
    store = postgres.open()
    lease = lease_of(store)
    keys = [reserved(store, lease) for _ in range(5)]
    done, taken = reserved(store, lease), reserved(store, lease)
    done.finalize()
    since = done.view().revision
    postgres.expire(lease)
    assert isinstance(run(store.take_over(taken.record, lease=lease_of(store), nonce=fresh())), Owned)
    watchers = [postgres.open() for _ in range(6)]
    at_once([partial(watcher._poll_once, since) for watcher in watchers])
    look = store._poll_once(since)
    assert look.unowned == {key.address for key in keys}
    assert Counter(address for address, _ in look.seen) == Counter([*look.unowned, taken.address])
    assert look.revision == since + 1 + len(keys)
    assert store._poll_once(look.revision).seen == []


def test_revoking_is_seen_at_once(postgres: Postgres) -> None:
    """The next read reports the claims of a revoked lease as unowned."""
    store = postgres.open()
    key = reserved(store)
    since = key.view().revision
    run(key.lease.revoke())
    assert store._changes(since).unowned == {key.address}


def test_ends_that_are_no_accident_are_told_apart(postgres: Postgres) -> None:
    """A key that is finalized, held or removed is reported as ended, one whose claim was dropped as unowned, and a running one as
    neither."""
    store = postgres.open()
    runs, dropped, finalized, held, removed = (reserved(store) for _ in range(5))
    since = removed.view().revision
    runs.change(phase="Running")
    run(store.drop(dropped.claim))
    finalized.finalize()
    held.change(state=State.HELD, held=HeldReason.UNKNOWN)
    removed.remove()

    async def told() -> dict[Address | None, tuple[bool, bool]]:
        found: dict[Address | None, tuple[bool, bool]] = {}
        async for change in store.watch(since):
            found[change.address] = change.unowned, change.ended
            if len(found) == 5:
                break
        return found

    assert asyncio.run(within(told(), 20)) == {
        runs.address: (False, False),
        dropped.address: (True, False),
        finalized.address: (False, True),
        held.address: (False, True),
        removed.address: (False, True),
    }
    run(store.purge(finalized.record, now=1e12))
    assert store._changes(finalized.record.revision).ended >= {finalized.address}


def test_rows_of_old_leases_go(postgres: Postgres) -> None:
    """Opening a lease deletes the rows of leases that have ended."""
    store = postgres.open()
    leases = [lease_of(store) for _ in range(4)]
    for lease in leases[:3]:
        postgres.expire(lease)
    last = lease_of(store)
    assert {row[0] for row in postgres.sql("SELECT id FROM leases")} == {leases[3].id, last.id}


def test_time_is_the_databases(postgres: Postgres) -> None:
    """Unless a test injects a clock, records, ages and `now` use the database's clock and not this machine's."""
    store = PostgresStore(postgres.server.url, **postgres._options)
    before = by_the_database(postgres)
    key = reserved(store)
    now = run(store.now())
    assert before <= key.record.created_at <= now <= by_the_database(postgres)
    run(store.renew(key.address, 1, Beat(attempt=1, nonce=key.record.nonce, by="driver")))
    postgres.sql("UPDATE beats SET touched = touched - 100")
    assert 100 <= run(store.beats(key.address, 1))[1, "driver"].age < 130
    run(store.close())


def by_the_database(postgres: Postgres) -> float:
    return float(postgres.sql("SELECT extract(epoch FROM clock_timestamp())")[0][0])


def test_the_roster_has_those_whose_leases_live(postgres: Postgres) -> None:
    """A replica is listed once, with its latest announcement, as long as its lease lives; entries of another version are left out."""
    store = postgres.open()
    mine, other = lease_of(store), lease_of(store)
    one = Replica(nonce="a", owner="host 1", clock=1.0, schema=1, slots=200)
    two = Replica(nonce="b", owner="host 2", clock=2.0, schema=1, slots=100)
    run(store.announce(one, lease=mine))
    run(store.announce(two, lease=other))
    renewed = Replica(nonce="a", owner="host 1", clock=9.0, schema=2, slots=0)
    run(store.announce(renewed, lease=mine))
    assert list(run(store.replicas())) == [renewed, two]
    postgres.expire(other)
    assert list(run(store.replicas())) == [renewed]
    postgres.sql("INSERT INTO replicas VALUES ('c', %s, '{\"of\": \"another version\"}')", mine.id)
    assert list(run(store.replicas())) == [renewed]
    run(store.announce(renewed, lease=mine))
    assert {row[0] for row in postgres.sql("SELECT nonce FROM replicas")} == {"a", "c"}


def test_an_expired_claim_does_not_block_the_end_of_a_key(postgres: Postgres) -> None:
    """A key whose owner is dead can be taken over, finalized and purged like any other; nothing of the dead claim remains."""
    store = postgres.open()
    key = reserved(store)
    postgres.expire(key.lease)
    done = run(store.take_over(key.record, lease=lease_of(store), nonce=fresh()))
    assert isinstance(done, Owned)
    finalized = run(store.finalize(done.record, done.claim, result(), retention=0.0))
    assert isinstance(finalized, Finalized)
    assert isinstance(run(store.purge(finalized.record, now=1e12)), Gone)
    assert postgres.sql("SELECT count(*) FROM claims") == [(0,)]
    assert run(store.load(address_of(key.record.key))).record is None
