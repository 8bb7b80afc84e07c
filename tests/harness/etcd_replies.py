"""A reply ledger in a real etcd whose leases end by a test's clock: granted for an hour, and revoked when that clock has passed their end.

Each ledger has a name of its own in the etcd that the tests of a process share.
"""

from __future__ import annotations

import itertools
import os
from typing import Any, cast

from harness import etcd
from harness.clocks import Clocks
from sparkonce.etcd.client import LeaseHandle
from sparkonce.replies.ledger.etcd import ROOT, EtcdReplies
from sparkonce.replies.protocol import ReplyLedger
from sparkonce.store.threaded import threaded

HOUR = 3600
PATIENCE = 30.0
"""Seconds for one request, on a machine that runs other tests too."""
_numbers = itertools.count()


def emptied() -> str:
    """The address of a ledger on three members, which has no key."""
    cluster = etcd.shared(3)
    for key in cluster.content(ROOT.encode()):
        cluster.delete(key)
    return f"etcd://{','.join(cluster.endpoints)}?timeout={PATIENCE:g}"


def fresh_name() -> str:
    return f"test-{os.getpid()}-{next(_numbers)}"


def by_clock(clocks: Clocks, **given: Any) -> ReplyLedger:
    """For callers that block."""
    made = EtcdReplies(etcd.shared().endpoints, timeout=PATIENCE, **({"name": fresh_name()} | given))
    grant, due = made._client.grant, dict[int, float]()

    async def granted(ttl: int) -> LeaseHandle:
        handle = await grant(HOUR)
        due[handle.id] = clocks.ticks + ttl
        return handle

    def ends() -> None:
        for lease in [each for each, end in due.items() if end <= clocks.ticks]:
            etcd.shared().revoke(lease)
            del due[lease]

    made._leases._grant = granted
    clocks.moved.append(ends)
    return blocking(made)


def blocking(ledger: EtcdReplies) -> ReplyLedger:
    return cast(ReplyLedger, threaded(cast(Any, ledger)))
