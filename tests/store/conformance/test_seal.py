"""seal, report, renew: what a driver writes, without a claim."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from harness import effort
from sparkonce.blocking import run
from sparkonce.errors import InvalidInput, RealmReportsFull, ReportTooLarge
from sparkonce.model.record import Beat, Event, HeldReason, Intent, Record, Report, Settling, State, Why
from sparkonce.store import rules
from sparkonce.store.codec import VALUE_LIMIT, encode
from sparkonce.store.ledger import Ledger
from sparkonce.store.protocol import Changed, Gone, IdempotencyStore, Refused, Sealed, Updated
from store.backends import Backend
from store.racing import at_once
from store.samples import Key, address_of, intent, reserved

ROUNDS = effort.size("racing rounds")


def seal(key: Key, **change: Any) -> Sealed | Refused:
    asked: dict[str, Any] = {"generation": 1, "token": 1, "nonce": key.record.nonce, "intent": intent()}
    return run(key.store.seal(key.address, **(asked | change)))


def test_a_seal_is_written_beside_the_record(store: IdempotencyStore) -> None:
    """The current attempt seals without a claim: the record names its token, and the intent is stored beside the record."""
    key = reserved(store)
    done = seal(key)
    assert isinstance(done, Sealed)
    assert done.record == key.now()
    assert (done.record.intent, done.record.revision > key.record.revision) == (1, True)
    assert run(store.intent(key.address, 1)) == intent()
    assert run(store.intent(key.address, 2)) is None


def test_one_intent_per_generation(store: IdempotencyStore) -> None:
    """The same intent again is Sealed and writes nothing; another one is refused, and the first stays."""
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
    """A driver with another nonce, attempt or generation is refused, and so is one whose key has no record."""
    key = reserved(store)
    assert isinstance(seal(key, **wrong), Refused)
    assert key.now() == key.record
    key.remove()
    assert seal(key) == Refused(None, "the key has no record")


def test_a_seal_of_an_attempt_that_is_over(store: IdempotencyStore) -> None:
    """A late seal is refused once the next attempt is granted, the record is held, or the generation has ended."""
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
    """After `settling` is recorded, the seal of that attempt is refused; if the seal came first, the write of `settling` must have seen
    it."""
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
    """Attempt 1 is recorded as settling; attempt 2 may seal."""
    key = reserved(store)
    key.change(settling=Settling(attempt=1, why=Why.LOST))
    key.change(attempt=2, nonce="n2")
    assert isinstance(seal(key, token=2, intent=intent(2)), Sealed)


def test_a_repeated_seal_is_recognised_after_settling(store: IdempotencyStore) -> None:
    """A repetition of a recorded seal is Sealed, whatever was written after it."""
    key = reserved(store)
    sealed = seal(key)
    assert isinstance(sealed, Sealed)
    key.record = sealed.record
    key.change(settling=Settling(attempt=1, why=Why.LOST))
    assert isinstance(seal(key), Sealed)


def test_seal_against_settling_at_the_same_instant(store: IdempotencyStore) -> None:
    """Of a seal and a write of `settling` that race, exactly one succeeds."""
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
    """The intent and the seal must name the same token."""
    with pytest.raises(ValueError):
        seal(reserved(store), intent=intent(2))


def test_reports_are_created_once(store: IdempotencyStore) -> None:
    """A reporter's first entry stays: the same body again is True, another one False; reporters do not share entries."""
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
    """A report for a key without a record, or for a generation that never existed, is not stored."""
    report = Report(attempt=1, reporter="driver", kind="values")
    assert run(store.report(address_of("never"), 1, report)) is False
    key = reserved(store)
    assert run(store.report(key.address, 2, report)) is False
    assert list(run(store.reports(key.address, 2))) == []


def said(reporter: str, size: int, *, kind: str = "values", attempt: int = 1) -> Report:
    """A report of exactly this many bytes of JSON."""
    empty = Report(attempt=attempt, reporter=reporter, kind=kind, body={"x": ""})
    return empty.model_copy(update={"body": {"x": "a" * (size - len(encode(empty)))}})


def test_a_report_has_a_limit(store: IdempotencyStore) -> None:
    """A report of 16 KiB is stored, and one byte more is refused; evidence of commits, which lists files, may be as large as any value."""
    key = reserved(store)
    assert run(store.report(key.address, 1, said("fits", rules.REPORT_LIMIT))) is True
    with pytest.raises(
        ReportTooLarge, match=r"'values' has 16,385 bytes of JSON, and a ledger keeps at most 16,384 of each; write"
    ):
        run(store.report(key.address, 1, said("large", rules.REPORT_LIMIT + 1)))
    for kind in ("committed", "verdict"):
        assert run(store.report(key.address, 1, said(kind, VALUE_LIMIT, kind=kind))) is True
    assert [each.reporter for each in run(store.reports(key.address, 1))] == ["committed", "fits", "verdict"]


def test_an_attempt_has_a_limit_for_all_of_its_reports(store: IdempotencyStore) -> None:
    """The size of an attempt's reports is counted in the step that stores them. At the limit a new report is refused, a repetition is still
    recognised and what was stored is kept, a settle run's verdict still has room, and the next attempt starts from zero."""
    key = reserved(store)
    whole = (rules.ATTEMPT_LIMIT - rules.VERDICT_ROOM) // rules.REPORT_LIMIT
    for number in range(whole):
        assert run(store.report(key.address, 1, said(f"d-{number:02}", rules.REPORT_LIMIT))) is True
    with pytest.raises(
        ReportTooLarge,
        match=r"attempt 1 has reported 786,432 bytes, and with 100 more .* limit of 786,432; report less",
    ):
        run(store.report(key.address, 1, said("more", 100)))
    assert run(store.report(key.address, 1, said("d-00", rules.REPORT_LIMIT))) is True
    assert run(store.report(key.address, 1, said("settle-1", 200_000, kind="verdict"))) is True
    with pytest.raises(ReportTooLarge, match="limit of 1,048,576"):
        run(store.report(key.address, 1, said("settle-2", 200_000, kind="verdict")))
    assert run(store.report(key.address, 1, said("next", 100, attempt=2))) is True
    assert len(run(store.reports(key.address, 1))) == whole + 2
    assert key.now() == key.record


def test_an_attempt_makes_a_thousand_reports(store: IdempotencyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports are counted as well as their bytes: the one beyond the limit is refused."""
    monkeypatch.setattr(rules, "REPORTS", 3)
    key = reserved(store)
    for number in range(3):
        assert run(store.report(key.address, 1, said(f"d-{number}", 100))) is True
    with pytest.raises(ReportTooLarge, match="already made 3 reports, which is the limit; report less often"):
        run(store.report(key.address, 1, said("more", 100)))


def test_a_realm_has_a_limit_for_its_reports(backend: Backend) -> None:
    """At the realm's limit reports of all its keys are refused. Verdicts and repetitions are not, other realms are not affected, and the
    space of a forgotten key is free again."""
    seconds = [0.0]
    store = backend.open(max_report_bytes=100_000, monotonic=lambda: seconds[0])
    first, second, other = reserved(store), reserved(store), reserved(store, realm="another")
    for number in range(6):
        assert run(store.report(first.address, 1, said(f"d-{number}", 16_000))) is True
    if isinstance(store, Ledger):  # etcd's own count is tested in tests/api/test_monitoring.py
        assert 0.95 < store.reports_ratio() < 1
    for key in (first, second):
        with pytest.raises(
            RealmReportsFull, match=r"the reports of realm '.*' have used up their room in the ledger; purge or"
        ):
            run(store.report(key.address, 1, said("more", 16_000)))
    assert run(store.report(first.address, 1, said("d-0", 16_000))) is True
    assert run(store.report(second.address, 1, said("settle-1", 16_000, kind="verdict"))) is True
    assert run(store.report(other.address, 1, said("d", 16_000))) is True
    first.finalize()
    run(store.forget(first.now(), Event(what="Forgotten", by="ann")))
    seconds[0] += 61  # etcd refreshes its count after a minute
    assert run(store.report(second.address, 1, said("more", 16_000))) is True


def test_a_forgotten_key_counts_anew(store: IdempotencyStore) -> None:
    """The count goes with the record and its reports."""
    key = reserved(store)
    assert run(store.report(key.address, 1, said("v", VALUE_LIMIT, kind="verdict"))) is True
    key.finalize()
    assert isinstance(run(store.forget(key.now(), Event(what="Forgotten", by="ann"))), Gone)
    again = reserved(store, key=key.record.key)
    assert again.record.generation == 2
    for number in range(rules.ATTEMPT_LIMIT // VALUE_LIMIT):
        assert run(store.report(again.address, 2, said(f"v-{number}", VALUE_LIMIT, kind="verdict"))) is True


def test_what_could_not_be_read_back_is_refused_and_changes_nothing(store: IdempotencyStore) -> None:
    """Progress, a report and an intent nested 220 deep are refused, and each verb of the key still works. (A beat that deep was once
    stored, and then no verb could read its key.)"""
    key = reserved(store)
    deep: Any = 1
    for _ in range(220):
        deep = [deep]
    beat = Beat(attempt=1, nonce=key.record.nonce, by="driver", progress={"deep": deep})
    with pytest.raises(InvalidInput, match="nested"):
        run(store.renew(key.address, 1, beat))
    with pytest.raises(InvalidInput, match="nested"):
        run(store.report(key.address, 1, Report(attempt=1, reporter="r", kind="values", body={"deep": deep})))
    with pytest.raises(InvalidInput, match="nested"):
        seal(key, intent=Intent(token=1, slots={"orders": {"deep": deep}}))
    assert key.now() == key.record
    assert dict(run(store.beats(key.address, 1))) == {}
    assert list(run(store.reports(key.address, 1))) == []
    assert isinstance(seal(key), Sealed)


def test_renew_touches_the_current_attempt(backend: Backend, store: IdempotencyStore) -> None:
    """Driver and owner each have a touch of their own, with progress and its age in seconds. Neither moves the record's revision, nor the
    store's in stores that count changes only."""
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
    """Ages follow the monotonic clock: if the wall clock jumps by hours, nothing becomes stale."""
    seconds = 100.0
    store = backend.open(monotonic=lambda: seconds)
    key = reserved(store)
    run(store.renew(key.address, 1, Beat(attempt=1, nonce=key.record.nonce, by="driver")))
    seconds, backend.clock.ahead = 107.5, 86400.0
    assert run(store.beats(key.address, 1))[1, "driver"].age == 7.5


@pytest.mark.parametrize("wrong", [{"nonce": "another"}, {"attempt": 2}], ids=["nonce", "attempt"])
def test_renew_of_an_attempt_that_is_over(store: IdempotencyStore, wrong: dict[str, Any]) -> None:
    """A touch by another attempt or nonce, for another generation, or of a finalized or absent key returns False and is not stored."""
    key = reserved(store)
    beat = Beat(attempt=1, nonce=key.record.nonce, by="driver")
    assert run(store.renew(key.address, 1, beat.model_copy(update=wrong))) is False
    assert run(store.renew(key.address, 2, beat)) is False
    key.finalize()
    assert run(store.renew(key.address, 1, beat)) is False
    assert run(store.beats(key.address, 1)) == {}
    assert run(store.renew(address_of("never"), 1, beat)) is False
