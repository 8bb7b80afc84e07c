"""A reply ledger in etcd: for services beside operators, whose etcd is there already.

    /sparkonce/http/v1/<name>/
        key/<hash>              the record; its mod_revision is what every write compares
        own/<hash>              the claim, on a lease of etcd; its value, the owner's nonce, is for people
        open/<hash>             an unfinished key: when it expires
        by/<caller>/<hash>      a live key of this caller: when it expires

etcd has no clock to read and ends leases by its own, so a claim lives while `own/` is there: each beat puts it on a newer lease. Leases are
shared (`SharedLeases`), so that neither a claim nor a beat nor an answer costs a request of its own for one. The client's kept leases were
rejected: they live as long as their process, and a claim must end when the beats of its request end. Answers are on leases too, by the
minute, and etcd removes them; `purge` removes only unfinished keys, which must outlive every lease while their owner beats. Times in
records are those of the process that wrote them, and nothing but a key's lifetime is measured by them.

A verb is one transaction that compares the revision which it decided on. An owner's verbs begin with what this process wrote last, and read
only if that is no longer so; a reservation reads first, so that a replay writes nothing.
"""

from __future__ import annotations

import base64
import json
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from sparkonce.errors import RecordUnreadable, StoreUnavailable
from sparkonce.etcd.client import Client, LeaseHandle, Tls
from sparkonce.etcd.errors import LeaseNotFound, NoSpace
from sparkonce.etcd.kv import Compare, Delete, KeyValue, Op, Put, Range, RangeReply, TxnReply, prefix_end
from sparkonce.replies.ledger import rules
from sparkonce.replies.ledger.ceilings import KEYS_OF_CALLER, Ceilings
from sparkonce.replies.ledger.codec import from_row, to_row
from sparkonce.replies.ledger.rules import ReplyWrite
from sparkonce.replies.protocol import KeyStanding, Reply, ReplyRecord, Reservation, StoreTime, WriteOutcome
from sparkonce.store.etcd.address import LEAST_TTL
from sparkonce.store.etcd.quota import BackendSize, SharedRequests
from sparkonce.store.etcd.store import QUOTA

T = TypeVar("T")

ROOT = "/sparkonce/http/v1/"
KEYS = 100_000
"""Of one ledger: etcd keeps every key in memory, and 2 GiB in all by default."""
LARGEST_BODY = 1024 * 1024
"""Bytes: of a larger body only the size is kept, as of one beyond the policy's limit. etcd takes 1.5 MiB in one request, and the body is in
base64 there."""
ROUNDS = 100
"""Tries of one verb. Each lost try means that another write to its key landed."""
RECENT = 10_000
"""Unfinished keys whose state this process believes to be as it wrote it."""
PAGE = 1000
"""Keys of one listing's request."""


class SharedLeases:
    """etcd leases that many keys share: one is granted when the last one of its kind is too old, and none is refreshed or revoked."""

    def __init__(self, grant: Callable[[int], Awaitable[LeaseHandle]], monotonic: Callable[[], float]) -> None:
        self._grant, self._monotonic = grant, monotonic
        self._granted: dict[int, tuple[LeaseHandle, float]] = {}
        self._requests = SharedRequests()

    async def ending(self, seconds: float) -> int:
        """A lease that ends after so many seconds, or up to a tenth and at most one second sooner; none ends before `LEAST_TTL`."""
        return await self._of(max(LEAST_TTL, math.ceil(seconds)), usable=min(1.0, seconds / 10))

    async def lasting(self, seconds: float) -> int:
        """A lease that ends after so many seconds, or up to a tenth and at most a minute later."""
        spare = max(1, min(60, int(seconds / 10)))
        return await self._of(math.ceil(seconds) + spare, usable=spare)

    async def _of(self, ttl: int, *, usable: float) -> int:
        known = self._granted.get(ttl)
        if known is None or self._monotonic() - known[1] >= usable:
            known = await self._requests.once(f"{ttl}", lambda: self._new(ttl))
        return known[0].id

    async def _new(self, ttl: int) -> tuple[LeaseHandle, float]:
        asked = self._monotonic()
        made = self._granted[ttl] = await self._grant(ttl), asked
        return made

    def forget(self) -> None:
        """etcd does not know one of them any more."""
        self._granted.clear()


@dataclass(frozen=True)
class _Seen:
    """A key as one revision has it."""

    record: ReplyRecord | None = None
    text: bytes = b""
    """Of the record."""
    revision: int = 0
    """Of the record; 0: there is none."""
    claim: int = 0
    """Revision of the claim; 0: there is none."""
    living: bool = False
    """The claim is there, and the record unfinished."""

    @property
    def timed(self) -> ReplyRecord | None:
        """The record by a clock that stands at 0: a claim that is there may last for a whole lease."""
        if self.record is None:
            return None
        return replace(self.record, lease_until=self.record.lease if self.living else 0.0)


class EtcdReplies:
    """Belongs to the event loop of its first call."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        name: str = "replies",
        tls: Tls | None = None,
        user: str | None = None,
        password: str | None = None,
        timeout: float = 2.0,
        quota: int = QUOTA,
        keys: int = KEYS,
        keys_of_caller: int = KEYS_OF_CALLER,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connects with the first verb. `endpoints`: host:port; `name`: of the ledger, several of which may share an etcd; `timeout`:
        seconds of one request; `quota`: bytes, as etcd was started with.

        Raises: InvalidInput."""
        self.url = f"etcd://{','.join(endpoints)}"
        self._client = Client.open(endpoints, tls=tls, user=user, password=password, timeout=timeout)
        self._root = f"{ROOT}{quote(name, safe='')}/"
        self._leases = SharedLeases(self._client.grant, monotonic)
        self._ceilings = Ceilings(keys=keys, keys_of_caller=keys_of_caller)
        self._counting = SharedRequests()
        self._clock = clock
        self._size = BackendSize(self._client.status, quota=quota, monotonic=monotonic)
        self._recent: OrderedDict[str, _Seen] = OrderedDict()
        """Unfinished keys as this process wrote them last: what their owner's verbs begin with."""

    def _at(self, kind: str, key: str = "") -> bytes:
        return f"{self._root}{kind}/{key}".encode()

    def _time(self) -> StoreTime:
        return StoreTime(now=self._clock(), ticks=0.0)

    # --- reading

    def _reads(self, key: str) -> list[Op]:
        return [Range(self._at("key", key)), Range(self._at("own", key))]

    async def _see(self, key: str) -> _Seen:
        return self._seen(key, await self._client.txn([], self._reads(key)))

    def _seen(self, key: str, reply: TxnReply) -> _Seen:
        record, claim = (each.kvs[0] if isinstance(each, RangeReply) and each.kvs else None for each in reply.replies)
        if record is None:
            return _Seen(claim=_revision(claim))
        decoded = self._decoded(key, record.value)
        living = claim is not None and decoded.reply is None
        return _Seen(decoded, record.value, record.mod_revision, _revision(claim), living)

    def _decoded(self, key: str, text: bytes) -> ReplyRecord:
        """Raises: RecordUnreadable."""
        try:
            row = json.loads(text)
            body = row["body"]
            row |= {"lease_until": 0.0, "body": None if body is None else base64.b64decode(body, validate=True)}
        except (ValueError, TypeError, KeyError, RecursionError):
            row = {}
        return from_row(key, row, remedy=f"delete {self._at('key', key).decode()} in etcd")

    # --- writing

    async def _step(
        self,
        key: str,
        decide: Callable[[ReplyRecord | None, StoreTime], tuple[T, ReplyWrite]],
        *,
        owner: str = "",
        seen: _Seen | None = None,
    ) -> T:
        """One verb. `owner`: the nonce of a caller who probably wrote last; `seen`: what the caller has just read."""
        if seen is None and owner:
            seen = self._recent.get(key)
            if seen is not None and seen.record is not None and seen.record.nonce != owner:
                seen = None
        if seen is None:
            seen = await self._see(key)
        for _ in range(ROUNDS):
            at = self._time()
            outcome, write = decide(seen.timed, at)
            if write is None:
                return outcome
            try:
                reply = await self._write(key, seen, write, at)
            except LeaseNotFound:
                self._leases.forget()
                continue
            if reply.succeeded:
                return outcome
            seen = self._seen(key, reply)
        raise StoreUnavailable(f"etcd: {ROUNDS} tries to write to one key met {ROUNDS} other writes; try again")

    async def _write(self, key: str, seen: _Seen, write: ReplyWrite, at: StoreTime) -> TxnReply:
        self._recent.pop(key, None)  # until this is answered
        record, own, unfinished = self._at("key", key), self._at("own", key), self._at("open", key)
        compare = [Compare(record, "mod", "=", seen.revision)]
        if seen.record is None or not isinstance(write, ReplyRecord) or write.nonce != seen.record.nonce:
            compare.append(Compare(own, "mod", "=", seen.claim))  # a beat would have moved it on
        text = b""
        if isinstance(write, ReplyRecord):
            text = _encoded(write)
            then = await self._puts(key, seen, write, text, at)
        else:
            assert seen.record is not None
            then = [Delete(record), Delete(own), Delete(unfinished), Delete(self._at(f"by/{seen.record.caller}", key))]
        try:
            reply = await self._client.txn(compare, then, self._reads(key))
        except NoSpace as full:
            raise StoreUnavailable(str(full)) from full  # not final: there will be room again
        if reply.succeeded and isinstance(write, ReplyRecord) and write.reply is None:
            revision = seen.revision if text == seen.text else reply.revision
            claim = reply.revision if write.lease_until > at.ticks else 0
            self._remember(key, _Seen(write, text, revision, claim, living=claim > 0))
        return reply

    async def _puts(self, key: str, seen: _Seen, write: ReplyRecord, text: bytes, at: StoreTime) -> list[Op]:
        record, own, unfinished = self._at("key", key), self._at("own", key), self._at("open", key)
        by, expires = self._at(f"by/{write.caller}", key), repr(write.expires_at).encode()
        if write.reply is not None:
            lease = await self._leases.lasting(max(1.0, write.expires_at - at.now))
            return [Put(record, text, lease), Put(by, expires, lease), Delete(unfinished), Delete(own)]
        then: list[Op] = []
        if text != seen.text:
            then = [Put(record, text), Put(by, expires), Put(unfinished, expires)]
        if seen.record is not None and seen.record.caller != write.caller:
            then.append(Delete(self._at(f"by/{seen.record.caller}", key)))
        claim = write.lease_until - at.ticks
        nonce = write.nonce.encode()
        return [*then, Put(own, nonce, await self._leases.ending(claim)) if claim > 0 else Delete(own)]

    def _remember(self, key: str, seen: _Seen) -> None:
        self._recent[key] = seen
        if len(self._recent) > RECENT:
            self._recent.popitem(last=False)

    # --- verbs

    async def reserve(
        self, key: str, *, caller: str, fingerprint: str, nonce: str, lease: float, lifetime: float
    ) -> Reservation:
        decide = partial(
            rules.reserve, caller=caller, fingerprint=fingerprint, nonce=nonce, lease=lease, lifetime=lifetime
        )
        seen = await self._see(key)
        outcome, write = decide(seen.timed, self._time())
        if write is None:
            return outcome
        if seen.record is None:
            await self._room(caller)
        outcome = await self._step(key, decide, seen=seen)
        if outcome.standing is KeyStanding.OWNED and seen.record is None:
            self._ceilings.added(caller)
        return outcome

    async def look(self, key: str) -> Reservation | None:
        return rules.look((await self._see(key)).timed, self._time())

    async def beat(self, key: str, nonce: str, *, lease: float) -> WriteOutcome:
        return await self._step(key, lambda found, at: rules.beat(found, at, nonce=nonce, lease=lease), owner=nonce)

    async def take_over(self, key: str, *, seen: str, nonce: str, lease: float) -> WriteOutcome:
        return await self._step(key, lambda found, at: rules.take_over(found, at, seen=seen, nonce=nonce, lease=lease))

    async def finalize(self, key: str, nonce: str, reply: Reply, *, lifetime: float) -> WriteOutcome:
        if len(reply.body) > LARGEST_BODY:
            reply = replace(reply, body=b"", omitted=len(reply.body))
        return await self._step(
            key, lambda found, at: rules.finalize(found, at, nonce=nonce, reply=reply, lifetime=lifetime), owner=nonce
        )

    async def release(self, key: str, nonce: str) -> WriteOutcome:
        return await self._step(key, lambda found, _: rules.release(found, nonce=nonce), owner=nonce)

    async def abandon(self, key: str, nonce: str, *, pause: float) -> WriteOutcome:
        return await self._step(key, lambda found, at: rules.abandon(found, at, nonce=nonce, pause=pause), owner=nonce)

    async def purge(self, *, limit: int = 1000) -> int:
        """Only unfinished keys: etcd removes answers by their leases."""
        start, removed = self._at("open"), 0
        end = prefix_end(start)
        while removed < limit:
            page = await self._client.range(Range(start, end, limit=PAGE))
            for entry in page.kvs:
                if removed < limit and _expires(entry) <= self._clock():
                    removed += await self._purged(entry)
            if not page.more:
                break
            start = page.kvs[-1].key + b"\0"
        return removed

    async def _purged(self, entry: KeyValue) -> bool:
        key = entry.key.rpartition(b"/")[2].decode("latin-1")
        try:
            seen = await self._see(key)
        except RecordUnreadable:
            return False  # every other verb reports it
        if seen.record is None:  # a person deleted it, as RecordUnreadable asks
            gone = Compare(self._at("key", key), "mod", "=", 0)
            await self._client.txn([gone], [Delete(entry.key), Delete(self._at("own", key))])
            return False
        timed, at = seen.timed, self._time()
        if timed is None or timed.reply is not None or not rules.expired(timed, at):
            return False
        return (await self._write(key, seen, rules.REMOVE, at)).succeeded

    # --- room

    async def _room(self, caller: str) -> None:
        """Raises: StoreFull; StoreUnavailable."""
        for whose in self._ceilings.unknown(caller):
            await self._counting.once(f"{whose}", partial(self._learn, whose))
        self._ceilings.judge(caller, self._clock())
        if (used := await self._size.near_quota(so_that="running requests can be answered")) is not None:
            raise used

    async def _learn(self, whose: str | None) -> None:
        self._ceilings.learn(whose, *await self._count(whose))

    async def _count(self, caller: str | None) -> tuple[int, float | None]:
        """Keys of the caller, or of all; the first expiry only of a caller whose keys all fit into one request."""
        prefix = self._at("by" if caller is None else f"by/{caller}")
        if caller is None:
            return (await self._client.range(Range(prefix, prefix_end(prefix), count_only=True))).count, None
        page = await self._client.range(Range(prefix, prefix_end(prefix), limit=PAGE))
        return page.count, min(map(_expires, page.kvs), default=None)

    async def close(self) -> None:
        await self._client.close()


def _revision(claim: KeyValue | None) -> int:
    return 0 if claim is None else claim.mod_revision


def _encoded(record: ReplyRecord) -> bytes:
    """Raises: InvalidInput: an answer that could not be read back."""
    row: dict[str, Any] = to_row(record)
    del row["lease_until"]  # the claim's
    body = row["body"]
    row["body"] = None if body is None else base64.b64encode(body).decode()
    return json.dumps(row, separators=(",", ":")).encode()


def _expires(entry: KeyValue) -> float:
    """When the key of this entry expires. A value that is no number counts as expired."""
    try:
        return float(entry.value)
    except ValueError:
        return 0.0
