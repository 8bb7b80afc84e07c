"""Lifecycle of a proxy process: its server, its probes and metrics, and its end.

On SIGTERM or SIGINT it reports not ready, takes requests for `drain` seconds more, until load balancers have removed it, then finishes
those in flight, and exits. SIGKILL loses nothing: a client sends its request again, and another process finds out what became of it.

It is ready while it serves, also if the ledger of answers is silent: requests without a key need no ledger, so a service whose readers
go through the proxy must not lose them, too. Metrics and an alert tell of a silent ledger.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Iterator

import uvicorn

from sparkonce.asgi import App
from sparkonce.listening import Listening, first_of
from sparkonce.observe import health

log = logging.getLogger(__name__)

GRACE = 30
"""Seconds for requests in flight at shutdown, before those that still run are given up."""
KEPT = 75
"""Seconds for which an idle connection stays open: longer than the 60 s for which load balancers reuse one."""


class ProxyServer(uvicorn.Server):
    """Leaves signals to `serve`: uvicorn ends with the signal that it got, and this process ends with 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    app: App,
    listening: Listening,
    *,
    drain: float,
    http: str | None,
    metrics: Callable[[], tuple[bytes, str]],
) -> None:
    """Serves until the first signal, then shuts down gracefully; a second signal has its default effect.

    `http`: HOST:PORT of /healthz, /readyz and /metrics; None: they are not served.

    Raises:
        InvalidInput: the certificate cannot be used, or an address cannot be bound.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        proxy_headers=False,
        server_header=False,  # the upstream's are passed on
        date_header=False,
        timeout_keep_alive=KEPT,
        timeout_graceful_shutdown=GRACE,
        ssl_certfile=listening.certificate,
        ssl_keyfile=listening.key,
    )
    listening.load(config)
    server = ProxyServer(config)
    stop = first_of((signal.SIGTERM, signal.SIGINT), drain=drain)

    def why_not() -> str | None:
        if stop.is_set():
            return "this process is shutting down"
        return None if server.started else "this process is starting"

    async with contextlib.AsyncExitStack() as beside:
        if http is not None:
            await beside.enter_async_context(health.serve(http, ready=why_not, healthy=lambda: None, metrics=metrics))
        renewing = asyncio.create_task(listening.renewed(config.ssl))
        serving = asyncio.create_task(server.serve([listening.socket()]))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                await asyncio.sleep(drain)
                server.should_exit = True
            await serving
        finally:
            for task in (renewing, stopping):
                task.cancel()
            await asyncio.gather(renewing, stopping, return_exceptions=True)
