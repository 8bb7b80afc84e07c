"""Whether this gateway can do its work now: the ledger answers, the API server answers, and we may ask it what we must.

A gateway that cannot must not be counted as serving: drivers that get no answer from it would be taken for silent ones. What a driver
was not answered counts at once (`unanswered`), the rest is looked at every few seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from sparkonce.engine.rewinding import OUTSIDE
from sparkonce.errors import SparkonceError
from sparkonce.store.protocol import IdempotencyStore

PERIOD = 2.0
RIGHTS = 30.0
"""Seconds between two looks at the ledger, and at our own rights (which asks the API server)."""
LATE = 15.0
"""Seconds without a finished look after which this process is not ready, whatever the last one said: each call has its deadline."""


class Readiness:
    def __init__(
        self,
        store: IdempotencyStore,
        missing: Callable[[], Awaitable[str | None]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`missing`: a sentence about a right that we lack."""
        self._store, self._missing, self._clock = store, missing, clock
        self._why: str | None = "the ledger and the API server have not been asked yet"
        self._looked: float | None = None
        self._rights = -RIGHTS
        self.ending = False
        self.unanswered = 0
        """Requests of drivers that were told 503."""

    def driver_unanswered(self) -> None:
        self.unanswered += 1

    def why_not(self) -> str | None:
        """None: ready."""
        if self.ending:
            return "this process ends"
        if self._looked is not None and self._clock() - self._looked > LATE:
            return f"the ledger and the API server have not answered for {LATE:g} s"
        return self._why

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(PERIOD)

    async def look(self) -> None:
        try:
            await self._store.load(OUTSIDE)
            if self._why is not None or self._clock() - self._rights >= RIGHTS:
                self._why = await self._missing()
                self._rights = self._clock()
        except SparkonceError as problem:
            self._why = str(problem)
        self._looked = self._clock()
