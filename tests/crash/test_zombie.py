"""A driver that could not be stopped is replaced, and resumes later."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from pathlib import Path

import pytest
import yaml

from crash.scene import HERE, PATIENCE, Scene
from harness.child import frozen
from harness.eventually import assert_eventually
from harness.patience import until_ended
from sparkonce.launch.local import LocalLauncher, place
from sparkonce.launch.protocol import StillThere
from sparkonce.launch.submit import command_for
from sparkonce.local.prepare import prepare
from sparkonce.local.runner import LocalRunner, attempts_folder
from sparkonce.model.record import Assignment, Outcome
from sparkonce.model.spec import IdempotentJob
from sparkonce.store.open import open_store


class OutOfReach(LocalLauncher):
    """A launcher whose node is unreachable: its stops have no effect."""

    async def stop(self, assignment: Assignment, *, timeout: float) -> StillThere:
        lock = place(self.attempts / assignment.name, assignment, stopped=True)
        if lock is not None:
            os.close(lock)
        return StillThere("its node is out of reach")


@pytest.mark.parametrize("point", ["driver.stage.after", "sink.slots.create.before", "driver.seal.before"])
def test_a_zombie_that_wakes_after_the_takeover_is_fenced_and_its_files_are_swept(
    tmpfs_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The frozen driver of attempt 1 resumes after attempt 2 has committed: it is Fenced, none of its rows is visible, and none of its
    files stays."""
    shape = "tx" if "seal" in point else "one"
    scene = Scene(tmpfs_path, shape=shape)
    once = tmpfs_path / "once"
    once.mkdir()
    environment = {
        "SPARKONCE_SPARK_SUBMIT": str(scene.submit),
        "SPARKONCE_FAILPOINTS": f"{point}=stop",
        "SPARKONCE_FAILPOINTS_ONCE": str(once),
        "PYTHONPATH": str(HERE.parent),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    job = IdempotentJob.of(yaml.safe_load((tmpfs_path / "job.yaml").read_text()))
    store = open_store(str(scene.ledger))
    attempts = attempts_folder(store.url)

    embedded = LocalRunner(store=store, attempts=attempts, launcher=OutOfReach(attempts, command_for()))
    try:
        ending = asyncio.run(embedded.submit(prepare(job, base=str(tmpfs_path))))

        assert ending.result is not None
        assert (ending.result.outcome, ending.result.attempts) == (Outcome.SUCCEEDED, 2)
        scene.check()
        zombies = [pid for pid in scene.attempts() if frozen(pid)]
        assert len(zombies) == 1
        os.kill(zombies[0], signal.SIGCONT)
        assert_eventually(lambda: not scene.attempts(), timeout=PATIENCE)
        scene.check()
        assert scene.staged() == []
        first = next(p for p in attempts.iterdir() if p.name.endswith("-a1"))
        said = (first / "stdout").read_text() + (first / "stderr").read_text()
        assert "Fenced" in said or "AttemptEnded" in said
        assert (first / "exit").read_text().strip() != "0"
    finally:
        scene.clear()


def test_two_requests_that_stop_a_frozen_launcher_do_not_take_the_key_from_each_other(tmpfs_path: Path) -> None:
    """Stopping a frozen launcher takes longer than a lease lasts without renewal. Of two waiting requests one owns the key in the meantime,
    and finishes it."""
    scene = Scene(tmpfs_path, shape="two")
    try:
        launcher = scene.run("launch.local.placed=1*stop")
        assert_eventually(lambda: frozen(launcher.pid), timeout=PATIENCE)
        requests = [scene.run(), scene.run()]

        assert [until_ended(request, PATIENCE) for request in requests] == [0, 0]
        with sqlite3.connect(scene.ledger) as ledger:
            takeovers = ledger.execute("SELECT count(*) FROM events WHERE body LIKE '%TakenOver%'").fetchone()[0]
        assert takeovers <= 5  # one on a quiet machine; without renewals the takeovers would not end
        os.kill(launcher.pid, signal.SIGCONT)
        assert until_ended(launcher, PATIENCE) == 0
        scene.check()
    finally:
        scene.clear()
