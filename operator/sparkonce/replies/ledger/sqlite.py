"""A reply ledger in a SQLite file: for the processes of one machine.

A claim ends by the machine's monotonic clock, so that a clock that is set, or a laptop that sleeps, makes no owner stale; records expire
by the wall clock. A file lock, by which the jobs' ledger recognises a dead process, would leave a frozen owner's keys locked until it is
killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from sparkonce.replies.ledger.ceilings import KEYS, KEYS_OF_CALLER
from sparkonce.replies.ledger.codec import to_row
from sparkonce.replies.ledger.sql import Decide, ReplyReader, ReplyTransaction, Seen, SqlReplies
from sparkonce.replies.protocol import ReplyRecord, StoreTime
from sparkonce.store.sqlite.database import BUSY_TIMEOUT, SqliteDatabase
from sparkonce.store.sqlite.schema import META, META_STATEMENTS, SqliteTables

T = TypeVar("T")

INSTALL = "replies"
"""In the file's `meta`: a ledger of jobs is refused."""

STATEMENTS = META_STATEMENTS | {
    "see": "SELECT * FROM replies WHERE key = :key",
    "put": """
        INSERT INTO replies (
            key, caller, fingerprint, nonce, takeovers, reserved_at, expires_at, lease, lease_until, status, headers, body, omitted
        ) VALUES (
            :key, :caller, :fingerprint, :nonce, :takeovers, :reserved_at, :expires_at, :lease, :lease_until,
            :status, :headers, :body, :omitted
        )
        ON CONFLICT (key) DO UPDATE SET
            caller = excluded.caller, fingerprint = excluded.fingerprint, nonce = excluded.nonce, takeovers = excluded.takeovers,
            reserved_at = excluded.reserved_at, expires_at = excluded.expires_at, lease = excluded.lease,
            lease_until = excluded.lease_until, status = excluded.status, headers = excluded.headers, body = excluded.body,
            omitted = excluded.omitted
    """,
    "remove": "DELETE FROM replies WHERE key = :key",
    "purge": """
        DELETE FROM replies WHERE key IN (
            SELECT key FROM replies
            WHERE expires_at <= :now AND (status IS NOT NULL OR lease_until <= :ticks OR lease_until > :ticks + 2 * lease)
            ORDER BY expires_at LIMIT :at_most
        ) RETURNING key
    """,
    "count of caller": "SELECT count(*) AS live, min(expires_at) AS first FROM replies WHERE caller = :caller AND expires_at > :now",
    "count": "SELECT count(*) AS live, min(expires_at) AS first FROM replies WHERE expires_at > :now",
}

TABLES = SqliteTables(
    layout=1,
    ddl=(
        META,
        """
CREATE TABLE replies (
    key TEXT NOT NULL, caller TEXT NOT NULL, fingerprint TEXT NOT NULL, nonce TEXT NOT NULL, takeovers INTEGER NOT NULL,
    reserved_at FLOAT NOT NULL, expires_at FLOAT NOT NULL, lease FLOAT NOT NULL, lease_until FLOAT NOT NULL,
    status INTEGER, headers TEXT, body BLOB, omitted BIGINT NOT NULL,
    PRIMARY KEY (key)
)
""",
        "CREATE INDEX replies_by_expiry ON replies (expires_at)",
        "CREATE INDEX replies_by_caller ON replies (caller, expires_at)",
    ),
    statements=STATEMENTS,
)


class SqliteReplies(SqlReplies):
    def __init__(
        self,
        path: Path | str,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        keys: int = KEYS,
        keys_of_caller: int = KEYS_OF_CALLER,
        synchronous: str = "FULL",
        busy_timeout: float = BUSY_TIMEOUT,
    ) -> None:
        """`synchronous`: other than FULL only in tests. Raises: StoreUnusable, StoreUnavailable."""
        super().__init__(keys=keys, keys_of_caller=keys_of_caller)
        self._database = SqliteDatabase(Path(path), contents=TABLES, synchronous=synchronous, busy_timeout=busy_timeout)
        self._database.prepare(INSTALL)
        self.url = f"sqlite:///{self._database.path}"
        self._clock, self._monotonic = clock, monotonic

    def _reading(self) -> AbstractContextManager[ReplyReader]:
        return self._database.reading()

    def _writing(self) -> AbstractContextManager[ReplyTransaction]:
        return self._database.writing()

    def _step(self, key: str, decide: Decide[T], *, seen: Seen | None = None) -> T:
        del seen  # may have changed
        with self._database.writing() as transaction:
            outcome, write = decide(*self._see(transaction, key))
            if isinstance(write, ReplyRecord):
                transaction.rows("put", {"key": key, **to_row(write)})
            elif write is not None:
                transaction.rows("remove", {"key": key})
            if write is not None:
                transaction.commit()
        return outcome

    def _see(self, reader: ReplyReader, key: str) -> tuple[ReplyRecord | None, StoreTime]:
        return self._found(key, reader.row("see", {"key": key})), self._time(reader)

    def _time(self, reader: ReplyReader) -> StoreTime:  # noqa: ARG002 - the clocks are this machine's
        return StoreTime(self._clock(), self._monotonic())

    async def close(self) -> None:
        self._database.close()
