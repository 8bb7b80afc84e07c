"""The decision of each store verb, as a pure function of the key's state.

`KeyState` is what one transaction read; a decision is an outcome and, where something is to be written, one `Write`. Nothing here reads a
clock, draws a number or touches a store, so that every backend (a dictionary, SQL, a compare-and-set store) shares the same answers
and differs only in how it makes "read, decide, write" one atomic step. Leaving the decisions to each backend was rejected: the order
in which a verb compares generation, claim and revision *is* the protocol, and would have been written once per backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from sparkonce.errors import RealmReportsFull, RecordTooNew, RecordUnreadable, ReportTooLarge, StoreFull
from sparkonce.model.identity import UnknownFingerprintVersion, same
from sparkonce.model.record import (
    FENCED_EMPTY,
    FOLLOWING,
    MOST_OBJECTS,
    NEVER_RAN,
    Beat,
    Event,
    Intent,
    NoEffect,
    Opener,
    Outcome,
    Record,
    Report,
    ReportedSoFar,
    Result,
    Settling,
    SpecBody,
    State,
    StopWanted,
)
from sparkonce.store.codec import encode
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
    View,
)

T = TypeVar("T")

RETRY_AFTER = 60.0
"""Seconds to wait when the realm is full and nothing in it expires by itself."""
COMMANDS_KEPT = 16
"""Openers of a key that were commands (a request, a rerun): a record is small, and a key may be rerun for years."""
RERUNS_KEPT = 32
"""Openers of a key by an annotation: the record grows by about 200 bytes for each."""
OPENERS_KEPT = 256
"""Openers of a key in all, the newest ones: a scheduler may send the same key under a new name each day, for years."""
OLDEST_READER = {False: 1, True: FOLLOWING}
"""The oldest reader that understands a new record, by whether it follows an application."""
LEASE_ENDED = "the lease of this process has ended; open another one"


@dataclass(frozen=True, kw_only=True)
class KeyState:
    """The state of one key, and the clock, as one transaction read them."""

    record: Record | None
    claim: Claim | None
    """None also when its lease has ended. A stale claim still belongs to its owner until another takes it."""
    stale: bool
    """The claim has not been touched for so long that any process may take it over."""
    floor: int
    at: float
    """Unix seconds of the store's clock."""
    next: int
    """The revision that a write of this transaction gets."""
    epoch: int
    result: Result | None = None
    """Result of the record's generation; read only when the record is finalized."""
    intent: Intent | None = None
    """Read only when the record names one, and only for `seal`."""

    @property
    def live(self) -> Claim | None:
        return None if self.stale else self.claim

    @property
    def view(self) -> View:
        return View(record=self.record, claim=self.live, floor=self.floor, revision=self.next - 1, epoch=self.epoch)


@dataclass(frozen=True, kw_only=True)
class Write:
    """What one step writes, all or nothing; None and False change nothing. Values beside the record belong to `generation`."""

    generation: int
    record: Record | None = None
    remove: bool = False
    """Removes the record and everything beside it, but neither events nor the floor."""
    floor: int | None = None
    claim: Claim | None = None
    drop_claim: bool = False
    touch: bool = False
    """Renews the claim: its owner is alive."""
    spec: SpecBody | None = None
    result: Result | None = None
    intent: Intent | None = None
    report: Report | None = None
    reported: ReportedSoFar | None = None
    """What the report's attempt has reported, this report included."""
    beat: Beat | None = None
    event: Event | None = None

    @property
    def moves(self) -> bool:
        """Whether the store's revision moves: heartbeats are not changes."""
        return not (self.touch or self.beat)


VerbOutcome = tuple[T, Write | None]
"""A verb's answer, and what it writes; None: nothing."""


def _written(seen: KeyState, record: Record) -> Record:
    """The record as it is stored: what was written without bounds is cut, or else it could not be ended for want of room."""
    bounded = {"objects": record.objects[:MOST_OBJECTS], "openers": record.openers[-OPENERS_KEPT:]}
    return record.model_copy(update={"revision": seen.next, "epoch": seen.epoch, **bounded})


def _claim(seen: KeyState, record: Record, *, lease: str, owner: str, nonce: str) -> Claim:
    return Claim(address=record.address, lease=lease, owner=owner, revision=seen.next, nonce=nonce)


def _mine(seen: KeyState, claim: Claim) -> bool:
    return seen.claim is not None and (seen.claim.revision, seen.claim.nonce) == (claim.revision, claim.nonce)


def _event(seen: KeyState, what: str, record: Record, *, by: str = "", why: str = "") -> Event:
    return Event(what=what, by=by, why=why, generation=record.generation, attempt=record.attempt, at=seen.at)


def _finalized(seen: KeyState, record: Record) -> Finalized:
    if seen.result is None:
        raise RecordUnreadable(
            f"the record {where(record)} is finalized and its result is missing; restore the store from a backup or forget the key"
        )
    return Finalized(record, seen.result)


def where(record: Record) -> str:
    return f"{record.realm}/{record.key_hash[:20]}"


def _same_fingerprint(record: Record, request: Request) -> bool:
    try:
        return same(record.fingerprint, record.fingerprint_version, request.fingerprints)
    except UnknownFingerprintVersion as unknown:
        raise RecordTooNew(f"the record {where(record)}: {unknown}") from None


def _newest(fingerprints: Mapping[int, str]) -> tuple[int, str]:
    """The newest fingerprint with the oldest version that yields the same one, which more readers know."""
    digest = fingerprints[max(fingerprints)]
    return min(version for version, each in fingerprints.items() if each == digest), digest


# --- ownership


def reserve(
    seen: KeyState, request: Request, *, lease: str, owner: str, ended: bool, floor: int, full: float | None
) -> VerbOutcome[Owned | Duplicate | Mismatch | Moved | Refused]:
    """Decides `IdempotencyStore.reserve`. `full`: None, or the seconds until the realm has room again."""
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
    version, fingerprint = _newest(request.fingerprints)
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
        min_reader=OLDEST_READER[request.bound is not None],
        created_at=seen.at,
        granted_at=seen.at,
    )
    return _opened(seen, _written(seen, record), request, lease=lease, owner=owner, what="Reserved")


def _opened(
    seen: KeyState, record: Record, request: Request, *, lease: str, owner: str, what: str
) -> tuple[Owned, Write]:
    claim = _claim(seen, record, lease=lease, owner=owner, nonce=request.nonce)
    event = _event(seen, what, record, by=request.person or owner, why=request.reason)
    return Owned(record, claim), Write(
        generation=record.generation, record=record, claim=claim, spec=request.spec, event=event
    )


def take_over(
    seen: KeyState, record: Record, *, lease: str, owner: str, ended: bool, nonce: str
) -> VerbOutcome[Owned | Lost]:
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


def heartbeat(seen: KeyState, claim: Claim) -> VerbOutcome[Updated | Finalized | NotFound | LostOwnership]:
    now = seen.record
    if now is None:
        return NotFound(), None
    if now.state is State.FINALIZED:
        return _finalized(seen, now), None
    if not _mine(seen, claim):
        return LostOwnership(), None
    return Updated(now), Write(generation=now.generation, touch=True)


def drop(seen: KeyState, claim: Claim) -> VerbOutcome[None]:
    generation = seen.record.generation if seen.record else 0
    return None, Write(generation=generation, drop_claim=True) if _mine(seen, claim) else None


def update(
    seen: KeyState, record: Record, claim: Claim, changed: Record, event: Event | None
) -> VerbOutcome[Updated | Changed | LostOwnership | NotFound | Finalized]:
    _check_update(record, changed)
    now = seen.record
    if now is None or now.generation != record.generation:
        return NotFound(), None
    if now.state is State.FINALIZED:
        return _finalized(seen, now), None
    already_stored = now.dump() == changed.dump()
    if not _mine(seen, claim):
        # Holding dropped the claim in the same step: a retry after a lost reply finds what it wrote, and no claim.
        held = already_stored and now.state is State.HELD and seen.claim is None
        return Updated(now) if held else LostOwnership(), None
    if now.revision != record.revision:
        return Updated(now) if already_stored else Changed(now), None
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
    seen: KeyState, record: Record, claim: Claim, result: Result, retention: float
) -> VerbOutcome[Finalized | Changed | LostOwnership | NotFound | Conflict]:
    if result.generation != record.generation:
        raise ValueError("the result is of another generation than the record")
    now = seen.record
    if now is None or now.generation != record.generation:
        return NotFound(), None
    if now.state is State.FINALIZED:
        finalized = _finalized(seen, now)
        return finalized if same_result(finalized.result, result) else Conflict(now, finalized.result), None
    if not _mine(seen, claim):
        return LostOwnership(), None
    if now.revision != record.revision:
        return Changed(now), None
    change = {
        "state": State.FINALIZED,
        "outcome": result.outcome,
        "held": None,
        "note": result.failure.message if result.failure else "",
        "no_effect": _no_effect(now, result),
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


def _no_effect(now: Record, result: Result) -> NoEffect | None:
    if result.outcome is Outcome.SUCCEEDED or result.evidence not in (FENCED_EMPTY, NEVER_RAN):
        return None
    return NoEffect(generation=now.generation, attempt=now.attempt)


def same_result(one: Result, other: Result) -> bool:
    """Compares everything but the times: two owners reach the same conclusion from the same evidence at different times."""
    times = {"startedAt", "finishedAt"}
    left, right = one.dump(), other.dump()
    return all(left.get(name) == right.get(name) for name in (left.keys() | right.keys()) - times)


def reopen(
    seen: KeyState, record: Record, request: Request, *, lease: str, owner: str, ended: bool
) -> VerbOutcome[Owned | Duplicate | Lost | Refused]:
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
    version, fingerprint = _newest(request.fingerprints)
    # Objects that wanted the old run want the new one, if it is the same job.
    kept = now.objects if _same_fingerprint(now, request) else ()
    # Every field of the model is reset except those named here; fields that this version does not know are kept.
    fresh = {name: field.get_default() for name, field in Record.model_fields.items() if not field.is_required()}
    keep = ("schema_", "job_revision")
    change = {name: value for name, value in fresh.items() if name not in keep} | {
        "generation": max(now.generation, seen.floor) + 1,
        "attempt": 1,
        "nonce": request.nonce,
        "fingerprint": fingerprint,
        "fingerprint_version": version,
        "operation": request.operation,
        "resource": request.resource,
        "openers": _openers(now, request.by),
        "objects": _wanting(kept, request.objects),
        "bound": request.bound,
        "min_reader": max(now.min_reader, OLDEST_READER[request.bound is not None]),
        "created_at": seen.at,
        "granted_at": seen.at,
    }
    return _opened(seen, _written(seen, now.changed(**change)), request, lease=lease, owner=owner, what="Reopened")


def _openers(now: Record, by: Opener) -> tuple[Opener, ...]:
    """Keeps every object, since it may ask again at any time; of commands, which are retried within seconds, the last few. An object can be
    annotated for years: its reruns are kept as commands are, besides the newest request of each object, which numbers the next one. An
    object is forgotten here after `OPENERS_KEPT` newer requests; its status still names what it asked for."""
    commands = [opener for opener in now.openers if opener.uid is None][-COMMANDS_KEPT:]
    annotated = [opener for opener in now.openers if opener.rerun is not None]
    newest = {opener.uid: opener for opener in now.openers}
    dropped = [opener for opener in annotated[:-RERUNS_KEPT] if opener not in newest.values()]
    kept = [opener for opener in now.openers if opener.uid is not None or opener in commands]
    return (*(opener for opener in kept if opener not in dropped), by)


def _wanting(kept: tuple[str, ...], asking: tuple[str, ...]) -> tuple[str, ...]:
    """The objects that want a new generation. Where they are too many, those that ask for it stay."""
    wanting = dict.fromkeys((*kept, *asking))
    return tuple(wanting if len(wanting) <= MOST_OBJECTS else dict.fromkeys((*asking, *kept)))


# --- without a claim


def attach(seen: KeyState, record: Record, uid: str) -> VerbOutcome[Attached | Changed | Finalized | NotFound]:
    now = seen.record
    if now is None or now.generation != record.generation:
        return NotFound(), None
    if now.state is State.FINALIZED:
        return _finalized(seen, now), None
    if uid in now.objects:
        return Attached(now), None
    if now.revision != record.revision or len(now.objects) >= MOST_OBJECTS:
        return Changed(now), None
    written = _written(seen, now.changed(objects=(*now.objects, uid)))
    return Attached(written), Write(generation=now.generation, record=written)


def request_stop(
    seen: KeyState, record: Record, stop: StopWanted
) -> VerbOutcome[Updated | Changed | Finalized | NotFound]:
    now = seen.record
    if now is None or now.generation != record.generation:
        return NotFound(), None
    if now.state is State.FINALIZED:
        return _finalized(seen, now), None
    if now.stop_wanted is not None:
        return Updated(now), None
    if now.revision != record.revision:
        return Changed(now), None
    written = _written(seen, now.changed(stop_wanted=stop))
    event = _event(seen, "StopWanted", now, by=stop.by, why=stop.reason or stop.why)
    return Updated(written), Write(generation=now.generation, record=written, event=event)


def seal(seen: KeyState, *, generation: int, token: int, nonce: str, intent: Intent) -> VerbOutcome[Sealed | Refused]:
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


def report(
    seen: KeyState, generation: int, entry: Report, stored: Report | None, so_far: ReportedSoFar, *, room: int
) -> VerbOutcome[bool]:
    """Decides `IdempotencyStore.report`. `stored`: what this reporter wrote before. `so_far`: what the attempt has reported. `room`: bytes
    left to the realm.

    Raises: ReportTooLarge, RealmReportsFull."""
    if seen.record is None or generation > seen.record.generation:
        return False, None
    if stored is not None:
        return stored.dump() == entry.dump(), None
    size = len(encode(entry).encode())
    if (why := too_large(entry, size, so_far)) is not None:
        raise ReportTooLarge(why)
    if size > room and entry.kind != VERDICT:  # what decides a key is never refused for room, as a finalize is not
        raise RealmReportsFull(
            f"the reports of realm {seen.record.realm!r} have used up their room in the ledger; purge or forget keys of it, "
            "shorten their retention, or raise --max-report-bytes of the gateways"
        )
    told = ReportedSoFar(reports=so_far.reports + 1, size=so_far.size + size)
    return True, Write(generation=generation, report=entry, reported=told)


REPORT_LIMIT = 16 * 1024
"""Bytes of JSON of one report. Evidence of commits lists files and may be as large as any value (`codec.VALUE_LIMIT`)."""
EVIDENCE = frozenset({"committed", "verdict"})
"""Kinds of report that list the slots of every output."""
ATTEMPT_LIMIT = 1024 * 1024
"""Bytes of JSON of all reports of one attempt."""
VERDICT = "verdict"
VERDICT_ROOM = 256 * 1024
"""Of these, what only settle runs may use: a driver must not be able to leave its own key without a verdict."""
REPORTS = 1000
"""Reports of one attempt: each costs a key besides its bytes."""


def too_large(entry: Report, size: int, before: ReportedSoFar) -> str | None:
    """Why a report of so many bytes is not stored; None: it is."""
    if entry.kind not in EVIDENCE and size > REPORT_LIMIT:
        return (
            f"a report of {entry.kind!r} has {size:,} bytes of JSON, and a ledger keeps at most {REPORT_LIMIT:,} of each; "
            "write what is larger to an output"
        )
    room = ATTEMPT_LIMIT if entry.kind == VERDICT else ATTEMPT_LIMIT - VERDICT_ROOM
    if before.size + size > room:
        return (
            f"attempt {entry.attempt} has reported {before.size:,} bytes, and with {size:,} more it would pass its limit of {room:,}; "
            "report less, or write an output"
        )
    if before.reports >= REPORTS:
        return f"attempt {entry.attempt} has already made {REPORTS:,} reports, which is the limit; report less often"
    return None


def renew(seen: KeyState, generation: int, beat: Beat) -> VerbOutcome[bool]:
    now = seen.record
    if now is None or now.state is State.FINALIZED:
        return False, None
    if (now.generation, now.attempt, now.nonce) != (generation, beat.attempt, beat.nonce):
        return False, None
    return True, Write(generation=generation, beat=beat.model_copy(update={"age": 0.0}))


# --- ending


def _removed(seen: KeyState, record: Record, event: Event) -> tuple[Gone, Write]:
    floor = max(seen.floor, record.generation)
    return Gone(floor), Write(generation=record.generation, remove=True, drop_claim=True, floor=floor, event=event)


def purge(seen: KeyState, record: Record, now: float) -> VerbOutcome[Gone | Changed | Refused | NotFound]:
    current = seen.record
    if current is None or current.generation != record.generation:
        return NotFound(), None
    if current.revision != record.revision:
        return Changed(current), None
    if current.state is not State.FINALIZED:
        return Refused(current, f"generation {current.generation} is {current.state.value}: it never expires"), None
    if current.expires_at is None or current.expires_at > now:
        return Refused(current, "it has not expired"), None
    return _removed(seen, current, _event(seen, "Purged", current))


def forget(seen: KeyState, record: Record, event: Event) -> VerbOutcome[Gone | Changed | Refused | NotFound]:
    current = seen.record
    if current is None or current.generation != record.generation:
        return NotFound(), None
    if current.revision != record.revision:
        return Changed(current), None
    if current.state is not State.FINALIZED:
        return Refused(
            current, f"generation {current.generation} is {current.state.value}: only a finalized key is forgotten"
        ), None
    return _removed(seen, current, event.model_copy(update={"at": seen.at}))
