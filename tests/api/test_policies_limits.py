"""Attempts that fail, do not start, take too long or vanish, and the person who decides unknown outcomes."""

from __future__ import annotations

import getpass
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.apiserver import Cluster
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.kubeflow import Driver, Moment, Script
from harness.kubeflow.drivers import writes_outputs
from harness.stage import IN_TIME, Stage, held, rows, staged
from sparkonce.launch.kubernetes import PODS

WITHIN = 10.0
"""Seconds within which operators act on a person's decision; their sweep runs every five minutes only."""
VANISHES = Script(code=held(threading.Event()), vanishes=Moment.RUNNING)


@pytest.fixture(scope="module")
def stage(cluster: Cluster, ledger_server: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(cluster, ledger_server, tmp_path_factory.mktemp("stage"), operators=2) as one:
        yield one


# --- attempts


@pytest.mark.operator
def test_a_failed_attempt_is_tried_again_after_the_backoff(stage: Stage) -> None:
    """Attempt 2 starts no earlier than the backoff after attempt 1, and attempt 3 no earlier than twice that after attempt 2; then the job
    is Failed for good."""
    stage.play("retried", Script(exit_code=7))
    stage.send("retried", "retried", retry={"maxAttempts": 3, "backoff": {"initial": "0.5s", "max": "10s"}})
    status = stage.until("retried", "Failed", attempt=3)
    first, second, third = stage.runs("retried")
    assert first.ended is not None
    assert second.ended is not None
    assert second.began - first.ended >= 0.45, "less a tenth of jitter"
    assert third.began - second.ended >= 0.9
    assert status["result"]["failure"]["class"] == "Exited"
    assert "7" in stage.condition("retried", "Failed")["message"]
    stage.until_event("retried", "Failed")


def test_an_opaque_job_is_tried_once(stage: Stage) -> None:
    """Unless the job declares retries, a second attempt could repeat its effects."""
    stage.play("once", Script(exit_code=7))
    stage.send("once", "once")
    stage.until("once", "Failed", attempt=1)
    assert len(stage.runs("once")) == 1


def test_an_attempt_that_does_not_start_in_time_ends(stage: Stage) -> None:
    """An attempt that exceeds startTimeoutSeconds never ran: an opaque job is repeated as often as submissionRetries says, apart from
    maxAttempts, and then fails; one that starts the next time succeeds."""
    stage.play("unstarted", Script(submits=False))
    stage.play("restarted", Script(submits=False), attempt="g1-a1")
    stage.send("unstarted", "unstarted", startTimeoutSeconds=1, retry={"submissionRetries": 1})
    stage.send("restarted", "restarted", startTimeoutSeconds=1)
    stage.until("unstarted", "Failed", attempt=2)
    assert "startTimeoutSeconds" in stage.condition("unstarted", "Failed")["message"]
    stage.until("restarted", "Succeeded", attempt=2)
    assert len(stage.runs("restarted")) == 1


def test_a_job_that_takes_too_long_fails(stage: Stage) -> None:
    """activeDeadlineSeconds covers all attempts: the driver is stopped, and no attempt follows."""
    stage.play("slow", Script(code=held(threading.Event())))
    stage.send("slow", "slow", activeDeadlineSeconds=2, retry={"maxAttempts": 5})
    began = time.monotonic()
    status = stage.until("slow", "Failed", attempt=1)
    assert time.monotonic() - began >= 1.5
    assert status["result"]["failure"]["class"] == "Timeout"
    assert "activeDeadlineSeconds" in stage.condition("slow", "Failed")["message"]
    assert stage.runs("slow")[0].stop.is_set()


def test_a_deadline_that_is_edited_counts_at_once(stage: Stage) -> None:
    """The leader's current policies apply: a limit set during the run ends it."""
    stage.play("shortened", Script(code=held(threading.Event())))
    stage.send("shortened", "shortened")
    stage.until("shortened", "Running")
    stage.edit("shortened", activeDeadlineSeconds=1)
    stage.until("shortened", "Failed", attempt=1)


# --- unknown outcomes


@pytest.mark.operator
def test_a_vanished_driver_of_an_opaque_job_is_decided_as_declared(stage: Stage) -> None:
    """onUnknown decides: Hold asks a person, Retry starts the next attempt, Fail ends the job; the outcome is called unknown."""
    for policy in ("Hold", "Retry", "Fail"):
        key = f"vanished-{policy}".lower()
        stage.play(key, VANISHES, attempt="g1-a1")
        stage.send(key, key, onUnknown=policy, retry={"maxAttempts": 2})
    stage.until("vanished-hold", "Held", attempt=1)
    assert stage.condition("vanished-hold", "Held")["reason"] == "Unknown"
    stage.until("vanished-retry", "Succeeded", attempt=2)
    stage.until("vanished-fail", "Failed", attempt=1)
    assert "unknown" in stage.condition("vanished-fail", "Failed")["message"]


def graceful(driver: Driver) -> int:
    """Runs until it is told to stop, then exits with 0 as if it were done."""
    driver.stop.wait()
    return 0


def delete_driver(stage: Stage, key: str) -> None:
    """The operator may place its stub under the same name at once: it is the driver's own pod that must go."""
    name = f"so-{stage.hash20(key)}-g1-a1-driver"

    def uid() -> str | None:
        pod = stage.cluster.api.get(PODS, name, stage.namespace)
        return None if pod is None else str(pod["metadata"]["uid"])

    driver = uid()
    stage.cluster.api.delete(PODS, name, stage.namespace)
    assert_eventually(lambda: uid() != driver, IN_TIME)


@pytest.mark.operator
def test_a_deleted_driver_that_exits_with_code_0_proves_nothing(stage: Stage, tmp_path: Path) -> None:
    """The pod is deleted, the driver exits with 0 on SIGTERM, and the Spark operator says COMPLETED: an opaque job is Held, whether
    operators watched or were down; one with outputs is tried again. A driver that had ended before its pod was deleted has succeeded."""
    stage.play("watched", Script(code=graceful))
    stage.play("away", Script(code=graceful))
    stage.play("declared", Script(code=graceful), attempt="g1-a1")
    stage.play("declared", Script(code=writes_outputs(1, 2)), attempt="g1-a2")
    stage.send("watched", "watched")
    stage.send("away", "away")
    stage.send("declared", "declared", outputs=rows(tmp_path))
    stage.send("done", "done")
    for name in ("watched", "away", "declared"):
        stage.until(name, "Running", attempt=1)
    stage.until("done", "Succeeded", attempt=1)
    delete_driver(stage, "done")
    delete_driver(stage, "watched")
    delete_driver(stage, "declared")
    stage.until("watched", "Held", attempt=1)
    assert stage.condition("watched", "Held")["reason"] == "Unknown"
    stage.until("declared", "Succeeded", attempt=2)
    for each in stage.operators:
        each.kill()
    delete_driver(stage, "away")

    def completed() -> bool:
        [application] = stage.applications("away")
        return bool(application["status"]["applicationState"]["state"] == "COMPLETED")

    assert_eventually(completed, IN_TIME)
    for each in stage.operators:
        each.start()
    stage.until("away", "Held", attempt=1)
    assert "COMPLETED" in stage.condition("away", "Held")["message"]
    assert stage.status("done")["phase"] == "Succeeded"
    assert [len(stage.runs(key)) for key in ("watched", "away", "declared", "done")] == [1, 1, 2, 1]


def test_a_vanished_driver_of_a_job_with_outputs_is_tried_again(stage: Stage, tmp_path: Path) -> None:
    """No decision is needed: its slot is closed, and the next attempt writes the rows."""
    stage.play("settled", Script(code=writes_outputs(1, 2)))
    stage.play("settled", VANISHES, attempt="g1-a1")
    stage.send("settled", "settled", outputs=rows(tmp_path))
    status = stage.until("settled", "Succeeded", attempt=2)
    assert status["result"]["outputs"][0]["rows"] == 2


def hold(stage: Stage, key: str) -> str:
    """Brings the job to Held. Returns the object's name."""
    stage.play(key, VANISHES, attempt="g1-a1")
    stage.send(key, key)
    stage.until(key, "Held", attempt=1)
    return key


def test_a_held_job_says_how_it_is_decided(stage: Stage) -> None:
    """Its status, its event and the command line name the command; the key has no owner, and duplicates get the same answer."""
    name = hold(stage, "says")
    assert f"kubectl sparkonce resolve -n {stage.namespace} says" in stage.condition(name, "Held")["message"]
    assert f"kubectl sparkonce resolve -n {stage.namespace} says" in stage.until_event(name, "Held")
    stage.send("says-2", "says")
    stage.until("says-2", "Held", role="Follower")
    assert stage.record("says")["owner"] is None
    told = json.loads(stage.cli("keys", "explain", "says", "--json").stdout)
    assert (told["phase"], told["waitsFor"]) == ("Held", "a person")
    listed = stage.cli("keys", "list", "--state", "Held").stdout
    assert "says" in listed
    assert "vanished-retry" not in listed


def test_a_person_who_says_succeeded_ends_it(stage: Stage) -> None:
    """Within seconds the object and a follower show Succeeded as a person's decision; nothing runs again."""
    name = hold(stage, "worked")
    stage.send("worked-2", "worked")
    stage.until("worked-2", "Held")
    done = stage.cli("keys", "resolve", "worked", "--succeeded", "--reason", "the table has its rows", "--yes")
    assert done.returncode == 0, done.stderr
    stage.until(name, "Succeeded", timeout=WITHIN, role="Leader", attempt=1)
    stage.until("worked-2", "Succeeded", timeout=WITHIN, replayed=True)
    assert "the table has its rows" in stage.condition(name, "Complete")["message"]
    assert stage.condition(name, "Held")["status"] == "False"
    assert len(stage.runs("worked")) == 1


def test_a_person_who_says_failed_ends_it(stage: Stage) -> None:
    """The job is Failed with the person's reason; a new object gets the same result."""
    name = hold(stage, "broke")
    done = stage.cli("keys", "resolve", "broke", "--failed", "--reason", "no rows came", "--yes")
    assert done.returncode == 0, done.stderr
    stage.until(name, "Failed", timeout=WITHIN, attempt=1)
    assert "no rows came" in stage.condition(name, "Failed")["message"]
    stage.send("broke-2", "broke")
    stage.until("broke-2", "Failed", role="Replay")


@pytest.mark.operator
def test_a_person_who_says_retry_has_it_run_by_an_operator(stage: Stage) -> None:
    """The command grants attempt 2 and ends; an operator takes the key over within seconds and runs the attempt."""
    name = hold(stage, "again")
    done = stage.cli("keys", "resolve", "again", "--retry", "--reason", "nothing was written", "--yes")
    assert done.returncode == 0, done.stderr
    stage.until(name, "Succeeded", timeout=WITHIN, role="Leader", attempt=2)
    assert stage.attempts("again") == ["g1-a1", "g1-a2"]


def test_resolving_a_key_that_is_not_held_is_refused(stage: Stage) -> None:
    """One sentence, exit code 2, and nothing is written."""
    stage.send("ended", "ended")
    stage.until("ended", "Succeeded")
    done = stage.cli("keys", "resolve", "ended", "--failed", "--reason", "no", "--yes")
    assert done.returncode == 2
    assert "not held" in done.stderr
    stage.settled("ended")


# --- cancel and rerun by command


@pytest.mark.operator
def test_a_running_job_is_cancelled_by_command(stage: Stage) -> None:
    """The command waits until the owner has stopped the job; object and follower are Cancelled, with the reason."""
    stage.play("stopped", Script(code=held(threading.Event())))
    stage.send("stopped", "stopped")
    stage.send("stopped-2", "stopped")
    stage.until("stopped", "Running")
    stage.until("stopped-2", "Running")
    done = stage.cli("cancel", "stopped", "--reason", "wrong month")
    assert done.returncode == 0, done.stderr
    assert stage.runs("stopped")[0].stop.is_set()
    for name in ("stopped", "stopped-2"):
        stage.until(name, "Cancelled", timeout=WITHIN)
        assert "wrong month" in stage.condition(name, "Failed")["message"]


@pytest.mark.operator
def test_a_finished_job_is_rerun_by_command(stage: Stage) -> None:
    """The command opens generation 2 and ends; an operator runs it, and the old objects show its result."""
    stage.send("rerun", "rerun")
    stage.until("rerun", "Succeeded", generation=1)
    done = stage.cli("rerun", "rerun")
    assert done.returncode == 0, done.stderr
    assert "generation 2" in done.stdout
    stage.until("rerun", "Succeeded", timeout=WITHIN, generation=2, attempt=1)
    assert stage.attempts("rerun") == ["g1-a1", "g2-a1"]
    assert len(stage.runs("rerun")) == 2
    told = json.loads(stage.cli("keys", "history", "rerun", "--json").stdout)["events"]
    assert [each["by"] for each in told if each["what"] == "Reopened"] == [getpass.getuser()]


def test_a_failed_rerun_takes_the_old_success_back(stage: Stage) -> None:
    """The object shows the newest generation's outcome: Complete is False again, and Failed is True."""
    stage.play("worse", Script(exit_code=1), attempt="g2-*")
    stage.send("worse", "worse")
    stage.until("worse", "Succeeded")
    assert stage.cli("rerun", "worse").returncode == 0
    stage.until("worse", "Failed", timeout=WITHIN, generation=2)
    assert stage.condition("worse", "Complete")["status"] == "False"
    assert stage.condition("worse", "Failed")["status"] == "True"


def test_a_running_job_cannot_be_rerun(stage: Stage) -> None:
    """The command says what is running and how to end it."""
    stage.play("busy", Script(code=held(threading.Event())))
    stage.send("busy", "busy")
    stage.until("busy", "Running")
    done = stage.cli("rerun", "busy")
    assert done.returncode == 2
    assert "sparkonce cancel busy" in done.stderr
    stage.settled("busy")


def test_no_job_is_run_by_a_command_on_a_clusters_ledger(stage: Stage, tmp_path: Path) -> None:
    """`run` says who runs jobs there; the command line does not guess a missing install."""
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(stage.job("local", "local")))
    done = stage.cli("run", str(file))
    assert done.returncode == 2
    assert "kubectl apply" in done.stderr
    done = stage.cli("keys", "list", install="")
    assert done.returncode == 2
    assert "--install" in done.stderr


def test_explain_says_what_a_running_job_waits_for(stage: Stage) -> None:
    """From the ledger alone it gives the row, the owner, and the command that ends the job."""
    stage.play("explained", Script(code=held(threading.Event())))
    stage.send("explained", "explained")
    stage.until("explained", "Running")
    told = json.loads(stage.cli("keys", "explain", "explained", "--json").stdout)
    assert told["phase"] == "Running"
    assert told["owner"]
    assert "running" in told["row"]
    assert told["unblock"] == "sparkonce cancel explained"
    assert_eventually(lambda: stage.status("explained")["owner"] == told["owner"], IN_TIME)


# --- what cannot be stopped


def test_an_attempt_that_cannot_be_stopped_is_held_until_it_is_gone(stage: Stage) -> None:
    """Its node is unreachable, so its pod stays: Held(StillThere), whatever outcome a person decides, because it may still run. Each
    decision tries to stop it once more; once the pod is gone, the job ends."""
    stage.play("stays", Script(code=held(threading.Event()), cut_off=True))
    stage.send("stays", "stays", stopTimeoutSeconds=1)
    stage.until("stays", "Running")
    done = stage.cli("cancel", "stays", "--reason", "wrong input")
    assert done.returncode == 5, done.stderr
    stage.until("stays", "Held")
    assert stage.condition("stays", "Held")["reason"] == "StillThere"
    again = stage.cli("keys", "resolve", "stays", "--failed", "--reason", "give it up", "--yes")
    assert "once more" in again.stdout, again.stderr
    stage.until_history("stays", "Held StillThere", 2)
    assert stage.record("stays")["phase"] == "Held"
    (run,) = stage.runs("stays")
    stage.cluster.api.delete(PODS, run.pod, stage.namespace, grace=0)
    stage.cli("keys", "resolve", "stays", "--failed", "--reason", "its pod is gone", "--yes")
    stage.until("stays", "Cancelled", timeout=WITHIN)
    assert len(stage.runs("stays")) == 1
