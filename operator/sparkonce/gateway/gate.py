"""What every request passes before it is routed: who asks, how much is sent, how it is counted. Plain ASGI.

Paths are matched as they were sent, so that a slash inside a key is `%2F` and can never be taken for one of the path. Under `/v1/` a
token comes first: without one nothing of the body is read, and no route says whether what it names exists. The body is read
here, within its limit and its time, before anything is done with it.

Framework dependencies were not taken for this: they run after the body was read and parsed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sparkonce.engine.callers import Authenticator, Caller
from sparkonce.errors import SparkonceError
from sparkonce.gateway.problem import Problem, of_error, respond

log = logging.getLogger(__name__)

OPEN = ("/v1/config",)
"""Under /v1/ and for everybody: it says what every installation of this version says."""
SMALL, LARGE = 64 * 1024, 1024 * 1024
"""Bytes of a body; the large ones are sealed intents and verdicts, which name files. etcd takes 1.5 MiB in one request."""
LARGE_ONES = ("/seal", "/report")
BODY_TIME = 10.0
"""Seconds for a body to arrive: a connection that trickles must not stay for ever."""

OnRequest = Callable[[str, int, float], None]
"""Route (as it is declared), status and seconds of each answered request."""


class Gate:
    def __init__(
        self, app: ASGIApp, *, authenticator: Authenticator, on_request: OnRequest, on_unknown: Callable[[], None]
    ) -> None:
        """`on_unknown`: a driver was told 503."""
        self._app, self._authenticator = app, authenticator
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
            if status == 503 and scope["path"].startswith("/v1/attempts/"):
                self._on_unknown()

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["path"].startswith("/v1/") and scope["path"] not in OPEN:
                scope.setdefault("state", {})["caller"] = await self._caller(scope)
            body = await _body(scope, receive)
        except SparkonceError as error:
            await of_error(error)(scope, receive, send)
            return
        except TimeoutError:
            await respond(408, f"the body did not arrive within {BODY_TIME:g} s; send it again")(scope, receive, send)
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
        kind, _, token = (said[0] if len(said) == 1 else b"").decode("latin-1").partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            raise Problem(401, "send the token of a service account or user as `Authorization: Bearer TOKEN`")
        caller = await self._authenticator.caller(token.strip())
        if caller is None:
            raise Problem(
                401, "the API server does not know this token; it may have expired: read it again and send it anew"
            )
        return caller


async def _body(scope: Scope, receive: Receive) -> bytes:
    """Problem 413; TimeoutError."""
    limit = LARGE if scope["path"].endswith(LARGE_ONES) else SMALL
    too_large = Problem(413, f"the body is larger than the {limit:,} bytes that are taken here; nothing was done")
    declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if declared.isdigit() and int(declared) > limit:
        raise too_large
    parts: list[bytes] = []
    size, more = 0, True
    async with asyncio.timeout(BODY_TIME):
        while more:
            message = await receive()
            if message["type"] != "http.request":
                raise Problem(400, "the request was cut off")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            more = message.get("more_body", False)
            if size > limit:
                raise too_large
    return b"".join(parts)
