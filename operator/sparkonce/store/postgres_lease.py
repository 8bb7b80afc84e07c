"""A lease in PostgreSQL: a row with an end in the database's clock, which keepalives put off.

The process that holds it judges by its own monotonic clock, from when the last answered keepalive was *sent*: the database counted from a
later moment, so it honours the lease at least as long. What the process believes decides nothing: every verb that takes a claim asks the
row in its own transaction.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable

from sparkonce.store.ledger import HeldLease


class PostgresLease(HeldLease):
    def __init__(
        self,
        *,
        name: str,
        owner: str,
        seconds: float,
        sent: float,
        prolong: Callable[[str], bool],
        end: Callable[[str], None],
    ) -> None:
        """`sent`: time.monotonic() before the row was written, with an end `seconds` away."""
        self.id, self.owner = name, owner
        self._seconds, self._sent, self._prolong, self._end = seconds, sent, prolong, end
        self._pid = os.getpid()
        self._ended = False
        self._answered = False  # the store said that it has ended

    @property
    def ended(self) -> bool:
        """As far as is known here: revoked, answered so, or this is a child of the process that holds it."""
        return self._ended or os.getpid() != self._pid

    @property
    def deadline(self) -> float:
        return -math.inf if self.ended else self._sent + self._seconds

    async def keep_alive(self) -> bool:
        if self.ended:
            return False
        sent = time.monotonic()
        if self._prolong(self.id):
            self._sent = max(self._sent, sent)
        else:
            self._ended = self._answered = True
        return not self.ended

    async def revoke(self) -> None:
        """StoreUnavailable: the row may still be there, until its end; the holder must act as if it had ended all the same."""
        if self._answered or os.getpid() != self._pid:
            return
        self._ended = True
        self._end(self.id)
        self._answered = True
