"""Another job under the same key: refused with the differing fields, or taking the place of the first once that has ended."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.apiserver import Cluster
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.kubeflow import Driver, Script
from harness.kubeflow.drivers import runs_until_stopped, waits_for, writes_outputs
from harness.stage import Stage, held, rows, staged
from sparkonce.launch.kubernetes import SPARK_APPLICATIONS


@pytest.fixture(scope="module")
def stage(cluster: Cluster, ledger_server: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(cluster, ledger_server, tmp_path_factory.mktemp("stage"), operators=2) as one:
        yield one


@pytest.mark.operator
def test_a_mismatch_names_the_fields_and_harms_nobody(stage: Stage) -> None:
    """Status, condition and event name each differing field; the job that has the key continues and gets its result."""
    done = threading.Event()
    stage.play("named", Script(code=held(done)))
    stage.send("first", "named", "--month", "1")
    stage.until("first", "Running")
    other = stage.job("second", "named", "--month", "2")
    other["spec"]["template"]["spec"] |= {"image": "registry.example/spark:9", "sparkConf": {"spark.eventLog.dir": "x"}}
    stage.apply(other)

    status = stage.until("second", "Mismatch")
    fields = [
        "spec.template.spec.arguments[1]",
        "spec.template.spec.image",
        'spec.template.spec.sparkConf["spark.eventLog.dir"]',
    ]
    assert sorted(status["mismatch"]) == fields
    assert stage.condition("second", "Mismatch")["status"] == "True"
    assert stage.condition("second", "Failed") == {}, "whoever waits for Failed would read that nothing was done"
    for said in (stage.condition("second", "Mismatch")["message"], stage.until_event("second", "Mismatch")):
        assert all(field in said for field in fields)
    assert "role" not in status
    assert "result" not in status
    done.set()
    stage.until("first", "Succeeded", role="Leader", attempt=1)
    assert stage.until("second", "Mismatch")["mismatch"] == status["mismatch"]
    assert len(stage.runs("named")) == 1


def test_a_mismatch_after_the_end_is_one_as_well(stage: Stage) -> None:
    """Another job cannot use a finished key either, and the differing fields are named."""
    stage.send("ended", "ended", "a")
    stage.until("ended", "Succeeded")
    stage.send("late", "ended", "b")
    assert stage.until("late", "Mismatch")["mismatch"] == ["spec.template.spec.arguments[0]"]
    assert stage.attempts("ended") == ["g1-a1"]


def test_a_clients_key_is_for_one_operation_and_resource(stage: Stage) -> None:
    """Operation and resource beside the key must match those recorded with it; the status names the ones that differ."""
    purpose = {"operation": "load", "resource": "orders"}
    stage.send("token", "token", **purpose)
    stage.until("token", "Succeeded")
    stage.send("again", "token", **purpose)
    stage.until("again", "Succeeded", replayed=True)
    stage.send("other", "token", **{**purpose, "resource": "parts"})
    assert stage.until("other", "Mismatch")["mismatch"] == ["spec.resource"]
    stage.send("none", "token")
    assert stage.until("none", "Mismatch")["mismatch"] == ["spec.operation", "spec.resource"]
    assert stage.attempts("token") == ["g1-a1"]


def test_a_job_that_supersedes_waits_until_nothing_of_the_old_one_runs(stage: Stage) -> None:
    """No application of generation 2 exists while a driver of generation 1 still runs, however long that takes to end."""
    seen: list[str] = []

    def slow_to_end(driver: Driver) -> int:
        driver.stop.wait()
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            seen.extend(name for name in stage.attempts("drain") if name != "g1-a1")
        return 143

    stage.play("drain", Script(code=slow_to_end), attempt="g1-*")
    stage.send("old", "drain", "old")
    stage.until("old", "Running")
    stage.send("new", "drain", "new", onMismatch="Supersede")

    status = stage.until("new", "Succeeded", role="Leader", replayed=False)
    assert (status["generation"], status["attempt"]) == (2, 1)
    assert seen == []
    assert stage.attempts("drain") == ["g1-a1", "g2-a1"]
    assert stage.pods(stage.applications("drain")[0]["metadata"]["name"]) == []
    events = json.loads(stage.cli("keys", "history", "drain", "--json").stdout)["events"]
    why = {each["what"]: each.get("why", "") for each in events}
    named = f"IdempotentJob {stage.namespace}/new (metadata.generation 1) takes the place of generation 1"
    assert named in why["StopWanted"]
    assert named in why["Reopened"]
    old = stage.until("old", "Mismatch")
    assert stage.condition("old", "Mismatch")["reason"] == "Superseded"
    assert "result" not in old


@pytest.mark.operator
def test_superseding_a_job_that_had_committed_replaces_its_result(stage: Stage, tmp_path: Path) -> None:
    """The first job's rows are committed, so its generation ends Succeeded; the next generation follows it, and both are never active
    together."""
    wrote = threading.Event()

    def writes_and_stays(driver: Driver) -> int:
        code = writes_outputs(1, 2)(driver)
        wrote.set()
        driver.stop.wait()
        return code or 0

    stage.play("outputs", Script(code=writes_outputs(7)))
    stage.play("outputs", Script(code=writes_and_stays), attempt="g1-*")
    stage.send("wrote", "outputs", "old", outputs=rows(tmp_path))
    assert_eventually(wrote.is_set, 30)
    stage.send("next", "outputs", "new", outputs=rows(tmp_path), onMismatch="Supersede")
    status = stage.until("next", "Succeeded", generation=2)
    assert status["result"]["outputs"][0]["rows"] == 1
    assert stage.until("wrote", "Succeeded", "Mismatch")["generation"] in (1, 2)
    said = stage.cli("keys", "history", "outputs").stdout
    assert said.count("Finalized") == 2, said
    assert "Cancelled" not in said


@pytest.mark.operator
def test_a_superseded_driver_that_wakes_up_later_commits_nothing(stage: Stage, tmp_path: Path) -> None:
    """A driver of the old generation that could not be stopped is fenced; the new generation has its own rows only."""
    wakes = threading.Event()
    stage.play("zombie", Script(code=writes_outputs(7)))
    stage.play("zombie", Script(code=waits_for(wakes, writes_outputs(1, 2)), cut_off=True), attempt="g1-*")
    stage.send("frozen", "zombie", "old", outputs=rows(tmp_path), stopTimeoutSeconds=1)
    stage.until_runs("zombie")
    stage.send("fresh", "zombie", "new", outputs=rows(tmp_path), onMismatch="Supersede")
    assert stage.until("fresh", "Succeeded", generation=2)["result"]["outputs"][0]["rows"] == 1
    wakes.set()
    old, _ = stage.runs("zombie")
    assert_eventually(lambda: old.exit_code == 1, 20)
    assert "Fenced" in old.said, old.said


def test_two_objects_that_supersede_each_other_end(stage: Stage) -> None:
    """Each opens at most one generation: the later one has the key, the earlier one is superseded, and nothing changes any more."""
    stage.play("duel", Script(code=runs_until_stopped), attempt="g1-*")
    stage.send("one", "duel", "one", onMismatch="Supersede")
    stage.until("one", "Running")
    stage.send("two", "duel", "two", onMismatch="Supersede")
    stage.until("two", "Succeeded", generation=2)
    stage.until("one", "Mismatch")
    assert stage.condition("one", "Mismatch")["reason"] == "Superseded"
    stage.settled("one", "two")
    assert stage.attempts("duel") == ["g1-a1", "g2-a1"]


def test_two_objects_that_supersede_each_other_from_the_start_end(stage: Stage) -> None:
    """They are applied at the same moment, twenty times over: at most one generation for each object."""
    for number in range(5):
        key = f"duel-{number}"
        threads = [
            threading.Thread(target=stage.send, args=(f"{key}-{side}", key, side), kwargs={"onMismatch": "Supersede"})
            for side in ("left", "right")
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    for number in range(5):
        left, right = (stage.until(f"duel-{number}-{side}", "Succeeded", "Mismatch") for side in ("left", "right"))
        assert "Succeeded" in (left["phase"], right["phase"])
    stage.settled(*(f"duel-{number}-{side}" for number in range(5) for side in ("left", "right")))
    for number in range(5):
        assert stage.attempts(f"duel-{number}") in (["g1-a1"], ["g1-a1", "g2-a1"])


def test_a_finished_job_that_is_superseded_keeps_its_result_in_its_status(stage: Stage) -> None:
    """Its status stays Succeeded with its own result and generation, and says that another job has the key now."""
    stage.send("kept", "kept", "a")
    before = stage.until("kept", "Succeeded")
    stage.send("replaces", "kept", "b", onMismatch="Supersede")
    stage.until("replaces", "Succeeded", generation=2)
    assert_eventually(lambda: stage.condition("kept", "Mismatch").get("reason") == "Superseded", 20)
    after = stage.status("kept")
    assert (after["phase"], after["result"], after["generation"]) == ("Succeeded", before["result"], 1)
    assert stage.condition("kept", "Complete")["status"] == "True"


def test_the_application_of_generation_two_is_the_new_job(stage: Stage) -> None:
    """The application that runs after a supersede has the arguments of the superseding object."""
    listed = stage.cluster.api.list(SPARK_APPLICATIONS, stage.namespace)
    found = {
        each["metadata"]["name"].split("-", 2)[2]: each["spec"]["arguments"]
        for each in listed
        if stage.hash20("kept") in each["metadata"]["name"]
    }
    assert found == {"g1-a1": ["a"], "g2-a1": ["b"]}


def test_a_schedulers_second_try_is_replayed(stage: Stage) -> None:
    """Lineage settings that each try sets anew, and settings that the job lists, are in the application but not in the job's identity;
    labels by which a tool would prune the application are not on it."""

    def send(name: str, run: str) -> None:
        job = stage.job(name, "lineage", ignoredConf=["spark.example.runId"])
        conf = {"spark.openlineage.parentRunId": run, "spark.example.runId": run}
        job["spec"]["template"]["spec"]["sparkConf"] = conf
        job["spec"]["template"]["metadata"] = {"labels": {"argocd.argoproj.io/instance": "apps", "team": "air"}}
        stage.apply(job)

    send("try-1", "run-1")
    first = stage.until("try-1", "Succeeded")
    (application,) = stage.applications("lineage")
    conf = application["spec"]["sparkConf"]
    assert (conf["spark.openlineage.parentRunId"], conf["spark.example.runId"]) == ("run-1", "run-1")
    assert conf["spark.kubernetes.driverEnv.LC_ALL"] == "C.UTF-8"
    labels = application["metadata"]["labels"]
    assert labels["team"] == "air"
    assert "argocd.argoproj.io/instance" not in labels

    send("try-2", "run-2")
    again = stage.until("try-2", "Succeeded", replayed=True)
    assert again["result"] == first["result"]
    send("try-2", "run-3")  # an edit of ignored settings is no request
    send("try-3", "run-1")
    stage.until("try-3", "Succeeded", replayed=True)
    assert stage.status("try-2")["requestNumber"] == again["requestNumber"]
    assert stage.attempts("lineage") == ["g1-a1"]
