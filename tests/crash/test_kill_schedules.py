"""Kill anything at any step, send the job again: one effect, the right rows. By failpoints, not by luck."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from crash.scene import Scene
from crash.schedule import Fault, Schedule, draw, play
from sparkonce.failpoints import NAMES

SCHEDULES = 200
WORKERS = 2
ELSEWHERE = ("store.etcd.", "replica.", "engine.settle-run.", "sink.delta.", "sink.iceberg.", "driver.stream.")
"""Points that these jobs never reach: tests/api, tests/sink and the other modules here kill at them."""
LEAST = 3
"""Faults that must really have happened at each point."""


def one(folder: Path, schedule: Schedule) -> list[str]:
    scene = Scene(folder, shape=schedule.shape, options=schedule.options)
    try:
        play(scene, schedule)
    except BaseException as error:
        error.add_note(f"{schedule}\nfolder {folder}")
        raise
    return scene.hits()


def test_whatever_is_killed_or_frozen_the_job_has_one_effect_and_the_right_rows(
    tmpfs_path: Path, say: Callable[[str], None]
) -> None:
    """200 schedules over every failpoint: after any of them each output has exactly one committed slot, and its rows once."""
    seed = int(os.environ.get("SPARKONCE_SEED") or random.SystemRandom().randrange(2**32))
    count = int(os.environ.get("SPARKONCE_KILL_SCHEDULES") or SCHEDULES)
    rng = random.Random(seed)
    points = [name for name in NAMES if not name.startswith(ELSEWHERE)]
    planned = [draw(rng, point, points, skips=False) for point in points for _ in range(LEAST)]
    planned += [draw(rng, rng.choice(points), points) for _ in range(count - len(planned))]
    rng.shuffle(planned)
    faults: Counter[str] = Counter()
    begun = time.monotonic()

    def play_all(schedules: list[Schedule], start: int) -> int:
        with ThreadPoolExecutor(WORKERS) as pool:
            folders = [tmpfs_path / str(start + n) for n in range(len(schedules))]
            for hits in pool.map(one, folders, schedules):
                faults.update(h.partition("=")[0] for h in hits if h.endswith(("=kill", "=stop")))
        return start + len(schedules)

    played = play_all(planned[:count], 0)
    while (missing := [p for p in points if faults[p] < LEAST]) and played < 2 * count:
        played = play_all([draw(rng, p, points, skips=False) for p in missing], played)
    took = time.monotonic() - begun
    lines = [f"  {faults[point]:4d}  {point}" for point in points]
    say(f"seed {seed}: {played} kill schedules in {took:.0f} s; faults that happened, per point:\n" + "\n".join(lines))
    assert not missing, f"seed {seed}: fewer than {LEAST} faults happened at {missing}"


def test_who_freezes_without_the_ledgers_lock_holds_nobody_up(tmpfs_path: Path) -> None:
    """Frozen before a statement that takes no lock, or before the one that asks for it: the next request takes over and succeeds."""
    for skip in (0, 18, 19):
        fault = Fault("store.sql.statement.before", "stop", skip, both=False)
        one(tmpfs_path / str(skip), Schedule("one", ("fail-once",), (fault,)))
