"""The ASGI application: routes and error responses. Its dependencies are passed in; it imports neither a Kubernetes client nor etcd.

A gateway process serves users and drivers but owns no keys: heavy traffic can starve other requests, never an attempt's owner. Replicas
share only the ledger, so any number of them may run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response

from sparkonce import __version__
from sparkonce.attempt.decide import Policy
from sparkonce.commands.callers import Authenticator, Authorizer, Lookup
from sparkonce.errors import SparkonceError
from sparkonce.gateway.decisions import Decisions
from sparkonce.gateway.drivers import DriverRoutes
from sparkonce.gateway.gate import Gate, OnRequest
from sparkonce.gateway.keys import KeyRoutes
from sparkonce.gateway.problem import of_error, respond
from sparkonce.observe.health import Check
from sparkonce.store.protocol import IdempotencyStore

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The dependencies of a gateway."""

    store: IdempotencyStore
    authenticator: Authenticator
    authorizer: Authorizer
    objects: Lookup
    decisions: Decisions
    audience: str
    """Of tokens for this gateway."""
    tls: bool = False
    """The gateway serves TLS, and plain text only to drivers that were started before it did."""
    accept_api_tokens: bool = False
    """Accept tokens for the API server as well."""
    realm_of: Callable[[str], str] = lambda namespace: namespace
    ready: Check = lambda: None
    metrics: Callable[[], tuple[bytes, str]] = lambda: (b"", "text/plain")
    on_request: OnRequest = lambda *_: None
    on_unknown: Callable[[], None] = lambda: None
    """Called when a driver is answered 503."""


def create_app(parts: Parts) -> FastAPI:
    """Builds the application. Does no I/O."""
    app = FastAPI(
        title="sparkonce gateway",
        version=__version__,
        description="Drivers' control channel, and the keys of a namespace. Errors are problem+json (RFC 9457).",
        docs_url=None,  # these pages load scripts from other hosts
        redoc_url=None,
        redirect_slashes=False,
    )
    app.include_router(
        DriverRoutes(
            store=parts.store,
            objects=parts.objects,
            realm_of=parts.realm_of,
            audience=parts.audience,
            accept_api_tokens=parts.accept_api_tokens,
        ).router
    )
    app.include_router(
        KeyRoutes(
            store=parts.store,
            authorizer=parts.authorizer,
            objects=parts.objects,
            decisions=parts.decisions,
            realm_of=parts.realm_of,
        ).router
    )

    async def healthz() -> Response:
        return PlainTextResponse("ok\n")

    async def readyz() -> Response:
        said = parts.ready()
        return PlainTextResponse(f"{said or 'ok'}\n", 503 if said else 200)

    async def metrics() -> Response:
        body, kind = parts.metrics()
        return Response(body, media_type=kind)

    for route in (healthz, readyz, metrics):
        app.add_api_route(f"/{route.__name__}", route, include_in_schema=False)

    async def config() -> dict[str, object]:
        """Settings that clients may rely on."""
        return settings(parts.audience)

    app.add_api_route("/v1/config", config, tags=["config"])
    _errors(app)
    app.add_middleware(
        Gate,
        authenticator=parts.authenticator,
        audience=parts.audience,
        accept_api_tokens=parts.accept_api_tokens,
        tls=parts.tls,
        on_request=parts.on_request,
        on_unknown=parts.on_unknown,
    )
    return app


def settings(audience: str) -> dict[str, object]:
    """The answer of `/v1/config`. `audience`: of tokens for this gateway."""
    usual = Policy(declared=True)
    return {
        "version": __version__,
        "tokenAudience": audience,
        "idempotencyKeyLifetimeSeconds": {
            "succeeded": usual.retention_succeeded,
            "failed": usual.retention_failed,
        },
        "idempotentOperations": [],  # no route takes an Idempotency-Key: each request may be repeated as it is
    }


def _errors(app: FastAPI) -> None:
    async def ours(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, SparkonceError)
        return of_error(error)

    async def invalid(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        return respond(422, f"{'.'.join(map(str, first['loc']))}: {first['msg']}")

    async def unrouted(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        said = {
            404: "there is no such path; encode a slash inside a key as %2F",
            405: "this path does not support this method",
        }
        return respond(error.status_code, said.get(error.status_code, str(error.detail)))

    async def broken(_: Request, error: Exception) -> JSONResponse:
        log.error("unexpected error: a defect of sparkonce", exc_info=error)
        return respond(500, "a defect of sparkonce; the gateway's log has the details")

    app.add_exception_handler(SparkonceError, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, unrouted)
    app.add_exception_handler(Exception, broken)
