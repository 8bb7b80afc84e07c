"""The fake Spark operator and node write what the real ones write, show their known faults, and are fast."""

from __future__ import annotations

import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from harness.api_faults import ApiProxy
from harness.apiserver import ADMIN, Cluster
from harness.eventually import assert_eventually
from harness.kube_api import Json
from harness.kubeflow import Driver, FakeKubeflow, Lie, Moment, Script
from harness.kubeflow.drivers import runs_until_stopped, waits_for, writes_outputs
from harness.kubeflow.process import kubeflow_process
from launch.kubeflow_scene import assignment_of, job_of
from sparkonce.blocking import run
from sparkonce.launch.kubeflow.spec import application, placeholder
from sparkonce.launch.kubernetes import PODS, SPARK_APPLICATIONS
from sparkonce.sink.open import sinks_of
from sparkonce.sink.transaction import sink_key

ENDED = {"COMPLETED", "FAILED"}
CONTENT: dict[str, Any] = {
    "type": "Python",
    "mode": "cluster",
    "image": "localhost/job:1",
    "sparkVersion": "4.1.1",
    "mainApplicationFile": "local:///job.py",
    "restartPolicy": {"type": "Never"},
    "sparkConf": {"spark.kubernetes.driverEnv.GREETING": "it costs $$5", "spark.kubernetes.driverEnv.NAME": "x"},
    "driver": {"cores": 1, "memory": "512m", "annotations": {"of": "the driver"}},
    "executor": {"cores": 1, "memory": "512m", "instances": 1},
}


class Place:
    """One namespace with the fakes."""

    def __init__(self, cluster: Cluster, namespace: str, kubeflow: FakeKubeflow) -> None:
        self.api, self.namespace, self.kubeflow = cluster.api, namespace, kubeflow

    def submit(self, name: str = "a", *, labels: dict[str, str] | None = None, **spec: Any) -> Json:
        body = {"metadata": {"name": name, "labels": labels or {}}, "spec": {**CONTENT, **spec}}
        return self.api.create(SPARK_APPLICATIONS, body, self.namespace)

    def application(self, *states: str, name: str = "a") -> Json:
        """The application, once it is in one of these states."""
        return self.api.wait(
            SPARK_APPLICATIONS, name, self.namespace, until=lambda it: state_of(it) in states, timeout=20
        )

    def pod(self, name: str = "a-driver") -> Json | None:
        return self.api.get(PODS, name, self.namespace)

    def running_pod(self) -> Json:
        return self.api.wait(
            PODS, "a-driver", self.namespace, until=lambda it: it["status"]["phase"] == "Running", timeout=20
        )


def state_of(application: Json) -> str:
    return str(application.get("status", {}).get("applicationState", {}).get("state", ""))


def message_of(application: Json) -> str:
    return str(application["status"]["applicationState"].get("errorMessage", ""))


@pytest.fixture
def place(cluster: Cluster, namespace: str, kubeflow: FakeKubeflow) -> Place:
    return Place(cluster, namespace, kubeflow)


def test_a_short_success_is_written_as_kubeflow_writes_it(place: Place) -> None:
    """An application ends COMPLETED with the fields that a launcher reads, and its pod Succeeded with labels, owner and exit code."""
    made = place.submit(labels={"team": "air", "kueue.x-k8s.io/queue-name": "q"})
    ended = place.application(*ENDED)
    status, pod = ended["status"], place.pod()
    assert pod is not None
    assert (state_of(ended), message_of(ended), status["executionAttempts"]) == ("COMPLETED", "", 1)
    assert status["driverInfo"] == {"podName": "a-driver"}
    assert status["terminationTime"]
    labels = pod["metadata"]["labels"]
    assert labels["sparkoperator.k8s.io/submission-id"] == status["submissionID"]
    assert labels["sparkoperator.k8s.io/app-name"] == "a"
    assert labels["sparkoperator.k8s.io/launched-by-spark-operator"] == "true"
    assert labels["spark-app-selector"] == status["sparkApplicationId"]
    assert (labels["spark-role"], labels["team"]) == ("driver", "air")
    assert "kueue.x-k8s.io/queue-name" not in labels
    assert pod["metadata"]["annotations"]["of"] == "the driver"
    assert pod["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    [container] = pod["status"]["containerStatuses"]
    assert pod["status"]["phase"] == "Succeeded"
    assert container["name"] == "spark-kubernetes-driver"
    assert container["state"]["terminated"]["exitCode"] == 0
    assert container["containerID"] == container["state"]["terminated"]["containerID"]
    [ran] = place.kubeflow.runs
    assert (ran.environment["GREETING"], ran.exit_code) == ("it costs $5", 0)


def test_a_run_costs_as_many_writes_as_a_real_one(cluster: Cluster, api_proxy: ApiProxy, namespace: str) -> None:
    """For one application, ended well or badly, the Spark operator writes four statuses, spark-submit one pod, and the kubelet two pod
    statuses; no event leads to another write."""
    with FakeKubeflow(api_proxy.url, ca=cluster.certificates.ca, token=ADMIN, namespace=namespace) as fake:
        fake.on(Script(exit_code=3), name="bad")
        place = Place(cluster, namespace, fake)
        for name in ("good", "bad"):
            place.submit(name)
            place.application(*ENDED, name=name)
    assert (
        message_of(place.application("FAILED", name="bad")) == "driver container failed with ExitCode: 3, Reason: Error"
    )
    for name in ("good", "bad"):
        assert len(api_proxy.writes(path=f"/sparkapplications/{name}", agent="spark-operator")) == 4
        assert len(api_proxy.writes(path=f"/pods/{name}-driver/status$", agent="kubelet")) == 2
    assert len(api_proxy.writes(agent="spark-submit")) == 2
    assert len(api_proxy.writes()) == 2 * 7


def test_a_driver_writes_slots_by_its_assignment(place: Place, tmp_path: Path) -> None:
    """A driver with our application's environment commits its attempt's slot, which names the attempt."""
    job = job_of("orders", folder=str(tmp_path))
    assignment = assignment_of(job)
    place.kubeflow.on(Script(code=writes_outputs(1, 2)))
    place.api.create(SPARK_APPLICATIONS, application(assignment, job, [], namespace=place.namespace), place.namespace)
    assert state_of(place.application(*ENDED, name=assignment.name)) == "COMPLETED"
    [sink] = sinks_of(job, None).values()
    slot = run(sink.find(sink_key(assignment.key_hash, assignment.generation, sink)))
    assert slot is not None
    assert (slot.token, slot.rows) == (assignment.attempt, 2)


def test_code_of_a_test_is_a_driver(place: Place) -> None:
    """The return value, exception or exit of a test's function becomes the driver's exit code, and its text the termination message."""

    def exits(_: object) -> int:
        raise SystemExit("the input is not there")

    place.kubeflow.on(Script(code=exits))
    place.submit()
    place.application("FAILED")
    pod = place.pod()
    assert pod is not None
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["message"]) == (1, "the input is not there")


def test_suspending_deletes_the_driver_and_resuming_submits_again(place: Place) -> None:
    """When an application is suspended, its pod is deleted and its driver told to stop; when it is resumed, a second driver runs under the
    same names."""
    place.kubeflow.on(Script(code=runs_until_stopped))
    place.submit()
    first = place.running_pod()
    place.application("RUNNING")
    place.api.patch(SPARK_APPLICATIONS, "a", {"spec": {"suspend": True}}, namespace=place.namespace)
    assert place.application("SUSPENDED")["status"].get("driverInfo") == {}
    place.api.gone(PODS, "a-driver", place.namespace)
    assert [ran.exit_code for ran in place.kubeflow.runs] == [143]

    place.kubeflow.on(Script())
    place.api.patch(SPARK_APPLICATIONS, "a", {"spec": {"suspend": False}}, namespace=place.namespace)
    assert place.application("COMPLETED")["status"]["executionAttempts"] == 2
    second = place.pod()
    assert second is not None and second["metadata"]["uid"] != first["metadata"]["uid"]


def test_a_placeholder_never_runs(place: Place) -> None:
    """Created suspended, it is SUSPENDED without a pod; if another client resumes it, it fails, because it names no image."""
    assignment = assignment_of(job_of())
    made = placeholder(assignment, namespace=place.namespace)
    place.api.create(SPARK_APPLICATIONS, made, place.namespace)
    place.application("SUSPENDED", name=assignment.name)
    place.api.patch(SPARK_APPLICATIONS, assignment.name, {"spec": {"suspend": False}}, namespace=place.namespace)
    assert "image" in message_of(place.application("FAILED", name=assignment.name))
    assert place.kubeflow.runs == ()


def test_any_edit_runs_it_again(place: Place) -> None:
    """A changed argument deletes the driver pod of a finished application, and a second driver runs."""
    place.submit()
    place.application("COMPLETED")
    place.api.patch(SPARK_APPLICATIONS, "a", {"spec": {"arguments": ["x"]}}, namespace=place.namespace)
    assert_eventually(lambda: len(place.kubeflow.runs) == 2, 20)
    place.application("COMPLETED")


def test_a_label_patched_during_the_submission_submits_twice(place: Place) -> None:
    """A write that conflicts with the status makes the Spark operator submit again, which finds its own pod: FAILED, while the driver
    runs."""
    place.kubeflow.on(Script(submit_seconds=0.5, code=runs_until_stopped))
    place.submit()
    assert_eventually(lambda: place.kubeflow.submitting("a"), 10)
    place.api.patch(SPARK_APPLICATIONS, "a", {"metadata": {"labels": {"x": "y"}}}, namespace=place.namespace)
    told = message_of(place.application("FAILED"))
    assert told == "failed to submit spark application: failed to run spark-submit: driver pod already exist"
    assert place.running_pod()


def test_an_operator_that_died_after_submitting_submits_again(place: Place) -> None:
    """Dead between creating the pod and writing the status, it leaves a running driver and no state; restarted, it says FAILED, already
    exist."""
    release = threading.Event()
    place.kubeflow.on(Script(dies=True, code=waits_for(release)))
    place.submit()
    assert_eventually(place.kubeflow.operator_is_dead, 20)
    place.running_pod()
    assert state_of(place.application("")) == ""
    place.kubeflow.on(Script(code=waits_for(release)))
    place.kubeflow.restart_operator()
    assert message_of(place.application("FAILED")).endswith("driver pod already exist")
    release.set()
    assert_eventually(lambda: [ran.exit_code for ran in place.kubeflow.runs] == [0], 20)


@pytest.mark.parametrize(
    ("script", "state", "message", "phase"),
    [
        (Script(lie=Lie.COMPLETED, exit_code=1), "COMPLETED", "", "Failed"),
        (Script(lie=Lie.NOT_FOUND, code=runs_until_stopped), "FAILED", "driver pod not found", "Running"),
        (Script(lie=Lie.SILENT), "", "", "Succeeded"),
        (Script(submissions=2, run_seconds=60), "FAILED", "driver pod already exist", "Running"),
        (Script(submission_error="no space"), "FAILED", "no space", None),
        (Script(submits=False), "", "", None),
        (Script(vanishes=Moment.PENDING, grace_seconds=1), "FAILED", "driver pod not found", None),
        (Script(vanishes=Moment.RUNNING, code=runs_until_stopped), "FAILED", "driver pod not found", None),
        (Script(vanishes=Moment.ENDED, run_seconds=0.3), "FAILED", "driver pod not found", None),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_what_the_status_says_and_what_is_true(
    place: Place, script: Script, state: str, message: str, phase: str | None
) -> None:
    """Each scripted fault leaves the same state as the real one, and the driver pod that then exists, or none."""
    place.kubeflow.on(script)
    place.submit()

    def as_expected() -> None:
        pod = place.pod()
        assert (pod["status"].get("phase") if pod else None) == phase
        found = place.api.get(SPARK_APPLICATIONS, "a", place.namespace)
        assert found is not None and state_of(found) == state
        assert state == "" or message_of(found).endswith(message)

    assert_eventually(as_expected, 25)


def test_a_lagging_status_comes_after_the_pod(place: Place) -> None:
    """The application is COMPLETED no earlier than the lag after its driver has ended."""
    place.kubeflow.on(Script(lag_seconds=5))
    place.submit()
    pod = place.api.wait(PODS, "a-driver", place.namespace, until=lambda it: it["status"].get("phase") == "Succeeded")
    [container] = pod["status"]["containerStatuses"]
    ended = datetime.fromisoformat(container["state"]["terminated"]["finishedAt"])
    completed = place.application("COMPLETED")
    said = datetime.fromisoformat(completed["status"]["terminationTime"])
    assert (said - ended).total_seconds() >= 4, "the times are whole seconds"


def test_a_twin_is_a_second_driver(place: Place) -> None:
    """Two pods of one submission run at the same time, one under another name."""
    place.kubeflow.on(Script(twin=True))
    place.submit()
    place.application("COMPLETED")
    assert_eventually(lambda: {ran.pod for ran in place.kubeflow.runs} == {"a-driver", "a-driver-2"}, 10)


def test_a_node_that_is_cut_off_keeps_its_driver(place: Place) -> None:
    """Its pod stays Terminating while the driver runs on; after a forced deletion the driver still runs until it ends by itself."""
    release = threading.Event()

    def heeds_its_kubelet(driver: Driver) -> int:
        while not release.wait(0.02):
            if driver.stop.is_set():
                return 143
        return 0

    place.kubeflow.on(Script(cut_off=True, code=heeds_its_kubelet))
    place.submit()
    place.running_pod()
    place.api.delete(PODS, "a-driver", place.namespace)
    pod = place.pod()
    assert pod is not None and pod["metadata"]["deletionTimestamp"]
    place.api.delete(PODS, "a-driver", place.namespace, grace=0)
    assert place.pod() is None
    [ran] = place.kubeflow.runs
    assert ran.exit_code is None
    release.set()
    assert_eventually(lambda: ran.exit_code == 0, 10)


def test_rules_choose_by_what_an_application_is(place: Place) -> None:
    """Name, label, annotation or argument choose a script; the last matching rule wins, and without one the usual script applies."""
    place.kubeflow.on(Script(exit_code=4), labels={"l": "1"})
    place.kubeflow.on(Script(exit_code=5), name="by-*")
    place.kubeflow.on(Script(exit_code=6), argument="--six")
    place.submit("by-name", labels={"l": "1"})
    place.submit("label", labels={"l": "1"})
    place.submit("argument", arguments=["--six"])
    place.submit("none")
    for name in ("by-name", "label", "argument", "none"):
        place.application(*ENDED, name=name)
    codes = {ran.application: ran.exit_code for ran in place.kubeflow.runs}
    assert codes == {"by-name": 5, "label": 4, "argument": 6, "none": 0}


def test_it_survives_an_api_server_that_is_killed(cluster: Cluster, place: Place) -> None:
    """An application that runs while the API server is killed and restarted still ends COMPLETED."""
    release = threading.Event()
    place.kubeflow.on(Script(code=waits_for(release)))
    place.submit()
    place.application("RUNNING")
    cluster.server.kill()
    release.set()
    cluster.server.start()
    place.application("COMPLETED")


def test_it_also_runs_in_a_process_of_its_own(cluster: Cluster, namespace: str, install: str) -> None:
    """Started as a child process with its script as JSON, it behaves like the thread; `least` writes only SUBMITTED and the end."""
    with kubeflow_process(cluster, namespace, script=Script(exit_code=7), least=True) as child:
        body = {"metadata": {"name": install}, "spec": CONTENT}
        cluster.api.create(SPARK_APPLICATIONS, body, namespace)
        ended = cluster.api.wait(
            SPARK_APPLICATIONS, install, namespace, until=lambda it: state_of(it) in ENDED, timeout=20
        )
        assert message_of(ended) == "driver container failed with ExitCode: 7, Reason: Error"
        assert child.running
