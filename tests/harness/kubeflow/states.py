"""The statuses that kubeflow's Spark operator 2.5.2 writes into a SparkApplication, as pure functions of what it sees. No I/O.

Taken from its source (`internal/controller/sparkapplication`), with its fields, order and wording, because the operator under test reads
them. Left out: executors, web UI, events, and every restart policy but Never, which is the only one that we create.
"""

from __future__ import annotations

import copy
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from harness.kubeflow.script import Json, Lie

CONTAINER = "spark-kubernetes-driver"
GROUP = "sparkoperator.k8s.io/"
APP_NAME, SUBMISSION_ID, LAUNCHED = GROUP + "app-name", GROUP + "submission-id", GROUP + "launched-by-spark-operator"
NODE = "node-1"
ALREADY_EXISTS = "driver pod already exist"
NO_IMAGE = "Must specify the driver container image"


class State(StrEnum):
    NEW = ""
    SUBMITTED = "SUBMITTED"
    RUNNING = "RUNNING"
    SUCCEEDING = "SUCCEEDING"
    FAILING = "FAILING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SUBMISSION_FAILED = "SUBMISSION_FAILED"
    SUSPENDING = "SUSPENDING"
    SUSPENDED = "SUSPENDED"
    RESUMING = "RESUMING"
    INVALIDATING = "INVALIDATING"
    PENDING_RERUN = "PENDING_RERUN"
    UNKNOWN = "UNKNOWN"


ENDED = frozenset({State.COMPLETED, State.FAILED})
NOT_SUSPENDED_AGAIN = ENDED | {State.SUSPENDED, State.SUSPENDING}
ABOUT_TO_SUBMIT = frozenset({State.NEW, State.RESUMING})
WITH_A_DRIVER = frozenset({State.SUBMITTED, State.RUNNING, State.UNKNOWN})


def state_of(application: Mapping[str, Any]) -> State:
    return State(application.get("status", {}).get("applicationState", {}).get("state", ""))


def status_of(application: Mapping[str, Any]) -> Json:
    """A copy of the status to change; an untouched application gets the fields that its CRD requires."""
    return copy.deepcopy(application.get("status") or {"driverInfo": {}})


def driver_pod_name(application: Mapping[str, Any]) -> str:
    spec = application["spec"]
    given = spec.get("driver", {}).get("podName") or spec.get("sparkConf", {}).get("spark.kubernetes.driver.pod.name")
    return str(given or f"{application['metadata']['name']}-driver")


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def said(status: Json, state: State, message: str = "") -> Json:
    """`status` with this state; drops the message of an earlier state, as the real one does when it replaces the pair."""
    status["applicationState"] = {"state": state.value, **({"errorMessage": message} if message else {})}
    return status


def moved(status: Json, state: State) -> Json:
    """`status` with this state and its previous message."""
    status.setdefault("applicationState", {})["state"] = state.value
    return status


def submitted(application: Mapping[str, Any], submission: str, error: str) -> Json:
    """After spark-submit: SUBMITTED, or SUBMISSION_FAILED with its error."""
    status = status_of(application)
    status.update(
        submissionID=submission,
        driverInfo={**status.get("driverInfo", {}), "podName": driver_pod_name(application)},
        lastSubmissionAttemptTime=now(),
        submissionAttempts=status.get("submissionAttempts", 0) + 1,
    )
    if error:
        return said(
            status, State.SUBMISSION_FAILED, f"failed to submit spark application: failed to run spark-submit: {error}"
        )
    status["executionAttempts"] = status.get("executionAttempts", 0) + 1
    return said(status, State.SUBMITTED)


def from_driver(
    application: Mapping[str, Any], pod: Mapping[str, Any] | None, *, lie: Lie | None, grace: float
) -> Json | None:
    """The status that its driver pod implies in SUBMITTED, RUNNING and UNKNOWN. None: nothing new, or a missing pod is still within its
    grace period."""
    status, state = status_of(application), state_of(application)
    if pod is None or lie is Lie.NOT_FOUND:
        if lie is not Lie.NOT_FOUND and state is State.SUBMITTED and excused(status, grace):
            return None
        status["terminationTime"] = now()
        return said(status, State.FAILING, "driver pod not found")
    new = _state_of_driver(pod)
    status["sparkApplicationId"] = pod["metadata"].get("labels", {}).get("spark-app-selector", "")
    if new in {State.SUCCEEDING, State.FAILING}:
        status.setdefault("terminationTime", now())
    if lie is Lie.COMPLETED and new is State.FAILING:
        new = State.SUCCEEDING
    if new is State.FAILING:
        ended = terminated(pod)
        if ended is None:
            status["applicationState"]["errorMessage"] = "driver container status missing"
        elif ended["exitCode"] != 0:
            why = f"driver container failed with ExitCode: {ended['exitCode']}, Reason: {ended.get('reason', '')}"
            status["applicationState"]["errorMessage"] = why
    return None if new is state else moved(status, new)


class Action(StrEnum):
    NOTHING = "nothing"
    SUBMIT = "submit"
    FOLLOW = "follow"
    """Derive the status from the driver pod (`from_driver`)."""
    WRITE = "write"
    """Write `Step.status` of the application."""


@dataclass(frozen=True)
class Step:
    """One action of the Spark operator on an application."""

    action: Action
    status: Callable[[Mapping[str, Any]], Json] = status_of
    deletes_driver: bool = False
    """Before the write: deletes by name, whichever pod has it."""


def next_step(application: Mapping[str, Any], *, driver_exists: bool) -> Step:
    """The step for the state of this application; `driver_exists`: whether a pod has the name of its driver."""
    state, suspends = state_of(application), application["spec"].get("suspend", False)
    if suspends and state not in NOT_SUSPENDED_AGAIN:
        return _to(State.SUSPENDING)
    if state in ABOUT_TO_SUBMIT or (state is State.PENDING_RERUN and not driver_exists):
        return Step(Action.SUBMIT)
    if state in WITH_A_DRIVER:
        return Step(Action.FOLLOW)
    match state:
        case State.SUCCEEDING:
            return _to(State.COMPLETED)
        case State.FAILING:
            return _to(State.FAILED)
        case State.SUBMISSION_FAILED:
            return Step(Action.WRITE, lambda each: moved({**status_of(each), "terminationTime": now()}, State.FAILED))
        case State.SUSPENDING:
            return Step(Action.WRITE, suspended, deletes_driver=True)
        case State.SUSPENDED if not suspends and not driver_exists:
            return Step(Action.WRITE, lambda each: said(status_of(each), State.RESUMING))
        case State.INVALIDATING:
            return Step(Action.WRITE, reset, deletes_driver=True)
        case _:
            return Step(Action.NOTHING)


def _to(state: State) -> Step:
    return Step(Action.WRITE, lambda application: moved(status_of(application), state))


def excused(status: Mapping[str, Any], grace: float) -> bool:
    since = datetime.fromisoformat(status["lastSubmissionAttemptTime"])
    return (datetime.now(UTC) - since).total_seconds() <= grace


def _state_of_driver(pod: Mapping[str, Any]) -> State:
    phase, ended = pod.get("status", {}).get("phase"), terminated(pod)
    if phase == "Pending":
        return State.SUBMITTED
    if phase == "Succeeded" or (phase in {"Running", "Failed"} and ended is not None and ended["exitCode"] == 0):
        return State.SUCCEEDING
    if phase == "Failed" or (phase == "Running" and ended is not None):
        return State.FAILING
    return State.RUNNING if phase == "Running" else State.UNKNOWN


def terminated(pod: Mapping[str, Any]) -> Json | None:
    for each in pod.get("status", {}).get("containerStatuses") or ():
        if each["name"] == CONTAINER:
            found = each.get("state", {}).get("terminated")
            return found if isinstance(found, dict) else None
    return None


def suspended(application: Mapping[str, Any]) -> Json:
    """The driver pod was asked to stop, which does not mean that it has stopped."""
    status = said(status_of(application), State.SUSPENDED)
    status["sparkApplicationId"] = ""
    status["driverInfo"] = {}
    status.pop("executorState", None)
    return status


def reset(application: Mapping[str, Any]) -> Json:
    """INVALIDATING to PENDING_RERUN: resets all counters."""
    status = said(status_of(application), State.PENDING_RERUN)
    status.update(sparkApplicationId="", submissionAttempts=0, executionAttempts=0, driverInfo={})
    for gone in ("lastSubmissionAttemptTime", "terminationTime", "executorState"):
        status.pop(gone, None)
    return status


_NO_EDIT = ("suspend", "timeToLiveSeconds")


def edited(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether the spec changed in a way that runs the application again; needs both versions."""

    def what_counts(application: Mapping[str, Any]) -> Json:
        return {name: value for name, value in application["spec"].items() if name not in _NO_EDIT}

    return what_counts(before) != what_counts(after)


def image_of(spec: Mapping[str, Any]) -> str:
    conf = spec.get("sparkConf", {})
    given = spec.get("driver", {}).get("image") or spec.get("image")
    return str(
        given
        or conf.get("spark.kubernetes.driver.container.image")
        or conf.get("spark.kubernetes.container.image")
        or ""
    )


def driver_pod(application: Mapping[str, Any], submission: str, selector: str, *, name: str = "") -> Json:
    """The pod that spark-submit creates, already on a node: there is no scheduler here."""
    metadata, spec = application["metadata"], application["spec"]
    driver, conf = spec.get("driver", {}), spec.get("sparkConf", {})
    template = driver.get("template") or {}
    labels = {
        each: value for each, value in (metadata.get("labels") or {}).items() if not each.startswith("kueue.x-k8s.io/")
    }
    ours = {APP_NAME: metadata["name"], SUBMISSION_ID: submission, LAUNCHED: "true"}
    sparks = {"spark-app-selector": selector, "spark-role": "driver", "spark-app-name": metadata["name"][:63]}
    owner = {
        "apiVersion": application["apiVersion"],
        "kind": application["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
    [inside] = [each for each in template.get("spec", {}).get("containers", ()) if each["name"] == CONTAINER] or [{}]
    prefix = "spark.kubernetes.driverEnv."
    environment = {
        **{each.removeprefix(prefix): value for each, value in conf.items() if each.startswith(prefix)},
        **driver.get("envVars", {}),
        "SPARK_APPLICATION_ID": selector,
    }
    container = {
        "name": CONTAINER,
        "image": image_of(spec),
        **({"command": inside["command"]} if "command" in inside else {}),
        "args": ["driver", spec.get("mainApplicationFile", ""), *spec.get("arguments", ())],
        **({"volumeMounts": inside["volumeMounts"]} if "volumeMounts" in inside else {}),
        "env": [*inside.get("env", ()), *({"name": each, "value": value} for each, value in environment.items())],
    }
    made = template.get("metadata", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name or driver_pod_name(application),
            "labels": {**made.get("labels", {}), **labels, **driver.get("labels", {}), **ours, **sparks},
            "annotations": {**made.get("annotations", {}), **driver.get("annotations", {})},
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": {
            "nodeName": NODE,
            "restartPolicy": "Never",
            "containers": [container],
            **({"volumes": template["spec"]["volumes"]} if "volumes" in template.get("spec", {}) else {}),
            "serviceAccountName": driver.get(
                "serviceAccount", "default"
            ),  # as an API server with its usual admission sets it
        },
    }


def pod_pending(pod: Mapping[str, Any], reason: str = "ContainerCreating", *, mounted: bool = True) -> Json:
    """The status of a pod whose container waits."""
    status = _pod_status(pod, "Pending", {"waiting": {"reason": reason}})
    if mounted:
        return status
    states = {"PodScheduled": "True", "PodReadyToStartContainers": "False"}
    conditions = [{"type": kind, "status": value, "lastTransitionTime": now()} for kind, value in states.items()]
    return {**status, "conditions": conditions}


def failed_mount(pod: Mapping[str, Any], message: str) -> Json:
    """The Event by which a kubelet says that a volume of a pod cannot be mounted."""
    metadata = pod["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{uuid.uuid4().hex[:16]}", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            **{name: metadata[name] for name in ("name", "namespace", "uid", "resourceVersion")},
        },
        "type": "Warning",
        "reason": "FailedMount",
        "message": message,
        "source": {"component": "kubelet", "host": NODE},
        "firstTimestamp": now(),
        "lastTimestamp": now(),
        "count": 1,
    }


def pod_unschedulable(reason: str) -> Json:
    """The status of a pod that no node takes, as its scheduler writes it."""
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": "0/1 nodes are available"}
    return {"phase": "Pending", "conditions": [{**condition, "lastTransitionTime": now()}]}


def pod_running(pod: Mapping[str, Any]) -> Json:
    """The status of a pod whose container runs."""
    return _pod_status(pod, "Running", {"running": {"startedAt": _started(pod)}})


def pod_ended(pod: Mapping[str, Any], code: int, message: str = "", *, at: str = "") -> Json:
    """The status of a pod whose container exited with `code`, at this time or now."""
    ended = {
        "exitCode": code,
        "reason": "Error" if code else "Completed",
        "startedAt": _started(pod),
        "finishedAt": at or now(),
        "containerID": _container_id(pod),
        **({"message": message} if message else {}),
    }
    return _pod_status(pod, "Failed" if code else "Succeeded", {"terminated": ended})


def pod_unstarted(pod: Mapping[str, Any]) -> Json:
    """The final status of a pod that is deleted before its container has started: a kubelet ends it without knowing a container."""
    lost = {
        "exitCode": 137,
        "reason": "ContainerStatusUnknown",
        "message": "The container could not be located when the pod was terminated",
        "startedAt": None,
        "finishedAt": None,
    }
    status = _pod_status(pod, "Failed", {"terminated": lost})
    del status["containerStatuses"][0]["containerID"]
    return status


def _pod_status(pod: Mapping[str, Any], phase: str, state: Json) -> Json:
    [container, *_] = pod["spec"]["containers"]
    runs = phase == "Running"
    return {
        "phase": phase,
        "startTime": _started(pod),
        "conditions": [{"type": "Ready", "status": "True" if runs else "False", "lastTransitionTime": now()}],
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container.get("image", ""),
                "imageID": "",
                "ready": runs,
                "started": runs,
                "restartCount": 0,
                **({} if "waiting" in state else {"containerID": _container_id(pod)}),
                "state": state,
            }
        ],
    }


def _started(pod: Mapping[str, Any]) -> str:
    return str(pod.get("status", {}).get("startTime") or now())


def _container_id(pod: Mapping[str, Any]) -> str:
    return f"containerd://{pod['metadata']['uid']}"


_REFERENCE = re.compile(r"\$\$|\$\(([^()]+)\)")


def environment_of(pod: Mapping[str, Any]) -> dict[str, str]:
    """Environment of the driver container as a kubelet makes it: `$(NAME)` is replaced by a value defined before it, `$$` by one dollar
    sign."""
    [container] = [each for each in pod["spec"]["containers"] if each["name"] == CONTAINER] or pod["spec"][
        "containers"
    ][:1]
    made: dict[str, str] = {}
    for each in container.get("env") or ():

        def value(found: re.Match[str], made: dict[str, str] = made) -> str:
            return "$" if found[0] == "$$" else made.get(found[1], found[0])

        made[each["name"]] = _REFERENCE.sub(value, each.get("value", ""))
    return made
