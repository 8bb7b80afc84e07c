"""Records that do not parse, and records of a newer version: every verb raises and writes nothing; they never count as absent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sparkonce.blocking import run
from sparkonce.errors import RecordTooNew, RecordUnreadable, SparkonceError
from sparkonce.model.record import Beat, Event, Report, StopWanted, Why
from sparkonce.store.protocol import IdempotencyStore, Owned, Query
from store.backends import Backend
from store.samples import Key, fresh, intent, request, reserved, result
from store.unreadable import BROKEN, NEWER, dumped

VERBS: dict[str, Callable[[Key], Any]] = {
    "reserve": lambda key: key.store.reserve(request(key.record.key), lease=key.lease, floor=0),
    "reserve again": lambda key: key.store.reserve(
        request(key.record.key, nonce=key.claim.nonce), lease=key.lease, floor=0
    ),
    "take_over": lambda key: key.store.take_over(key.record, lease=key.lease, nonce=fresh()),
    "heartbeat": lambda key: key.store.heartbeat(key.claim),
    "drop": lambda key: key.store.drop(key.claim),
    "update": lambda key: key.store.update(key.record, key.claim, key.record.changed(phase="Running")),
    "finalize": lambda key: key.store.finalize(key.record, key.claim, result(), retention=1.0),
    "reopen": lambda key: key.store.reopen(key.record, request(key.record.key), lease=key.lease),
    "attach": lambda key: key.store.attach(key.record, "follower"),
    "request_stop": lambda key: key.store.request_stop(key.record, StopWanted(why=Why.CANCELLED, by="ann")),
    "seal": lambda key: key.store.seal(key.address, generation=1, token=1, nonce=key.record.nonce, intent=intent()),
    "report": lambda key: key.store.report(key.address, 1, Report(attempt=1, reporter="d", kind="values")),
    "renew": lambda key: key.store.renew(key.address, 1, Beat(attempt=1, nonce=key.record.nonce, by="driver")),
    "load": lambda key: key.store.load(key.address),
    "purge": lambda key: key.store.purge(key.record, now=1e12),
    "forget": lambda key: key.store.forget(key.record, Event(what="Forgotten")),
}


def test_every_verb_is_tried() -> None:
    """The verbs that this file calls are all verbs of the protocol that read one record."""
    reading = {"spec", "result", "intent", "reports", "beats", "events", "list", "count", "realms", "watch", "now"}
    named = {name for name in vars(IdempotencyStore) if not name.startswith("_")}
    assert {name.split()[0] for name in VERBS} == named - reading - {"open_lease", "close"}


@pytest.mark.parametrize("verb", VERBS)
def test_an_unreadable_record_is_an_error_of_every_verb(backend: Backend, verb: str) -> None:
    """Each verb raises an error that names the record, and changes nothing.

    The text is another key's record: it parses, so only a verb that reads by the codec, with its own address, refuses it.
    """
    store = backend.open()
    key, other = reserved(store), reserved(store)
    good = dumped(key.record)
    backend.write(key.address, BROKEN["another key's"](key.record))
    revision = other.view().revision
    refused(lambda: VERBS[verb](key), key, RecordUnreadable)
    assert other.view().revision == revision
    backend.write(key.address, good)
    stands = key.now()  # in stores that count every write, restoring the text gives it a new revision
    assert stands.dump() == key.record.dump()
    assert key.view() == replace(other.view(), record=stands, claim=key.claim)


def test_every_text_reaches_the_codec(backend: Backend) -> None:
    """A text that the codec refuses is an error of the store, whatever it is: the empty text does not count as absent."""
    key = reserved(backend.open())
    for texts, error in ((BROKEN, RecordUnreadable), (NEWER, RecordTooNew)):
        for text in texts.values():
            backend.write(key.address, text(key.record))
            refused(lambda: key.store.load(key.address), key, error)
            refused(lambda: key.store.attach(key.record, "follower"), key, error)


def refused(call: Callable[[], Any], key: Key, error: type[SparkonceError]) -> None:
    with pytest.raises(error) as raised:
        run(call())
    assert key.record.key_hash[:20] in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_finalized_key_without_its_result_is_an_error(backend: Backend) -> None:
    """A record that says it is finalized without a stored result is damaged; no result is invented for it."""
    store = backend.open()
    key = reserved(store)
    changed = dumped(key.record, state="Finalized", outcome="Succeeded", expiresAt=1.0)
    backend.write(key.address, changed)
    with pytest.raises(RecordUnreadable, match="result is missing"):
        run(store.attach(key.record, "follower"))


def test_a_seal_whose_intent_is_missing_is_an_error(backend: Backend) -> None:
    """A record that names a missing intent is damaged; no other transaction may be sealed over it."""
    store = backend.open()
    key = reserved(store)
    backend.write(key.address, dumped(key.record, intent=1))
    with pytest.raises(RecordUnreadable, match="intent that is missing"):
        run(VERBS["seal"](key))


def test_list_names_what_it_cannot_read(backend: Backend) -> None:
    """Unreadable records are listed with the reason under every filter of states that could include them, and they are counted."""
    store = backend.open()
    lease = run(store.open_lease(owner="me"))
    keys = sorted((reserved(store, lease) for _ in range(4)), key=lambda key: key.record.key_hash)
    backend.write(keys[0].address, "{")
    backend.write(keys[2].address, NEWER["reads otherwise"](keys[2].record))
    for query in (Query(), Query(states=["InProgress"])):
        page = run(store.list(query))
        assert list(page.records) == [keys[1].record, keys[3].record]
        assert [address for address, _ in page.unreadable] == [keys[0].address, keys[2].address]
        assert "upgrade sparkonce" in page.unreadable[1][1]
    first = run(store.list(Query(limit=1)))
    assert (len(first.records), len(first.unreadable)) == (0, 1)
    assert first.after is not None
    assert [record.key for record in run(store.list(Query(after=first.after, limit=1))).records] == [keys[1].record.key]
    assert run(store.count()) == 4


def test_others_are_not_stalled(backend: Backend) -> None:
    """One unreadable record affects no other key."""
    store = backend.open()
    bad, good = reserved(store), reserved(store)
    backend.write(bad.address, "nonsense")
    good.change(phase="Running")
    assert isinstance(run(store.reserve(request(fresh("key")), lease=good.lease, floor=0)), Owned)
    good.finalize()
