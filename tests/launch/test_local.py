"""Applications on this machine: created once, and alive as long as a lock is held, whichever process dies."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.eventually import assert_eventually
from launch.local_scene import PATIENCE, UNTIL_GO, LocalScene
from sparkonce.errors import LaunchRefused, LaunchUnavailable
from sparkonce.launch.local import Command, LocalLauncher, locked, place
from sparkonce.launch.protocol import Phase

RACE = """
import os, sys
from pathlib import Path
from sparkonce.launch.local import place
from sparkonce.model.record import Assignment
assignment = Assignment.model_validate_json(sys.stdin.read())
for round in range(20):
    gate, go = os.pipe()
    racers = []
    for racer in range(8):
        if (pid := os.fork()) == 0:
            os.close(go)
            os.read(gate, 1)
            mine = assignment.model_copy(update={"nonce": str(racer)})
            os._exit(place(Path(sys.argv[1], str(round)), mine, stopped=False) is not None)
        racers.append(pid)
    os.close(go)
    print(sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in racers))
    os.close(gate)
"""

JVM = """
import os, subprocess, sys
from pathlib import Path
driver = subprocess.Popen([sys.executable, "-c", {driver!r}])  # descriptors are closed on the way, as a JVM does
Path("jvm.new").write_text(str(os.getpid()))
Path("jvm.new").rename("jvm")
driver.wait()
"""
DRIVER = """
import os, time
from pathlib import Path
from sparkonce.driver.current import assignment_of, join
join(Path(os.environ["SPARKONCE_ATTEMPT_FOLDER"]), assignment_of(os.environ["SPARKONCE_ASSIGNMENT"]))
Path("driver.new").write_text(str(os.getpid()))
Path("driver.new").rename("driver")
while True:
    time.sleep(1)
"""
BEFORE_CURRENT = DRIVER.replace("join(Path", "print(Path")


def test_of_eight_processes_that_create_an_attempt_one_does(tmp_path: Path, scene: LocalScene) -> None:
    """In each of 20 rounds one process creates the attempt's folder, and no loser leaves a draft."""
    text = scene.assignment.model_dump_json(by_alias=True, exclude_none=True)
    command = [sys.executable, "-c", RACE, str(tmp_path / "race")]
    said = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout

    assert said.split() == ["1"] * 20
    assert sorted(path.name for path in (tmp_path / "race").iterdir()) == sorted(map(str, range(20)))


def test_an_attempt_is_alive_until_its_command_ends(scene: LocalScene) -> None:
    """It is Running while the command runs; then it has the exit code and the place of its logs, and the lock is free."""
    scene.launch(scene.shell(f"echo out; echo err >&2; {UNTIL_GO}; exit 3"))
    assert_eventually(lambda: scene.seen().phase is Phase.RUNNING, PATIENCE)
    running = scene.seen()
    assert running.nonce == scene.assignment.nonce
    assert locked(scene.attempt)

    (scene.folder / "go").touch()
    ended = assert_eventually(scene.ended, PATIENCE)

    assert (ended.phase, ended.exit_code, ended.driver, ended.uid) == (
        Phase.FAILED_KNOWN,
        3,
        running.driver,
        running.uid,
    )
    assert not locked(scene.attempt)
    assert ((scene.attempt / "stdout").read_text(), (scene.attempt / "stderr").read_text()) == ("out\n", "err\n")
    assert ended.log_tail == "out"
    assert str(scene.attempt) in ended.message


def test_a_command_that_ends_well_succeeded(scene: LocalScene) -> None:
    """Exit code 0."""
    scene.launch(scene.shell("exit 0"))
    ended = assert_eventually(scene.ended, PATIENCE)
    assert (ended.phase, ended.exit_code) == (Phase.SUCCEEDED, 0)


def test_a_command_outlives_its_launcher_and_its_exit_code_is_known(scene: LocalScene) -> None:
    """The launcher is killed right after the launch: the command continues in its own session, and its exit code is recorded."""
    script = """
import asyncio, os, signal, sys
from pathlib import Path
from sparkonce.launch.local import Command, LocalLauncher
from sparkonce.model.record import Assignment
assignment = Assignment.model_validate_json(sys.stdin.read())
command = Command(["/bin/sh", "-c", sys.argv[2]], {}, sys.argv[1])
asyncio.run(LocalLauncher(Path(sys.argv[1], "attempts"), lambda _: command).launch(assignment))
os.killpg(0, signal.SIGKILL)
"""
    text = scene.assignment.model_dump_json(by_alias=True, exclude_none=True)
    command = [sys.executable, "-c", script, str(scene.folder), f"{UNTIL_GO}; exit 7"]
    done = subprocess.run(command, input=text, text=True, check=False, start_new_session=True)

    assert done.returncode == -signal.SIGKILL
    assert locked(scene.attempt)
    (scene.folder / "go").touch()
    ended = assert_eventually(scene.ended, PATIENCE)
    assert ended.exit_code == 7


def test_while_the_driver_lives_the_attempt_has_not_ended(scene: LocalScene) -> None:
    """The JVM is killed and its exit code is recorded: the attempt is Finishing until the Python driver is gone, too."""
    scene.launch(scene.python(JVM.format(driver=DRIVER)))
    assert_eventually(lambda: scene.written("driver") and scene.written("jvm"), PATIENCE)

    os.kill(int(scene.written("jvm")), signal.SIGKILL)
    assert_eventually((scene.attempt / "exit").exists, PATIENCE)
    seen = scene.seen()
    assert (seen.phase, seen.exit_code) == (Phase.FINISHING, 128 + signal.SIGKILL)

    os.kill(int(scene.written("driver")), signal.SIGKILL)
    ended = assert_eventually(scene.ended, PATIENCE)
    assert ended.phase is Phase.FAILED_KNOWN


def test_a_driver_that_has_no_lock_yet_is_stopped_too(scene: LocalScene) -> None:
    """The JVM is killed before the driver calls `current()`, which an opaque job never does: after a stop the driver is gone."""
    scene.launch(scene.python(JVM.format(driver=BEFORE_CURRENT)))
    assert_eventually(lambda: scene.written("driver") and scene.written("jvm"), PATIENCE)
    os.kill(int(scene.written("jvm")), signal.SIGKILL)
    assert_eventually(lambda: not locked(scene.attempt), PATIENCE)
    assert scene.running() == [int(scene.written("driver"))]

    scene.stop()

    assert scene.running() == []


def test_two_launchers_at_once_start_one_command(scene: LocalScene) -> None:
    """Both get the same application, and the command ran once."""
    launchers = [scene.shell(f"echo run >> runs; {UNTIL_GO}") for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        seen = list(pool.map(scene.launch, launchers))

    assert seen[0].uid == seen[1].uid
    (scene.folder / "go").touch()
    assert_eventually(scene.ended, PATIENCE)
    assert scene.written("runs") == "run\n"


def test_a_launch_that_is_repeated_starts_nothing(scene: LocalScene) -> None:
    """After a lost reply the same call finds the application."""
    launcher = scene.shell("echo run >> runs")
    first = scene.launch(launcher)
    assert_eventually(scene.ended, PATIENCE)
    assert scene.launch(launcher).uid == first.uid
    assert scene.written("runs") == "run\n"


def test_a_launcher_that_died_before_it_spawned_leaves_an_attempt_that_is_unknown(scene: LocalScene) -> None:
    """The folder exists and its lock is free: nothing of the attempt runs or will run."""
    lock = place(scene.attempt, scene.assignment, stopped=False)
    assert lock is not None
    starting = scene.seen()
    os.close(lock)
    gone = scene.seen()

    assert (starting.phase, gone.phase) == (Phase.STARTING, Phase.UNKNOWN)


def test_nothing_under_the_name_is_none(scene: LocalScene) -> None:
    """The folder was looked for and does not exist."""
    assert scene.look() is None


def test_a_folder_that_cannot_be_looked_at_is_not_absent(scene: LocalScene) -> None:
    """An error of the file system is unknown, never absence."""
    looping = LocalLauncher(scene.folder / "loop", lambda _: Command([], {}, "."))
    (scene.folder / "loop").mkdir()
    (scene.folder / "loop" / scene.assignment.name).mkdir()
    (scene.folder / "loop" / scene.assignment.name / "lock").symlink_to("lock")
    with pytest.raises(LaunchUnavailable, match="cannot be read"):
        asyncio.run(looping.observe(scene.assignment))


def test_a_name_that_somebody_else_has_taken_is_told_by_its_nonce(scene: LocalScene) -> None:
    """Another ledger's attempt has our name: a launch starts nothing and returns its nonce; a stop leaves it alone."""
    other = scene.assignment.model_copy(update={"nonce": "another ledger's"})
    lock = place(scene.attempt, other, stopped=False)
    assert lock is not None
    try:
        assert scene.launch(scene.shell("touch ran")).nonce == "another ledger's"
        stopped = scene.stop(timeout=0.0)  # does not wait for the lock, which the other process holds
    finally:
        os.close(lock)
    assert getattr(stopped, "seen").nonce == "another ledger's"  # noqa: B009 - StillThere has none, and would fail here
    assert not (scene.attempt / "stopped").exists()
    assert not (scene.folder / "ran").exists()


@pytest.mark.parametrize("what", ["a file", "a folder"])
def test_what_is_not_an_attempt_is_foreign(scene: LocalScene, what: str) -> None:
    """A foreign file or folder under our name is observed as an application without a nonce, and is never touched."""
    scene.attempt.parent.mkdir()
    if what == "a file":
        scene.attempt.write_text("mine")
    else:
        scene.attempt.mkdir()
        (scene.attempt / "mine").touch()

    seen = scene.launch(scene.shell("touch ran"))
    scene.stop()

    assert (seen.nonce, seen.uid) == ("", "foreign")
    assert not (scene.folder / "ran").exists()
    assert [p.name for p in scene.attempt.parent.iterdir()] == [scene.assignment.name]
    assert scene.attempt.is_file() or [p.name for p in scene.attempt.iterdir()] == ["mine"]


def test_a_working_folder_that_is_missing_costs_no_attempt(scene: LocalScene) -> None:
    """LaunchUnavailable names the folder before anything is created; once the folder exists, the same attempt starts."""
    command = Command(["/bin/true"], {}, str(scene.folder / "away"))
    launcher = LocalLauncher(scene.folder / "attempts", lambda _: command)
    with pytest.raises(LaunchUnavailable, match=r"the folder .*/away of load-may does not exist"):
        scene.launch(launcher)
    assert scene.look() is None

    (scene.folder / "away").mkdir()
    scene.launch(launcher)
    assert_eventually(scene.ended, PATIENCE)


def test_attempts_that_cannot_be_created_are_unavailable(scene: LocalScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is one sentence with the place; an unfinished draft is removed."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(LaunchUnavailable, match=r"cannot be started in .*: No space left on device"):
        scene.launch(scene.shell("true"))
    assert list(scene.attempt.parent.iterdir()) == []


def test_a_spec_that_no_process_can_be_told_is_refused(scene: LocalScene) -> None:
    """A command longer than the system allows is refused for good, in a sentence."""
    with pytest.raises(LaunchRefused, match="exceeds the size limit of process arguments"):
        scene.launch(scene.launcher("true", "x" * 200_000))


def test_the_command_is_told_its_attempt_and_its_own_environment(scene: LocalScene) -> None:
    """Assignment, folder and nonce are set in its environment and win over the job's variables of the same names."""
    scene.launch(
        scene.shell('echo "$SPARKONCE_NONCE $SPARKONCE_ATTEMPT_FOLDER $TZ" > told', TZ="UTC", SPARKONCE_NONCE="x")
    )
    assert_eventually(scene.ended, PATIENCE)
    assert scene.written("told").split() == [scene.assignment.nonce, str(scene.attempt), "UTC"]


def test_the_senders_locale_is_not_the_jobs(scene: LocalScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables about how the sender's programs read and write text do not reach the job; its own variables do, and arguments are UTF-8."""
    for name, value in {"LC_ALL": "C", "LC_TIME": "de_DE", "LANG": "C", "PYTHONIOENCODING": "latin-1"}.items():
        monkeypatch.setenv(name, value)
    script = 'printf "%s" "$LC_ALL|$LC_TIME|$LANG|$PYTHONIOENCODING|$CITY|$1" > told'
    scene.launch(scene.launcher("/bin/sh", "-c", script, "sh", "Łódź", LC_ALL="C.UTF-8", CITY="東京"))
    assert_eventually(scene.ended, PATIENCE)
    assert (scene.folder / "told").read_bytes().decode("utf-8") == "C.UTF-8||||東京|Łódź"


def test_a_launcher_that_froze_before_it_started_anything_is_not_waited_for(
    scene: LocalScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is held and no process is recorded: the attempt is Starting, and lost after the life of a lease; a stop then marks it."""
    lock = place(scene.attempt, scene.assignment, stopped=False)
    assert lock is not None
    try:
        assert scene.seen().phase is Phase.STARTING
        monkeypatch.setenv("SPARKONCE_LEASE_SECONDS", "0.01")

        assert_eventually(lambda: scene.seen().phase is Phase.UNKNOWN, timeout=PATIENCE)
        asyncio.run(scene.launcher("true").stop(scene.assignment, timeout=0.1))
        assert scene.seen().stopping
    finally:
        os.close(lock)


def test_a_launcher_that_froze_after_it_spawned_does_not_keep_its_attempt_alive(scene: LocalScene) -> None:
    """The lock is held, but every recorded process was killed: the attempt is lost, not running."""
    launcher = scene.shell(UNTIL_GO)
    scene.launch(launcher)
    assert_eventually(lambda: scene.seen().phase is Phase.RUNNING, timeout=PATIENCE)
    frozen = os.open(scene.attempt / "lock", os.O_RDWR)
    try:
        fcntl.flock(frozen, fcntl.LOCK_SH)

        def lost() -> bool:
            scene.clear()  # also kills processes that were spawned in between
            return scene.seen().phase is Phase.UNKNOWN

        assert_eventually(lost, timeout=PATIENCE)
        assert locked(scene.attempt)
    finally:
        os.close(frozen)
