"""The effect of a key's next generation on its output, as readers see it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyarrow import parquet

from crash.scene import PATIENCE, ROWS, Scene
from harness.patience import until_ended
from sparkonce.sink.slotlog.snapshot import Table


def seen(scene: Scene, output: str = "a") -> int:
    """The rows of the files that a reader of the table gets."""
    return sum(parquet.read_metadata(file).num_rows for file in Table(scene.folder / "lake" / output).files())


def command(scene: Scene, *words: str) -> int:
    return until_ended(scene.run(command=words), PATIENCE)


@pytest.fixture
def scene(tmpfs_path: Path) -> Scene:
    """A job that has succeeded."""
    done = Scene(tmpfs_path)
    assert until_ended(done.run(), PATIENCE) == 0, done.last_output()
    return done


def test_a_deleted_output_is_said_and_nothing_runs_until_a_rerun(scene: Scene) -> None:
    """With its output gone the command exits with 7 and a sentence with the remedy; the rerun is generation 2, and the table has its rows
    once."""
    shutil.rmtree(scene.folder / "lake" / "a" / "_data")

    assert until_ended(scene.run(), PATIENCE) == 7
    said = scene.last_output()
    assert "gone" in said
    assert "sparkonce rerun crash-test" in said

    assert command(scene, "rerun", "crash-test") == 0, scene.last_output()
    assert scene.said()["generation"] == 2
    assert seen(scene) == ROWS
    assert until_ended(scene.run(), PATIENCE) == 0
    assert scene.said()["replayed"] is True


def test_a_rerun_of_what_is_there_replaces_it(scene: Scene) -> None:
    """Generation 2 of an output with `onRerun: Replace` replaces generation 1."""
    assert command(scene, "rerun", "crash-test") == 0, scene.last_output()

    assert seen(scene) == ROWS
    assert [s["sinkKey"][-3:] for s in scene.slots("a") if s["state"] == "committed"] == ["-g1", "-g2"]


def test_a_forgotten_key_runs_anew_and_its_old_commit_never_counts_as_the_new_one(scene: Scene) -> None:
    """After `forget` the next generation has a new number: the old slot is not taken for its result."""
    assert command(scene, "keys", "forget", "crash-test", "--reason", "a test", "--yes") == 0, scene.last_output()

    assert until_ended(scene.run(), PATIENCE) == 0, scene.last_output()

    said = scene.said()
    assert (said["generation"], said["replayed"]) == (2, False)
    assert scene.attempts_made()[-1].endswith("-g2-a1")
    assert seen(scene) == ROWS
