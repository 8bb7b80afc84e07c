"""Servers that hold a ledger, for tests that are about the operator and hold on each of them: etcd and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import backup
from harness.apiserver import folder_in_memory
from harness.etcd import Etcd, Member, running
from harness.ledger_dump import rows
from harness.postgres import PostgresServer, server

Server = Etcd | PostgresServer
KINDS = ("etcd", "postgres")


def url_of(ledger: Server) -> str:
    """The address for operators and commands."""
    return ledger.url if isinstance(ledger, PostgresServer) else f"etcd://{','.join(ledger.endpoints)}"


def killed(ledger: Server) -> None:
    _one(ledger).kill()


def frozen(ledger: Server) -> None:
    _one(ledger).freeze()


def back(ledger: Server) -> None:
    """Serves again, after `killed` or `frozen`."""
    one = _one(ledger)
    if one.child.running:
        one.thaw()
    else:
        one.start()
    if isinstance(one, Member):
        one.until_ready()


def restart(ledger: Server) -> None:
    """SIGKILL, and start again."""
    killed(ledger)
    back(ledger)


@contextmanager
def away(ledger: Server, how: Callable[[Server], None]) -> Iterator[None]:
    how(ledger)
    try:
        yield
    finally:
        back(ledger)


def take(ledger: Server, place: Path) -> Path:
    """A backup: a copy of the stopped server's data."""
    return ledger.take(place) if isinstance(ledger, PostgresServer) else backup.take(ledger.one, place)


def put_back(ledger: Server, kept: Path | None) -> None:
    """Restores a backup, or with None an empty ledger."""
    if isinstance(ledger, PostgresServer):
        ledger.put_back(kept)
    else:
        backup.put_back(ledger.one, kept)


def revision(ledger: Server, install: str) -> int:
    if isinstance(ledger, Etcd):
        return ledger.revision()
    ((found,),) = rows(ledger, install, "SELECT revision FROM meta")
    return int(found)


def midway(ledger: Server) -> str:
    """A failpoint at which `accept-restore` dies after it has rebuilt some records."""
    return "store.etcd.request.after=9*off->kill" if isinstance(ledger, Etcd) else "store.sql.commit.after=1*off->kill"


@contextmanager
def own(kind: str) -> Iterator[Server]:
    """A server for one test, which kills it, puts it back or fills it."""
    if kind == "postgres":
        made = PostgresServer()
        try:
            made.start()
            yield made
        finally:
            made.close()
    else:
        with folder_in_memory() as folder, running(folder) as etcd:
            yield etcd


def shared_postgres() -> PostgresServer:
    """The server of this pytest process; installs have their own schemas."""
    return server()


def _one(ledger: Server) -> Member | PostgresServer:
    return ledger if isinstance(ledger, PostgresServer) else ledger.one
