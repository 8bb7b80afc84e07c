"""A service that appends each order to a file, behind one of several idempotency middlewares; `http_others.py` runs it.

`WHICH`: none, sparkonce, fastapi-idempotency, asgi-idempotency-header. `FOLDER`: holds `effects`, one line for each order that was placed.
`REDIS`: address of a Redis. The header `X-Do` says what happens to one order after it was placed: `slow`, `500` or `die`.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the other packages' environment has no sparkonce
    from sparkonce.asgi import Asgi, Receive, Send

FOLDER, WHICH = Path(os.environ["FOLDER"]), os.environ["WHICH"]
EFFECTS, DIED = FOLDER / "effects", FOLDER / "died"


async def orders(scope: Asgi, receive: Receive, send: Send) -> None:
    """An ASGI application."""
    if scope["type"] != "http":
        return
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    if scope["method"] == "GET":
        await answered(send, 200, {})
        return
    does = headers.get("x-do", "")
    with EFFECTS.open("a") as file:
        file.write(f"{headers.get('idempotency-key')}\n")
    number = len(EFFECTS.read_text().splitlines())
    if does == "die" and not DIED.exists():
        DIED.touch()
        os._exit(1)
    if does == "slow":
        await asyncio.sleep(2.0)  # an effect that takes its time
    await answered(
        send, 500 if does == "500" and number == 1 else 201, {"number": number, "caller": headers.get("authorization")}
    )


async def answered(send: Send, status: int, body: Any) -> None:
    text = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


def guarded() -> Any:
    match WHICH:
        case "sparkonce":
            from sparkonce.asgi import IdempotencyMiddleware, NotDone, Reply

            def reconcile(request: Any) -> Any:
                """The service's own knowledge: the file has the keys of its orders."""
                lines = EFFECTS.read_text().splitlines() if EFFECTS.exists() else []
                if request.text not in lines:
                    return NotDone
                text = json.dumps(
                    {"number": lines.index(request.text) + 1, "caller": dict(request.headers).get("authorization")}
                )
                return Reply(201, (("content-type", "application/json"),), text.encode())

            store = f"sqlite:///{FOLDER / 'replies.db'}"
            return IdempotencyMiddleware(orders, store=store, reconcile=reconcile, lease=2.0)
        case "fastapi-idempotency":
            from fastapi_idempotency import IdempotencyMiddleware as Theirs  # type: ignore[import-not-found]
            from fastapi_idempotency.stores.tortoise import TortoiseStore  # type: ignore[import-not-found]
            from tortoise import Tortoise  # type: ignore[import-not-found]

            inner = Theirs(orders, store=TortoiseStore(), lease_seconds=2.0, heartbeat_seconds=0.7)
            url = f"sqlite://{FOLDER / 'tortoise.db'}"

            async def opened(scope: Asgi, receive: Receive, send: Send) -> None:
                if scope["type"] == "lifespan":
                    await receive()
                    await Tortoise.init(
                        db_url=url,
                        modules={"models": ["fastapi_idempotency.stores.tortoise"]},
                        _enable_global_fallback=True,
                    )
                    await Tortoise.generate_schemas(safe=True)
                    await send({"type": "lifespan.startup.complete"})
                    await receive()
                    await send({"type": "lifespan.shutdown.complete"})
                    return
                await inner(scope, receive, send)

            return opened
        case "asgi-idempotency-header":
            from idempotency_header_middleware import IdempotencyHeaderMiddleware  # type: ignore[import-not-found]
            from idempotency_header_middleware.backends import RedisBackend  # type: ignore[import-not-found]
            from redis.asyncio import Redis  # type: ignore[import-not-found]

            return IdempotencyHeaderMiddleware(app=orders, backend=RedisBackend(Redis.from_url(os.environ["REDIS"])))
    return orders


app = guarded()
