"""The stores of the HTTP benchmarks, each with the raw calls that the middleware is compared with.

A raw insert is one committed transaction with one row (in etcd: one key) of as many bytes as the middleware's record; a raw read gets that
row by its key. Both use the store's own client and one connection that stays open, and block the event loop where the client does: an
insert that went to a thread would be slower, and a comparison with it would flatter the middleware, whose verbs do. Every store is
durable: SQLite with WAL and synchronous=FULL, PostgreSQL and etcd with fsync, all on the measured disk.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psycopg
from measure import WrongEffect
from reserve import inserting, opened

from harness.etcd import running
from harness.postgres import PostgresServer
from http_requests import PATIENCE
from sparkonce.etcd.client import Client
from sparkonce.etcd.kv import Compare, Put, Range, prefix_end
from sparkonce.replies.ledger.etcd import ROOT
from sparkonce.replies.ledger.postgres import SCHEMA

FSYNC = "--unsafe-no-fsync=false"
"""Overrides the harness's flag: etcd uses the last one given."""


class RawStore(Protocol):
    @property
    def url(self) -> str:
        """Address of the ledger, for the middleware."""
        ...

    async def insert(self, key: str, body: bytes) -> None: ...

    async def read(self, key: str) -> bytes: ...

    async def counts(self) -> tuple[int, int]:
        """Keys in the ledger, and raw rows."""
        ...

    async def close(self) -> None: ...


@dataclass
class RawSqlite:
    """A database of its own beside the ledger's: one writer's log does not slow the other down."""

    ledger: Path
    connection: sqlite3.Connection

    @property
    def url(self) -> str:
        return f"sqlite:///{self.ledger}"

    async def insert(self, key: str, body: bytes) -> None:
        inserting(self.connection, key, body)()

    async def read(self, key: str) -> bytes:
        body: bytes = self.connection.execute("SELECT body FROM jobs WHERE key = ?", (key,)).fetchone()[0]
        return body

    async def counts(self) -> tuple[int, int]:
        with closing(sqlite3.connect(self.ledger)) as ledger:
            keys = ledger.execute("SELECT count(*) FROM replies WHERE status IS NOT NULL").fetchone()[0]
        return keys, self.connection.execute("SELECT count(*) FROM jobs").fetchone()[0]

    async def close(self) -> None:
        self.connection.close()


@dataclass
class RawPostgres:
    url: str
    connection: psycopg.Connection[tuple[object, ...]]

    async def insert(self, key: str, body: bytes) -> None:
        self.connection.execute("INSERT INTO raw VALUES (%s, %s)", (key, body), prepare=True)

    async def read(self, key: str) -> bytes:
        found = self.connection.execute("SELECT body FROM raw WHERE key = %s", (key,), prepare=True).fetchone()
        assert found is not None
        return bytes(found[0])  # type: ignore[call-overload,no-any-return] # a column's type is not known

    async def counts(self) -> tuple[int, int]:
        keys = f'SELECT count(*) FROM "{SCHEMA}".replies WHERE status IS NOT NULL'  # noqa: S608 - our own schema
        asked = (keys.encode(), b"SELECT count(*) FROM raw")
        ledger, raw = (int(str(row[0])) for each in asked for row in self.connection.execute(each).fetchall())
        return ledger, raw

    async def close(self) -> None:
        self.connection.close()


@dataclass
class RawEtcd:
    """`client`: connects with its first call, so that it belongs to the benchmark's event loop."""

    url: str
    endpoints: list[str]
    client: Client

    async def insert(self, key: str, body: bytes) -> None:
        name = f"/raw/{key}".encode()
        if not (await self.client.txn([Compare(name, "version", "=", 0)], [Put(name, body)])).succeeded:
            raise WrongEffect("a fresh key was there already")

    async def read(self, key: str) -> bytes:
        return (await self.client.range(Range(f"/raw/{key}".encode()))).kvs[0].value

    async def counts(self) -> tuple[int, int]:
        return await self._count(f"{ROOT}replies/key/"), await self._count("/raw/")

    async def _count(self, prefix: str) -> int:
        start = prefix.encode()
        return (await self.client.range(Range(start, prefix_end(start), count_only=True))).count

    async def close(self) -> None:
        await self.client.close()


@contextmanager
def raw_sqlite(folder: Path) -> Iterator[RawStore]:
    yield RawSqlite(folder / "replies.db", opened(folder / "raw.db"))


@contextmanager
def raw_postgres(folder: Path) -> Iterator[RawStore]:
    """On the disk of the system's temporary folder: the server's user may not look into `folder`, which is ours."""
    del folder
    server = PostgresServer(fsync="on", full_page_writes="on")
    try:
        server.start()
        connection = psycopg.connect(server.url, autocommit=True)
        connection.execute("CREATE TABLE raw (key TEXT PRIMARY KEY, body BYTEA NOT NULL)")
        yield RawPostgres(server.url, connection)
    finally:
        server.close()


@contextmanager
def raw_etcd(folder: Path) -> Iterator[RawStore]:
    with running(folder, flags=[FSYNC]) as etcd:
        url = f"etcd://{','.join(etcd.endpoints)}?timeout={PATIENCE:g}"
        yield RawEtcd(url, etcd.endpoints, Client.open(etcd.endpoints, timeout=PATIENCE))


STORES = {"sqlite": raw_sqlite, "postgres": raw_postgres, "etcd": raw_etcd}
