"""PostgreSQL connections, transactions, and the meaning of the server's errors.

Every wait is bounded. The server limits waiting for locks and the run time of statements (`lock_timeout`, `statement_timeout`); the client
enforces `timeout` as well, because a frozen server or a broken network sends no answer. The server terminates the session of a client
that freezes inside a transaction after the same time (`idle_in_transaction_session_timeout`), so that it does not block others; when it
resumes, its connection is closed.

An error is an answer only if the server reported a rollback: a serialization failure or deadlock is retried at once (`RolledBack`), a
connection lost during COMMIT is StoreUnavailable, which proves nothing. Acknowledged commits are durable: sessions set
`synchronous_commit` on where the server or role turned it off, or to local, which does not wait for a synchronous standby.
(`fsync=off` cannot be overridden by a client.) A COMMIT whose wait for the standby was cancelled is answered with success and a
warning: it counts as unanswered.

After a commit that moved the store's revision the same connection sends a notification, outside of the transaction: its failure must not
change the answer, and losing it costs watchers one sweep (`store.postgres.watch`).

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
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from sparkonce import settings
from sparkonce.errors import InvalidInput, SparkonceError, StoreUnavailable, StoreUnusable
from sparkonce.failpoints import hit
from sparkonce.store.postgres.address import PostgresAddress, lock_of
from sparkonce.store.postgres.schema import LEDGER, META_STATEMENTS, PostgresTables

T = TypeVar("T")

POOL = 8
"""Default of the maximum of idle connections. Each thread uses one at a time; connections beyond this number are closed after use."""
AGAIN = 5
"""Retries of a step that the server rolled back. Locks are taken in a fixed order, so even one is rare."""
PREPARING = 60.0
"""Seconds for creating the tables, once per install."""
FOR_LOCKS, FOR_ANSWERS = 0.8, 0.9
"""Fractions of `timeout` after which the server cancels a statement: its error proves more than our own timeout."""
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_LAST = "the connection was lost"
_LISTEN = """
; SELECT set_config('application_name', current_setting('application_name') || ' watch', false)
; LISTEN "{channel}"
"""
"""An administrator sees which sessions belong to watches."""

_AWAY = ("08", "25", "40", "53", "55", "57", "58")
"""SQLSTATE classes of temporary errors: connection, transaction state, rollback, resources, locks, operator intervention, disk."""
_REFUSALS = ("authentication failed", "no password supplied", "does not exist", "no pg_hba.conf entry")
"""libpq reports no SQLSTATE for connection errors. On a server with messages in another language these become StoreUnavailable."""
_FULL = ("too many clients", "remaining connection slots", "too many connections")
"""As `_REFUSALS`: the server, the database or the role has as many connections as it may have."""

_databases: weakref.WeakSet[PostgresDatabase] = weakref.WeakSet()
_of_parents: list[_PooledConnection] = []  # never used, never closed


def _after_fork_in_child() -> None:
    for database in _databases:
        database.start_afresh()


os.register_at_fork(after_in_child=_after_fork_in_child)


class RolledBack(StoreUnavailable):
    """The transaction is known to have been rolled back: it may be repeated at once."""


class TooManyConnections(StoreUnavailable):
    """The server takes no further connection: nothing was sent."""


class _PooledConnection(psycopg.Connection[dict[str, Any]]):
    deadline = 0.0
    """time.monotonic() until which any wait on this connection may last."""
    listens = False
    heard = False
    """A notification arrived since this was last set to False."""
    warned: str | None = None
    """The server's last warning."""

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        return super().wait(_bounded(gen, self.deadline), *args, **kwargs)

    def take_notes(self) -> None:
        """Keeps what the server sends besides answers."""
        here = weakref.ref(self)

        def notified(_: psycopg.Notify) -> None:
            if (connection := here()) is not None:
                connection.heard = True

        def noticed(notice: psycopg.errors.Diagnostic) -> None:
            if (connection := here()) is not None and notice.severity_nonlocalized == "WARNING":
                connection.warned = notice.message_primary or "a warning"

        self.add_notify_handler(notified)
        self.add_notice_handler(noticed)

    @contextlib.contextmanager
    def committing(self) -> Iterator[None]:
        """Around what commits.

        Raises: psycopg.OperationalError: it was answered with success and a warning, since its wait for a synchronous standby was
            cancelled: a failover may lose it."""
        self.warned = None
        yield
        if self.warned is not None:
            raise psycopg.OperationalError(self.warned)

    def drained(self) -> bool:
        """Reads what has arrived while the connection was idle; whether notifications were all of it."""
        try:
            self.pgconn.consume_input()
            found = False
            while self.pgconn.notifies() is not None:
                found = self.heard = True
        except psycopg.Error:
            return False
        return found


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


def _is_readable(connection: _PooledConnection, within: float = 0.0) -> bool:
    """True if an idle connection has unread data, or gets some within these seconds."""
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return bool(poll.poll(within * 1000))


def _is_over(connection: _PooledConnection) -> bool:
    """Whether the server has closed an idle connection: nothing but notifications arrives on one that it keeps."""
    return connection.closed or (_is_readable(connection) and not (connection.listens and connection.drained()))


def _close_all(idle: list[_PooledConnection]) -> None:
    while idle:
        idle.pop().close()


class PostgresReader:
    """Runs a schema's statements by name on one connection."""

    def __init__(self, connection: _PooledConnection, statements: Mapping[str, LiteralString]) -> None:
        self._connection, self._statements = connection, statements

    def rows(self, statement: str, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        try:
            cursor = self._connection.execute(self._statements[statement], parameters or {})
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

    def __init__(self, connection: _PooledConnection, statements: Mapping[str, LiteralString], *, channel: str) -> None:
        super().__init__(connection, statements)
        self._channel, self._moved = channel, False

    def advance(self) -> Any:
        """Moves the store's revision, and locks it until the end: revision and epoch. Watchers are notified of the commit."""
        self._moved = True
        return self.row("advance")

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
        """Raises: psycopg.Error: the outcome is unknown."""
        hit("store.sql.commit.before")
        with self._connection.committing():
            self._connection.execute(b"COMMIT")
        hit("store.sql.commit.after")
        if self._moved:
            self._notify()

    def _notify(self) -> None:
        """Wakes the watchers. The transaction is committed, whatever becomes of this."""
        with contextlib.suppress(psycopg.Error):
            self._connection.execute(META_STATEMENTS["notify"], {"channel": self._channel})


class PostgresStatements(PostgresReader):
    """Reads, and writes that are a transaction by themselves, in one round trip. A write compares what its caller has read."""

    def __init__(
        self, connection: _PooledConnection, statements: Mapping[str, LiteralString], *, lock_of: Callable[..., int]
    ) -> None:
        super().__init__(connection, statements)
        self._lock_of = lock_of

    def write(self, statement: str, parameters: Mapping[str, Any], *, lock: str) -> bool:
        """Whether it wrote a row. `lock`: the name whose advisory lock it takes first, as `writing` does: a transaction that has read the
        row under that lock overwrites nothing that this writes.

        Raises: psycopg.Error: the outcome is unknown."""
        hit("store.sql.statement.before")
        # Parameters are merged into the text: the server takes two statements in one message only without any.
        cursor = psycopg.ClientCursor(self._connection)
        query = "SELECT pg_advisory_xact_lock(%(lock)s); " + self._statements[statement]
        hit("store.sql.commit.before")
        with self._connection.committing():
            cursor.execute(query, {**parameters, "lock": self._lock_of(lock)})
            while cursor.nextset():
                pass
        hit("store.sql.commit.after")
        hit("store.sql.statement.after")
        return cursor.rowcount > 0


class _Tables:
    """What is known of the schema's tables; shared by the pools of a store."""

    there = False
    """They were found or made."""
    missed = False
    """One was missing since, and they have not been made anew: the ledger is damaged rather than gone."""


class PostgresDatabase:
    """A pool of connections to one schema, with bounded waits and translated errors."""

    def __init__(
        self,
        address: PostgresAddress,
        *,
        schema: str,
        install: str,
        timeout: float,
        pool: int = POOL,
        listens: bool = False,
        contents: PostgresTables = LEDGER,
        tables: _Tables | None = None,
    ) -> None:
        """`listens`: its connections hear the notifications of writers. `tables`: shared with other pools of the same schema; those that
        are not known to exist are looked for, and created, at the first use."""
        self._contents = contents
        self._address, self._schema, self._install, self._timeout = address, schema, install, timeout
        self._pool, self._listens = pool, listens
        self._tables = tables or _Tables()
        self._idle: list[_PooledConnection] = []
        self._close_at_last = weakref.finalize(self, _close_all, self._idle)
        self.opened = 0
        """Connections opened so far."""
        _databases.add(self)

    def own_connection(self, *, listens: bool = False) -> PostgresDatabase:
        """One connection to the same schema for one thread, which nothing else uses up or waits for."""
        return PostgresDatabase(
            self._address,
            schema=self._schema,
            install=self._install,
            timeout=self._timeout,
            pool=1,
            listens=listens,
            contents=self._contents,
            tables=self._tables,
        )

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
        connection.take_notes()
        connection.listens = self._listens
        try:
            connection.execute(self._settings().encode())
        except BaseException:
            connection.close()
            raise
        self.opened += 1
        return connection

    def _settings(self) -> str:
        within, for_locks, for_answers = (round(self._timeout * part * 1000) for part in (1, FOR_LOCKS, FOR_ANSWERS))
        return (
            f'SET search_path TO "{self._schema}";'
            f"SET lock_timeout = {for_locks}; SET statement_timeout = {for_answers};"
            f"SET idle_in_transaction_session_timeout = {within};"
            "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') IN ('off', 'local')"
            + (_LISTEN.format(channel=self._schema) if self._listens else "")
        )

    def _not_connected(self, error: psycopg.Error) -> SparkonceError:
        why = " ".join(str(error).split())
        if any(word in why for word in _FULL):
            return TooManyConnections(
                f"the store {self._address.shown} takes no more connections ({why}); nothing was sent; raise its limit, or lower "
                f"{settings.POSTGRES_POOL} of the processes that use it"
            )
        if any(word in why for word in _REFUSALS):
            return StoreUnusable(f"the store {self._address.shown} cannot be used ({why}); correct its address")
        return StoreUnavailable(f"the store {self._address.shown} cannot be reached ({why}); is it running?")

    def _one(self) -> _PooledConnection:
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread took the last one
                break
            if not _is_over(connection):
                return connection
            connection.close()
        return self._connect()

    def heard(self, within: float) -> None:
        """Waits until a notification arrives, for so many seconds at most; returns at once without a connection, since none is heard then.
        For the one thread of a pool that listens."""
        if not self._idle:
            return
        connection = self._idle[-1]
        if not connection.heard and not connection.closed and _is_readable(connection, within):
            connection.drained()
        connection.heard = False  # before the changes are read: what arrives from now on is heard again

    @contextlib.contextmanager
    def _connection(self, timeout: float) -> Iterator[_PooledConnection]:
        """Lends one connection exclusively; rolls back what is left open, and closes a connection that no longer answers."""
        connection = self._one()
        connection.deadline = time.monotonic() + timeout
        try:
            yield connection
        finally:
            if self._reusable(connection) and len(self._idle) < self._pool and self._close_at_last.alive:
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
        self._ensure_prepared()
        with self._reading(snapshot=snapshot) as reader:
            yield reader

    @contextlib.contextmanager
    def _reading(self, *, snapshot: bool = False) -> Iterator[PostgresReader]:
        with self._answers(), self._connection(self._timeout) as connection:
            if snapshot:
                connection.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield PostgresReader(connection, self._contents.statements)

    @contextlib.contextmanager
    def writing(self, *locks: str) -> Iterator[PostgresTransaction]:
        """A write transaction; rolled back unless committed inside. Waits for the advisory lock of these names, because a row that does
        not exist yet cannot be locked.

        Raises:
            RolledBack: nothing was written.
            StoreUnavailable: proves nothing if raised by the commit; else nothing was written.
            StoreUnusable, InvalidInput: nothing was written.
        """
        self._ensure_prepared()
        with self._writing(*locks, timeout=self._timeout) as transaction:
            yield transaction

    @contextlib.contextmanager
    def _writing(self, *locks: str, timeout: float) -> Iterator[PostgresTransaction]:
        with self._answers(), self._connection(timeout) as connection:
            transaction = PostgresTransaction(connection, self._contents.statements, channel=self._schema)
            lock = f"; SELECT pg_advisory_xact_lock({self.lock_of(*locks)})" if locks else ""
            transaction.text(_BEGIN + lock)
            yield transaction

    @contextlib.contextmanager
    def statements(self) -> Iterator[PostgresStatements]:
        """Reads and single writes on one connection; each is a transaction of its own.

        Raises:
            StoreUnavailable: proves nothing if raised by a write.
            StoreUnusable, InvalidInput: nothing was written.
        """
        self._ensure_prepared()
        with self._answers(), self._connection(self._timeout) as connection:
            yield PostgresStatements(connection, self._contents.statements, lock_of=self.lock_of)

    def lock_of(self, *names: str) -> int:
        """The number of the advisory lock that `writing` takes for these names."""
        return lock_of(self._schema, *names)

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
        tables = self._tables
        if isinstance(error, errors.UndefinedTable) and not (tables.there and tables.missed):
            tables.there, tables.missed = False, True
            return StoreUnavailable(
                f"the store {shown} lacks a table ({why}); the next request looks for them, and makes new ones if there are none"
            )
        if code is None or code.startswith(_AWAY):
            return StoreUnavailable(f"the store {shown} did not answer ({why}); try again")
        if isinstance(error, errors.InsufficientPrivilege):
            return StoreUnusable(f"the store {shown} refuses this user ({why}); ask for the right to it")
        return StoreUnusable(f"the store {shown} cannot be used ({why}); restore it from a backup or name another one")

    # --- the layout

    def prepare(self) -> None:
        """Creates the schema and its tables if they do not exist. May be called by several threads and processes at once.

        Raises:
            StoreUnusable: not a ledger, a newer layout, another install's ledger, or an encoding other than UTF8.
            StoreUnavailable: the server did not answer; repeat it.
        """
        place = f"the schema {self._schema} of the store {self._address.shown}"
        with self._reading() as reader:
            encoding = reader.value("encoding")
            there = reader.value("has meta", {"schema": self._schema})
        if encoding != "UTF8":
            raise StoreUnusable(f"the store {self._address.shown} keeps text as {encoding}; use a database with UTF8")
        if not there:
            self._create_tables(place)
        with self._reading() as reader:
            meta = reader.row("meta")
        layout, owner = (meta["layout"], meta["install"]) if meta else (0, "")
        if layout > self._contents.layout:
            raise StoreUnusable(
                f"{place} has layout {layout}, and this version knows up to {self._contents.layout}; upgrade sparkonce"
            )
        if owner != self._install:
            raise StoreUnusable(f"{place} belongs to install {owner!r}, not {self._install!r}; name another one")
        if self._contents.added:
            with self._reading() as reader:
                added = reader.value("has added", {"schema": self._schema})
            if added < len(self._contents.added):
                self._add_tables()
        self._tables.there = True

    def _ensure_prepared(self) -> None:
        if not self._tables.there:
            self.prepare()

    def _add_tables(self) -> None:
        """Adds tables that a ledger of an earlier version lacks."""
        with self._writing("layout", timeout=PREPARING) as transaction:
            for table in self._contents.added.values():
                transaction.text(table)
            transaction.commit()

    def _create_tables(self, place: str) -> None:
        with self._writing("layout", timeout=PREPARING) as transaction:
            named = {"schema": self._schema}
            if transaction.value("has meta", named):  # another process created them first
                return
            if transaction.value("has tables", named):
                raise StoreUnusable(f"{place} has other tables and is not a ledger; name another one")
            if not transaction.value("has schema", named):
                transaction.text(f'CREATE SCHEMA "{self._schema}"')
            for table in (*self._contents.ddl, *self._contents.added.values()):
                transaction.text(table)
            row = {
                "id": 1,
                "layout": self._contents.layout,
                "install": self._install,
                "epoch": 1,
                "revision": 0,
                "gap": 0,
            }
            transaction.rows("insert meta", row)
            transaction.commit()
        self._tables.missed = False
