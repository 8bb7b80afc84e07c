"""Measures how long a duplicate waits for the recorded result, in a process and as a command.

In the process: read the job file, compute key and fingerprint, open the ledger, look up, answer, check all files of the output, close the
ledger; all modules are loaded before. As a command: `python -m sparkonce run job.yaml --json` from start to exit, compared with
`python -c pass`, the minimum for any Python command. Its CPU, nearly all of it imports, and that of `python -m sparkonce --version` are
compared with a Python that imports pydantic and builds one model: a figure that hardly depends on the machine.

Beforehand, the engine drives the key to its end with a real driver process that writes eight files. Every timed replay is checked as well:
its answer must be a replay, and afterwards there must still be one generation and one attempt.
"""

from __future__ import annotations

import asyncio
import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import yaml
from measure import Cost, Goal, Row, WrongEffect, measured, pair_text
from replayed_job import FILES, ROWS

from attempt import OUTPUT, job, slot_log
from sparkonce.attempt.request import Answer
from sparkonce.blocking import run
from sparkonce.launch.local import Command, LocalLauncher
from sparkonce.local.prepare import Prepared, prepare
from sparkonce.local.runner import LocalRunner, attempts_folder
from sparkonce.model.manifest import load
from sparkonce.model.record import Outcome
from sparkonce.sink.protocol import Evidence
from sparkonce.sink.slotlog.snapshot import Table
from sparkonce.store.open import open_store

INSIDE, COMMAND, BARE = "in the process", "the command", "python -c pass"
VERSION, PYDANTIC = "--version", "pydantic"
LIBRARY = "from pydantic import BaseModel\nclass Model(BaseModel):\n    name: str\n"
"""The program that a command's CPU is compared with."""


@dataclass
class Replay:
    """The part `replay`; `say` gets a line per pair."""

    scratch: Path
    pairs: int
    say: Callable[[str], None]

    @property
    def file(self) -> Path:
        return self.scratch / "job.yaml"

    @property
    def ledger(self) -> str:
        return f"sqlite:///{self.scratch / 'ledger.db'}"

    def measure(self) -> list[Row]:
        """Raises WrongEffect if an answer is not a replay."""
        self.say(f"replay: running the job once; then {self.pairs} pairs and one to warm up")
        self._finish()
        variants = {
            BARE: lambda: self._python("-c", "pass"),
            PYDANTIC: lambda: self._python("-c", LIBRARY),
            VERSION: lambda: self._python("-m", "sparkonce", "--version"),
            INSIDE: self._inside,
            COMMAND: self._command,
        }
        costs = measured(variants, self.pairs, self._told)
        self._counted()
        inside, command, bare = ([each.wall for each in costs[name]] for name in (INSIDE, COMMAND, BARE))
        command_cpu, version_cpu, library = (
            [each.cpu for each in costs[name]] for name in (COMMAND, VERSION, PYDANTIC)
        )
        quick, soon = Goal(100, "< 100 ms", absolute=True), Goal(400, "< 0.4 s", absolute=True)
        cheap = Goal(400, "< 400 CPU ms", absolute=True)
        return [
            Row(what=f"replay: {INSIDE}", unit="ms", ours=inside, goal=quick),
            Row(what=f"replay: {COMMAND}", unit="ms", ours=command, raw=bare, goal=soon),
            Row(what=f"replay: {COMMAND}", unit="CPU ms", ours=command_cpu, raw=library, goal=cheap),
            Row(what=f"replay: {VERSION}", unit="CPU ms", ours=version_cpu, raw=library),
        ]

    def prepared(self) -> Prepared:
        return prepare(load(self.file.read_text(), params={}, source=self.file.name), base=str(self.scratch))

    def _finish(self) -> None:
        script = self.scratch / "job.py"
        shutil.copy(Path(__file__).with_name("replayed_job.py"), script)
        self.file.write_text(yaml.safe_dump(job("replayed", slot_log(self.scratch / "table")).document()))
        store = open_store(self.ledger)
        command = Command(argv=[sys.executable, str(script)], environment={}, folder=str(self.scratch))
        attempts = attempts_folder(store.url)
        embedded = LocalRunner(store=store, attempts=attempts, launcher=LocalLauncher(attempts, lambda _: command))
        try:
            ending = asyncio.run(embedded.submit(self.prepared()))
        finally:
            run(store.close())
        if ending.result is None or ending.result.outcome is not Outcome.SUCCEEDED:
            raise WrongEffect(f"the job that is to be replayed did not succeed: {ending.reason or ending.result}")

    def _python(self, *arguments: str) -> Cost:
        done, cost = self._timed(list(arguments))
        if done.returncode != 0:
            raise WrongEffect(f"python {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}")
        return cost

    def _inside(self) -> Cost:
        started, cpu = perf_counter(), process_time()
        store = open_store(self.ledger)
        _, said, evidence = run(LocalRunner(store=store, attempts=attempts_folder(store.url)).look(self.prepared()))
        run(store.close())
        cost = Cost(1000 * (perf_counter() - started), 1000 * (process_time() - cpu))
        if said.answer is not Answer.REPLAY or evidence != {OUTPUT: Evidence.PRESENT}:
            raise WrongEffect(f"the look at a finalized key said {said.answer} ({said.evidence}), outputs {evidence}")
        return cost

    def _command(self) -> Cost:
        done, cost = self._timed(["-m", "sparkonce", "run", self.file.name, "--store", self.ledger, "--json"])
        if done.returncode != 0:
            raise WrongEffect(f"`sparkonce run` on a finalized key ended with {done.returncode}: {done.stderr.strip()}")
        said = json.loads(done.stdout)
        if (said["phase"], said["replayed"], said["generation"], said["attempt"]) != ("Succeeded", True, 1, 1):
            raise WrongEffect(f"`sparkonce run` on a finalized key is no replay: {done.stdout.strip()}")
        return cost

    def _timed(self, arguments: list[str]) -> tuple[subprocess.CompletedProcess[str], Cost]:
        """Runs this interpreter with `arguments` and times it from start to exit."""
        argv = [sys.executable, *arguments]
        started, cpu = perf_counter(), _cpu_of_ended()
        done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=self.scratch)
        return done, Cost(1000 * (perf_counter() - started), 1000 * (_cpu_of_ended() - cpu))

    def _counted(self) -> None:
        """Checks the effect: one attempt ran, and its rows are in the table once."""
        attempts = list(attempts_folder(self.ledger).iterdir())
        slots = Table(self.scratch / "table").slots()
        if len(attempts) != 1 or [(slot.rows, len(slot.files)) for slot in slots] != [(ROWS, FILES)]:
            raise WrongEffect(
                f"after all replays there are {len(attempts)} attempts, and the table's commits are {slots}"
            )

    def _told(self, pair: int, costs: dict[str, Cost]) -> None:
        which = pair_text(pair, self.pairs)
        self.say(f"replay: {which}: " + ", ".join(f"{name} {cost.wall:.0f} ms" for name, cost in costs.items()))

    def dump(self) -> dict[str, Any]:
        return {"files": FILES, "rows": ROWS}


def _cpu_of_ended() -> float:
    """CPU seconds of all child processes that have ended, to the microsecond."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime
