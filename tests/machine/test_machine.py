"""Thousands of schedules of the real store, engine, driver and slot log, with faults at every step and the promises as invariants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness import effort
from machine.machine import play
from machine.scene import CONFIGS, Config

SCHEDULES = effort.size("machine schedules")
"""Schedules of all test items together, counting those with at least ten steps and at least one fault."""
PARTS = 6 if effort.effort() is effort.Effort.SOAK else 1
"""Test items per job, so that workers share the load evenly; each plays other schedules."""
SPARE, FIRST = 1.06, 12
"""Some schedules, and the small ones with which hypothesis begins, have no fault: they are played but not counted."""


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("config", CONFIGS.values(), ids=lambda config: config.name)
def test_no_schedule_breaks_a_promise(
    config: Config, part: int, tmpfs_path: Path, monkeypatch: pytest.MonkeyPatch, say: Callable[[str], None]
) -> None:
    """With crashes, freezes, lost and late messages, zombies and users' requests at any step, P1-P6 hold at every step, a transaction is
    all or nothing in the end, and every key reaches its end."""
    quota = SCHEDULES // (len(CONFIGS) * PARTS)
    counts = play(
        tmpfs_path,
        config,
        monkeypatch,
        schedules=int(quota * SPARE) + FIRST,
        seed=effort.seed(f"{config.name} {part}"),
    )
    faults = ", ".join(f"{kind} {number}" for kind, number in sorted(counts.faults.items()))
    endings = ", ".join(f"{kind} {number}" for kind, number in sorted(counts.endings.items()))
    say(f"{config.name}: {counts.counted} schedules, {counts.steps} steps; ended: {endings}; faults: {faults}")
    assert counts.counted >= quota
