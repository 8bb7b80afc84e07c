"""Ctrl-C, SIGTERM and a second terminal, with real processes. Effects are counted at the output."""

from __future__ import annotations

import os
import re
import signal
import sys

import pytest

from harness import effort
from harness.desk import DEAF, PATIENCE, STARTED, WAITS, WRITES, Desk
from harness.eventually import assert_eventually
from harness.patience import completed, until_ended
from sparkonce.cli.exits import ExitCode

KEY = "write/numbers@1"


def nothing_runs(desk: Desk) -> bool:
    """Whether no process of the only attempt is left, by its lock."""
    checks = desk.here("doctor", "--json").told["checks"]
    said = [check["said"] for check in checks if check["what"].startswith("attempt") and check["ok"]]
    return [each.partition(" ended")[0] for each in said] == ["0 running, logs of 1"]


@pytest.mark.parametrize("number", effort.sampled([signal.SIGINT, signal.SIGTERM]))
def test_the_leader_stops_and_settles(desk: Desk, number: signal.Signals) -> None:
    """Exit 8 if nothing took effect: the driver is gone, the output is closed to it, and the next run opens a new generation."""
    terminal = desk.leader()
    terminal.interrupt(number)
    said = terminal.end()
    assert said.code == ExitCode.CANCELLED, said
    assert said.first.startswith(f"cancelled: {KEY}, generation 1, attempt 1")
    assert "Traceback" not in said.out + said.err
    assert "stopping attempt 1 and settling what it wrote" in said.err
    assert desk.commits() == []
    [attempt] = desk.here("keys", "show", KEY, "--json").told["attempts"]
    assert "cancelled by" in attempt["ended"]
    assert nothing_runs(desk)
    desk.go()
    again = desk.here("run", "job.yaml", "--json")
    assert (again.code, again.told["generation"]) == (0, 2)
    assert [slot.rows for slot in desk.commits()] == [1234]


def test_the_truth_wins_over_a_wish(desk: Desk) -> None:
    """Ctrl-C after the commit: the job succeeded, and that is printed (exit 0)."""
    desk.job(WRITES + WAITS)
    terminal = desk.start("run", "job.yaml", "--json")
    assert_eventually(desk.commits, PATIENCE)
    terminal.interrupt()
    said = terminal.end()
    assert (said.code, said.told["phase"], said.told["replayed"]) == (0, "Succeeded", False)
    assert "Traceback" not in said.err


def test_a_second_ctrl_c_says_what_is_going_on(desk: Desk) -> None:
    """While a driver that ignores SIGTERM is being stopped, a second Ctrl-C changes nothing and says that nothing would be lost."""
    desk.job(DEAF + STARTED + WAITS + WRITES)
    terminal = desk.start("run", "job.yaml")
    desk.driver_runs()
    terminal.interrupt()
    terminal.wait_for("stopping attempt 1")
    terminal.interrupt()
    terminal.wait_for("this is settling already")
    said = terminal.end()
    assert said.code == ExitCode.CANCELLED
    assert "nothing is lost" in said.err
    assert "Traceback" not in said.out + said.err


def test_two_terminals(desk: Desk) -> None:
    """One terminal runs the job, the other follows and shows its progress; both get the same result, of one attempt."""
    first = desk.leader("--json")
    second = desk.follower("--json")
    second.wait_for("attempt 1 of 1")
    desk.go()
    told = [terminal.end() for terminal in (first, second)]
    assert [said.code for said in told] == [0, 0]
    assert [said.told["replayed"] for said in told] == [False, True]
    assert told[0].told["result"]["outputs"][0]["rows"] == told[1].told["result"]["outputs"][0]["rows"] == 1234
    assert desk.attempts() == len(desk.commits()) == 1


def test_a_follower_only_detaches(desk: Desk) -> None:
    """Ctrl-C on the follower: it exits with 130 at once, and the leader continues to its result."""
    leader = desk.leader()
    follower = desk.follower()
    follower.interrupt()
    said = follower.end()
    assert said.code == ExitCode.DETACHED
    assert said.first.startswith(f"detached: {KEY} continues: ")
    assert "Traceback" not in said.out + said.err
    desk.go()
    assert leader.end().code == 0
    assert [slot.rows for slot in desk.commits()] == [1234]


@pytest.mark.parametrize("number", effort.sampled([signal.SIGINT, signal.SIGTERM]))
def test_a_leader_hands_over_to_a_terminal_that_waits(desk: Desk, number: signal.Signals) -> None:
    """The leader exits with 130: the same attempt continues, and the waiting terminal, which now owns it, gets the one result. Its own
    Ctrl-C then stops the job."""
    leader = desk.leader()
    waits = [desk.start("run", "job.yaml", "--json") for _ in range(2)]
    for each in waits:
        each.wait_for("running elsewhere (pid")
    leader.interrupt(number)
    said = leader.end()
    assert said.code == ExitCode.DETACHED, said
    assert "another terminal waits for this job and continues it" in said.err
    assert "another terminal waits for this job" in said.first
    desk.go()
    told = [each.end() for each in waits]
    assert [each.code for each in told] == [0, 0]
    assert desk.attempts() == len(desk.commits()) == 1


@pytest.mark.parametrize(
    ("opens", "ends"),
    effort.sampled(
        [(opens, ends) for opens in (("run", "job.yaml"), ("rerun", KEY)) for ends in ("hands over", "is killed")]
    ),
)
def test_one_sender_of_a_run_is_not_replayed(desk: Desk, opens: tuple[str, ...], ends: str) -> None:
    """It is the one that opened the generation, even if it left. Those that waited are replayed, also the one that took the job over and
    reports its end. For a sender without a result `replayed` is null."""
    desk.job(STARTED + WAITS + WRITES)
    if opens[0] == "rerun":
        desk.go()
        assert desk.here("run", "job.yaml").code == 0
        (desk.folder / "go").unlink()
        (desk.folder / "started").unlink()
    leader = desk.start(*opens, "--json")
    desk.driver_runs()
    waits = [desk.start("run", "job.yaml", *more) for more in (["--json"], ["--json"], [])]
    for each in waits:
        each.wait_for("running elsewhere (pid")
    unanswered = desk.here("run", "job.yaml", "--no-follow", "--json")
    assert (unanswered.code, unanswered.told["replayed"]) == (ExitCode.DETACHED, None)
    if ends == "hands over":
        leader.interrupt()
        said = leader.end()
        assert (said.code, said.told["phase"], said.told["replayed"]) == (ExitCode.DETACHED, "Running", False)
    else:
        leader.process.kill()
        until_ended(leader.process, PATIENCE)
    assert_eventually(
        lambda: any(f"pid {each.process.pid}" in desk.here("keys", "explain", KEY).out for each in waits), PATIENCE
    )
    desk.go()
    told = [each.end() for each in waits]
    assert [each.code for each in told] == [0, 0, 0]
    assert [each.told["replayed"] for each in told[:2]] == [True, True]
    assert re.match("(replayed|succeeded): ", told[2].first)
    assert len(desk.commits()) == desk.attempts() == (2 if opens[0] == "rerun" else 1)


@pytest.mark.further
def test_whoever_is_handed_a_job_can_stop_it(desk: Desk) -> None:
    """No other terminal waits, so the last one's Ctrl-C cancels the job."""
    leader = desk.leader()
    second = desk.follower()
    leader.interrupt()
    assert leader.end().code == ExitCode.DETACHED
    assert_eventually(lambda: f"pid {second.process.pid}" in desk.here("keys", "explain", KEY).out, PATIENCE)
    second.interrupt()
    said = second.end()
    assert said.code == ExitCode.CANCELLED, said
    assert desk.commits() == []


@pytest.mark.further
def test_a_terminal_that_was_killed_waits_for_nothing(desk: Desk) -> None:
    """The leader's Ctrl-C cancels the job, although another terminal waited for it shortly before."""
    leader = desk.leader()
    second = desk.follower()
    second.process.kill()
    until_ended(second.process, PATIENCE)
    leader.interrupt()
    assert leader.end().code == ExitCode.CANCELLED
    assert desk.commits() == []


def test_cancel_ends_a_job_for_all_who_wait(desk: Desk) -> None:
    """`sparkonce cancel` differs from Ctrl-C: both the leader and the waiting terminal get the cancelled result (exit 8)."""
    leader = desk.leader()
    follower = desk.follower()
    assert desk.here("cancel", KEY, "--reason", "wrong input").code == 0
    assert [each.end().code for each in (leader, follower)] == [ExitCode.CANCELLED] * 2
    assert desk.commits() == []


def test_cancel_from_another_terminal(desk: Desk) -> None:
    """`sparkonce cancel` leaves stopping and settling to the owner, waits for the end of the driver and exits with 0; the leader exits with
    8 and says why."""
    leader = desk.leader()
    said = desk.here("cancel", KEY, "--reason", "wrong input")
    assert said.code == 0
    assert said.first.startswith(f"cancelled: {KEY}, generation 1, attempt 1")
    assert nothing_runs(desk)
    assert f"pid {leader.process.pid}" in settled_by(desk)
    ended = leader.end()
    assert ended.code == ExitCode.CANCELLED
    assert "wrong input" in ended.out
    assert desk.commits() == []


def test_cancel_of_a_job_without_an_owner(desk: Desk) -> None:
    """The runner was killed: `sparkonce cancel` takes over, ends the orphaned driver and settles the attempt itself."""
    leader = desk.leader()
    leader.process.kill()
    until_ended(leader.process, PATIENCE)
    doctor = desk.here("doctor")
    assert "runs and its key has no owner" in doctor.out
    said = desk.here("cancel", "job.yaml", "--json")
    assert (said.code, said.told["phase"]) == (0, "Cancelled")
    assert nothing_runs(desk)
    assert f"pid {os.getpid()}" in settled_by(desk)
    assert desk.commits() == []


def settled_by(desk: Desk) -> str:
    """The process that settled the only attempt."""
    events = desk.here("keys", "history", KEY, "--json").told["events"]
    [by] = [str(event["by"]) for event in events if event["what"] == "Settling"]
    return by


@pytest.mark.further
def test_ctrl_c_while_cancel_waits(desk: Desk) -> None:
    """The cancellation request is recorded, so its sender may leave (exit 130)."""
    desk.job()
    with desk.owned_elsewhere() as (_, record, _):
        terminal = desk.start("cancel", KEY)
        terminal.wait_for("running elsewhere")
        terminal.interrupt()
        said = terminal.end()
        assert said.code == ExitCode.DETACHED
        assert "cancellation is requested" in said.out
        told = desk.here("keys", "show", KEY, "--json").told["record"]
        assert told["stopWanted"]["why"] == "Cancelled"
        assert record.stop_wanted is None  # as reserved, without a request


@pytest.mark.parametrize(
    "module", effort.sampled(["typer", "pydantic", "asyncio", "sparkonce.cli.session", "sparkonce.store.open"])
)
def test_ctrl_c_during_an_import(desk: Desk, module: str) -> None:
    """Before a command has begun, Ctrl-C ends it silently, whichever import it is in."""
    desk.job()
    program = f"""
import builtins, os, signal, sys
plain = builtins.__import__
def spy(name, *rest):
    if name.startswith({module!r}):
        os.kill(os.getpid(), signal.SIGINT)
    return plain(name, *rest)
from sparkonce.__main__ import main
builtins.__import__ = spy
sys.argv = ["sparkonce", "run", "job.yaml"]
main()
"""
    done = completed([sys.executable, "-c", program], PATIENCE)
    assert (done.returncode, done.stdout) == (ExitCode.DETACHED, "")
    assert "Traceback" not in done.stderr
    assert desk.attempts() == 0
