"""Opens a generation for one object: reserve where there is no record, reopen where there is one that may be followed.

The order is: the floor (or the record) was read, then the object itself is read from the API server, then the write compares what was
read first. So an object that was answered, deleted and forgotten in between is seen to be gone, and one that was edited is read anew.

An unanswered request is never given up: it may have landed, and may still land. It is repeated with its nonce until it is answered, and
then driven; until then nobody here does anything else about the key. Slots limit what is begun here, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from sparkonce import failpoints
from sparkonce.engine.objects import ObjectRef, Objects
from sparkonce.engine.ownership import Ownership
from sparkonce.engine.requests import Opening, Plan, Standing
from sparkonce.engine.wanted import Reader, Wanted
from sparkonce.engine.workqueue import Slots
from sparkonce.errors import StoreFull, StoreUnavailable
from sparkonce.model.record import Address, SpecBody
from sparkonce.observe.meter import Meter
from sparkonce.store.protocol import IdempotencyStore, Owned, Refused, Request, View

NO_SLOT = 0.5
"""Seconds until a new key that found no free slot is looked at again."""
ASK_AGAIN = (0.1, 2.0)
"""Seconds between two repetitions of an unanswered request: the first, and the longest."""

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Reserving:
    """`on_owned` drives what was won, with its spec where this request wrote it; `look` puts a key into the queue; `on_full` is told why
    there is no room."""

    store: IdempotencyStore
    objects: Objects
    ownership: Ownership
    reader: Reader
    meter: Meter
    slots: Slots
    new_nonce: Callable[[], str]
    on_owned: Callable[[Owned, SpecBody | None], None]
    on_full: Callable[[Address, StoreFull], None]
    look: Callable[[Address], None]
    in_doubt: Callable[[], bool] = lambda: False
    """The store is older than it was: nothing is asked of it."""
    _slotted: set[Address] = field(default_factory=set)
    _pursued: dict[Address, asyncio.Task[None]] = field(default_factory=dict)

    def pursues(self, address: Address) -> bool:
        """A request for this key is unanswered."""
        return address in self._pursued

    def free(self, address: Address) -> None:
        """The key needs its slot no more."""
        if address in self._slotted:
            self._slotted.discard(address)
            self.slots.release()

    def stop(self) -> None:
        """What was sent may have landed: whoever looks at the key next finds a record without an owner."""
        for task in self._pursued.values():
            task.cancel()

    async def open(self, view: View, opening: Opening, wanted: dict[str, Wanted], todo: Plan) -> float | None:
        """Seconds after which to try again, or None: it is owned, pursued, or somebody else was first."""
        asks = wanted[opening.uid]
        if not self.objects.synced or not self.slots.try_take():
            return NO_SLOT  # before all statuses were seen nobody can tell whether the store is as new as they are
        self._slotted.add(asks.address)
        try:
            live = await self.objects.live(asks.ref)
            now = None if live is None or live["metadata"].get("deletionTimestamp") else self.reader.read(live)
            if not isinstance(now, Wanted) or now.fingerprint() != asks.fingerprint():
                self.free(asks.address)
                return NO_SLOT  # gone, or edited since: the watch tells soon, or has told
            refs = [now.ref, *_companions(todo, opening, wanted)]
            request = now.request(self.new_nonce(), number=opening.by.number or 0, objects=refs)
            return await self._send(request, view)
        except BaseException:
            if not self.pursues(asks.address):
                self.free(asks.address)
            raise

    async def _send(self, request: Request, view: View) -> float | None:
        lease = self.ownership.lease
        record = view.record

        async def ask() -> object:
            if record is None:
                return await self.store.reserve(request, lease=lease, floor=view.floor)
            return await self.store.reopen(record, request, lease=lease)

        failpoints.hit("replica.reserve.before")
        try:
            reply = await ask()
        except StoreUnavailable:
            self._pursue(request, ask)
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
            return NO_SLOT
        self.look(address)  # somebody was first: what this object is to the key stands there now
        return None

    def _pursue(self, request: Request, ask: Callable[[], Awaitable[object]]) -> None:
        address = request.address

        async def repeat() -> None:
            pause = ASK_AGAIN[0]
            reply: object = None
            while True:
                await asyncio.sleep(pause)
                pause = min(2 * pause, ASK_AGAIN[1])
                if self.in_doubt():
                    continue  # it would be written into a store that is not the one that was asked
                try:
                    reply = await ask()
                except StoreUnavailable:
                    continue
                except Exception as answered:  # noqa: BLE001 - an answer, or a defect: neither may hold the key for ever
                    log.warning("key %s: %s", address.hash20, answered)
                break
            del self._pursued[address]
            if isinstance(reply, Owned) and self.ownership.alive():
                self._answered(request, reply)
            else:
                self.free(address)
                self.look(address)

        self._pursued[address] = asyncio.create_task(repeat(), name=f"reserve {address.hash20}")


def _companions(todo: Plan, opening: Opening, wanted: dict[str, Wanted]) -> Sequence[ObjectRef]:
    """Others that wait for the same job: they follow from the first moment, and cost no write of their own."""
    fingerprint = wanted[opening.uid].fingerprint()
    waiting = [wanted[uid] for uid in todo.uids(Standing.WAITS) if uid in wanted and uid != opening.uid]
    return [other.ref for other in waiting if other.fingerprint() == fingerprint]
