"""Measures what the HTTP middleware adds to a request on one ledger: in SQLite, PostgreSQL or etcd, and in memory.

Requests are sent to an ASGI application in the same process (http_requests.py). Ours is the bare application inside
`IdempotencyMiddleware`, with the ledger that its address opens. Raw, in the same pair:

* of a new key, the bare application and one committed insert of as many bytes as the values of the middleware's record have. The
  middleware commits twice, before the application runs and after it;
* of a replay, the bare application and one read of such a row by its key. The middleware reads its record and calls no application.

A pair is OPERATIONS of each variant in the order A B C D D C B A, and its value is their mean: a log that is copied back now and then is
part of the cost. The ledger in memory has no raw side but the bare application, so what it adds is given as CPU.

Each answer is checked. In the end each key must have run the application once, and have one record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, process_time
from typing import Any
from uuid import uuid4

from measure import Cost, Goal, Row, WrongEffect, interleaved, pair_text

from http_raw import STORES, RawStore
from http_requests import PATIENCE, BareOrders, SentRequest
from sparkonce.asgi import IdempotencyMiddleware, caller_of
from sparkonce.replies.keys import key_hash
from sparkonce.replies.ledger.codec import to_row
from sparkonce.replies.open import MEMORY, open_replies
from sparkonce.replies.protocol import ReplyLedger

OPERATIONS, IN_MEMORY = 100, 500
"""Of each variant in a pair; and with the ledger in memory, where one takes microseconds."""
NEW, REPLAY, BARE = "new key", "replay", "bare application"
INSERT, READ = "application and one insert", "application and one read"
TWICE, ONCE = Goal(2.4, "<= 2.4x"), Goal(1.5, "<= 1.5x")
LITTLE_CPU = Goal(0.3, "<= 0.3 CPU ms", absolute=True)

Call = Callable[[], Awaitable[object]]


@dataclass
class MeasuredService:
    """A middleware on a ledger, the application in it, and requests that it has answered."""

    ledger: ReplyLedger
    orders: BareOrders = field(default_factory=BareOrders)
    bytes: int = 0
    """Size of one record's values."""
    answered: SentRequest = field(default_factory=SentRequest)
    """Whose key is replayed."""
    keys: int = 0

    def __post_init__(self) -> None:
        self.app = IdempotencyMiddleware(self.orders, store=self.ledger, lease=PATIENCE, store_patience=PATIENCE)

    async def open(self) -> None:
        await self.new()
        request = self.answered
        found = await self.ledger.look(key_hash(request.key, service="", caller=caller_of(request.scope())))
        if found is None or found.record.reply is None:
            raise WrongEffect("an answered request has no record")
        values = to_row(found.record).values()
        self.bytes = sum(len(value) if isinstance(value, str | bytes) else 8 for value in values if value is not None)

    async def new(self) -> None:
        self.answered = await SentRequest().to(self.app)
        self.answered.expect()
        self.keys += 1

    async def replay(self) -> None:
        (await SentRequest(self.answered.key).to(self.app)).expect(replayed=True)

    def check(self, recorded: int) -> None:
        if (self.orders.runs, recorded) != (self.keys, self.keys):
            raise WrongEffect(f"of {self.keys} keys, {self.orders.runs} ran and {recorded} have an answer")


@dataclass
class HttpCosts:
    """The part `name`, on these stores (`memory`: the ledger in memory); `say` gets a line per pair."""

    name: str
    stores: tuple[str, ...]
    scratch: Path
    pairs: int
    say: Callable[[str], None]
    bytes: dict[str, int] = field(default_factory=dict)
    """Size of the raw row, by store."""

    def measure(self) -> list[Row]:
        """Raises WrongEffect if a request was not answered as it should be, or ran more or less than once."""
        rows: list[Row] = []
        for store in self.stores:
            folder = self.scratch / store
            folder.mkdir()
            if store == "memory":
                found = asyncio.run(self._in_memory())
                rows += self._rows_in_memory(found)
                continue
            with STORES[store](folder) as raw:
                found = asyncio.run(self._on(store, raw))
            rows += self._rows(store, found)
        return rows

    async def _on(self, store: str, raw: RawStore) -> dict[str, list[Cost]]:
        service = MeasuredService(open_replies(raw.url))
        bare = BareOrders()
        try:
            await service.open()
            self.bytes[store] = service.bytes
            inserted = [uuid4().hex]
            await raw.insert(inserted[0], b"x" * service.bytes)

            async def insert() -> None:
                (await SentRequest().to(bare)).expect()
                inserted.append(uuid4().hex)
                await raw.insert(inserted[-1], b"x" * service.bytes)

            async def read() -> None:
                (await SentRequest().to(bare)).expect()
                if len(await raw.read(inserted[-1])) != service.bytes:
                    raise WrongEffect("the raw row has another size")

            calls: Mapping[str, Call] = {NEW: service.new, INSERT: insert, REPLAY: service.replay, READ: read}
            found = await self._paired(store, calls, OPERATIONS)
            recorded, rows = await raw.counts()
            service.check(recorded)
            if rows != len(inserted):
                raise WrongEffect(f"of {len(inserted)} rows, {rows} are inserted")
            return found
        finally:
            await service.app.close()
            await raw.close()

    async def _in_memory(self) -> dict[str, list[Cost]]:
        service, bare = MeasuredService(open_replies(MEMORY)), BareOrders()
        await service.open()

        async def call() -> None:
            (await SentRequest().to(bare)).expect()

        found = await self._paired("memory", {NEW: service.new, BARE: call, REPLAY: service.replay}, IN_MEMORY)
        service.check(service.keys)
        await service.app.close()
        return found

    async def _paired(self, store: str, calls: Mapping[str, Call], operations: int) -> dict[str, list[Cost]]:
        kept: dict[str, list[Cost]] = {name: [] for name in calls}
        for pair in range(self.pairs + 1):
            spent = {name: [0.0, 0.0] for name in calls}
            for _, name in interleaved(tuple(calls), operations - 1):
                work, wall, cpu = calls[name], perf_counter(), process_time()
                await work()
                spent[name][1] += process_time() - cpu
                spent[name][0] += perf_counter() - wall
            costs = {name: Cost(*(1000 * each / operations for each in both)) for name, both in spent.items()}
            if pair:
                for name, cost in costs.items():
                    kept[name].append(cost)
            which = pair_text(pair, self.pairs)
            what = ", ".join(f"{name} {cost.wall:.3f} ms ({cost.cpu:.3f} of CPU)" for name, cost in costs.items())
            self.say(f"{self.name}: {which}: {store}: {what}")
        return kept

    def _rows(self, store: str, found: Mapping[str, list[Cost]]) -> list[Row]:
        rows = []
        for ours, raw, goal in ((NEW, INSERT, TWICE), (REPLAY, READ, ONCE)):
            what, pairs = f"{self.name}: {store}, {ours}", (found[ours], found[raw])
            wall, raw_wall = ([each.wall for each in costs] for costs in pairs)
            cpu, raw_cpu = ([each.cpu for each in costs] for costs in pairs)
            rows += [
                Row(what=what, unit="ms", ours=wall, raw=raw_wall, goal=goal),
                Row(what=what, unit="CPU ms", ours=cpu, raw=raw_cpu),
            ]
        return rows

    def _rows_in_memory(self, found: Mapping[str, list[Cost]]) -> list[Row]:
        return [
            Row(
                what=f"{self.name}: memory, {name}, more than the application",
                unit="CPU ms",
                ours=[ours.cpu - bare.cpu for ours, bare in zip(found[name], found[BARE], strict=True)],
                goal=LITTLE_CPU,
            )
            for name in (NEW, REPLAY)
        ]

    def dump(self) -> dict[str, Any]:
        return {"operationsPerPair": OPERATIONS, "inMemory": IN_MEMORY, "bytes": self.bytes}
