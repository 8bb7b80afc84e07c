"""A gateway in this process with real reviews, token cache and metrics: no token that it receives appears in any of its outputs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

import httpx
import pytest

from harness import planted
from harness.memory_store import MemoryStore
from sparkonce.errors import StoreUnavailable
from sparkonce.gateway.app import Parts, create_app
from sparkonce.gateway.decisions import Decisions
from sparkonce.gateway.tokens import Tokens
from sparkonce.kube.client import ApiClient
from sparkonce.kube.review import TOKEN_REVIEWS, Reviews
from sparkonce.launch.kubernetes import ApiRefused, ApiUnavailable, Json, Resource
from sparkonce.observe.gateway_metrics import GatewayMetrics

AUDIENCE = "gateway.sparkonce.dev/tests"
TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbmVk"
KEYS = "/v1/namespaces/etl/keys"
ATTEMPT = f"/v1/attempts/etl/{'ab' * 32}/1/1"


class Server:
    """An API server that accepts every token and right, unless `error` is set, which each request then raises."""

    def __init__(self) -> None:
        self.error: Callable[[], Exception] | None = None

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any], *, strict: bool = True) -> Json:
        del namespace
        if self.error is not None:
            raise self.error()
        if resource is not TOKEN_REVIEWS:
            return {"status": {"allowed": True}}
        return {"status": {"authenticated": True, "user": {"username": "ann"}, "audiences": body["spec"]["audiences"]}}

    async def get(self, *_: object) -> None:
        return None


class Broken(MemoryStore):
    """A ledger whose reads raise."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    async def list(self, *_: object, **__: object) -> Any:
        raise self._error


class Scene:
    """Keeps all outputs of the gateway: answers, log and metrics."""

    def __init__(self, store: MemoryStore) -> None:
        self.server = Server()
        metrics = GatewayMetrics(announced=lambda: True)
        reviews = Reviews(cast("ApiClient", self.server), audience=AUDIENCE)
        self.app = create_app(
            Parts(
                store=store,
                authenticator=Tokens(reviews, on_answer=metrics.token),
                authorizer=reviews,
                objects=reviews,
                decisions=Decisions(lambda: store, install="i"),
                audience=AUDIENCE,
                metrics=metrics.text,
                on_request=metrics.requested,
            )
        )

    def ask(self, method: str, path: str, *, token: str = TOKEN, **more: Any) -> int:
        async def asked() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
                return await client.request(method, path, headers={"Authorization": f"Bearer {token}"}, **more)

        planted.secret(token)
        answer = asyncio.run(asked())
        planted.said(f"answer to {method} {path}", f"{answer.headers}\n{answer.text}")
        return answer.status_code


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG)
    return caplog


REFUSES = [
    lambda: ApiUnavailable("no answer"),
    lambda: ApiRefused("forbidden", code=403, reason="Forbidden"),
    lambda: RuntimeError("a defect"),
]


def test_no_output_of_a_gateway_has_a_token(log: pytest.LogCaptureFixture) -> None:
    """No token appears in answers, metrics or the log at DEBUG: whether the request is answered, its path, method or body is wrong, or the
    token is refused, too long or cannot be reviewed."""
    scene = Scene(MemoryStore())
    assert scene.ask("GET", KEYS) == 200
    assert scene.ask("GET", f"{KEYS}/none") == 404
    assert scene.ask("POST", f"{KEYS}/none/forget", json={"reason": 1}) == 422
    assert scene.ask("GET", "/v1/nothing") == 404
    assert scene.ask("DELETE", KEYS) == 405
    assert scene.ask("POST", f"{ATTEMPT}/renew", json={"nonce": "n", "progress": {}}) == 403
    assert scene.ask("POST", f"{ATTEMPT}/renew", content=b"no json") == 422
    assert scene.ask("GET", KEYS, token="long" * 5000) in (401, 431)
    for number, error in enumerate(REFUSES):
        scene.server.error = error
        assert scene.ask("GET", KEYS, token=f"{TOKEN}{number}") >= 400
    planted.said("log", log.text)
    assert scene.ask("GET", "/metrics") == 200
    assert planted.leaks() == []


@pytest.mark.parametrize("error", [StoreUnavailable("no answer"), RuntimeError("a defect")])
def test_a_request_that_fails_tells_no_token(log: pytest.LogCaptureFixture, error: Exception) -> None:
    """A request that fails by an unexpected error reveals no token, neither in its answer nor in the logged traceback."""
    assert Scene(Broken(error)).ask("GET", KEYS) in (500, 503)
    assert log.text or isinstance(error, StoreUnavailable)
    planted.said("log", log.text)
    assert planted.leaks() == []
