"""Statements of Spark's own Delta engine in a job that is killed or frozen at their steps: each of them is in the table once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from crash.scene import Scene, gate_of
from harness.delta_jars import SESSION, delta_jars
from harness.patience import until_ended

PATIENCE = 300
"""Seconds for a command: several starts of a JVM on a busy machine."""
FOREIGN = 5000
ODD = 5001
"""Another one, which the UPDATE leaves alone."""
MERGED = {number: (1 if number >= 5 else 0) for number in range(10)} | dict.fromkeys(range(10, 15), 100)
WHOLE = {
    **{number: value + (10 if number % 2 == 0 else 0) for number, value in MERGED.items()},
    **dict.fromkeys(range(100, 103), 7),
}
REPLACED = dict.fromkeys(range(5), 0) | dict.fromkeys(range(5, 15), 100)
TRUTH = {"one": MERGED, "many": WHOLE, "write": REPLACED}


class Statements(Scene):
    """A scene whose job writes a Delta table by statements; the table exists before."""

    @property
    def table(self) -> Path:
        return self.folder / "lake" / "orders"

    def create(self) -> None:
        rows = pa.table({"id": pa.array(range(10), pa.int64()), "v": pa.array([0] * 10, pa.int32())})
        # This engine cannot read checkpoints with this Spark (it calls a removed method).
        write_deltalake(str(self.table), rows, configuration={"delta.checkpointInterval": "1000"})

    def add(self, number: int) -> None:
        """Another writer appends a row."""
        row = pa.table({"id": pa.array([number], pa.int64()), "v": pa.array([1], pa.int32())})
        write_deltalake(str(self.table), row, mode="append")

    def read(self) -> list[tuple[int, int]]:
        rows = DeltaTable(str(self.table)).to_pyarrow_table().to_pylist()
        return sorted((row["id"], row["v"]) for row in rows)

    def entries(self) -> list[str]:
        return sorted(path.name for path in (self.table / "_delta_log").glob("*.json"))


@pytest.fixture
def made(tmpfs_path: Path, scenes: list[Scene]) -> Callable[[str], Statements]:
    def make(shape: str) -> Statements:
        conf = {**SESSION, "spark.jars": ",".join(map(str, delta_jars()))}
        arguments = (shape, str(tmpfs_path / "lake" / "orders"), str(gate_of(tmpfs_path)))
        mode = {"mode": "Merge", "on": ["id"]} if shape == "write" else {}
        outputs = [{"name": "orders", "delta": {"path": "lake/orders"}, **mode}]
        scene = Statements.in_spark(tmpfs_path, "native_spark_job.py", *arguments, conf=conf, outputs=outputs)
        scenes.append(scene)
        scene.create()
        return scene

    return make


def right(scene: Statements, shape: str, *foreign: int) -> None:
    assert scene.read() == sorted({**TRUTH[shape], **dict.fromkeys(foreign, 1)}.items())


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize(
    "point",
    [
        "driver.native.open",
        "driver.native.before",
        "driver.native.after",
        "driver.native.end.before",
        "driver.write.done",
    ],
)
def test_one_merge_killed_at_each_step(made: Callable[[str], Statements], point: str) -> None:
    """Killed before, after and beside the commit of a MERGE; another writer adds a row; the job is sent again, and once more."""
    scene = made("one")
    scene.kill_at(point, patience=PATIENCE)
    scene.add(FOREIGN)
    assert scene.finish()["phase"] == "Succeeded"
    right(scene, "one", FOREIGN)
    version = DeltaTable(str(scene.table)).version()
    assert scene.finish()["phase"] == "Succeeded"
    assert DeltaTable(str(scene.table)).version() == version


@pytest.mark.soak  # as the MERGE of a block; what the mode does: driver/jvm/test_merge_spark.py
@pytest.mark.spark
def test_a_write_in_mode_merge_is_once(made: Callable[[str], Statements]) -> None:
    """Killed before and then after its commit; each time another writer changes a row. The first change is merged over, the second one
    stays."""
    scene = made("write")
    scene.kill_at("driver.native.before", patience=PATIENCE)
    DeltaTable(str(scene.table)).update({"v": "-1"}, predicate="id = 7")
    scene.kill_at("driver.native.after", patience=PATIENCE)
    assert scene.read() == sorted(REPLACED.items())
    DeltaTable(str(scene.table)).update({"v": "-1"}, predicate="id = 7")
    assert scene.finish()["phase"] == "Succeeded"
    assert scene.read() == sorted({**REPLACED, 7: -1}.items())
    version = DeltaTable(str(scene.table)).version()
    assert scene.finish()["phase"] == "Succeeded"
    assert DeltaTable(str(scene.table)).version() == version


@pytest.mark.soak  # a captured script, which runs in such blocks, is frozen there in TIER=all
@pytest.mark.spark
def test_a_merge_whose_driver_dies_while_it_runs(made: Callable[[str], Statements]) -> None:
    """The driver's Python dies inside the statement, whose JVM is ended with it or later: the next attempt's MERGE is the only one."""
    scene = made("one")
    scene.signal_at_gate(signal.SIGKILL, patience=PATIENCE)
    assert scene.finish()["phase"] == "Succeeded"
    right(scene, "one")


@pytest.mark.spark
def test_a_block_killed_at_one_step_after_another(made: Callable[[str], Statements]) -> None:
    """One block, of which each attempt gets further than the last one before it is killed, and a row of another writer in between."""
    scene = made("many")
    for point in ("driver.native.before", "driver.native.after", "driver.native.empty"):
        scene.kill_at(point, patience=PATIENCE)
    scene.add(ODD)
    scene.kill_at("driver.native.end.before", patience=PATIENCE)  # the points before and after these: test_capture
    assert scene.finish()["phase"] == "Succeeded"
    right(scene, "many", ODD)
    version = DeltaTable(str(scene.table)).version()
    assert scene.finish()["phase"] == "Succeeded"
    assert DeltaTable(str(scene.table)).version() == version


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize(
    ("point", "skip"),
    [
        ("driver.native.before", 1),
        ("driver.native.empty", 0),
        ("driver.native.after", 2),
        ("driver.native.before", 3),
        ("driver.native.end.before", 0),
    ],
)
def test_a_block_killed_between_its_statements(made: Callable[[str], Statements], point: str, skip: int) -> None:
    """Four statements, one of which changes nothing: the next attempt skips what is done, and goes on."""
    scene = made("many")
    scene.kill_at(point, skip=skip, patience=PATIENCE)
    assert scene.finish()["phase"] == "Succeeded"
    right(scene, "many")


@pytest.mark.soak  # a captured script, which runs in such blocks, does it in TIER=all
@pytest.mark.spark
def test_a_frozen_driver_that_wakes_after_its_successor(made: Callable[[str], Statements]) -> None:
    """Frozen inside its MERGE, JVM and all; the job is sent again and ends. The statement of the woken driver is refused by Delta."""
    scene = made("many")
    scene.signal_at_gate(signal.SIGSTOP, patience=PATIENCE)
    scene.finish_beside_zombie()
    right(scene, "many")
    entries = scene.entries()
    scene.wake("ConcurrentTransactionException", patience=PATIENCE)
    assert scene.entries() == entries
    right(scene, "many")


@pytest.mark.soak  # a captured script, which runs in such blocks, does it in TIER=all
@pytest.mark.spark
def test_three_senders_of_one_block(made: Callable[[str], Statements]) -> None:
    """Three identical commands at once: the statements are there once, and three answers agree."""
    scene = made("many")
    senders = [scene.run() for _ in range(3)]
    assert [until_ended(sender, PATIENCE) for sender in senders] == [0, 0, 0]
    right(scene, "many")
