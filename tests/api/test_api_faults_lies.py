"""The Spark operator lags, reports falsely or submits twice: the driver pod and the outputs decide, and unknown outcomes are settled as the
job declares.

Every row of a table is a job; all jobs of a test run at the same time, as they would on a cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.apiserver import Cluster
from harness.audit import Expected
from harness.etcd import Etcd
from harness.fleet import ROWS, SOON, Applied, Fleet, rows_of
from harness.jobs import job
from harness.kubeflow import FakeKubeflow, Lie, Moment, Script
from harness.kubeflow.drivers import runs_until_stopped, writes_outputs
from harness.kubeflow.script import Code, Driver
from harness.ledger_dump import dump
from sparkonce.launch.kubeflow.labels import ATTEMPT_LABEL

IN_TIME = 40.0
"""Seconds for all jobs of a test: less than the minute by which a false status lags."""
LAG = 60.0
TWICE = {"retry": {"maxAttempts": 2, "backoff": SOON}}
RETRY, FAIL = {"onUnknown": "Retry", **TWICE}, {"onUnknown": "Fail"}
STOPS_SOON = {"stopTimeoutSeconds": 8}
"""While the Spark operator does not report a driver's end, a stop waits for a quarter of this."""


@dataclass(frozen=True)
class Case:
    script: Script
    outcome: str = "Succeeded"
    attempts: int = 1
    spec: Mapping[str, Any] = field(default_factory=dict)
    drivers: int = 1
    """The number of drivers that run, over all attempts."""


@pytest.fixture
def fleet(cluster: Cluster, ledger_server: Etcd, namespace: str, install: str, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(cluster, ledger_server, namespace, install, tmp_path) as started:
        yield started


def run(fleet: Fleet, kubeflow: FakeKubeflow, cases: Mapping[str, Case], *, honest: Script, **spec: Any) -> None:
    """Runs a job for each case with its script for the first attempt and `honest` for the later ones, until all have ended."""
    fleet.start(1)
    for name, case in cases.items():
        kubeflow.on(honest, argument=name)
        kubeflow.on(case.script, argument=name, labels={ATTEMPT_LABEL: "1"})
    fleet.apply(
        Applied(
            job(name, key=name, arguments=(name,), **{**spec, **case.spec}),
            Expected(case.outcome, attempts=case.attempts),
        )
        for name, case in cases.items()
    )
    fleet.until_ended(IN_TIME)


def drivers(fleet: Fleet, kubeflow: FakeKubeflow) -> dict[str, int]:
    """The number of drivers that ran, by the first argument of their application."""
    jobs = {each["metadata"]["name"]: each["spec"]["arguments"][0] for each in fleet.witness.applications.values()}
    return dict(Counter(jobs[each.application] for each in kubeflow.runs))


OPAQUE = {
    "completed-and-exit-1": Case(Script(lie=Lie.COMPLETED, exit_code=1), "Failed", spec=STOPS_SOON),
    "already-exist-and-lives": Case(Script(submissions=2, run_seconds=2)),
    "already-exist-and-exit-1": Case(Script(submissions=2, run_seconds=1, exit_code=1), "Failed"),
    "not-found-and-lives": Case(Script(lie=Lie.NOT_FOUND, run_seconds=2)),
    "not-found-and-exit-1": Case(Script(lie=Lie.NOT_FOUND, run_seconds=1, exit_code=1), "Failed"),
    "silent": Case(Script(lie=Lie.SILENT, run_seconds=0.5)),
    "lags": Case(Script(lag_seconds=LAG, run_seconds=0.5)),
    "lags-and-exit-1": Case(Script(lag_seconds=LAG, exit_code=1), attempts=2, spec={**TWICE, **STOPS_SOON}, drivers=2),
    "twin": Case(Script(twin=True, run_seconds=0.5), drivers=2),
}


@pytest.mark.operator
def test_the_driver_pod_is_right_about_an_opaque_job(fleet: Fleet, kubeflow: FakeKubeflow) -> None:
    """Whatever the status shows or omits for a minute, the job ends as its driver pod does and not before it, and no attempt is added that
    the exit code does not call for. A second running pod under another name does not decide the attempt."""
    run(fleet, kubeflow, OPAQUE, honest=Script())
    fleet.audit()
    assert drivers(fleet, kubeflow) == {name: case.drivers for name, case in OPAQUE.items()}


VANISHED = Script(vanishes=Moment.RUNNING, run_seconds=60)
NOT_SUBMITTED = Script(submission_error="no route to host")
ALREADY_EXISTS = Script(submissions=2, vanishes=Moment.RUNNING, run_seconds=60)
UNKNOWN = {
    "vanished-retry": Case(VANISHED, attempts=2, spec=RETRY, drivers=2),
    "vanished-fail": Case(VANISHED, "Failed", spec=FAIL),
    "not-submitted-retry": Case(NOT_SUBMITTED, attempts=2, spec=RETRY),
    "not-submitted-fail": Case(NOT_SUBMITTED, attempts=2, spec=FAIL),
    "not-submitted": Case(NOT_SUBMITTED, attempts=2),
    "already-exists-retry": Case(ALREADY_EXISTS, attempts=2, spec=RETRY, drivers=2),
    "already-exists-fail": Case(ALREADY_EXISTS, "Failed", spec=FAIL),
}


def test_an_outcome_that_nobody_saw_is_what_the_job_declared(fleet: Fleet, kubeflow: FakeKubeflow) -> None:
    """After the driver pod of an opaque job vanished, onUnknown decides: retry, or fail for good. A failed submission is not an unknown
    outcome: it never ran, and is repeated whatever is declared."""
    run(fleet, kubeflow, UNKNOWN, honest=Script(), stopTimeoutSeconds=20)
    fleet.audit()
    ran = drivers(fleet, kubeflow)
    assert {name: ran.get(name, 0) for name in UNKNOWN} == {name: case.drivers for name, case in UNKNOWN.items()}


HELD = {
    "vanished": Case(VANISHED, "Held"),
    "already-exists": Case(ALREADY_EXISTS, "Held"),
}


def test_an_outcome_that_nobody_saw_is_held_where_nothing_is_declared(fleet: Fleet, kubeflow: FakeKubeflow) -> None:
    """Without onUnknown the job is held for a person, nothing runs again, and the key has no owner."""
    run(fleet, kubeflow, HELD, honest=Script(), **TWICE)
    found = dump(fleet.etcd, fleet.install)
    held = {
        each.value["key"]: (each.value["state"], each.value.get("held"), each.value["attempt"])
        for each in found.records.values()
    }
    assert held == dict.fromkeys(HELD, ("Held", "Unknown", 1))
    assert not found.claims
    assert len(fleet.witness.applications) == len(HELD)
    assert {name: fleet.witness.phase(name) for name in HELD} == dict.fromkeys(HELD, "Held")


def writes_and(exit_code: int) -> Code:
    def code(driver: Driver) -> int:
        writes_outputs(*ROWS)(driver)
        return exit_code

    return code


WRITES = writes_and(0)
NOTHING_WRITTEN = "wrote-nothing"
DECLARED = {
    "completed-and-exit-1": Case(Script(lie=Lie.COMPLETED, exit_code=1), attempts=2, drivers=2),
    "already-exist": Case(Script(submissions=2, code=WRITES)),
    "not-found": Case(Script(lie=Lie.NOT_FOUND, code=WRITES)),
    "silent": Case(Script(lie=Lie.SILENT, code=WRITES)),
    "lags": Case(Script(lag_seconds=LAG, code=WRITES)),
    "twin": Case(Script(twin=True, code=WRITES), drivers=2),
    "vanished-before-its-commit": Case(Script(vanishes=Moment.RUNNING, code=runs_until_stopped), attempts=2, drivers=2),
    "vanished-after-its-commit": Case(Script(vanishes=Moment.ENDED, code=WRITES)),
    "wrote-and-exit-1": Case(Script(code=writes_and(1))),
    "not-submitted": Case(NOT_SUBMITTED, attempts=2),
    NOTHING_WRITTEN: Case(Script(), "Failed"),
}


@pytest.mark.operator
def test_the_outputs_are_right_about_a_job_that_declares_them(
    fleet: Fleet, kubeflow: FakeKubeflow, tmp_path: Path
) -> None:
    """Committed rows are the result, whatever status, pod or exit code showed; without them the attempt is retried. Each row exists
    once."""
    table = tmp_path / "table"
    outputs = [{"name": "rows", "slotLog": {"path": str(table)}}]
    run(fleet, kubeflow, DECLARED, honest=Script(code=WRITES), outputs=outputs, **TWICE)
    fleet.audit()
    assert drivers(fleet, kubeflow) | {"not-submitted": 1} == {name: case.drivers for name, case in DECLARED.items()}
    assert rows_of(table) == dict.fromkeys(ROWS, len(DECLARED) - 1)
    failed = fleet.witness.jobs[NOTHING_WRITTEN]["status"]["result"]["failure"]
    assert failed["class"] == "NoEffect", failed
