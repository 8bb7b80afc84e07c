"""One step of a verb on etcd: believe or look, decide, write if nothing has moved, else decide anew on what the same transaction read.

etcd cannot hold a transaction open while Python decides. So the decision comes first, and the transaction that writes compares what it
rested on. A lock on the key around read and write was not taken: a lock is a lease, and nothing here may rest on one.

Every request passes `Connection.ask`, which sends it once. A reply that is lost is the caller's unknown outcome: the same call again
recognises what it wrote, because `rules` compares nonces and contents.
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
from sparkonce.etcd.kv import Delete, Op, Range, RangeReply, TxnReply, prefix_end
from sparkonce.model.record import Address, Record
from sparkonce.store.etcd_keys import Layout
from sparkonce.store.etcd_look import Look, Unread, epoch_of, first_of, look_of, reads
from sparkonce.store.etcd_write import operations
from sparkonce.store.ledger import EVENTS
from sparkonce.store.protocol import Claim
from sparkonce.store.step import Decision, Seen, Write

T = TypeVar("T")

ROUNDS = 100
"""Tries of one step. Each lost one means that somebody else's write landed, so only a key that everybody writes to gets near it."""
PRUNE = 50
"""Events above the cap before they are cut: one cut in fifty, instead of one with each event."""
RECENT = 1024
"""Records remembered as beliefs for verbs that are not given one: the drivers of a replica's running jobs, several times over."""
TOUCHES = 20_000
"""Touches whose age is measured; beyond it the oldest start anew, which errs towards patience."""


class NoRoom(StoreUnavailable):
    """etcd refused every put because its quota is used up. Nothing was written; the same call may be sent again."""


class Connection:
    """The client, and where things stand in its etcd."""

    def __init__(self, layout: Layout, client: Client) -> None:
        self.layout, self.client = layout, client

    async def ask(self, request: Callable[[Client], Awaitable[T]]) -> T:
        """Sent once. StoreUnavailable proves nothing; NoRoom, one of its kind, that etcd took nothing."""
        failpoints.hit("store.etcd.request.before")
        try:
            answer = await request(self.client)
        except NoSpace as full:  # no end: there will be room again, so that whoever finalizes goes on asking
            raise NoRoom(str(full)) from full
        failpoints.hit("store.etcd.request.after")
        return answer

    async def range(self, asked: Range) -> RangeReply:
        return await self.ask(lambda client: client.range(asked))

    async def gets(self, asked: Sequence[Range]) -> TxnReply:
        """One linearizable moment."""
        return await self.ask(lambda client: client.txn([], asked))


class Touches:
    """How long ago each key was touched, by this process's monotonic clock since it saw that it was.

    No clock of another machine is in it, and a process that has just taken over counts the period in full."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._seen: dict[bytes, tuple[int, float]] = {}

    def age(self, key: bytes, revision: int) -> float:
        stands = self._seen.get(key)
        now = self._monotonic()
        if stands is not None and stands[0] == revision:
            return max(0.0, now - stands[1])
        self._seen.pop(key, None)
        self._seen[key] = revision, now
        if len(self._seen) > TOUCHES:
            del self._seen[next(iter(self._seen))]
        return 0.0


@dataclass(frozen=True, kw_only=True)
class Rests:
    """What besides the record a verb's decision rests on, and what is read for it should its belief be wrong."""

    claim: bool = False
    floor: bool = False
    also: tuple[bytes, ...] = ()


class Steps:
    def __init__(self, connection: Connection, *, clock: Callable[[], float], touches: Touches) -> None:
        self._connection, self._layout = connection, connection.layout
        self._clock, self._touches = clock, touches
        self._recent: dict[Address, Record] = {}

    async def look(self, address: Address, also: Sequence[bytes] = ()) -> Look:
        reply = await self._connection.gets(reads(self._layout, address, also))
        return self._looked(address, reply, also)

    def _looked(self, address: Address, reply: TxnReply, also: Sequence[bytes]) -> Look:
        look = look_of(self._layout, address, reply, also=also)
        self._remember(address, look.record)
        return look

    def _remember(self, address: Address, record: Record | None) -> None:
        self._recent.pop(address, None)
        if record is not None:
            self._recent[address] = record
            if len(self._recent) > RECENT:
                del self._recent[next(iter(self._recent))]

    def recent(self, address: Address) -> Look | None:
        """The record as this process saw it last."""
        record = self._recent.get(address)
        return None if record is None else self.belief(record)

    def belief(self, record: Record, *, claim: Claim | None = None) -> Look:
        """What the caller was given stands there."""
        return Look(layout=self._layout, address=record.address, record=record, claim=claim, epoch=record.epoch)

    async def step(
        self, address: Address, decide: Callable[[Seen, Look], Decision[T]], *, rests: Rests, belief: Look | None = None
    ) -> T:
        """Decides on the belief first, if there is one."""
        look = belief
        for _ in range(ROUNDS):
            if look is None:
                look = await self.look(address, rests.also)
            at = self._clock()
            try:
                outcome, write = decide(look.seen(at), look)
            except Unread as more:
                look = None if look.believed else await self._more(look, more.key)
                continue
            except SparkonceError:
                if not look.believed:
                    raise
                look = None
                continue
            if write is None or write.touch:  # a claim's lease is what is touched, not the claim
                if not look.believed:
                    return outcome
                look = None
                continue
            reply = await self._write(look, write, rests, at=at)
            if reply.succeeded:
                return await self._landed(address, outcome, write, reply)
            look = self._looked(address, reply, rests.also)
        raise StoreUnavailable(f"etcd: {ROUNDS} tries to write to one key met {ROUNDS} other writes; try again")

    async def _more(self, look: Look, key: bytes) -> Look | None:
        """With one more key, as it stood at the same revision; None when that is not kept any more."""
        try:
            reply = await self._connection.range(Range(key, revision=look.revision))
        except Compacted:
            return None
        return replace(look, found={**look.found, key: first_of(reply)})

    async def _write(self, look: Look, write: Write, rests: Rests, *, at: float) -> TxnReply:
        layout, address = self._layout, look.address
        compare = look.compares(claim=rests.claim, floor=rests.floor)
        then: list[Op] = operations(layout, look, write, at=at)
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
        """Never too much, however late or often it comes: a name is never used again, and what is old stays old."""
        prefix = self._layout.all_beside("event", address)
        listed = await self._connection.range(Range(prefix, prefix_end(prefix), keys_only=True))
        oldest = sorted(listed.kvs, key=lambda kv: kv.create_revision)[:-EVENTS][
            :100
        ]  # etcd takes 128 operations at once
        await self._connection.ask(lambda client: client.txn([], [Delete(kv.key) for kv in oldest]))


def _epoch(reply: RangeReply) -> int:
    """Of a store that has just been written to: an error that says "nothing was written" would be wrong now."""
    try:
        return epoch_of(first_of(reply))
    except RecordUnreadable as damaged:
        raise StoreUnavailable(f"etcd: {damaged}") from damaged
