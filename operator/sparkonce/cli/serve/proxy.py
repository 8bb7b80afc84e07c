"""`sparkonce proxy`: idempotency before an HTTP service in any language, in the foreground, until a signal."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkonce.errors import InvalidInput

METHODS = "POST,PATCH"
GRACE = 30
"""Seconds for requests in flight at shutdown: what Kubernetes gives a pod."""


def proxy(
    *,
    upstream: Annotated[
        str, typer.Option("--upstream", metavar="URL", help="The service: http(s)://HOST[:PORT][/PATH].")
    ],
    store: Annotated[
        str,
        typer.Option(
            "--store",
            help="Where answers are kept: sqlite:///PATH, postgresql://HOST/DATABASE, etcd://HOST:PORT, or memory:.",
        ),
    ],
    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Where to serve.")] = "127.0.0.1:8080",
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
) -> None:
    """Carry out a request with an Idempotency-Key once, and answer its repetitions, before any HTTP service."""
    try:
        import uvicorn
    except ModuleNotFoundError:
        raise InvalidInput("the proxy needs uvicorn, which is not installed; install sparkonce[proxy]") from None
    from sparkonce.asgi import App, IdempotencyMiddleware
    from sparkonce.proxy.iceberg import LIFETIME, CatalogProxy, catalog_policy
    from sparkonce.proxy.upstream import Upstream
    from sparkonce.replies.policy import ReplyPolicy, Scope

    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise InvalidInput(f"{listen!r} is not HOST:PORT")
    service = Upstream(upstream, timeout=timeout)
    app: App
    if profile is None:
        names = frozenset(name.strip().upper() for name in (methods or METHODS).split(",") if name.strip())
        scope = Scope(methods=names, required=required, rerun=rerun)
        policy = ReplyPolicy(scopes=(scope,), lifetime=(lifetime or 24.0) * 3600)
        app = IdempotencyMiddleware(service, store=store, policy=policy, advertise=advertise)
    elif profile == "iceberg":
        if methods or required or rerun or advertise:
            raise InvalidInput(
                "--profile iceberg decides which requests take keys; leave out --methods, --required, --rerun and --advertise"
            )
        seconds = LIFETIME if lifetime is None else lifetime * 3600
        app = CatalogProxy(service, store=store, policy=catalog_policy(seconds))
    else:
        raise InvalidInput(f"--profile is {profile!r}; the only profile is iceberg")
    uvicorn.run(
        app, host=host.strip("[]"), port=int(port), lifespan="on", log_level="warning", timeout_graceful_shutdown=GRACE
    )
