"""The chart on a real cluster, as a platform team installs it and as a data engineer uses it."""

from __future__ import annotations

import pytest

from harness.eventually import assert_eventually
from harness.node.release import Release
from harness.node.scene import LONG, Scene

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def test_a_job_runs_once_and_its_duplicate_is_answered(scene: Scene, release: Release) -> None:
    """A driver and an executor write a table; a second object with the same key gets the recorded result, and no pod runs for it."""
    scene.send("first", executors=1)
    scene.open("first")
    status = scene.until("first", "Succeeded")
    scene.once("first")
    assert (status["role"], status["attempt"], status["result"]["outputs"][0]["rows"]) == ("Leader", 1, 100)
    again = scene.job("first", executors=1)
    again["metadata"]["name"] = "second"
    scene.cluster.api.apply(again)
    replayed = scene.until("second", "Succeeded")
    assert replayed["role"] == "Replay"
    assert replayed["replayed"] is True
    assert len(scene.marks("first")) == 1, "one driver in all"
    table = scene.cluster.kubectl("get", "ij", "-n", scene.namespace)
    assert "Succeeded" in table, table
    assert "first" in table
    assert_eventually(lambda: not scene.applications("first"), LONG)


def test_helm_test(release: Release) -> None:
    """`helm test` finds the ledger, the operators and the gateway in order."""
    release.until_ready()
    assert "Phase:          Succeeded" in release.test()
