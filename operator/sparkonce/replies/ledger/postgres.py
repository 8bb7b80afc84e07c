"""A reply ledger in a PostgreSQL database: for the processes of several machines, a web service's natural store.

Its clock is the database's, the one that all processes share. A write transaction begins with an advisory lock of its key, because a key
that is absent has no row to lock. A purge compares the expiry of each row that it deletes once more: PostgreSQL would otherwise delete one
that another transaction has just written in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import LiteralString

from sparkonce.replies.ledger.ceilings import KEYS, KEYS_OF_CALLER
from sparkonce.replies.ledger.sql import ReplyReader, ReplyTransaction, SqlReplies
from sparkonce.replies.protocol import ReplyRecord, StoreTime
from sparkonce.store.postgres.address import parsed
from sparkonce.store.postgres.database import POOL, PostgresDatabase
from sparkonce.store.postgres.schema import META, META_STATEMENTS, PostgresTables

SCHEMA = "sparkonce_replies"
INSTALL = "replies"
"""In the schema's `meta`: a ledger of jobs is refused."""

STATEMENTS: dict[str, LiteralString] = META_STATEMENTS | {
    "see": """
        SELECT replies.*, extract(epoch FROM clock_timestamp())::float8 AS now
        FROM (SELECT 1) AS one LEFT OUTER JOIN replies ON key = %(key)s
    """,
    "put": """
        INSERT INTO replies (
            key, caller, fingerprint, nonce, takeovers, reserved_at, expires_at, lease, lease_until, status, headers, body, omitted
        ) VALUES (
            %(key)s, %(caller)s, %(fingerprint)s, %(nonce)s, %(takeovers)s, %(reserved_at)s, %(expires_at)s, %(lease)s, %(lease_until)s,
            %(status)s, %(headers)s, %(body)s, %(omitted)s
        )
        ON CONFLICT (key) DO UPDATE SET
            caller = excluded.caller, fingerprint = excluded.fingerprint, nonce = excluded.nonce, takeovers = excluded.takeovers,
            reserved_at = excluded.reserved_at, expires_at = excluded.expires_at, lease = excluded.lease,
            lease_until = excluded.lease_until, status = excluded.status, headers = excluded.headers, body = excluded.body,
            omitted = excluded.omitted
    """,
    "remove": "DELETE FROM replies WHERE key = %(key)s",
    "purge": """
        DELETE FROM replies
        WHERE expires_at <= %(now)s AND (status IS NOT NULL OR lease_until <= %(ticks)s OR lease_until > %(ticks)s + lease)
            AND key IN (
                SELECT key FROM replies
                WHERE expires_at <= %(now)s AND (status IS NOT NULL OR lease_until <= %(ticks)s OR lease_until > %(ticks)s + lease)
                ORDER BY expires_at LIMIT %(at_most)s FOR UPDATE SKIP LOCKED
            )
        RETURNING key
    """,
    "count of caller": """
        SELECT count(*) AS live, min(expires_at) AS first FROM replies WHERE caller = %(caller)s AND expires_at > %(now)s
    """,
    "count": "SELECT count(*) AS live, min(expires_at) AS first FROM replies WHERE expires_at > %(now)s",
}

TABLES = PostgresTables(
    layout=1,
    ddl=(
        META,
        """
CREATE TABLE replies (
    key TEXT COLLATE "C" NOT NULL, caller TEXT NOT NULL, fingerprint TEXT NOT NULL, nonce TEXT NOT NULL, takeovers INTEGER NOT NULL,
    reserved_at FLOAT NOT NULL, expires_at FLOAT NOT NULL, lease FLOAT NOT NULL, lease_until FLOAT NOT NULL,
    status INTEGER, headers TEXT, body BYTEA, omitted BIGINT NOT NULL,
    PRIMARY KEY (key)
)
""",
        "CREATE INDEX replies_by_expiry ON replies (expires_at)",
        "CREATE INDEX replies_by_caller ON replies (caller, expires_at)",
    ),
    statements=STATEMENTS,
)


class PostgresReplies(SqlReplies):
    def __init__(
        self,
        url: str,
        *,
        schema: str = SCHEMA,
        timeout: float = 2.0,
        pool: int = POOL,
        keys: int = KEYS,
        keys_of_caller: int = KEYS_OF_CALLER,
        clock: Callable[[], float] | None = None,
        monotonic: Callable[[], float] | None = None,
    ) -> None:
        """Connects with the first verb, so that a service may start before its database. `timeout`: seconds for one verb; `pool`:
        connections that are kept. For tests: `clock` and `monotonic`, instead of the database's clock.

        Raises: InvalidInput."""
        super().__init__(keys=keys, keys_of_caller=keys_of_caller)
        address = parsed(url, timeout=timeout)
        self.url = address.shown
        self._clock, self._monotonic = clock, monotonic
        self._database = PostgresDatabase(
            address, schema=schema, install=INSTALL, timeout=timeout, pool=pool, contents=TABLES
        )

    def _reading(self) -> AbstractContextManager[ReplyReader]:
        return self._database.reading()

    def _writing(self, *keys: str) -> AbstractContextManager[ReplyTransaction]:
        return self._database.writing(*keys)

    def _see(self, reader: ReplyReader, key: str) -> tuple[ReplyRecord | None, StoreTime]:
        row = reader.row("see", {"key": key})
        return self._found(key, row), self._at(float(row["now"]))

    def _time(self, reader: ReplyReader) -> StoreTime:
        return self._at(float(reader.row("now")["now"]))

    def _at(self, now: float) -> StoreTime:
        return StoreTime(
            now if self._clock is None else self._clock(), now if self._monotonic is None else self._monotonic()
        )

    async def close(self) -> None:
        self._database.close()
