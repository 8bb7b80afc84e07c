"""Starts `python -m sparkonce` as a fork of a process that has imported it and the packages it stands on.

A process that is started spends more than a second of processor time on importing kopf, Kubernetes' client, gRPC, pydantic and our own
modules, and the tests of the operator start hundreds. Each worker of a test run has one template process, which imports them. For each
`Forked` it makes a process whose parent is the test (Linux: CLONE_PARENT), with the arguments, environment, folder and files that it was
given; that process then runs sparkonce as Python does with `-m`, and where its path leads to another sparkonce than ours, imports that one.
It can be waited for, killed and frozen like any other. In a list of processes it has the template's command line.

No module of sparkonce may read the environment while it is imported: it would be the template's.

A command that is not this interpreter's `-m sparkonce`, or has another setting of Python's own in its environment, is started as usual.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import importlib.util
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

PROGRAM = ("-m", "sparkonce")
IMPORTS = (
    "kopf", "kubernetes.aio", "grpc.aio", "google.protobuf.message", "pydantic", "aiohttp.web", "httpx", "prometheus_client", "typer",
    "rich.console", "rich.table", "yaml", "platformdirs", "obstore", "rfc8785", "sqlite3", "fastapi", "uvicorn", "psycopg",
)  # fmt: skip
"""What sparkonce's commands import of others."""
OURS = (
    "sparkonce.cli.app", "sparkonce.cli.keys", "sparkonce.cli.run", "sparkonce.cli.serve.gateway", "sparkonce.cli.serve.operator",
    "sparkonce.cli.serve.proxy", "sparkonce.cli.view.outcome", "sparkonce.gateway.app", "sparkonce.gateway.serving",
    "sparkonce.kube.operator", "sparkonce.observe.gateway_metrics", "sparkonce.store.etcd.store", "sparkonce.store.open",
)  # fmt: skip
"""Modules of the commands that tests start most, by which nearly all others are imported."""
CLONE_PARENT, SYS_CLONE, PR_SET_PDEATHSIG = 0x8000, {"x86_64": 56, "aarch64": 220}, 1
TESTS = Path(__file__).parents[1]


def started(command: Sequence[str | Path], **options: Any) -> subprocess.Popen[Any]:
    """As `subprocess.Popen`, by a fork where that makes no difference."""
    return forked(command, **options) or subprocess.Popen(command, **options)


def forked(command: Sequence[str | Path], **options: Any) -> Forked | None:
    """As `subprocess.Popen`; the process dies with the test run. None: nothing was started, since a fork would differ."""
    words = [str(each) for each in command]
    known = {"stdin", "stdout", "stderr", "env", "cwd", "start_new_session", "text"}
    if words[0] != sys.executable or tuple(words[1:3]) != PROGRAM or options.keys() - known:
        return None
    template = _Template.of_this_process()
    if template is None or _of_python(options.get("env") or os.environ) != template.of_python:
        return None
    return Forked(words, template, **options)


def _of_python(environment: Mapping[str, str]) -> dict[str, str]:
    """What an interpreter reads when it starts, but for PYTHONPATH, which a fork follows."""
    return {name: value for name, value in environment.items() if name.startswith("PYTHON") and name != "PYTHONPATH"}


class _Template:
    """The process that is forked, and the socket by which it is asked."""

    _here: _Template | None = None
    _making = threading.Lock()

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.of_python = _of_python(os.environ)
        self.pid, self._socket, self._asking = os.getpid(), ours, threading.Lock()
        code = f"import sys; sys.path.insert(0, {str(TESTS)!r}); from harness.forked import serve; serve({theirs.fileno()})"
        # Without PYTHONPATH: it may be that of the test which happens to be the first to start a process.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
        )
        theirs.close()
        atexit.register(self._end)

    def _end(self) -> None:
        if self.pid == os.getpid():
            self._socket.close()
            self._process.wait()

    @classmethod
    def of_this_process(cls) -> _Template | None:
        """None on other machines, and in a thread if there is none yet: the kernel would end it with that thread."""
        if os.uname().machine not in SYS_CLONE:
            return None
        with cls._making:
            if cls._here is None or cls._here.pid != os.getpid():
                if threading.current_thread() is not threading.main_thread():
                    return None
                cls._here = cls()
            return cls._here

    def fork(self, asked: Mapping[str, Any], files: Sequence[int]) -> int:
        """The pid of a new child of this process."""
        with self._asking:
            # A file, since an environment may be larger than a message.
            with os.fdopen(os.memfd_create("asked"), "w+b") as text:
                text.write(json.dumps(asked).encode())
                text.flush()
                socket.send_fds(self._socket, [b"fork"], [text.fileno(), *files])
            return int(self._socket.recv(32))


class Forked(subprocess.Popen[Any]):
    def __init__(self, words: list[str], template: _Template, **options: Any) -> None:
        self._template = template
        super().__init__(words, **options)

    def _execute_child(  # noqa: PLR0917 - as Popen calls it
        self,
        args: list[str], executable: object, preexec_fn: object, close_fds: object, pass_fds: object, cwd: str | Path | None,
        env: Mapping[str, str] | None, startupinfo: object, creationflags: object, shell: object,
        p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int, errread: int, errwrite: int,
        restore_signals: object, gid: object, gids: object, uid: object, umask: object, start_new_session: bool, process_group: object,
    ) -> None:  # fmt: skip
        """Called by Popen's constructor once the pipes are made, with its own names."""
        files = [each if each >= 0 else number for number, each in enumerate((p2cread, c2pwrite, errwrite))]
        asked = {
            "arguments": args[1 + len(PROGRAM) :],
            "environment": dict(os.environ if env is None else env),
            "folder": str(Path(cwd or ".").resolve()),
            "session": start_new_session,
            "parent": os.getpid(),
        }
        self.pid = self._template.fork(asked, files)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]  # Popen's own


# --- in the template


def serve(number: int) -> None:
    """Forks as it is asked, until the test run ends; in each fork, runs sparkonce."""
    sys.path.remove(str(TESTS))
    for name in IMPORTS + OURS:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a fork's collections must not touch, and so copy, what all share
    with socket.socket(fileno=number) as asking:
        while True:
            said, files, _, _ = socket.recv_fds(asking, 16, 8)
            if not said:
                return
            with os.fdopen(files[0], "rb") as text:
                text.seek(0)
                asked = json.load(text)
            pid = _clone()
            if pid == 0:
                break
            for each in files[1:]:
                os.close(each)
            asking.send(str(pid).encode())
    _become(asked, files[1:])


def _search_path(environment: Mapping[str, str]) -> list[str]:
    return [str(Path(each).resolve()) for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]


def _clone() -> int:
    """As `os.fork`, but the new process is a child of this one's parent."""
    python, libc = ctypes.pythonapi, ctypes.PyDLL(None)
    python.PyOS_BeforeFork()
    pid = int(libc.syscall(SYS_CLONE[os.uname().machine], CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError("this process cannot be forked")
    return pid


def _become(asked: Mapping[str, Any], files: Sequence[int]) -> NoReturn:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != asked["parent"]:
        os._exit(1)  # the test run ended meanwhile
    if asked["session"]:
        os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in files:
        if file > 2:
            os.close(file)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    sys.argv = ["sparkonce", *asked["arguments"]]
    sys.path[:] = [asked["folder"], *_search_path(asked["environment"]), *sys.path[1:]]  # as `-m` has it
    _forget_another()
    runpy.run_module("sparkonce", run_name="__main__", alter_sys=True)
    sys.exit(0)


def _forget_another() -> None:
    """Forgets the sparkonce that was imported, if the path now leads to another one."""
    imported = sys.modules.pop("sparkonce")
    found = importlib.util.find_spec("sparkonce")
    if found is not None and found.origin == imported.__file__:
        sys.modules["sparkonce"] = imported
        return
    for name in [each for each in sys.modules if each.startswith("sparkonce.")]:
        del sys.modules[name]
