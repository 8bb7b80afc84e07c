"""The kustomization of examples/kubernetes: the real kubectl renders it, and applies it to a real API server."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from harness.apiserver import Cluster
from harness.binaries import component
from harness.patience import completed
from sparkonce.launch.kubernetes import JOBS

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "kubernetes"
FOLDER = EXAMPLES / "kustomize"


def test_kustomize_makes_the_same_jobs() -> None:
    """By the kustomize inside kubectl: each month is the job that `sparkonce render` writes, with the kustomization's labels on the job
    alone."""
    done = completed([*component("kubectl"), "kustomize", str(FOLDER)], 60)
    assert done.returncode == 0, done.stderr
    jobs = list(yaml.safe_load_all(done.stdout))
    assert [each["metadata"].pop("labels") for each in jobs] == 2 * [{"app.kubernetes.io/part-of": "flights"}]
    for job, month in zip(jobs, ("01", "02"), strict=True):
        render = [
            sys.executable,
            "-m",
            "sparkonce",
            "render",
            str(EXAMPLES / "load-month.yaml"),
            f"--param=month={month}",
        ]
        done = completed(render, 60)
        assert done.returncode == 0, done.stderr
        assert job == yaml.safe_load(done.stdout)


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
