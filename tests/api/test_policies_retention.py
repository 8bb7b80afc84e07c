"""What is removed after a job's end, and when: applications, objects, records; and the status of an object whose record is gone."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from harness.apiserver import Cluster
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.kubeflow import Moment, Script
from harness.kubeflow.drivers import writes_outputs
from harness.stage import IN_TIME, Stage, held, rows, staged
from sparkonce.launch.kubernetes import JOBS


@pytest.fixture(scope="module")
def stage(cluster: Cluster, ledger_server: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(cluster, ledger_server, tmp_path_factory.mktemp("stage"), operators=2, sweep=1.0) as one:
        yield one


def forget(stage: Stage, key: str) -> subprocess.CompletedProcess[str]:
    config = ("--kubeconfig", str(stage.cluster.kubeconfig))
    return stage.cli("keys", "forget", key, "--reason", "loaded by mistake", "--yes", *config)


def gone(stage: Stage, key: str) -> bool:
    """Whether the ledger has no record of the key."""
    done = stage.cli("keys", "show", key)
    assert done.returncode in (0, 2), done.stderr
    return done.returncode == 2


def test_a_record_is_purged_after_its_retention_and_its_object_expires(stage: Stage) -> None:
    """The record is not purged earlier; then the object is Expired and runs nothing. A new object is a new job, in a higher generation."""
    stage.send("purged-1", "purged", retention={"succeeded": "10s"})
    stage.send("kept", "kept", retention={"succeeded": "1h"})
    first = stage.until("purged-1", "Succeeded", "Expired")
    assert (first["phase"], first["generation"]) == ("Succeeded", 1)
    assert not gone(stage, "purged")
    status = stage.until("purged-1", "Expired")
    assert gone(stage, "purged")
    assert status["result"] == first["result"], "what became of it stays readable"
    assert stage.condition("purged-1", "Complete")["status"] == "True"
    stage.until_event("purged-1", "Expired")
    stage.settled("purged-1")
    stage.send("purged-2", "purged")
    assert stage.until("purged-2", "Succeeded", role="Leader")["generation"] == 2
    assert not gone(stage, "kept")
    assert len(stage.runs("purged")) == 2


@pytest.mark.operator
def test_a_forgotten_key_runs_again_for_a_new_object_alone(stage: Stage) -> None:
    """After `keys forget` the old object expires within seconds and runs nothing, even if its manifest is applied again."""
    stage.send("forgotten-1", "forgotten")
    stage.until("forgotten-1", "Succeeded")
    done = forget(stage, "forgotten")
    assert done.returncode == 0, done.stderr
    stage.until("forgotten-1", "Expired", timeout=10)
    stage.send("forgotten-1", "forgotten")
    stage.settled("forgotten-1")
    assert stage.attempts("forgotten") == ["g1-a1"]
    stage.send("forgotten-2", "forgotten")
    stage.until("forgotten-2", "Succeeded", role="Leader", generation=2)
    assert stage.until("forgotten-1", "Expired", "Succeeded")["generation"] in (1, 2)
    assert len(stage.runs("forgotten")) == 2


def test_a_running_key_is_not_forgotten(stage: Stage) -> None:
    """One sentence and exit code 2; the job continues."""
    done = threading.Event()
    stage.play("lives", Script(code=held(done)))
    stage.send("lives", "lives")
    stage.until("lives", "Running")
    said = forget(stage, "lives")
    assert said.returncode == 2
    assert "lives" in said.stderr
    done.set()
    stage.until("lives", "Succeeded")


def test_the_application_of_a_job_with_outputs_goes_after_its_ttl(
    stage: Stage, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Its name is then free, since its outputs are fenced; record and result are kept. A failed application is kept as long as its own TTL
    says."""
    folder = tmp_path_factory.mktemp("table")
    ttl = {"succeeded": "1s", "failed": "1h"}
    stage.play("written", Script(code=writes_outputs(1)))
    stage.play("unwritten", Script(exit_code=1))
    stage.send("written", "written", outputs=rows(folder), applicationTTL=ttl)
    stage.send("unwritten", "unwritten", outputs=rows(folder), applicationTTL=ttl, retry={"maxAttempts": 1})
    stage.until("written", "Succeeded")
    stage.until("unwritten", "Failed")
    assert_eventually(lambda: stage.applications("written") == [], IN_TIME)
    assert stage.applications("written", placeholders=True) == []
    assert stage.attempts("unwritten") == ["g1-a1"]
    stage.settled("written")
    stage.send("written-2", "written", outputs=rows(folder))
    stage.until("written-2", "Succeeded", role="Replay")


def test_the_application_of_an_opaque_job_leaves_a_suspended_stub(stage: Stage) -> None:
    """A suspended application that runs nothing holds the name, so that a frozen owner's late create can never start the attempt."""
    stage.send("stubbed", "stubbed", applicationTTL={"succeeded": "1s"})
    stage.until("stubbed", "Succeeded")
    name = f"so-{stage.hash20('stubbed')}-g1-a1"
    (stub,) = assert_eventually(lambda: stage.applications("stubbed", placeholders=True), IN_TIME)
    assert stub["metadata"]["name"] == name
    assert stub["spec"]["suspend"] is True
    assert stage.applications("stubbed") == []
    stage.settled("stubbed")
    assert stage.until("stubbed", "Succeeded")["application"] == name
    assert len(stage.runs("stubbed")) == 1


def test_a_finished_object_is_deleted_after_its_ttl(stage: Stage) -> None:
    """ttlSecondsAfterFinished removes the object but not the record: a new object of the key gets the result at once. An object without a
    TTL is kept."""
    stage.send("brief", "brief", ttlSecondsAfterFinished=1)
    stage.send("lasting", "brief")
    stage.until("lasting", "Succeeded")
    stage.cluster.api.gone(JOBS, "brief", stage.namespace, timeout=IN_TIME)
    stage.send("brief-2", "brief")
    stage.until("brief-2", "Succeeded", role="Replay")
    assert stage.attempts("brief") == ["g1-a1"]
    assert json.loads(stage.cli("keys", "show", "brief", "--json").stdout)["phase"] == "Succeeded"


def test_an_unfinished_object_with_a_ttl_stays(stage: Stage) -> None:
    """The TTL counts from the job's end."""
    done = threading.Event()
    stage.play("waiting", Script(code=held(done)))
    stage.send("waiting", "waiting", ttlSecondsAfterFinished=0)
    stage.until("waiting", "Running")
    stage.settled("waiting")
    assert stage.object("waiting") is not None
    done.set()
    stage.cluster.api.gone(JOBS, "waiting", stage.namespace, timeout=IN_TIME)
    stage.until_record("waiting", phase="Succeeded")


@pytest.mark.operator
def test_a_record_is_not_purged_before_its_object_is_told(stage: Stage) -> None:
    """A person decides a held key while no operator runs, and its retention ends: once operators run, the object gets the result before it
    expires."""
    stage.play("untold", Script(code=held(threading.Event()), vanishes=Moment.RUNNING))
    stage.send("untold", "untold", retention={"failed": "1s"})
    stage.until("untold", "Held")
    for operator in stage.operators:
        operator.terminate()
    done = stage.cli("keys", "resolve", "untold", "--failed", "--reason", "no rows came", "--yes")
    assert done.returncode == 0, done.stderr
    assert_eventually(lambda: stage.record("untold")["expiresAt"] < now(), IN_TIME)
    assert stage.status("untold")["phase"] == "Held"
    for operator in stage.operators:
        operator.start(wait=False)
    status = stage.until("untold", "Expired")
    assert "no rows came" in status["result"]["failure"]["message"]
    assert "Failed" in stage.events("untold")


def now() -> str:
    """The current time, formatted as the command line does."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
