"""The store on a real etcd, one member or three: one cluster per test process, one install per test.

The cluster starts with the first test that needs it and ends with the process. Only `compact` affects other installs: after it no watch can
begin at an earlier revision, so tests remember their own first revision instead of watching from 0.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from harness import etcd
from sparkonce.blocking import run
from sparkonce.model.record import Address
from sparkonce.store.etcd.layout import Layout
from sparkonce.store.etcd.store import EtcdStore
from sparkonce.store.protocol import IdempotencyStore, Lease
from sparkonce.store.threaded import threaded

_installs = itertools.count(1)
PATIENCE = 30.0
"""Timeout of a request in seconds; a machine that runs other tests too may stall etcd for some. Tests of faults use their own."""


def fresh_install() -> str:
    """An install name that no other test uses."""
    return f"test-{os.getpid()}-{next(_installs)}"


def opened(endpoints: list[str], install: str, **options: Any) -> IdempotencyStore:
    return threaded(EtcdStore(endpoints, install=install, **options))


class Etcd:
    counts_every_write = True

    def __init__(self, clock: Callable[[], float], *, members: int) -> None:
        self.clock: Any = clock
        self.cluster = etcd.shared(members)
        self.install = fresh_install()
        self.layout = Layout(self.install)
        self._options: dict[str, Any] = {"ttl": 60, "timeout": PATIENCE}
        self._open: list[IdempotencyStore] = []

    def open(self, *, tombstones: int = 0, **options: Any) -> IdempotencyStore:
        """etcd has no setting for the number of remembered removals; see `forget_removals`."""
        store = self.opening(**({"clock": self.clock} | options))()
        self._open.append(store)
        return store

    def opening(self, **options: Any) -> Callable[[], IdempotencyStore]:
        return partial(opened, self.cluster.endpoints, self.install, **(self._options | options))

    def expire(self, lease: Lease) -> None:
        """Revokes the lease behind its holder's back; a lease that has ended stays ended."""
        self._revoke(int(lease.id, 16))

    def _revoke(self, number: int) -> None:
        try:
            self.cluster.members[0].post("lease/revoke", {"ID": str(number)})
        except AssertionError as refused:
            if "lease not found" not in str(refused):
                raise

    def write(self, address: Address, text: str) -> None:
        self.cluster.put(self.layout.record(address), text.encode())

    def forget_removals(self) -> None:
        self.cluster.compact(self.cluster.revision())

    def close(self) -> None:
        """Revokes all leases: if one expired during a later test, it would move the revision there."""
        for store in self._open:
            run(store.close())
        for number in self.cluster.leases():
            self._revoke(number)
