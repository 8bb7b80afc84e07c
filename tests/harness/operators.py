"""Operator processes for tests, started as a user would start them, killed and frozen by pid."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import planted
from harness.child import free_port, freeze
from harness.eventually import assert_eventually
from harness.forked import PROGRAM, started
from harness.patience import cpu_of, stretched, until_ended

READY = 60.0
"""Seconds: importing everything takes two on a free core, and 22 beside nine other test runs."""


@dataclass
class OperatorProcess:
    """A `python -m sparkonce operator` process; its log is the file `log`."""

    ledger: str
    install: str
    kubeconfig: Path
    namespaces: Sequence[str]
    folder: Path
    name: str = "operator"
    lease_seconds: int = 3
    sweep_seconds: float = 5.0
    settle: str = "operator"
    """"operator", since it shares its file system with the drivers of these tests."""
    options: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable
    program: Sequence[str] = PROGRAM
    process: subprocess.Popen[bytes] | None = None
    port: int = 0

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} was not started"
        return self.process.pid

    def start(self, *, wait: bool = True) -> OperatorProcess:
        self.port = free_port()
        command = [
            self.python,
            *self.program,
            "operator",
            "--store",
            self.ledger.replace("http://", "etcd://"),
            "--install",
            self.install,
        ]
        command += [part for namespace in self.namespaces for part in ("--namespace", namespace)]
        command += ["--kubeconfig", str(self.kubeconfig), "--http", f"127.0.0.1:{self.port}"]
        command += [
            "--lease-seconds",
            str(self.lease_seconds),
            "--sweep-seconds",
            str(self.sweep_seconds),
            "--settle",
            self.settle,
            *self.options,
        ]
        planted.output(self.log)
        with self.log.open("ab") as log:
            self.process = started(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, **self.environment}
            )
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, timeout: float = READY) -> None:
        process = self.process
        assert process is not None
        assert_eventually(
            lambda: process.poll() is not None or self.ready(),
            timeout,
            interval=0.1,
            progress=lambda: cpu_of(process.pid),
        )
        assert process.poll() is None, f"{self.name} ended with {process.returncode}:\n{self.tail()}"

    def ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"{self.name} ended with {self.process.returncode}:\n{self.tail()}"
        try:
            return self._get("/readyz", timeout=stretched(2.0))[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def said_ready(self) -> str:
        """The answer of /readyz, `ok` or what is missing; empty if there is none."""
        try:
            return self._get("/readyz", timeout=stretched(2.0))[1].strip()
        except (OSError, http.client.HTTPException):
            return ""

    def metrics(self) -> str:
        return self._get("/metrics", timeout=5.0)[1]

    def _get(self, path: str, *, timeout: float) -> tuple[int, str]:
        """Status and text. Does not use httpx, which reads all certificates of the machine for each new client: 40 ms of a busy core."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, planted.said(f"{self.name} {path}", answer.read().decode())
        finally:
            connection.close()

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def tail(self, lines: int = 60) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        assert self.process is not None
        self.process.wait()

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def freeze(self) -> None:
        freeze(self.pid)

    def thaw(self) -> None:
        self.send(signal.SIGCONT)

    def terminate(self, timeout: float = 20.0) -> float:
        """Stops it gracefully; returns the seconds that it took."""
        began = time.monotonic()
        self.send(signal.SIGTERM)
        self.terminated(timeout)
        return time.monotonic() - began

    def terminated(self, timeout: float = 20.0) -> None:
        """Stops it gracefully and checks that it ended in time."""
        assert self.process is not None
        code = until_ended(self.process, timeout)
        assert code == 0, f"{self.name} ended with {code}:\n{self.tail()}"

    def end(self) -> None:
        """Ends the process in whatever state it is."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
