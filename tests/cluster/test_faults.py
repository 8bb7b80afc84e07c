"""A real job on a real cluster meets each fault once; its effect is counted in the table, and exists once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.eventually import assert_eventually
from harness.node.faults import FAULTS, send
from harness.node.release import Release
from harness.node.scene import LONG, Scene

pytestmark = [pytest.mark.slow, pytest.mark.spark]


MORE = {
    "executor deleted",
    "operator killed",
    "driver deleted before its commit",
    "driver deleted at its commit",
    "driver deleted after its commit",
    "driver hung",
    "kubelet stopped until eviction",
    "API server killed",
    "gateways gone",
    "Spark operator killed at submission",
}
"""For the soak: like another one in what it does to the driver, or part of *everything killed*. tests/api has most of them, too."""


@pytest.mark.parametrize(
    "what", [pytest.param(name, marks=pytest.mark.soak) if name in MORE else name for name in FAULTS]
)
def test_each_fault_once(scene: Scene, release: Release, what: str, say: Callable[[str], None]) -> None:
    """Whatever is killed, frozen or cut off during a job: one effect, the right rows, a matching record, no application left."""
    fault = FAULTS[what]
    name = "".join(letter for letter in what.lower() if letter.isalnum())[:30]
    fault.strike(send(scene, release, name, fault))
    status = scene.until(name, "Succeeded", timeout=LONG)
    scene.once(name)
    assert status["attempt"] in fault.attempts, f"{status['attempt']} attempts: {status}"
    assert status["result"]["outputs"][0]["rows"] == 100
    assert_eventually(lambda: not scene.applications(name), LONG)
    say(f"{what}: one effect, {status['attempt']} attempts, {len(scene.marks(name))} drivers")
