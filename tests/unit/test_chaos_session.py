"""How a session of `make chaos` proceeds from run to run: order, resumption and exit codes, on a planted session without a cluster."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

import chaos_session as chaos
from chaos_cases import CASES
from chaos_runs import Arm, Run, Task, read
from harness.patience import stretched

PATIENCE = 10.0
"""Seconds for a second run to join the first."""

GRACE = 0.05
"""Seconds in which a third run could join two others; none does."""


class Planted:
    """Stands in for a session on a cluster: every run is right except planted ones. Records which runs overlap."""

    def __init__(self, seed: int, wrong: Sequence[tuple[str, Arm]] = (), broken: str = "", slow: str = "") -> None:
        self.seed, self.wrong, self.broken, self.slow = seed, wrong, broken, slow
        self.began: list[Task] = []
        self.beside: list[tuple[str, int]] = []
        self._now, self._lock = 0, threading.Lock()
        self._paired, self._crowded = threading.Event(), threading.Event()

    def run(self, *tasks: Task) -> list[Run]:
        return [self._run(task) for task in tasks]

    def _run(self, task: Task) -> Run:
        with self._lock:
            self.began.append(task)
            self._now += 1
            self.beside.append((task.fault, self._now))
            if self._now > 1:
                self._paired.set()
            if self._now > 2:
                self._crowded.set()
        if not CASES[task.fault].alone:
            self._paired.wait(stretched(PATIENCE))
            self._crowded.wait(GRACE)
        with self._lock:
            self._now -= 1
        if any(word and word in task.fault for word in self.broken.split(",")):
            raise httpx.ConnectError("the API server is gone")
        if task.fault == self.slow:
            raise chaos.TooSlow("no driver came")
        wrong = (task.fault, task.arm) in self.wrong
        return Run(
            date="2026-11-22T07:30:00Z",
            commit="abc",
            arm=task.arm,
            fault=task.fault,
            seed=self.seed,
            number=task.number,
            drivers=1,
            extra=0,
            least=1,
            most=2 if wrong else 1,
            state="Succeeded" if task.arm is Arm.SPARKONCE else "COMPLETED",
            seconds=1.0,
        )


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a session writes: chaos.jsonl and chaos.md."""
    monkeypatch.setattr(chaos, "RUNS", tmp_path / "chaos.jsonl")
    monkeypatch.setattr(chaos, "TABLE", tmp_path / "chaos.md")
    return tmp_path


def plant(monkeypatch: pytest.MonkeyPatch, session: Planted) -> Planted:
    @contextmanager
    def opened(seed: int) -> Iterator[Planted]:
        session.seed = seed
        yield session

    monkeypatch.setattr(chaos, "opened", opened)
    return session


def test_a_session_makes_what_is_missing(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first session makes one run of each fault and arm, the second makes those missing to two, and the third has nothing to do. The
    page counts all of them."""
    wanted = sum(len(case.arms) for case in CASES.values())
    first = plant(monkeypatch, Planted(0))
    assert chaos.main(["--runs", "1"]) == 0
    assert len(first.began) == wanted == len(read(files / "chaos.jsonl"))
    second = plant(monkeypatch, Planted(0))
    assert chaos.main(["--runs", "2", "--arms", "never"]) == 0
    assert {task.number for task in second.began} == {2}
    assert {task.arm for task in second.began} == {Arm.NEVER}
    third = plant(monkeypatch, Planted(0))
    assert chaos.main(["--runs", "2", "--arms", "never"]) == 0
    assert third.began == []
    assert f"{wanted + len(second.began)} runs" in (files / "chaos.md").read_text()


def test_who_runs_beside_whom(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most two runs are under way, and none beside a fault that hits the whole cluster."""
    session = plant(monkeypatch, Planted(0))
    assert chaos.main(["--runs", "1"]) == 0
    assert {beside for fault, beside in session.beside if CASES[fault].alone} == {1}
    assert {beside for fault, beside in session.beside if not CASES[fault].alone} == {1, 2}


@pytest.mark.parametrize(("arm", "code"), [(Arm.SPARKONCE, 1), (Arm.NEVER, 0)])
def test_the_exit_code(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arm: Arm, code: int
) -> None:
    """It is 1 if a run of ours is wrong, which is printed; runs of plain applications count in the table only. Each run has a line."""
    plant(monkeypatch, Planted(0, wrong=[("none", arm)]))
    assert chaos.main(["--runs", "1", "--only", "none"]) == code
    said = capsys.readouterr()
    assert ("none, run 1 of sparkonce: duplicate" in said.err) is (code == 1)
    assert said.out.count("| 1 of 1: ") == 3
    assert f"none | {arm} | 1 of 1: duplicate" in said.out
    assert said.out.count("plain, OnFailure") == 2, "its row and its sum"


def test_a_cluster_that_breaks(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that cannot be made leaves no line; after four in a row the session ends with 2."""
    session = plant(monkeypatch, Planted(0, broken="driver hung,driver cut off,label"))
    assert chaos.main(["--runs", "1", "--only", "driver hung,label"]) == 2
    made = read(files / "chaos.jsonl")
    assert made == [] and chaos.GIVES_UP <= len(session.began) <= chaos.GIVES_UP + chaos.TOGETHER
    assert "chaos: the API server is gone" in capsys.readouterr().err


def test_a_run_that_breaks(files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """If its cluster does not answer, a run is printed and leaves no line, and the others continue."""
    plant(monkeypatch, Planted(0, broken="ledger killed"))
    assert chaos.main(["--runs", "1", "--only", "ledger,gateways"]) == 0
    assert [run.fault for run in read(files / "chaos.jsonl")] == ["gateways gone"]
    assert "left out: ledger killed, sparkonce: the API server is gone" in capsys.readouterr().out
    assert "1 runs" in (files / "chaos.md").read_text()


def test_a_machine_without_time(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run whose driver never began does not count: it is printed, leaves no line and is made in the next session, while the others
    continue."""
    plant(monkeypatch, Planted(0, slow="ledger killed"))
    assert chaos.main(["--runs", "1", "--only", "ledger,gateways"]) == 0
    assert [run.fault for run in read(files / "chaos.jsonl")] == ["gateways gone"]
    assert "left out: ledger killed, sparkonce: no driver came" in capsys.readouterr().out
    again = plant(monkeypatch, Planted(0))
    assert chaos.main(["--runs", "1", "--only", "ledger,gateways"]) == 0
    assert [task.fault for task in again.began] == ["ledger killed"]


def test_time_is_up(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No run starts after the minutes are over, which is not a failure."""
    session = plant(monkeypatch, Planted(0))
    assert chaos.main(["--minutes", "0"]) == 0
    assert session.began == []


def test_only_the_page(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--table` writes the page from the existing runs and opens no cluster."""
    session = plant(monkeypatch, Planted(0))
    assert chaos.main(["--table"]) == 0
    assert session.began == []
    assert "No run yet" in (files / "chaos.md").read_text()


def test_an_arm_that_does_not_exist(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence says so."""
    assert chaos.main(["--arms", "spark"]) == 2
    assert "chaos: 'spark' is not an arm; give some of sparkonce,never,onfailure" in capsys.readouterr().err


def test_runs_are_told_as_they_end(capsys: pytest.CaptureFixture[str]) -> None:
    """Each line estimates the remaining time at the pace so far, and shows what an unfinished run left behind."""
    tell = chaos.Telling(3)
    tell.began -= 60
    (run,) = Planted(0).run(Task(fault="ledger killed", arm=Arm.SPARKONCE, number=2))
    tell(replace(run, seconds=None, state="Running", note="why"), 5)
    said = capsys.readouterr().out
    assert "2 min left] ledger killed | sparkonce | 2 of 5: wrong state; rows 1-1 times, Running" in said
    assert said.endswith("no end (why)\n")
