"""One transaction over tables of three kinds, killed at every step: the next run completes it, all or nothing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError
from pyarrow import parquet
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from crash.scene import HERE, PATIENCE, ROWS, Scene
from harness import effort
from harness.patience import until_ended
from sparkonce.sink.slotlog.snapshot import Table

SLOTS, DELTA, ICEBERG = "slots", "delta", "iceberg"
KEY = "crash-test"

STEPS = (
    ("driver.stage.after", 0),
    ("driver.stage.after", 2),
    ("driver.seal.before", 0),
    ("driver.seal.after", 0),
    ("sink.slots.create.before", 0),
    ("sink.slots.create.after", 0),
    ("driver.tx.between", 0),
    ("sink.delta.commit.before", 0),
    ("sink.delta.commit.after", 0),
    ("driver.tx.between", 1),
    ("sink.iceberg.commit.before", 0),
    ("sink.iceberg.commit.after", 0),
    ("driver.write.done", 0),
)
"""The failpoint, and how many passes it skips before it kills."""
SETTLES = (
    ("engine.settle.rolled", "driver.tx.between", 0),
    ("sink.delta.commit.after", "driver.seal.after", 0),
    ("sink.iceberg.commit.before", "driver.seal.after", 0),
    ("sink.delta.noted", "driver.seal.before", 0),
    ("sink.iceberg.fence.before", "driver.seal.before", 0),
    ("engine.settle.fenced", "driver.stage.after", 2),
)
"""Where the settling process dies, and where (after how many passes) the driver died before."""


class Kinds(Scene):
    """A scene with outputs of three kinds; the Iceberg catalog is a file."""

    def rows_of(self) -> dict[str, list[int]]:
        """The rows that each kind's own reader gets; a missing table has none."""
        lake = self.folder / "lake"
        slots = [n for file in Table(lake / SLOTS).files() for n in _numbers(file)] if (lake / SLOTS).exists() else []
        try:
            delta = DeltaTable(str(lake / DELTA)).to_pyarrow_table()
            numbers = delta["n"].to_pylist() if "n" in delta.column_names else []
        except TableNotFoundError:
            numbers = []
        try:
            scanned = load_catalog("lake", **properties(self.folder)).load_table(f"sales.{ICEBERG}").scan().to_arrow()
            iceberg = scanned["n"].to_pylist() if "n" in scanned.column_names else []
        except NoSuchTableError:
            iceberg = []
        return {SLOTS: sorted(slots), DELTA: _sorted(numbers), ICEBERG: _sorted(iceberg)}

    def all_or_nothing(self) -> bool:
        """Whether every output has each row once; if not, all must be empty."""
        found = self.rows_of()
        whole = {name: list(range(n * ROWS, (n + 1) * ROWS)) for n, name in enumerate((SLOTS, DELTA, ICEBERG))}
        assert found in (whole, {name: [] for name in whole}), found
        return found == whole


def _numbers(file: str) -> list[int]:
    return _sorted(parquet.read_table(file)["n"].to_pylist())


def _sorted(numbers: list[Any]) -> list[int]:
    return sorted(int(n) for n in numbers)


def properties(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder / 'catalog.db'}", "warehouse": (folder / "warehouse").as_uri()}


@pytest.fixture
def scene(tmpfs_path: Path) -> Any:
    outputs = [
        {"name": SLOTS, "slotLog": {"path": f"lake/{SLOTS}"}},
        {"name": DELTA, "delta": {"path": f"lake/{DELTA}"}},
        {"name": ICEBERG, "iceberg": {"catalog": "lake", "table": f"sales.{ICEBERG}"}},
    ]
    environment = {f"PYICEBERG_CATALOG__LAKE__{name.upper()}": value for name, value in properties(tmpfs_path).items()}
    made = Kinds(tmpfs_path, script=HERE / "kinds_job.py", environment=environment, spec={"outputs": outputs})
    yield made
    made.clear()


def dies(scene: Scene, point: str, skip: int) -> None:
    """A run whose driver is killed at the step, once, and its runner too."""
    before = scene.hits().count(f"{point}=kill")
    scene.kill_at(point, skip=skip)
    assert scene.hits().count(f"{point}=kill") == before + 1


@pytest.mark.parametrize(("point", "skip"), effort.sampled(STEPS))
def test_a_driver_killed_at_a_step_then_a_run(scene: Kinds, point: str, skip: int) -> None:
    """Driver and runner die at the step; the next run ends with every row of all three outputs once."""
    dies(scene, point, skip)
    assert scene.finish()["phase"] == "Succeeded"
    assert scene.all_or_nothing()


@pytest.mark.parametrize(("point", "skip"), effort.sampled(STEPS[1:4] + STEPS[6:8] + STEPS[10:11]))
def test_a_driver_killed_at_a_step_then_a_cancel(scene: Kinds, point: str, skip: int) -> None:
    """Driver and runner die at the step, and a user cancels. If the transaction was sealed by then: Succeeded with all of it; otherwise
    Cancelled with nothing in any output."""
    dies(scene, point, skip)
    cancelled = scene.run(command=("cancel", KEY, "--reason", "enough"))
    until_ended(cancelled, PATIENCE)
    said = scene.said()
    sealed = point not in ("driver.stage.after", "driver.seal.before")
    assert said["phase"] == ("Succeeded" if sealed else "Cancelled"), said
    assert scene.all_or_nothing() == sealed


@pytest.mark.parametrize(("point", "after", "skip"), effort.sampled(SETTLES))
def test_who_settles_dies_too(scene: Kinds, point: str, after: str, skip: int) -> None:
    """The driver dies, then the next owner while it settles the driver's attempt: the owner after that ends with all three outputs."""
    dies(scene, after, skip)
    dies(scene, point, 0)
    assert scene.finish()["phase"] == "Succeeded"
    assert scene.all_or_nothing()


@pytest.mark.parametrize("dropped", effort.sampled([DELTA, ICEBERG]))
def test_a_sealed_transaction_whose_table_was_dropped_is_held_with_the_reason(scene: Kinds, dropped: str) -> None:
    """The transaction can be neither completed nor discarded: Held, with the output and the reason, although a new table of that name
    exists. Slots before it that could be committed are committed."""
    catalog = load_catalog("lake", **properties(scene.folder))
    dies(scene, "driver.seal.after", 0)
    if dropped == DELTA:
        shutil.rmtree(scene.folder / "lake" / DELTA)
        numbers = pa.table({"n": pa.array([], pa.int64())})
        write_deltalake(str(scene.folder / "lake" / DELTA), numbers)
    else:
        catalog.drop_table(f"sales.{ICEBERG}")
        catalog.create_table(f"sales.{ICEBERG}", pa.schema([("n", pa.int64())]))

    until_ended(scene.run(), PATIENCE)

    said = scene.said()
    assert said["phase"] == "Held", said
    assert f"output {dropped}: " in said["reason"], said
    found = scene.rows_of()
    assert found[dropped] == []
    assert found[SLOTS] == list(range(ROWS))
