"""PostgreSQL connections, transactions, and the meaning of the server's errors.

Every wait is bounded. The server limits waiting for locks and the run time of statements (`lock_timeout`, `statement_timeout`); the client
enforces `timeout` as well, because a frozen server or a broken network sends no answer. The server terminates the session of a client
that freezes inside a transaction after the same time (`idle_in_transaction_session_timeout`), so that it does not block others; when it
resumes, its connection is closed.

An error is an answer only if the server reported a rollback: a serialization failure or deadlock is retried at once (`RolledBack`), a
connection lost during COMMIT is StoreUnavailable, which proves nothing. Acknowledged commits are durable: sessions set
`synchronous_commit` on where the server or role turned it off. (`fsync=off` cannot be overridden by a client.)

Connections never cross a fork: a child opens its own, and keeps its parent's unused and unclosed, because closing one there would end
the parent's session. Transaction pooling is not supported, because session settings would leak between clients.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from sparkonce.errors import InvalidInput, SparkonceError, StoreUnavailable, StoreUnusable
from sparkonce.failpoints import hit
from sparkonce.store.postgres.address import PostgresAddress, lock_of
from sparkonce.store.postgres.schema import ADDED, LAYOUT, STATEMENTS, TABLES

T = TypeVar("T")

POOL = 8
"""Maximum idle connections. Each thread uses one at a time; connections beyond this number are closed after use."""
AGAIN = 5
"""Retries of a step that the server rolled back. Locks are taken in a fixed order, so even one is rare."""
PREPARING = 60.0
"""Seconds for creating the tables, once per install."""
FOR_LOCKS, FOR_ANSWERS = 0.8, 0.9
"""Fractions of `timeout` after which the server cancels a statement: its error proves more than our own timeout."""
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_LAST = "the connection was lost"

_AWAY = ("08", "25", "40", "53", "55", "57", "58")
"""SQLSTATE classes of temporary errors: connection, transaction state, rollback, resources, locks, operator intervention, disk."""
_REFUSALS = ("authentication failed", "no password supplied", "does not exist", "no pg_hba.conf entry")
"""libpq reports no SQLSTATE for connection errors. On a server with messages in another language these become StoreUnavailable."""

_databases: weakref.WeakSet[PostgresDatabase] = weakref.WeakSet()
_of_parents: list[_PooledConnection] = []  # never used, never closed


def _after_fork_in_child() -> None:
    for database in _databases:
        database.start_afresh()


os.register_at_fork(after_in_child=_after_fork_in_child)


class RolledBack(StoreUnavailable):
    """The transaction is known to have been rolled back: it may be repeated at once."""


class _PooledConnection(psycopg.Connection[dict[str, Any]]):
    deadline = 0.0
    """time.monotonic() until which any wait on this connection may last."""

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        return super().wait(_bounded(gen, self.deadline), *args, **kwargs)


def _bounded(waiting: Generator[Any, Any, T], deadline: float) -> Generator[Any, Any, T]:
    """Bounds psycopg's wait generator, which gets a false value after each short interval without data."""
    try:
        wanted = next(waiting)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() >= deadline:
                raise psycopg.OperationalError("no answer in time")
            wanted = waiting.send(ready)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # StopIteration is not generic


def _is_readable(connection: _PooledConnection) -> bool:
    """True if an idle connection has unread data, which means that the server has closed it."""
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))


def _close_all(idle: list[_PooledConnection]) -> None:
    while idle:
        idle.pop().close()


class PostgresReader:
    """Runs statements of `store.postgres.schema` by name on one connection."""

    def __init__(self, connection: _PooledConnection) -> None:
        self._connection = connection

    def rows(self, statement: str, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        try:
            cursor = self._connection.execute(STATEMENTS[statement], parameters or {})
        except UnicodeEncodeError:
            raise InvalidInput("half a surrogate pair cannot be stored as text; nothing was written") from None
        return cursor.fetchall() if cursor.description else []

    def row(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Any:
        """The first row, by column name; None if there is no row."""
        return next(iter(self.rows(statement, parameters)), None)

    def value(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Any:
        """The first column of the first row; None if there is no row."""
        row = self.row(statement, parameters)
        return None if row is None else next(iter(row.values()))


class PostgresTransaction(PostgresReader):
    """A write transaction with failpoints around each statement; rolled back unless committed."""

    def rows(self, statement: str, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        hit("store.sql.statement.before")
        rows = super().rows(statement, parameters)
        hit("store.sql.statement.after")
        return rows

    def text(self, statement: str) -> None:
        hit("store.sql.statement.before")
        self._connection.execute(statement.encode())
        hit("store.sql.statement.after")

    def commit(self) -> None:
        hit("store.sql.commit.before")
        self._connection.execute(b"COMMIT")
        hit("store.sql.commit.after")


class PostgresDatabase:
    """A pool of connections to one schema, with bounded waits and translated errors."""

    def __init__(self, address: PostgresAddress, *, schema: str, timeout: float) -> None:
        self._address, self._schema, self._timeout = address, schema, timeout
        self._idle: list[_PooledConnection] = []
        self._close_at_last = weakref.finalize(self, _close_all, self._idle)
        _databases.add(self)

    # --- connections

    def _connect(self) -> _PooledConnection:
        try:
            connection = _PooledConnection.connect(
                self._address.conninfo,
                autocommit=True,  # transactions begin where we say so
                row_factory=dict_row,
            )
        except psycopg.Error as error:
            raise self._not_connected(error) from None
        connection.deadline = time.monotonic() + self._timeout
        try:
            connection.execute(self._settings().encode())
        except BaseException:
            connection.close()
            raise
        return connection

    def _settings(self) -> str:
        within, for_locks, for_answers = (round(self._timeout * part * 1000) for part in (1, FOR_LOCKS, FOR_ANSWERS))
        return (
            f'SET search_path TO "{self._schema}";'
            f"SET lock_timeout = {for_locks}; SET statement_timeout = {for_answers};"
            f"SET idle_in_transaction_session_timeout = {within};"
            "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
        )

    def _not_connected(self, error: psycopg.Error) -> SparkonceError:
        why = " ".join(str(error).split())
        if any(word in why for word in _REFUSALS):
            return StoreUnusable(f"the store {self._address.shown} cannot be used ({why}); correct its address")
        return StoreUnavailable(f"the store {self._address.shown} cannot be reached ({why}); is it running?")

    def _one(self) -> _PooledConnection:
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread took the last one
                break
            if not connection.closed and not _is_readable(connection):
                return connection
            connection.close()
        return self._connect()

    @contextlib.contextmanager
    def _connection(self, timeout: float) -> Iterator[_PooledConnection]:
        """Lends one connection exclusively; rolls back what is left open, and closes a connection that no longer answers."""
        connection = self._one()
        connection.deadline = time.monotonic() + timeout
        try:
            yield connection
        finally:
            if self._reusable(connection) and len(self._idle) < POOL and self._close_at_last.alive:
                self._idle.append(connection)
            else:
                connection.close()

    def _reusable(self, connection: _PooledConnection) -> bool:
        status = connection.info.transaction_status
        if status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            with contextlib.suppress(psycopg.Error):
                connection.execute(b"ROLLBACK")
            status = connection.info.transaction_status
        return status is TransactionStatus.IDLE

    def start_afresh(self) -> None:
        """Called in a child after a fork: sets the parent's connections aside, unused."""
        _of_parents.extend(self._idle)
        self._idle.clear()

    def close(self) -> None:
        self._close_at_last()

    # --- transactions

    @contextlib.contextmanager
    def reading(self, *, snapshot: bool = False) -> Iterator[PostgresReader]:
        """A read; with `snapshot` all its statements read the same state.

        Raises:
            StoreUnavailable, StoreUnusable: nothing was read.
        """
        with self._answers(), self._connection(self._timeout) as connection:
            if snapshot:
                connection.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield PostgresReader(connection)

    @contextlib.contextmanager
    def writing(self, *locks: str, timeout: float | None = None) -> Iterator[PostgresTransaction]:
        """A write transaction; rolled back unless committed inside. Waits for the advisory lock of these names, because a row that does
        not exist yet cannot be locked.

        Raises:
            RolledBack: nothing was written.
            StoreUnavailable: proves nothing if raised by the commit; else nothing was written.
            StoreUnusable, InvalidInput: nothing was written.
        """
        with self._answers(), self._connection(timeout or self._timeout) as connection:
            transaction = PostgresTransaction(connection)
            lock = f"; SELECT pg_advisory_xact_lock({lock_of(self._schema, *locks)})" if locks else ""
            transaction.text(_BEGIN + lock)
            yield transaction

    def repeated(self, step: Callable[[], T]) -> T:
        """Runs a step, retrying up to `AGAIN` times while the server reports a rollback.

        Raises:
            RolledBack: rolled back each time; nothing was written.
        """
        for _ in range(AGAIN):
            with contextlib.suppress(RolledBack):
                return step()
        return step()

    @contextlib.contextmanager
    def _answers(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise self._meaning(error) from None

    def _meaning(self, error: psycopg.Error) -> SparkonceError:
        """Translates an error into what it proves. Omits the message's details, which contain values."""
        shown, code = self._address.shown, error.sqlstate
        if isinstance(error, errors.SerializationFailure | errors.DeadlockDetected):
            return RolledBack(f"the store {shown} rolled back the transaction because of concurrent ones; try again")
        if isinstance(error, psycopg.DataError):
            return InvalidInput(
                "a value cannot be stored in PostgreSQL (a null character in a name?); nothing was written"
            )
        if isinstance(error, errors.LockNotAvailable):
            return StoreUnavailable(
                f"the store {shown} was locked by others for {self._timeout * FOR_LOCKS:g} s; try again"
            )
        why = error.diag.message_primary or " ".join(str(error).split()) or _LAST
        if code is None or code.startswith(_AWAY):
            return StoreUnavailable(f"the store {shown} did not answer ({why}); try again")
        if isinstance(error, errors.InsufficientPrivilege):
            return StoreUnusable(f"the store {shown} refuses this user ({why}); ask for the right to it")
        return StoreUnusable(f"the store {shown} cannot be used ({why}); restore it from a backup or name another one")

    # --- the layout

    def prepare(self, install: str) -> None:
        """Creates the schema and its tables if they do not exist.

        Raises:
            StoreUnusable: not a ledger, a newer layout, another install's ledger, or an encoding other than UTF8.
            StoreUnavailable: the server did not answer; repeat it.
        """
        place = f"the schema {self._schema} of the store {self._address.shown}"
        with self.reading() as reader:
            encoding = reader.value("encoding")
            there = reader.value("has meta", {"schema": self._schema})
        if encoding != "UTF8":
            raise StoreUnusable(f"the store {self._address.shown} keeps text as {encoding}; use a database with UTF8")
        if not there:
            self._create_tables(install, place)
        with self.reading() as reader:
            meta = reader.row("meta")
        layout, owner = (meta["layout"], meta["install"]) if meta else (0, "")
        if layout > LAYOUT:
            raise StoreUnusable(
                f"{place} has layout {layout}, and this version knows up to {LAYOUT}; upgrade sparkonce"
            )
        if owner != install:
            raise StoreUnusable(f"{place} belongs to install {owner!r}, not {install!r}; name another one")
        with self.reading() as reader:
            added = reader.value("has added", {"schema": self._schema})
        if added < len(ADDED):
            self._add_tables()

    def _add_tables(self) -> None:
        """Adds tables that a ledger of an earlier version lacks."""
        with self.writing("layout", timeout=PREPARING) as transaction:
            for table in ADDED.values():
                transaction.text(table)
            transaction.commit()

    def _create_tables(self, install: str, place: str) -> None:
        with self.writing("layout", timeout=PREPARING) as transaction:
            named = {"schema": self._schema}
            if transaction.value("has meta", named):  # another process created them first
                return
            if transaction.value("has tables", named):
                raise StoreUnusable(f"{place} has other tables and is not a ledger; name another one")
            if not transaction.value("has schema", named):
                transaction.text(f'CREATE SCHEMA "{self._schema}"')
            for table in (*TABLES, *ADDED.values()):
                transaction.text(table)
            row = {"id": 1, "layout": LAYOUT, "install": install, "epoch": 1, "revision": 0, "gap": 0}
            transaction.rows("insert meta", row)
            transaction.commit()
