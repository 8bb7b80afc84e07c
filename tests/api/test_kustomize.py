"""The kustomization of examples/kubernetes, applied by the real kubectl to a real API server."""

from __future__ import annotations

from pathlib import Path

from harness.apiserver import Cluster
from harness.binaries import component
from harness.patience import completed
from sparkonce.launch.kubernetes import JOBS

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "kubernetes" / "kustomize"


def test_it_is_applied_once_and_unchanged_the_second_time(cluster: Cluster, namespace: str) -> None:
    """Both months, strictly validated; nothing is changed by another `apply -k`, so nothing could run twice."""
    command = [*component("kubectl"), "--kubeconfig", str(cluster.kubeconfig), "apply", "-n", namespace]
    applied = []
    for _ in range(2):
        done = completed([*command, "--validate=strict", "-k", str(FOLDER)], 120)
        assert done.returncode == 0, done.stderr
        listed = cluster.api.list(JOBS, namespace)
        applied.append({each["metadata"]["name"]: (each["metadata"]["uid"], each["spec"]) for each in listed})
        assert [each["metadata"]["generation"] for each in listed] == [1, 1]
    assert set(applied[0]) == {"load-flights-2013-01", "load-flights-2013-02"}
    assert applied[1] == applied[0]
