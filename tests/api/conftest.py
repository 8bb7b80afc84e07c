"""Fixtures of the api tier: one cluster for each pytest process, and for each test a namespace, an install and a ledger.

A test that kills or freezes a server leaves it running as before, since the next test uses the same one. Namespaces are deleted without
waiting, which takes the namespace controller five seconds; their names are not used again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

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
    with capture.global_and_fixture_disabled():  # a build of minutes is to be seen while it lasts
        component("kube-apiserver")
    with started_cluster() as started:
        yield started


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A fresh one, empty."""
    name = f"t-{uuid.uuid4().hex[:10]}"
    cluster.api.create(NAMESPACES, {"metadata": {"name": name}})
    yield name
    cluster.api.delete(NAMESPACES, name)


@pytest.fixture(scope="session")
def ledger_server(cluster: Cluster) -> Iterator[Etcd]:
    """The ledger's own etcd, so that faults of the ledger do not affect the API server. It needs the same binaries, hence `cluster`."""
    with folder_in_memory() as folder, running(folder) as etcd:
        yield etcd


@pytest.fixture
def ledger(ledger_server: Etcd) -> str:
    """The URL of an etcd for records; use `install` as well, to see none of other tests' keys."""
    return f"http://{ledger_server.one.address}"


@pytest.fixture
def own_etcd(cluster: Cluster) -> Iterator[Etcd]:
    """For the records of one test, which kills it, puts it back or fills it."""
    with folder_in_memory() as folder, running(folder) as etcd:
        yield etcd


@pytest.fixture
def install() -> str:
    """A new install id, with which a test sees nothing of other tests in a shared store."""
    return f"i-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def kubeconfig(cluster: Cluster) -> Path:
    return cluster.kubeconfig


@pytest.fixture
def kubeflow(cluster: Cluster, namespace: str) -> Iterator[FakeKubeflow]:
    """Plays the Spark operator and the node of `namespace`; without rules every application runs a moment and succeeds."""
    with FakeKubeflow(cluster.url, ca=cluster.certificates.ca, token=ADMIN, namespace=namespace) as fake:
        yield fake


@pytest.fixture
def api_proxy(cluster: Cluster) -> Iterator[ApiProxy]:
    """Before the API server; `api_proxy.kubeconfig` leads through it. Without faults it only counts."""
    with ApiProxy(cluster) as proxy:
        yield proxy
