"""Records the outcome of each run of a fault, judges it, and computes which runs are missing. Pure, except for one file of JSON lines.

A run is judged only by the rows in the table and by the final state that the platform reports, since a user sees no more than that. The
judgement is computed from the line whenever the table is made, so that old lines are judged by today's rules. Runs count whatever their
seed and commit; the table lists the commits.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

TOGETHER_WITH = " + "
"""Separator between the states of several objects that requested the same work."""
DONE = frozenset({"Succeeded", "COMPLETED"})
FAILED = frozenset({"Failed", "Cancelled", "FAILED"})


class Arm(StrEnum):
    SPARKONCE = "sparkonce"
    NEVER = "never"
    """A plain SparkApplication with restartPolicy Never."""
    ON_FAILURE = "onfailure"
    """A plain SparkApplication with restartPolicy OnFailure."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run, a line of the file."""

    date: str
    """When the run ended: UTC, to the second."""
    commit: str
    arm: Arm
    fault: str
    seed: int
    number: int
    """Number of the run for this fault and arm, from 1."""
    drivers: int
    """Number of driver processes that reached the gate."""
    extra: int
    """Attempts beyond the first; of a plain application, drivers beyond the first."""
    least: int
    most: int
    """How often the rarest and the most frequent row of the job are in its table; 1 and 1 is right."""
    state: str
    """Final state of all objects that requested the work, or their state when the wait ended."""
    expected: str = ""
    """The required state; empty: any state that agrees with the table."""
    early: bool = False
    """The platform reported failure before the effect came."""
    seconds: float | None = None
    """From the fault's end to the final state; None if it reached no final state."""
    note: str = ""
    load: float | None = None
    """The machine's load average over the last minute: other programs' load stretches all times."""

    @property
    def duplicate(self) -> bool:
        return self.most > 1

    @property
    def loss(self) -> bool:
        """Rows are missing, and nothing will try again."""
        return self.least == 0

    @property
    def wrong_state(self) -> bool:
        states = set(self.state.split(TOGETHER_WITH))
        done, failed = states & DONE, states & FAILED
        lies = bool(done and self.loss) or bool(failed and self.most > 0) or not (done or failed)
        return lies or bool(self.expected and self.state != self.expected)

    @property
    def right(self) -> bool:
        return not (self.duplicate or self.loss or self.wrong_state)

    @property
    def verdict(self) -> str:
        """The verdict in words: "right", or the names of the defects."""
        wrong = {"duplicate": self.duplicate, "loss": self.loss, "wrong state": self.wrong_state}
        return ", ".join(name for name, holds in wrong.items() if holds) or "right"


@dataclass(frozen=True, kw_only=True)
class Task:
    """A run still to be made."""

    fault: str
    arm: Arm
    number: int

    def random(self, seed: int) -> random.Random:
        """A generator that is the same in each session with this seed."""
        return random.Random(f"{seed} {self.fault} {self.arm} {self.number}")


class BadLine(Exception):
    """A line of the file is not a run."""


def line_of(run: Run) -> str:
    return json.dumps(asdict(run), ensure_ascii=False)


def read(path: Path) -> list[Run]:
    """The runs in the file, none if it does not exist. Ignores an unterminated last line, left by a killed session. Raises BadLine."""
    if not path.exists():
        return []
    *lines, _unfinished = path.read_text().split("\n")
    return [_run_of(line, f"{path.name}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]


def append(path: Path, run: Run) -> None:
    """Appends the run with one write, and removes an unterminated last line before it."""
    if path.exists() and (text := path.read_bytes()) and not text.endswith(b"\n"):
        path.write_bytes(text[: text.rfind(b"\n") + 1])
    with path.open("a") as file:
        file.write(line_of(run) + "\n")


def _run_of(line: str, where: str) -> Run:
    try:
        found: dict[str, Any] = json.loads(line)
        return Run(**{**found, "arm": Arm(found["arm"])})
    except (ValueError, KeyError, TypeError) as problem:
        raise BadLine(f"{where} is not a run ({problem}); remove the line") from None


def missing(wanted: Mapping[str, Sequence[Arm]], done: Iterable[Run], *, runs: int) -> list[Task]:
    """The runs that are missing up to `runs` per fault and arm, in the order of `wanted`."""
    there = Counter((run.fault, run.arm) for run in done)
    return [
        Task(fault=fault, arm=arm, number=number)
        for fault, arms in wanted.items()
        for arm in arms
        for number in range(there[fault, arm] + 1, runs + 1)
    ]


def rounds(
    tasks: Sequence[Task], *, seed: int, alone: Iterable[str], together: Iterable[str]
) -> list[tuple[list[Task], list[list[Task]]]]:
    """One round per run number, so that a session that ends early has runs of every fault: first faults that may run beside each other,
    then those that hit every job on the cluster, in groups that one strike hits; both in an order drawn from the seed."""
    single, shared = set(alone), set(together)
    made = []
    for number in sorted({task.number for task in tasks}):
        mine = [task for task in tasks if task.number == number]
        random.Random(f"{seed} {number}").shuffle(mine)
        groups: dict[object, list[Task]] = {}
        for task in mine:
            if task.fault in single:
                groups.setdefault(task.fault if task.fault in shared else task, []).append(task)
        made.append(([task for task in mine if task.fault not in single], list(groups.values())))
    return made
