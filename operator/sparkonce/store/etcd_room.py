"""Whether there is room for a new key: the ceiling of live keys per realm, and etcd's quota. Only `reserve` asks.

Both are counts of some seconds ago plus what this process added since; they may overshoot by requests in flight, and cost nothing while
there is room. Counting inside the reserve's transaction was not taken: etcd cannot compare a count, so it would guard nothing. At
80 % of the quota new keys are refused so that what was begun can always be finalized.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from sparkonce.errors import QuotaUsed
from sparkonce.etcd.errors import EtcdRefused
from sparkonce.etcd.kv import Range, prefix_end
from sparkonce.model.record import Address
from sparkonce.store.etcd_step import Connection
from sparkonce.store.rules import RETRY_AFTER

T = TypeVar("T")

SHARE = 0.8
"""Of the quota; the rest is for finalizing what was begun, and for etcd's own revisions until they are compacted."""
SIZE_KEPT = 5.0
"""Seconds a size of the database is believed."""
FAR_KEPT, NEAR_KEPT = 10.0, 1.0
"""Seconds a count is believed, while more than a fifth of the ceiling is free, and when less is."""
PAGE = 1000
"""Entries of the expiry index per request: small keys and values."""


@dataclass
class _Count:
    live: int
    """At most so many; exact where the ceiling is near."""
    at: float
    """Of the monotonic clock."""
    expiry: float | None
    """Unix seconds of the next one, where the ceiling is reached."""
    own: bool = False
    """This process has added to it since."""


class Room:
    def __init__(
        self,
        connection: Connection,
        *,
        max_live_keys: int,
        quota: int,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        """`quota`: bytes, as etcd was started with."""
        self._connection, self._layout = connection, connection.layout
        self._limit, self._quota = max_live_keys, quota
        self._clock, self._monotonic = clock, monotonic
        self._counts: dict[str, _Count] = {}
        self._size: tuple[int, float] | None = None
        self._asking: dict[str, asyncio.Task[Any]] = {}

    async def full(self, realm: str) -> float | None:
        """None while there is room, else the seconds until a key of the realm expires. StoreUnavailable."""
        count = self._counts.get(realm)
        if count is None or self._stale(count):
            count = self._counts[realm] = await self._once(f"count {realm}", lambda: self._count(realm))
        if count.live < self._limit:
            return None
        return RETRY_AFTER if count.expiry is None else max(0.0, count.expiry - self._clock())

    def _stale(self, count: _Count) -> bool:
        near, full = count.live >= SHARE * self._limit, count.live >= self._limit
        if full and (count.own or (count.expiry is not None and count.expiry <= self._clock())):
            return True  # nobody is refused on our own reckoning, or after a key has expired
        return self._monotonic() - count.at > (NEAR_KEPT if near else FAR_KEPT)

    def used(self) -> dict[str, float]:
        """How much is used, as parts of 1 and as far as it is known: `store_quota_ratio`, and `live_keys_ratio` of the fullest realm.

        Nobody is asked."""
        known: dict[str, float] = {}
        if self._size is not None:
            known["store_quota_ratio"] = self._size[0] / self._quota
        if self._counts:
            known["live_keys_ratio"] = max(count.live for count in self._counts.values()) / self._limit
        return known

    def took(self, realm: str) -> None:
        if (count := self._counts.get(realm)) is not None:
            count.live += 1
            count.own = True

    def moved(self, realm: str) -> None:
        """A key of the realm ended: a count that says full is not true any more."""
        count = self._counts.get(realm)
        if count is not None and count.live >= self._limit:
            del self._counts[realm]

    async def _count(self, realm: str) -> _Count:
        now, expiry = self._clock(), None
        at, live = self._monotonic(), await self.records(realm)
        if live >= self._limit:
            live -= await self.expired(realm, now)
        if live >= self._limit:
            expiry = await self._next_expiry(realm, now)
        return _Count(live, at, expiry)

    async def records(self, realm: str | None) -> int:
        """Expired ones included."""
        prefix = self._layout.records(realm)
        return (await self._connection.range(Range(prefix, prefix_end(prefix), count_only=True))).count

    async def expired(self, realm: str | None, now: float) -> int:
        layout = self._layout
        entries = self._entries(layout.expiries(), prefix_end(layout.expiries_before(now)))
        return sum([at <= now async for address, at in entries if realm in (None, address.realm)])

    async def _next_expiry(self, realm: str, now: float) -> float | None:
        """Of the first minute that has one of the realm; entries of one minute are in the order of their keys."""
        layout = self._layout
        start, first = layout.expiries_before(now), None
        async for address, at in self._entries(start, prefix_end(layout.expiries())):
            if first is not None and at >= first + 60.0:
                break
            if address.realm == realm and at > now:
                first = at if first is None else min(first, at)
        return first

    async def _entries(self, start: bytes, end: bytes) -> AsyncIterator[tuple[Address, float]]:
        while True:
            page = await self._connection.range(Range(start, end, limit=PAGE))
            for kv in page.kvs:
                yield self._layout.address_of(kv.key), float(kv.value)
            if not page.more:
                return
            start = page.kvs[-1].key + b"\0"

    async def near_quota(self) -> QuotaUsed | None:
        """What a new key is answered with while etcd is near its quota. StoreUnavailable."""
        if self._size is None or self._monotonic() - self._size[1] > SIZE_KEPT:
            self._size = await self._once("size", self._db_size), self._monotonic()
        if self._size[0] < SHARE * self._quota:
            return None
        return quota_used(f"etcd holds {self._size[0] >> 20} MiB of its quota of {self._quota >> 20} MiB")

    async def _once(self, what: str, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """One request for all who want to know at the same time; while etcd is down they fail together, not one after the other."""
        task = self._asking.get(what)
        if task is None:
            task = self._asking[what] = asyncio.create_task(ask())
            task.add_done_callback(lambda done: self._answered(what, done))
        return cast(T, await asyncio.shield(task))

    def _answered(self, what: str, done: asyncio.Task[Any]) -> None:
        del self._asking[what]
        if not done.cancelled():
            done.exception()  # whoever waited has it; nobody may be left

    async def _db_size(self) -> int:
        try:
            return (await self._connection.ask(lambda client: client.status())).db_size
        except EtcdRefused:
            return 0  # a user who may not ask how large it is still learns from etcd when it is full


def quota_used(what: str) -> QuotaUsed:
    return QuotaUsed(
        f"{what}: no new key is taken, so that running jobs can be finalized; compact and defragment etcd, or raise its quota",
        retry_after=RETRY_AFTER,
    )
