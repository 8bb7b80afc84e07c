"""What becomes of a record when a person accepts a restored store: rebuilt from the newest attempt that applications show. Pure.

The attempt is the truth that was lost: it was granted, since it exists. With its application's nonce it is adopted, and what it did is read
from it; what the store says of a later generation or attempt stays. What nobody shows is not made up: an object that was answered and
has no record expires and runs nothing. A name that is only kept taken tells neither a job nor an end: a record of its generation goes
on after it, and without one the generation is marked as used, so that whoever asks anew meets no name of the old one. The epoch is
raised after all records were rebuilt, and by it the alarm of every operator ends: whoever dies in between begins anew and finds what it
did. Source: DESIGN section 4, and `accept` in the executable model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

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
    spec: SpecBody | None
    """None: nothing says what it was to do, since its name is only kept taken."""
    led: bool = False
    """The spec is that of a live object; else it is what a driver was told, which is less than a record has."""
    objects: tuple[str, ...] = ()
    """Those that want it, as records name them."""


class Restorable(Protocol):
    async def rebuild(self, shown: Shown, *, by: str) -> bool:
        """Makes the record what is shown, if that is newer, without an owner. False: the record that stands there is not older, or the
        generation was removed after its end."""
        ...

    async def raise_epoch(self, *, seen: int) -> int:
        """The new epoch, one more than the one that was seen; a repetition that finds it raised says the same."""
        ...


def rebuild(seen: Seen, shown: Shown, *, by: str) -> Decision[bool]:
    now = seen.record
    if seen.floor >= shown.generation or (now is not None and not _older(now, shown)):
        return False, None
    carried = _carried(now, shown) if now is not None else None
    record, spec = carried, shown.spec if shown.led else None
    if record is None and shown.spec is not None:
        record, spec = _new(now, shown, at=seen.at), shown.spec
    said = f"attempt {shown.attempt} of generation {shown.generation} is shown by its application"
    event = Event(what="Rebuilt", by=by, why=said, generation=shown.generation, attempt=shown.attempt, at=seen.at)
    if record is None:
        used = event.model_copy(
            update={"what": "Used", "why": f"generation {shown.generation} has names that are taken"}
        )
        return True, Write(generation=shown.generation, floor=shown.generation, event=used)
    return True, Write(generation=shown.generation, record=record, spec=spec, drop_claim=True, event=event)


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


def _new(now: Record | None, shown: Shown, *, at: float) -> Record:
    """`now`: of an older generation, or of one that ended; what this version does not know of it is kept, as when it is opened again."""
    said: dict[str, Any] = {
        "realm": shown.address.realm,
        "key_hash": shown.address.key_hash,
        "key": shown.key,
        "generation": shown.generation,
        "attempt": shown.attempt,
        "nonce": shown.nonce,
        "fingerprint": shown.fingerprint,
        "fingerprint_version": shown.fingerprint_version,
        "objects": shown.objects,
        "created_at": at,
        "granted_at": at,
    }
    if now is not None:
        kept = ("schema_", "min_reader", "operation", "resource", "job_revision")
        said |= {name: getattr(now, name) for name in kept} | (now.model_extra or {})
    return Record(**said)
