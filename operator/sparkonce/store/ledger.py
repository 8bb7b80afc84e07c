"""The verbs of a store that decides inside its own transaction: read what stands at the key, ask `rules`, write, all in one step.

Memory and SQL differ in `_step` and in how they read; their verbs are these. Methods are `async` because the protocol is, and never
suspend (see `sparkonce.blocking`), except `watch`, which polls and waits between two looks. A store that cannot hold a transaction open
while it decides (etcd) has its own verbs over the same `rules`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from sparkonce.errors import InvalidInput
from sparkonce.model.record import Address, Beat, Event, Intent, Record, Report, SpecBody, State, StopWanted
from sparkonce.model.result import Result
from sparkonce.store import rules
from sparkonce.store.codec import encode
from sparkonce.store.protocol import (
    Attached,
    Change,
    Changed,
    Claim,
    Conflict,
    Duplicate,
    Finalized,
    Gone,
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
from sparkonce.store.step import Decision, Seen

T = TypeVar("T")

EVENTS = 200
"""Events kept per key, the newest: a key that is driven for weeks must not fill the ledger."""
LIVE_KEYS = 100_000
"""Unexpired records per realm before new keys are refused."""
TOMBSTONES = 1_000
"""Keys whose removal `watch` still knows of; a watcher that is further behind is told that there was a gap."""
SPEC_LIMIT = 256 * 1024
"""Bytes of JSON of one spec: it is read and sent as a whole."""
POLL = 0.25
"""Seconds between two looks of `watch`: a follower sees the end of a job about as soon as a person would."""


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

    def full(self, limit: int) -> float | None:
        """None while the realm holds fewer live keys than `limit`; else the seconds until one of them expires."""
        ...

    def ended(self, lease: HeldLease) -> bool:
        """Whether the store still honours it: an answer of the store's, not of the process that holds it."""
        ...


@dataclass(frozen=True)
class Changes:
    """What `watch` sees in one look: each changed key once, at its newest revision, in order."""

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


def _settled(seen: Seen, beside: Beside) -> Seen:
    """With the result, where there must be one."""
    if seen.record is None or seen.record.state is not State.FINALIZED:
        return seen
    return replace(seen, result=beside.result(seen.record.generation))


def _check_size(spec: SpecBody) -> None:
    size = len(encode(spec).encode())
    if size > SPEC_LIMIT:
        raise InvalidInput(
            f"the job's spec has {size} bytes of JSON, and a ledger keeps at most {SPEC_LIMIT}; move large values into files"
        )


class Ledger(ABC):
    def __init__(self, *, max_live_keys: int, poll: float) -> None:
        self._max_live_keys = max_live_keys
        self._poll = poll

    @abstractmethod
    def _step(self, address: Address, decide: Callable[[Seen, Beside], Decision[T]]) -> T:
        """Reads, decides and writes as one step; RecordUnreadable and RecordTooNew before anything is decided."""

    @abstractmethod
    def _changes(self, since: int) -> Changes: ...

    def _look(self, since: int) -> Changes:
        """One look of `watch`; a store whose leases end by a clock first makes a change of every claim that ended by it."""
        return self._changes(since)

    # ownership

    async def reserve(
        self, request: Request, *, lease: Lease, floor: int
    ) -> Owned | Duplicate | Mismatch | Moved | Refused:
        own = held(lease)
        _check_size(request.spec)

        def decide(seen: Seen, beside: Beside) -> Decision[Owned | Duplicate | Mismatch | Moved | Refused]:
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

    async def release(self, record: Record, claim: Claim) -> Gone | Changed | LostOwnership | NotFound:
        return self._step(record.address, lambda seen, _: rules.release(seen, record, claim))

    async def reopen(self, record: Record, request: Request, *, lease: Lease) -> Owned | Duplicate | Lost | Refused:
        own = held(lease)
        _check_size(request.spec)
        return self._step(
            record.address,
            lambda seen, beside: rules.reopen(
                seen, record, request, lease=own.id, owner=own.owner, ended=beside.ended(own)
            ),
        )

    # without a claim

    async def attach(self, record: Record, uid: str) -> Attached | Changed | Finalized | NotFound:
        return self._step(record.address, lambda seen, beside: rules.attach(_settled(seen, beside), record, uid))

    async def request_stop(self, record: Record, wish: StopWanted) -> Updated | Changed | Finalized | NotFound:
        return self._step(record.address, lambda seen, beside: rules.request_stop(_settled(seen, beside), record, wish))

    async def seal(
        self, address: Address, *, generation: int, token: int, nonce: str, intent: Intent
    ) -> Sealed | Refused:
        def decide(seen: Seen, beside: Beside) -> Decision[Sealed | Refused]:
            if seen.record is not None and seen.record.intent is not None:
                seen = replace(seen, intent=beside.intent(seen.record.generation))
            return rules.seal(seen, generation=generation, token=token, nonce=nonce, intent=intent)

        return self._step(address, decide)

    async def report(self, address: Address, generation: int, report: Report) -> bool:
        def decide(seen: Seen, beside: Beside) -> Decision[bool]:
            stands = beside.report(generation, report.attempt, report.reporter)
            return rules.report(seen, generation, report, stands)

        return self._step(address, decide)

    async def renew(self, address: Address, generation: int, beat: Beat) -> bool:
        return self._step(address, lambda seen, _: rules.renew(seen, generation, beat))

    async def watch(self, since: int) -> AsyncIterator[Change]:
        import asyncio  # here, because nothing else in a replay needs it and it takes its time

        while True:
            look = self._look(since)
            if look.gap:
                yield Change(None, look.revision, gap=True)
            else:
                for address, revision in look.seen:
                    yield Change(address, revision, unowned=address in look.unowned, ended=address in look.ended)
            since = look.revision
            await asyncio.sleep(self._poll)

    # ending

    async def purge(self, record: Record, *, now: float) -> Gone | Changed | Refused | NotFound:
        return self._step(record.address, lambda seen, _: rules.purge(seen, record, now))

    async def forget(self, record: Record, event: Event) -> Gone | Changed | Refused | NotFound:
        return self._step(record.address, lambda seen, _: rules.forget(seen, record, event))
