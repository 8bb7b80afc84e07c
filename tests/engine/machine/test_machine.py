"""Thousands of schedules of the real store, engine, driver and slot log with faults at every step, and the promises as invariants."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.machine.machine import play
from engine.machine.scene import CONFIGS, Config

IN_CI = os.environ.get("CI") == "true"
SCHEDULES = int(os.environ.get("SPARKONCE_SCHEDULES", "0")) or (6000 if IN_CI else 360)
"""All test items together, each schedule of at least ten steps and at least one fault."""
PARTS = 2
"""Test items per job, so that two workers share the load evenly."""
SPARE, FIRST = 1.06, 12
"""Some schedules have no fault that strikes, and hypothesis begins with the smallest ones: they are played and not counted."""


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("config", CONFIGS.values(), ids=lambda config: config.name)
def test_no_schedule_breaks_a_promise(
    config: Config, part: int, tmpfs_path: Path, monkeypatch: pytest.MonkeyPatch, say: Callable[[str], None]
) -> None:
    """With crashes, freezes, lost and late messages, zombies and people's wishes at any step, P1-P6 hold at every step, a transaction is
    all or nothing in the end, and every key comes to its end."""
    quota = SCHEDULES // (len(CONFIGS) * PARTS)
    counts = play(tmpfs_path, config, monkeypatch, schedules=int(quota * SPARE) + FIRST)
    faults = ", ".join(f"{kind} {number}" for kind, number in sorted(counts.faults.items()))
    endings = ", ".join(f"{kind} {number}" for kind, number in sorted(counts.endings.items()))
    say(f"{config.name}: {counts.counted} schedules, {counts.steps} steps; ended: {endings}; faults: {faults}")
    assert counts.counted >= quota
