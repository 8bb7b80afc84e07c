"""An etcd lease, held by one process for all its claims.

The client keeps it alive on a thread of its own, where no job can starve it. `deadline` counts from when the last answered keepalive was
sent, so it ends before etcd's own count, which starts anew after an election. Between the two, this process must already have stopped and
no other process has the claims. A lease that etcd has reported gone stays gone, whatever it answers later.
"""

from __future__ import annotations

import math

from sparkonce.etcd.keeper import KeptLease
from sparkonce.store.etcd.transaction import EtcdConnection
from sparkonce.store.ledger import HeldLease


class EtcdLease(HeldLease):
    def __init__(self, connection: EtcdConnection, kept: KeptLease, *, number: int, owner: str) -> None:
        self.id = f"{number:x}"
        self.owner = owner
        self._connection, self._kept, self._number = connection, kept, number
        self._over = False
        """etcd has reported that it is gone."""

    @property
    def ended(self) -> bool:
        return self._over or self._kept.lost

    @property
    def deadline(self) -> float:
        return -math.inf if self.ended else self._kept.deadline

    def end(self) -> None:
        """etcd has answered that it does not know this lease."""
        self._over = True
        self._kept.stop()

    async def keep_alive(self) -> bool:
        """Asks etcd whether the lease lives; the client renews it on its own. Raises: StoreUnavailable."""
        if not self.ended and await self._connection.ask(lambda client: client.remaining(self._number)) is None:
            self.end()
        return not self.ended

    async def revoke(self) -> None:
        """Revokes the lease, even past its deadline: etcd may count longer, and successors wait for etcd. Raises: StoreUnavailable: it may
        still live, but nothing renews it any more."""
        if self._over:
            return
        self._kept.stop()
        await self._connection.ask(lambda client: client.revoke(self._number))
        self._over = True
