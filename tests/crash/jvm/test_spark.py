"""Kills and freezes around a real Spark driver: spark-submit, a JVM, native Parquet."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from crash.scene import HERE, PATIENCE, Scene
from crash.schedule import Fault, Schedule, play
from harness import effort
from harness.eventually import assert_eventually
from harness.patience import until_ended

JVM = 120  # seconds: two JVMs may start at the same time on two cores

POINTS = [
    ("one", "engine.launch.after", "kill", True),
    ("one", "engine.note.after", "kill", False),  # only the runner: its successor adopts the driver
    ("one", "driver.current", "kill", False),
    ("one", "driver.stage.after", "kill", False),
    ("one", "driver.stage.after", "stop", False),
    ("one", "engine.settle.fenced", "kill", False),
    ("one", "engine.finalize.before", "stop", False),
    ("tx", "driver.seal.before", "kill", True),
    ("tx", "driver.seal.after", "kill", False),
    ("tx", "driver.tx.between", "kill", True),
    ("tx", "sink.slots.create.after", "kill", False),
]


def killed_at(folder: Path, shape: str, point: str, action: str, *, both: bool) -> None:
    """Runs the job with the fault, then without until it succeeds: its rows are there once."""
    scene = Scene(folder, shape=shape, script=HERE / "spark_job.py", submit=None, spec={"heartbeatTimeoutSeconds": 10})

    play(scene, Schedule(shape, (), (Fault(point, action, 0, both),)))

    assert f"{point}={action}" in scene.hits()


@pytest.mark.spark
@pytest.mark.parametrize(("shape", "point", "action", "both"), effort.sampled(POINTS))  # small drivers play all of them
def test_a_spark_job_that_is_killed_at_any_step_has_one_effect(
    tmpfs_path: Path, shape: str, point: str, action: str, *, both: bool
) -> None:
    """Whichever process around a real Spark driver dies or freezes, once the job is sent again its rows are there once."""
    killed_at(tmpfs_path, shape, point, action, both=both)


@pytest.mark.spark
def test_a_runner_that_is_killed_leaves_its_spark_driver_to_its_successor(tmpfs_path: Path) -> None:
    """After SIGKILL of `sparkonce run` alone no attempt is lost: the next run adopts the running driver."""
    scene = Scene(tmpfs_path, script=HERE / "spark_job.py", submit=None, spec={"heartbeatTimeoutSeconds": 30})
    try:
        runner = scene.run("driver.stage.before=sleep(3000)")
        assert_eventually(lambda: "driver.stage.before=sleep" in scene.hits(), timeout=JVM)
        runner.kill()
        runner.wait()

        said = scene.finish()

        assert (said["phase"], said["attempt"]) == ("Succeeded", 1)
        scene.check()
    finally:
        scene.clear()


@pytest.mark.spark
def test_a_jvm_that_is_killed_while_it_writes_is_replaced(tmpfs_path: Path) -> None:
    """After SIGKILL of every process of the attempt, the runner grants another attempt, which commits."""
    scene = Scene(tmpfs_path, script=HERE / "spark_job.py", submit=None)
    try:
        runner = scene.run("driver.stage.before=sleep(2000)")
        assert_eventually(lambda: "driver.stage.before=sleep" in scene.hits(), timeout=JVM)
        scene.signal_attempts(signal.SIGKILL)

        assert until_ended(runner, PATIENCE + JVM) == 0, scene.last_output()

        assert scene.said()["attempt"] == 2
        scene.check()
    finally:
        scene.clear()
