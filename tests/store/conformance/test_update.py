"""update, attach, request_stop: writes to a running generation, each of which compares the state that it overwrites."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sparkonce.blocking import run
from sparkonce.model.record import Application, Event, HeldReason, Outcome, Record, Settling, State, StopWanted, Why
from sparkonce.store.protocol import (
    Attached,
    Changed,
    Finalized,
    IdempotencyStore,
    LostOwnership,
    NotFound,
    Sealed,
    Updated,
)
from store.backends import Backend
from store.samples import Key, fresh, intent, reserved, result, taken

STOP = StopWanted(why=Why.CANCELLED, by="ann", reason="wrong day")


def attached(key: Key) -> object:
    return run(key.store.attach(key.record, "follower"))


def sealed(key: Key) -> object:
    return run(key.store.seal(key.address, generation=1, token=1, nonce=key.record.nonce, intent=intent()))


def stopped(key: Key) -> object:
    return run(key.store.request_stop(key.record, STOP))


def test_update_replaces_the_record(store: IdempotencyStore) -> None:
    """With claim and record as read the change is written, at a higher revision, together with its event."""
    key = reserved(store)
    changed = key.record.changed(
        attempt=2, nonce="n2", application=Application(name="so-x", uid="u"), settling=None, not_before=7.5
    )
    done = run(
        store.update(key.record, key.claim, changed, event=Event(what="Granted", by="me", generation=1, attempt=2))
    )
    assert isinstance(done, Updated)
    assert done.record == key.now() == changed.changed(revision=done.record.revision)
    assert done.record.revision > key.record.revision
    assert [(e.what, e.attempt) for e in run(store.events(key.address))] == [("Reserved", 1), ("Granted", 2)]


@pytest.mark.parametrize("unseen", [attached, sealed, stopped], ids=["attach", "seal", "stop"])
def test_the_owner_sees_what_it_overwrites(store: IdempotencyStore, unseen: Callable[[Key], object]) -> None:
    """After an attach, a seal or a cancellation request that the owner has not read, its update and its finalize change nothing and return
    the current record."""
    key = reserved(store)
    unseen(key)
    now = key.now()
    assert now.revision > key.record.revision
    assert run(store.update(key.record, key.claim, key.record.changed(phase="Running"))) == Changed(now)
    assert run(store.finalize(key.record, key.claim, result(), retention=1.0)) == Changed(now)
    assert key.now() == now
    assert isinstance(run(store.update(now, key.claim, now.changed(phase="Running"))), Updated)


def test_a_repeated_update_is_recognised(store: IdempotencyStore) -> None:
    """Repeating a recorded update is Updated again, even if it held the key and thereby dropped the claim; its event is not repeated."""
    key = reserved(store)
    first = key.record.changed(phase="Running")
    done = run(store.update(key.record, key.claim, first, event=Event(what="Running")))
    assert run(store.update(key.record, key.claim, first, event=Event(what="Running"))) == done
    assert isinstance(done, Updated)
    held = done.record.changed(state=State.HELD, held=HeldReason.PARTIAL)
    done = run(store.update(done.record, key.claim, held))
    assert run(store.update(key.record, key.claim, held)) == done
    assert [event.what for event in run(store.events(key.address))] == ["Reserved", "Running"]
    taken(store, key.now())
    assert run(store.update(key.record, key.claim, held)) == LostOwnership()


def test_holding_drops_the_claim(store: IdempotencyStore) -> None:
    """A held key has no owner from that write on."""
    key = reserved(store)
    key.change(state=State.HELD, held=HeldReason.UNKNOWN, note="nobody can tell")
    assert key.view().claim is None
    assert run(store.heartbeat(key.claim)) == LostOwnership()


def test_an_update_of_what_is_over(store: IdempotencyStore) -> None:
    """Without a record of that generation an update is NotFound; after finalize it gets the result instead of LostOwnership."""
    key = reserved(store)
    old, claim = key.record, key.claim
    key.finalize()
    assert run(store.update(old, claim, old.changed(phase="Running"))) == Finalized(key.record, result())
    reopened = key.reopen()
    assert run(store.update(old, claim, old.changed(phase="Running"))) == NotFound()
    assert run(store.update(old, reopened.claim, old.changed(phase="Running"))) == NotFound()
    opened = reopened.record
    reopened.remove()
    assert run(store.update(opened, reopened.claim, opened.changed(phase="Running"))) == NotFound()


@pytest.mark.parametrize(
    "change",
    [
        {"key_hash": "0" * 64},
        {"realm": "other"},
        {"generation": 2},
        {"attempt": 3},
        {"attempt": 0},
        {"state": State.FINALIZED, "outcome": Outcome.SUCCEEDED},
    ],
    ids=str,
)
def test_an_update_that_no_owner_may_make(store: IdempotencyStore, change: dict[str, object]) -> None:
    """An update keeps key and generation, grants no attempt or the next one, and never finalizes: anything else is the caller's mistake."""
    key = reserved(store)
    with pytest.raises(ValueError):
        run(store.update(key.record, key.claim, key.record.changed(**change)))
    assert key.now() == key.record


def test_unknown_fields_ride_along(backend: Backend, store: IdempotencyStore) -> None:
    """Fields that a newer version added to a record, at any depth, survive this version's update, attach, stop, finalize and reopen."""
    key = reserved(store)
    key.change(application=Application(name="so-x", uid="u"))
    newer = key.record.dump() | {"schema": 2, "colour": {"of": ["future"]}}
    newer["application"]["node"] = "n7"
    backend.write(key.address, Record.model_validate(newer).model_dump_json(by_alias=True, exclude_none=True))

    def kept(record: Record, *, application: bool = True) -> bool:
        stands = key.now().dump()
        assert stands == record.dump()
        inner = stands["application"]["node"] == "n7" if application else True
        return inner and stands["colour"] == {"of": ["future"]} and stands["schema"] == 2

    key.record = key.now()
    assert kept(key.change(phase="Running", settling=Settling(attempt=1, why=Why.LOST)))
    done = run(store.attach(key.record, "follower"))
    assert isinstance(done, Attached) and kept(done.record)
    stop = run(store.request_stop(done.record, STOP))
    assert isinstance(stop, Updated) and kept(stop.record)
    key.record = stop.record
    assert kept(key.finalize())
    assert kept(key.reopen().record, application=False)


def test_attach_names_a_follower(store: IdempotencyStore) -> None:
    """A follower is recorded once and moves the revision; a repetition is Attached; a caller with an older record must read again."""
    key = reserved(store, objects=("leader",))
    done = run(store.attach(key.record, "follower"))
    assert isinstance(done, Attached)
    assert done.record.objects == ("leader", "follower")
    assert done.record == key.now()
    assert run(store.attach(key.record, "follower")) == done
    assert run(store.attach(key.record, "third")) == Changed(done.record)


def test_attach_and_stop_to_what_is_over(store: IdempotencyStore) -> None:
    """After the end, attach and request_stop return the result; another generation, or a missing one, cannot be followed."""
    key = reserved(store)
    first = key.record
    key.finalize()
    over = Finalized(key.record, result())
    assert run(store.attach(first, "late")) == over
    assert run(store.request_stop(first, STOP)) == over
    second = key.reopen()
    assert run(store.attach(first, "late")) == NotFound()
    assert run(store.request_stop(first, STOP)) == NotFound()
    second.remove()
    assert run(store.attach(second.record, "late")) == NotFound()
    assert run(store.request_stop(second.record, STOP)) == NotFound()


def test_the_first_wish_to_stop_stands(store: IdempotencyStore) -> None:
    """A cancellation request is recorded once, without a claim, in a running or a held record; a second one gets the record with the first
    one in it."""
    key = reserved(store)
    done = run(store.request_stop(key.record, STOP))
    assert isinstance(done, Updated)
    assert done.record.stop_wanted == STOP
    later = StopWanted(why=Why.SUPERSEDED, by="bob")
    assert run(store.request_stop(done.record, later)) == done
    assert run(store.request_stop(key.record, later)) == done
    assert [(e.what, e.by, e.why) for e in run(store.events(key.address))][1:] == [("StopWanted", "ann", "wrong day")]

    other = reserved(store)
    run(store.attach(other.record, "follower"))
    assert run(store.request_stop(other.record, STOP)) == Changed(other.now())
    other.record = other.now()
    held = other.change(state=State.HELD, held=HeldReason.UNKNOWN)
    assert isinstance(run(store.request_stop(held, STOP)), Updated)


def test_a_seal_is_seen_by_its_owner(store: IdempotencyStore) -> None:
    """Each of the three writes that the owner has not seen is acknowledged as written."""
    assert isinstance(attached(reserved(store)), Attached)
    assert isinstance(sealed(reserved(store)), Sealed)
    assert isinstance(stopped(reserved(store)), Updated)


def test_events_are_the_newest_two_hundred(store: IdempotencyStore) -> None:
    """The history of a key keeps the newest 200 entries, oldest first, each with the store's time."""
    key = reserved(store)
    for number in range(230):
        event = Event(what=f"e{number}", at=-1.0)
        done = run(store.update(key.record, key.claim, key.record.changed(note=fresh()), event=event))
        assert isinstance(done, Updated)
        key.record = done.record
    events = run(store.events(key.address))
    assert [event.what for event in events] == [f"e{number}" for number in range(30, 230)]
    assert all(event.at >= key.record.created_at for event in events)


def test_a_refused_write_leaves_no_event(store: IdempotencyStore) -> None:
    """An event belongs to its write: a refused write adds none."""
    key = reserved(store)
    attached(key)
    refused = run(store.update(key.record, key.claim, key.record.changed(phase="x"), event=Event(what="Granted")))
    assert isinstance(refused, Changed)
    assert [event.what for event in run(store.events(key.address))] == ["Reserved"]
