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
from pathlib import Path
from typing import Any, Protocol

from sparkonce.blocking import run
from sparkonce.errors import StoreUnavailable
from sparkonce.model.record import Address
from sparkonce.store.lease_files import FileLease
from sparkonce.store.memory import MemoryLease, MemoryStore
from sparkonce.store.protocol import IdempotencyStore, Lease
from sparkonce.store.sql import SqlStore


class Clock:
    """The wall clock of a store, which a test may set."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


class Backend(Protocol):
    clock: Clock
    durable: bool

    def open(self, **options: Any) -> IdempotencyStore:
        """Another handle on the same store; `options` are those of its class."""
        ...

    def expire(self, lease: Lease) -> None:
        """As if the process that holds it had died."""
        ...

    def write(self, address: Address, text: str) -> None:
        """The text of a record that exists, past every verb."""
        ...


class Memory:
    durable = False

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


class Sqlite:
    durable = True

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.path = folder / "ledger.db"
        self._open: list[SqlStore] = []

    def open(self, **options: Any) -> SqlStore:
        """Without fsync: processes die in these tests, the machine does not."""
        defaults: dict[str, Any] = {"clock": self.clock, "poll": 0.01, "synchronous": "OFF"}
        store = SqlStore(self.path, **(defaults | options))
        self._open.append(store)
        return store

    def expire(self, lease: Lease) -> None:
        assert isinstance(lease, FileLease)
        lease.let_go()

    def write(self, address: Address, text: str) -> None:
        connection = sqlite3.connect(self.path)
        with connection:
            values = text, address.realm, address.key_hash
            connection.execute("UPDATE records SET body = ? WHERE realm = ? AND key_hash = ?", values)
        connection.close()

    def close(self) -> None:
        for store in self._open:
            run(store.close())


BACKENDS: dict[str, Callable[[Path], Memory | Sqlite]] = {"memory": Memory, "sqlite": Sqlite}


class LostReplies:
    """A store whose requests or replies get lost: the verb happens and the caller is told nothing, or it does not happen."""

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
