"""Which key to look at next, and how many new ones may begin.

`WorkQueue` has at most one entry per key and gives each key to at most one worker at a time. Keys that are due come in the order in
which they became due; a key that fails waits, alone, for longer and longer, so one bad record never stalls the others. A key that is
added while a worker holds it is *dirty*: it is queued once more when that worker is done, however often it was added. Of several wishes
for one key the earliest wins and the later ones are forgotten, which is right for work that reads what stands there now and then says
itself when it wants to look again.

It keeps nothing: the truth is in the store, and the sweep fills an empty queue after a restart. So nothing is drained on `close`: another
process takes over at once what this one did not begin. asyncio.PriorityQueue was not taken: it knows neither keys nor what is in work.

`Slots` limit new reserves only, never takeovers: what was begun must be able to end. Source: DESIGN sections 5 and 6; the rules of dirty
and processing are those of client-go's util/workqueue. One event loop, no threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Closed(Exception):
    """The queue was closed: the worker ends."""


async def until_set(event: asyncio.Event, seconds: float | None) -> None:
    """Or so long. Not by `asyncio.wait_for`, which before Python 3.12 forgets that it was cancelled when the event is set in the same
    turn of the loop: a worker then lives on, and its process never ends."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class WorkQueue(Generic[K]):
    """See the module. Every worker: `key = await get()`, work, `forget(key)` or `retry(key)`, and always `done(key)`."""

    def __init__(
        self,
        *,
        retry_initial: float = 0.5,
        retry_max: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[asyncio.Event, float | None], Awaitable[None]] = until_set,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Seconds before the first, and the longest, wait of `retry`; `wait` sleeps by `clock`, which is monotonic."""
        self._retry_initial, self._retry_max = retry_initial, retry_max
        self._clock, self._wait, self._chance = clock, wait, chance
        self._dirty: dict[K, tuple[float, int]] = {}  # when it is due, and its place among those due at the same time
        self._heap: list[tuple[float, int, K]] = []  # dirty keys nobody holds; what _dirty does not confirm is void
        self._processing: dict[K, float] = {}  # since when
        self._failures: dict[K, int] = {}
        self._places = itertools.count()
        self._changed, self._closed = asyncio.Event(), False

    def add(self, key: K) -> None:
        """Due now."""
        self.add_after(key, 0.0)

    def add_after(self, key: K, seconds: float) -> None:
        """Due in so many seconds, unless it is due earlier anyway."""
        due = self._clock() + max(0.0, seconds)
        if key in self._dirty and self._dirty[key][0] <= due:
            return
        self._dirty[key] = (due, next(self._places))
        if key not in self._processing:
            self._push(key)

    async def get(self) -> K:
        """Waits for the key that has been due longest; it is the caller's until `done`. Raises Closed."""
        while not self._closed:
            self._changed.clear()
            head, now = self._head(), self._clock()
            if head is not None and head[0] <= now:
                heapq.heappop(self._heap)
                del self._dirty[head[2]]
                self._processing[head[2]] = now
                return head[2]
            await self._wait(self._changed, None if head is None else head[0] - now)
        raise Closed

    def done(self, key: K) -> None:
        """Gives the key back; a dirty one goes to the end of those that are due. ValueError when nobody holds it."""
        if self._processing.pop(key, None) is None:
            raise ValueError(f"{key} is not held; `done` is called once for each `get`")
        if key in self._dirty:
            self._dirty[key] = (max(self._dirty[key][0], self._clock()), next(self._places))
            self._push(key)

    def retry(self, key: K) -> float:
        """Due again after a wait that doubles with each failure, is capped, and is up to half shorter by chance, so that keys which failed
        together do not come back together. Returns the seconds."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        exponent = min(failures - 1, 60)  # beyond it any cap is reached, and the float stays finite
        longest = min(self._retry_initial * 2.0**exponent, self._retry_max)
        seconds = longest * (1.0 - 0.5 * self._chance())
        self.add_after(key, seconds)
        return seconds

    def forget(self, key: K) -> None:
        """Its failures are over: the next `retry` waits as the first. Leaves the queue alone."""
        self._failures.pop(key, None)

    def close(self) -> None:
        """Every `get` raises Closed, now and later; what is held may be finished."""
        self._closed = True
        self._changed.set()

    def __len__(self) -> int:
        """Keys that wait, due or not, and are in nobody's hands."""
        return sum(key not in self._processing for key in self._dirty)

    @property
    def oldest_wait(self) -> float:
        """Seconds for which a due key has waited: too few workers, or none alive."""
        head = self._head()
        return 0.0 if head is None else max(0.0, self._clock() - head[0])

    @property
    def oldest_work(self) -> float:
        """Seconds for which a worker has held a key: one that hangs."""
        return max((self._clock() - since for since in self._processing.values()), default=0.0)

    def _push(self, key: K) -> None:
        heapq.heappush(self._heap, (*self._dirty[key], key))  # places differ, so keys are never compared
        self._changed.set()

    def _head(self) -> tuple[float, int, K] | None:
        while self._heap and self._dirty.get(self._heap[0][2]) != self._heap[0][:2]:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None


class Slots:
    """How many reserves of this process may be unfinished at once. Nobody waits here: who gets none answers "later"."""

    def __init__(self, limit: int) -> None:
        self.limit, self.taken = limit, 0

    def try_take(self) -> bool:
        free = self.taken < self.limit
        self.taken += free
        return free

    def release(self) -> None:
        """ValueError when none is taken: a slot given back twice would let one too many in."""
        if self.taken == 0:
            raise ValueError("no slot is taken; `release` is called once for each `try_take` that said yes")
        self.taken -= 1
