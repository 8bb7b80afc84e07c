"""A reply coordinator for callers that block: WSGI servers and plain functions.

The coordinator runs on an event loop in a thread of its own, which keeps claims alive while the caller's thread runs the request: the
effect stays in the thread that was asked for it, with its context. Threads are not forked, so a child process makes its own loop at its
first call. A caller whose claim is lost cannot be cancelled: its effect goes on, and what it returns is not the answer.

A caller may be interrupted (KeyboardInterrupt): before its effect has begun this frees the key, and afterwards the outcome is unknown. The
loop's end answers every caller that still waits.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from sparkonce.observe.meter import ReplyMeter
from sparkonce.replies.coordinator import (
    KeyAttempt,
    KeyedRequest,
    Reconcile,
    Refusal,
    ReplyCoordinator,
    Response,
    closed,
)
from sparkonce.replies.policy import ReplyPolicy
from sparkonce.replies.protocol import Reply, ReplyLedger

ENDS = 5.0
"""Seconds in which callers that wait look at the ledger once more, and in which its connections close."""


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
        if waiting := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(waiting, timeout=ENDS)
        await self.ledger.close()


_coordinators: weakref.WeakSet[ThreadCoordinator] = weakref.WeakSet()
_of_parents: list[_Here] = []  # never used, never closed


def _after_fork_in_child() -> None:
    for coordinator in _coordinators:
        coordinator.start_afresh()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    if left := asyncio.all_tasks(loop):
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.wait(left))
    loop.close()


def _stop(loop: asyncio.AbstractEventLoop, pid: int) -> None:
    if pid == os.getpid() and not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)


class _CallersTurn:
    """Hands a request from the loop to the thread of its caller, and hands back what came of it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._given: SimpleQueue[KeyAttempt | None] = SimpleQueue()
        self._done: asyncio.Future[Reply] = loop.create_future()
        self.begun = False
        """The effect may have happened."""

    async def awaited(self, attempt: KeyAttempt) -> Reply:
        """The effect, for the coordinator."""
        self.give(attempt)
        return await self._done

    def give(self, attempt: KeyAttempt | None) -> None:
        """None: there is an answer."""
        self._given.put(attempt)

    def carry_out(self, effect: Callable[[KeyAttempt], Reply]) -> None:
        """In the caller's thread: runs the effect if it is asked for, and returns once there is an answer."""
        while (attempt := self._given.get()) is not None:
            self.begun = True
            try:
                reply = effect(attempt)
            except Refusal as refusal:
                self._tell(self._fail, refusal)
            except BaseException as error:  # noqa: BLE001 - raised again by `answer`, in this thread
                self._tell(self._fail, _EffectFailed(error))
            else:
                self._tell(self._succeed, reply)

    def leave(self) -> None:
        """In the caller's thread: it runs no effect from now on."""
        why = "the caller was interrupted"
        self._tell(self._fail, _EffectFailed(InterruptedError(why)) if self.begun else Refusal(503, "left", why))

    def _tell(self, tells: Callable[[Any], None], what: object) -> None:
        with suppress(RuntimeError):  # the loop has ended, and the coordinator has noted the outcome as unknown
            self._loop.call_soon_threadsafe(tells, what)

    def _succeed(self, reply: Reply) -> None:
        if not self._done.done():  # the claim was lost: the coordinator no longer waits
            self._done.set_result(reply)

    def _fail(self, error: BaseException) -> None:
        if not self._done.done():
            self._done.set_exception(error)
            self._done.exception()  # may have no reader


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
        turn = _CallersTurn(here.loop)
        answered = None
        try:
            answered = asyncio.run_coroutine_threadsafe(here.coordinator.answer(request, turn.awaited), here.loop)
            answered.add_done_callback(lambda _: turn.give(None))
            turn.carry_out(effect)
        except BaseException:
            # KeyboardInterrupt while it waits: `carry_out` hands the effect's own errors to the coordinator.
            turn.leave()
            if answered is not None:
                answered.cancel()
            raise
        try:
            return answered.result()
        except _EffectFailed as failed:
            raise failed.error from None
        except CancelledError:
            raise closed(begun=turn.begun) from None

    def close(self, *, grace: float) -> None:
        """Waits up to `grace` seconds for running requests, and closes the ledger. Callers that still wait get the recorded answer, or a
        Refusal that says what is known."""
        with self._making:
            here, self._here = self._here, None
        if here is None:
            return
        try:
            limit = grace + self._policy.store_patience + 2 * ENDS
            asyncio.run_coroutine_threadsafe(here.end(grace), here.loop).result(limit)
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
