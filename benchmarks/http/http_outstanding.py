"""Compares new keys through the HTTP middleware, 64 at a time on etcd, with the same writes as bare transactions through the same client.

Ours is a request to the bare application inside the middleware. Raw is the bare application between two transactions, prepared in advance,
which put and delete the same keys and values: the first one if the record is absent, the second one if the first is all that was written.
What is left to ours is the read before a reservation, the decisions, the encoding, and all that a request with a key needs. Both run in one
process on one core, and etcd flushes each write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any
from uuid import uuid4

from measure import Goal, Row, WrongEffect, measured, pair_text

from http_costs import MeasuredService
from http_raw import RawEtcd, raw_etcd
from http_requests import PATIENCE, BareOrders, SentRequest
from sparkonce.asgi import caller_of
from sparkonce.etcd.client import Client
from sparkonce.etcd.kv import Compare, Delete, Op, Put, Range, TxnReply, prefix_end
from sparkonce.replies.keys import key_hash
from sparkonce.replies.ledger.etcd import ROOT, EtcdReplies

REQUESTS, OUTSTANDING = 640, 64
OURS, RAW = "new keys", "two transactions each"
PREFIX = b"/raw/"
LEASE = 3600
"""Seconds: that of the raw claims must outlive the benchmark, in which a reservation's would end."""

Call = Callable[[], Awaitable[object]]


@dataclass
class WritesOfRequest:
    """Passes the ledger's calls on to the client, and keeps the transactions that write."""

    client: Client
    kept: list[list[Op]] = field(default_factory=list)

    async def txn(self, compare: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()) -> TxnReply:
        if any(isinstance(op, Put) for op in then):
            self.kept.append(list(then))
        return await self.client.txn(compare, then, otherwise)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)


@dataclass(frozen=True)
class PreparedWrites:
    """What one request wrote, as it can be written again under another key."""

    key: bytes
    transactions: tuple[tuple[Op, ...], ...]

    @property
    def bytes(self) -> int:
        puts = [op for each in self.transactions for op in each if isinstance(op, Put)]
        return sum(len(put.key) + len(put.value) for put in puts)

    def anew(self) -> list[tuple[Compare, list[Op]]]:
        """The transactions for a fresh key, each with the comparison that makes it exclusive."""
        fresh = (uuid4().hex * 2).encode()
        made = []
        for number, each in enumerate(self.transactions):
            then = [replace(op, key=op.key.replace(self.key, fresh)) for op in each if isinstance(op, Put | Delete)]
            record = then[0].key
            made.append((Compare(record, "version", "=", number), list[Op](then)))
        return made


@dataclass
class HttpOutstanding:
    """The part `http-outstanding`; `say` gets a line per pair."""

    scratch: Path
    pairs: int
    say: Callable[[str], None]
    bytes: int = 0
    """Size of the keys and values that one request puts."""
    _runner: asyncio.Runner = field(default_factory=asyncio.Runner)

    def measure(self) -> list[Row]:
        """Raises WrongEffect if a request did not run once, or a bare write did not land."""
        self.say(f"http-outstanding: {self.pairs} pairs of {REQUESTS} requests and one to warm up")
        with self._runner, raw_etcd(self.scratch) as raw:
            assert isinstance(raw, RawEtcd)
            ledger = EtcdReplies(raw.endpoints, timeout=PATIENCE)
            service, bare = MeasuredService(ledger), BareOrders()
            prepared = self._runner.run(self._prepared(service, ledger))
            self.bytes = prepared.bytes
            client = ledger._client  # noqa: SLF001 - the same client
            found = measured(
                {
                    OURS: lambda: self._timed([service.new] * REQUESTS),
                    RAW: lambda: self._timed([_written(client, bare, prepared.anew()) for _ in range(REQUESTS)]),
                },
                self.pairs,
                self._told,
            )
            recorded, _ = self._runner.run(raw.counts())
            service.check(recorded)
            self._counted(self._runner.run(_records(client)))
            self._runner.run(service.app.close())
            self._runner.run(raw.close())
        goal = Goal(0.6, ">= 0.6x", least=True)
        what = f"http-outstanding: etcd, new keys, {OUTSTANDING} at a time"
        return [Row(what=what, unit="per second", ours=found[OURS], raw=found[RAW], goal=goal)]

    async def _prepared(self, service: MeasuredService, ledger: EtcdReplies) -> PreparedWrites:
        """What one request of the middleware writes, with its keys outside of the ledger and its leases ours."""
        client = ledger._client  # noqa: SLF001 - records exactly this ledger's own transactions
        recorder = WritesOfRequest(client)
        ledger._client = recorder  # type: ignore[assignment] # noqa: SLF001
        try:
            await service.open()
        finally:
            ledger._client = client  # noqa: SLF001
        if len(recorder.kept) != 2:
            raise WrongEffect(f"a new key was written by {len(recorder.kept)} transactions")
        lease = (await client.grant(LEASE)).id
        ledger_root = f"{ROOT}replies/".encode()

        def moved(op: Op) -> Op:
            assert isinstance(op, Put | Delete)
            key = op.key.replace(ledger_root, PREFIX)
            return replace(op, key=key, lease=lease if op.lease else 0) if isinstance(op, Put) else replace(op, key=key)

        request = service.answered
        used = key_hash(request.key, service="", caller=caller_of(request.scope())).encode()
        return PreparedWrites(used, tuple(tuple(moved(op) for op in each) for each in recorder.kept))

    def _timed(self, calls: list[Call]) -> float:
        return self._runner.run(_rate(calls))

    def _told(self, pair: int, found: dict[str, float]) -> None:
        which = pair_text(pair, self.pairs)
        what = ", ".join(f"{name} {rate:.0f} per second" for name, rate in found.items())
        self.say(f"http-outstanding: {which}: {what}")

    def _counted(self, records: int) -> None:
        expected = (self.pairs + 1) * REQUESTS
        if records != expected:
            raise WrongEffect(f"of {expected} bare writes, {records} landed")

    def dump(self) -> dict[str, Any]:
        return {"requestsPerPair": REQUESTS, "outstanding": OUTSTANDING, "bytes": self.bytes}


def _written(client: Client, bare: BareOrders, transactions: list[tuple[Compare, list[Op]]]) -> Call:
    async def write() -> None:
        (before, reserve), (after, finalize) = transactions
        reserved = await client.txn([before], reserve)
        (await SentRequest().to(bare)).expect()
        finalized = await client.txn([after], finalize)
        if not (reserved.succeeded and finalized.succeeded):
            raise WrongEffect("a fresh key was there already")

    return write


async def _rate(calls: list[Call]) -> float:
    """Calls per second, OUTSTANDING at a time."""
    left = iter(calls)

    async def work() -> None:
        for call in left:
            await call()

    began = perf_counter()
    await asyncio.gather(*(work() for _ in range(OUTSTANDING)))
    return len(calls) / (perf_counter() - began)


async def _records(client: Client) -> int:
    start = PREFIX + b"key/"
    return (await client.range(Range(start, prefix_end(start), count_only=True))).count
