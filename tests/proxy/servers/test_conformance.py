"""Generated requests to the example's order service, behind the middleware and behind the proxy: each answer is one of its OpenAPI
document, which has no 5xx but 503, and no refusal of ours that is not `application/problem+json`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from harness import effort
from harness.orders import OrderService, placed
from harness.reply_proxy import started_proxy
from harness.schemathesis import conforms

EXAMPLES = effort.size("generated requests")
KEYS = ["k1", '"k1"', "k2", "0190a5c8-7f4e-7cc3-98c4-dc0c0c07398f", "0190A5C8-7F4E-7CC3-98C4-DC0C0C07398F"]
"""Few, so that requests repeat them, with the same body or another one."""

Json = dict[str, Any]


def answer(description: str, **media: Json) -> Json:
    """An answer of the document; `media`: schemas by the last part of their type."""
    names = {"json": "application/json", "problem": "application/problem+json"}
    return {"description": description, "content": {names[name]: {"schema": each} for name, each in media.items()}}


PROBLEM: Json = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "additionalProperties": False,
    "properties": {
        "type": {"type": "string", "pattern": "^urn:sparkonce:problem:[a-z-]+$"},
        "title": {"type": "string", "pattern": "^[a-z-]+$"},
        "status": {"type": "integer", "minimum": 400, "maximum": 503},
        "detail": {"type": "string", "minLength": 20},
    },
}
ORDER: Json = {
    "type": "object",
    "required": ["item", "count"],
    "properties": {
        "item": {"type": "string", "minLength": 1, "maxLength": 100},
        "count": {"type": "integer", "minimum": 1, "maximum": 1000},
    },
}
PLACED: Json = {
    "type": "object",
    "required": ["id", "item", "count"],
    "additionalProperties": False,
    "properties": {"id": {"type": "integer", "minimum": 1}, **ORDER["properties"]},
}
INVALID: Json = {"type": "object", "required": ["detail"], "additionalProperties": False, "properties": {"detail": {}}}
"""FastAPI's answer to a body that is no order."""
LIFETIME: Json = {
    "type": "object",
    "required": ["idempotency-key-lifetime"],
    "additionalProperties": False,
    "properties": {"idempotency-key-lifetime": {"const": "PT24H"}},
}
HEADERS: Json = {
    "Location": {"required": True, "schema": {"type": "string", "pattern": "^/orders/[0-9]+$"}},
    "Idempotency-Replayed": {"schema": {"type": "string", "const": "true"}},
}
DOCUMENT: Json = {
    "openapi": "3.1.0",
    "info": {"title": "orders", "version": "1"},
    "paths": {
        "/orders": {
            "post": {
                "parameters": [
                    {
                        "name": "Idempotency-Key",
                        "in": "header",
                        "schema": {"anyOf": [{"enum": KEYS}, {"type": "string", "maxLength": 300}]},
                    }
                ],
                "requestBody": {"required": True, "content": {"application/json": {"schema": ORDER}}},
                "responses": {
                    "201": {**answer("the order", json=PLACED), "headers": HEADERS},
                    "400": answer("no key, or a body that cannot be read", problem=PROBLEM, json=INVALID),
                    "409": answer("the first request still runs", problem=PROBLEM),
                    "413": answer("a body that is too long", problem=PROBLEM),
                    "422": answer("a key of another request, or no order", problem=PROBLEM, json=INVALID),
                    "503": answer("not now", problem=PROBLEM),
                },
            }
        },
        "/v1/config": {"get": {"responses": {"200": answer("the lifetime", json=LIFETIME)}}},
    },
}


def test_the_middleware_answers_as_documented(tmp_path: Path, say: Callable[[str], None]) -> None:
    """Whatever key and body a request has; orders are placed under several keys, and the service serves on."""
    with OrderService(tmp_path) as service:
        sent = conforms(tmp_path, DOCUMENT, service.url, examples=EXAMPLES, seed=effort.seed("generated requests"))
        assert httpx.get(f"{service.url}/openapi.json").status_code == 200
    orders = placed(tmp_path)
    assert len(orders) > 1
    say(f"{sent} requests, {orders.total()} orders, {len(orders)} keys")


def test_the_proxy_answers_as_documented(tmp_path: Path, say: Callable[[str], None]) -> None:
    """The same before the service without the middleware: its own answers to what it refuses pass through."""
    with (
        OrderService(tmp_path, app="service:service") as service,
        started_proxy(tmp_path, service.url, "--advertise", "/v1/config", shows="/v1/config") as (url, _),
    ):
        sent = conforms(tmp_path, DOCUMENT, url, examples=EXAMPLES, seed=effort.seed("generated requests"))
        assert httpx.get(f"{url}/openapi.json").status_code == 200
    assert placed(tmp_path).total() > 1
    say(f"{sent} requests, {placed(tmp_path).total()} orders")
