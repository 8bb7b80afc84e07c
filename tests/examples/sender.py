"""A user's folder with the files of an example, whose jobs are sent through the command line, several times each."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.patience import completed
from harness.spark import java

JOB_TIMEOUT = 180  # seconds; a job alone takes 5 to 10, and other tests may share the two cores
PATIENCE = 60  # seconds for a command that starts no JVM

needs_spark = pytest.mark.skipif(java() is None, reason="no Java: install OpenJDK 17")


@dataclass(frozen=True)
class Answer:
    """The answer of `sparkonce ... --json`."""

    exit_code: int
    told: dict[str, Any]

    @property
    def rows(self) -> dict[str, int]:
        """Recorded number of rows by output."""
        return {output["name"]: output["rows"] for output in self.told["result"]["outputs"]}

    @property
    def outcome(self) -> tuple[object, ...]:
        """The part of the answer that must be the same for all requests."""
        told, outputs = self.told, self.told["result"]["outputs"]
        places = [(output["name"], output["uri"], output["rows"], output["bytes"]) for output in outputs]
        return told["key"], told["keyHash"], told["phase"], told["generation"], told["attempt"], places


@dataclass(frozen=True)
class Sender:
    """Sends the jobs of a folder, with a ledger of its own in `data`."""

    folder: Path

    @property
    def ledger(self) -> Path:
        return self.folder / "data" / "ledger.db"

    def ask(self, *arguments: str, timeout: float = JOB_TIMEOUT) -> Answer:
        """Runs one command in a process of its own."""
        command = [sys.executable, "-m", "sparkonce", *arguments, "--store", str(self.ledger), "--json"]
        done = completed(command, timeout, cwd=self.folder)
        assert done.stdout, f"{arguments} printed no object: {done.stderr}"
        return Answer(done.returncode, json.loads(done.stdout))

    def send_thrice(self, *arguments: str) -> list[Answer]:
        """Sends the job twice at the same time, and again after both."""
        with ThreadPoolExecutor(2) as terminals:
            together = [terminals.submit(self.ask, "run", *arguments) for _ in range(2)]
            return [*(sent.result() for sent in together), self.ask("run", *arguments, timeout=PATIENCE)]


def assert_ran_once(answers: list[Answer], *, rows: dict[str, int], generation: int = 1) -> None:
    """One attempt of one generation ran, one request is answered as not replayed, and all have the same result."""
    assert [answer.exit_code for answer in answers] == [0, 0, 0], [answer.told for answer in answers]
    assert len({str(answer.outcome) for answer in answers}) == 1, [answer.outcome for answer in answers]
    last = answers[-1]
    assert (last.told["phase"], last.told["generation"], last.told["attempt"]) == ("Succeeded", generation, 1)
    assert sorted(answer.told["replayed"] for answer in answers) == [False, True, True]
    assert last.told["replayed"]
    assert last.rows == rows
