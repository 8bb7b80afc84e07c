"""seal, report, renew: what a driver writes, without a claim."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from sparkonce.blocking import run
from sparkonce.model.record import Beat, HeldReason, Record, Report, Settling, State, Why
from sparkonce.store.protocol import Changed, IdempotencyStore, Refused, Sealed, Updated
from store.backends import Backend
from store.racing import at_once
from store.samples import Key, address_of, intent, reserved

ROUNDS = 30


def seal(key: Key, **change: Any) -> Sealed | Refused:
    asked: dict[str, Any] = {"generation": 1, "token": 1, "nonce": key.record.nonce, "intent": intent()}
    return run(key.store.seal(key.address, **(asked | change)))


def test_a_seal_is_written_beside_the_record(store: IdempotencyStore) -> None:
    """The current attempt seals without a claim: the record names the token, the intent stands beside it."""
    key = reserved(store)
    done = seal(key)
    assert isinstance(done, Sealed)
    assert done.record == key.now()
    assert (done.record.intent, done.record.revision > key.record.revision) == (1, True)
    assert run(store.intent(key.address, 1)) == intent()
    assert run(store.intent(key.address, 2)) is None


def test_one_intent_per_generation(store: IdempotencyStore) -> None:
    """The same intent again is Sealed and writes nothing; another one is refused, and the first stands."""
    key = reserved(store)
    first = seal(key)
    assert seal(key) == first
    assert isinstance(seal(key, intent=intent(digest="other")), Refused)
    assert run(store.intent(key.address, 1)) == intent()
    assert isinstance(first, Sealed) and key.now() == first.record


@pytest.mark.parametrize(
    "wrong",
    [{"nonce": "another"}, {"token": 2, "intent": intent(2)}, {"generation": 2}],
    ids=["nonce", "attempt", "generation"],
)
def test_only_the_current_attempt_seals(store: IdempotencyStore, wrong: dict[str, Any]) -> None:
    """A driver of another nonce, attempt or generation is refused; so is one whose key has no record."""
    key = reserved(store)
    assert isinstance(seal(key, **wrong), Refused)
    assert key.now() == key.record
    run(store.release(key.record, key.claim))
    assert seal(key) == Refused(None, "the key has no record")


def test_a_seal_of_an_attempt_that_is_over(store: IdempotencyStore) -> None:
    """Once the next attempt is granted, or the record is held, or the generation has ended, a seal that comes late is refused."""
    granted = reserved(store)
    old = granted.record.nonce
    granted.change(attempt=2, nonce="n2")
    assert isinstance(seal(granted, nonce=old), Refused)
    held = reserved(store)
    held.change(state=State.HELD, held=HeldReason.UNKNOWN)
    assert isinstance(seal(held), Refused)
    ended = reserved(store)
    ended.finalize()
    assert isinstance(seal(ended), Refused)


def test_settling_bars_seals(store: IdempotencyStore) -> None:
    """When `settling` stands first, the seal of that attempt is refused; when the seal stands first, `settling` must see it."""
    first = reserved(store)
    first.change(settling=Settling(attempt=1, why=Why.LOST))
    assert isinstance(seal(first), Refused)
    assert first.now().intent is None

    second = reserved(store)
    assert isinstance(seal(second), Sealed)
    settling = second.record.changed(settling=Settling(attempt=1, why=Why.LOST))
    assert run(store.update(second.record, second.claim, settling)) == Changed(second.now())
    assert second.now().settling is None


def test_settling_of_an_older_attempt_bars_nothing_newer(store: IdempotencyStore) -> None:
    """What was settled is attempt 1; attempt 2 may seal."""
    key = reserved(store)
    key.change(settling=Settling(attempt=1, why=Why.LOST))
    key.change(attempt=2, nonce="n2")
    assert isinstance(seal(key, token=2, intent=intent(2)), Sealed)


def test_a_repeated_seal_is_recognised_after_settling(store: IdempotencyStore) -> None:
    """A seal that stands is answered Sealed to its own repetition, whatever came after it."""
    key = reserved(store)
    sealed = seal(key)
    assert isinstance(sealed, Sealed)
    key.record = sealed.record
    key.change(settling=Settling(attempt=1, why=Why.LOST))
    assert isinstance(seal(key), Sealed)


def test_seal_against_settling_at_the_same_instant(store: IdempotencyStore) -> None:
    """Of a seal and a `settling` that race, exactly one is written; both never."""
    for _ in range(ROUNDS):
        key = reserved(store)
        settling = key.record.changed(settling=Settling(attempt=1, why=Why.LOST))
        calls: list[Callable[[], object]] = [partial(seal, key), partial(settle, key, settling)]
        one, other = at_once(calls)
        outcomes = isinstance(one, Sealed), isinstance(other, Updated)
        assert outcomes in {(True, False), (False, True)}
        now = key.now()
        assert (now.intent == 1, now.settling is not None) == outcomes


def settle(key: Key, changed: Record) -> object:
    return run(key.store.update(key.record, key.claim, changed))


def test_an_intent_of_another_token_is_the_callers_mistake(store: IdempotencyStore) -> None:
    """The intent and the seal name one token."""
    with pytest.raises(ValueError):
        seal(reserved(store), intent=intent(2))


def test_reports_are_created_once(store: IdempotencyStore) -> None:
    """A reporter's entry stands as it was written first: the same again is true, another body false; reporters do not share entries."""
    key = reserved(store)
    first = Report(attempt=1, reporter="driver-1", kind="values", body={"rows": 3, "none": None})
    assert run(store.report(key.address, 1, first)) is True
    assert run(store.report(key.address, 1, first)) is True
    assert run(store.report(key.address, 1, first.model_copy(update={"body": {}}))) is False
    second = Report(attempt=1, reporter="driver-2", kind="permanent-error", body={"message": "no"})
    assert run(store.report(key.address, 1, second)) is True
    assert list(run(store.reports(key.address, 1))) == [first, second]
    assert list(run(store.reports(key.address, 2))) == []
    assert key.now() == key.record


def test_a_report_to_nobody_is_not_kept(store: IdempotencyStore) -> None:
    """Without a record, or for a generation that never was, there is nothing to stand beside."""
    report = Report(attempt=1, reporter="driver", kind="values")
    assert run(store.report(address_of("never"), 1, report)) is False
    key = reserved(store)
    assert run(store.report(key.address, 2, report)) is False
    assert list(run(store.reports(key.address, 2))) == []


def test_renew_touches_the_current_attempt(backend: Backend, store: IdempotencyStore) -> None:
    """Driver and owner each have their touch, with progress and its age in seconds; neither moves the record, nor, in stores that count
    changes only, the store's revision."""
    key = reserved(store)
    revision = key.view().revision
    driver = Beat(attempt=1, nonce=key.record.nonce, by="driver", progress={"stages": 3})
    assert run(store.renew(key.address, 1, driver)) is True
    assert run(store.renew(key.address, 1, driver.model_copy(update={"progress": {"stages": 4}}))) is True
    assert run(store.renew(key.address, 1, Beat(attempt=1, nonce=key.record.nonce, by="owner"))) is True
    beats = run(store.beats(key.address, 1))
    assert set(beats) == {(1, "driver"), (1, "owner")}
    assert beats[1, "driver"].progress == {"stages": 4}
    assert all(0 <= beat.age < 30 for beat in beats.values())
    assert key.now() == key.record
    assert backend.counts_every_write or key.view().revision == revision


def test_the_age_of_a_touch_grows_by_no_clock_that_is_set(backend: Backend) -> None:
    """Ages follow the monotonic clock: hours that only the wall clock jumped over make nobody stale."""
    seconds = 100.0
    store = backend.open(monotonic=lambda: seconds)
    key = reserved(store)
    run(store.renew(key.address, 1, Beat(attempt=1, nonce=key.record.nonce, by="driver")))
    seconds, backend.clock.ahead = 107.5, 86400.0
    assert run(store.beats(key.address, 1))[1, "driver"].age == 7.5


@pytest.mark.parametrize("wrong", [{"nonce": "another"}, {"attempt": 2}], ids=["nonce", "attempt"])
def test_renew_of_an_attempt_that_is_over(store: IdempotencyStore, wrong: dict[str, Any]) -> None:
    """A touch by another attempt or nonce, for another generation, of a finalized or an absent key is answered false and not kept."""
    key = reserved(store)
    beat = Beat(attempt=1, nonce=key.record.nonce, by="driver")
    assert run(store.renew(key.address, 1, beat.model_copy(update=wrong))) is False
    assert run(store.renew(key.address, 2, beat)) is False
    key.finalize()
    assert run(store.renew(key.address, 1, beat)) is False
    assert run(store.beats(key.address, 1)) == {}
    assert run(store.renew(address_of("never"), 1, beat)) is False
