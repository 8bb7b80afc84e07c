"""Refreshes leases from its own thread, and computes the deadline until which they certainly live.

The thread uses a blocking gRPC channel with a separate connection: an event loop that is blocked for longer than a lease's TTL costs
no lease, and neither does a large reply on the other connection. All leases of a client share one stream. Each is refreshed every
third of its TTL; if a refresh is unanswered for another third, the stream and its connection are discarded and the next endpoint is
tried. (gRPC's own keepalive takes 13 s to notice, which is longer than some leases live.)

The keeper, not etcd, decides whether a lease is held: until TTL seconds after the last confirmed refresh was **sent**. etcd errs the
other way: it gives every lease its full TTL again after a restart or an election, so it may confirm a refresh after that deadline. That
does not bring the lease back: past its deadline it is lost for good, because its holder has acted on the loss. A process that was
frozen finds its leases lost when it resumes, before it sends any request.

etcd does not authenticate refreshes (3.6: LeaseRenew has no user), so the stream sends no token, and a refreshed lease proves no login.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, Protocol

import grpc

from sparkonce.errors import InvalidInput
from sparkonce.etcd.channel import Endpoint, Endpoints, metadata
from sparkonce.etcd.pb import etcd_pb2 as pb
from sparkonce.etcd.wire import KEEP_ALIVE

LOG: Final = logging.getLogger(__name__)

REFRESHES: Final = 3
"""Refreshes per TTL: one may be lost, and one may hit a dead endpoint."""
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 0.5
"""Seconds between attempts to open a stream that etcd refuses at once."""
NEVER: Final = float("-inf")
"""Deadline of a lease that was never confirmed."""
SHORTEST_WAIT: Final = 0.01
"""Seconds: leases that are due at nearly the same time are refreshed together."""


@dataclass(frozen=True)
class LeaseHandle:
    id: int
    ttl: int
    """Seconds that etcd granted: at least the requested TTL."""
    asked: float | None = None
    """Monotonic time at which the grant was sent; None: unknown, so the lease is not held before the first confirmed refresh."""


@dataclass(eq=False)
class _Held:
    """State of one lease; read and changed under the keeper's lock."""

    lease: LeaseHandle
    on_lost: Callable[[], None] | None
    deadline: float
    due: float
    sent: float | None = None
    """When the unanswered refresh was sent on the current stream; None if there is no such refresh."""
    lost: bool = False
    stopped: bool = False

    @property
    def period(self) -> float:
        return self.lease.ttl / REFRESHES

    @property
    def wakes_at(self) -> float:
        step = self.due if self.sent is None else self.sent + self.period
        return step if self.deadline == NEVER else min(step, self.deadline)

    def is_lost(self, now: float) -> bool:
        if now >= self.deadline != NEVER:
            self.lost = True
        return self.lost

    def is_overdue(self, now: float) -> bool:
        return self.sent is not None and now >= self.sent + self.period

    def answered(self, ttl: int, now: float) -> None:
        sent, self.sent = self.sent, None
        if sent is None or self.is_lost(now):
            return
        if ttl <= 0:
            self.lost = True
            return
        self.deadline = sent + ttl
        self.due = sent + self.period


class KeptLease:
    """A lease that is being refreshed. Thread-safe."""

    def __init__(self, held: _Held, lock: threading.Condition) -> None:
        self._held = held
        self._lock = lock

    @property
    def lease(self) -> LeaseHandle:
        return self._held.lease

    @property
    def deadline(self) -> float:
        """Monotonic time until which the lease certainly lives: when the last confirmed refresh was sent, plus the TTL."""
        return self._held.deadline

    @property
    def lost(self) -> bool:
        """True once the deadline has passed or etcd reported that the lease does not exist; never false again."""
        with self._lock:
            return self._held.is_lost(monotonic())

    def stop(self) -> None:
        """Stops refreshing, without revoking the lease or calling `on_lost`."""
        with self._lock:
            self._held.stopped = True
            self._lock.notify_all()


class _Replies(Protocol):
    """gRPC's blocking stream call, for which its type stubs have no name."""

    def __iter__(self) -> Iterator[pb.LeaseKeepAliveResponse]: ...
    def cancel(self) -> bool: ...
    def code(self) -> grpc.StatusCode: ...


@dataclass(eq=False)
class _KeepAliveStream:
    endpoint: Endpoint[grpc.Channel]
    requests: queue.SimpleQueue[pb.LeaseKeepAliveRequest | None]
    call: _Replies
    ended: bool = field(default=False)


class Keeper:
    def __init__(self, endpoints: Endpoints[grpc.Channel]) -> None:
        self._endpoints = endpoints
        self._changed = threading.Condition()
        self._held: dict[int, _Held] = {}
        self._stream: _KeepAliveStream | None = None
        self._open_at = NEVER
        self._pause = FIRST_PAUSE
        self._thread: threading.Thread | None = None
        self._closed = False

    def keep(self, lease: LeaseHandle, *, on_lost: Callable[[], None] | None) -> KeptLease:
        """Refreshes the lease from now on. `on_lost` is called once, in the keeper's thread, and must not block.

        Raises:
            InvalidInput: the client is closed, or the lease is already being refreshed.
        """
        now = monotonic()
        with self._changed:
            if self._closed:
                raise InvalidInput(f"lease {lease.id:x} cannot be kept alive, because this etcd client is closed")
            if lease.id in self._held and not self._held[lease.id].stopped:
                raise InvalidInput(f"lease {lease.id:x} is already being kept alive")
            held = _Held(lease, on_lost, deadline=NEVER, due=now)
            if lease.asked is not None:
                held.deadline, held.due = lease.asked + lease.ttl, lease.asked + held.period
            self._held[lease.id] = held
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sparkonce-etcd-keeper", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return KeptLease(held, self._changed)

    def close(self) -> None:
        """Stops the thread and its stream and waits for it; no lease is refreshed from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        for channel in self._endpoints.drop():
            channel.close()

    # --- the keeper's thread ---

    def _run(self) -> None:
        while True:
            with self._changed:
                lost = self._take_lost()
                if not lost:
                    if self._closed:
                        self._end_stream()
                        return
                    self._step(monotonic())
                    self._changed.wait(self._next_wakeup())
            for held in lost:
                _notify(held)

    def _take_lost(self) -> list[_Held]:
        """Removes lost and stopped leases; returns those lost since the last call."""
        now = monotonic()
        lost = [held for held in self._held.values() if not held.stopped and held.is_lost(now)]
        self._held = {lease: held for lease, held in self._held.items() if not held.stopped and not held.lost}
        return [] if self._closed else lost

    def _step(self, now: float) -> None:
        """Sends due refreshes, replacing a stream that has ended or does not answer."""
        if not self._held:
            self._end_stream()
            return
        if self._stream is not None:
            if any(held.is_overdue(now) for held in self._held.values()):
                self._discard(pause=0.0)  # it has cost a third of the TTL already
            elif self._stream.ended:
                self._discard(pause=self._pause)
        if self._stream is None and now >= self._open_at:
            self._open_stream()
        if self._stream is None:
            return
        for held in self._held.values():
            if held.sent is None and now >= held.due:
                held.sent = monotonic()  # before gRPC gets it: the deadline counts from here
                self._stream.requests.put(pb.LeaseKeepAliveRequest(ID=held.lease.id))

    def _next_wakeup(self) -> float | None:
        """Seconds until the next refresh or deadline; None: wait for a notification."""
        if not self._held:
            return None
        now = monotonic()
        times = [held.wakes_at for held in self._held.values()]
        if self._stream is None:
            # A due refresh waits until a stream may be opened again.
            times = [max(each, self._open_at) for each in times]
        return max(SHORTEST_WAIT, min(times) - now)

    def _open_stream(self) -> None:
        try:
            endpoint = self._endpoints.current()
            requests: queue.SimpleQueue[pb.LeaseKeepAliveRequest | None] = queue.SimpleQueue()
            method = endpoint.channel.stream_stream(
                KEEP_ALIVE.path,
                request_serializer=KEEP_ALIVE.asks.SerializeToString,
                response_deserializer=KEEP_ALIVE.answers.FromString,
            )
            call = method(iter(requests.get, None), metadata=metadata(None))
        except InvalidInput as error:  # a TLS file cannot be read now
            LOG.warning("leases are not refreshed: %s", error)
            self._open_at = monotonic() + LONGEST_PAUSE
            return
        self._stream = _KeepAliveStream(endpoint, requests, call)
        threading.Thread(target=self._read, args=(self._stream,), name="sparkonce-etcd-refreshed", daemon=True).start()

    def _discard(self, *, pause: float) -> None:
        """Closes the stream and its connection; its unanswered refreshes are due again."""
        stream = self._stream
        assert stream is not None
        self._end_stream()
        self._pause = min(LONGEST_PAUSE, 2 * self._pause)
        self._open_at = monotonic() + pause
        self._endpoints.failed(stream.endpoint)
        self._endpoints.forget(stream.endpoint)
        stream.endpoint.channel.close()

    def _end_stream(self) -> None:
        if self._stream is None:
            return
        self._stream.call.cancel()
        self._stream.requests.put(None)
        self._stream = None
        now = monotonic()
        for held in self._held.values():
            if held.sent is not None:
                held.sent, held.due = None, now

    # --- a stream's thread ---

    def _read(self, stream: _KeepAliveStream) -> None:
        said = "the stream ended"
        try:
            for reply in stream.call:
                with self._changed:
                    if stream is not self._stream:
                        return
                    self._answered(reply)
        except grpc.RpcError:
            said = stream.call.code().name
        with self._changed:
            if stream is self._stream:
                LOG.info(
                    "etcd at %s does not refresh leases (%s): trying the next endpoint", stream.endpoint.address, said
                )
            stream.ended = True
            self._changed.notify_all()

    def _answered(self, reply: pb.LeaseKeepAliveResponse) -> None:
        self._pause = FIRST_PAUSE
        held = self._held.get(reply.ID)
        if held is None:
            return
        held.answered(reply.TTL, monotonic())
        if held.lost:
            self._changed.notify_all()


def _notify(held: _Held) -> None:
    LOG.warning("lease %x is lost", held.lease.id)
    if held.on_lost is None:
        return
    try:
        held.on_lost()
    except Exception:
        LOG.exception("the on_lost callback of lease %x failed", held.lease.id)
