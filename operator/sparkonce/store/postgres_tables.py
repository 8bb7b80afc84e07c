"""What PostgreSQL has besides the tables and statements that it shares with SQLite: leases, replicas, and a clock of its own.

A lease is a row with an end in the *database's* clock, the one clock that all owners share. It lives while that end lies ahead; a row
whose end has passed may be removed by anyone, and is removed, under its row lock, by whoever acts on it: after that no keepalive can
bring it back. `clock_timestamp()` and not `now()`: the latter is when the transaction began, before it waited for its locks.
"""

from __future__ import annotations

from sqlalchemy import (
    Column,
    ColumnElement,
    Executable,
    Float,
    MetaData,
    Table,
    Text,
    and_,
    bindparam,
    cast,
    delete,
    exists,
    insert,
    literal_column,
    select,
    text,
    union,
    update,
)
from sqlalchemy.dialects import postgresql

from sparkonce.model.record import State
from sparkonce.store import sql_tables
from sparkonce.store.sql_tables import beats, claims, gone, intents, meta, records, results, specs

LAYOUT = 1
"""Of these tables and the shared ones. A newer one is refused; an older one will be brought up to date when the store is opened."""

metadata = MetaData()

leases = Table(
    "leases",
    metadata,
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),  # for a person
    Column("ends", Float, nullable=False),  # unix seconds of the database's clock
)
replicas = Table(
    "replicas",
    metadata,
    Column("nonce", Text, primary_key=True),
    Column("lease", Text, nullable=False),
    Column("body", Text, nullable=False),
)

_dialect = postgresql.dialect(paramstyle="pyformat")  # type: ignore[no-untyped-call]  # SQLAlchemy's own

_clock: ColumnElement[float] = cast(literal_column("extract(epoch FROM clock_timestamp())"), Float)
_of_lease = leases.c.id == bindparam("of_lease")
_lives = leases.c.ends > _clock
_until = _clock + bindparam("seconds", type_=Float)
_claim_lives = exists().where(leases.c.id == claims.c.lease, _lives).correlate(claims)
_replica_lives = exists().where(leases.c.id == replicas.c.lease, _lives).correlate(replicas)
_of_gone = and_(records.c.realm == gone.c.realm, records.c.key_hash == gone.c.key_hash)
_claimed = exists().where(claims.c.realm == gone.c.realm, claims.c.key_hash == gone.c.key_hash).correlate(gone)
_owned = exists().where(claims.c.realm == records.c.realm, claims.c.key_hash == records.c.key_hash).correlate(records)
_in_progress: ColumnElement[str] = literal_column(f"'{State.IN_PROGRESS.value}'", Text)

_OURS: dict[str, Executable] = {
    "now": select(_clock.label("now")),
    "see": sql_tables.SEE.add_columns(_clock.label("now"), _claim_lives.label("lives")),
    "get beats": select(beats, _clock.label("now"))
    .where(sql_tables.of_generation(beats))
    .order_by(beats.c.attempt, beats.c.by),
    # Takes the lock of the only row: from here to the commit nobody else's step moves the store's revision.
    "advance": update(meta)
    .values(revision=meta.c.revision + literal_column("1"))
    .returning(meta.c.revision, meta.c.epoch),
    "open lease": insert(leases).values(id=bindparam("of_lease"), owner=bindparam("owner"), ends=_until),
    "prolong lease": update(leases).where(_of_lease, _lives).values(ends=_until).returning(leases.c.ends),
    "end lease": delete(leases).where(_of_lease),
    # Waits for a keepalive that is under way, and then decides by what that wrote.
    "end lease if over": delete(leases).where(_of_lease, ~_lives),
    # Never waits for another that does the same: two of them could wait for each other.
    "end leases that are over": delete(leases).where(
        leases.c.id.in_(select(leases.c.id).where(~_lives).with_for_update(skip_locked=True))
    ),
    "lease is there": select(leases.c.id).where(_of_lease),
    "lease lives": select(leases.c.id).where(_of_lease, _lives),
    "claims that ended": select(claims.c.realm, claims.c.key_hash)
    .where(~_claim_lives)
    .order_by(claims.c.realm, claims.c.key_hash)
    .limit(bindparam("at_most")),
    # In progress, and what changed last is that nobody owns them any more.
    "unowned": select(gone.c.realm, gone.c.key_hash)
    .select_from(gone.join(records, _of_gone))
    .where(
        gone.c.revision > bindparam("since"),
        gone.c.revision > records.c.revision,
        records.c.state == _in_progress,
        ~_claimed,
    ),
    # Held, finalized or removed: nobody owns them, and that is no accident.
    "ended": union(
        select(records.c.realm, records.c.key_hash).where(
            records.c.revision > bindparam("since"), records.c.state != _in_progress, ~_owned
        ),
        select(gone.c.realm, gone.c.key_hash).where(
            gone.c.revision > bindparam("since"), ~exists().where(_of_gone).correlate(gone)
        ),
    ),
    "raise epoch": update(meta)
    .where(meta.c.epoch == bindparam("seen"))
    .values(epoch=meta.c.epoch + literal_column("1")),
    **{
        f"remove {table.name} of generation": delete(table).where(sql_tables.of_generation(table))
        for table in (specs, results, intents)
    },
    "announce": postgresql.insert(replicas)
    .values({column.name: bindparam(column.name) for column in replicas.c})
    .on_conflict_do_update(
        index_elements=[replicas.c.nonce], set_={"lease": bindparam("lease"), "body": bindparam("body")}
    ),
    "replicas": select(replicas.c.body).where(_replica_lives).order_by(replicas.c.nonce),
    "remove replicas that ended": delete(replicas).where(
        replicas.c.nonce.in_(select(replicas.c.nonce).where(~_replica_lives).with_for_update(skip_locked=True))
    ),
    "sound": text("SELECT current_setting('server_encoding') AS encoding"),
    "has schema": text("SELECT 1 AS n FROM pg_catalog.pg_namespace WHERE nspname = :schema"),
    "has meta": text(
        "SELECT 1 AS n FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_namespace.oid = pg_class.relnamespace "
        "WHERE nspname = :schema AND relname = 'meta'"
    ),
    "has tables": text(
        "SELECT 1 AS n FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_namespace.oid = pg_class.relnamespace "
        "WHERE nspname = :schema LIMIT 1"
    ),
}

STATEMENTS: dict[str, bytes] = {
    name: str(statement.compile(dialect=_dialect)).encode()  # type: ignore[attr-defined]  # executables that are clauses, all of them
    for name, statement in (sql_tables.STATEMENTS | _OURS).items()
}

TABLES: list[str] = sql_tables.layout(_dialect, leases, replicas)
