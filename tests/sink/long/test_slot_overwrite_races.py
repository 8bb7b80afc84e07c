"""Overwrites of a slot log by real processes: killed and frozen at each step, and several at once. Rows are counted in the files."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterable
from dataclasses import replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
from pyarrow import parquet

from harness import sink_attempts
from harness.contest import COMMIT_POINTS, frozen, rows_in, wake
from harness.eventually import assert_eventually
from harness.patience import until_ended
from harness.sink_attempts import FINGERPRINT, Plan, answers, key_of, rows_of, sink_in, sink_of
from harness.turns import Writer, outcomes
from sparkonce.blocking import run
from sparkonce.model.spec import WriteMode
from sparkonce.sink.protocol import Committed
from sparkonce.sink.slotlog.snapshot import Table

LONG = 30  # seconds: a process of these tests needs milliseconds; only a defect takes this long
POINTS = (*COMMIT_POINTS, "sink.slots.looked")
OVERWRITE = WriteMode.OVERWRITE


def plan_of(
    folder: Path,
    name: str,
    token: int = 1,
    mode: WriteMode | None = None,
    failpoints: str = "",
    *,
    days: tuple[str, ...] = (),
) -> Plan:
    process, at = f"{name}-{token}", str(folder)
    plan = Plan(folder=at, process=process, token=token, keys=(name,), verb="commit", failpoints=failpoints)
    return replace(plan, mode=mode, days=days)


def commits(plan: Plan) -> None:
    """This process writes the plan's key."""
    [name], sink = plan.keys, sink_of(plan)
    assert run(sink.fence(key_of(name), plan.token, fingerprint=FINGERPRINT, by="test")) is None
    assert isinstance(run(sink.commit(key_of(name), sink_attempts.staged(plan, name, sink))), Committed)


def begun(
    folder: Path, mode: WriteMode, failpoints: str, days: tuple[str, ...], started: list[ForkServerProcess]
) -> tuple[Plan, ForkServerProcess]:
    """k1 has written its rows; a process overwrites them as the second attempt of k2."""
    commits(plan_of(folder, "k1", days=days))
    plan = plan_of(folder, "k2", 2, mode, failpoints, days=days)
    started.append(process := sink_attempts.start(plan))
    return plan, process


def rows_of_all(names: Iterable[str]) -> list[int]:
    return sorted(itertools.chain.from_iterable(map(rows_of, names)))


KINDS = pytest.mark.parametrize(
    ("mode", "days"), [(OVERWRITE, ()), (WriteMode.OVERWRITE_PARTITIONS, ("mon",))], ids=["table", "partition"]
)


def rows_by(names: Iterable[str], days: tuple[str, ...]) -> list[int]:
    """Rows of these keys, each of which has written these days."""
    return sorted(int(name[1:]) for name in names for _ in days) if days else rows_of_all(names)


@KINDS
@pytest.mark.parametrize("point", POINTS)
def test_an_overwrite_killed_at_a_step_replaces_once(
    point: str, mode: WriteMode, days: tuple[str, ...], tmpfs_path: Path, started: list[ForkServerProcess]
) -> None:
    """k1 had rows before; k3 adds some after the death. If the slot was there k3's rows stay, else the next attempt replaces them, too."""
    plan, process = begun(tmpfs_path, mode, f"{point}=kill", days, started)
    until_ended(process, LONG)
    assert process.exitcode == -signal.SIGKILL
    commits(plan_of(tmpfs_path, "k3", days=days))
    landed, table = point == "sink.slots.create.after", f"{tmpfs_path}/table"
    assert rows_in(table) == rows_by(["k2", "k3"] if landed else ["k1", "k3"], days)
    if landed:
        assert run(sink_of(plan).fence(key_of("k2"), 3, fingerprint=FINGERPRINT, by="settle")) is not None
    else:
        commits(plan_of(tmpfs_path, "k2", 3, mode, days=days))
    run(sink_of(plan).sweep(key_of("k2")))
    assert rows_in(table) == rows_by(["k2", "k3"] if landed else ["k2"], days)
    assert len(list(tmpfs_path.glob("table/_data/k2-*/*"))) == 1


@KINDS
@pytest.mark.parametrize("point", POINTS)
def test_a_frozen_overwrite_wakes_after_its_successor(
    point: str, mode: WriteMode, days: tuple[str, ...], tmpfs_path: Path, started: list[ForkServerProcess]
) -> None:
    """The successor has replaced k1's rows and k3 has added some: what the zombie had seen long ago replaces nothing."""
    plan, process = begun(tmpfs_path, mode, f"{point}=1*stop", days, started)
    assert_eventually(lambda: frozen(process), LONG)
    landed = point == "sink.slots.create.after"
    if not landed:
        commits(plan_of(tmpfs_path, "k2", 3, mode, days=days))
    commits(plan_of(tmpfs_path, "k3", days=days))
    wake(process)
    until_ended(process, LONG)
    assert [each["what"] for each in answers(plan)] == ["begin", "Committed" if landed else "FencedOff"]
    run(sink_of(plan).sweep(key_of("k2")))
    assert rows_in(f"{tmpfs_path}/table") == rows_by(["k2", "k3"], days)
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
    writers = raced(tmpfs_path, plans, started)
    tables = [rows_of_all(each.partition("-")[0] for each, _ in table) for table in outcomes(writers)]
    assert rows_in(f"{tmpfs_path}/table") in tables


@pytest.mark.parametrize("pause", ["sink.slots.looked=sleep(30)", ""])
def test_overwrites_of_partitions_at_once_leave_what_turns_would(
    pause: str, tmpfs_path: Path, started: list[ForkServerProcess]
) -> None:
    """Three senders of one overwrite of Monday, others of both days, of the table, and two appends: the same, by day."""
    both, mode = ("mon", "tue"), WriteMode.OVERWRITE_PARTITIONS
    plans = [plan_of(tmpfs_path, "k1", token, mode, pause, days=("mon",)) for token in (1, 2, 3)]
    plans += [plan_of(tmpfs_path, "k2", 1, mode, pause, days=both)]
    plans += [plan_of(tmpfs_path, "k3", 1, OVERWRITE, pause, days=both)]
    plans += [plan_of(tmpfs_path, name, days=both) for name in ("k4", "k5")]
    writers = raced(tmpfs_path, plans, started)
    found = parquet.read_table(Table(f"{tmpfs_path}/table").files()).to_pylist()
    rows = [(str(key_of(f"k{row['n']}")), row["day"]) for row in found]
    assert len(rows) == len(set(rows))
    assert frozenset(rows) in outcomes(writers)


def raced(folder: Path, plans: list[Plan], started: list[ForkServerProcess]) -> list[Writer]:
    """Carries out the plans at once. Each key has one commit then, and each of its senders got that one; returns when each was written."""
    processes = [sink_attempts.start(plan) for plan in plans]
    started.extend(processes)
    for process in processes:
        until_ended(process, LONG)
    assert {process.exitcode for process in processes} == {0}
    told = [each for plan in plans for each in answers(plan)]
    sink, writers = sink_in(str(folder)), []
    for name, days in {plan.keys[0]: plan.days or ("mon",) for plan in plans}.items():
        slot = run(sink.find(key_of(name)))
        own = [each for each in told if each["key"] == name]
        said = [each for each in own if each["what"] in ("Committed", "AlreadyCommitted")]
        assert slot is not None
        assert {each["nonce"] for each in said} == {slot.nonce}
        began = min(each["at"] for each in own if each["what"] == "begin")
        writers.append(Writer(key_of(name), slot.mode, days, began, min(each["at"] for each in said)))
    return writers
