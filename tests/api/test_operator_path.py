"""From `kubectl apply` to the result in `.status`, through a real ledger of each kind and a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import ledgers
from harness.apiserver import Cluster
from harness.eventually import assert_eventually
from harness.jobs import job
from harness.kubeflow import FakeKubeflow
from harness.operators import OperatorProcess
from sparkonce.launch.kubernetes import JOBS, SPARK_APPLICATIONS


@pytest.fixture
def operator(
    store: ledgers.Server, install: str, kubeconfig: Path, namespace: str, tmp_path: Path
) -> Iterator[OperatorProcess]:
    process = OperatorProcess(ledgers.url_of(store), install, kubeconfig, [namespace], tmp_path)
    try:
        yield process.start()
    finally:
        process.end()


@pytest.mark.operator
def test_an_applied_job_runs_once_and_its_status_has_the_result(
    cluster: Cluster, namespace: str, kubeflow: FakeKubeflow, operator: OperatorProcess
) -> None:
    """There is one SparkApplication, the phase is Succeeded, and the conditions are those that kubectl waits for."""
    cluster.api.create(JOBS, job("one", key="path-1"), namespace)

    def succeeded() -> None:
        stored = cluster.api.get(JOBS, "one", namespace)
        assert stored is not None
        assert stored.get("status", {}).get("phase") == "Succeeded", f"{stored.get('status')}\n{operator.tail()}"

    assert_eventually(succeeded, timeout=20)
    applications = cluster.api.list(SPARK_APPLICATIONS, namespace)
    assert len(applications) == 1
