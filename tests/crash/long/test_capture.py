"""A captured script that knows nothing of sparkonce: killed or frozen at its steps, sent three times, refused. Each write is there once."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from crash.scene import Scene, gate_of
from harness.delta_jars import SESSION, delta_jars
from harness.patience import until_ended

PATIENCE = 300
"""Seconds for a command: several starts of a JVM on a busy machine."""
MERGED = {number: (1 if number >= 5 else 0) for number in range(10)} | dict.fromkeys(range(10, 15), 100)
ORDERS = sorted({**MERGED, **dict.fromkeys(range(100, 103), 7)}.items())
TOTALS = sorted(Counter(value for _, value in ORDERS).items())
EVENTS = list(range(7))
FAILED = 1
"""Exit code of a job that failed."""


class Captured(Scene):
    """A scene whose script writes three outputs; the first one's table exists before."""

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    def create(self) -> None:
        rows = pa.table({"id": pa.array(range(10), pa.int64()), "v": pa.array([0] * 10, pa.int32())})
        # This engine cannot read checkpoints with this Spark (it calls a removed method).
        write_deltalake(str(self.lake / "orders"), rows, configuration={"delta.checkpointInterval": "1000"})

    def read(self, output: str, *columns: str) -> list[tuple[Any, ...]]:
        """The rows of a Delta table, as delta-rs reads them."""
        rows = DeltaTable(str(self.lake / output)).to_pyarrow_table().to_pylist()
        return sorted(tuple(row[name] for name in columns) for row in rows)

    def right(self) -> None:
        assert self.read("orders", "id", "v") == ORDERS
        assert self.read("totals", "v", "count") == TOTALS
        assert self.rows("events") == EVENTS

    def said(self) -> dict[str, Any]:
        return dict(json.loads(self.last_output().splitlines()[-1]))

    def entries(self) -> list[str]:
        return sorted(str(path) for path in self.lake.glob("*/_delta_log/*.json"))

    def edit(self, **spec: Any) -> None:
        job = yaml.safe_load((self.folder / "job.yaml").read_text())
        job["spec"].update(spec)
        (self.folder / "job.yaml").write_text(yaml.safe_dump(job))


@pytest.fixture
def made(tmpfs_path: Path, scenes: list[Scene]) -> Callable[..., Captured]:
    def make(*arguments: str, **spec: Any) -> Captured:
        conf = {**SESSION, "spark.jars": ",".join(map(str, delta_jars()))}
        given = (str(tmpfs_path / "lake"), str(gate_of(tmpfs_path)), *arguments)
        outputs = [
            {"name": "orders", "delta": {"path": "lake/orders"}, "capture": True},
            {"name": "totals", "delta": {"path": "lake/totals"}, "capture": True},
            {"name": "events", "slotLog": {"path": "lake/events"}, "capture": True},
        ]
        scene = Captured.in_spark(tmpfs_path, "captured_script.py", *given, conf=conf, outputs=outputs, **spec)
        scenes.append(scene)
        scene.create()
        return scene

    return make


STEPS = (
    ("driver.native.open", 0),
    ("driver.native.before", 0),  # the MERGE
    ("driver.native.after", 0),
    ("driver.native.before", 1),  # the append
    ("driver.native.after", 1),
    ("sink.delta.table.before", 0),  # the table that the script makes
    ("sink.delta.table.after", 0),
    ("driver.native.before", 2),
    ("driver.native.after", 2),
    ("driver.stage.before", 0),  # Parquet
    ("driver.stage.after", 0),
    ("driver.commit.after", 0),
    ("driver.native.end.before", 0),
    ("driver.native.end.before", 1),
    ("driver.write.done", 2),  # all but the last end
)


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize(("point", "skip"), STEPS)
def test_a_script_killed_at_each_step(made: Callable[..., Captured], point: str, skip: int) -> None:
    """Before, in and after each of its writes: sent again it comes to its one result, and once more it changes nothing."""
    dies_and_ends(made(), (point, skip))


@pytest.mark.spark
def test_a_script_killed_at_one_step_after_another(made: Callable[..., Captured]) -> None:
    """One script, of which each attempt gets further than the last one before it is killed."""
    places = (
        ("driver.native.open", 0),
        ("sink.delta.table.after", 0),
        ("driver.stage.after", 0),
        ("driver.write.done", 2),
    )
    dies_and_ends(made(), *places)  # the other points: test_native


def dies_and_ends(scene: Captured, *places: tuple[str, int]) -> None:
    for point, skip in places:
        scene.kill_at(point, skip=skip, patience=PATIENCE)
    assert scene.finish()["phase"] == "Succeeded"
    scene.right()
    entries = scene.entries()
    assert scene.finish()["phase"] == "Succeeded"
    assert scene.entries() == entries


@pytest.mark.spark
def test_a_script_frozen_in_its_merge_wakes_after_its_successor(made: Callable[..., Captured]) -> None:
    """JVM and all: the statement of the woken driver is refused by Delta, and it writes nothing more."""
    scene = made()
    scene.signal_at_gate(signal.SIGSTOP, patience=PATIENCE)
    scene.finish_beside_zombie()
    scene.right()
    entries = scene.entries()
    scene.wake("ConcurrentTransactionException", patience=PATIENCE)
    assert scene.entries() == entries
    scene.right()


@pytest.mark.spark
def test_three_senders_of_one_script(made: Callable[..., Captured]) -> None:
    """Three identical commands at once: each write is there once, and three answers agree."""
    scene = made()
    senders = [scene.run() for _ in range(3)]
    assert [until_ended(sender, PATIENCE) for sender in senders] == [0, 0, 0]
    scene.right()


@pytest.mark.spark
@pytest.mark.parametrize("remedy", ["line", pytest.param("warn", marks=pytest.mark.soak)])
def test_an_undeclared_write_is_refused_and_both_remedies_work(made: Callable[..., Captured], remedy: str) -> None:
    """One attempt, nothing written. With the line that the message names it is made once; with `capture: {undeclared: Warn}` it passes, and
    the result names it."""
    scene = made("undeclared")
    before, undeclared = scene.read("orders", "id", "v"), scene.lake / "undeclared"
    assert until_ended(scene.run(), PATIENCE) == FAILED
    said = scene.said()
    assert said["phase"] == "Failed"
    assert (len(scene.attempts_made()), scene.read("orders", "id", "v"), undeclared.exists()) == (1, before, False)
    message = str(said["result"]["failure"]["message"])
    if remedy == "line":
        line = message.split("add `")[1].split("`", maxsplit=1)[0]
        scene.edit(outputs=[*scene.spec["outputs"], *yaml.safe_load(line)])
    else:
        assert "`capture: {undeclared: Warn}` in spec" in message
        scene.edit(capture={"undeclared": "Warn"})
    done = scene.finish()
    scene.right()
    if remedy == "line":
        assert len(list(undeclared.glob("_idem/*-g*/*.json"))) == 1
        assert not list(undeclared.glob("*.parquet"))
    else:
        assert done["result"]["values"]["undeclaredWrites"] == [f"a write (parquet errorifexists) to file:{undeclared}"]
        assert len(list(undeclared.glob("*.parquet"))) > 0


@pytest.mark.spark
def test_an_error_of_the_script_ends_it_after_one_attempt(made: Callable[..., Captured]) -> None:
    """As without capture: a path that does not exist is the script's error. Statements are committed by then, so a person decides."""
    scene = made("error")
    assert until_ended(scene.run(), PATIENCE) != 0
    assert "PATH_NOT_FOUND" in scene.last_output()
    assert len(scene.attempts_made()) == 1
    assert scene.read("orders", "id", "v") == ORDERS


@pytest.mark.soak  # two whole runs; a script that is killed after its last write is in TIER=all
@pytest.mark.spark
def test_an_exit_code_leaves_the_blocks_open(made: Callable[..., Captured]) -> None:
    """All its writes are done, and it says that it failed: the result is not all committed, and no attempt writes twice."""
    scene = made("1", retry={"maxAttempts": 2, "backoff": {"initial": "0s", "max": "0s"}})
    assert until_ended(scene.run(), PATIENCE) != 0
    scene.right()
    assert len(scene.attempts_made()) == 2


# --- slot logs alone ---------------------------------------------------------------------------------------------------------------

LOOP = (
    ("driver.stage.after", 0, 0),
    ("driver.stage.before", 2, 0),  # the third append
    ("driver.stage.after", 3, 0),  # all is staged
    ("driver.commit.after", 0, 1),
    ("driver.write.done", 1, 2),
)


@pytest.mark.spark
def test_a_script_that_appends_in_a_loop_killed_at_one_step_after_another(
    tmpfs_path: Path, scenes: list[Scene]
) -> None:
    """Nothing is seen before its end, then one output after the other: each append is there once, and the sums are those of one run."""
    outputs = [{"name": name, "slotLog": {"path": f"lake/{name}"}, "capture": True} for name in ("parts", "sums")]
    lake = str(tmpfs_path / "lake")
    scene = Scene.in_spark(
        tmpfs_path, "captured_loop_script.py", lake, conf={"spark.ui.enabled": "false"}, outputs=outputs
    )
    scenes.append(scene)
    parts = [10 * part + number for part in range(3) for number in range(4)]
    rows = [parts, [sum(parts)]]
    for point, skip, complete in LOOP:
        scene.kill_at(point, skip=skip, patience=PATIENCE)
        assert [scene.rows(name) for name in ("parts", "sums")] == [*rows[:complete], *[[]] * (2 - complete)]
    assert scene.finish()["phase"] == "Succeeded"
    assert [scene.rows(name) for name in ("parts", "sums")] == rows
    committed = [
        slot["sinkKey"] for name in ("parts", "sums") for slot in scene.slots(name) if slot["state"] == "committed"
    ]
    assert len(committed) == 2
