"""After a restore, a record is rebuilt from newer evidence of applications, and raising the epoch ends the alarm."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from harness import proxy
from sparkonce.blocking import run
from sparkonce.errors import StoreUnavailable, StoreUnusable
from sparkonce.model.record import Event, HeldReason, Record, Settling, SpecBody, State, Why
from sparkonce.store.etcd.store import EtcdStore
from sparkonce.store.protocol import Changed, Gone, IdempotencyStore, LostOwnership, NotFound, Owned, Query
from sparkonce.store.restore import NewestAttempt
from store.backends import Clock
from store.etcd_backend import Etcd, opened
from store.insisting import answered
from store.samples import Key, address_of, fresh, request, reserved, taken

TOLD = SpecBody(job={"kind": "IdempotentJob", "told": "to a driver"})
"""What a driver received of the job: less than its record has."""


@pytest.fixture
def etcd() -> Iterator[Etcd]:
    """An empty install on one member."""
    made = Etcd(Clock(), members=1)
    yield made
    made.close()


@pytest.fixture
def store(etcd: Etcd) -> IdempotencyStore:
    return etcd.open()


def restorable(store: IdempotencyStore) -> EtcdStore:
    """The store as an EtcdStore, whatever wraps it."""
    return cast(EtcdStore, store)


def shown(key: str, generation: int, attempt: int, **change: Any) -> NewestAttempt:
    made = NewestAttempt(
        address=address_of(key),
        key=key,
        generation=generation,
        attempt=attempt,
        nonce=f"of-application-{generation}-{attempt}",
        fingerprint="f" * 64,
        fingerprint_version=1,
        spec=TOLD,
    )
    return replace(made, **change)


def rebuilt(store: IdempotencyStore, what: NewestAttempt) -> bool:
    return run(restorable(store).rebuild(what, by="ann"))


def history(store: IdempotencyStore, key: str) -> list[str]:
    return [event.what for event in run(store.events(address_of(key)))]


def retried(key: Key) -> Record:
    """The key after attempt 1 was lost and attempt 2 granted."""
    key.change(settling=Settling(attempt=1, why=Why.LOST))
    return key.change(attempt=2, nonce=fresh())


def test_a_key_that_nobody_remembers(store: IdempotencyStore) -> None:
    """The key is in progress at the attempt that its application shows, with that nonce and without an owner; the next process takes it
    over."""
    what = shown("lost", 3, 2, objects=("uid/etl/one",))
    assert rebuilt(store, what)
    view = run(store.load(what.address))
    record = view.record
    assert record is not None and view.claim is None
    assert (record.state, record.generation, record.attempt, record.nonce) == (State.IN_PROGRESS, 3, 2, what.nonce)
    assert (record.key, record.fingerprint, record.objects) == ("lost", "f" * 64, ("uid/etl/one",))
    assert run(store.spec(what.address, 3)) == TOLD
    assert history(store, "lost") == ["Rebuilt"]
    assert [each.address for each in run(store.list(Query(states=(State.IN_PROGRESS,)))).records] == [what.address]
    assert taken(store, record).finalize().state is State.FINALIZED


def test_an_older_attempt(store: IdempotencyStore) -> None:
    """The record's data of the generation stays, including fields that this version does not know; its owner's claim ends; the recorded job
    is not replaced by the smaller part that a driver received."""
    key = reserved(store, key="lost", objects=("uid/etl/one",))
    key.record = run(store.load(key.address)).record or key.record
    change = key.record.model_copy(update={"future": "kept"}).changed(uncounted=1, phase="Running")
    done: Any = run(store.update(key.record, key.claim, change))
    spec = run(store.spec(key.address, 1))
    assert rebuilt(store, shown("lost", 1, 4))
    now = key.now()
    assert (now.attempt, now.nonce, now.phase, now.settling) == (4, "of-application-1-4", None, None)
    assert (now.operation, now.uncounted, now.objects) == ("load", 1, ("uid/etl/one",))
    assert (now.model_extra or {})["future"] == "kept"
    assert run(store.spec(key.address, 1)) == spec
    late = run(store.update(done.record, key.claim, done.record.changed(phase="Finishing")))
    assert isinstance(late, LostOwnership)
    live = SpecBody(job={"kind": "IdempotentJob", "of": "a live object"})
    assert rebuilt(store, shown("lost", 1, 5, spec=live, led=True))
    assert run(store.spec(key.address, 1)) == live


def test_an_older_generation(store: IdempotencyStore) -> None:
    """A record that had ended is in progress again, in the generation of the evidence, and neither expires nor is purged."""
    key = reserved(store, key="lost")
    before = key.finalize(retention=0.0)
    assert rebuilt(store, shown("lost", 2, 1))
    now = key.now()
    assert (now.state, now.generation, now.expires_at, now.outcome) == (State.IN_PROGRESS, 2, None, None)
    assert now.operation == "load"
    assert isinstance(run(store.purge(before, now=1e12)), NotFound)
    assert run(store.count(live_only=True)) == 1
    assert taken(store, now).finalize().state is State.FINALIZED


def test_held_before_it_went_on(store: IdempotencyStore) -> None:
    """The backup was made before a person resolved the key; the attempt that was granted then continues."""
    key = reserved(store, key="lost")
    key.change(settling=Settling(attempt=1, why=Why.LOST))
    key.change(state=State.HELD, held=HeldReason.UNKNOWN, note="who knows")
    assert rebuilt(store, shown("lost", 1, 2))
    now = key.now()
    assert (now.state, now.held, now.note) == (State.IN_PROGRESS, None, "")


def test_the_same_attempt_under_another_grant(store: IdempotencyStore) -> None:
    """The attempt was granted twice, before the restore and after it: the application shows which grant ran."""
    key = reserved(store, key="lost")
    retried(key)
    assert rebuilt(store, shown("lost", 1, 2))
    assert key.now().nonce == "of-application-1-2"


def test_what_is_not_older_is_left_alone(store: IdempotencyStore) -> None:
    """The record stays if the evidence has the same attempt, an earlier attempt or generation, or an attempt of a generation that ended."""
    key = reserved(store, key="stands")
    assert not rebuilt(store, shown("stands", 1, 1, nonce=key.record.nonce))
    first, second = key.record.nonce, retried(key)
    assert not rebuilt(store, shown("stands", 1, 1, nonce=first))
    assert key.now() == second
    ended = key.finalize()
    assert not rebuilt(store, shown("stands", 1, 2, nonce=second.nonce))
    assert key.now() == ended
    after = key.reopen()
    assert not rebuilt(store, shown("stands", 1, 2))
    assert after.now() == after.record
    assert run(store.load(key.address)).claim == after.claim
    assert "Rebuilt" not in history(store, "stands")


def test_a_key_that_was_forgotten(store: IdempotencyStore) -> None:
    """The generation had ended, since the key's floor includes it: an application that remains of it brings nothing back."""
    key = reserved(store, key="forgotten")
    record = key.finalize()
    assert isinstance(run(store.forget(record, Event(what="Forgotten", by="ann"))), Gone)
    assert not rebuilt(store, shown("forgotten", 1, 1))
    assert run(store.load(key.address)).record is None


def test_a_name_that_is_only_kept_taken(store: IdempotencyStore) -> None:
    """A placeholder ran nothing, or whether it ran is unknown: a known generation continues after it; no record is created for an unknown
    one, but a new request for the key gets a generation above all names that are taken."""
    key = reserved(store, key="known")
    spec = run(store.spec(key.address, 1))
    assert rebuilt(store, shown("known", 1, 2, spec=None))
    assert (key.now().attempt, key.now().nonce) == (2, "of-application-1-2")
    assert run(store.spec(key.address, 1)) == spec
    older = reserved(store, key="older")
    for name, record in (("unknown", None), ("older", older.record)):
        what = shown(name, 3, 1, spec=None)
        assert rebuilt(store, what)
        view = run(store.load(what.address))
        assert (view.record, view.floor) == (record, 3)
        assert not rebuilt(store, what)
        assert history(store, name)[-1] == "Used"
    assert reserved(store, key="unknown").record.generation == 4
    older.finalize()
    assert older.reopen().record.generation == 4


def test_lost_replies_and_a_second_person(etcd: Etcd) -> None:
    """A repeated call finds that the rebuild was done, once; so does another caller at the same time."""
    other = etcd.open()
    run(other.load(address_of("lost")))
    with proxy.in_front_of(etcd.cluster.one.address) as line:
        store = opened([line.address], etcd.install, timeout=0.4, ttl=60)
        run(store.load(address_of("lost")))
        line.replies = proxy.Flow.DROP
        with pytest.raises(StoreUnavailable):
            rebuilt(store, shown("lost", 1, 2))
        line.cut()
        line.heal()
        answered(lambda: restorable(store).rebuild(shown("lost", 1, 2), by="ann"))  # it was done before, or is now
        assert answered(lambda: restorable(store).rebuild(shown("lost", 1, 2), by="ann")) is False
        line.replies = proxy.Flow.DROP
        with pytest.raises(StoreUnavailable):
            run(restorable(store).raise_epoch(seen=1))
        line.cut()
        line.heal()
        assert answered(lambda: restorable(store).raise_epoch(seen=1)) == 2
        run(store.close())
    assert history(other, "lost") == ["Rebuilt"]
    assert run(other.load(address_of("lost"))).epoch == 2
    done: list[bool] = []
    people = [threading.Thread(target=lambda: done.append(rebuilt(etcd.open(), shown("both", 1, 2)))) for _ in range(4)]
    for each in people:
        each.start()
    for each in people:
        each.join()
    assert sorted(done) == [False, False, False, True]
    assert history(other, "both") == ["Rebuilt"]


def test_the_epoch(store: IdempotencyStore) -> None:
    """However often a person repeats accepting one restore, the epoch rises by one, and later writes carry it; an epoch that the store
    never reached cannot be accepted."""
    key = reserved(store)
    assert key.record.epoch == 1
    raised = restorable(store).raise_epoch
    assert [run(raised(seen=seen)) for seen in (1, 1, 2, 2, 1)] == [2, 2, 3, 3, 2]
    assert run(store.load(key.address)).epoch == 3
    assert key.change(phase="Running").epoch == 3
    with pytest.raises(StoreUnusable):
        run(raised(seen=7))


def test_an_owner_of_before_the_restore(store: IdempotencyStore) -> None:
    """A claim that came back with the backup ends when its record is rebuilt: no pending write of that owner takes effect."""
    key = reserved(store, key="lost")
    assert rebuilt(store, shown("lost", 1, 2))
    assert run(store.load(key.address)).claim is None
    late = [
        run(store.update(key.record, key.claim, key.record.changed(phase="Running"))),
        run(store.heartbeat(key.claim)),
    ]
    assert all(isinstance(each, LostOwnership | Changed) for each in late)
    again = run(store.reserve(request("lost"), lease=key.lease, floor=0))
    assert not isinstance(again, Owned)
