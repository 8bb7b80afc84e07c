"""A command whose output nobody reads any more, as in `sparkonce run job.yaml | true`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from harness.desk import FAILS, Desk
from harness.patience import until_ended
from sparkonce.cli.exits import ExitCode

PATIENCE = 60.0


def unread(desk: Desk, *arguments: str) -> int:
    """Exit code of a command both of whose outputs are pipes without a reader."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "sparkonce", *arguments]
    environment = {**os.environ, **desk.environment}
    with subprocess.Popen(command, cwd=desk.folder, env=environment, stdout=writer, stderr=writer) as process:
        os.close(writer)
        return until_ended(process, PATIENCE)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_job_runs_once_and_its_exit_code_says_how_it_ended(desk: Desk, as_json: bool) -> None:
    """It runs to its end, is replayed, and a failed one is told apart. All of it before ended with 1, and nothing ran."""
    more = ["--json"] if as_json else []
    job = desk.job()
    assert unread(desk, "run", job, *more) == ExitCode.SUCCEEDED
    assert len(desk.commits()) == 1
    assert unread(desk, "run", job, *more) == ExitCode.SUCCEEDED
    assert len(desk.commits()) == 1
    assert unread(desk, "plan", job, *more) == ExitCode.SUCCEEDED


def test_a_job_that_failed_is_told_apart(desk: Desk) -> None:
    """By the exit code of a failure; its record says that it ran."""
    assert unread(desk, "run", desk.job(FAILS)) == ExitCode.FAILED
    [key] = desk.here("keys", "list", "--json").told["keys"]
    assert key["phase"] == "Failed"


def test_lists_and_documents_end_well(desk: Desk) -> None:
    """As before `head`, which reads a line and leaves."""
    job = desk.job()
    assert desk.here("run", job).code == 0
    for words in (("keys", "list"), ("keys", "list", "--json"), ("render", job), ("audit",)):
        assert unread(desk, *words) == ExitCode.SUCCEEDED, words
