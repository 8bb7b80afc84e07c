"""A reply ledger in a real etcd whose leases end by a test's clock: granted for an hour, and revoked when that clock has passed their end.

One etcd for each test process, which starts with the first test that needs it; each ledger has a name of its own.
"""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path
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


@cache
def server(members: int = 1) -> etcd.Etcd:
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="sparkonce-etcd-", dir=memory if os.access(memory, os.W_OK) else None))
    stack = ExitStack()
    atexit.register(stack.close)
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return stack.enter_context(etcd.running(folder, members=members))


def emptied() -> str:
    """The address of a ledger on three members, which has no key."""
    cluster = server(3)
    for key in cluster.content(ROOT.encode()):
        cluster.delete(key)
    return f"etcd://{','.join(cluster.endpoints)}?timeout={PATIENCE:g}"


def fresh_name() -> str:
    return f"test-{os.getpid()}-{next(_numbers)}"


def by_clock(clocks: Clocks, **given: Any) -> ReplyLedger:
    """For callers that block."""
    made = EtcdReplies(server().endpoints, timeout=PATIENCE, **({"name": fresh_name()} | given))
    grant, due = made._client.grant, dict[int, float]()

    async def granted(ttl: int) -> LeaseHandle:
        handle = await grant(HOUR)
        due[handle.id] = clocks.ticks + ttl
        return handle

    def ends() -> None:
        for lease in [each for each, end in due.items() if end <= clocks.ticks]:
            server().revoke(lease)
            del due[lease]

    made._leases._grant = granted
    clocks.moved.append(ends)
    return blocking(made)


def blocking(ledger: EtcdReplies) -> ReplyLedger:
    return cast(ReplyLedger, threaded(cast(Any, ledger)))
