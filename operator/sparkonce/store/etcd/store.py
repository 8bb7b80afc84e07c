"""The cluster's store: records in etcd, each verb one transaction that compares what its decision rested on.

In the good case a verb is one request: it believes what its caller was given (the record with its revision, the claim), decides by
the same `rules` as every other store, and lets etcd compare. So a record is passed as it was given, never changed under its old
revision. `reserve` believes that the key is new. A wrong belief is corrected by the same answer, and the verb decides again. Verbs that are
rare, or that get nothing to believe, read first.

Time: etcd has no clock to read, so times in records are those of the process that writes them, and expiry is compared with a clock that the
caller names (`purge`). Ages and leases need no clock of another machine. No safety property rests on any of them.

Listings of unfinished keys read `open/` alone, so the sweep of a ledger with a hundred thousand results costs only what is running. Pages
are in key order: unfinished keys by hash first, all others by the realm's encoded name first. A listing whose revision etcd compacts while
it is read starts again.

Decisions are in `rules`, comparisons in `snapshot`, the operations of one write and the retry loop in `transaction`.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TypeVar, cast

from sparkonce import failpoints
from sparkonce.errors import StoreUnavailable, StoreUnusable
from sparkonce.etcd.client import Client, Tls
from sparkonce.etcd.errors import Compacted, LeaseNotFound
from sparkonce.etcd.kv import Compare, KeyValue, Put, Range, RangeReply, prefix_end
from sparkonce.model.record import (
    Address,
    Beat,
    Event,
    Intent,
    Record,
    Report,
    Result,
    SpecBody,
    State,
    StopWanted,
    Value,
)
from sparkonce.store import restore, rules
from sparkonce.store.codec import decode, encode, listed, name, position_of
from sparkonce.store.etcd.layout import Layout
from sparkonce.store.etcd.lease import EtcdLease
from sparkonce.store.etcd.quota import Quota, quota_used
from sparkonce.store.etcd.repair import repair, unreadable
from sparkonce.store.etcd.snapshot import FIRST_EPOCH, KeySnapshot, epoch_of, first_of, text_of
from sparkonce.store.etcd.transaction import EtcdConnection, NoRoom, Rests, Steps, Touches
from sparkonce.store.etcd.watch import watch
from sparkonce.store.ledger import EVENTS, LIVE_KEYS, REPORT_BYTES, HeldLease, held
from sparkonce.store.protocol import (
    Attached,
    Changed,
    Claim,
    Conflict,
    Duplicate,
    Finalized,
    Gone,
    KeyChange,
    Lease,
    Lost,
    LostOwnership,
    Mismatch,
    Moved,
    NotFound,
    Owned,
    Page,
    Query,
    Refused,
    Request,
    Sealed,
    Updated,
    View,
)
from sparkonce.store.repair import repair as rules_of_repair
from sparkonce.store.restore import NewestAttempt
from sparkonce.store.roster import Gateway, GatewayUptime, Replica, gateway_of, replica_of
from sparkonce.store.rules import KeyState, VerbOutcome

T = TypeVar("T")
V = TypeVar("V", bound=Value)

CHUNK = 100
"""Records per request: etcd takes 128 operations in a transaction."""
TRIES = 3
"""Tries of one listing: each failed one means that its revision was compacted within the milliseconds it took."""
_UNFINISHED = frozenset({State.IN_PROGRESS, State.HELD})

TTL = 10
"""Seconds of a lease: a dead owner is replaced within it, and an owner that stalls for longer must stop."""
TIMEOUT = 2.0
"""Seconds of one request: also how long a call to a member that lost its leader hangs."""
QUOTA = 2 * 1024**3
"""Bytes: etcd's default."""


class EtcdStore:
    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        install: str,
        tls: Tls | None = None,
        user: str | None = None,
        password: str | None = None,
        ttl: int = TTL,
        timeout: float = TIMEOUT,
        quota: int = QUOTA,
        max_live_keys: int = LIVE_KEYS,
        max_report_bytes: int = REPORT_BYTES,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`endpoints`: host:port; the first call connects, and its event loop owns the store from then on.

        `quota`: bytes, as etcd was started with. Raises: InvalidInput."""
        client = Client.open(endpoints, tls=tls, user=user, password=password, timeout=timeout)
        connection = EtcdConnection(Layout(install), client)
        touches = Touches(monotonic)
        room = Quota(
            connection,
            max_live_keys=max_live_keys,
            max_report_bytes=max_report_bytes,
            quota=quota,
            clock=clock,
            monotonic=monotonic,
        )
        self._connection, self._layout = connection, connection.layout
        self._steps, self._touches, self._room = Steps(connection, clock=clock, touches=touches), touches, room
        self.url = f"etcd://{','.join(endpoints)}"
        self._ttl, self._clock = ttl, clock
        self._service = GatewayUptime(monotonic)

    async def now(self) -> float:
        return self._clock()

    def used(self) -> dict[str, float]:
        """Fractions of quota and limits in use when a key was last added; see `Quota.used`."""
        return self._room.used()

    async def close(self) -> None:
        """Closes the client. Leases are left to expire; revoke them first to end them at once."""
        await self._connection.client.close()

    async def open_lease(self, *, owner: str) -> EtcdLease:
        handle = await self._connection.ask(lambda client: client.grant(self._ttl))
        return EtcdLease(self._connection, self._connection.client.keep(handle), number=handle.id, owner=owner)

    # --- after a restore

    async def rebuild(self, shown: NewestAttempt, *, by: str) -> bool:
        def decide(seen: KeyState, _: KeySnapshot) -> VerbOutcome[bool]:
            return restore.rebuild(seen, shown, by=by)

        return await self._steps.step(shown.address, decide, Rests(claim=True, floor=True))

    async def raise_epoch(self, *, seen: int) -> int:
        key, new = self._layout.epoch, str(seen + 1).encode()
        absent = Compare(key, "version", "=", 0)
        unchanged = absent if seen == FIRST_EPOCH else Compare(key, "value", "=", str(seen).encode())
        reply = await self._connection.ask(lambda client: client.txn([unchanged], [Put(key, new)], [Range(key)]))
        if not reply.succeeded and epoch_of(first_of(cast(RangeReply, reply.replies[0]))) <= seen:
            raise StoreUnusable(f"the epoch of {self.url} is not the one that was read; run the command again")
        return seen + 1

    # --- a record that cannot be read

    async def unreadable(self, address: Address) -> str | None:
        return await unreadable(self._connection, address)

    async def repair(
        self, address: Address, text: str, *, record: Record | None, generation: int, event: Event
    ) -> bool:
        def decide(seen: KeyState, stored: str | None) -> VerbOutcome[bool]:
            return rules_of_repair(seen, stored, text, record=record, generation=generation, event=event)

        done = await repair(self._connection, address, decide, at=self._clock())
        self._room.moved(address.realm)
        return done

    # --- ownership

    async def reserve(
        self, request: Request, *, lease: Lease, floor: int
    ) -> Owned | Duplicate | Mismatch | Moved | Refused:
        own, address = held(lease), request.address
        full = await self._room.full(address.realm)
        near_quota = await self._room.size.near_quota()

        def decide(seen: KeyState, _: KeySnapshot) -> VerbOutcome[Owned | Duplicate | Mismatch | Moved | Refused]:
            if near_quota is not None and seen.record is None and seen.floor == floor and not own.ended:
                raise near_quota
            return rules.reserve(seen, request, lease=own.id, owner=own.owner, ended=own.ended, floor=floor, full=full)

        new = KeySnapshot(layout=self._layout, address=address, record=None, claim=None, floor=floor)
        failpoints.hit("store.etcd.reserve.before")
        try:
            done = await self._leased(
                own, lambda: self._steps.step(address, decide, Rests(claim=True, floor=True), new)
            )
        except NoRoom as room:
            raise quota_used("etcd has used up its quota") from room
        if isinstance(done, Owned):
            self._room.took(address.realm)
        return done

    async def _leased(self, own: HeldLease, step: Callable[[], Awaitable[T]]) -> T:
        """Runs a step under a lease. etcd refuses the whole transaction if it does not know the lease; the verb then answers as for an
        ended one."""
        try:
            return await step()
        except LeaseNotFound:
            if not isinstance(own, EtcdLease):
                raise  # the refusal may concern another process's lease
            own.end()
            return await step()

    async def take_over(self, record: Record, *, lease: Lease, nonce: str) -> Owned | Lost:
        own = held(lease)

        def decide(seen: KeyState, _: KeySnapshot) -> VerbOutcome[Owned | Lost]:
            return rules.take_over(seen, record, lease=own.id, owner=own.owner, ended=own.ended, nonce=nonce)

        belief = self._steps.belief(record)
        return await self._leased(own, lambda: self._steps.step(record.address, decide, Rests(claim=True), belief))

    async def heartbeat(self, claim: Claim) -> Updated | Finalized | NotFound | LostOwnership:
        return await self._steps.step(
            claim.address, lambda seen, snapshot: rules.heartbeat(_settled(seen, snapshot), claim), Rests(claim=True)
        )

    async def drop(self, claim: Claim) -> None:
        recent = self._steps.recent(claim.address)
        belief = None if recent is None else replace(recent, claim=claim)
        return await self._steps.step(claim.address, lambda seen, _: rules.drop(seen, claim), Rests(claim=True), belief)

    async def update(
        self, record: Record, claim: Claim, changed: Record, *, event: Event | None = None
    ) -> Updated | Changed | LostOwnership | NotFound | Finalized:
        return await self._steps.step(
            record.address,
            lambda seen, snapshot: rules.update(_settled(seen, snapshot), record, claim, changed, event),
            Rests(claim=True, also=self._result(record)),
            self._steps.belief(record, claim=claim),
        )

    def _result(self, record: Record) -> tuple[bytes, ...]:
        return (self._layout.beside("result", record.address, record.generation),)

    async def finalize(
        self, record: Record, claim: Claim, result: Result, *, retention: float
    ) -> Finalized | Changed | LostOwnership | NotFound | Conflict:
        done = await self._steps.step(
            record.address,
            lambda seen, snapshot: rules.finalize(_settled(seen, snapshot), record, claim, result, retention),
            Rests(claim=True, also=self._result(record)),
            self._steps.belief(record, claim=claim),
        )
        self._room.moved(record.realm)
        return done

    async def reopen(self, record: Record, request: Request, *, lease: Lease) -> Owned | Duplicate | Lost | Refused:
        """Reads first: the new generation must be above a floor that the caller does not know."""
        own = held(lease)

        def decide(seen: KeyState, _: KeySnapshot) -> VerbOutcome[Owned | Duplicate | Lost | Refused]:
            return rules.reopen(seen, record, request, lease=own.id, owner=own.owner, ended=own.ended)

        done = await self._leased(own, lambda: self._steps.step(record.address, decide, Rests(claim=True, floor=True)))
        if isinstance(done, Owned):
            self._room.took(record.realm)  # an expired key that is opened again lives
        return done

    # --- without a claim

    async def attach(self, record: Record, uid: str) -> Attached | Changed | Finalized | NotFound:
        return await self._steps.step(
            record.address,
            lambda seen, snapshot: rules.attach(_settled(seen, snapshot), record, uid),
            Rests(also=self._result(record)),
            self._steps.belief(record),
        )

    async def request_stop(self, record: Record, stop: StopWanted) -> Updated | Changed | Finalized | NotFound:
        return await self._steps.step(
            record.address,
            lambda seen, snapshot: rules.request_stop(_settled(seen, snapshot), record, stop),
            Rests(also=self._result(record)),
            self._steps.belief(record),
        )

    async def seal(
        self, address: Address, *, generation: int, token: int, nonce: str, intent: Intent
    ) -> Sealed | Refused:
        def decide(seen: KeyState, snapshot: KeySnapshot) -> VerbOutcome[Sealed | Refused]:
            if seen.record is not None and seen.record.intent is not None:
                seen = replace(seen, intent=snapshot.intent(seen.record.generation))
            return rules.seal(seen, generation=generation, token=token, nonce=nonce, intent=intent)

        rests = Rests(also=(self._layout.beside("intent", address, generation),))
        return await self._steps.step(address, decide, rests, self._steps.recent(address))

    async def report(self, address: Address, generation: int, report: Report) -> bool:
        def decide(seen: KeyState, snapshot: KeySnapshot) -> VerbOutcome[bool]:
            existing = snapshot.report(generation, report.attempt, report.reporter)
            so_far = snapshot.reported(generation, report.attempt)
            return rules.report(seen, generation, report, existing, so_far, room=room)

        room = await self._room.for_reports(address.realm)
        key = self._layout.report(address, generation, report.attempt, report.reporter)
        size = self._layout.size(address, generation, report.attempt)
        recent = self._steps.recent(address)
        belief = None if recent is None else replace(recent, found={key: None, size: None})
        done = await self._steps.step(address, decide, Rests(also=(key, size)), belief)
        if done:  # a repetition counts twice, until the next count
            self._room.reported(address.realm, len(encode(report).encode()))
        return done

    def reports_ratio(self) -> float:
        """Bytes of reports divided by the limit, of the fullest realm, as this process last counted."""
        return self._room.reports_ratio()

    async def renew(self, address: Address, generation: int, beat: Beat) -> bool:
        return await self._steps.step(
            address, lambda seen, _: rules.renew(seen, generation, beat), Rests(), self._steps.recent(address)
        )

    # --- reading: linearizable, and each listing shows one revision

    async def load(self, address: Address) -> View:
        return (await self._steps.read(address)).seen(0.0).view

    async def spec(self, address: Address, generation: int) -> SpecBody | None:
        return await self._body(SpecBody, "spec", address, generation)

    async def result(self, address: Address, generation: int) -> Result | None:
        return await self._body(Result, "result", address, generation)

    async def intent(self, address: Address, generation: int) -> Intent | None:
        return await self._body(Intent, "intent", address, generation)

    async def _body(self, kind: type[V], of: str, address: Address, generation: int) -> V | None:
        stored = first_of(await self._connection.range(Range(self._layout.beside(of, address, generation))))
        return None if stored is None else decode(kind, text_of(stored), where=name(address))

    async def _under(self, prefix: bytes) -> Sequence[KeyValue]:
        return (await self._connection.range(Range(prefix, prefix_end(prefix)))).kvs

    async def reports(self, address: Address, generation: int) -> Sequence[Report]:
        found = await self._under(self._layout.of_generation("report", address, generation))
        reports = [decode(Report, text_of(kv), where=name(address)) for kv in found]
        return sorted(reports, key=lambda report: (report.attempt, report.reporter))

    async def beats(self, address: Address, generation: int) -> Mapping[tuple[int, str], Beat]:
        """As the protocol's; ages count from when this process saw the touch: a period restarts in full after a takeover."""
        beats: dict[tuple[int, str], Beat] = {}
        for kv in await self._under(self._layout.of_generation("beat", address, generation)):
            beat = decode(Beat, text_of(kv), where=name(address))
            age = self._touches.age(kv.key, kv.mod_revision)
            beats[beat.attempt, beat.by] = beat.model_copy(update={"age": age})
        return dict(sorted(beats.items()))

    async def events(self, address: Address) -> Sequence[Event]:
        found = await self._under(self._layout.all_beside("event", address))
        newest = sorted(found, key=lambda kv: kv.create_revision)[-EVENTS:]
        return [decode(Event, text_of(kv), where=name(address)) for kv in newest]

    def watch(self, since: int) -> AsyncIterator[KeyChange]:
        return watch(self._connection, since)

    async def count(self, *, realm: str | None = None, live_only: bool = False) -> int:
        number = await self._room.records(realm)
        return number - (await self._room.expired(realm, await self.now()) if live_only else 0)

    async def realms(self) -> Sequence[str]:
        return sorted({*await self._realms(self._layout.records), *await self._realms(self._layout.floors)})

    async def _realms(self, prefix: Callable[[str | None], bytes]) -> Sequence[str]:
        """The realms of one kind of key, one request each. `prefix`: of the keys of a realm, or of all."""
        found: list[str] = []
        start, end = prefix(None), prefix_end(prefix(None))
        while (first := first_of(await self._connection.range(Range(start, end, limit=1, keys_only=True)))) is not None:
            found.append(self._layout.address_of(first.key).realm)
            start = prefix_end(prefix(found[-1]))
        return found

    async def list(self, query: Query) -> Page:
        for _ in range(TRIES):
            try:
                return await self._list(query)
            except Compacted:
                continue
        raise StoreUnavailable("etcd: a listing's revision was compacted while it was read; list again")

    async def _list(self, query: Query) -> Page:
        epoch = await self._connection.range(Range(self._layout.epoch))
        rows: list[tuple[Address, str, int]] = []
        async for chunk in self._addresses(query, epoch.revision):
            for address, kv in await self._records(chunk, epoch.revision):
                if _asked(query, kv):
                    rows.append((address, text_of(kv), kv.mod_revision))
            if len(rows) > query.limit:
                break
        return listed(rows[: query.limit], epoch=epoch_of(first_of(epoch)), more=len(rows) > query.limit)

    async def _addresses(self, query: Query, revision: int) -> AsyncIterator[Sequence[Address]]:
        """Addresses in order, without those that the keys alone rule out."""
        layout = self._layout
        after = _address(query.after) if query.after else None
        if query.states and _UNFINISHED.issuperset(query.states):
            prefix, last = layout.unfinished(), after and layout.open(after)
        elif query.realm is not None:
            prefix, last = layout.records(query.realm, query.hash_prefix), after and layout.record(after)
        else:
            prefix, last = layout.records(), after and layout.record(after)
        start, end = max(last + b"\0", prefix) if last else prefix, prefix_end(prefix)
        size = min(query.limit + 1, CHUNK)
        while start < end:
            page = await self._connection.range(Range(start, end, limit=size, revision=revision, keys_only=True))
            found = [layout.address_of(kv.key) for kv in page.kvs]
            yield [
                one for one in found if query.realm in (None, one.realm) and one.key_hash.startswith(query.hash_prefix)
            ]
            if not page.more:
                return
            start, size = page.kvs[-1].key + b"\0", CHUNK

    async def _records(self, addresses: Sequence[Address], revision: int) -> Sequence[tuple[Address, KeyValue]]:
        if not addresses:
            return []
        asked = [Range(self._layout.record(address), revision=revision) for address in addresses]
        found = zip(addresses, (await self._connection.gets(asked)).replies, strict=True)
        return [(address, kv) for address, reply in found if (kv := first_of(reply)) is not None]

    # --- ending

    async def purge(self, record: Record, *, now: float) -> Gone | Changed | Refused | NotFound:
        done = await self._steps.step(record.address, lambda seen, _: rules.purge(seen, record, now), Rests(floor=True))
        self._room.moved(record.realm)
        return done

    async def forget(self, record: Record, event: Event) -> Gone | Changed | Refused | NotFound:
        done = await self._steps.step(
            record.address, lambda seen, _: rules.forget(seen, record, event), Rests(floor=True)
        )
        self._room.moved(record.realm)
        return done

    # --- the roster

    async def announce(self, replica: Replica, *, lease: Lease) -> None:
        await self._announce(self._layout.replica(replica.nonce), asdict(replica), lease)

    async def _announce(self, key: bytes, said: Mapping[str, object], lease: Lease) -> None:
        entry = Put(key, json.dumps(said).encode(), lease=int(lease.id, 16))
        await self._connection.ask(lambda client: client.txn([], [entry]))

    async def replicas(self) -> Sequence[Replica]:
        found = await self._under(self._layout.replicas())
        return [replica for kv in found if (replica := replica_of(kv.value)) is not None]

    async def announce_gateway(self, gateway: Gateway, *, lease: Lease) -> None:
        await self._announce(self._layout.gateway(gateway.nonce), asdict(gateway), lease)

    async def gateways_serving_for(self) -> float | None:
        found = await self._under(self._layout.gateways())
        return self._service.serving_for([entry for kv in found if (entry := gateway_of(kv.value)) is not None])


def _settled(seen: KeyState, snapshot: KeySnapshot) -> KeyState:
    """The state with the result, if the record is finalized."""
    if seen.record is None or seen.record.state is not State.FINALIZED:
        return seen
    return replace(seen, result=snapshot.result(seen.record.generation))


def _address(token: str) -> Address:
    realm, key_hash = position_of(token)
    return Address(realm=realm, key_hash=key_hash)


def _asked(query: Query, kv: KeyValue) -> bool:
    """Whether a record matches the query. A record that cannot be read matches any state: it is listed, never left out."""
    if not query.states:
        return True
    try:
        state = Record.model_validate_json(kv.value).state
    except ValueError:
        return True
    return state in query.states
