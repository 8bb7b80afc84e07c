"""The verbs of a store that decides inside its own transaction: read the key, ask `rules`, write, all in one step.

Stores differ in `_step` and in how they read; their verbs are these. Methods are `async` because the protocol is, and never
suspend (see `sparkonce.blocking`), except `watch`, which polls and sleeps between polls. A store that cannot hold a transaction open
while it decides (etcd) has its own verbs over the same `rules`.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from sparkonce.model.record import (
    Address,
    Beat,
    Event,
    Intent,
    Record,
    Report,
    ReportedSoFar,
    Result,
    State,
    StopWanted,
)
from sparkonce.store import rules
from sparkonce.store.codec import encode
from sparkonce.store.protocol import (
    Attached,
    Changed,
    Claim,
    Conflict,
    Duplicate,
    Finalized,
    Gone,
    KeyChange,
    Lease,
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
from sparkonce.store.rules import KeyState, VerbOutcome

T = TypeVar("T")

EVENTS = 200
"""Events kept per key, the newest: a key driven for weeks must not fill the ledger."""
LIVE_KEYS = 100_000
"""Unexpired records per realm before new keys are refused."""
REPORT_BYTES = 256 * 1024 * 1024
"""Bytes of reports per realm before further ones are refused: a tenth of what etcd keeps by default, and a hundred thousand keys with
two kilobytes each."""
TOMBSTONES = 1_000
"""Removals that `watch` remembers; a watcher further behind gets a gap."""
POLL = 0.25
"""Seconds between polls of `watch`: a follower notices the end of a job about as soon as a person would."""


REPORTS_SHOWN = 900.0
"""Seconds after which the bytes of a realm's reports are no longer shown: a realm that does not report is not counted again."""


def fullest(reported: Mapping[str, tuple[int, float]], now: float) -> int:
    """The most bytes of any realm, of those counted lately. `reported`: bytes, and monotonic seconds of the count."""
    return max((used for used, at in reported.values() if now - at <= REPORTS_SHOWN), default=0)


class HeldLease(ABC):
    """A lease of this process, as the local stores need it."""

    id: str
    owner: str

    @property
    @abstractmethod
    def ended(self) -> bool: ...

    @property
    def deadline(self) -> float:
        return -math.inf if self.ended else math.inf

    @abstractmethod
    async def keep_alive(self) -> bool: ...

    @abstractmethod
    async def revoke(self) -> None: ...


class Beside(Protocol):
    """What a step may read besides the record, inside the same transaction."""

    def result(self, generation: int) -> Result | None: ...

    def intent(self, generation: int) -> Intent | None: ...

    def report(self, generation: int, attempt: int, reporter: str) -> Report | None: ...

    def reported(self, generation: int, attempt: int) -> ReportedSoFar: ...

    def realm_reported(self) -> int:
        """Bytes of all reports of the realm that are counted."""
        ...

    def full(self, limit: int) -> float | None:
        """None while the realm holds fewer live keys than `limit`; else the seconds until one of them expires."""
        ...

    def ended(self, lease: HeldLease) -> bool:
        """Whether the lease has ended according to the store, not to the process that holds it."""
        ...


@dataclass(frozen=True)
class Changes:
    """The result of one poll of `watch`: each changed key once, at its newest revision, in order."""

    seen: list[tuple[Address, int]]
    revision: int
    gap: bool
    unowned: frozenset[Address] = frozenset()
    """Of those seen: whose claim ended while their record did not change."""
    ended: frozenset[Address] = frozenset()
    """Of those seen: whose claim ended with a change of their record, or whose record went."""


def held(lease: Lease) -> HeldLease:
    if not isinstance(lease, HeldLease):
        raise TypeError(f"a lease of another store ({type(lease).__name__})")
    return lease


def _settled(seen: KeyState, beside: Beside) -> KeyState:
    """With the result, if the record is finalized."""
    if seen.record is None or seen.record.state is not State.FINALIZED:
        return seen
    return replace(seen, result=beside.result(seen.record.generation))


class Ledger(ABC):
    def __init__(self, *, max_live_keys: int, max_report_bytes: int, poll: float) -> None:
        self._max_live_keys, self._max_report_bytes = max_live_keys, max_report_bytes
        self._realms_reported: dict[str, tuple[int, float]] = {}
        self._poll = poll

    @abstractmethod
    def _step(self, address: Address, decide: Callable[[KeyState, Beside], VerbOutcome[T]]) -> T:
        """Reads, decides and writes as one step; RecordUnreadable and RecordTooNew before anything is decided."""

    @abstractmethod
    def _changes(self, since: int) -> Changes: ...

    def _poll_once(self, since: int) -> Changes:
        """One poll of `watch`; a store whose leases end by a clock first records each claim ended by it as a change."""
        return self._changes(since)

    # ownership

    async def reserve(
        self, request: Request, *, lease: Lease, floor: int
    ) -> Owned | Duplicate | Mismatch | Moved | Refused:
        own = held(lease)
        encode(request.spec)  # refused here, before anything is read or written

        def decide(seen: KeyState, beside: Beside) -> VerbOutcome[Owned | Duplicate | Mismatch | Moved | Refused]:
            new = seen.record is None and seen.floor == floor
            full = beside.full(self._max_live_keys) if new else None
            return rules.reserve(
                seen, request, lease=own.id, owner=own.owner, ended=beside.ended(own), floor=floor, full=full
            )

        return self._step(request.address, decide)

    async def take_over(self, record: Record, *, lease: Lease, nonce: str) -> Owned | Lost:
        own = held(lease)
        return self._step(
            record.address,
            lambda seen, beside: rules.take_over(
                seen, record, lease=own.id, owner=own.owner, ended=beside.ended(own), nonce=nonce
            ),
        )

    async def heartbeat(self, claim: Claim) -> Updated | Finalized | NotFound | LostOwnership:
        return self._step(claim.address, lambda seen, beside: rules.heartbeat(_settled(seen, beside), claim))

    async def drop(self, claim: Claim) -> None:
        return self._step(claim.address, lambda seen, _: rules.drop(seen, claim))

    async def update(
        self, record: Record, claim: Claim, changed: Record, *, event: Event | None = None
    ) -> Updated | Changed | LostOwnership | NotFound | Finalized:
        return self._step(
            record.address,
            lambda seen, beside: rules.update(_settled(seen, beside), record, claim, changed, event),
        )

    async def finalize(
        self, record: Record, claim: Claim, result: Result, *, retention: float
    ) -> Finalized | Changed | LostOwnership | NotFound | Conflict:
        return self._step(
            record.address,
            lambda seen, beside: rules.finalize(_settled(seen, beside), record, claim, result, retention),
        )

    async def reopen(self, record: Record, request: Request, *, lease: Lease) -> Owned | Duplicate | Lost | Refused:
        own = held(lease)
        encode(request.spec)  # refused here, before anything is read or written
        return self._step(
            record.address,
            lambda seen, beside: rules.reopen(
                seen, record, request, lease=own.id, owner=own.owner, ended=beside.ended(own)
            ),
        )

    # without a claim

    async def attach(self, record: Record, uid: str) -> Attached | Changed | Finalized | NotFound:
        return self._step(record.address, lambda seen, beside: rules.attach(_settled(seen, beside), record, uid))

    async def request_stop(self, record: Record, stop: StopWanted) -> Updated | Changed | Finalized | NotFound:
        return self._step(record.address, lambda seen, beside: rules.request_stop(_settled(seen, beside), record, stop))

    async def seal(
        self, address: Address, *, generation: int, token: int, nonce: str, intent: Intent
    ) -> Sealed | Refused:
        def decide(seen: KeyState, beside: Beside) -> VerbOutcome[Sealed | Refused]:
            if seen.record is not None and seen.record.intent is not None:
                seen = replace(seen, intent=beside.intent(seen.record.generation))
            return rules.seal(seen, generation=generation, token=token, nonce=nonce, intent=intent)

        return self._step(address, decide)

    async def report(self, address: Address, generation: int, report: Report) -> bool:
        def decide(seen: KeyState, beside: Beside) -> VerbOutcome[bool]:
            existing = beside.report(generation, report.attempt, report.reporter)
            so_far, used = beside.reported(generation, report.attempt), beside.realm_reported()
            outcome, write = rules.report(
                seen, generation, report, existing, so_far, room=self._max_report_bytes - used
            )
            added = write.reported.size - so_far.size if write is not None and write.reported is not None else 0
            self._realms_reported[address.realm] = used + added, time.monotonic()
            return outcome, write

        return self._step(address, decide)

    def reports_ratio(self) -> float:
        """Bytes of reports divided by the limit, of the fullest realm, as this process counted at each realm's last report."""
        return fullest(self._realms_reported, time.monotonic()) / self._max_report_bytes

    async def renew(self, address: Address, generation: int, beat: Beat) -> bool:
        return self._step(address, lambda seen, _: rules.renew(seen, generation, beat))

    async def watch(self, since: int) -> AsyncIterator[KeyChange]:
        import asyncio  # here: slow to import, and nothing else in a replay needs it

        while True:
            changes = self._poll_once(since)
            if changes.gap:
                yield KeyChange(None, changes.revision, gap=True)
            else:
                for address, revision in changes.seen:
                    yield KeyChange(
                        address, revision, unowned=address in changes.unowned, ended=address in changes.ended
                    )
            since = changes.revision
            await asyncio.sleep(self._poll)

    # ending

    async def purge(self, record: Record, *, now: float) -> Gone | Changed | Refused | NotFound:
        return self._step(record.address, lambda seen, _: rules.purge(seen, record, now))

    async def forget(self, record: Record, event: Event) -> Gone | Changed | Refused | NotFound:
        return self._step(record.address, lambda seen, _: rules.forget(seen, record, event))
