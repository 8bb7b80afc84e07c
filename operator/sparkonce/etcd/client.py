"""The client of etcd: what the store asks, as plain calls. See the package for what it promises, and each module for how.

It belongs to the event loop of its first call; leases are kept by a thread of its own. `open` does no I/O: an etcd that is down
shows at the first call. There is no `put` and no `delete`: a write that compares nothing cannot tell whether it is the first,
and everything this project writes must.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from time import monotonic

from sparkonce.errors import InvalidInput
from sparkonce.etcd import wire
from sparkonce.etcd.auth import Login
from sparkonce.etcd.calls import Calls
from sparkonce.etcd.channel import Endpoints, Tls, connect_async, connect_blocking
from sparkonce.etcd.errors import LeaseNotFound
from sparkonce.etcd.keeper import Keeper, Kept, LeaseHandle
from sparkonce.etcd.kv import Compare, Op, Range, RangeReply, Status, TxnReply
from sparkonce.etcd.pb import etcd_pb2 as pb
from sparkonce.etcd.watch import Watch, WatchBatch, WatchEvent

__all__ = ["Client", "Kept", "LeaseHandle", "Status", "Tls", "WatchBatch", "WatchEvent"]


class Client:
    def __init__(self, calls: Calls, keeper: Keeper) -> None:
        self._calls = calls
        self._keeper = keeper

    @classmethod
    def open(
        cls,
        endpoints: Sequence[str],
        *,
        tls: Tls | None = None,
        user: str | None = None,
        password: str | None = None,
        timeout: float = 2.0,
    ) -> Client:
        """A client of the cluster at these endpoints (`host:port`), which may be asked in any order. No I/O.

        `timeout`: seconds that a call may take when it does not say otherwise. InvalidInput when what is given cannot work.
        """
        if (user is None) != (password is None):
            raise InvalidInput("etcd wants a user and a password, or neither")
        login = None if user is None or password is None else Login(user, password)
        calls = Calls(Endpoints(endpoints, tls, connect_async), login, timeout=timeout)
        return cls(calls, Keeper(Endpoints(endpoints, tls, connect_blocking)))

    async def range(self, request: Range, *, timeout: float | None = None) -> RangeReply:
        """Linearizable. Asked at the next endpoint, too, within the deadline; Compacted if its revision is gone."""
        reply = await self._calls.ask(wire.RANGE, wire.range_request(request), timeout=timeout, repeat=True)
        return wire.range_reply(reply)

    async def txn(
        self,
        compare: Sequence[Compare],
        then: Sequence[Op],
        otherwise: Sequence[Op] = (),
        *,
        timeout: float | None = None,
    ) -> TxnReply:
        """All comparisons hold: `then`; else `otherwise`; in one step. Sent once.

        EtcdUnavailable: whether it took effect, or will, is unknown. EtcdRefused (LeaseNotFound, NoSpace, PermissionDenied):
        it did not and will not. A caller that is cancelled leaves at once; the transaction goes on to its deadline.
        """
        request = wire.txn_request(compare, then, otherwise)
        return wire.txn_reply(await self._calls.ask(wire.TXN, request, timeout=timeout))

    async def grant(self, ttl: int) -> LeaseHandle:
        """A new lease of at least `ttl` seconds; etcd may grant more (its least is 2). Sent once: a lease whose reply is lost expires."""
        asked = monotonic()
        reply = await self._calls.ask(wire.GRANT, pb.LeaseGrantRequest(TTL=ttl))
        return LeaseHandle(id=reply.ID, ttl=reply.TTL, asked=asked)

    async def revoke(self, lease: int) -> None:
        """Its keys are gone, and every put that names it and is still under way is refused. Sent once."""
        try:
            await self._calls.ask(wire.REVOKE, pb.LeaseRevokeRequest(ID=lease))
        except LeaseNotFound:
            return

    async def remaining(self, lease: int) -> float | None:
        """Seconds until the lease expires, as the member that was asked knows it; None: it does not exist. A hint, no evidence."""
        try:
            reply = await self._calls.ask(wire.REMAINING, pb.LeaseTimeToLiveRequest(ID=lease), repeat=True)
        except LeaseNotFound:
            return None
        return float(reply.TTL) if reply.TTL >= 0 else None

    def keep(self, lease: LeaseHandle, *, on_lost: Callable[[], None] | None = None) -> Kept:
        """Refreshes the lease from now on, in the keeper's thread. `on_lost` is called there, once: it must not block."""
        return self._keeper.keep(lease, on_lost=on_lost)

    def watch(self, key: bytes, end: bytes, *, start: int) -> AsyncGenerator[WatchBatch, None]:
        """Events with a revision of `start` or later (0: from now on), across restarts and outages, for ever.

        Ends when the client is closed; PermissionDenied if the user may not watch these keys. Leave it by `aclose()` or by
        cancelling the task that reads it.
        """
        return Watch(self._calls, key, end, start=start).batches()

    async def status(self) -> Status:
        """Of the member that is asked at the moment."""
        reply = await self._calls.ask(wire.STATUS, pb.StatusRequest(), repeat=True)
        return Status(version=reply.version, db_size=reply.dbSize, leader=reply.leader, revision=reply.header.revision)

    async def close(self) -> None:
        """Ends calls, watches and the keeper. Leases are left to expire: revoke first what should go at once."""
        await self._calls.close()
        await asyncio.to_thread(self._keeper.close)
