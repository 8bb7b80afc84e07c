"""The proxy's process: its probes and metrics, its end, and TLS on both sides."""

from __future__ import annotations

import signal
import ssl
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import trustme

from harness.child import Child, free_port
from harness.eventually import assert_eventually
from harness.gated_service import Gated, gated
from harness.patience import stretched
from harness.reply_proxy import serves, started_proxy
from sparkonce.errors import InvalidInput
from sparkonce.proxy.upstream import Upstream


def post(url: str, key: str) -> httpx.Response:
    return httpx.post(url, content=b"order", headers={"Idempotency-Key": key}, timeout=60.0)


def refuses(url: str) -> bool:
    try:
        httpx.get(url, timeout=5.0)
    except httpx.ConnectError:
        return True
    return False


def test_sigterm_lets_requests_in_flight_end(tmp_path: Path) -> None:
    """Not ready at once; further requests are served while it drains; the one in flight gets its answer, which is recorded; exit code 0."""
    http = f"127.0.0.1:{free_port()}"
    drain = stretched(2.0)
    options = ("--http", http, "--drain-seconds", str(drain), "--log-format", "json")
    with gated(Gated) as (port, service), ThreadPoolExecutor(1) as clients:
        upstream = f"http://127.0.0.1:{port}"
        with started_proxy(tmp_path, upstream, *options, shows="/") as (url, child):
            assert httpx.get(f"http://{http}/readyz").text == httpx.get(f"http://{http}/healthz").text == "ok\n"
            running = clients.submit(post, url, "slow")
            assert_eventually(lambda: service.effects, 30)
            child._process.send_signal(signal.SIGTERM)  # type: ignore[union-attr]
            assert_eventually(lambda: httpx.get(f"http://{http}/readyz").status_code == 503, drain)
            assert httpx.get(f"http://{http}/readyz").text == "this process is shutting down\n"
            assert httpx.get(url).text == "ok"
            assert_eventually(lambda: refuses(url), 3 * drain)
            assert not running.done()
            service.gate.set()
            assert running.result().text == "ok"
            assert child._process.wait(60) == 0  # type: ignore[union-attr]
            assert '"message": "SIGTERM: shutting down; no new requests after' in child.log.read_text()
        with started_proxy(tmp_path, upstream, shows="/") as (url, _):
            assert post(url, "slow").headers["idempotency-replayed"] == "true"
    assert len(service.effects) == 1


def test_metrics_of_requests_and_of_the_ledger(tmp_path: Path) -> None:
    """What ran, what was replayed, what had no outcome, and each request to the ledger; no key and no URL is logged."""
    http = f"127.0.0.1:{free_port()}"
    with gated(Gated) as (port, service):
        service.gate.set()
        with started_proxy(tmp_path, f"http://127.0.0.1:{port}", "--http", http, shows="/") as (url, child):
            for key in ("secret-a", "secret-a", "secret-b", ""):
                post(url + "/?token=hunter2", key)
            text = httpx.get(f"http://{http}/metrics").text
            for line in (
                'sparkonce_keyed_requests_total{outcome="ran"} 2.0',
                'sparkonce_keyed_requests_total{outcome="replayed"} 1.0',
                'sparkonce_keyed_requests_total{outcome="bad-key"} 1.0',
                'sparkonce_keyed_requests_total{outcome="unknown-outcome"} 0.0',
                'sparkonce_reconciled_requests_total{verdict="rerun"} 0.0',
                'sparkonce_store_requests_total{result="owned",verb="reserve"} 2.0',
                'sparkonce_store_requests_total{result="answered",verb="reserve"} 1.0',
                'sparkonce_store_requests_total{result="written",verb="finalize"} 2.0',
                'sparkonce_store_requests_total{result="StoreUnavailable",verb="reserve"} 0.0',
                "sparkonce_build_info{version=",
            ):
                assert line in text
            logged = child.log.read_text()
            assert "secret" not in logged + text
            assert "hunter2" not in logged + text


def test_tls_on_both_sides(tmp_path: Path) -> None:
    """Clients verify the proxy's certificate, and the proxy the service's; a service that another CA vouches for gets nothing."""
    ca, other = trustme.CA(), trustme.CA()
    pem, wrong = tmp_path / "ca.pem", tmp_path / "other.pem"
    ca.cert_pem.write_to_path(str(pem))
    other.cert_pem.write_to_path(str(wrong))
    issued = ca.issue_cert("127.0.0.1")
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    issued.cert_chain_pems[0].write_to_path(str(certificate))
    issued.private_key_pem.write_to_path(str(key))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    issued.configure_cert(context)
    trusting = ssl.create_default_context(cafile=pem)
    with gated(Gated, context) as (port, service):
        service.gate.set()
        for trusted, status in ((pem, 200), (wrong, 503)):
            listen = f"127.0.0.1:{free_port()}"
            command = ["--upstream", f"https://127.0.0.1:{port}", "--upstream-ca", str(trusted), "--store", "memory:"]
            command += ["--listen", listen, "--tls-cert", str(certificate), "--tls-key", str(key)]
            proxy = _proxy(tmp_path, *command)
            proxy.start()
            try:
                proxy.until(lambda listen=listen: answers(f"https://{listen}", trusting), 30)  # type: ignore[misc]
                answer = httpx.post(
                    f"https://{listen}", content=b"x", headers={"Idempotency-Key": "k"}, verify=trusting, timeout=60.0
                )
                assert answer.status_code == status
                with pytest.raises(httpx.ConnectError):
                    httpx.get(f"https://{listen}", verify=ssl.create_default_context(cafile=wrong))
            finally:
                proxy.kill()
    assert len(service.effects) == 1


def _proxy(folder: Path, *options: str) -> Child:
    return Child("proxy", [sys.executable, "-m", "sparkonce", "proxy", *options], folder / "proxy.log")


def answers(url: str, trusting: ssl.SSLContext) -> bool:
    try:
        return httpx.get(url, verify=trusting, timeout=5.0).status_code in (200, 503)
    except httpx.TransportError:
        return False


def test_a_ca_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    """A missing file, one that is no certificate, and an upstream without TLS."""
    wrong = tmp_path / "ca.pem"
    wrong.write_text("hello")
    with pytest.raises(InvalidInput, match=r"--upstream-ca .*ca\.pem is no PEM file with a CA"):
        Upstream("https://x", timeout=1.0, ca=wrong)
    with pytest.raises(InvalidInput, match=r"--upstream-ca .*none\.pem is no PEM file with a CA"):
        Upstream("https://x", timeout=1.0, ca=tmp_path / "none.pem")
    with pytest.raises(InvalidInput, match="--upstream-ca needs an upstream at https://"):
        Upstream("http://x", timeout=1.0, ca=wrong)


@pytest.mark.parametrize("taken", ["--listen", "--http"])
def test_a_taken_address_ends_the_process_with_one_sentence(taken: str, tmp_path: Path) -> None:
    """Exit code 2."""
    with gated(Gated) as (port, _):
        addresses = {
            "--listen": f"127.0.0.1:{free_port()}",
            "--http": f"127.0.0.1:{free_port()}",
            taken: f"127.0.0.1:{port}",
        }
        options = [each for pair in addresses.items() for each in pair]
        proxy = _proxy(tmp_path, "--upstream", f"http://127.0.0.1:{port}", "--store", "memory:", *options)
        proxy.start()
        assert_eventually(lambda: not proxy.running, 30)
        assert proxy._process is not None
        assert proxy._process.returncode == 2
        said = proxy.last_words()
        assert f"{taken} 127.0.0.1:{port} cannot be served (" in said
        assert said.endswith("already in use); give another port")


def test_the_ledger_may_be_named_by_the_environment(tmp_path: Path) -> None:
    """SPARKONCE_STORE, in which a password is not seen by who lists processes."""
    port = free_port()
    with gated(Gated) as (upstream, service):
        service.gate.set()
        proxy = _proxy(tmp_path, "--upstream", f"http://127.0.0.1:{upstream}", "--listen", f"127.0.0.1:{port}")
        proxy.environment = {"SPARKONCE_STORE": f"sqlite:///{tmp_path / 'by-environment.db'}"}
        proxy.start()
        try:
            proxy.until(lambda: serves(f"http://127.0.0.1:{port}"), 30)
            assert post(f"http://127.0.0.1:{port}", "k").text == "ok"
        finally:
            proxy.kill()
    assert (tmp_path / "by-environment.db").exists()
