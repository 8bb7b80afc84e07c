"""What becomes of a record when a person accepts a restored store: rebuilt from the newest attempt that applications show. Pure.

The attempt is the truth that was lost: it was granted, since it exists. With its application's nonce it is adopted, and what it did is read
from it; what the store says of a later generation or attempt stays. What nobody shows is not made up: an object that was answered and
has no record expires and runs nothing. The epoch is raised after all records were rebuilt, and by it the alarm of every operator ends:
whoever dies in between begins anew and finds what it did. Source: DESIGN section 4, and `accept` in the executable model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sparkonce.model.record import Address, Event, Record, SpecBody, State
from sparkonce.store.step import Decision, Seen, Write


@dataclass(frozen=True, kw_only=True)
class Shown:
    """The newest attempt of a key that its applications show."""

    address: Address
    key: str
    generation: int
    attempt: int
    nonce: str
    """Of its application."""
    fingerprint: str
    fingerprint_version: int
    spec: SpecBody
    objects: tuple[str, ...] = ()
    """Those that want it, as records name them."""


class Restorable(Protocol):
    async def rebuild(self, shown: Shown, *, by: str) -> bool:
        """Makes the record what is shown, if that is newer, without an owner. False: the record that stands there is not older."""
        ...

    async def raise_epoch(self, *, seen: int) -> int:
        """The new epoch, one more than the one that was seen; a repetition that finds it raised says the same."""
        ...


def rebuild(seen: Seen, shown: Shown, *, by: str) -> Decision[bool]:
    now = seen.record
    if now is not None and not _older(now, shown):
        return False, None
    record = (_carried(now, shown) if now is not None else None) or _new(shown, at=seen.at)
    said = f"attempt {shown.attempt} of generation {shown.generation} is shown by its application"
    event = Event(what="Rebuilt", by=by, why=said, generation=shown.generation, attempt=shown.attempt, at=seen.at)
    write = Write(generation=shown.generation, record=record, spec=shown.spec, drop_claim=True, event=event)
    return True, write


def _older(now: Record, shown: Shown) -> bool:
    """The same attempt under another grant was lost with the store, too."""
    mine, theirs = (now.generation, now.attempt), (shown.generation, shown.attempt)
    return mine < theirs or (mine == theirs and now.nonce != shown.nonce)


def _carried(now: Record, shown: Shown) -> Record | None:
    """What the record knew of this very generation stays; None: it knew of another one."""
    if (now.generation, now.fingerprint) != (shown.generation, shown.fingerprint) or now.state is State.FINALIZED:
        return None
    lost = max(0, shown.attempt - now.attempt)
    return now.changed(
        attempt=shown.attempt,
        nonce=shown.nonce,
        objects=shown.objects or now.objects,
        state=State.IN_PROGRESS,
        held=None,
        note="",
        phase=None,
        application=None,
        settling=now.settling if not lost else None,
        intent=None if lost else now.intent,
        settle_runs=0,
        not_before=None,
    )


def _new(shown: Shown, *, at: float) -> Record:
    return Record(
        realm=shown.address.realm,
        key_hash=shown.address.key_hash,
        key=shown.key,
        generation=shown.generation,
        attempt=shown.attempt,
        nonce=shown.nonce,
        fingerprint=shown.fingerprint,
        fingerprint_version=shown.fingerprint_version,
        objects=shown.objects,
        created_at=at,
        granted_at=at,
    )
