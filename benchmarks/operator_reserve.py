"""Compares a reservation on etcd with a bare transaction of the same keys and values, through the same client, in the same run.

Ours is the verb: it checks for room, decides, encodes, compares everything that the decision rests on, and writes. Raw is the minimum that
could be exactly once: one transaction, prepared in advance, that puts the same keys and values if the record's key is absent. A pair is
OPERATIONS of each, first one at a time (median of their times), then OUTSTANDING at a time (total time divided by their number). etcd keeps
its data on the measured disk and flushes every write, as in a cluster; in memory and without flushes, the ratio would compare two programs
that wait for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any
from uuid import uuid4

from measure import Goal, Row, WrongEffect, measured, pair_text

from attempt import prepared
from harness.etcd import running
from sparkonce.etcd.client import Client
from sparkonce.etcd.kv import Compare, Op, Put, TxnReply
from sparkonce.store.etcd.store import EtcdStore
from sparkonce.store.protocol import IdempotencyStore, Lease, Owned

OPERATIONS = 320
OUTSTANDING = 64
OURS, RAW = "store.reserve", "one transaction"
SINGLE = 160
"""How many of OPERATIONS run one at a time."""

FSYNC = "--unsafe-no-fsync=false"
"""Overrides the harness's flag: etcd uses the last one given."""

Call = Callable[[], Awaitable[object]]
Times = tuple[float, float]
"""Milliseconds per operation: median of those made one at a time, and mean with OUTSTANDING at a time."""


class _Caught(Exception):
    """Raised by `_Recorder` instead of sending a transaction."""


@dataclass
class _Recorder:
    """Replaces the client: records the transaction that a verb would send, and forwards everything else."""

    client: Client
    puts: list[Put] = field(default_factory=list)

    async def txn(self, compare: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op]) -> TxnReply:
        del compare, otherwise
        self.puts = [op for op in then if isinstance(op, Put)]
        raise _Caught

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)


@dataclass
class OperatorReserve:
    """The part `etcd`; `say` gets a line per pair."""

    scratch: Path
    pairs: int
    say: Callable[[str], None]
    bytes: int = 0
    """Size of the keys and values that one reservation puts."""
    _runner: asyncio.Runner = field(default_factory=asyncio.Runner)

    def measure(self) -> list[Row]:
        """Raises WrongEffect if a key was not reserved, or is missing in the end."""
        self.say(f"etcd: {self.pairs} pairs of {OPERATIONS} and one to warm up, {OUTSTANDING} outstanding")
        with self._runner, running(self.scratch, flags=[FSYNC]) as etcd:
            stores = [EtcdStore(etcd.endpoints, install=name, ttl=600) for name in ("bench-1", "bench-2")]
            store, other = stores
            lease = self._runner.run(store.open_lease(owner="benchmark"))
            found = measured(
                {
                    OURS: lambda: self._runner.run(timed(reservations(self.scratch, store, lease))),
                    RAW: lambda: self._runner.run(timed(self._bare(store, other, lease))),
                },
                self.pairs,
                self._told,
            )
            self._counted(self._runner.run(store.count()), self._runner.run(other.count()))
            for each in stores:
                self._runner.run(each.close())
        goal = Goal(1.2, "<= 1.2x")
        rows = []
        for place, what in enumerate(("reserve, one at a time", f"reserve, {OUTSTANDING} outstanding")):
            ours, raw = ([times[place] for times in found[name]] for name in (OURS, RAW))
            rows.append(Row(what=f"etcd: {what}", unit="ms", ours=ours, raw=raw, goal=goal))
        return rows

    def _bare(self, store: EtcdStore, other: EtcdStore, lease: Lease) -> list[Call]:
        """The puts that `other` would send for fresh keys, with the one comparison that makes them exclusive."""
        connection = other._connection  # noqa: SLF001 - records exactly this verb's own transaction
        client = connection.client
        recorder = _Recorder(client)
        calls = []
        connection.client = recorder  # type: ignore[assignment]
        try:
            for _ in range(OPERATIONS):
                try:
                    self._runner.run(other.reserve(prepared(self.scratch).request(uuid4().hex), lease=lease, floor=0))
                except _Caught:
                    calls.append(self._sending(store, recorder.puts))
        finally:
            connection.client = client
        if len(calls) != OPERATIONS:
            raise WrongEffect(f"of {OPERATIONS} reservations, {len(calls)} would be sent as one transaction")
        return calls

    def _sending(self, store: EtcdStore, puts: Sequence[Put]) -> Call:
        self.bytes = sum(len(put.key) + len(put.value) for put in puts)
        client, absent = store._connection.client, Compare(puts[0].key, "version", "=", 0)  # noqa: SLF001 - the same client

        async def send() -> None:
            if not (await client.txn([absent], puts)).succeeded:
                raise WrongEffect("a fresh key was there already")

        return send

    def _told(self, pair: int, found: dict[str, Times]) -> None:
        which = pair_text(pair, self.pairs)
        what = ", ".join(
            f"{name} p50 {one:.2f} ms, {1000 / many:.0f} per second" for name, (one, many) in found.items()
        )
        self.say(f"etcd: {which}: {what}")

    def _counted(self, reserved: int, put: int) -> None:
        expected = (self.pairs + 1) * OPERATIONS
        if (reserved, put) != (expected, expected):
            raise WrongEffect(f"of {expected} each, {reserved} keys are reserved and {put} put")

    def dump(self) -> dict[str, Any]:
        return {"operationsPerPair": OPERATIONS, "outstanding": OUTSTANDING, "bytes": self.bytes}


def reservations(scratch: Path, store: IdempotencyStore, lease: Lease) -> list[Call]:
    """OPERATIONS reservations of fresh keys. Each raises WrongEffect if its key was not reserved."""

    def call() -> Call:
        request = prepared(scratch).request(uuid4().hex)

        async def reserve() -> None:
            reply = await store.reserve(request, lease=lease, floor=0)
            if not isinstance(reply, Owned):
                raise WrongEffect(f"a fresh key was not reserved: {type(reply).__name__}")

        return reserve

    return [call() for _ in range(OPERATIONS)]


async def timed(calls: list[Call]) -> Times:
    single = []
    for call in calls[:SINGLE]:
        began = perf_counter()
        await call()
        single.append(perf_counter() - began)
    left = iter(calls[SINGLE:])

    async def work() -> None:
        for call in left:
            await call()

    began = perf_counter()
    await asyncio.gather(*(work() for _ in range(OUTSTANDING)))
    return 1000 * median(single), 1000 * (perf_counter() - began) / (len(calls) - SINGLE)
