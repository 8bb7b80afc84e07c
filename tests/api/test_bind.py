"""Jobs that follow an application started by another client: real operators, ledger and API server; a fake runs the drivers."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.api_faults import ApiProxy
from harness.apiserver import Cluster
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.kube_api import CRDS
from harness.kubeflow import Script
from harness.operators import OperatorProcess
from harness.patience import completed
from harness.stage import Stage, held, staged
from sparkonce.cli.app import main
from sparkonce.launch.kubernetes import SPARK_APPLICATIONS

Json = dict[str, Any]


@pytest.fixture(scope="module")
def stage(cluster: Cluster, ledger_server: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(cluster, ledger_server, tmp_path_factory.mktemp("stage"), operators=2) as one:
        yield one


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Drivers that wait for this event end with the test, even if their pods are gone."""
    event = threading.Event()
    yield event
    event.set()


class Plain:
    """A SparkApplication as its user created it, and the jobs bound to it."""

    def __init__(
        self, stage: Stage, name: str, script: Script, *, labels: dict[str, str] | None = None, **spec: Any
    ) -> None:
        self.stage, self.name = stage, name
        stage.kubeflow.on(script, name=name)
        body = stage.job(name, name)["spec"]["template"]
        body = {**body, "metadata": {"name": name, "labels": labels or {}}, "spec": {**body["spec"], **spec}}
        self.made = stage.cluster.api.create(SPARK_APPLICATIONS, body, stage.namespace)

    def now(self) -> Json:
        found = self.stage.cluster.api.get(SPARK_APPLICATIONS, self.name, self.stage.namespace)
        assert found is not None, f"{self.name} is gone"
        return found

    @property
    def state(self) -> str:
        return str(self.now().get("status", {}).get("applicationState", {}).get("state", ""))

    def until(self, state: str) -> Plain:
        assert_eventually(lambda: self.state == state, 20)
        return self

    def say(self, state: str, **more: Any) -> None:
        """Writes the status that its Spark operator would write."""
        status = {"driverInfo": {}, "applicationState": {"state": state, **more}}
        self.stage.cluster.api.patch(
            SPARK_APPLICATIONS, self.name, {"status": status}, namespace=self.stage.namespace, subresource="status"
        )

    def delete(self) -> None:
        self.stage.cluster.api.delete(SPARK_APPLICATIONS, self.name, self.stage.namespace)
        self.stage.cluster.api.gone(SPARK_APPLICATIONS, self.name, self.stage.namespace)

    def bind(self, capsys: pytest.CaptureFixture[str], *options: str, name: str = "", **spec: Any) -> str:
        """Applies the job that `sparkonce bind` prints for it. Returns the object's name."""
        file = self.stage.folder / f"{self.name}.yaml"
        file.write_text(yaml.safe_dump(self.now()))
        assert main(["bind", str(file), *options]) == 0
        job = yaml.safe_load(capsys.readouterr().out)
        job["metadata"]["name"] = name or job["metadata"]["name"]
        job["spec"] |= spec
        self.stage.apply(job)
        return str(job["metadata"]["name"])

    def untouched(self, key: str) -> None:
        """Asserts that nothing but its user and its Spark operator changed it, that it ran at most once, and that nothing was created for
        the key."""
        now = self.now()
        assert now["metadata"]["generation"] == 1
        for name in ("labels", "annotations", "finalizers", "ownerReferences"):
            assert now["metadata"].get(name) == self.made["metadata"].get(name)
        assert len(self.stage.kubeflow.runs_of(self.name)) <= 1
        assert not any(run.stop.is_set() for run in self.stage.kubeflow.runs_of(self.name))
        assert self.stage.applications(key) == self.stage.applications(key, placeholders=True) == []


@pytest.mark.operator
def test_a_running_application_is_followed_to_its_end(
    stage: Stage, gate: threading.Event, capsys: pytest.CaptureFixture[str]
) -> None:
    """The leader, and a duplicate without the binding, show it running and then Succeeded; a later object gets a replay. The application
    was not touched."""
    app = Plain(stage, "running", Script(code=held(gate))).until("RUNNING")
    app.bind(capsys, "--key", "running")
    assert stage.until("running", "Running", role="Leader")["application"] == "running"
    assert "which sparkonce did not start" in stage.condition("running", "Reserved")["message"]
    stage.send("later", "running")
    stage.until("later", "Running", role="Follower", application="running")
    explained = stage.cli("keys", "explain", "running")
    assert "its application is followed" in explained.stdout
    assert "kubectl delete sparkapplication running" in explained.stdout
    gate.set()
    for name, role in (("running", "Leader"), ("later", "Follower")):
        assert stage.until(name, "Succeeded", role=role, attempt=1)["result"]["evidence"].startswith(
            "application running completed"
        )
    stage.send("much-later", "running")
    stage.until("much-later", "Succeeded", role="Replay", replayed=True)
    app.untouched("running")


@pytest.mark.parametrize(
    ("name", "code", "phase", "words"),
    [("finished", 0, "Succeeded", "application finished completed"), ("failed", 3, "Failed", "exited with code 3")],
)
def test_an_application_that_has_ended_gives_its_end(
    stage: Stage, capsys: pytest.CaptureFixture[str], *, name: str, code: int, phase: str, words: str
) -> None:
    """If it is bound after its end, its outcome is the result, with the evidence."""
    app = Plain(stage, name, Script(exit_code=code)).until("COMPLETED" if code == 0 else "FAILED")
    app.bind(capsys, "--key", name)
    assert words in stage.until(name, phase)["result"]["evidence"]
    app.untouched(name)


def test_what_its_spark_operator_repeats_is_followed(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """FAILING and PENDING_RERUN are not ends: the key stays open in both, and gets the end of the second run."""
    stage.kubeflow.kill_operator()  # the fake must not rerun anything: the test writes the statuses of the real one
    try:
        app = Plain(stage, "repeats", Script(), restartPolicy={"type": "OnFailure", "onFailureRetries": 2})
        app.say("RUNNING")
        app.bind(capsys, "--key", "repeats")
        stage.until("repeats", "Running")
        for state in ("FAILING", "PENDING_RERUN"):
            app.say(state, errorMessage="driver container failed with ExitCode: 1")
            looked_at_again(stage)
            stage.settled("repeats")
            assert stage.status("repeats")["phase"] == "Running"
        app.say("COMPLETED")
        stage.until("repeats", "Succeeded", attempt=1)
        app.untouched("repeats")
    finally:
        stage.kubeflow.restart_operator()


def looked_at_again(stage: Stage) -> None:
    before = looks(stage)
    assert_eventually(lambda: looks(stage) > before, 20, interval=0.2)


def looks(stage: Stage) -> float:
    """The number of reads of single applications by any client."""
    counted = stage.cluster.api.metric("apiserver_request_total")
    wanted = {"verb": "GET", "resource": "sparkapplications"}
    return sum(value for labels, value in counted if wanted.items() <= labels.items())


def test_what_is_not_there_is_held_and_a_person_decides(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """An application that was deleted before it was bound makes the job Held with a sentence, and also a job without the binding. `--retry`
    looks again and launches nothing; `--failed` ends the job, and only a rerun launches it, which the messages name: of the bound object
    the command, of the other one the annotation."""
    app = Plain(stage, "absent", Script()).until("COMPLETED")
    file = stage.folder / "absent-job.yaml"
    (stage.folder / "absent.yaml").write_text(yaml.safe_dump(app.now()))
    assert main(["bind", str(stage.folder / "absent.yaml"), "--key", "absent"]) == 0
    file.write_text(capsys.readouterr().out)
    app.delete()
    stage.apply(yaml.safe_load(file.read_text()))
    assert "is not in the job's namespace" in stage.until("absent", "Held")["message"]
    stage.send("absent-later", "absent")
    stage.until("absent-later", "Held")
    looked = stage.cli("keys", "resolve", "absent", "--retry", "--reason", "look", "--yes")
    assert "reads application absent once more" in looked.stdout + looked.stderr
    stage.until_record("absent", phase="Held")
    assert stage.applications("absent") == stage.applications("absent", placeholders=True) == []
    stage.cli("keys", "resolve", "absent", "--failed", "--reason", "it wrote nothing", "--yes")
    again = f"; to run it again: kubectl sparkonce rerun absent -n {stage.namespace}"
    assert stage.until("absent", "Failed")["message"].endswith(again)
    assert stage.until("absent-later", "Failed")["message"].endswith("absent-later sparkonce.dev/rerun=REASON")
    assert stage.applications("absent") == []
    assert stage.cli("rerun", "absent").returncode == 0, stage.logs()
    stage.until("absent", "Succeeded", generation=2)
    assert stage.attempts("absent") == ["g2-a1"]


@pytest.mark.operator
def test_another_one_under_its_name_is_not_followed(
    stage: Stage, gate: threading.Event, capsys: pytest.CaptureFixture[str]
) -> None:
    """After the followed application was deleted and created again, the job is held, whatever the second one does."""
    first = Plain(stage, "replaced", Script(code=held(gate))).until("RUNNING")
    first.bind(capsys, "--key", "replaced")
    stage.until("replaced", "Running")
    first.delete()
    Plain(stage, "replaced", Script(submits=False)).say("COMPLETED")
    stage.until("replaced", "Held")


def test_unknown_can_be_declared_a_failure(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """With `onUnknown: Fail`, FAILED without an exit code is Failed, and the evidence says that the outcome is unknown."""
    app = Plain(stage, "unknown", Script(submits=False))
    app.say("FAILED", errorMessage="driver pod not found")
    app.bind(capsys, "--key", "unknown", onUnknown="Fail")
    status = stage.until("unknown", "Failed")
    assert "outcome unknown; application unknown: the Spark operator says FAILED" in status["result"]["evidence"]


@pytest.mark.operator
def test_a_cancel_stops_nothing(stage: Stage, gate: threading.Event, capsys: pytest.CaptureFixture[str]) -> None:
    """The job is Held with the sentence that the application runs on, which it does; `--retry` follows it again to its end."""
    app = Plain(stage, "cancelled", Script(code=held(gate))).until("RUNNING")
    app.bind(capsys, "--key", "cancelled")
    stage.until("cancelled", "Running")
    stage.cli("cancel", "cancelled", "--reason", "too slow")
    assert (
        "was not started by sparkonce, so it is not stopped and runs on" in stage.until("cancelled", "Held")["message"]
    )
    app.untouched("cancelled")
    stage.cli("keys", "resolve", "cancelled", "--retry", "--reason", "follow it", "--yes")
    stage.until("cancelled", "Running")
    gate.set()
    stage.until("cancelled", "Succeeded")
    app.untouched("cancelled")


def test_the_first_binding_of_a_key_stands(
    stage: Stage, gate: threading.Event, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second job under the key, bound to another application, follows the first application; its own is left alone."""
    first = Plain(stage, "one-of-two", Script(code=held(gate))).until("RUNNING")
    second = Plain(stage, "two-of-two", Script(exit_code=1)).until("FAILED")
    first.bind(capsys, "--key", "two")
    stage.until("one-of-two", "Running", role="Leader")
    second.bind(capsys, "--key", "two")
    stage.until("two-of-two", "Running", role="Follower", application="one-of-two")
    gate.set()
    for name in ("one-of-two", "two-of-two"):
        stage.until(name, "Succeeded", application="one-of-two")
    first.untouched("two")
    second.untouched("two")


def test_one_application_may_be_bound_under_two_keys(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """Each of the two keys gets the application's end."""
    app = Plain(stage, "shared", Script()).until("COMPLETED")
    for key in ("shared-a", "shared-b"):
        app.bind(capsys, "--key", key, name=key)
        stage.until(key, "Succeeded", application="shared")
        app.untouched(key)


def test_a_deleted_job_ends_nothing(stage: Stage, gate: threading.Event, capsys: pytest.CaptureFixture[str]) -> None:
    """After its last object was deleted the application runs on and is followed; a later request gets its result."""
    app = Plain(stage, "orphan", Script(code=held(gate))).until("RUNNING")
    app.bind(capsys, "--key", "orphan")
    stage.until("orphan", "Running")
    stage.delete("orphan")
    for _ in range(2):  # before the second one, the record has the effects of the first
        looked_at_again(stage)
    assert stage.record("orphan")["phase"] == "Running"
    gate.set()
    stage.until_record("orphan", phase="Succeeded")
    stage.send("orphan-again", "orphan")
    stage.until("orphan-again", "Succeeded", role="Replay")
    app.untouched("orphan")


def test_what_supersedes_it_runs_after_its_end(
    stage: Stage, gate: threading.Event, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another job with `onMismatch: Supersede` waits while the application runs, and is launched once it has ended."""
    app = Plain(stage, "old", Script(code=held(gate))).until("RUNNING")
    app.bind(capsys, "--key", "superseded")
    stage.until("old", "Running")
    stage.send("new", "superseded", "--other", onMismatch="Supersede")
    stage.settled("new", "old")
    assert stage.applications("superseded") == []
    app.untouched("superseded")
    gate.set()
    stage.until("new", "Succeeded", generation=2)
    assert stage.attempts("superseded") == ["g2-a1"]
    assert len(stage.kubeflow.runs_of("old")) == 1


PLACES = [
    "replica.reserve.before",
    "replica.reserve.after",
    "engine.note.after",
    "engine.finalize.before",
    "engine.finalize.after",
]


@pytest.mark.parametrize("place", PLACES)
def test_an_operator_that_dies_at_any_step_changes_nothing(
    cluster: Cluster,
    ledger_server: Etcd,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    gate: threading.Event,
    place: str,
) -> None:
    """After SIGKILL before a write, or between a write and its reply, the next operator records the application's end and touches
    nothing."""
    with staged(cluster, ledger_server, tmp_path, operators=0) as stage:
        environment = {"SPARKONCE_FAILPOINTS": f"{place}=1*kill"}
        url, config = f"http://{ledger_server.one.address}", cluster.kubeconfig
        doomed = OperatorProcess(
            url, stage.install, config, [stage.namespace], tmp_path, name="doomed", environment=environment
        )
        next_one = OperatorProcess(url, stage.install, config, [stage.namespace], tmp_path, name="next")
        try:
            stage.operators.append(doomed.start())
            app = Plain(stage, "victim", Script(code=held(gate))).until("RUNNING")
            app.bind(capsys, "--key", "victim")
            if "finalize" in place:
                gate.set()
            process = doomed.process
            assert process is not None
            assert_eventually(lambda: process.poll() is not None, 30)
            stage.operators.append(next_one.start())
            gate.set()
            stage.until("victim", "Succeeded", attempt=1, generation=1)
            app.untouched("victim")
        finally:
            doomed.end()
            next_one.end()


# --- binding all applications of a namespace


def adopt(stage: Stage, *options: str, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
    place = ("--namespace", stage.namespace, "--kubeconfig", str(kubeconfig or stage.cluster.kubeconfig))
    return completed([sys.executable, "-m", "sparkonce", "adopt", *place, *options], 60)


def labelled(stage: Stage, name: str, script: Script, **labels: str) -> Plain:
    return Plain(stage, name, script, labels=labels)


def jobs_of(stage: Stage, *names: str) -> dict[str, str]:
    """The UID of the application that the IdempotentJob of each name follows."""
    found = {name: stage.object(name) for name in names}
    return {name: each["spec"]["bind"]["uid"] for name, each in found.items() if each is not None}


def test_all_that_runs_in_a_namespace_is_adopted_by_one_command(stage: Stage, gate: threading.Event) -> None:
    """The labelled applications that run each get a job and are followed; the others are named with the reason. Repeating the command finds
    everything done, and no application is touched."""
    apps = [labelled(stage, f"adopted-{n}", Script(code=held(gate)), team="a").until("RUNNING") for n in range(3)]
    labelled(stage, "adopted-ended", Script(), team="a").until("COMPLETED")
    labelled(stage, "adopted-other", Script(code=held(gate)), team="b").until("RUNNING")
    stage.send("adopted-taken", "adopted-taken")
    labelled(stage, "adopted-taken", Script(code=held(gate)), team="a").until("RUNNING")
    names = [app.name for app in apps]

    planned = adopt(stage, "--selector", "team=a", "--dry-run")
    assert next(line for line in planned.stdout.splitlines() if "would be bound" in line) == (
        "adopted-0: would be bound: run/adopted-0@1"
    )
    assert jobs_of(stage, *names) == {}
    done = adopt(stage, "--selector", "team=a")
    told = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert [told[name] for name in names] == [f"bound: run/{name}@1" for name in names]
    assert told["adopted-ended"].startswith("left out (it has ended (COMPLETED); `sparkonce bind`")
    assert told["adopted-taken"].startswith("not bound (another IdempotentJob is called adopted-taken")
    assert set(told) == {*names, "adopted-ended", "adopted-taken"}
    assert done.returncode == 2
    again = adopt(stage, "--selector", "team=a")
    assert all(f"{name}: already bound (by IdempotentJob {name})" in again.stdout for name in names)
    assert jobs_of(stage, *names) == {app.name: app.made["metadata"]["uid"] for app in apps}
    for name in names:
        stage.until(name, "Running", role="Leader", application=name)
    gate.set()
    for app in apps:
        stage.until(app.name, "Succeeded", attempt=1)
        app.untouched(f"run/{app.name}@1")


def test_two_who_adopt_at_once_make_one_job_each(stage: Stage, gate: threading.Event) -> None:
    """With two commands at once each application has one job, and both commands report it as bound."""
    apps = [labelled(stage, f"raced-{n}", Script(code=held(gate)), race="1").until("RUNNING") for n in range(6)]
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: adopt(stage, "-l", "race=1"), range(2)))
    assert [each.returncode for each in both] == [0, 0], [each.stderr for each in both]
    for app in apps:
        said = [line for each in both for line in each.stdout.splitlines() if line.startswith(f"{app.name}: ")]
        assert len(said) == 2
        assert all("bound" in line and "not bound" not in line for line in said)
    names = [app.name for app in apps]
    assert jobs_of(stage, *names) == {app.name: app.made["metadata"]["uid"] for app in apps}


def test_an_adoption_whose_reply_is_lost_is_found(stage: Stage, api_proxy: ApiProxy, gate: threading.Event) -> None:
    """A create whose reply was lost is repeated, finds the object, and reports it as bound."""
    app = labelled(stage, "reply-lost", Script(code=held(gate)), lost="1").until("RUNNING")
    lost = api_proxy.lose_reply(method="POST", path="/idempotentjobs")
    done = adopt(stage, "-l", "lost=1", kubeconfig=api_proxy.kubeconfig)
    assert (done.returncode, done.stdout) == (0, "reply-lost: bound: run/reply-lost@1\n"), done.stderr
    assert lost.hits == 1
    assert api_proxy.count(method="POST", path="/idempotentjobs") == 2
    assert jobs_of(stage, "reply-lost") == {"reply-lost": app.made["metadata"]["uid"]}


def test_a_definition_that_does_not_know_bind_makes_no_job(stage: Stage, gate: threading.Event) -> None:
    """A CRD from an earlier version drops `spec.bind`, so that the operator would launch the application's spec again: the command creates
    nothing."""
    app = labelled(stage, "strict", Script(code=held(gate)), old="1").until("RUNNING")
    before = stage.cluster.api.get(CRDS, "idempotentjobs.sparkonce.dev", None)
    assert before is not None
    old = copy.deepcopy(before)
    spec = old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["properties"]["bind"]
    spec["x-kubernetes-validations"] = [rule for rule in spec["x-kubernetes-validations"] if "bind" not in rule["rule"]]
    api = stage.cluster.api
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/idempotentjobs.sparkonce.dev"
    try:
        del old["metadata"]["resourceVersion"]
        api.request(
            "PUT",
            path,
            {**old, "metadata": {**old["metadata"], "resourceVersion": before["metadata"]["resourceVersion"]}},
        )
        assert_eventually(lambda: "unknown field" in adopt(stage, "-l", "old=1").stdout, 30)
    finally:
        now = api.get(CRDS, "idempotentjobs.sparkonce.dev", None)
        assert now is not None
        api.request("PUT", path, {**now, "spec": before["spec"]})
    assert stage.object("strict") is None
    assert len(stage.kubeflow.runs_of("strict")) == 1
    assert app.state == "RUNNING"
