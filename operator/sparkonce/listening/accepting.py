"""uvicorn with connections that are accepted within the limits of `connections.py`, and closed when they are overdue.

uvicorn has no deadline for headers, nor for a body that no route reads, and its `limit_concurrency` answers 503 to every client once enough
of them are slow, to probes of `/readyz` as well. So connections are accepted here (asyncio's `connect_accepted_socket`, which has a
deadline for the TLS handshake, too), and uvicorn's protocol is extended to note the phase it is in. Parsing, flow control and ASGI remain
uvicorn's and h11's. Hypercorn has a timeout for reading, but no limit per client; a proxy in front of each server would be one more part
to run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from sparkonce.listening.address import Listening
from sparkonce.listening.connections import ClosedFor, Connection, ConnectionLimits, ConnectionPhase, Connections

log = logging.getLogger(__name__)

LOOK = 0.5
"""Seconds between two checks for overdue connections: a thousand take about a millisecond."""
QUIET = 60.0
"""Seconds between two log lines of one kind: a flood must not fill the log."""
RETRY = 0.2
"""Seconds before the next try when no connection can be accepted, for want of file descriptors or memory."""

ANSWERABLE = (h11.IDLE, h11.SEND_RESPONSE)
"""States of h11 in which an answer may begin."""
CERTIFICATE = "certificate"
"""Name, in the state of a connection's requests, of the verified client certificate, as `ssl.SSLObject.getpeercert` gives it."""
OTHER_FILES = 256
"""File descriptors for everything but clients' connections: the ledger, the API server, outputs that a decision reads."""

OnClosed = Callable[[ClosedFor], None]
Refused = Callable[[int, str], tuple[Sequence[tuple[bytes, bytes]], bytes]]
"""Headers and body that answer an invalid request, given a status and a sentence."""


@dataclass(frozen=True, kw_only=True)
class ConnectionRules:
    """How a server treats those who connect to it."""

    connections: Connections
    on_closed: OnClosed
    refused: Refused
    plain_text_beside_tls: bool = False
    """Connections that begin without TLS are served, too."""


class _TimedFlow(FlowControl):
    """uvicorn's flow control, which tells when a connection is read again: until then the application was behind, not the client."""

    def __init__(self, transport: asyncio.Transport, resumed: Callable[[], None]) -> None:
        super().__init__(transport)
        self._resumed = resumed

    def resume_reading(self) -> None:
        was = self.read_paused
        super().resume_reading()
        if was:
            self._resumed()


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol, which notes what its connection waits for."""

    def __init__(self, connection: Connection, rules: ConnectionRules, **parts: Any) -> None:
        """`parts`: uvicorn's."""
        super().__init__(**parts)
        self._connection, self._rules = connection, rules

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        self.flow = _TimedFlow(transport, self._note)
        self._connection.abort = transport.abort
        secured = transport.get_extra_info("ssl_object")
        if secured is not None and (certificate := secured.getpeercert()):
            self.app_state[CERTIFICATE] = certificate

    def connection_lost(self, exc: Exception | None) -> None:
        self._rules.connections.leave(self._connection)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if (
            self._connection.phase is ConnectionPhase.IDLE
        ):  # an empty line ends the keep-alive timer, too, and begins a request
            self._enter(ConnectionPhase.HEAD)
        self._connection.received(len(data), time.monotonic())
        super().data_received(data)
        self._note()

    def on_response_complete(self) -> None:
        self._enter(ConnectionPhase.IDLE)
        super().on_response_complete()
        self._note()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._connection.unread_since = time.monotonic()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._connection.unread_since = None

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's is the same text for every cause
        """Answers an invalid request like every other error, with the status that h11 proposes, unless it was answered before. A request
        with a valid head and an invalid body has reached its route, which must not answer as well."""
        if not getattr(self.cycle, "response_complete", True):  # None before the first request
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in ANSWERABLE:
            self.transport.close()
            return
        hint = getattr(sys.exc_info()[1], "error_status_hint", 400)
        said = {
            431: "the headers are too large; a token and a path need far less",
            501: "this transfer coding is not supported; send the body with Content-Length, or chunked",
        }
        headers, body = self._rules.refused(hint, said.get(hint, "this is not a valid HTTP/1.1 request"))
        for event in (
            h11.Response(status_code=hint, headers=[*headers, (b"connection", b"close")]),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event))
        self.transport.close()

    def _enter(self, phase: ConnectionPhase) -> None:
        self._connection.enter(phase, time.monotonic())

    def _note(self) -> None:
        theirs = self.conn.their_state
        answered = getattr(self.cycle, "response_complete", True)  # None before the first request
        if self.transport.is_closing():
            self._enter(ConnectionPhase.CLOSE)
        elif theirs is h11.IDLE:
            if self.conn.trailing_data[0]:  # the next request has begun
                self._enter(ConnectionPhase.HEAD)
        elif theirs is h11.SEND_BODY:
            if answered:
                self._enter(ConnectionPhase.LINGER)
            else:
                self._enter(ConnectionPhase.ANSWER if self.flow.read_paused else ConnectionPhase.BODY)
        elif not answered:
            self._enter(ConnectionPhase.ANSWER)


TLS_HANDSHAKE = b"\x16"
"""First byte of every TLS connection (RFC 8446, section 5.1), and of no HTTP request."""


async def _begins_with_tls(accepted: socket.socket) -> bool:
    """Waits for the first byte and leaves it to be read. Has no timeout: `Connections` ends what waits too long. Raises: OSError."""
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()
    loop.add_reader(accepted, arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(accepted)
    return accepted.recv(1, socket.MSG_PEEK) == TLS_HANDSHAKE


class Acceptor:
    """Serves a listening socket; `close` and `wait_closed` are as uvicorn uses them of an asyncio server.

    With TLS, a connection that begins with something else may be served too, in plain text: drivers that were started while the gateway
    served no TLS know an http address, and would count as silent. `gateway/gate.py` lets such a connection reach their routes only.
    """

    def __init__(
        self,
        listening: socket.socket,
        protocol: Callable[[Connection], TimedProtocol],
        *,
        rules: ConnectionRules,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._listening, self._protocol, self._tls = listening, protocol, tls
        self._rules, self._connections = rules, rules.connections
        self._beginning: set[asyncio.Task[None]] = set()
        self._said: dict[ClosedFor, float] = {}
        listening.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())
        self._looking = asyncio.create_task(self._look())

    def close(self) -> None:
        """Stops accepting; open connections continue."""
        self._accepting.cancel()

    async def wait_closed(self) -> None:
        self._looking.cancel()
        await asyncio.gather(self._accepting, self._looking, *self._beginning, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(self._listening)
            except OSError as problem:
                log.warning("no connection can be accepted: %s", problem)
                if (victim := self._connections.slowest_of_the_largest(time.monotonic())) is not None:
                    self._end(victim, ClosedFor.ROOM)
                await asyncio.sleep(RETRY)
                continue
            self._admit(accepted, str(address[0]))
            await asyncio.sleep(
                0
            )  # accepting does not wait while connections arrive, and requests must be served meanwhile

    def _admit(self, accepted: socket.socket, client: str) -> None:
        now = time.monotonic()
        admitted, victim = self._connections.room_for(client, now)
        if victim is not None:
            self._end(victim, ClosedFor.ROOM)
        if not admitted:
            accepted.close()
            self._say(ClosedFor.REFUSED, client)
            return
        connection = Connection(client, now, lambda: None, self._connections.times)
        self._connections.enter(connection)
        task = asyncio.create_task(self._begin(accepted, connection))
        connection.abort = task.cancel
        self._beginning.add(task)

        def begun(_: object) -> None:
            self._beginning.discard(task)
            if task.cancelled():  # before its first step: no transport closes the socket
                accepted.close()
                self._connections.leave(connection)

        task.add_done_callback(begun)

    async def _begin(self, accepted: socket.socket, connection: Connection) -> None:
        """Handles a connection until the protocol takes it over."""
        try:
            either = self._tls is not None and self._rules.plain_text_beside_tls
            tls = None if either and not await _begins_with_tls(accepted) else self._tls
        except (OSError, asyncio.CancelledError):
            accepted.close()
            self._connections.leave(connection)
            return
        times = self._connections.times
        timeouts = {} if tls is None else {"ssl_handshake_timeout": times.head, "ssl_shutdown_timeout": times.close}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._protocol(connection), accepted, ssl=tls, **timeouts
            )
        except OSError as problem:  # also of TLS, and a deadline
            log.debug("a connection of %s did not begin: %s", connection.client, problem)
            self._connections.leave(connection)
        except asyncio.CancelledError:  # by `abort`; the transport has closed the socket
            self._connections.leave(connection)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            now = time.monotonic()
            for connection in self._connections:
                if connection.overdue(now):
                    self._end(connection, ClosedFor.OVERDUE)

    def _end(self, connection: Connection, why: ClosedFor) -> None:
        if self._connections.leave(connection):
            connection.abort()
            self._say(why, connection.client)

    def _say(self, why: ClosedFor, client: str) -> None:
        self._rules.on_closed(why)
        now, limits = time.monotonic(), self._connections.limits
        if now - self._said.get(why, -QUIET) < QUIET:
            return
        self._said[why] = now
        open_now = (
            f"{len(self._connections)} connections are open of {limits.total}, {limits.per_client} for one client"
        )
        match why:
            case ClosedFor.OVERDUE:
                log.warning("closed a connection of %s, which neither sent nor read within its time", client)
            case ClosedFor.ROOM:
                log.warning("closed a connection of %s to make room for another (%s)", client, open_now)
            case ClosedFor.REFUSED:
                log.warning("refused a connection of %s: all others are being answered (%s)", client, open_now)


class Server(uvicorn.Server):
    """uvicorn's server, with connections of an `Acceptor`.

    Disables uvicorn's signal handling, which re-raises the signal after shutdown: processes end with 0.
    """

    def __init__(self, config: uvicorn.Config, rules: ConnectionRules) -> None:
        super().__init__(config)
        self._rules = rules

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise RuntimeError("the application did not start; its error is above")

        def protocol(connection: Connection) -> TimedProtocol:
            parts = {"config": self.config, "server_state": self.server_state, "app_state": dict(self.lifespan.state)}
            return TimedProtocol(connection, self._rules, **parts)

        self.servers = [
            Acceptor(each, protocol, rules=self._rules, tls=self.config.ssl)  # type: ignore[misc]
            for each in sockets or ()  # uvicorn closes its servers and waits for that, and nothing else
        ]
        self.started = True

    async def serve_until(
        self,
        stop: asyncio.Event,
        bound: socket.socket,
        listening: Listening,
        *,
        drain: float,
        ending: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Serves on `bound`, with certificates as they are renewed, until `stop` is set. Then it awaits `ending`, takes requests for
        `drain` seconds more, until load balancers have removed this process, and finishes those in flight."""
        serving = asyncio.create_task(self.serve([bound]))
        stopping = asyncio.create_task(stop.wait())
        renewing = asyncio.create_task(listening.renewed(self.config.ssl))
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if ending is not None:
                await ending()
            if not serving.done():
                await asyncio.sleep(drain)
                self.should_exit = True
            await serving
        finally:
            for task in (renewing, stopping):
                task.cancel()
            await asyncio.gather(renewing, stopping, return_exceptions=True)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def fitting(limits: ConnectionLimits, *, files: int = 1) -> ConnectionLimits:
    """The limits, reduced to the file descriptors that this process may open, `files` for each connection; raises its own soft limit where
    permitted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.total * files + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limits
    total = max(1, (soft - OTHER_FILES) // files)
    log.warning("at most %d connections: this process may open %d files only (ulimit -n)", total, soft)
    return replace(limits, total=total)
