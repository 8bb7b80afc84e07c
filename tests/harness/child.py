"""A server process of a test: started, killed, frozen, and started again with the same command.

It dies with the process that started it, however that process dies (the kernel does it, through setpriv): a killed test run leaves no
server behind. Its output goes to a file, because a pipe that is not read would block the server.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.eventually import INTERVAL, assert_eventually
from harness.forked import forked
from harness.patience import cpu_of, until_ended

REAP_TIMEOUT = 10.0
"""Seconds until a killed process is gone: the kernel's work, long only if memory or disk are busy."""
DEAD = {"Z", "X"}
LAST_LINES = 15
"""Log lines quoted for a server that did not start; the reason is near the end."""


PORTS = range(20_000, 30_000)
"""Ports of servers that tests start; Kubernetes' node ports begin at 30,000."""


_drawn: deque[int] = deque(maxlen=500)
"""Ports that this process drew lately. Their servers may not listen yet."""


def free_port() -> int:
    """A free port on loopback, below those that the kernel gives to outgoing connections, which would take it before the server does. Two
    calls in a row give two ports."""
    while True:
        port = secrets.choice(PORTS)
        if port in _drawn:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _drawn.append(port)
            return port


def freeze(pid: int) -> None:
    """Sends SIGSTOP and waits until all threads have stopped: right after the signal, one on another core may still answer."""
    os.kill(pid, signal.SIGSTOP)
    assert_eventually(lambda: frozen(pid) or not alive(pid), REAP_TIMEOUT)


def frozen(pid: int) -> bool:
    """The process exists, and none of its threads can run."""
    return "T" in (found := _states(pid)) and found <= {"T", *DEAD}


def alive(pid: int) -> bool:
    """A thread of the process can run, now or when it is woken. A zombie holds no resources and does not count."""
    return bool(_states(pid) - DEAD)


def _states(pid: int) -> set[str]:
    """States of the process's threads, in the kernel's letters; empty if it is gone."""
    found = set()
    with contextlib.suppress(OSError):  # the process ended meanwhile
        for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):  # the thread ended meanwhile
                found.add(stat.read_text(encoding="ascii").rpartition(")")[2].split()[0])
    return found


class NotStarted(Exception):
    """A server ended instead of serving, or did not serve in time; the message has its last lines."""


class Child:
    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name, self.command, self.log = name, list(command), log
        self.environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        assert not self.running, f"{self.name} runs already"
        setpriv = shutil.which("setpriv")
        dies_with_us = [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
        with self.log.open("ab") as log:
            how: dict[str, Any] = {
                "stdin": subprocess.DEVNULL,
                "stdout": log,
                "stderr": subprocess.STDOUT,
                "env": {**os.environ, **self.environment},
                "start_new_session": True,  # a Ctrl-C in the terminal goes to pytest alone, which then ends its servers in order
            }
            self._process = forked(self.command, **how) or subprocess.Popen([*dies_with_us, *self.command], **how)

    def until(self, serves: Callable[[], object], timeout: float, *, interval: float = INTERVAL) -> None:
        """Returns once `serves()`. Raises NotStarted at once if the process has ended, or after `timeout` seconds without progress."""
        try:
            assert_eventually(
                lambda: not self.running or serves(), timeout, interval=interval, progress=lambda: cpu_of(self.pid)
            )
        except AssertionError as late:
            raise NotStarted(f"{self.name} did not serve within {timeout:g} s: {self.last_words()}") from late
        if not self.running:
            raise NotStarted(f"{self.name} ended before it served: {self.last_words()}")

    def kill(self) -> None:
        """SIGKILL; the process is gone when this returns. Does nothing if it is not running."""
        self.end(signal.SIGKILL, timeout=REAP_TIMEOUT)

    def end(self, number: signal.Signals = signal.SIGTERM, *, timeout: float = 10.0) -> None:
        """Ends the process with this signal, and kills it after `timeout` seconds; it is gone when this returns."""
        if self._process is None:
            return
        if self.running:
            self._process.send_signal(number)
            try:
                until_ended(self._process, timeout)
            except AssertionError:
                self._process.kill()
        until_ended(self._process, REAP_TIMEOUT)

    def freeze(self) -> None:
        """SIGSTOP: the process keeps its connections and answers nothing."""
        freeze(self.pid)

    def thaw(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it may have been killed while it was frozen
            os.kill(self.pid, signal.SIGCONT)

    def last_words(self) -> str:
        if not self.log.exists():
            return "it wrote nothing"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LAST_LINES:])
