"""How many live keys the realms of a ledger in SQL hold. Counting reads every record of a realm, so most new keys are admitted without."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

NEAR, NEAR_SHARE = 1_000, 0.2
"""Keys, or that part of the limit if it is more, that are free where a count serves for a while. With fewer each new key is counted anew,
so that the limit is exact as long as other processes do not add as many in the meantime."""
KEPT = 10.0
"""Seconds for which a count serves. New keys of this process are added to it."""
COUNTED_FROM = 0.5
"""Part of the limit: with fewer records nothing need be counted."""


@dataclass
class _RealmCount:
    live: int
    at: float
    """Monotonic seconds."""


class LiveKeys:
    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._counts: dict[str, _RealmCount] = {}

    def full(self, realm: str, limit: int, count: Callable[[], int]) -> bool:
        """Whether the realm has no room for a new key, which is taken to be added if it has. count: reads how many live keys there are."""
        known, near = self._counts.get(realm), limit - max(NEAR, NEAR_SHARE * limit)
        if known is None or known.live >= near or self._monotonic() - known.at > KEPT:
            known = self._counts[realm] = _RealmCount(count(), self._monotonic())
        if known.live >= limit:
            return True
        known.live += 1
        return False

    @property
    def most(self) -> int | None:
        """Live keys of the fullest realm, as last counted; None: none was."""
        return max((each.live for each in self._counts.values()), default=None)
