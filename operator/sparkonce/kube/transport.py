"""Sends HTTP calls to the API server: each is sent once, and is answered within its deadline or its outcome is unknown.

Uses aiohttp directly, with the login of `kubernetes.aio`: the client's own request path costs 0.5-1.3 ms of CPU per call, half of it for
reading proxy variables and .netrc again each time; this one costs 0.2-0.4 ms, and with eight calls per job that is the operator's largest
expense. Redirects are not followed: a write never goes to another server.

Anything but an answer is ApiUnavailable: no connection, no bytes within the deadline, a truncated answer. Waiting for a free slot counts: a
caller that was promised ten seconds gets its error after ten. aiohttp repeats a GET or DELETE by itself when a kept connection
turns out to be closed, and nothing else; every DELETE of ours names a UID, so that one is harmless.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

import aiohttp
from yarl import URL

from sparkonce.kube.answers import ApiRequest, ApiResponse
from sparkonce.kube.login import Access, KubeLogin, NoLogin
from sparkonce.launch.kubernetes import ApiUnavailable

USER_AGENT = "sparkonce"
KEPT = 60.0
"""Seconds for which an idle connection is kept: a handshake costs as much CPU as ten calls."""
FAREWELL = 0.05
"""Seconds for TLS shutdown: aiohttp does not wait for it, and an event loop that ends before warns of open sockets."""
NO_LIMIT = aiohttp.ClientTimeout(total=None, sock_connect=None, sock_read=None)


@dataclass(frozen=True)
class Limits:
    """Load that one process may put on the API server."""

    deadline: float = 10.0
    """Seconds for one whole call; a page of a list is one call."""
    writes: int = 32
    """Concurrent writes. More would only queue in the API server and delay other clients."""
    reads: int = 32
    """Concurrent reads, without watches."""
    page: int = 500
    """Objects per page of a list."""


class Transport:
    def __init__(self, login: KubeLogin, limits: Limits) -> None:
        self._login, self._limits = login, limits
        self._writes, self._reads = asyncio.Semaphore(limits.writes), asyncio.Semaphore(limits.reads)
        self._session: aiohttp.ClientSession | None = None
        self._access: Access | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._streams: dict[aiohttp.ClientSession, set[aiohttp.StreamReader]] = {}
        """Open streams by session."""
        self._closed = False

    async def call(
        self,
        method: str,
        path: str,
        asked: ApiRequest,
        *,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> ApiResponse:
        """Sends one request.

        Raises:
            ApiUnavailable: no answer; a write may have been applied.
        """
        slots = self._reads if method == "GET" else self._writes
        headers = {"Content-Type": content_type} if body is not None else None
        try:
            async with asyncio.timeout(self._limits.deadline), slots:
                session, url = await self._open(path)
                async with session.request(
                    method, url, data=body, headers=headers, timeout=NO_LIMIT, allow_redirects=False
                ) as response:
                    answer = ApiResponse(response.status, await response.read(), response.headers.get("Retry-After"))
        except (aiohttp.ClientError, OSError, TimeoutError, NoLogin) as error:
            raise self._unavailable(asked, error) from error
        if answer.status == 401:
            self._login.refused()
        return answer

    @asynccontextmanager
    async def stream(
        self, path: str, asked: ApiRequest, *, silence: float
    ) -> AsyncIterator[ApiResponse | aiohttp.StreamReader]:
        """The body as it arrives if the answer is 200, or the answer; silence of `silence` seconds ends it with ApiUnavailable."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._limits.deadline, sock_read=silence)
        try:
            async with asyncio.timeout(self._limits.deadline):
                session, url = await self._open(path)
                response = await session.get(url, timeout=timeout, allow_redirects=False)
            async with response:
                if response.status == 200:
                    with self._streaming(session, response.content):
                        yield response.content
                else:
                    yield ApiResponse(response.status, await response.read(), response.headers.get("Retry-After"))
        except (aiohttp.ClientError, OSError, TimeoutError, NoLogin) as error:
            raise self._unavailable(asked, error) from error
        if response.status == 401:
            self._login.refused()

    async def close(self) -> None:
        self._closed = True
        for task in list(self._closing):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        if self._session is not None:
            await self._session.close()
            await asyncio.sleep(FAREWELL)

    async def _open(self, path: str) -> tuple[aiohttp.ClientSession, URL]:
        access = await self._login.access()
        if self._closed:
            raise ConnectionError("the client was closed")
        if self._session is None or access != self._access:
            if self._session is not None:  # calls in progress keep their connections until they end
                self._retire(self._session)
            self._session, self._access = session_for(access), access
        return self._session, URL(access.server + path, encoded=True)

    @contextmanager
    def _streaming(self, session: aiohttp.ClientSession, reader: aiohttp.StreamReader) -> Iterator[None]:
        readers = self._streams.setdefault(session, set())
        readers.add(reader)
        try:
            yield
        finally:
            readers.discard(reader)
            if not readers:
                self._streams.pop(session, None)

    def _retire(self, session: aiohttp.ClientSession) -> None:
        """Closes a session after its streams: when aiohttp closes a session's connections, their readers would wait for ever."""

        async def later() -> None:
            try:
                await asyncio.sleep(self._limits.deadline)
            finally:
                for reader in list(self._streams.get(session, ())):
                    reader.set_exception(aiohttp.ClientConnectionError("the credentials have changed"))
                await session.close()

        task = asyncio.create_task(later())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _unavailable(self, asked: ApiRequest, error: Exception) -> ApiUnavailable:
        why = str(error) or type(error).__name__
        if isinstance(error, TimeoutError) and not str(error):
            why = f"no answer within {self._limits.deadline:g} s"
        return ApiUnavailable(f"cannot {asked} now: {why}")


def session_for(access: Access, *, traces: list[aiohttp.TraceConfig] | None = None) -> aiohttp.ClientSession:
    """A session on the running event loop; the caller closes it."""
    connector = aiohttp.TCPConnector(
        ssl=access.tls if access.tls is not None else True,
        limit=0,  # the semaphores limit calls; a pool filled by watches would block every call
        keepalive_timeout=KEPT,
    )
    return aiohttp.ClientSession(
        connector=connector,
        headers={"Accept": "application/json", "User-Agent": USER_AGENT, **access.headers()},
        proxy=access.proxy,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("Accept-Encoding",),  # decompression costs more CPU than reading from a near-by server
        trace_configs=traces,
    )
