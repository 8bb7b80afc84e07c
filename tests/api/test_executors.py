"""Executors outlive their driver: whatever ended the attempt, the next one starts only once they are gone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.apiserver import Cluster
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.fleet import Fleet, rows_of
from harness.jobs import job
from harness.kubeflow import Driver, FakeKubeflow, Moment, Script
from harness.kubeflow.drivers import writes_outputs
from harness.kubeflow.script import Code, Json
from harness.patience import until_ended
from harness.stage import A_MOMENT, SOON, Stage, rows, staged
from sparkonce.launch.kubeflow.labels import APP_NAME_LABEL, NONCE
from sparkonce.launch.kubernetes import JOBS, PODS

HELD = "tests.example/held"
"""A finalizer: the pod is being deleted, but exists until the test lets it go, as on a slow node."""
WITHIN = 20.0


@dataclass
class Executors:
    """Pods that a driver starts as Spark on Kubernetes does."""

    cluster: Cluster
    namespace: str
    names: list[str] = field(default_factory=list)

    def start(self, driver: Driver, count: int, *, finalizers: tuple[str, ...] = (HELD,)) -> None:
        application = driver.application["metadata"]["name"]
        for number in range(count):
            name = f"{application}-exec-{number}"
            metadata: Json = {
                "name": name,
                "labels": {APP_NAME_LABEL: application, "spark-role": "executor"},
                "annotations": {NONCE: driver.pod["metadata"]["annotations"][NONCE]},
                "finalizers": list(finalizers),
            }
            spec: Json = {"containers": [{"name": "executor", "image": "spark"}], "terminationGracePeriodSeconds": 0}
            self.cluster.api.create(PODS, {"metadata": metadata, "spec": spec}, self.namespace)
            running = {"status": {"phase": "Running"}}
            self.cluster.api.patch(PODS, name, running, namespace=self.namespace, subresource="status")
            self.names.append(name)

    def leaving(self) -> list[str]:
        found = [self.cluster.api.get(PODS, name, self.namespace) for name in self.names]
        return [each["metadata"]["name"] for each in found if each and each["metadata"].get("deletionTimestamp")]

    def go(self) -> float:
        """Lets the pods go, as a node does that has ended them. Returns the monotonic time, in seconds."""
        began = time.monotonic()
        for name in self.leaving():
            self.cluster.api.patch(PODS, name, {"metadata": {"finalizers": None}}, namespace=self.namespace)
        return began


@pytest.fixture(scope="module")
def stage(cluster: Cluster, ledger_server: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(cluster, ledger_server, tmp_path_factory.mktemp("stage"), operators=2) as one:
        yield one


def leaves_executors(executors: Executors, exit_code: int) -> Code:
    def code(driver: Driver) -> int:
        executors.start(driver, 2)
        return exit_code

    return code


def waits_while_they_stay(stage: Stage, key: str, executors: Executors) -> None:
    """Asserts that attempt 2 does not exist while the executors are being deleted, and does afterwards."""
    assert_eventually(lambda: len(executors.leaving()) == 2, WITHIN)
    until = time.monotonic() + A_MOMENT

    def alone() -> bool:
        assert stage.attempts(key) == ["g1-a1"]
        return time.monotonic() > until

    assert_eventually(alone, WITHIN)
    gone = executors.go()
    stage.until(key, "Succeeded", attempt=2)
    second = next(run for run in stage.runs(key) if run.application.endswith("-a2"))
    assert second.began > gone


@pytest.mark.parametrize("end", ["exited", "vanished"])
def test_the_next_attempt_waits_for_executors(stage: Stage, tmp_path: Path, end: str) -> None:
    """A driver exits with an error, or its pod vanishes, and leaves two executors: both are deleted, and attempt 2 starts once they are
    gone from the API server. One effect."""
    executors = Executors(stage.cluster, stage.namespace)
    vanishes = Moment.ENDED if end == "vanished" else None
    stage.play(end, Script(code=writes_outputs(1)))
    stage.play(end, Script(code=leaves_executors(executors, 137), vanishes=vanishes), attempt="g1-a1")
    stage.send(end, end, outputs=rows(tmp_path))
    waits_while_they_stay(stage, end, executors)
    assert rows_of(tmp_path) == {1: 1}


@pytest.mark.operator
def test_an_opaque_attempt_is_not_followed_while_executors_stay(stage: Stage) -> None:
    """Nothing else keeps two attempts of an opaque job apart: after stopTimeoutSeconds it is Held(StillThere), without an attempt 2."""
    executors = Executors(stage.cluster, stage.namespace)
    stage.play("opaque", Script(code=leaves_executors(executors, 1)))
    stage.send("opaque", "opaque", retry={"maxAttempts": 2}, stopTimeoutSeconds=2)
    stage.until("opaque", "Held", attempt=1)
    assert stage.condition("opaque", "Held")["reason"] == "StillThere"
    assert len(executors.leaving()) == 2
    executors.go()


def test_with_outputs_the_wait_is_bounded(stage: Stage, tmp_path: Path) -> None:
    """If the node never answers, attempt 2 starts after stopTimeoutSeconds, since attempt 1 can no longer commit."""
    executors = Executors(stage.cluster, stage.namespace)
    stage.play("bounded", Script(code=writes_outputs(1)))
    stage.play("bounded", Script(code=leaves_executors(executors, 1)), attempt="g1-a1")
    stage.send("bounded", "bounded", outputs=rows(tmp_path), stopTimeoutSeconds=2)
    stage.until("bounded", "Succeeded", attempt=2)
    assert len(executors.leaving()) == 2
    assert rows_of(tmp_path) == {1: 1}
    executors.go()


def test_executors_of_others_are_left_alone(stage: Stage, tmp_path: Path) -> None:
    """A pod that has only the application's name in a label, which any client may set, is neither deleted nor waited for."""
    executors = Executors(stage.cluster, stage.namespace)

    def code(driver: Driver) -> int:
        driver.pod["metadata"]["annotations"][NONCE] = "somebody else's"
        executors.start(driver, 1, finalizers=())
        return 1

    stage.play("others", Script(code=writes_outputs(1)))
    stage.play("others", Script(code=code), attempt="g1-a1")
    stage.send("others", "others", outputs=rows(tmp_path))
    stage.until("others", "Succeeded", attempt=2)
    assert executors.leaving() == []
    assert stage.cluster.api.get(PODS, executors.names[0], stage.namespace) is not None


@pytest.mark.parametrize("point", ["engine.settling.after", "engine.settle.fenced", "waiting"])
def test_a_successor_waits_for_them_as_well(fleet: Fleet, kubeflow: FakeKubeflow, tmp_path: Path, point: str) -> None:
    """The operator is killed before it has looked for executors, or while it waits for them: its successor does not start attempt 2 before
    they are gone, either."""
    executors = Executors(fleet.cluster, fleet.namespace)
    kubeflow.on(Script(code=writes_outputs(1)))
    kubeflow.on(Script(code=leaves_executors(executors, 1)), name="*-a1")
    first = fleet.add(SPARKONCE_FAILPOINTS="" if point == "waiting" else f"{point}=kill")
    first.wait_ready()
    fleet.cluster.api.create(JOBS, one_output(tmp_path / "table"), fleet.namespace)
    if point == "waiting":
        assert_eventually(lambda: len(executors.leaving()) == 2, WITHIN)
        first.kill()
    assert first.process is not None
    until_ended(first.process, WITHIN)
    fleet.start(1)
    assert_eventually(lambda: len(executors.leaving()) == 2, WITHIN)
    assert_eventually(lambda: len(fleet.owners()) == 1, WITHIN)
    assert len(kubeflow.runs) == 1
    gone = executors.go()
    assert_eventually(lambda: len(kubeflow.runs) == 2, WITHIN)
    assert list(kubeflow.runs)[-1].began > gone
    assert_eventually(lambda: rows_of(tmp_path / "table") == {1: 1}, WITHIN)


@pytest.fixture
def fleet(cluster: Cluster, ledger_server: Etcd, namespace: str, install: str, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(cluster, ledger_server, namespace, install, tmp_path) as started:
        yield started


def one_output(folder: Path) -> Json:
    return job("waits", key="waits", outputs=rows(folder), retry={"backoff": SOON})
