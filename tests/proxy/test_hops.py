"""Faults at each hop between client, `sparkonce proxy` and service: a request that is lost, a reply that is lost, a reply that is cut.

Real processes: the counting service and the proxy on a SQLite ledger, with TCP proxies before and behind it that fail on demand. A client
sends its request again with the same key. Effects are counted by key in the service's file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from harness.proxy import Flow, Proxy, in_front_of
from harness.reply_proxy import counting_service, started_proxy

SILENCE = 3.0
"""Seconds without a byte after which the proxy gives the service up: far longer than the service takes."""
GIVES_UP = 1.0
"""Seconds after which the client gives up a request whose loss nothing reports."""
SIZE = 200_000
"""Bytes of a reply that crosses a connection in several pieces and is still kept whole for a replay."""
LARGE = 64 * 1024 * 1024
"""Bytes of a reply that the proxy passes on while it comes (beyond 1 MiB), and that no connection's buffers hold."""

Fault = Callable[[Proxy], None]


def loses_request(hop: Proxy) -> None:
    """The bytes vanish, and the connection stays open."""
    hop.requests = Flow.DROP


def refuses_request(hop: Proxy) -> None:
    """The connection is accepted and reset before a byte has passed."""
    hop.refuse = True


def loses_reply(hop: Proxy) -> None:
    """The effect took place; its reply is discarded and the connection reset."""
    hop.lose = 1


def cuts_reply(hop: Proxy) -> None:
    """The reply begins, and the connection is reset in its middle."""
    hop.cut_after = 1


BEFORE = [loses_request, refuses_request, loses_reply, cuts_reply]
BEHIND = [loses_request, loses_reply, cuts_reply]
"""A reset before the request is sent may or may not prove to the proxy that nothing was sent: test_proxy.py has the case that does."""


@dataclass
class Line:
    """A client's way to the service: hop, proxy, hop."""

    before: Proxy
    behind: Proxy
    effects_file: Path

    def effects(self, key: str) -> int:
        """Number of effects of requests with this key, which is their body."""
        return self.effects_file.read_text().splitlines().count(key) if self.effects_file.exists() else 0

    def post(self, key: str, size: int) -> httpx.Response:
        """One request. Raises: httpx.TransportError: the client got no whole answer."""
        return httpx.post(
            f"http://{self.before.address}/orders?size={size}",
            content=key.encode(),
            headers={"Idempotency-Key": key},
            timeout=GIVES_UP if self.before.requests is Flow.DROP else 60.0,
        )

    def heal(self) -> None:
        for hop in (self.before, self.behind):
            hop.cut()  # nothing that is still on its way arrives late
            hop.heal()
            hop.lose, hop.cut_after = 0, None


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    folder = tmp_path_factory.mktemp("line")
    options = ("--timeout", str(SILENCE), "--advertise", "/lifetime")
    with (
        counting_service(folder) as (port, _),
        in_front_of(f"127.0.0.1:{port}") as behind,
        started_proxy(folder, f"http://{behind.address}", *options, shows="/lifetime") as (url, _),
        in_front_of(url.removeprefix("http://")) as before,
    ):
        yield Line(before, behind, folder / "effects")


@pytest.fixture
def line(processes: Line) -> Iterator[Line]:
    yield processes
    processes.heal()


@pytest.mark.parametrize("fault", BEFORE)
def test_a_fault_between_client_and_proxy_costs_a_repetition(line: Line, fault: Fault) -> None:
    """The client's next try gets the whole answer, as does every later one, and the service has one effect."""
    key = f"before-{fault.__name__}"
    fault(line.before)
    with pytest.raises(httpx.TransportError):
        line.post(key, SIZE)
    line.heal()
    answers = [line.post(key, SIZE) for _ in range(3)]
    assert {(each.status_code, each.content) for each in answers} == {(201, b"x" * SIZE)}
    ran_at_first = fault in (loses_reply, cuts_reply)
    assert ["idempotency-replayed" in each.headers for each in answers] == [ran_at_first, True, True]
    assert line.effects(key) == 1


def test_replies_that_are_lost_again_and_again_cost_no_second_effect(line: Line) -> None:
    """The replies to the request and to its first replays are lost: the client that goes on gets the answer."""
    key = "before-again"
    for fault in (loses_reply, cuts_reply, loses_reply, cuts_reply):
        fault(line.before)
        with pytest.raises(httpx.TransportError):
            line.post(key, SIZE)
    answer = line.post(key, SIZE)
    assert (answer.status_code, answer.content) == (201, b"x" * SIZE)
    assert line.effects(key) == 1


@pytest.mark.parametrize("fault", BEHIND)
def test_a_fault_between_proxy_and_service_is_an_unknown_outcome(line: Line, fault: Fault) -> None:
    """The proxy cannot know whether the service has done it: 502 or 504, then 503 `unknown-outcome` each time, and the request is not sent
    a second time."""
    key = f"behind-{fault.__name__}"
    fault(line.behind)
    first = line.post(key, SIZE)
    assert first.status_code == (504 if fault is loses_request else 502), first.text
    assert first.json()["title"] == "upstream-failed"
    line.heal()
    for _ in range(2):
        late = line.post(key, SIZE)
        assert (late.status_code, late.json()["title"]) == (503, "unknown-outcome")
        assert late.headers["content-type"] == "application/problem+json"
    assert line.effects(key) == (0 if fault is loses_request else 1)


def test_a_reply_that_is_cut_while_it_is_passed_on_is_cut_for_the_client(line: Line) -> None:
    """A reply too long to be kept has begun when its connection breaks: the client sees a broken connection, not a shorter reply, and its
    repetitions get 503 `unknown-outcome`."""
    key = "behind-large"
    url, headers = f"http://{line.before.address}/orders?size={LARGE}", {"Idempotency-Key": key}
    with httpx.stream("POST", url, content=key.encode(), headers=headers, timeout=60.0) as answer:
        assert answer.status_code == 201
        parts = answer.iter_raw()
        assert next(parts)
        line.behind.cut()
        with pytest.raises(httpx.TransportError):
            sum(map(len, parts))
    line.heal()
    assert line.post(key, LARGE).json()["title"] == "unknown-outcome"
    assert line.effects(key) == 1


@pytest.mark.parametrize(("size", "whole"), [(SIZE, True), (LARGE, False)])
def test_a_catalogs_answer_is_sent_whole_or_not_at_all(tmp_path: Path, size: int, whole: bool) -> None:
    """Iceberg's client repeats what was answered with 502, and fails a statement whose answer broke off: of a short answer that is cut
    behind the proxy it gets no part. A long one is passed on while it comes."""
    with (
        counting_service(tmp_path) as (port, _),
        in_front_of(f"127.0.0.1:{port}") as behind,
        started_proxy(tmp_path, f"http://{behind.address}", "--profile", "iceberg", shows="/") as (url, _),
    ):
        table = f"{url}/v1/namespaces/sales/tables/orders?size={size}"
        assert len(httpx.get(table, timeout=60.0).content) == size
        behind.cut_after = size // 2
        if whole:
            answer = httpx.get(table, timeout=60.0)
            assert (answer.status_code, answer.json()["error"]["code"]) == (502, 502)
        else:
            with pytest.raises(httpx.TransportError):
                httpx.get(table, timeout=60.0)
        assert len(httpx.get(table, timeout=60.0).content) == size


@pytest.mark.parametrize("fault", [loses_reply, cuts_reply])
def test_a_reply_lost_at_both_hops_is_one_effect(line: Line, fault: Fault) -> None:
    """The service's reply does not reach the proxy, nor the proxy's refusal the client: the repetition gets 503 `unknown-outcome`."""
    key = f"both-{fault.__name__}"
    fault(line.behind)
    loses_reply(line.before)
    with pytest.raises(httpx.TransportError):
        line.post(key, SIZE)
    line.heal()
    assert line.post(key, SIZE).json()["title"] == "unknown-outcome"
    assert line.effects(key) == 1
