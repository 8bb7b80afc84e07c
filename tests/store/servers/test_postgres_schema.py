"""A PostgreSQL database that holds a ledger: privileges, existing content, and the errors for one that cannot be used."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
import pytest

from harness.child import free_port
from harness.postgres import URL_PASSWORD, server
from sparkonce.blocking import run
from sparkonce.errors import InvalidInput, SparkonceError, StoreUnavailable, StoreUnusable
from sparkonce.model.record import Address, Report
from sparkonce.store.open import open_store
from sparkonce.store.postgres import schema
from sparkonce.store.postgres.address import parsed, schema_of
from sparkonce.store.postgres.store import PostgresStore
from sparkonce.store.protocol import IdempotencyStore, Lease, Owned, Query
from store.backends import Postgres
from store.racing import at_once, in_children
from store.samples import Key, fresh, request, reserved
from store.worker import Worker

_numbers = itertools.count()


def admin(statement: str) -> None:
    with server().connect() as connection:
        connection.execute(statement.encode())


@pytest.fixture
def database() -> Iterator[Callable[..., str]]:
    """Makes databases: a function that takes the options of CREATE DATABASE and returns the new database's address."""
    made: list[str] = []

    def make(more: str = "") -> str:
        made.append(f"base_{next(_numbers)}")
        admin(f"CREATE DATABASE {made[-1]} {more}")
        return server().url.replace("/postgres", f"/{made[-1]}")

    yield make
    for name in made:
        admin(f"DROP DATABASE {name} WITH (FORCE)")


def in_database(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def test_an_address_opens_the_store(database: Callable[..., str]) -> None:
    """`postgresql://` opens a store in a schema for its install; the store's url shows host and database without user or password."""
    url = database()
    store = open_store(url, install="cluster-a", timeout=30.0)
    assert isinstance(store, PostgresStore)
    assert store.url == f"postgresql://127.0.0.1:{server().port}/{url.rpartition('/')[2]}"
    key = reserved(store)
    again = open_store(url.replace("postgresql://", "postgres://"), install="cluster-a", timeout=30.0)
    assert run(again.load(key.address)).record == key.record
    for opened in (store, again):
        run(opened.close())


def test_installs_share_a_database_and_nothing_else(database: Callable[..., str]) -> None:
    """Two installs in one database do not see each other's keys; an install name that is not a plain identifier gets a schema, too."""
    url = database()
    names = ["a", "b", 'Robert"; DROP SCHEMA a;--', "x" * 200]
    stores = [PostgresStore(url, install=name, timeout=30.0) for name in names]
    owned = [reserved(store, key="the same") for store in stores]
    assert [key.record.revision for key in owned] == [1] * len(names)
    assert len({schema_of(name) for name in names}) == len(names)
    for store in stores:
        run(store.close())


def test_what_may_be_shown_of_an_address() -> None:
    """Neither the store's url nor the text of the parsed address contains user, password or query, in any form of an address."""
    for url, shown in {
        "postgresql://ann:pw@db/ledger?sslmode=require": "postgresql://db/ledger",
        "postgresql://ann:p%40w@a:1,b:2/ledger": "postgresql://a:1,b:2/ledger",
        "postgresql://ann@a,b:5/ledger": "postgresql://a,b:5/ledger",
        "postgresql://ann:pw@/ledger?host=/run/pg": "postgresql:///ledger",
        "postgresql://db/ledger?password=pw&user=ann": "postgresql://db/ledger",
    }.items():
        address = parsed(url, timeout=2.0)
        assert address.shown == shown
        assert repr(address) == f"PostgresAddress(shown={shown!r})"


def newer_layout(url: str) -> None:
    run(PostgresStore(url, timeout=30.0).close())
    in_database(url, "UPDATE sparkonce_local.meta SET layout = layout + 1")


def another_install(url: str) -> None:
    run(PostgresStore(url, timeout=30.0, schema="sparkonce_local", install="cluster-b").close())


def something_else(url: str) -> None:
    in_database(url, "CREATE SCHEMA sparkonce_local", "CREATE TABLE sparkonce_local.notes (text text)")


def no_meta(url: str) -> None:
    run(PostgresStore(url, timeout=30.0).close())
    in_database(url, "DELETE FROM sparkonce_local.meta")


def test_a_ledger_of_an_earlier_version_counts_from_its_next_report(database: Callable[..., str]) -> None:
    """A schema without the table of report sizes is opened and gets that table, even by two processes at once; older reports are kept."""
    url = database()
    store = PostgresStore(url, timeout=30.0)
    key = reserved(store)
    assert run(store.report(key.address, 1, Report(attempt=1, reporter="before", kind="values")))
    in_database(url, "DROP TABLE sparkonce_local.report_sizes")
    stores = at_once([lambda: PostgresStore(url, timeout=30.0)] * 4)
    assert run(stores[0].report(key.address, 1, Report(attempt=1, reporter="after", kind="values")))
    assert [each.reporter for each in run(store.reports(key.address, 1))] == ["after", "before"]
    for each in (store, *stores):
        run(each.close())


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (newer_layout, "layout 2, and this version knows up to 1; upgrade sparkonce"),
        (another_install, "belongs to install 'cluster-b', not 'local'"),
        (something_else, "has other tables and is not a ledger"),
        (no_meta, "belongs to install '', not 'local'"),
    ],
)
def test_a_schema_that_is_no_ledger_of_ours(
    database: Callable[..., str], made: Callable[[str], None], says: str
) -> None:
    """A schema with a newer layout, another install's ledger, foreign tables or an emptied ledger is refused in one sentence and not
    changed."""
    url = database()
    made(url)
    with pytest.raises(StoreUnusable, match=says) as refused:
        PostgresStore(url, timeout=30.0)
    assert_a_sentence(refused.value)


def assert_a_sentence(error: SparkonceError) -> None:
    assert "\n" not in str(error)
    assert URL_PASSWORD not in str(error) and "wrong-secret" not in str(error)


def test_a_schema_that_an_administrator_made_is_used(database: Callable[..., str]) -> None:
    """A user without the privilege to create schemas uses an existing empty one that the user owns; without one, the sentence names the
    missing privilege."""
    url = database()
    admin("DROP ROLE IF EXISTS plain")
    admin("CREATE ROLE plain LOGIN PASSWORD 'plain'")
    name = url.rpartition("/")[2]
    theirs = f"postgresql://plain:plain@127.0.0.1:{server().port}/{name}"
    with pytest.raises(StoreUnusable, match="refuses this user") as refused:
        PostgresStore(theirs, timeout=30.0)
    assert_a_sentence(refused.value)
    in_database(url, "CREATE SCHEMA sparkonce_local AUTHORIZATION plain")
    store = PostgresStore(theirs, timeout=30.0)
    assert isinstance(reserved(store), Key)
    run(store.close())


def wrong_password(url: str) -> str:
    return url.replace(URL_PASSWORD, "wrong-secret")


def no_database(url: str) -> str:
    return url.replace("/postgres", "/nowhere")


def nobody_listens(url: str) -> str:
    return url.replace(f":{server().port}/", f":{free_port()}/")


@pytest.mark.parametrize(
    ("spoilt", "kind", "says"),
    [
        (wrong_password, StoreUnusable, "password authentication failed"),
        (no_database, StoreUnusable, "does not exist"),
        (nobody_listens, StoreUnavailable, "is it running"),
    ],
)
def test_a_server_that_cannot_be_used(spoilt: Callable[[str], str], kind: type[SparkonceError], says: str) -> None:
    """A wrong password or database name is an answer; an unreachable server is not. No sentence repeats the password."""
    with pytest.raises(kind, match=says) as refused:
        PostgresStore(spoilt(server().url), timeout=30.0)
    assert_a_sentence(refused.value)


def test_a_database_that_cannot_keep_all_text(database: Callable[..., str]) -> None:
    """A database with another encoding than UTF8 is refused before anything is created in it."""
    url = database("ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(StoreUnusable, match="keeps text as LATIN1; use a database with UTF8"):
        PostgresStore(url, timeout=30.0)


def test_commits_are_durable_whatever_the_role_says(database: Callable[..., str]) -> None:
    """A database that answers commits before they are on disk, or without its synchronous standby, is overruled; a stronger guarantee is
    left as it is."""
    for given, used in (("off", "on"), ("remote_apply", "remote_apply"), ("local", "on")):
        url = database()
        in_database(url, f"ALTER DATABASE {url.rpartition('/')[2]} SET synchronous_commit = {given}")
        store = PostgresStore(url, timeout=30.0)
        with store._database._connection(30.0) as connection:
            assert connection.execute("SHOW synchronous_commit").fetchone() == {"synchronous_commit": used}
        run(store.close())


def test_threads_open_a_new_schema(database: Callable[..., str]) -> None:
    """Of eight callers that open a new install at once all succeed, and its tables were created once."""
    url = database()
    stores = at_once([partial(PostgresStore, url, timeout=60.0)] * 8)
    keys = [reserved(store) for store in stores]
    assert [key.record.revision for key in keys] == list(range(1, 9))
    for store in stores:
        run(store.close())


@pytest.mark.parametrize("realm", ["null\0", "half \ud800"])
def test_a_name_that_cannot_be_stored(postgres: Postgres, realm: str) -> None:
    """A null character or half a surrogate pair in a realm is refused with an answer, in reads and writes; the store continues to work."""
    store = postgres.open()
    key = reserved(store)
    asked = request(fresh("key"), realm=realm)
    for call in (
        partial(store.load, Address(realm=realm, key_hash="00")),
        partial(store.reserve, asked, lease=key.lease, floor=0),
        partial(store.list, Query(realm=realm)),
    ):
        with pytest.raises(InvalidInput, match="cannot be stored"):
            run(call())
    assert key.now() == key.record


def test_a_child_by_fork_has_connections_of_its_own(postgres: Postgres) -> None:
    """Forked children of a process that uses the store work on it at the same time as their parent, whose connections and lease
    continue."""
    postgres.open()
    parent = Worker(postgres.opening())
    try:
        assert parent.do(fork_and_reserve) == [0, 0, 0]
        assert run(postgres.open().count()) == 4
    finally:
        parent.end()


def fork_and_reserve(store: IdempotencyStore, lease: Lease) -> list[int]:
    mine = reserved(store, lease, key="the parent's")
    codes = in_children([partial(reserve_in_child, store, lease, f"child {number}") for number in range(3)])
    assert run(lease.keep_alive()) is True
    assert mine.change(phase="Running").phase == "Running"
    return codes


def reserve_in_child(store: IdempotencyStore, lease: Lease, key: str) -> None:
    """In the child the parent's lease can neither be kept alive nor used."""
    assert run(lease.keep_alive()) is False
    run(lease.revoke())
    own = run(store.open_lease(owner="child"))
    assert isinstance(run(store.reserve(request(key), lease=own, floor=0)), Owned)


def test_a_store_without_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without psycopg the error says what to install."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    for name in [name for name in sys.modules if name.startswith("sparkonce.store.postgres.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(InvalidInput, match=r"needs psycopg, which is not installed; install sparkonce\[postgres\]"):
        open_store("postgresql://ann:secret@host/db")


def test_no_step_scans_a_large_table(postgres: Postgres) -> None:
    """Every query of a step uses an index: with sequential scans made expensive, no plan scans a table that grows with the number of
    keys."""
    postgres.open()
    unbounded = {"records", "floors", "events", "specs", "results", "intents", "reports", "beats"}
    counting = {"count", "count realm", "count expired", "list"}  # for a person, or for a realm that is nearly full
    with server().connect() as connection:
        connection.execute(f'SET search_path TO "{postgres.schema}"'.encode())
        connection.execute("SET enable_seqscan = off")
        for name, statement in schema.STATEMENTS.items():
            if name in counting or statement.lstrip().startswith("INSERT"):
                continue
            plan = explained(connection, statement)
            scanned = {line.split("Seq Scan on ")[1].split()[0] for line in plan if "Seq Scan on " in line}
            assert not scanned & unbounded, (name, plan)


def explained(connection: psycopg.Connection[Any], statement: str) -> list[str]:
    class Anything(dict[str, object]):
        def __missing__(self, name: str) -> object:
            numbers = ("at", "since", "new_touch", "up_to", "kept", "at_most", "seconds", "of", "in_attempt", "next")
            if name == "numbers":
                return [1]
            return 1 if name in numbers or name.endswith(("_revision", "_expiry")) else "1"

    rows = connection.execute(b"EXPLAIN " + statement.encode(), Anything()).fetchall()
    return [str(row[0]) for row in rows]
