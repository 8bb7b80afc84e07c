"""A reply ledger in PostgreSQL, whose verbs read and write in two round trips: what another process writes in between decides."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from typing import Any

import psycopg
import pytest

from harness.clocks import Clocks
from harness.postgres import server
from sparkonce.blocking import run
from sparkonce.errors import StoreUnavailable
from sparkonce.replies.ledger.postgres import PostgresReplies
from sparkonce.replies.ledger.sql import ReplyReader, Seen
from sparkonce.replies.protocol import KeyStanding, Reply, ReplyLedger, Reservation, WriteOutcome

KEY = "aa" * 32
DONE = Reply(201, (("location", "/orders/1"),), b'{"id": 1}')
LOST, ALREADY, WRITTEN = WriteOutcome.LOST, WriteOutcome.ALREADY, WriteOutcome.WRITTEN


class Interrupted(PostgresReplies):
    """Calls `between` once, after it has read the key's record."""

    between: Callable[[], object] | None = None

    def _see(self, reader: ReplyReader, key: str) -> Seen:
        seen = super()._see(reader, key)
        between, self.between = self.between, None
        if between is not None:
            between()
        return seen


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def pair(clocks: Clocks) -> Iterator[tuple[Interrupted, PostgresReplies]]:
    """Two processes' ledgers, one of which can be interrupted."""
    schema = f"replies_{uuid.uuid4().hex}"
    given: dict[str, Any] = {"clock": lambda: clocks.now, "monotonic": lambda: clocks.ticks, "schema": schema}
    mine, other = Interrupted(server().url, **given), PostgresReplies(server().url, **given)
    yield mine, other
    run(mine.close())
    run(other.close())


def reserve(ledger: ReplyLedger, nonce: str) -> Reservation:
    return run(ledger.reserve(KEY, caller="c1", fingerprint="f1", nonce=nonce, lease=10.0, lifetime=100.0))


def take_over(ledger: ReplyLedger, seen: str, nonce: str) -> WriteOutcome:
    return run(ledger.take_over(KEY, seen=seen, nonce=nonce, lease=10.0))


def finalize(ledger: ReplyLedger, nonce: str, reply: Reply = DONE) -> WriteOutcome:
    return run(ledger.finalize(KEY, nonce, reply, lifetime=100.0))


def nonce_of(ledger: ReplyLedger) -> str:
    found = run(ledger.look(KEY))
    assert found is not None
    return found.record.nonce


def test_of_two_that_reserve_at_once_one_owns_the_key(
    pair: tuple[Interrupted, PostgresReplies], clocks: Clocks
) -> None:
    """An absent key, and one whose record has expired: the second finds the record of the first."""
    mine, other = pair
    for nonce in ("01", "02"):
        mine.between = lambda nonce=nonce: reserve(other, f"0b{nonce}")
        found = reserve(mine, f"a1{nonce}")
        assert (found.standing, found.record.nonce) == (KeyStanding.RUNNING, f"0b{nonce}")
        clocks.move(1000.0)


def test_a_claim_that_is_taken_over_meanwhile_writes_nothing(
    pair: tuple[Interrupted, PostgresReplies], clocks: Clocks
) -> None:
    """Its beat, its answer, its release and its end: none of them; the new claim stays as it was."""
    mine, other = pair
    verbs: list[Callable[[], WriteOutcome]] = [
        lambda: run(mine.beat(KEY, "a1", lease=10.0)),
        lambda: finalize(mine, "a1"),
        lambda: run(mine.release(KEY, "a1")),
        lambda: run(mine.abandon(KEY, "a1", pause=0.0)),
        lambda: take_over(mine, "a1", "a2"),
    ]
    for verb in verbs:
        assert reserve(mine, "a1").standing is KeyStanding.OWNED
        clocks.move(11.0)
        mine.between = lambda: take_over(other, "a1", "0b")
        assert verb() is LOST
        left = run(other.look(KEY))
        assert left is not None
        assert (left.record.nonce, left.record.takeovers, left.left) == ("0b", 1, 10.0)
        assert run(other.release(KEY, "0b")) is WRITTEN


def test_a_beat_that_comes_first_keeps_the_key(pair: tuple[Interrupted, PostgresReplies], clocks: Clocks) -> None:
    """A takeover has read a claim that had ended, and its owner, which was slow, prolongs it before the takeover writes."""
    mine, other = pair
    reserve(other, "0b")
    clocks.move(11.0)
    mine.between = lambda: run(other.beat(KEY, "0b", lease=10.0))
    assert take_over(mine, "0b", "a1") is LOST
    assert nonce_of(other) == "0b"


def test_an_answer_that_comes_first_stays(pair: tuple[Interrupted, PostgresReplies]) -> None:
    """Another call of the same claim has recorded it: the same answer is ALREADY there, and nothing removes or ends it."""
    mine, other = pair
    verbs: list[tuple[Callable[[], WriteOutcome], WriteOutcome]] = [
        (lambda: finalize(mine, "a1"), ALREADY),
        (lambda: finalize(mine, "a1", Reply(202)), WriteOutcome.CONFLICT),
        (lambda: run(mine.release(KEY, "a1")), ALREADY),
        (lambda: run(mine.abandon(KEY, "a1", pause=0.0)), ALREADY),
        (lambda: run(mine.beat(KEY, "a1", lease=10.0)), ALREADY),
    ]
    reserve(mine, "a1")
    mine.between = lambda: finalize(other, "a1")
    for verb, outcome in verbs:
        assert verb() is outcome
        found = run(other.look(KEY))
        assert found is not None
        assert found.record.reply == DONE


def test_a_key_that_is_removed_meanwhile_is_not_found(pair: tuple[Interrupted, PostgresReplies]) -> None:
    """Another call of the same claim has released it: no later one brings the record back."""
    mine, other = pair
    reserve(mine, "a1")
    mine.between = lambda: run(other.release(KEY, "a1"))
    assert finalize(mine, "a1") is WriteOutcome.NOT_FOUND
    assert run(other.look(KEY)) is None


def test_a_verb_that_never_gets_its_turn_says_so(
    pair: tuple[Interrupted, PostgresReplies], clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that proves nothing, instead of a request that never ends."""
    mine, other = pair
    reserve(other, "0b")

    def beats(ledger: Interrupted, reader: ReplyReader, key: str) -> Seen:
        seen = PostgresReplies._see(ledger, reader, key)
        clocks.move(1.0)
        assert run(other.beat(KEY, "0b", lease=10.0)) is WRITTEN
        return seen

    monkeypatch.setattr(Interrupted, "_see", beats)
    with pytest.raises(StoreUnavailable, match=r"others wrote to a key 20 times .*; try again"):
        run(mine.beat(KEY, "0b", lease=10.0))


def test_a_transaction_of_the_previous_version_is_waited_for(pair: tuple[Interrupted, PostgresReplies]) -> None:
    """It holds the key's lock from its read to its write, which compares nothing: our write comes before the one or after the other."""
    mine, other = pair
    reserve(mine, "a1")
    url, schema = server().url, mine._database._schema
    with psycopg.connect(url) as old, ThreadPoolExecutor(1) as beside:
        lock = mine._database.lock_of(KEY)
        old.execute(f"SELECT pg_advisory_xact_lock({lock})".encode())
        writing = beside.submit(finalize, mine, "a1")
        with pytest.raises(NotYet):
            writing.result(timeout=0.5)
        old.execute(f"UPDATE \"{schema}\".replies SET nonce = '0e', takeovers = 1".encode())
        old.commit()
        assert writing.result(timeout=30) is LOST
    assert nonce_of(other) == "0e"


def test_a_new_key_takes_four_round_trips_and_a_replay_one(
    pair: tuple[Interrupted, PostgresReplies], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reserving reads and writes, and so does recording the answer; each write is a transaction by itself."""
    mine, _ = pair
    reserve(mine, "c1")
    finalize(mine, "c1")
    run(mine.look("bb" * 32))
    executed: list[str] = []
    execute = psycopg.Cursor.execute

    def counted(self: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
        executed.append(query if isinstance(query, str) else bytes(query).decode())
        return execute(self, query, *args, **kwargs)

    monkeypatch.setattr(psycopg.Cursor, "execute", counted)
    assert reserve(mine, "c2").standing is KeyStanding.ANSWERED
    assert len(executed) == 1
    executed.clear()
    other = "bb" * 32
    run(mine.reserve(other, caller="c1", fingerprint="f1", nonce="c3", lease=10.0, lifetime=100.0))
    run(mine.finalize(other, "c3", DONE, lifetime=100.0))
    assert [text.split()[0] for text in executed] == ["SELECT"] * 4
    assert ["INSERT" in text or "UPDATE" in text for text in executed] == [False, True, False, True]
    assert not any("BEGIN" in text or "COMMIT" in text for text in executed)
