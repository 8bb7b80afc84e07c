"""ASGI middleware in front of all routes: ambiguous requests, routing, authentication, body limits, request metrics, in this order.

Paths are matched undecoded, so that a slash inside a key is `%2F` and never a path separator. A path or method that no route has costs
neither a review of the token nor the reading of a body. Under `/v1/` the token is checked next, or the client certificate of a request
without one: without either the body is not read, and no route reveals whether a key exists. The body is read here, within limits of size
and time, before a route runs.

A request that two readers could take for two different ones (`Transfer-Encoding` beside `Content-Length`, or in HTTP/1.0) is refused and
its connection closed, as RFC 9112, section 6.1, allows: behind a proxy that reads the other header its body would be the next request.

FastAPI dependencies would not do: they run after the body was read and parsed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sparkonce.commands.callers import Authenticator, Caller
from sparkonce.errors import SparkonceError
from sparkonce.gateway import certificates
from sparkonce.gateway.problem import ProblemResponse, of_error
from sparkonce.listening.accepting import CERTIFICATE

log = logging.getLogger(__name__)

OPEN = ("/v1/config",)
"""Paths under /v1/ that need no token: the same response in every installation of this version."""
DRIVERS = "/v1/attempts/"
"""Routes that look at the caller's pod, which says whether it has a token for the gateway."""
SMALL, LARGE = 64 * 1024, 1024 * 1024
"""Maximum bytes of a body. Sealed intents and verdicts list files and may be large. etcd accepts 1.5 MiB per request."""
LARGE_ONES = ("/seal", "/report")
HEAD_BYTES = 32 * 1024
"""Maximum bytes of path, query and headers: twice the longest token that is reviewed."""
BODY_TIME = 10.0
"""Seconds for a body to arrive: a slow sender must not hold a connection for ever."""

OnRequest = Callable[[str, int, float], None]
"""Receives declared route, status and seconds of each answered request."""


class Gate:
    """Authenticates, reads the body and counts, then calls the application."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        authenticator: Authenticator,
        audience: str,
        accept_api_tokens: bool,
        tls: bool,
        on_request: OnRequest,
        on_unknown: Callable[[], None],
    ) -> None:
        """Args:
        audience: of this gateway's tokens.
        accept_api_tokens: those for the API server are accepted everywhere, not only from drivers that have no other.
        tls: the gateway serves it; in plain text it answers only drivers that were started before it did.
        on_unknown: called when a driver is answered 503.
        """
        self._app, self._authenticator = app, authenticator
        self._audience, self._accept_api_tokens, self._tls = audience, accept_api_tokens, tls
        self._on_request, self._on_unknown = on_request, on_unknown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.monotonic(), 500
        scope["path"] = scope["raw_path"].partition(b"?")[0].decode("latin-1")

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._pass(scope, receive, watched)
        finally:
            route = getattr(scope.get("route"), "path", "-")
            self._on_request(route, status, time.monotonic() - began)
            if status == 503 and scope["path"].startswith(DRIVERS):
                self._on_unknown()

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = _ambiguous(scope)
        if refused is not None:
            await refused.response()(scope, receive, send)
            return
        if self._tls and scope["scheme"] != "https" and not scope["path"].startswith(DRIVERS):
            await _use_https().response()(scope, receive, send)
            return
        if not _routed(scope):
            await self._app(scope, _no_body, send)  # 404 or 405
            return
        try:
            if scope["path"].startswith("/v1/") and scope["path"] not in OPEN:
                scope.setdefault("state", {})
                scope["state"]["caller"] = await self._caller(scope)
            body = await _body(scope, receive)
        except SparkonceError as error:
            await of_error(error)(scope, receive, send)
            return
        except TimeoutError:
            late = ProblemResponse(408, f"the body did not arrive within {BODY_TIME:g} s; send it again", close=True)
            await late.response()(scope, receive, send)
            return
        sent = False

        async def replay() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, send)

    async def _caller(self, scope: Scope) -> Caller:
        said = [value for name, value in scope["headers"] if name == b"authorization"]
        shown = scope["state"].get(CERTIFICATE)
        if shown is not None and not said:
            if any(name == b"origin" for name, _ in scope["headers"]):
                raise ProblemResponse(403, "a web page sent this request with your certificate; nothing was done")
            return certificates.named_by(shown)
        kind, _, token = (said[0] if len(said) == 1 else b"").decode("latin-1").partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            raise ProblemResponse(401, "send the token of a service account or user as `Authorization: Bearer TOKEN`")
        caller = await self._authenticator.caller(token.strip())
        if caller is None:
            raise ProblemResponse(
                401,
                "the API server does not accept this token; it may have expired: read it again and send the request again",
            )
        if not (caller.for_gateway or self._accept_api_tokens or scope["path"].startswith(DRIVERS)):
            raise ProblemResponse(
                401,
                "this token is for the API server and would be valid there, too; send one that is for this gateway alone: "
                f"`kubectl create token SERVICEACCOUNT --audience {self._audience}`",
            )
        return caller


def _use_https() -> ProblemResponse:
    return ProblemResponse(
        403,
        "this gateway serves HTTPS; send the request with https://, and a new token: this one was in plain text",
        close=True,
    )


def _ambiguous(scope: Scope) -> ProblemResponse | None:
    """The refusal of a request that is too large to be one of ours, or that proxies may read differently."""
    headers = scope["headers"]
    size = len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(name) + len(value) for name, value in headers)
    if size > HEAD_BYTES:  # h11 limits what arrives in pieces only
        return ProblemResponse(431, f"the headers are larger than {HEAD_BYTES:,} bytes; nothing was done", close=True)
    names = {name for name, _ in headers}
    if b"transfer-encoding" in names and (b"content-length" in names or scope["http_version"] == "1.0"):
        return ProblemResponse(
            400,
            "the request has Transfer-Encoding beside Content-Length, or in HTTP/1.0, so that its end is ambiguous; "
            "send one of the two headers",
            close=True,
        )
    return None


def _routed(scope: Scope) -> bool:
    """Whether a route has this path and method."""
    app: Starlette = scope["app"]
    return any(route.matches(scope)[0] is Match.FULL for route in app.router.routes)


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _body(scope: Scope, receive: Receive) -> bytes:
    """Reads the whole body.

    Raises:
        ProblemResponse: 413: it is too large; 400: the client disconnected.
        TimeoutError: it did not arrive in time.
    """
    limit = LARGE if scope["path"].endswith(LARGE_ONES) else SMALL
    too_large = ProblemResponse(
        413, f"the body is larger than {limit:,} bytes, the limit for this path; nothing was done"
    )
    declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if declared.isdigit() and int(declared) > limit:
        raise too_large
    parts: list[bytes] = []
    size, more = 0, True
    async with asyncio.timeout(BODY_TIME):
        while more:
            message = await receive()
            if message["type"] != "http.request":
                raise ProblemResponse(400, "the request was cut off")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            more = message.get("more_body", False)
            if size > limit:
                raise too_large
    return b"".join(parts)
