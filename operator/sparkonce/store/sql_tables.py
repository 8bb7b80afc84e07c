"""Tables and statements of the SQL stores, in SQLAlchemy Core: the one source for every dialect.

Importing SQLAlchemy takes longer than everything else in a replay, and a laptop's ledger speaks one dialect. So the text for SQLite is
generated from here (`python -m sparkonce.store.sql_tables` writes `sqlite_statements.py`; a test compares), and nothing that runs on a
laptop imports this module. PostgreSQL runs the same statements by the same names; what it has besides is in `postgres_tables`.

Bodies are JSON text that only `codec` reads; a column beside a body exists where a statement has to find rows by it. One row of `meta`
carries the store-wide revision, which every write that is a change raises in its own transaction: revisions are ordered as commits
are, and never given twice.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Column,
    ColumnElement,
    Dialect,
    Executable,
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
    literal_column,
    or_,
    select,
    text,
    tuple_,
    union_all,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from sparkonce.model.record import State

LAYOUT = 1
"""Of these tables. A newer one is refused; an older one will be brought up to date when the store is opened."""

metadata = MetaData()

_name = Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
"""Compared and ordered by its bytes in every dialect: a page of a list begins where the last one ended."""
_counter = BigInteger().with_variant(Integer, "sqlite")


def _table(name: str, *columns: Column[object]) -> Table:
    """Rows of one key, clustered by their primary key: one page to find, read and write."""
    address: tuple[Column[object], ...] = (
        Column("realm", _name, primary_key=True),
        Column("key_hash", _name, primary_key=True),
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
    Column("id", _counter, primary_key=True),  # counts up: the highest one bounds the number of records from above
    Column("realm", _name, nullable=False),
    Column("key_hash", _name, nullable=False),
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
    Column("reporter", _name, primary_key=True),
    Column("revision", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
)
Index("reports_by_revision", reports.c.revision)
beats = _table(
    "beats",
    _part("generation"),
    _part("attempt"),
    Column("by", _name, primary_key=True),
    Column("wall", Float, nullable=False),
    Column("touched", Float, nullable=False),
    Column("boot", Text, nullable=False),
    Column("body", Text, nullable=False),
)
events = _table("events", _part("seq"), Column("body", Text, nullable=False))
gone = _table("gone", Column("revision", BigInteger, nullable=False))
"""Keys of which something was removed, by the revision of that: what `watch` could not see otherwise."""
Index("gone_by_revision", gone.c.revision)


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

# Numbers are written out: a statement has no parameters but those that its caller gives.
_zero: ColumnElement[int] = literal_column("0", Integer)
_one: ColumnElement[int] = literal_column("1", Integer)

_touch: dict[str, BindParameter[object]] = {"touched": bindparam("new_touch"), "boot": bindparam("new_boot")}
_of_lease = claims.c.lease == bindparam("of_lease")
_in_attempt: BindParameter[object] = bindparam("in_attempt")

_in_realm = records.c.realm == bindparam("in_realm")
_expired = records.c.expires_at <= bindparam("at")
_count = select(func.count().label("n")).select_from(records)

_oldest_kept = (
    select(gone.c.revision).order_by(gone.c.revision.desc()).limit(_one).offset(bindparam("kept")).scalar_subquery()
)

_changed = union_all(
    *(
        select(table.c.realm, table.c.key_hash, table.c.revision).where(table.c.revision > bindparam("since"))
        for table in (records, claims, reports, gone)
    )
).subquery()

_listed = (
    select(records.c.realm, records.c.key_hash, records.c.body, records.c.revision)
    .where(
        or_(bindparam("any_realm", type_=Integer) == _one, _in_realm),
        or_(
            bindparam("any_state", type_=Integer) == _one,
            records.c.state.in_([bindparam(f"state{n}") for n in range(len(State))]),
            # One that this version does not know is listed as unreadable, never left out.
            records.c.state.not_in([literal_column(f"'{state.value}'") for state in State]),
        ),
        func.substr(records.c.key_hash, _one, func.length(bindparam("prefix", type_=Text)))
        == bindparam("prefix", type_=Text),
        tuple_(records.c.realm, records.c.key_hash) > tuple_(bindparam("after_realm"), bindparam("after_hash")),
    )
    .order_by(records.c.realm, records.c.key_hash)
    .limit(bindparam("at_most"))
    .offset(_zero)
)

STATEMENTS: dict[str, Executable] = {
    "has meta": text("SELECT count(*) AS n FROM sqlite_master WHERE name = 'meta'"),
    "meta": select(meta),
    "move": update(meta).values(revision=bindparam("next")),
    # All that a step decides on, in one look.
    "see": SEE,
    **{f"get {table.name}": select(table.c.body).where(of_generation(table)) for table in (specs, results, intents)},
    "get report": select(reports.c.body).where(
        of_generation(reports), reports.c.attempt == _in_attempt, reports.c.reporter == bindparam("from_reporter")
    ),
    "get reports": select(reports.c.body).where(of_generation(reports)).order_by(reports.c.attempt, reports.c.reporter),
    "get beats": select(beats).where(of_generation(beats)).order_by(beats.c.attempt, beats.c.by),
    "get events": select(events.c.body).where(of_key(events)).order_by(events.c.seq),
    **{f"insert {table.name}": insert(table) for table in metadata.sorted_tables if table is not records},
    "insert records": insert(records).values(
        {column.name: bindparam(column.name) for column in records.c if column.name != "id"}
    ),
    **{
        f"remove {table.name}": delete(table).where(of_key(table))
        for table in metadata.sorted_tables
        if table is not meta
    },
    "change record": update(records)
    .where(of_key(records))
    .values(
        revision=bindparam("new_revision"),
        state=bindparam("new_state"),
        expires_at=bindparam("new_expiry"),
        body=bindparam("new_body"),
    ),
    "touch claim": update(claims).where(of_key(claims)).values(_touch),
    "touch lease": update(claims).where(_of_lease).values(_touch),
    "claims of lease": select(claims.c.realm, claims.c.key_hash)
    .where(_of_lease)
    .order_by(claims.c.realm, claims.c.key_hash),
    "remove beat": delete(beats).where(
        of_generation(beats), beats.c.attempt == _in_attempt, beats.c.by == bindparam("from_whom")
    ),
    "remove old events": delete(events).where(of_key(events), events.c.seq <= bindparam("up_to")),
    "count": _count,
    "count realm": _count.where(_in_realm),
    "count expired": _count.where(_expired),
    "count expired of realm": _count.where(_in_realm, _expired),
    "next expiry": select(func.min(records.c.expires_at).label("at")).where(
        _in_realm, records.c.expires_at > bindparam("at")
    ),
    "list": _listed,
    # A comparison with nothing is false: while few are gone, no row is written.
    "raise gap": update(meta).where(meta.c.gap < _oldest_kept).values(gap=_oldest_kept),
    "remove old gone": delete(gone).where(gone.c.revision <= select(meta.c.gap).scalar_subquery()),
    # Each key that was changed after `since`, once, at its newest revision.
    "changes": select(_changed.c.realm, _changed.c.key_hash, func.max(_changed.c.revision).label("at"))
    .group_by(_changed.c.realm, _changed.c.key_hash)
    .order_by("at"),
}


def layout(dialect: Dialect, *more: Table) -> list[str]:
    """What creates the tables, these and `more`."""
    made: list[str] = []
    for table in (*metadata.sorted_tables, *more):
        made.append(str(CreateTable(table).compile(dialect=dialect)))
        indexes = sorted(table.indexes, key=lambda index: str(index.name))
        made.extend(str(CreateIndex(index).compile(dialect=dialect)) for index in indexes)
    return made


def render() -> str:
    """The module `sqlite_statements`."""
    dialect = sqlite.dialect(paramstyle="named")
    lines = [
        '"""The statements of `sql_tables` as SQLite reads them. Generated: `python -m sparkonce.store.sql_tables`."""',
        "",
        "from __future__ import annotations",
        "",
        f"LAYOUT = {LAYOUT}",
        "",
        "TABLES = (",
        *(f"    {_quoted(made)}," for made in layout(dialect)),
        ")",
        "",
        "STATEMENTS = {",
    ]
    for name, statement in STATEMENTS.items():
        compiled = statement.compile(dialect=dialect)  # type: ignore[attr-defined]  # executables that are clauses, all of them
        lines.append(f'    "{name}": {_quoted(str(compiled))},')
    return "\n".join([*lines, "}", ""])


def _quoted(statement: str) -> str:
    wrapped = textwrap.wrap(" ".join(statement.split()), width=110, break_long_words=False, break_on_hyphens=False)
    return '"""\n' + "\n".join(wrapped) + '\n"""'


if __name__ == "__main__":
    Path(__file__).with_name("sqlite_statements.py").write_text(render(), encoding="utf-8")
