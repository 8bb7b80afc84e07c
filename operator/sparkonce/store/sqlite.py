"""Everything that is SQLite's own: opening a ledger file, beginning a write, what its errors mean.

WAL, so that readers never wait for a writer; synchronous=FULL, so that what was answered survives a power cut (WAL with NORMAL may
lose the last commits, and a reservation that was acted on must not be lost). A write transaction begins with BEGIN IMMEDIATE: it
holds the only write lock from its first read on, so what it decides on cannot change under it, and there is no upgrade to fail half-way.

Connections never cross a fork: SQLite's locks belong to processes. A child gets a pool of its own; the parent's connections are kept
in the child unused, because even closing one there would let go of locks that it does not have. Refused: a file on a network file
system, one that is no ledger, a newer layout, another install's.
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

from sqlalchemy import Connection, CursorResult, Engine, Executable, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import Pool, QueuePool
from sqlalchemy.schema import CreateIndex, CreateTable

from sparkonce.errors import SparkonceError, StoreUnavailable, StoreUnusable
from sparkonce.failpoints import hit
from sparkonce.store import sql_tables as sql
from sparkonce.store.local_disk import network_file_system

SYNCHRONOUS = ("FULL", "NORMAL", "OFF")
BUSY_TIMEOUT = 10.0
"""Seconds to wait for another writer. A transaction here takes milliseconds; ten seconds cover a stalled disk and a crowd of
processes, and still end before a person gives up."""
POOL = 8
"""Idle connections kept: one thread uses one at a time; more threads get more, which are closed afterwards."""

_HAS_META = text("SELECT count(*) FROM sqlite_master WHERE name = 'meta'")

_WAIT = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
_DISK = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT})
_DENIED = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH})
_BROKEN = frozenset({sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT})

_databases: weakref.WeakSet[SqliteDatabase] = weakref.WeakSet()
_of_parents: list[Pool] = []  # never closed, never collected


def _after_fork_in_child() -> None:
    for database in _databases:
        database.start_afresh()


os.register_at_fork(after_in_child=_after_fork_in_child)


class Transaction:
    """Statements of one write transaction, each between two failpoints; nothing stays unless `commit` returns."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def run(self, statement: Executable, parameters: Mapping[str, Any] | None = None) -> CursorResult[Any]:
        hit("store.sql.statement.before")
        done = self._connection.execute(statement, parameters)
        hit("store.sql.statement.after")
        return done

    def text(self, statement: str) -> None:
        hit("store.sql.statement.before")
        self._connection.exec_driver_sql(statement)
        hit("store.sql.statement.after")

    def commit(self) -> None:
        hit("store.sql.commit.before")
        self._connection.commit()
        hit("store.sql.commit.after")


class SqliteDatabase:
    def __init__(
        self, path: Path, *, synchronous: str = "FULL", busy_timeout: float = BUSY_TIMEOUT, mounts: str | None = None
    ) -> None:
        """`mounts`: the text of /proc/mounts, for tests. StoreUnusable, StoreUnavailable."""
        if synchronous not in SYNCHRONOUS:
            raise ValueError(f"synchronous is one of {', '.join(SYNCHRONOUS)}, not {synchronous!r}")
        self.path = Path(os.path.realpath(path))  # by whatever name the ledger is opened, its leases are in one place
        self._synchronous, self._busy_timeout = synchronous, busy_timeout
        self._place(mounts)
        self._engine = self._new_engine()
        self._writers = threading.Lock()
        _databases.add(self)

    # --- the file

    def _place(self, mounts: str | None) -> None:
        """A folder and an empty file that only the user may read: the ledger holds specs."""
        folder = self.path.parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if kind := network_file_system(folder, mounts=mounts):
                raise StoreUnusable(
                    f"the ledger {self.path} is on a network file system ({kind}), where locks cannot be trusted; put it on a local disk"
                )
            if self.path.is_dir():
                raise StoreUnusable(f"the ledger {self.path} is a folder; name a file in it")
            if not self.path.exists():
                self._create()
        except OSError as error:
            raise StoreUnusable(
                f"the ledger {self.path} cannot be created ({error.strerror}); choose a place where you may write"
            ) from None
        if not os.access(self.path, os.R_OK | os.W_OK):
            raise StoreUnusable(f"the ledger {self.path} may not be written by this user; check its permissions")

    def _create(self) -> None:
        """By a link, not by opening: closing a descriptor of a file that this process has open elsewhere would drop SQLite's locks."""
        descriptor, empty = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        try:
            os.close(descriptor)
            with contextlib.suppress(FileExistsError):
                os.link(empty, self.path)
        finally:
            Path(empty).unlink()

    # --- connections

    def _new_engine(self) -> Engine:
        return create_engine(
            "sqlite://",
            creator=self._connect,
            poolclass=QueuePool,
            pool_size=POOL,
            max_overflow=-1,
            hide_parameters=True,  # an error must not carry a spec
        )

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path,
            timeout=self._busy_timeout,
            isolation_level=None,  # transactions begin where we say so
            check_same_thread=False,  # the pool hands a connection to one thread at a time
            cached_statements=256,
        )
        connection.execute(f"PRAGMA synchronous={self._synchronous}")
        return connection

    def start_afresh(self) -> None:
        """In a child after a fork."""
        _of_parents.append(self._engine.pool)
        self._engine = self._new_engine()
        self._writers = threading.Lock()

    def close(self) -> None:
        self._engine.dispose()

    # --- transactions

    @contextlib.contextmanager
    def reading(self, *, snapshot: bool = False) -> Iterator[Connection]:
        """One statement is a consistent look by itself; `snapshot` makes several of them one."""
        with self._answers(), self._engine.connect() as connection:
            if snapshot:
                connection.exec_driver_sql("BEGIN")
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[Transaction]:
        """What is not committed inside is rolled back. Threads of one process queue here, where waiting is fair and cheap."""
        with self._writers, self._answers(), self._engine.connect() as connection:
            transaction = Transaction(connection)
            transaction.text("BEGIN IMMEDIATE")
            yield transaction

    @contextlib.contextmanager
    def _answers(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            raise self.meaning(error.orig) from None
        except sqlite3.Error as error:
            raise self.meaning(error) from None

    def meaning(self, error: BaseException | None) -> SparkonceError:
        """What an error of SQLite proves, as a sentence."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the kind, the rest a detail
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
                f"the ledger {self.path} is damaged or no ledger ({error}); restore it from a backup or name another file"
            )
        return StoreUnusable(
            f"the ledger {self.path} cannot be used ({error}); restore it from a backup or name another file"
        )

    # --- the layout

    def prepare(self, install: str) -> None:
        """Creates the tables if there are none; StoreUnusable for whatever is not our ledger."""
        with self.reading(snapshot=True) as connection:
            names = connection.exec_driver_sql("SELECT name FROM sqlite_master").scalars().all()
            mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()
            found = connection.execute(sql.META).first() if "meta" in names else None
        if names and found is None:
            raise StoreUnusable(f"{self.path} is a database of something else, not a ledger; name another file")
        if mode != "wal":
            self._use_wal()
        layout, owner = self._create_tables(install) if found is None else (found.layout, found.install)
        if layout > sql.LAYOUT:
            raise StoreUnusable(
                f"the ledger {self.path} has layout {layout}, and this version knows up to {sql.LAYOUT}; upgrade sparkonce"
            )
        if owner != install:
            raise StoreUnusable(
                f"the ledger {self.path} belongs to install {owner!r}, not {install!r}; name another file"
            )

    def _create_tables(self, install: str) -> tuple[int, str]:
        with self.writing() as transaction:
            if not transaction.run(_HAS_META).scalar_one():  # another process may have been first
                for table in sql.metadata.sorted_tables:
                    transaction.run(CreateTable(table))
                    for index in sorted(table.indexes, key=lambda index: str(index.name)):
                        transaction.run(CreateIndex(index))
                row = {"id": 1, "layout": sql.LAYOUT, "install": install, "epoch": 1, "revision": 0, "gap": 0}
                transaction.run(sql.INSERT["meta"], row)
            found = transaction.run(sql.META).one()
            transaction.commit()
        return found.layout, found.install

    def _use_wal(self) -> None:
        """Lasts: it is noted in the file. SQLite does not wait for others here, so we do."""
        deadline = time.monotonic() + self._busy_timeout
        while True:
            try:
                with self.reading() as connection:
                    connection.exec_driver_sql("PRAGMA journal_mode=WAL")
                return
            except StoreUnavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
