"""What surrounds a command: the ledger, opened late and closed in any case, and Ctrl-C and SIGTERM while a job runs or is awaited.

A ledger on etcd belongs to a cluster, and so does one on PostgreSQL whose install is named: operators drive its jobs on Kubernetes, so a
command reads there and writes a person's decisions (`commands/remote.py`), but never runs a job. The install must be named, because one
store may serve several clusters.

Signals request cancellation, which the runner carries out, so nothing ends halfway. On the first one the owner of a key hands it to a
terminal that waits for it, or else stops its attempt and settles it; a command that only waits stops waiting. Later ones print what is
being done. The handler only passes the request to the event loop, so a signal may arrive at any moment, also before the key is reserved:
then the request waits until there is an attempt to stop. `loop.add_signal_handler` was rejected: removing it restores Python's own
handler, whose KeyboardInterrupt would print a traceback from the last lines of a command.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from sparkonce.blocking import run
from sparkonce.cli.view.terminal import tell
from sparkonce.errors import InvalidInput
from sparkonce.local.runner import HANDED_OVER, NOWHERE, LocalRunner, attempts_folder
from sparkonce.model.record import Record
from sparkonce.store.open import LOCAL, default_url, is_postgres, is_remote, open_blocking, redacted
from sparkonce.store.protocol import IdempotencyStore

if TYPE_CHECKING:
    import asyncio

    from sparkonce.cli.view.progress import Progress

INSTALL = "SPARKONCE_INSTALL"
SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}

T = TypeVar("T")


def person() -> str:
    """The user of this command, for the record's history."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container may run as a uid without a passwd entry
        return f"uid {os.getuid()}"


class CancelRequests:
    """Signals of one command that drives or awaits a key."""

    def __init__(self, session: Session, *, detachable: bool) -> None:
        self.session, self.embedded, self.detachable = session, session.embedded, detachable
        self.name = ""
        """Name of the first signal; empty before it."""
        self._leads: Record | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self.embedded.on_leader = self._led

    def caught(self, number: int, _: FrameType | None) -> None:
        """The signal handler."""
        if self._loop is None:
            os._exit(128 + number)  # no work has started
        with contextlib.suppress(RuntimeError):  # the loop has just ended, and the work with it
            self._loop.call_soon_threadsafe(self._request, SIGNALS[signal.Signals(number)])

    def _led(self, record: Record) -> None:
        self._leads = record
        if self.name:
            self._cancel()

    def _request(self, name: str) -> None:
        again, self.name = bool(self.name), self.name or name
        if again:
            self.session.progress.say(
                f"{name} again: this is settling already and ends within stopTimeoutSeconds; "
                "if you kill it (kill -9), nothing is lost: the next `sparkonce run` continues from here"
            )
        elif self._leads is None and self.detachable and self._task is not None:
            self._task.cancel()
        else:
            self._cancel()

    def _cancel(self) -> None:
        if self._leads is not None and self.embedded.waiting.others(self._leads.address):
            self.session.progress.say(f"{self.name}: {HANDED_OVER}")
        elif self._leads is not None:
            self.session.progress.say(f"{self.name}: stopping attempt {self._leads.attempt} and settling what it wrote")
        self.embedded.cancel(person(), self.name)

    async def during(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        import asyncio

        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        return await work()


@dataclass(frozen=True)
class Session:
    embedded: LocalRunner

    def __post_init__(self) -> None:
        self.embedded.on_observation = self._observed

    @cached_property
    def progress(self) -> Progress:
        """Made for the first thing that it shows: a replay shows none."""
        from sparkonce.cli.view.progress import Progress

        return Progress(self.store)

    def _observed(self, *seen: Any) -> None:
        self.progress.look(*seen)

    def close(self) -> None:
        """Ends the line on the terminal, if there is one."""
        if "progress" in vars(self):
            self.progress.close()

    @property
    def store(self) -> IdempotencyStore:
        return self.embedded.store

    @property
    def attempts(self) -> Path:
        return self.embedded.attempts

    @property
    def remote(self) -> bool:
        """Whether the ledger belongs to a cluster."""
        return self.embedded.remote

    def interruptible(self, work: Callable[[], Coroutine[Any, Any, T]], *, detachable: bool = False) -> T | None:
        """The coroutine's result; None when a signal ended the wait, which happens only if `detachable`."""
        import asyncio

        requests = CancelRequests(self, detachable=detachable)
        before = {number: signal.signal(number, requests.caught) for number in SIGNALS}
        try:
            return asyncio.run(requests.during(work))
        except asyncio.CancelledError:
            return None
        finally:
            self.close()
            for number, handler in before.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def session(url: str | None, *, install: str | None = None, named: bool = True) -> Iterator[Session]:
    """Opens a ledger for one command. named: print which one. Raises: InvalidInput, StoreUnusable, StoreUnavailable."""
    url = default_url() if url is None else url
    remote = is_remote(url, _named(install))
    store = open_blocking(url, install=_install(install, remote=remote))
    if named:
        tell(f"ledger: {store.url}", err=True)  # apart from the answer
    if remote:
        from sparkonce.commands.remote import RemoteLauncher

        embedded = LocalRunner(store=store, attempts=NOWHERE, launcher=RemoteLauncher(), remote=True)
    else:
        address = url if is_postgres(url) else ""
        embedded = LocalRunner(store=store, attempts=attempts_folder(store.url), address=address, person=person())
    opened = Session(embedded)
    try:
        yield opened
    finally:
        opened.close()
        run(store.close())


def local_only(url: str | None, instead: str) -> None:
    """Refuses a cluster's ledger. Raises: InvalidInput: names what to do there instead of this command."""
    url = default_url() if url is None else url
    if is_remote(url, _named(None)):
        raise InvalidInput(f"{redacted(url)} is a cluster's ledger, whose jobs are run by operators; {instead}")


def _named(said: str | None) -> str | None:
    """The install that the command line or the environment names."""
    return said or os.environ.get(INSTALL)


def _install(said: str | None, *, remote: bool) -> str:
    """The install to use: an option, or the environment, which names a cluster's install, never a local ledger's."""
    install = _named(said) if remote else said or LOCAL
    if not install:
        raise InvalidInput(f"say whose keys are meant, as the operator was told: --install ID, or {INSTALL}")
    return install
