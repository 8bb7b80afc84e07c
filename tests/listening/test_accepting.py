"""Clients of a real server that send or read slowly: which of them are closed, and which are left alone."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import trustme
import uvicorn

from harness.eventually import assert_eventually
from harness.patience import stretched
from sparkonce.listening.accepting import ConnectionRules, Server
from sparkonce.listening.address import Listening
from sparkonce.listening.connections import ClosedFor, ConnectionLimits, Connections, ConnectionTimes

TIMES = ConnectionTimes(body=stretched(2.0), body_rate=1000.0, unread=1.0)
WAITS = TIMES.body + 1.0
"""Seconds: more than a client has."""


class Service:
    """Reads each body and answers with its length, or does what its path says."""

    def __init__(self) -> None:
        self.closed: list[ClosedFor] = []

    async def __call__(self, scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        if scope["path"] == "/waits":
            await asyncio.sleep(WAITS)  # the client has sent what it can meanwhile
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            size, more = size + len(message.get("body", b"")), message.get("more_body", False)
        body = bytes(20_000_000) if scope["path"] == "/long" else str(size).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body"})  # waits until the client reads


@contextmanager
def served(service: Service, *, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """The port of a server in a thread of its own."""
    listening = Listening.of("127.0.0.1:0").socket()
    config = uvicorn.Config(service, log_config=None, lifespan="off", ws="none")
    config.load()
    config.ssl = tls
    connections = Connections(ConnectionLimits(total=10, per_client=10), TIMES)
    rules = ConnectionRules(connections=connections, on_closed=service.closed.append, refused=lambda *_: ([], b""))
    server = Server(config, rules)
    thread = threading.Thread(target=asyncio.run, args=(server.serve([listening]),))
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def posting(port: int, path: str, size: int) -> Iterator[socket.socket]:
    """A connection on which the headers of a request with a body of this size were sent."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(stretched(60.0))
        client.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode())
        yield client


def answer(client: socket.socket) -> bytes:
    said = b""
    with suppress(ConnectionResetError):
        while part := client.recv(65536):
            said += part
    return said


def test_a_body_that_drips_is_overdue() -> None:
    """Far below the rate: each byte gives a thousandth of a second."""
    service = Service()
    with served(service) as port, posting(port, "/", 1_000_000) as client:
        began = time.monotonic()
        with suppress(ConnectionError):
            while time.monotonic() - began < stretched(60.0):
                client.sendall(b"x")
                time.sleep(0.05)  # drips
        assert time.monotonic() - began >= TIMES.body
    assert service.closed == [ClosedFor.OVERDUE]


def test_a_long_body_above_the_rate_arrives() -> None:
    """It takes longer than a body may pause."""
    service = Service()
    with served(service) as port, posting(port, "/", 100_000) as client:
        for _ in range(10):
            client.sendall(b"x" * 10_000)
            time.sleep(WAITS / 10)  # some thousand bytes a second
        assert b"\r\n100000\r\n" in answer(client)
    assert not service.closed


def test_what_the_application_does_not_take_is_not_the_clients_fault() -> None:
    """The client could not send more: the application reads nothing for longer than a body may pause."""
    service = Service()
    with served(service) as port, posting(port, "/waits", 20_000_000) as client:
        client.sendall(b"x" * 20_000_000)
        assert b"\r\n20000000\r\n" in answer(client)
    assert not service.closed


def test_an_answer_that_nobody_reads_is_closed() -> None:
    """More than the buffers of the connection hold."""
    service = Service()
    with served(service) as port, posting(port, "/long", 0) as client:
        assert_eventually(lambda: service.closed == [ClosedFor.OVERDUE], 20.0)
        assert len(answer(client)) < 20_000_000


def test_tls_is_tls_only_unless_it_is_said(tmp_path: Path) -> None:
    """Plain text on a port with TLS gets no answer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    with served(Service(), tls=context) as port, posting(port, "/", 0) as client:
        assert b"200" not in answer(client)
