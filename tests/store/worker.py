"""Other processes on a store: they carry out verbs on request, and are killed, frozen and resumed.

They are forked from a server that has imported everything and never opened a store, so starting one takes milliseconds.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from harness.child import frozen
from harness.eventually import assert_eventually
from harness.patience import Patience, cpu_of
from sparkonce import failpoints
from sparkonce.blocking import run
from sparkonce.store.protocol import IdempotencyStore, Lease

LONG = 30.0
"""Seconds: these calls take milliseconds; only a defect takes this long."""

Opening = Callable[[], IdempotencyStore]
"""Opens the store; made of functions and values that can be pickled."""
Job = Callable[..., Any]
"""Called with (store, lease, *arguments); a function of a module, so that it can be pickled."""


class Killed(Exception):
    """SIGKILL ended the process before it had an answer."""


class Worker:
    """One process with one store and one lease; if `mortal`, it runs each job in a child of its own, which may be killed."""

    def __init__(self, opening: Opening, *, mortal: bool = False) -> None:
        """`opening`: opens the store in the other process; from a backend's `opening(...)`."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["sparkonce.store.sqlite.store"])
        self._ours, theirs = context.Pipe()
        serve = _serve_by_children if mortal else _serve
        self._process = context.Process(target=serve, args=(opening, theirs), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def ask(self, job: Job, *args: Any, fail: str = "") -> None:
        """Starts `job(store, lease, *args)`; `fail` are failpoints for this job alone."""
        self._ours.send((job, args, fail))

    def answer(self, timeout: float = LONG) -> Any:
        """The result of the oldest job not answered yet; raises the job's error here: Killed if a mortal worker's child was killed,
        EOFError if any other worker died."""
        patience = Patience(timeout, progress=lambda: cpu_of(self.pid))
        while not self._ours.poll(patience.pause):
            if patience.over():
                raise AssertionError(f"the process {self.pid} did not answer")
        done, value = self._ours.recv()
        if not done:
            raise value
        return value

    def do(self, job: Job, *args: Any) -> Any:
        self.ask(job, *args)
        return self.answer()

    def kill(self) -> None:
        """Sends SIGKILL and waits until the process is gone."""
        self._process.kill()
        self._process.join()

    def freeze(self) -> None:
        """Sends SIGSTOP; the process has stopped when this returns."""
        os.kill(self.pid, signal.SIGSTOP)
        self.wait_until_frozen()

    def wait_until_frozen(self) -> None:
        assert_eventually(lambda: frozen(self.pid), LONG)

    def wake(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def end(self) -> None:
        self._ours.close()
        self._process.kill()
        self._process.join()
        self._process.close()


def _serve(opening: Opening, requests: Connection) -> None:
    store = opening()
    lease = run(store.open_lease(owner=f"pid {os.getpid()}"))
    while (asked := _asked(requests)) is not None:
        _carry_out(store, lease, asked, requests)


def _serve_by_children(opening: Opening, requests: Connection) -> None:
    """This process never opens the store itself, so no connection crosses a fork."""
    while (asked := _asked(requests)) is not None:
        child = os.fork()
        if child == 0:
            store = opening()
            _carry_out(store, run(store.open_lease(owner=f"pid {os.getpid()}")), asked, requests)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            requests.send((False, Killed(os.WTERMSIG(status))))


def _asked(requests: Connection) -> tuple[Job, tuple[Any, ...], str] | None:
    try:
        asked: tuple[Job, tuple[Any, ...], str] = requests.recv()
    except EOFError:
        return None
    return asked


def _carry_out(
    store: IdempotencyStore, lease: Lease, asked: tuple[Job, tuple[Any, ...], str], requests: Connection
) -> None:
    job, args, fail = asked
    os.environ["SPARKONCE_FAILPOINTS"] = fail
    failpoints.reset()
    try:
        answer = True, job(store, lease, *args)
    except Exception as error:
        answer = False, error
    requests.send(answer)
