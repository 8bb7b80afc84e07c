"""Opens a generation for one object: reserves an unknown key, reopens one whose record allows a new generation.

The order is: read the floor (or the record), then read the object from the API server, then write on condition that the floor (or the
record) is unchanged. So an object that was answered, deleted and forgotten in between is seen to be gone, and one that was edited is read
anew.

A request without an answer is never given up: it may have been applied, and may still be. It is repeated with its nonce until it is
answered; then the key is driven. Until then this process does nothing else about the key. Permits limit new generations only, never
takeovers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from sparkonce import failpoints
from sparkonce.controller.desired import Desired, DesiredReader
from sparkonce.controller.lease_guard import LeaseGuard
from sparkonce.controller.objects import JobObjects, ObjectRef, annotation_of
from sparkonce.controller.plan import Opening, Plan, Relation
from sparkonce.controller.workqueue import Permits
from sparkonce.errors import StoreFull, StoreUnavailable
from sparkonce.model.record import Address, SpecBody
from sparkonce.observe.meter import Meter
from sparkonce.store.protocol import IdempotencyStore, Owned, Refused, Request, View

NO_PERMIT = 0.5
"""Seconds until a new key that got no permit is reconciled again."""
SAID_AFTER = 10.0
"""Seconds without a permit after which the key's objects say so: of a wave of new jobs most wait for less, and each status is a write."""
NOTED = 10_000
"""Keys that wait for a permit whose beginning is remembered; beyond that all begin anew."""
ASK_AGAIN = (0.1, 2.0)
"""Seconds before an unanswered request is repeated: the first pause, and the longest."""

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Admission:
    """Sends the requests of one operator process.

    `on_owned` starts the drive of a reserved key, with its spec if this request wrote it; `enqueue` adds a key to the queue; `on_full`
    gets the reason when the store has no room, and `on_wait` a key that has waited for a permit for `SAID_AFTER`. clock: monotonic
    seconds."""

    store: IdempotencyStore
    objects: JobObjects
    lease_guard: LeaseGuard
    reader: DesiredReader
    meter: Meter
    permits: Permits
    new_nonce: Callable[[], str]
    on_owned: Callable[[Owned, SpecBody | None], None]
    on_full: Callable[[Address, StoreFull], None]
    enqueue: Callable[[Address], None]
    refusal: Callable[[Desired], str] = lambda _: ""
    """Why this operator's limits at outputs refuse a job; empty: they do not."""
    in_doubt: Callable[[str], bool] = lambda _: False
    """Whether the rewind alarm of a realm is raised: requests are not repeated then."""
    on_wait: Callable[[Address], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic
    _waits: dict[Address, float] = field(default_factory=dict)
    """When each key was first without a permit."""
    _permitted: set[Address] = field(default_factory=set)
    _repeating: dict[Address, asyncio.Task[None]] = field(default_factory=dict)

    def repeats(self, address: Address) -> bool:
        """Whether a request for this key is unanswered."""
        return address in self._repeating

    def free(self, address: Address) -> None:
        """Returns the key's permit, if it has one."""
        self._waits.pop(address, None)
        if address in self._permitted:
            self._permitted.discard(address)
            self.permits.release(address.realm)

    def stop(self) -> None:
        """Cancels the repetitions. A request that was applied leaves a record without an owner, which the next process takes over."""
        for task in self._repeating.values():
            task.cancel()

    async def open(self, view: View, opening: Opening, desired: dict[str, Desired], todo: Plan) -> float | None:
        """Opens the generation. Returns the seconds after which to try again, or None: the key is owned, its request is being repeated,
        or another process was first.

        Raises: ApiUnavailable, ApiRefused: nothing was sent to the store."""
        wanted = desired[opening.uid]
        # Unsynced: a rewound store is not recognised before every status was read.
        if not self.objects.synced or not self.permits.try_take(wanted.realm):
            return self._later(wanted.address)
        self._permitted.add(wanted.address)
        try:
            live = await self.objects.live(wanted.ref)
            now = None if live is None or live["metadata"].get("deletionTimestamp") else self.reader.read(live)
            refused = not isinstance(now, Desired) or now.contradiction or self.refusal(now)
            edited = not isinstance(now, Desired) or now.fingerprint() != wanted.fingerprint()
            if not isinstance(now, Desired) or refused or edited or annotation_of(live) != opening.annotation:
                self.free(wanted.address)
                return NO_PERMIT  # gone, or edited since: the watch reports that
            refs = [now.ref, *_companions(todo, opening, desired)]
            request = now.request(self.new_nonce(), number=opening.by.number or 0, objects=refs, rerun=opening.by.rerun)
            if opening.rerun:
                request = replace(request, reason=now.reruns(opening.rerun))
            elif opening.supersedes and view.record is not None:
                request = replace(request, reason=now.supersedes(view.record))
            return await self._send(request, view)
        except BaseException:
            if not self.repeats(wanted.address):
                self.free(wanted.address)
            raise

    def _later(self, address: Address) -> float:
        """Reports a wait for a permit that lasts. Returns the seconds until the next try."""
        if len(self._waits) >= NOTED:
            self._waits.clear()
        if self.objects.synced and self.clock() >= self._waits.setdefault(address, self.clock()) + SAID_AFTER:
            self.on_wait(address)
        return NO_PERMIT

    async def _send(self, request: Request, view: View) -> float | None:
        lease = self.lease_guard.lease
        record = view.record

        async def ask() -> object:
            if record is None:
                return await self.store.reserve(request, lease=lease, floor=view.floor)
            return await self.store.reopen(record, request, lease=lease)

        failpoints.hit("replica.reserve.before")
        try:
            reply = await ask()
        except StoreUnavailable:
            self._repeat_until_answered(request, ask)
            return None
        except StoreFull as full:
            self.free(request.address)
            self.meter.reserved("Full")
            self.on_full(request.address, full)
            return full.retry_after
        failpoints.hit("replica.reserve.after")
        return self._answered(request, reply)

    def _answered(self, request: Request, reply: object) -> float | None:
        address = request.address
        self.meter.reserved(type(reply).__name__)
        if isinstance(reply, Owned):
            self.on_owned(reply, request.spec if reply.record.nonce == request.nonce else None)
            return None
        self.free(address)
        if isinstance(reply, Refused):
            return NO_PERMIT
        self.enqueue(address)  # another request was first: plan again from its record
        return None

    def _repeat_until_answered(self, request: Request, ask: Callable[[], Awaitable[object]]) -> None:
        address = request.address

        async def repeat() -> None:
            pause = ASK_AGAIN[0]
            reply: object = None
            while True:
                await asyncio.sleep(pause)
                pause = min(2 * pause, ASK_AGAIN[1])
                if self.in_doubt(address.realm):
                    continue  # the restored store is not the one that got the request
                try:
                    reply = await ask()
                except StoreUnavailable:
                    continue
                except Exception as answered:  # noqa: BLE001 - an answer, or a defect: neither may block the key for ever
                    log.warning("key %s: %s", address.hash20, answered)
                break
            del self._repeating[address]
            if isinstance(reply, Owned) and self.lease_guard.alive():
                self._answered(request, reply)
            else:
                self.free(address)
                self.enqueue(address)

        self._repeating[address] = asyncio.create_task(repeat(), name=f"reserve {address.hash20}")


def _companions(todo: Plan, opening: Opening, desired: dict[str, Desired]) -> Sequence[ObjectRef]:
    """Other objects that wait for the same job: named in the request, they follow without a write of their own."""
    fingerprint = desired[opening.uid].fingerprint()
    waiting = [desired[uid] for uid in todo.uids(Relation.WAITS) if uid in desired and uid != opening.uid]
    return [other.ref for other in waiting if other.fingerprint() == fingerprint]
