"""Processes are killed or frozen at any failpoint, and the job is sent again: one effect, the right rows."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from crash.scene import Scene
from crash.schedule import Fault, Schedule, draw, play
from harness import effort
from sparkonce.failpoints import NAMES

PARTS = {effort.Effort.GATE: 4, effort.Effort.ALL: 8, effort.Effort.SOAK: 26}[effort.effort()]
"""Number of test items, so that two workers share them; each has its own failpoints."""
SCHEDULES = effort.size("kill schedules") // PARTS
TRIES = 4
"""Maximum number of rounds until every fault has happened: a round may miss a point that few runs reach."""
ELSEWHERE = (
    "store.etcd.",
    "replica.",
    "engine.settle-run.",
    "sink.delta.",
    "sink.iceberg.",
    "sink.skipping",
    "sink.slots.looked",
    "driver.stream.",
    "lanes.",
    "driver.native.",
    "replies.",
)
"""Points that these jobs never reach; tests/api, tests/sink, tests/replies and the other modules of this folder kill there."""
LEAST = effort.size("kills per failpoint")
"""Number of faults that must have happened at each point."""


def one(folder: Path, schedule: Schedule) -> list[str]:
    scene = Scene(folder, shape=schedule.shape, options=schedule.options)
    try:
        play(scene, schedule)
    except BaseException as error:
        error.add_note(f"{schedule}\nfolder {folder}")
        raise
    return scene.hits()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_is_killed_or_frozen_the_job_has_one_effect_and_the_right_rows(
    tmpfs_path: Path, part: int, say: Callable[[str], None]
) -> None:
    """Schedules over every failpoint: after each of them every output has exactly one committed slot, and its rows once."""
    rng = random.Random(effort.seed(f"kills {part}"))
    points = [name for name in NAMES if not name.startswith(ELSEWHERE)]
    random.Random(effort.seed("kills")).shuffle(points)
    ours = points[part::PARTS]
    planned = [draw(rng, point, points, skips=False) for point in ours for _ in range(LEAST)]
    planned += [draw(rng, rng.choice(ours), points) for _ in range(SCHEDULES - len(planned))]
    rng.shuffle(planned)
    faults: Counter[str] = Counter()
    begun, played = time.monotonic(), 0
    while planned:
        for schedule in planned:
            hits = one(tmpfs_path / str(played), schedule)
            faults.update(h.partition("=")[0] for h in hits if h.endswith(("=kill", "=stop")))
            played += 1
        missing = [point for point in ours if faults[point] < LEAST]
        planned = [draw(rng, point, points, skips=False) for point in missing] if played < TRIES * SCHEDULES else []
    took = time.monotonic() - begun
    happened = ", ".join(f"{point} {faults[point]}" for point in points if faults[point])
    say(f"{played} kill schedules in {took:.0f} s; faults that happened: {happened}")
    assert not [point for point in ours if faults[point] < LEAST]
    assert faults


@pytest.mark.further
@pytest.mark.slow
def test_who_freezes_without_the_ledgers_lock_holds_nobody_up(tmpfs_path: Path) -> None:
    """A process is frozen before a statement that takes no lock, or before the one that requests it: the next request takes over and
    succeeds."""
    for skip in effort.sampled((18, 0, 19)):
        fault = Fault("store.sql.statement.before", "stop", skip, both=False)
        one(tmpfs_path / str(skip), Schedule("one", ("fail-once",), (fault,)))
