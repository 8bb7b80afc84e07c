"""The application: routes, and how errors leave. Everything it uses is handed in; it knows no Kubernetes client and no etcd.

One process serves users and drivers, and no process of it drives a key: users' traffic can starve other users' traffic, and never an
attempt's owner. Replicas share nothing but the ledger, so any number of them serve beside each other.
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
from sparkonce.engine.callers import Authenticator, Authorizer, Lookup
from sparkonce.engine.policy import Policy
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
    """What a gateway is made of."""

    store: IdempotencyStore
    authenticator: Authenticator
    authorizer: Authorizer
    objects: Lookup
    decisions: Decisions
    realm_of: Callable[[str], str] = lambda namespace: namespace
    ready: Check = lambda: None
    metrics: Callable[[], tuple[bytes, str]] = lambda: (b"", "text/plain")
    on_request: OnRequest = lambda *_: None
    on_unknown: Callable[[], None] = lambda: None
    """A driver got no answer."""


def create_app(parts: Parts) -> FastAPI:
    app = FastAPI(
        title="sparkonce gateway",
        version=__version__,
        description="Drivers' control channel, and the keys of a namespace. Errors are problem+json (RFC 9457).",
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.include_router(DriverRoutes(store=parts.store, objects=parts.objects, realm_of=parts.realm_of).router)
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
    app.add_api_route("/v1/config", config, tags=["config"])
    _errors(app)
    app.add_middleware(
        Gate, authenticator=parts.authenticator, on_request=parts.on_request, on_unknown=parts.on_unknown
    )
    return app


async def config() -> dict[str, object]:
    """What a client may rely on."""
    usual = Policy(declared=True)
    return {
        "version": __version__,
        "idempotencyKeyLifetimeSeconds": {
            "succeeded": usual.retention_succeeded,
            "failed": usual.retention_failed,
        },
        "idempotentOperations": [],  # none of these routes takes an Idempotency-Key: each may be repeated as it is
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
        said = {404: "there is no such path; a slash inside a key is written %2F", 405: "this path takes other methods"}
        return respond(error.status_code, said.get(error.status_code, str(error.detail)))

    async def broken(_: Request, error: Exception) -> JSONResponse:
        log.error("a defect", exc_info=error)
        return respond(500, "a defect of sparkonce; the gateway's log has the details")

    app.add_exception_handler(SparkonceError, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, unrouted)
    app.add_exception_handler(Exception, broken)
