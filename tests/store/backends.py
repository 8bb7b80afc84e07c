"""The stores under test, each with the few things that a test must do behind the store's back.

A backend opens further handles on the same store, in this process or (durable ones) in others, ends a lease as if its process had died, and
writes texts that no verb would write. To add a store to the suite, add a class here and its name to `BACKENDS`.
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
    """Whether the store's revision moves with each write, instead of with changes of keys only."""

    def open(self, **options: Any) -> IdempotencyStore:
        """Another handle on the same store; `options` are passed to its class."""
        ...

    def expire(self, lease: Lease) -> None:
        """Ends the lease as if its holder had died."""
        ...

    def write(self, address: Address, text: str) -> None:
        """Replaces the text of an existing record without any verb."""
        ...

    def forget_removals(self) -> None:
        """Makes `watch` forget removals, except for the newest two at most; does nothing where the setting `tombstones` controls this."""
        ...

    def close(self) -> None: ...


class Durable(Backend, Protocol):
    """A store that other processes can open as well."""

    def opening(self, **options: Any) -> Callable[[], IdempotencyStore]:
        """A function with which another process opens the store; it can be pickled."""
        ...


class Memory:
    counts_every_write = False

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self._store = MemoryStore(clock=self.clock, poll=0.01)

    def open(self, **options: Any) -> MemoryStore:
        if options:
            return MemoryStore(clock=self.clock, poll=0.01, **options)  # with other limits it is a separate store
        return self._store

    def expire(self, lease: Lease) -> None:
        assert isinstance(lease, MemoryLease)
        lease.expire()

    def write(self, address: Address, text: str) -> None:
        self._store._entries[address] = replace(self._store._entries[address], record=text)

    def forget_removals(self) -> None:
        """Nothing to do: the setting `tombstones` controls it."""

    def close(self) -> None:
        """Nothing to do: the content goes with the object."""


class Sqlite:
    counts_every_write = False

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.path = folder / "ledger.db"
        self._open: list[SqliteStore] = []

    def open(self, **options: Any) -> SqliteStore:
        """Without fsync: these tests kill processes, not the machine."""
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
        """Nothing to do: the setting `tombstones` controls it."""

    def close(self) -> None:
        for store in self._open:
            run(store.close())


class Postgres:
    """A schema of its own on the server of this test process."""

    counts_every_write = False

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.server = server()
        self.schema = self.server.fresh_schema()
        self._open: list[PostgresStore] = []

    def open(self, **options: Any) -> PostgresStore:
        """With a long timeout, since a server may stall for seconds on a machine that runs other tests too."""
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
        """Runs a statement without any verb."""
        with self.server.connect() as connection:
            connection.execute(f'SET search_path TO "{self.schema}"'.encode())
            cursor = connection.execute(statement.encode(), values)
            return cursor.fetchall() if cursor.description else []

    def forget_removals(self) -> None:
        """Nothing to do: the setting `tombstones` controls it."""

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
    """A store that loses requests or replies: the verb takes effect or not, and the caller gets no answer."""

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
        """Repeats the call until the store answers, as every caller must."""
        while True:
            try:
                return run(getattr(self, verb)(*args, **kwargs))
            except StoreUnavailable:
                continue
