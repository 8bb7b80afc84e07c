"""A full disk at the output: one sentence, nothing is lost, and the job continues once there is room."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from crash.scene import PATIENCE, Scene
from harness.patience import until_ended


@pytest.fixture
def small(tmpfs_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB that holds the job's tables."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    lake = tmpfs_path / "lake"
    lake.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", lake], check=True)
    yield lake
    subprocess.run(["umount", "--lazy", lake], check=True)


def fill(folder: Path) -> Path:
    """Fills the remaining space."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            return filler


def test_a_full_disk_at_the_commit_loses_nothing(tmpfs_path: Path, small: Path) -> None:
    """The disk fills up between staging and commit: exit 3 with one sentence; once there is room the job ends with its rows once."""
    scene = Scene(tmpfs_path, spec={"heartbeatTimeoutSeconds": 30})
    try:
        runner = scene.run("driver.stage.after=stop")
        while not (frozen := scene.stopped(*scene.attempts())):
            assert runner.poll() is None, scene.last_output()
        filler = fill(small)
        for pid in frozen:
            os.kill(pid, 18)  # SIGCONT

        assert until_ended(runner, PATIENCE) == 3, scene.last_output()
        said = scene.last_output()
        assert "Traceback" not in said
        assert "lake/a" in said

        filler.unlink()
        scene.finish()
        scene.check()
    finally:
        scene.clear()
