"""One kill schedule, drawn from a seed: up to three runs with one fault each, then runs without.

A fault is a failpoint at which the process that reaches it, runner or driver, kills or freezes itself. With "both", the other process is
killed as well. A frozen process is resumed after its successor has finished.
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

SHAPES = {  # failpoints that only these jobs reach
    "driver.seal.before": ("tx", "mixed"),
    "driver.seal.after": ("tx", "mixed"),
    "driver.tx.between": ("tx", "mixed"),
    "driver.abort.closed": ("one", "two"),
}
FAIL_ONCE = ("engine.grant.after", "sink.slots.close.before", "sink.slots.close.after")
"""Reached when an attempt ends without effect, so the job must fail once."""
STAGED = "sink.slots.sweep.before"
"""Reached when an attempt left staging behind, so a kill after staging must come before it in the same run."""
ABORTED = "driver.abort.closed"
"""Reached when a commit's outcome stays unknown, so its creates must fail until the write gives up."""
MANY = {
    "store.sql.statement.before": 120,
    "store.sql.statement.after": 120,
    "store.sql.commit.before": 30,
    "store.sql.commit.after": 30,
}
"""Points that every run passes many times: the hit that fails is drawn below this number."""

LOCKED = ("store.sql.statement.before", "store.sql.statement.after", "store.sql.commit.before")
"""A process frozen here may hold the ledger's write lock (not while it reads or waits for the lock). Then no other process can continue
before it does, and each is refused with that reason."""


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
    """A schedule whose first fault is at `point`, with the job that reaches it."""
    shape = rng.choice(SHAPES.get(point, ("one", "two", "tx", "mixed")))
    options = ("fail-once",) if point in FAIL_ONCE or rng.random() < 0.15 else ()
    faults = [_fault(rng, point, stops, skips=skips)]
    while len(faults) < 3 and rng.random() < 0.35:
        point = rng.choice(
            [other for other in others if other != ABORTED]
        )  # it needs a job of its own, so it is only drawn as the first
        faults.append(_fault(rng, point, stops, skips=True))
    return Schedule(shape, options, tuple(faults))


def _fault(rng: random.Random, point: str, stops: float, *, skips: bool) -> Fault:
    skip = rng.randrange(MANY[point]) if point in MANY else rng.choice((0, 0, 0, 1)) if skips else 0
    if point in MANY and not skips:
        skip = rng.randrange(20)
    if point in (ABORTED, STAGED):
        skip = 0  # an attempt that cannot commit passes here once, and so does every later one
    return Fault(point, "stop" if rng.random() < stops else "kill", skip, both=rng.random() < 0.35)


def play(scene: Scene, schedule: Schedule) -> None:
    """Runs the faults, then the job without faults until it has succeeded; frozen processes are resumed last."""
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
    """Waits until the fault happened or the run ended without it; returns the pids that are frozen now."""
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
            break  # a frozen driver is handled by its runner, a frozen runner by us
        time.sleep(0.02)  # poll interval; what happens next depends on the processes
    else:
        raise AssertionError(f"neither ended nor frozen after {PATIENCE} s at {fault}:\n{scene.last_output()}")
    if fault.both:
        scene.signal_attempts(signal.SIGKILL)
    return [runner.pid] if frozen(runner.pid) else []


def _let_go(scene: Scene, stopped: list[int]) -> list[int]:
    """While the lock is held a request is refused as unavailable (exit 3), except for a replay, which only reads. Then the frozen process
    is resumed."""
    code = until_ended(scene.run(), PATIENCE)
    assert code == 3 or (code == 0 and scene.said()["replayed"]), scene.last_output()
    for pid in stopped:
        _signal(pid, signal.SIGCONT)
    return stopped


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
