"""Opaque jobs whose attempts never ran: a person has to decide only if an effect is possible."""

from __future__ import annotations

import functools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import effort
from harness.apiserver import Cluster
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.kubeflow import Script
from harness.kubeflow.drivers import writes_outputs
from harness.stage import IN_TIME, Stage, held, rows, staged

NO_QUOTA = "failed to run spark-submit: exceeded quota: pods"
FAILS = Script(submission_error=NO_QUOTA)
WAITS = "no node takes its driver pod (Unschedulable): 0/1 nodes are available"
JOBS = effort.size("failing submissions")
PATIENCE = 300.0
"""Seconds for all of the random submissions."""


@pytest.fixture(scope="module")
def stage(cluster: Cluster, ledger_server: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(cluster, ledger_server, tmp_path_factory.mktemp("stage"), operators=2) as one:
        yield one


@pytest.mark.operator
def test_a_failed_submission_is_repeated(stage: Stage) -> None:
    """An opaque job with one attempt succeeds at its third submission, and has run once."""
    stage.play("late", FAILS)
    stage.play("late", Script(), attempt="g1-a3")
    stage.send("late", "late")
    status = stage.until("late", "Succeeded", attempt=3)
    assert len(stage.runs("late")) == 1
    assert status["result"]["attempts"] == 3


def test_submissions_that_always_fail_end_it(stage: Stage) -> None:
    """After `submissionRetries` the job is Failed with the Spark operator's words, and never Held, because nothing has run."""
    stage.play("never", FAILS)
    stage.send("never", "never", retry={"submissionRetries": 1})
    status = stage.until("never", "Failed", attempt=2)
    assert NO_QUOTA in status["result"]["failure"]["message"]
    assert stage.runs("never") == []


def test_an_attempt_that_is_cancelled_before_it_ran_is_simply_cancelled(stage: Stage) -> None:
    """Its image cannot be pulled: after `cancel` the outcome is not called unknown."""
    stage.play("unplaced", Script(pending_seconds=600.0))
    stage.send("unplaced", "unplaced")
    assert_eventually(lambda: stage.pods(f"so-{stage.hash20('unplaced')}-g1-a1"), IN_TIME)
    done = stage.cli("cancel", "unplaced", "--reason", "wrong image")
    assert done.returncode == 0, done.stderr
    stage.until("unplaced", "Cancelled", attempt=1)
    assert "unknown" not in stage.condition("unplaced", "Failed")["message"]
    assert stage.runs("unplaced") == []


def test_submissions_that_fail_at_random(stage: Stage) -> None:
    """60 % of all submissions fail: each opaque job ends once, either Succeeded with one driver or Failed with none, and none is Held."""
    rng = random.Random(effort.seed("failing submissions"))
    expected = {}
    for number in range(JOBS):
        key = f"random-{number}"
        fails = [rng.random() < 0.6 for _ in range(4)]
        for attempt, failing in enumerate(fails, 1):
            if failing:
                stage.play(key, FAILS, attempt=f"g1-a{attempt}")
        expected[key] = "Failed" if all(fails) else "Succeeded"
        stage.send(key, key)
    ended = {key: stage.until(key, timeout=PATIENCE)["phase"] for key in expected}
    assert ended == expected
    drivers = Counter(run.application.rpartition("-")[0] for run in stage.kubeflow.runs)
    for key, phase in expected.items():
        assert drivers[f"so-{stage.hash20(key)}-g1"] == (phase == "Succeeded")


def test_why_it_waits_is_said_while_it_waits(stage: Stage) -> None:
    """The image cannot be pulled: within seconds the status, one event and `explain` say so. The job runs once the image is there."""
    stage.play("waits", Script(pending_seconds=20.0, pending_reason="ImagePullBackOff"))
    stage.send("waits", "waits")

    def waits() -> str:
        message = str(stage.status("waits").get("message", ""))
        assert "its image cannot be pulled (ImagePullBackOff)" in message
        return message

    assert_eventually(waits, IN_TIME)
    assert "its image cannot be pulled" in stage.until_event("waits", "Waiting")
    assert "its image cannot be pulled" in stage.cli("keys", "explain", "waits", "--json").stdout
    stage.until("waits", "Succeeded", attempt=1)
    told = json.loads(stage.cli("keys", "history", "waits", "--json").stdout)["events"]
    assert len([each for each in told if "cannot be pulled" in each["why"]]) == 1


@pytest.mark.operator
def test_a_missing_volume_is_said_while_it_waits(stage: Stage) -> None:
    """A ConfigMap does not exist, which only the kubelet's Events say: the status, one event and `explain` name it within half a minute.
    Once it exists the job runs, and the message is gone."""
    missing = 'MountVolume.SetUp failed for volume "settings" : configmap "etl-settings" not found'
    stage.play("unmounted", Script(pending_seconds=45.0, unmounted=missing))
    stage.send("unmounted", "unmounted")

    def waits() -> None:
        said = f'volume "settings" of its driver pod cannot be mounted (FailedMount): {missing}'
        assert said in str(stage.status("unmounted").get("message", ""))

    assert_eventually(waits, IN_TIME)
    assert "etl-settings" in stage.until_event("unmounted", "Waiting")
    assert "etl-settings" in stage.cli("keys", "explain", "unmounted", "--json").stdout
    status = stage.until("unmounted", "Succeeded", attempt=1, timeout=90.0)
    assert "etl-settings" not in status["message"]
    told = json.loads(stage.cli("keys", "history", "unmounted", "--json").stdout)["events"]
    assert len([each for each in told if "cannot be mounted" in each["why"]]) == 1


def test_a_start_that_timed_out_for_a_missing_volume_names_it(stage: Stage) -> None:
    """The Secret does not appear within startTimeoutSeconds: the failure names it, and nothing ran."""
    missing = 'MountVolume.SetUp failed for volume "keys" : secret "store-keys" not found'
    stage.play("no-secret", Script(pending_seconds=600.0, unmounted=missing))
    stage.send("no-secret", "no-secret", startTimeoutSeconds=20, retry={"submissionRetries": 0})
    message = stage.until("no-secret", "Failed", timeout=90.0)["result"]["failure"]["message"]
    assert "startTimeoutSeconds" in message
    assert 'secret "store-keys" not found' in message
    assert stage.runs("no-secret") == []


def test_what_cannot_mend_itself_ends_early(stage: Stage) -> None:
    """The image name is invalid for any registry: the job is Failed with the cause long before startTimeoutSeconds, and nothing ran."""
    stage.play("hopeless", Script(pending_seconds=600.0, pending_reason="InvalidImageName"))
    stage.send("hopeless", "hopeless", retry={"submissionRetries": 1})
    status = stage.until("hopeless", "Failed", attempt=2)
    assert "its image has an invalid name (InvalidImageName)" in status["result"]["failure"]["message"]
    assert stage.runs("hopeless") == []


@pytest.mark.operator
@pytest.mark.parametrize("reason", ["Unschedulable", "SchedulingGated", ""], ids=["full", "gated", "silent"])
def test_waiting_for_a_node_is_not_starting(stage: Stage, reason: str) -> None:
    """No node takes the pod of an opaque job for longer than startTimeoutSeconds, whether its scheduler says why or not: the job keeps
    waiting, its status says so, and the timeout counts from when a node has the pod. It runs once."""
    key = f"queued-{reason or 'silent'}".lower()
    stage.play(key, Script(queued_seconds=9.0, queued_reason=reason, pending_seconds=1.5))
    stage.send(key, key, startTimeoutSeconds=4)

    def waits() -> None:
        assert f"no node takes its driver pod{f' ({reason})' if reason else ''}" in str(
            stage.status(key).get("message")
        )

    assert_eventually(waits, IN_TIME)
    stage.until(key, "Succeeded", attempt=1)
    assert len(stage.runs(key)) == 1


@pytest.mark.operator
def test_an_edit_ends_an_attempt_that_waits_for_a_node(stage: Stage, tmp_path: Path) -> None:
    """No node takes the driver pods of two jobs, one of them opaque. Edits of their resources start the next attempts, which run once, and
    count as none: maxAttempts is 1. An edit of a job whose driver runs ends nothing."""
    proceed = threading.Event()
    for each, code in (("fits", None), ("outputs", writes_outputs(7))):
        stage.play(each, Script(queued_seconds=600.0))
        stage.play(each, Script(code=code), attempt="g1-a3")
    stage.play("runs", Script(code=held(proceed)))
    once = {"maxAttempts": 1, "backoff": {"initial": "0s"}}
    stage.send("fits", "fits", retry=once)
    stage.send("outputs", "outputs", outputs=rows(tmp_path), retry=once)
    stage.send("runs", "runs")

    def waits(attempt: int) -> None:
        for each in ("fits", "outputs"):
            status = stage.status(each)
            assert status.get("message") == f"attempt {attempt} waits for its driver: {WAITS}"

    try:
        stage.until("runs", "Running")
        for attempt in (1, 2):
            assert_eventually(functools.partial(waits, attempt), IN_TIME)
            for each in ("fits", "outputs", "runs"):
                stage.edit(each, template={"spec": {"driver": {"memory": f"{attempt + 1}g"}}})
        for each in ("fits", "outputs"):
            stage.until(each, "Succeeded", attempt=3)
            assert len(stage.runs(each)) == 1
        stage.until("runs", "Running")
    finally:
        proceed.set()
    stage.until("runs", "Succeeded", attempt=1)
    assert len(stage.runs("runs")) == 1
    told = json.loads(stage.cli("keys", "history", "fits", "--json").stdout)["events"]
    assert [each["why"] for each in told if each["what"] == "Settling"] == [f"the job was edited while {WAITS}"] * 2


@pytest.mark.operator
def test_a_job_that_is_corrected_before_it_ran_takes_its_key_at_once(stage: Stage, tmp_path: Path) -> None:
    """Nobody waits for a start that cannot come: an image that cannot be pulled (of an opaque job, and of one with outputs), a submission
    that fails and is repeated in an hour. Each edited object runs as generation 2, once, and needs neither onMismatch nor a person. A job
    whose driver runs goes on, its edited object is a mismatch, and so is one whose job another object wants."""
    proceed = threading.Event()
    for each in ("soon-image", "soon-outputs", "soon-wanted"):
        stage.play(each, Script(pending_seconds=600.0, pending_reason="ImagePullBackOff"), attempt="g1-*")
    stage.play("soon-outputs", Script(code=writes_outputs(7)), attempt="g2-*")
    stage.play("soon-submission", FAILS, attempt="g1-*")
    stage.play("soon-runs", Script(code=held(proceed)), attempt="g1-*")
    stage.send("soon-image", "soon-image", "a")
    stage.send("soon-outputs", "soon-outputs", "a", outputs=rows(tmp_path))
    stage.send("soon-submission", "soon-submission", "a", retry={"backoff": {"initial": "3600s", "max": "3600s"}})
    stage.send("soon-runs", "soon-runs", "a")
    stage.send("soon-wanted", "soon-wanted", "a")
    stage.send("soon-twin", "soon-wanted", "a")

    def waits() -> None:
        for each in ("soon-image", "soon-outputs", "soon-wanted", "soon-twin"):
            assert "its image cannot be pulled" in str(stage.status(each).get("message"))
        assert stage.status("soon-submission").get("attempt") == 2

    try:
        assert_eventually(waits, IN_TIME)
        stage.until("soon-runs", "Running")
        for each in ("soon-image", "soon-outputs", "soon-submission", "soon-runs", "soon-wanted"):
            stage.arguments(each, "b")
        for each in ("soon-image", "soon-outputs", "soon-submission"):
            stage.until(each, "Succeeded", generation=2, attempt=1, role="Leader")
            assert [run.application for run in stage.runs(each)] == [f"so-{stage.hash20(each)}-g2-a1"]
        assert stage.until("soon-runs", "Mismatch")["mismatch"] == ["spec.template.spec.arguments[0]"]
        stage.until("soon-wanted", "Mismatch")
        assert "its image cannot be pulled" in str(stage.status("soon-twin").get("message"))
    finally:
        proceed.set()
    stage.until_record("soon-runs", phase="Succeeded")
    assert len(stage.runs("soon-runs")) == 1
    told = json.loads(stage.cli("keys", "history", "soon-image", "--json").stdout)["events"]
    why = {each["what"]: each["why"] for each in told}
    assert "takes the place of generation 1 (of which no driver has started)" in why["StopWanted"]
    assert "takes the place of generation 1 (which took no effect)" in why["Reopened"]


def test_an_edit_at_the_moment_of_the_start_is_one_effect(stage: Stage) -> None:
    """Drivers of opaque jobs start about when their objects are edited. Whichever was first, one driver has run: that of the edited job; or
    that of the first, and the edited object is a mismatch. No key is Held."""
    keys = [f"moment-{number}" for number in range(12)]
    for key in keys:
        pending = 600.0 if key == keys[0] else 3.0  # the first is certainly edited before its driver starts
        stage.play(key, Script(pending_seconds=pending, pending_reason="ImagePullBackOff"), attempt="g1-*")
    threads = [threading.Thread(target=_edited_after, args=(stage, key, 0.25 * at)) for at, key in enumerate(keys[:-1])]
    for each in threads:
        each.start()
    _edited_after(stage, keys[-1], None)
    for each in threads:
        each.join()
    for key in keys:
        phase = stage.until(key, "Succeeded", "Mismatch")["phase"]
        generation = 2 if phase == "Succeeded" else 1
        assert [run.application for run in stage.runs(key)] == [f"so-{stage.hash20(key)}-g{generation}-a1"]
    assert {stage.status(keys[0])["phase"], stage.status(keys[-1])["phase"]} == {"Succeeded", "Mismatch"}


def _edited_after(stage: Stage, key: str, seconds: float | None) -> None:
    """seconds: None: once its driver has started."""
    stage.send(key, key, "a")
    if seconds is None:
        stage.until_runs(key)
    else:
        assert_eventually(lambda: stage.pods(f"so-{stage.hash20(key)}-g1-a1"), IN_TIME)
        time.sleep(
            1.5 + seconds
        )  # nothing to wait for: the test wants edits at many moments around the start, 3 s after the pod
    stage.arguments(key, "b")


@pytest.mark.operator
def test_a_corrected_job_takes_its_key(stage: Stage) -> None:
    """The image cannot be pulled; the edited object runs as generation 2 without a person, and the history says that nothing had taken
    effect. A job that had run before it failed is a mismatch after the edit, and so is one whose onMismatch is RejectAlways."""
    stage.play("corrected", Script(pending_seconds=600.0, pending_reason="InvalidImageName"), attempt="g1-*")
    stage.play("had-run", Script(exit_code=7), attempt="g1-*")
    stage.play("strict", Script(pending_seconds=600.0, pending_reason="InvalidImageName"), attempt="g1-*")
    for key, more in (("corrected", {}), ("had-run", {}), ("strict", {"onMismatch": "RejectAlways"})):
        stage.send(key, key, "a", retry={"submissionRetries": 1}, **more)
        stage.until(key, "Failed")
        stage.arguments(key, "b")
    assert stage.until("corrected", "Succeeded", generation=2)["attempt"] == 1
    stage.until("had-run", "Mismatch")
    stage.until("strict", "Mismatch")
    assert [len(stage.runs(key)) for key in ("corrected", "had-run", "strict")] == [1, 1, 0]
    told = json.loads(stage.cli("keys", "history", "corrected", "--json").stdout)["events"]
    [opened] = [each["why"] for each in told if each["what"] == "Reopened"]
    assert "takes the place of generation 1 (which took no effect)" in opened
