"""Rebuilds records from the newest attempts seen in applications, after an administrator accepts a restored store. Pure.

An application proves that its attempt was granted, even if the restored store does not have it. The record adopts the attempt with the
application's nonce, and its outcome is then read from that application; newer generations or attempts in the store are kept. Records
without an application are not invented: an object that was already answered and has no record expires without running anything. A name
that is merely reserved shows neither job nor outcome: an existing record of its generation continues after it; without a record the
generation is marked as used, so that a new request never reuses a name of the old one. The epoch is raised after all records were
rebuilt, which ends every operator's rewind alarm; if the process dies before, the next run repeats the rebuild, which is idempotent.
Source: docs/design.md, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from sparkonce.model.record import Address, Event, Record, SpecBody, State
from sparkonce.store.rules import KeyState, VerbOutcome, Write


@dataclass(frozen=True, kw_only=True)
class NewestAttempt:
    """A key's newest attempt, as seen in its applications."""

    address: Address
    key: str
    generation: int
    attempt: int
    nonce: str
    """The nonce in its application."""
    fingerprint: str
    fingerprint_version: int
    spec: SpecBody | None
    """None: unknown, because only a reserved name is left of the attempt."""
    led: bool = False
    """True if the spec comes from a live object; else it is the driver's copy, which lacks fields of a stored spec."""
    objects: tuple[str, ...] = ()
    """UIDs of the objects that request the key, as in `Record.objects`."""


class Restorable(Protocol):
    """The part of a store that accepting a restore needs."""

    async def rebuild(self, shown: NewestAttempt, *, by: str) -> bool:
        """Replaces an older record by the attempt shown, without an owner. False: the stored record is not older, or the
        generation's record was removed after it was finalized.

        Raises: StoreUnavailable (may have been written; repeat it), RecordUnreadable, RecordTooNew."""
        ...

    async def raise_epoch(self, *, seen: int) -> int:
        """Raises the epoch to `seen` + 1 and returns it; a repetition returns the same.

        Raises: StoreUnusable (the store's epoch is not `seen`; nothing was written), StoreUnavailable (may have been raised; repeat it)."""
        ...


def rebuild(seen: KeyState, shown: NewestAttempt, *, by: str) -> VerbOutcome[bool]:
    """Decides what `Restorable.rebuild` writes."""
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


def _older(now: Record, shown: NewestAttempt) -> bool:
    """True if the attempt shown is newer; also the same attempt with another nonce, a grant that the restored store has lost."""
    mine, theirs = (now.generation, now.attempt), (shown.generation, shown.attempt)
    return mine < theirs or (mine == theirs and now.nonce != shown.nonce)


def _carried(now: Record, shown: NewestAttempt) -> Record | None:
    """The stored record advanced to the attempt shown; None if it is of another generation or job, or finalized."""
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


def _new(now: Record | None, shown: NewestAttempt, *, at: float) -> Record:
    """A new record. `now`: the stored one, of an older or finalized generation; its unknown fields are kept, as by `reopen`."""
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
