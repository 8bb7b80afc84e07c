"""How many live keys a caller, and all callers, may have in one reply ledger.

A key that is live is never dropped to make room: the newest request is refused, with the time at which room is expected. Counts are read at
most every few seconds and counted on from there, so a ceiling may be overshot by what several processes reserve meanwhile.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from sparkonce.errors import StoreFull

KEYS = 1_000_000
"""Of one ledger: with small answers a gigabyte."""
KEYS_OF_CALLER = 100_000
"""Of one caller: as many as a realm of jobs may have."""
FRESH = 5.0
"""Seconds for which a count is used."""
CALLERS = 10_000
"""Callers whose counts are held; the ones unused for longest are counted again."""


@dataclass
class _Count:
    live: int
    first_expiry: float | None
    """Seconds since 1970."""
    read_at: float


class Ceilings:
    """Belongs to one ledger. `count`: (live keys, first expiry) of a caller, or of all for None."""

    def __init__(self, *, keys: int = KEYS, keys_of_caller: int = KEYS_OF_CALLER) -> None:
        self._keys, self._keys_of_caller = keys, keys_of_caller
        self._counts: OrderedDict[str | None, _Count] = OrderedDict()

    def check(self, caller: str, now: float, count: Callable[[str | None], tuple[int, float | None]]) -> None:
        """Before a new key is reserved. Raises: StoreFull."""
        for whose in self.unknown(caller):
            self.learn(whose, *count(whose))
        self.judge(caller, now)

    def unknown(self, caller: str) -> list[str | None]:
        """The counts that the ledger must read before `judge`: of this caller's keys, of all keys (None)."""
        limits = {caller: self._keys_of_caller, None: self._keys}
        return [whose for whose, limit in limits.items() if self._is_stale(self._counts.get(whose), limit)]

    def _is_stale(self, count: _Count | None, limit: int) -> bool:
        return count is None or count.live >= limit or time.monotonic() - count.read_at > FRESH

    def learn(self, whose: str | None, live: int, first_expiry: float | None) -> None:
        self._counts[whose] = _Count(live, first_expiry, time.monotonic())

    def judge(self, caller: str, now: float) -> None:
        """By the counts that were learned. Raises: StoreFull."""
        for whose, limit in ((caller, self._keys_of_caller), (None, self._keys)):
            known = self._counts.get(whose)
            if known is None:  # it was dropped for newer ones while others were counted
                continue
            self._counts.move_to_end(whose)
            if known.live >= limit:
                wait = 60.0 if known.first_expiry is None else max(1.0, known.first_expiry - now)
                raise StoreFull(
                    f"{'this caller has' if whose else 'the ledger of answers holds'} {known.live} live keys, and {limit} are allowed; "
                    f"the next one expires in {wait:.0f} s",
                    retry_after=wait,
                )
        while len(self._counts) > CALLERS:
            self._counts.popitem(last=False)

    def added(self, caller: str) -> None:
        """A key was reserved."""
        for whose in (caller, None):
            if whose in self._counts:
                self._counts[whose].live += 1
