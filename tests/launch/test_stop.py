"""Stopping: afterwards nothing of the attempt runs or will run, and nothing else was touched."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.eventually import assert_eventually
from launch.local_scene import FOREVER, PATIENCE, LocalScene
from sparkonce.launch.local import Command, locked, members, place, record_process
from sparkonce.launch.protocol import Phase, StillThere, Stopped


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """An unrelated process, in its own group."""
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def seen_after(answer: Stopped | StillThere) -> Phase:
    assert isinstance(answer, Stopped), answer
    assert answer.seen is not None
    return answer.seen.phase


def test_an_attempt_that_was_never_seen_gets_a_placeholder(scene: LocalScene) -> None:
    """A frozen owner's late create finds the name taken: it starts nothing and is answered that the attempt is being stopped."""
    assert seen_after(scene.stop()) is Phase.UNKNOWN

    late = scene.launch(scene.shell("touch ran"))

    assert (late.stopping, late.nonce, late.driver) == (True, scene.assignment.nonce, None)
    assert scene.running() == []
    assert not (scene.folder / "ran").exists()


def test_a_launcher_that_was_frozen_before_it_spawned_starts_nothing_after_a_stop(scene: LocalScene) -> None:
    """It had created the folder: the wrapper that it then starts sees the mark and ends before the command."""
    lock = place(scene.attempt, scene.assignment, stopped=False)
    assert lock is not None
    assert isinstance(scene.stop(timeout=0.1), StillThere)  # a process that may still spawn holds the lock

    command = Command(["/bin/sh", "-c", "touch ran"], {}, str(scene.folder))
    scene.launcher("true")._spawn(scene.attempt, scene.assignment, command, lock)
    os.close(lock)

    assert_eventually(lambda: not locked(scene.attempt), PATIENCE)
    assert not (scene.folder / "ran").exists()
    assert seen_after(scene.stop()) is Phase.UNKNOWN


def test_a_command_is_asked_once_to_end_and_its_exit_code_is_kept(scene: LocalScene) -> None:
    """A single SIGTERM, so that a clean-up is not disturbed; the exit code is recorded."""
    scene.launch(scene.shell("trap 'echo asked >> asked; sleep 0.3; exit 4' TERM; touch ready; " + FOREVER))
    assert_eventually((scene.folder / "ready").exists, PATIENCE)

    answer = scene.stop()

    assert seen_after(answer) is Phase.FAILED_KNOWN
    assert (scene.attempt / "exit").read_text() == "4\n"
    assert scene.written("asked") == "asked\n"


def test_a_stop_does_not_end_what_records_the_exit_code(scene: LocalScene) -> None:
    """A process that renames the file is one of the attempt's; a stop that comes while it runs does not lose the code."""
    (scene.folder / "bin").mkdir()
    slow = scene.folder / "bin" / "mv"
    slow.write_text(
        f"#!/bin/sh\ncase $1 in */exit.new) touch '{scene.folder}/renames'; sleep 1;; esac\nexec /bin/mv \"$@\"\n"
    )
    slow.chmod(0o755)
    scene.launch(scene.shell("exit 4", PATH=f"{slow.parent}:{os.environ['PATH']}"))
    assert_eventually((scene.folder / "renames").exists, PATIENCE)
    assert seen_after(scene.stop()) is Phase.FAILED_KNOWN
    assert (scene.attempt / "exit").read_text() == "4\n"


def test_a_command_that_was_told_to_end_and_exits_with_code_0_proves_nothing(scene: LocalScene) -> None:
    """The command was interrupted, so its exit code does not show how far it got."""
    scene.launch(scene.shell(f"trap 'exit 0' TERM; echo > ready; {FOREVER}"))
    assert_eventually(lambda: scene.written("ready"), PATIENCE)
    answer = scene.stop()
    assert isinstance(answer, Stopped) and answer.seen is not None
    assert (answer.seen.phase, answer.seen.exit_code) == (Phase.UNKNOWN, None)
    assert "told to stop" in answer.seen.message


def test_a_command_that_had_ended_before_it_was_stopped_has_succeeded(scene: LocalScene) -> None:
    """Its exit code is from before the stop."""
    scene.launch(scene.shell("exit 0"))
    assert_eventually(scene.ended, PATIENCE)
    assert seen_after(scene.stop()) is Phase.SUCCEEDED


def test_a_command_that_does_not_listen_is_killed(scene: LocalScene) -> None:
    """SIGKILL goes to the whole group after half of the timeout."""
    scene.launch(scene.shell("trap '' TERM; touch ready; " + FOREVER))
    assert_eventually((scene.folder / "ready").exists, PATIENCE)

    assert seen_after(scene.stop(timeout=2.0)) is Phase.UNKNOWN
    assert scene.running() == []


def test_a_stopped_process_is_ended(scene: LocalScene) -> None:
    """All of its processes have got SIGSTOP: they are continued so that they receive the signal."""
    scene.launch(scene.shell("touch ready; " + FOREVER))
    assert_eventually((scene.folder / "ready").exists, PATIENCE)
    for pid in scene.running():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)

    assert seen_after(scene.stop()) is Phase.FAILED_KNOWN
    assert (scene.attempt / "exit").read_text() == f"{128 + signal.SIGTERM}\n"
    assert scene.running() == []


def test_what_does_not_carry_the_nonce_is_never_signalled(scene: LocalScene) -> None:
    """A process in the attempt's group that dropped the nonce is not known to be ours, and lives on."""
    script = """
import os, subprocess, time
from pathlib import Path
other = {name: value for name, value in os.environ.items() if name != "SPARKONCE_NONCE"}
child = subprocess.Popen(["sleep", "60"], env=other)
Path("other.new").write_text(str(child.pid))
Path("other.new").rename("other")
time.sleep(60)
"""
    scene.launch(scene.python(script))
    other = int(assert_eventually(lambda: scene.written("other"), PATIENCE))
    try:
        assert isinstance(scene.stop(), Stopped)
        assert scene.running() == []
        os.kill(other, 0)
    finally:
        os.kill(other, signal.SIGKILL)


def test_a_pid_that_was_reused_hits_nobody(scene: LocalScene, bystander: subprocess.Popen[bytes]) -> None:
    """The recorded leader's pid now belongs to another process: no member is found, and the attempt counts as stopped."""
    lock = place(scene.attempt, scene.assignment, stopped=False)
    assert lock is not None
    os.close(lock)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    (scene.attempt / "process").write_text(Path(f"/proc/{bystander.pid}/stat").read_text() + boot)

    assert members(scene.attempt, scene.assignment.nonce) == []
    assert isinstance(scene.stop(), Stopped)
    assert bystander.poll() is None


def test_a_process_of_another_boot_is_never_signalled(scene: LocalScene) -> None:
    """Pids of another boot mean nothing, even if everything else matches."""
    scene.launch(scene.shell(FOREVER))
    assert_eventually(lambda: members(scene.attempt, scene.assignment.nonce), PATIENCE)
    recorded = (scene.attempt / "process").read_text()
    (scene.attempt / "process").write_text(recorded.splitlines()[0] + "\n00000000-0000-0000-0000-000000000000\n")

    assert members(scene.attempt, scene.assignment.nonce) == []
    assert isinstance(scene.stop(timeout=0.3), StillThere)
    assert len(scene.running()) > 0


def test_a_process_that_is_owner_and_driver_at_once_is_not_ended(scene: LocalScene) -> None:
    """The process recorded for a notebook's attempt is the notebook: a stop waits for its lock and never signals it."""
    lock = place(scene.attempt, scene.assignment, stopped=False)
    assert lock is not None
    record_process(scene.attempt)
    try:
        assert isinstance(scene.stop(timeout=0.1), StillThere)
    finally:
        os.close(lock)
    assert isinstance(scene.stop(), Stopped)


def test_a_job_may_be_stopped_by_another_process_than_its_launcher(scene: LocalScene) -> None:
    """The launcher may be dead: any process can end the command."""
    ready = scene.folder / "ready"
    code = f"import pathlib, time; pathlib.Path({str(ready)!r}).touch(); time.sleep(60)"  # the command to stop
    scene.launch(scene.launcher(sys.executable, "-c", code))
    assert_eventually(ready.exists, PATIENCE)  # stopped before its command began, it would have no exit code
    assert isinstance(scene.stop(), Stopped)
    assert (scene.attempt / "exit").read_text() == f"{128 + signal.SIGTERM}\n"
