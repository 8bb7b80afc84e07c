"""Clients that hold connections of a proxy, or leave it before they are answered, cost the others nothing."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from harness.child import free_port
from harness.eventually import assert_eventually
from harness.gated_service import Gated, gated
from harness.patience import stretched
from harness.reply_proxy import counting_service, started_proxy
from sparkonce.listening.connections import PATIENT

MOST = 60
"""Connections of the proxy."""
MANY = 100
"""Slow clients."""
HALF = b"POST /orders HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n%s\r\nhalf of a body"


@contextmanager
def held(port: int, request: bytes, number: int = MANY) -> Iterator[list[socket.socket]]:
    with ExitStack() as ends:
        yield [ends.enter_context(_sent(port, request)) for _ in range(number)]


def _sent(port: int, request: bytes) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port))
    made.sendall(request)
    return made


def counted(metrics: str, name: str) -> float:
    said = httpx.get(f"http://{metrics}/metrics").text
    return float(re.findall(rf"^{re.escape(name)} (\S+)$", said, re.MULTILINE)[0])


@pytest.mark.parametrize("headers", [b"", b"Idempotency-Key: slow\r\n"], ids=["without a key", "with a key"])
def test_half_sent_requests_make_room_for_whole_ones(tmp_path: Path, headers: bytes) -> None:
    """More slow clients than the proxy has connections, to the service too: others are answered at once, with keys and without."""
    options = ("--max-connections", str(MOST), "--http", metrics := f"127.0.0.1:{free_port()}")
    with (
        counting_service(tmp_path) as (service, _),
        started_proxy(tmp_path, f"http://127.0.0.1:{service}", *options, shows="/") as (url, _),
        held(int(url.rpartition(":")[2]), HALF % headers),
    ):
        assert_eventually(lambda: counted(metrics, "sparkonce_proxy_connections") >= MOST, 20.0)
        time.sleep(1.5 * PATIENT)  # time alone makes a half-sent request late: after PATIENT seconds
        for number in range(10):
            began = time.monotonic()
            assert httpx.get(f"{url}/").status_code == 200
            keyed = httpx.post(f"{url}/orders", content=b"x", headers={"Idempotency-Key": f"k{number}"})
            assert keyed.status_code == 201
            assert time.monotonic() - began < stretched(2.0)
        assert counted(metrics, "sparkonce_proxy_connections") <= MOST
        assert counted(metrics, 'sparkonce_proxy_connections_closed_total{why="room"}') >= MANY - MOST


@pytest.mark.parametrize("profile", [(), ("--profile", "iceberg")], ids=["any service", "a catalog"])
def test_what_is_no_http_is_refused_in_the_services_form(tmp_path: Path, profile: tuple[str, ...]) -> None:
    """400 with a sentence, in the form of other refusals, and nothing reaches the service."""
    with (
        counting_service(tmp_path) as (service, _),
        started_proxy(tmp_path, f"http://127.0.0.1:{service}", *profile, shows="/") as (url, _),
        _sent(int(url.rpartition(":")[2]), b"no http\r\n\r\n") as client,
    ):
        client.settimeout(stretched(20.0))
        said = client.makefile("rb").read().decode()
    assert said.startswith("HTTP/1.1 400")
    assert "this is not a valid HTTP/1.1 request; nothing was sent to the service" in said
    assert ("BadRequestException" if profile else "invalid-request") in said
    assert not (tmp_path / "effects").exists()


FEW = 3
"""Connections of a proxy to a service whose answers never end."""


class Endless(Gated):
    """Answers GET / at once. GET /stream has no last byte, and GET /silent no first one."""

    protocol_version = "HTTP/1.1"
    unfinished = 0
    lock = threading.Lock()

    def do_GET(self) -> None:  # noqa: N802 - http.server's name
        if self.path == "/":
            self.answer()
            return
        self._count(1)
        try:
            if self.path == "/stream":
                self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
                with suppress(OSError):
                    while True:
                        self.wfile.write(b"x" * 65536)
            self.connection.recv(1)  # returns at the connection's end
        except OSError:
            pass
        finally:
            self._count(-1)
        self.close_connection = True

    def _count(self, more: int) -> None:
        with self.lock:
            type(self).unfinished += more


@pytest.mark.parametrize("path", ["/stream", "/silent"])
def test_a_client_that_leaves_ends_its_request_at_the_service(tmp_path: Path, path: str) -> None:
    """Before the first byte of the answer, or within it: the service sees its connection end, which is free for other requests."""
    with (
        gated(Endless) as (port, service),
        started_proxy(tmp_path, f"http://127.0.0.1:{port}", "--max-connections", str(FEW), shows="/") as (url, _),
    ):
        request = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode()
        with held(int(url.rpartition(":")[2]), request, FEW) as clients:
            assert_eventually(lambda: service.unfinished == FEW, 20.0)
            if path == "/stream":
                assert all(client.recv(1) for client in clients)
        assert_eventually(lambda: service.unfinished == 0, 20.0)
        assert httpx.get(f"{url}/", timeout=20.0).text == "ok"


def test_a_client_that_leaves_a_request_with_a_key_gets_its_answer_later(tmp_path: Path) -> None:
    """The request runs to its end, and its answer is recorded for the repetition."""
    with (
        gated(Endless) as (port, service),
        started_proxy(
            tmp_path, f"http://127.0.0.1:{port}", "--http", metrics := f"127.0.0.1:{free_port()}", shows="/"
        ) as (url, _),
    ):
        address, keyed = int(url.rpartition(":")[2]), b"Idempotency-Key: left\r\nContent-Length: 1\r\n\r\nx"
        with _sent(address, b"POST /orders HTTP/1.1\r\nHost: x\r\n" + keyed):
            assert_eventually(lambda: len(service.effects) == 1, 20.0)
        assert_eventually(lambda: counted(metrics, "sparkonce_proxy_connections") == 0, 20.0)
        service.gate.set()
        answer = httpx.post(f"{url}/orders", content=b"x", headers={"Idempotency-Key": "left"}, timeout=60.0)
        assert (answer.text, answer.headers["idempotency-replayed"]) == ("ok", "true")
    assert len(service.effects) == 1
