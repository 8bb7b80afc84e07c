"""`sparkonce proxy`: idempotency before an HTTP service in any language, in the foreground, until a signal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from sparkonce.errors import InvalidInput
from sparkonce.store.open import without_extra

METHODS = "POST,PATCH"


def proxy(
    *,
    upstream: Annotated[
        str, typer.Option("--upstream", metavar="URL", help="The service: http(s)://HOST[:PORT][/PATH].")
    ],
    store: Annotated[
        str,
        typer.Option(
            "--store",
            envvar="SPARKONCE_STORE",
            help="Where answers are kept: sqlite:///PATH, postgresql://HOST/DATABASE, etcd://HOST:PORT, or memory:.",
        ),
    ],
    service: Annotated[
        str, typer.Option("--service", metavar="NAME", help="Its name among services that share a ledger.")
    ] = "",
    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Where to serve.")] = "127.0.0.1:8080",
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file; without it plain HTTP is served.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of its key.")] = None,
    upstream_ca: Annotated[
        Path | None,
        typer.Option(help="PEM file of the CA of the service's certificate; without it, the CAs that Python trusts."),
    ] = None,
    methods: Annotated[str | None, typer.Option(metavar="NAMES", help=f"Methods that take keys ({METHODS}).")] = None,
    required: Annotated[bool, typer.Option("--required", help="Refuse such requests without a key.")] = False,
    rerun: Annotated[
        bool,
        typer.Option(
            "--rerun",
            help="Send a request again whose outcome is unknown; for services that are idempotent by themselves.",
        ),
    ] = False,
    lifetime: Annotated[
        float | None, typer.Option(min=0.01, help="Hours for which an answer is replayed (24; 1 for iceberg).")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for the next byte of the service.")] = 60.0,
    advertise: Annotated[
        str | None, typer.Option(metavar="PATH", help="Answer GET of this path with the lifetime.")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="iceberg: the service is an Iceberg REST catalog, whose specification says what takes keys.",
        ),
    ] = None,
    http: Annotated[
        str | None, typer.Option("--http", metavar="HOST:PORT", help="Serve /healthz, /readyz and /metrics there.")
    ] = None,
    drain_seconds: Annotated[float, typer.Option(min=0, help="Seconds to go on serving after SIGTERM.")] = 0.0,
    max_connections: Annotated[
        int,
        typer.Option(
            envvar="SPARKONCE_MAX_CONNECTIONS",
            min=1,
            help="Open connections at once; beyond, slow clients and idle connections make room.",
        ),
    ] = 1000,
    max_connections_per_client: Annotated[
        int | None,
        typer.Option(
            envvar="SPARKONCE_MAX_CONNECTIONS_PER_CLIENT",
            min=1,
            help="Of them, from one address; all, unless it is given.",
        ),
    ] = None,
    log_format: Annotated[str, typer.Option(help="text or json.")] = "text",
) -> int:
    """Carry out a request with an Idempotency-Key once, and answer its repetitions, before any HTTP service.

    Example: sparkonce proxy --upstream http://orders:9000 --store postgresql://db/orders --listen 0.0.0.0:8080
    """
    try:
        from sparkonce.observe.log_format import configure
        from sparkonce.observe.reply_metrics import ReplyMetrics
        from sparkonce.proxy.serving import TIMES, serve
    except ModuleNotFoundError as missing:
        raise without_extra("the proxy", missing, extra="proxy") from None
    from sparkonce.asgi import App, IdempotencyMiddleware
    from sparkonce.listening.accepting import fitting
    from sparkonce.listening.address import Listening
    from sparkonce.listening.connections import ConnectionLimits, Connections
    from sparkonce.proxy.iceberg import LIFETIME, WHOLE, CatalogProxy, catalog_error, catalog_policy
    from sparkonce.proxy.upstream import CONNECTIONS_PER_CLIENT, Upstream, paths_as_sent, reporting_cuts
    from sparkonce.replies.exchange import problem_of
    from sparkonce.replies.open import counted, open_replies
    from sparkonce.replies.policy import ReplyPolicy, Scope

    listening = Listening.of(listen, certificate=tls_cert, key=tls_key)
    configure(log_format)
    limits = ConnectionLimits(total=max_connections, per_client=max_connections_per_client or max_connections)
    connections = Connections(fitting(limits, files=CONNECTIONS_PER_CLIENT), TIMES)
    metrics = ReplyMetrics(connections=lambda: len(connections))
    made: Callable[..., App]
    if profile == "iceberg":
        if methods or required or rerun or advertise:
            raise InvalidInput(
                "--profile iceberg decides which requests take keys; leave out --methods, --required, --rerun and --advertise"
            )
        policy = catalog_policy(LIFETIME if lifetime is None else lifetime * 3600, service=service)
        made, refused, whole = CatalogProxy, catalog_error, WHOLE
    elif profile is None:
        names = frozenset(name.strip().upper() for name in (methods or METHODS).split(",") if name.strip())
        scope = Scope(methods=names, required=required, rerun=rerun)
        policy = ReplyPolicy(scopes=(scope,), lifetime=(lifetime or 24.0) * 3600, service=service)
        made, refused, whole = partial(IdempotencyMiddleware, advertise=advertise), problem_of, 0
    else:
        raise InvalidInput(f"--profile is {profile!r}; the only profile is iceberg")
    ledger = counted(open_replies(store), metrics.stored)
    before = Upstream(
        upstream,
        timeout=timeout,
        ca=upstream_ca,
        refused=refused,
        whole=whole,
        connections=connections.limits.total,
    )
    app = made(before, store=ledger, policy=policy, meter=metrics)
    asyncio.run(
        serve(
            reporting_cuts(paths_as_sent(app)),
            listening,
            connections=connections,
            on_closed=metrics.closed,
            refused=refused,
            drain=drain_seconds,
            http=http,
            metrics=metrics.text,
        )
    )
    return 0
