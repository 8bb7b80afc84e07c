"""Requests and replies get lost: a repeated call is recognised, and everything takes effect once."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from sparkonce.blocking import run
from sparkonce.errors import StoreUnavailable
from sparkonce.model.record import Event, HeldReason, Record, Report, Settling, State, StopWanted, Why
from sparkonce.store.protocol import Attached, Claim, Finalized, IdempotencyStore, Owned, Sealed, Updated
from store.backends import Backend, LostReplies
from store.samples import Key, fresh, intent, request, reserved, result

VERBS = ("reserve", "take_over", "update", "finalize", "reopen", "attach", "request_stop", "seal", "report")
SEED = 2026
LIVES = 25


def test_a_whole_life_over_a_line_that_loses_replies(backend: Backend, store: IdempotencyStore) -> None:
    """Every verb of a key's life, repeated until answered, has the outcome that it has on a reliable connection, and leaves the same record
    and history as one call each."""
    line = LostReplies(store, random.Random(SEED), of=VERBS)
    for _ in range(LIVES):
        lost = life(backend, line)
        plain = life(backend, LostReplies(store, random.Random(SEED), of=()))
        assert lost == plain
    assert line.lost > LIVES * len(VERBS)  # otherwise nothing was tested


def life(backend: Backend, line: LostReplies) -> tuple[dict[str, Any], list[str], dict[str, Any]]:
    """The final state: the record without fields that naturally differ, the history, and the result."""
    asked = request(fresh("key"), nonce=fresh())
    lease = run(line.open_lease(owner="first"))
    owned = line.until_answered("reserve", asked, lease=lease, floor=0)
    assert isinstance(owned, Owned)
    backend.expire(lease)
    lease = run(line.open_lease(owner="second"))
    owned = line.until_answered("take_over", owned.record, lease=lease, nonce=fresh())
    assert isinstance(owned, Owned)
    record = driven(line, owned.record, owned.claim)

    again = request(asked.key, nonce=fresh())
    owned = line.until_answered("reopen", record, again, lease=lease)
    assert isinstance(owned, Owned) and owned.record.generation == 2
    held = owned.record.changed(state=State.HELD, held=HeldReason.PARTIAL)
    updated = line.until_answered("update", owned.record, owned.claim, held, event=Event(what="Held"))
    assert isinstance(updated, Updated)

    stands = run(line.load(asked.address)).record
    ended = run(line.result(asked.address, 1))
    own = {"keyHash", "key", "nonce", "openers", "createdAt", "grantedAt"}
    history = [event.what for event in run(line.events(asked.address))]
    return {k: v for k, v in stands.dump().items() if k not in own}, history, ended.dump()


def driven(line: LostReplies, record: Record, claim: Claim) -> Record:
    """Runs attempt 1 to its result."""
    attached = line.until_answered("attach", record, "follower")
    assert isinstance(attached, Attached)
    sealed = line.until_answered("seal", record.address, generation=1, token=1, nonce=record.nonce, intent=intent())
    assert isinstance(sealed, Sealed)
    wish = StopWanted(why=Why.CANCELLED, by="ann")
    stopped = line.until_answered("request_stop", sealed.record, wish)
    assert isinstance(stopped, Updated)
    changed = stopped.record.changed(settling=Settling(attempt=1, why=Why.CANCELLED))
    settling = line.until_answered("update", stopped.record, claim, changed, event=Event(what="Settling"))
    assert isinstance(settling, Updated)
    ended = line.until_answered("finalize", settling.record, claim, result(), retention=9.0)
    assert isinstance(ended, Finalized)
    return ended.record


def test_racing_callers_over_bad_lines(store: IdempotencyStore) -> None:
    """Callers lose replies and are interleaved at random: each key still has one owner, which knows it, and one generation."""
    rng = random.Random(SEED)
    lease = run(store.open_lease(owner="me"))
    for _ in range(LIVES):
        name = fresh("key")
        lines = [LostReplies(store, rng, of=("reserve",)) for _ in range(4)]
        asked = [request(name) for _ in lines]
        waiting = list(range(4))
        outcomes: dict[int, Any] = {}
        while waiting:
            who = rng.choice(waiting)
            before = lines[who].lost
            done = attempt(lines[who], asked[who], lease)
            if lines[who].lost == before:
                outcomes[who] = done
                waiting.remove(who)
        kinds = Counter(type(done).__name__ for done in outcomes.values())
        assert kinds == {"Owned": 1, "Duplicate": 3}
        winner = next(who for who, done in outcomes.items() if isinstance(done, Owned))
        view = run(store.load(asked[winner].address))
        assert view.claim is not None and view.claim.nonce == asked[winner].nonce
        assert len(run(store.events(asked[winner].address))) == 1


def attempt(line: LostReplies, asked: Any, lease: Any) -> Any:
    """Sends the call once; None if there was no answer."""
    lost = line.lost
    try:
        return run(line.reserve(asked, lease=lease, floor=0))
    except StoreUnavailable:
        assert line.lost == lost + 1
        return None


def test_a_lost_reopen_opens_one_generation(store: IdempotencyStore) -> None:
    """A rerun whose reply was lost is repeated, by the same call or by an opener that no longer knows its nonce: one new generation
    exists."""
    line = LostReplies(store, random.Random(SEED), of=("reopen",))
    for _ in range(LIVES):
        key = reserved(store)
        key.finalize()
        asked = request(key.record.key)
        done = line.until_answered("reopen", key.record, asked, lease=key.lease)
        assert isinstance(done, Owned)
        forgot = request(key.record.key, by=asked.by)
        assert type(line.until_answered("reopen", key.record, forgot, lease=key.lease)).__name__ == "Duplicate"
        assert key.now().generation == 2


def test_a_report_is_written_once_over_a_bad_line(store: IdempotencyStore) -> None:
    """A driver that repeats its report is answered that the report is recorded."""
    line = LostReplies(store, random.Random(SEED), of=("report",))
    key: Key = reserved(store)
    for number in range(LIVES):
        entry = Report(attempt=1, reporter=f"driver-{number}", kind="values", body={"n": number})
        assert line.until_answered("report", key.address, 1, entry) is True
    assert len(run(store.reports(key.address, 1))) == LIVES
