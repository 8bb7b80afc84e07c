"""How much code runs between a watch event and the created SparkApplication in a real operator, and so how much a newcomer has to read."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from harness.apiserver import Cluster
from harness.eventually import assert_eventually
from harness.jobs import job
from harness.operators import OperatorProcess
from sparkonce.launch.kubernetes import JOBS

pytestmark = pytest.mark.operator

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "trace_path.py"
IN_ORDER = (
    "kube/trigger.py:Trigger._event",
    "kube/jobs.py:KnownJobs.told",
    "controller/controller.py:Controller.enqueue",
    "controller/reconcile.py:Reconciler.reconcile",
    "controller/plan.py:plan",
    "controller/admission.py:Admission.open",
    "store/etcd/store.py:EtcdStore.reserve",
    "controller/drive_tasks.py:DriveTasks.start",
    "attempt/drive.py:Drive.step",
    "attempt/decide.py:decide",
    "launch/kubeflow/launcher.py:KubeflowLauncher.launch",
    "kube/client.py:ApiClient.create",
)
"""The steps of docs/life-of-a-job.md, in order."""


@pytest.fixture
def operator(ledger: str, install: str, kubeconfig: Path, namespace: str, tmp_path: Path) -> Iterator[OperatorProcess]:
    """A traced operator, which writes report.json once the application exists."""
    program = (str(SCRIPT), "--json", str(tmp_path / "report.json"), "launch")
    process = OperatorProcess(ledger, install, kubeconfig, [namespace], tmp_path, program=program)
    try:
        yield process.start()
    finally:
        process.end()


def test_the_path_from_a_watch_event_to_the_spark_application_does_not_grow(
    cluster: Cluster, namespace: str, operator: OperatorProcess, tmp_path: Path
) -> None:
    """For a new job the operator takes the steps of docs/life-of-a-job.md in order, and enters at most this many lines and files."""
    cluster.api.create(JOBS, job("traced", key="traced-1"), namespace)
    report = tmp_path / "report.json"
    assert_eventually(report.exists, timeout=60)
    found = json.loads(report.read_text())
    sys.stdout.write(json.dumps({**found, "order": None}, indent=1))
    entered = found["order"]
    assert [step for step in IN_ORDER if step not in entered] == []
    assert [(one, other) for one, other in pairwise(IN_ORDER) if entered[one] >= entered[other]] == []
    assert found["lines"] <= 2180
    assert found["files"] <= 59
