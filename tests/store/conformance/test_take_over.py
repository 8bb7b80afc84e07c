"""take_over, heartbeat, drop, leases: who acts now, and who no longer may."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from harness import effort
from harness.eventually import assert_eventually
from sparkonce.blocking import run
from sparkonce.model.record import HeldReason, Record, State
from sparkonce.store.protocol import (
    Finalized,
    IdempotencyStore,
    Lease,
    Lost,
    LostOwnership,
    NotFound,
    Owned,
    Updated,
)
from sparkonce.store.sqlite.store import SqliteStore
from store.backends import Backend, Durable, Sqlite
from store.racing import at_once
from store.samples import Key, fresh, reserved, result, taken
from store.worker import Worker

ROUNDS = effort.size("racing rounds")


def lease_of(store: IdempotencyStore) -> Lease:
    return run(store.open_lease(owner=fresh("owner")))


def test_a_live_owner_is_not_replaced(store: IdempotencyStore) -> None:
    """While the lease of a key's claim is alive, take_over is Lost and returns the record."""
    key = reserved(store)
    assert run(store.take_over(key.record, lease=lease_of(store), nonce=fresh())) == Lost(key.record)
    assert key.view().claim == key.claim


def test_a_dead_owner_is_replaced_at_once(backend: Backend, store: IdempotencyStore) -> None:
    """Once the lease has ended no read shows the claim, and the first caller owns the unchanged record."""
    key = reserved(store)
    backend.expire(key.lease)
    assert key.view().claim is None
    lease = lease_of(store)
    done = run(store.take_over(key.record, lease=lease, nonce="successor"))
    assert isinstance(done, Owned)
    assert (done.record, done.claim.lease, done.claim.nonce) == (key.record, lease.id, "successor")
    assert key.view().claim == done.claim
    assert [event.what for event in run(store.events(key.address))] == ["Reserved", "TakenOver"]


def test_exactly_one_of_eight_threads_takes_over(backend: Backend, store: IdempotencyStore) -> None:
    """Of eight simultaneous callers exactly one owns the dead owner's key, in every round."""
    leases = [lease_of(store) for _ in range(8)]
    for _ in range(ROUNDS):
        key = reserved(store)
        backend.expire(key.lease)
        outcomes = at_once([partial(take_one, store, lease, key.record) for lease in leases])
        assert Counter(type(done) for done in outcomes) == {Owned: 1, Lost: 7}


def take_one(store: IdempotencyStore, lease: Lease, record: Record) -> Owned | Lost:
    return run(store.take_over(record, lease=lease, nonce=fresh(lease.id)))


def test_exactly_one_of_four_processes_takes_over(durable: Durable, neighbours: list[Worker]) -> None:
    """Four processes take over the same dead owner's keys while they also read them: each key has one new owner."""
    store = durable.open()
    lease = lease_of(store)
    records = [reserved(store, lease).record for _ in range(ROUNDS)]
    durable.expire(lease)
    for worker in neighbours:
        worker.ask(take_all, records)
    owned = [worker.answer() for worker in neighbours]
    assert [sum(column) for column in zip(*owned, strict=True)] == [1] * ROUNDS


def take_all(store: IdempotencyStore, lease: Lease, records: list[Record]) -> list[bool]:
    """The keys that this process took over; between them it reads all keys, as a follower would."""
    ours = []
    for number, record in enumerate(records):
        ours.append(isinstance(take_one(store, lease, record), Owned))
        for other in records[number:]:
            run(store.load(other.address))
    return ours


def test_a_repetition_takes_over_once(backend: Backend, store: IdempotencyStore) -> None:
    """The same call with the same nonce gets the same claim, even if the record has changed since."""
    key = reserved(store)
    backend.expire(key.lease)
    lease = lease_of(store)
    first = run(store.take_over(key.record, lease=lease, nonce="mine"))
    assert isinstance(first, Owned)
    assert run(store.take_over(key.record, lease=lease, nonce="mine")) == first
    run(store.attach(first.record, "follower"))
    again = run(store.take_over(key.record, lease=lease, nonce="mine"))
    assert again == Owned(key.now(), first.claim)
    assert isinstance(run(store.take_over(key.now(), lease=lease, nonce="another")), Lost)


def test_a_changed_record_is_not_taken_over(backend: Backend, store: IdempotencyStore) -> None:
    """A caller that decided on an older record must decide again."""
    key = reserved(store)
    run(store.attach(key.record, "follower"))
    backend.expire(key.lease)
    done = run(store.take_over(key.record, lease=lease_of(store), nonce=fresh()))
    assert done == Lost(key.now())


def test_a_held_record_is_taken_over_and_a_finalized_one_never(backend: Backend, store: IdempotencyStore) -> None:
    """Resolving a held key takes it over; a finalized key or one without a record can never be taken over."""
    held = reserved(store)
    held.change(state=State.HELD, held=HeldReason.UNKNOWN)
    assert held.view().claim is None
    assert taken(store, held.record).change(state=State.IN_PROGRESS, held=None).state is State.IN_PROGRESS

    ended = reserved(store)
    ended.finalize()
    assert run(store.take_over(ended.record, lease=lease_of(store), nonce=fresh())) == Lost(ended.record)
    absent = reserved(store)
    absent.remove()
    assert run(store.take_over(absent.record, lease=lease_of(store), nonce=fresh())) == Lost(None)


def test_an_ended_lease_takes_nothing_over(backend: Backend, store: IdempotencyStore) -> None:
    """A process that has lost its lease can become the owner of nothing."""
    key = reserved(store)
    backend.expire(key.lease)
    assert run(store.take_over(key.record, lease=key.lease, nonce=fresh())) == Lost(key.record)
    assert key.view().claim is None


@pytest.mark.parametrize("successor", [False, True], ids=["nobody", "successor"])
def test_writes_of_a_lost_owner(backend: Backend, store: IdempotencyStore, successor: bool) -> None:
    """Every write under a claim that has ended is refused and writes nothing, whether or not the key has a new owner."""
    key = reserved(store)
    backend.expire(key.lease)
    if successor:
        taken(store, key.record)
    before = key.view()
    assert run(store.heartbeat(key.claim)) == LostOwnership()
    assert run(store.update(key.record, key.claim, key.record.changed(phase="Running"))) == LostOwnership()
    assert run(store.finalize(key.record, key.claim, result(), retention=1.0)) == LostOwnership()
    run(store.drop(key.claim))
    assert key.view() == before


def test_a_claim_is_its_revision_and_its_nonce(store: IdempotencyStore) -> None:
    """The claim's revision without its nonce does not prove ownership: a restored store assigns the same revisions again."""
    key = reserved(store)
    stranger = replace(key.claim, nonce="another")
    assert run(store.heartbeat(stranger)) == LostOwnership()
    assert run(store.update(key.record, stranger, key.record.changed(phase="Running"))) == LostOwnership()
    assert run(store.finalize(key.record, stranger, result(), retention=1.0)) == LostOwnership()
    run(store.drop(stranger))
    assert (key.now(), key.view().claim) == (key.record, key.claim)


def test_heartbeat_answers_what_became_of_the_key(store: IdempotencyStore) -> None:
    """A heartbeat says whether the key is still ours, finalized with which result, or gone, and never changes the record."""
    key = reserved(store)
    assert run(store.heartbeat(key.claim)) == Updated(key.record)
    assert key.view().revision == key.record.revision
    key.finalize()
    assert run(store.heartbeat(key.claim)) == Finalized(key.record, result())
    run(store.purge(key.record, now=key.record.expires_at or 0))
    assert run(store.heartbeat(key.claim)) == NotFound()


def test_drop_gives_the_claim_up(store: IdempotencyStore) -> None:
    """Others can take over a dropped claim at once; the record is unchanged; dropping again, or dropping another's claim, does nothing."""
    key = reserved(store)
    run(store.drop(key.claim))
    view = key.view()
    assert (view.record, view.claim) == (key.record, None)
    run(store.drop(key.claim))
    assert key.view() == view
    successor = taken(store, key.record)
    run(store.drop(key.claim))
    assert key.view().claim == successor.claim


def test_revoking_a_lease_ends_all_its_claims(store: IdempotencyStore) -> None:
    """revoke ends every claim of the lease at once, and no other claim; calling it again does no harm, and keep_alive then reports the
    end."""
    mine, other = lease_of(store), lease_of(store)
    keys = [reserved(store, mine) for _ in range(3)]
    kept = reserved(store, other)
    assert run(mine.keep_alive()) is True
    run(mine.revoke())
    run(mine.revoke())
    assert run(mine.keep_alive()) is False
    assert [key.view().claim for key in keys] == [None] * 3
    assert kept.view().claim == kept.claim
    assert isinstance(taken(store, keys[0].record), Key)


# --- a process that dies, and one that freezes


def test_a_killed_process_is_replaced_at_once(sqlite: Sqlite, worker: Worker) -> None:
    """After SIGKILL of its owner a key can be taken over immediately, since the kernel releases the lease; nothing has to time out."""
    store = sqlite.open()
    record = worker.do(reserve_here, "precious").record
    assert run(store.load(record.address)).claim is not None
    worker.kill()
    assert run(store.load(record.address)).claim is None
    assert isinstance(run(store.take_over(record, lease=lease_of(store), nonce=fresh())), Owned)


def reserve_here(store: SqliteStore, lease: Lease, key: str) -> Owned:
    made = reserved(store, lease, key)
    return Owned(made.record, made.claim)


def test_a_frozen_process_loses_its_key(sqlite: Sqlite) -> None:
    """A process that is frozen for longer than `stale_after` can be replaced although it still holds its lock; its writes after resuming
    are refused."""
    stale_after = 1.0
    store = sqlite.open(stale_after=stale_after)
    owner = Worker(sqlite.opening(stale_after=stale_after))
    try:
        owned = owner.do(reserve_here, "precious")
        owner.freeze()
        successor = eventually_taken(store, owned.record)
        owner.wake()
        assert owner.do(heartbeat_here, owned) == LostOwnership()
        assert owner.do(update_here, owned) == LostOwnership()
        assert owner.do(finalize_here, owned) == LostOwnership()
        view = run(store.load(owned.record.address))
        assert (view.record, view.claim) == (owned.record, successor.claim)
    finally:
        owner.end()


def eventually_taken(store: SqliteStore, record: Record) -> Owned:
    """Refused at first, while the owner may be alive."""
    lease = lease_of(store)
    assert isinstance(take_one(store, lease, record), Lost)

    def take() -> Owned | bool:
        done = run(store.take_over(record, lease=lease, nonce="successor"))
        return isinstance(done, Owned) and done

    done = assert_eventually(take, 10.0)
    assert isinstance(done, Owned)
    return done


def heartbeat_here(store: SqliteStore, lease: Lease, owned: Owned) -> object:
    return run(store.heartbeat(owned.claim))


def update_here(store: SqliteStore, lease: Lease, owned: Owned) -> object:
    return run(store.update(owned.record, owned.claim, owned.record.changed(phase="Running")))


def finalize_here(store: SqliteStore, lease: Lease, owned: Owned) -> object:
    return run(store.finalize(owned.record, owned.claim, result(), retention=1.0))


def test_an_owner_that_touches_its_claims_keeps_them(sqlite: Sqlite) -> None:
    """Staleness counts from the claim's last touch, by its heartbeat or by keep_alive of its lease, and never by the wall clock. A stale
    claim that was not taken over still belongs to its owner: a process stopped with Ctrl-Z can continue."""
    seconds = 0.0
    store = sqlite.open(stale_after=30.0, monotonic=lambda: seconds)
    beaten, kept, silent = reserved(store), reserved(store), reserved(store)
    seconds = 29.0
    sqlite.clock.ahead = 1e6
    assert silent.view().claim == silent.claim
    run(store.heartbeat(beaten.claim))
    run(kept.lease.keep_alive())
    seconds = 58.0
    assert (beaten.view().claim, kept.view().claim, silent.view().claim) == (beaten.claim, kept.claim, None)
    assert isinstance(run(store.heartbeat(silent.claim)), Updated)
    assert silent.view().claim == silent.claim
