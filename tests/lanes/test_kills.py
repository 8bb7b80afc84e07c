"""Real processes that write to a lane are killed and frozen at each failpoint of it, and at random."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import effort
from harness.eventually import assert_eventually
from harness.lane_log import numbers_of
from harness.patience import completed
from lanes.tap import FENCED
from sparkonce.lanes.table_log import TableLog
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.slotlog.snapshot import Table

TAP = Path(__file__).with_name("tap.py")
COUNT = 30
SOON = 60.0
POINTS = [
    "lanes.claim.before",
    "lanes.claim.after",
    "lanes.uploaded",
    "lanes.commit.before",
    "lanes.commit.after",
    "lanes.rolled",
    "sink.slots.create.before",
    "sink.slots.create.after",
    "sink.slots.close.after",
]
RARE = {"lanes.claim.before", "lanes.claim.after", "sink.slots.close.after"}
"""Points that one process hits once."""


def hits_before(point: str) -> int:
    """Hits of the point before the one at which a fault is played, so that some rows are there; every run has one more at least: it has ten
    places, four to a generation."""
    return 0 if point in RARE else 1 if point == "lanes.rolled" else 3


def rows(folder: Path) -> list[int]:
    """What readers see, in the order of the lane's places."""
    files = Table(folder).files()
    return [n for file in files for n in numbers_of(file)]


def start(
    lake: Path | str, *more: str, failpoints: str = "", name: str = "tap", count: int = COUNT
) -> subprocess.Popen[str]:
    """A tap of this folder or topic; more: further arguments of `tap.py`."""
    environment = {**os.environ, "SPARKONCE_FAILPOINTS": failpoints}
    command = [sys.executable, str(TAP), str(lake), name, str(count), *more]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(tap: subprocess.Popen[str], timeout: float = SOON) -> tuple[int, list[int], str]:
    """Its exit code, the numbers that it had acknowledged, and what it said."""
    out, err = tap.communicate(timeout=timeout)
    return tap.returncode, [int(line) for line in out.split()], err


def acknowledged_are_there(folder: Path, acknowledged: list[int]) -> None:
    assert set(acknowledged) <= set(rows(folder) if acknowledged else [])


def until_stopped(tap: subprocess.Popen[str]) -> None:
    status = Path(f"/proc/{tap.pid}/stat")
    assert_eventually(lambda: status.read_text().rpartition(")")[2].split()[0] == "T", SOON)


def woken(zombie: subprocess.Popen[str]) -> tuple[int, list[int], str]:
    """As `ended`, of a process that was stopped."""
    while zombie.poll() is None:
        zombie.send_signal(signal.SIGCONT)
        time.sleep(0.05)  # between two signals: the point may stop it again
    return ended(zombie)


def troubled(lake: Path | str, dice: random.Random) -> list[int]:
    """Taps that are started beside each other, killed and frozen at random moments; what they had acknowledged."""
    deadline = time.monotonic() + effort.size("lane troubles")
    taps: list[subprocess.Popen[str]] = []
    acknowledged: list[int] = []
    while time.monotonic() < deadline:
        taps.append(start(lake, count=10_000))
        time.sleep(dice.uniform(0.5, 3.0))  # the moment of the fault, which is drawn; the result may not depend on it
        victim = dice.choice(taps)
        victim.send_signal(dice.choice((signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT)))
        while len(taps) > 3:
            taps[0].send_signal(signal.SIGCONT)
            taps[0].send_signal(signal.SIGKILL)
            acknowledged += ended(taps.pop(0))[1]
    for tap in taps:
        tap.send_signal(signal.SIGCONT)
        tap.kill()
        acknowledged += ended(tap)[1]
    return acknowledged


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_writer_that_is_killed_is_followed(tmp_path: Path, point: str) -> None:
    """Whatever it had acknowledged is there; the next process goes on at the position, and every row is there once, in order."""
    table = tmp_path / "t"
    if point in RARE:
        ended(start(table, count=5))  # a lane that had a writer: its claim has slots to close
    hits = hits_before(point)
    killed = start(table, failpoints=f"{point}={hits}*off->kill" if hits else f"{point}=kill")
    code, acknowledged, _ = ended(killed)
    assert code == -signal.SIGKILL
    acknowledged_are_there(table, acknowledged)
    code, _, said = ended(start(table))
    assert code == 0, said
    assert rows(table) == list(range(1, COUNT + 1))


@pytest.mark.slow
@pytest.mark.parametrize("point", effort.sampled(POINTS))
def test_a_writer_that_wakes_after_its_successor_changes_nothing(tmp_path: Path, point: str) -> None:
    """It was frozen between two steps while another process took the lane over and wrote the rest. It finds itself fenced, or it acquires
    the lane anew and finds nothing to do."""
    table = tmp_path / "t"
    if point in RARE:
        ended(start(table, count=5))
    hits = hits_before(point)
    zombie = start(table, failpoints=f"{point}={hits}*off->stop" if hits else f"{point}=1*stop->off")
    until_stopped(zombie)
    code, _, said = ended(start(table))
    assert code == 0, said
    assert rows(table) == list(range(1, COUNT + 1))
    code, acknowledged, said = woken(zombie)
    assert code in ((0,) if point == "lanes.claim.before" else (FENCED, 0)), said
    acknowledged_are_there(table, acknowledged)
    assert rows(table) == list(range(1, COUNT + 1))


@pytest.mark.slow
def test_two_processes_of_one_name_at_once(tmp_path: Path) -> None:
    """They take the lane from each other at most once each: one ends fenced or both end well, and the rows are there once."""
    table = tmp_path / "t"
    taps = [start(table) for _ in range(2)]
    codes = [ended(tap)[0] for tap in taps]
    assert set(codes) <= {0, FENCED}
    assert 0 in codes
    assert rows(table) == list(range(1, COUNT + 1))


@pytest.mark.slow
@pytest.mark.further
def test_kills_and_freezes_at_random(tmp_path: Path) -> None:
    """Processes that are started beside each other, killed and frozen at random moments: rows in are rows out."""
    print(f"SEED={effort.base()}")
    table = tmp_path / "t"
    acknowledged = troubled(table, random.Random(effort.seed("lane kills")))
    seen = rows(table)
    assert seen == list(range(1, len(seen) + 1))
    assert set(acknowledged) <= set(seen)
    print(f"{len(seen)} rows by {len(list(TableLog(FolderObjects(table), 'tap').entries()))} places")
    assert completed([sys.executable, str(TAP), str(table), "tap", str(len(seen))], SOON).returncode == 0
