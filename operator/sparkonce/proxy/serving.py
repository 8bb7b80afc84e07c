"""Lifecycle of a proxy process: its server, its probes and metrics, and its end.

On SIGTERM or SIGINT it reports not ready, takes requests for `drain` seconds more, until load balancers have removed it, then finishes
those in flight, and exits. SIGKILL loses nothing: a client sends its request again, and another process finds out what became of it.

It is ready while it serves, also if the ledger of answers is silent: requests without a key need no ledger, so a service whose readers
go through the proxy must not lose them, too. Metrics and an alert tell of a silent ledger.
"""

from __future__ import annotations

import contextlib
import math
import signal
from collections.abc import Callable

import uvicorn

from sparkonce.asgi import App
from sparkonce.listening.accepting import ConnectionRules, OnClosed, Server
from sparkonce.listening.address import Listening, first_of
from sparkonce.listening.connections import Connections, ConnectionTimes
from sparkonce.observe import health
from sparkonce.replies.coordinator import Refusal
from sparkonce.replies.protocol import Reply

GRACE = 30
"""Seconds for requests in flight at shutdown, before those that still run are given up."""


TIMES = ConnectionTimes(body=60.0, body_rate=500.0, linger=30.0, answer=math.inf, unread=60.0)
"""A service may take bodies and send answers that are long, and takes its time within `--timeout`. The rate is below that of any network
that carries them, and above that of a client that drips."""


async def serve(
    app: App,
    listening: Listening,
    *,
    connections: Connections,
    on_closed: OnClosed,
    refused: Callable[[Refusal], Reply],
    drain: float,
    http: str | None,
    metrics: Callable[[], tuple[bytes, str]],
) -> None:
    """Serves until the first signal, then shuts down gracefully; a second signal has its default effect.

    `refused`: the form in which a request that is no HTTP is answered; `http`: HOST:PORT of /healthz, /readyz and /metrics; None: they are
    not served.

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
        timeout_keep_alive=connections.times.kept,
        timeout_graceful_shutdown=GRACE,
        ssl_certfile=listening.certificate,
        ssl_keyfile=listening.key,
    )
    listening.load(config)

    def invalid(status: int, sentence: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
        reply = refused(Refusal(status, "invalid-request", f"{sentence}; nothing was sent to the service"))
        return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers], reply.body

    server = Server(config, ConnectionRules(connections=connections, on_closed=on_closed, refused=invalid))
    stop = first_of((signal.SIGTERM, signal.SIGINT), drain=drain)

    def why_not() -> str | None:
        if stop.is_set():
            return "this process is shutting down"
        return None if server.started else "this process is starting"

    async with contextlib.AsyncExitStack() as beside:
        if http is not None:
            await beside.enter_async_context(health.serve(http, ready=why_not, healthy=lambda: None, metrics=metrics))
        await server.serve_until(stop, listening.socket(), listening, drain=drain)
