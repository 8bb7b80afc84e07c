"""A reply ledger in a PostgreSQL database: for the processes of several machines, a web service's natural store.

Its clock is the database's, the one that all processes share. A verb reads the key's row and writes it in one statement that compares what
was read, and begins again where another one was faster: two round trips, and not one more for each statement of a transaction. A purge
compares the expiry of each row that it deletes once more: PostgreSQL would otherwise delete one that another transaction has just written
in its place.

Each write takes the advisory lock of its key first, which the previous version holds from its read to its write.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import LiteralString, TypeVar

from sparkonce.errors import StoreUnavailable
from sparkonce.replies.ledger.ceilings import KEYS, KEYS_OF_CALLER
from sparkonce.replies.ledger.codec import to_row
from sparkonce.replies.ledger.rules import Removal
from sparkonce.replies.ledger.sql import Decide, ReplyReader, ReplyTransaction, Seen, SqlReplies
from sparkonce.replies.protocol import ReplyRecord, StoreTime
from sparkonce.store.postgres.address import parsed
from sparkonce.store.postgres.database import POOL, PostgresDatabase, PostgresStatements
from sparkonce.store.postgres.schema import META, META_STATEMENTS, PostgresTables

T = TypeVar("T")

SCHEMA = "sparkonce_replies"
INSTALL = "replies"
"""In the schema's `meta`: a ledger of jobs is refused."""

_AS_SEEN = """
    WHERE key = %(key)s AND nonce = %(seen_nonce)s AND takeovers = %(seen_takeovers)s AND expires_at = %(seen_expires_at)s
        AND lease_until = %(seen_lease_until)s AND status IS NOT DISTINCT FROM %(seen_status)s
"""
"""What each write to a record changes."""
AGAIN = 20
"""Times that a verb reads again, because others wrote. Of many that write to a key, one succeeds each time."""

STATEMENTS: dict[str, LiteralString] = META_STATEMENTS | {
    "see": """
        SELECT replies.*, extract(epoch FROM clock_timestamp())::float8 AS now
        FROM (SELECT 1) AS one LEFT OUTER JOIN replies ON key = %(key)s
    """,
    "insert": """
        INSERT INTO replies (
            key, caller, fingerprint, nonce, takeovers, reserved_at, expires_at, lease, lease_until, status, headers, body, omitted
        ) VALUES (
            %(key)s, %(caller)s, %(fingerprint)s, %(nonce)s, %(takeovers)s, %(reserved_at)s, %(expires_at)s, %(lease)s, %(lease_until)s,
            %(status)s, %(headers)s, %(body)s, %(omitted)s
        )
        ON CONFLICT (key) DO NOTHING
    """,
    "replace": """
        UPDATE replies SET
            caller = %(caller)s, fingerprint = %(fingerprint)s, nonce = %(nonce)s, takeovers = %(takeovers)s,
            reserved_at = %(reserved_at)s, expires_at = %(expires_at)s, lease = %(lease)s, lease_until = %(lease_until)s,
            status = %(status)s, headers = %(headers)s, body = %(body)s, omitted = %(omitted)s
    """
    + _AS_SEEN,
    "remove": "DELETE FROM replies" + _AS_SEEN,  # noqa: S608 - of constants
    "purge": """
        DELETE FROM replies
        WHERE expires_at <= %(now)s AND (status IS NOT NULL OR lease_until <= %(ticks)s OR lease_until > %(ticks)s + 2 * lease)
            AND key IN (
                SELECT key FROM replies
                WHERE expires_at <= %(now)s AND (status IS NOT NULL OR lease_until <= %(ticks)s OR lease_until > %(ticks)s + 2 * lease)
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

    def _writing(self) -> AbstractContextManager[ReplyTransaction]:
        return self._database.writing()

    def _step(self, key: str, decide: Decide[T], *, seen: Seen | None = None) -> T:
        with self._database.statements() as statements:
            for _ in range(AGAIN):
                found, at = seen or self._see(statements, key)
                outcome, write = decide(found, at)
                if write is None or _written(statements, key, found, write):
                    return outcome
                seen = None
        raise StoreUnavailable(f"others wrote to a key {AGAIN} times while it was read in {self.url}; try again")

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


def _written(statements: PostgresStatements, key: str, found: ReplyRecord | None, write: ReplyRecord | Removal) -> bool:
    """Whether the record was still the one that was found."""
    if found is None:
        assert isinstance(write, ReplyRecord), "what is absent is not removed"
        return statements.write("insert", {"key": key, **to_row(write)}, lock=key)
    values = {
        "key": key,
        "seen_nonce": found.nonce,
        "seen_takeovers": found.takeovers,
        "seen_expires_at": found.expires_at,
        "seen_lease_until": found.lease_until,
        "seen_status": None if found.reply is None else found.reply.status,
    }
    if isinstance(write, ReplyRecord):
        return statements.write("replace", {**values, **to_row(write)}, lock=key)
    return statements.write("remove", values, lock=key)
