"""What each verb of the store decides, as functions of what stands at the key.

`Seen` is what one transaction read; a decision is an outcome and, where something is to be written, one `Write`. Nothing here reads a
clock, draws a number or touches a store, so that every backend (a dictionary, SQL, a compare-and-set store) shares the same answers
and differs only in how it makes "read, decide, write" one atomic step. Leaving the decisions to each backend was not taken: the order
in which a verb compares generation, claim and revision *is* the protocol, and would have been written once per backend.
"""

from __future__ import annotations

from sparkonce.errors import RecordTooNew, RecordUnreadable, StoreFull
from sparkonce.model.record import (
    FOLLOWING,
    Beat,
    Event,
    Intent,
    Opener,
    Record,
    Report,
    Settling,
    State,
    StopWanted,
)
from sparkonce.model.result import Result
from sparkonce.store.protocol import (
    Attached,
    Changed,
    Claim,
    Conflict,
    Duplicate,
    Finalized,
    Gone,
    Lost,
    LostOwnership,
    Mismatch,
    Moved,
    NotFound,
    Owned,
    Refused,
    Request,
    Sealed,
    Updated,
)
from sparkonce.store.step import Decision, Seen, Write

RETRY_AFTER = 60.0
"""Seconds to wait when the realm is full and nothing in it expires by itself."""
COMMANDS_KEPT = 16
"""Openers of a key that were commands (a request, a rerun): a record is small, and a key may be rerun for years."""
LEASE_ENDED = "the lease of this process has ended; open another one"


def _written(seen: Seen, record: Record) -> Record:
    return record.model_copy(update={"revision": seen.next, "epoch": seen.epoch})


def _claim(seen: Seen, record: Record, *, lease: str, owner: str, nonce: str) -> Claim:
    return Claim(address=record.address, lease=lease, owner=owner, revision=seen.next, nonce=nonce)


def _mine(seen: Seen, claim: Claim) -> bool:
    return seen.claim is not None and (seen.claim.revision, seen.claim.nonce) == (claim.revision, claim.nonce)


def _event(seen: Seen, what: str, record: Record, *, by: str = "", why: str = "") -> Event:
    return Event(what=what, by=by, why=why, generation=record.generation, attempt=record.attempt, at=seen.at)


def _finalized(seen: Seen, record: Record) -> Finalized:
    if seen.result is None:
        raise RecordUnreadable(
            f"the record {where(record)} is finalized and its result is missing; restore the store from a backup or forget the key"
        )
    return Finalized(record, seen.result)


def where(record: Record) -> str:
    return f"{record.realm}/{record.key_hash[:20]}"


def _same_fingerprint(record: Record, request: Request) -> bool:
    mine = request.fingerprints.get(record.fingerprint_version)
    if mine is None:
        raise RecordTooNew(
            f"the record {where(record)} is compared by fingerprint version {record.fingerprint_version}, which this version "
            f"does not compute (it has {sorted(request.fingerprints)}); upgrade sparkonce"
        )
    return mine == record.fingerprint


# --- ownership


def reserve(
    seen: Seen, request: Request, *, lease: str, owner: str, ended: bool, floor: int, full: float | None
) -> Decision[Owned | Duplicate | Mismatch | Moved | Refused]:
    """`full`: None, or the seconds until the realm has room again."""
    now = seen.record
    if ended:
        return Refused(now, LEASE_ENDED), None
    if now is not None:
        if not _same_fingerprint(now, request):
            return Mismatch(now, seen.live), None
        if seen.claim is not None and (seen.claim.nonce, seen.claim.lease) == (request.nonce, lease):
            return Owned(now, seen.claim), None
        return Duplicate(now, seen.live), None
    if seen.floor != floor:
        return Moved(), None
    if full is not None:
        raise StoreFull(
            f"realm {request.address.realm!r} holds as many live keys as it may; try again in {full:.0f} s, or purge expired keys",
            retry_after=full,
        )
    version, fingerprint = request.newest
    record = Record(
        realm=request.address.realm,
        key_hash=request.address.key_hash,
        key=request.key,
        operation=request.operation,
        resource=request.resource,
        job_revision=request.job_revision,
        generation=floor + 1,
        attempt=1,
        nonce=request.nonce,
        fingerprint=fingerprint,
        fingerprint_version=version,
        openers=(request.by,),
        objects=request.objects,
        bound=request.bound,
        min_reader=_reader_of(request),
        created_at=seen.at,
        granted_at=seen.at,
    )
    return _opened(seen, _written(seen, record), request, lease=lease, owner=owner, what="Reserved")


def _reader_of(request: Request) -> int:
    """Who must be able to read the new record."""
    return FOLLOWING if request.bound is not None else 1


def _opened(seen: Seen, record: Record, request: Request, *, lease: str, owner: str, what: str) -> tuple[Owned, Write]:
    claim = _claim(seen, record, lease=lease, owner=owner, nonce=request.nonce)
    event = _event(seen, what, record, by=owner)
    return Owned(record, claim), Write(
        generation=record.generation, record=record, claim=claim, spec=request.spec, event=event
    )


def take_over(seen: Seen, record: Record, *, lease: str, owner: str, ended: bool, nonce: str) -> Decision[Owned | Lost]:
    now = seen.record
    if now is None or ended or now.state is State.FINALIZED:
        return Lost(now), None
    if seen.claim is not None and (seen.claim.nonce, seen.claim.lease) == (nonce, lease):
        return Owned(now, seen.claim), None
    if seen.live is not None or now.revision != record.revision:
        return Lost(now), None
    claim = _claim(seen, now, lease=lease, owner=owner, nonce=nonce)
    event = _event(seen, "TakenOver", now, by=owner)
    return Owned(now, claim), Write(generation=now.generation, claim=claim, event=event)


def heartbeat(seen: Seen, claim: Claim) -> Decision[Updated | Finalized | NotFound | LostOwnership]:
    now = seen.record
    if now is None:
        return NotFound(), None
    if now.state is State.FINALIZED:
        return _finalized(seen, now), None
    if not _mine(seen, claim):
        return LostOwnership(), None
    return Updated(now), Write(generation=now.generation, touch=True)


def drop(seen: Seen, claim: Claim) -> Decision[None]:
    generation = seen.record.generation if seen.record else 0
    return None, Write(generation=generation, drop_claim=True) if _mine(seen, claim) else None


def update(
    seen: Seen, record: Record, claim: Claim, changed: Record, event: Event | None
) -> Decision[Updated | Changed | LostOwnership | NotFound | Finalized]:
    _check_update(record, changed)
    now = seen.record
    if now is None or now.generation != record.generation:
        return NotFound(), None
    if now.state is State.FINALIZED:
        return _finalized(seen, now), None
    stands = now.dump() == changed.dump()
    if not _mine(seen, claim):
        # Holding dropped the claim in the same step: a repetition after a lost reply finds what it wrote, and nobody's claim.
        held = stands and now.state is State.HELD and seen.claim is None
        return Updated(now) if held else LostOwnership(), None
    if now.revision != record.revision:
        return Updated(now) if stands else Changed(now), None
    written = _written(seen, changed)
    return Updated(written), Write(
        generation=now.generation,
        record=written,
        drop_claim=written.state is State.HELD,
        event=event.model_copy(update={"at": seen.at}) if event else None,
    )


def _check_update(record: Record, changed: Record) -> None:
    if (changed.address, changed.generation) != (record.address, record.generation):
        raise ValueError("an update is of the same key and generation; `reopen` opens the next one")
    if changed.attempt not in (record.attempt, record.attempt + 1):
        raise ValueError("an update grants the next attempt or none: tokens are dense")
    if changed.state is State.FINALIZED:
        raise ValueError("only `finalize` finalizes: the result belongs to the same step")


def finalize(
    seen: Seen, record: Record, claim: Claim, result: Result, retention: float
) -> Decision[Finalized | Changed | LostOwnership | NotFound | Conflict]:
    if result.generation != record.generation:
        raise ValueError("the result is of another generation than the record")
    now = seen.record
    if now is None or now.generation != record.generation:
        return NotFound(), None
    if now.state is State.FINALIZED:
        stands = _finalized(seen, now)
        return stands if same_result(stands.result, result) else Conflict(now, stands.result), None
    if not _mine(seen, claim):
        return LostOwnership(), None
    if now.revision != record.revision:
        return Changed(now), None
    change = {
        "state": State.FINALIZED,
        "outcome": result.outcome,
        "held": None,
        "note": result.failure.message if result.failure else "",
        "not_before": None,
        "finalized_at": seen.at,
        "expires_at": seen.at + retention,
    }
    written = _written(seen, now.changed(**change))
    return Finalized(written, result), Write(
        generation=now.generation,
        record=written,
        drop_claim=True,
        result=result,
        event=_event(seen, "Finalized", written, by=claim.owner, why=result.outcome),
    )


def same_result(one: Result, other: Result) -> bool:
    """Two owners that concluded the same from the same evidence did so at different times."""
    times = {"startedAt", "finishedAt"}
    left, right = one.dump(), other.dump()
    return all(left.get(name) == right.get(name) for name in (left.keys() | right.keys()) - times)


def release(seen: Seen, record: Record, claim: Claim) -> Decision[Gone | Changed | LostOwnership | NotFound]:
    now = seen.record
    if now is None or now.generation != record.generation:
        return NotFound(), None
    if now.state is State.FINALIZED:
        return Changed(now), None
    if not _mine(seen, claim):
        return LostOwnership(), None
    if now.revision != record.revision:
        return Changed(now), None
    return _removed(seen, now, _event(seen, "Released", now, by=claim.owner))


def reopen(
    seen: Seen, record: Record, request: Request, *, lease: str, owner: str, ended: bool
) -> Decision[Owned | Duplicate | Lost | Refused]:
    now = seen.record
    if ended:
        return Refused(now, LEASE_ENDED), None
    if now is None:
        return Lost(None), None
    if seen.claim is not None and (seen.claim.nonce, seen.claim.lease) == (request.nonce, lease):
        return Owned(now, seen.claim), None
    if request.by in now.openers:
        return Duplicate(now, seen.live), None
    if now.revision != record.revision:
        return Lost(now), None
    if not now.reopenable:
        return Refused(now, f"generation {now.generation} is {now.state.value} and not settled: it ends first"), None
    version, fingerprint = request.newest
    # Who wanted the old run wants the new one, if it is the same job.
    kept = now.objects if _same_fingerprint(now, request) else ()
    # Every field of the model starts afresh but those named here; fields that this version does not know are kept.
    fresh = {name: field.get_default() for name, field in Record.model_fields.items() if not field.is_required()}
    keep = ("schema_", "operation", "resource", "job_revision")
    change = {name: value for name, value in fresh.items() if name not in keep} | {
        "generation": max(now.generation, seen.floor) + 1,
        "attempt": 1,
        "nonce": request.nonce,
        "fingerprint": fingerprint,
        "fingerprint_version": version,
        "openers": _openers(now, request.by),
        "objects": (*kept, *(uid for uid in request.objects if uid not in kept)),
        "bound": request.bound,
        "min_reader": max(now.min_reader, _reader_of(request)),
        "created_at": seen.at,
        "granted_at": seen.at,
    }
    return _opened(seen, _written(seen, now.changed(**change)), request, lease=lease, owner=owner, what="Reopened")


def _openers(now: Record, by: Opener) -> tuple[Opener, ...]:
    """Objects for ever, since they may ask again at any time; of commands, which repeat themselves within seconds, the last few."""
    commands = [opener for opener in now.openers if opener.uid is None][-COMMANDS_KEPT:]
    return (*(opener for opener in now.openers if opener.uid is not None or opener in commands), by)


# --- without a claim


def attach(seen: Seen, record: Record, uid: str) -> Decision[Attached | Changed | Finalized | NotFound]:
    now = seen.record
    if now is None or now.generation != record.generation:
        return NotFound(), None
    if now.state is State.FINALIZED:
        return _finalized(seen, now), None
    if uid in now.objects:
        return Attached(now), None
    if now.revision != record.revision:
        return Changed(now), None
    written = _written(seen, now.changed(objects=(*now.objects, uid)))
    return Attached(written), Write(generation=now.generation, record=written)


def request_stop(seen: Seen, record: Record, wish: StopWanted) -> Decision[Updated | Changed | Finalized | NotFound]:
    now = seen.record
    if now is None or now.generation != record.generation:
        return NotFound(), None
    if now.state is State.FINALIZED:
        return _finalized(seen, now), None
    if now.stop_wanted is not None:
        return Updated(now), None
    if now.revision != record.revision:
        return Changed(now), None
    written = _written(seen, now.changed(stop_wanted=wish))
    event = _event(seen, "StopWanted", now, by=wish.by, why=wish.reason or wish.why)
    return Updated(written), Write(generation=now.generation, record=written, event=event)


def seal(seen: Seen, *, generation: int, token: int, nonce: str, intent: Intent) -> Decision[Sealed | Refused]:
    if intent.token != token:
        raise ValueError("the intent is of another token than the seal")
    now = seen.record
    if now is None:
        return Refused(None, "the key has no record"), None
    if now.generation != generation:
        return Refused(now, f"generation {now.generation} runs now, not {generation}"), None
    if (now.attempt, now.nonce) != (token, nonce):
        return Refused(now, f"attempt {now.attempt} runs now, and this is not it"), None
    if now.intent is not None:
        if seen.intent is None:
            raise RecordUnreadable(
                f"the record {where(now)} names a sealed intent that is missing; restore the store from a backup or forget the key"
            )
        same = seen.intent.dump() == intent.dump()
        return Sealed(now) if same else Refused(now, "another transaction of this generation is sealed"), None
    if _settles(now.settling, token):
        return Refused(now, f"attempt {token} is being settled"), None
    if now.state is not State.IN_PROGRESS:
        return Refused(now, f"the record is {now.state.value}"), None
    written = _written(seen, now.changed(intent=token))
    event = _event(seen, "Sealed", now, by=f"attempt {token}")
    return Sealed(written), Write(generation=generation, record=written, intent=intent, event=event)


def _settles(settling: Settling | None, token: int) -> bool:
    return settling is not None and settling.attempt >= token


def report(seen: Seen, generation: int, entry: Report, stands: Report | None) -> Decision[bool]:
    """`stands`: what this reporter wrote before."""
    if seen.record is None or generation > seen.record.generation:
        return False, None
    if stands is not None:
        return stands.dump() == entry.dump(), None
    return True, Write(generation=generation, report=entry)


def renew(seen: Seen, generation: int, beat: Beat) -> Decision[bool]:
    now = seen.record
    if now is None or now.state is State.FINALIZED:
        return False, None
    if (now.generation, now.attempt, now.nonce) != (generation, beat.attempt, beat.nonce):
        return False, None
    return True, Write(generation=generation, beat=beat.model_copy(update={"age": 0.0}))


# --- ending


def _removed(seen: Seen, record: Record, event: Event) -> tuple[Gone, Write]:
    floor = max(seen.floor, record.generation)
    return Gone(floor), Write(generation=record.generation, remove=True, drop_claim=True, floor=floor, event=event)


def purge(seen: Seen, record: Record, now: float) -> Decision[Gone | Changed | Refused | NotFound]:
    stands = seen.record
    if stands is None or stands.generation != record.generation:
        return NotFound(), None
    if stands.revision != record.revision:
        return Changed(stands), None
    if stands.state is not State.FINALIZED:
        return Refused(stands, f"generation {stands.generation} is {stands.state.value}: it never expires"), None
    if stands.expires_at is None or stands.expires_at > now:
        return Refused(stands, "it has not expired"), None
    return _removed(seen, stands, _event(seen, "Purged", stands))


def forget(seen: Seen, record: Record, event: Event) -> Decision[Gone | Changed | Refused | NotFound]:
    stands = seen.record
    if stands is None or stands.generation != record.generation:
        return NotFound(), None
    if stands.revision != record.revision:
        return Changed(stands), None
    if stands.state is not State.FINALIZED:
        return Refused(
            stands, f"generation {stands.generation} is {stands.state.value}: only a finalized key is forgotten"
        ), None
    return _removed(seen, stands, event.model_copy(update={"at": seen.at}))
