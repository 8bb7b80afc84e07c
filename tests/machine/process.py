"""Simulated processes: the real code, stopped before each remote effect.

The core is `async` and awaits only objects that it was given, so a client is a coroutine that yields each effect to the scheduler. Job code
is synchronous: a driver is a thread that hands each effect to the scheduler and waits for it, so that one process runs at a time and
nothing depends on the operating system. The code under test is not changed for this.

A killed process has no further effect: as after SIGKILL, requests from its `finally` blocks are not sent.
"""

from __future__ import annotations

import _thread
import contextlib
import threading
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any

from sparkonce.sink.slotlog import layout
from sparkonce.store.sqlite.lease import FileLease


class Broken(AssertionError):
    """A promise was broken; the arguments are the promise and what happened."""

    schedules = 0
    """Number of schedules played until it was found, if a machine found it."""


class Killed(BaseException):
    """Raised in a killed process at its next effect; no handler of the core catches it."""


_STORE_WRITES = {"reserve", "take_over", "update", "finalize", "reopen", "request_stop", "seal", "forget", "report"}
_WRITES = _STORE_WRITES | {"create", "delete_folder", "launch", "mark", "end", "settle"}


@dataclass(frozen=True)
class Effect:
    """An atomic remote effect that a process is about to have: `call` is bound already and may take effect at any time, even without its
    sender."""

    what: str
    call: Callable[[], Any]
    lost: type[Exception] | None
    """The error that the sender gets if there is no answer; None if the effect cannot be lost (waiting, reading its own state)."""

    @property
    def waits(self) -> bool:
        return self.what == "wait"

    @property
    def writes(self) -> bool:
        """Whether it matters if, when and how often it takes effect. It does not for a staged file, which no other process knows."""
        verb, _, where = self.what.partition(" ")
        return verb.rpartition(".")[2] in _WRITES and not where.startswith(layout.DATA)

    @property
    def reads_a_slot(self) -> bool:
        verb, _, where = self.what.partition(" ")
        return verb.endswith(".get") and where.startswith(layout.SLOTS)


@dataclass(frozen=True)
class Failed:
    """An effect that raised instead of answering."""

    error: Exception


def landed(effect: Effect) -> Any:
    """The real result, as an answer for the sender; a broken promise is raised instead."""
    try:
        return effect.call()
    except Broken:
        raise
    except Exception as error:
        return Failed(error)


class _Yielded:
    def __init__(self, effect: Effect) -> None:
        self._effect = effect

    def __await__(self) -> Generator[Effect, Any, Any]:
        return (yield self._effect)


class Process:
    """A simulated process. `over` is set when it has ended, `answer` is then its result or exception."""

    running: Process | None = None
    """The process whose code runs now; set by the scheduler."""

    def __init__(self, name: str, kind: str) -> None:
        self.name, self.kind = name, kind
        self.frozen = self.over = self.dead = False
        self.pending: Effect | None = None
        self.answer: object = None
        self.lease: FileLease | None = None
        self.thread = threading.get_ident()
        """The one that its code runs in; the scheduler's, unless it has its own."""

    def __str__(self) -> str:
        return self.name

    def resume(self, reply: object) -> None:
        """Runs the process to its next effect, or to its end."""
        before, Process.running = Process.running, self
        self.pending = None
        try:
            self._run(reply)
        finally:
            Process.running = before

    def kill(self) -> None:
        if self.over:
            return
        self.dead = True
        before, Process.running = (
            Process.running,
            self,
        )  # effects from its `finally` blocks are refused on behalf of this process
        try:
            self._end()
        finally:
            Process.running = before
        self.over, self.pending = True, None

    def _run(self, reply: object) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError

    async def ask(self, effect: Effect) -> Any:
        """Called by the process itself: sends an effect and returns its answer."""
        raise NotImplementedError

    def _finished(self, answer: object) -> None:
        self.over, self.answer = True, answer


class Client(Process):
    """An owner, a follower or a command: a coroutine of the engine."""

    def __init__(self, name: str, kind: str, body: Callable[[Client], Coroutine[Any, Any, Any]]) -> None:
        super().__init__(name, kind)
        self._body = body(self)
        self.resume(None)

    async def ask(self, effect: Effect) -> Any:
        if self.dead:
            raise Killed
        return await _Yielded(effect)

    def _run(self, reply: object) -> None:
        try:
            if isinstance(reply, Failed):
                self.pending = self._body.throw(reply.error)
            else:
                self.pending = self._body.send(reply)
        except StopIteration as done:
            self._finished(done.value)
        except Exception as error:
            self._finished(error)

    def _end(self) -> None:
        with contextlib.suppress(Killed):
            self._body.close()


class Driver(Process):
    """Job code, in a thread of its own that runs only while the scheduler waits for it."""

    def __init__(self, name: str, body: Callable[[Driver], Any]) -> None:
        super().__init__(name, "driver")
        self._go, self._stopped = _thread.allocate_lock(), _thread.allocate_lock()
        self._go.acquire()
        self._stopped.acquire()
        self._reply: object = None
        self._body = body
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()
        self.resume(None)

    async def ask(self, effect: Effect) -> Any:
        if self.dead:
            raise Killed
        self.pending = effect
        self._stopped.release()
        self._go.acquire()
        if self.dead:
            raise Killed
        if isinstance(self._reply, Failed):
            raise self._reply.error
        return self._reply

    def _main(self) -> None:
        self.thread = threading.get_ident()
        self._go.acquire()
        try:
            if not self.dead:
                self._finished(self._body(self))
        except Killed:
            pass
        except (Exception, SystemExit) as error:
            self._finished(error)
        finally:
            self._stopped.release()

    def _run(self, reply: object) -> None:
        self._reply = reply
        self._go.release()
        self._stopped.acquire()
        if self.over:
            self._thread.join()

    def _end(self) -> None:
        self._go.release()
        self._thread.join()


async def ask(effect: Effect) -> Any:
    """Sends the effect from the process that runs now. Outside of any process it takes effect at once, and so does what a process reads in
    threads of a pool, beside which it cannot be stopped."""
    process = Process.running
    if process is None or process.thread != threading.get_ident():
        return effect.call()
    return await process.ask(effect)
