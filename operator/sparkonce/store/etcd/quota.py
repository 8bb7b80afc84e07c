"""Admission of new keys and reports: the limits of live keys and of reports per realm, and etcd's backend quota. Used by `reserve` and
`report`.

All checks use values that are some seconds old; the number of keys includes those that this process has added since. Requests in flight
may exceed the limits, and while there is room most reserves cost no extra request. Counting inside reserve's transaction would not enforce
the limit, because etcd cannot compare a count. At 80 % of the quota new keys are refused, so that running ones can always be finalized.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from sparkonce.errors import QuotaUsed
from sparkonce.etcd.client import Client
from sparkonce.etcd.errors import EtcdRefused
from sparkonce.etcd.kv import KeyValue, MemberStatus, Range, prefix_end
from sparkonce.model.record import Address, ReportedSoFar
from sparkonce.store.etcd.transaction import EtcdConnection
from sparkonce.store.ledger import fullest
from sparkonce.store.rules import RETRY_AFTER

T = TypeVar("T")

SHARE = 0.8
"""Fraction of the quota for new keys; the rest is for finalizing running ones, and for revisions until they are compacted."""
FINALIZED = "running jobs can be finalized"
SIZE_KEPT = 5.0
"""Seconds for which the database size is cached."""
FAR_KEPT, NEAR_KEPT = 10.0, 1.0
"""Seconds for which a count is cached: while more than a fifth of the limit is free, and when less is."""
REPORTS_KEPT, REPORTS_NEAR_KEPT = 60.0, 5.0
"""The same for the bytes of a realm's reports, whose count reads one small entry per attempt. This process's own are added meanwhile."""
PAGE = 1000
"""Entries of the expiry index per request; keys and values are small."""


class SharedRequests:
    """Requests that concurrent callers share; while etcd is down they fail together, not one after the other."""

    def __init__(self) -> None:
        self._asking: dict[str, asyncio.Task[Any]] = {}

    async def once(self, what: str, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The answer to the request of this name that is under way, or else to a new one."""
        if (task := self._asking.get(what)) is None:
            task = self._asking[what] = asyncio.create_task(ask())
            task.add_done_callback(partial(self._answered, what))
        return cast(T, await asyncio.shield(task))

    def _answered(self, what: str, done: asyncio.Task[Any]) -> None:
        del self._asking[what]
        if not done.cancelled():
            done.exception()  # marks it as retrieved: every caller may have been cancelled


class BackendSize:
    """The size of etcd's database beside its quota, cached for some seconds."""

    def __init__(
        self, status: Callable[[], Awaitable[MemberStatus]], *, quota: int, monotonic: Callable[[], float]
    ) -> None:
        """`quota`: bytes, as in etcd's `--quota-backend-bytes`."""
        self._status, self._quota, self._monotonic = status, quota, monotonic
        self._requests = SharedRequests()
        self._size: tuple[int, float] | None = None

    @property
    def ratio(self) -> float | None:
        """The part of the quota that is used; None: not read yet. Sends no request."""
        return None if self._size is None else self._size[0] / self._quota

    async def near_quota(self, *, so_that: str = FINALIZED) -> QuotaUsed | None:
        """The error for a new key if etcd is near its quota, else None. `so_that`: what the rest of the quota is for, for people.

        Raises:
            StoreUnavailable: etcd did not answer.
        """
        if self._size is None or self._monotonic() - self._size[1] > SIZE_KEPT:
            self._size = await self._requests.once("size", self._db_size), self._monotonic()
        if self._size[0] < SHARE * self._quota:
            return None
        held = f"etcd holds {self._size[0] >> 20} MiB of its quota of {self._quota >> 20} MiB"
        return quota_used(held, so_that=so_that)

    async def _db_size(self) -> int:
        try:
            return (await self._status()).db_size
        except EtcdRefused:
            return 0  # the user may not read the size; etcd itself then refuses puts when it is full


@dataclass
class _LiveCount:
    live: int
    """Upper bound of live keys; exact near the limit."""
    at: float
    """Monotonic time of the count."""
    expiry: float | None
    """Unix seconds of the next expiry, if the limit is reached."""
    own: bool = False
    """True if this process has added keys since."""


class Quota:
    """Cached counts and sizes, refreshed on demand."""

    def __init__(
        self,
        connection: EtcdConnection,
        *,
        max_live_keys: int,
        max_report_bytes: int,
        quota: int,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        """`quota`: bytes, as in etcd's `--quota-backend-bytes`."""
        self._connection, self._layout = connection, connection.layout
        self._limit, self._report_limit = max_live_keys, max_report_bytes
        self.size = BackendSize(partial(connection.ask, Client.status), quota=quota, monotonic=monotonic)
        self._reported: dict[str, tuple[int, float]] = {}
        self._clock, self._monotonic = clock, monotonic
        self._counts: dict[str, _LiveCount] = {}
        self._requests = SharedRequests()

    async def full(self, realm: str) -> float | None:
        """Whether the realm is full: None while there is room, else the seconds until one of its keys expires.

        Raises:
            StoreUnavailable: etcd did not answer.
        """
        count = self._counts.get(realm)
        if count is None or self._stale(count):
            count = self._counts[realm] = await self._requests.once(f"count {realm}", partial(self._count, realm))
        if count.live < self._limit:
            return None
        return RETRY_AFTER if count.expiry is None else max(0.0, count.expiry - self._clock())

    def _stale(self, count: _LiveCount) -> bool:
        near, full = count.live >= SHARE * self._limit, count.live >= self._limit
        if full and (count.own or (count.expiry is not None and count.expiry <= self._clock())):
            return True  # never refuse because of our own additions alone, or after a key has expired
        return self._monotonic() - count.at > (NEAR_KEPT if near else FAR_KEPT)

    def used(self) -> dict[str, float]:
        """Cached usage as fractions: `store_quota_ratio`, and `live_keys_ratio` of the fullest realm; unknown ones are omitted. Sends no
        request."""
        known: dict[str, float] = {}
        if (ratio := self.size.ratio) is not None:
            known["store_quota_ratio"] = ratio
        if self._counts:
            known["live_keys_ratio"] = max(count.live for count in self._counts.values()) / self._limit
        return known

    async def for_reports(self, realm: str) -> int:
        """Bytes left to the realm's reports; negative beyond the limit.

        Raises:
            StoreUnavailable: etcd did not answer.
        """
        used, at = self._reported.get(realm, (0, -math.inf))
        kept = REPORTS_NEAR_KEPT if used > SHARE * self._report_limit else REPORTS_KEPT
        if self._monotonic() - at > kept:
            at = self._monotonic()
            used = await self._requests.once(f"reports {realm}", partial(self._report_bytes, realm))
            self._reported[realm] = used, at
        return self._report_limit - used

    async def _report_bytes(self, realm: str) -> int:
        """Sums the size entries without reading a report. One that does not parse counts as 0: the verbs of its key report the damage."""
        start, used = self._layout.sizes(realm), 0
        end = prefix_end(start)
        while True:
            page = await self._connection.range(Range(start, end, limit=PAGE))
            for kv in page.kvs:
                with contextlib.suppress(ValidationError):
                    used += ReportedSoFar.model_validate_json(kv.value).size
            if not page.more:
                return used
            start = page.kvs[-1].key + b"\0"

    def reported(self, realm: str, size: int) -> None:
        """Counts a report that this process has stored."""
        used, at = self._reported.get(realm, (0, -math.inf))
        self._reported[realm] = used + size, at

    def reports_ratio(self) -> float:
        """Bytes of reports divided by the limit, of the fullest realm among those counted lately."""
        return fullest(self._reported, self._monotonic()) / self._report_limit

    def took(self, realm: str) -> None:
        """Counts a key that this process has added."""
        if (count := self._counts.get(realm)) is not None:
            count.live += 1
            count.own = True

    def moved(self, realm: str) -> None:
        """A key of the realm ended: discards a count that has reached the limit."""
        count = self._counts.get(realm)
        if count is not None and count.live >= self._limit:
            del self._counts[realm]

    async def _count(self, realm: str) -> _LiveCount:
        now, expiry = self._clock(), None
        at, live = self._monotonic(), await self.records(realm)
        if live >= self._limit:
            live -= await self.expired(realm, now)
        if live >= self._limit:
            expiry = await self._next_expiry(realm, now)
        return _LiveCount(live, at, expiry)

    async def records(self, realm: str | None) -> int:
        """Number of records, including expired ones.

        Raises:
            StoreUnavailable: etcd did not answer.
        """
        prefix = self._layout.records(realm)
        return (await self._connection.range(Range(prefix, prefix_end(prefix), count_only=True))).count

    async def expired(self, realm: str | None, now: float) -> int:
        """Number of records whose retention has ended at `now`.

        Raises:
            StoreUnavailable: etcd did not answer.
        """
        layout = self._layout
        entries = self._entries(layout.expiries(), prefix_end(layout.expiries_before(now)))
        return sum([at <= now async for address, at in entries if realm in (None, address.realm)])

    async def _next_expiry(self, realm: str, now: float) -> float | None:
        """The next expiry in the realm. Entries are ordered by minute, then key, so it reads the first minute that has one to its end."""
        layout = self._layout
        start, first = layout.expiries_before(now), None
        async for address, at in self._entries(start, prefix_end(layout.expiries())):
            if first is not None and at >= first + 60.0:
                break
            if address.realm == realm and at > now:
                first = at if first is None else min(first, at)
        return first

    async def _entries(self, start: bytes, end: bytes) -> AsyncIterator[tuple[Address, float]]:
        async for kv in entries(self._connection, start, end):
            yield self._layout.address_of(kv.key), float(kv.value)


async def entries(connection: EtcdConnection, start: bytes, end: bytes) -> AsyncIterator[KeyValue]:
    """Entries of the expiry index, read page by page, each page as it is then."""
    while True:
        page = await connection.range(Range(start, end, limit=PAGE))
        for kv in page.kvs:
            yield kv
        if not page.more:
            return
        start = page.kvs[-1].key + b"\0"


def quota_used(what: str, *, so_that: str = FINALIZED) -> QuotaUsed:
    """The error for a new key refused because of etcd's quota."""
    return QuotaUsed(
        f"{what}: no new key is taken, so that {so_that}; compact and defragment etcd, or raise its quota",
        retry_after=RETRY_AFTER,
    )
