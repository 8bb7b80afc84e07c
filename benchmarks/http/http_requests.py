"""Sends requests to an ASGI application in the same process, and has the bare application that the benchmarks of HTTP compare with.

No server and no socket takes part: what a server costs is the same with and without the middleware, and would hide what the middleware
adds. A request is a POST with a JSON body of 200 bytes, as an order has; its answer has another 200 and two headers that a replay keeps.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from uuid import uuid4

from measure import WrongEffect

from sparkonce.asgi import App, Asgi, Receive, Send

PATIENCE = 60.0
"""Seconds for a lease, and for a store's answer: a disk that stalls makes a sample slow, and ends no claim and no verb."""
PATH = "/orders"
BODY = json.dumps({"customer": "c-0042", "lines": [{"article": "a-1", "number": 2}], "note": "x" * 120}).encode()
ANSWER = json.dumps({"id": 4711, "status": "accepted", "total": "19.90", "note": "y" * 130}).encode()
HEADERS = [
    (b"content-type", b"application/json"),
    (b"content-length", str(len(ANSWER)).encode()),
    (b"location", b"/orders/4711"),
]


@dataclass
class BareOrders:
    """The application: reads the request's body and answers 201. It keeps nothing but the number of its runs."""

    runs: int = 0

    async def __call__(self, scope: Asgi, receive: Receive, send: Send) -> None:
        del scope  # every request is an order
        more = True
        while more:
            message = await receive()
            more = message.get("more_body", False)
        self.runs += 1
        await send({"type": "http.response.start", "status": 201, "headers": HEADERS})
        await send({"type": "http.response.body", "body": ANSWER})


@dataclass
class SentRequest:
    """One request with a key, and its answer."""

    key: str = field(default_factory=lambda: uuid4().hex)
    status: int = 0
    replayed: bool = False
    body: bytes = b""
    _given: bool = False

    async def to(self, app: App) -> SentRequest:
        await app(self.scope(), self._receive, self._send)
        return self

    def expect(self, *, status: int = 201, replayed: bool = False) -> None:
        """Raises: WrongEffect."""
        if (self.status, self.replayed) != (status, replayed) or (status == 201 and self.body != ANSWER):
            answered = f"{self.status}{' (replayed)' if self.replayed else ''}"
            raise WrongEffect(f"a request was answered {answered}: {self.body[:200].decode(errors='replace')}")

    def scope(self) -> Asgi:
        headers = [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(BODY)).encode()),
            (b"authorization", b"Bearer token"),
            (b"idempotency-key", self.key.encode()),
        ]
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": PATH,
            "raw_path": PATH.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }

    async def _receive(self) -> Asgi:
        if self._given:
            await asyncio.Event().wait()  # the client stays until it is answered
        self._given = True
        await asyncio.sleep(
            0
        )  # as with a server, the loop turns between two requests, and drops timers that were cancelled
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def _send(self, message: Asgi) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.replayed = any(name == b"idempotency-replayed" for name, _ in message["headers"])
        else:
            self.body += message.get("body", b"")
