"""An attempt's states at the Spark operator and the kubelet, as phases: one test per row of the tables, and statuses that are false."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from launch.kubeflow_scene import ASSIGNMENT, DRIVER, JOB, NAMESPACE, NOTED, UID, at, disrupted, placed, pod, stored
from launch.kubeflow_tables import (
    EXISTS,
    EXITED,
    LEAVING,
    MARK,
    NOT_FOUND,
    PODS,
    SPARKS_OWN,
    STATUS,
    SUBMIT,
    UNSEEN,
    seen,
)
from sparkonce.launch.driver_log import LOG_TAIL
from sparkonce.launch.kubeflow.labels import rewound
from sparkonce.launch.kubeflow.observe import of_others, submission_over
from sparkonce.launch.kubeflow.pod import TERMINATION
from sparkonce.launch.kubeflow.spec import settle_run, stub_pod
from sparkonce.launch.protocol import ENDED, Phase
from sparkonce.model.record import Application

# --- the status alone, without a pod ---


@pytest.mark.parametrize(("state", "message", "unseen", "vanished"), STATUS)
def test_what_the_status_alone_says(state: str | None, message: str, unseen: Phase, vanished: Phase) -> None:
    """Only an exit code is an observed end: COMPLETED and any other FAILED without a pod are unknown outcomes."""
    application = stored(state, message)
    assert seen(application, [], UNSEEN).phase is unseen
    assert seen(application, [], None).phase is unseen
    assert seen(application, [], NOTED).phase is vanished
    unlooked = seen(application, None, NOTED)  # the pod was not read, so it may be alive
    assert (unlooked.phase, unlooked.exit_code) == (Phase.FINISHING if unseen in ENDED else unseen, None)


@pytest.mark.parametrize(("message", "code"), [(EXITED, 3), (NOT_FOUND, None)])
def test_the_status_exit_code_is_reported(message: str, code: int | None) -> None:
    """The message has it, or the Spark operator's reason."""
    found = seen(stored("FAILED", message), [], UNSEEN)
    assert (found.exit_code, found.driver) == (code, None)
    assert (str(code) if code else NOT_FOUND) in found.message


def test_what_spark_submit_printed_is_a_hint() -> None:
    """The end of a long message is treated as a log, and the message itself stays short."""
    found = seen(stored("FAILED", SUBMIT + "x" * 5000 + "the end"), [], UNSEEN)
    assert found.log_tail.endswith("the end") and len(found.log_tail) <= LOG_TAIL
    assert len(found.message) < 400


# --- the pod decides ---

LAGGING = ["", "SUBMITTED", "RUNNING", "UNKNOWN", "SUCCEEDING", "FAILING", "SUBMISSION_FAILED"]


@pytest.mark.parametrize(("driver", "phase", "code"), PODS)
def test_the_pod_is_right_whatever_a_lagging_status_says(
    driver: dict[str, Any], phase: Phase, code: int | None
) -> None:
    """In every state that is not an end, and if FAILED is about a submission, the driver pod decides."""
    for state, message in [*((state, "") for state in LAGGING), ("FAILED", EXISTS), ("FAILED", NOT_FOUND)]:
        for noted in (NOTED, UNSEEN, None):
            found = seen(stored(state, message), [driver], noted)
            assert (found.phase, found.exit_code, found.driver) == (phase, code, DRIVER)
            assert not (found.repeated or found.stopping)


@pytest.mark.parametrize(("driver", "phase", "code"), PODS)
@pytest.mark.parametrize(("state", "message"), [("COMPLETED", ""), ("FAILED", EXITED)])
def test_an_end_in_the_status_waits_for_the_pods_own(
    state: str, message: str, driver: dict[str, Any], phase: Phase, code: int | None
) -> None:
    """While the status shows an end that our view of the pod lacks, the phase is Finishing. An end that the pod shows counts, whether the
    status is right or wrong."""
    found = seen(stored(state, message), [driver])
    assert (found.phase, found.exit_code) == ((phase, code) if phase in ENDED else (Phase.FINISHING, None))


def test_what_a_driver_waits_for_is_told() -> None:
    """A bad image or a full cluster is reported in a sentence."""
    waiting = {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}]}
    full = {
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]
    }
    assert (
        seen(stored("SUBMITTED"), [pod("Pending", status=waiting)]).message
        == "the driver container waits: ErrImagePull: no such image"
    )
    assert "0/3 nodes" in seen(stored("SUBMITTED"), [pod("Pending", status=full)]).message
    assert seen(stored("SUBMITTED"), [pod("Pending", status=full)]).waits.startswith(
        "no node takes its driver pod (Unschedulable): 0/3"
    )


def unscheduled(reason: str) -> dict[str, Any]:
    return {"conditions": [{"type": "PodScheduled", "status": "False", "reason": reason, "message": "why"}]}


@pytest.mark.parametrize("reason", ["Unschedulable", "SchedulingGated", "SchedulingSkipped", ""])
def test_a_driver_that_no_node_takes_waits_in_a_queue(reason: str) -> None:
    """Whatever the scheduler's word for it (Kubernetes, Volcano, YuniKorn), the phase is Held, with the scheduler's reason. A pod with a
    node is Starting; so is a pod that no scheduler has reported on, which is still marked as unplaced."""
    found = seen(stored("SUBMITTED"), [pod("Pending", status=unscheduled(reason))])
    named = f" ({reason})" if reason else ""
    assert (found.phase, found.unplaced, found.driver) == (Phase.HELD, True, DRIVER)
    assert found.waits == f"no node takes its driver pod{named}: why"
    bound = pod("Pending", status=unscheduled(reason)) | {"spec": {"nodeName": "node-1"}}
    assert (seen(stored("SUBMITTED"), [bound]).phase, seen(stored("SUBMITTED"), [bound]).unplaced) == (
        Phase.STARTING,
        False,
    )
    silent = seen(stored("SUBMITTED"), [pod("Pending")])
    assert (silent.phase, silent.unplaced) == (Phase.STARTING, True)


def test_a_pod_whose_application_runs_has_a_node() -> None:
    """The view of the pod lags behind the Spark operator's status, so the pod is not waiting for a node."""
    assert seen(stored("RUNNING"), [pod("Pending", status=unscheduled("Unschedulable"))]).phase is Phase.STARTING
    assert not seen(stored("RUNNING"), [pod("Running")]).unplaced


@pytest.mark.parametrize(("labels", "phase"), [({"kueue.x-k8s.io/queue-name": "q"}, Phase.HELD), ({}, Phase.ACCEPTED)])
def test_an_application_that_its_queue_has_not_admitted_waits(labels: dict[str, str], phase: Phase) -> None:
    """Kueue suspends the application at its creation, maybe before the Spark operator has looked at it."""
    assert seen(stored("", suspend=True, labels=labels), [], UNSEEN).phase is phase


@pytest.mark.parametrize(
    ("reason", "cause", "hopeless"),
    [
        ("ErrImagePull", "its image cannot be pulled (ErrImagePull): why", False),
        ("ImagePullBackOff", "its image cannot be pulled (ImagePullBackOff): why", False),
        ("InvalidImageName", "its image has an invalid name (InvalidImageName): why", True),
        ("CreateContainerConfigError", "its container cannot be configured (CreateContainerConfigError): why", False),
        ("ContainerCreating", "", False),
        ("PodInitializing", "", False),
    ],
)
def test_why_a_driver_waits_is_named(reason: str, cause: str, hopeless: bool) -> None:
    """The cause is given in words, with the kubelet's reason and message; there is none for the usual steps of a start, or once the driver
    runs."""
    waiting = {"waiting": {"reason": reason, "message": "why"}}
    status = {"containerStatuses": [{"name": "spark-kubernetes-driver", "state": waiting}]}
    found = seen(stored("SUBMITTED"), [pod("Pending", status=status)])
    assert (found.waits, found.hopeless) == (cause, hopeless)
    running = seen(stored("RUNNING"), [pod("Running")])
    assert (running.waits, running.hopeless) == ("", False)


def conditions(*, made: str, placed: str = "True", second: str = at(7)) -> dict[str, Any]:
    """Conditions of a pod: `placed` if a node has it, `made` if its containers may start."""
    return {
        "conditions": [
            {"type": "PodReadyToStartContainers", "status": made, "lastTransitionTime": at(1)},
            {"type": "PodScheduled", "status": placed, "lastTransitionTime": second},
        ]
    }


@pytest.mark.parametrize("message", [EXISTS, SUBMIT, ""])
def test_a_submission_that_failed_half_way_is_told(message: str) -> None:
    """The Spark operator died between creating the driver pod and its ConfigMaps, and its successor writes FAILED. The driver may still
    start and is awaited; the observation has both reasons, and the time since when its node waits for the mounts."""
    waiting = {"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}
    found = seen(stored("FAILED", message), [pod("Pending", status={**conditions(made="False"), **waiting})], UNSEEN)
    assert (found.phase, found.driver, found.exit_code) == (Phase.STARTING, DRIVER, None)
    assert found.half_made == datetime.fromisoformat(at(7)).timestamp()
    assert found.message.startswith("the Spark operator says FAILED")
    assert found.message.endswith("the driver container waits: ContainerCreating")


@pytest.mark.parametrize(
    ("state", "driver"),
    [
        ("SUBMITTED", pod("Pending", status=conditions(made="False"))),
        ("FAILED", pod("Pending", status=conditions(made="True"))),  # it is pulling its image
        ("FAILED", pod("Pending", status=conditions(made="False", placed="False"))),
        ("FAILED", pod("Pending", status=conditions(made="False", second="soon"))),
        ("FAILED", pod("Pending")),  # a kubelet that reports no conditions
        ("FAILED", pod("Running", status=conditions(made="False"))),
        ("FAILED", pod("Failed", code=1, status=conditions(made="False"))),
        ("FAILED", pod("Pending", status={"conditions": [{"type": {}}, {"type": ["PodScheduled"]}, 3]})),
    ],
)
def test_what_is_no_submission_half_made(state: str, driver: dict[str, Any]) -> None:
    """Not half made: a submission that has not failed, a pod without a node, one that pulls its image or runs, or one without a time."""
    assert seen(stored(state, EXISTS if state == "FAILED" else ""), [driver], UNSEEN).half_made is None


def test_the_termination_message_is_read() -> None:
    """The end of the message is kept, at most as much as a kubelet stores."""
    driver = pod("Failed", code=1)
    driver["status"]["containerStatuses"][0]["state"]["terminated"]["message"] = "x" * 5000 + "ValueError: boom"
    tail = seen(stored("RUNNING"), [driver]).log_tail
    assert tail.endswith("ValueError: boom") and len(tail) == TERMINATION


# --- which pod, which driver ---


@pytest.mark.parametrize("state", ["", "SUBMITTED", "RUNNING", "COMPLETED", "FAILED"])
def test_an_exit_code_counts_only_for_the_noted_driver(state: str) -> None:
    """A pod that has the noted driver's name but another UID is reported with its UID and without an exit code."""
    found = seen(stored(state, EXITED if state == "FAILED" else ""), [pod("Succeeded", code=0, uid="another")])
    assert (found.phase, found.exit_code, found.driver) == (Phase.UNKNOWN, None, "another")


def test_a_driver_noted_for_another_application_is_none_of_this_one() -> None:
    """The record names an application that was deleted and created again: no driver of the new one has vanished."""
    deleted = Application(name="so", uid="another", driver=DRIVER)
    assert seen(stored("RUNNING"), [], deleted).phase is Phase.RUNNING


def test_two_drivers_are_a_repetition() -> None:
    """In either order of the list, the driver that the record does not name is reported."""
    pods = [pod("Failed", code=1), pod("Running", uid="another")]
    for each in (pods, pods[::-1]):
        found = seen(stored("RUNNING"), each)
        assert (found.repeated, found.driver, found.phase) == (True, "another", Phase.RUNNING)


def test_a_driver_container_that_was_restarted_is_a_repetition() -> None:
    """One pod has run two drivers with one token."""
    driver = pod("Running")
    driver["status"]["containerStatuses"][0]["restartCount"] = 1
    assert seen(stored("RUNNING"), [driver]).repeated


STUB = stub_pod(ASSIGNMENT, namespace=NAMESPACE, uid=UID)
STUB["metadata"]["uid"] = "stub-uid"


@pytest.mark.parametrize(
    ("driver", "ours"),
    [
        (pod("Running"), True),
        (pod("Running", annotations=None), True),
        (pod("Running", ownerReferences=[], **SPARKS_OWN), True),
        (pod("Running", ownerReferences=[]), False),
        (pod("Running", ownerReferences=[{"kind": "SparkApplication", "uid": "another"}], **SPARKS_OWN), False),
        (pod("Running", annotations={"sparkonce.dev/nonce": "another"}), False),
        (pod("Running", name="another-driver"), False),
        (pod("Running", uid=None), False),
        (STUB, False),
        (None, False),
        ("pod", False),
    ],
    ids=[
        "ours",
        "no annotations",
        "labels only",
        "nobody's",
        "owned by another",
        "nonce",
        "name",
        "no uid",
        "stub",
        "null",
        "text",
    ],
)
def test_whose_driver_pod_it_is(driver: Any, ours: bool) -> None:
    """A driver pod is recognised by its owner's UID and the nonce, and by labels only if it has no owner's nonce; a stub with its name is
    no driver."""
    found = seen(stored("FAILED", EXISTS), [driver], UNSEEN)
    assert (found.phase, found.driver) == ((Phase.RUNNING, DRIVER) if ours else (Phase.UNKNOWN, None))


# --- stopping, suspended, repeated ---


@pytest.mark.parametrize(
    ("state", "pods", "phase"),
    [
        ("RUNNING", [pod("Running")], Phase.RUNNING),
        ("RUNNING", [], Phase.FINISHING),  # a submission may be in flight
        ("", [], Phase.FINISHING),
        ("SUBMITTED", [], Phase.FINISHING),
        ("SUSPENDING", [], Phase.FINISHING),
        ("SUSPENDED", [], Phase.UNKNOWN),
        ("SUSPENDED", [pod("Running", **LEAVING)], Phase.FINISHING),
        ("SUSPENDED", [pod("Failed", code=143, **LEAVING)], Phase.FAILED_KNOWN),
        ("COMPLETED", [pod("Succeeded", code=0)], Phase.SUCCEEDED),
        ("COMPLETED", [pod("Succeeded", code=0, uid="another")], Phase.UNKNOWN),
        ("COMPLETED", [], Phase.UNKNOWN),
        ("FAILED", [], Phase.UNKNOWN),
    ],
)
def test_under_our_mark(state: str, pods: list[Any], phase: Phase) -> None:
    """The attempt is being stopped, whatever the record says; an end counts if the noted driver's pod shows it, or if no driver can
    follow."""
    found = seen(stored(state, EXITED if state == "FAILED" else "", **MARK), pods)
    assert (found.phase, found.stopping, found.repeated) == (phase, True, False)


def test_an_exit_code_that_was_never_noted_proves_nothing_after_our_mark() -> None:
    """The exit code may be a second driver's."""
    found = seen(stored("COMPLETED", **MARK), [pod("Succeeded", code=0)], UNSEEN)
    assert (found.phase, found.exit_code) == (Phase.UNKNOWN, None)


@pytest.mark.parametrize(
    ("change", "repeated"),
    [
        ({}, False),
        ({"executions": 2}, True),
        ({"generation": 2}, True),
        ({"generation": 2, "labels": {"kueue.x-k8s.io/queue-name": "q"}}, False),  # the queue started it
        ({"generation": 3, "labels": {"kueue.x-k8s.io/queue-name": "q"}}, True),
        ({**MARK}, False),
        ({**MARK, "generation": 3}, True),
        ({**MARK, "suspend": False}, True),  # another client resumed what we stopped
        ({"generation": None}, False),
    ],
)
def test_somebody_elses_hand_is_seen_by_the_generation(change: dict[str, Any], repeated: bool) -> None:
    """Each change of the spec counts, except our own suspension and a queue's first start."""
    assert seen(stored("RUNNING", **change), [pod("Running")]).repeated is repeated


def test_what_somebody_resumes_after_our_mark_is_not_ended() -> None:
    """The status still says SUSPENDED, but a driver may follow."""
    found = seen(stored("SUSPENDED", **{**MARK, "suspend": False}), [])
    assert found.repeated and found.phase not in ENDED


@pytest.mark.parametrize("state", ["INVALIDATING", "PENDING_RERUN"])
def test_an_inner_rerun_is_a_repetition(state: str) -> None:
    """With restartPolicy Never only an edit of the spec leads to these states."""
    assert seen(stored(state), [], UNSEEN).repeated


# --- whose application ---


@pytest.mark.parametrize("state", [None, "", "SUSPENDING", "SUSPENDED"])
def test_a_placeholder_is_stopped_from_the_first(state: str | None) -> None:
    """It was created suspended, so nothing was ever submitted, even if the Spark operator has not looked at it yet."""
    found = seen(placed(state), [], None)
    assert (found.nonce, found.phase, found.stopping, found.repeated) == ("nonce-3", Phase.UNKNOWN, True, False)
    assert submission_over(placed(state), ASSIGNMENT)
    assert not submission_over(placed("") | {"spec": {"suspend": False}}, ASSIGNMENT)


@pytest.mark.parametrize(
    ("annotations", "nonce", "is_rewound"),
    [
        ({}, "nonce-3", False),
        ({"sparkonce.dev/nonce": "before"}, "before", True),
        ({"sparkonce.dev/nonce": "before", "sparkonce.dev/install": "west"}, "", False),
        ({"sparkonce.dev/realm": "elsewhere"}, "", False),
        ({"sparkonce.dev/key-hash": "0" * 64}, "", False),
        ({"sparkonce.dev/nonce": None}, "", False),
    ],
    ids=["ours", "rewound", "another install", "another realm", "another key", "no nonce"],
)
def test_whose_application_it_is(annotations: dict[str, Any], nonce: str, is_rewound: bool) -> None:
    """An application is ours by install, realm and key. If it is ours, a nonce that the record does not know means a rewound store, not a
    foreign application."""
    found = seen(stored("RUNNING", annotations=annotations), [pod("Running")])
    assert (found.nonce, rewound(found.nonce, ASSIGNMENT)) == (nonce, is_rewound)
    assert (found.driver is None) is (nonce != "nonce-3")


def test_a_version_that_somebody_made_long_is_cut() -> None:
    """It goes into the record. A version that is cut is none that the API server knows, so nothing is proven from it."""
    edited = {"sparkonce.dev/pods-since": "7" * 100_000}
    assert seen(stored("RUNNING", annotations=edited), None).pods_since == "7" * 64
    assert seen(stored("RUNNING", annotations={"sparkonce.dev/pods-since": "7"}), None).pods_since == "7"
    assert seen(stored("RUNNING"), None).pods_since is None


def test_a_settle_run_is_observed_by_its_own_name() -> None:
    """The settle run's driver pod is its own, not the attempt's."""
    made = stored("RUNNING", document=settle_run(ASSIGNMENT.model_copy(update={"run": 1}), JOB, namespace=NAMESPACE))
    assert seen(made, [pod("Running", name=f"{ASSIGNMENT.name}-s1-driver")], UNSEEN).driver == DRIVER
    assert seen(made, [pod("Running")], UNSEEN).driver is None


@pytest.mark.parametrize(
    "state", [None, "", "SUBMITTED", "RUNNING", "SUSPENDING", "SUBMISSION_FAILED", "PENDING_RERUN"]
)
def test_a_submission_is_over_only_when_the_spark_operator_says_so(state: str | None) -> None:
    """Before that, a driver may follow although no pod is left; a suspension that was reverted does not count."""
    assert not submission_over(stored(state, **MARK), ASSIGNMENT)
    assert not submission_over(stored("SUSPENDED", **{**MARK, "suspend": False}), ASSIGNMENT)
    assert all(submission_over(stored(over, **MARK), ASSIGNMENT) for over in ("SUSPENDED", "COMPLETED", "FAILED"))


# --- exit code 0


@pytest.mark.parametrize("skew", range(-60, 61, 20))
def test_no_clock_makes_a_success_of_an_interruption(skew: int) -> None:
    """The node's clock is ahead of or behind the API server's: a driver that exits 0 while its pod is deleted or evicted has not succeeded,
    whichever time is earlier."""
    finished = datetime(2026, 5, 1, 12, 0, 10, tzinfo=UTC) + timedelta(seconds=skew)
    for change in ({"metadata": LEAVING}, {"status": disrupted("EvictionByEvictionAPI", second=8)}):
        driver = pod("Succeeded", code=0, status=change.get("status"), **change.get("metadata", {}))
        driver["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = finished.isoformat()
        for state in ("RUNNING", "SUCCEEDING", "COMPLETED"):
            found = seen(stored(state), [driver])
            assert found.phase in (Phase.UNKNOWN, Phase.FAILED_INFRA)
            assert found.exit_code is None


def test_a_success_with_a_process_that_was_killed_for_memory_is_told() -> None:
    """The driver exited 0 and the kubelet says OOMKilled: a process that it had started was killed, which its author needs to know."""
    found = seen(stored("COMPLETED"), [pod("Succeeded", code=0, reason="OOMKilled")])
    assert (found.phase, found.exit_code) == (Phase.SUCCEEDED, 0)
    assert "exited with code 0 (OOMKilled)" in found.message
    assert seen(stored("COMPLETED"), [pod("Succeeded", code=0, reason="Completed")]).message == ""


def test_of_another_partys_application_its_operators_word_counts() -> None:
    """The application is only followed, and its pods may be gone long before the job is bound to it."""
    assert of_others(stored("COMPLETED"), ASSIGNMENT).phase is Phase.SUCCEEDED
