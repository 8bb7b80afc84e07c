"""How much code runs between a watch event and the created SparkApplication in a real operator, and so how much a newcomer has to read."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

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


LINES, FILES = 2180, 59
TRIES = 3
"""A status that is written before the application brings an event of its own, and a second look at the job is counted as well: the shortest
of some paths is the path. And the operator's first sweep, which comes after its start, may find the job before the event does."""


@pytest.fixture
def traced(
    cluster: Cluster, ledger: str, install: str, kubeconfig: Path, *, namespace: str, tmp_path: Path
) -> Callable[[int], dict[str, Any]]:
    """What a traced operator entered for a new job; it writes its report once the application exists."""

    def run(number: int) -> dict[str, Any]:
        report = tmp_path / f"report-{number}.json"
        program = (str(SCRIPT), "--json", str(report), "launch")
        name = f"traced-{number}"
        # A ledger of its own, without the job of a try before, which would be taken over.
        process = OperatorProcess(ledger, f"{install}-{number}", kubeconfig, [namespace], tmp_path, program=program)
        try:
            process.start()
            cluster.api.create(JOBS, job(name, key=name), namespace)
            assert_eventually(report.exists, timeout=60)
        finally:
            process.end()
            cluster.api.delete(JOBS, name, namespace)
            assert_eventually(lambda: cluster.api.get(JOBS, name, namespace) is None, timeout=60)
        return dict(json.loads(report.read_text()))

    return run


def test_the_path_from_a_watch_event_to_the_spark_application_does_not_grow(
    traced: Callable[[int], dict[str, Any]],
) -> None:
    """For a new job the operator takes the steps of docs/life-of-a-job.md in order, and enters at most this many lines and files."""
    found: dict[str, Any] = {}
    for number in range(TRIES):
        found = traced(number)
        sys.stdout.write(json.dumps({**found, "order": None}, indent=1))
        if not missing(found) and found["lines"] <= LINES and found["files"] <= FILES:
            break
    entered = found["order"]
    assert missing(found) == []
    assert [(one, other) for one, other in pairwise(IN_ORDER) if entered[one] >= entered[other]] == []
    assert found["lines"] <= LINES
    assert found["files"] <= FILES


def missing(found: dict[str, Any]) -> list[str]:
    """Steps that were not taken after the event."""
    return [step for step in IN_ORDER if step not in found["order"]]
