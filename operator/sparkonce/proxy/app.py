"""The proxy as one ASGI application: the middleware before the upstream, and its refusals of requests without a key."""

from __future__ import annotations

from sparkonce.asgi import App, Asgi, IdempotencyMiddleware, Receive, Send, send_reply
from sparkonce.replies.coordinator import Refusal
from sparkonce.replies.exchange import problem_of
from sparkonce.replies.policy import ReplyPolicy
from sparkonce.replies.protocol import ReplyLedger


class ProxyApp:
    def __init__(
        self, upstream: App, *, store: str | ReplyLedger, policy: ReplyPolicy, advertise: str | None = None
    ) -> None:
        """Raises: InvalidInput, StoreUnusable, StoreUnavailable."""
        self._app = IdempotencyMiddleware(upstream, store=store, policy=policy, advertise=advertise)

    async def __call__(self, scope: Asgi, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except Refusal as refusal:  # of a request without a key: the upstream was not reached
            await send_reply(send, problem_of(refusal))
