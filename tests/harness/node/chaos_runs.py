"""What one run of a fault came to, how it is judged, and which runs are missing. Pure, but for one file of JSON lines.

A run is judged by what stands in the table and by what the platform says in the end, and by nothing that happened in between: whoever asked
for the work sees no more. The judgement is made anew from the line whenever a table is made, so that old lines are judged by today's
rules. Runs are counted whatever their seed and commit; the table says which commits there are.
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
"""Between the states of several objects that asked for the same work."""
DONE = frozenset({"Succeeded", "COMPLETED"})
FAILED = frozenset({"Failed", "Cancelled", "FAILED"})


class Arm(StrEnum):
    SPARKONCE = "sparkonce"
    NEVER = "never"
    """A plain SparkApplication, restartPolicy Never."""
    ON_FAILURE = "onfailure"
    """The same with restartPolicy OnFailure."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A line of the file."""

    date: str
    """UTC, to the second, when it ended."""
    commit: str
    arm: Arm
    fault: str
    seed: int
    number: int
    """Of this fault and arm, from 1."""
    drivers: int
    """Driver processes that came as far as the gate."""
    extra: int
    """Attempts beyond the first; of a plain application, drivers beyond the first."""
    least: int
    most: int
    """How often the rarest and the most frequent row of the job stand in its table; 1 and 1 is right."""
    state: str
    """Of all objects that asked for the work, in the end, or when the patience was over."""
    expected: str = ""
    """What the state has to be; empty: whatever agrees with the table."""
    early: bool = False
    """It said that the work had failed before the effect came."""
    seconds: float | None = None
    """From the fault's end to the final state. None: there was none."""
    note: str = ""
    load: float | None = None
    """Of the machine in the last minute, as its kernel counts it: others' work stretches all times."""

    @property
    def duplicate(self) -> bool:
        return self.most > 1

    @property
    def loss(self) -> bool:
        """Rows are missing, and nobody tries again."""
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
        """In words: "right", or what is wrong with it."""
        wrong = {"duplicate": self.duplicate, "loss": self.loss, "wrong state": self.wrong_state}
        return ", ".join(name for name, holds in wrong.items() if holds) or "right"


@dataclass(frozen=True, kw_only=True)
class Task:
    """A run that is to be made."""

    fault: str
    arm: Arm
    number: int

    def random(self, seed: int) -> random.Random:
        """The same in each session with this seed."""
        return random.Random(f"{seed} {self.fault} {self.arm} {self.number}")


class BadLine(Exception):
    """A line of the file is no run."""


def line_of(run: Run) -> str:
    return json.dumps(asdict(run), ensure_ascii=False)


def read(path: Path) -> list[Run]:
    """What is in the file; empty without one. A last line without its end is of a session that was killed there, and no run. BadLine."""
    if not path.exists():
        return []
    *lines, _unfinished = path.read_text().split("\n")
    return [_run_of(line, f"{path.name}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]


def append(path: Path, run: Run) -> None:
    """In one write, after the last whole line."""
    if path.exists() and (text := path.read_bytes()) and not text.endswith(b"\n"):
        path.write_bytes(text[: text.rfind(b"\n") + 1])
    with path.open("a") as file:
        file.write(line_of(run) + "\n")


def _run_of(line: str, where: str) -> Run:
    try:
        found: dict[str, Any] = json.loads(line)
        return Run(**{**found, "arm": Arm(found["arm"])})
    except (ValueError, KeyError, TypeError) as problem:
        raise BadLine(f"{where} is no run ({problem}); remove the line") from None


def missing(wanted: Mapping[str, Sequence[Arm]], done: Iterable[Run], *, runs: int) -> list[Task]:
    """For every fault and arm, in the order of `wanted`, what is left of `runs`."""
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
    """One for each number, so that a session that is ended early has something of everything: first those that may run beside each other,
    then those that hit every job on the cluster, in groups that one strike hits; both in an order that the seed draws."""
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
