"""What takes half a minute about signals: a job that is sent while it is being stopped, and one that was handed to a terminal that dies."""

from __future__ import annotations

import pytest

from harness.desk import DEAF, PATIENCE, STARTED, WAITS, WRITES, Desk
from harness.eventually import assert_eventually
from harness.patience import until_ended
from sparkonce.cli.exits import ExitCode

KEY = "write/numbers@1"


def test_a_handed_over_job_whose_terminal_dies_goes_on_when_it_is_sent_again(desk: Desk) -> None:
    """One terminal left by Ctrl-C and the other was killed: the attempt runs on, and the next request takes it over."""
    leader = desk.leader()
    second = desk.follower()
    leader.interrupt()
    assert leader.end().code == ExitCode.DETACHED
    second.process.kill()
    until_ended(second.process, PATIENCE)
    desk.go()
    assert desk.here("run", "job.yaml").code == 0
    assert desk.attempts() == len(desk.commits()) == 1


@pytest.mark.slow
def test_a_job_that_is_sent_while_it_is_being_stopped_runs_afterwards(desk: Desk) -> None:
    """The second command waits for the end of the generation that is being cancelled and opens the next one, as on a cluster."""
    desk.job(DEAF + STARTED + WAITS + WRITES, stopTimeoutSeconds=40)
    first = desk.start("run", "job.yaml")
    desk.driver_runs()
    first.interrupt()
    assert_eventually(lambda: _stopping(desk), PATIENCE)
    second = desk.follower("--json")
    assert first.end().code == ExitCode.CANCELLED
    desk.go()
    said = second.end()
    assert (said.code, said.told["generation"]) == (0, 2), said
    assert [slot.rows for slot in desk.commits()] == [1234]


def _stopping(desk: Desk) -> bool:
    """Whether the record has a cancellation request; the driver ignores it for half of the stop timeout."""
    return desk.here("keys", "show", KEY, "--json").told["record"].get("stopWanted") is not None
