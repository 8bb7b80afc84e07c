"""A server that a test starts as a process of its own: started, killed, frozen, started again with the same command.

It dies with the process that started it, however that one dies (the kernel sees to it, through setpriv): a test run that is killed
leaves no server behind. Its output goes to a file, because a pipe that nobody reads stops a server in the middle of a sentence.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.eventually import assert_eventually

REAP_TIMEOUT = 10.0
"""Seconds for a killed process to be gone: the kernel's work, long only where memory or disk are."""
DEAD = {"Z", "X"}
LAST_LINES = 15
"""Of the log of a server that would not start; the reason is near the end."""


def free_port() -> int:
    """A port on loopback that nobody listens on now. Somebody else may take it first: the server then does not start, and says so."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        assert isinstance(port, int)
        return port


def freeze(pid: int) -> None:
    """SIGSTOP, and none of its threads runs any more when this returns: after the signal alone, one on another core may still answer."""
    os.kill(pid, signal.SIGSTOP)
    assert_eventually(lambda: frozen(pid) or not alive(pid), REAP_TIMEOUT)


def frozen(pid: int) -> bool:
    """It is there, and none of its threads can run."""
    return "T" in (found := _states(pid)) and found <= {"T", *DEAD}


def alive(pid: int) -> bool:
    """Some thread of it may run, now or when it is woken. One that is dead and that nobody has waited for holds nothing any more."""
    return bool(_states(pid) - DEAD)


def _states(pid: int) -> set[str]:
    """Of its threads, in the kernel's letters; none of a process that is gone."""
    found = set()
    with contextlib.suppress(OSError):  # it ended meanwhile
        for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):  # a thread did
                found.add(stat.read_text(encoding="ascii").rpartition(")")[2].split()[0])
    return found


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
            self._process = subprocess.Popen(
                [*dies_with_us, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
                start_new_session=True,  # a Ctrl-C in the terminal is for pytest, which then ends its servers in order
            )

    def kill(self) -> None:
        """SIGKILL; gone when this returns. Nothing happens to one that is not running."""
        self.end(signal.SIGKILL, timeout=REAP_TIMEOUT)

    def end(self, number: signal.Signals = signal.SIGTERM, *, timeout: float = 10.0) -> None:
        """Gone when this returns: asked by this signal, and killed if it takes longer than `timeout` seconds."""
        if self._process is None:
            return
        if self.running:
            self._process.send_signal(number)
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait(REAP_TIMEOUT)

    def freeze(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing."""
        freeze(self.pid)

    def thaw(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it may have been killed while it was frozen
            os.kill(self.pid, signal.SIGCONT)

    def last_words(self) -> str:
        if not self.log.exists():
            return "it wrote nothing"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LAST_LINES:])
