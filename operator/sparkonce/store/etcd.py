"""The cluster's store: records in etcd, each verb one transaction that compares what its decision rested on.

In the good case a verb is one request: it believes what its caller was given (the record with its revision, the claim), decides by
the same `rules` as every other store, and lets etcd compare. So a record is passed as it was given, never changed under its old
revision. `reserve` believes that the key is new. Who is wrong gets the truth in the same answer and decides again. Verbs that are
rare, or that are given nothing to believe, look first.

Time: etcd tells none, so times in records are those of the process that writes them, and expiry is compared with a clock that the
caller names (`purge`). Ages and leases need no clock of another machine. Nothing that must be true rests on any of them.

Not here: the decision (`rules`), the comparison (`etcd_look`), what is written with what (`etcd_write`), the loop (`etcd_step`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TypeVar, cast

from sparkonce import failpoints
from sparkonce.errors import StoreUnusable
from sparkonce.etcd.client import Client, Tls
from sparkonce.etcd.errors import LeaseNotFound
from sparkonce.etcd.kv import Compare, Put, Range, RangeReply
from sparkonce.model.record import Address, Beat, Event, Intent, Record, Report, State, StopWanted
from sparkonce.model.result import Result
from sparkonce.store import restore, rules
from sparkonce.store.etcd_keys import Layout
from sparkonce.store.etcd_lease import EtcdLease
from sparkonce.store.etcd_look import FIRST_EPOCH, Look, epoch_of, first_of
from sparkonce.store.etcd_read import Reading
from sparkonce.store.etcd_room import Room, quota_used
from sparkonce.store.etcd_step import Connection, NoRoom, Rests, Steps, Touches
from sparkonce.store.ledger import LIVE_KEYS, HeldLease, held
from sparkonce.store.protocol import (
    Attached,
    Changed,
    Claim,
    Conflict,
    Duplicate,
    Finalized,
    Gone,
    Lease,
    Lost,
    LostOwnership,
    Mismatch,
    Moved,
    NotFound,
    Owned,
    Refused,
    Request,
    Sealed,
    Updated,
)
from sparkonce.store.restore import Shown
from sparkonce.store.roster import Gateway, Replica, Service, gateway_of, replica_of
from sparkonce.store.step import Decision, Seen

T = TypeVar("T")

TTL = 10
"""Seconds of a lease: a dead owner is replaced within it, and an owner that stalls for longer must stop."""
TIMEOUT = 2.0
"""Seconds of one request: also how long a call to a member that lost its leader hangs."""
QUOTA = 2 * 1024**3
"""Bytes: what etcd takes when it is not told otherwise."""


class EtcdStore(Reading):
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
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`endpoints`: host:port; nothing is asked of them before the first call, whose event loop the store then belongs to.

        `quota`: bytes, as etcd was started with. InvalidInput."""
        client = Client.open(endpoints, tls=tls, user=user, password=password, timeout=timeout)
        connection = Connection(Layout(install), client)
        touches = Touches(monotonic)
        room = Room(connection, max_live_keys=max_live_keys, quota=quota, clock=clock, monotonic=monotonic)
        super().__init__(connection, steps=Steps(connection, clock=clock, touches=touches), touches=touches, room=room)
        self.url = f"etcd://{','.join(endpoints)}"
        self._ttl, self._clock = ttl, clock
        self._service = Service(monotonic)

    async def now(self) -> float:
        return self._clock()

    def used(self) -> dict[str, float]:
        """How much of its room is used, as it was when a new key last asked for some; see `Room.used`."""
        return self._room.used()

    async def close(self) -> None:
        """Leases are left to expire: revoke first what should go at once."""
        await self._connection.client.close()

    async def open_lease(self, *, owner: str) -> EtcdLease:
        handle = await self._connection.ask(lambda client: client.grant(self._ttl))
        return EtcdLease(self._connection, self._connection.client.keep(handle), number=handle.id, owner=owner)

    # --- after a restore

    async def rebuild(self, shown: Shown, *, by: str) -> bool:
        def decide(seen: Seen, _: Look) -> Decision[bool]:
            return restore.rebuild(seen, shown, by=by)

        return await self._step(shown.address, decide, Rests(claim=True, floor=True))

    async def raise_epoch(self, *, seen: int) -> int:
        key, new = self._layout.epoch, str(seen + 1).encode()
        absent = Compare(key, "version", "=", 0)
        stands = absent if seen == FIRST_EPOCH else Compare(key, "value", "=", str(seen).encode())
        reply = await self._connection.ask(lambda client: client.txn([stands], [Put(key, new)], [Range(key)]))
        if not reply.succeeded and epoch_of(first_of(cast(RangeReply, reply.replies[0]))) <= seen:
            raise StoreUnusable(f"the epoch of {self.url} is not the one that was read; run the command again")
        return seen + 1

    # --- ownership

    async def reserve(
        self, request: Request, *, lease: Lease, floor: int
    ) -> Owned | Duplicate | Mismatch | Moved | Refused:
        own, address = held(lease), request.address
        full = await self._room.full(address.realm)
        near_quota = await self._room.near_quota()

        def decide(seen: Seen, _: Look) -> Decision[Owned | Duplicate | Mismatch | Moved | Refused]:
            if near_quota is not None and seen.record is None and seen.floor == floor and not own.ended:
                raise near_quota
            return rules.reserve(seen, request, lease=own.id, owner=own.owner, ended=own.ended, floor=floor, full=full)

        new = Look(layout=self._layout, address=address, record=None, claim=None, floor=floor)
        failpoints.hit("store.etcd.reserve.before")
        try:
            done = await self._leased(own, lambda: self._step(address, decide, Rests(claim=True, floor=True), new))
        except NoRoom as room:
            raise quota_used("etcd has used up its quota") from room
        if isinstance(done, Owned):
            self._room.took(address.realm)
        return done

    async def _leased(self, own: HeldLease, step: Callable[[], Awaitable[T]]) -> T:
        """etcd refuses a transaction under a lease that it does not know, as a whole; then the verb is answered as under an ended one."""
        try:
            return await step()
        except LeaseNotFound:
            if not isinstance(own, EtcdLease):
                raise  # of a lease that is another's we learn nothing
            own.end()
            return await step()

    async def _step(
        self, address: Address, decide: Callable[[Seen, Look], Decision[T]], rests: Rests, belief: Look | None = None
    ) -> T:
        return await self._steps.step(address, decide, rests=rests, belief=belief)

    async def take_over(self, record: Record, *, lease: Lease, nonce: str) -> Owned | Lost:
        own = held(lease)

        def decide(seen: Seen, _: Look) -> Decision[Owned | Lost]:
            return rules.take_over(seen, record, lease=own.id, owner=own.owner, ended=own.ended, nonce=nonce)

        belief = self._steps.belief(record)
        return await self._leased(own, lambda: self._step(record.address, decide, Rests(claim=True), belief))

    async def heartbeat(self, claim: Claim) -> Updated | Finalized | NotFound | LostOwnership:
        return await self._step(
            claim.address, lambda seen, look: rules.heartbeat(_settled(seen, look), claim), Rests(claim=True)
        )

    async def drop(self, claim: Claim) -> None:
        recent = self._steps.recent(claim.address)
        belief = None if recent is None else replace(recent, claim=claim)
        return await self._step(claim.address, lambda seen, _: rules.drop(seen, claim), Rests(claim=True), belief)

    async def update(
        self, record: Record, claim: Claim, changed: Record, *, event: Event | None = None
    ) -> Updated | Changed | LostOwnership | NotFound | Finalized:
        return await self._step(
            record.address,
            lambda seen, look: rules.update(_settled(seen, look), record, claim, changed, event),
            Rests(claim=True, also=self._result(record)),
            self._steps.belief(record, claim=claim),
        )

    def _result(self, record: Record) -> tuple[bytes, ...]:
        return (self._layout.beside("result", record.address, record.generation),)

    async def finalize(
        self, record: Record, claim: Claim, result: Result, *, retention: float
    ) -> Finalized | Changed | LostOwnership | NotFound | Conflict:
        done = await self._step(
            record.address,
            lambda seen, look: rules.finalize(_settled(seen, look), record, claim, result, retention),
            Rests(claim=True, also=self._result(record)),
            self._steps.belief(record, claim=claim),
        )
        self._room.moved(record.realm)
        return done

    async def release(self, record: Record, claim: Claim) -> Gone | Changed | LostOwnership | NotFound:
        done = await self._step(
            record.address,
            lambda seen, _: rules.release(seen, record, claim),
            Rests(claim=True, floor=True),
        )
        self._room.moved(record.realm)
        return done

    async def reopen(self, record: Record, request: Request, *, lease: Lease) -> Owned | Duplicate | Lost | Refused:
        """Looks first: the new generation must be above a floor that the caller was not told."""
        own = held(lease)

        def decide(seen: Seen, _: Look) -> Decision[Owned | Duplicate | Lost | Refused]:
            return rules.reopen(seen, record, request, lease=own.id, owner=own.owner, ended=own.ended)

        done = await self._leased(own, lambda: self._step(record.address, decide, Rests(claim=True, floor=True)))
        if isinstance(done, Owned):
            self._room.took(record.realm)  # an expired key that is opened again lives
        return done

    # --- without a claim

    async def attach(self, record: Record, uid: str) -> Attached | Changed | Finalized | NotFound:
        return await self._step(
            record.address,
            lambda seen, look: rules.attach(_settled(seen, look), record, uid),
            Rests(also=self._result(record)),
            self._steps.belief(record),
        )

    async def request_stop(self, record: Record, wish: StopWanted) -> Updated | Changed | Finalized | NotFound:
        return await self._step(
            record.address,
            lambda seen, look: rules.request_stop(_settled(seen, look), record, wish),
            Rests(also=self._result(record)),
            self._steps.belief(record),
        )

    async def seal(
        self, address: Address, *, generation: int, token: int, nonce: str, intent: Intent
    ) -> Sealed | Refused:
        def decide(seen: Seen, look: Look) -> Decision[Sealed | Refused]:
            if seen.record is not None and seen.record.intent is not None:
                seen = replace(seen, intent=look.intent(seen.record.generation))
            return rules.seal(seen, generation=generation, token=token, nonce=nonce, intent=intent)

        rests = Rests(also=(self._layout.beside("intent", address, generation),))
        return await self._step(address, decide, rests, self._steps.recent(address))

    async def report(self, address: Address, generation: int, report: Report) -> bool:
        def decide(seen: Seen, look: Look) -> Decision[bool]:
            stands = look.report(generation, report.attempt, report.reporter)
            return rules.report(seen, generation, report, stands)

        key = self._layout.report(address, generation, report.attempt, report.reporter)
        recent = self._steps.recent(address)
        belief = None if recent is None else replace(recent, found={key: None})
        return await self._step(address, decide, Rests(also=(key,)), belief)

    async def renew(self, address: Address, generation: int, beat: Beat) -> bool:
        return await self._step(
            address, lambda seen, _: rules.renew(seen, generation, beat), Rests(), self._steps.recent(address)
        )

    # --- ending

    async def purge(self, record: Record, *, now: float) -> Gone | Changed | Refused | NotFound:
        done = await self._step(record.address, lambda seen, _: rules.purge(seen, record, now), Rests(floor=True))
        self._room.moved(record.realm)
        return done

    async def forget(self, record: Record, event: Event) -> Gone | Changed | Refused | NotFound:
        done = await self._step(record.address, lambda seen, _: rules.forget(seen, record, event), Rests(floor=True))
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


def _settled(seen: Seen, look: Look) -> Seen:
    """With the result, where there must be one."""
    if seen.record is None or seen.record.state is not State.FINALIZED:
        return seen
    return replace(seen, result=look.result(seen.record.generation))
