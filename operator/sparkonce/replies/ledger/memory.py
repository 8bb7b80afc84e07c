"""A reply ledger in this process's memory: for tests, and for services of one process that may forget on a restart."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable

from sparkonce.replies.ledger import rules
from sparkonce.replies.ledger.ceilings import KEYS, KEYS_OF_CALLER, Ceilings
from sparkonce.replies.ledger.codec import to_row
from sparkonce.replies.ledger.rules import ReplyWrite
from sparkonce.replies.protocol import Reply, ReplyRecord, Reservation, StoreTime, WriteOutcome

SPARE = 1000
"""Outdated entries in the heap of expiries before it is made anew."""


class MemoryReplies:
    """Each verb is one step of the event loop."""

    url = "memory:"

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        keys: int = KEYS,
        keys_of_caller: int = KEYS_OF_CALLER,
    ) -> None:
        self._clock, self._monotonic = clock, monotonic
        self._records: dict[str, ReplyRecord] = {}
        self._live: dict[str, int] = {}
        self._expiries: list[tuple[float, str]] = []
        self._ceilings = Ceilings(keys=keys, keys_of_caller=keys_of_caller)

    def _time(self) -> StoreTime:
        return StoreTime(self._clock(), self._monotonic())

    def _write(self, key: str, write: ReplyWrite) -> None:
        if write is None:
            return
        if isinstance(write, ReplyRecord):
            to_row(write)  # raises for what could not be read back from the other ledgers
        old = self._records.pop(key, None)
        if old is not None:
            self._live[old.caller] -= 1
            if not self._live[old.caller]:
                del self._live[old.caller]
        if isinstance(write, ReplyRecord):
            self._records[key] = write
            self._live[write.caller] = self._live.get(write.caller, 0) + 1
            if old is None or old.expires_at != write.expires_at:
                heapq.heappush(self._expiries, (write.expires_at, key))
        if len(self._expiries) > 2 * len(self._records) + SPARE:
            self._expiries = [(record.expires_at, each) for each, record in self._records.items()]
            heapq.heapify(self._expiries)

    def _count(self, caller: str | None) -> tuple[int, float | None]:
        live = len(self._records) if caller is None else self._live.get(caller, 0)
        return live, self._expiries[0][0] if self._expiries else None

    async def reserve(
        self, key: str, *, caller: str, fingerprint: str, nonce: str, lease: float, lifetime: float
    ) -> Reservation:
        at, found = self._time(), self._records.get(key)
        outcome, write = rules.reserve(
            found, at, caller=caller, fingerprint=fingerprint, nonce=nonce, lease=lease, lifetime=lifetime
        )
        if write is not None and found is None:
            self._ceilings.check(caller, at.now, self._count)
            self._ceilings.added(caller)
        self._write(key, write)
        return outcome

    async def look(self, key: str) -> Reservation | None:
        return rules.look(self._records.get(key), self._time())

    async def beat(self, key: str, nonce: str, *, lease: float) -> WriteOutcome:
        return self._did(key, *rules.beat(self._records.get(key), self._time(), nonce=nonce, lease=lease))

    async def take_over(self, key: str, *, seen: str, nonce: str, lease: float) -> WriteOutcome:
        found = self._records.get(key)
        return self._did(key, *rules.take_over(found, self._time(), seen=seen, nonce=nonce, lease=lease))

    async def finalize(self, key: str, nonce: str, reply: Reply, *, lifetime: float) -> WriteOutcome:
        found = self._records.get(key)
        return self._did(key, *rules.finalize(found, self._time(), nonce=nonce, reply=reply, lifetime=lifetime))

    async def release(self, key: str, nonce: str) -> WriteOutcome:
        return self._did(key, *rules.release(self._records.get(key), nonce=nonce))

    async def abandon(self, key: str, nonce: str, *, pause: float) -> WriteOutcome:
        return self._did(key, *rules.abandon(self._records.get(key), self._time(), nonce=nonce, pause=pause))

    def _did(self, key: str, outcome: WriteOutcome, write: ReplyWrite) -> WriteOutcome:
        self._write(key, write)
        return outcome

    async def purge(self, *, limit: int = 1000) -> int:
        at, removed, later = self._time(), 0, []
        while self._expiries and removed < limit and self._expiries[0][0] <= at.now:
            expiry, key = heapq.heappop(self._expiries)
            record = self._records.get(key)
            if record is None or record.expires_at != expiry:
                continue  # an earlier expiry of a key that was removed or written again
            if rules.expired(record, at):
                self._write(key, rules.REMOVE)
                removed += 1
            else:
                later.append((expiry, key))  # its owner beats
        for each in later:
            heapq.heappush(self._expiries, each)
        return removed

    async def close(self) -> None:
        self._records.clear()
        self._live.clear()
        self._expiries.clear()
