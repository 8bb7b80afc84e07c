"""The race of test_iceberg_races on a REST catalog with a Java server."""

from __future__ import annotations

from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from harness import iceberg_attempts
from harness.iceberg_rest import rest_server
from harness.iceberg_tables import rest_catalog
from sink.test_iceberg_races import contest_in


def test_processes_race_on_a_rest_catalog(
    tmpfs_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[ForkServerProcess]
) -> None:
    """The same race, with fewer keys, on Apache Iceberg's own REST catalog server, which accepts commits of several clients at once."""
    with rest_server(tmpfs_path) as url:
        (tmpfs_path / iceberg_attempts.REST_URL).write_text(url)
        for name, value in rest_catalog(url).items():
            monkeypatch.setenv(name, value)
        contest = contest_in(tmpfs_path, started, keys=12, processes=4)
        rare = contest.run({"died": 3, "Committed": 1})
        outcome = contest.judge()
    print(f"{dict(contest.faults)} {dict(outcome)}; rare: {rare}")
