"""Lifecycle of a gateway process: HTTP server, background tasks, graceful shutdown.

On SIGTERM it reports not ready and withdraws its announcement, keeps answering for `drain` seconds until load balancers have removed it,
finishes requests in flight, and exits. SIGKILL loses nothing: clients repeat unanswered requests at another replica.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import replace

import uvicorn
from fastapi import FastAPI

from sparkonce.gateway.accepting import Acceptor, OnClosed, TimedProtocol
from sparkonce.gateway.announcing import Announcer
from sparkonce.gateway.connections import KEPT, Connection, ConnectionLimits, Connections
from sparkonce.gateway.gate import HEAD_BYTES
from sparkonce.gateway.readiness import Readiness
from sparkonce.listening import Listening, first_of

log = logging.getLogger(__name__)

FINISH = 10
"""Seconds for requests in flight at shutdown: longer than the deadlines of the calls they make."""
OTHER_FILES = 256
"""File descriptors for everything but clients' connections: etcd, the API server, outputs that a decision reads."""


class Server(uvicorn.Server):
    """uvicorn's server, with connections accepted by `accepting.py`.

    Disables uvicorn's signal handling, which re-raises the signal after shutdown; `serve` exits gracefully instead.
    """

    def __init__(self, config: uvicorn.Config, connections: Connections, on_closed: OnClosed) -> None:
        super().__init__(config)
        self._open, self._on_closed = connections, on_closed

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        def protocol(connection: Connection) -> TimedProtocol:
            parts = {"config": self.config, "server_state": self.server_state, "app_state": {}}
            return TimedProtocol(connection, self._open.leave, **parts)

        self.servers = [
            Acceptor(each, protocol, connections=self._open, tls=self.config.ssl, on_closed=self._on_closed)  # type: ignore[misc]
            for each in sockets or ()  # uvicorn closes its servers and waits for that, and nothing else
        ]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def fitting(limits: ConnectionLimits) -> ConnectionLimits:
    """The limits, reduced to the file descriptors that this process may open; raises its own soft limit where permitted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.total + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limits
    total = max(1, soft - OTHER_FILES)
    log.warning("at most %d connections: this process may open %d files only (ulimit -n)", total, soft)
    return replace(limits, total=total)


async def serve(
    app: FastAPI,
    listening: Listening,
    *,
    readiness: Readiness,
    announcer: Announcer,
    signals: Sequence[signal.Signals],
    drain: float,
    connections: Connections,
    on_closed: OnClosed,
) -> None:
    """Serves until the first signal, then shuts down gracefully; a second signal has its default effect.

    Raises:
        InvalidInput: the certificate cannot be used, or the address cannot be bound.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        proxy_headers=False,  # only the limit per client depends on an address, and it uses the connection's own
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEPT,
        timeout_graceful_shutdown=FINISH,
        ssl_certfile=listening.certificate,
        ssl_keyfile=listening.key,
        ssl_ca_certs=str(listening.client_ca) if listening.client_ca else None,
        # Optional: drivers have tokens, and probes neither.
        ssl_cert_reqs=ssl.CERT_OPTIONAL if listening.client_ca else ssl.CERT_NONE,
        h11_max_incomplete_event_size=HEAD_BYTES,
    )
    listening.load(config)
    server = Server(config, connections, on_closed)
    stop = first_of(signals, drain=drain)
    beside = [asyncio.create_task(readiness.run()), asyncio.create_task(listening.renewed(config.ssl))]
    serving = asyncio.create_task(server.serve([listening.socket()]))
    stopping = asyncio.create_task(stop.wait())
    announcer.start()
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        readiness.ending = True
        await asyncio.to_thread(announcer.stop)
        if not serving.done():
            await asyncio.sleep(drain)
            server.should_exit = True
        await serving
    finally:
        for task in (*beside, stopping):
            task.cancel()
        await asyncio.gather(*beside, stopping, return_exceptions=True)
