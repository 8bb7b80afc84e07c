"""A driver that could not be stopped is replaced, and resumes later."""

from __future__ import annotations

import os
import signal
import sqlite3
from pathlib import Path

import pytest

from crash.scene import PATIENCE, Scene
from harness import effort
from harness.child import frozen
from harness.eventually import assert_eventually
from harness.patience import until_ended


@pytest.mark.parametrize(
    "point", effort.sampled(["sink.slots.create.before", "driver.stage.after", "driver.seal.before"])
)
def test_a_zombie_that_wakes_after_the_takeover_is_fenced_and_its_files_are_swept(tmpfs_path: Path, point: str) -> None:
    """The frozen driver of an attempt resumes after the next one has committed: it is refused, none of its rows is visible, and none of its
    files stays."""
    scene = Scene(tmpfs_path, shape="tx" if "seal" in point else "one")
    try:
        attempt = scene.freeze_at(point)
        scene.finish_beside_zombie()
        assert scene.said()["attempt"] == attempt + 1
        scene.check()
        scene.wake()
        scene.check()
        assert scene.staged() == []
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
