"""Tables and statements of the PostgreSQL store, in psycopg's parameter style. `store.ledger` runs those it shares with SQLite by name.

The tables are those of `store.sqlite.schema`, which explains them, plus leases and replicas. Names are COLLATE "C": they compare and sort
by their bytes, as in every other store, so that a page of a listing continues exactly where the last one ended.

A lease is a row with an end in the *database's* clock, the one clock that all owners share (unix seconds). It lives while that end is in
the future. Once the end has passed, the transaction that acts on it deletes the row under its lock, and no keepalive can revive it.
`clock_timestamp()` and not `now()`: the latter is the start of the transaction, before it waited for its locks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import LiteralString


@dataclass(frozen=True)
class PostgresTables:
    """Tables and statements of one kind of schema: as `store.sqlite.schema.SqliteTables`."""

    layout: int
    ddl: Sequence[LiteralString]
    statements: Mapping[str, LiteralString]
    """META_STATEMENTS included, and `has added` if tables were added."""
    added: Mapping[str, LiteralString] = field(default_factory=dict)


LAYOUT = 1
"""Version of these tables. A newer store is refused; an older one will be migrated when it is opened."""

META: LiteralString = """
CREATE TABLE meta (
    id SERIAL NOT NULL, layout INTEGER NOT NULL, install TEXT NOT NULL, epoch INTEGER NOT NULL,
    revision BIGINT NOT NULL, gap BIGINT NOT NULL,
    PRIMARY KEY (id)
)
"""

TABLES: tuple[LiteralString, ...] = (
    META,
    """
CREATE TABLE records (
    id BIGSERIAL NOT NULL, realm TEXT COLLATE "C" NOT NULL, key_hash TEXT COLLATE "C" NOT NULL,
    revision BIGINT NOT NULL, state TEXT NOT NULL, expires_at FLOAT, body TEXT NOT NULL,
    PRIMARY KEY (id), UNIQUE (realm, key_hash)
)
""",
    "CREATE INDEX records_by_expiry ON records (realm, expires_at) WHERE expires_at IS NOT NULL",
    "CREATE INDEX records_by_revision ON records (revision)",
    """
CREATE TABLE claims (
    realm TEXT COLLATE "C" NOT NULL, key_hash TEXT COLLATE "C" NOT NULL,
    lease TEXT NOT NULL, owner TEXT NOT NULL, revision BIGINT NOT NULL, nonce TEXT NOT NULL, touched FLOAT NOT NULL, boot TEXT NOT NULL,
    PRIMARY KEY (realm, key_hash)
)
""",
    """
CREATE TABLE floors (
    realm TEXT COLLATE "C" NOT NULL, key_hash TEXT COLLATE "C" NOT NULL,
    floor INTEGER NOT NULL,
    PRIMARY KEY (realm, key_hash)
)
""",
    """
CREATE TABLE specs (
    realm TEXT COLLATE "C" NOT NULL, key_hash TEXT COLLATE "C" NOT NULL,
    generation INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (realm, key_hash, generation)
)
""",
    """
CREATE TABLE results (
    realm TEXT COLLATE "C" NOT NULL, key_hash TEXT COLLATE "C" NOT NULL,
    generation INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (realm, key_hash, generation)
)
""",
    """
CREATE TABLE intents (
    realm TEXT COLLATE "C" NOT NULL, key_hash TEXT COLLATE "C" NOT NULL,
    generation INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (realm, key_hash, generation)
)
""",
    """
CREATE TABLE reports (
    realm TEXT COLLATE "C" NOT NULL, key_hash TEXT COLLATE "C" NOT NULL,
    generation INTEGER NOT NULL, attempt INTEGER NOT NULL, reporter TEXT COLLATE "C" NOT NULL,
    revision BIGINT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (realm, key_hash, generation, attempt, reporter)
)
""",
    "CREATE INDEX reports_by_revision ON reports (revision)",
    """
CREATE TABLE beats (
    realm TEXT COLLATE "C" NOT NULL, key_hash TEXT COLLATE "C" NOT NULL,
    generation INTEGER NOT NULL, attempt INTEGER NOT NULL, "by" TEXT COLLATE "C" NOT NULL,
    wall FLOAT NOT NULL, touched FLOAT NOT NULL, boot TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (realm, key_hash, generation, attempt, "by")
)
""",
    """
CREATE TABLE events (
    realm TEXT COLLATE "C" NOT NULL, key_hash TEXT COLLATE "C" NOT NULL,
    seq INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (realm, key_hash, seq)
)
""",
    """
CREATE TABLE gone (
    realm TEXT COLLATE "C" NOT NULL, key_hash TEXT COLLATE "C" NOT NULL,
    revision BIGINT NOT NULL,
    PRIMARY KEY (realm, key_hash)
)
""",
    "CREATE INDEX gone_by_revision ON gone (revision)",
    """
CREATE TABLE leases (
    id TEXT NOT NULL, owner TEXT NOT NULL, ends FLOAT NOT NULL,
    PRIMARY KEY (id)
)
""",
    """
CREATE TABLE replicas (
    nonce TEXT NOT NULL, lease TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (nonce)
)
""",
)

ADDED: dict[str, LiteralString] = {
    "report_sizes": """
CREATE TABLE IF NOT EXISTS report_sizes (
    realm TEXT COLLATE "C" NOT NULL, key_hash TEXT COLLATE "C" NOT NULL,
    generation INTEGER NOT NULL, attempt INTEGER NOT NULL, reports INTEGER NOT NULL, bytes BIGINT NOT NULL,
    PRIMARY KEY (realm, key_hash, generation, attempt)
)
"""
}
"""As in `store.sqlite.schema`."""

META_STATEMENTS: dict[str, LiteralString] = {
    "encoding": "SELECT current_setting('server_encoding') AS encoding",
    "has schema": "SELECT 1 AS n FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s",
    "has meta": """
        SELECT 1 AS n FROM pg_catalog.pg_class
        JOIN pg_catalog.pg_namespace ON pg_namespace.oid = pg_class.relnamespace
        WHERE nspname = %(schema)s AND relname = 'meta'
    """,
    "has tables": """
        SELECT 1 AS n FROM pg_catalog.pg_class
        JOIN pg_catalog.pg_namespace ON pg_namespace.oid = pg_class.relnamespace
        WHERE nspname = %(schema)s LIMIT 1
    """,
    "now": "SELECT extract(epoch FROM clock_timestamp())::float8 AS now",
    "meta": "SELECT id, layout, install, epoch, revision, gap FROM meta",
    "insert meta": """
        INSERT INTO meta (id, layout, install, epoch, revision, gap)
        VALUES (%(id)s, %(layout)s, %(install)s, %(epoch)s, %(revision)s, %(gap)s)
    """,
    "notify": "SELECT pg_notify(%(channel)s, '')",
}
"""What `PostgresDatabase` itself runs."""

STATEMENTS: dict[str, LiteralString] = META_STATEMENTS | {
    # --- the database and the store
    "has added": """
        SELECT count(*) AS n FROM pg_catalog.pg_class
        JOIN pg_catalog.pg_namespace ON pg_namespace.oid = pg_class.relnamespace
        WHERE nspname = %(schema)s AND relname = 'report_sizes'
    """,
    # Locks the only row: until the commit no other transaction moves the store's revision.
    "advance": "UPDATE meta SET revision = revision + 1 RETURNING revision, epoch",
    "raise epoch": "UPDATE meta SET epoch = epoch + 1 WHERE epoch = %(seen)s",
    # --- one key: everything a step decides on, in one statement
    "see": """
        SELECT meta.revision, meta.epoch, records.body, records.revision AS record_revision,
            claims.lease, claims.owner, claims.revision AS claim_revision, claims.nonce, claims.touched, claims.boot,
            floors.floor,
            (SELECT max(seq) FROM events WHERE realm = %(at_realm)s AND key_hash = %(at_hash)s) AS events,
            (SELECT max(id) FROM records) AS at_most,
            extract(epoch FROM clock_timestamp())::float8 AS now,
            EXISTS (
                SELECT 1 FROM leases
                WHERE leases.id = claims.lease AND leases.ends > extract(epoch FROM clock_timestamp())::float8
            ) AS lives
        FROM meta
        LEFT OUTER JOIN records ON records.realm = %(at_realm)s AND records.key_hash = %(at_hash)s
        LEFT OUTER JOIN claims ON claims.realm = %(at_realm)s AND claims.key_hash = %(at_hash)s
        LEFT OUTER JOIN floors ON floors.realm = %(at_realm)s AND floors.key_hash = %(at_hash)s
    """,
    "insert records": """
        INSERT INTO records (realm, key_hash, revision, state, expires_at, body)
        VALUES (%(realm)s, %(key_hash)s, %(revision)s, %(state)s, %(expires_at)s, %(body)s)
    """,
    "change record": """
        UPDATE records SET revision = %(new_revision)s, state = %(new_state)s, expires_at = %(new_expiry)s, body = %(new_body)s
        WHERE realm = %(at_realm)s AND key_hash = %(at_hash)s
    """,
    "remove records": "DELETE FROM records WHERE realm = %(at_realm)s AND key_hash = %(at_hash)s",
    "insert floors": "INSERT INTO floors (realm, key_hash, floor) VALUES (%(realm)s, %(key_hash)s, %(floor)s)",
    "remove floors": "DELETE FROM floors WHERE realm = %(at_realm)s AND key_hash = %(at_hash)s",
    # --- its claim
    "insert claims": """
        INSERT INTO claims (realm, key_hash, lease, owner, revision, nonce, touched, boot)
        VALUES (%(realm)s, %(key_hash)s, %(lease)s, %(owner)s, %(revision)s, %(nonce)s, %(touched)s, %(boot)s)
    """,
    "remove claims": "DELETE FROM claims WHERE realm = %(at_realm)s AND key_hash = %(at_hash)s",
    "claims of lease": "SELECT realm, key_hash FROM claims WHERE lease = %(of_lease)s ORDER BY realm, key_hash",
    "claims that ended": """
        SELECT lease, realm, key_hash FROM claims
        WHERE NOT EXISTS (
            SELECT 1 FROM leases
            WHERE leases.id = claims.lease AND leases.ends > extract(epoch FROM clock_timestamp())::float8
        )
        ORDER BY lease, realm, key_hash LIMIT %(at_most)s
    """,
    # Takes those of several keys' locks that are free: a transaction that waits for one lock while it holds others can deadlock.
    "try locks": """
        SELECT number, pg_try_advisory_xact_lock(number) AS locked FROM unnest(%(numbers)s::bigint[]) AS number
    """,
    # --- leases
    "open lease": """
        INSERT INTO leases (id, owner, ends)
        VALUES (%(of_lease)s, %(owner)s, extract(epoch FROM clock_timestamp())::float8 + %(seconds)s)
    """,
    "prolong lease": """
        UPDATE leases SET ends = extract(epoch FROM clock_timestamp())::float8 + %(seconds)s
        WHERE id = %(of_lease)s AND ends > extract(epoch FROM clock_timestamp())::float8
        RETURNING ends
    """,
    "end lease": "DELETE FROM leases WHERE id = %(of_lease)s",
    # Waits for a keepalive in progress, then decides by what the keepalive wrote.
    "end lease if over": """
        DELETE FROM leases WHERE id = %(of_lease)s AND ends <= extract(epoch FROM clock_timestamp())::float8
    """,
    # SKIP LOCKED: two of these running at once could otherwise deadlock.
    "end leases that are over": """
        DELETE FROM leases WHERE id IN (
            SELECT id FROM leases WHERE ends <= extract(epoch FROM clock_timestamp())::float8 FOR UPDATE SKIP LOCKED
        )
    """,
    "lease is there": "SELECT id FROM leases WHERE id = %(of_lease)s",
    "lease lives": """
        SELECT id FROM leases WHERE id = %(of_lease)s AND ends > extract(epoch FROM clock_timestamp())::float8
    """,
    # --- beside its record
    "get specs": "SELECT body FROM specs WHERE realm = %(at_realm)s AND key_hash = %(at_hash)s AND generation = %(of)s",
    "insert specs": """
        INSERT INTO specs (realm, key_hash, generation, body) VALUES (%(realm)s, %(key_hash)s, %(generation)s, %(body)s)
    """,
    "remove specs of generation": """
        DELETE FROM specs WHERE realm = %(at_realm)s AND key_hash = %(at_hash)s AND generation = %(of)s
    """,
    "remove specs": "DELETE FROM specs WHERE realm = %(at_realm)s AND key_hash = %(at_hash)s",
    "get results": "SELECT body FROM results WHERE realm = %(at_realm)s AND key_hash = %(at_hash)s AND generation = %(of)s",
    "insert results": """
        INSERT INTO results (realm, key_hash, generation, body) VALUES (%(realm)s, %(key_hash)s, %(generation)s, %(body)s)
    """,
    "remove results of generation": """
        DELETE FROM results WHERE realm = %(at_realm)s AND key_hash = %(at_hash)s AND generation = %(of)s
    """,
    "remove results": "DELETE FROM results WHERE realm = %(at_realm)s AND key_hash = %(at_hash)s",
    "get intents": "SELECT body FROM intents WHERE realm = %(at_realm)s AND key_hash = %(at_hash)s AND generation = %(of)s",
    "insert intents": """
        INSERT INTO intents (realm, key_hash, generation, body) VALUES (%(realm)s, %(key_hash)s, %(generation)s, %(body)s)
    """,
    "remove intents of generation": """
        DELETE FROM intents WHERE realm = %(at_realm)s AND key_hash = %(at_hash)s AND generation = %(of)s
    """,
    "remove intents": "DELETE FROM intents WHERE realm = %(at_realm)s AND key_hash = %(at_hash)s",
    "get report": """
        SELECT body FROM reports
        WHERE realm = %(at_realm)s AND key_hash = %(at_hash)s AND generation = %(of)s
            AND attempt = %(in_attempt)s AND reporter = %(from_reporter)s
    """,
    "get reports": """
        SELECT body FROM reports WHERE realm = %(at_realm)s AND key_hash = %(at_hash)s AND generation = %(of)s
        ORDER BY attempt, reporter
    """,
    "insert reports": """
        INSERT INTO reports (realm, key_hash, generation, attempt, reporter, revision, body)
        VALUES (%(realm)s, %(key_hash)s, %(generation)s, %(attempt)s, %(reporter)s, %(revision)s, %(body)s)
    """,
    "remove reports": "DELETE FROM reports WHERE realm = %(at_realm)s AND key_hash = %(at_hash)s",
    "get report size": """
        SELECT reports, bytes FROM report_sizes
        WHERE realm = %(at_realm)s AND key_hash = %(at_hash)s AND generation = %(of)s AND attempt = %(in_attempt)s
    """,
    "insert report sizes": """
        INSERT INTO report_sizes (realm, key_hash, generation, attempt, reports, bytes)
        VALUES (%(realm)s, %(key_hash)s, %(generation)s, %(attempt)s, %(reports)s, %(bytes)s)
    """,
    "remove report size": """
        DELETE FROM report_sizes
        WHERE realm = %(at_realm)s AND key_hash = %(at_hash)s AND generation = %(of)s AND attempt = %(in_attempt)s
    """,
    "reported in realm": "SELECT sum(bytes) AS n FROM report_sizes WHERE realm = %(in_realm)s",
    "remove report sizes": "DELETE FROM report_sizes WHERE realm = %(at_realm)s AND key_hash = %(at_hash)s",
    "get beats": """
        SELECT attempt, "by", wall, touched, boot, body, extract(epoch FROM clock_timestamp())::float8 AS now
        FROM beats
        WHERE realm = %(at_realm)s AND key_hash = %(at_hash)s AND generation = %(of)s
        ORDER BY attempt, "by"
    """,
    "insert beats": """
        INSERT INTO beats (realm, key_hash, generation, attempt, "by", wall, touched, boot, body)
        VALUES (%(realm)s, %(key_hash)s, %(generation)s, %(attempt)s, %(by)s, %(wall)s, %(touched)s, %(boot)s, %(body)s)
    """,
    "remove beat": """
        DELETE FROM beats
        WHERE realm = %(at_realm)s AND key_hash = %(at_hash)s AND generation = %(of)s
            AND attempt = %(in_attempt)s AND "by" = %(from_whom)s
    """,
    "remove beats": "DELETE FROM beats WHERE realm = %(at_realm)s AND key_hash = %(at_hash)s",
    "get events": "SELECT body FROM events WHERE realm = %(at_realm)s AND key_hash = %(at_hash)s ORDER BY seq",
    "insert events": "INSERT INTO events (realm, key_hash, seq, body) VALUES (%(realm)s, %(key_hash)s, %(seq)s, %(body)s)",
    "remove old events": "DELETE FROM events WHERE realm = %(at_realm)s AND key_hash = %(at_hash)s AND seq <= %(up_to)s",
    # --- all keys
    "count": "SELECT count(*) AS n FROM records",
    "count realm": "SELECT count(*) AS n FROM records WHERE realm = %(in_realm)s",
    "count expired": "SELECT count(*) AS n FROM records WHERE expires_at <= %(at)s",
    "count expired of realm": "SELECT count(*) AS n FROM records WHERE realm = %(in_realm)s AND expires_at <= %(at)s",
    "next expiry": "SELECT min(expires_at) AS at FROM records WHERE realm = %(in_realm)s AND expires_at > %(at)s",
    # Every realm that has a record or a floor; each step is one look into either index, however many keys a realm has.
    "realms": """
        WITH RECURSIVE found (realm) AS (
            SELECT min(realm) FROM (
                SELECT min(realm) AS realm FROM records UNION ALL SELECT min(realm) FROM floors
            ) AS lowest
            UNION ALL
            SELECT (
                SELECT min(realm) FROM (
                    SELECT min(realm) AS realm FROM records WHERE realm > found.realm
                    UNION ALL SELECT min(realm) FROM floors WHERE realm > found.realm
                ) AS higher
            )
            FROM found WHERE found.realm IS NOT NULL
        )
        SELECT realm FROM found WHERE realm IS NOT NULL ORDER BY realm
    """,
    # A record in a state that this version does not know is listed (as unreadable), never left out.
    "list": """
        SELECT realm, key_hash, body, revision FROM records
        WHERE (%(any_realm)s = 1 OR realm = %(in_realm)s)
            AND (%(any_state)s = 1 OR state IN (%(state0)s, %(state1)s, %(state2)s)
                OR state NOT IN ('InProgress', 'Held', 'Finalized'))
            AND substr(key_hash, 1, length(%(prefix)s::text)) = %(prefix)s
            AND (realm, key_hash) > (%(after_realm)s, %(after_hash)s)
        ORDER BY realm, key_hash LIMIT %(at_most)s
    """,
    # --- changes, for `watch`
    "remove gone": "DELETE FROM gone WHERE realm = %(at_realm)s AND key_hash = %(at_hash)s",
    "insert gone": "INSERT INTO gone (realm, key_hash, revision) VALUES (%(realm)s, %(key_hash)s, %(revision)s)",
    # With at most %(kept)s removals the subquery is NULL, the comparison false, and no row is written.
    "raise gap": """
        UPDATE meta SET gap = (SELECT revision FROM gone ORDER BY revision DESC LIMIT 1 OFFSET %(kept)s)
        WHERE gap < (SELECT revision FROM gone ORDER BY revision DESC LIMIT 1 OFFSET %(kept)s)
    """,
    "remove old gone": "DELETE FROM gone WHERE revision <= (SELECT gap FROM meta)",
    # Each key changed after %(since)s, once, at its newest revision.
    "changes": """
        SELECT realm, key_hash, max(revision) AS at
        FROM (
            SELECT realm, key_hash, revision FROM records WHERE revision > %(since)s
            UNION ALL SELECT realm, key_hash, revision FROM claims WHERE revision > %(since)s
            UNION ALL SELECT realm, key_hash, revision FROM reports WHERE revision > %(since)s
            UNION ALL SELECT realm, key_hash, revision FROM gone WHERE revision > %(since)s
        ) AS changed
        GROUP BY realm, key_hash ORDER BY at
    """,
    # In progress, and losing its owner was its last change.
    "unowned": """
        SELECT gone.realm, gone.key_hash FROM gone
        JOIN records ON records.realm = gone.realm AND records.key_hash = gone.key_hash
        WHERE gone.revision > %(since)s AND gone.revision > records.revision AND records.state = 'InProgress'
            AND NOT EXISTS (SELECT 1 FROM claims WHERE claims.realm = gone.realm AND claims.key_hash = gone.key_hash)
    """,
    # Held, finalized or removed: without an owner, as it should be.
    "ended": """
        SELECT realm, key_hash FROM records
        WHERE revision > %(since)s AND state != 'InProgress' AND NOT EXISTS (
            SELECT 1 FROM claims WHERE claims.realm = records.realm AND claims.key_hash = records.key_hash
        )
        UNION SELECT realm, key_hash FROM gone
        WHERE revision > %(since)s AND NOT EXISTS (
            SELECT 1 FROM records WHERE records.realm = gone.realm AND records.key_hash = gone.key_hash
        )
    """,
    # --- the roster
    "announce": """
        INSERT INTO replicas (nonce, lease, body) VALUES (%(nonce)s, %(lease)s, %(body)s)
        ON CONFLICT (nonce) DO UPDATE SET lease = %(lease)s, body = %(body)s
    """,
    "replicas": """
        SELECT body FROM replicas
        WHERE EXISTS (
            SELECT 1 FROM leases
            WHERE leases.id = replicas.lease AND leases.ends > extract(epoch FROM clock_timestamp())::float8
        )
        ORDER BY nonce
    """,
    "remove replicas that ended": """
        DELETE FROM replicas WHERE nonce IN (
            SELECT nonce FROM replicas
            WHERE NOT EXISTS (
                SELECT 1 FROM leases
                WHERE leases.id = replicas.lease AND leases.ends > extract(epoch FROM clock_timestamp())::float8
            )
            FOR UPDATE SKIP LOCKED
        )
    """,
}

LEDGER = PostgresTables(layout=LAYOUT, ddl=TABLES, statements=STATEMENTS, added=ADDED)
