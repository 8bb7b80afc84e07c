"""How processes on this machine wait for a key that another one owns: how often they read it, and how its owner knows of them.

A process that waits reads the key once a second while nothing changes (`ReadPace`), so its answer is a second late at most. A watch was
rejected: SQLite has none, and a file lock that the owner holds says nothing of owners on other machines.

An interrupted leader hands its job over instead of cancelling it if another process waits for the key. A waiting process shows that by a
shared lock on one byte of a file beside the ledger, at an offset made from the key's hash. The kernel drops it with the process, so that
nothing has to be removed and no clock is read. Two keys share an offset once in 2^60; a leader would then hand over to a process that waits
for another job, and the job would continue when it is sent again. Locks of one process do not exclude each other, as intended: a process
does not wait for itself.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass

from sparkonce.model.record import Address
from sparkonce.store.protocol import View

SOON, LATE = 0.25, 1.0
"""Seconds between two reads: right after a change, as another one often follows, and while nothing changes."""


@dataclass
class ReadPace:
    """Decides how long a request waits before it reads its key again."""

    _seen: object = None
    _pause: float = SOON

    def pause(self, view: View) -> float:
        """Seconds from this read to the next: `SOON` after a change of record or claim, then longer, up to `LATE`."""
        seen = (view.record and (view.record.generation, view.record.revision), view.claim and view.claim.nonce)
        self._pause = min(LATE, 2 * self._pause) if seen == self._seen else SOON
        self._seen = seen
        return self._pause


@dataclass
class WaitingList:
    """The waiting processes of one ledger.

    ledger: the store's URL. The locks are in a file beside it (`ledger.db` -> `ledger.db.waiting`), which is made when first needed. A
    store without a file has no waiting list: its processes may be on other machines.
    """

    ledger: str
    _open: int | None = None

    def wait(self, address: Address) -> None:
        """Notes that this process waits for the key; it may be called again. Best effort: without the lock an interrupted
        leader cancels the job instead of handing it over."""
        self._lock(address, fcntl.LOCK_SH)

    def leave(self) -> None:
        """Ends all waiting of this process."""
        if self._open is not None:
            os.close(self._open)
            self._open = None

    def others(self, address: Address) -> bool:
        """Whether another process waits for the key."""
        if not self._lock(address, fcntl.LOCK_EX):
            return self._open is not None
        assert self._open is not None  # it was locked
        fcntl.lockf(self._open, fcntl.LOCK_UN, 1, _offset(address))
        return False

    def _lock(self, address: Address, how: int) -> bool:
        path = self.ledger.removeprefix("sqlite:///")
        if path == self.ledger:
            return False
        try:
            if self._open is None:
                self._open = os.open(f"{path}.waiting", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.lockf(self._open, how | fcntl.LOCK_NB, 1, _offset(address))
        except OSError:
            return False
        return True


def _offset(address: Address) -> int:
    return int(address.key_hash[:15], 16)
