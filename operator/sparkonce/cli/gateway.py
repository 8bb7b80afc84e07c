"""`sparkonce gateway`: one process of the HTTP gateway, in the foreground, until a signal."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparkonce.errors import InvalidInput

if TYPE_CHECKING:
    from sparkonce.gateway.serving import Listening

DEADLINE = 5.0
"""Seconds for one call to the API server: whoever asks us waits for it, and asks again."""


def gateway(
    *,
    store: Annotated[
        str, typer.Option("--store", envvar="SPARKONCE_STORE", help="etcd://HOST:PORT[,HOST:PORT] of the ledger.")
    ],
    install: Annotated[
        str,
        typer.Option("--install", envvar="SPARKONCE_INSTALL", help="Name of this deployment, as the operator has it."),
    ],
    listen: Annotated[
        str, typer.Option("--listen", envvar="SPARKONCE_LISTEN", metavar="HOST:PORT", help="Where to serve.")
    ] = "0.0.0.0:8443",
    tls_cert: Annotated[
        Path | None, typer.Option(envvar="SPARKONCE_TLS_CERT", help="PEM file; without it plain HTTP is served.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(envvar="SPARKONCE_TLS_KEY", help="PEM file of its key.")] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(envvar="SPARKONCE_KUBECONFIG", help="Default: the pod's service account, else kubectl's file."),
    ] = None,
    lease_seconds: Annotated[
        int,
        typer.Option(envvar="SPARKONCE_LEASE_TTL", min=2, help="A killed gateway is announced for so long at most."),
    ] = 10,
    drain_seconds: Annotated[
        float, typer.Option(envvar="SPARKONCE_DRAIN", min=0, help="Seconds to go on serving after SIGTERM.")
    ] = 5.0,
    log_format: Annotated[str, typer.Option(envvar="SPARKONCE_LOG_FORMAT", help="text or json.")] = "text",
) -> int:
    """Run the HTTP gateway: drivers reach the ledger through it, and people and programs their keys.

    Any number of these may run beside each other on one ledger. A process of its own, so that its users never starve an operator.

    Example: sparkonce gateway --store etcd://etcd:2379 --install prod --tls-cert tls.crt --tls-key tls.key
    """
    try:
        from sparkonce.gateway.serving import Listening
        from sparkonce.observe.logs import configure
    except ModuleNotFoundError as missing:
        raise InvalidInput(
            f"the gateway needs {missing.name}, which is not installed; install sparkonce[operator]"
        ) from None
    listening = Listening.of(listen, certificate=tls_cert, key=tls_key)
    configure(log_format)
    asyncio.run(
        _serve(
            store,
            install,
            listening,
            kubeconfig=kubeconfig,
            lease_seconds=lease_seconds,
            drain=drain_seconds,
        )
    )
    return 0


async def _serve(
    url: str, install: str, listening: Listening, *, kubeconfig: Path | None, lease_seconds: int, drain: float
) -> None:
    """What a gateway is made of, put together: the one place that knows both it and Kubernetes."""
    from sparkonce.gateway.announcing import Announcer, asks
    from sparkonce.gateway.app import Parts, create_app
    from sparkonce.gateway.decisions import Decisions
    from sparkonce.gateway.readiness import Readiness
    from sparkonce.gateway.serving import serve
    from sparkonce.gateway.tokens import Tokens
    from sparkonce.kube.client import ApiClient
    from sparkonce.kube.login import Login
    from sparkonce.kube.review import Reviews
    from sparkonce.kube.transport import Limits
    from sparkonce.observe.gateway_metrics import GatewayMetrics
    from sparkonce.store.metered import metered
    from sparkonce.store.open import open_blocking, open_store

    metrics = GatewayMetrics(announced=lambda: announcer.announced)
    ledger = open_store(url, install=install)
    if not hasattr(ledger, "announce_gateway"):
        raise InvalidInput(
            f"a gateway needs a store that several processes share, at etcd://HOST:PORT, and {ledger.url} is none"
        )
    store = metered(ledger, metrics.stored)
    client = ApiClient(Login(kubeconfig), limits=Limits(deadline=DEADLINE), on_call=metrics.called)
    reviews = Reviews(client)
    readiness = Readiness(store, reviews.missing)
    announcer = Announcer(
        lambda: open_blocking(url, install=install, ttl=lease_seconds),
        owner=f"{os.environ.get('POD_NAME') or socket.gethostname()}/{os.getpid()}",
        answers=asks(listening.own, listening.port, tls=listening.tls),
        unanswered=lambda: readiness.unanswered,
    )
    decisions = Decisions(lambda: open_blocking(url, install=install), install=install)
    app = create_app(
        Parts(
            store=store,
            authenticator=Tokens(reviews, on_answer=metrics.token),
            authorizer=reviews,
            objects=reviews,
            decisions=decisions,
            ready=readiness.why_not,
            metrics=metrics.text,
            on_request=metrics.requested,
            on_unknown=readiness.driver_unanswered,
        )
    )
    try:
        await serve(
            app,
            listening,
            readiness=readiness,
            announcer=announcer,
            signals=(signal.SIGTERM, signal.SIGINT),
            drain=drain,
        )
    finally:
        await decisions.close()
        await client.close()
        await store.close()
