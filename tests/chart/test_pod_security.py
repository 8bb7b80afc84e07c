"""The chart's pods under PodSecurity admission by a real API server: all components satisfy the profile `restricted`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.apiserver import Cluster, started_cluster
from harness.binaries import PartMissing, find
from harness.helm import PROXY, rendered
from harness.kube_api import ApiError, Json
from sparkonce.launch.kubernetes import NAMESPACES

ENFORCED = "enforced"
PATH = f"/api/v1/namespaces/{ENFORCED}/pods?dryRun=All"


@pytest.fixture(scope="module")
def restricted(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """A cluster with a namespace that enforces the profile."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():  # a build takes minutes: show its progress
            find("kube-apiserver")
    except PartMissing as missing:
        pytest.skip(str(missing))
    with started_cluster() as cluster:
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        cluster.api.create(NAMESPACES, {"metadata": {"name": ENFORCED, "labels": labels}})
        yield cluster


def pods() -> Iterator[Json]:
    """One pod of each workload, as its controller would create it, with the volumes that a StatefulSet adds."""
    sets = ["etcd.bundled.enabled=true", "etcd.bundled.replicas=3", "crds.install=false", *PROXY]
    for each in rendered(sets=sets):
        if each["kind"] not in {"Pod", "Job", "Deployment", "StatefulSet"}:
            continue
        spec = dict((each if each["kind"] == "Pod" else each["spec"]["template"])["spec"])
        claims = [claim["metadata"]["name"] for claim in each["spec"].get("volumeClaimTemplates", [])]
        added = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]
        spec["volumes"] = [*spec.get("volumes", []), *added]
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": each["metadata"]["name"]}, "spec": spec}


def test_every_pod_of_the_chart_is_admitted_as_restricted(restricted: Cluster) -> None:
    """Operator, gateway, proxy, etcd, the hook Job before an upgrade and the pod of `helm test` are admitted; a pod without a security
    context is refused in the same namespace."""
    names = set()
    for pod in pods():
        names.add(restricted.api.request("POST", PATH, pod)["metadata"]["name"].removeprefix("spark-sparkonce-"))
    assert {"operator", "gateway", "proxy", "etcd", "etcd-peers"} < names
    bare: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bare"}}
    bare["spec"] = {"containers": [{"name": "bare", "image": "any"}]}
    with pytest.raises(ApiError, match='violates PodSecurity "restricted'):
        restricted.api.request("POST", PATH, bare)
