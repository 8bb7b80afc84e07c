"""One kill schedule, drawn from a seed: up to three runs with a fault each, then clean ones.

A fault is a failpoint at which the process that reaches it kills or freezes itself, be it the runner or the driver. With "both", the
other one is killed as well; a frozen one is continued after a successor has finished.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from dataclasses import dataclass

from crash.scene import PATIENCE, Scene
from harness.child import frozen
from harness.eventually import assert_eventually
from harness.patience import Patience, cpu_of, until_ended

SHAPES = {  # failpoints that only some jobs reach
    "driver.seal.before": ("tx", "mixed"),
    "driver.seal.after": ("tx", "mixed"),
    "driver.tx.between": ("tx", "mixed"),
    "driver.abort.closed": ("one", "two"),
}
FAIL_ONCE = ("engine.grant.after", "sink.slots.close.before", "sink.slots.close.after")
"""Reached when an attempt ends without effect."""
STAGED = "sink.slots.sweep.before"
"""Reached when an attempt left staging behind: a kill after staging comes before it, in the same run."""
ABORTED = "driver.abort.closed"
"""Reached when a commit's answer stays unknown: the create fails until the write gives up."""
MANY = {
    "store.sql.statement.before": 120,
    "store.sql.statement.after": 120,
    "store.sql.commit.before": 30,
    "store.sql.commit.after": 30,
}
"""Points that every run passes many times: which time is drawn up to this."""

LOCKED = ("store.sql.statement.before", "store.sql.statement.after", "store.sql.commit.before")
"""A process frozen here may hold the ledger's write lock (a read, or the statement that waits for it, holds none): then no other process
can continue before it does, and each is refused with that reason."""


@dataclass(frozen=True)
class Fault:
    point: str
    action: str  # kill, stop
    skip: int
    both: bool

    @property
    def failpoints(self) -> str:
        skip = f"{self.skip}*off->" if self.skip else ""
        terms = f"{self.point}={skip}1*{self.action}"
        if self.point == ABORTED:
            terms += ";sink.slots.create.before=20*raise"
        if self.point == STAGED:
            terms += ";driver.stage.after=kill"
        return terms


@dataclass(frozen=True)
class Schedule:
    shape: str
    options: tuple[str, ...]
    faults: tuple[Fault, ...]


def draw(rng: random.Random, point: str, others: list[str], *, stops: float = 0.25, skips: bool = True) -> Schedule:
    """A schedule whose first fault is at `point`, with the settings that reach it."""
    shape = rng.choice(SHAPES.get(point, ("one", "two", "tx", "mixed")))
    options = ("fail-once",) if point in FAIL_ONCE or rng.random() < 0.15 else ()
    faults = [_fault(rng, point, stops, skips=skips)]
    while len(faults) < 3 and rng.random() < 0.35:
        point = rng.choice(
            [other for other in others if other != ABORTED]
        )  # only drawn first: its jobs are chosen for it
        faults.append(_fault(rng, point, stops, skips=True))
    return Schedule(shape, options, tuple(faults))


def _fault(rng: random.Random, point: str, stops: float, *, skips: bool) -> Fault:
    skip = rng.randrange(MANY[point]) if point in MANY else rng.choice((0, 0, 0, 1)) if skips else 0
    if point in MANY and not skips:
        skip = rng.randrange(20)
    if point in (ABORTED, STAGED):
        skip = 0  # an attempt that cannot commit comes here once, and so do all that follow it
    return Fault(point, "stop" if rng.random() < stops else "kill", skip, both=rng.random() < 0.35)


def play(scene: Scene, schedule: Schedule) -> None:
    """Runs the faults, then clean runs until the job has succeeded; frozen processes are continued last."""
    frozen: list[int] = []
    runners: list[subprocess.Popen[bytes]] = []
    try:
        for fault in schedule.faults:
            runner = scene.run(fault.failpoints)
            runners.append(runner)
            frozen += _until_hit(scene, runner, fault)
        said = scene.finish()
        if frozen:
            for pid in frozen:
                _signal(pid, signal.SIGCONT)
            for runner in runners:
                until_ended(runner, PATIENCE)
            assert_eventually(lambda: not scene.attempts(), timeout=PATIENCE)
            said = scene.finish()
        assert said["phase"] == "Succeeded"
        scene.check()
    finally:
        scene.clear()


def _until_hit(scene: Scene, runner: subprocess.Popen[bytes], fault: Fault) -> list[int]:
    """Waits until the fault happened or the run ended without it; pids that are frozen now."""
    patience = Patience(PATIENCE, progress=lambda: cpu_of(runner.pid))
    while not patience.over():
        if runner.poll() is not None:
            break
        stopped = scene.stopped(runner.pid, *scene.attempts())
        if stopped and fault.point in LOCKED and scene.locked():
            return _let_go(scene, stopped)
        if fault.point == ABORTED and any(hit.startswith(f"{ABORTED}=") for hit in scene.hits()):
            runner.kill()  # its next attempts could not commit either
            runner.wait()
            break
        if runner.pid in stopped:
            break  # a frozen driver is the runner's own business, a frozen runner is ours
        time.sleep(0.02)  # polling interval: what happens next is up to the processes
    else:
        raise AssertionError(f"neither ended nor frozen after {PATIENCE} s at {fault}:\n{scene.last_output()}")
    if fault.both:
        scene.signal_attempts(signal.SIGKILL)
    return [runner.pid] if frozen(runner.pid) else []


def _let_go(scene: Scene, stopped: list[int]) -> list[int]:
    """While the lock is held a request is refused as unavailable (exit 3), unless the job is over, since a replay only reads. Then the
    frozen process continues."""
    code = until_ended(scene.run(), PATIENCE)
    assert code == 3 or (code == 0 and scene.said()["replayed"]), scene.last_output()
    for pid in stopped:
        _signal(pid, signal.SIGCONT)
    return stopped


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
