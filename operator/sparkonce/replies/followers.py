"""Repetitions that wait for another request's answer: one look at the ledger for all of a key, however many wait.

A waiter holds a future and no thread. The ledger is read at a growing interval, at once when this process finalizes the key itself, and
when the claim is due to end. A waiter that leaves costs nothing more; the last one ends the reading.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from sparkonce.errors import SparkonceError
from sparkonce.replies.protocol import KeyStanding, ReplyLedger

FIRST_LOOK = 0.05
"""Seconds: about as long as a short request takes."""
LAST_LOOK = 1.0
"""Seconds between looks at a request that takes long: what a waiter may be late by."""


@dataclass
class _WatchedKey:
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0
    looking: asyncio.Task[None] | None = None


class Followers:
    """Belongs to one event loop. `most`: waiters of one key."""

    def __init__(self, ledger: ReplyLedger, *, most: int) -> None:
        self._ledger, self._most = ledger, most
        self._watched: dict[str, _WatchedKey] = {}

    def settled(self, key: str) -> None:
        """This process wrote the key: its waiters look again."""
        if (watched := self._watched.pop(key, None)) is not None:
            watched.changed.set()

    def wake(self) -> None:
        """All waiters look again."""
        for key in list(self._watched):
            self.settled(key)

    async def wait(self, key: str, seconds: float) -> bool:
        """Until the key no longer has a living claim, or `seconds` are over. False: too many wait for it already."""
        watched = self._watched.setdefault(key, _WatchedKey())
        if watched.waiting >= self._most:
            return False
        watched.waiting += 1
        if watched.looking is None:
            watched.looking = asyncio.create_task(self._look(key, watched))
        try:
            async with asyncio.timeout(seconds):
                await watched.changed.wait()
        except TimeoutError:
            pass
        finally:
            watched.waiting -= 1
            if not watched.waiting:
                watched.looking.cancel()
                if self._watched.get(key) is watched:
                    del self._watched[key]
        return True

    async def _look(self, key: str, watched: _WatchedKey) -> None:
        pause = FIRST_LOOK
        while True:
            await asyncio.sleep(pause * random.uniform(0.75, 1.25))  # noqa: S311 - spreads reads, hides nothing
            try:
                found = await self._ledger.look(key)
            except SparkonceError:
                pause = LAST_LOOK  # waiters find out for themselves when their time is over
                continue
            if found is None or found.standing is not KeyStanding.RUNNING:
                break
            pause = min(2 * pause, LAST_LOOK, max(FIRST_LOOK, found.left))
        watched.changed.set()
        if self._watched.get(key) is watched:
            del self._watched[key]
