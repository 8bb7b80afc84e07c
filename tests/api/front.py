"""An HTTP proxy before the real API server, in a thread of the test: counts what is asked, and misbehaves when it is told to.

It works on whole requests and on lines of a watch, which a proxy of TCP cannot see inside TLS; lost replies, cuts and freezes of the
connection itself are the TCP proxy's business. What it does not touch comes from the real API server, so nothing here imitates one.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from harness.apiserver import Cluster

Event = dict[str, Any]


def error_event(code: int, reason: str = "") -> Event:
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": "injected",
    }
    return {"type": "ERROR", "object": status}


@dataclass(frozen=True)
class Seen:
    method: str
    path: str
    watch: bool
    agent: str


@dataclass
class Front:
    """Set its fields from the test's thread; they are looked at for each request."""

    url: str = ""
    requests: list[Seen] = field(default_factory=list)
    status: Callable[[web.BaseRequest], int | None] = lambda _: None
    """Answers a request itself, with this code and a Status."""
    lose_reply: Callable[[web.BaseRequest], bool] = lambda _: False
    """Sends the request on, waits for its answer and cuts the connection."""
    silent: bool = False
    """Watches that are open from now on bring nothing, not even bookmarks."""
    _loop: asyncio.AbstractEventLoop | None = None
    _streams: dict[int, asyncio.Queue[Event | None]] = field(default_factory=dict)

    @property
    def watching(self) -> int:
        return len(self._streams)

    def inject(self, event: Event | None) -> int:
        """Into every open watch; None closes it. How many there were."""
        assert self._loop is not None
        queues = list(self._streams.values())
        for queue in queues:
            self._loop.call_soon_threadsafe(queue.put_nowait, event)
        return len(queues)

    def count(self, method: str, *, watch: bool | None = None) -> int:
        return sum(each.method == method and watch in {None, each.watch} for each in self.requests)

    @property
    def writes(self) -> list[Seen]:
        return [each for each in self.requests if each.method not in {"GET", "HEAD"}]

    # --- in its own thread ---

    async def _handle(
        self, session: aiohttp.ClientSession, server: str, request: web.BaseRequest
    ) -> web.StreamResponse:
        watch = request.query.get("watch") in {"1", "true"}
        self.requests.append(Seen(request.method, request.path, watch, request.headers.get("User-Agent", "")))
        code = self.status(request)
        if code is not None:
            return web.json_response(error_event(code)["object"], status=code)
        headers = {
            name: value
            for name, value in request.headers.items()
            if name in {"Authorization", "Content-Type", "Accept"}
        }
        body = await request.read()
        async with session.request(
            request.method, server + request.path_qs, headers=headers, data=body or None, allow_redirects=False
        ) as answer:
            if watch and answer.status == 200:
                return await self._stream(request, answer)
            content = await answer.read()
            if self.lose_reply(request):
                assert request.transport is not None
                request.transport.abort()
            return web.Response(
                status=answer.status, body=content, headers={"Content-Type": answer.headers.get("Content-Type", "")}
            )

    async def _stream(self, request: web.BaseRequest, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self._streams[id(queue)] = queue
        quiet = self.silent
        feeding = asyncio.create_task(self._feed(answer, queue))
        try:
            while (event := await queue.get()) is not None:
                if not quiet:
                    await response.write(json.dumps(event).encode() + b"\n")
        except ConnectionResetError:
            pass  # whoever watched is gone
        finally:
            feeding.cancel()
            del self._streams[id(queue)]
        return response

    async def _feed(self, answer: aiohttp.ClientResponse, queue: asyncio.Queue[Event | None]) -> None:
        with suppress(aiohttp.ClientError):
            async for line in _lines(answer):
                queue.put_nowait(json.loads(line))
        queue.put_nowait(None)


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in answer.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line


@contextmanager
def front_of(cluster: Cluster) -> Iterator[Front]:
    """Serves plain HTTP on loopback: the credentials are passed on."""
    front = Front()
    ready, stop = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_serve(front, cluster, ready, stop)), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield front
    finally:
        stop.set()
        thread.join(20)


async def _serve(front: Front, cluster: Cluster, ready: threading.Event, stop: threading.Event) -> None:
    front._loop = asyncio.get_running_loop()
    tls = ssl.create_default_context(cafile=str(cluster.certificates.ca))
    connector = aiohttp.TCPConnector(ssl=tls, limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:

        async def handled(request: web.BaseRequest) -> web.StreamResponse:
            try:
                return await front._handle(session, cluster.url, request)
            except aiohttp.ClientError:
                assert request.transport is not None
                request.transport.abort()
                return web.Response()

        runner = web.ServerRunner(
            web.Server(handled, handler_cancellation=True), handle_signals=False, shutdown_timeout=0.1
        )
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert runner.addresses
        front.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        await asyncio.to_thread(stop.wait)
        await runner.cleanup()
