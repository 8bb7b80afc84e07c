"""A user's folder with a job file, its script and a ledger, and the command line run in it.

`here` calls the command line in this process, which is cheap; `start` starts a real process, for what only processes show: signals,
two terminals, start-up time. Drivers are always real processes, with `fake_submit.py` in place of spark-submit. A job's script waits by
looking for a file, so that tests do not depend on how long a step takes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import planted
from harness.eventually import assert_eventually
from harness.forked import started
from harness.patience import cpu_of, until_ended
from sparkonce.blocking import run
from sparkonce.cli.app import main
from sparkonce.cli.options import JobArguments
from sparkonce.local.prepare import Prepared
from sparkonce.model import manifest
from sparkonce.model.record import Record
from sparkonce.model.spec import IdempotentJob
from sparkonce.sink.protocol import Slot, SlotState
from sparkonce.store.open import open_store
from sparkonce.store.protocol import Claim, IdempotencyStore, Owned

TESTS = Path(__file__).resolve().parent.parent
PATIENCE = 60.0
"""Seconds for any wait of a test: it starts two interpreters on a machine that other tests use, too."""

WRITES = """
    from harness.arrow_stage import arrow_stage, table_of
    from sparkonce.driver.current import current

    job = current(stager=arrow_stage)
    job.write(table_of(*range(1234)), "numbers")
    job.result(greatest=1233)
"""
"""One output of 1,234 rows, and a value."""

WAITS = """
    import time
    from pathlib import Path

    while not Path("go").exists():
        time.sleep(0.02)
"""
"""Prefix of a script: makes it wait until the test touches `go`."""
STARTED = """
    from pathlib import Path

    Path("started").touch()
"""
"""Prefix of a script: `Desk.driver_runs` waits for it."""
DEAF = """
    import signal

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""
"""Prefix of a script: it ignores SIGTERM."""

FAILS = """
    import sys

    print("looking for the input", file=sys.stderr)
    sys.exit("the input is not there")
"""

TEMPLATE = {"type": "Python", "mainApplicationFile": "job.py"}
OUTPUT = {"name": "numbers", "slotLog": {"path": "lake/numbers"}}


@dataclass(frozen=True)
class Said:
    """The result of a command: exit code, standard output, standard error."""

    code: int
    out: str
    err: str

    @property
    def told(self) -> dict[str, Any]:
        """The single object that `--json` printed."""
        [line] = self.out.splitlines()
        told = json.loads(line)
        assert isinstance(told, dict)
        return told

    @property
    def first(self) -> str:
        return self.out.splitlines()[0]


@dataclass(frozen=True)
class Terminal:
    """One running command."""

    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    def wait_for(self, text: str) -> None:
        """Waits until it has printed this, on either stream."""
        assert_eventually(
            lambda: self._said(text) or self.process.poll() is not None,
            PATIENCE,
            progress=lambda: cpu_of(self.process.pid),
        )
        assert self._said(text), f"it ended with {self.process.poll()}: {self.err.read_text()[-2000:]}"

    def _said(self, text: str) -> bool:
        return text in self.err.read_text() + self.out.read_text()

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        self.process.send_signal(number)

    def end(self) -> Said:
        code = until_ended(self.process, PATIENCE)
        return Said(code, self.out.read_text(), self.err.read_text())


class Desk:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], environment: dict[str, str]) -> None:
        self.folder, self._capsys, self.environment = folder, capsys, environment
        self.ledger = folder / "ledger.db"
        self._terminals: list[Terminal] = []

    # the job

    def job(
        self, script: str = WRITES, *, file: str = "job.yaml", template: dict[str, Any] | None = None, **spec: Any
    ) -> str:
        """Writes job file and script; returns the file's name. Declares one output unless `outputs=[]`."""
        (self.folder / "job.py").write_text(textwrap.dedent(script))
        document = {
            "apiVersion": "sparkonce.dev/v1alpha1",
            "kind": "IdempotentJob",
            "metadata": {"name": "numbers"},
            "spec": {
                "operation": "write",
                "resource": "numbers",
                "template": {
                    "apiVersion": "sparkoperator.k8s.io/v1beta2",
                    "kind": "SparkApplication",
                    "spec": {**TEMPLATE, **(template or {})},
                },
                "outputs": [OUTPUT],
                "retry": {"maxAttempts": 1, "backoff": {"initial": "0s", "max": "0s"}},
                "stopTimeoutSeconds": 6,
                **spec,
            },
        }
        (self.folder / file).write_text(yaml.safe_dump(document))
        return file

    def go(self) -> None:
        (self.folder / "go").touch()

    # commands

    def here(self, *arguments: str) -> Said:
        """Runs the command line in this process."""
        self._capsys.readouterr()
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        code = main(arguments)
        assert {number: signal.getsignal(number) for number in before} == before
        captured = self._capsys.readouterr()
        planted.said("standard output", captured.out)
        planted.said("standard error", captured.err)
        assert "Traceback" not in captured.err
        if "--json" not in arguments:  # indented lines quote the job's own log
            assert not any("Traceback" in line for line in captured.out.splitlines() if not line.startswith("    "))
        return Said(code, captured.out, captured.err)

    def job_from(self, verb: str, text: str, *options: str) -> tuple[Said, IdempotentJob]:
        """The job that `convert` or `bind` prints for an application, read like any job file."""
        (self.folder / "app.yaml").write_text(text)
        said = self.here(verb, "app.yaml", *options)
        assert said.code == 0, said.err
        return said, manifest.load(said.out, params={}, source="printed")

    def driver_runs(self) -> None:
        """Waits until the job's script, which begins with `STARTED`, has begun."""
        assert_eventually((self.folder / "started").exists, PATIENCE)

    def start(self, *arguments: str, **environment: str) -> Terminal:
        """Starts the command line as a process, as from a shell."""
        number = len(self._terminals)
        out, err = self.folder / f"terminal-{number}.out", self.folder / f"terminal-{number}.err"
        planted.output(out)
        planted.output(err)
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = started(
                [sys.executable, "-m", "sparkonce", *arguments],
                cwd=self.folder,
                env={**os.environ, **self.environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
        self._terminals.append(Terminal(process, out, err))
        return self._terminals[-1]

    def leader(self, *options: str) -> Terminal:
        """Runs the job of `WRITES` in a terminal; its driver has begun and waits for `go`."""
        self.job(STARTED + WAITS + WRITES)
        terminal = self.start("run", "job.yaml", *options)
        self.driver_runs()
        return terminal

    def follower(self, *options: str) -> Terminal:
        """Sends the job from one more terminal, which waits for the leader."""
        terminal = self.start("run", "job.yaml", *options)
        terminal.wait_for("running elsewhere (pid")
        return terminal

    def close(self) -> None:
        """Ends everything that the test started: drivers end by themselves once `go` exists."""
        self.go()
        for terminal in self._terminals:
            if terminal.process.poll() is None:
                terminal.process.kill()
            until_ended(terminal.process, PATIENCE)

    # observations

    def prepared(self, file: str = "job.yaml") -> Prepared:
        return JobArguments.of(str(self.folder / file)).prepared()

    @contextlib.contextmanager
    def store(self) -> Iterator[IdempotencyStore]:
        store = open_store(str(self.ledger))
        try:
            yield store
        finally:
            run(store.close())

    @contextlib.contextmanager
    def owned_elsewhere(self, owner: str = "pid 1 on elsewhere") -> Iterator[tuple[IdempotencyStore, Record, Claim]]:
        """Reserves the job of `job.yaml` for another, living owner."""
        prepared = self.prepared()
        with self.store() as store:
            lease = run(store.open_lease(owner=owner))
            owned = run(store.reserve(prepared.request("elsewhere"), lease=lease, floor=0))
            assert isinstance(owned, Owned)
            yield store, owned.record, owned.claim
            run(lease.revoke())

    def commits(self, output: str = "numbers") -> list[Slot]:
        """Every committed slot: the effects, counted where they are."""
        paths = (self.folder / "lake" / output).glob("_idem/*-g*/*.json")
        slots = [Slot.model_validate_json(path.read_bytes()) for path in paths]
        return [slot for slot in slots if slot.state is SlotState.COMMITTED]

    def attempts(self) -> int:
        """Applications that were really started."""
        folder = Path(f"{self.ledger}.attempts")
        return sum(1 for _ in folder.iterdir()) if folder.exists() else 0
