"""Two outputs and one attempt, killed at every step: the final states that are allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from crash.scene import PATIENCE, Scene
from harness import effort
from harness.eventually import assert_eventually
from harness.patience import until_ended

ONCE = {"retry": {"maxAttempts": 1, "backoff": {"initial": "0s", "max": "0s"}}}
STEPS = [
    "driver.current",
    "driver.stage.before",
    "driver.stage.after",
    "driver.seal.before",
    "driver.seal.after",
    "sink.slots.create.before",
    "sink.slots.create.after",
    "driver.tx.between",
    "driver.write.done",
]


def killed(folder: Path, shape: str, failpoints: str) -> tuple[Scene, int]:
    """Runs a one-attempt job that is killed there, then sends it again until it has an end. Returns the last exit code."""
    scene = Scene(folder, shape=shape, spec=ONCE)
    try:
        code = until_ended(scene.run(failpoints), PATIENCE)
        if code < 0:
            code = until_ended(scene.run(), PATIENCE)
        assert_eventually(lambda: not scene.attempts(), timeout=PATIENCE)
    finally:
        scene.clear()
    return scene, code


def committed(scene: Scene) -> list[str]:
    return [o for o in ("a", "b") if any(s["state"] == "committed" for s in scene.slots(o))]


@pytest.mark.parametrize(("step", "which"), effort.sampled([(step, which) for step in STEPS for which in (0, 1)]))
def test_a_transaction_is_all_or_nothing_in_the_end(tmpfs_path: Path, step: str, which: int) -> None:
    """Killed at any step of a transaction with no attempt left: Succeeded with both outputs, or Failed with neither."""
    skip = f"{which}*off->" if which else ""
    scene, code = killed(tmpfs_path, "tx", f"{step}={skip}kill")

    expected = {0: ["a", "b"], 1: []}
    assert code in expected, scene.last_output()
    assert expected[code] == committed(scene)
    if code == 0:
        scene.check()


@pytest.mark.parametrize("skip", [0, 1])
def test_two_writes_killed_between_them_are_never_called_done_or_failed_with_one(tmpfs_path: Path, skip: int) -> None:
    """One of two plain outputs is committed and no attempt is left: held as Partial, neither Succeeded nor Failed."""
    scene, code = killed(tmpfs_path, "two", f"driver.write.done={skip}*off->kill")

    if skip:
        assert (code, ["a", "b"]) == (0, committed(scene))
        return
    assert (code, ["a"]) == (5, committed(scene)), scene.last_output()
    assert "Partial" in scene.last_output()
    assert until_ended(scene.run(), PATIENCE) == 5
    assert committed(scene) == ["a"]
