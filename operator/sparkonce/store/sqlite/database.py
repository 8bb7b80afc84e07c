"""SQLite connections, transactions, and the meaning of SQLite's errors.

Uses WAL, so that readers never wait for a writer, and synchronous=FULL, so that acknowledged commits survive a power failure (WAL with
NORMAL may lose the last commits, and a reservation that was acted on must not be lost). Write transactions begin with BEGIN IMMEDIATE: they
hold the only write lock from their first read on, so the state they decide on cannot change, and no lock upgrade can fail half-way. A
process that is frozen inside one (they take milliseconds) makes other writers fail with StoreUnavailable until it resumes or is killed.

Connections never cross a fork, because SQLite's locks belong to processes. A child opens its own and keeps the parent's unused: even
closing one there would release the parent's locks. Files that are refused: a file on a network file system, a file that is not a ledger, a
newer layout, another install's ledger.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparkonce.errors import SparkonceError, StoreUnavailable, StoreUnusable
from sparkonce.failpoints import hit
from sparkonce.store.sqlite.lease import network_file_system
from sparkonce.store.sqlite.schema import LEDGER, SqliteTables

SYNCHRONOUS = ("FULL", "NORMAL", "OFF")
BUSY_TIMEOUT = 10.0
"""Seconds to wait for another writer. Transactions take milliseconds; ten seconds cover a stalled disk or many processes, and still
end before a user gives up."""
DAMAGES = 3
"""Maximum errors reported for a damaged ledger: it must be restored either way."""
POOL = 8
"""Maximum idle connections. Each thread uses one at a time; connections beyond this number are closed after use."""

_WAIT = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
_DISK = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT})
_DENIED = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH})
_BROKEN = frozenset({sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT})

_databases: weakref.WeakSet[SqliteDatabase] = weakref.WeakSet()
_of_parents: list[sqlite3.Connection] = []  # never used, never closed


def _after_fork_in_child() -> None:
    for database in _databases:
        database.start_afresh()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _close_all(idle: list[sqlite3.Connection]) -> None:
    while idle:
        idle.pop().close()


class SqliteReader:
    """Runs a schema's statements by name on one connection."""

    def __init__(self, connection: sqlite3.Connection, statements: Mapping[str, str]) -> None:
        self._connection, self._statements = connection, statements

    def rows(self, statement: str, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        return self._connection.execute(self._statements[statement], parameters or {}).fetchall()

    def row(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Any:
        """The first row, by column name; None if there is no row."""
        return next(iter(self.rows(statement, parameters)), None)

    def value(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Any:
        """The first column of the first row; None if there is no row."""
        row = self.row(statement, parameters)
        return None if row is None else row[0]


class SqliteTransaction(SqliteReader):
    """A write transaction with failpoints around each statement; rolled back unless committed."""

    def rows(self, statement: str, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        hit("store.sql.statement.before")
        rows = super().rows(statement, parameters)
        hit("store.sql.statement.after")
        return rows

    def text(self, statement: str) -> None:
        hit("store.sql.statement.before")
        self._connection.execute(statement)
        hit("store.sql.statement.after")

    def commit(self) -> None:
        hit("store.sql.commit.before")
        self._connection.execute("COMMIT")
        hit("store.sql.commit.after")


class SqliteDatabase:
    """A pool of connections to one ledger file, with translated errors."""

    def __init__(
        self,
        path: Path,
        *,
        contents: SqliteTables = LEDGER,
        synchronous: str = "FULL",
        busy_timeout: float = BUSY_TIMEOUT,
        mounts: str | None = None,
    ) -> None:
        """Creates the file if needed. `mounts`: the text of /proc/mounts, for tests.

        Raises:
            StoreUnusable: the file cannot be a ledger: network file system, folder, missing permissions.
        """
        if synchronous not in SYNCHRONOUS:
            raise ValueError(f"synchronous is one of {', '.join(SYNCHRONOUS)}, not {synchronous!r}")
        self.path = Path(os.path.realpath(path))  # so that its leases are in one place, whichever path it is opened by
        self._contents, self._synchronous, self._busy_timeout = contents, synchronous, busy_timeout
        self._place(mounts)
        self._idle: list[sqlite3.Connection] = []
        self._writers = threading.Lock()
        self._close_at_last = weakref.finalize(self, _close_all, self._idle)
        _databases.add(self)

    # --- the file

    def _place(self, mounts: str | None) -> None:
        """Creates the folder and an empty file, readable by the user only: the ledger contains specs."""
        folder = self.path.parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if kind := network_file_system(folder, mounts=mounts):
                raise StoreUnusable(
                    f"the ledger {self.path} is on a network file system ({kind}), where locks cannot be trusted; put it on a local disk"
                )
            if self.path.is_dir():
                raise self._unusable("is a folder; name a file in it")
            if not self.path.exists():
                self._create()
        except OSError as error:
            raise StoreUnusable(
                f"the ledger {self.path} cannot be created ({error.strerror}); choose a place where you may write"
            ) from None
        if not os.access(self.path, os.R_OK | os.W_OK):
            raise self._unusable("is not readable and writable by this user; check its permissions")

    def _unusable(self, why: str) -> StoreUnusable:
        return StoreUnusable(f"the ledger {self.path} {why}")

    def _create(self) -> None:
        """Creates the file by linking, not opening: closing a descriptor of a file that this process has open would drop SQLite's locks."""
        descriptor, empty = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        try:
            os.close(descriptor)
            with contextlib.suppress(FileExistsError):
                os.link(empty, self.path)
        finally:
            Path(empty).unlink()

    # --- connections

    def _connect(self) -> sqlite3.Connection:
        prepared = 2 * len(self._contents.statements)  # all of them stay so
        # Transactions begin where we say so, and one thread at a time uses a connection.
        connection = sqlite3.connect(
            self.path, self._busy_timeout, isolation_level=None, check_same_thread=False, cached_statements=prepared
        )
        connection.row_factory = sqlite3.Row
        connection.execute(f"PRAGMA synchronous={self._synchronous}")
        return connection

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Lends one connection exclusively; rolls back what is left open, and closes the connection after an SQLite error."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        keep = True
        try:
            yield connection
        except sqlite3.Error:
            keep = False
            raise
        finally:
            if keep and connection.in_transaction:
                connection.rollback()
            if keep and len(self._idle) < POOL and self._close_at_last.alive:
                self._idle.append(connection)
            else:
                connection.close()

    def start_afresh(self) -> None:
        """Called in a child after a fork: sets the parent's connections aside, unused."""
        _of_parents.extend(self._idle)
        self._idle.clear()
        self._writers = threading.Lock()

    def close(self) -> None:
        self._close_at_last()

    def damage(self) -> str:
        """Reads the whole file and returns what is damaged; empty if nothing is.

        Raises:
            StoreUnavailable, StoreUnusable: the file cannot be checked.
        """
        with self._answers(), self._connection() as connection:
            found = [str(row[0]) for row in connection.execute(f"PRAGMA quick_check({DAMAGES})")]
        return "" if found == ["ok"] else "; ".join(found)

    # --- transactions

    @contextlib.contextmanager
    def reading(self, *, snapshot: bool = False) -> Iterator[SqliteReader]:
        """A read; with `snapshot` all its statements read the same state.

        Raises:
            StoreUnavailable, StoreUnusable: nothing was read.
        """
        with self._answers(), self._connection() as connection:
            if snapshot:
                connection.execute("BEGIN")
            yield SqliteReader(connection, self._contents.statements)

    @contextlib.contextmanager
    def writing(self) -> Iterator[SqliteTransaction]:
        """A write transaction; rolled back unless committed inside. Threads of one process queue on a lock here, which is cheaper than
        SQLite's polling.

        Raises:
            StoreUnavailable: proves nothing if raised by the commit; else nothing was written.
            StoreUnusable: nothing was written.
        """
        with self._writers, self._answers(), self._connection() as connection:
            transaction = SqliteTransaction(connection, self._contents.statements)
            transaction.text("BEGIN IMMEDIATE")
            yield transaction

    @contextlib.contextmanager
    def _answers(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._meaning(error) from None

    def _meaning(self, error: sqlite3.Error) -> SparkonceError:
        """Translates an error into what it proves."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary code
        if code in _WAIT:
            return StoreUnavailable(
                f"the ledger {self.path} was locked by another process for {self._busy_timeout:g} s; try again, or end that process"
            )
        if code in _DISK:
            return StoreUnavailable(f"the ledger {self.path} could not be read or written ({error}); check the disk")
        if code in _DENIED:
            return StoreUnusable(
                f"the ledger {self.path} cannot be opened for writing ({error}); check its permissions"
            )
        if code in _BROKEN:
            return StoreUnusable(
                f"the ledger {self.path} is damaged or not a ledger ({error}); restore it from a backup or name another file"
            )
        return StoreUnusable(
            f"the ledger {self.path} cannot be used ({error}); restore it from a backup or name another file"
        )

    # --- the layout

    def prepare(self, install: str) -> None:
        """Creates the tables if they do not exist.

        Raises:
            StoreUnusable: not a ledger, a newer layout, or another install's ledger.
            StoreUnavailable: the file is locked or the disk fails; repeat it.
        """
        with self._answers(), self._connection() as connection:
            names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
            mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
        if names and "meta" not in names:
            raise StoreUnusable(f"{self.path} is another application's database, not a ledger; name another file")
        if mode != "wal":
            self._use_wal()
        if not names:
            self._create_tables(install)
        with self.reading() as reader:
            meta = reader.row("meta")
        layout, owner = (meta["layout"], meta["install"]) if meta else (0, "")
        if layout > self._contents.layout:
            raise StoreUnusable(
                f"the ledger {self.path} has layout {layout}, and this version knows up to {self._contents.layout}; upgrade sparkonce"
            )
        if owner != install:
            raise self._unusable(f"belongs to install {owner!r}, not {install!r}; name another file")
        if names and not names.issuperset(self._contents.added):
            self._add_tables()

    def _add_tables(self) -> None:
        """Adds tables that a ledger of an earlier version lacks."""
        with self.writing() as transaction:
            for table in self._contents.added.values():
                transaction.text(table)
            transaction.commit()

    def _create_tables(self, install: str) -> None:
        with self.writing() as transaction:
            if transaction.value("has meta"):  # another process created them first
                return
            for table in (*self._contents.ddl, *self._contents.added.values()):
                transaction.text(table)
            row = {"id": 1, "layout": self._contents.layout, "install": install, "epoch": 1, "revision": 0, "gap": 0}
            transaction.rows("insert meta", row)
            transaction.commit()

    def _use_wal(self) -> None:
        """Switches the file to WAL, permanently. SQLite does not apply the busy timeout here, so this retries."""
        deadline = time.monotonic() + self._busy_timeout
        while True:
            try:
                with self._answers(), self._connection() as connection:
                    connection.execute("PRAGMA journal_mode=WAL")
                return
            except StoreUnavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
