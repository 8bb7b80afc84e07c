"""Unary and streaming calls: deadlines, login, choice of endpoint, and which requests may be resent.

* Every call has a deadline, enforced by gRPC. Cancelling a call from outside (`asyncio.wait_for`) leaks 2 to 5 kB each in grpc.aio, so
  each call runs in its own task behind a shield: a cancelled caller returns at once, and the call ends by its deadline.
* A write is handed to gRPC once. One safe resend: etcd rejected the token before it applied anything; the client then logs in and
  sends the request again.
* A read may try the next endpoint within its deadline. With several endpoints each try gets half of the remaining time, so that a
  frozen member costs half the deadline and not the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Final, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from sparkonce.etcd.auth import EtcdLogin
from sparkonce.etcd.channel import Endpoint, Endpoints, metadata
from sparkonce.etcd.errors import EtcdRefused, EtcdUnavailable, failure, login_was_refused
from sparkonce.etcd.pb import etcd_pb2 as pb
from sparkonce.etcd.wire import AUTHENTICATE, Rpc

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)
T = TypeVar("T")

PAUSE: Final = 0.05
"""Seconds between two tries of a read, so that a member that refuses at once is not polled in a tight loop."""
SHORTEST_TRY: Final = 0.25
"""Seconds below which the rest of a deadline is not halved."""

LOGINS: Final = 2
"""Maximum new logins per request: users may change again after the first, or its token may not have reached the next member."""


class Calls:
    def __init__(self, endpoints: Endpoints[grpc.aio.Channel], login: EtcdLogin | None, *, timeout: float) -> None:
        self._endpoints = endpoints
        self._login = login
        self.timeout = timeout
        self.closed = False
        self._running: set[asyncio.Task[object]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def ask(self, rpc: Rpc[Q, R], request: Q, *, timeout: float | None = None, repeat: bool = False) -> R:
        """Sends a request and returns its reply. `repeat`: try until the deadline; only for requests that change nothing.

        Raises:
            EtcdRefused: rejected; it had no effect.
            EtcdUnavailable: proves nothing: a write may have taken effect, or may yet.
        """
        self._belongs_here()
        deadline = monotonic() + (self.timeout if timeout is None else timeout)
        task = asyncio.create_task(self._ask(rpc, request, deadline=deadline, repeat=repeat))
        self._running.add(task)
        task.add_done_callback(self._over)
        return await asyncio.shield(task)

    def _over(self, task: asyncio.Task[object]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: asyncio would log the exception of a call whose caller was cancelled

    async def stream(self, rpc: Rpc[Q, R], *, refused: str | None = None) -> BidiStream[Q, R]:
        """Opens a stream to the current endpoint; the caller closes it.

        `refused`: a token that etcd rejected; a new login replaces it.

        Raises:
            EtcdRefused, EtcdUnavailable: no stream was opened.
        """
        self._belongs_here()
        token = await self._token(refused, monotonic() + self.timeout)
        self._still_open(rpc.name)
        endpoint = self._endpoints.current()
        method: grpc.aio.StreamStreamMultiCallable[Q, R] = endpoint.channel.stream_stream(
            rpc.path, request_serializer=rpc.asks.SerializeToString, response_deserializer=rpc.answers.FromString
        )
        call = method(metadata=metadata(token, needs_leader=rpc.needs_leader))
        return BidiStream(call, self._endpoints, endpoint, rpc=rpc, token=token)

    async def close(self) -> None:
        """Ends calls in flight; their callers get EtcdUnavailable."""
        self.closed = True
        for channel in self._endpoints.drop():
            await channel.close()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _still_open(self, what: str) -> None:
        if self.closed:
            raise EtcdUnavailable(f"{what} was not sent, because this etcd client is closed", code="CANCELLED")

    def _belongs_here(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise RuntimeError("an etcd client is bound to the event loop of its first call; open another client")
        self._loop = loop

    async def _ask(self, rpc: Rpc[Q, R], request: Q, *, deadline: float, repeat: bool) -> R:
        halved = repeat and self._endpoints.several

        async def attempt() -> R:
            return await self._try(rpc, request, deadline=deadline, halved=halved)

        return await (self._until(deadline, attempt) if repeat else attempt())

    async def _until(self, deadline: float, attempt: Callable[[], Awaitable[T]]) -> T:
        """Retries until answered, at the next endpoint each time. Only for requests that change nothing."""
        while True:
            try:
                return await attempt()
            except EtcdUnavailable:
                if self.closed or monotonic() + PAUSE >= deadline:
                    raise
            await asyncio.sleep(PAUSE)

    async def _try(self, rpc: Rpc[Q, R], request: Q, *, deadline: float, halved: bool) -> R:
        token = await self._token(None, deadline)
        for _ in range(LOGINS):
            try:
                return await self._send(rpc, request, deadline=deadline, halved=halved, token=token)
            except EtcdRefused as error:
                if token is None or not login_was_refused(error):
                    raise
            token = await self._token(token, deadline)
        return await self._send(rpc, request, deadline=deadline, halved=halved, token=token)

    async def _token(self, refused: str | None, deadline: float) -> str | None:
        if self._login is None:
            return None
        request = self._login.request

        async def attempt() -> pb.AuthenticateResponse:
            return await self._send(
                AUTHENTICATE, request, deadline=deadline, halved=self._endpoints.several, token=None
            )

        return await self._login.token(refused, lambda: self._until(deadline, attempt), deadline=deadline)

    async def _send(self, rpc: Rpc[Q, R], request: Q, *, deadline: float, halved: bool, token: str | None) -> R:
        """Hands the request to gRPC once."""
        self._still_open(rpc.name)
        endpoint = self._endpoints.current()
        left = max(0.0, deadline - monotonic())
        timeout = min(left, max(SHORTEST_TRY, left / 2)) if halved else left
        method = endpoint.channel.unary_unary(
            rpc.path, request_serializer=rpc.asks.SerializeToString, response_deserializer=rpc.answers.FromString
        )
        with _as_ours(self._endpoints, endpoint, rpc.name):
            return await method(request, timeout=timeout, metadata=metadata(token, needs_leader=rpc.needs_leader))


class BidiStream(Generic[Q, R]):
    """A bidirectional streaming call."""

    def __init__(
        self,
        call: grpc.aio.StreamStreamCall[Q, R],
        endpoints: Endpoints[grpc.aio.Channel],
        endpoint: Endpoint[grpc.aio.Channel],
        *,
        rpc: Rpc[Q, R],
        token: str | None,
    ) -> None:
        self.token = token
        self.address = endpoint.address
        self._call = call
        self._endpoints = endpoints
        self._endpoint = endpoint
        self._rpc = rpc

    async def exchange(self, request: Q, *, timeout: float) -> R:
        """Sends a message and returns the next one received, within `timeout` seconds.

        Raises:
            EtcdRefused, EtcdUnavailable: the stream is over.
        """
        with _as_ours(self._endpoints, self._endpoint, self._rpc.name):
            async with asyncio.timeout(timeout):
                with suppress(asyncio.InvalidStateError):  # already ended: reading raises the reason
                    await self._call.write(request)
                return await self._read()

    async def receive(self) -> R:
        """Returns the next message, however long it takes.

        Raises:
            EtcdRefused, EtcdUnavailable: the stream is over.
        """
        with _as_ours(self._endpoints, self._endpoint, self._rpc.name):
            return await self._read()

    def close(self) -> None:
        """Cancels the call: grpc.aio never collects one that is merely dropped."""
        self._call.cancel()

    async def _read(self) -> R:
        message = await self._call.read()
        if not isinstance(message, self._rpc.answers):  # grpc.aio.EOF
            raise _StreamClosed
        return message


class _StreamClosed(Exception):
    """etcd closed the stream with status OK."""


@contextmanager
def _as_ours(endpoints: Endpoints[grpc.aio.Channel], endpoint: Endpoint[grpc.aio.Channel], what: str) -> Iterator[None]:
    """Translates gRPC's errors; after an endpoint did not answer, the next call uses another one."""
    try:
        yield
        return
    except grpc.aio.AioRpcError as error:
        code, details = error.code().name, error.details() or ""
    except _StreamClosed:
        code, details = "UNAVAILABLE", "it closed the stream"
    except TimeoutError:
        code, details = "DEADLINE_EXCEEDED", ""
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Our task was not cancelled: grpc.aio raises this when the channel is closed during a call.
        code, details = "CANCELLED", "the client was closed"
    found = failure(code=code, details=details, what=what, where=endpoint.address)
    if isinstance(found, EtcdUnavailable):
        endpoints.failed(endpoint)
    raise found
