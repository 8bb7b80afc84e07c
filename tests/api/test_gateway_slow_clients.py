"""Clients hold connections of a real gateway: each connection is closed in time, and other clients are answered meanwhile."""

from __future__ import annotations

import http.client
import itertools
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import pytest

from harness.apiserver import ADMIN, Cluster
from harness.eventually import assert_eventually
from harness.gateways import GatewayProcess, a_gateway
from harness.patience import promised, stretched
from sparkonce.gateway.gate import BODY_TIME, HEAD_BYTES
from sparkonce.listening.connections import ConnectionTimes

TIMES = ConnectionTimes()
MANY = 300
PROBE = 2.0
"""Seconds within which a kubelet's probe must be answered."""
PATH = f"/v1/attempts/ns/{'a' * 64}/1/1/renew"
AUTHORIZED = f"Authorization: Bearer {ADMIN}\r\n"


def head(method: str, path: str, *more: str) -> bytes:
    return "".join([f"{method} {path} HTTP/1.1\r\nHost: gateway\r\n", *(f"{each}\r\n" for each in more)]).encode()


HALF_SENT = {
    "nothing at all": b"",
    "half of the headers": head("POST", PATH, AUTHORIZED.strip()),
    "half of a body, with a token": head("POST", PATH, AUTHORIZED.strip(), "Content-Length: 100") + b"\r\n{",
    "half of a body, without": head("POST", PATH, "Content-Length: 100") + b"\r\n{",
    "half of the next request": head("GET", "/healthz") + b"\r\n" + head("GET", "/healthz"),
    "a body for a path that has none": head("POST", "/nowhere", "Content-Length: 100") + b"\r\n{",
}


class Held:
    """A connection on which a client has sent something and waits."""

    def __init__(self, gateway: GatewayProcess, sent: bytes, *, source: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection(("127.0.0.1", gateway.port), source_address=(source, 0))
        self.socket.sendall(sent)
        self.socket.setblocking(False)
        self.answer = b""

    def over(self) -> bool:
        """Whether the gateway has closed the connection."""
        try:
            while said := self.socket.recv(65536):
                self.answer += said
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True


@contextmanager
def held(gateway: GatewayProcess, many: int, sources: int) -> Iterator[list[Held]]:
    """This many half-sent requests of every kind, from this many addresses."""
    with ExitStack() as ends:
        kinds = itertools.cycle(HALF_SENT.values())
        made = []
        for number in range(many):
            made.append(Held(gateway, next(kinds), source=f"127.0.1.{1 + number % sources}"))
            ends.enter_context(made[-1].socket)
        yield made


@pytest.fixture(scope="module")
def shared(
    cluster: Cluster, ledger_server: object, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """A gateway with its default limits."""
    ledger = f"http://{ledger_server.one.address}"  # type: ignore[attr-defined]  # the fixture's type is the harness's
    folder = tmp_path_factory.mktemp("gateway")
    with a_gateway(ledger, "gateway-slow", cluster.kubeconfig, folder, accept_api_tokens=True) as process:
        yield process


@pytest.fixture(scope="module")
def small(
    cluster: Cluster, ledger_server: object, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """A gateway that is full with 60 connections, 50 of them from one address."""
    ledger = f"http://{ledger_server.one.address}"  # type: ignore[attr-defined]  # the fixture's type is the harness's
    options = ("--max-connections", "60", "--max-connections-per-client", "50")
    folder = tmp_path_factory.mktemp("small")
    with a_gateway(
        ledger, "gateway-small", cluster.kubeconfig, folder, options=options, accept_api_tokens=True
    ) as process:
        yield process


def probed(gateway: GatewayProcess) -> None:
    """Asserts that both probes answer, each within its time."""
    for path in ("/readyz", "/healthz"):
        began = time.monotonic()
        assert gateway.ask("GET", path, timeout=stretched(PROBE)).body == "ok\n"
        assert time.monotonic() - began < stretched(PROBE)


def all_over(held: list[Held]) -> Callable[[], None]:
    def look() -> None:
        left = [each for each in held if not each.over()]
        assert not left, f"{len(left)} of {len(held)} are open"

    return look


@pytest.mark.parametrize("sources", [1, 6])
@pytest.mark.parametrize("limits", ["shared", "small"])
def test_half_sent_requests_end_and_probes_are_answered(
    limits: str, sources: int, request: pytest.FixtureRequest
) -> None:
    """Of 300 half-sent requests from one address or six, each is closed by its deadline, and probes are answered meanwhile."""
    gateway: GatewayProcess = request.getfixturevalue(limits)
    with held(gateway, MANY, sources) as half:
        assert_eventually(lambda: any(not each.over() for each in half), 5.0)
        ends = time.monotonic() + TIMES.head / 2
        while time.monotonic() < ends:
            probed(gateway)
        assert_eventually(all_over(half), TIMES.body, interval=0.2)
        answers = b"".join(each.answer for each in half)
    assert b"401 Unauthorized" in answers
    assert b"404 Not Found" in answers
    if limits == "shared":
        assert b"408 Request Timeout" in answers
    probed(gateway)
    assert gateway.child.running


def test_each_kind_of_half_sent_request_has_its_deadline(shared: GatewayProcess) -> None:
    """None is closed before a slow but honest client would have sent the rest; the body of an accepted request has the longest deadline."""
    late = {"half of a body, with a token": BODY_TIME, "half of a body, without": TIMES.linger}
    late["a body for a path that has none"] = TIMES.linger
    began = time.monotonic()
    ended: dict[str, float] = {}
    open_now = {name: Held(shared, sent) for name, sent in HALF_SENT.items()}

    def look() -> None:
        for name, each in open_now.items():
            if name not in ended and each.over():
                ended[name] = time.monotonic() - began
        assert len(ended) == len(open_now), set(open_now) - set(ended)

    assert_eventually(look, TIMES.body)
    for name, each in open_now.items():
        each.socket.close()
        assert late.get(name, TIMES.head) - 0.5 < ended[name] < late.get(name, TIMES.head) + promised(2.0), (
            name,
            ended[name],
        )


def test_dripped_bytes_renew_no_deadline(shared: GatewayProcess) -> None:
    """Headers that arrive byte by byte, and a body after a refusal, are closed as if nothing more had arrived."""
    dripping = [
        Held(shared, b"GET /healthz HTTP/1.1\r\nHost: g\r\nX-Slow: "),
        Held(shared, head("POST", PATH, "Content-Length: 60000") + b"\r\n"),
        Held(shared, head("GET", "/healthz") + b"\r\n"),
    ]
    bytes_of = (b"x", b"x", b"G")
    done = Event()

    def drip() -> None:
        while not done.wait(0.2):
            for each, byte in zip(dripping, bytes_of, strict=True):
                try:
                    each.socket.send(byte)
                except OSError:
                    continue

    began = time.monotonic()
    thread = Thread(target=drip)
    thread.start()
    try:
        assert_eventually(all_over(dripping), TIMES.head + 5.0)
        assert time.monotonic() - began > TIMES.head - 1.0
    finally:
        done.set()
        thread.join()
        for each in dripping:
            each.socket.close()


def test_a_client_that_does_not_read_is_closed(shared: GatewayProcess) -> None:
    """A client sends requests without end and reads no answer: the gateway keeps neither the answers nor the connection."""
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", shared.port))
        deaf.settimeout(0.2)
        asked = (head("GET", "/openapi.json") + b"\r\n") * 200
        began = time.monotonic()

        def closed() -> bool:
            try:
                deaf.send(asked)
            except TimeoutError:
                return False
            except OSError:
                return True
            return False

        assert_eventually(closed, TIMES.unread + 5.0)
        assert time.monotonic() - began > TIMES.unread / 2
    probed(shared)


def test_a_handshake_that_does_not_end_is_closed(cluster: Cluster, ledger: str, install: str, tmp_path: Path) -> None:
    """With TLS the time for the headers includes the handshake, and a half-sent request after it is closed as well."""
    with a_gateway(
        ledger, install, cluster.kubeconfig, tmp_path, certificates=cluster.certificates, accept_api_tokens=True
    ) as gateway:
        trust = ssl.create_default_context(cafile=str(cluster.certificates.ca))
        silent, started = Held(gateway, b""), Held(gateway, b"\x16\x03\x01\x02\x00\x01")
        raw = socket.create_connection(("127.0.0.1", gateway.port))
        raw.settimeout(stretched(TIMES.head + 10.0))
        with trust.wrap_socket(raw, server_hostname="127.0.0.1") as shaken, silent.socket, started.socket:
            shaken.sendall(head("GET", "/healthz"))
            probed(gateway)
            assert_eventually(all_over([silent, started]), TIMES.head + 5.0)
            with suppress(OSError):  # a reset counts, too
                assert shaken.recv(1) == b""
        probed(gateway)


def exchanged(gateway: GatewayProcess, sent: bytes) -> tuple[http.client.HTTPResponse, bytes]:
    """The first answer, and everything after it until the gateway closes the connection."""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=stretched(20.0)) as raw:
        raw.sendall(sent)
        answer = http.client.HTTPResponse(raw)
        answer.begin()
        body = answer.read()
        with suppress(ConnectionResetError):  # caused by what the gateway has not read
            body += raw.recv(65536)
        return answer, body


SMUGGLED = b"0\r\n\r\n" + head("GET", "/healthz") + b"\r\n"


@pytest.mark.parametrize(
    ("sent", "status", "said"),
    [
        (
            head("POST", PATH, "Content-Length: 5", "Transfer-Encoding: chunked") + b"\r\n" + SMUGGLED,
            400,
            "its end is ambiguous; send one of the two headers",
        ),
        (
            b"POST /v1/config HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" + SMUGGLED,
            400,
            "its end is ambiguous; send one of the two headers",
        ),
        (
            head("POST", PATH, "Transfer-Encoding: gzip, chunked") + b"\r\n",
            501,
            "this transfer coding is not supported",
        ),
        (head("POST", PATH, "Content-Length: 5", "Content-Length: 6") + b"\r\n", 400, "not a valid HTTP/1.1 request"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400, "not a valid HTTP/1.1 request"),
        (head("GET", "/healthz", "X-Large: " + "x" * HEAD_BYTES) + b"\r\n", 431, "nothing was done"),
        (head("GET", "/healthz", "X-Large: " + "x" * 8 * HEAD_BYTES), 431, "the headers are too large"),
        (head("GET", "/healthz?" + "x" * HEAD_BYTES) + b"\r\n", 431, "nothing was done"),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(shared: GatewayProcess, sent: bytes, status: int, said: str) -> None:
    """There is one answer with one sentence, and the connection is closed: what follows is never taken for a request."""
    answer, body = exchanged(shared, sent)
    assert answer.status == status
    assert answer.headers.get_content_type() == "application/problem+json"
    assert said in body.decode()
    assert body.count(b"HTTP/1.1") == body.count(b"valid HTTP/1.1 request")


CHUNKED = head("POST", PATH, "Transfer-Encoding: chunked") + b"\r\n"


@pytest.mark.parametrize("answered", [False, True], ids=["at once", "after its answer"])
def test_a_body_that_turns_out_to_be_none_is_no_defect(shared: GatewayProcess, answered: bool) -> None:
    """After a valid head the body is malformed, sent with the head or after the answer: there is one answer, the connection ends, and the
    log has no traceback, with which any client could fill it."""
    said = len(shared.child.log.read_text())
    with socket.create_connection(("127.0.0.1", shared.port), timeout=stretched(20)) as connection:
        connection.sendall(CHUNKED if answered else CHUNKED + b"no chunk\r\n")
        reply = http.client.HTTPResponse(connection)
        reply.begin()
        assert reply.status == (401 if answered else 400)
        reply.read()
        if answered:
            connection.sendall(b"no chunk\r\n")
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    assert shared.ask("GET", "/healthz").status == 200  # the malformed request has been processed
    assert "Traceback" not in shared.child.log.read_text()[said:]


def test_a_path_without_a_route_costs_no_review_and_no_body(shared: GatewayProcess) -> None:
    """404 and 405 come before the token is reviewed, and before the body has arrived."""
    reviews = 'sparkonce_api_requests_total{kind="TokenReview"'
    before = [line for line in shared.ask("GET", "/metrics").body.splitlines() if reviews in line]
    for sent, status in (
        (head("POST", "/v1/nowhere", AUTHORIZED.strip(), "Content-Length: 1000000"), 404),
        (head("DELETE", "/v1/namespaces/ns/keys", AUTHORIZED.strip(), "Content-Length: 1000000"), 405),
    ):
        with socket.create_connection(("127.0.0.1", shared.port), timeout=stretched(5.0)) as raw:
            raw.sendall(sent + b"\r\n{")
            answer = http.client.HTTPResponse(raw)
            answer.begin()
            assert answer.status == status
    assert [line for line in shared.ask("GET", "/metrics").body.splitlines() if reviews in line] == before


def test_the_metrics_count_what_was_closed(small: GatewayProcess) -> None:
    """The metrics count why connections were closed, and how many are open now."""
    with held(small, 70, 2):
        said = small.ask("GET", "/metrics").body
        assert "sparkonce_gateway_connections 60.0" in said
        assert 'sparkonce_gateway_connections_closed_total{why="refused"} 0.0' in said
        assert float(said.partition('connections_closed_total{why="room"} ')[2].split()[0]) >= 11
    assert "to make room for another" in small.child.last_words()
