"""Time limits of waits stretch with the machine's load."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import eventually, patience
from harness.child import Child, NotStarted, freeze
from harness.eventually import assert_eventually
from harness.patience import (
    MOST,
    SLACK,
    Patience,
    completed,
    cpu_of,
    output_of,
    promised,
    slowness,
    stretched,
    until_ended,
    within,
)

CORES = os.cpu_count() or 1


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.001)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(patience, "time", made)
    monkeypatch.setattr(eventually, "time", made)
    return made


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets how many processes per core are runnable, on average and at this moment; none before the first call."""
    file = tmp_path / "loadavg"
    monkeypatch.setattr(patience, "LOAD", file)

    def sets(average: float, now: float = 0.0) -> None:
        file.write_text(f"{average * CORES:.2f} 0.00 0.00 {int(now * CORES) + 1}/300 4711\n")

    sets(0.0)
    return sets


@pytest.mark.parametrize(
    ("average", "now", "factor"), [(0.0, 0.0, 1), (1.0, 0.0, 1), (5.0, 0.0, 5), (0.0, 4.0, 4), (99.0, 0.0, MOST)]
)
def test_a_limit_stretches_with_the_load(load: Callable[..., None], average: float, now: float, factor: float) -> None:
    """The limit is multiplied by the number of processes per core, on average or at this moment, at least by 1 and at most by `MOST`."""
    load(average, now)
    assert slowness() == pytest.approx(factor, rel=0.01)
    assert stretched(3.0) == pytest.approx(3 * factor, rel=0.01)
    assert promised(1.0) == pytest.approx(SLACK * factor, rel=0.01)


def test_without_a_reading_a_limit_is_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """This is so on a system that does not report its load."""
    monkeypatch.setattr(patience, "LOAD", Path("/nowhere/loadavg"))
    assert slowness() == 1.0


def test_patience_counts_time_by_the_load_of_the_moment(load: Callable[..., None], clock: Clock) -> None:
    """Ten seconds at a load of five count as two; once the load is gone, time counts fully again."""
    limit = Patience(4.0)
    load(5.0)
    clock.now = 10.0
    assert not limit.over()
    assert limit.left == pytest.approx(2.0)
    load(0.0)
    clock.now = 12.1
    assert limit.over()


@pytest.mark.parametrize(("average", "expected"), [(0.0, 5.0), (4.0, 20.0)])
def test_waiting_for_what_never_comes_ends(
    load: Callable[..., None], clock: Clock, average: float, expected: float
) -> None:
    """On a quiet machine the wait ends after its limit, on a busy one later by the same factor."""
    load(average)
    with pytest.raises(AssertionError, match="not true within 5 s: it returned False"):
        assert_eventually(lambda: False, 5.0)
    assert clock.now == pytest.approx(expected, rel=0.05)


def test_a_load_that_rises_during_the_wait_counts(load: Callable[..., None], clock: Clock) -> None:
    """The fact comes after three times the limit, under a load that rose during the wait."""
    looks = 0

    def comes_late() -> bool:
        nonlocal looks
        looks += 1
        if looks == 10:
            load(8.0)
        return clock.now > 15.0

    assert_eventually(comes_late, 5.0)


def test_progress_of_the_other_side_counts_least(load: Callable[..., None], clock: Clock) -> None:
    """On a quiet machine a process that works gets `MOST` times the limit, and once it is idle the rest of the limit."""
    load(0.0)
    work = 0
    limit = Patience(4.0, progress=lambda: work)
    for _ in range(10):
        work += 1
        clock.now += 2.0
        assert not limit.over()
    assert limit.left == pytest.approx(4.0 - 20.0 / MOST)
    clock.now += 2.1
    assert limit.over()


@pytest.fixture
def child(load: Callable[..., None], tmp_path: Path) -> Iterator[Callable[[str], Child]]:
    """Starts a Python program on a machine whose load is zero."""
    load(0.0)
    started: list[Child] = []

    def start(program: str) -> Child:
        started.append(made := Child("it", [sys.executable, "-c", program], tmp_path / f"log-{len(started)}"))
        made.start()
        return made

    yield start
    for each in started:
        each.kill()


IDLE = "import signal; print('ready', flush=True); signal.pause()"


def test_a_dead_child_ends_the_wait_at_once(child: Callable[[str], Child]) -> None:
    """The wait ends with the child's last words, long before the limit."""
    began = time.monotonic()
    with pytest.raises(NotStarted, match="it ended before it served: no port"):
        child("import sys; sys.exit('no port')").until(lambda: False, 600.0)
    assert time.monotonic() - began < 300.0


def test_a_child_that_is_alive_and_idle_ends_the_wait_at_the_limit(child: Callable[[str], Child]) -> None:
    """The error has the limit and the child's last words; the child still runs."""
    idle = child(IDLE)
    assert_eventually(lambda: "ready" in idle.last_words(), 60.0)
    freeze(idle.pid)  # a late thread of the interpreter might count as work
    with pytest.raises(NotStarted, match=r"it did not serve within 0\.3 s: ready"):
        idle.until(lambda: False, 0.3)
    assert idle.running


def test_a_child_that_works_is_waited_for(
    child: Callable[[str], Child], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It serves only after four times the limit, by which time an idle child is given up."""
    ticks = itertools.count()
    monkeypatch.setattr("harness.child.cpu_of", lambda _: next(ticks))
    child(IDLE).until(lambda: clock.now > 2.0, 0.5)
    monkeypatch.setattr("harness.child.cpu_of", lambda _: 0)
    with pytest.raises(NotStarted, match="did not serve"):
        child(IDLE).until(lambda: clock.now > 4.0, 0.5)


def test_work_of_a_process_and_of_its_children_counts() -> None:
    """The CPU time grows while the process or its child runs, and is 0 once the process is gone."""
    work = "import time\nwhile time.process_time() < 20: pass"  # seconds; ends even if the test is killed
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}])"
    for program in (work, parent):
        with subprocess.Popen([sys.executable, "-c", program], start_new_session=True) as process:
            try:
                assert_eventually(lambda pid=process.pid: cpu_of(pid) > 100, 60.0)  # type: ignore[misc] # a default in a lambda has no type
            finally:
                os.killpg(process.pid, signal.SIGKILL)
        assert cpu_of(process.pid) == 0


def test_a_process_is_waited_for_until_it_ends_or_is_idle(load: Callable[..., None]) -> None:
    """The exit code is returned however late; a process that does nothing for as long as the limit is an error."""
    load(0.0)
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"]) as process:
        assert until_ended(process, 60.0) == 7
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            with pytest.raises(AssertionError, match=r"has not ended within 0\.2 s"):
                until_ended(process, 0.2)
            process.send_signal(signal.SIGKILL)
            assert until_ended(process, 60.0) == -signal.SIGKILL
        finally:
            process.kill()


def test_a_command_that_takes_longer_than_one_look_keeps_its_input_and_output(
    load: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The input is larger than a pipe holds, and the command takes several looks."""
    load(0.0)
    monkeypatch.setattr(patience, "LOOK", 0.01)
    done = completed(
        [sys.executable, "-c", "import sys; print(len(sys.stdin.read())); sys.exit('no')"], 60.0, given="x" * 10**6
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "1000000\n", "no\n")


def test_a_command_that_hangs_is_ended_and_says_its_last_words(load: Callable[..., None]) -> None:
    """The error has what the process printed before it hung."""
    load(0.0)
    with subprocess.Popen(["sh", "-c", "echo here; exec sleep 600"], stdout=subprocess.PIPE, text=True) as process:
        with pytest.raises(AssertionError, match=r"has not ended within 0\.5 s: here"):
            output_of(process, 0.5)
        assert process.returncode == -signal.SIGABRT


def test_a_python_program_that_hangs_says_where(load: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is aborted, so that it prints the stack of each thread; if it ignores that, it is killed."""
    load(0.0)
    hangs = "import signal\ndef here(): print('up', flush=True); signal.pause()\nhere()"
    says = pytest.raises(AssertionError, match=r"has not ended within 1 s: up\n(.|\n)*in here")
    with subprocess.Popen([sys.executable, "-c", hangs], stdout=-1, stderr=-1, text=True) as process, says:
        output_of(process, 1.0)
    monkeypatch.setattr(patience, "ABORTS", 0.1)
    with subprocess.Popen(["sh", "-c", "trap '' ABRT; exec sleep 600"], stdout=-1, text=True) as process:
        with pytest.raises(AssertionError, match=r"has not ended within 0\.5 s"):
            output_of(process, 0.5)
        assert process.returncode == -signal.SIGKILL


def test_a_task_is_waited_for_until_its_limit_and_cancelled_then(load: Callable[..., None]) -> None:
    """The task's result or error is passed on; without either, TimeoutError is raised and the task is cancelled."""
    load(0.0)
    cancelled: list[bool] = []

    async def result() -> int:
        return 3

    async def hangs() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    async def body() -> None:
        assert await within(result(), 60.0) == 3
        with pytest.raises(TimeoutError, match=r"not done within 0\.1 s"):
            await within(hangs(), 0.1)
        assert cancelled == [True]

    asyncio.run(body())
