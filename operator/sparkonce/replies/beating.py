"""Keeps the claim of one request alive while it runs, and ends the request when the claim can no longer be trusted.

The local deadline counts from when the last answered beat was *sent*, less a margin: past it another process may have taken the key over,
so the request is cancelled before that. A beat that is not answered proves nothing and is repeated; an answer that the claim is lost ends
the request at once. Code that runs in a thread cannot be cancelled; it is fenced only if it uses the attempt's token (`KeyAttempt.token`).

The first beat is due after a third of the lease: a request that is done by then costs a timer and no task.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from sparkonce.errors import SparkonceError
from sparkonce.replies.protocol import ReplyLedger, WriteOutcome

T = TypeVar("T")

BEATS = 3
"""Beats in a lease: two may be lost."""
MARGIN = 0.1
"""Part of a lease before its end at which its owner stops."""


class ClaimLost(Exception):
    """The claim ended under a running request, which was cancelled: whether it took effect is unknown."""


class Beating:
    """A context in which the claim is kept alive. Belongs to one task."""

    def __init__(self, ledger: ReplyLedger, key: str, nonce: str, *, lease: float, sent: float) -> None:
        """`sent`: time.monotonic() before the call that made the claim."""
        self._ledger, self._key, self._nonce, self._lease = ledger, key, nonce, lease
        self._deadline = sent + lease * (1 - MARGIN)
        self._due = sent + lease / BEATS
        self._timer: asyncio.TimerHandle | None = None
        self._beats: asyncio.Task[None] | None = None
        self._lost = False
        self._bound: asyncio.Task[Any] | None = None
        """The task to cancel when the claim is lost."""

    async def __aenter__(self) -> Self:
        delay = max(0.0, min(self._due, self._deadline) - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay, self._begin)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._beats is not None:
            self._beats.cancel()
            await asyncio.wait([self._beats])

    async def bounded(self, work: Coroutine[Any, Any, T]) -> T:
        """The work's result. Raises: ClaimLost: it was cancelled; what the work raises."""
        task = asyncio.current_task()
        assert task is not None
        if self._lost:
            work.close()
            raise ClaimLost
        self._bound = task
        try:
            return await work
        except BaseException:
            if self._lost:
                raise ClaimLost from None
            raise
        finally:
            self._bound = None
            if self._lost:
                task.uncancel()

    def _begin(self) -> None:
        self._beats = asyncio.get_running_loop().create_task(self._beat())

    async def _beat(self) -> None:
        every = self._lease / BEATS
        while time.monotonic() < self._deadline:
            await asyncio.sleep(max(0.0, min(self._due, self._deadline) - time.monotonic()))
            sent = time.monotonic()
            if sent >= self._deadline:
                break
            try:
                async with asyncio.timeout(self._deadline - sent):
                    outcome = await self._ledger.beat(self._key, self._nonce, lease=self._lease)
            except (SparkonceError, TimeoutError):
                self._due = time.monotonic() + every / 4
                continue
            if outcome is WriteOutcome.ALREADY:
                return
            if outcome is not WriteOutcome.WRITTEN:
                break
            self._deadline = sent + self._lease * (1 - MARGIN)
            self._due = sent + every
        self._lost = True
        if self._bound is not None:
            self._bound.cancel()
