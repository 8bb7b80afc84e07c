"""Writers that keep going while a test breaks their etcd, and the comparison of their answers with etcd's content.

Each write has its own key and no compare, so etcd's version of the key counts how often a transaction was applied. A compare would hide
a second application.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import TypeVar

from harness.etcd import Member
from harness.eventually import assert_eventually
from sparkonce.etcd.client import Client
from sparkonce.etcd.errors import EtcdRefused, EtcdUnavailable
from sparkonce.etcd.kv import Put

T = TypeVar("T")


async def eventually(fn: Callable[[], T], timeout: float) -> T:
    """As `assert_eventually`, without blocking the event loop; `fn` runs in a thread."""
    return await asyncio.to_thread(assert_eventually, fn, timeout)


async def start(member: Member) -> None:
    """Serving when this returns; the event loop goes on meanwhile.

    The process itself is started here and not in a thread: it is killed when the thread that started it ends (`harness.child`).
    """
    member.child.start()
    await asyncio.to_thread(member.until_ready)


async def restart(member: Member) -> None:
    member.kill()
    await start(member)


class Traffic:
    """`writers` tasks, each of which writes one key after the other and records the outcomes."""

    def __init__(self, client: Client, prefix: bytes, *, writers: int = 8) -> None:
        self.told: dict[bytes, str] = {}
        self.answered_at = 0.0
        self.slowest = 0.0
        """Duration of the slowest call in seconds."""
        self._client = client
        self._prefix = prefix
        self._numbers = itertools.count()
        self._ends = False
        self._tasks = [asyncio.create_task(self._write()) for _ in range(writers)]

    async def _write(self) -> None:
        while not self._ends:
            key = b"%s%06d" % (self._prefix, next(self._numbers))
            began = monotonic()
            try:
                await self._client.txn([], [Put(key, b"x")])
            except EtcdUnavailable:
                self.told[key] = "unknown"
                await asyncio.sleep(0.02)
            except EtcdRefused:
                self.told[key] = "refused"
            else:
                self.told[key] = "answered"
                self.answered_at = monotonic()
            self.slowest = max(self.slowest, monotonic() - began)
            await asyncio.sleep(0.005)

    async def goes_well(self, timeout: float = 20.0) -> None:
        """Waits until every writer gets answers again."""
        since = monotonic()
        await eventually(lambda: self.answered_at > since, timeout)
        before = self.tally()
        await eventually(lambda: self.tally()["answered"] > before["answered"] + 2 * len(self._tasks), timeout)

    async def stop(self) -> None:
        self._ends = True
        await asyncio.gather(*self._tasks)

    def tally(self) -> Counter[str]:
        return Counter(self.told.copy().values())


def assert_honest(told: Mapping[bytes, str], written: Mapping[bytes, int]) -> None:
    """Answered writes were applied once, refused ones not at all, unknown ones at most once. There are no other keys."""
    wrong = {
        key: (outcome, written.get(key, 0))
        for key, outcome in told.items()
        if written.get(key, 0) not in {"answered": (1,), "refused": (0,), "unknown": (0, 1)}[outcome]
    }
    assert wrong == {}, "what callers were told, and how often etcd applied it"
    assert written.keys() <= told.keys()


async def outcome(call: Awaitable[object]) -> str:
    try:
        await call
    except EtcdUnavailable:
        return "unknown"
    except EtcdRefused:
        return "refused"
    return "answered"
