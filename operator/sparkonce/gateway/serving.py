"""Lifecycle of a gateway process: HTTP server, background tasks, graceful shutdown.

On SIGTERM it reports not ready and withdraws its announcement, keeps answering for `drain` seconds until load balancers have removed it,
finishes requests in flight, and exits. SIGKILL loses nothing: clients repeat unanswered requests at another replica.
"""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import Sequence

import uvicorn
from fastapi import FastAPI

from sparkonce.gateway.announcing import Announcer
from sparkonce.gateway.gate import HEAD_BYTES
from sparkonce.gateway.problem import respond
from sparkonce.gateway.readiness import Readiness
from sparkonce.listening.accepting import ConnectionRules, OnClosed, Server
from sparkonce.listening.address import Listening, first_of
from sparkonce.listening.connections import Connections

FINISH = 10
"""Seconds for requests in flight at shutdown: longer than the deadlines of the calls they make."""


def _refused(status: int, sentence: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
    answer = respond(status, sentence)
    return answer.raw_headers, bytes(answer.body)


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
        timeout_keep_alive=connections.times.kept,
        timeout_graceful_shutdown=FINISH,
        ssl_certfile=listening.certificate,
        ssl_keyfile=listening.key,
        ssl_ca_certs=str(listening.client_ca) if listening.client_ca else None,
        # Optional: drivers have tokens, and probes neither.
        ssl_cert_reqs=ssl.CERT_OPTIONAL if listening.client_ca else ssl.CERT_NONE,
        h11_max_incomplete_event_size=HEAD_BYTES,
    )
    listening.load(config)
    # Drivers that were started while this gateway served no TLS know an http address.
    rules = ConnectionRules(connections=connections, on_closed=on_closed, refused=_refused, plain_text_beside_tls=True)
    server = Server(config, rules)
    stop = first_of(signals, drain=drain)
    bound = listening.socket()
    checking = asyncio.create_task(readiness.run())
    announcer.start()

    async def withdraw() -> None:
        readiness.ending = True
        await asyncio.to_thread(announcer.stop)

    try:
        await server.serve_until(stop, bound, listening, drain=drain, ending=withdraw)
    finally:
        checking.cancel()
        await asyncio.gather(checking, return_exceptions=True)
