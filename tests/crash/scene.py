"""One key on a ledger of its own, real processes, and the final content of its outputs.

Effects are counted in the slots and rows of the tables, never by log lines or exit codes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import yaml
from pyarrow import parquet

from harness.child import frozen
from harness.eventually import assert_eventually
from harness.forked import started
from harness.patience import Patience, until_ended

HERE = Path(__file__).parent
ROWS = 7
OUTPUTS = {"one": "a", "two": "ab", "tx": "ab", "mixed": "abc"}
PATIENCE = 240  # seconds for one command: two interpreters, or a JVM, and a few attempts on a busy machine
FREEZES = 3
"""Attempts that are frozen until one does not hold the ledger's lock: a beat takes milliseconds of two seconds."""


def gate_of(folder: Path) -> Path:
    """The gate of the scene in a folder."""
    return folder / "gate"


@dataclass
class Scene:
    folder: Path
    shape: str = "one"
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    script: Path = HERE / "job.py"
    submit: Path | None = HERE.parent / "harness" / "fake_submit.py"
    commands: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """All processes that were started."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        job = {
            "apiVersion": "sparkonce.dev/v1alpha1",
            "kind": "IdempotentJob",
            "metadata": {"name": "crash"},
            "spec": {
                "idempotencyKey": "crash-test",
                "template": {
                    "apiVersion": "sparkoperator.k8s.io/v1beta2",
                    "kind": "SparkApplication",
                    "spec": {
                        "type": "Python",
                        "mainApplicationFile": str(self.script),
                        "arguments": [self.shape, str(ROWS), *self.options],
                    },
                },
                "outputs": [{"name": o, "slotLog": {"path": f"lake/{o}"}} for o in OUTPUTS[self.shape]],
                "retry": {"maxAttempts": 50, "backoff": {"initial": "0s", "max": "0s"}},
                "heartbeatTimeoutSeconds": 2,
                "startTimeoutSeconds": 20 if self.submit else 120,  # a JVM takes longer to start
                "stopTimeoutSeconds": 4,
                **self.spec,
            },
        }
        (self.folder / "job.yaml").write_text(yaml.safe_dump(job))

    @classmethod
    def in_spark(
        cls,
        folder: Path,
        script: str,
        *arguments: str,
        conf: Mapping[str, str],
        outputs: Sequence[Any],
        template: Mapping[str, Any] = MappingProxyType({}),
        **spec: Any,
    ) -> Self:
        """A scene whose script, one of this folder or an absolute path, runs in a real Spark with these settings. template: further
        fields of the application. Other arguments: fields of `spec`."""
        path = HERE / script
        application = {
            "apiVersion": "sparkoperator.k8s.io/v1beta2",
            "kind": "SparkApplication",
            "spec": {
                "type": "Python",
                "mainApplicationFile": str(path),
                "arguments": list(arguments),
                "sparkConf": dict(conf),
                **template,
            },
        }
        given = {"template": application, "outputs": list(outputs), "heartbeatTimeoutSeconds": 10, **spec}
        return cls(folder, submit=None, script=path, spec=given)

    @property
    def gate(self) -> Path:
        """While it exists, a script that is given this path waits inside its first statement."""
        return gate_of(self.folder)

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.db"

    def run(
        self, failpoints: str = "", command: Sequence[str] = ("run", "job.yaml"), *, program: str = "sparkonce"
    ) -> subprocess.Popen[bytes]:
        """Starts a `sparkonce` command, `run` by default, in a session of its own. program: the module that has the command line."""
        number = len(list(self.folder.glob("*.out")))
        once = self.folder / f"once-{number}"
        once.mkdir()
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE.parent), os.environ.get("PYTHONPATH")))),
            "SPARKONCE_LEASE_SECONDS": "2",
            "SPARKONCE_PATIENCE": "1",
            "SPARKONCE_FAILPOINTS": failpoints,
            "SPARKONCE_FAILPOINTS_ONCE": str(once),
            "SPARKONCE_FAILPOINTS_LOG": str(self.folder / "hits"),
            **self.environment,
        }
        if self.submit is not None:
            environment["SPARKONCE_SPARK_SUBMIT"] = str(self.submit)
        with (self.folder / f"{number}.out").open("wb") as out:
            process = started(
                [sys.executable, "-m", program, *command, "--store", str(self.ledger), "--json"],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.commands.append(process)
        return process

    def kill_at(self, point: str, *, skip: int = 0, patience: float = PATIENCE) -> None:
        """Runs the job until a process of it has died at this step, after it passed it `skip` times; then driver and runner are dead."""
        fault = f"{point}=kill"
        earlier = self.hits().count(fault)
        runner = self.run(f"{point}={skip}*off->1*kill" if skip else f"{point}=1*kill")
        assert_eventually(lambda: self.hits().count(fault) > earlier or runner.poll() is not None, patience)
        runner.kill()
        runner.wait()
        self.signal_attempts(signal.SIGKILL)
        assert self.hits().count(fault) > earlier, self.last_output()

    def run_to_gate(self, *, patience: float = PATIENCE) -> subprocess.Popen[bytes]:
        """Runs the job until its script waits at the gate."""
        self.gate.touch()
        runner = self.run()
        inside = Path(f"{self.gate}.inside")
        assert_eventually(lambda: inside.exists() or runner.poll() is not None, patience)
        assert runner.poll() is None, self.last_output()
        return runner

    def freeze_at(self, point: str) -> int:
        """Runs the job until a process of it has frozen at this step, and kills the runner. Returns the number of the attempt. If its
        heartbeat held the ledger's lock at that moment, nobody could go on beside it: then it is killed, and the next attempt freezes."""
        for attempt in range(1, FREEZES + 1):
            runner = self.run(f"{point}=1*stop")
            assert_eventually(
                lambda runner=runner: any(map(frozen, self.attempts())) or runner.poll() is not None,  # type: ignore[misc] # a default in a lambda has no type
                PATIENCE,
            )
            runner.kill()
            runner.wait()
            assert any(map(frozen, self.attempts())), self.last_output()
            if not self.locked():
                return attempt
            self.signal_attempts(signal.SIGKILL)
        raise AssertionError(f"at {point} each of {FREEZES} attempts held the ledger's lock")

    def signal_at_gate(self, number: signal.Signals, *, patience: float = PATIENCE) -> None:
        """Kills the runner and sends this signal to the whole attempt while its script waits at the gate, which is open afterwards."""
        runner = self.run_to_gate(patience=patience)
        runner.kill()
        runner.wait()
        self.signal_attempts(number)
        self.gate.unlink()

    def finish_beside_zombie(self) -> None:
        """Sends the job again; its frozen attempt, which cannot be stopped, is replaced by one that succeeds."""
        assert until_ended(self.run(program="crash.out_of_reach"), PATIENCE) == 0, self.last_output()
        assert self.said()["phase"] == "Succeeded"
        assert any(map(frozen, self.attempts()))

    def wake(self, *refusals: str, patience: float = PATIENCE) -> None:
        """Lets the frozen attempt go on until it has ended. It must have failed and said one of `refusals`, of ours by default: else it was
        not refused, or never went on."""
        zombies = set(self.attempts().values())
        self.signal_attempts(signal.SIGCONT)
        assert_eventually(lambda: not self.attempts(), patience)
        [folder] = zombies
        said = (folder / "stdout").read_text() + (folder / "stderr").read_text()
        assert (folder / "exit").read_text().strip() != "0", said
        assert any(each in said for each in refusals or ("Fenced", "AttemptEnded")), said

    def finish(self, tries: int = 6) -> dict[str, Any]:
        """Sends the job again, without faults, until it has Succeeded; returns the answer of the last run."""
        code = -1
        for _ in range(tries):
            code = until_ended(self.run(), PATIENCE)
            if code == 0:
                return self.said()
        raise AssertionError(f"no success after {tries} clean runs; the last ended with {code}:\n{self.last_output()}")

    def said(self) -> dict[str, Any]:
        text = self.last_output()
        return dict(json.loads(text[text.index("{") :]))

    def last_output(self) -> str:
        outputs = sorted(self.folder.glob("*.out"), key=lambda p: int(p.stem))
        return outputs[-1].read_text(errors="replace") if outputs else ""

    # observations
    def slots(self, output: str) -> list[dict[str, Any]]:
        return [json.loads(p.read_text()) for p in sorted((self.folder / "lake" / output).glob("_idem/*-g*/*.json"))]

    def rows(self, output: str) -> list[int]:
        """The rows that a reader of the output gets."""
        table = self.folder / "lake" / output
        files = [f["path"] for slot in self.slots(output) if slot["state"] == "committed" for f in slot["files"]]
        return sorted(
            int(n)
            for f in files
            for n in parquet.read_table(table / f, partitioning=None)["n"].to_pylist()
            if n is not None
        )

    def check(self) -> None:
        """Asserts that each output has exactly one committed effect, and the right rows."""
        for index, output in enumerate(OUTPUTS[self.shape]):
            slots = self.slots(output)
            committed = Counter(s["sinkKey"] for s in slots if s["state"] == "committed")
            assert list(committed.values()) == [1], f"{output}: {slots}"
            assert list(range(index * ROWS, (index + 1) * ROWS)) == self.rows(output), output

    def staged(self) -> list[str]:
        """By output, the staging folders that no committed slot names."""
        left = []
        for output in OUTPUTS[self.shape]:
            named = {
                Path(f["path"]).parent for s in self.slots(output) if s["state"] == "committed" for f in s["files"]
            }
            table = self.folder / "lake" / output
            left += [str(p) for p in table.glob("_data/*/*") if p.relative_to(table) not in named]
        return left

    def attempts_made(self) -> list[str]:
        """Names of all applications that were ever created."""
        return sorted(p.name for p in Path(f"{self.ledger}.attempts").glob("so-*"))

    def hits(self) -> list[str]:
        path = self.folder / "hits"
        return path.read_text().split() if path.exists() else []

    # processes
    def attempts(self) -> dict[int, Path]:
        """All processes that run for an attempt of this scene, by pid: the attempt's folder."""
        marker = f"SPARKONCE_ATTEMPT_FOLDER={self.ledger}.attempts/".encode()
        found = {}
        for entry in filter(str.isdigit, (p.name for p in Path("/proc").iterdir())):
            with contextlib.suppress(OSError):
                given = [
                    each
                    for each in Path("/proc", entry, "environ").read_bytes().split(b"\0")
                    if each.startswith(marker)
                ]
                if given:
                    found[int(entry)] = Path(given[0].decode().partition("=")[2])
        return found

    def stopped(self, *pids: int) -> list[int]:
        return [pid for pid in pids if frozen(pid)]

    def locked(self) -> bool:
        """Whether a process holds the ledger's write lock for longer than any write takes."""
        if not self.ledger.exists():
            return False
        connection = sqlite3.connect(self.ledger, timeout=2.0, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return True
        finally:
            connection.close()
        return False

    def signal_attempts(self, number: signal.Signals) -> None:
        for pid in self.attempts():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def clear(self) -> None:
        """Kills all remaining processes of this scene."""
        for command in self.commands:
            if command.poll() is None:
                command.kill()
                command.wait()
        patience = Patience(10)
        while self.attempts() and not patience.over():
            self.signal_attempts(signal.SIGKILL)
