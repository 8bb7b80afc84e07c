"""A lease in PostgreSQL: a row with an end in the database's clock, which keepalives put off.

A thread of its own keeps it alive, where no job and no blocked event loop can starve it: the verbs of a SQL store block their caller. The
process that holds it judges by its own monotonic clock, from when the last answered keepalive was *sent*: the database counted from a
later moment, so it honours the lease at least as long. What the process believes decides nothing: every verb that takes a claim asks the
row in its own transaction.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from sparkonce.errors import SparkonceError
from sparkonce.store.ledger import HeldLease

KEEPALIVES = 3
"""Per TTL: two may be lost."""
AGAIN = 10
"""Tries per TTL while the server does not answer, not counting the store's own timeout of each."""


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
        self._answered = False  # the store answered that it has ended
        self._enough = threading.Event()

    def keep(self) -> None:
        """Starts keepalives, which run until the lease has ended or `stop` is called."""
        threading.Thread(target=self._keep, name=f"lease {self.id[:8]}", daemon=True).start()

    def _keep(self) -> None:
        pause = self._seconds / KEEPALIVES
        while not self._enough.wait(pause) and not self.ended:
            pause = self._seconds / AGAIN
            with suppress(SparkonceError):  # the deadline says how long that may go on
                self._prolonged()
                pause = self._seconds / KEEPALIVES

    def stop(self) -> None:
        """Stops the keepalives: the lease ends by itself."""
        self._enough.set()

    @property
    def ended(self) -> bool:
        """Whether it is known to have ended: revoked, reported by the store, or this is a child of the process that holds it."""
        return self._ended or os.getpid() != self._pid

    @property
    def deadline(self) -> float:
        return -math.inf if self.ended else self._sent + self._seconds

    async def keep_alive(self) -> bool:
        return not self.ended and self._prolonged()

    def _prolonged(self) -> bool:
        sent = time.monotonic()
        if self._prolong(self.id):
            self._sent = max(self._sent, sent)
        else:
            self._ended = self._answered = True
        return not self.ended

    async def revoke(self) -> None:
        """Ends the lease and its claims. Raises: StoreUnavailable: the row may exist until its end; the holder must still act as if the
        lease had ended."""
        if self._answered or os.getpid() != self._pid:
            return
        self._ended = True
        self.stop()
        self._end(self.id)
        self._answered = True
