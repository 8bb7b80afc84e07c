"""Overwrites of a slot log by real processes: killed and frozen at each step, and several at once. Rows are counted in the files."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterable
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from harness import sink_attempts
from harness.contest import COMMIT_POINTS, frozen, rows_in, wake
from harness.eventually import assert_eventually
from harness.patience import until_ended
from harness.sink_attempts import FINGERPRINT, Plan, answers, key_of, rows_of, sink_in
from harness.turns import Writer, outcomes
from sparkonce.blocking import run
from sparkonce.model.spec import WriteMode
from sparkonce.sink.protocol import Committed

LONG = 30  # seconds: a process of these tests needs milliseconds; only a defect takes this long
POINTS = (*COMMIT_POINTS, "sink.slots.looked")
OVERWRITE = WriteMode.OVERWRITE


def plan_of(folder: Path, name: str, token: int, mode: WriteMode | None = None, failpoints: str = "") -> Plan:
    process = f"{name}-{token}"
    return Plan(
        folder=str(folder), process=process, token=token, keys=(name,), verb="commit", mode=mode, failpoints=failpoints
    )


def commits(folder: Path, name: str, token: int = 1, mode: WriteMode | None = None) -> None:
    """This process writes the key."""
    plan = plan_of(folder, name, token, mode)
    sink = sink_in(plan.folder)
    assert run(sink.fence(key_of(name), token, fingerprint=FINGERPRINT, by="test")) is None
    assert isinstance(run(sink.commit(key_of(name), sink_attempts.staged(plan, name, sink))), Committed)


def rows_of_all(names: Iterable[str]) -> list[int]:
    return sorted(itertools.chain.from_iterable(map(rows_of, names)))


@pytest.mark.parametrize("point", POINTS)
def test_an_overwrite_killed_at_a_step_replaces_once(
    point: str, tmpfs_path: Path, started: list[ForkServerProcess]
) -> None:
    """k1 had rows before; k3 adds some after the death. If the slot was there k3's rows stay, else the next attempt replaces them, too."""
    commits(tmpfs_path, "k1")
    started.append(process := sink_attempts.start(plan_of(tmpfs_path, "k2", 2, OVERWRITE, f"{point}=kill")))
    until_ended(process, LONG)
    assert process.exitcode == -signal.SIGKILL
    commits(tmpfs_path, "k3")
    landed = point == "sink.slots.create.after"
    table = f"{tmpfs_path}/table"
    assert rows_in(table) == rows_of_all(["k2", "k3"] if landed else ["k1", "k3"])
    if landed:
        assert run(sink_in(str(tmpfs_path)).fence(key_of("k2"), 3, fingerprint=FINGERPRINT, by="settle")) is not None
    else:
        commits(tmpfs_path, "k2", 3, OVERWRITE)
    run(sink_in(str(tmpfs_path)).sweep(key_of("k2")))
    assert rows_in(table) == rows_of_all(["k2", "k3"] if landed else ["k2"])
    assert len(list(tmpfs_path.glob("table/_data/k2-*/*"))) == 1


@pytest.mark.parametrize("point", POINTS)
def test_a_frozen_overwrite_wakes_after_its_successor(
    point: str, tmpfs_path: Path, started: list[ForkServerProcess]
) -> None:
    """The successor has replaced k1's rows and k3 has added some: what the zombie had seen long ago replaces nothing."""
    commits(tmpfs_path, "k1")
    plan = plan_of(tmpfs_path, "k2", 2, OVERWRITE, f"{point}=1*stop")
    started.append(process := sink_attempts.start(plan))
    assert_eventually(lambda: frozen(process), LONG)
    landed = point == "sink.slots.create.after"
    if not landed:
        commits(tmpfs_path, "k2", 3, OVERWRITE)
    commits(tmpfs_path, "k3")
    wake(process)
    until_ended(process, LONG)
    assert [each["what"] for each in answers(plan)] == ["begin", "Committed" if landed else "FencedOff"]
    run(sink_in(str(tmpfs_path)).sweep(key_of("k2")))
    assert rows_in(f"{tmpfs_path}/table") == rows_of_all(["k2", "k3"])
    assert len(list(tmpfs_path.glob("table/_data/k2-*/*"))) == 1


@pytest.mark.parametrize("pause", ["sink.slots.looked=sleep(30)", "sink.slots.create.before=sleep(10)", ""])
def test_overwrites_and_appends_at_once_leave_what_turns_would(
    pause: str, tmpfs_path: Path, started: list[ForkServerProcess]
) -> None:
    """Three senders of one overwrite, two more overwrites and two appends: each key has one commit, each sender gets it, and the table is
    one that the writers could have left by taking turns."""
    plans = [plan_of(tmpfs_path, "k1", token, OVERWRITE, pause) for token in (1, 2, 3)]
    plans += [plan_of(tmpfs_path, name, 1, OVERWRITE, pause) for name in ("k2", "k3")]
    plans += [plan_of(tmpfs_path, name, 1) for name in ("k4", "k5")]
    processes = [sink_attempts.start(plan) for plan in plans]
    started.extend(processes)
    for process in processes:
        until_ended(process, LONG)
    assert {process.exitcode for process in processes} == {0}
    told = [each for plan in plans for each in answers(plan)]
    sink, writers = sink_in(str(tmpfs_path)), []
    for name in ("k1", "k2", "k3", "k4", "k5"):
        slot = run(sink.find(key_of(name)))
        own = [each for each in told if each["key"] == name]
        said = [each for each in own if each["what"] in ("Committed", "AlreadyCommitted")]
        assert slot is not None
        assert {each["nonce"] for each in said} == {slot.nonce}
        began = min(each["at"] for each in own if each["what"] == "begin")
        ended = min(each["at"] for each in said)
        writers.append(Writer(key_of(name), slot.replaces is not None, began, ended))
    tables = [rows_of_all(each.partition("-")[0] for each in table) for table in outcomes(writers)]
    assert rows_in(f"{tmpfs_path}/table") in tables
