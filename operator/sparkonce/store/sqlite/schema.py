"""Tables and statements of the SQLite ledger. `store.ledger` runs the statements by name; PostgreSQL's are in `store.postgres.schema`.

Bodies are JSON text that only `codec` parses; a column beside a body exists only where a statement finds rows by it. The one row of `meta`
holds the store-wide revision. Every change raises it in its own transaction, so revisions follow commit order and are never reused.

Rows of one key are clustered by their primary key (WITHOUT ROWID): one page to find, read and write. `records.id` counts up, so its
maximum bounds the number of records from above. `claims.touched` is in monotonic seconds of the boot in `claims.boot`. `gone` holds keys
that lost their record or claim, with the revision of that change, which `watch` could not see otherwise; removals up to `meta.gap` have
been forgotten.

Existing ledgers were created by this DDL: a change of a table needs a new LAYOUT and a migration. Generating the statements for both SQL
stores with SQLAlchemy was dropped: importing it takes longer than a replay, and the generated text had to be read anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SqliteTables:
    """Tables and statements of one kind of file."""

    layout: int
    """A file of a newer layout is refused."""
    ddl: Sequence[str]
    """DDL of a new file, in order; one of them is META."""
    statements: Mapping[str, str]
    """By name, those in META_STATEMENTS included."""
    added: Mapping[str, str] = field(default_factory=dict)
    """DDL by table: tables that files of this layout may lack, created on opening."""


LAYOUT = 1
"""Version of these tables. A newer ledger is refused; an older one will be migrated when it is opened."""

META = """
CREATE TABLE meta (
    id INTEGER NOT NULL, layout INTEGER NOT NULL, install TEXT NOT NULL, epoch INTEGER NOT NULL,
    revision BIGINT NOT NULL, gap BIGINT NOT NULL,
    PRIMARY KEY (id)
)
"""

TABLES = (
    META,
    """
CREATE TABLE records (
    id INTEGER NOT NULL, realm TEXT NOT NULL, key_hash TEXT NOT NULL, revision BIGINT NOT NULL,
    state TEXT NOT NULL, expires_at FLOAT, body TEXT NOT NULL,
    PRIMARY KEY (id), UNIQUE (realm, key_hash)
)
""",
    "CREATE INDEX records_by_expiry ON records (realm, expires_at) WHERE expires_at IS NOT NULL",
    "CREATE INDEX records_by_revision ON records (revision)",
    """
CREATE TABLE claims (
    realm TEXT NOT NULL, key_hash TEXT NOT NULL, lease TEXT NOT NULL, owner TEXT NOT NULL,
    revision BIGINT NOT NULL, nonce TEXT NOT NULL, touched FLOAT NOT NULL, boot TEXT NOT NULL,
    PRIMARY KEY (realm, key_hash)
) WITHOUT ROWID
""",
    """
CREATE TABLE floors (
    realm TEXT NOT NULL, key_hash TEXT NOT NULL, floor INTEGER NOT NULL,
    PRIMARY KEY (realm, key_hash)
) WITHOUT ROWID
""",
    """
CREATE TABLE specs (
    realm TEXT NOT NULL, key_hash TEXT NOT NULL, generation INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (realm, key_hash, generation)
) WITHOUT ROWID
""",
    """
CREATE TABLE results (
    realm TEXT NOT NULL, key_hash TEXT NOT NULL, generation INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (realm, key_hash, generation)
) WITHOUT ROWID
""",
    """
CREATE TABLE intents (
    realm TEXT NOT NULL, key_hash TEXT NOT NULL, generation INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (realm, key_hash, generation)
) WITHOUT ROWID
""",
    """
CREATE TABLE reports (
    realm TEXT NOT NULL, key_hash TEXT NOT NULL, generation INTEGER NOT NULL, attempt INTEGER NOT NULL,
    reporter TEXT NOT NULL, revision BIGINT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (realm, key_hash, generation, attempt, reporter)
) WITHOUT ROWID
""",
    "CREATE INDEX reports_by_revision ON reports (revision)",
    """
CREATE TABLE beats (
    realm TEXT NOT NULL, key_hash TEXT NOT NULL, generation INTEGER NOT NULL, attempt INTEGER NOT NULL,
    "by" TEXT NOT NULL, wall FLOAT NOT NULL, touched FLOAT NOT NULL, boot TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (realm, key_hash, generation, attempt, "by")
) WITHOUT ROWID
""",
    """
CREATE TABLE events (
    realm TEXT NOT NULL, key_hash TEXT NOT NULL, seq INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (realm, key_hash, seq)
) WITHOUT ROWID
""",
    """
CREATE TABLE gone (
    realm TEXT NOT NULL, key_hash TEXT NOT NULL, revision BIGINT NOT NULL,
    PRIMARY KEY (realm, key_hash)
) WITHOUT ROWID
""",
    "CREATE INDEX gone_by_revision ON gone (revision)",
)

ADDED = {
    "report_sizes": """
CREATE TABLE IF NOT EXISTS report_sizes (
    realm TEXT NOT NULL, key_hash TEXT NOT NULL, generation INTEGER NOT NULL, attempt INTEGER NOT NULL,
    reports INTEGER NOT NULL, bytes BIGINT NOT NULL,
    PRIMARY KEY (realm, key_hash, generation, attempt)
) WITHOUT ROWID
"""
}
"""Tables that ledgers of this layout may lack: created on opening, and ignored by versions that do not know them."""

META_STATEMENTS = {
    "has meta": "SELECT count(*) AS n FROM sqlite_master WHERE name = 'meta'",
    "meta": "SELECT id, layout, install, epoch, revision, gap FROM meta",
    "insert meta": """
        INSERT INTO meta (id, layout, install, epoch, revision, gap)
        VALUES (:id, :layout, :install, :epoch, :revision, :gap)
    """,
}
STATEMENTS = META_STATEMENTS | {
    # --- the store
    "move": "UPDATE meta SET revision = :next",
    # --- one key: everything a step decides on, in one statement
    "see": """
        SELECT meta.revision, meta.epoch, records.body, records.revision AS record_revision,
            claims.lease, claims.owner, claims.revision AS claim_revision, claims.nonce, claims.touched, claims.boot,
            floors.floor,
            (SELECT max(seq) FROM events WHERE realm = :at_realm AND key_hash = :at_hash) AS events,
            (SELECT max(id) FROM records) AS at_most
        FROM meta
        LEFT OUTER JOIN records ON records.realm = :at_realm AND records.key_hash = :at_hash
        LEFT OUTER JOIN claims ON claims.realm = :at_realm AND claims.key_hash = :at_hash
        LEFT OUTER JOIN floors ON floors.realm = :at_realm AND floors.key_hash = :at_hash
    """,
    "insert records": """
        INSERT INTO records (realm, key_hash, revision, state, expires_at, body)
        VALUES (:realm, :key_hash, :revision, :state, :expires_at, :body)
    """,
    "change record": """
        UPDATE records SET revision = :new_revision, state = :new_state, expires_at = :new_expiry, body = :new_body
        WHERE realm = :at_realm AND key_hash = :at_hash
    """,
    "remove records": "DELETE FROM records WHERE realm = :at_realm AND key_hash = :at_hash",
    "insert floors": "INSERT INTO floors (realm, key_hash, floor) VALUES (:realm, :key_hash, :floor)",
    "remove floors": "DELETE FROM floors WHERE realm = :at_realm AND key_hash = :at_hash",
    # --- its claim
    "insert claims": """
        INSERT INTO claims (realm, key_hash, lease, owner, revision, nonce, touched, boot)
        VALUES (:realm, :key_hash, :lease, :owner, :revision, :nonce, :touched, :boot)
    """,
    "remove claims": "DELETE FROM claims WHERE realm = :at_realm AND key_hash = :at_hash",
    "touch claim": """
        UPDATE claims SET touched = :new_touch, boot = :new_boot WHERE realm = :at_realm AND key_hash = :at_hash
    """,
    "touch lease": "UPDATE claims SET touched = :new_touch, boot = :new_boot WHERE lease = :of_lease",
    "claims of lease": "SELECT realm, key_hash FROM claims WHERE lease = :of_lease ORDER BY realm, key_hash",
    # --- beside its record
    "get specs": "SELECT body FROM specs WHERE realm = :at_realm AND key_hash = :at_hash AND generation = :of",
    "insert specs": """
        INSERT INTO specs (realm, key_hash, generation, body) VALUES (:realm, :key_hash, :generation, :body)
    """,
    "remove specs": "DELETE FROM specs WHERE realm = :at_realm AND key_hash = :at_hash",
    "get results": "SELECT body FROM results WHERE realm = :at_realm AND key_hash = :at_hash AND generation = :of",
    "insert results": """
        INSERT INTO results (realm, key_hash, generation, body) VALUES (:realm, :key_hash, :generation, :body)
    """,
    "remove results": "DELETE FROM results WHERE realm = :at_realm AND key_hash = :at_hash",
    "get intents": "SELECT body FROM intents WHERE realm = :at_realm AND key_hash = :at_hash AND generation = :of",
    "insert intents": """
        INSERT INTO intents (realm, key_hash, generation, body) VALUES (:realm, :key_hash, :generation, :body)
    """,
    "remove intents": "DELETE FROM intents WHERE realm = :at_realm AND key_hash = :at_hash",
    "get report": """
        SELECT body FROM reports
        WHERE realm = :at_realm AND key_hash = :at_hash AND generation = :of
            AND attempt = :in_attempt AND reporter = :from_reporter
    """,
    "get reports": """
        SELECT body FROM reports WHERE realm = :at_realm AND key_hash = :at_hash AND generation = :of
        ORDER BY attempt, reporter
    """,
    "insert reports": """
        INSERT INTO reports (realm, key_hash, generation, attempt, reporter, revision, body)
        VALUES (:realm, :key_hash, :generation, :attempt, :reporter, :revision, :body)
    """,
    "remove reports": "DELETE FROM reports WHERE realm = :at_realm AND key_hash = :at_hash",
    "get report size": """
        SELECT reports, bytes FROM report_sizes
        WHERE realm = :at_realm AND key_hash = :at_hash AND generation = :of AND attempt = :in_attempt
    """,
    "insert report sizes": """
        INSERT INTO report_sizes (realm, key_hash, generation, attempt, reports, bytes)
        VALUES (:realm, :key_hash, :generation, :attempt, :reports, :bytes)
    """,
    "remove report size": """
        DELETE FROM report_sizes
        WHERE realm = :at_realm AND key_hash = :at_hash AND generation = :of AND attempt = :in_attempt
    """,
    "reported in realm": "SELECT sum(bytes) AS n FROM report_sizes WHERE realm = :in_realm",
    "remove report sizes": "DELETE FROM report_sizes WHERE realm = :at_realm AND key_hash = :at_hash",
    "get beats": """
        SELECT attempt, "by", wall, touched, boot, body FROM beats
        WHERE realm = :at_realm AND key_hash = :at_hash AND generation = :of
        ORDER BY attempt, "by"
    """,
    "insert beats": """
        INSERT INTO beats (realm, key_hash, generation, attempt, "by", wall, touched, boot, body)
        VALUES (:realm, :key_hash, :generation, :attempt, :by, :wall, :touched, :boot, :body)
    """,
    "remove beat": """
        DELETE FROM beats
        WHERE realm = :at_realm AND key_hash = :at_hash AND generation = :of
            AND attempt = :in_attempt AND "by" = :from_whom
    """,
    "remove beats": "DELETE FROM beats WHERE realm = :at_realm AND key_hash = :at_hash",
    "get events": "SELECT body FROM events WHERE realm = :at_realm AND key_hash = :at_hash ORDER BY seq",
    "insert events": "INSERT INTO events (realm, key_hash, seq, body) VALUES (:realm, :key_hash, :seq, :body)",
    "remove old events": "DELETE FROM events WHERE realm = :at_realm AND key_hash = :at_hash AND seq <= :up_to",
    # --- all keys
    "count": "SELECT count(*) AS n FROM records",
    "count realm": "SELECT count(*) AS n FROM records WHERE realm = :in_realm",
    "count expired": "SELECT count(*) AS n FROM records WHERE expires_at <= :at",
    "count expired of realm": "SELECT count(*) AS n FROM records WHERE realm = :in_realm AND expires_at <= :at",
    "next expiry": "SELECT min(expires_at) AS at FROM records WHERE realm = :in_realm AND expires_at > :at",
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
        WHERE (:any_realm = 1 OR realm = :in_realm)
            AND (:any_state = 1 OR state IN (:state0, :state1, :state2)
                OR state NOT IN ('InProgress', 'Held', 'Finalized'))
            AND substr(key_hash, 1, length(:prefix)) = :prefix
            AND (realm, key_hash) > (:after_realm, :after_hash)
        ORDER BY realm, key_hash LIMIT :at_most
    """,
    # --- changes, for `watch`
    "remove gone": "DELETE FROM gone WHERE realm = :at_realm AND key_hash = :at_hash",
    "insert gone": "INSERT INTO gone (realm, key_hash, revision) VALUES (:realm, :key_hash, :revision)",
    # With at most :kept removals the subquery is NULL, the comparison false, and no row is written.
    "raise gap": """
        UPDATE meta SET gap = (SELECT revision FROM gone ORDER BY revision DESC LIMIT 1 OFFSET :kept)
        WHERE gap < (SELECT revision FROM gone ORDER BY revision DESC LIMIT 1 OFFSET :kept)
    """,
    "remove old gone": "DELETE FROM gone WHERE revision <= (SELECT gap FROM meta)",
    # Each key changed after :since, once, at its newest revision.
    "changes": """
        SELECT realm, key_hash, max(revision) AS at
        FROM (
            SELECT realm, key_hash, revision FROM records WHERE revision > :since
            UNION ALL SELECT realm, key_hash, revision FROM claims WHERE revision > :since
            UNION ALL SELECT realm, key_hash, revision FROM reports WHERE revision > :since
            UNION ALL SELECT realm, key_hash, revision FROM gone WHERE revision > :since
        ) AS changed
        GROUP BY realm, key_hash ORDER BY at
    """,
}

LEDGER = SqliteTables(layout=LAYOUT, ddl=TABLES, statements=STATEMENTS, added=ADDED)
