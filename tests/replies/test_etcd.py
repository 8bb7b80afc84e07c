"""What a reply ledger in etcd alone can get wrong: leases, the belief in what it wrote last, replies that are lost, and a full etcd."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from harness.etcd import shared
from harness.etcd_replies import PATIENCE, fresh_name
from harness.patience import promised
from sparkonce.errors import InvalidInput, QuotaUsed, RecordUnreadable, StoreUnavailable
from sparkonce.etcd.errors import EtcdRefused, EtcdUnavailable
from sparkonce.replies.ledger.etcd import LARGEST_BODY, EtcdReplies
from sparkonce.replies.open import open_replies
from sparkonce.replies.protocol import KeyStanding, Reply, ReplyLedger, Reservation, WriteOutcome

KEY, OTHER = "aa" * 32, "bb" * 32
DONE = Reply(201, (("location", "/orders/1"),), b'{"id": 1}')


@asynccontextmanager
async def ledgers(number: int = 1, **options: Any) -> AsyncIterator[list[EtcdReplies]]:
    """So many processes' handles on one ledger."""
    given: dict[str, Any] = {"name": fresh_name(), "timeout": PATIENCE} | options
    made = [EtcdReplies(shared().endpoints, **given) for _ in range(number)]
    try:
        yield made
    finally:
        for each in made:
            await each.close()


async def reserve(ledger: ReplyLedger, key: str = KEY, *, nonce: str = "1a", **given: Any) -> Reservation:
    asked: dict[str, Any] = {"caller": "c1", "fingerprint": "f1", "lease": 30.0, "lifetime": 1000.0} | given
    return await ledger.reserve(key, nonce=nonce, **asked)


async def finalize(ledger: ReplyLedger, nonce: str = "1a", *, reply: Reply = DONE, **given: Any) -> WriteOutcome:
    return await ledger.finalize(KEY, nonce, reply, **({"lifetime": 1000.0} | given))


def content(ledger: EtcdReplies) -> dict[bytes, bytes]:
    return shared().content(ledger._at("")[:-1])


async def until(shown: Callable[[], Awaitable[bool]], seconds: float) -> float:
    """Seconds until it was."""
    began = time.monotonic()
    while not await shown():
        assert time.monotonic() - began < seconds
        await asyncio.sleep(0.1)  # between two looks
    return time.monotonic() - began


VERBS: dict[str, Callable[[EtcdReplies], Awaitable[Any]]] = {
    "reserve": reserve,
    "beat": lambda ledger: ledger.beat(KEY, "1a", lease=30.0),
    "take over": lambda ledger: ledger.take_over(KEY, seen="0f", nonce="1a", lease=30.0),
    "finalize": finalize,
    "release": lambda ledger: ledger.release(KEY, "1a"),
    "abandon": lambda ledger: ledger.abandon(KEY, "1a", pause=5.0),
}
"""Each writes."""


def test_a_claim_ends_with_its_lease_and_beats_prolong_it() -> None:
    """By etcd's own clock: stale not before nine tenths of the lease, and within it and a second, whatever became of the process."""

    async def scenario() -> None:
        async with ledgers(2) as (owner, other):
            await reserve(owner, lease=3.0)
            for _ in range(4):
                await asyncio.sleep(1.0)  # a third of the lease, as beats come
                assert await owner.beat(KEY, "1a", lease=3.0) is WriteOutcome.WRITTEN
            found = await other.look(KEY)
            assert found is not None
            assert (found.standing, found.left) == (KeyStanding.RUNNING, 3.0)
            await owner.close()

            async def stale() -> bool:
                seen = await other.look(KEY)
                return seen is not None and seen.standing is KeyStanding.STALE

            assert await until(stale, promised(3.0 + 1.0)) > 1.5
            assert await other.take_over(KEY, seen="1a", nonce="2b", lease=30.0) is WriteOutcome.WRITTEN

    asyncio.run(scenario())


def test_etcd_removes_an_answer_after_its_lifetime() -> None:
    """Nobody purges: the record and the caller's entry are on a lease."""

    async def scenario() -> None:
        async with ledgers() as [ledger]:
            await reserve(ledger)
            assert await finalize(ledger, lifetime=1.0) is WriteOutcome.WRITTEN
            assert len(content(ledger)) == 2

            async def empty() -> bool:
                return not content(ledger)

            await until(empty, promised(5.0))

    asyncio.run(scenario())


def test_a_new_key_takes_two_transactions_and_a_replay_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """By etcd's revision, which each transaction that writes moves on; a beat is one. An owner's verbs read nothing before."""

    async def scenario() -> None:
        async with ledgers() as [ledger]:
            began = shared().revision()
            await reserve(ledger)
            assert shared().revision() == began + 1
            sent, txn = list[Any](), ledger._client.txn

            async def counted(*given: Any) -> Any:
                sent.append(given)
                return await txn(*given)

            monkeypatch.setattr(ledger._client, "txn", counted)
            await ledger.beat(KEY, "1a", lease=30.0)
            await ledger.beat(KEY, "1a", lease=30.0)
            await finalize(ledger)
            assert len(sent) == 3
            assert shared().revision() == began + 4
            assert (await reserve(ledger, nonce="2b")).standing is KeyStanding.ANSWERED
            assert await ledger.beat(KEY, "1a", lease=30.0) is WriteOutcome.ALREADY
            assert shared().revision() == began + 4

    asyncio.run(scenario())


def test_a_process_that_was_replaced_finds_its_belief_wrong() -> None:
    """Its verbs begin with what it wrote last: each of them meets the other's claim, changes nothing, and says so."""

    async def scenario() -> None:
        async with ledgers(2) as (frozen, other):
            await reserve(frozen)
            shared().revoke_under(frozen._at("own"))
            await other.take_over(KEY, seen="1a", nonce="2b", lease=30.0)
            before = content(other)
            believed = dict(frozen._recent)
            assert believed
            for verb in ("beat", "finalize", "abandon", "release"):
                frozen._recent.update(believed)
                assert await VERBS[verb](frozen) is WriteOutcome.LOST
            assert content(other) == before

    asyncio.run(scenario())


@pytest.mark.parametrize("verb", ["take over", "purge"])
def test_a_beat_that_comes_between_a_look_and_a_write_keeps_the_key(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner was slow, and its claim had ended; it is there again when the other one's transaction arrives."""

    async def scenario() -> None:
        async with ledgers(2) as (owner, other):
            await reserve(owner, lifetime=0.001 if verb == "purge" else 1000.0)
            shared().revoke_under(owner._at("own"))
            txn = other._client.txn

            async def after_a_beat(compare: Any, *rest: Any) -> Any:
                if compare:
                    assert await owner.beat(KEY, "1a", lease=30.0) is WriteOutcome.WRITTEN
                return await txn(compare, *rest)

            monkeypatch.setattr(other._client, "txn", after_a_beat)
            if verb == "purge":
                assert await other.purge() == 0
            else:
                assert await other.take_over(KEY, seen="1a", nonce="2b", lease=30.0) is WriteOutcome.LOST
            assert await finalize(owner) is WriteOutcome.WRITTEN

    asyncio.run(scenario())


@pytest.mark.parametrize("lands", [False, True], ids=["request lost", "reply lost"])
@pytest.mark.parametrize("verb", VERBS)
def test_the_same_call_again_answers_a_lost_one(verb: str, lands: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not the transaction landed, its call says that nothing is known, and again what is true."""

    async def scenario() -> None:
        async with ledgers() as [ledger]:
            if verb == "take over":
                await reserve(ledger, nonce="0f")
                shared().revoke_under(ledger._at("own"))
            elif verb != "reserve":
                await reserve(ledger)
            txn = ledger._client.txn

            async def lost(compare: Any, then: Any, otherwise: Any = ()) -> Any:
                if not compare:
                    return await txn(compare, then, otherwise)
                if lands:
                    await txn(compare, then, otherwise)
                raise EtcdUnavailable("no answer", code="UNAVAILABLE")

            with monkeypatch.context() as patch:
                patch.setattr(ledger._client, "txn", lost)
                with pytest.raises(StoreUnavailable):
                    await VERBS[verb](ledger)
            again = await VERBS[verb](ledger)
            if verb == "reserve":
                assert again.standing is KeyStanding.OWNED
            elif lands and verb in ("finalize", "release"):
                assert again is {"finalize": WriteOutcome.ALREADY, "release": WriteOutcome.NOT_FOUND}[verb]
            else:
                assert again is WriteOutcome.WRITTEN
            found = await ledger.look(KEY)
            assert (found and found.record.takeovers) == {"take over": 1, "release": None}.get(verb, 0)

    asyncio.run(scenario())


def test_an_unreadable_record_is_an_error_of_every_verb_and_runs_again_when_it_is_deleted_as_told() -> None:
    """The sentence names the key in etcd. Purging leaves it, and goes on."""

    async def scenario() -> None:
        async with ledgers() as [ledger]:
            await reserve(ledger, lifetime=0.001)
            await reserve(ledger, OTHER, lifetime=0.001)
            shared().revoke_under(ledger._at("own"))
            shared().put(ledger._at("key", KEY), json.dumps({"caller": "c1"}).encode())
            told = ""
            for verb in VERBS.values():
                ledger._recent.clear()
                with pytest.raises(RecordUnreadable) as refused:
                    await verb(ledger)
                told = str(refused.value)
            assert await ledger.purge() == 1
            place = told.partition("; delete ")[2].partition(" in etcd, and the key runs again")[0]
            shared().delete(place.encode())
            assert await ledger.purge() == 0
            assert (await reserve(ledger, nonce="3c", fingerprint="f2")).standing is KeyStanding.OWNED
            await ledger.release(KEY, "3c")
            assert content(ledger) == {}

    asyncio.run(scenario())


def test_a_lease_that_etcd_has_lost_is_granted_anew() -> None:
    """One that other keys share was revoked by a hand, or ended while this process was frozen."""

    async def scenario() -> None:
        async with ledgers() as [ledger]:
            await reserve(ledger)
            shared().revoke_under(ledger._at("own"))
            assert (await reserve(ledger, OTHER, nonce="2b")).standing is KeyStanding.OWNED

    asyncio.run(scenario())


def test_a_full_etcd_takes_no_new_key_and_goes_on_with_all_others() -> None:
    """Before the quota is reached, so that running requests can be answered."""

    async def scenario() -> None:
        name = fresh_name()
        async with ledgers(name=name) as [ledger]:
            await reserve(ledger)
        async with ledgers(name=name, quota=1) as [full]:
            with pytest.raises(QuotaUsed, match="compact and defragment etcd, or raise its quota"):
                await reserve(full, OTHER, nonce="2b")
            assert await finalize(full) is WriteOutcome.WRITTEN
            assert (await reserve(full, nonce="3c")).standing is KeyStanding.ANSWERED

    asyncio.run(scenario())


def test_a_user_who_may_not_read_the_size_of_etcd_reserves_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user may have nothing but the ledger's keys; etcd itself then refuses puts when it is full."""

    async def refused() -> Any:
        raise EtcdRefused("permission denied", code="PERMISSION_DENIED")

    async def scenario() -> None:
        async with ledgers() as [ledger]:
            monkeypatch.setattr(ledger._size, "_status", refused)
            assert (await reserve(ledger)).standing is KeyStanding.OWNED

    asyncio.run(scenario())


def test_a_body_that_etcd_does_not_take_is_kept_as_its_size() -> None:
    """The effect has happened: its answer is recorded, without what no request to etcd can carry."""

    async def scenario() -> None:
        async with ledgers() as [ledger]:
            await reserve(ledger)
            large = Reply(200, (), b"x" * (LARGEST_BODY + 1))
            assert await finalize(ledger, reply=large) is WriteOutcome.WRITTEN
            assert await finalize(ledger, reply=large) is WriteOutcome.ALREADY
            kept = (await reserve(ledger, nonce="2b")).record.reply
            assert kept == Reply(200, (), b"", LARGEST_BODY + 1)

    asyncio.run(scenario())


def test_reservations_at_the_same_time_share_their_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many requests that find the counts of live keys outdated, the first one asks etcd for the caller's, and for all."""

    async def scenario() -> None:
        async with ledgers() as [ledger]:
            asked, ask = list[Any](), ledger._client.range

            async def counted(request: Any) -> Any:
                asked.append(request)
                return await ask(request)

            monkeypatch.setattr(ledger._client, "range", counted)
            found = await asyncio.gather(*(reserve(ledger, f"{number:064x}") for number in range(20)))
            assert {each.standing for each in found} == {KeyStanding.OWNED}
            assert len(asked) == 2

    asyncio.run(scenario())


def test_ledgers_of_one_etcd_are_apart() -> None:
    """By their names, one of which may begin with another."""

    async def scenario() -> None:
        async with ledgers(name="a") as [one], ledgers(name="a/b") as [other]:
            await reserve(one)
            assert await other.look(KEY) is None
            assert await other._count(None) == (0, None)
            await one.release(KEY, "1a")

    asyncio.run(scenario())


def test_an_address_is_opened_with_its_options() -> None:
    """User and password as for a ledger of jobs; leases are the policy's."""
    assert open_replies(f"etcd://{shared().endpoints[0]}?timeout=3").url == f"etcd://{shared().endpoints[0]}"
    with pytest.raises(InvalidInput, match="remove ttl from its address"):
        open_replies("etcd://h:2379?ttl=20")
    with pytest.raises(InvalidInput, match="names a user before the host") as refused:
        open_replies("etcd://u:hunter2@h:2379")
    assert "hunter2" not in str(refused.value)
