"""The controller's queue of keys, and the permits that limit new generations.

`WorkQueue` holds at most one entry per key and gives each key to at most one worker at a time. Due keys come in the order in which they
became due. A key that fails backs off by itself, so that one bad record never stalls the others. A key added while a worker holds it is
*dirty*: it is queued once more when that worker is done, however often it was added. Of several due times for one key the earliest wins
and the others are dropped, which suits level-triggered work: it reads the current state and then names the next time itself.

Nothing is durable here: the sweep fills an empty queue after a restart. So `close` does not drain the queue: another process takes over
what this one did not begin. asyncio.PriorityQueue was rejected: it neither deduplicates keys nor tracks those in work.

`Permits` limit new generations only, never takeovers: a generation that was begun must be able to end. Source: docs/design.md, sections 5
and 6; the rules of dirty and processing are those of client-go's util/workqueue. One event loop, no threads.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from sparkonce.attempt.drive import until_set

K = TypeVar("K", bound=Hashable)

SHARE = 4
"""One busy realm leaves a fifth of the permits free, and a second one a fifth of those."""


class Closed(Exception):
    """The queue was closed: the worker ends."""


class WorkQueue(Generic[K]):
    """See the module. Each worker calls `key = await get()`, works, calls `forget(key)` or `retry(key)`, and always `done(key)`."""

    def __init__(
        self,
        *,
        retry_initial: float = 0.5,
        retry_max: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[asyncio.Event, float | None], Awaitable[None]] = until_set,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`retry_initial`, `retry_max`: seconds of the first and the longest backoff. `wait` sleeps by `clock`, which is monotonic."""
        self._retry_initial, self._retry_max = retry_initial, retry_max
        self._clock, self._wait, self._chance = clock, wait, chance
        self._dirty: dict[K, tuple[float, int]] = {}  # when it is due, and a tie-breaker
        self._heap: list[
            tuple[float, int, K]
        ] = []  # dirty keys that no worker holds; an entry that differs from _dirty is stale
        self._processing: dict[K, float] = {}  # since when
        self._failures: dict[K, int] = {}
        self._places = itertools.count()
        self._changed, self._closed = asyncio.Event(), False

    def add(self, key: K) -> None:
        """Adds a key, due now."""
        self.add_after(key, 0.0)

    def add_after(self, key: K, seconds: float) -> None:
        """Adds a key, due in so many seconds, unless it is queued for an earlier time."""
        due = self._clock() + max(0.0, seconds)
        if key in self._dirty and self._dirty[key][0] <= due:
            return
        self._dirty[key] = (due, next(self._places))
        if key not in self._processing:
            self._push(key)

    async def get(self) -> K:
        """Waits for the key that has been due longest; the caller holds it until `done`. Raises: Closed."""
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
        """Releases the key; a dirty one is queued behind the keys that are due. Raises: ValueError: no worker holds it."""
        if self._processing.pop(key, None) is None:
            raise ValueError(f"{key} is not held; `done` is called once for each `get`")
        if key in self._dirty:
            self._dirty[key] = (max(self._dirty[key][0], self._clock()), next(self._places))
            self._push(key)

    def retry(self, key: K) -> float:
        """Adds the key again after an exponential backoff, capped, with up to 50 % jitter so that keys which failed together are spread.
        Returns the seconds."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        exponent = min(failures - 1, 60)  # every cap is reached before 2**60
        longest = min(self._retry_initial * 2.0**exponent, self._retry_max)
        seconds = longest * (1.0 - 0.5 * self._chance())
        self.add_after(key, seconds)
        return seconds

    def forget(self, key: K) -> None:
        """Resets the key's backoff; does not touch the queue."""
        self._failures.pop(key, None)

    def close(self) -> None:
        """Makes every `get` raise Closed, now and later; workers may finish the keys they hold."""
        self._closed = True
        self._changed.set()

    def __len__(self) -> int:
        """Number of queued keys, due or not, without those that a worker holds."""
        return sum(key not in self._processing for key in self._dirty)

    @property
    def oldest_wait(self) -> float:
        """Seconds that the first due key has waited; large if there are too few workers, or none alive."""
        head = self._head()
        return 0.0 if head is None else max(0.0, self._clock() - head[0])

    @property
    def oldest_work(self) -> float:
        """Seconds that a worker has held a key; large if one hangs."""
        return max((self._clock() - since for since in self._processing.values()), default=0.0)

    def _push(self, key: K) -> None:
        if len(self._heap) > 2 * len(self._dirty) + 64:  # most entries are stale: of keys that were due later at first
            self._forget_stale()
        heapq.heappush(self._heap, (*self._dirty[key], key))  # the tie-breakers differ, so keys are never compared
        self._changed.set()

    def _forget_stale(self) -> None:
        self._heap = [each for each in self._heap if self._dirty.get(each[2]) == each[:2]]
        heapq.heapify(self._heap)

    def _head(self) -> tuple[float, int, K] | None:
        while self._heap and self._dirty.get(self._heap[0][2]) != self._heap[0][:2]:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None


class Permits:
    """Limits the unfinished new generations of this process. Never blocks: a caller without a permit tries again later.

    Where several realms share the process, none takes the last permits: a realm gets its first permit whenever one is free, and another one
    only while its own, with that one, are at most `SHARE` times those that stay free. So jobs without an end, however many one realm has,
    leave room for the new jobs of others (a dynamic threshold, as switches use for shared buffers). Equal parts were rejected: they would
    leave most permits unused while few realms have work.
    """

    def __init__(self, limit: int, *, shared: bool = False) -> None:
        """`shared`: realms of several namespaces may ask."""
        self.limit, self.shared = limit, shared
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        return self._taken.total()

    @property
    def open(self) -> int:
        """Permits still free for the realm that holds the most; 0: its new generations wait."""
        free, most = self.limit - self.taken, max(self._taken.values(), default=0)
        return max(0, (SHARE * free - most) // (SHARE + 1)) if self.shared and most else free

    def try_take(self, realm: str) -> bool:
        left = self.limit - self.taken - 1
        own = self._taken[realm]
        if left < 0 or (self.shared and own and own + 1 > SHARE * left):
            return False
        self._taken[realm] = own + 1
        return True

    def release(self, realm: str) -> None:
        """Returns a permit. Raises: ValueError: the realm has none; a permit returned twice would admit one key too many."""
        if self._taken[realm] == 0:
            raise ValueError("no permit is taken; call `release` once for each `try_take` that returned True")
        self._taken[realm] -= 1
        if not self._taken[realm]:
            del self._taken[realm]  # realms come and go
