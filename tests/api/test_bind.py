"""Following an application that somebody else started: real operators, ledger and API server; what runs is played."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.apiserver import Cluster
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.kubeflow import Script
from harness.operators import OperatorProcess
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
    """Drivers that wait for it end with the test, whatever becomes of it."""
    event = threading.Event()
    yield event
    event.set()


class Plain:
    """A SparkApplication as its user made it, and the jobs that are bound to it."""

    def __init__(self, stage: Stage, name: str, script: Script, **spec: Any) -> None:
        self.stage, self.name = stage, name
        stage.kubeflow.on(script, name=name)
        body = stage.job(name, name)["spec"]["template"]
        body = {**body, "metadata": {"name": name}, "spec": {**body["spec"], **spec}}
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
        """As its Spark operator would."""
        status = {"driverInfo": {}, "applicationState": {"state": state, **more}}
        self.stage.cluster.api.patch(
            SPARK_APPLICATIONS, self.name, {"status": status}, namespace=self.stage.namespace, subresource="status"
        )

    def delete(self) -> None:
        self.stage.cluster.api.delete(SPARK_APPLICATIONS, self.name, self.stage.namespace)
        self.stage.cluster.api.gone(SPARK_APPLICATIONS, self.name, self.stage.namespace)

    def bind(self, capsys: pytest.CaptureFixture[str], *options: str, name: str = "", **spec: Any) -> str:
        """What `sparkonce bind` prints for it, applied; the object's name."""
        file = self.stage.folder / f"{self.name}.yaml"
        file.write_text(yaml.safe_dump(self.now()))
        assert main(["bind", str(file), *options]) == 0
        job = yaml.safe_load(capsys.readouterr().out)
        job["metadata"]["name"] = name or job["metadata"]["name"]
        job["spec"] |= spec
        self.stage.apply(job)
        return str(job["metadata"]["name"])

    def untouched(self, key: str) -> None:
        """It is as its user and its Spark operator left it, ran once, and nothing was created for the key."""
        now = self.now()
        assert now["metadata"]["generation"] == 1
        for name in ("labels", "annotations", "finalizers", "ownerReferences"):
            assert now["metadata"].get(name) == self.made["metadata"].get(name)
        assert len(self.stage.kubeflow.runs_of(self.name)) <= 1
        assert not any(run.stop.is_set() for run in self.stage.kubeflow.runs_of(self.name))
        assert self.stage.applications(key) == self.stage.applications(key, placeholders=True) == []


def test_a_running_application_is_followed_to_its_end(
    stage: Stage, gate: threading.Event, capsys: pytest.CaptureFixture[str]
) -> None:
    """Leader and a duplicate without the binding show it running, then Succeeded; who comes later replays; it was never touched."""
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
    """Bound after its end: the result is what it came to, with the evidence."""
    app = Plain(stage, name, Script(exit_code=code)).until("COMPLETED" if code == 0 else "FAILED")
    app.bind(capsys, "--key", name)
    assert words in stage.until(name, phase)["result"]["evidence"]
    app.untouched(name)


def test_what_its_spark_operator_repeats_is_followed(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """FAILING and PENDING_RERUN, looked at, are no end: the key stays open through both, and gets the end of the second run."""
    stage.kubeflow.kill_operator()  # ours repeats nothing: the test says what the real one would
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
    """Applications that were read one by one, by whomever."""
    counted = stage.cluster.api.metric("apiserver_request_total")
    wanted = {"verb": "GET", "resource": "sparkapplications"}
    return sum(value for labels, value in counted if wanted.items() <= labels.items())


def test_what_is_not_there_is_held_and_a_person_decides(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """Deleted before it was bound: Held with a sentence, also for the job without the binding; `--retry` looks again and launches nothing;
    `--failed` ends it, and only a rerun launches the job."""
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
    assert "looks at application absent once more" in looked.stdout + looked.stderr
    stage.until_record("absent", phase="Held")
    assert stage.applications("absent") == stage.applications("absent", placeholders=True) == []
    stage.cli("keys", "resolve", "absent", "--failed", "--reason", "it wrote nothing", "--yes")
    stage.until("absent", "Failed")
    assert stage.applications("absent") == []
    assert stage.cli("rerun", "absent").returncode == 0, stage.logs()
    stage.until("absent", "Succeeded", generation=2)
    assert stage.attempts("absent") == ["g2-a1"]


def test_another_one_under_its_name_is_not_followed(
    stage: Stage, gate: threading.Event, capsys: pytest.CaptureFixture[str]
) -> None:
    """Deleted and created again while it was followed: held, whatever becomes of the second one."""
    first = Plain(stage, "replaced", Script(code=held(gate))).until("RUNNING")
    first.bind(capsys, "--key", "replaced")
    stage.until("replaced", "Running")
    first.delete()
    Plain(stage, "replaced", Script(submits=False)).say("COMPLETED")
    stage.until("replaced", "Held")


def test_unknown_can_be_declared_a_failure(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """`onUnknown: Fail`: FAILED without an exit code is Failed, and the note says that the outcome is unknown."""
    app = Plain(stage, "unknown", Script(submits=False))
    app.say("FAILED", errorMessage="driver pod not found")
    app.bind(capsys, "--key", "unknown", onUnknown="Fail")
    status = stage.until("unknown", "Failed")
    assert "outcome unknown; application unknown: the Spark operator says FAILED" in status["result"]["evidence"]


def test_a_cancel_stops_nothing(stage: Stage, gate: threading.Event, capsys: pytest.CaptureFixture[str]) -> None:
    """Held with who cancelled and that it runs on; it does; `--retry` follows it again to its end."""
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
    """Two applications under one key: the second job follows the first application, and its own is left alone."""
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
    """Each key gets its end."""
    app = Plain(stage, "shared", Script()).until("COMPLETED")
    for key in ("shared-a", "shared-b"):
        app.bind(capsys, "--key", key, name=key)
        stage.until(key, "Succeeded", application="shared")
        app.untouched(key)


def test_a_deleted_job_ends_nothing(stage: Stage, gate: threading.Event, capsys: pytest.CaptureFixture[str]) -> None:
    """Its last object goes, the application runs on and is followed; whoever sends the job afterwards gets its result."""
    app = Plain(stage, "orphan", Script(code=held(gate))).until("RUNNING")
    app.bind(capsys, "--key", "orphan")
    stage.until("orphan", "Running")
    stage.delete("orphan")
    for _ in range(2):  # what the first one leads to is in the record before the second
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
    """Another job with `onMismatch: Supersede` waits while the application runs, and is launched when it has ended."""
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
    """SIGKILL between a write and its reply, or before it: the next operator records the application's end, and touched nothing."""
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
