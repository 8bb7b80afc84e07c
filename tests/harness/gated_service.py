"""A service that counts what it did, and answers a POST only once the test lets it."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar, cast


class Gated(BaseHTTPRequestHandler):
    """POST waits for `gate` after its effect, which is its body in `effects`."""

    gate = threading.Event()
    effects: list[bytes] = []

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        type(self).effects.append(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.gate.wait(60)
        self.answer()

    def answer(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: object) -> None:
        pass


G = TypeVar("G", bound=Gated)


@contextmanager
def gated(kind: type[G], context: ssl.SSLContext | None = None) -> Iterator[tuple[int, type[G]]]:
    """A service's port, and what it did: a class of its own, of this kind. context: it speaks TLS."""
    handler = cast("type[G]", type("Handler", (kind,), {"gate": threading.Event(), "effects": []}))
    service = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if context is not None:
        service.socket = context.wrap_socket(service.socket, server_side=True)
    serving = threading.Thread(target=service.serve_forever, daemon=True)
    serving.start()
    try:
        yield service.server_port, handler
    finally:
        handler.gate.set()
        service.shutdown()
        service.server_close()
        serving.join()
