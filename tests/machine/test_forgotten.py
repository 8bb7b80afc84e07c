"""A schedule that the machine found, as a test: a leader froze, and its key was forgotten meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from machine.machine import prepared
from machine.process import Process
from machine.scene import CONFIGS
from machine.world import LONG, World
from sparkonce.errors import InvalidInput


def _until(world: World, process: Process, what: str) -> None:
    """Runs the process until it is about to have such an effect."""
    while process.pending is not None and process.pending.what != what:
        world.advance(process)


def _to_the_end(world: World, process: Process) -> None:
    """Runs the process to its end, together with all others that are awake."""
    while not process.over:
        for each in list(world.awake):
            if not each.over:
                world.advance(each)


def test_a_leader_whose_generation_was_forgotten_opens_no_second_one(
    tmpfs_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its thaw it finds no record where it had opened generation 1, and reports that; running the job again takes a new request."""
    world = World(prepared(tmpfs_path, CONFIGS["one"], monkeypatch), [], max_attempts=3, seed=0)
    world.request("A")
    leader = world.clients[0]
    _until(world, leader, "launcher.launch g1-a1")
    leader.frozen = True
    world.scene.clock.at += LONG  # its claim is stale, its lease still held
    world.request("A")
    _to_the_end(world, world.clients[-1])
    world.forget()
    _to_the_end(world, world.clients[-1])
    assert world.promises.last is None

    leader.frozen = False
    _to_the_end(world, leader)

    assert isinstance(leader.answer, InvalidInput)
    assert "was forgotten while this request waited" in str(leader.answer)
    assert list(world.promises.fingerprints) == [1]
    world.close()
    world.scene.close()
