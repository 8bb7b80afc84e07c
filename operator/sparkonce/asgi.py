"""Idempotency for any ASGI service: a request with an `Idempotency-Key` runs once, and every repetition gets its answer.

    from sparkonce.asgi import IdempotencyMiddleware, NotDone, Reply, Unknown

    async def reconcile(request):                    # what became of a request whose process died?
        order = await orders.find(user_of(request.headers), request.text)  # the service stored both with its effect
        return Reply(201, (("location", f"/orders/{order.id}"),)) if order else NotDone

    app = IdempotencyMiddleware(app, store="sqlite:///replies.db", reconcile=reconcile)

Put it inside the middleware that authenticates: a replay is served only to a caller whom the service would have served. By default the
caller is part of the key, so that no caller gets another one's answer. docs/http.md has the rules, and what each option is for.

Pure ASGI, without a framework's base class: those cancel the application when a client leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

from sparkonce.observe.meter import NoReplyMeter, ReplyMeter
from sparkonce.replies.coordinator import (
    Effect,
    KeyAttempt,
    KeyedRequest,
    NotDone,
    Reconciled,
    Refusal,
    ReplyCoordinator,
    Response,
    Unknown,
)
from sparkonce.replies.exchange import (
    SHUTDOWN,
    ReplyForm,
    asynchronous,
    check_length,
    checked_key,
    declared_length,
    keyed_request,
    lifetime_of,
    measured,
    policy_of,
    state_of,
)
from sparkonce.replies.keys import KeyPolicy
from sparkonce.replies.open import open_replies
from sparkonce.replies.policy import ReplyPolicy, Scope, StoreDown
from sparkonce.replies.protocol import Reply, ReplyLedger

__all__ = [
    "IdempotencyMiddleware", "KeyPolicy", "KeyedRequest", "NotDone", "Reply", "ReplyMeter", "ReplyPolicy", "Scope", "StoreDown", "Unknown",
    "caller_of",
]  # fmt: skip

Asgi = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Asgi]]
Send = Callable[[Asgi], Awaitable[None]]
App = Callable[[Asgi, Receive, Send], Awaitable[None]]


def caller_of(scope: Asgi) -> str:
    """The caller: the user whom an authentication middleware found, else the credentials that the request carries.

    Credentials that change between two tries (a rotated token, a new session cookie) make them two callers: a service whose credentials
    change gives a `caller` of its own."""
    user = scope.get("user")
    if getattr(user, "is_authenticated", False):
        for name in ("identity", "display_name"):
            with suppress(NotImplementedError, AttributeError):
                return f"user:{getattr(user, name)}"
    found = [value for name, value in scope["headers"] if name in (b"authorization", b"cookie")]
    return "credentials:" + b"\n".join(found).decode("latin-1") if found else ""


class IdempotencyMiddleware:
    def __init__(
        self,
        app: App,
        *,
        store: str | ReplyLedger,
        reconcile: Callable[[KeyedRequest], Awaitable[Reconciled] | Reconciled] | None = None,
        caller: Callable[[Asgi], str] = caller_of,
        advertise: str | None = None,
        policy: ReplyPolicy | None = None,
        form: ReplyForm | None = None,
        meter: ReplyMeter | None = None,
        **options: Any,
    ) -> None:
        """`store`: an address (`open_replies`) or an open ledger. `reconcile`: decides what became of a request whose outcome is unknown;
        without it such a key is answered 503 until its lifetime ends. `caller`: text that identifies the caller. `advertise`: a path at
        which GET answers with the lifetime. `policy`, or its fields as `options`. `form`: of refusals and replays, for a protocol that has
        its own. `meter`: counts the outcome of each request with a key.

        Raises: InvalidInput, StoreUnusable, StoreUnavailable."""
        self._app, self._caller, self._advertise = app, caller, advertise
        self._policy = policy_of(policy, options, by="IdempotencyMiddleware")
        self._ledger = open_replies(store) if isinstance(store, str) else store
        self._reconcile = asynchronous(reconcile)
        self._form = form or ReplyForm()
        self._meter = meter or NoReplyMeter()
        self._coordinator: ReplyCoordinator | None = None

    async def __call__(self, scope: Asgi, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, self._until_shutdown(receive), send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method, path = scope["method"].upper(), scope["path"]
        if method == "GET" and path == self._advertise:
            await send_reply(send, lifetime_of(self._policy))
            return
        matched = self._policy.scope_of(method, path)
        values = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"idempotency-key"]
        try:
            if matched is None or not (values or matched.required):
                await self._app(scope, receive, send)
            else:
                await self._once(scope, receive, send, matched, values)
        except Refusal as refusal:
            await send_reply(send, self._form.refused(refusal))

    async def _once(self, scope: Asgi, receive: Receive, send: Send, matched: Scope, values: list[str]) -> None:
        """Answers a request with a key. Raises: Refusal, before anything was sent."""
        with measured(self._meter) as outcome:
            body_of = _RequestBody(scope, receive, self._policy)
            request = await self._read(scope, matched, values, body_of)
            if request is None:
                return  # the client left before it had sent its request
            call = _ApplicationCall(self._app, scope, request, send, self._policy.max_response_bytes)
            response = await self._here().answer(request, self._checked(request, call))
            other = None if response.own else await self._form.replayed(request, response.reply)
            outcome.got(response, self._policy)
        await _respond(send, call, response, other)

    def _checked(self, request: KeyedRequest, call: _ApplicationCall) -> Effect:
        async def effect(attempt: KeyAttempt) -> Reply:
            answer = await call(attempt)
            if not call.sent and (checked := await self._form.checked(request, answer)) is not answer:
                call.start = started(checked)
                return checked
            return answer

        return effect

    def _here(self) -> ReplyCoordinator:
        if self._coordinator is None:
            self._coordinator = ReplyCoordinator(self._ledger, self._policy, self._reconcile, meter=self._meter)
        return self._coordinator

    async def close(self, *, grace: float = SHUTDOWN) -> None:
        """Waits for running requests and closes the ledger. The server's shutdown does it, if it speaks ASGI's lifespan."""
        if self._coordinator is not None:
            await self._coordinator.close(grace=grace)
        await self._ledger.close()

    def _until_shutdown(self, receive: Receive) -> Receive:
        async def received() -> Asgi:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self.close()  # before the application closes what its running requests use
            return message

        return received

    async def _read(self, scope: Asgi, matched: Scope, values: list[str], body_of: _RequestBody) -> KeyedRequest | None:
        """The whole request, or None: the client left. Raises: Refusal, and nothing is reserved."""
        key = checked_key(values, self._policy)
        body = await body_of.read()
        if body is None:
            return None
        return keyed_request(
            self._policy,
            matched,
            key,
            caller=self._caller(scope),
            method=scope["method"].upper(),
            path=scope["path"],
            query=scope.get("query_string", b"").decode("latin-1"),
            headers=[(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]],
            body=body,
            more={"scope": scope},
        )


class _RequestBody:
    """Reads a request's body, within the policy's size and time."""

    def __init__(self, scope: Asgi, receive: Receive, policy: ReplyPolicy) -> None:
        self._receive, self._policy = receive, policy
        lengths = [value for name, value in scope["headers"] if name.lower() == b"content-length"]
        self._declared = declared_length(lengths[0].decode("latin-1")) if lengths else None

    async def read(self) -> bytes | None:
        """None: the client left. Raises: Refusal."""
        check_length(self._declared, None, self._policy)
        try:
            async with asyncio.timeout(self._policy.body_timeout):
                body = await self._all()
        except TimeoutError:
            raise Refusal(
                408,
                "slow-body",
                f"the body did not come within {self._policy.body_timeout:g} s; send the request again",
            ) from None
        if body is not None:
            check_length(self._declared, len(body), self._policy)
        return body

    async def _all(self) -> bytes | None:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            size += len(part)
            check_length(None, size, self._policy)
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)


class _ApplicationCall:
    """Runs the application for one request and collects its answer; sends it on while it comes, once it is too large to be kept."""

    def __init__(self, app: App, scope: Asgi, request: KeyedRequest, send: Send, most: int) -> None:
        self._app, self._scope, self._request, self._send, self._most = app, scope, request, send, most
        self.start: Asgi | None = None
        self._parts: list[bytes] = []
        self.sent = False
        """The client has got the start of the answer."""
        self._size = 0
        self._complete = False
        self._given = False
        self._ended = asyncio.Event()

    async def __call__(self, attempt: KeyAttempt) -> Reply:
        # Without extensions an answer is nothing but a start and parts of a body.
        scope = {**self._scope, "extensions": {}, "sparkonce": state_of(self._request, attempt)}
        try:
            await self._app(scope, self._receive, self._collect)
        finally:
            self._ended.set()
        if self.start is None or not self._complete:
            raise RuntimeError("the application ended without an answer")
        headers = tuple(
            (name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in self.start.get("headers", ())
        )
        return Reply(self.start["status"], headers, b"".join(self._parts), self._size if self.sent else 0)

    async def _receive(self) -> Asgi:
        if not self._given:
            self._given = True
            return {"type": "http.request", "body": self._request.body, "more_body": False}
        await self._ended.wait()  # a client that leaves cancels nothing
        return {"type": "http.disconnect"}

    async def _collect(self, message: Asgi) -> None:
        if message["type"] == "http.response.start":
            self.start = message
            return
        if message["type"] != "http.response.body":
            return
        part = bytes(message.get("body", b""))
        self._size += len(part)
        self._complete = not message.get("more_body", False)
        if self.sent:
            await self._pass_on(part)
            return
        self._parts.append(part)
        if self._size > self._most:
            whole, self._parts, self.sent = b"".join(self._parts), [], True
            assert self.start is not None
            with suppress(Exception):
                await self._send(self.start)
            await self._pass_on(whole)

    async def _pass_on(self, part: bytes) -> None:
        with suppress(Exception):  # the client left, and the application goes on
            await self._send({"type": "http.response.body", "body": part, "more_body": not self._complete})


async def _respond(send: Send, call: _ApplicationCall, response: Response, other: Reply | None) -> None:
    """other: what is sent in place of the request's own answer."""
    if other is None:
        if not call.sent:
            assert call.start is not None
            await send(call.start)
            await send({"type": "http.response.body", "body": response.reply.body})
        return
    if call.sent:
        return  # the application's own answer is on its way already, and another one is recorded
    await send_reply(send, other)


def started(reply: Reply) -> Asgi:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
    return {"type": "http.response.start", "status": reply.status, "headers": headers}


async def send_reply(send: Send, reply: Reply) -> None:
    await send(started(reply))
    await send({"type": "http.response.body", "body": reply.body})
