"""Which object's request opens a generation, and which does not: refused and late duplicates, failures, edits, suspend."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.apiserver import Cluster
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.kubeflow import Script
from harness.kubeflow.drivers import writes_outputs
from harness.stage import IN_TIME, Stage, held, rows, staged


@pytest.fixture(scope="module")
def stage(cluster: Cluster, ledger_server: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(cluster, ledger_server, tmp_path_factory.mktemp("stage")) as one:
        yield one


def test_fifteen_objects_on_one_operator_have_one_application(stage: Stage) -> None:
    """A single process that reads fifteen objects of a key reserves it once."""
    stage.flood("flood")
    assert len({str(each["result"]) for each in stage.until_all("flood", "Succeeded")}) == 1
    assert stage.attempts("flood") == ["g1-a1"]
    assert len(stage.runs("flood")) == 1


# --- duplicates


def test_a_rejected_duplicate_waits_for_nothing_and_is_told_the_result(stage: Stage) -> None:
    """The leader has onDuplicate: Reject: the second object is refused at once, is no follower, and has the result after the end."""
    done = threading.Event()
    stage.play("reject", Script(code=held(done)))
    stage.send("reject-1", "reject", onDuplicate="Reject")
    stage.until("reject-1", "Running")
    stage.send("reject-2", "reject", onDuplicate="Attach")
    refused = assert_eventually(lambda: stage.condition("reject-2", "Reserved"), IN_TIME)
    assert (refused["status"], refused["reason"]) == ("False", "DuplicateRejected")
    assert "onDuplicate" in stage.until_event("reject-2", "DuplicateRejected")
    assert stage.status("reject-2")["phase"] == "Pending"
    assert [each.partition("/")[0] for each in stage.record("reject")["record"]["objects"]] == [stage.uid("reject-1")]
    stage.edit("reject-1", retention={"failed": "9d"})  # an edit of the leader is not a duplicate
    stage.settled("reject-1", "reject-2")
    assert stage.status("reject-1")["role"] == "Leader"
    done.set()
    stage.until("reject-1", "Succeeded", role="Leader")
    stage.until("reject-2", "Succeeded", role="Replay", replayed=True)
    assert len(stage.runs("reject")) == 1


def test_a_rejected_duplicate_does_not_keep_the_job_alive(stage: Stage) -> None:
    """The leader is deleted while a refused object exists: the job is stopped. The refused object becomes Cancelled and, having its answer,
    opens nothing; a new object does."""
    stage.play("orphan", Script(code=held(threading.Event())), attempt="g1-*")
    stage.send("orphan-1", "orphan", onDuplicate="Reject")
    stage.until("orphan-1", "Running")
    stage.send("orphan-2", "orphan")
    assert_eventually(lambda: stage.condition("orphan-2", "Reserved").get("reason") == "DuplicateRejected", IN_TIME)
    stage.delete("orphan-1")
    assert_eventually(stage.runs("orphan")[0].stop.is_set, IN_TIME)
    stage.until("orphan-2", "Cancelled", role="Replay", generation=1)
    stage.settled("orphan-2")
    stage.send("orphan-3", "orphan")
    stage.until("orphan-3", "Succeeded", role="Leader", generation=2)


@pytest.mark.operator
def test_an_object_that_comes_after_the_end_runs_nothing(stage: Stage) -> None:
    """It is a replay with the same result and an event; there is no second application."""
    stage.send("late-1", "late")
    first = stage.until("late-1", "Succeeded")
    stage.send("late-2", "late")
    second = stage.until("late-2", "Succeeded", role="Replay", replayed=True)
    assert second["result"] == first["result"]
    stage.until_event("late-2", "Replayed")
    assert stage.attempts("late") == ["g1-a1"]


def test_applying_the_same_manifest_again_changes_nothing(stage: Stage) -> None:
    """The object, its status and the record do not change."""
    stage.send("same", "same")
    stage.until("same", "Succeeded")
    before, record = stage.object("same"), stage.record("same")["record"]
    for _ in range(3):
        stage.send("same", "same")
    stage.settled("same")
    after = stage.object("same")
    assert before is not None
    assert after is not None
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    assert stage.record("same")["record"] == record


# --- failures


def test_a_failed_job_is_replayed_unless_a_new_object_may_run_it_again(stage: Stage) -> None:
    """A failure is a result. With onFinalized: RerunIfFailed a new object runs a new generation once; an old object never does."""
    stage.play("failed", Script(exit_code=3), attempt="g1-*")
    stage.play("failed", Script(exit_code=4), attempt="g2-*")
    stage.send("failed-1", "failed", onFinalized="RerunIfFailed")
    stage.until("failed-1", "Failed", generation=1)
    stage.send("failed-2", "failed")
    stage.until("failed-2", "Failed", role="Replay", generation=1)
    stage.send("failed-3", "failed", onFinalized="RerunIfFailed")
    stage.until("failed-3", "Failed", role="Leader", generation=2)
    stage.settled("failed-1", "failed-2", "failed-3")
    assert stage.attempts("failed") == ["g1-a1", "g2-a1"]
    stage.edit("failed-2", onFinalized="RerunIfFailed")  # an old object, edited in an ignored field
    stage.settled("failed-2")
    stage.send("failed-4", "failed", onFinalized="RerunIfFailed")
    stage.until("failed-4", "Succeeded", generation=3)
    for name in ("failed-1", "failed-2", "failed-3"):
        stage.until(name, "Succeeded", generation=3, replayed=True)
    assert stage.attempts("failed") == ["g1-a1", "g2-a1", "g3-a1"]


def test_a_cancelled_generation_is_no_result_for_a_new_object(stage: Stage) -> None:
    """The object stays Cancelled; the next new one opens a generation."""
    stage.play("cancelled", Script(code=held(threading.Event())), attempt="g1-*")
    stage.send("cancelled-1", "cancelled")
    stage.until("cancelled-1", "Running")
    done = stage.cli("cancel", "cancelled", "--reason", "wrong input")
    assert done.returncode == 0, done.stderr
    stage.until("cancelled-1", "Cancelled", generation=1)
    stage.settled("cancelled-1")
    stage.send("cancelled-2", "cancelled")
    stage.until("cancelled-2", "Succeeded", role="Leader", generation=2)


# --- edits


def test_an_edit_of_ignored_fields_is_no_request(stage: Stage) -> None:
    """Edits of labels, retention and policies of a finished job change only observedGeneration."""
    stage.send("ignored", "ignored")
    before = stage.until("ignored", "Succeeded")
    stage.edit(
        "ignored", retention={"failed": "9d"}, onDuplicate="Reject", template={"metadata": {"labels": {"a": "b"}}}
    )
    after = stage.until("ignored", "Succeeded", observedGeneration=2)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed <= {"observedGeneration", "conditions"}
    assert stage.attempts("ignored") == ["g1-a1"]


def test_an_edit_of_tunable_fields_serves_the_next_attempt(stage: Stage) -> None:
    """The running attempt keeps its memory; the next one has the edited value, and it is the same job."""
    fails = threading.Event()
    stage.play("tuned", Script(code=held(fails, exit_code=1)), attempt="g1-a1")
    stage.send("tuned", "tuned", retry={"maxAttempts": 2})
    stage.until("tuned", "Running")
    stage.edit("tuned", template={"spec": {"driver": {"memory": "2g"}, "executor": {"instances": 7}}})
    stage.until("tuned", "Running", observedGeneration=2, attempt=1)
    fails.set()
    stage.until("tuned", "Succeeded", attempt=2)
    first, second = (each["spec"] for each in stage.applications("tuned"))
    assert (first["driver"]["memory"], first["executor"]["instances"]) == ("512m", 1)
    assert (second["driver"]["memory"], second["executor"]["instances"]) == ("2g", 7)
    assert second["arguments"] == first["arguments"]


@pytest.mark.operator
def test_an_edit_of_must_match_fields_is_a_request_that_on_mismatch_decides(stage: Stage) -> None:
    """Rejected, the object is a Mismatch with the field's name, and its running job continues. Reverted, it is the job's leader again and
    gets the result."""
    done = threading.Event()
    stage.play("edited", Script(code=held(done)))
    stage.send("edited", "edited", "a")
    stage.until("edited", "Running")
    stage.arguments("edited", "b")
    assert stage.until("edited", "Mismatch")["mismatch"] == ["spec.template.spec.arguments[0]"]
    assert not stage.runs("edited")[0].stop.is_set()
    stage.arguments("edited", "a")
    stage.until("edited", "Running", role="Leader")
    done.set()
    stage.until("edited", "Succeeded", generation=1, attempt=1)
    assert len(stage.runs("edited")) == 1


def test_an_edit_with_supersede_replaces_the_objects_own_job(stage: Stage) -> None:
    """The old generation ends first; editing there and back is two requests, each of which runs once."""
    stage.play("replaced", Script(code=held(threading.Event())), attempt="g1-*")
    stage.send("replaced", "replaced", "a", onMismatch="Supersede")
    stage.until("replaced", "Running")
    stage.arguments("replaced", "b")
    stage.until("replaced", "Succeeded", generation=2)
    assert stage.runs("replaced")[0].stop.is_set()
    stage.arguments("replaced", "a")
    stage.until("replaced", "Succeeded", generation=3)
    stage.settled("replaced")
    assert [each["spec"]["arguments"] for each in stage.applications("replaced")] == [["a"], ["b"], ["a"]]
    assert stage.attempts("replaced") == ["g1-a1", "g2-a1", "g3-a1"]


def test_an_edit_there_and_back_that_nobody_saw_is_no_request(stage: Stage) -> None:
    """The object is edited and edited back while no operator runs: when one starts, nothing happens."""
    stage.send("unseen", "unseen", "a", onMismatch="Supersede")
    stage.until("unseen", "Succeeded")
    (operator,) = stage.operators
    operator.terminate()
    stage.arguments("unseen", "b")
    stage.arguments("unseen", "a")
    operator.start()
    stage.until("unseen", "Succeeded", observedGeneration=3, generation=1)
    stage.settled("unseen")
    assert stage.attempts("unseen") == ["g1-a1"]


# --- suspend


def test_a_suspended_job_has_no_application_until_it_is_resumed(stage: Stage) -> None:
    """It holds its key and says why it waits, and duplicates follow it; it starts when suspend becomes false."""
    stage.send("suspended", "suspended", suspend=True)
    stage.until("suspended", "Pending", role="Leader")
    assert "spec.suspend" in stage.status("suspended")["message"]
    stage.send("waits", "suspended")
    stage.until("waits", "Pending", role="Follower")
    stage.settled("suspended", "waits")
    assert stage.applications("suspended") == []
    stage.edit("suspended", suspend=False)
    stage.until("suspended", "Succeeded", role="Leader", attempt=1)
    stage.until("waits", "Succeeded", replayed=True)


def test_a_suspended_job_that_is_deleted_is_cancelled(stage: Stage) -> None:
    """Nothing ran and nothing will: a placeholder holds the application's name."""
    stage.send("dropped", "dropped", suspend=True)
    stage.until("dropped", "Pending", role="Leader")
    stage.delete("dropped")
    stage.until_record("dropped", phase="Cancelled")
    assert stage.applications("dropped") == []
    assert len(stage.applications("dropped", placeholders=True)) == 1
    assert stage.runs("dropped") == []


# --- a result that is gone


@pytest.mark.operator
def test_a_result_that_is_gone_is_said_and_run_again_only_on_purpose(stage: Stage, tmp_path: Path) -> None:
    """A new object of a finished job whose table was deleted has ResultGone instead of Complete, and an event; nothing runs until
    a person asks for it. An object that already had the result keeps it."""
    stage.play("gone", Script(code=writes_outputs(1, 2)))
    stage.send("gone-1", "gone", outputs=rows(tmp_path / "table"))
    stage.until("gone-1", "Succeeded")
    shutil.rmtree(tmp_path / "table")
    stage.send("gone-2", "gone", outputs=rows(tmp_path / "table"))
    stage.until("gone-2", "Succeeded", role="Replay")
    assert stage.condition("gone-2", "ResultGone")["status"] == "True"
    assert stage.condition("gone-2", "Complete")["status"] == "False"
    assert "gone-2 sparkonce.dev/rerun=REASON" in stage.until_event("gone-2", "ResultGone")
    stage.settled("gone-1", "gone-2")
    assert stage.condition("gone-1", "Complete")["status"] == "True"
    assert len(stage.runs("gone")) == 1
    assert stage.cli("rerun", "gone").returncode == 0
    for name in ("gone-1", "gone-2"):
        stage.until(name, "Succeeded", generation=2)
        assert stage.condition(name, "Complete")["status"] == "True"
    assert stage.condition("gone-2", "ResultGone")["status"] == "False"
