"""The etcd client's public API. The package docstring states its guarantees; each module explains how they are met.

A client is bound to the event loop of its first call; a separate thread refreshes leases. `open` does no I/O: an unreachable etcd
shows at the first call. There is no `put` and no `delete`: an unconditional write cannot recognise its own repetition, and every
write of this package must.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from time import monotonic

from sparkonce.errors import InvalidInput
from sparkonce.etcd import wire
from sparkonce.etcd.auth import EtcdLogin
from sparkonce.etcd.calls import Calls
from sparkonce.etcd.channel import Endpoints, Tls, connect_async, connect_blocking
from sparkonce.etcd.errors import LeaseNotFound
from sparkonce.etcd.keeper import Keeper, KeptLease, LeaseHandle
from sparkonce.etcd.kv import Compare, MemberStatus, Op, Range, RangeReply, TxnReply
from sparkonce.etcd.pb import etcd_pb2 as pb
from sparkonce.etcd.watch import Watch, WatchBatch, WatchEvent

__all__ = ["Client", "KeptLease", "LeaseHandle", "MemberStatus", "Tls", "WatchBatch", "WatchEvent"]


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
        """Creates a client of the cluster at these endpoints (`host:port`), which are used in any order. Does no I/O.

        `timeout`: default seconds per call.

        Raises:
            InvalidInput: a malformed endpoint, no endpoint, or only one of user and password.
        """
        if (user is None) != (password is None):
            raise InvalidInput("etcd needs both a user and a password, or neither")
        login = None if user is None or password is None else EtcdLogin(user, password)
        calls = Calls(Endpoints(endpoints, tls, connect_async), login, timeout=timeout)
        return cls(calls, Keeper(Endpoints(endpoints, tls, connect_blocking)))

    async def range(self, request: Range, *, timeout: float | None = None) -> RangeReply:
        """Reads linearizably; tries further endpoints within the deadline.

        Raises:
            Compacted: the requested revision is gone.
            EtcdRefused: etcd rejected the read.
            EtcdUnavailable: no endpoint answered in time.
        """
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
        """Runs `then` if all comparisons hold, else `otherwise`, atomically. Sent once.

        A cancelled caller returns at once; the transaction continues until its deadline.

        Raises:
            EtcdUnavailable: proves nothing: it may have taken effect, or may yet.
            EtcdRefused: (LeaseNotFound, NoSpace, PermissionDenied) it did not take effect and never will.
        """
        request = wire.txn_request(compare, then, otherwise)
        return wire.txn_reply(await self._calls.ask(wire.TXN, request, timeout=timeout))

    async def grant(self, ttl: int) -> LeaseHandle:
        """Grants a lease of at least `ttl` seconds; etcd may grant more (its minimum is 2). Sent once: a lease whose reply is lost expires.

        Raises:
            EtcdUnavailable, EtcdRefused: no lease to use; one that was granted nevertheless expires by itself.
        """
        asked = monotonic()
        reply = await self._calls.ask(wire.GRANT, pb.LeaseGrantRequest(TTL=ttl))
        return LeaseHandle(id=reply.ID, ttl=reply.TTL, asked=asked)

    async def revoke(self, lease: int) -> None:
        """Deletes the lease with its keys; etcd refuses every put in flight that names it. Idempotent. Sent once.

        Raises:
            EtcdUnavailable: the lease may live until its TTL.
            EtcdRefused: etcd rejected the revocation.
        """
        try:
            await self._calls.ask(wire.REVOKE, pb.LeaseRevokeRequest(ID=lease))
        except LeaseNotFound:
            return

    async def remaining(self, lease: int) -> float | None:
        """Seconds until the lease expires, as the queried member sees it; None if it does not exist. A hint, not evidence.

        Raises:
            EtcdUnavailable, EtcdRefused: etcd did not answer, or refused.
        """
        try:
            reply = await self._calls.ask(wire.REMAINING, pb.LeaseTimeToLiveRequest(ID=lease), repeat=True)
        except LeaseNotFound:
            return None
        return float(reply.TTL) if reply.TTL >= 0 else None

    def keep(self, lease: LeaseHandle, *, on_lost: Callable[[], None] | None = None) -> KeptLease:
        """Refreshes the lease from now on, in the keeper's thread. `on_lost` is called there, once, and must not block.

        Raises:
            InvalidInput: the client is closed, or the lease is already being refreshed.
        """
        return self._keeper.keep(lease, on_lost=on_lost)

    def watch(self, key: bytes, end: bytes, *, start: int) -> AsyncGenerator[WatchBatch, None]:
        """Yields events from revision `start` on (0: from now on), across restarts and outages, until the client is closed.

        Stop it with `aclose()` or by cancelling the task that reads it.

        Raises:
            PermissionDenied: the user may not watch these keys.
            EtcdRefused: etcd rejected the watch or the login.
        """
        return Watch(self._calls, key, end, start=start).batches()

    async def status(self) -> MemberStatus:
        """Status of the current endpoint's member.

        Raises:
            EtcdUnavailable, EtcdRefused: etcd did not answer, or refused.
        """
        reply = await self._calls.ask(wire.STATUS, pb.StatusRequest(), repeat=True)
        return MemberStatus(
            version=reply.version, db_size=reply.dbSize, leader=reply.leader, revision=reply.header.revision
        )

    async def close(self) -> None:
        """Ends calls, watches and the keeper. Leases are left to expire: revoke first those that should end at once."""
        await self._calls.close()
        await asyncio.to_thread(self._keeper.close)
