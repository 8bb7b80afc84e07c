"""Races of many processes on one table, killed, frozen and woken at random: compares their answers with the final state of the table.

The contest is the same for every kind of place: slots are read through the place's own objects, rows from the files that a reader would
open.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from io import BytesIO
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import cast

from pyarrow import parquet

from harness import child, effort, patience, sink_attempts
from harness.sink_attempts import FINGERPRINT, Plan, answers, key_of, rows_of, sink_at
from sparkonce.blocking import run
from sparkonce.sink.objects.location import objects_at
from sparkonce.sink.objects.protocol import TableObjects
from sparkonce.sink.protocol import Sink, Slot, SlotState
from sparkonce.sink.slotlog import layout
from sparkonce.sink.slotlog.snapshot import Table

COMMIT_POINTS = (
    "sink.slots.close.before",
    "sink.slots.close.after",
    "sink.slots.create.before",
    "sink.slots.create.after",
)
POINTS = (*COMMIT_POINTS, "driver.abort.closed", "sink.slots.sweep.before")


def standing(objects: TableObjects, name: str) -> dict[int, Slot]:
    """The slots of a key, from a listing."""
    found = {}
    for each in run(objects.list(layout.slots_folder(key_of(name)))):
        token, data = layout.numbered(each.path), run(objects.get(each.path))
        if token is None:
            continue  # left beside a slot by a killed process
        assert data is not None
        found[token] = layout.decode(data, where=each.path, sink_key=str(key_of(name)), token=token)
    return found


def rows_in(table: str) -> list[int]:
    """Every row that a reader of the table sees."""
    view = Table(table)
    rows: list[int] = []
    for _, files in view.seen():
        for file in files:
            data = run(view.objects.get(file.path))
            assert data is not None
            rows += cast("list[int]", parquet.read_table(BytesIO(data))["n"].to_pylist())
    return sorted(rows)


def frozen(process: ForkServerProcess) -> bool:
    assert process.pid is not None
    return child.frozen(process.pid)


def wake(process: ForkServerProcess) -> None:
    """Resumes a frozen process."""
    assert process.pid is not None
    os.kill(process.pid, signal.SIGCONT)


ROUNDS = 6 if effort.effort() is effort.Effort.SOAK else 1
"""Maximum number of rounds of a contest."""


class Contest:
    """One process per token over the same keys in different orders, killed and restarted until all have tried every key.

    They write to `table`, which is found through `environment`. `started` gets every process, for the caller to end them."""

    points: Sequence[str] = POINTS
    """Failpoints at which processes die, freeze or wait, each process once at each."""
    ways: Sequence[str] = ("kill", "kill", "stop", "sleep(20)")
    pace: tuple[float, float] = (0.002, 0.03)
    """Seconds between two external faults, minimum and maximum, on a quiet machine: stretched on a busy one, so that faults per step stay
    the same and processes make progress."""
    foreign: Sequence[int] = ()
    """Rows that another writer put into the table."""
    wakes: int = 12
    """Relative weight of waking a process, beside 6 for freezing and 1 for killing one."""
    deaths: int = 2
    """Number of lives of each token in a round, from the first, that certainly end by a kill: on a fast machine, chance alone kills few."""
    freezes: int = 5
    """External freezes before which every second wake-up becomes a freeze."""

    def __init__(
        self,
        folder: Path,
        table: str,
        started: list[ForkServerProcess],
        *,
        seed: int,
        keys: int,
        processes: int,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.table, self.dice, self.started = folder, table, random.Random(seed), started
        self.tokens = tuple(range(1, processes + 1))
        self.environment = tuple((environment or {}).items())
        self.keys = [f"k{number}" for number in range(1, keys + 1)]
        self.left = self._shuffled(self.keys)
        self.plans: list[Plan] = []
        self.running: dict[int, tuple[Plan, ForkServerProcess]] = {}
        self.faults: Counter[str] = Counter()
        self.lives: Counter[int] = Counter()

    def run(self, goal: Mapping[str, int]) -> dict[str, int]:
        """Runs until each token has been tried at each key. The soak goes on with as many keys again, for `ROUNDS`, while less than `goal`
        was seen of a fault, a failpoint or an answer.

        Returns what was seen less often, for the test to print. That is chance, not a defect: other tests cover each step at which a
        process may die and each answer that it may get.
        """
        names, missing = list(self.keys), dict[str, int]()
        for number in range(1, ROUNDS + 1):
            self._round()
            assert self.faults["died"], "no process died, though the first lives of each token end by a kill"
            seen = self.tally()
            missing = {what: seen[what] for what, count in goal.items() if seen[what] < count}
            if not missing or number == ROUNDS:
                break
            self.lives.clear()
            more = [f"k{number * len(names) + each}" for each in range(1, len(names) + 1)]
            self.keys += more
            self.left = self._shuffled(more)
        return missing

    def tally(self) -> Counter[str]:
        """How often each fault, each failpoint and each answer was seen so far."""
        answered = Counter(each["what"] for plan in self.plans for each in answers(plan))
        points = Counter[str]()
        for hit, count in self.hits().items():
            points[hit.partition("=")[0]] += count
        return self.faults + points + answered

    def _shuffled(self, names: Sequence[str]) -> dict[int, list[str]]:
        """The keys for each token, in nearly the same order for all, so that they meet."""
        return {token: sorted(names, key=lambda name: int(name[1:]) + self.dice.uniform(0, 4)) for token in self.tokens}

    def _round(self) -> None:
        for token in self.tokens:
            self._start(token)
        while self.running:
            # Waits for the end of a process, at most until the next fault is due.
            pause = patience.stretched(self.dice.uniform(*self.pace))
            wait([process.sentinel for _, process in self.running.values()], timeout=pause)
            for token, (plan, process) in list(self.running.items()):
                if process.exitcode is not None:
                    self._ended(token, plan, process)
            if self.running:
                self._fault(self.dice.choice(list(self.running.values()))[1])

    def armed(self) -> list[str]:
        """The faults of a new process at its failpoints."""
        return [f"{point}={self.dice.randrange(12)}*off->1*{self.dice.choice(self.ways)}->off" for point in self.points]

    def doom(self, token: int) -> tuple[str, float] | None:
        """When a process that begins now will be killed, if it is one of those with a certain death."""
        self.lives[token] += 1
        if self.lives[token] > self.deaths:
            return None
        left = self.left[token]
        return self.dice.choice(left[: 1 + len(left) // 2]), self.dice.uniform(0, self.pace[1])

    def begin(self, plan: Plan) -> ForkServerProcess:
        return sink_attempts.start(plan)

    def _start(self, token: int) -> None:
        plan = Plan(
            folder=str(self.folder),
            table=self.table,
            environment=self.environment,
            process=f"{len(self.plans)}",
            token=token,
            keys=tuple(self.left[token]),
            seed=self.dice.getrandbits(32),
            failpoints=";".join(self.armed()),
            doom=self.doom(token),
        )
        process = self.begin(plan)
        self.plans.append(plan)
        self.started.append(process)
        self.running[token] = (plan, process)

    def _ended(self, token: int, plan: Plan, process: ForkServerProcess) -> None:
        del self.running[token]
        if process.exitcode == 0:
            return
        assert process.exitcode == -signal.SIGKILL
        self.faults["died"] += 1
        begun = [each["key"] for each in answers(plan) if each["what"] == "begin"]
        # Half of the keys at which a process died are retried, by a twin with the same token.
        again = begun[-1:] if self.dice.random() < 0.5 else []
        self.left[token] = again + list(plan.keys[len(begun) :])
        if self.left[token]:
            self._start(token)

    def _fault(self, process: ForkServerProcess) -> None:
        faults = [("kill", signal.SIGKILL), ("freeze", signal.SIGSTOP), ("wake", signal.SIGCONT)]
        fault, number = self.dice.choices(faults, [1, 6, self.wakes])[0]
        if self.faults["freeze"] < self.freezes and fault == "wake" and self.dice.random() < 0.5:
            fault, number = faults[1]
        assert process.pid is not None
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(process.pid, number)
            self.faults[fault] += 1

    def told(self) -> dict[str, list[tuple[int, str, str | None]]]:
        """Answers by key: token, answer, and the nonce in the answer."""
        found: dict[str, list[tuple[int, str, str | None]]] = {name: [] for name in self.keys}
        for plan in self.plans:
            for each in answers(plan):
                found[each["key"]].append((each["token"], each["what"], each["nonce"]))
        return found

    def judge(self) -> Counter[str]:
        """Counts the answers. Fails unless each key has at most one commit, every answer that names a commit names that one, a fence that
        found nothing stays right, fenced tokens are barred, the table has each committed row once, and nothing else is left."""
        outcome: Counter[str] = Counter()
        rows: list[int] = []
        sink, effects = self.sink(), self.effects()
        for name, told in self.told().items():
            verdict = run(sink.fence(key_of(name), len(self.tokens) + 1, fingerprint=FINGERPRINT, by="settle"))
            assert effects[name] == (1 if verdict else 0)
            assert verdict is not None or all(self.barred(name, token, None) for token in self.tokens)
            for token, what, nonce in told:
                outcome[what] += 1
                self._agrees(name, token, what, nonce, verdict)
            outcome["one commit" if verdict else "no commit"] += 1
            if verdict:
                rows += rows_of(name)
                assert run(sink.probe(key_of(name), None)) == "present"
            run(sink.sweep(key_of(name)))
        assert self.rows() == sorted([*rows, *self.foreign])
        assert self.staged() == outcome["one commit"]
        return outcome

    def _agrees(self, name: str, token: int, what: str, nonce: str | None, verdict: Slot | None) -> None:
        """Compares the answers of one process with the final state."""
        assert what != "Stuck"
        if what in ("Committed", "AlreadyCommitted", "found", "fence found"):
            assert verdict is not None
            assert nonce == verdict.nonce
        if what == "fence none":
            assert verdict is None or verdict.token >= token
        if what in ("FencedOff", "staging Fenced"):
            assert self.barred(name, token, verdict)
        if what == "staging failed":
            assert verdict is not None

    # --- what differs between the kinds of places: a slot log's -----------------------------------------------------------

    def sink(self) -> Sink:
        return sink_at(self.table)

    def effects(self) -> Counter[str]:
        """Commits of each key, counted in the table."""
        objects = objects_at(self.table, field="table")
        return Counter(
            name for name in self.keys for slot in standing(objects, name).values() if slot.state is SlotState.COMMITTED
        )

    def barred(self, name: str, token: int, verdict: Slot | None) -> bool:
        """Whether a token can never commit."""
        return standing(objects_at(self.table, field="table"), name)[token].state is SlotState.CLOSED

    def rows(self) -> list[int]:
        """Every row that a reader of the table sees."""
        return rows_in(self.table)

    def staged(self) -> int:
        """Folders of writes."""
        objects = objects_at(self.table, field="table")
        return sum(len(run(objects.folders(f"{layout.DATA}/{key_of(name)}"))) for name in self.keys)

    def hits(self) -> Counter[str]:
        """How often each failpoint was hit, and with which action."""
        hits = Path(self.plans[0].hits)
        return Counter(hits.read_text().split() if hits.exists() else ())
