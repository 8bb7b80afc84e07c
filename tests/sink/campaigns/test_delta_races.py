"""Many processes and a foreign writer on one Delta table, killed, frozen and resumed at random."""

from __future__ import annotations

from multiprocessing.context import ForkServerProcess
from pathlib import Path

from harness import delta_attempts, effort
from harness.delta_contest import POINTS, DeltaContest
from harness.patience import until_ended
from sink.test_delta_races import LONG, TOKENS


def test_six_processes_race(tmpfs_path: Path, started: list[ForkServerProcess]) -> None:
    """Six processes create the table and race on it while a foreign writer appends, under kills and freezes at random moments and at every
    step. Each key has at most one commit, and every answer that names a commit names that one; a fence that reported no commit is never
    contradicted; the table has each committed row, and each of the foreign writer's, once."""
    seed = effort.seed("delta races")
    contest = DeltaContest(
        tmpfs_path,
        f"{tmpfs_path}/table",
        started,
        seed=seed,
        keys=effort.size("race keys of formats"),
        processes=len(TOKENS),
    )
    print(f"SEED={effort.base()}")
    started.append(stranger := delta_attempts.start_stranger(str(tmpfs_path), 30))
    answered = dict.fromkeys(("Committed", "AlreadyCommitted", "FencedOff", "found", "fence none"), 1)
    rare = contest.run({"died": 10, **dict.fromkeys(POINTS, 1), **answered})
    until_ended(stranger, LONG)
    assert stranger.exitcode == 0
    contest.foreign = range(-30, 0)
    outcome = contest.judge()
    hits = contest.hits()
    print(f"{dict(contest.faults)} {dict(outcome)} {dict(hits)}; rare: {rare}")
