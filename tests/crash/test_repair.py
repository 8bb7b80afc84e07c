"""A record is damaged while its job runs, and then repaired: whatever the attempt did or still does, there is one effect."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
from pathlib import Path

import pytest

from crash.scene import PATIENCE, Scene
from harness import effort
from harness.eventually import assert_eventually
from harness.patience import until_ended

REPAIR = ("keys", "repair", "crash-test", "--reason", "a test", "--yes")


def damage(scene: Scene) -> None:
    with sqlite3.connect(scene.ledger) as ledger:
        ledger.execute("UPDATE records SET body = substr(body, 1, length(body) - 1)")


def repaired(scene: Scene, failpoints: str = "") -> int:
    return until_ended(scene.run(failpoints, REPAIR), PATIENCE)


@pytest.mark.parametrize(
    ("shape", "point", "attempts"),
    effort.sampled(
        [
            ("one", "driver.commit.after", 1),
            ("one", "driver.stage.after", 2),
            ("one", "engine.settling.before", 1),
            ("tx", "driver.stage.after", 2),
            ("one", "engine.launch.before", 2),
            ("tx", "engine.launch.before", 2),
            ("tx", "engine.settling.before", 1),
        ]
    ),
)
def test_a_damaged_record_in_progress_is_settled_by_its_outputs(
    tmpfs_path: Path, shape: str, point: str, attempts: int
) -> None:
    """All processes die at this point. What was committed is found, and no further attempt is made. What was not is written by a later
    attempt under its own token: the next one, unless that one misses its two-second heartbeat on a busy machine."""
    scene = Scene(tmpfs_path, shape=shape)
    try:
        runner = scene.run(f"{point}=1*kill")
        assert_eventually(lambda: any(hit == f"{point}=kill" for hit in scene.hits()), timeout=PATIENCE)
        _all_dead(scene, runner)
        damage(scene)
        assert (
            until_ended(scene.run(), PATIENCE) == 3
        )  # unavailable; cli/test_repair.py follows the remedy in the sentence
        assert repaired(scene) == 0
        said = scene.finish(tries=1)
        assert said["phase"] == "Succeeded"
        made = said["result"]["attempts"]
        assert made == 1 if attempts == 1 else made >= attempts
        scene.check()
    finally:
        scene.clear()


def _all_dead(scene: Scene, runner: subprocess.Popen[bytes]) -> None:
    runner.kill()
    runner.wait()
    scene.signal_attempts(signal.SIGKILL)
    assert_eventually(lambda: not scene.attempts(), timeout=PATIENCE)


def test_a_driver_of_before_commits_nothing_after_the_repair(tmpfs_path: Path) -> None:
    """It froze with its rows staged, its record was damaged and repaired, and the next attempt committed: it is fenced."""
    scene = Scene(tmpfs_path, shape="one")
    try:
        scene.freeze_at("driver.stage.after")
        damage(scene)
        assert repaired(scene) == 0
        scene.finish_beside_zombie()
        assert scene.said()["result"]["attempts"] >= 2
        scene.wake()
        scene.check()
    finally:
        scene.clear()


@pytest.mark.parametrize("point", effort.sampled(["store.sql.commit.before", "store.sql.commit.after"]))
def test_a_repair_that_dies_is_repeated(tmpfs_path: Path, point: str) -> None:
    """A repair killed before its commit has done nothing, one killed after it everything: the command can be repeated, and the job ends
    with one effect."""
    scene = Scene(tmpfs_path, shape="one")
    try:
        _all_dead(scene, _killed(scene))
        damage(scene)
        assert repaired(scene, f"{point}=kill") == -signal.SIGKILL
        assert repaired(scene) == (0 if point.endswith("before") else 2)  # 2: it can be read, and says so
        assert scene.finish(tries=1)["phase"] == "Succeeded"
        scene.check()
    finally:
        scene.clear()


def _killed(scene: Scene) -> subprocess.Popen[bytes]:
    runner = scene.run("driver.stage.after=1*kill")
    assert_eventually(lambda: "driver.stage.after=kill" in scene.hits(), timeout=PATIENCE)
    return runner
