"""The controller of one operator process: a queue of keys, the workers that reconcile them, the lease, and what enqueues keys.

Any number of controllers run beside each other on one store, without a leader. Each watches every object and every claim that ends. A
rendezvous hash gives one of them a head start of some tens of milliseconds per key, which saves work and is never needed for correctness:
the second one loses a compare-and-set and finds nothing left to do. All state can be read again: a periodic sweep enqueues every key, so a
lost wake-up, a restart or a defect in a watch costs one period at most.

On SIGTERM it hands over: takes no new keys, releases its drives (their applications run on), and revokes its lease last.
Sources: docs/design.md, sections 4, 5 and 7; level-triggered keys in one queue are client-go's controller pattern.
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
from sparkonce.attempt.drive import until_set
from sparkonce.controller.lease_guard import LeaseGuard
from sparkonce.controller.rewind_guard import OUTSIDE
from sparkonce.controller.status import STATUS_VERSION
from sparkonce.controller.workqueue import Closed, WorkQueue
from sparkonce.errors import SparkonceError, StoreUnavailable
from sparkonce.model.record import SCHEMA, Address, State
from sparkonce.store.protocol import IdempotencyStore, KeyChange, Query
from sparkonce.store.roster import Replica as Announced
from sparkonce.store.roster import Roster

log = logging.getLogger(__name__)

REPORT_GRACE = 1.0
"""Seconds that the process which ended a generation has to write its objects' statuses before another process does."""


@dataclass(frozen=True, kw_only=True)
class ControllerSettings:
    """Seconds and counts; none of them affects safety."""

    slots: int = 200
    """New keys that this process may have unfinished at once: each is a drive and an application with a driver pod."""
    workers: int = 16
    """Keys reconciled concurrently; most of that time is spent waiting for answers."""
    head_start: float = 0.03
    """Seconds between two controllers in the rendezvous order: longer than a transaction, too short for a user to notice."""
    sweep: float = 120.0
    """Seconds between two sweeps: how late a change is found that no watch reported."""
    announce: float = 3.0
    """Seconds between two entries in the roster: a controller that left delays the others by its head start for that long."""
    margin: float = 1.0
    """Seconds before the lease's end at which this process stops acting."""
    drain: float = 5.0
    """Seconds for which a graceful stop waits for writes under way."""


class KeyReconciler(Protocol):
    """What the controller calls for each key and each event; implemented in `reconcile`."""

    async def reconcile(self, address: Address) -> float | None:
        """Reconciles one key. Returns the seconds after which to reconcile it again, or None. Raises: anything; the key is retried with
        backoff."""
        ...

    def lease_lost(self) -> None:
        """Drops every drive."""
        ...

    def unreported(self, address: Address, revision: int) -> bool:
        """Whether some object of this key does not yet show the record as of this revision."""
        ...

    def claim_ended(self, address: Address) -> None:
        """The store's watch reported that the key lost its claim."""
        ...

    def record_changed(self, address: Address, revision: int) -> bool:
        """The store's watch reported that the record changed. False: this process does not drive the key."""
        ...

    @property
    def alarmed(self) -> bool:
        """Whether the rewind alarm is raised: nothing is written then, so that the restored store does not seem to have caught up."""
        ...

    async def see_objects(self) -> None:
        """Called when a sweep got no answer from the store: reads all objects, unless they are known."""
        ...

    async def swept(self) -> None:
        """Called once per sweep, after every key was enqueued."""
        ...

    async def drain(self) -> None:
        """Graceful stop: release every drive and return when the writes under way have ended."""
        ...


class Controller:
    """See the module."""

    def __init__(
        self,
        store: IdempotencyStore,
        roster: Roster,
        *,
        owner: str,
        known: Callable[[], Sequence[Address]],
        waiting: Callable[[], Sequence[Address]],
        settings: ControllerSettings,
    ) -> None:
        """`known` returns the addresses of all objects in this process's cache; `waiting` of those whose status shows no end yet."""
        self.store, self.roster, self.owner, self.settings = store, roster, owner, settings
        self.nonce = uuid.uuid4().hex
        self.queue: WorkQueue[Address] = WorkQueue(retry_initial=0.2, retry_max=30.0)
        self.lease_guard = LeaseGuard(
            store, owner=owner, on_lost=self._lost, on_held=self.sweep_soon, margin=settings.margin
        )
        self.reconciler: KeyReconciler | None = None
        self.members: tuple[str, ...] = (self.nonce,)
        self.statuses: int | None = None
        """The highest version of statuses that every live operator process writes; None: the roster has not been read yet."""
        self._known, self._waiting = known, waiting
        self._sweep_now = asyncio.Event()
        self._stopping = False

    # --- what wakes keys

    def enqueue(self, address: Address, *, at_once: bool = False) -> None:
        """Enqueues a key; unless `at_once`, delayed by this controller's rank."""
        if not self._stopping:
            self.queue.add_after(address, 0.0 if at_once else self.rank(address) * self.settings.head_start)

    def rank(self, address: Address) -> int:
        """How many controllers precede this one for this key, by rendezvous hashing (highest random weight)."""
        mine = _weight(self.nonce, address)
        return sum(_weight(other, address) > mine for other in self.members if other != self.nonce)

    def sweep_soon(self) -> None:
        """Starts the next sweep now."""
        self._sweep_now.set()

    def _lost(self) -> None:
        if self.reconciler is not None:
            self.reconciler.lease_lost()
        self.sweep_soon()

    # --- life

    async def run(self, reconciler: KeyReconciler) -> None:
        """Runs every loop until cancelled; call `hand_over` then."""
        self.reconciler = reconciler
        loops: list[Coroutine[Any, Any, None]] = [
            self.lease_guard.keep(),
            self._forever("the watch of the store", self._follow_store),
            self._forever("the roster", self._announce),
            self._forever("the sweep", self._sweep),
            *(self._work(reconciler) for _ in range(self.settings.workers)),
        ]
        async with asyncio.TaskGroup() as group:
            for loop in loops:
                group.create_task(loop)

    async def hand_over(self) -> None:
        """Graceful stop, after `run` was cancelled: releases the drives and revokes the lease, so that other processes take over at once.
        Applications run on."""
        self._stopping = True
        self.queue.close()
        if self.reconciler is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.drain):
                    await self.reconciler.drain()
        failpoints.hit("replica.hand-over.before")
        await self.lease_guard.revoke()

    async def _forever(self, what: str, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs a loop until cancelled; an error is logged and the loop restarted."""
        pause = 0.2
        while True:
            begun = time.monotonic()
            try:
                await loop()
            except SparkonceError as problem:
                log.warning("%s: %s; going on", what, problem)
            except Exception:
                log.exception("%s ended; it is restarted", what)
            pause = 0.2 if time.monotonic() - begun > 10.0 else min(2 * pause, 5.0)
            await asyncio.sleep(pause)

    async def _work(self, reconciler: KeyReconciler) -> None:
        with contextlib.suppress(Closed):
            while True:
                address = await self.queue.get()
                try:
                    again = await reconciler.reconcile(address)
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
        self.sweep_soon()  # changes before `since` were not watched
        async for change in self.store.watch(since):
            self._changed(change)

    def _changed(self, change: KeyChange) -> None:
        if change.gap or change.address is None:
            self.sweep_soon()
            return
        assert self.reconciler is not None  # run() sets it before the watch starts
        driven = self.reconciler.record_changed(change.address, change.revision)
        if change.unowned and not driven:
            self.reconciler.claim_ended(change.address)
            self.enqueue(change.address)
        elif change.ended and not driven:
            asyncio.get_running_loop().call_later(REPORT_GRACE, self._check_reported, change.address, change.revision)

    def _check_reported(self, address: Address, revision: int) -> None:
        """Enqueues an ended key whose objects do not show it: a command cannot write statuses, and an operator may die before it does."""
        if self.reconciler is not None and self.reconciler.unreported(address, revision):
            self.enqueue(address)

    async def _announce(self) -> None:
        while True:
            await self.lease_guard.held()
            alarmed = self.reconciler is not None and self.reconciler.alarmed
            me = Announced(
                nonce=self.nonce,
                owner=self.owner,
                clock=time.time(),
                schema=SCHEMA,
                slots=self.settings.slots,
                statuses=STATUS_VERSION,
            )
            with contextlib.suppress(StoreUnavailable):
                if not alarmed:
                    await self.roster.announce(me, lease=self.lease_guard.lease)
                self._update_members(await self.roster.replicas())
            await asyncio.sleep(self.settings.announce)

    def _update_members(self, live: Sequence[Announced]) -> None:
        """Updates the members. One that left may have ended a key without writing its statuses; no claim was left whose end would
        enqueue it, so all waiting keys are enqueued. Once the last process left that writes older statuses, all of them are completed."""
        others = {other.nonce for other in live}
        left = set(self.members) - others - {self.nonce}
        self.members = tuple(sorted({self.nonce, *others}))
        before, self.statuses = self.statuses, min([STATUS_VERSION, *(other.statuses for other in live)])
        if before is not None and before < self.statuses:
            self.sweep_soon()
        for address in self._waiting() if left else ():
            self.enqueue(address)

    async def _sweep(self) -> None:
        while True:
            for address in self._known():
                self.enqueue(address)
            assert self.reconciler is not None
            try:
                async for address in self.unfinished():
                    self.enqueue(address)
            except StoreUnavailable:
                await self.reconciler.see_objects()  # their first statuses say why they wait
                raise
            await self.reconciler.swept()
            await until_set(self._sweep_now, self.settings.sweep * random.uniform(0.9, 1.1))  # noqa: S311 - jitter
            self._sweep_now.clear()

    async def unfinished(self) -> AsyncIterator[Address]:
        """The address of every record in progress or held, with or without an owner."""
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
