"""Tables and statements of the SQL stores, for every dialect.

Statements are module constants, so that SQLAlchemy compiles each once per process. Bodies are JSON text that only `codec` reads; a column
beside a body exists where a statement has to find rows by it. One row of `meta` carries the store-wide revision, which every write
that is a change raises in its own transaction: revisions are dense, ordered as commits are, and never given twice.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Float,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    and_,
    bindparam,
    delete,
    func,
    insert,
    select,
    union_all,
    update,
)

LAYOUT = 1
"""Of these tables. A newer one is refused; an older one will be brought up to date when the store is opened."""

metadata = MetaData()


def _table(name: str, *columns: Column[object]) -> Table:
    """Rows of one key, clustered by their primary key: one page to find, read and write."""
    address: tuple[Column[object], ...] = (
        Column("realm", Text, primary_key=True),
        Column("key_hash", Text, primary_key=True),
    )
    return Table(name, metadata, *address, *columns, sqlite_with_rowid=False)


def _part(name: str) -> Column[object]:
    return Column(name, Integer, primary_key=True, autoincrement=False)


meta = Table(
    "meta",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("layout", Integer, nullable=False),
    Column("install", Text, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("gap", BigInteger, nullable=False),  # removals up to this revision are forgotten
)
records = Table(
    "records",
    metadata,
    Column("id", Integer, primary_key=True),  # counts up: the highest one bounds the number of records from above
    Column("realm", Text, nullable=False),
    Column("key_hash", Text, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("expires_at", Float),
    Column("body", Text, nullable=False),
    UniqueConstraint("realm", "key_hash"),
)
Index("records_by_revision", records.c.revision)
_ends = records.c.expires_at.is_not(None)
Index("records_by_expiry", records.c.realm, records.c.expires_at, sqlite_where=_ends, postgresql_where=_ends)
claims = _table(
    "claims",
    Column("lease", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("nonce", Text, nullable=False),
    Column("touched", Float, nullable=False),  # monotonic seconds of this boot
    Column("boot", Text, nullable=False),
)
floors = _table("floors", Column("floor", Integer, nullable=False))
specs = _table("specs", _part("generation"), Column("body", Text, nullable=False))
results = _table("results", _part("generation"), Column("body", Text, nullable=False))
intents = _table("intents", _part("generation"), Column("body", Text, nullable=False))
reports = _table(
    "reports",
    _part("generation"),
    _part("attempt"),
    Column("reporter", Text, primary_key=True),
    Column("revision", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
)
Index("reports_by_revision", reports.c.revision)
beats = _table(
    "beats",
    _part("generation"),
    _part("attempt"),
    Column("by", Text, primary_key=True),
    Column("wall", Float, nullable=False),
    Column("touched", Float, nullable=False),
    Column("boot", Text, nullable=False),
    Column("body", Text, nullable=False),
)
events = _table("events", _part("seq"), Column("body", Text, nullable=False))
gone = _table("gone", Column("revision", BigInteger, nullable=False))
"""Keys of which something was removed, by the revision of that: what `watch` could not see otherwise."""
Index("gone_by_revision", gone.c.revision)

beside = (specs, results, intents, reports, beats)


def of_key(table: Table) -> ColumnElement[bool]:
    return and_(table.c.realm == bindparam("at_realm"), table.c.key_hash == bindparam("at_hash"))


def of_generation(table: Table) -> ColumnElement[bool]:
    return and_(of_key(table), table.c.generation == bindparam("of"))


SEE = select(
    meta.c.revision,
    meta.c.epoch,
    records.c.body,
    records.c.revision.label("record_revision"),
    claims.c.lease,
    claims.c.owner,
    claims.c.revision.label("claim_revision"),
    claims.c.nonce,
    claims.c.touched,
    claims.c.boot,
    floors.c.floor,
    select(func.max(events.c.seq)).where(of_key(events)).scalar_subquery().label("events"),
    select(func.max(records.c.id)).scalar_subquery().label("at_most"),
).select_from(
    meta.outerjoin(records, of_key(records)).outerjoin(claims, of_key(claims)).outerjoin(floors, of_key(floors))
)
"""All that a step decides on, in one statement."""

META = select(meta.c.layout, meta.c.install, meta.c.epoch, meta.c.revision, meta.c.gap)
MOVE = update(meta).values(revision=bindparam("next"))

BODY = {table.name: select(table.c.body).where(of_generation(table)) for table in (specs, results, intents)}
REPORT = select(reports.c.body).where(
    of_generation(reports),
    reports.c.attempt == bindparam("in_attempt"),
    reports.c.reporter == bindparam("from_reporter"),
)
REPORTS = select(reports.c.body).where(of_generation(reports)).order_by(reports.c.attempt, reports.c.reporter)
BEATS = select(beats).where(of_generation(beats)).order_by(beats.c.attempt, beats.c.by)
EVENTS = select(events.c.body).where(of_key(events)).order_by(events.c.seq)

INSERT = {table.name: insert(table) for table in metadata.tables.values()}
REMOVE = {table.name: delete(table).where(of_key(table)) for table in metadata.tables.values() if "realm" in table.c}
CHANGE_RECORD = (
    update(records)
    .where(of_key(records))
    .values(
        revision=bindparam("new_revision"),
        state=bindparam("new_state"),
        expires_at=bindparam("new_expiry"),
        body=bindparam("new_body"),
    )
)
TOUCH_CLAIM = update(claims).where(of_key(claims)).values(touched=bindparam("new_touch"), boot=bindparam("new_boot"))
TOUCH_LEASE = (
    update(claims)
    .where(claims.c.lease == bindparam("of_lease"))
    .values(touched=bindparam("new_touch"), boot=bindparam("new_boot"))
)
CLAIMS_OF_LEASE = select(claims.c.realm, claims.c.key_hash).where(claims.c.lease == bindparam("of_lease"))
REMOVE_BEAT = delete(beats).where(
    of_generation(beats), beats.c.attempt == bindparam("in_attempt"), beats.c.by == bindparam("from_whom")
)
REMOVE_OLD_EVENTS = delete(events).where(of_key(events), events.c.seq <= bindparam("up_to"))

EXPIRED = and_(records.c.realm == bindparam("in_realm"), _ends, records.c.expires_at <= bindparam("at"))
COUNT_REALM = select(func.count()).select_from(records).where(records.c.realm == bindparam("in_realm"))
COUNT_EXPIRED = select(func.count()).select_from(records).where(EXPIRED)
NEXT_EXPIRY = select(func.min(records.c.expires_at)).where(
    records.c.realm == bindparam("in_realm"), _ends, records.c.expires_at > bindparam("at")
)

OLDEST_KEPT = (
    select(gone.c.revision).order_by(gone.c.revision.desc()).limit(1).offset(bindparam("kept")).scalar_subquery()
)
"""The newest removal beyond those that are kept; none while there are fewer."""
RAISE_GAP = (
    update(meta).where(meta.c.gap < OLDEST_KEPT).values(gap=OLDEST_KEPT)
)  # a comparison with nothing is false: no row is written
REMOVE_OLD_GONE = delete(gone).where(gone.c.revision <= select(meta.c.gap).scalar_subquery())

_changed = union_all(
    *(
        select(table.c.realm, table.c.key_hash, table.c.revision).where(table.c.revision > bindparam("since"))
        for table in (records, claims, reports, gone)
    )
).subquery()
CHANGES = (
    select(_changed.c.realm, _changed.c.key_hash, func.max(_changed.c.revision).label("at"))
    .group_by(_changed.c.realm, _changed.c.key_hash)
    .order_by("at")
)
"""Each key that was changed after `since`, once, at its newest revision."""
