"""Many processes on one Iceberg table, killed, frozen and resumed at random."""

from __future__ import annotations

from multiprocessing.context import ForkServerProcess
from pathlib import Path

from harness import effort
from harness.iceberg_contest import POINTS
from sink.test_iceberg_races import TOKENS, contest_in, lake

__all__ = ["lake"]


def test_six_processes_race(lake: Path, started: list[ForkServerProcess]) -> None:
    """Under kills and freezes at random moments and at every step, each key has at most one commit, and every answer that names a commit
    names that one; a fence that reported no commit is never contradicted; the table has each committed row once."""
    contest = contest_in(lake, started, keys=effort.size("race keys of formats"), processes=len(TOKENS))
    answered = dict.fromkeys(("Committed", "AlreadyCommitted", "FencedOff", "found", "fence none"), 1)
    rare = contest.run({"died": 10, **dict.fromkeys(POINTS, 3), **answered})
    outcome, hits = contest.judge(), contest.hits()
    print(f"{dict(contest.faults)} {dict(outcome)} {dict(hits)}; rare: {rare}")
