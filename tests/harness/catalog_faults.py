"""An HTTP server between a client and an Iceberg catalog that fails on demand: after the catalog has done its work, or before.

Also stands for catalogs that vend credentials or name an address of their own, and for a caller without rights: Iceberg's own test server
knows none of these.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from harness.child import Child
from harness.reply_proxy import started_proxy

SECRET = "planted-secret-of-a-store"
"""Vended with every table."""
STRANGER = "Bearer stranger"
"""Of a caller who may do nothing."""
_HOP = {"connection", "transfer-encoding", "content-length", "content-encoding", "keep-alive"}


class CatalogFault(StrEnum):
    LOST = "lost"
    """The catalog answers, and the connection breaks before the client has its answer."""
    LIE = "lie"
    """The catalog answers, and the client is told 503."""
    BROKEN = "broken"
    """The connection breaks before the catalog has the request."""
    TWICE = "twice"
    """The catalog gets the request twice, as from a balancer that repeats it, and the client gets the second answer."""


class FaultyCatalog:
    """`plan`: asked for each request with a body or of DELETE; its answer strikes."""

    def __init__(self, target: str) -> None:
        self.plan: Callable[[str, str], CatalogFault | None] = lambda method, path: None
        self.requests: list[tuple[str, str, int]] = []
        """Method, path and the catalog's status of each request that changes something."""
        self.delay = 0.0
        """Seconds before the catalog gets such a request."""
        self.reads = True
        """False: GET is answered with 503."""
        self._client = httpx.Client(base_url=target, timeout=60.0, trust_env=False)
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                server._handle(self)

            do_GET = do_HEAD = do_POST = do_DELETE = handle_any  # noqa: N815 - the base class looks for these names

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base class names it
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._client.close()

    def changes(self, method: str = "POST") -> list[tuple[str, int]]:
        """Path and status of each request of this method that the catalog got."""
        return [(path, status) for each, path, status in self.requests if each == method]

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        method, path = handler.command, handler.path
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        if handler.headers.get("Authorization") == STRANGER:
            _send(
                handler,
                403,
                json.dumps({"error": {"message": "no", "type": "ForbiddenException", "code": 403}}).encode(),
            )
            return
        if method == "GET" and not self.reads:
            _send(handler, 503, b"{}")
            return
        changes = method in ("POST", "DELETE") and not path.endswith("/metrics")
        fault = self.plan(method, path) if changes else None
        if fault is CatalogFault.BROKEN:
            handler.close_connection = True
            return
        if changes and self.delay:
            time.sleep(self.delay)  # a catalog that takes its time
        headers = {name: value for name, value in handler.headers.items() if name.lower() not in {*_HOP, "host"}}
        answers = [
            self._client.request(method, path, headers=headers, content=body or None)
            for _ in range(2 if fault is CatalogFault.TWICE else 1)
        ]
        if changes:
            self.requests += [(method, path.partition("?")[0], each.status_code) for each in answers]
        answer = answers[-1]
        if fault is CatalogFault.LOST:
            handler.close_connection = True
            return
        if fault is CatalogFault.LIE:
            _send(handler, 503, b"{}")
            return
        _send(handler, answer.status_code, _vended(answer))


def _vended(answer: httpx.Response) -> bytes:
    if answer.status_code == 200 and '"overrides"' in answer.text:
        told = answer.json()
        return json.dumps({**told, "overrides": {**told["overrides"], "uri": "http://elsewhere"}}).encode()
    if answer.status_code != 200 or '"metadata"' not in answer.text:
        return answer.content
    return json.dumps({**answer.json(), "config": {"s3.secret-access-key": SECRET}}).encode()


def _send(handler: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
    handler.send_response(status)
    if status not in (204, 304):
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if handler.command != "HEAD" and status not in (204, 304):
        handler.wfile.write(body)


@contextmanager
def faulty(target: str) -> Iterator[FaultyCatalog]:
    made = FaultyCatalog(target)
    try:
        yield made
    finally:
        made.close()


def once(fault: CatalogFault, part: str, times: int = 1) -> Callable[[str, str], CatalogFault | None]:
    """A plan that strikes so many requests whose path has this part."""
    left = [times]

    def plan(_: str, path: str) -> CatalogFault | None:
        if part in path and left[0] > 0:
            left[0] -= 1
            return fault
        return None

    return plan


def proxy(folder: Path, upstream: str, *, failpoints: str = "") -> AbstractContextManager[tuple[str, Child]]:
    """The URL and process of a proxy before a catalog."""
    return started_proxy(folder, upstream, "--profile", "iceberg", shows="/v1/config", failpoints=failpoints)
