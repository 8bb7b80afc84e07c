"""Applications on this machine: `spark-submit --master local[*]` as a child in its own process group, one folder per attempt.

    <attempts>/<application name>/
        application.json   who created it: uid, nonce. The folder appears whole, by one rename: create-if-absent
        lock               liveness. Shared lock: the launcher until it has spawned, the wrapper and the JVM, the Python driver
        stopped            nothing may start here any more
        process            of the wrapper: pid, start time, boot id
        exit               exit code, written by the wrapper, so that it outlives the launcher
        stdout, stderr

The wrapper outlives a SIGTERM of its group (`trap`), so that the exit code of what it ran is known.

Liveness is an OS file lock, no clock and no pid: a pid is reused, a lock is not. Nobody holds it = nothing of the attempt runs, and
nothing of it will: who may still spawn holds it too. The driver takes a lock of its own in `current()`, because a JVM closes the
descriptors it inherited before it starts Python. A frozen launcher holds the lock as well; then the attempt counts as there until its
heartbeat is stale.

It refuses to end a process by its pid alone: only members of the recorded group that carry this attempt's nonce in their environment.
Linux (reads /proc).
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
from dataclasses import dataclass
from pathlib import Path

from sparkonce import failpoints, settings
from sparkonce.errors import LaunchRefused, LaunchUnavailable
from sparkonce.launch.protocol import Phase, Seen, StillThere, Stopped
from sparkonce.model.assignment import ENVIRONMENT, FOLDER_ENVIRONMENT, NONCE_ENVIRONMENT, Assignment
from sparkonce.model.record import Application

LOG_TAIL = 1024
"""Bytes of the log that an observation carries: of stdout, where spark-submit puts both streams of a Python driver, else of stderr."""
TERM_SHARE = 0.5
"""Of the stop timeout is left for SIGTERM; then SIGKILL."""
_ABSENT = (FileNotFoundError, NotADirectoryError)
"""Also where a file has the attempt's name: it is foreign, as a folder that we did not make would be."""
POLL = 0.02
"""Seconds between two looks while something is being stopped."""

_CHILDREN: list[subprocess.Popen[bytes]] = []
"""Of this process. They outlive the launcher that started them, so nothing may complain that one still runs."""

_WRAPPER = """
d=$1; shift
trap : TERM
[ -e "$d/stopped" ] && exit 75
{ cat /proc/$$/stat; cat /proc/sys/kernel/random/boot_id; } > "$d/process.new" && mv "$d/process.new" "$d/process" || exit 75
"$@" > "$d/stdout" 2> "$d/stderr"
code=$?
echo $code > "$d/exit.new" && mv "$d/exit.new" "$d/exit"
exit $code
"""


@dataclass(frozen=True)
class Command:
    """What to run for an attempt."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    """Working folder: the job file's, so that relative inputs are relative to it."""


class LocalLauncher:
    """See the module. `command_for` turns an assignment into a process; `wait` is awaited between looks while stopping."""

    kind = "local"

    def __init__(
        self,
        attempts: Path,
        command_for: Callable[[Assignment], Command],
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.attempts, self.command_for, self.wait = attempts, command_for, wait

    async def launch(self, assignment: Assignment) -> Seen:
        folder = self.attempts / assignment.name
        command = self.command_for(assignment)
        if not Path(command.folder).is_dir():
            raise LaunchUnavailable(
                f"the folder {command.folder} of {assignment.key} is not there; put it back and send the job again"
            )
        try:
            lock = place(folder, assignment, stopped=False)
            if lock is None:
                return self._look(folder)
            try:
                failpoints.hit("launch.local.placed")
                self._spawn(folder, assignment, command, lock)
                failpoints.hit("launch.local.spawned")
            finally:
                os.close(lock)
        except OSError as problem:
            if problem.errno == errno.E2BIG:
                raise LaunchRefused(
                    f"the spec of {assignment.key} is longer than what a process can be told; shorten its arguments and settings"
                ) from None
            raise LaunchUnavailable(
                f"the attempt cannot be started in {folder}: {problem.strerror}; mend that and send the job again"
            ) from None
        return self._look(folder)

    def _spawn(self, folder: Path, assignment: Assignment, command: Command, lock: int) -> None:
        environment = {**os.environ, **command.environment}
        environment[ENVIRONMENT] = assignment.model_dump_json(by_alias=True, exclude_none=True)
        environment[FOLDER_ENVIRONMENT] = str(folder)
        environment[NONCE_ENVIRONMENT] = assignment.nonce
        child = subprocess.Popen(
            ["/bin/sh", "-c", _WRAPPER, "sparkonce-attempt", str(folder), *command.argv],
            cwd=command.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(lock,),
            start_new_session=True,
        )
        _CHILDREN.append(child)

    async def observe(self, assignment: Assignment, noted: Application | None = None) -> Seen | None:  # noqa: ARG002 - the folder says it
        _collect()
        folder = self.attempts / assignment.name
        try:
            return self._look(folder) if folder.exists() else None
        except OSError as problem:
            raise LaunchUnavailable(f"{folder} cannot be read: {problem.strerror}") from None

    async def stop(self, assignment: Assignment, *, timeout: float) -> Stopped | StillThere:
        folder = self.attempts / assignment.name
        try:
            lock = place(folder, assignment, stopped=True)
            if lock is not None:
                os.close(lock)
            elif _identity(folder)[0] != assignment.nonce:
                return Stopped(
                    self._look(folder)
                )  # somebody else's, and not ours to stop; its name keeps ours from starting
            (folder / "stopped").touch()
            asked = time.monotonic()
            asked_to_end: set[int] = set()
            # The lock first: who holds it may still start a member, which would be seen after it.
            while locked(folder) or members(folder, assignment.nonce):
                waited = time.monotonic() - asked
                if waited > timeout:
                    return StillThere(f"processes of {folder.name} are still there after {timeout:.0f} s")
                end(members(folder, assignment.nonce), asked_to_end, at_once=waited >= timeout * TERM_SHARE)
                await self.wait(POLL)
                _collect()
            return Stopped(self._look(folder))
        except OSError as problem:
            raise LaunchUnavailable(f"{folder} cannot be stopped: {problem.strerror}") from None

    def _look(self, folder: Path) -> Seen:
        nonce, uid = _identity(folder)
        process = _process(folder)
        # A launcher that froze after it spawned holds the lock, too: then the recorded processes say whether anything runs.
        alive = locked(folder) and (process is None or _runs(process) or bool(members(folder, nonce)))
        code = _exit_code(folder)  # after the lock: what had ended by then has written it
        stopping = (folder / "stopped").exists()
        if alive:
            phase = Phase.FINISHING if code is not None else Phase.RUNNING if process else _starting(folder)
        elif code is None:
            phase = Phase.UNKNOWN
        else:
            phase = Phase.SUCCEEDED if code == 0 else Phase.FAILED_KNOWN
        ended_badly = phase in (Phase.FAILED_KNOWN, Phase.UNKNOWN)
        return Seen(
            name=folder.name,
            uid=uid,
            nonce=nonce,
            phase=phase,
            driver=process,
            exit_code=code,
            stopping=stopping,
            message=f"the driver ended with exit code {code}, see stdout and stderr in {folder}"
            if phase is Phase.FAILED_KNOWN
            else "",
            log_tail=(_tail(folder / "stdout") or _tail(folder / "stderr")) if ended_badly else "",
            detail={"folder": str(folder)},
        )


def _collect() -> None:
    """Lets ended children go; what their end means is read from the folder."""
    _CHILDREN[:] = [child for child in _CHILDREN if child.poll() is None]


def place(folder: Path, assignment: Assignment, *, stopped: bool) -> int | None:
    """Creates the attempt's folder whole, or not at all; a descriptor that holds its lock, or None when it was there already."""
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = folder.parent / f".{folder.name}-{uuid.uuid4().hex}"
    try:
        lock = _draft(draft, assignment, stopped=stopped)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    try:
        draft.rename(folder)  # onto a folder that is not empty it fails: create-if-absent
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
    """Whether anything that belongs to the attempt, or may still start it, is alive."""
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
    """Pids of the recorded group that carry the attempt's nonce; none when it was recorded before the machine's last start."""
    process = _process(folder)
    if process is None:
        return []
    leader, _, boot = process.split(":", 2)
    if boot != _boot_id():
        return []
    marker = f"{NONCE_ENVIRONMENT}={nonce}".encode()
    return [pid for pid, group in _processes() if group == int(leader) and marker in _environment(pid)]


def end(pids: Sequence[int], asked: set[int], *, at_once: bool) -> None:
    """SIGTERM, once to each: who cleans up is not disturbed again and again. SIGKILL when it must be at once."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            if at_once:
                os.kill(pid, signal.SIGKILL)
            elif pid not in asked:
                os.kill(pid, signal.SIGTERM)
                os.kill(pid, signal.SIGCONT)  # a stopped process would never see it
                asked.add(pid)


def record_process(folder: Path) -> None:
    """Names this very process as the attempt's (a notebook is owner and driver at once)."""
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
        return "", "foreign"  # somebody else's folder has our name


def _starting(folder: Path) -> Phase:
    """A launcher spawns within milliseconds of placing the folder. One that has not within the life of a lease is frozen, and nobody
    else may start the attempt: it is lost, however long its lock is held."""
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
    """Whether this very process, not another one with its pid, is alive."""
    pid, started, boot = process.split(":")
    try:
        fields = Path("/proc", pid, "stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return False
    return fields[19] == started and fields[0] != "Z" and boot == _boot_id()


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _processes() -> Iterator[tuple[int, int]]:
    """(pid, process group) of everything that runs."""
    for entry in (path.name for path in Path("/proc").iterdir()):
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_text()
            except OSError:
                continue  # it ended meanwhile
            yield int(entry), int(stat.rsplit(")", 1)[1].split()[2])


def _environment(pid: int) -> list[bytes]:
    try:
        return Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - LOG_TAIL))
            return log.read().decode(errors="replace")
    except OSError:
        return ""
