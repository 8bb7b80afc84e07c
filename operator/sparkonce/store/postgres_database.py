"""Everything that is a PostgreSQL server's own: connections, transactions, what its errors prove.

Every wait ends. A statement waits for locks and answers no longer than `timeout`, on the server (`lock_timeout`, `statement_timeout`) and,
because a frozen server or a cut line answers nothing, here as well. A client that is frozen inside a transaction is thrown out by the
server after the same time (`idle_in_transaction_session_timeout`), so that it holds nobody up; woken, it finds its connection gone.

An error is an answer only when the server said that it rolled back: a serialization failure or a deadlock is repeated at once
(`RolledBack`), a connection lost inside COMMIT is StoreUnavailable, which proves nothing. Commits are durable when they are answered:
a server or role that turns `synchronous_commit` off is overruled for our sessions. (`fsync=off` cannot be overruled: whoever sets that
has chosen to lose data.)

Connections never cross a fork: a child opens its own, and keeps its parent's unused and unclosed, because closing one there would end the
parent's session. A pooler in transaction mode is not supported, as it would give our session's settings to others and theirs to us.
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
from sparkonce.store.postgres_address import PostgresAddress, lock_of
from sparkonce.store.postgres_tables import LAYOUT, STATEMENTS, TABLES

T = TypeVar("T")

POOL = 8
"""Idle connections kept: a thread uses one at a time; more threads get more, which are closed afterwards."""
AGAIN = 5
"""Times that a step is repeated which the server rolled back; locks are taken in one order, so that once is rare already."""
PREPARING = 60.0
"""Seconds for creating the tables, once in the life of an install."""
FOR_LOCKS, FOR_ANSWERS = 0.8, 0.9
"""Parts of our patience after which the server gives a statement up: its word says more than our silence."""
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_LAST = "the connection was lost"

_AWAY = ("08", "25", "40", "53", "55", "57", "58")
"""Classes of errors that pass: connection, state of the transaction, rolled back, resources, locks, intervention, the server's disk."""
_REFUSALS = ("authentication failed", "no password supplied", "does not exist", "no pg_hba.conf entry")
"""At the start of a session libpq has no error codes. In another language than English these read as StoreUnavailable, too."""

_databases: weakref.WeakSet[PostgresDatabase] = weakref.WeakSet()
_of_parents: list[_Connection] = []  # never used, never closed


def _after_fork_in_child() -> None:
    for database in _databases:
        database.start_afresh()


os.register_at_fork(after_in_child=_after_fork_in_child)


class RolledBack(StoreUnavailable):
    """The server answered, or we know otherwise, that nothing of this transaction stays: it may be repeated at once."""


class _Connection(psycopg.Connection[dict[str, Any]]):
    deadline = 0.0
    """Of time.monotonic(), for all that is waited for."""

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        return super().wait(_bounded(gen, self.deadline), *args, **kwargs)


def _bounded(waiting: Generator[Any, Any, T], deadline: float) -> Generator[Any, Any, T]:
    """psycopg waits in short slices and sends a false value after each that brought nothing."""
    try:
        wanted = next(waiting)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() >= deadline:
                raise psycopg.OperationalError("no answer in time")
            wanted = waiting.send(ready)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # StopIteration is not generic


def _has_something_to_say(connection: _Connection) -> bool:
    """An idle connection is silent; if there is something to read, then it is the server's farewell."""
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))


def _close_all(idle: list[_Connection]) -> None:
    while idle:
        idle.pop().close()


class Look:
    """Statements, by their name in `postgres_tables`, on one connection."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    def rows(self, statement: str, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        try:
            cursor = self._connection.execute(STATEMENTS[statement], parameters or {})
        except UnicodeEncodeError:
            raise InvalidInput("half a surrogate pair cannot be stored as text; nothing was written") from None
        return cursor.fetchall() if cursor.description else []

    def row(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Any:
        """The first row, by column name; None without one."""
        return next(iter(self.rows(statement, parameters)), None)

    def value(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Any:
        """The first column of the first row; None without one."""
        row = self.row(statement, parameters)
        return None if row is None else next(iter(row.values()))


class Transaction(Look):
    """A write transaction: each statement between two failpoints; nothing stays unless `commit` returns."""

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
    def __init__(self, address: PostgresAddress, *, schema: str, timeout: float) -> None:
        self._address, self._schema, self._timeout = address, schema, timeout
        self._idle: list[_Connection] = []
        self._close_at_last = weakref.finalize(self, _close_all, self._idle)
        _databases.add(self)

    # --- connections

    def _connect(self) -> _Connection:
        try:
            connection = _Connection.connect(
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

    def _one(self) -> _Connection:
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread took the last one
                break
            if not connection.closed and not _has_something_to_say(connection):
                return connection
            connection.close()
        return self._connect()

    @contextlib.contextmanager
    def _connection(self, timeout: float) -> Iterator[_Connection]:
        """One for the caller alone; what it left open is rolled back, and one that does not answer any more is closed."""
        connection = self._one()
        connection.deadline = time.monotonic() + timeout
        try:
            yield connection
        finally:
            if self._reusable(connection) and len(self._idle) < POOL and self._close_at_last.alive:
                self._idle.append(connection)
            else:
                connection.close()

    def _reusable(self, connection: _Connection) -> bool:
        status = connection.info.transaction_status
        if status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            with contextlib.suppress(psycopg.Error):
                connection.execute(b"ROLLBACK")
            status = connection.info.transaction_status
        return status is TransactionStatus.IDLE

    def start_afresh(self) -> None:
        """In a child after a fork."""
        _of_parents.extend(self._idle)
        self._idle.clear()

    def close(self) -> None:
        self._close_at_last()

    # --- transactions

    @contextlib.contextmanager
    def reading(self, *, snapshot: bool = False) -> Iterator[Look]:
        """One statement is a consistent look by itself; `snapshot` makes several of them one."""
        with self._answers(), self._connection(self._timeout) as connection:
            if snapshot:
                connection.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield Look(connection)

    @contextlib.contextmanager
    def writing(self, *locks: str, timeout: float | None = None) -> Iterator[Transaction]:
        """What is not committed inside is rolled back. It begins when no other transaction holds the lock of these names: a row that is
        not there yet could not be locked itself."""
        with self._answers(), self._connection(timeout or self._timeout) as connection:
            transaction = Transaction(connection)
            lock = f"; SELECT pg_advisory_xact_lock({lock_of(self._schema, *locks)})" if locks else ""
            transaction.text(_BEGIN + lock)
            yield transaction

    def repeated(self, step: Callable[[], T]) -> T:
        """The step's outcome; again and again while the server says that nothing of it stays."""
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
        """What an error of PostgreSQL proves, as a sentence. Values are in a message's details, which are left out."""
        shown, code = self._address.shown, error.sqlstate
        if isinstance(error, errors.SerializationFailure | errors.DeadlockDetected):
            return RolledBack(f"the store {shown} is busier than it can keep in order; try again")
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
        """Creates the schema and its tables if there are none; StoreUnusable for whatever is not our ledger."""
        place = f"the schema {self._schema} of the store {self._address.shown}"
        with self.reading() as look:
            encoding = look.value("sound")
            there = look.value("has meta", {"schema": self._schema})
        if encoding != "UTF8":
            raise StoreUnusable(f"the store {self._address.shown} keeps text as {encoding}; use a database with UTF8")
        if not there:
            self._create_tables(install, place)
        with self.reading() as look:
            meta = look.row("meta")
        layout, owner = (meta["layout"], meta["install"]) if meta else (0, "")
        if layout > LAYOUT:
            raise StoreUnusable(
                f"{place} has layout {layout}, and this version knows up to {LAYOUT}; upgrade sparkonce"
            )
        if owner != install:
            raise StoreUnusable(f"{place} belongs to install {owner!r}, not {install!r}; name another one")

    def _create_tables(self, install: str, place: str) -> None:
        with self.writing("layout", timeout=PREPARING) as transaction:
            named = {"schema": self._schema}
            if transaction.value("has meta", named):  # another process was first
                return
            if transaction.value("has tables", named):
                raise StoreUnusable(f"{place} is of something else, not a ledger; name another one")
            if not transaction.value("has schema", named):
                transaction.text(f'CREATE SCHEMA "{self._schema}"')
            for table in TABLES:
                transaction.text(table)
            row = {"id": 1, "layout": LAYOUT, "install": install, "epoch": 1, "revision": 0, "gap": 0}
            transaction.rows("insert meta", row)
            transaction.commit()
