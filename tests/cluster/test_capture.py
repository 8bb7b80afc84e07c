"""Captured scripts on a real cluster: nobody changed them, and the image and the Spark operator start them as they stand in the job."""

from __future__ import annotations

from typing import Any

import pytest

from harness.node.scene import SHARED, Scene

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def send(scene: Scene, name: str, table: str) -> None:
    """Applies a job of `jobs/appended.py`, which appends to that table by `df.write.parquet` and waits for its end; the job declares the
    table of its own name."""
    job: dict[str, Any] = scene.job(name, end=True)
    template = job["spec"]["template"]["spec"]
    template["mainApplicationFile"] = f"local://{SHARED}/jobs/appended.py"
    template["arguments"] += ["--table", f"{SHARED}/lake/{table}"]
    job["spec"]["outputs"][0]["capture"] = True
    scene.cluster.api.apply(job)


def test_a_script_that_nobody_changed(scene: Scene) -> None:
    """Its driver is deleted before it writes, and the next one after it has written, before the script's end: its rows are there once.
    A script that writes to a table that is not declared has failed after one attempt, and the message has the line that is missing."""
    send(scene, "captured", "captured")
    send(scene, "elsewhere", "another")
    scene.open("elsewhere")
    scene.until_marked("captured", "began")
    scene.delete_pod(scene.driver("captured"))
    failed = scene.until("elsewhere", "Failed")
    assert failed["attempt"] == 1
    assert f"slotLog: {{path: '{SHARED}/lake/another'}}, capture: true}}" in failed["result"]["failure"]["message"]
    assert not (scene.shared / "lake" / "another").exists()
    scene.until_marked("captured", "began", attempt=2)
    scene.open("captured")
    scene.until_marked("captured", "wrote", attempt=2)
    scene.delete_pod(scene.driver("captured"))
    scene.until_marked("captured", "wrote", attempt=3)
    scene.open("captured.end")
    status = scene.until("captured", "Succeeded")
    scene.once("captured")
    assert (status["attempt"], status["result"]["outputs"][0]["rows"]) == (3, 100)
