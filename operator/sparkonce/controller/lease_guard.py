"""Guards the one lease of an operator process: whether this process may act right now.

The store's client keeps the lease alive, where no job can starve it. The guard allows acting up to the lease's local deadline (when the
last answered keepalive was *sent*, plus the TTL, minus a margin). Past it the process must assume that every key it owned was taken over,
whether or not the store answers. It then fail-stops: `on_lost` drops every drive, the old lease is revoked in the background (a server
that restarts would count its TTL anew, and successors would wait), and another lease is opened.

`guard` is called before each step with an effect, with room for that step's own timeout. It saves work and does not provide safety: a
process may freeze right after it. Safety comes from the compare in each write. Source: docs/design.md, section 5.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

from sparkonce.errors import SparkonceError, StoreUnavailable
from sparkonce.store.protocol import IdempotencyStore, Lease

log = logging.getLogger(__name__)

CHECK = 0.1
"""Seconds between two checks of the deadline."""
OPEN_AGAIN = 0.5
"""Seconds between two tries to open a lease, beside the store's own timeout."""


class NotOwner(SparkonceError):
    """This process holds no lease that is certain to live, so it must not act. Nothing was done."""


class LeaseGuard:
    """See the module."""

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
        """`margin`: seconds before the lease's end at which this process stops acting, since clocks drift apart."""
        self._store, self._owner, self._on_lost = store, owner, on_lost
        self._on_held = on_held
        self._margin, self._clock, self._sleep = margin, clock, sleep
        self._lease: Lease | None = None
        self._held = asyncio.Event()
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def lease(self) -> Lease:
        """The lease. Raises: NotOwner: none is certain to live."""
        self.guard()
        assert self._lease is not None  # guard raises without one
        return self._lease

    def alive(self, room: float = 0.0) -> bool:
        """Whether the lease is certain to live for `room` more seconds."""
        return self._lease is not None and self._clock() + room < self._lease.deadline - self._margin

    def guard(self, room: float = 0.0) -> None:
        """Checks that this process may act. Raises: NotOwner: the lease may end within `room` seconds."""
        if not self.alive(room):
            raise NotOwner(
                "this process has no lease on the store that is certain to live; it acts again when it has one"
            )

    @property
    def left(self) -> float:
        """Seconds until this process must stop acting; negative: it must not act."""
        return -1.0 if self._lease is None else self._lease.deadline - self._margin - self._clock()

    async def held(self) -> None:
        """Waits until a lease is held."""
        await self._held.wait()

    async def keep(self) -> None:
        """Keeps a lease open until cancelled: opens another whenever one ended. A store that refuses, perhaps while its credentials are
        renewed, is asked again too; each reason is logged once."""
        refused = ""
        while True:
            try:
                self._lease = await self._store.open_lease(owner=self._owner)
            except SparkonceError as problem:
                if not isinstance(problem, StoreUnavailable) and str(problem) != refused:
                    refused = str(problem)
                    log.warning("no lease is opened, so no key is driven: %s; trying again", problem)
                await self._sleep(OPEN_AGAIN)
                continue
            refused = ""
            self._held.set()
            self._on_held()
            while self.alive():
                await self._sleep(CHECK)
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
        """Revokes the lease as the last step of a graceful stop, so that successors take over at once. Cancel `keep` first."""
        lease, self._lease = self._lease, None
        self._held.clear()
        if lease is not None:
            await _revoke(lease)


async def _revoke(lease: Lease) -> None:
    with contextlib.suppress(SparkonceError):  # it then expires
        await lease.revoke()
