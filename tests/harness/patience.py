"""Stretches the time limits of waits on a busy machine.

Tests state limits for a quiet machine. While more processes are runnable than there are cores, each gets a fraction of a core and takes
longer, so elapsed time counts for that much less; while the process that a test waits for uses CPU, it counts least of all. A load of 20
therefore makes a test slow, not red. A wait for something that never happens still ends, after `MOST` times its limit or at pytest's own.
Limits after which a client gives up, and waits that prove an absence, are not stretched, since time is what they test.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

from harness.forked import started

T = TypeVar("T")

MOST = 10.0
"""The maximum factor by which a wait is stretched."""
SLACK = 3.0
"""How many times longer than promised something may take on a quiet machine, since the test's own work is measured, too."""
ABORTS = 10.0
"""Seconds for an aborted process to print its stacks."""
LOAD = Path("/proc/loadavg")
LOOK = 0.5
"""Poll interval in seconds for processes and tasks; waits return as soon as they end."""


def slowness() -> float:
    """How many times longer than on a quiet machine things take now: runnable processes per core, between 1 and `MOST`.

    The larger of the last minute's average and the current number, so that a load that has just begun counts, too. 1 if the kernel does not
    provide it.
    """
    try:
        minute, _, _, running, _ = LOAD.read_text().split()
        runnable = max(float(minute), float(running.partition("/")[0]) - 1)  # this process runs, too
    except (OSError, ValueError):
        return 1.0
    return min(MOST, max(1.0, runnable / (os.cpu_count() or 1)))


def stretched(seconds: float) -> float:
    """A time limit for a call, scaled from a quiet machine to the current load."""
    return seconds * slowness()


def promised(seconds: float) -> float:
    """The maximum duration, measured just now, of something that is promised within `seconds`.

    For `assert elapsed < promised(2)`. Where `SLACK` times the promise would hide a defect, the test states a slack of its own:
    `stretched(...)`.
    """
    return stretched(SLACK * seconds)


def cpu_of(pid: int) -> int:
    """Clock ticks of CPU that a process and its descendants have used; changes as long as any of them works. 0 if it is gone."""
    used = 0
    with contextlib.suppress(OSError):  # the process ended meanwhile
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        used = sum(map(int, fields[11:15]))  # user and system time, including that of reaped children
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # the thread ended meanwhile
                used += sum(cpu_of(int(child)) for child in children.read_text(encoding="ascii").split())
    return used


class Patience:
    """A time limit that is checked repeatedly during a wait."""

    def __init__(self, seconds: float, *, progress: Callable[[], object] = lambda: None) -> None:
        """`progress`: a value that changes while the awaited process works, such as its `cpu_of` or the size of its log."""
        self.left = seconds
        """Remaining seconds of a quiet machine."""
        self._progress = progress
        self._reached = progress()
        self._seen = time.monotonic()

    @property
    def pause(self) -> float:
        """Seconds until the next check."""
        return max(0.0, min(LOOK, self.left))

    def over(self) -> bool:
        """Whether the limit is used up: time since the last check counts by the current load, and least if there was progress."""
        now, reached = time.monotonic(), self._progress()
        self.left -= (now - self._seen) / (slowness() if reached == self._reached else MOST)
        self._seen, self._reached = now, reached
        return self.left <= 0


async def within(work: Awaitable[T], seconds: float) -> T:
    """The result of `work`. Cancels it and raises TimeoutError after `seconds` of a quiet machine."""
    task, patience = asyncio.ensure_future(work), Patience(seconds)
    try:
        while not (await asyncio.wait([task], timeout=patience.pause))[0]:
            if patience.over():
                raise TimeoutError(f"not done within {seconds:g} s")
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])


def until_ended(process: subprocess.Popen[Any] | BaseProcess, seconds: float) -> int:
    """The process's exit code. Raises AssertionError if it is alive after `seconds` of a quiet machine without progress."""
    assert process.pid is not None, "it was never started"
    pid, patience = process.pid, Patience(seconds, progress=lambda: cpu_of(process.pid or 0))
    while (code := _ended(process, patience.pause)) is None:
        assert not patience.over(), f"process {pid} has not ended within {seconds:g} s"
    return code


def _ended(process: subprocess.Popen[Any] | BaseProcess, seconds: float) -> int | None:
    if isinstance(process, BaseProcess):
        process.join(seconds)
        return process.exitcode
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(seconds)
    return None


def output_of(process: subprocess.Popen[str], seconds: float) -> tuple[str, str]:
    """Standard output and error of a process, as `communicate` returns them, once it has ended.

    If it has not ended within `seconds` of a quiet machine without progress, ends it and raises AssertionError with its last lines. An
    interpreter's have the stacks of its threads: tests/conftest.py lets each one print them when it is aborted.
    """
    patience = Patience(seconds, progress=lambda: cpu_of(process.pid))
    while True:
        try:
            return process.communicate(timeout=patience.pause)
        except subprocess.TimeoutExpired:
            if not patience.over():
                continue
        process.send_signal(signal.SIGABRT)
        try:
            printed = process.communicate(timeout=ABORTS)
        except subprocess.TimeoutExpired:
            process.kill()
            printed = process.communicate()
        last = "".join(filter(None, printed))[-8000:]
        raise AssertionError(f"{process.args!r} has not ended within {seconds:g} s: {last}")


def completed(
    command: Sequence[str | Path], seconds: float, *, given: str | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` with captured text, and a limit as in `output_of`; `given` is its standard input, `options` are Popen's."""
    with tempfile.TemporaryFile("w+") as source:  # a repeated `communicate` would not send the rest of its input
        if given is not None:
            source.write(given)
            source.seek(0)
            options["stdin"] = source
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with started(command, text=True, **{**pipes, **options}) as process:
            try:
                out, err = output_of(process, seconds)
            except BaseException:  # as `subprocess.run`: an interrupted test leaves no process behind
                process.kill()
                raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)
