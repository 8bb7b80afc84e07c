"""Fixtures of the api tier: one cluster for each pytest process, and for each test a namespace, an install and a ledger.

A test that kills or freezes a server leaves it running as before, since the next test uses the same one. Namespaces are deleted without
waiting, which takes the namespace controller five seconds; their names are not used again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import ledgers
from harness.api_faults import ApiProxy
from harness.apiserver import ADMIN, Cluster, folder_in_memory, started_cluster
from harness.binaries import component
from harness.etcd import Etcd, running
from harness.kubeflow import FakeKubeflow
from harness.planted import no_secret_is_told
from sparkonce.launch.kubernetes import NAMESPACES

__all__ = ["no_secret_is_told"]


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():  # a build takes minutes: show its progress
        component("kube-apiserver")
    with started_cluster() as started:
        yield started


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A new, empty namespace."""
    name = f"t-{uuid.uuid4().hex[:10]}"
    cluster.api.create(NAMESPACES, {"metadata": {"name": name}})
    yield name
    cluster.api.delete(NAMESPACES, name)


@pytest.fixture(scope="session")
def ledger_server(cluster: Cluster) -> Iterator[Etcd]:
    """An etcd for ledgers alone, so that their faults do not affect the API server. It needs the same binaries, hence `cluster`."""
    with folder_in_memory() as folder, running(folder) as etcd:
        yield etcd


@pytest.fixture
def ledger(ledger_server: Etcd) -> str:
    """The URL of an etcd for records. Use it with `install`, which hides the keys of other tests."""
    return f"http://{ledger_server.one.address}"


@pytest.fixture
def own_etcd(cluster: Cluster) -> Iterator[Etcd]:
    """An etcd for the records of one test, which may kill, restore or fill it."""
    with folder_in_memory() as folder, running(folder) as etcd:
        yield etcd


@pytest.fixture(params=ledgers.KINDS)
def store(request: pytest.FixtureRequest, cluster: Cluster) -> ledgers.Server:
    """A server for records of each kind, shared like `ledger_server`: for what must hold on all of them."""
    if request.param == "postgres":
        return ledgers.shared_postgres()
    shared: Etcd = request.getfixturevalue("ledger_server")
    return shared


@pytest.fixture(params=ledgers.KINDS)
def own_store(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[ledgers.Server]:
    """As `own_etcd`, of each kind."""
    with ledgers.own(request.param) as made:
        yield made


@pytest.fixture
def install() -> str:
    """A new install id, so that a test does not see the keys of other tests in a shared store."""
    return f"i-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def kubeconfig(cluster: Cluster) -> Path:
    return cluster.kubeconfig


@pytest.fixture
def kubeflow(cluster: Cluster, namespace: str) -> Iterator[FakeKubeflow]:
    """Acts as the Spark operator and the node of `namespace`; without rules every application runs for a moment and succeeds."""
    with FakeKubeflow(cluster.url, ca=cluster.certificates.ca, token=ADMIN, namespace=namespace) as fake:
        yield fake


@pytest.fixture
def api_proxy(cluster: Cluster) -> Iterator[ApiProxy]:
    """A proxy in front of the API server, which clients reach with `api_proxy.kubeconfig`. Without faults it only records requests."""
    with ApiProxy(cluster) as proxy:
        yield proxy
