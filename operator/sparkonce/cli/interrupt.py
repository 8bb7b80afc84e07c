"""Ctrl-C and SIGTERM while a job is run or awaited: they are wishes, carried out by the engine, never an end in the middle.

The first one asks: the leader of a key stops its attempt and settles it, whoever only waits stops waiting. Later ones say what is going
on. The handler does nothing itself but hand the wish to the event loop, so it can come at any moment, before the key is reserved as
well: then the wish waits until there is something to stop. `loop.add_signal_handler` was not taken, because removing it gives
Ctrl-C back to Python, whose KeyboardInterrupt would then show a traceback in the last lines of a command.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import signal
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar

from sparkonce.cli.progress import Progress
from sparkonce.engine.embedded import Embedded
from sparkonce.model.record import Record

T = TypeVar("T")

SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


def person() -> str:
    """Who gives this command, for the record's history."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container may run as a number that no table of users has
        return f"uid {os.getuid()}"


class Wishes:
    """Signals of one command that drives or awaits a key."""

    def __init__(self, embedded: Embedded, progress: Progress, *, detachable: bool) -> None:
        self.embedded, self.progress, self.detachable = embedded, progress, detachable
        self.name = ""
        """Of the first signal; empty while there was none."""
        self._leads: Record | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        embedded.on_leader = self._led

    def caught(self, number: int, _: FrameType | None) -> None:
        """The signal handler."""
        if self._loop is None:
            os._exit(128 + number)  # nothing has begun
        with contextlib.suppress(RuntimeError):  # the loop has just ended, and so has what could be stopped
            self._loop.call_soon_threadsafe(self._wish, SIGNALS[signal.Signals(number)])

    def _led(self, record: Record) -> None:
        self._leads = record
        if self.name:
            self._cancel()

    def _wish(self, name: str) -> None:
        again, self.name = bool(self.name), self.name or name
        if again:
            self.progress.say(
                f"{name} again: this is settling already and ends within stopTimeoutSeconds; "
                "if you kill it (kill -9), nothing is lost: the next `sparkonce run` goes on where it stands"
            )
        elif self._leads is None and self.detachable and self._task is not None:
            self._task.cancel()
        else:
            self._cancel()

    def _cancel(self) -> None:
        if self._leads is not None:
            self.progress.say(f"{self.name}: stopping attempt {self._leads.attempt} and settling what it wrote")
        self.embedded.cancel(person(), self.name)

    async def during(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        return await work()


def interruptible(
    embedded: Embedded, work: Callable[[], Coroutine[Any, Any, T]], *, progress: Progress, detachable: bool = False
) -> T | None:
    """The result of the coroutine; None when it was detached by a signal (only where `detachable`: nothing but waiting is given up)."""
    wishes = Wishes(embedded, progress, detachable=detachable)
    before = {number: signal.signal(number, wishes.caught) for number in SIGNALS}
    try:
        return asyncio.run(wishes.during(work))
    except asyncio.CancelledError:
        return None
    finally:
        progress.close()
        for number, handler in before.items():
            signal.signal(number, handler)
