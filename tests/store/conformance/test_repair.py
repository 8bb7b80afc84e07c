"""Repairing or removing one record that cannot be read: only this exact text is replaced, once, with its claim, above its floor."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sparkonce.blocking import run
from sparkonce.errors import InvalidInput, RecordTooNew
from sparkonce.model.record import Event, Record, Settling, Why
from sparkonce.store.protocol import LostOwnership, Owned, Query, Updated
from sparkonce.store.repair import Repairable
from store.backends import Backend
from store.samples import Key, fresh, request, reserved
from store.unreadable import BROKEN, NEWER


def repair(key: Key, text: str | None, record: Record | None, *, generation: int = 1, by: str = "ann") -> bool:
    assert text is not None
    event = Event(what="Repaired", by=by, why="a test", generation=generation)
    store = cast(Repairable, key.store)
    return run(store.repair(key.address, text, record=record, generation=generation, event=event))


def unreadable(key: Key) -> str | None:
    return run(cast(Repairable, key.store).unreadable(key.address))


def rebuilt(record: Record, **change: Any) -> Record:
    settling = Settling(attempt=record.attempt, why=Why.LOST, note="it was rebuilt")
    return record.changed(settling=settling, nonce=fresh(), **change)


@pytest.mark.parametrize("text", BROKEN)
def test_a_record_that_cannot_be_read_is_replaced(backend: Backend, text: str) -> None:
    """Every reader sees the new record and every watch reports it; the history keeps who repaired it and why, and no claim is left."""
    key = reserved(backend.open())
    before = key.view().revision
    backend.write(key.address, BROKEN[text](key.record))
    new = rebuilt(key.record)

    assert repair(key, unreadable(key), new) is True
    assert unreadable(key) is None
    assert key.now().dump() == new.dump()
    assert key.now().revision == key.view().revision > before
    assert key.view().claim is None
    last = run(key.store.events(key.address))[-1]
    assert (last.what, last.by, last.why) == ("Repaired", "ann", "a test")
    assert last.at > 0
    assert key.record.key in [r.key for r in run(key.store.list(Query(states=("InProgress",)))).records]


def test_a_repaired_key_goes_on_under_a_new_owner(backend: Backend) -> None:
    """The previous owner owns nothing; another process takes the key over and can write."""
    key = reserved(backend.open())
    backend.write(key.address, BROKEN["empty"](key.record))
    assert repair(key, "", rebuilt(key.record))

    assert isinstance(run(key.store.heartbeat(key.claim)), LostOwnership)
    assert isinstance(run(key.store.update(key.now(), key.claim, key.now().changed(note="mine"))), LostOwnership)
    lease = run(key.store.open_lease(owner="another"))
    taken = run(key.store.take_over(key.now(), lease=lease, nonce=fresh()))
    assert isinstance(taken, Owned)
    changed = taken.record.changed(phase="Running")
    assert isinstance(run(key.store.update(taken.record, taken.claim, changed)), Updated)


def test_a_record_that_cannot_be_read_is_removed(backend: Backend) -> None:
    """Everything stored beside the record is removed with it; its generation number stays used, and the history stays."""
    key = reserved(backend.open())
    backend.write(key.address, BROKEN["no JSON"](key.record))

    assert repair(key, unreadable(key), None, generation=3) is True
    view = key.view()
    assert (view.record, view.claim, view.floor) == (None, None, 3)
    assert run(key.store.spec(key.address, 1)) is None
    assert [event.what for event in run(key.store.events(key.address))] == ["Reserved", "Repaired"]
    again = run(key.store.reserve(request(key.record.key), lease=key.lease, floor=3))
    assert isinstance(again, Owned)
    assert again.record.generation == 4


@pytest.mark.parametrize(
    ("how", "alive", "records"),
    [("kept for longer", 1, 1), ("kept as long", 0, 1), ("in progress", 1, 1), ("removed", 0, 0)],
)
def test_a_repaired_key_is_counted_by_its_new_record(backend: Backend, how: str, alive: int, records: int) -> None:
    """When the time has come at which the damaged record would have expired, only the rebuilt record decides whether the key counts as
    alive, and so how many new keys are admitted."""
    key = reserved(backend.open())
    begun = key.record
    ended = key.finalize(retention=10.0)
    assert ended.expires_at is not None
    new = {
        "kept for longer": ended.changed(expires_at=ended.expires_at + 86400.0),
        "kept as long": ended,
        "in progress": rebuilt(begun),
        "removed": None,
    }[how]
    backend.write(key.address, BROKEN["no JSON"](ended))

    assert repair(key, unreadable(key), new) is True
    backend.clock.ahead = 11.0
    assert run(key.store.count(live_only=True)) == alive
    assert run(key.store.count()) == records


def test_a_repetition_is_recognised(backend: Backend) -> None:
    """After a lost reply the same call gets the same answer and writes nothing; a different repair is refused."""
    for new in (rebuilt, lambda _: None):
        key = reserved(backend.open())
        text = BROKEN["empty"](key.record)
        backend.write(key.address, text)
        record = new(key.record)
        assert repair(key, text, record)
        revision, events = key.view().revision, run(key.store.events(key.address))
        assert repair(key, text, record) is True
        assert key.view().revision == revision
        assert run(key.store.events(key.address)) == events
        assert repair(key, text, rebuilt(key.record)) is False


def test_only_the_text_that_was_decided_on_is_replaced(backend: Backend) -> None:
    """If the record has another text by now, or can be read, it is left as it is."""
    key = reserved(backend.open())
    assert unreadable(key) is None
    assert repair(key, "", rebuilt(key.record)) is False
    assert repair(key, "", None) is False
    assert key.now().dump() == key.record.dump()
    for name in ("no record", "no JSON"):
        backend.write(key.address, BROKEN[name](key.record))
        assert repair(key, "", rebuilt(key.record)) is False
        assert repair(key, "", None) is False
        assert unreadable(key) == BROKEN[name](key.record)


def test_a_newer_version_s_record_is_not_damaged(backend: Backend) -> None:
    """A record of a newer version can be read by that version, so it is not replaced."""
    key = reserved(backend.open())
    for text in NEWER.values():
        backend.write(key.address, text(key.record))
        with pytest.raises(RecordTooNew):
            unreadable(key)
        with pytest.raises(RecordTooNew):
            repair(key, text(key.record), rebuilt(key.record))


def test_a_record_that_could_not_be_read_back_is_refused(backend: Backend) -> None:
    """The damaged text stays, and so does the claim."""
    key = reserved(backend.open())
    backend.write(key.address, "")
    with pytest.raises(InvalidInput):
        repair(key, "", rebuilt(key.record, note="x" * 300_000))
    assert unreadable(key) == ""


def test_a_key_without_a_record_has_nothing_to_repair(backend: Backend) -> None:
    """`unreadable` answers None, and `repair` writes nothing."""
    key = reserved(backend.open())
    key.remove()
    assert unreadable(key) is None
    assert repair(key, "", rebuilt(key.record)) is False
    assert repair(key, "", None, generation=2) is False
