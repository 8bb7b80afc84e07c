"""An attempt that provably never ran does not hold an opaque job, since it cannot have had an effect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from crash.scene import PATIENCE, Scene
from harness.patience import until_ended

SCRIPT = "open('effects', 'a').write('once\\n')\n"
RETRY = {"maxAttempts": 1, "backoff": {"initial": "0s", "max": "0s"}}
PLACED, SPAWNED = "launch.local.placed", "launch.local.spawned"


@pytest.fixture
def scene(tmpfs_path: Path) -> Scene:
    """An opaque job that may run once, and notes each time it runs."""
    script = tmpfs_path / "script.py"
    script.write_text(SCRIPT)
    return Scene(tmpfs_path, spec={"outputs": [], "retry": RETRY, "heartbeatTimeoutSeconds": None}, script=script)


def effects(scene: Scene) -> int:
    path = scene.folder / "effects"
    return len(path.read_text().splitlines()) if path.exists() else 0


def edit_identity(scene: Scene, **fields: Any) -> None:
    """Edits the recorded identity in the only attempt's folder."""
    [folder] = Path(f"{scene.ledger}.attempts").glob("so-*")
    identity = json.loads((folder / "application.json").read_text())
    (folder / "application.json").write_text(json.dumps({**identity, **fields}))


def test_the_next_request_runs_what_never_started(scene: Scene) -> None:
    """Killed after the attempt's folder was made and before its process was started: the job runs once, as attempt 2, although it has one
    attempt only."""
    assert until_ended(scene.run(f"{PLACED}=kill"), PATIENCE) == -9
    assert effects(scene) == 0
    assert until_ended(scene.run(), PATIENCE) == 0, scene.last_output()
    assert (effects(scene), scene.said()["attempt"]) == (1, 2)


@pytest.mark.slow
def test_a_launcher_that_dies_each_time_is_failed_in_the_end(scene: Scene) -> None:
    """After four such deaths the job is Failed with the reason, and not held; nothing ran."""
    for _ in range(4):
        assert until_ended(scene.run(f"{PLACED}=kill"), PATIENCE) == -9
    assert until_ended(scene.run(), PATIENCE) == 1, scene.last_output()
    assert "before it had started anything" in scene.last_output()
    assert effects(scene) == 0


@pytest.mark.parametrize("fields", [{"boot": "another"}, {"placeholder": True}, {"placeholder": None}])
def test_what_is_no_proof_is_held(scene: Scene, fields: dict[str, Any]) -> None:
    """The attempt may have run: after a reboot the latest writes may be lost, a placeholder only shows that the name was free, and an
    earlier version's folder shows neither."""
    assert until_ended(scene.run(f"{PLACED}=kill"), PATIENCE) == -9
    edit_identity(scene, **fields)
    assert until_ended(scene.run(), PATIENCE) == 5, scene.last_output()
    assert "it is unknown whether attempt 1 took effect" in scene.last_output()
    assert effects(scene) == 0


def test_what_may_have_run_is_not_run_again(scene: Scene) -> None:
    """Killed after the process was started: the next request goes on with that process, and the job runs once, as attempt 1."""
    assert until_ended(scene.run(f"{SPAWNED}=kill"), PATIENCE) == -9
    assert until_ended(scene.run(), PATIENCE) == 0, scene.last_output()
    assert (effects(scene), scene.said()["attempt"]) == (1, 1)
