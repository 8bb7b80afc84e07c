"""An HTTPS proxy in front of the real API server that injects faults on request and records every request.

It works on whole requests and on the lines of a watch, which a TCP proxy cannot see inside TLS; `harness.proxy` cuts and freezes the
connection itself. Everything else is forwarded unchanged, so nothing here imitates an API server: a write whose reply is lost has really
happened.

    with ApiProxy(cluster) as proxy:                       # proxy.kubeconfig for the program under test
        proxy.lose_reply(method="POST", path="/sparkapplications$")
        ...
        assert proxy.count(method="POST", path="/sparkapplications$", agent="sparkonce") == 2
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp import web

from harness.apiserver import Cluster
from harness.eventually import assert_eventually
from harness.patience import stretched
from harness.tls_session import CLOSE_TIMEOUT, LOOK, tls_session

START_TIMEOUT = 10.0
"""Seconds to bind a port."""
_NOT_PASSED_ON = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade"})
"""Hop-by-hop headers, which each side sets itself."""


@dataclass
class Request:
    """A request that reached the proxy."""

    method: str
    path: str
    """Path without the query."""
    watch: bool
    agent: str
    status: int | None = None
    """Status sent to the client; None: nothing (yet)."""
    delivered: bool = False
    """The API server answered it, whatever the client received."""
    at: float = field(default_factory=time.monotonic)
    """When it arrived (monotonic seconds)."""


@dataclass(frozen=True, kw_only=True)
class Which:
    """Which requests a fault hits: regular expressions that may match anywhere; an empty one matches all."""

    method: str = ""
    path: str = ""
    agent: str = ""
    watch: bool | None = None
    """True: only watches; False: only other requests; None: both."""

    def fits(self, request: Request) -> bool:
        return self.watch in (None, request.watch) and all(
            re.search(pattern, text)
            for pattern, text in ((self.method, request.method), (self.path, request.path), (self.agent, request.agent))
        )


class Act(StrEnum):
    ANSWER = "answer"
    LOSE_REQUEST = "lose the request"
    LOSE_REPLY = "lose the reply"
    DELAY = "delay"
    DELAY_REPLY = "delay the reply"


@dataclass(eq=False)
class Fault:
    """An injected fault; `hits` counts its strikes, `clear` ends it."""

    act: Act
    which: Which
    left: int | None
    """Remaining strikes; None: unlimited."""
    until: float | None
    """When the fault ends (monotonic seconds); None: never."""
    status: int = 0
    retry_after: int | None = None
    seconds: float = 0.0
    clock: Callable[[], float] = time.monotonic
    """What counts a delay's seconds."""
    hits: int = 0

    def clear(self) -> None:
        self.left = 0

    def take(self, request: Request) -> bool:
        over = self.left == 0 or (self.until is not None and time.monotonic() >= self.until)
        if over or not self.which.fits(request):
            return False
        self.left = None if self.left is None else self.left - 1
        self.hits += 1
        return True


@dataclass(eq=False)
class _Stream:
    """An open watch: a queue of lines to write; None ends it."""

    request: Request
    lines: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)


def error_event(code: int, reason: str = "", message: str = "injected") -> dict[str, Any]:
    """The ERROR event by which an API server ends a watch."""
    return {"type": "ERROR", "object": _status(code, reason, message)}


def _status(code: int, reason: str, message: str) -> dict[str, Any]:
    head = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return {**head, "code": code, "reason": reason or _REASONS.get(code, ""), "message": message}


_REASONS = {410: "Expired", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}


class ApiProxy:
    """Faults are added from the test's thread; if several of one kind match a request, the one added first strikes."""

    def __init__(self, cluster: Cluster, *, server: str | None = None) -> None:
        """`server`: another API server of the same cluster."""
        self._cluster, self._server = cluster, server or cluster.url
        self.url = ""
        self.requests: list[Request] = []
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._hushed: Which | None = None
        self._streams: dict[_Stream, None] = {}
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name="api-proxy", daemon=True)
        self._failed: BaseException | None = None

    @property
    def kubeconfig(self) -> Path:
        return self._cluster.kubeconfig_for(self.url)

    # faults

    def answer(
        self,
        status: int,
        *,
        method: str = "",
        path: str = "",
        agent: str = "",
        watch: bool | None = None,
        times: int | None = None,
        seconds: float | None = None,
        retry_after: int | None = None,
    ) -> Fault:
        """Answers matching requests with this status (429, 500, 503) and never delivers them: `times`, or for `seconds`, or until
        cleared."""
        which = Which(method=method, path=path, agent=agent, watch=watch)
        return self._add(Fault(Act.ANSWER, which, times, _until(seconds), status=status, retry_after=retry_after))

    def lose_request(self, *, method: str = "", path: str = "", agent: str = "", times: int | None = 1) -> Fault:
        """Cuts the connection without delivering the request."""
        return self._add(Fault(Act.LOSE_REQUEST, Which(method=method, path=path, agent=agent), times, None))

    def lose_reply(self, *, method: str = "", path: str = "", agent: str = "", times: int | None = 1) -> Fault:
        """Delivers the request, then cuts the connection instead of answering."""
        return self._add(Fault(Act.LOSE_REPLY, Which(method=method, path=path, agent=agent), times, None))

    def delay(
        self,
        by: float,
        *,
        method: str = "",
        path: str = "",
        agent: str = "",
        times: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Fault:
        """Delivers the request this many seconds late, as another clock counts them if one is given: a write that takes effect after its
        sender has given up, or after something else has happened."""
        which = Which(method=method, path=path, agent=agent)
        return self._add(Fault(Act.DELAY, which, times, None, seconds=by, clock=clock))

    def delay_reply(
        self, by: float, *, method: str = "", path: str = "", agent: str = "", times: int | None = None
    ) -> Fault:
        """Delivers the request at once and answers this many seconds late."""
        return self._add(Fault(Act.DELAY_REPLY, Which(method=method, path=path, agent=agent), times, None, seconds=by))

    def clear(self) -> None:
        """Ends all faults; hushed watches deliver events again."""
        with self._lock:
            self._faults = []
        self._hushed = None

    # watches

    def inject(self, event: dict[str, Any], *, path: str = "", agent: str = "") -> int:
        """Writes a line into every matching open watch; returns their number. Ends the watch after an ERROR, as an API server does."""
        lines: list[bytes | None] = [json.dumps(event).encode() + b"\n"]
        return self._into(lines + ([None] if event.get("type") == "ERROR" else []), Which(path=path, agent=agent))

    def expire_watches(self, *, path: str = "", agent: str = "") -> int:
        """Ends watches with 410: the revision is gone, the client must list again."""
        return self.inject(error_event(410), path=path, agent=agent)

    def close_watches(self, *, path: str = "", agent: str = "") -> int:
        """Ends watches in order, as a timeout does."""
        return self._into([None], Which(path=path, agent=agent))

    def hush(self, *, path: str = "", agent: str = "") -> None:
        """Keeps matching watches open without events or bookmarks until `clear`; events of that time are lost to them."""
        self._hushed = Which(path=path, agent=agent)

    def watching(self, *, path: str = "", agent: str = "") -> int:
        which = Which(path=path, agent=agent)
        return sum(which.fits(stream.request) for stream in list(self._streams))

    # what was asked

    def asked(self, *, method: str = "", path: str = "", agent: str = "", watch: bool | None = None) -> list[Request]:
        which = Which(method=method, path=path, agent=agent, watch=watch)
        return [each for each in list(self.requests) if which.fits(each)]

    def count(self, *, method: str = "", path: str = "", agent: str = "", watch: bool | None = None) -> int:
        return len(self.asked(method=method, path=path, agent=agent, watch=watch))

    def writes(self, *, path: str = "", agent: str = "") -> list[Request]:
        """Requests that the API server received and that would change something."""
        changing = self.asked(method="^(POST|PUT|PATCH|DELETE)$", path=path, agent=agent)
        return [each for each in changing if each.delivered]

    # the thread

    def __enter__(self) -> Self:
        self._thread.start()
        assert_eventually(lambda: bool(self.url) or self._failed is not None, START_TIMEOUT)
        if self._failed is not None:
            raise self._failed
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(RuntimeError):  # it has ended by itself
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(stretched(START_TIMEOUT))
        if self._failed is not None:
            raise self._failed

    def _add(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault

    def _taken(self, act: Act, request: Request) -> Fault | None:
        with self._lock:
            return next((each for each in self._faults if each.act is act and each.take(request)), None)

    def _into(self, lines: list[bytes | None], which: Which) -> int:
        streams = [stream for stream in list(self._streams) if which.fits(stream.request)]
        for stream in streams:
            for line in lines:
                self._loop.call_soon_threadsafe(stream.lines.put_nowait, line)
        return len(streams)

    def _serve(self) -> None:
        try:
            self._loop.run_until_complete(self._main())
        except BaseException as error:
            self._failed = error
        finally:
            self._loop.close()

    async def _main(self) -> None:
        ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        ours.load_cert_chain(self._cluster.certificates.crt, self._cluster.certificates.key)
        endless = aiohttp.ClientTimeout(total=None)
        async with tls_session(self._cluster.certificates.ca, timeout=endless, auto_decompress=False) as session:

            async def handle(incoming: web.BaseRequest) -> web.StreamResponse:
                return await self._handle(session, incoming)

            server = web.Server(handle)
            runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=ours)
            await site.start()
            self.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
            await self._stop.wait()
            await site.stop()
            await _ended(server)
            await runner.cleanup()

    async def _handle(self, session: aiohttp.ClientSession, incoming: web.BaseRequest) -> web.StreamResponse:
        request = Request(
            incoming.method,
            incoming.path,
            incoming.query.get("watch") in {"1", "true"},
            incoming.headers.get("User-Agent", ""),
        )
        self.requests.append(request)
        body = await incoming.read()
        if late := self._taken(Act.DELAY, request):
            end = late.clock() + late.seconds
            while (left := end - late.clock()) > 0:  # noqa: ASYNC110 # another thread moves some clocks
                await asyncio.sleep(min(left, 0.05))
        if refused := self._taken(Act.ANSWER, request):
            request.status = refused.status
            wait = {"Retry-After": str(refused.retry_after)} if refused.retry_after is not None else {}
            return web.json_response(_status(refused.status, "", "injected"), status=refused.status, headers=wait)
        if self._taken(Act.LOSE_REQUEST, request):
            return _cut(incoming)
        try:
            return await self._passed_on(session, incoming, request, body)
        except aiohttp.ClientError:
            return _cut(incoming)  # the API server is down, so the proxy cuts the connection, too

    async def _passed_on(
        self, session: aiohttp.ClientSession, incoming: web.BaseRequest, request: Request, body: bytes
    ) -> web.StreamResponse:
        # aiohttp does not cancel a handler whose client is gone: a request to be delivered is still delivered.
        async with session.request(
            incoming.method,
            self._server + incoming.path_qs,
            headers=_passed(incoming.headers.items()),
            data=body or None,
            allow_redirects=False,
        ) as answer:
            request.delivered = True
            if self._taken(Act.LOSE_REPLY, request):
                await answer.read()
                return _cut(incoming)
            if slow := self._taken(Act.DELAY_REPLY, request):
                await asyncio.sleep(slow.seconds)
            request.status = answer.status
            headers = _passed(answer.headers.items())
            if request.watch and answer.status == 200:
                return await self._watched(incoming, request, answer, headers)
            return web.Response(status=answer.status, body=await answer.read(), headers=headers)

    async def _watched(
        self, incoming: web.BaseRequest, request: Request, answer: aiohttp.ClientResponse, headers: dict[str, str]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=headers)
        await response.prepare(incoming)
        stream = _Stream(request)
        self._streams[stream] = None
        feeding = asyncio.create_task(self._feed(stream, answer))
        try:
            while (line := await stream.lines.get()) is not None:
                await response.write(line)
        except ConnectionError:
            pass  # the watcher has disconnected
        finally:
            feeding.cancel()
            del self._streams[stream]
        return response

    async def _feed(self, stream: _Stream, answer: aiohttp.ClientResponse) -> None:
        with suppress(aiohttp.ClientError):
            async for line in _lines(answer):
                hushed = self._hushed
                if hushed is None or not hushed.fits(stream.request):
                    stream.lines.put_nowait(line)
        stream.lines.put_nowait(None)


async def _ended(server: web.Server) -> None:
    """Ends open watches and delayed requests at once; every connection is closed when this returns."""
    under_way = asyncio.all_tasks() - {asyncio.current_task()}
    for task in under_way:
        task.cancel()
    await asyncio.gather(*under_way, return_exceptions=True)
    deadline = time.monotonic() + stretched(CLOSE_TIMEOUT)
    while server.connections and time.monotonic() < deadline:
        for each in server.connections:
            if each.transport is not None:
                each.transport.abort()
        await asyncio.sleep(LOOK)


def _until(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds


def _passed(headers: Any) -> dict[str, str]:
    return {name: value for name, value in headers if name.lower() not in _NOT_PASSED_ON}


def _cut(incoming: web.BaseRequest) -> web.Response:
    """Ends the connection without an answer."""
    if incoming.transport is not None:
        incoming.transport.abort()
    return web.Response()


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in answer.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line + b"\n"
