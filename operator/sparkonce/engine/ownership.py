"""The one lease of an operator process, and whether this process may act right now.

The lease itself is kept alive by the store's client, where no job can starve it. Here stands what the process concludes from it: up to
the lease's local deadline (when the last answered keepalive was *sent*, plus the TTL, minus a margin) it may act; past it the process
must act as if everything it owned had been taken over, whatever the store would say if it could be asked. It then fail-stops: `on_lost`
drops every drive, the old lease is revoked in the background so that successors need not wait for a server that counts anew after a
restart, and another lease is opened.

`guard` is called before each step that has an effect, with room for that step's own timeout. It makes nothing safe: a process may freeze
right after it. What is safe is decided by the compare in each write. Source: DESIGN section 5.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from sparkonce.errors import SparkonceError, StoreUnavailable
from sparkonce.store.protocol import IdempotencyStore, Lease

LOOK = 0.1
"""Seconds between two looks at the deadline."""
OPEN_AGAIN = 0.5
"""Seconds between two tries to open a lease; the store's own timeout comes on top."""


class NotOwner(SparkonceError):
    """This process holds no lease that surely lives: it must not act. Nothing was done."""


class Ownership:
    def __init__(
        self,
        store: IdempotencyStore,
        *,
        owner: str,
        on_lost: Callable[[], None],
        on_held: Callable[[], None] = lambda: None,
        margin: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`margin`: seconds before the lease's end at which this process stops to act, for clocks that run apart."""
        self._store, self._owner, self._on_lost = store, owner, on_lost
        self._on_held = on_held
        self._margin, self._clock, self._sleep = margin, clock, sleep
        self._lease: Lease | None = None
        self._held = asyncio.Event()
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def lease(self) -> Lease:
        """NotOwner when none surely lives."""
        self.guard()
        assert self._lease is not None  # guard says so
        return self._lease

    def alive(self, room: float = 0.0) -> bool:
        """Whether the lease surely lives for so many seconds more."""
        return self._lease is not None and self._clock() + room < self._lease.deadline - self._margin

    def guard(self, room: float = 0.0) -> None:
        if not self.alive(room):
            raise NotOwner("this process has no lease on the store that surely lives; it acts again when it has one")

    @property
    def left(self) -> float:
        """Seconds until this process must stop to act; below 0 when it must not now."""
        return -1.0 if self._lease is None else self._lease.deadline - self._margin - self._clock()

    async def held(self) -> None:
        """Returns when a lease is held."""
        await self._held.wait()

    async def keep(self) -> None:
        """Opens a lease, watches it, opens another one when it ended; until cancelled."""
        while True:
            try:
                self._lease = await self._store.open_lease(owner=self._owner)
            except StoreUnavailable:
                await self._sleep(OPEN_AGAIN)
                continue
            self._held.set()
            self._on_held()
            while self.alive():
                await self._sleep(LOOK)
            self._fail_stop()

    def _fail_stop(self) -> None:
        lease, self._lease = self._lease, None
        self._held.clear()
        self._on_lost()
        if lease is not None:
            task = asyncio.create_task(_revoke(lease))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def revoke(self) -> None:
        """The last thing a graceful stop does: successors take over at once. `keep` must have been cancelled."""
        lease, self._lease = self._lease, None
        self._held.clear()
        if lease is not None:
            await _revoke(lease)


async def _revoke(lease: Lease) -> None:
    with contextlib.suppress(StoreUnavailable):  # then it ends by itself
        await lease.revoke()
