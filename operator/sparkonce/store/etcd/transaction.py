"""One step of a verb on etcd: assume or read a snapshot, decide, write if nothing moved, else decide anew on what that transaction read.

etcd cannot hold a transaction open while Python decides. So the decision comes first, and the transaction that writes compares what it
was based on. A lock on the key around read and write was rejected: a lock is a lease, and nothing here may rest on one.

Every request passes `EtcdConnection.ask`, which sends it once. A reply that is lost is the caller's unknown outcome: the same call again
recognises what it wrote, because `rules` compares nonces and contents.

`operations` turns one `Write` into the operations of one etcd transaction: pure, and the only place that knows which keys belong together.

Indexes (`open/`, `exp/`) are written with the record they follow from, never later: a process may die between any two transactions.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import TypeVar, cast

from sparkonce import failpoints
from sparkonce.errors import RecordUnreadable, SparkonceError, StoreUnavailable
from sparkonce.etcd.client import Client
from sparkonce.etcd.errors import Compacted, NoSpace
from sparkonce.etcd.kv import Delete, Op, Put, Range, RangeReply, TxnReply, prefix_end
from sparkonce.model.record import Address, Record, State, Value
from sparkonce.store.codec import encode
from sparkonce.store.etcd.layout import BESIDE, Layout
from sparkonce.store.etcd.snapshot import KeySnapshot, Unread, claim_text, epoch_of, first_of, reads, snapshot_of
from sparkonce.store.ledger import EVENTS
from sparkonce.store.protocol import Claim
from sparkonce.store.rules import KeyState, VerbOutcome, Write


def operations(layout: Layout, snapshot: KeySnapshot, write: Write, *, at: float) -> list[Op]:
    """The operations of a write. The claim is put under the lease that it names.

    Raises:
        InvalidInput: a value is too large or not JSON; nothing was written.
    """
    address = snapshot.address
    ops: list[Op] = []
    if write.remove:
        ops += _removal(layout, snapshot)
    if write.record is not None:
        ops += _record(layout, snapshot.record, write.record)
    if write.claim is not None:
        ops.append(Put(layout.claim(address), claim_text(write.claim), lease=int(write.claim.lease, 16)))
    elif write.drop_claim:
        ops.append(Delete(layout.claim(address)))
    if write.floor is not None:
        ops.append(Put(layout.floor(address), str(write.floor).encode()))
    ops += _beside(layout, address, write)
    if write.event is not None:
        ops.append(Put(layout.new_event(address, at), encode(write.event).encode()))
    return ops


def _removal(layout: Layout, snapshot: KeySnapshot) -> list[Op]:
    """The record and everything beside it, but neither events nor the floor; the caller removes the claim."""
    address = snapshot.address
    prefixes = [layout.all_beside(kind, address) for kind in BESIDE]
    ops: list[Op] = [Delete(layout.record(address)), Delete(layout.open(address))]
    return ops + [Delete(prefix, prefix_end(prefix)) for prefix in prefixes] + _unexpired(layout, snapshot.record)


def _unexpired(layout: Layout, record: Record | None) -> list[Op]:
    if record is None or record.expires_at is None:
        return []
    return [Delete(layout.expiry(record.address, record.expires_at))]


def _record(layout: Layout, before: Record | None, record: Record) -> list[Op]:
    address = record.address
    ops: list[Op] = [Put(layout.record(address), encode(record).encode())]
    if record.state is State.FINALIZED:
        ops.append(Delete(layout.open(address)))
        if record.expires_at is not None:
            ops.append(Put(layout.expiry(address, record.expires_at), repr(record.expires_at).encode()))
    elif before is None or before.state is State.FINALIZED:
        ops += [Put(layout.open(address), b""), *_unexpired(layout, before)]
    return ops


def _beside(layout: Layout, address: Address, write: Write) -> list[Op]:
    generation = write.generation
    ops: list[Op] = []
    for kind, value in (("spec", write.spec), ("result", write.result), ("intent", write.intent)):
        if value is not None:
            ops.append(_put(layout.beside(kind, address, generation), value))
    if (report := write.report) is not None:
        key = layout.report(address, generation, report.attempt, report.reporter)
        ops.append(_put(key, report))
        if write.reported is not None:
            ops.append(_put(layout.size(address, generation, report.attempt), write.reported))
    if (beat := write.beat) is not None:
        ops.append(_put(layout.beat(address, generation, beat.attempt, beat.by), beat))
    return ops


def _put(key: bytes, value: Value) -> Put:
    return Put(key, encode(value).encode())


T = TypeVar("T")

ROUNDS = 100
"""Tries of one step. Each lost try means that another write landed, so only a key under heavy contention gets near it."""
PRUNE = 50
"""Events above the cap before they are cut: one cut in fifty, instead of one with each event."""
RECENT = 1024
"""Records cached as beliefs for verbs that are not given one: several times the running jobs of a replica."""
TOUCHES = 20_000
"""Touches whose age is measured; beyond it the oldest ages restart at 0, which only delays a takeover."""


class NoRoom(StoreUnavailable):
    """etcd refused every put because its quota is used up. Nothing was written; the same call may be sent again."""


class EtcdConnection:
    """The client and the layout of its keys."""

    def __init__(self, layout: Layout, client: Client) -> None:
        self.layout, self.client = layout, client

    async def ask(self, request: Callable[[Client], Awaitable[T]]) -> T:
        """Sends a request once. Raises: StoreUnavailable, which proves nothing; NoRoom, a subclass: etcd wrote nothing."""
        failpoints.hit("store.etcd.request.before")
        try:
            answer = await request(self.client)
        except NoSpace as full:  # not final: there will be room again, so finalizing is retried
            raise NoRoom(str(full)) from full
        failpoints.hit("store.etcd.request.after")
        return answer

    async def range(self, asked: Range) -> RangeReply:
        return await self.ask(lambda client: client.range(asked))

    async def gets(self, asked: Sequence[Range]) -> TxnReply:
        """Reads all ranges at one revision, linearizably."""
        return await self.ask(lambda client: client.txn([], asked))


class Touches:
    """How long ago each key was touched, by this process's monotonic clock since it observed the touch.

    Independent of other machines' clocks; a process that has just taken over counts the period in full."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._seen: dict[bytes, tuple[int, float]] = {}

    def age(self, key: bytes, revision: int) -> float:
        cached = self._seen.get(key)
        now = self._monotonic()
        if cached is not None and cached[0] == revision:
            return max(0.0, now - cached[1])
        self._seen.pop(key, None)
        self._seen[key] = revision, now
        if len(self._seen) > TOUCHES:
            del self._seen[next(iter(self._seen))]
        return 0.0


@dataclass(frozen=True, kw_only=True)
class Rests:
    """What a verb's decision rests on besides the record, and what is read for it if its belief is wrong."""

    claim: bool = False
    floor: bool = False
    also: tuple[bytes, ...] = ()


class Steps:
    def __init__(self, connection: EtcdConnection, *, clock: Callable[[], float], touches: Touches) -> None:
        self._connection, self._layout = connection, connection.layout
        self._clock, self._touches = clock, touches
        self._recent: dict[Address, Record] = {}

    async def read(self, address: Address, also: Sequence[bytes] = ()) -> KeySnapshot:
        reply = await self._connection.gets(reads(self._layout, address, also))
        return self._remembered(address, reply, also)

    def _remembered(self, address: Address, reply: TxnReply, also: Sequence[bytes]) -> KeySnapshot:
        snapshot = snapshot_of(self._layout, address, reply, also=also)
        self._remember(address, snapshot.record)
        return snapshot

    def _remember(self, address: Address, record: Record | None) -> None:
        self._recent.pop(address, None)
        if record is not None:
            self._recent[address] = record
            if len(self._recent) > RECENT:
                del self._recent[next(iter(self._recent))]

    def recent(self, address: Address) -> KeySnapshot | None:
        """A snapshot assumed from the record as this process last saw it; None if it has none cached."""
        record = self._recent.get(address)
        return None if record is None else self.belief(record)

    def belief(self, record: Record, *, claim: Claim | None = None) -> KeySnapshot:
        """A snapshot that assumes the caller's record is current."""
        return KeySnapshot(layout=self._layout, address=record.address, record=record, claim=claim, epoch=record.epoch)

    async def step(
        self,
        address: Address,
        decide: Callable[[KeyState, KeySnapshot], VerbOutcome[T]],
        rests: Rests,
        belief: KeySnapshot | None = None,
    ) -> T:
        """Decides on the belief first, if there is one."""
        snapshot = belief
        for _ in range(ROUNDS):
            if snapshot is None:
                snapshot = await self.read(address, rests.also)
            at = self._clock()
            try:
                outcome, write = decide(snapshot.seen(at), snapshot)
            except Unread as more:
                snapshot = None if snapshot.believed else await self._more(snapshot, more.key)
                continue
            except SparkonceError:
                if not snapshot.believed:
                    raise
                snapshot = None
                continue
            if write is None or write.touch:  # a claim's lease is what is touched, not the claim
                if not snapshot.believed:
                    return outcome
                snapshot = None
                continue
            reply = await self._write(snapshot, write, rests, at=at)
            if reply.succeeded:
                return await self._landed(address, outcome, write, reply)
            snapshot = self._remembered(address, reply, rests.also)
        raise StoreUnavailable(f"etcd: {ROUNDS} tries to write to one key met {ROUNDS} other writes; try again")

    async def _more(self, snapshot: KeySnapshot, key: bytes) -> KeySnapshot | None:
        """The snapshot with one more key, read at the same revision; None when that was compacted."""
        try:
            reply = await self._connection.range(Range(key, revision=snapshot.revision))
        except Compacted:
            return None
        return replace(snapshot, found={**snapshot.found, key: first_of(reply)})

    async def _write(self, snapshot: KeySnapshot, write: Write, rests: Rests, *, at: float) -> TxnReply:
        layout, address = self._layout, snapshot.address
        compare = snapshot.compares(claim=rests.claim, floor=rests.floor)
        then: list[Op] = operations(layout, snapshot, write, at=at)
        then.append(Range(layout.epoch))
        if write.event is not None:
            events = layout.all_beside("event", address)
            then.append(Range(events, prefix_end(events), count_only=True))
        otherwise = reads(layout, address, rests.also)
        return await self._connection.ask(lambda client: client.txn(compare, then, otherwise))

    async def _landed(self, address: Address, outcome: T, write: Write, reply: TxnReply) -> T:
        ranges = [one for one in reply.replies if isinstance(one, RangeReply)]
        record, claim = write.record, write.claim
        change: dict[str, Record | Claim] = {}
        if record is not None:
            record = record.model_copy(update={"revision": reply.revision, "epoch": _epoch(ranges[0])})
            change["record"] = record
        if claim is not None:
            change["claim"] = replace(claim, revision=reply.revision)
        if record is not None or write.remove:
            self._remember(address, record)
        if (beat := write.beat) is not None:
            self._touches.age(self._layout.beat(address, write.generation, beat.attempt, beat.by), reply.revision)
        if write.event is not None and ranges[1].count > EVENTS + PRUNE:
            with contextlib.suppress(SparkonceError):  # the step is done, whatever becomes of this
                await self._prune(address)
        return cast(T, replace(outcome, **change)) if change and is_dataclass(outcome) else outcome  # type: ignore[type-var]

    async def _prune(self, address: Address) -> None:
        """Removes events above the cap. Safe however late or often it runs: names of events are never reused."""
        prefix = self._layout.all_beside("event", address)
        listed = await self._connection.range(Range(prefix, prefix_end(prefix), keys_only=True))
        oldest = sorted(listed.kvs, key=lambda kv: kv.create_revision)[:-EVENTS][
            :100
        ]  # etcd takes 128 operations at once
        await self._connection.ask(lambda client: client.txn([], [Delete(kv.key) for kv in oldest]))


def _epoch(reply: RangeReply) -> int:
    """The store's epoch, read after a write. Raises: StoreUnavailable if it does not parse: the write has landed."""
    try:
        return epoch_of(first_of(reply))
    except RecordUnreadable as damaged:
        raise StoreUnavailable(f"etcd: {damaged}") from damaged
