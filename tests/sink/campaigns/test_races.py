"""Many processes on one slot log, killed, frozen and resumed at random."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from harness import effort
from harness.contest import POINTS, Contest
from sink.test_races import PROCESSES
from sparkonce.blocking import run
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.slotlog import layout


def test_five_processes_race(tmpfs_path: Path, started: list[ForkServerProcess], say: Callable[[str], None]) -> None:
    """Under kills and freezes at random moments and at every step, each key has at most one commit, and every answer that names a commit
    names that one; a fence that reported no commit is never contradicted; fenced slots are closed; the table has each committed row
    once."""
    seed = effort.seed("races")
    contest = Contest(
        tmpfs_path, f"{tmpfs_path}/table", started, seed=seed, keys=effort.size("race keys"), processes=PROCESSES
    )
    say(f"SEED={effort.base()}")
    answered = dict.fromkeys(("Committed", "AlreadyCommitted", "FencedOff", "found", "fence none"), 1)
    rare = contest.run({"died": 10, **dict.fromkeys(POINTS, 3), **answered})
    outcome, hits = contest.judge(), contest.hits()
    say(f"{dict(contest.faults)} {dict(outcome)} {dict(hits)}; rare: {rare}")
    assert run(FolderObjects(tmpfs_path / "table").list(layout.SNAPSHOTS)) != ()
