"""A catalog makes a change and its reply is lost, on real servers: the change has one effect, and its sender recognises it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event

from harness import iceberg_tables, postgres, store_servers
from harness.arrow_stage import table_of
from harness.iceberg_tables import opened, rest_catalog, rows, sql_catalog, staged, written
from harness.proxy import Proxy, in_front_of
from sparkonce.blocking import run
from sparkonce.sink.iceberg.evidence import COMMITTED, FENCED
from sparkonce.sink.iceberg.sink import IcebergTableSink
from sparkonce.sink.protocol import Committed, Evidence, FencedOff, SinkKey


@contextlib.contextmanager
def rest(request: pytest.FixtureRequest, _folder: Path) -> Iterator[tuple[Proxy, dict[str, str]]]:
    """Apache Iceberg's own REST server, behind a proxy."""
    with in_front_of(request.getfixturevalue("iceberg_server").removeprefix("http://")) as proxy:
        yield proxy, rest_catalog(f"http://{proxy.address}")


@contextlib.contextmanager
def sql(_request: pytest.FixtureRequest, folder: Path) -> Iterator[tuple[Proxy, dict[str, str]]]:
    """PostgreSQL, behind a proxy."""
    server = postgres.server()
    schema = server.fresh_schema()
    with server.connect() as connection:
        connection.execute(f'CREATE SCHEMA "{schema}"'.encode())
    with in_front_of(f"127.0.0.1:{server.port}") as proxy:
        user = f"{postgres.USER}:{postgres.URL_PASSWORD}"
        uri = f"postgresql+psycopg://{user}@{proxy.address}/postgres?options=-csearch_path%3D{schema}"
        settings = sql_catalog(folder)
        yield proxy, {name: uri if name.endswith("__URI") else value for name, value in settings.items()}
    server.drop_schema(schema)


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Closes the connections to databases when the test ends, since catalogs keep theirs open."""
    made = []

    def engine(*arguments: Any, **named: Any) -> Any:
        made.append(create_engine(*arguments, **named))
        return made[-1]

    monkeypatch.setattr("pyiceberg.catalog.sql.create_engine", engine)
    yield
    for each in made:
        each.dispose()


@pytest.fixture(params=[rest, sql], ids=["rest", "sql"])
def line(
    request: pytest.FixtureRequest, tmp_path: Path, engines: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Proxy]:
    """The proxy between this process and its catalog; the catalog holds no table of ours before or after the test."""
    store_servers.no_proxy(monkeypatch)
    with request.param(request, tmp_path) as (proxy, environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield proxy
        if iceberg_tables.catalog().table_exists(iceberg_tables.TABLE):
            iceberg_tables.catalog().purge_table(iceberg_tables.TABLE)


def losing(sink: IcebergTableSink, line: Proxy, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Loses the reply to the next change that the sink sends. Returns a list with one entry for each change that was sent."""
    catalog = sink._place.catalog
    send = catalog.commit_table
    sent: list[str] = []

    def lose(*_: Any) -> None:
        line.lose = 1 if len(sent) == 1 else 0

    def unheard(*arguments: Any) -> Any:
        sent.append("change")
        if not hasattr(catalog, "engine"):
            lose()
        try:
            return send(*arguments)
        finally:
            line.lose = 0

    if hasattr(catalog, "engine"):
        # Within a transaction only the last statement makes the change visible.
        event.listen(catalog.engine, "commit", lose)
    monkeypatch.setattr(catalog, "commit_table", unheard)
    return sent


def commits(key: SinkKey) -> int:
    """Snapshots that added rows of the key, in other words the effects that readers saw."""
    said = [each.summary.additional_properties for each in iceberg_tables.table().metadata.snapshots if each.summary]
    return sum(each.get("sparkonce.sink-key") == str(key) and "sparkonce.snapshot" not in each for each in said)


def test_a_commit_whose_reply_is_lost_is_recognised(line: Proxy, key: SinkKey, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog committed and its reply was lost: the sink finds the commit, as its own, in the table. It is sent once; the rows are
    there once; a later abort deletes nothing, and another driver of the attempt gets this commit."""
    sink = opened()
    slot = staged(sink, key, 1, 1, 2)
    sent = losing(sink, line, monkeypatch)
    assert run(sink.commit(key, slot)) == Committed(slot)
    assert len(sent) == 1
    assert line.dropped > 0
    assert run(sink.abort(key, slot)) == slot
    assert run(opened().commit(key, slot)) == Committed(slot)
    assert run(opened().probe(key, None)) is Evidence.PRESENT
    assert commits(key) == 1
    assert rows() == [1, 2]
    assert [tag for tag in iceberg_tables.tags() if tag.startswith(COMMITTED)] == [f"{COMMITTED}{key}"]


def test_a_fence_whose_reply_is_lost_bars(line: Proxy, key: SinkKey, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fence is found in the table and exists once, and the zombie is fenced."""
    sink, other = opened(), SinkKey(key_hash="c3d4", output="orders", generation=1)
    written(sink, other, 1, 9)
    zombie = staged(sink, key, 1, 1)
    sent = losing(sink, line, monkeypatch)
    assert run(sink.fence(key, 2, fingerprint="f", by="settle")) is None
    assert len(sent) == 1
    assert line.dropped > 0
    assert isinstance(run(opened().commit(key, zombie)), FencedOff)
    assert [tag for tag in iceberg_tables.tags() if tag.startswith(FENCED)] == [f"{FENCED}{key}"]
    assert rows() == [9]


def test_a_table_whose_first_reply_is_lost_is_made_once(
    line: Proxy, key: SinkKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog created the table and its reply was lost: there is one table, with the rows."""
    sink = opened()
    catalog = sink._place.catalog
    create, asked = catalog.create_table, []

    def unheard(*arguments: Any, **named: Any) -> Any:
        asked.append("table")
        line.lose = 1 if len(asked) == 1 else 0
        try:
            return create(*arguments, **named)
        finally:
            line.lose = 0

    monkeypatch.setattr(catalog, "create_table", unheard)
    slot = sink.stage(table_of(1), key, 1, fingerprint="f")
    assert run(sink.commit(key, slot)) == Committed(slot)
    assert line.dropped > 0
    assert rows() == [1]
