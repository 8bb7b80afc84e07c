"""reserve: the first writer wins, every other caller gets the owner's claim, and a repetition recognises itself."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from harness import effort
from sparkonce.blocking import run
from sparkonce.errors import InvalidInput, RecordTooNew, StoreFull
from sparkonce.model.record import Opener, SpecBody, State
from sparkonce.store.protocol import Duplicate, IdempotencyStore, Lease, Mismatch, Moved, Owned, Refused
from store.backends import Backend, Durable
from store.racing import at_once
from store.samples import address_of, fresh, request, reserved
from store.worker import Worker

ROUNDS = effort.size("racing rounds")


def test_the_first_reserve_owns_the_key(store: IdempotencyStore) -> None:
    """An absent key gets a record in progress: generation 1, attempt 1 with the request's nonce, with spec, claim and event beside it."""
    lease = run(store.open_lease(owner="host 1"))
    asked = request(objects=("uid-1",))
    before = run(store.load(asked.address))
    assert (before.record, before.claim, before.floor) == (None, None, 0)

    done = run(store.reserve(asked, lease=lease, floor=0))
    assert isinstance(done, Owned)
    record = done.record
    assert (record.state, record.generation, record.attempt, record.nonce) == (State.IN_PROGRESS, 1, 1, asked.nonce)
    assert (record.key, record.operation, record.resource, record.job_revision) == (asked.key, "load", "orders", "1")
    assert (record.openers, record.objects) == ((asked.by,), ("uid-1",))
    assert (record.fingerprint_version, record.fingerprint) == max(asked.fingerprints.items())
    assert (done.claim.lease, done.claim.owner, done.claim.nonce) == (lease.id, "host 1", asked.nonce)

    view = run(store.load(asked.address))
    assert (view.record, view.claim) == (record, done.claim)
    assert record.revision == view.revision > before.revision
    assert run(store.spec(asked.address, 1)) == asked.spec
    assert [(event.what, event.by) for event in run(store.events(asked.address))] == [("Reserved", "host 1")]


def test_the_second_reserve_is_a_duplicate(store: IdempotencyStore) -> None:
    """Another caller with the same fingerprint gets the record and the owner's claim, and writes nothing."""
    key = reserved(store)
    other = run(store.open_lease(owner="other"))
    done = run(store.reserve(request(key.record.key), lease=other, floor=0))
    assert done == Duplicate(key.record, key.claim)
    assert key.view().revision == key.record.revision


def test_two_objects_of_one_process_are_two_callers(store: IdempotencyStore) -> None:
    """Under one lease, two requests for one key are one owner and one duplicate: the nonce distinguishes them, not the process."""
    lease = run(store.open_lease(owner="one process"))
    first, second = request(), request()
    assert isinstance(run(store.reserve(first, lease=lease, floor=0)), Owned)
    assert isinstance(run(store.reserve(second, lease=lease, floor=0)), Duplicate)


def test_a_key_for_something_else_is_a_mismatch(store: IdempotencyStore) -> None:
    """Another fingerprint under the same key is a mismatch whatever its nonce, and nothing is written."""
    key = reserved(store)
    for nonce in (fresh(), key.claim.nonce):
        asked = request(key.record.key, nonce=nonce, fingerprints={1: "e" * 64})
        done = run(store.reserve(asked, lease=key.lease, floor=0))
        assert done == Mismatch(key.record, key.claim)
    assert key.view().revision == key.record.revision


def test_a_record_is_compared_by_its_own_version(store: IdempotencyStore) -> None:
    """Of the fingerprint versions that a request carries the newest is recorded; a later request is compared by the version that the record
    names."""
    old = reserved(store, fingerprints={1: "one"})
    upgraded = request(old.record.key, fingerprints={1: "one", 2: "two"})
    assert isinstance(run(store.reserve(upgraded, lease=old.lease, floor=0)), Duplicate)

    new = reserved(store, fingerprints={1: "one", 2: "two"})
    assert (new.record.fingerprint_version, new.record.fingerprint) == (2, "two")
    with pytest.raises(RecordTooNew, match="upgrade sparkonce"):
        run(store.reserve(request(new.record.key, fingerprints={1: "one"}), lease=new.lease, floor=0))


def test_a_newer_version_that_changes_nothing_is_not_recorded(store: IdempotencyStore) -> None:
    """If two versions give a job the same fingerprint, the older version is recorded, so that processes of that version can read it."""
    new = reserved(store, fingerprints={1: "one", 2: "one"})
    assert (new.record.fingerprint_version, new.record.fingerprint) == (1, "one")
    assert isinstance(
        run(store.reserve(request(new.record.key, fingerprints={1: "one"}), lease=new.lease, floor=0)), Duplicate
    )


def test_a_newer_version_may_equate_more(store: IdempotencyStore) -> None:
    """A request equals the record if they agree by the record's version or by a newer one, which leaves more out; never by an older one."""
    old = reserved(store, fingerprints={1: "one"})
    more = request(old.record.key, fingerprints={1: "one with a run id", 2: "one"})
    assert isinstance(run(store.reserve(more, lease=old.lease, floor=0)), Duplicate)

    new = reserved(store, fingerprints={1: "two with a run id", 2: "two"})
    less = request(new.record.key, fingerprints={1: "two", 2: "other"})
    assert isinstance(run(store.reserve(less, lease=new.lease, floor=0)), Mismatch)


def test_a_repetition_recognises_itself(store: IdempotencyStore) -> None:
    """The same request with the same nonce and lease gets the same answer, however often, and writes once."""
    lease = run(store.open_lease(owner="me"))
    asked = request()
    first = run(store.reserve(asked, lease=lease, floor=0))
    assert all(run(store.reserve(asked, lease=lease, floor=0)) == first for _ in range(3))
    assert len(run(store.events(asked.address))) == 1


def test_a_repetition_after_the_claim_is_lost_is_a_duplicate(backend: Backend, store: IdempotencyStore) -> None:
    """A nonce is valid as long as its claim: once the claim ended with its lease, the repetition is a duplicate."""
    key = reserved(store)
    backend.expire(key.lease)
    other = run(store.open_lease(owner="other"))
    asked = request(key.record.key, nonce=key.claim.nonce)
    assert run(store.reserve(asked, lease=other, floor=0)) == Duplicate(key.record, None)


def test_another_floor_than_was_read_is_told(store: IdempotencyStore) -> None:
    """A reserve that compares an outdated floor writes nothing and returns the current one."""
    lease = run(store.open_lease(owner="me"))
    asked = request()
    assert run(store.reserve(asked, lease=lease, floor=1)) == Moved()
    assert run(store.load(asked.address)).record is None


def test_an_ended_lease_reserves_nothing(backend: Backend, store: IdempotencyStore) -> None:
    """A process whose lease was revoked or has expired is refused, and writes nothing."""
    for end in (lambda lease: run(lease.revoke()), backend.expire):
        lease = run(store.open_lease(owner="late"))
        end(lease)
        asked = request(fresh("key"))
        assert isinstance(run(store.reserve(asked, lease=lease, floor=0)), Refused)
        assert run(store.load(asked.address)).record is None


def test_eight_threads_reserve_one_key(backend: Backend) -> None:
    """Of eight simultaneous threads exactly one owns the key; the other seven get its claim."""
    store = backend.open()
    lease = run(store.open_lease(owner="one process"))
    for number in range(ROUNDS):
        outcomes = at_once([partial(reserve_one, store, lease, f"key-{number}")] * 8)
        owned = [done for done in outcomes if isinstance(done, Owned)]
        others = [done for done in outcomes if isinstance(done, Duplicate)]
        assert (len(owned), len(others)) == (1, 7)
        assert all(done.claim == owned[0].claim and done.record == owned[0].record for done in others)


def test_four_processes_reserve_one_key(durable: Durable, neighbours: list[Worker]) -> None:
    """Four processes reserve the same keys in the same order: each key has exactly one owner, and all four agree on it."""
    keys = [f"key-{number}" for number in range(ROUNDS)]
    for worker in neighbours:
        worker.ask(reserve_all, keys)
    answers = [worker.answer() for worker in neighbours]
    store = durable.open()
    for number, key in enumerate(keys):
        claims = {claim for _, claim in (answer[number] for answer in answers)}
        assert sorted(owned for owned, _ in (answer[number] for answer in answers)) == [False, False, False, True]
        view = run(store.load(address_of(key)))
        assert view.claim is not None and claims == {view.claim.nonce}


def test_a_full_realm_refuses_new_keys_only(backend: Backend) -> None:
    """Above the ceiling a new key is refused with a time to wait. Known keys, other realms, and a realm whose keys have expired are not
    refused. The ledger says how full it is."""
    store = backend.open(max_live_keys=2)
    lease = run(store.open_lease(owner="me"))
    first, second = reserved(store, lease, key="a"), reserved(store, lease, key="b")
    with pytest.raises(StoreFull, match="local") as full:
        run(store.reserve(request("c"), lease=lease, floor=0))
    assert full.value.retry_after == 60
    assert isinstance(run(store.reserve(request("a"), lease=lease, floor=0)), Duplicate)
    assert isinstance(run(store.reserve(request("c", realm="other"), lease=lease, floor=0)), Owned)

    first.finalize(retention=100.0)
    second.finalize(retention=50.0)
    with pytest.raises(StoreFull) as full:
        run(store.reserve(request("c"), lease=lease, floor=0))
    assert 45 < full.value.retry_after <= 50
    backend.clock.ahead = 51.0
    assert isinstance(run(store.reserve(request("c"), lease=lease, floor=0)), Owned)
    with pytest.raises(StoreFull):
        run(store.reserve(request("d"), lease=lease, floor=0))
    # What operators export; the tests' own store has none.
    if used := getattr(getattr(store, "inner", store), "used", None):
        assert used()["live_keys_ratio"] == 1.0


@pytest.mark.parametrize(
    "spec",
    [
        SpecBody(job={"text": "x" * 256 * 1024}),
        SpecBody(job={"text": "\ud800"}),
        SpecBody(job={"object": object()}),
    ],
    ids=["large", "surrogate", "object"],
)
def test_a_spec_that_cannot_be_kept_is_refused(store: IdempotencyStore, spec: SpecBody) -> None:
    """A spec that is too large, or that JSON cannot represent, is refused with an answer, and no record of it exists."""
    lease = run(store.open_lease(owner="me"))
    asked = request(spec=spec)
    with pytest.raises(InvalidInput):
        run(store.reserve(asked, lease=lease, floor=0))
    assert run(store.load(asked.address)).record is None


def test_what_is_kept_comes_back(store: IdempotencyStore) -> None:
    """Text in any script, nulls inside a job, and names that look like SQL or paths are read back unchanged."""
    spec = SpecBody(job={"naïve": None, "日本": ["\u0000", "'; DROP TABLE records;--", {"a": None}]})
    key = reserved(store, key="Ωμέγα/%_'\"", realm="a/b'; --", spec=spec, by=Opener(uid="u", number=1, fingerprint="f"))
    assert key.now() == key.record
    assert run(store.spec(key.address, 1)) == spec


# --- calls in other threads and processes


def reserve_one(store: IdempotencyStore, lease: Lease, key: str) -> object:
    return run(store.reserve(request(key, nonce=fresh(str(threading.get_ident()))), lease=lease, floor=0))


def reserve_all(store: IdempotencyStore, lease: Lease, keys: list[str]) -> list[tuple[bool, str]]:
    """For each key: whether we own it, and the nonce of its claim."""
    answers = []
    for key in keys:
        done = run(store.reserve(request(key, nonce=f"{lease.id}-{key}"), lease=lease, floor=0))
        assert isinstance(done, Owned | Duplicate) and done.claim is not None
        answers.append((isinstance(done, Owned), done.claim.nonce))
    return answers
