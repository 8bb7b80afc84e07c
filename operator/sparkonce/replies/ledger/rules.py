"""The decision of each verb of a reply ledger, as a pure function of the key's record.

Nothing here reads a clock or touches a store, so that every ledger gives the same answers and differs only in how it makes "read, decide,
write" one step. The job ledger's rules (`store.rules`) are others: keys there have generations and attempts, and never expire unfinished.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from sparkonce.replies.protocol import KeyStanding, Reply, ReplyRecord, Reservation, StoreTime, WriteOutcome


@dataclass(frozen=True)
class Removal:
    """The write that deletes the record."""


REMOVE: Final = Removal()
ReplyWrite = ReplyRecord | Removal | None
"""The record to write, its removal, or nothing."""


def left(record: ReplyRecord, time: StoreTime) -> float:
    """Seconds until the claim ends; 0 if it has. One that would end later than two leases from now was made before the machine started; a
    ledger's clock may go back by less than one."""
    rest = record.lease_until - time.ticks
    return 0.0 if rest > 2 * record.lease or record.reply is not None else max(0.0, rest)


def expired(record: ReplyRecord, time: StoreTime) -> bool:
    """Whether the record counts as absent. An owner that beats is never forgotten, however long its request takes."""
    return time.now >= record.expires_at and left(record, time) == 0


def standing(record: ReplyRecord, time: StoreTime) -> Reservation:
    if record.reply is not None:
        return Reservation(KeyStanding.ANSWERED, record, 0.0)
    rest = left(record, time)
    return Reservation(KeyStanding.RUNNING if rest else KeyStanding.STALE, record, rest)


def reserve(
    found: ReplyRecord | None,
    time: StoreTime,
    *,
    caller: str,
    fingerprint: str,
    nonce: str,
    lease: float,
    lifetime: float,
) -> tuple[Reservation, ReplyWrite]:
    if found is None or expired(found, time):
        record = ReplyRecord(
            caller=caller,
            fingerprint=fingerprint,
            nonce=nonce,
            takeovers=0,
            reserved_at=time.now,
            expires_at=time.now + lifetime,
            lease=lease,
            lease_until=time.ticks + lease,
        )
        return Reservation(KeyStanding.OWNED, record, lease), record
    if found.fingerprint != fingerprint:
        return Reservation(KeyStanding.MISMATCH, found, left(found, time)), None
    if found.nonce == nonce and found.reply is None and not found.takeovers:
        # The reply to this call was lost, and its caller has not begun. After a takeover it would have to reconcile first.
        mine = replace(found, lease=lease, lease_until=time.ticks + lease)
        return Reservation(KeyStanding.OWNED, mine, lease), mine
    return standing(found, time), None


def look(found: ReplyRecord | None, time: StoreTime) -> Reservation | None:
    return None if found is None or expired(found, time) else standing(found, time)


def beat(found: ReplyRecord | None, time: StoreTime, *, nonce: str, lease: float) -> tuple[WriteOutcome, ReplyWrite]:
    """Also prolongs a claim that has ended and was not taken over: its owner was slow, and the key is as it left it."""
    if refused := _not_mine(found, nonce):
        return refused, None
    assert found is not None
    return WriteOutcome.WRITTEN, replace(found, lease=lease, lease_until=time.ticks + lease)


def take_over(
    found: ReplyRecord | None, time: StoreTime, *, seen: str, nonce: str, lease: float
) -> tuple[WriteOutcome, ReplyWrite]:
    if found is None or expired(found, time):
        return WriteOutcome.NOT_FOUND, None
    if found.reply is not None:
        return WriteOutcome.ALREADY, None
    mine = found.nonce == nonce  # the reply to this call was lost, and its caller has not begun
    if not mine and (found.nonce != seen or left(found, time)):
        return WriteOutcome.LOST, None
    takeovers = found.takeovers if mine else found.takeovers + 1
    taken = replace(found, nonce=nonce, takeovers=takeovers, lease=lease, lease_until=time.ticks + lease)
    return WriteOutcome.WRITTEN, taken


def finalize(
    found: ReplyRecord | None, time: StoreTime, *, nonce: str, reply: Reply, lifetime: float
) -> tuple[WriteOutcome, ReplyWrite]:
    if found is not None and found.reply is not None:
        return (WriteOutcome.ALREADY if found.reply == reply else WriteOutcome.CONFLICT), None
    if refused := _not_mine(found, nonce):
        return refused, None
    assert found is not None
    done = replace(found, reply=reply, expires_at=time.now + lifetime, lease_until=time.ticks)
    return WriteOutcome.WRITTEN, done


def release(found: ReplyRecord | None, *, nonce: str) -> tuple[WriteOutcome, ReplyWrite]:
    refused = _not_mine(found, nonce)
    return (refused, None) if refused else (WriteOutcome.WRITTEN, REMOVE)


def abandon(found: ReplyRecord | None, time: StoreTime, *, nonce: str, pause: float) -> tuple[WriteOutcome, ReplyWrite]:
    if refused := _not_mine(found, nonce):
        return refused, None
    assert found is not None
    until = time.ticks + min(pause, found.lease)
    return WriteOutcome.WRITTEN, replace(found, lease_until=min(until, found.lease_until))


def _not_mine(found: ReplyRecord | None, nonce: str) -> WriteOutcome | None:
    """Why the claim with this nonce may not write; None if it may."""
    if found is None:
        return WriteOutcome.NOT_FOUND
    if found.nonce != nonce:
        return WriteOutcome.LOST
    return WriteOutcome.ALREADY if found.reply is not None else None
