"""A gateway under faults: lost replies, freezes, kills, a ledger and an API server that do not answer; and its announcement."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from http.client import HTTPConnection
from pathlib import Path
from typing import cast

import pytest

from harness.apiserver import Cluster
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.forged import intent_for
from harness.gateways import Attempt, Attempts, GatewayProcess
from harness.proxy import Proxy, in_front_of
from sparkonce.blocking import run
from sparkonce.driver.http_channel import HttpChannel
from sparkonce.errors import StoreUnavailable, StoreUnusable
from sparkonce.store.protocol import Refused, Sealed
from sparkonce.store.roster import SILENT, Gateways

LEASE = 2
"""Seconds; etcd takes its own time in addition."""
GONE = SILENT + LEASE + 5.0


@pytest.fixture
def gateway(
    request: pytest.FixtureRequest, own_etcd: Etcd, install: str, kubeconfig: Path, tmp_path: Path
) -> Iterator[GatewayProcess]:
    """A gateway with a ledger of its own, which a test may kill. Its parameter: seconds of its lease."""
    ledger, lease = f"http://{own_etcd.one.address}", getattr(request, "param", LEASE)
    process = GatewayProcess(ledger, install, kubeconfig, tmp_path, lease_seconds=lease, accept_api_tokens=True)
    try:
        yield process.start()
    finally:
        process.kill()


@pytest.fixture
def attempts(cluster: Cluster, namespace: str, gateway: GatewayProcess) -> Iterator[Attempts]:
    made = Attempts(cluster, namespace, gateway.ledger, gateway.install, gateway.url)
    yield made
    made.close()


@pytest.fixture
def link(gateway: GatewayProcess) -> Iterator[Proxy]:
    """The network between a driver and the gateway, as a proxy."""
    with in_front_of(gateway.address) as proxy:
        yield proxy


def channel_of(attempt: Attempt, attempts: Attempts, link: Proxy, tmp_path: Path, **how: object) -> HttpChannel:
    """The channel that the driver's process would have."""
    token = tmp_path / f"token-{attempt.record.key}"
    token.write_text(attempts.token(attempt.driver()))
    told = attempt.assignment.model_copy(update={"gateway": f"http://{link.address}"})
    return HttpChannel(told, token_file=token, **how)  # type: ignore[arg-type]  # patience and sleep, as each test wants them


def sealed_times(attempt: Attempt) -> int:
    return [event.what for event in run(attempt.store.events(attempt.record.address))].count("Sealed")


@pytest.mark.operator
def test_a_seal_whose_reply_is_lost_is_sealed_once(attempts: Attempts, link: Proxy, tmp_path: Path) -> None:
    """The driver repeats the seal until it is answered; the ledger has one seal."""
    attempt = attempts.granted("lost")
    channel = channel_of(attempt, attempts, link, tmp_path)
    assert channel.renew({})
    link.lose = 2
    assert isinstance(channel.seal(intent_for(attempt.record)), Sealed)
    assert (link.lose, sealed_times(attempt)) == (0, 1)
    link.lose = 1
    assert channel.report("r", "values", {"rows": 1})
    assert len(run(attempts.store.reports(attempt.record.address, 1))) == 1
    channel.close()


def test_a_refusal_after_a_lost_seal_is_told_as_unknown_first(attempts: Attempts, link: Proxy, tmp_path: Path) -> None:
    """The attempt was sealed and is over since: a driver that trusted the refusal would delete the files of a committed table."""
    attempt = attempts.granted("over")
    intent = intent_for(attempt.record)
    over: list[float] = []

    def meanwhile(seconds: float) -> None:
        if not over:
            attempt.update(attempt=2, nonce="of-a-successor")
        over.append(seconds)

    channel = channel_of(attempt, attempts, link, tmp_path, sleep=meanwhile)
    link.lose = 1
    with pytest.raises(StoreUnavailable, match="earlier answer was lost"):
        channel.seal(intent)
    assert sealed_times(attempt) == 1
    assert isinstance(channel.seal(intent), Refused)
    channel.close()


def test_a_driver_outlives_its_gateway(
    attempts: Attempts, gateway: GatewayProcess, link: Proxy, tmp_path: Path
) -> None:
    """A frozen or killed gateway does not answer: a heartbeat is unknown, and a seal waits for the next gateway and is sealed once."""
    attempt = attempts.granted("outlives")
    channel = channel_of(attempt, attempts, link, tmp_path)
    assert channel.renew({})
    gateway.child.freeze()
    with pytest.raises(StoreUnavailable):
        channel.renew({})
    gateway.child.thaw()
    assert_eventually(lambda: channel.renew({}), 20.0)
    gateway.kill()
    with ThreadPoolExecutor(1) as pool:
        sealing = pool.submit(channel.seal, intent_for(attempt.record))
        gateway.start()
        assert_eventually(sealing.done, 60.0)
        assert isinstance(sealing.result(), Sealed)
        pool.submit(channel.close).result()
    assert sealed_times(attempt) == 1
    channel.close()


def test_a_token_is_read_anew_each_time(attempts: Attempts, link: Proxy, tmp_path: Path) -> None:
    """The kubelet replaces the token: an expired one gives an unknown outcome, not the attempt's end; another pod's is refused."""
    attempt = attempts.granted("renewed")
    channel = channel_of(attempt, attempts, link, tmp_path, patience=0.0)
    file = tmp_path / "token-renewed"
    good = file.read_text()
    file.write_text("expired")
    with pytest.raises(StoreUnavailable, match="401"):
        channel.renew({})
    file.write_text(attempts.token(None))
    with pytest.raises(StoreUnusable, match="not bound to a pod"):
        channel.seal(intent_for(attempt.record))
    file.unlink()
    with pytest.raises(StoreUnavailable, match="has no token"):
        channel.renew({})
    file.write_text(good + "\n")
    assert channel.renew({})
    channel.close()


def test_a_ledger_that_does_not_answer_is_unknown(attempts: Attempts, gateway: GatewayProcess, own_etcd: Etcd) -> None:
    """Routes that read the ledger answer 503 with a time to retry; the gateway's period of service ends, and a new one starts
    afterwards."""
    attempt = attempts.granted("silent")
    token = attempts.token(attempt.driver())
    body = {"nonce": attempt.record.nonce}
    renews = f"{attempt.path}/renew"
    assert gateway.ask("POST", renews, token=token, body=body).status == 200
    assert_eventually(lambda: (serving(attempts) or 0.0) > 3.0, 30.0)
    own_etcd.one.freeze()
    try:
        for method, path, sent in (
            ("POST", renews, body),
            ("GET", f"/v1/namespaces/{attempts.namespace}/keys", None),
            ("GET", f"/v1/namespaces/{attempts.namespace}/keys/silent", None),
        ):
            answer = gateway.ask(method, path, token=token if sent else "admin-token", body=sent)
            assert (answer.status, int(answer.headers["retry-after"]) > 0) == (503, True), (path, answer.body)
            assert answer.body["title"] == "unavailable"
        assert_eventually(lambda: gateway.said_ready() != "ok", 20.0)
    finally:
        own_etcd.one.thaw()
    assert_eventually(lambda: gateway.said_ready() == "ok", 20.0)
    assert gateway.ask("POST", renews, token=token, body=body).status == 200

    # The earlier entry may live a little longer, but its duration grows: only a new one is this short.
    assert_eventually(lambda: (found := serving(attempts)) is not None and found < 3.0, GONE)


def test_an_api_server_that_does_not_answer_is_unknown(
    attempts: Attempts, gateway: GatewayProcess, cluster: Cluster
) -> None:
    """Without an answer of the API server, callers are neither accepted nor refused: 503."""
    attempt = attempts.granted("unreviewed")
    token = attempts.token(attempt.driver())
    body = {"nonce": attempt.record.nonce}
    with cluster.server.frozen():
        for wanted in (token, "garbage"):
            assert gateway.ask("POST", f"{attempt.path}/renew", token=wanted, body=body).status == 503
    assert_eventually(lambda: gateway.ask("POST", f"{attempt.path}/renew", token=token, body=body).status == 200, 30.0)


def serving(attempts: Attempts) -> float | None:
    """Seconds of service that an operator would see; None without an announcement. Raises AssertionError if the ledger does not answer:
    a busy one is asked again by whoever waits."""
    try:
        return run(cast("Gateways", attempts.store).gateways_serving_for())
    except StoreUnavailable as error:
        raise AssertionError("the ledger did not answer") from error


def came_back(attempts: Attempts) -> float:
    """Seconds of service when a new announcement is first seen."""

    def look() -> tuple[float]:
        found = serving(attempts)
        assert found is not None
        return (found,)

    return assert_eventually(look, GONE + 10.0)[0]


def served_for_a_while(attempts: Attempts) -> None:
    assert_eventually(lambda: (serving(attempts) or 0.0) > 2.0, 30.0)


def test_a_killed_gateway_is_not_announced_any_more(attempts: Attempts, gateway: GatewayProcess) -> None:
    """Its entry ends with its lease, and after a restart a new period starts."""
    served_for_a_while(attempts)
    gateway.kill()
    assert_eventually(lambda: serving(attempts) is None, LEASE + 5.0)
    gateway.start()
    assert came_back(attempts) == 0.0


def test_a_frozen_gateway_is_not_announced_any_more(attempts: Attempts, gateway: GatewayProcess) -> None:
    """It answers no request, so it does not serve; when it continues, a new period starts."""
    served_for_a_while(attempts)
    gateway.child.freeze()
    assert_eventually(lambda: serving(attempts) is None, GONE)
    gateway.child.thaw()
    assert came_back(attempts) == 0.0


def test_two_gateways_serve_as_one(
    attempts: Attempts, gateway: GatewayProcess, tmp_path: Path, kubeconfig: Path
) -> None:
    """While one of them serves without a gap, the other's end does not matter."""
    served_for_a_while(attempts)
    other = GatewayProcess(gateway.ledger, gateway.install, kubeconfig, tmp_path, name="other", lease_seconds=LEASE)
    try:
        other.start()
        other.kill()
        before = serving(attempts)
        assert before is not None
        assert before > 2.0
    finally:
        other.kill()


@pytest.mark.parametrize("gateway", [60], indirect=True)
def test_a_gateway_that_is_asked_to_end_says_so_first(attempts: Attempts, gateway: GatewayProcess) -> None:
    """After SIGTERM its entry is removed before it stops listening, long before its lease would end. It lives on for a request that is in
    progress, answers it, and exits with 0."""
    attempt = attempts.granted("last")
    token, body = attempts.token(attempt.driver()), json.dumps({"nonce": attempt.record.nonce}).encode()
    served_for_a_while(attempts)
    with contextlib.closing(HTTPConnection("127.0.0.1", gateway.port)) as client, ThreadPoolExecutor(1) as pool:
        client.putrequest("POST", f"{attempt.path}/renew")
        client.putheader("Authorization", f"Bearer {token}")
        client.putheader("Content-Type", "application/json")
        client.putheader("Content-Length", str(len(body)))
        client.endheaders(body[:1])
        ended = pool.submit(gateway.terminate)
        assert_eventually(lambda: refuses_connections(gateway), 20.0, interval=0.02)
        assert serving(attempts) is None
        assert not wait([ended], timeout=1.0).done
        client.send(body[1:])
        assert client.getresponse().status == 200
        ended.result()
    assert gateway.child._process is not None
    assert gateway.child._process.returncode == 0
    assert "no new requests after" in gateway.child.last_words()
    assert "Traceback" not in gateway.child.last_words()


def refuses_connections(gateway: GatewayProcess) -> bool:
    try:
        socket.create_connection(("127.0.0.1", gateway.port), timeout=2.0).close()
    except ConnectionRefusedError:
        return True
    return False
