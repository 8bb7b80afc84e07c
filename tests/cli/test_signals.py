"""Ctrl-C, SIGTERM and a second terminal, with real processes. Effects are counted at the output."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from harness.desk import PATIENCE, WAITS, WRITES, Desk
from harness.eventually import assert_eventually
from sparkonce.cli.exits import ExitCode

KEY = "write/numbers@1"
STARTED = """
    from pathlib import Path

    Path("started").touch()
"""
DEAF = """
    import signal

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""


def driver_runs(desk: Desk) -> None:
    """Until the job's script has begun."""
    assert_eventually((desk.folder / "started").exists, PATIENCE)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_leader_stops_and_settles(desk: Desk, number: signal.Signals) -> None:
    """Exit 8 when nothing took effect: the driver is gone, the output is closed to it, and the next run opens a new generation."""
    desk.job(STARTED + WAITS + WRITES)
    terminal = desk.start("run", "job.yaml")
    driver_runs(desk)
    terminal.interrupt(number)
    said = terminal.end()
    assert said.code == ExitCode.CANCELLED, said
    assert said.first.startswith(f"cancelled: {KEY}, generation 1, attempt 1")
    assert "Traceback" not in said.out + said.err
    assert "stopping attempt 1 and settling what it wrote" in said.err
    assert desk.commits() == []
    [attempt] = desk.here("keys", "show", KEY, "--json").told["attempts"]
    assert "cancelled by" in attempt["ended"]
    left_over = next(check for check in desk.here("doctor", "--json").told["checks"] if check["what"] == "attempts")
    assert left_over["ok"]
    assert left_over["said"].startswith("0 running, logs of 1")
    desk.go()
    again = desk.here("run", "job.yaml", "--json")
    assert (again.code, again.told["generation"]) == (0, 2)
    assert [slot.rows for slot in desk.commits()] == [1234]


def test_the_truth_wins_over_a_wish(desk: Desk) -> None:
    """Ctrl-C after the commit: it succeeded, and that is what is said (exit 0)."""
    desk.job(WRITES + WAITS)
    terminal = desk.start("run", "job.yaml", "--json")
    assert_eventually(desk.commits, PATIENCE)
    terminal.interrupt()
    said = terminal.end()
    assert (said.code, said.told["phase"], said.told["replayed"]) == (0, "Succeeded", False)
    assert "Traceback" not in said.err


def test_a_second_ctrl_c_says_what_is_going_on(desk: Desk) -> None:
    """While a driver that ignores SIGTERM is being stopped, another Ctrl-C changes nothing and says that nothing would be lost."""
    desk.job(DEAF + STARTED + WAITS + WRITES)
    terminal = desk.start("run", "job.yaml")
    driver_runs(desk)
    terminal.interrupt()
    terminal.wait_for("stopping attempt 1")
    terminal.interrupt()
    terminal.wait_for("this is settling already")
    said = terminal.end()
    assert said.code == ExitCode.CANCELLED
    assert "nothing is lost" in said.err
    assert "Traceback" not in said.out + said.err


def test_two_terminals(desk: Desk) -> None:
    """One runs, the other follows and shows how far it is; both get the same result, of one attempt."""
    desk.job(STARTED + WAITS + WRITES)
    first = desk.start("run", "job.yaml", "--json")
    driver_runs(desk)
    second = desk.start("run", "job.yaml", "--json")
    second.wait_for("running elsewhere (pid")
    second.wait_for("attempt 1 of 1")
    desk.go()
    told = [terminal.end() for terminal in (first, second)]
    assert [said.code for said in told] == [0, 0]
    assert [said.told["replayed"] for said in told] == [False, True]
    assert told[0].told["result"]["outputs"][0]["rows"] == told[1].told["result"]["outputs"][0]["rows"] == 1234
    assert desk.attempts() == len(desk.commits()) == 1


def test_a_follower_only_detaches(desk: Desk) -> None:
    """Ctrl-C on the follower: exit 130 at once, and the leader goes on to its result."""
    desk.job(STARTED + WAITS + WRITES)
    leader = desk.start("run", "job.yaml")
    driver_runs(desk)
    follower = desk.start("run", "job.yaml")
    follower.wait_for("running elsewhere (pid")
    follower.interrupt()
    said = follower.end()
    assert said.code == ExitCode.DETACHED
    assert said.first.startswith(f"detached: {KEY} runs on: ")
    assert "Traceback" not in said.out + said.err
    desk.go()
    assert leader.end().code == 0
    assert [slot.rows for slot in desk.commits()] == [1234]


def test_cancel_from_another_terminal(desk: Desk) -> None:
    """`sparkonce cancel` asks the owner, waits for the end and exits with 0; the leader exits with 8 and says who it was."""
    desk.job(STARTED + WAITS + WRITES)
    leader = desk.start("run", "job.yaml")
    driver_runs(desk)
    said = desk.here("cancel", KEY, "--reason", "wrong input")
    assert said.code == 0
    assert said.first.startswith(f"cancelled: {KEY}, generation 1, attempt 1")
    ended = leader.end()
    assert ended.code == ExitCode.CANCELLED
    assert "wrong input" in ended.out
    assert desk.commits() == []


def test_cancel_of_a_job_without_an_owner(desk: Desk) -> None:
    """The runner was killed: `sparkonce cancel` takes over, stops the orphan and settles by itself."""
    desk.job(STARTED + WAITS + WRITES)
    leader = desk.start("run", "job.yaml")
    driver_runs(desk)
    leader.process.kill()
    leader.process.wait(PATIENCE)
    doctor = desk.here("doctor")
    assert "runs and nobody owns its key" in doctor.out
    said = desk.here("cancel", "job.yaml", "--json")
    assert (said.code, said.told["phase"]) == (0, "Cancelled")
    assert desk.commits() == []


def test_ctrl_c_while_cancel_waits(desk: Desk) -> None:
    """The wish is recorded: who gave it may go (exit 130)."""
    desk.job()
    with desk.owned_elsewhere() as (_, record, _):
        terminal = desk.start("cancel", KEY)
        terminal.wait_for("running elsewhere")
        terminal.interrupt()
        said = terminal.end()
        assert said.code == ExitCode.DETACHED
        assert "the wish to cancel is recorded" in said.out
        told = desk.here("keys", "show", KEY, "--json").told["record"]
        assert told["stopWanted"]["why"] == "Cancelled"
        assert record.stop_wanted is None  # as it was reserved


@pytest.mark.parametrize("module", ["typer", "pydantic", "sparkonce.cli.interrupt", "sparkonce.store.open", "asyncio"])
def test_ctrl_c_during_an_import(desk: Desk, module: str) -> None:
    """Before a command has begun, Ctrl-C ends it without a word, wherever it is."""
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
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stdout) == (ExitCode.DETACHED, "")
    assert "Traceback" not in done.stderr
    assert desk.attempts() == 0
