"""`kubectl rollout restart` of the operator with jobs in flight."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from harness.node.release import NAMESPACE, Release
from harness.node.scene import LONG, Scene

pytestmark = [pytest.mark.slow, pytest.mark.spark]

WITH_EXECUTORS = 2
AT_ONCE = 4
"""Jobs that start together: beside other tests, a JVM needs ten core seconds to submit a job and ten more to start its driver."""
PATIENCE = 4 * LONG
"""Seconds for four drivers, or twenty in the soak, on cores that other tests share."""


@pytest.mark.parametrize("jobs", [4, pytest.param(20, marks=pytest.mark.soak)])
def test_a_rolling_restart_adds_no_attempt(
    scene: Scene, release: Release, say: Callable[[str], None], jobs: int
) -> None:
    """Drivers wait at their gates while every operator pod is replaced: one attempt each, one driver each, each row once."""
    names: list[str] = []
    while len(names) < jobs:
        numbers = range(len(names), len(names) + AT_ONCE)
        sent = [scene.send(f"rolling-{n:02d}", executors=1 if n < WITH_EXECUTORS else 0, rows=10) for n in numbers]
        for name in sent:
            scene.until_marked(name, "began", timeout=PATIENCE)
        names += sent
    before = {each["metadata"]["uid"] for each in release.pods("operator")}
    began = time.monotonic()
    scene.cluster.kubectl(
        "rollout", "restart", "-n", NAMESPACE, "deployment", "--selector=app.kubernetes.io/component=operator"
    )
    scene.cluster.kubectl("rollout", "status", "-n", NAMESPACE, "deployment/sparkonce-operator", "--timeout=300s")
    took = time.monotonic() - began
    assert not before & {each["metadata"]["uid"] for each in release.pods("operator")}, "every pod is another one"
    for name in names:
        scene.open(name)  # one at a time, for the reason given at AT_ONCE
        status = scene.until(name, "Succeeded", timeout=PATIENCE)
        assert status["attempt"] == 1, f"{name}: {status}"
        assert len(scene.marks(name)) == 1, scene.marks(name)
        scene.once(name, 10)
    say(f"{jobs} jobs, {WITH_EXECUTORS} of them with an executor; replaced in {took:.0f} s; no attempt added")
