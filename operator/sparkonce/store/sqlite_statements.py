"""The statements of `sql_tables` as SQLite reads them. Generated: `python -m sparkonce.store.sql_tables`."""

from __future__ import annotations

LAYOUT = 1

TABLES = (
    """
CREATE TABLE beats ( realm TEXT NOT NULL, key_hash TEXT NOT NULL, generation INTEGER NOT NULL, attempt INTEGER
NOT NULL, "by" TEXT NOT NULL, wall FLOAT NOT NULL, touched FLOAT NOT NULL, boot TEXT NOT NULL, body TEXT NOT
NULL, PRIMARY KEY (realm, key_hash, generation, attempt, "by") ) WITHOUT ROWID
""",
    """
CREATE TABLE claims ( realm TEXT NOT NULL, key_hash TEXT NOT NULL, lease TEXT NOT NULL, owner TEXT NOT NULL,
revision BIGINT NOT NULL, nonce TEXT NOT NULL, touched FLOAT NOT NULL, boot TEXT NOT NULL, PRIMARY KEY (realm,
key_hash) ) WITHOUT ROWID
""",
    """
CREATE TABLE events ( realm TEXT NOT NULL, key_hash TEXT NOT NULL, seq INTEGER NOT NULL, body TEXT NOT NULL,
PRIMARY KEY (realm, key_hash, seq) ) WITHOUT ROWID
""",
    """
CREATE TABLE floors ( realm TEXT NOT NULL, key_hash TEXT NOT NULL, floor INTEGER NOT NULL, PRIMARY KEY (realm,
key_hash) ) WITHOUT ROWID
""",
    """
CREATE TABLE gone ( realm TEXT NOT NULL, key_hash TEXT NOT NULL, revision BIGINT NOT NULL, PRIMARY KEY (realm,
key_hash) ) WITHOUT ROWID
""",
    """
CREATE INDEX gone_by_revision ON gone (revision)
""",
    """
CREATE TABLE intents ( realm TEXT NOT NULL, key_hash TEXT NOT NULL, generation INTEGER NOT NULL, body TEXT NOT
NULL, PRIMARY KEY (realm, key_hash, generation) ) WITHOUT ROWID
""",
    """
CREATE TABLE meta ( id INTEGER NOT NULL, layout INTEGER NOT NULL, install TEXT NOT NULL, epoch INTEGER NOT
NULL, revision BIGINT NOT NULL, gap BIGINT NOT NULL, PRIMARY KEY (id) )
""",
    """
CREATE TABLE records ( id INTEGER NOT NULL, realm TEXT NOT NULL, key_hash TEXT NOT NULL, revision BIGINT NOT
NULL, state TEXT NOT NULL, expires_at FLOAT, body TEXT NOT NULL, PRIMARY KEY (id), UNIQUE (realm, key_hash) )
""",
    """
CREATE INDEX records_by_expiry ON records (realm, expires_at) WHERE expires_at IS NOT NULL
""",
    """
CREATE INDEX records_by_revision ON records (revision)
""",
    """
CREATE TABLE reports ( realm TEXT NOT NULL, key_hash TEXT NOT NULL, generation INTEGER NOT NULL, attempt
INTEGER NOT NULL, reporter TEXT NOT NULL, revision BIGINT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (realm,
key_hash, generation, attempt, reporter) ) WITHOUT ROWID
""",
    """
CREATE INDEX reports_by_revision ON reports (revision)
""",
    """
CREATE TABLE results ( realm TEXT NOT NULL, key_hash TEXT NOT NULL, generation INTEGER NOT NULL, body TEXT NOT
NULL, PRIMARY KEY (realm, key_hash, generation) ) WITHOUT ROWID
""",
    """
CREATE TABLE specs ( realm TEXT NOT NULL, key_hash TEXT NOT NULL, generation INTEGER NOT NULL, body TEXT NOT
NULL, PRIMARY KEY (realm, key_hash, generation) ) WITHOUT ROWID
""",
)

STATEMENTS = {
    "has meta": """
SELECT count(*) AS n FROM sqlite_master WHERE name = 'meta'
""",
    "meta": """
SELECT meta.id, meta.layout, meta.install, meta.epoch, meta.revision, meta.gap FROM meta
""",
    "move": """
UPDATE meta SET revision=:next
""",
    "see": """
SELECT meta.revision, meta.epoch, records.body, records.revision AS record_revision, claims.lease,
claims.owner, claims.revision AS claim_revision, claims.nonce, claims.touched, claims.boot, floors.floor,
(SELECT max(events.seq) AS max_1 FROM events WHERE events.realm = :at_realm AND events.key_hash = :at_hash) AS
events, (SELECT max(records.id) AS max_2 FROM records) AS at_most FROM meta LEFT OUTER JOIN records ON
records.realm = :at_realm AND records.key_hash = :at_hash LEFT OUTER JOIN claims ON claims.realm = :at_realm
AND claims.key_hash = :at_hash LEFT OUTER JOIN floors ON floors.realm = :at_realm AND floors.key_hash =
:at_hash
""",
    "get specs": """
SELECT specs.body FROM specs WHERE specs.realm = :at_realm AND specs.key_hash = :at_hash AND specs.generation
= :of
""",
    "get results": """
SELECT results.body FROM results WHERE results.realm = :at_realm AND results.key_hash = :at_hash AND
results.generation = :of
""",
    "get intents": """
SELECT intents.body FROM intents WHERE intents.realm = :at_realm AND intents.key_hash = :at_hash AND
intents.generation = :of
""",
    "get report": """
SELECT reports.body FROM reports WHERE reports.realm = :at_realm AND reports.key_hash = :at_hash AND
reports.generation = :of AND reports.attempt = :in_attempt AND reports.reporter = :from_reporter
""",
    "get reports": """
SELECT reports.body FROM reports WHERE reports.realm = :at_realm AND reports.key_hash = :at_hash AND
reports.generation = :of ORDER BY reports.attempt, reports.reporter
""",
    "get beats": """
SELECT beats.realm, beats.key_hash, beats.generation, beats.attempt, beats."by", beats.wall, beats.touched,
beats.boot, beats.body FROM beats WHERE beats.realm = :at_realm AND beats.key_hash = :at_hash AND
beats.generation = :of ORDER BY beats.attempt, beats."by"
""",
    "get events": """
SELECT events.body FROM events WHERE events.realm = :at_realm AND events.key_hash = :at_hash ORDER BY
events.seq
""",
    "insert beats": """
INSERT INTO beats (realm, key_hash, generation, attempt, "by", wall, touched, boot, body) VALUES (:realm,
:key_hash, :generation, :attempt, :by, :wall, :touched, :boot, :body)
""",
    "insert claims": """
INSERT INTO claims (realm, key_hash, lease, owner, revision, nonce, touched, boot) VALUES (:realm, :key_hash,
:lease, :owner, :revision, :nonce, :touched, :boot)
""",
    "insert events": """
INSERT INTO events (realm, key_hash, seq, body) VALUES (:realm, :key_hash, :seq, :body)
""",
    "insert floors": """
INSERT INTO floors (realm, key_hash, floor) VALUES (:realm, :key_hash, :floor)
""",
    "insert gone": """
INSERT INTO gone (realm, key_hash, revision) VALUES (:realm, :key_hash, :revision)
""",
    "insert intents": """
INSERT INTO intents (realm, key_hash, generation, body) VALUES (:realm, :key_hash, :generation, :body)
""",
    "insert meta": """
INSERT INTO meta (id, layout, install, epoch, revision, gap) VALUES (:id, :layout, :install, :epoch,
:revision, :gap)
""",
    "insert reports": """
INSERT INTO reports (realm, key_hash, generation, attempt, reporter, revision, body) VALUES (:realm,
:key_hash, :generation, :attempt, :reporter, :revision, :body)
""",
    "insert results": """
INSERT INTO results (realm, key_hash, generation, body) VALUES (:realm, :key_hash, :generation, :body)
""",
    "insert specs": """
INSERT INTO specs (realm, key_hash, generation, body) VALUES (:realm, :key_hash, :generation, :body)
""",
    "insert records": """
INSERT INTO records (realm, key_hash, revision, state, expires_at, body) VALUES (:realm, :key_hash, :revision,
:state, :expires_at, :body)
""",
    "remove beats": """
DELETE FROM beats WHERE beats.realm = :at_realm AND beats.key_hash = :at_hash
""",
    "remove claims": """
DELETE FROM claims WHERE claims.realm = :at_realm AND claims.key_hash = :at_hash
""",
    "remove events": """
DELETE FROM events WHERE events.realm = :at_realm AND events.key_hash = :at_hash
""",
    "remove floors": """
DELETE FROM floors WHERE floors.realm = :at_realm AND floors.key_hash = :at_hash
""",
    "remove gone": """
DELETE FROM gone WHERE gone.realm = :at_realm AND gone.key_hash = :at_hash
""",
    "remove intents": """
DELETE FROM intents WHERE intents.realm = :at_realm AND intents.key_hash = :at_hash
""",
    "remove records": """
DELETE FROM records WHERE records.realm = :at_realm AND records.key_hash = :at_hash
""",
    "remove reports": """
DELETE FROM reports WHERE reports.realm = :at_realm AND reports.key_hash = :at_hash
""",
    "remove results": """
DELETE FROM results WHERE results.realm = :at_realm AND results.key_hash = :at_hash
""",
    "remove specs": """
DELETE FROM specs WHERE specs.realm = :at_realm AND specs.key_hash = :at_hash
""",
    "change record": """
UPDATE records SET revision=:new_revision, state=:new_state, expires_at=:new_expiry, body=:new_body WHERE
records.realm = :at_realm AND records.key_hash = :at_hash
""",
    "touch claim": """
UPDATE claims SET touched=:new_touch, boot=:new_boot WHERE claims.realm = :at_realm AND claims.key_hash =
:at_hash
""",
    "touch lease": """
UPDATE claims SET touched=:new_touch, boot=:new_boot WHERE claims.lease = :of_lease
""",
    "claims of lease": """
SELECT claims.realm, claims.key_hash FROM claims WHERE claims.lease = :of_lease ORDER BY claims.realm,
claims.key_hash
""",
    "remove beat": """
DELETE FROM beats WHERE beats.realm = :at_realm AND beats.key_hash = :at_hash AND beats.generation = :of AND
beats.attempt = :in_attempt AND beats."by" = :from_whom
""",
    "remove old events": """
DELETE FROM events WHERE events.realm = :at_realm AND events.key_hash = :at_hash AND events.seq <= :up_to
""",
    "count": """
SELECT count(*) AS n FROM records
""",
    "count realm": """
SELECT count(*) AS n FROM records WHERE records.realm = :in_realm
""",
    "count expired": """
SELECT count(*) AS n FROM records WHERE records.expires_at <= :at
""",
    "count expired of realm": """
SELECT count(*) AS n FROM records WHERE records.realm = :in_realm AND records.expires_at <= :at
""",
    "next expiry": """
SELECT min(records.expires_at) AS at FROM records WHERE records.realm = :in_realm AND records.expires_at > :at
""",
    "list": """
SELECT records.realm, records.key_hash, records.body, records.revision FROM records WHERE (:any_realm = 1 OR
records.realm = :in_realm) AND (:any_state = 1 OR records.state IN (:state0, :state1, :state2) OR
(records.state NOT IN ('InProgress', 'Held', 'Finalized'))) AND substr(records.key_hash, 1, length(:prefix)) =
:prefix AND (records.realm, records.key_hash) > (:after_realm, :after_hash) ORDER BY records.realm,
records.key_hash LIMIT :at_most OFFSET 0
""",
    "raise gap": """
UPDATE meta SET gap=(SELECT gone.revision FROM gone ORDER BY gone.revision DESC LIMIT 1 OFFSET :kept) WHERE
meta.gap < (SELECT gone.revision FROM gone ORDER BY gone.revision DESC LIMIT 1 OFFSET :kept)
""",
    "remove old gone": """
DELETE FROM gone WHERE gone.revision <= (SELECT meta.gap FROM meta)
""",
    "changes": """
SELECT anon_1.realm, anon_1.key_hash, max(anon_1.revision) AS at FROM (SELECT records.realm AS realm,
records.key_hash AS key_hash, records.revision AS revision FROM records WHERE records.revision > :since UNION
ALL SELECT claims.realm AS realm, claims.key_hash AS key_hash, claims.revision AS revision FROM claims WHERE
claims.revision > :since UNION ALL SELECT reports.realm AS realm, reports.key_hash AS key_hash,
reports.revision AS revision FROM reports WHERE reports.revision > :since UNION ALL SELECT gone.realm AS
realm, gone.key_hash AS key_hash, gone.revision AS revision FROM gone WHERE gone.revision > :since) AS anon_1
GROUP BY anon_1.realm, anon_1.key_hash ORDER BY at
""",
}
