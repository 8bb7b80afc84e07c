"""Readiness of the gateway: the ledger answers, the API server answers, and the gateway has the rights it needs there.

A gateway that is not ready must not be counted as serving: drivers that it cannot answer would count as silent. A request of a
driver answered with 503 counts at once (`unanswered`); everything else is checked every few seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from sparkonce.controller.rewind_guard import OUTSIDE
from sparkonce.errors import SparkonceError
from sparkonce.store.protocol import IdempotencyStore

PERIOD = 2.0
RIGHTS = 30.0
"""Seconds between checks of the ledger, and of the gateway's own rights at the API server."""
LATE = 15.0
"""Seconds without a completed check after which this process is not ready. Longer than the deadlines of the calls of one check."""


class Readiness:
    """Checks the gateway's dependencies periodically and keeps the last result."""

    def __init__(
        self,
        store: IdempotencyStore,
        missing: Callable[[], Awaitable[str | None]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`missing`: returns a sentence about a right that the gateway lacks, or None."""
        self._store, self._missing, self._clock = store, missing, clock
        self._why: str | None = "the ledger and the API server have not been asked yet"
        self._looked: float | None = None
        self._rights = -RIGHTS
        self.ending = False
        self.unanswered = 0
        """Number of driver requests answered with 503."""

    def driver_unanswered(self) -> None:
        self.unanswered += 1

    def why_not(self) -> str | None:
        """The reason for not being ready; None if ready."""
        if self.ending:
            return "this process is shutting down"
        if self._looked is not None and self._clock() - self._looked > LATE:
            return f"the ledger and the API server have not answered for {LATE:g} s"
        return self._why

    async def run(self) -> None:
        """Checks periodically until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(PERIOD)

    async def look(self) -> None:
        """Checks once; an error becomes the reason for not being ready."""
        try:
            await self._store.load(OUTSIDE)
            if self._why is not None or self._clock() - self._rights >= RIGHTS:
                self._why = await self._missing()
                self._rights = self._clock()
        except SparkonceError as problem:
            self._why = str(problem)
        self._looked = self._clock()
