"""The cause of a driver's failure, from its log through a kubelet and the API server to status, events and sentences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from harness.apiserver import Cluster
from harness.eventually import assert_eventually
from harness.jobs import job
from harness.kube_api import Json
from harness.kubeflow import Driver, FakeKubeflow, Script
from harness.kubeflow.drivers import assignment_in, job_of, writes_outputs
from harness.kubelet_logs import Logs, served_logs
from harness.operators import OperatorProcess
from sparkonce.blocking import run
from sparkonce.driver.channel import DirectChannel
from sparkonce.launch.kubernetes import JOBS, SPARK_APPLICATIONS, Resource
from sparkonce.store.open import open_blocking

EVENTS = Resource("", "v1", "events", "Event")
LOGS = Path(__file__).parents[1] / "launch" / "driver_logs"
SHUTDOWN = "26/11/24 20:53:42 INFO MemoryStore: MemoryStore cleared\n"


@pytest.fixture
def logs(cluster: Cluster) -> Iterator[Logs]:
    with served_logs(cluster) as served:
        yield served


@dataclass(frozen=True)
class Place:
    cluster: Cluster
    namespace: str
    kubeflow: FakeKubeflow
    operator: OperatorProcess
    folder: Path

    def send(self, name: str, **spec: Any) -> None:
        """Applies a job with one output and three attempts without a pause between them."""
        outputs = [{"name": "rows", "slotLog": {"path": str(self.folder / name)}}]
        retry = {"maxAttempts": 3, "backoff": {"initial": "0s", "max": "0s"}}
        document = job(name, key=f"key-{name}", **{"outputs": outputs, "retry": retry, **spec})
        self.cluster.api.create(JOBS, document, self.namespace)

    def ended(self, name: str, phase: str) -> Json:
        """The result in its status, once the status has this phase."""

        def look() -> Json:
            status: Json = (self.cluster.api.get(JOBS, name, self.namespace) or {}).get("status") or {}
            assert status.get("phase") == phase, f"{status}\n{self.operator.tail()}"
            return dict(status["result"])

        return assert_eventually(look, timeout=60)


@pytest.fixture
def place(request: pytest.FixtureRequest, cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Place]:
    ledger, install, kubeconfig, kubeflow = map(
        request.getfixturevalue, ("ledger", "install", "kubeconfig", "kubeflow")
    )
    operator = OperatorProcess(ledger, install, kubeconfig, [namespace], tmp_path)
    try:
        yield Place(cluster, namespace, kubeflow, operator.start(), tmp_path)
    finally:
        operator.end()


def test_the_status_names_the_exception_of_the_drivers_log(place: Place, logs: Logs) -> None:
    """The log continues for a hundred lines of shutdown after a failed UDF: message and event end with the worker's exception, and the
    excerpt has the user's line. The failure may be transient, so every attempt is made."""
    place.kubeflow.scripts.usual = Script(exit_code=1)
    logs.text = (LOGS / "udf.txt").read_text() + 100 * SHUTDOWN
    place.send("udf")
    failure = place.ended("udf", "Failed")["failure"]
    assert failure["class"] == "Exited"
    assert failure["message"].endswith("driver container exited with code 1 (Error): ValueError: bad row 2")
    assert 'raise ValueError(f"bad row {x}")' in failure["logTail"]
    assert "MemoryStore" not in failure["logTail"]
    assert len(place.kubeflow.runs) == len(place.cluster.api.list(SPARK_APPLICATIONS, place.namespace)) == 3
    assert "tailLines=2000" in logs.asked[0]

    def told() -> None:
        said = [each["message"] for each in place.cluster.api.list(EVENTS, place.namespace)]
        assert any("ValueError: bad row 2" in each for each in said), said

    assert_eventually(told, timeout=30)


def test_an_error_of_the_script_ends_the_job_after_its_first_attempt(place: Place, logs: Logs) -> None:
    """A job with outputs is Failed(Permanent) after one driver. A job without outputs is repeated as its author declared, and so is one
    whose driver mounts a volume."""
    place.kubeflow.scripts.usual = Script(exit_code=1)
    logs.text = (LOGS / "missing_module.txt").read_text()
    place.send("script")
    failure = place.ended("script", "Failed")["failure"]
    assert failure["class"] == "Permanent"
    assert failure["message"].endswith("ModuleNotFoundError: No module named 'foo_bar_missing'")
    assert len(place.kubeflow.runs) == 1

    place.send("opaque", outputs=[], onUnknown="Retry")
    assert place.ended("opaque", "Failed")["failure"]["class"] == "Exited"
    assert len(place.kubeflow.runs) == 1 + 3

    mounting = job("mounts", key="mounts")["spec"]["template"]
    mounting["spec"]["driver"]["configMaps"] = [{"name": "code", "path": "/opt/code"}]
    place.send("mounts", template=mounting)
    assert place.ended("mounts", "Failed")["failure"]["class"] == "Exited"
    assert len(place.kubeflow.runs) == 1 + 3 + 3


@pytest.mark.operator
def test_a_query_that_spark_refuses_ends_the_job_after_its_first_attempt(place: Place, logs: Logs) -> None:
    """Also where the driver mounts something; `retryOn` repeats it by its name, with all attempts."""
    place.kubeflow.scripts.usual = Script(exit_code=1)
    logs.text = (LOGS / "path.txt").read_text() + 100 * SHUTDOWN
    mounting = job("path", key="path")["spec"]["template"]
    mounting["spec"]["driver"]["configMaps"] = [{"name": "code", "path": "/opt/code"}]
    place.send("path", template=mounting)
    failure = place.ended("path", "Failed")["failure"]
    assert (failure["class"], len(place.kubeflow.runs)) == ("Permanent", 1)
    assert (
        "(correct it, or add PATH_NOT_FOUND to spec.retry.retryOn, and run it again with `kubectl "
        in failure["message"]
    )
    assert failure["message"].endswith("[PATH_NOT_FOUND] Path does not exist: file:/no/such/place. SQLSTATE: 42K03")

    retry = {"maxAttempts": 3, "backoff": {"initial": "0s", "max": "0s"}, "retryOn": ["PATH_NOT_FOUND"]}
    place.send("repeated", retry=retry)
    assert place.ended("repeated", "Failed")["failure"]["class"] == "Exited"
    assert len(place.kubeflow.runs) == 1 + 3


def test_what_the_driver_reports_is_known_without_its_log(place: Place, ledger: str, install: str) -> None:
    """No kubelet serves logs here: the driver's own report ends the job after one attempt, with its exception in message and excerpt."""

    def refused(driver: Driver) -> int:
        store = open_blocking(f"etcd://{ledger.partition('://')[2]}", install=install)
        try:
            raise AnalysisException("[TABLE_OR_VIEW_NOT_FOUND] No table `t`. SQLSTATE: 42P01")
        except AnalysisException as error:
            job_of(driver, DirectChannel(store, assignment_in(driver))).report_uncaught(error)
        run(store.close())
        return 1

    place.kubeflow.scripts.usual = Script(code=refused)
    place.send("reported")
    failure = place.ended("reported", "Failed")["failure"]
    assert (failure["class"], len(place.kubeflow.runs)) == ("Permanent", 1)
    assert failure["message"].endswith("AnalysisException: [TABLE_OR_VIEW_NOT_FOUND] No table `t`. SQLSTATE: 42P01")
    assert failure["logTail"].startswith("Traceback (most recent call last):")


@pytest.mark.operator
def test_a_forged_log_never_says_that_no_effect_exists(place: Place, logs: Logs) -> None:
    """A driver commits its output and then claims a syntax error: the job is Succeeded, because the outputs decide."""

    def writes_and_fails(driver: Driver) -> int:
        writes_outputs(1, 2)(driver)
        return 1

    place.kubeflow.scripts.usual = Script(code=writes_and_fails)
    logs.text = (LOGS / "syntax.txt").read_text()
    place.send("forged")

    assert place.ended("forged", "Succeeded")["outputs"][0]["rows"] == 2
    assert len(place.kubeflow.runs) == 1
