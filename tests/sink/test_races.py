"""Real processes on one table: killed, frozen and woken at random, and at every named point. Effects are counted in the table."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import cast

import pytest
from pyarrow import parquet

from harness import sink_attempts
from harness.eventually import assert_eventually
from harness.sink_attempts import FINGERPRINT, Plan, answers, key_of, rows_of, sink_in
from sparkonce.blocking import run
from sparkonce.sink import layout
from sparkonce.sink.folder_objects import FolderObjects
from sparkonce.sink.protocol import AlreadyCommitted, FencedOff, Slot, SlotState
from sparkonce.sink.table import Table

COMMIT_POINTS = (
    "sink.slots.close.before",
    "sink.slots.close.after",
    "sink.slots.create.before",
    "sink.slots.create.after",
)
POINTS = (*COMMIT_POINTS, "driver.abort.closed", "sink.slots.sweep.before")
LONG = 30  # seconds: a process of these tests needs milliseconds; only a defect takes this long
KEYS = 100
TOKENS = (1, 2, 3, 4)


@pytest.fixture
def started() -> Iterator[list[ForkServerProcess]]:
    """Processes that end with the test, whatever their state."""
    processes: list[ForkServerProcess] = []
    yield processes
    for process in processes:
        process.kill()
        process.join()
        process.close()


def standing(folder: Path, name: str) -> dict[int, Slot]:
    """The slots of a key, read from the files."""
    found = {}
    for path in sorted((folder / "table" / layout.slots_folder(key_of(name))).glob("*.json")):
        token = layout.numbered(path.name)
        assert token is not None
        found[token] = layout.decode(path.read_bytes(), where=str(path), sink_key=str(key_of(name)), token=token)
    return found


def rows_in(folder: Path) -> list[int]:
    """Every row that a reader of the table sees."""
    rows: list[int] = []
    for file in Table(folder / "table").files():
        rows += cast("list[int]", parquet.read_table(file)["n"].to_pylist())
    return sorted(rows)


# --- one process dies, or freezes, at a named point -----------------------------------------------------------------------


@pytest.mark.parametrize("point", COMMIT_POINTS)
def test_a_writer_killed_at_a_step_then_a_fence(point: str, tmpfs_path: Path, started: list[ForkServerProcess]) -> None:
    """Attempt 2 dies at the step; the fence's answer is final: nobody changes it later, and duplicates get the same."""
    plan = Plan(folder=str(tmpfs_path), process="p", token=2, keys=("k1",), verb="commit", failpoints=f"{point}=kill")
    started.append(process := sink_attempts.start(plan))
    process.join(LONG)
    assert process.exitcode == -signal.SIGKILL
    sink, key = sink_in(plan.folder), key_of("k1")
    verdict = run(sink.fence(key, 3, fingerprint=FINGERPRINT, by="settle"))
    assert (verdict is not None) == (point == "sink.slots.create.after")
    for token in (1, 2):
        slot = Slot(state=SlotState.COMMITTED, sink_key=str(key), token=token, nonce="zombie", fingerprint=FINGERPRINT)
        decision = run(sink.commit(key, slot))
        assert (
            isinstance(decision, FencedOff) if verdict is None or token < 2 else decision == AlreadyCommitted(verdict)
        )
    assert run(sink.fence(key, 3, fingerprint=FINGERPRINT, by="settle")) == verdict == run(sink.find(key))
    run(sink.sweep(key))
    assert rows_in(tmpfs_path) == (rows_of("k1") if verdict else [])
    assert len(list(tmpfs_path.glob("table/_data/*/*"))) == (1 if verdict else 0)


@pytest.mark.parametrize("point", COMMIT_POINTS)
def test_a_writer_frozen_at_a_step_wakes_after_the_fence(
    point: str, tmpfs_path: Path, started: list[ForkServerProcess]
) -> None:
    """A zombie that wakes after the takeover is told what the fence said: fenced, or that its commit had landed."""
    plan = Plan(folder=str(tmpfs_path), process="p", token=2, keys=("k1",), verb="commit", failpoints=f"{point}=1*stop")
    started.append(process := sink_attempts.start(plan))
    assert_eventually(lambda: frozen(process), LONG)
    sink, key = sink_in(plan.folder), key_of("k1")
    verdict = run(sink.fence(key, 3, fingerprint=FINGERPRINT, by="settle"))
    assert (verdict is not None) == (point == "sink.slots.create.after")
    wake(process)
    process.join(LONG)
    assert [each["what"] for each in answers(plan)] == ["begin", "Committed" if verdict else "FencedOff"]
    assert run(sink.find(key)) == verdict
    run(sink.sweep(key))
    assert rows_in(tmpfs_path) == (rows_of("k1") if verdict else [])
    assert len(list(tmpfs_path.glob("table/_data/*/*"))) == (1 if verdict else 0)


@pytest.mark.parametrize("point", ["sink.slots.close.before", "sink.slots.close.after"])
@pytest.mark.parametrize("nth", [0, 1])
def test_a_fence_killed_at_a_step_is_repeated(
    point: str, nth: int, tmpfs_path: Path, started: list[ForkServerProcess]
) -> None:
    """An owner that dies inside a fence leaves only closed slots; the next owner's fence bars all lower tokens."""
    plan = Plan(
        folder=str(tmpfs_path), process="p", token=3, keys=("k1",), verb="fence", failpoints=f"{point}={nth}*off->kill"
    )
    started.append(process := sink_attempts.start(plan))
    process.join(LONG)
    assert process.exitcode == -signal.SIGKILL
    assert all(slot.state is SlotState.CLOSED for slot in standing(tmpfs_path, "k1").values())
    assert run(sink_in(plan.folder).fence(key_of("k1"), 3, fingerprint=FINGERPRINT, by="settle")) is None
    assert sorted(standing(tmpfs_path, "k1")) == [1, 2]


@pytest.mark.parametrize("point", ["sink.slots.close.before", "sink.slots.close.after", "driver.abort.closed"])
def test_an_abort_killed_at_a_step_leaves_nothing_to_commit(
    point: str, tmpfs_path: Path, started: list[ForkServerProcess]
) -> None:
    """Its slot is closed by itself or by the fence, and then its files can be swept: never files deleted under an open slot."""
    plan = Plan(folder=str(tmpfs_path), process="p", token=1, keys=("k1",), verb="abort", failpoints=f"{point}=kill")
    started.append(process := sink_attempts.start(plan))
    process.join(LONG)
    assert process.exitcode == -signal.SIGKILL
    sink, key = sink_in(plan.folder), key_of("k1")
    assert len(list(tmpfs_path.glob("table/_data/*/*/*.parquet"))) == 2
    assert run(sink.fence(key, 2, fingerprint=FINGERPRINT, by="settle")) is None
    assert run(sink.sweep(key)).folders == 1


def test_a_sweep_killed_at_its_step_is_repeated(tmpfs_path: Path, started: list[ForkServerProcess]) -> None:
    """What it had not deleted is still there, and the next sweep deletes it."""
    zombie = Plan(folder=str(tmpfs_path), process="p", token=1, keys=("k1",), verb="commit")
    sink, key = sink_in(zombie.folder), key_of("k1")
    run(sink.fence(key, 2, fingerprint=FINGERPRINT, by="settle"))
    sweeper = Plan(
        folder=str(tmpfs_path),
        process="q",
        token=1,
        keys=("k1",),
        verb="sweep",
        failpoints="sink.slots.sweep.before=kill",
    )
    for plan, code in ((zombie, 0), (sweeper, -signal.SIGKILL)):
        started.append(process := sink_attempts.start(plan))
        process.join(LONG)
        assert process.exitcode == code
    assert len(list(tmpfs_path.glob("table/_data/*/*"))) == 1
    assert run(sink.sweep(key)).folders == 1
    assert list(tmpfs_path.glob("table/_data/*/*")) == []


def frozen(process: ForkServerProcess) -> bool:
    """Stopped by a signal, says the kernel."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def wake(process: ForkServerProcess) -> None:
    """Goes on where it was frozen."""
    assert process.pid is not None
    os.kill(process.pid, signal.SIGCONT)


# --- many processes, many keys ----------------------------------------------------------------------------------------


class Contest:
    """Four processes, one per token, over the same keys in different orders; killed and started again until all are through."""

    def __init__(self, folder: Path, seed: int, started: list[ForkServerProcess]) -> None:
        self.folder, self.dice, self.started = folder, random.Random(seed), started
        self.keys = [f"k{number}" for number in range(1, KEYS + 1)]
        # Nearly the same order for all, so that they meet.
        self.left = {
            token: sorted(self.keys, key=lambda name: int(name[1:]) + self.dice.uniform(0, 4)) for token in TOKENS
        }
        self.plans: list[Plan] = []
        self.running: dict[int, tuple[Plan, ForkServerProcess]] = {}
        self.faults: Counter[str] = Counter()

    def run(self) -> None:
        """Until each token has been tried at each key."""
        for token in TOKENS:
            self._start(token)
        while self.running:
            # What is waited for is the end of a process, at most until the next fault is due.
            wait([process.sentinel for _, process in self.running.values()], timeout=self.dice.uniform(0.002, 0.03))
            for token, (plan, process) in list(self.running.items()):
                if process.exitcode is not None:
                    self._ended(token, plan, process)
            if self.running:
                self._fault(self.dice.choice(list(self.running.values()))[1])

    def _start(self, token: int) -> None:
        armed = [
            f"{point}={self.dice.randrange(12)}*off->1*{self.dice.choice(['kill', 'kill', 'stop', 'sleep(20)'])}->off"
            for point in POINTS
        ]
        plan = Plan(
            folder=str(self.folder),
            process=f"{len(self.plans)}",
            token=token,
            keys=tuple(self.left[token]),
            seed=self.dice.getrandbits(32),
            failpoints=";".join(armed),
        )
        process = sink_attempts.start(plan)
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
        # The key at which it died: half of them are tried again, by a twin of the same token.
        again = begun[-1:] if self.dice.random() < 0.5 else []
        self.left[token] = again + list(plan.keys[len(begun) :])
        if self.left[token]:
            self._start(token)

    def _fault(self, process: ForkServerProcess) -> None:
        fault, number = self.dice.choices(
            [("kill", signal.SIGKILL), ("freeze", signal.SIGSTOP), ("wake", signal.SIGCONT)], [1, 6, 12]
        )[0]
        assert process.pid is not None
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(process.pid, number)
            self.faults[fault] += 1

    def told(self) -> dict[str, list[tuple[int, str, str | None]]]:
        """Per key: token, what was answered, and the nonce in the answer."""
        found: dict[str, list[tuple[int, str, str | None]]] = {name: [] for name in self.keys}
        for plan in self.plans:
            for each in answers(plan):
                found[each["key"]].append((each["token"], each["what"], each["nonce"]))
        return found


def test_four_processes_race_for_100_keys(tmpfs_path: Path, started: list[ForkServerProcess]) -> None:
    """Under kills and freezes at random moments and at every step, each key has at most one commit; whoever was told of one was told of
    that one; a fence that said "nothing" stays right; what was fenced is closed; and the table holds each committed row once."""
    seed = int(os.environ.get("SPARKONCE_TEST_SEED") or random.randrange(2**32))
    contest = Contest(tmpfs_path, seed, started)
    print(f"SPARKONCE_TEST_SEED={seed}")
    contest.run()

    outcome: Counter[str] = Counter()
    rows: list[int] = []
    sink = sink_in(str(tmpfs_path))
    for name, told in contest.told().items():
        before = [slot for slot in standing(tmpfs_path, name).values() if slot.state is SlotState.COMMITTED]
        verdict = run(sink.fence(key_of(name), 5, fingerprint=FINGERPRINT, by="settle"))
        slots = standing(tmpfs_path, name)
        assert before == ([verdict] if verdict else [])
        assert verdict is not None or all(slots[token].state is SlotState.CLOSED for token in TOKENS)
        for token, what, nonce in told:
            outcome[what] += 1
            if what in ("Committed", "AlreadyCommitted", "found", "fence found"):
                assert verdict is not None
                assert nonce == verdict.nonce
            if what == "fence none":
                assert verdict is None or verdict.token >= token
            if what in ("FencedOff", "staging Fenced"):
                assert slots[token].state is SlotState.CLOSED
            if what == "staging failed":
                assert verdict is not None
        outcome["one commit" if verdict else "no commit"] += 1
        if verdict:
            rows += rows_of(name)
            assert run(sink.probe(key_of(name), None)) == "present"
        run(sink.sweep(key_of(name)))
    assert rows_in(tmpfs_path) == sorted(rows)
    staging = {f"{path.parent.name}/{path.name}" for path in tmpfs_path.glob("table/_data/*/*")}
    assert len(staging) == outcome["one commit"]

    hits = Counter(Path(contest.plans[0].hits).read_text().split())
    print(f"{dict(contest.faults)} {dict(outcome)} {dict(hits)}")
    assert all(hits[point] >= 3 for point in POINTS)
    assert sum(hits[f"{point}={action}"] for point in POINTS for action in ("kill", "stop")) >= 5
    assert contest.faults["died"] >= 10
    assert all(outcome[what] > 0 for what in ("Committed", "AlreadyCommitted", "FencedOff", "found", "fence none"))
    assert run(FolderObjects(tmpfs_path / "table").list(layout.SNAPSHOTS)) != ()
