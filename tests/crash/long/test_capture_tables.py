"""A captured script that writes Iceberg tables: killed or frozen at its steps, overtaken, sent three times. Each write is there once."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crash.iceberg_scene import NAME, OLD, Tables, drop, engine
from crash.scene import Scene, gate_of
from harness.iceberg_rest import spark_runtime
from harness.iceberg_tables import rest_catalog
from harness.patience import until_ended

pytestmark = pytest.mark.spark

PATIENCE = 300
"""Seconds for a command: several starts of a JVM on a busy machine."""
FOREIGN = 5001
TOTALS = "sales.totals"
MERGED = {number: (1 if number >= 5 else 0) for number in range(10)} | dict.fromkeys(range(10, 15), 100)
ORDERS = {number: value + (10 if number % 2 == 0 else 0) for number, value in MERGED.items()} | dict.fromkeys(
    range(100, 103), 7
)


class Captured(Tables):
    """A scene whose script writes the table, makes a second one and a slot log."""

    def right(self, *foreign: int) -> None:
        """The rows are the truth, from one commit in each table; no branch is left."""
        orders = {**ORDERS, **dict.fromkeys(foreign, 1)}
        totals = Counter(orders.values())
        assert self.read() == sorted(orders.items())
        assert self.read(TOTALS, "v", "count") == sorted(totals.items())
        assert self.rows("events") == sorted(totals)
        assert [(self.commits(name), self.branches(name)) for name in (NAME, TOTALS)] == [(1, []), (1, [])]

    def snapshots(self) -> int:
        return sum(len(self.table(name).metadata.snapshots) for name in (NAME, TOTALS))


@pytest.fixture
def made(
    tmpfs_path: Path, server: str, scenes: list[Scene], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Captured]]:
    for name, value in rest_catalog(server).items():
        monkeypatch.setenv(name, value)
    conf = engine(str(spark_runtime()), server)
    outputs = [
        {"name": "orders", "iceberg": {"catalog": "lake", "table": NAME}, "capture": True},
        {"name": "totals", "iceberg": {"catalog": "lake", "table": TOTALS}, "capture": True},
        {"name": "events", "slotLog": {"path": "lake/events"}, "capture": True},
    ]

    def make() -> Captured:
        given = (str(tmpfs_path / "lake"), str(gate_of(tmpfs_path)))
        scene = Captured.in_spark(tmpfs_path, "captured_tables_script.py", *given, conf=conf, outputs=outputs)
        scenes.append(scene)
        scene.create()
        return scene

    yield make
    for scene in scenes:
        scene.clear()  # before the tables that they write go
    drop(NAME, TOTALS)


STEPS = (
    ("driver.native.open", 0, False),
    ("sink.iceberg.branch.before", 0, False),
    ("sink.iceberg.branch.after", 0, False),
    ("driver.native.before", 0, False),  # the MERGE
    ("driver.native.after", 2, False),
    ("sink.iceberg.columns.before", 0, False),  # the table that the script makes
    ("sink.iceberg.columns.after", 0, False),
    ("sink.iceberg.branch.after", 1, False),
    ("driver.native.after", 3, False),
    ("driver.commit.after", 0, False),  # Parquet
    ("driver.native.end.before", 0, False),
    ("sink.iceberg.commit.before", 0, False),
    ("sink.iceberg.commit.after", 0, True),
    ("driver.native.end.before", 1, True),
    ("sink.iceberg.commit.after", 1, True),
)


@pytest.mark.soak
@pytest.mark.parametrize(("point", "skip", "visible"), STEPS)
def test_a_script_killed_at_each_step(made: Callable[[], Captured], point: str, skip: int, visible: bool) -> None:
    """Around the branches, each statement, the table that it makes and the moves of `main`: until those nothing is visible. Sent again it
    comes to its one result, and once more it changes nothing."""
    dies_and_ends(made(), (point, skip, visible))


def test_a_script_killed_at_one_step_after_another(made: Callable[[], Captured]) -> None:
    """One script, of which each attempt gets further than the last one before it is killed."""
    dies_and_ends(
        made(),
        ("sink.iceberg.branch.before", 0, False),
        ("sink.iceberg.columns.before", 0, False),
        ("sink.iceberg.columns.after", 0, False),  # the other points: test_native_iceberg
    )


def dies_and_ends(scene: Captured, *places: tuple[str, int, bool]) -> None:
    """visible: the table has its new rows when the script has died there."""
    for point, skip, visible in places:
        scene.kill_at(point, skip=skip, patience=PATIENCE)
        assert scene.read() == sorted((ORDERS if visible else OLD).items())
    assert scene.finish()["phase"] == "Succeeded"
    scene.right()
    snapshots = scene.snapshots()
    assert scene.finish()["phase"] == "Succeeded"
    assert scene.snapshots() == snapshots


def test_a_script_frozen_in_its_merge_wakes_after_its_successor(made: Callable[[], Captured]) -> None:
    """JVM and all: its branch is gone and `main` has moved on, so that Iceberg refuses its statement, and it writes nothing more."""
    scene = made()
    scene.signal_at_gate(signal.SIGSTOP, patience=PATIENCE)
    scene.finish_beside_zombie()
    scene.right()
    heads = [scene.table(name).current_snapshot() for name in (NAME, TOTALS)]
    scene.wake("ValidationException", patience=PATIENCE)
    assert [scene.table(name).current_snapshot() for name in (NAME, TOTALS)] == heads
    scene.right()


@pytest.mark.soak  # a block does it in TIER=all: test_native_iceberg
def test_another_writer_commits_while_the_script_runs(made: Callable[[], Captured]) -> None:
    """Its MERGE has read what is different now: that attempt ends, naming the cause, and the next one is right on the new state."""
    scene = made()
    runner = scene.run_to_gate(patience=PATIENCE)
    scene.add(FOREIGN)
    scene.gate.unlink()
    assert until_ended(runner, PATIENCE) == 0, scene.last_output()
    assert scene.said()["phase"] == "Succeeded"
    assert len(scene.attempts_made()) == 2
    scene.right(FOREIGN)


@pytest.mark.soak  # a script that writes Delta tables does it in TIER=all
def test_three_senders_of_one_script(made: Callable[[], Captured]) -> None:
    """Three identical commands at once: each write is there once, and three answers agree."""
    scene = made()
    senders = [scene.run() for _ in range(3)]
    assert [until_ended(sender, PATIENCE) for sender in senders] == [0, 0, 0]
    scene.right()
