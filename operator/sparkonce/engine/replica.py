"""One operator process: a queue of keys, a lease, the drives of the keys it owns, and what wakes them.

Any number of these run beside each other on one store. Each hears of every object and of every claim that ends; who acts first is a
matter of a rendezvous hash (tens of milliseconds of head start) and never of correctness: who comes second loses a compare-and-set and
finds nothing left to do. Nothing is remembered that cannot be read again: the sweep puts every key into the queue, so that a lost
wake-up, a restart or a bug in a watch costs one period at most.

On SIGTERM it hands over: takes nothing in any more, lets go of its drives (applications go on without us), and revokes its lease last.
Sources: DESIGN sections 4, 5 and 7; the loop over one queue with level-triggered keys is client-go's controller pattern.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sparkonce import failpoints
from sparkonce.engine.ownership import Ownership
from sparkonce.engine.rewinding import OUTSIDE
from sparkonce.engine.workqueue import Closed, WorkQueue, until_set
from sparkonce.errors import SparkonceError, StoreUnavailable
from sparkonce.model.record import SCHEMA, Address, State
from sparkonce.store.protocol import Change, IdempotencyStore, Query
from sparkonce.store.roster import Replica as Announced
from sparkonce.store.roster import Roster

log = logging.getLogger(__name__)

TELLS = 1.0
"""Seconds for which whoever ended a generation may take to tell its objects, before others do."""


@dataclass(frozen=True, kw_only=True)
class ReplicaSettings:
    """Seconds and counts; none of them changes what is safe."""

    slots: int = 200
    """New keys that may be unfinished at once in this process: each is a drive, and an application that wants a driver pod."""
    workers: int = 16
    """Keys that are looked at concurrently: most of a look is waiting for an answer."""
    head_start: float = 0.03
    """Between two replicas in the order of the rendezvous hash: longer than a transaction, shorter than anybody notices."""
    sweep: float = 120.0
    """Between two looks at everything: what no watch told is found then."""
    announce: float = 3.0
    """Between two entries in the roster: a replica that left costs others a head start for so long."""
    margin: float = 1.0
    """Before the lease's end, when this process stops to act."""
    drain: float = 5.0
    """For which a graceful stop waits for what is being written."""


class Attendant(Protocol):
    """Looks at one key and does what is to be done about it; see `attend.py`."""

    async def attend(self, address: Address) -> float | None:
        """Seconds after which it wants to look again by itself, or None. May raise anything: the key is looked at again later."""
        ...

    def lease_lost(self) -> None: ...

    def untold(self, address: Address, revision: int) -> bool:
        """The generation ended, was held or was forgotten at this revision, and somebody of this key has not been told."""
        ...

    def unowned(self, address: Address) -> None:
        """The store told that the claim ended."""
        ...

    def told(self, address: Address, revision: int) -> bool:
        """The store told that the record changed. False: this process does not drive the key."""
        ...

    @property
    def alarmed(self) -> bool:
        """The store is older than it was: nothing is written into it, so that it does not seem to have caught up."""
        ...

    async def swept(self) -> None:
        """Once per sweep, after every key was put into the queue."""
        ...

    async def drain(self) -> None: ...


class Replica:
    def __init__(
        self,
        store: IdempotencyStore,
        roster: Roster,
        *,
        owner: str,
        known: Callable[[], Sequence[Address]],
        waiting: Callable[[], Sequence[Address]],
        settings: ReplicaSettings,
    ) -> None:
        """`known`: the addresses of every object that is known to this process; `waiting`: of those that show no end yet."""
        self.store, self.roster, self.owner, self.settings = store, roster, owner, settings
        self.nonce = uuid.uuid4().hex
        self.queue: WorkQueue[Address] = WorkQueue(retry_initial=0.2, retry_max=30.0)
        self.ownership = Ownership(
            store, owner=owner, on_lost=self._lost, on_held=self.sweep_soon, margin=settings.margin
        )
        self.attendant: Attendant | None = None
        self.members: tuple[str, ...] = (self.nonce,)
        self._known, self._waiting = known, waiting
        self._sweep_now = asyncio.Event()
        self._stopping = False

    # --- what wakes keys

    def look(self, address: Address, *, at_once: bool = False) -> None:
        """Puts a key into the queue; unless `at_once`, behind those replicas that go first."""
        if not self._stopping:
            self.queue.add_after(address, 0.0 if at_once else self.rank(address) * self.settings.head_start)

    def rank(self, address: Address) -> int:
        """How many replicas go before this one for this key: the rendezvous hash (highest random weight)."""
        mine = _weight(self.nonce, address)
        return sum(_weight(other, address) > mine for other in self.members if other != self.nonce)

    def sweep_soon(self) -> None:
        self._sweep_now.set()

    def _lost(self) -> None:
        if self.attendant is not None:
            self.attendant.lease_lost()
        self.sweep_soon()

    # --- life

    async def run(self, attendant: Attendant) -> None:
        """Until cancelled; then `hand_over`."""
        self.attendant = attendant
        loops: list[Coroutine[Any, Any, None]] = [
            self.ownership.keep(),
            self._forever("the watch of the store", self._follow_store),
            self._forever("the roster", self._announce),
            self._forever("the sweep", self._sweep),
            *(self._work(attendant) for _ in range(self.settings.workers)),
        ]
        async with asyncio.TaskGroup() as group:
            for loop in loops:
                group.create_task(loop)

    async def hand_over(self) -> None:
        """Graceful stop, after `run` was cancelled: successors find the claims gone at once, and applications as they were."""
        self._stopping = True
        self.queue.close()
        if self.attendant is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.drain):
                    await self.attendant.drain()
        failpoints.hit("replica.hand-over.before")
        await self.ownership.revoke()

    async def _forever(self, what: str, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Loops end by cancelling only; what ends one otherwise is logged, and it begins anew."""
        pause = 0.2
        while True:
            begun = time.monotonic()
            try:
                await loop()
            except SparkonceError as problem:
                log.warning("%s: %s; going on", what, problem)
            except Exception:
                log.exception("%s ended; it begins anew", what)
            pause = 0.2 if time.monotonic() - begun > 10.0 else min(2 * pause, 5.0)
            await asyncio.sleep(pause)

    async def _work(self, attendant: Attendant) -> None:
        with contextlib.suppress(Closed):
            while True:
                address = await self.queue.get()
                try:
                    again = await attendant.attend(address)
                except SparkonceError as problem:
                    seconds = self.queue.retry(address)
                    log.warning("key %s: %s; looking again in %.1f s", address.hash20, problem, seconds)
                except Exception:
                    seconds = self.queue.retry(address)
                    log.exception("key %s: unexpected; looking again in %.1f s", address.hash20, seconds)
                else:
                    self.queue.forget(address)
                    if again is not None:
                        self.queue.add_after(address, again)
                finally:
                    self.queue.done(address)

    async def _follow_store(self) -> None:
        since = (await self.store.load(OUTSIDE)).revision
        self.sweep_soon()  # what changed before, nobody told
        async for change in self.store.watch(since):
            self._changed(change)

    def _changed(self, change: Change) -> None:
        if change.gap or change.address is None:
            self.sweep_soon()
            return
        assert self.attendant is not None  # run() sets it before anything is followed
        driven = self.attendant.told(change.address, change.revision)
        if change.unowned and not driven:
            self.attendant.unowned(change.address)
            self.look(change.address)
        elif change.ended and not driven:
            asyncio.get_running_loop().call_later(TELLS, self._check_told, change.address, change.revision)

    def _check_told(self, address: Address, revision: int) -> None:
        """Whoever ended a generation tells its objects; a person's command cannot, and a process may die in between."""
        if self.attendant is not None and self.attendant.untold(address, revision):
            self.look(address)

    async def _announce(self) -> None:
        while True:
            await self.ownership.held()
            if self.attendant is not None and self.attendant.alarmed:
                await asyncio.sleep(self.settings.announce)
                continue
            me = Announced(
                nonce=self.nonce, owner=self.owner, clock=time.time(), schema=SCHEMA, slots=self.settings.slots
            )
            with contextlib.suppress(StoreUnavailable):
                await self.roster.announce(me, lease=self.ownership.lease)
                self._met({other.nonce for other in await self.roster.replicas()})
            await asyncio.sleep(self.settings.announce)

    def _met(self, others: set[str]) -> None:
        """Who leaves may have ended a key and told nobody: no claim of it was left, whose end would wake anybody."""
        left = set(self.members) - others - {self.nonce}
        self.members = tuple(sorted({self.nonce, *others}))
        for address in self._waiting() if left else ():
            self.look(address)

    async def _sweep(self) -> None:
        while True:
            for address in self._known():
                self.look(address)
            async for address in self.unfinished():
                self.look(address)
            assert self.attendant is not None
            await self.attendant.swept()
            await until_set(self._sweep_now, self.settings.sweep * random.uniform(0.9, 1.1))  # noqa: S311 - jitter
            self._sweep_now.clear()

    async def unfinished(self) -> AsyncIterator[Address]:
        """Every key that has no result yet, whoever owns it."""
        after: str | None = ""
        while after is not None:
            page = await self.store.list(Query(states=(State.IN_PROGRESS, State.HELD), after=after, limit=500))
            for record in page.records:
                yield record.address
            for _, why in page.unreadable:
                log.warning("%s", why)
            after = page.after


def _weight(nonce: str, address: Address) -> bytes:
    return hashlib.blake2b(f"{nonce}/{address.realm}/{address.key_hash}".encode(), digest_size=8).digest()
