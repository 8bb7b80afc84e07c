"""An ASGI application that forwards each request to one upstream and gives its answer back unchanged.

What an error proves decides what becomes of a key. A connection that could not be made proves that nothing was sent, so the key is free
(`Refusal`); any later error proves nothing (502, 504). Requests with a key therefore get a connection of their own: on one that is kept
alive, an upstream that has just closed it cannot be told from one that died while it worked.

A client that leaves ends its exchange with the upstream, or answers that never end would use up the connections. A request with a key goes
on: its answer is recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path

import httpcore
import httpx

from sparkonce.asgi import App, Asgi, Receive, Send, send_reply
from sparkonce.errors import InvalidInput
from sparkonce.listening.address import MAX_PORT
from sparkonce.replies.coordinator import Refusal
from sparkonce.replies.exchange import problem_of
from sparkonce.replies.protocol import Reply

LOG = logging.getLogger(__name__)

FORM = "http(s)://HOST[:PORT][/PATH]"
CONNECTS = 5.0
"""Seconds for a connection: an upstream that is there answers in milliseconds."""
IDLE = 5.0
"""Seconds for which a connection to the upstream is kept without a request: fewer than any server keeps it."""

CONNECTIONS_PER_CLIENT = 3
"""Open sockets that a connection of a client may cost: its own, and one in each pool of connections to the upstream with which requests are
passed on. The proxy's own requests are few."""

HELD = 64 * 1024 * 1024
"""Bytes of all answers that are held until they are complete: far below the 512 MiB that the chart gives a proxy."""
MOST = 64 * 1024 * 1024
"""Bytes of an answer that the proxy reads itself: the metadata of a table has some megabytes at most."""

_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
})  # fmt: skip
"""Headers of one connection (RFC 9110, section 7.6.1)."""
_OF_ENCODED = frozenset({"content-encoding", "content-length"})
"""Headers of a body as it was sent; httpx decodes it."""
_OWN = _HOP | {b"host", b"content-length", b"accept-encoding"}
"""Headers that a request of the proxy's own has its own of."""


class _ClientLeft(Exception):
    """Before its request was answered."""


class _PassedBody:
    """The body of a client's request, and the watch for the client's end that follows it: both read the same messages."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.done = asyncio.Event()
        """Nothing more of it is sent to the upstream."""

    async def parts(self) -> AsyncIterator[bytes]:
        """Raises: _ClientLeft."""
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise _ClientLeft
            yield message.get("body", b"")
            more = message.get("more_body", False)
        self.done.set()

    @contextlib.asynccontextmanager
    async def while_client_stays(self) -> AsyncIterator[None]:
        """A context that is cancelled when the client leaves after its body. Raises: _ClientLeft."""
        limit = asyncio.timeout(None)

        async def watch() -> None:
            await self.done.wait()
            while (await self._receive())["type"] != "http.disconnect":
                pass
            limit.reschedule(0.0)

        try:
            async with limit:
                watching = asyncio.create_task(watch())
                try:
                    yield
                finally:
                    watching.cancel()
        except TimeoutError:
            if not limit.expired():
                raise
            raise _ClientLeft from None


class AnswerCut(ConnectionError):
    """The upstream's answer ended before it was whole. `reply`: what a client gets that has received nothing of it."""

    def __init__(self, what: str, reply: Reply) -> None:
        super().__init__(what)
        self.reply = reply


def reporting_cuts(app: App) -> App:
    """`app` as the outermost application: where an answer was cut while the middleware still held it, the client gets the refusal that says
    so and not the server's bare 500. A client that has received a part of it sees its connection break."""

    async def answered(scope: Asgi, receive: Receive, send: Send) -> None:
        began = False

        async def sends(message: Asgi) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            await app(scope, receive, sends)
        except AnswerCut as cut:
            if began:
                raise
            await send_reply(send, cut.reply)

    return answered


def paths_as_sent(app: App) -> App:
    """`app`, to which the path of a request is what the client sent: decoded, `/files/a%2Fb` and `/files/a/b` would be one resource, and
    their requests one request."""

    async def answered(scope: Asgi, receive: Receive, send: Send) -> None:
        await app({**scope, "path": raw_path(scope)} if scope["type"] == "http" else scope, receive, send)

    return answered


class _Room:
    """Memory shared by the answers that are held until they are complete."""

    def __init__(self, size: int) -> None:
        self.left = size
        """Bytes."""


class _PassedAnswer:
    """An answer on its way to the client: sent whole if it has at most `whole` bytes and there is room, else as it comes."""

    def __init__(self, send: Send, whole: int, room: _Room) -> None:
        self._send, self._whole, self._room = send, whole, room
        self._start: Asgi = {}
        self._held = bytearray()
        self.began = False
        """The client may have a part of it."""

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._start = {"type": "http.response.start", "status": status, "headers": headers}
        if not self._whole:
            await self._begin()

    async def part(self, body: bytes) -> None:
        self._held += body
        self._room.left -= len(body)
        if self.began or len(self._held) > self._whole or self._room.left < 0:
            await self._pass_on(more=True)

    async def end(self) -> None:
        await self._pass_on(more=False)

    def drop(self) -> None:
        """What was not sent will not be."""
        self._room.left += len(self._held)
        self._held = bytearray()

    async def _begin(self) -> None:
        if not self.began:
            self.began = True
            await self._send(self._start)

    async def _pass_on(self, *, more: bool) -> None:
        await self._begin()
        body = bytes(self._held)
        self.drop()
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


class Upstream:
    def __init__(
        self,
        url: str,
        *,
        timeout: float,
        ca: Path | None = None,
        refused: Callable[[Refusal], Reply] = problem_of,
        whole: int = 0,
        connections: int = 1000,
    ) -> None:
        """`url`: http(s)://HOST[:PORT][/PATH]; `timeout`: seconds without a byte from the upstream; `ca`: PEM file of
        the CA that signed its certificate; None: those that Python trusts; `refused`: the form of a 502 or 504; `whole`: bytes up to which
        an answer is read whole before any of it is sent, for clients that repeat a request without an answer, and not one whose answer
        broke off; all of them together hold `HELD` bytes; `connections`: to the upstream at a time, with keys and without, beyond which a
        request waits for one as long as for a connection. Raises: InvalidInput."""
        address = _address(url)
        if ca is not None and address.scheme != "https":
            raise InvalidInput("--upstream-ca needs an upstream at https://")
        try:
            trusted = ssl.create_default_context(cafile=ca)
        except OSError as problem:  # also of TLS
            raise InvalidInput(f"--upstream-ca {ca} is no PEM file with a CA: {problem}") from None
        self._base, self._refused, self._whole = url.rstrip("/"), refused, whole
        self._room = _Room(HELD)
        self._scheme, self._host, self._port = address.raw_scheme, address.raw_host, address.port
        self._netloc, self._prefix = address.netloc, address.raw_path.rstrip(b"/")
        self._timeouts = {"connect": CONNECTS, "pool": CONNECTS, "read": timeout, "write": timeout}
        self._kept = httpcore.AsyncConnectionPool(trusted, max_connections=connections, keepalive_expiry=IDLE)
        self._single = httpcore.AsyncConnectionPool(trusted, max_connections=connections, max_keepalive_connections=0)
        single = httpx.Limits(max_connections=connections, max_keepalive_connections=0)
        within = httpx.Timeout(timeout, connect=CONNECTS, pool=CONNECTS)
        # Without a jar of its own, httpx would send one caller's cookies with another's requests.
        none = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
        self._own = httpx.AsyncClient(timeout=within, limits=single, verify=trusted, trust_env=False, cookies=none)

    async def __call__(self, scope: Asgi, receive: Receive, send: Send) -> None:
        """Raises: Refusal: the upstream was not reached."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._forward(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1003})  # of all that is left

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for pool in (self._kept, self._single, self._own):
            await pool.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def _forward(self, scope: Asgi, receive: Receive, send: Send) -> None:
        keyed = "sparkonce" in scope
        pool = self._single if keyed else self._kept
        body = _PassedBody(receive)
        request = self._request_of(scope, body)
        passed = _PassedAnswer(send, self._whole, self._room)
        try:
            async with contextlib.AsyncExitStack() as closing:
                async with contextlib.nullcontext() if keyed else body.while_client_stays():
                    answer = await pool.handle_async_request(request)
                    closing.push_async_callback(answer.aclose)
                    body.done.set()  # also where the upstream has answered before it had read everything
                    dropped = _HOP | _named(answer.headers)
                    kept = [(name.lower(), value) for name, value in answer.headers if name.lower() not in dropped]
                    await passed.start(answer.status, kept)
                    async for part in answer.aiter_stream():
                        await passed.part(part)
                await passed.end()
        except (httpcore.ConnectError, httpcore.ConnectTimeout, httpcore.PoolTimeout) as error:
            raise Refusal(
                503,
                "upstream-down",
                "the service could not be reached, and nothing was sent; send the request again later",
                retry_after=1,
            ) from error
        except _ClientLeft:
            LOG.debug("a client left before its request was answered")
        except httpcore.TimeoutException:
            await self._failed(send, 504, "the service did not answer in time", began=passed.began)
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            LOG.warning("the upstream failed: %s", error)
            await self._failed(
                send, 502, "the connection to the service broke before it had answered", began=passed.began
            )
        finally:
            passed.drop()

    def _request_of(self, scope: Asgi, body: _PassedBody) -> httpcore.Request:
        """The client's request as it is sent on. Raises: Refusal: its target is no path: a service would take it for another one than the
        proxy has matched."""
        path = raw_path(scope)
        if not path.startswith("/"):
            raise Refusal(
                400, "bad-target", "the target of the request is not a path; send the path alone, such as /orders"
            )
        dropped = _HOP | {b"host"} | _named(scope["headers"])
        headers = [(name, value) for name, value in scope["headers"] if name.lower() not in dropped]
        framing = {name.lower() for name, _ in scope["headers"]} & {b"content-length", b"transfer-encoding"}
        if not framing:
            body.done.set()
        elif b"content-length" not in framing:
            headers.append((b"transfer-encoding", b"chunked"))
        query = scope.get("query_string", b"")
        url = httpcore.URL(
            scheme=self._scheme,
            host=self._host,
            port=self._port,
            target=self._prefix + path.encode("latin-1") + (b"?" + query if query else b""),
        )
        return httpcore.Request(
            scope["method"],
            url,
            headers=[(b"host", self._netloc), *headers],
            content=body.parts() if framing else None,
            extensions={"timeout": self._timeouts},
        )

    async def _failed(self, send: Send, status: int, what: str, *, began: bool) -> None:
        reply = self._refused(
            Refusal(status, "upstream-failed", f"{what}: whether the request took effect is not known")
        )
        if began:  # the server must not end the answer as if it were whole
            raise AnswerCut(what, reply)
        await send_reply(send, reply)

    async def ask(
        self, method: str, path: str, headers: Sequence[tuple[str, str]], body: bytes | None = None
    ) -> Reply | None:
        """The answer to a request of the proxy's own, on a connection of its own. None: there was none, or it was longer than `MOST`, and
        whether the request arrived is not known.

        `path`: as it is sent, with its query. `headers`: names in lower case; those of one connection are left out."""
        sent = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        sent = [each for each in sent if each[0] not in _OWN]
        request = self._own.build_request(method, self._base + path, headers=sent, content=body)
        read = bytearray()
        try:
            async with contextlib.aclosing(await self._own.send(request, stream=True)) as answer:
                async for part in answer.aiter_bytes():
                    read += part
                    if len(read) > MOST:
                        return None
        except (httpx.TransportError, httpx.DecodingError, httpx.InvalidURL) as error:
            LOG.warning("the upstream did not answer a %s of the proxy's own: %s", method, error)
            return None
        kept = [
            (name.lower(), value) for name, value in answer.headers.multi_items() if name.lower() not in _OF_ENCODED
        ]
        return Reply(answer.status_code, tuple(kept), bytes(read))


def _address(url: str) -> httpx.URL:
    """Raises: InvalidInput, which shows no password and no query."""
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL:  # brackets that do not close, no such port, control characters
        raise InvalidInput(f"--upstream has a host or a port that is none; give {FORM}") from None
    authority = url.partition("//")[2].partition("/")[0] if address.host else url  # an empty user is one, too
    if "@" in authority or b"?" in address.raw_path or address.fragment:
        raise InvalidInput(f"--upstream has a user, a query or a fragment, which no request would carry; give {FORM}")
    if address.scheme not in ("http", "https") or not address.host:
        raise InvalidInput(f"--upstream is {url!r}; give {FORM}")
    if b"%" in address.raw_host or (address.port is not None and not 0 < address.port <= MAX_PORT):
        raise InvalidInput(f"--upstream has a host or a port that is none; give {FORM}")
    return address


def raw_path(scope: Asgi) -> str:
    """The path of a request as it was sent, without its query."""
    return bytes(scope.get("raw_path") or scope["path"].encode()).decode("latin-1")


def _named(headers: list[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Headers that `Connection` names as belonging to the connection."""
    named = b",".join(value for name, value in headers if name.lower() == b"connection")
    return frozenset(part.strip().lower() for part in named.split(b",") if part.strip())
