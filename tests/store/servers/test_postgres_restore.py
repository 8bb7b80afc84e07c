"""Accepting a PostgreSQL store that was restored from a backup: records are rebuilt from the given evidence, then the epoch rises."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from sparkonce.blocking import run
from sparkonce.errors import StoreUnusable
from sparkonce.model.record import SpecBody, State
from sparkonce.store.protocol import Owned
from sparkonce.store.restore import NewestAttempt
from store.backends import Postgres
from store.racing import at_once
from store.samples import Key, address_of, fresh, intent, reserved, taken


def shown(key: str, *, generation: int = 1, attempt: int = 1) -> NewestAttempt:
    return NewestAttempt(
        address=address_of(key),
        key=key,
        generation=generation,
        attempt=attempt,
        nonce=f"nonce of {attempt}",
        fingerprint="f" * 64,
        fingerprint_version=1,
        spec=SpecBody(job={"kind": "IdempotentJob"}, digests={}, secret="s"),
        objects=("uid",),
    )


def test_a_lost_record_is_rebuilt_once(postgres: Postgres) -> None:
    """A key without a record gets the attempt of the evidence, in progress and without an owner; a repetition changes nothing."""
    store = postgres.open()
    asked = shown("lost", generation=3, attempt=2)
    answers = at_once([partial(run, store.rebuild(asked, by="ann")) for _ in range(4)])
    assert sorted(answers) == [False, False, False, True]
    view = run(store.load(asked.address))
    record = view.record
    assert record is not None and view.claim is None
    assert (record.state, record.generation, record.attempt, record.nonce) == (State.IN_PROGRESS, 3, 2, asked.nonce)
    assert record.revision == view.revision == 1
    assert run(store.spec(asked.address, 3)) == asked.spec
    assert [event.what for event in run(store.events(asked.address))] == ["Rebuilt"]
    assert isinstance(taken(store, record), Key)


@pytest.mark.parametrize("known", [False, True])
def test_a_generation_of_a_name_that_is_only_reserved_is_used_up(postgres: Postgres, known: bool) -> None:
    """Of the attempt only its name is left, so no record can be rebuilt: a new request gets a later generation, whose names are free. A
    record of an older generation stays."""
    store = postgres.open()
    older = reserved(store, key="kept") if known else None
    asked = replace(shown("kept", generation=3), spec=None)
    before = run(store.load(asked.address)).record
    assert [run(store.rebuild(asked, by="ann")) for _ in range(2)] == [True, False]
    view = run(store.load(asked.address))
    assert (view.record, view.floor) == (before, 3)
    assert run(store.events(asked.address))[-1].what == "Used"
    if older is not None:
        older.finalize()
    next_one = reserved(store, key="kept") if older is None else older.reopen()
    assert next_one.record.generation == 4


@pytest.mark.parametrize("finalized", [False, True])
def test_an_older_record_gives_way(postgres: Postgres, finalized: bool) -> None:
    """A record older than the evidence is replaced, with everything stored for that generation; its old owner loses its claim, and the key
    can end like any other."""
    store = postgres.open()
    key = reserved(store)
    run(store.seal(key.address, generation=1, token=1, nonce=key.record.nonce, intent=intent()))
    key.record = key.now()
    if finalized:
        key.finalize()
    newer = shown(key.record.key, attempt=2)
    assert run(store.rebuild(newer, by="ann")) is True
    record = key.now()
    assert (record.state, record.attempt, record.nonce, record.intent) == (State.IN_PROGRESS, 2, newer.nonce, None)
    assert record.revision > key.record.revision
    assert key.view().claim is None
    assert (run(store.result(key.address, 1)), run(store.intent(key.address, 1))) == (None, None)
    successor = taken(store, record)
    run(store.seal(key.address, generation=1, token=2, nonce=record.nonce, intent=intent(2)))
    successor.record = successor.now()
    assert successor.finalize().state is State.FINALIZED


def test_a_record_that_is_not_older_stays(postgres: Postgres) -> None:
    """Evidence of an earlier attempt, or of the recorded one, changes nothing, not even the store's revision."""
    store = postgres.open()
    key = reserved(store)
    later = key.change(attempt=2, nonce="nonce of 2")
    before = key.view()
    for attempt in (1, 2):
        assert (
            run(store.rebuild(replace(shown(key.record.key), attempt=attempt, nonce=f"nonce of {attempt}"), by="ann"))
            is False
        )
    assert key.view() == before
    assert key.now() == later


def test_the_epoch_rises_once(postgres: Postgres) -> None:
    """However many callers accept the same epoch, it rises by one, and later records carry the new one; a caller that names an epoch which
    the store never reached is refused."""
    store = postgres.open()
    key = reserved(store)
    assert at_once([partial(run, store.raise_epoch(seen=1)) for _ in range(4)]) == [2, 2, 2, 2]
    assert (key.view().epoch, key.now().epoch) == (2, 2)
    assert key.change(phase="Running").epoch == 2
    with pytest.raises(StoreUnusable, match="run the command again"):
        run(store.raise_epoch(seen=5))
    assert key.view().epoch == 2
    lease = run(store.open_lease(owner=fresh("owner")))
    run(store.drop(key.claim))
    assert isinstance(run(store.take_over(key.now(), lease=lease, nonce=fresh())), Owned)
