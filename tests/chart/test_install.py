"""Releases on a real API server: admission, and the effects of `helm upgrade` and `helm uninstall`. No pod runs here."""

from __future__ import annotations

import base64
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from harness.apiserver import START_TIMEOUT, STRANGER, Cluster, started_cluster
from harness.binaries import PartMissing, find
from harness.eventually import assert_eventually
from harness.helm import CHART, helm
from harness.jobs import job as job_document
from harness.kube_api import CRDS
from sparkonce.launch.kubernetes import JOBS, NAMESPACES, Resource

VALUES = Path(__file__).parent / "values"
SECRETS = Resource("", "v1", "secrets", "Secret")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
OURS = "idempotentjobs.sparkonce.dev"
OLD = 'description: "Of years ago."'
NEW = 'description: "One job that takes effect once, however often it is sent."'


@pytest.fixture(scope="module")
def cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():  # a build takes minutes: show its progress
            find("kube-apiserver")
    except PartMissing as missing:
        pytest.skip(str(missing))
    with started_cluster() as started:
        for name in ("team-a", "team-b", "teams"):
            started.api.create(NAMESPACES, {"metadata": {"name": name}})
        started.api.delete(CRDS, OURS)  # the chart installs it
        started.api.gone(CRDS, OURS, timeout=START_TIMEOUT)
        yield started


def release(cluster: Cluster, *command: str | Path) -> subprocess.CompletedProcess[str]:
    return helm(*command, "--kubeconfig", cluster.kubeconfig, "--namespace", "platform")


def done(cluster: Cluster, *command: str | Path) -> str:
    said = release(cluster, *command)
    assert said.returncode == 0, said.stderr
    return said.stdout


@pytest.mark.slow
def test_objects_outlive_releases(cluster: Cluster, tmp_path: Path) -> None:
    """An upgrade installs a newer CRD; uninstalling keeps it with its objects; reinstalling the same release adopts them; another release
    is refused unless it leaves the CRD alone."""
    older = tmp_path / "chart"
    shutil.copytree(CHART, older)
    crd = older / "files" / "crds" / "idempotentjobs.yaml"
    assert crd.read_text().count(NEW) == 1
    crd.write_text(crd.read_text().replace(NEW, OLD))
    bundled = ("--values", VALUES / "bundled.yaml")
    assert 'install "platform.first"' in done(cluster, "install", "first", older, *bundled, "--create-namespace")
    assert said_of(cluster) in OLD
    assert_eventually(lambda: cluster.serves(JOBS), START_TIMEOUT)
    stored = cluster.api.create(JOBS, job_document("kept", key="kept"), "teams")
    done(cluster, "upgrade", "first", CHART, *bundled)
    assert said_of(cluster) in NEW
    done(cluster, "uninstall", "first")
    kept = cluster.api.get(JOBS, "kept", "teams")
    assert kept is not None
    assert kept["metadata"]["uid"] == stored["metadata"]["uid"]
    done(cluster, "install", "first", CHART, *bundled)
    refused = release(cluster, "install", "second", CHART, *bundled)
    assert refused.returncode != 0
    assert OURS in refused.stderr
    done(cluster, "install", "second", CHART, *bundled, "--set", "crds.install=false")
    for name in ("first", "second"):
        done(cluster, "uninstall", name)
    assert cluster.api.get(JOBS, "kept", "teams") is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trio", "tenants"])
def test_the_api_server_accepts_everything(cluster: Cluster, name: str) -> None:
    """The API server accepts each rendered object under strict validation, that is, without an unknown field."""
    more = ("--set", "metrics.serviceMonitor.enabled=false,crds.install=false")  # its kind is not installed
    said = release(cluster, "install", name, CHART, "--values", VALUES / f"{name}.yaml", *more, "--create-namespace")
    assert said.returncode == 0, said.stderr
    assert "unknown field" not in said.stderr
    done(cluster, "uninstall", name)


def said_of(cluster: Cluster) -> str:
    """The description of our kind in the CRD that the API server has now."""
    found = cluster.api.get(CRDS, OURS)
    assert found is not None
    assert found["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    return str(found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"])


@pytest.mark.slow
def test_the_certificate_is_kept_over_upgrades(cluster: Cluster) -> None:
    """Running drivers trust the CA that they were started with, so an upgrade changes neither certificate nor CA. A deleted Secret is
    created anew, and every user may read the ConfigMap with the gateway's CA."""
    sets = ("--set", "etcd.bundled.enabled=true", "--set", "crds.install=false")
    done(cluster, "install", "kept", CHART, "--create-namespace", *sets)
    secret = partial(cluster.api.get, SECRETS, "kept-sparkonce-gateway-tls", "platform")
    first = secret()
    assert first is not None
    done(cluster, "upgrade", "kept", CHART, *sets, "--set", "gateway.replicas=3")
    second = secret()
    assert second is not None
    assert second["data"] == first["data"]
    stranger = cluster.server.client(STRANGER)
    told = stranger.get(CONFIG_MAPS, "kept-sparkonce-gateway", "platform")
    stranger.close()
    assert told is not None
    assert told["data"]["ca.crt"].encode() == base64.b64decode(first["data"]["ca.crt"])
    cluster.api.delete(SECRETS, "kept-sparkonce-gateway-tls", "platform")
    done(cluster, "upgrade", "kept", CHART, *sets)
    third = secret()
    assert third is not None
    assert third["data"]["ca.crt"] != first["data"]["ca.crt"]
    done(cluster, "uninstall", "kept")
