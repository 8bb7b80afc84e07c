"""An attempt on this machine whose command is a few lines of shell or Python, and its processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from harness.granted import granted
from sparkonce.launch.local import Command, LocalLauncher, _environment, _processes
from sparkonce.launch.protocol import ENDED, ApplicationState, StillThere, Stopped
from sparkonce.model.record import NONCE_ENVIRONMENT, Assignment

PATIENCE = 120  # seconds; each wait takes well under one on an idle machine, and twenty at a load of 15
FOREVER = "while :; do sleep 0.05; done"
UNTIL_GO = "while [ ! -e go ]; do sleep 0.05; done"


@dataclass
class LocalScene:
    folder: Path
    assignment: Assignment

    @classmethod
    def of(cls, folder: Path) -> LocalScene:
        assignment = granted(folder, "orders").assignment
        nonce = f"{assignment.nonce}-{os.getpid()}-{folder.name}"  # differs from that of any other test running now
        return cls(folder, assignment.model_copy(update={"nonce": nonce}))

    @property
    def attempt(self) -> Path:
        return self.folder / "attempts" / self.assignment.name

    def launcher(self, *argv: str, **environment: str) -> LocalLauncher:
        command = Command(argv=argv, environment=environment, folder=str(self.folder))
        return LocalLauncher(self.folder / "attempts", lambda _: command)

    def shell(self, script: str, **environment: str) -> LocalLauncher:
        return self.launcher("/bin/sh", "-c", script, **environment)

    def python(self, script: str) -> LocalLauncher:
        return self.launcher(sys.executable, "-c", script)

    def launch(self, launcher: LocalLauncher) -> ApplicationState:
        return asyncio.run(launcher.launch(self.assignment))

    def look(self) -> ApplicationState | None:
        """The attempt's state as any other process sees it."""
        return asyncio.run(self.launcher("true").observe(self.assignment))

    def seen(self) -> ApplicationState:
        """The attempt's state, which must exist."""
        seen = self.look()
        assert seen is not None
        return seen

    def ended(self) -> ApplicationState:
        """The attempt's state, which must be an end."""
        seen = self.seen()
        assert seen.phase in ENDED, seen
        return seen

    def stop(self, timeout: float = PATIENCE) -> Stopped | StillThere:
        return asyncio.run(self.launcher("true").stop(self.assignment, timeout=timeout))

    def written(self, name: str) -> str:
        """The content of a file in the job's folder; empty if there is none."""
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def running(self) -> list[int]:
        """Pids of all processes that carry the attempt's nonce."""
        marker = f"{NONCE_ENVIRONMENT}={self.assignment.nonce}".encode()
        return [pid for pid, _ in _processes() if marker in _environment(pid)]

    def clear(self) -> None:
        for pid in self.running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
