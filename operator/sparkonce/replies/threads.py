"""A reply coordinator for callers that block: WSGI servers and plain functions.

The coordinator runs on an event loop in a thread of its own, which keeps claims alive while the caller's thread runs the request: the
effect stays in the thread that was asked for it, with its context. Threads are not forked, so a child process makes its own loop at its
first call. A caller whose claim is lost cannot be cancelled: its effect goes on, and what it returns is not the answer.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from sparkonce.observe.meter import ReplyMeter
from sparkonce.replies.coordinator import KeyAttempt, KeyedRequest, Reconcile, Refusal, ReplyCoordinator, Response
from sparkonce.replies.policy import ReplyPolicy
from sparkonce.replies.protocol import Reply, ReplyLedger

ENDS = 5.0
"""Seconds in which the ledger's connections close."""


class _EffectFailed(Exception):
    """Carries what the effect raised through the loop, which some exceptions would end."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class _Here:
    """The loop of one process."""

    def __init__(
        self, ledger: ReplyLedger, policy: ReplyPolicy, reconcile: Reconcile | None, meter: ReplyMeter | None
    ) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.ledger = ledger
        self.coordinator = ReplyCoordinator(ledger, policy, reconcile, meter=meter)
        threading.Thread(target=_serve, args=(self.loop,), name="sparkonce-replies", daemon=True).start()

    async def end(self, grace: float) -> None:
        await self.coordinator.close(grace=grace)
        await self.ledger.close()


_coordinators: weakref.WeakSet[ThreadCoordinator] = weakref.WeakSet()
_of_parents: list[_Here] = []  # never used, never closed


def _after_fork_in_child() -> None:
    for coordinator in _coordinators:
        coordinator.start_afresh()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _stop(loop: asyncio.AbstractEventLoop, pid: int) -> None:
    if pid == os.getpid() and not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)


class ThreadCoordinator:
    def __init__(
        self,
        opened: Callable[[], ReplyLedger],
        policy: ReplyPolicy,
        reconcile: Reconcile | None = None,
        *,
        meter: ReplyMeter | None = None,
    ) -> None:
        """`opened`: opens the ledger; called once in each process."""
        self._opened, self._policy, self._reconcile, self._meter = opened, policy, reconcile, meter
        self._here: _Here | None = None
        self._making = threading.Lock()
        _coordinators.add(self)

    def answer(self, request: KeyedRequest, effect: Callable[[KeyAttempt], Reply]) -> Response:
        """As `ReplyCoordinator.answer`; the effect runs in the caller's thread. Raises: Refusal; what the effect raises."""
        here = self._at_home()
        turns: SimpleQueue[tuple[KeyAttempt, asyncio.Future[Reply]] | None] = SimpleQueue()

        async def by_the_caller(attempt: KeyAttempt) -> Reply:
            done: asyncio.Future[Reply] = here.loop.create_future()
            turns.put((attempt, done))
            return await done

        answered = asyncio.run_coroutine_threadsafe(here.coordinator.answer(request, by_the_caller), here.loop)
        answered.add_done_callback(lambda _: turns.put(None))
        while (turn := turns.get()) is not None:
            attempt, done = turn
            try:
                reply = effect(attempt)
            except Refusal as refusal:
                here.loop.call_soon_threadsafe(_fail, done, refusal)
            except BaseException as error:  # noqa: BLE001 - raised again below, in this thread
                here.loop.call_soon_threadsafe(_fail, done, _EffectFailed(error))
            else:
                here.loop.call_soon_threadsafe(_succeed, done, reply)
        try:
            return answered.result()
        except _EffectFailed as failed:
            raise failed.error from None

    def close(self, *, grace: float) -> None:
        """Waits up to `grace` seconds for running requests, and closes the ledger."""
        with self._making:
            here, self._here = self._here, None
        if here is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(here.end(grace), here.loop).result(grace + ENDS)
        finally:
            _stop(here.loop, here.pid)

    def start_afresh(self) -> None:
        """Called in a child after a fork: sets the parent's loop aside, unused."""
        if self._here is not None:
            _of_parents.append(self._here)
        self._here, self._making = None, threading.Lock()

    def _at_home(self) -> _Here:
        with self._making:
            if self._here is None:
                self._here = _Here(self._opened(), self._policy, self._reconcile, self._meter)
                weakref.finalize(self, _stop, self._here.loop, self._here.pid)  # its thread ends with its owner
            return self._here


def _succeed(done: asyncio.Future[Any], reply: Reply) -> None:
    if not done.done():  # the claim was lost: the coordinator no longer waits
        done.set_result(reply)


def _fail(done: asyncio.Future[Any], error: BaseException) -> None:
    if not done.done():
        done.set_exception(error)
