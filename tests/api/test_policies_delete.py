"""Objects of a running job are deleted: followers, the leader, all of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.apiserver import Cluster
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.kubeflow import Driver, Script
from harness.kubeflow.drivers import runs_until_stopped, writes_outputs
from harness.stage import Stage, held, rows, staged


@pytest.fixture(scope="module")
def stage(cluster: Cluster, ledger_server: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(cluster, ledger_server, tmp_path_factory.mktemp("stage"), operators=2) as one:
        yield one


def leader_and_follower(stage: Stage, key: str, **spec: object) -> tuple[str, str]:
    """Creates two objects of a job and waits until both show it running. Returns the names of leader and follower."""
    names = stage.send(f"{key}-1", key, **spec), stage.send(f"{key}-2", key, **spec)
    roles = {stage.until(name, "Running")["role"]: name for name in names}
    return roles["Leader"], roles["Follower"]


@pytest.mark.operator
def test_deleting_a_follower_changes_nothing(stage: Stage) -> None:
    """The job continues in its first attempt, and the leader gets the result."""
    done = threading.Event()
    stage.play("follower", Script(code=held(done)))
    leader, follower = leader_and_follower(stage, "follower")
    stage.delete(follower)
    stage.settled(leader)
    assert not stage.runs("follower")[0].stop.is_set()
    done.set()
    stage.until(leader, "Succeeded", role="Leader", attempt=1)
    assert stage.attempts("follower") == ["g1-a1"]


def test_deleting_the_leader_of_an_opaque_job_costs_nothing(stage: Stage) -> None:
    """An opaque application has no owner, so nothing is garbage-collected: the same attempt ends, and the follower gets its result."""
    done = threading.Event()
    stage.play("opaque", Script(code=held(done)))
    leader, follower = leader_and_follower(stage, "opaque")
    assert "ownerReferences" not in stage.applications("opaque")[0]["metadata"]
    stage.delete(leader)
    stage.settled(follower)
    done.set()
    stage.until(follower, "Succeeded", role="Follower", replayed=True, attempt=1)
    assert len(stage.runs("opaque")) == 1


def test_deleting_the_leader_of_a_job_with_outputs_costs_one_attempt_at_most(stage: Stage, tmp_path: Path) -> None:
    """The application is garbage-collected with it; the follower gets the result of the second attempt, and each row exists once."""
    stage.play("collected", Script(code=writes_outputs(1, 2, 3)))
    stage.play("collected", Script(code=runs_until_stopped), attempt="g1-a1")
    stage.send("collected-1", "collected", outputs=rows(tmp_path))
    stage.until("collected-1", "Running")
    stage.send("collected-2", "collected", outputs=rows(tmp_path))
    stage.until("collected-2", "Running")
    stage.delete("collected-1")
    status = stage.until("collected-2", "Succeeded", role="Follower", replayed=True, attempt=2)
    assert status["result"]["outputs"][0]["rows"] == 3
    assert stage.attempts("collected") == ["g1-a2"]
    owners = stage.applications("collected")[0]["metadata"]["ownerReferences"]
    assert [owner["name"] for owner in owners] == ["collected-2"]


def test_deleting_the_leader_after_its_commit_costs_nothing(stage: Stage, tmp_path: Path) -> None:
    """The application is garbage-collected after its rows were committed and before the operator knows: the follower gets that result, and
    no attempt follows."""
    wrote = threading.Event()

    def writes_and_stays(driver: Driver) -> int:
        code = writes_outputs(1, 2)(driver)
        wrote.set()
        driver.stop.wait()
        return code or 0

    stage.play("wrote", Script(code=writes_and_stays))
    stage.send("wrote-1", "wrote", outputs=rows(tmp_path))
    stage.until("wrote-1", "Running")
    stage.send("wrote-2", "wrote", outputs=rows(tmp_path))
    stage.until("wrote-2", "Running")
    assert_eventually(wrote.is_set, 30)
    stage.delete("wrote-1")
    status = stage.until("wrote-2", "Succeeded", attempt=1)
    assert status["result"]["outputs"][0]["rows"] == 2
    assert len(stage.runs("wrote")) == 1


def test_deleting_all_objects_of_an_opaque_job_stops_it(stage: Stage) -> None:
    """Its driver is stopped and its record is Cancelled; an object applied afterwards opens a new generation."""
    stage.play("both", Script(code=runs_until_stopped), attempt="g1-*")
    for name in leader_and_follower(stage, "both"):
        stage.delete(name)
    run = stage.runs("both")[0]
    assert_eventually(run.stop.is_set, 30)
    assert stage.until_record("both", phase="Cancelled")["attempt"] == 1
    assert stage.pods(run.application) == []
    stage.send("both-3", "both")
    stage.until("both-3", "Succeeded", generation=2)


@pytest.mark.operator
def test_deleting_all_objects_of_a_job_with_outputs_stops_it(stage: Stage, tmp_path: Path) -> None:
    """The record is Cancelled and the slot of its attempt closed: a driver that is still alive can never commit."""
    wakes, told = threading.Event(), threading.Event()

    def ignores_its_end(driver: Driver) -> int:
        driver.stop.wait()
        told.set()
        wakes.wait()
        return writes_outputs(1)(driver) or 0

    stage.play("ends", Script(code=ignores_its_end, cut_off=True))
    leader, follower = leader_and_follower(stage, "ends", outputs=rows(tmp_path), stopTimeoutSeconds=2)
    stage.delete(leader)
    stage.delete(follower)
    stage.until_record("ends", phase="Cancelled")
    run = stage.runs("ends")[0]
    run.stop.set()
    assert_eventually(told.is_set, 10)
    wakes.set()
    assert_eventually(lambda: run.exit_code == 1, 20)
    assert "Fenced" in run.said


@pytest.mark.operator
def test_deleting_all_objects_after_the_commit_ends_as_succeeded(stage: Stage, tmp_path: Path) -> None:
    """Rows that exist are never called Cancelled; an object applied afterwards gets them without another application."""
    wrote = threading.Event()

    def writes_and_stays(driver: Driver) -> int:
        code = writes_outputs(4, 5)(driver)
        wrote.set()
        driver.stop.wait()
        return code or 0

    stage.play("truth", Script(code=writes_and_stays))
    stage.send("truth-1", "truth", outputs=rows(tmp_path))
    stage.until("truth-1", "Running")
    assert_eventually(wrote.is_set, 30)
    stage.delete("truth-1")
    stage.until_record("truth", phase="Succeeded")
    stage.send("truth-2", "truth", outputs=rows(tmp_path))
    status = stage.until("truth-2", "Succeeded", role="Replay", replayed=True, generation=1)
    assert status["result"]["outputs"][0]["rows"] == 2
    assert len(stage.runs("truth")) == 1


def test_a_detached_job_runs_on_without_its_objects(stage: Stage, tmp_path: Path) -> None:
    """With onDelete: Detach, with and without outputs, nothing is garbage-collected or stopped, and a later object gets the result."""
    done = threading.Event()
    stage.play("detached", Script(code=held(done)))
    stage.play("kept", Script(code=lambda driver: (done.wait(), writes_outputs(1)(driver))[1]))
    stage.send("detached-1", "detached", onDelete="Detach")
    stage.send("kept-1", "kept", onDelete="Detach", outputs=rows(tmp_path))
    for name in ("detached-1", "kept-1"):
        stage.until(name, "Running")
        stage.delete(name)
    stage.settled()
    assert [run.stop.is_set() for key in ("detached", "kept") for run in stage.runs(key)] == [False, False]
    done.set()
    for key in ("detached", "kept"):
        stage.until_record(key, phase="Succeeded")
        assert stage.attempts(key) == ["g1-a1"]
    stage.send("detached-2", "detached")
    stage.until("detached-2", "Succeeded", role="Replay")


def test_deleting_a_finished_object_forgets_nothing(stage: Stage) -> None:
    """The same manifest, applied again after the deletion, shows the old result, and no application is created."""
    stage.send("again", "again")
    first = stage.until("again", "Succeeded", role="Leader")
    stage.delete("again")
    stage.send("again", "again")
    second = stage.until("again", "Succeeded", role="Replay", replayed=True)
    assert second["result"] == first["result"]
    assert stage.attempts("again") == ["g1-a1"]
