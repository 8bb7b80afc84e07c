"""Sends requests to an ASGI application without a server: a test decides when the body comes and when the client leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

App = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]
]


@dataclass
class Got:
    """What the client got."""

    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    complete: bool = False

    def header(self, name: str) -> str | None:
        return next((value for known, value in self.headers if known == name), None)

    @property
    def replayed(self) -> bool:
        return self.header("idempotency-replayed") == "true"

    @property
    def title(self) -> str:
        """Of a problem."""
        return str(json.loads(self.body)["title"])


async def ask(
    app: App,
    *,
    method: str = "POST",
    path: str = "/orders",
    query: str = "",
    key: str | Sequence[str] | None = "k1",
    headers: Sequence[tuple[str, str]] = (),
    body: bytes | Sequence[bytes] = b"{}",
    pause: float = 0.0,
    gone: asyncio.Event | None = None,
    got: Got | None = None,
) -> Got:
    """`path`: as it is sent; `body`: parts come one by one, `pause` seconds apart; `gone`: set when the client has left, whose sends fail
    from then on."""
    keys = [] if key is None else [key] if isinstance(key, str) else list(key)
    parts = [body] if isinstance(body, bytes) else list(body)
    lines = [("content-type", "application/json"), *(("idempotency-key", each) for each in keys), *headers]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": unquote(path),
        "raw_path": path.encode(), "query_string": query.encode(), "scheme": "http", "root_path": "", "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in lines],
        "extensions": {"http.response.trailers": {}},
    }  # fmt: skip
    answer = Got() if got is None else got
    left = list(parts)

    async def receive() -> dict[str, Any]:
        if left:
            await asyncio.sleep(pause)
            part = left.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(left)}
        await (gone or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if gone is not None and gone.is_set():
            raise OSError("the client has left")
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]]
        else:
            answer.body += message.get("body", b"")
            answer.complete = not message.get("more_body", False)

    await app(scope, receive, send)
    return answer
