"""`sparkonce gateway`: one process of the HTTP gateway, in the foreground, until a signal."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparkonce import settings
from sparkonce.errors import InvalidInput

if TYPE_CHECKING:
    from sparkonce.listening.address import Listening

DEADLINE = 5.0
"""Seconds for one call to the API server: the caller waits for it, and may send the request again."""


def gateway(
    *,
    store: Annotated[
        str,
        typer.Option(
            "--store",
            envvar="SPARKONCE_STORE",
            help="The ledger: etcd://HOST:PORT[,HOST:PORT], or postgresql://HOST/DATABASE.",
        ),
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
    client_ca: Annotated[
        Path | None,
        typer.Option(
            envvar="SPARKONCE_CLIENT_CA",
            help="PEM file of the CA of people's client certificates; without it only tokens are accepted.",
        ),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(envvar="SPARKONCE_KUBECONFIG", help="Default: the pod's service account, else kubectl's file."),
    ] = None,
    lease_seconds: Annotated[
        int,
        typer.Option(
            envvar="SPARKONCE_LEASE_TTL", min=2, help="Seconds for which a killed gateway stays announced at most."
        ),
    ] = 10,
    drain_seconds: Annotated[
        float, typer.Option(envvar="SPARKONCE_DRAIN", min=0, help="Seconds to go on serving after SIGTERM.")
    ] = 5.0,
    max_report_bytes: Annotated[
        int,
        typer.Option(
            envvar="SPARKONCE_MAX_REPORT_BYTES",
            min=1_048_576,
            help="Bytes of reports of drivers to keep per namespace.",
        ),
    ] = 268_435_456,
    max_connections: Annotated[
        int, typer.Option(envvar="SPARKONCE_MAX_CONNECTIONS", min=1, help="Open connections at once.")
    ] = 1000,
    max_connections_per_client: Annotated[
        int,
        typer.Option(
            envvar="SPARKONCE_MAX_CONNECTIONS_PER_CLIENT",
            min=1,
            help="Of them, from one address; raise it behind a proxy or NAT.",
        ),
    ] = 200,
    accept_api_server_tokens: Annotated[
        bool,
        typer.Option(
            "--accept-api-server-tokens",
            envvar="SPARKONCE_ACCEPT_API_SERVER_TOKENS",
            help="Accept tokens for the API server, too. Drivers that were started by an earlier version need no such option.",
        ),
    ] = False,
    log_format: Annotated[str, typer.Option(envvar="SPARKONCE_LOG_FORMAT", help="text or json.")] = "text",
) -> int:
    """Run the HTTP gateway, through which drivers reach the ledger, and people and programs their keys.

    Any number of gateways may share one ledger. It is a process of its own, so that its load never starves an operator.

    Example: sparkonce gateway --store etcd://etcd:2379 --install prod --tls-cert tls.crt --tls-key tls.key
    """
    try:
        from sparkonce.listening.address import Listening
        from sparkonce.observe.log_format import configure
    except ModuleNotFoundError as missing:
        raise InvalidInput(
            f"the gateway needs {missing.name}, which is not installed; run `pip install 'sparkonce[operator]'`"
        ) from None
    from sparkonce.sink.objects import ambient

    listening = Listening.of(listen, certificate=tls_cert, key=tls_key, client_ca=client_ca)
    if not settings.ambient_credentials(default="false"):
        ambient.forbid(os.environ)
    configure(log_format)
    asyncio.run(
        _serve(
            store,
            install,
            listening,
            kubeconfig=kubeconfig,
            lease_seconds=lease_seconds,
            drain=drain_seconds,
            max_report_bytes=max_report_bytes,
            limits=(max_connections, max_connections_per_client),
            accept_api_tokens=accept_api_server_tokens,
        )
    )
    return 0


async def _serve(
    url: str,
    install: str,
    listening: Listening,
    *,
    kubeconfig: Path | None,
    lease_seconds: int,
    drain: float,
    max_report_bytes: int,
    limits: tuple[int, int],
    accept_api_tokens: bool,
) -> None:
    """Wires the gateway to Kubernetes: the only place that knows both."""
    from sparkonce.gateway.announcing import Announcer, asks
    from sparkonce.gateway.app import Parts, create_app
    from sparkonce.gateway.decisions import Decisions
    from sparkonce.gateway.readiness import Readiness
    from sparkonce.gateway.serving import serve
    from sparkonce.gateway.tokens import Tokens
    from sparkonce.kube.client import ApiClient
    from sparkonce.kube.login import KubeLogin
    from sparkonce.kube.review import Reviews
    from sparkonce.kube.transport import Limits
    from sparkonce.listening.accepting import fitting
    from sparkonce.listening.connections import ConnectionLimits, Connections, ConnectionTimes
    from sparkonce.model.record import gateway_audience
    from sparkonce.observe.gateway_metrics import GatewayMetrics
    from sparkonce.store.instrumented import metered
    from sparkonce.store.open import open_blocking, open_shared

    ledger = open_shared(url, install=install, by="a gateway", max_report_bytes=max_report_bytes)
    connections = Connections(fitting(ConnectionLimits(total=limits[0], per_client=limits[1])), ConnectionTimes())
    metrics = GatewayMetrics(
        announced=lambda: announcer.announced,
        reports=getattr(ledger, "reports_ratio", float),
        connections=lambda: len(connections),
    )
    store = metered(ledger, metrics.stored)
    client = ApiClient(KubeLogin(kubeconfig), limits=Limits(deadline=DEADLINE), on_call=metrics.called)
    audience = gateway_audience(install)
    reviews = Reviews(client, audience=audience)
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
            audience=audience,
            tls=listening.tls,
            accept_api_tokens=accept_api_tokens,
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
            connections=connections,
            on_closed=metrics.closed,
        )
    finally:
        await decisions.close()
        await client.close()
        await store.close()
