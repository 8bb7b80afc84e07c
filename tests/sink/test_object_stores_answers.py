"""Replies of a store that prove nothing, and the outcome of a commit that gets them. The server is scripted, since no real one sends them
on demand."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from harness import store_servers
from harness.patience import stretched
from harness.slots import committing
from sparkonce.blocking import run
from sparkonce.errors import OutputUnavailable
from sparkonce.sink.open import open_sink
from sparkonce.sink.protocol import AlreadyCommitted, Committed, Declared, Sink, SinkKey


class Scripted(ThreadingHTTPServer):
    """Implements as much of S3 as creating and reading a slot needs; the first creates are answered from `answers`, whatever they did."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.held: dict[str, bytes] = {}
        self.answers: list[tuple[int, bool]] = []
        """Status, and whether the object was created all the same."""
        self.creates = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Scripted

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["If-None-Match"] == "*"
        self.server.creates += 1
        status, lands = self.server.answers.pop(0) if self.server.answers else (200, True)
        if lands and self.path in self.server.held:
            status, lands = 412, False
        if lands:
            self.server.held[self.path] = data
        self._say(status)

    def do_GET(self) -> None:
        data = self.server.held.get(self.path)
        self._say(404 if data is None else 200, data or b"")

    def log_message(self, *_: object) -> None:
        """Logs nothing."""

    def _say(self, status: int, data: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Sat, 01 Jun 2024 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    """A scripted server, which sinks find through environment variables."""
    store_servers.no_proxy(monkeypatch)
    server = Scripted()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{server.server_address[1]}"
    known = store_servers.StoreServer(
        name="scripted",
        scheme="s3",
        address=address,
        endpoint="AWS_ENDPOINT_URL_S3",
        credentials={"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "S", "AWS_REGION": "us-east-1"},
    )
    known.use(monkeypatch)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def sink(server: Scripted) -> Sink:
    """A slot log on the scripted server."""
    return open_sink(Declared(name="orders", kind="slotLog", location="s3://lake/orders"), base=None)


@pytest.mark.parametrize(
    "answers",
    [
        [(409, False)],
        [(409, False), (409, False)],
        [(409, True)],
        [(500, True)],
        [(503, False), (500, True), (500, False)],
        [(412, False)],
    ],
    ids=str,
)
def test_our_own_commit_after_odd_answers(
    answers: list[tuple[int, bool]], server: Scripted, sink: Sink, key: SinkKey
) -> None:
    """Whether or not the create took effect, and whatever the reply was (409: another request is in progress; 500 or 503: an error; 412:
    the object exists, although it may not), the commit ends as our own, with one object."""
    server.answers = list(answers)
    slot = committing(key, 1)
    assert run(sink.commit(key, slot)) == Committed(slot)
    assert len(server.held) == 1
    assert server.creates >= 2 or answers == [(409, True)]


def test_a_twin_that_was_first(server: Scripted, sink: Sink, key: SinkKey) -> None:
    """A create that took effect although its reply was 500 belongs to its sender: the other write gets that commit, not the reverse."""
    first, second = committing(key, 1, nonce="first"), committing(key, 1, nonce="second")
    server.answers = [(500, True)]
    assert run(sink.commit(key, first)) == Committed(first)
    server.answers = [(409, False)]
    assert run(sink.commit(key, second)) == AlreadyCommitted(first)


def test_only_errors(server: Scripted, sink: Sink, key: SinkKey) -> None:
    """If the store always answers 409 and shows no object, the commit stays unknown, neither committed nor fenced."""
    server.answers = [(409, False)] * 50
    with pytest.raises(OutputUnavailable, match=r"whether slot 1 of .* is committed is unknown"):
        run(sink.commit(key, committing(key, 1)))
    assert server.held == {}


@pytest.mark.slow
def test_a_silent_endpoint(key: SinkKey, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that accepts connections and never answers is unavailable, in one sentence, within half a minute."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as silent:
        known = store_servers.StoreServer(
            name="silent",
            scheme="s3",
            address=f"127.0.0.1:{silent.getsockname()[1]}",
            endpoint="AWS_ENDPOINT_URL_S3",
            credentials={"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "S"},
        )
        store_servers.no_proxy(monkeypatch)
        known.use(monkeypatch)
        sink = open_sink(Declared(name="orders", kind="slotLog", location="s3://lake/orders"), base=None)
        began = time.monotonic()
        with pytest.raises(
            OutputUnavailable, match=r"the store does not answer; .*; whether slot 1 of .* is closed is unknown$"
        ):
            run(sink.fence(key, 2, fingerprint="f", by="settle"))
        assert time.monotonic() - began < stretched(30)
