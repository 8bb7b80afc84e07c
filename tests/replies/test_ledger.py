"""Every verb of a reply ledger, on every ledger. R-nn are the scenarios of the research on Apache Polaris that a ledger decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.clocks import Clocks
from sparkonce.blocking import run
from sparkonce.errors import InvalidInput, StoreFull
from sparkonce.replies.ledger import rules
from sparkonce.replies.ledger.sqlite import SqliteReplies
from sparkonce.replies.protocol import KeyStanding, Reply, ReplyLedger, Reservation, WriteOutcome

KEY, OTHER = "aa" * 32, "bb" * 32
DONE = Reply(201, (("location", "/orders/1"),), b'{"id": 1}')


def reserve(ledger: ReplyLedger, key: str = KEY, *, nonce: str = "1a", **given: Any) -> Reservation:
    asked: dict[str, Any] = {"caller": "c1", "fingerprint": "f1", "lease": 10.0, "lifetime": 100.0} | given
    return run(ledger.reserve(key, nonce=nonce, **asked))


def finalize(ledger: ReplyLedger, nonce: str = "1a", reply: Reply = DONE, key: str = KEY) -> WriteOutcome:
    return run(ledger.finalize(key, nonce, reply, lifetime=100.0))


def take_over(ledger: ReplyLedger, seen: str, nonce: str) -> WriteOutcome:
    return run(ledger.take_over(KEY, seen=seen, nonce=nonce, lease=10.0))


def looked(ledger: ReplyLedger, key: str = KEY) -> Reservation:
    found = run(ledger.look(key))
    assert found is not None
    return found


def test_r01_the_first_of_several_owns_the_key_and_the_others_see_its_record(ledger: ReplyLedger) -> None:
    """R-01: one OWNED, whose record all others get."""
    assert reserve(ledger).standing is KeyStanding.OWNED
    for nonce in ("2b", "3c"):
        other = reserve(ledger, nonce=nonce)
        assert other.standing is KeyStanding.RUNNING
        assert other.record.nonce == "1a"
        assert other.left == 10.0


def test_r02_an_expired_answer_is_absent_and_one_of_two_reserves_it(ledger: ReplyLedger, clocks: Clocks) -> None:
    """R-02: exactly at its expiry a record is absent; who reserves next owns the key, and the other one sees that."""
    reserve(ledger)
    finalize(ledger)
    clocks.move(99.9)
    assert reserve(ledger, nonce="2b").standing is KeyStanding.ANSWERED
    clocks.move(0.1)
    assert run(ledger.look(KEY)) is None
    assert reserve(ledger, nonce="2b").standing is KeyStanding.OWNED
    assert reserve(ledger, nonce="3c").standing is KeyStanding.RUNNING


def test_r03_a_key_that_vanishes_while_it_is_reserved_is_owned(tmp_path: Path) -> None:
    """R-03: a SQL ledger reads before it begins its write transaction, which decides on what it finds there."""
    ledger = SqliteReplies(tmp_path / "replies.db")
    reserve(ledger)
    step = ledger._step

    def after_another_one_released(key: str, decide: Any, *, seen: Any = None) -> Any:
        step(key, lambda found, _: rules.release(found, nonce="1a"))
        return step(key, decide, seen=seen)

    ledger._step = after_another_one_released  # type: ignore[method-assign]
    run(ledger.release(KEY, "1a"))
    assert reserve(ledger, nonce="2b").standing is KeyStanding.OWNED
    ledger._step = step  # type: ignore[method-assign]
    assert looked(ledger).record.nonce == "2b"
    run(ledger.close())


def test_r08_a_lost_reply_to_reserve_is_answered_by_the_same_call(ledger: ReplyLedger, clocks: Clocks) -> None:
    """R-08: the same nonce owns the key again, also when its claim has run out meanwhile and nobody took it."""
    reserve(ledger)
    assert reserve(ledger).standing is KeyStanding.OWNED
    clocks.move(11)
    assert looked(ledger).standing is KeyStanding.STALE
    again = reserve(ledger)
    assert (again.standing, again.left) == (KeyStanding.OWNED, 10.0)
    assert looked(ledger).standing is KeyStanding.RUNNING


def test_r10_a_claim_without_beats_ends_with_its_lease(ledger: ReplyLedger, clocks: Clocks) -> None:
    """R-10: RUNNING until the lease is over, STALE from that instant on."""
    reserve(ledger)
    clocks.move(9.9)
    assert looked(ledger).standing is KeyStanding.RUNNING
    clocks.move(0.1)
    assert looked(ledger).standing is KeyStanding.STALE
    assert reserve(ledger, nonce="2b").standing is KeyStanding.STALE


def test_r11_of_many_that_see_one_stale_owner_one_takes_over(ledger: ReplyLedger, clocks: Clocks) -> None:
    """R-11: the first WRITTEN, all others LOST, and the taker's repeated call is its own."""
    reserve(ledger)
    clocks.move(10)
    outcomes = [take_over(ledger, "1a", nonce) for nonce in ("2b", "3c", "4d")]
    assert outcomes == [WriteOutcome.WRITTEN, WriteOutcome.LOST, WriteOutcome.LOST]
    assert take_over(ledger, "1a", "2b") is WriteOutcome.WRITTEN
    assert looked(ledger).record.takeovers == 1
    clocks.move(10)
    assert take_over(ledger, "1a", "3c") is WriteOutcome.LOST, "it saw the first claim, not the taker's"


def test_r08_a_lost_reply_to_a_takeover_never_makes_its_caller_the_first_owner(
    ledger: ReplyLedger, clocks: Clocks
) -> None:
    """R-08: the taker whose lease ran out before it was answered is no owner who may run without reconciling; its call takes over again."""
    reserve(ledger)
    clocks.move(10)
    take_over(ledger, "1a", "2b")
    clocks.move(10)
    assert reserve(ledger, nonce="2b").standing is KeyStanding.STALE
    assert take_over(ledger, "1a", "2b") is WriteOutcome.WRITTEN
    again = looked(ledger)
    assert (again.standing, again.record.takeovers) == (KeyStanding.RUNNING, 1)


def test_a_living_claim_is_never_taken_over(ledger: ReplyLedger, clocks: Clocks) -> None:
    """A beat in time keeps the key from those that saw the claim before."""
    reserve(ledger)
    clocks.move(9)
    assert run(ledger.beat(KEY, "1a", lease=10.0)) is WriteOutcome.WRITTEN
    clocks.move(9)
    assert take_over(ledger, "1a", "2b") is WriteOutcome.LOST


def test_r14_an_owner_that_beats_is_never_stale_nor_expired(ledger: ReplyLedger, clocks: Clocks) -> None:
    """R-14: a request may take longer than the lease and than the lifetime."""
    reserve(ledger)
    for _ in range(30):
        clocks.move(5)
        assert run(ledger.beat(KEY, "1a", lease=10.0)) is WriteOutcome.WRITTEN
    assert reserve(ledger, nonce="2b").standing is KeyStanding.RUNNING
    assert run(ledger.purge()) == 0
    assert finalize(ledger) is WriteOutcome.WRITTEN


def test_r17_an_owner_that_was_taken_over_writes_nothing(ledger: ReplyLedger, clocks: Clocks) -> None:
    """R-17: each of its verbs answers LOST, and the taker's record stays as it is."""
    reserve(ledger)
    clocks.move(10)
    take_over(ledger, "1a", "2b")
    before = looked(ledger)
    assert run(ledger.beat(KEY, "1a", lease=10.0)) is WriteOutcome.LOST
    assert finalize(ledger) is WriteOutcome.LOST
    assert run(ledger.release(KEY, "1a")) is WriteOutcome.LOST
    assert run(ledger.abandon(KEY, "1a", pause=0.0)) is WriteOutcome.LOST
    assert looked(ledger) == before


def test_r19_a_clock_that_is_set_makes_no_owner_stale(ledger: ReplyLedger, clocks: Clocks) -> None:
    """R-19: leases do not follow the wall clock."""
    reserve(ledger)
    clocks.now += 50
    assert reserve(ledger, nonce="2b").standing is KeyStanding.RUNNING


def test_a_claim_of_an_earlier_boot_has_ended(ledger: ReplyLedger, clocks: Clocks) -> None:
    """Monotonic clocks start again with the machine: a lease that would end later than one that began now is of before. etcd counts leases
    by itself, and each of its members begins again after a restart."""
    if ledger.url.startswith("etcd:"):
        return
    reserve(ledger)
    clocks.ticks = 3.0
    assert looked(ledger).standing is KeyStanding.STALE


def test_r25_an_answer_is_recorded_once(ledger: ReplyLedger) -> None:
    """R-25: the same answer again is ALREADY; another one is a CONFLICT, and the first stays."""
    reserve(ledger)
    assert finalize(ledger) is WriteOutcome.WRITTEN
    assert finalize(ledger) is WriteOutcome.ALREADY
    assert finalize(ledger, reply=Reply(500)) is WriteOutcome.CONFLICT
    assert looked(ledger).record.reply == DONE


def test_r25_an_owner_whose_lease_ran_out_finalizes_while_nobody_took_over(ledger: ReplyLedger, clocks: Clocks) -> None:
    """R-25: its answer is right, and no other one can exist."""
    reserve(ledger)
    clocks.move(50)
    assert finalize(ledger) is WriteOutcome.WRITTEN


@pytest.mark.parametrize("finalized", [False, True])
def test_r28_another_request_under_the_key_is_a_mismatch_and_changes_nothing(
    ledger: ReplyLedger, finalized: bool
) -> None:
    """R-28: also while the first one runs."""
    reserve(ledger)
    if finalized:
        finalize(ledger)
    before = looked(ledger)
    assert reserve(ledger, nonce="2b", fingerprint="f2").standing is KeyStanding.MISMATCH
    assert looked(ledger) == before


def test_r36_keys_are_independent(ledger: ReplyLedger) -> None:
    """R-36: another caller's key is another one (`keys.key_hash`)."""
    reserve(ledger)
    assert reserve(ledger, OTHER, nonce="2b", fingerprint="f2").standing is KeyStanding.OWNED


def test_r39_an_answer_is_read_back_as_it_was_written(ledger: ReplyLedger) -> None:
    """R-39: status, headers in their order and twice, and every byte of the body."""
    reply = Reply(207, (("link", "<a>"), ("link", "<b>"), ("etag", '"\xe9"')), bytes(range(256)), 0)
    reserve(ledger)
    finalize(ledger, reply=reply)
    assert reserve(ledger, nonce="2b").record.reply == reply


@pytest.mark.parametrize(
    "reply", [Reply(99), Reply(600), Reply(200, (("Location", "/"),)), Reply(200, (("location", "a\r\nb"),)), Reply(200, omitted=-1)]
)  # fmt: skip
def test_what_could_not_be_read_back_is_not_written(ledger: ReplyLedger, reply: Reply) -> None:
    """No status, header or size that is no HTTP is recorded."""
    reserve(ledger)
    with pytest.raises(InvalidInput):
        finalize(ledger, reply=reply)
    assert looked(ledger).standing is KeyStanding.RUNNING


def test_r47_a_released_key_is_free_and_a_finalized_one_stays(ledger: ReplyLedger) -> None:
    """R-47: release removes an unfinished key of its owner alone."""
    reserve(ledger)
    assert run(ledger.release(KEY, "2b")) is WriteOutcome.LOST
    assert run(ledger.release(KEY, "1a")) is WriteOutcome.WRITTEN
    assert run(ledger.release(KEY, "1a")) is WriteOutcome.NOT_FOUND
    assert reserve(ledger, nonce="2b", fingerprint="f2").standing is KeyStanding.OWNED
    finalize(ledger, "2b")
    assert run(ledger.release(KEY, "2b")) is WriteOutcome.ALREADY


def test_an_abandoned_key_is_stale_after_the_pause(ledger: ReplyLedger, clocks: Clocks) -> None:
    """So that one request at a time reconciles, and not more often than the pause."""
    reserve(ledger)
    assert run(ledger.abandon(KEY, "1a", pause=2.0)) is WriteOutcome.WRITTEN
    assert looked(ledger).standing is KeyStanding.RUNNING
    clocks.move(2)
    assert looked(ledger).standing is KeyStanding.STALE


def test_an_unknown_outcome_ends_with_the_lifetime(ledger: ReplyLedger, clocks: Clocks) -> None:
    """A key whose owner died is never run again within its lifetime, and is free after it."""
    reserve(ledger)
    clocks.move(99.9)
    assert reserve(ledger, nonce="2b").standing is KeyStanding.STALE
    clocks.move(0.1)
    assert take_over(ledger, "1a", "2b") is WriteOutcome.NOT_FOUND
    assert reserve(ledger, nonce="2b").standing is KeyStanding.OWNED


def test_r56_a_purge_removes_what_expired_in_batches(ledger: ReplyLedger, clocks: Clocks) -> None:
    """R-56: any process may purge; what is not expired stays. etcd removes answers by itself."""
    for number in range(4):
        reserve(ledger, f"{number:064x}", nonce=f"{number}a")
        finalize(ledger, f"{number}a", key=f"{number:064x}")
    clocks.move(50)
    reserve(ledger, OTHER, nonce="2b")
    clocks.move(50)
    removed = [0, 0, 0] if ledger.url.startswith("etcd:") else [3, 1, 0]
    assert [run(ledger.purge(limit=3)) for _ in range(3)] == removed
    assert run(ledger.look(f"{0:064x}")) is None
    assert looked(ledger, OTHER).standing is KeyStanding.STALE


def test_r57_one_callers_keys_are_not_another_ones_ceiling(ledger: ReplyLedger) -> None:
    """R-57, R-58: the newest request of a full caller is refused with a time; no live key is dropped, and other callers go on."""
    for number in range(5):
        reserve(ledger, f"{number:064x}", nonce=f"{number}a")
    with pytest.raises(StoreFull, match="this caller has 5 live keys, and 5 are allowed") as full:
        reserve(ledger)
    assert 99 <= full.value.retry_after <= 100
    assert reserve(ledger, f"{0:064x}", nonce="9f").standing is KeyStanding.RUNNING
    assert reserve(ledger, caller="c2").standing is KeyStanding.OWNED
    assert run(ledger.look(f"{4:064x}")) is not None


def test_r58_a_full_ledger_refuses_every_new_key(ledger: ReplyLedger) -> None:
    """R-58: of any caller."""
    for number in range(8):
        reserve(ledger, f"{number:064x}", nonce=f"{number}a", caller=f"c{number}")
    with pytest.raises(StoreFull, match="the ledger of answers holds 8 live keys"):
        reserve(ledger, caller="c9")
