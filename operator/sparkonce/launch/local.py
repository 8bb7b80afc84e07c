"""Applications on this machine: `spark-submit --master local[*]` as a child in its own process group, one folder per attempt.

    <attempts>/<application name>/
        application.json   its creator's uid and nonce. One rename creates the complete folder: create-if-absent
        lock               liveness: a shared lock of the launcher until it has spawned, the wrapper, the JVM and the Python driver
        stopped            if it exists, nothing may start here
        interrupted        the command exited 0 after it was told to stop, which proves nothing
        process            pid, start time and boot id of the wrapper
        exit               exit code, written by the wrapper, so that it survives the launcher
        stdout, stderr

The wrapper survives a SIGTERM to its group (`trap`), so that it can record the exit code of its child.

Liveness is an OS file lock, not a clock or a pid, because pids are reused. If no process holds the lock, no process of the attempt runs and
none will start: a launcher that may still spawn holds it, too. The driver takes its own lock in `current()`, because a JVM closes inherited
descriptors before it starts Python. A frozen launcher also holds the lock; the attempt then counts as alive until its heartbeat is stale.

No process is killed by its pid alone: only members of the recorded group with this attempt's nonce in their environment. Linux only (reads
/proc).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sparkonce import failpoints, settings
from sparkonce.errors import LaunchRefused, LaunchUnavailable
from sparkonce.launch.driver_log import READ, explained, find
from sparkonce.launch.protocol import ApplicationState, Phase, StillThere, Stopped
from sparkonce.model import masking
from sparkonce.model.application import utf8
from sparkonce.model.record import ENVIRONMENT, FOLDER_ENVIRONMENT, NONCE_ENVIRONMENT, Application, Assignment

TERM_SHARE = 0.5
"""Share of the stop timeout that SIGTERM is given before SIGKILL."""
_ABSENT = (FileNotFoundError, NotADirectoryError)
"""NotADirectoryError: a file has the attempt's name, which is as foreign as a folder of another creator."""
POLL = 0.02
"""Seconds between checks while an attempt is being stopped."""

_CHILDREN: list[subprocess.Popen[bytes]] = []
"""Children of this process, referenced so that Popen does not warn about one that outlives its launcher."""

_INTERRUPTED = "its driver was told to stop before it exited with code 0"
_NEVER_RAN = "its launcher ended before it had started anything"
_WRAPPER = """
d=$1; shift
trap : TERM
[ -e "$d/stopped" ] && exit 75
{ cat /proc/$$/stat; cat /proc/sys/kernel/random/boot_id; } > "$d/process.new" && mv "$d/process.new" "$d/process" || exit 75
"$@" > "$d/stdout" 2> "$d/stderr"
code=$?
trap '' TERM # also for mv: a stop ends each process of the attempt, and the code would be lost
[ $code = 0 ] && [ -e "$d/stopped" ] && : > "$d/interrupted"
echo $code > "$d/exit.new" && mv "$d/exit.new" "$d/exit"
exit $code
"""


@dataclass(frozen=True)
class Command:
    """The process to run for an attempt."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    """Working directory: the job file's folder, so that relative inputs are relative to it."""


class LocalLauncher:
    """A `Launcher` on this machine. command_for: builds an attempt's process. wait: awaited between checks while stopping."""

    kind = "local"

    def __init__(
        self,
        attempts: Path,
        command_for: Callable[[Assignment], Command],
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.attempts, self.command_for, self.wait = attempts, command_for, wait

    async def launch(self, assignment: Assignment) -> ApplicationState:
        folder = self.attempts / assignment.name
        command = self.command_for(assignment)
        if not Path(command.folder).is_dir():
            raise LaunchUnavailable(
                f"the folder {command.folder} of {assignment.key} does not exist; restore it and send the job again"
            )
        try:
            lock = place(folder, assignment, stopped=False)
            if lock is None:
                return self._state(folder, assignment)
            try:
                failpoints.hit("launch.local.placed")
                self._spawn(folder, assignment, command, lock)
                failpoints.hit("launch.local.spawned")
            finally:
                os.close(lock)
        except OSError as problem:
            if problem.errno == errno.E2BIG:
                raise LaunchRefused(
                    f"the spec of {assignment.key} exceeds the size limit of process arguments; shorten its arguments and settings"
                ) from None
            raise LaunchUnavailable(
                f"the attempt cannot be started in {folder}: {problem.strerror}; fix that and send the job again"
            ) from None
        return self._state(folder, assignment)

    def _spawn(self, folder: Path, assignment: Assignment, command: Command, lock: int) -> None:
        inherited = {name: value for name, value in os.environ.items() if not utf8.about_text(name)}
        environment = {**inherited, **command.environment}
        environment[ENVIRONMENT] = assignment.model_dump_json(by_alias=True, exclude_none=True)
        environment[FOLDER_ENVIRONMENT] = str(folder)
        environment[NONCE_ENVIRONMENT] = assignment.nonce
        child = subprocess.Popen(
            [_utf8(each) for each in ("/bin/sh", "-c", _WRAPPER, "sparkonce-attempt", str(folder), *command.argv)],
            cwd=command.folder,
            env={_utf8(name): _utf8(value) for name, value in environment.items()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(lock,),
            start_new_session=True,
        )
        _CHILDREN.append(child)

    async def observe(self, assignment: Assignment, noted: Application | None = None) -> ApplicationState | None:  # noqa: ARG002 - the folder records the process
        _reap()
        folder = self.attempts / assignment.name
        try:
            return self._state(folder, assignment) if folder.exists() else None
        except OSError as problem:
            raise LaunchUnavailable(f"{folder} cannot be read: {problem.strerror}") from None

    async def stop(
        self, assignment: Assignment, *, timeout: float, proof: bool = False, noted: Application | None = None
    ) -> Stopped | StillThere:
        del proof, noted  # the folder always tells
        folder = self.attempts / assignment.name
        try:
            lock = place(folder, assignment, stopped=True)
            if lock is not None:
                os.close(lock)
            elif _identity(folder)[0] != assignment.nonce:
                return Stopped(
                    self._state(folder, assignment)
                )  # another creator's: not stopped; the taken name keeps ours from starting
            (folder / "stopped").touch()
            asked = time.monotonic()
            terminated: set[int] = set()
            # Check the lock first: its holder may still start a member, which the check after it then finds.
            while locked(folder) or members(folder, assignment.nonce):
                waited = time.monotonic() - asked
                if waited > timeout:
                    return StillThere(f"processes of {folder.name} are still there after {timeout:.0f} s")
                end(members(folder, assignment.nonce), terminated, at_once=waited >= timeout * TERM_SHARE)
                await self.wait(POLL)
                _reap()
            return Stopped(self._state(folder, assignment))
        except OSError as problem:
            raise LaunchUnavailable(f"{folder} cannot be stopped: {problem.strerror}") from None

    def _state(self, folder: Path, assignment: Assignment) -> ApplicationState:
        nonce, uid = _identity(folder)
        process = _process(folder)
        # A launcher that froze after it spawned holds the lock, too: then the recorded process decides whether the attempt runs.
        alive = locked(folder) and (process is None or _runs(process) or bool(members(folder, nonce)))
        code = _exit_code(folder)  # read after the lock: a process that had ended by then has written it
        stopping = (folder / "stopped").exists()
        never_ran, interrupted = not alive and _never_ran(folder), False
        if alive:
            phase = Phase.FINISHING if code is not None else Phase.RUNNING if process else _starting(folder)
        elif code is None or (interrupted := (folder / "interrupted").exists()):
            phase = Phase.UNKNOWN
        else:
            phase = Phase.SUCCEEDED if code == 0 else Phase.FAILED_KNOWN
        state = ApplicationState(
            name=folder.name,
            uid=uid,
            nonce=nonce,
            phase=phase,
            driver=process,
            exit_code=None if interrupted else code,
            stopping=stopping,
            never_ran=never_ran,
            message=_NEVER_RAN
            if never_ran
            else _INTERRUPTED
            if interrupted
            else f"the driver ended with exit code {code} (stdout and stderr are in {folder})"
            if phase is Phase.FAILED_KNOWN
            else "",
            detail={"folder": str(folder)},
        )
        if phase not in (Phase.FAILED_KNOWN, Phase.UNKNOWN):
            return state
        # spark-submit writes both streams of a Python driver to stdout, and Java's exceptions to stderr
        hidden = masking.values_of(assignment.spec.job)
        streams = (masking.redacted(_tail(folder / name), hidden) for name in ("stdout", "stderr"))
        found = find(*streams, exit_code=code)
        if phase is Phase.UNKNOWN:  # how it ended is not known, so an exception in its log may not be why
            return replace(state, log_tail=found.excerpt)
        return explained(state, found, attempt=assignment.attempt)


def _utf8(text: str) -> bytes:
    """The bytes of an argument or variable: UTF-8 also where this process's own encoding is another one."""
    return text.encode("utf-8", "surrogateescape")


def _reap() -> None:
    """Reaps ended children; their outcome is read from the folder."""
    _CHILDREN[:] = [child for child in _CHILDREN if child.poll() is None]


def place(folder: Path, assignment: Assignment, *, stopped: bool) -> int | None:
    """Creates the attempt's folder atomically; returns a descriptor that holds its lock, or None if the folder existed."""
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = folder.parent / f".{folder.name}-{uuid.uuid4().hex}"
    try:
        lock = _draft(draft, assignment, stopped=stopped)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    try:
        draft.rename(folder)  # fails if the folder exists and is not empty: create-if-absent
    except OSError:
        os.close(lock)
        shutil.rmtree(draft, ignore_errors=True)
        if not folder.exists():
            raise
        return None
    return lock


def _draft(draft: Path, assignment: Assignment, *, stopped: bool) -> int:
    draft.mkdir(mode=0o700)
    identity = {
        "uid": uuid.uuid4().hex,
        "nonce": assignment.nonce,
        "install": assignment.install,
        "key": assignment.key,
        "placeholder": stopped,
        "placedAt": time.monotonic(),
        "boot": _boot_id(),
    }
    (draft / "application.json").write_text(json.dumps(identity))
    if stopped:
        (draft / "stopped").touch()
    lock = os.open(draft / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH)
    return lock


def locked(folder: Path) -> bool:
    """Whether a process that belongs to the attempt, or may still start it, is alive."""
    try:
        probe = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    except _ABSENT:
        return False
    try:
        fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(probe)
    return False


def members(folder: Path, nonce: str) -> list[int]:
    """Pids in the recorded group with the attempt's nonce in their environment; empty if it was recorded before the last boot."""
    process = _process(folder)
    if process is None:
        return []
    leader, _, boot = process.split(":", 2)
    if boot != _boot_id():
        return []
    marker = f"{NONCE_ENVIRONMENT}={nonce}".encode()
    return [pid for pid, group in _processes() if group == int(leader) and marker in _environment(pid)]


def end(pids: Sequence[int], asked: set[int], *, at_once: bool) -> None:
    """Sends SIGTERM once to each process, so that its cleanup is not interrupted; SIGKILL if `at_once`."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            if at_once:
                os.kill(pid, signal.SIGKILL)
            elif pid not in asked:
                os.kill(pid, signal.SIGTERM)
                os.kill(pid, signal.SIGCONT)  # a stopped process would never see it
                asked.add(pid)


def record_process(folder: Path) -> None:
    """Records this process as the attempt's (a notebook is owner and driver at once)."""
    (folder / "process.new").write_text(f"{Path('/proc/self/stat').read_text()}{_boot_id()}\n")
    (folder / "process.new").rename(folder / "process")


def record_exit(folder: Path, code: int) -> None:
    (folder / "exit.new").write_text(f"{code}\n")
    (folder / "exit.new").rename(folder / "exit")


def _identity(folder: Path) -> tuple[str, str]:
    try:
        identity = json.loads((folder / "application.json").read_text())
        return str(identity["nonce"]), str(identity["uid"])
    except (*_ABSENT, ValueError, KeyError, TypeError):
        return "", "foreign"  # another creator's folder has our name


def _never_ran(folder: Path) -> bool:
    """Whether nothing ever ran in this folder, whose lock is free: the wrapper records itself before it starts anything, and a process
    that may start it holds the lock. Proves nothing after a reboot, which may have lost the last writes, nor for a placeholder, which
    shows only that the name was free when it was placed."""
    try:
        identity = json.loads((folder / "application.json").read_text())
        launched = identity["placeholder"] is False and identity["boot"] == _boot_id()
    except (*_ABSENT, ValueError, KeyError, TypeError):
        return False  # an older layout, or another creator's folder
    return launched and not (folder / "process").exists() and not (folder / "exit").exists()


def _starting(folder: Path) -> Phase:
    """Starting, or Unknown if the launcher is frozen. It spawns within milliseconds of creating the folder; if it has not within the life
    of a lease, the attempt is lost, however long the lock is held, because no other process may start it."""
    try:
        identity = json.loads((folder / "application.json").read_text())
        waited = time.monotonic() - float(identity["placedAt"])
        frozen = waited > settings.lease_seconds() and identity["boot"] == _boot_id()
    except (*_ABSENT, ValueError, KeyError, TypeError):
        frozen = False  # an older layout: startTimeoutSeconds bounds it
    return Phase.UNKNOWN if frozen else Phase.STARTING


def _exit_code(folder: Path) -> int | None:
    try:
        return int((folder / "exit").read_text())
    except (*_ABSENT, ValueError):
        return None


def _process(folder: Path) -> str | None:
    """pid:start time:boot id of the wrapper."""
    try:
        stat, boot = (folder / "process").read_text().splitlines()[:2]
        fields = stat.rsplit(")", 1)[1].split()
        return f"{stat.split()[0]}:{fields[19]}:{boot}"
    except (*_ABSENT, ValueError, IndexError):
        return None


def _runs(process: str) -> bool:
    """Whether this process is alive, and not another one with its pid."""
    pid, started, boot = process.split(":")
    try:
        fields = Path("/proc", pid, "stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return False
    return fields[19] == started and fields[0] != "Z" and boot == _boot_id()


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _processes() -> Iterator[tuple[int, int]]:
    """(pid, process group) of every running process."""
    for entry in (path.name for path in Path("/proc").iterdir()):
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_text()
            except OSError:
                continue  # it has ended since
            yield int(entry), int(stat.rsplit(")", 1)[1].split()[2])


def _environment(pid: int) -> list[bytes]:
    try:
        return Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - READ))
            return log.read().decode(errors="replace")
    except OSError:
        return ""
