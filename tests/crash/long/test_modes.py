"""A job that overwrites tables, killed at every step of its commits: the next run ends with its rows once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog

from crash.scene import HERE, PATIENCE, ROWS, Scene
from crash.test_kinds import DELTA, ICEBERG, dies, properties
from harness import effort
from harness.arrow_stage import table_of
from harness.contest import rows_in
from harness.patience import until_ended
from harness.sink_attempts import sink_at
from sparkonce.blocking import run
from sparkonce.sink.protocol import Committed, SinkKey

FOREIGN, LATER = 1000, 2000
"""Numbers that another writer adds: before the job, and after its driver was killed."""
STEPS = (
    pytest.param("sink.delta.commit.before", "tx", marks=pytest.mark.soak),
    pytest.param("sink.delta.commit.after", "tx", marks=pytest.mark.soak),
    ("driver.tx.between", "tx"),
    ("sink.iceberg.commit.before", "tx"),
    pytest.param("sink.iceberg.commit.after", "tx", marks=pytest.mark.soak),
    ("driver.stage.after", "plain"),
    ("sink.delta.commit.before", "plain"),
    pytest.param("sink.delta.commit.after", "plain", marks=pytest.mark.soak),
    pytest.param("sink.iceberg.commit.before", "plain", marks=pytest.mark.soak),
    ("sink.iceberg.commit.after", "plain"),
    pytest.param("driver.write.done", "plain", marks=pytest.mark.soak),
)


class Overwriting(Scene):
    """A scene whose job overwrites a Delta and an Iceberg table, with rows of another writer in both."""

    def add(self, number: int) -> None:
        """Another writer appends a row to both tables."""
        rows = pa.table({"n": pa.array([number], pa.int64())})
        write_deltalake(str(self.folder / "lake" / DELTA), rows, mode="append")
        catalog = load_catalog("lake", **properties(self.folder))
        catalog.create_namespace_if_not_exists("sales")
        catalog.create_table_if_not_exists(f"sales.{ICEBERG}", rows.schema).append(rows)

    def rows_of(self) -> dict[str, list[int]]:
        delta = DeltaTable(str(self.folder / "lake" / DELTA)).to_pyarrow_table()
        iceberg = load_catalog("lake", **properties(self.folder)).load_table(f"sales.{ICEBERG}").scan().to_arrow()
        read: dict[str, list[Any]] = {DELTA: delta["n"].to_pylist(), ICEBERG: iceberg["n"].to_pylist()}
        return {name: sorted(numbers) for name, numbers in read.items()}


WRITTEN = {DELTA: list(range(ROWS)), ICEBERG: list(range(ROWS, 2 * ROWS))}


def scene_of(folder: Path, shape: str) -> Overwriting:
    outputs = [
        {"name": DELTA, "delta": {"path": f"lake/{DELTA}"}, "mode": "Overwrite"},
        {"name": ICEBERG, "iceberg": {"catalog": "lake", "table": f"sales.{ICEBERG}"}, "mode": "Overwrite"},
    ]
    environment = {f"PYICEBERG_CATALOG__LAKE__{name.upper()}": value for name, value in properties(folder).items()}
    spec: dict[str, Any] = {"outputs": outputs}
    made = Overwriting(folder, script=HERE / "kinds_job.py", environment=environment, spec=spec, options=(shape,))
    made.add(FOREIGN)
    return made


@pytest.mark.parametrize(("point", "shape"), effort.sampled(STEPS))
def test_a_driver_killed_at_a_step_of_an_overwrite(tmpfs_path: Path, point: str, shape: str) -> None:
    """Driver and runner die at the step, another writer adds a row, the job is sent again. The row stays where the overwrite had been
    committed before, and is replaced where it was committed afterwards; the job's own rows are there once."""
    scene = scene_of(tmpfs_path, shape)
    try:
        dies(scene, point, 0)
        landed = {name: FOREIGN not in numbers for name, numbers in scene.rows_of().items()}
        scene.add(LATER)
        assert scene.finish()["phase"] == "Succeeded"
        assert scene.rows_of() == {name: [*WRITTEN[name], *([LATER] if landed[name] else [])] for name in WRITTEN}
    finally:
        scene.clear()


@pytest.mark.parametrize("point", effort.sampled(["sink.delta.commit.before", "sink.iceberg.commit.before"]))
def test_a_frozen_driver_that_wakes_after_its_successor_overwrites_nothing(tmpfs_path: Path, point: str) -> None:
    """Its successor has overwritten the table and another writer has added a row since: both stay."""
    scene = scene_of(tmpfs_path, "plain")
    try:
        scene.freeze_at(point)
        scene.finish_beside_zombie()
        scene.add(LATER)
        scene.wake()
        assert scene.rows_of() == {name: [*numbers, LATER] for name, numbers in WRITTEN.items()}
    finally:
        scene.clear()


def test_three_senders_of_one_overwrite_get_one_effect(tmpfs_path: Path) -> None:
    """Three identical commands at once, then a row of another writer, then a fourth: one overwrite and four equal answers."""
    scene = scene_of(tmpfs_path, "tx")
    try:
        senders = [scene.run() for _ in range(3)]
        assert [until_ended(sender, PATIENCE) for sender in senders] == [0, 0, 0]
        scene.add(LATER)
        assert scene.finish()["phase"] == "Succeeded"
        assert scene.rows_of() == {name: [*numbers, LATER] for name, numbers in WRITTEN.items()}
        assert (
            DeltaTable(str(scene.folder / "lake" / DELTA)).version() == 2
        )  # the foreign row, the overwrite, the later row
    finally:
        scene.clear()


# --- a slot log, which no transaction overwrites ---------------------------------------------------------------------------------

LOG = "log"
LOG_STEPS = (
    pytest.param("driver.stage.after", marks=pytest.mark.soak),
    "sink.slots.looked",
    "sink.slots.create.before",
    "sink.slots.create.after",
    "driver.commit.after",
    pytest.param("driver.write.done", marks=pytest.mark.soak),
)


class OverwritingLog(Scene):
    """A scene whose job overwrites a slot log, with rows of another key in it."""

    def add(self, number: int) -> None:
        """Another key appends a row."""
        sink = sink_at(f"{self.folder}/lake/{LOG}")
        key = SinkKey(key_hash=f"other{number}", output=LOG, generation=1)
        assert isinstance(run(sink.commit(key, sink.stage(table_of(number), key, 1, fingerprint="f"))), Committed)

    def rows_of(self) -> list[int]:
        return rows_in(f"{self.folder}/lake/{LOG}")


def log_scene(folder: Path) -> OverwritingLog:
    spec: dict[str, Any] = {"outputs": [{"name": LOG, "slotLog": {"path": f"lake/{LOG}"}, "mode": "Overwrite"}]}
    made = OverwritingLog(folder, script=HERE / "kinds_job.py", spec=spec, options=("plain",))
    made.add(FOREIGN)
    return made


@pytest.mark.parametrize("point", effort.sampled(LOG_STEPS))
def test_a_driver_killed_at_a_step_of_an_overwrite_of_a_slot_log(tmpfs_path: Path, point: str) -> None:
    """As of the other kinds: the later row stays where the overwrite had been committed before, and is replaced otherwise."""
    scene = log_scene(tmpfs_path)
    try:
        dies(scene, point, 0)
        landed = FOREIGN not in scene.rows_of()
        scene.add(LATER)
        assert scene.finish()["phase"] == "Succeeded"
        assert scene.rows_of() == [*range(ROWS), *([LATER] if landed else [])]
    finally:
        scene.clear()


def test_a_frozen_driver_that_has_looked_overwrites_no_slot_log_later(tmpfs_path: Path) -> None:
    """It froze between its look and its create; its successor has overwritten the table, and another key has added a row since."""
    scene = log_scene(tmpfs_path)
    try:
        scene.freeze_at("sink.slots.looked")
        scene.finish_beside_zombie()
        scene.add(LATER)
        scene.wake()
        assert scene.rows_of() == [*range(ROWS), LATER]
    finally:
        scene.clear()


def test_three_senders_of_one_overwrite_of_a_slot_log_get_one_effect(tmpfs_path: Path) -> None:
    """Three identical commands at once, then a row of another key, then a fourth: one overwrite and four equal answers."""
    scene = log_scene(tmpfs_path)
    try:
        senders = [scene.run() for _ in range(3)]
        assert [until_ended(sender, PATIENCE) for sender in senders] == [0, 0, 0]
        scene.add(LATER)
        assert scene.finish()["phase"] == "Succeeded"
        assert scene.rows_of() == [*range(ROWS), LATER]
    finally:
        scene.clear()
