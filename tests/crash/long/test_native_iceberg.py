"""Blocks of Spark's own Iceberg engine in a job that is killed or frozen at their steps: all their statements are in the table, or none."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from crash.iceberg_scene import NAME, OLD, Tables, drop, engine
from crash.scene import Scene, gate_of
from harness import effort
from harness.iceberg_rest import spark_runtime
from harness.iceberg_tables import rest_catalog
from harness.patience import until_ended

pytestmark = pytest.mark.spark

PATIENCE = 300
"""Seconds for a command: several starts of a JVM on a busy machine."""
FOREIGN = 5001
MERGED = {number: (1 if number >= 5 else 0) for number in range(10)} | dict.fromkeys(range(10, 15), 100)
ADDED = dict.fromkeys([*range(100, 103), *range(200, 203)], 7)
TRUTH = {
    "sql": MERGED,
    "many": {number: value + (10 if number % 2 == 0 else 0) for number, value in MERGED.items()} | ADDED,
    "append": OLD | ADDED,
    "inserts": OLD | dict.fromkeys(range(FOREIGN, FOREIGN + 3), 7),
}


class Blocks(Tables):
    """A scene whose job writes the table by statements."""

    def right(self, shape: str, *foreign: int) -> None:
        """The rows are the truth, from one commit; no branch is left."""
        assert self.read() == sorted({**TRUTH[shape], **dict.fromkeys(foreign, 1)}.items())
        assert (self.commits(), self.branches()) == (1, [])


@pytest.fixture
def made(
    tmpfs_path: Path, server: str, scenes: list[Scene], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Blocks]]:
    for name, value in rest_catalog(server).items():
        monkeypatch.setenv(name, value)
    conf = engine(str(spark_runtime()), server)
    outputs = [{"name": "orders", "iceberg": {"catalog": "lake", "table": NAME}}]

    def make(shape: str) -> Blocks:
        arguments = (shape, str(gate_of(tmpfs_path)))
        scene = Blocks.in_spark(tmpfs_path, "native_iceberg_job.py", *arguments, conf=conf, outputs=outputs)
        scenes.append(scene)
        scene.create()
        return scene

    yield make
    for scene in scenes:
        scene.clear()  # before the table that they write goes
    drop(NAME)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("point", "skip", "visible"),
    [
        ("driver.native.open", 0, False),
        ("sink.iceberg.branch.after", 0, False),
        ("driver.native.before", 0, False),
        ("driver.native.after", 0, False),
        ("driver.native.after", 2, False),
        ("driver.native.end.before", 0, False),
        ("sink.iceberg.commit.before", 0, False),
        ("sink.iceberg.commit.after", 0, True),
        ("driver.write.done", 0, True),
    ],
)
def test_a_block_killed_at_each_step(made: Callable[[str], Blocks], point: str, skip: int, visible: bool) -> None:
    """Killed around the branch, each statement and the move of `main`: until the move nothing is visible, after it everything is. Another
    writer adds a row, the job is sent again, and once more."""
    dies_and_ends(made("many"), (point, skip, visible))


def test_a_block_killed_at_one_step_after_another(made: Callable[[str], Blocks]) -> None:
    """One block, of which each attempt gets further than the last one before it is killed."""
    dies_and_ends(
        made("many"),
        ("sink.iceberg.branch.after", 0, False),
        ("driver.native.after", 2, False),
        ("sink.iceberg.commit.before", 0, False),
        ("sink.iceberg.commit.after", 0, True),
    )


def dies_and_ends(scene: Blocks, *places: tuple[str, int, bool]) -> None:
    """visible: the table has its new rows when the driver has died there."""
    for point, skip, visible in places:
        scene.kill_at(point, skip=skip, patience=PATIENCE)
        assert scene.read() == sorted((TRUTH["many"] if visible else OLD).items())
    scene.add(FOREIGN)
    assert scene.finish()["phase"] == "Succeeded"
    scene.right("many", FOREIGN)
    snapshots = len(scene.table().metadata.snapshots)
    assert scene.finish()["phase"] == "Succeeded"
    assert len(scene.table().metadata.snapshots) == snapshots


@pytest.mark.soak  # a captured script, which runs in such blocks, is frozen there in TIER=all
def test_a_driver_that_dies_while_its_statement_runs(made: Callable[[str], Blocks]) -> None:
    """Its Python dies inside the MERGE, whose JVM ends with it or later: the next attempt's block is the only one that is visible."""
    scene = made("many")
    scene.signal_at_gate(signal.SIGKILL, patience=PATIENCE)
    assert scene.finish()["phase"] == "Succeeded"
    scene.right("many")


@pytest.mark.soak  # a captured script, which runs in such blocks, does it in TIER=all
def test_a_frozen_driver_that_wakes_after_its_successor(made: Callable[[str], Blocks]) -> None:
    """Frozen inside its MERGE, JVM and all; the job is sent again and ends. The branch of the woken driver is gone and main has moved on,
    so Iceberg refuses its statement."""
    scene = made("many")
    scene.signal_at_gate(signal.SIGSTOP, patience=PATIENCE)
    scene.finish_beside_zombie()
    scene.right("many")
    head = scene.table().current_snapshot()
    scene.wake("ValidationException", patience=PATIENCE)
    assert scene.table().current_snapshot() == head
    scene.right("many")


@pytest.mark.parametrize("shape", effort.sampled(["append", "sql", "inserts", "many"]))
def test_another_writer_commits_while_a_block_runs(made: Callable[[str], Blocks], shape: str) -> None:
    """Appends are put on top; `job.sql` runs its statement again, a MERGE too that only inserts and whose row the other writer added
    meanwhile; a block that read rows ends its attempt, and the next one is right."""
    scene = made(shape)
    runner = scene.run_to_gate(patience=PATIENCE)
    scene.add(FOREIGN)
    scene.table().overwrite(
        pa.table({"id": pa.array([0], pa.int64()), "v": pa.array([0], pa.int32())}), "id == 0"
    )  # another file with the same row
    scene.gate.unlink()
    assert until_ended(runner, PATIENCE) == 0, scene.last_output()
    assert scene.said()["phase"] == "Succeeded"
    assert len(scene.attempts_made()) == (2 if shape == "many" else 1)
    scene.right(shape, FOREIGN)


@pytest.mark.soak  # a captured script, which runs in such blocks, does it in TIER=all
def test_three_senders_of_one_block(made: Callable[[str], Blocks]) -> None:
    """Three identical commands at once: the block is there once, and three answers agree."""
    scene = made("many")
    senders = [scene.run() for _ in range(3)]
    assert [until_ended(sender, PATIENCE) for sender in senders] == [0, 0, 0]
    scene.right("many")
