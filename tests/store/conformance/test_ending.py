"""finalize, reopen, purge, forget: a result is recorded once, and no generation number is ever used twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from harness import effort
from sparkonce.blocking import run
from sparkonce.model.record import (
    FENCED_EMPTY,
    MOST_OBJECTS,
    NEVER_RAN,
    Application,
    Beat,
    Event,
    HeldReason,
    Opener,
    Outcome,
    Record,
    Report,
    Settling,
    SpecBody,
    State,
    StopWanted,
    Why,
)
from sparkonce.store.codec import VALUE_LIMIT, encode
from sparkonce.store.protocol import (
    Attached,
    Changed,
    Conflict,
    Duplicate,
    Finalized,
    Gone,
    IdempotencyStore,
    Lost,
    LostOwnership,
    Moved,
    NotFound,
    Owned,
    Refused,
    Updated,
)
from sparkonce.store.rules import OPENERS_KEPT, RERUNS_KEPT
from store.backends import Backend
from store.racing import at_once
from store.samples import RETENTION, Key, fresh, intent, request, reserved, result, taken

ROUNDS = effort.size("racing rounds")
FORGET = Event(what="Forgotten", by="ann", why="test data")


# --- finalize


def test_finalize_records_the_result(store: IdempotencyStore) -> None:
    """In one step the result is stored beside the record, the record gets outcome and expiry, the claim is dropped, and an event is
    written."""
    key = reserved(store)
    done = run(store.finalize(key.record, key.claim, result(), retention=RETENTION))
    assert isinstance(done, Finalized)
    assert (done.record, done.result) == (key.now(), result())
    record = done.record
    assert (record.state, record.outcome) == (State.FINALIZED, Outcome.SUCCEEDED)
    assert record.finalized_at is not None and record.expires_at == record.finalized_at + RETENTION
    assert key.view().claim is None
    assert run(store.result(key.address, 1)) == result()
    last = run(store.events(key.address))[-1]
    assert (last.what, last.why, last.by) == ("Finalized", "Succeeded", key.claim.owner)


@pytest.mark.parametrize("evidence", [FENCED_EMPTY, NEVER_RAN, "exit code 1", "ann said failed"])
def test_finalize_records_the_proof_of_no_effect(store: IdempotencyStore, evidence: str) -> None:
    """Of the proof only the evidence is recorded, with its generation and attempt; the next generation begins without it."""
    key = reserved(store)
    ended = result(outcome=Outcome.FAILED, outputs=(), evidence=evidence)
    assert isinstance(run(store.finalize(key.record, key.claim, ended, retention=RETENTION)), Finalized)
    assert key.now().effectless == (evidence in (FENCED_EMPTY, NEVER_RAN))
    lease = run(store.open_lease(owner="another"))
    again = run(store.reopen(key.now(), request(nonce="again"), lease=lease))
    assert isinstance(again, Owned)
    assert (again.record.no_effect, again.record.effectless) == (None, False)


def test_finalize_again(store: IdempotencyStore) -> None:
    """The same result again, from any process at any time, is Finalized; another result is a Conflict, and the first one stays."""
    key = reserved(store)
    asked = key.record
    key.finalize()
    stands = Finalized(key.record, result())
    assert run(store.finalize(asked, key.claim, result(), retention=1.0)) == stands
    later = result(started_at=70.0, finished_at=80.0)
    assert run(store.finalize(asked, key.claim, later, retention=1.0)) == stands
    for other in (result(outcome=Outcome.FAILED, outputs=()), result(values={"rows": 4}), result(outputs=())):
        assert run(store.finalize(asked, key.claim, other, retention=1.0)) == Conflict(key.record, result())
    assert run(store.result(key.address, 1)) == result()
    assert key.now() == key.record


def test_a_non_owner_finalizes_nothing(backend: Backend, store: IdempotencyStore) -> None:
    """A caller that never had the claim, or lost it to a successor, is refused."""
    key, other = reserved(store), reserved(store)
    assert run(store.finalize(key.record, other.claim, result(), retention=1.0)) == LostOwnership()
    backend.expire(key.lease)
    successor = taken(store, key.record)
    assert run(store.finalize(key.record, key.claim, result(), retention=1.0)) == LostOwnership()
    assert key.now().state is State.IN_PROGRESS
    successor.finalize()


def test_finalize_of_another_generation(store: IdempotencyStore) -> None:
    """A result for a generation that is not the record's is NotFound; a result that names another generation than the call is the caller's
    mistake."""
    key = reserved(store)
    old = key.record
    with pytest.raises(ValueError):
        run(store.finalize(old, key.claim, result(2), retention=1.0))
    key.finalize()
    second = key.reopen()
    assert run(store.finalize(old, key.claim, result(), retention=1.0)) == NotFound()
    assert run(store.finalize(old, second.claim, result(), retention=1.0)) == NotFound()
    assert second.now() == second.record


def test_two_owners_conclude_at_once(store: IdempotencyStore) -> None:
    """Of two different results that race under one claim one is recorded, and both callers get that one."""
    for _ in range(ROUNDS):
        key = reserved(store)
        results = [result(values={"by": 1}), result(values={"by": 2})]
        calls = [partial(finalize, key, one) for one in results]
        outcomes = at_once(calls)
        assert Counter(type(done) for done in outcomes) == {Finalized: 1, Conflict: 1}
        stands = run(store.result(key.address, 1))
        assert all(done.result == stands for done in outcomes)


def finalize(key: Key, one: Any) -> Finalized | Conflict:
    done = run(key.store.finalize(key.record, key.claim, one, retention=1.0))
    assert isinstance(done, Finalized | Conflict)
    return done


# --- reopen


def worn(store: IdempotencyStore) -> Key:
    """A key whose record has a value in every field of a generation."""
    key = reserved(store, objects=("uid-1",))
    seal = store.seal(key.address, generation=1, token=1, nonce=key.record.nonce, intent=intent())
    run(seal)
    key.record = key.now()
    run(store.request_stop(key.record, StopWanted(why=Why.CANCELLED, by="ann")))
    key.record = key.now()
    key.change(
        phase="Running",
        application=Application(name="so-x", uid="u"),
        settling=Settling(attempt=1, why=Why.LOST),
        settle_runs=2,
        uncounted=1,
        not_before=9.0,
    )
    key.change(attempt=2, nonce="n2")
    return key


def test_a_key_that_is_rerun_for_years_stays_small(store: IdempotencyStore) -> None:
    """Of the openers that are commands only the last few are remembered; those that are objects, which may ask again at any time, all
    are."""
    key = reserved(store)
    for _ in range(40):
        key.finalize()
        key = key.reopen()
    assert len(key.record.openers) < 20
    assert key.record.openers[-1] == Opener(nonce=key.record.nonce)
    assert len(encode(key.record)) < 4096


def test_reopen_starts_the_next_generation_afresh(store: IdempotencyStore) -> None:
    """Generation + 1, attempt 1, with a new nonce, spec and claim; the record keeps nothing of how the old generation ran."""
    key = worn(store)
    key.finalize()
    spec = SpecBody(job={"new": True})
    asked = request(key.record.key, spec=spec, objects=("uid-2",))
    done = run(store.reopen(key.record, asked, lease=key.lease))
    assert isinstance(done, Owned)
    record = done.record
    assert record == key.now()
    as_new = Record(
        realm=record.realm,
        key_hash=record.key_hash,
        key=record.key,
        operation="load",
        resource="orders",
        job_revision="1",
        generation=2,
        attempt=1,
        nonce=asked.nonce,
        fingerprint=record.fingerprint,
        fingerprint_version=1,
        openers=(*key.record.openers, asked.by),
        objects=("uid-1", "uid-2"),
        created_at=record.granted_at,
        granted_at=record.granted_at,
    )
    assert record.dump() == as_new.dump()
    assert record.created_at > key.record.created_at
    assert (done.claim.nonce, key.view().claim) == (asked.nonce, done.claim)
    assert run(store.spec(key.address, 2)) == spec
    assert run(store.result(key.address, 1)) == result(attempts=1)
    assert [event.what for event in run(store.events(key.address))][-1] == "Reopened"


def test_reopen_for_another_job_drops_the_followers(store: IdempotencyStore) -> None:
    """Followers of the old run follow the new one only if it is the same job."""
    key = reserved(store, objects=("uid-1",))
    key.finalize()
    changed = key.reopen(fingerprints={1: "e" * 64, 2: "x"}, objects=("uid-2",))
    assert changed.record.objects == ("uid-2",)
    assert (changed.record.fingerprint_version, changed.record.fingerprint) == (2, "x")


def test_what_may_be_reopened(backend: Backend, store: IdempotencyStore) -> None:
    """A finalized key can be reopened, and so can a key that is held and settled (Partial, NameTaken); a claim of the old generation is
    dropped. Any other record is refused."""
    running = reserved(store)
    for key in (running, hold(reserved(store), HeldReason.UNKNOWN)):
        done = run(store.reopen(key.record, request(key.record.key), lease=key.lease))
        assert isinstance(done, Refused) and done.record == key.record
        assert key.now() == key.record
    for reason in (HeldReason.PARTIAL, HeldReason.NAME_TAKEN):
        key = hold(reserved(store), reason)
        resolver = taken(store, key.record)
        opened = key.reopen()
        assert (opened.record.generation, opened.record.held, opened.record.state) == (2, None, State.IN_PROGRESS)
        assert run(store.heartbeat(resolver.claim)) == LostOwnership()

    backend.expire(running.lease)
    ended = reserved(store)
    ended.finalize()
    assert isinstance(run(store.reopen(ended.record, request(ended.record.key), lease=running.lease)), Refused)
    absent = reserved(store)
    absent.remove()
    assert run(store.reopen(absent.record, request(absent.record.key), lease=absent.lease)) == Lost(None)


def hold(key: Key, reason: HeldReason) -> Key:
    key.change(state=State.HELD, held=reason)
    return key


def test_a_repeated_reopen_is_recognised(store: IdempotencyStore) -> None:
    """The same request with the same nonce gets the generation that it opened; no further one is opened."""
    key = reserved(store)
    key.finalize()
    asked = request(key.record.key)
    first = run(store.reopen(key.record, asked, lease=key.lease))
    assert isinstance(first, Owned) and first.record.generation == 2
    assert run(store.reopen(key.record, asked, lease=key.lease)) == first
    assert run(store.reopen(first.record, asked, lease=key.lease)) == first


def test_one_opener_opens_one_generation(backend: Backend, store: IdempotencyStore) -> None:
    """An opener that opened a generation of this key is answered with it for ever, with any nonce and whatever was opened since."""
    by = Opener(uid="u", number=1, fingerprint="f")
    key = reserved(store, by=by)
    key.finalize()
    assert run(store.reopen(key.record, request(key.record.key, by=by), lease=key.lease)) == Duplicate(key.record, None)
    second = key.reopen(by=Opener(uid="u", number=2, fingerprint="f"))
    second.finalize()
    for number in (1, 2):
        asked = request(key.record.key, by=Opener(uid="u", number=number, fingerprint="f"))
        assert run(store.reopen(second.record, asked, lease=key.lease)) == Duplicate(second.record, None)
    assert second.reopen(by=Opener(uid="u", number=3, fingerprint="f")).record.generation == 3


def test_openers_by_annotation_are_bounded(backend: Backend, store: IdempotencyStore) -> None:
    """Of an object that is annotated over and over the record keeps only the newest requests. They never displace the newest request of
    another object, from which that object's next request number follows."""
    other = Opener(uid="other", number=1, fingerprint="f", rerun="x")
    key = reserved(store, by=other)
    made = [
        Opener(uid="u", number=number, fingerprint="f", rerun=f"text {number}") for number in range(RERUNS_KEPT + 8)
    ]
    for by in made:
        key.finalize()
        key = key.reopen(by=by)
    assert key.record.openers == (other, *made[-RERUNS_KEPT - 1 :])
    key.finalize()
    asked = request(key.record.key, by=made[-2])
    assert isinstance(run(store.reopen(key.record, asked, lease=key.lease)), Duplicate)


def test_a_record_that_many_objects_want_can_always_be_ended(backend: Backend, store: IdempotencyStore) -> None:
    """A generation names a limited number of objects, and a key a limited number of openers. With the longest names that there are, the
    record still has room for what ends it. The object that opens a generation is always among those named."""
    objects = [f"{number:036}/{'n' * 63}/{'o' * 253}/2026-11-21T10:00:00Z" for number in range(MOST_OBJECTS + 9)]
    key = reserved(store, objects=tuple(objects[:MOST_OBJECTS]))
    full = key.record
    assert run(store.attach(full, objects[0])) == Attached(full)
    assert run(store.attach(full, objects[-1])) == Changed(full)
    key.finalize()
    asks = request(key.record.key, by=Opener(uid=objects[-1][:36], number=1), objects=tuple(reversed(objects)))
    again = run(store.reopen(key.record, asks, lease=key.lease))
    assert isinstance(again, Owned)
    assert set(again.record.objects) < set(objects)
    assert (len(again.record.objects), again.record.objects[0]) == (MOST_OBJECTS, objects[-1])

    openers = tuple(Opener(uid=uid[:36], number=10**6, fingerprint="f" * 64, rerun="r" * 64) for uid in objects)
    crowded = again.record.changed(openers=openers)
    backend.write(key.address, encode(crowded))
    key.record, key.claim = key.now(), again.claim
    key.change(phase="Running", note="n" * 4000)
    key.finalize()
    reopened = key.reopen(by=Opener(uid=objects[-1][:36], number=2))
    assert reopened.record.openers == (*openers, Opener(uid=objects[-1][:36], number=2))[-OPENERS_KEPT:]

    # A record that an earlier version has filled can be ended all the same.
    uids = (VALUE_LIMIT - len(encode(reopened.record.changed(objects=())))) // len('"",' + "o" * 36)
    older = reopened.record.changed(objects=("o" * 36,) * uids)
    assert len(encode(older)) > VALUE_LIMIT - 100
    backend.write(key.address, encode(older))
    stopped = run(store.request_stop(reopened.now(), StopWanted(why=Why.CANCELLED, by="ann", reason="r" * 1000)))
    assert isinstance(stopped, Updated)
    assert stopped.record.objects == older.objects[:MOST_OBJECTS]


def test_a_reservation_names_as_many_objects_as_a_record_holds(store: IdempotencyStore) -> None:
    """Objects that were created while no operator ran can be many: those that the record cannot name wait for its result."""
    objects = tuple(f"object-{number}" for number in range(MOST_OBJECTS + 1))
    assert reserved(store, objects=objects).record.objects == objects[:MOST_OBJECTS]


def test_a_changed_record_is_not_reopened(store: IdempotencyStore) -> None:
    """Of two callers that reopen the same result, the second gets the record that the first one opened."""
    key = reserved(store)
    key.finalize()
    first = key.reopen()
    assert run(store.reopen(key.record, request(key.record.key), lease=key.lease)) == Lost(first.record)


def test_eight_reopen_at_once(store: IdempotencyStore) -> None:
    """Of eight simultaneous callers exactly one opens generation 2."""
    lease = run(store.open_lease(owner="me"))
    for _ in range(ROUNDS // 3):
        key = reserved(store, lease)
        key.finalize()
        calls = [partial(reopen, key, request(key.record.key)) for _ in range(8)]
        outcomes = at_once(calls)
        assert Counter(type(done) for done in outcomes) == {Owned: 1, Lost: 7}
        assert key.now().generation == 2


def reopen(key: Key, asked: Any) -> object:
    return run(key.store.reopen(key.record, asked, lease=key.lease))


# --- purge and forget


def purge(key: Key) -> object:
    return run(key.store.purge(key.record, now=key.record.expires_at or 0.0))


def forget(key: Key) -> object:
    return run(key.store.forget(key.record, FORGET))


@pytest.mark.parametrize("remove", [purge, forget], ids=["purge", "forget"])
def test_removing_leaves_the_floor_and_the_history(store: IdempotencyStore, remove: Callable[[Key], object]) -> None:
    """Record, specs, results, intents, reports and touches are deleted; the generation floor and the events stay and say what happened."""
    key = worn(store)
    run(store.report(key.address, 1, Report(attempt=1, reporter="d", kind="values")))
    run(store.renew(key.address, 1, Beat(attempt=2, nonce="n2", by="driver")))
    key.finalize()
    assert remove(key) == Gone(1)
    view = key.view()
    assert (view.record, view.claim, view.floor) == (None, None, 1)
    assert run(store.spec(key.address, 1)) is None
    assert run(store.result(key.address, 1)) is None
    assert run(store.intent(key.address, 1)) is None
    assert list(run(store.reports(key.address, 1))) == []
    assert run(store.beats(key.address, 1)) == {}
    whats = [event.what for event in run(store.events(key.address))]
    assert whats[0] == "Reserved" and whats[-1] in ("Purged", "Forgotten")
    assert remove(key) == NotFound()


@pytest.mark.parametrize("remove", [purge, forget], ids=["purge", "forget"])
def test_no_generation_is_used_twice(store: IdempotencyStore, remove: Callable[[Key], object]) -> None:
    """Through any order of reserve, reopen and removal, generation numbers only grow, and the floor is the last one used."""
    name, used = fresh("key"), []
    for round_ in range(3):
        key = reserved(store, key=name)
        used.append(key.record.generation)
        if round_ == 1:
            key.remove()
            continue
        key.finalize()
        key = key.reopen()
        used.append(key.record.generation)
        key.finalize()
        assert remove(key) == Gone(used[-1])
        for floor in range(used[-1]):
            assert run(store.reserve(request(name), lease=key.lease, floor=floor)) == Moved()
    assert used == [1, 2, 3, 4, 5]


def test_only_what_is_finalized_and_expired_is_purged(store: IdempotencyStore) -> None:
    """A result that has not expired and a record in progress or held are refused; a result that changed since it was read is Changed;
    another generation is NotFound."""
    key = reserved(store)
    assert isinstance(purge(key), Refused)
    assert isinstance(forget(key), Refused)
    key.change(state=State.HELD, held=HeldReason.PARTIAL)
    assert isinstance(purge(key), Refused)
    assert isinstance(forget(key), Refused)
    second = key.reopen()
    assert purge(key) == forget(key) == NotFound()
    running = second.record
    second.finalize()
    early = (second.record.expires_at or 0.0) - 1
    assert isinstance(run(store.purge(second.record, now=early)), Refused)
    assert run(store.purge(running, now=early + 2)) == Changed(second.record)
    assert run(store.forget(running, FORGET)) == Changed(second.record)
    assert second.now() == second.record


def test_purge_racing_reserve(store: IdempotencyStore) -> None:
    """A request that races with the purge of a result gets the result, must read again, or opens a new generation; never the old one
    again."""
    lease = run(store.open_lease(owner="me"))
    for _ in range(ROUNDS):
        key = reserved(store, lease)
        key.finalize()
        calls: list[Callable[[], object]] = [partial(purge, key), *[partial(ask, key, floor) for floor in (0, 1)]]
        purged, old, new = at_once(calls)
        assert purged == Gone(1)
        assert isinstance(old, Duplicate | Moved)
        assert isinstance(new, Duplicate | Owned)
        view = key.view()
        assert view.floor == 1
        assert (view.record.generation if view.record else None) == (2 if isinstance(new, Owned) else None)


def ask(key: Key, floor: int) -> object:
    return run(key.store.reserve(request(key.record.key), lease=key.lease, floor=floor))


def test_purge_racing_attach(store: IdempotencyStore) -> None:
    """A follower that attaches before the purge moves the record's revision, so a purge that was decided on the older record removes
    nothing."""
    key = reserved(store)
    before = key.record
    done = run(store.attach(before, "follower"))
    assert isinstance(done, Attached)
    key.record = done.record
    key.finalize()
    for _ in range(ROUNDS):
        other = reserved(store)
        other.finalize()
        calls: list[Callable[[], object]] = [partial(purge, other), partial(follow, other)]
        purged, followed = at_once(calls)
        assert purged == Gone(1)
        assert isinstance(followed, Finalized | NotFound)
        assert other.view().record is None
    assert isinstance(run(store.purge(before, now=1e12)), Changed)


def follow(key: Key) -> object:
    return run(key.store.attach(key.record, "late"))
