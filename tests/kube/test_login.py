"""Credentials for the API server: read from where kubectl and pods have them, and read again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trustme
from kubernetes.aio.config import incluster_config

from sparkonce.kube import login as login_module
from sparkonce.kube.login import LOOK_AGAIN, NOT_SOONER, Access, KubeLogin, NoLogin


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    path = tmp_path / "ca.crt"
    trustme.CA().cert_pem.write_to_path(path)
    return path


def kubeconfig(path: Path, ca: Path, user: dict[str, Any], **cluster: Any) -> Path:
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "clusters": [
                    {"name": "c", "cluster": {"server": "https://k:6443/", "certificate-authority": str(ca), **cluster}}
                ],
                "users": [{"name": "u", "user": user}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            }
        )
    )
    return path


def access(login: KubeLogin) -> Access:
    return asyncio.run(login.access())


def test_a_kubeconfig_is_read(tmp_path: Path, ca: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Server, token and certificates come from the file that was named, or from KUBECONFIG."""
    path = kubeconfig(tmp_path / "k", ca, {"token": "t1"})
    found = access(KubeLogin(path, clock=clock))
    assert (found.server, found.headers()) == ("https://k:6443", {"Authorization": "Bearer t1"})
    assert found.tls is not None
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert access(KubeLogin(clock=clock)).authorization == "Bearer t1"


def test_an_edited_file_is_read_after_a_minute(tmp_path: Path, ca: Path, clock: Clock) -> None:
    """Within a minute nothing is read again; then an edited kubeconfig takes effect. Connections are kept if only the file's time has
    changed."""
    path = kubeconfig(tmp_path / "k", ca, {"token": "t1"})
    login = KubeLogin(path, clock=clock)
    first = access(login)
    kubeconfig(path, ca, {"token": "t2"})
    os.utime(path, ns=(1, 1))
    assert access(login) == first
    clock.now += LOOK_AGAIN + 1
    second = access(login)
    assert second.authorization == "Bearer t2"
    assert second.tls is first.tls
    clock.now += LOOK_AGAIN + 1
    assert access(login) == second


def test_a_token_file_is_read_again(tmp_path: Path, ca: Path, clock: Clock) -> None:
    """The token file that a kubeconfig names is read again, although the kubeconfig itself is unchanged."""
    token = tmp_path / "token"
    token.write_text("t1\n")
    login = KubeLogin(kubeconfig(tmp_path / "k", ca, {"tokenFile": str(token)}), clock=clock)
    assert access(login).authorization == "Bearer t1"
    token.write_text("t2\n")
    login.refused()
    assert access(login).authorization == "Bearer t1"  # the file is not read again within a second
    clock.now += NOT_SOONER + 0.1
    assert access(login).authorization == "Bearer t2"


def test_a_renewed_certificate_is_a_new_connection(tmp_path: Path, ca: Path, clock: Clock) -> None:
    """A CA file with different content makes a new TLS context."""
    login = KubeLogin(kubeconfig(tmp_path / "k", ca, {"token": "t"}), clock=clock)
    first = access(login)
    trustme.CA().cert_pem.write_to_path(ca)
    clock.now += LOOK_AGAIN + 1
    assert access(login).tls is not first.tls


def test_what_cannot_be_read_now_stays_as_it_was(tmp_path: Path, ca: Path, clock: Clock) -> None:
    """A file that is briefly missing or half written does not lose the login; if it was never readable, one sentence names it."""
    path = kubeconfig(tmp_path / "k", ca, {"token": "t1"})
    login = KubeLogin(path, clock=clock)
    first = access(login)
    for spoil in (path.unlink, lambda: path.write_text("{"), lambda: path.write_text("apiVersion: v1")):
        spoil()
        clock.now += LOOK_AGAIN + 1
        assert access(login) == first
        with pytest.raises(NoLogin, match=str(path)):
            access(KubeLogin(path, clock=clock))


def test_nothing_to_log_in_with(tmp_path: Path, clock: Clock) -> None:
    """Without a kubeconfig and outside a pod, the error says what to do."""
    with pytest.raises(NoLogin, match="--kubeconfig"):
        access(KubeLogin(clock=clock))


def test_a_server_name_of_its_own_is_refused(tmp_path: Path, ca: Path, clock: Clock) -> None:
    """tls-server-name, which kopf cannot use, is refused instead of being ignored by one half of the operator."""
    path = kubeconfig(tmp_path / "k", ca, {"token": "t"}, **{"tls-server-name": "other"})
    with pytest.raises(NoLogin, match="tls-server-name"):
        access(KubeLogin(path, clock=clock))


def test_a_pods_service_account(tmp_path: Path, ca: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pod the service account is used, with its current token, stripped of the newline that a header must not have."""
    token = tmp_path / "token"
    token.write_text("t1\n")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(ca))
    login = KubeLogin(clock=clock)
    found = access(login)
    assert (found.server, found.authorization) == ("https://10.0.0.1:443", "bearer t1")
    token.write_text("t2\n")
    clock.now += LOOK_AGAIN + 1
    assert access(login).authorization == "bearer t2"


def test_two_threads_are_the_same_to_the_api_server(tmp_path: Path, ca: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trigger's thread and the operator's read the credentials at the same moment and get equal ones; otherwise each would take the
    other's for new and drop all connections."""
    path = kubeconfig(tmp_path / "k", ca, {"token": "t1"})
    together = threading.Barrier(2)
    made = vars(login_module)["RESTClientObject"]

    def slowly(configuration: Any) -> Any:
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(0.2)  # until both threads are here, or one waits for the other
        return made(configuration)

    monkeypatch.setattr(login_module, "RESTClientObject", slowly)
    login = KubeLogin(path)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: access(login), range(2))
    assert one == other
