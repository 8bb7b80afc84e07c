"""The stores under test, each with the few things that a test must do to it from outside.

A backend opens further handles on the same store, in this process or (durable ones) in others, ends a lease as if its process had died, and
writes what no verb would write. A new store joins the suite by a class here and its name in `BACKENDS`.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from harness.memory_store import MemoryLease, MemoryStore
from harness.postgres import server
from sparkonce.blocking import run
from sparkonce.errors import StoreUnavailable
from sparkonce.model.record import Address
from sparkonce.store.postgres.store import PostgresStore
from sparkonce.store.protocol import IdempotencyStore, Lease
from sparkonce.store.sqlite.lease import FileLease
from sparkonce.store.sqlite.store import SqliteStore
from store.etcd_backend import Etcd


class Clock:
    """The wall clock of a store, which a test may set."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


class Backend(Protocol):
    clock: Clock
    counts_every_write: bool
    """The store's revision moves with each write, not with changes of keys alone."""

    def open(self, **options: Any) -> IdempotencyStore:
        """Another handle on the same store; `options` are those of its class."""
        ...

    def expire(self, lease: Lease) -> None:
        """As if the process that holds it had died."""
        ...

    def write(self, address: Address, text: str) -> None:
        """The text of a record that exists, past every verb."""
        ...

    def forget_removals(self) -> None:
        """Makes `watch` forget removals, except for the newest two at most; no-op where the setting `tombstones` controls this."""
        ...

    def close(self) -> None: ...


class Durable(Backend, Protocol):
    """One that other processes can open, too."""

    def opening(self, **options: Any) -> Callable[[], IdempotencyStore]:
        """How another process opens it: may be pickled."""
        ...


class Memory:
    counts_every_write = False

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self._store = MemoryStore(clock=self.clock, poll=0.01)

    def open(self, **options: Any) -> MemoryStore:
        if options:
            return MemoryStore(clock=self.clock, poll=0.01, **options)  # with other limits it is another store
        return self._store

    def expire(self, lease: Lease) -> None:
        assert isinstance(lease, MemoryLease)
        lease.expire()

    def write(self, address: Address, text: str) -> None:
        self._store._entries[address] = replace(self._store._entries[address], record=text)

    def forget_removals(self) -> None:
        """Done by `tombstones`."""

    def close(self) -> None:
        """It goes with the object."""


class Sqlite:
    counts_every_write = False

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.path = folder / "ledger.db"
        self._open: list[SqliteStore] = []

    def open(self, **options: Any) -> SqliteStore:
        """Without fsync: processes die in these tests, the machine does not."""
        defaults: dict[str, Any] = {"clock": self.clock, "poll": 0.01, "synchronous": "OFF"}
        store = SqliteStore(self.path, **(defaults | options))
        self._open.append(store)
        return store

    def opening(self, **options: Any) -> Callable[[], SqliteStore]:
        return partial(SqliteStore, self.path, **({"synchronous": "OFF"} | options))

    def expire(self, lease: Lease) -> None:
        assert isinstance(lease, FileLease)
        lease.let_go()

    def write(self, address: Address, text: str) -> None:
        connection = sqlite3.connect(self.path)
        with connection:
            values = text, address.realm, address.key_hash
            connection.execute("UPDATE records SET body = ? WHERE realm = ? AND key_hash = ?", values)
        connection.close()

    def forget_removals(self) -> None:
        """Done by `tombstones`."""

    def close(self) -> None:
        for store in self._open:
            run(store.close())


class Postgres:
    """A schema of its own on this process's server."""

    counts_every_write = False

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.server = server()
        self.schema = self.server.fresh_schema()
        self._open: list[PostgresStore] = []

    def open(self, **options: Any) -> PostgresStore:
        """Patient: a machine that runs other tests besides may stall a server for seconds."""
        store = PostgresStore(self.server.url, **(self._options | {"clock": self.clock, "poll": 0.01} | options))
        self._open.append(store)
        return store

    def opening(self, **options: Any) -> Callable[[], PostgresStore]:
        return partial(PostgresStore, self.server.url, **(self._options | options))

    @property
    def _options(self) -> dict[str, Any]:
        return {"schema": self.schema, "timeout": 30.0, "ttl": 3600.0, "keep": False}

    def expire(self, lease: Lease) -> None:
        self.sql("UPDATE leases SET ends = 0 WHERE id = %s", lease.id)

    def write(self, address: Address, text: str) -> None:
        statement = "UPDATE records SET body = %s WHERE realm = %s AND key_hash = %s"
        self.sql(statement, text, address.realm, address.key_hash)

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Past every verb."""
        with self.server.connect() as connection:
            connection.execute(f'SET search_path TO "{self.schema}"'.encode())
            cursor = connection.execute(statement.encode(), values)
            return cursor.fetchall() if cursor.description else []

    def forget_removals(self) -> None:
        """Done by `tombstones`."""

    def close(self) -> None:
        for store in self._open:
            run(store.close())
        self.server.drop_schema(self.schema)


DURABLE: dict[str, Callable[[Path], Durable]] = {
    "etcd": lambda _: Etcd(Clock(), members=1),
    "etcd-3": lambda _: Etcd(Clock(), members=3),
    "postgres": Postgres,
    "sqlite": Sqlite,
}
BACKENDS: dict[str, Callable[[Path], Backend]] = {"memory": Memory, **DURABLE}


class LostReplies:
    """A store that loses requests or replies: the verb takes effect and the caller gets no answer, or it does not take effect."""

    def __init__(self, store: IdempotencyStore, rng: random.Random, *, of: tuple[str, ...]) -> None:
        self._store, self._rng, self._of = store, rng, of
        self.lost = 0

    def __getattr__(self, verb: str) -> Any:
        real = getattr(self._store, verb)
        if verb not in self._of:
            return real

        async def perhaps(*args: Any, **kwargs: Any) -> Any:
            fate = self._rng.choice(("answered", "request lost", "reply lost", "reply lost"))
            done = None if fate == "request lost" else await real(*args, **kwargs)
            if fate != "answered":
                self.lost += 1
                raise StoreUnavailable(f"the {fate}")
            return done

        return perhaps

    def until_answered(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        """As every caller must: the same call again, until the store answers."""
        while True:
            try:
                return run(getattr(self, verb)(*args, **kwargs))
            except StoreUnavailable:
                continue
