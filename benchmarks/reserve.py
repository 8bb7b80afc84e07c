"""Compares a reservation with the minimum that could be durable: one row of as many bytes, inserted in one transaction.

Both use the same disk, files of their own, WAL and synchronous=FULL, BEGIN IMMEDIATE, and one connection that stays open. A pair is
OPERATIONS of each in the order A B B A, and its value is their mean: the write-ahead log is copied back every thousand pages or so, and
that is part of the cost. It times the verb alone, `store.reserve` of a fresh key, which reads the key's row, decides, and writes record,
spec, claim, floor, event and the store's revision.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from measure import Cost, Goal, Row, WrongEffect, interleaved, pair_text

from attempt import prepared, reserving
from sparkonce.blocking import run
from sparkonce.model.record import Address
from sparkonce.store.open import open_store
from sparkonce.store.protocol import IdempotencyStore, Lease

OPERATIONS = 100
OURS, RAW = "store.reserve", "one INSERT"


@dataclass
class Reserve:
    """The part `reserve`; `say` gets a line per pair."""

    scratch: Path
    pairs: int
    say: Callable[[str], None]
    bytes: int = 0
    """Size of everything that one reservation writes, without indices."""
    costs: dict[str, list[Cost]] = field(default_factory=dict)

    def measure(self) -> list[Row]:
        """Raises WrongEffect if a row is missing in the end."""
        self.say(f"reserve: {self.pairs} pairs of {OPERATIONS} and one to warm up")
        ledger, plain = self.scratch / "ledger.db", self.scratch / "plain.db"
        store = open_store(str(ledger))
        lease = run(store.open_lease(owner="benchmark"))
        try:
            first = reserving(store, lease, prepared(self.scratch))().record.address
            self.bytes = bytes_of(ledger, first)
            with closing(opened(plain)) as connection:
                for pair in range(self.pairs + 1):
                    self._pair(pair, store, lease, connection)
                self._counted(store, connection)
        finally:
            run(lease.revoke())
            run(store.close())
        ours, raw = self.costs[OURS], self.costs[RAW]
        wall, raw_wall = [each.wall for each in ours], [each.wall for each in raw]
        cpu, raw_cpu = [each.cpu for each in ours], [each.cpu for each in raw]
        return [
            Row(what=f"reserve: {OURS}", unit="ms", ours=wall, raw=raw_wall, goal=Goal(3.0, "<= 3x")),
            Row(what=f"reserve: {OURS}", unit="CPU ms", ours=cpu, raw=raw_cpu),
        ]

    def _pair(self, pair: int, store: IdempotencyStore, lease: Lease, connection: sqlite3.Connection) -> None:
        spent = {OURS: [0.0, 0.0], RAW: [0.0, 0.0]}
        for _, name in interleaved((OURS, RAW), OPERATIONS - 1):
            ready = prepared(self.scratch)
            work: Callable[[], object]
            if name == OURS:
                work = reserving(store, lease, ready)
            else:
                work = inserting(connection, ready.key.key_hash, b"x" * self.bytes)
            wall, cpu = perf_counter(), process_time()
            work()
            spent[name][1] += process_time() - cpu
            spent[name][0] += perf_counter() - wall
        costs = {name: Cost(*(1000 * each / OPERATIONS for each in both)) for name, both in spent.items()}
        if pair:
            for name, cost in costs.items():
                self.costs.setdefault(name, []).append(cost)
        which = pair_text(pair, self.pairs)
        what = ", ".join(f"{name} {cost.wall:.2f} ms ({cost.cpu:.2f} of CPU)" for name, cost in costs.items())
        self.say(f"reserve: {which}: {what}")

    def _counted(self, store: IdempotencyStore, connection: sqlite3.Connection) -> None:
        expected = (self.pairs + 1) * OPERATIONS
        inserted = connection.execute("SELECT count(*) FROM jobs").fetchone()[0]
        reserved = run(store.count()) - 1
        if (reserved, inserted) != (expected, expected):
            raise WrongEffect(f"of {expected} each, {reserved} keys are reserved and {inserted} rows inserted")

    def dump(self) -> dict[str, Any]:
        return {"operationsPerPair": OPERATIONS, "bytes": self.bytes}


def opened(path: Path) -> sqlite3.Connection:
    """A database as durable as the ledger: see sparkonce/store/sqlite/database.py."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE jobs (key TEXT PRIMARY KEY, body BLOB NOT NULL)")
    return connection


def inserting(connection: sqlite3.Connection, key: str, body: bytes) -> Callable[[], object]:
    def insert() -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO jobs VALUES (?, ?)", (key, body))
        connection.execute("COMMIT")

    return insert


def bytes_of(ledger: Path, address: Address) -> int:
    """Total size of all values in the rows that contain the key."""
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as look:
        tables = [row[0] for row in look.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        total = 0
        for table in tables:
            if any(row[1] == "key_hash" for row in look.execute(f"PRAGMA table_info({table})")):
                rows = look.execute(f"SELECT * FROM {table} WHERE key_hash = ?", (address.key_hash,))  # noqa: S608 - a table's own name
                total += sum(len(str(value)) for row in rows for value in row)
    return total
