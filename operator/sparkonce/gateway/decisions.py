"""What a person decides about a key, carried out off the event loop: the same verbs as the command line's, on a ledger of a cluster.

Looking at outputs blocks, for as long as their store takes, and so do these verbs; each therefore runs on a thread of its own with
a connection to the ledger that suits it, and heartbeats of drivers go on meanwhile. Few run at once: whoever comes then is told to come
back, which is better than to wait behind an output that does not answer.

A caller that goes away changes nothing: what was begun is carried out, and the same request again finds it done, or says what stands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sparkonce.engine.elsewhere import Elsewhere
from sparkonce.engine.embedded import NOWHERE, Embedded
from sparkonce.gateway.problem import Problem
from sparkonce.store.protocol import IdempotencyStore

T = TypeVar("T")

AT_ONCE = 4
"""Decisions and explanations: each may hold a thread for as long as an output takes to answer."""
LONGEST = 60.0
"""Seconds after which the caller is told to look again; what was begun goes on."""


class Signed(Embedded):
    """Acts in somebody's name: the history, and the claim while it lasts, say whose."""

    by = ""

    @property
    def owner(self) -> str:
        return self.by or super().owner


class Decisions:
    def __init__(self, open_ledger: Callable[[], IdempotencyStore], *, install: str) -> None:
        """`open_ledger`: a store whose verbs block (`store.open.open_blocking`), opened when first used."""
        self._open, self._install = open_ledger, install
        self._store: IdempotencyStore | None = None
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="sparkonce-decisions")
        self._busy = 0

    async def carry_out(self, work: Callable[[Embedded], Awaitable[T]], *, by: str = "") -> T:
        """`by`: who decides. Problem 503: too many of them run, or this one takes too long. Raises what `work` raises."""
        if self._busy >= AT_ONCE:
            raise Problem(503, f"{AT_ONCE} decisions are being carried out here now; send it again", retry_after=5)
        self._busy += 1
        done = asyncio.get_running_loop().run_in_executor(self._threads, self._run, work, by)
        done.add_done_callback(self._left)
        try:
            async with asyncio.timeout(LONGEST):
                return await asyncio.shield(done)
        except TimeoutError:
            raise Problem(503, f"it has not ended within {LONGEST:g} s and goes on; look at the key again") from None

    def _left(self, _: object) -> None:
        self._busy -= 1

    def _run(self, work: Callable[[Embedded], Awaitable[T]], by: str) -> T:
        if self._store is None:
            self._store = self._open()
        embedded = Signed(store=self._store, attempts=NOWHERE, install=self._install, launcher=Elsewhere(), remote=True)
        embedded.by = by

        async def carried_out() -> T:
            return await work(embedded)

        return asyncio.run(carried_out())

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._store is not None:
            await self._store.close()
