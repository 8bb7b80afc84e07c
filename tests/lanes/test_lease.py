"""`if_busy="refuse"`: a lane is left to a writer that has its lease, and no row depends on that lease."""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import sparkonce
from harness.etcd_replies import emptied
from harness.eventually import assert_eventually
from harness.postgres import server
from lanes import leased
from lanes.leased import BUSY
from lanes.tap import FENCED
from lanes.test_kills import SOON, ended, rows, until_stopped
from sparkonce.errors import InvalidInput, StoreUnavailable
from sparkonce.lanes import lease
from sparkonce.lanes.table_log import TableLog
from sparkonce.lanes.writer import Writer
from sparkonce.sink.objects.local import FolderObjects

LEASE = 3.0
"""Seconds of a lease here, so that tests need not wait for ten."""


def store_in(folder: Path) -> str:
    return f"sqlite:///{folder / 'leases.db'}"


def asking(folder: Path, name: str = "tap", store: str = "") -> Writer:
    store = store or store_in(folder)
    return sparkonce.writer(folder / "t", name=name, if_busy="refuse", store=store, linger=0.0)


def start(folder: Path, count: int, pause: float = 0.0, seconds: float = LEASE) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        leased.__file__,
        str(folder / "t"),
        store_in(folder),
        str(count),
        str(pause),
        str(seconds),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def is_free(folder: Path) -> bool:
    try:
        asking(folder).close()
    except sparkonce.LaneBusy:
        return False
    return True


def freeze_outside_of_a_transaction(tap: subprocess.Popen[str], folder: Path) -> None:
    """One that is frozen within a transaction of a SQLite ledger locks it for as long."""
    while True:
        tap.send_signal(signal.SIGSTOP)
        until_stopped(tap)
        database = sqlite3.connect(folder / "leases.db", isolation_level=None, timeout=1.0)
        try:
            database.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            tap.send_signal(signal.SIGCONT)
        else:
            return
        finally:
            database.close()


def until_written(folder: Path, number: int) -> None:
    assert_eventually(lambda: (folder / "t").exists() and number in rows(folder / "t"), SOON)


@pytest.fixture(params=["sqlite", "postgres", "etcd-3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Address of an empty ledger that several processes reach."""
    if request.param == "etcd-3":
        return emptied()
    return store_in(tmp_path) if request.param == "sqlite" else server().url


def test_a_second_writer_is_refused_until_the_first_one_is_closed(tmp_path: Path, store: str) -> None:
    """The refused one changes nothing: the first one writes on. A lane of another name is no matter of this lease."""
    with asking(tmp_path, store=store) as first:
        first.append({"n": 1}, position=1).result()
        with pytest.raises(
            sparkonce.LaneBusy, match=r"the lane tap of .* has a writer, whose lease in .* lapses in \d+ s unless"
        ):
            asking(tmp_path, store=store)
        with asking(tmp_path, name="other", store=store) as other:
            other.append({"n": 0}).result()
        first.append({"n": 2}, position=2).result()
    with asking(tmp_path, store=store) as second:
        assert second.position == 2


def test_the_remedy_of_a_busy_lane_takes_it(tmp_path: Path) -> None:
    """`if_busy='take'` fences the writer that has the lease. Once that has noticed, its lease is free although it was not closed."""
    first = asking(tmp_path)
    with pytest.raises(sparkonce.LaneBusy, match="open the lane with if_busy='take', which fences it"):
        asking(tmp_path)
    with sparkonce.writer(tmp_path / "t", name="tap", if_busy="take", linger=0.0) as second:
        second.append({"n": 1}, position=1).result()
    with pytest.raises(sparkonce.WriterFenced):
        first.append({"n": 2}).result()

    assert_eventually(lambda: is_free(tmp_path), SOON)
    assert rows(tmp_path / "t") == [1]


@pytest.mark.slow
def test_of_many_that_open_it_at_once_one_gets_it(tmp_path: Path) -> None:
    """Five processes: one writes all rows, the others are refused, or they come later and find nothing to do. None is fenced."""
    taps = [start(tmp_path, 10, 0.2, 60.0) for _ in range(5)]
    ends = [ended(tap) for tap in taps]
    assert {code for code, _, _ in ends} <= {0, BUSY}, ends
    assert sorted(number for _, numbers, _ in ends for number in numbers) == list(range(1, 11))
    assert rows(tmp_path / "t") == list(range(1, 11))


@pytest.mark.slow
def test_a_killed_writer_is_followed_once_its_lease_has_lapsed(tmp_path: Path) -> None:
    """Until then the next one is refused; then it goes on at the position."""
    tap = start(tmp_path, 1000, 0.05)
    until_written(tmp_path, 3)
    assert ended(start(tmp_path, 1000))[0] == BUSY
    tap.send_signal(signal.SIGKILL)
    killed_at = time.monotonic()
    ended(tap)
    written = len(rows(tmp_path / "t"))

    def follows() -> bool:
        code, _, said = ended(start(tmp_path, written + 5))
        assert code in (0, BUSY), said
        return code == 0

    assert_eventually(follows, SOON)
    assert time.monotonic() - killed_at > LEASE / 3, "its lease had been prolonged"
    assert rows(tmp_path / "t") == list(range(1, written + 6))


@pytest.mark.slow
def test_a_frozen_writer_that_wakes_after_its_lease_writes_nothing(tmp_path: Path) -> None:
    """Another process has the lease and the lane since. The log fences it, whatever it believes of its lease."""
    zombie = start(tmp_path, 1000, 0.05)
    until_written(tmp_path, 3)
    freeze_outside_of_a_transaction(zombie, tmp_path)
    written = len(rows(tmp_path / "t"))
    assert_eventually(lambda: ended(start(tmp_path, written + 5))[0] == 0, SOON)
    zombie.send_signal(signal.SIGCONT)
    code, _, said = ended(zombie)
    assert code == FENCED, said
    seen = rows(tmp_path / "t")
    assert seen == list(range(1, len(seen) + 1))


@pytest.mark.slow
def test_a_writer_lives_longer_than_its_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an append: it is busy all the time, and then goes on."""
    monkeypatch.setattr(lease, "SECONDS", 6.0)  # a busy machine may delay a beat for seconds
    with asking(tmp_path) as first:
        until = time.monotonic() + 8.0
        while time.monotonic() < until:
            with pytest.raises(sparkonce.LaneBusy):
                asking(tmp_path)
            time.sleep(0.5)  # each look locks the SQLite ledger, and the beats under test need it in between
        first.append({"n": 1}).result()


def test_a_ledger_that_is_silent_stops_no_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file is locked for longer than a lease: rows go on meanwhile, and the lease does once the ledger answers."""
    monkeypatch.setattr(lease, "SECONDS", 1.0)
    with asking(tmp_path) as writer:
        database = sqlite3.connect(tmp_path / "leases.db", isolation_level=None)
        database.execute("BEGIN IMMEDIATE")
        until, n = time.monotonic() + 2.0, 0
        while time.monotonic() < until:
            n += 1
            writer.append({"n": n}, position=n).result()
        database.execute("ROLLBACK")
        lasts = "SELECT lease_until > ? FROM replies"
        assert_eventually(lambda: database.execute(lasts, (time.monotonic(),)).fetchone() == (1,), SOON)
        database.close()
        with pytest.raises(sparkonce.LaneBusy):
            asking(tmp_path)
    assert rows(tmp_path / "t") == list(range(1, n + 1))


def test_a_ledger_that_does_not_answer_at_first_takes_nothing(tmp_path: Path) -> None:
    """Whether there is a writer is unknown then, so the lane is left alone."""
    with sparkonce.writer(tmp_path / "t", name="tap", linger=0.0) as first:
        with pytest.raises(StoreUnavailable):
            sparkonce.writer(tmp_path / "t", name="tap", if_busy="refuse", store="etcd://127.0.0.1:1")
        first.append({"n": 1}).result()


def test_a_dropped_writer_frees_its_lease(tmp_path: Path) -> None:
    """At once, and its thread ends."""
    writer = asking(tmp_path)
    del writer
    gc.collect()

    assert_eventually(lambda: is_free(tmp_path), lease.SECONDS / 2)  # before it would lapse
    assert_eventually(lambda: not [each for each in threading.enumerate() if each.name.startswith("lane-lease")], SOON)


def test_a_lane_that_cannot_be_acquired_frees_its_lease(tmp_path: Path) -> None:
    """The second try is not refused because of the first one."""
    with asking(tmp_path) as writer:
        writer.append({"n": 1}).result()
    sparkonce.writer(tmp_path / "t", name="tap").close()
    TableLog(FolderObjects(tmp_path / "t"), "tap").retire(by="test")
    for _ in range(2):
        with pytest.raises(sparkonce.LaneRetired):
            asking(tmp_path)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"if_busy": "wait"}, "if_busy is 'wait', and must be 'take' or 'refuse'"),
        ({"if_busy": "refuse"}, "store is missing; name one that all writers of the lane reach"),
        ({"store": "sqlite:///x.db"}, "store is for if_busy='refuse'"),
        ({"if_busy": "refuse", "store": "memory:"}, "which no other process sees"),
        ({"if_busy": "refuse", "store": "redis://x"}, "is no ledger of answers"),
    ],
)
def test_what_is_no_choice_is_refused_before_anything_is_written(
    tmp_path: Path, options: dict[str, str], sentence: str
) -> None:
    """Words, ledgers that are missing, superfluous, of one process or none at all."""
    with pytest.raises(InvalidInput, match=sentence):
        sparkonce.writer(tmp_path / "t", name="tap", **options)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
