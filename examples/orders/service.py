"""An order service: each order is placed once, however often its request is sent, and whenever the service dies.

    uvicorn service:app --port 8080
    curl -i localhost:8080/orders -H 'Idempotency-Key: 7f1c' -H 'Content-Type: application/json' -d '{"item": "chair", "count": 2}'

Send it twice: the second answer is the first one's, with `Idempotency-Replayed: true`. The service keeps its orders in ORDERS (a SQLite
file) and the middleware its answers in REPLIES (an address).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from sparkonce.asgi import IdempotencyMiddleware, KeyedRequest, NotDone, Reply

ORDERS = os.environ.get("ORDERS", "orders.db")
REPLIES = os.environ.get("REPLIES", "sqlite:///replies.db")
LEASE = float(os.environ.get("LEASE", "10"))


class Order(BaseModel):
    item: str = Field(min_length=1, max_length=100)
    count: int = Field(gt=0, le=1000)


@contextmanager
def orders() -> Iterator[sqlite3.Connection]:
    """One transaction on the table of orders."""
    connection = sqlite3.connect(ORDERS, isolation_level=None, timeout=10)
    try:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT, count INTEGER, key TEXT, caller TEXT)"
        )
        connection.execute(
            "CREATE TABLE IF NOT EXISTS fences (key TEXT, caller TEXT, token INTEGER, PRIMARY KEY (key, caller))"
        )
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT")
    finally:
        connection.close()


service = FastAPI()


@service.post("/orders", status_code=201)
def place(order: Order, request: Request) -> JSONResponse:
    """Stores the key with the order, and nothing if it is there or if a later attempt has begun: in one transaction."""
    attempt = request.scope.get("sparkonce", {"key": None, "token": 1})
    caller = request.headers.get("authorization", "")
    with orders() as table:
        if (found := placed(table, attempt["key"], caller)) is not None:
            return found
        fence = table.execute(
            "SELECT token FROM fences WHERE key = ? AND caller = ?", (attempt["key"], caller)
        ).fetchone()
        if fence is not None and fence[0] > attempt["token"]:
            raise HTTPException(503, "a later attempt of this request has begun")
        row = (order.item, order.count, attempt["key"], caller)
        number = table.execute("INSERT INTO orders (item, count, key, caller) VALUES (?, ?, ?, ?)", row).lastrowid
    return answer(number, order.item, order.count)


def placed(table: sqlite3.Connection, key: str | None, caller: str) -> JSONResponse | None:
    """The answer to the request with this key, if its order is there. So the service does not depend on its ledger of answers alone."""
    row = table.execute("SELECT id, item, count FROM orders WHERE key = ? AND caller = ?", (key, caller)).fetchone()
    return None if row is None else answer(*row)


def answer(number: int | None, item: str, count: int) -> JSONResponse:
    return JSONResponse({"id": number, "item": item, "count": count}, 201, {"location": f"/orders/{number}"})


def reconcile(request: KeyedRequest) -> Reply | type[NotDone]:
    """What became of a request whose process died: its order, or none, and then no order of that attempt can appear any more."""
    caller = dict(request.headers).get("authorization", "")
    with orders() as table:
        found = placed(table, request.text, caller)
        if found is None:
            table.execute("INSERT OR REPLACE INTO fences VALUES (?, ?, ?)", (request.text, caller, request.token))
            return NotDone
    headers = tuple((name.decode(), value.decode()) for name, value in found.raw_headers if name != b"content-length")
    return Reply(found.status_code, headers, bytes(found.body))


def caller_of(scope: Mapping[str, Any]) -> str:
    """Who sends a request, told as `place` and `reconcile` tell it: else two of its callers could be one of the middleware's."""
    return dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")


app = IdempotencyMiddleware(
    service, store=REPLIES, reconcile=reconcile, caller=caller_of, lease=LEASE, advertise="/v1/config"
)
