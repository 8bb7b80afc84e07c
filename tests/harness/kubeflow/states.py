"""What kubeflow's Spark operator 2.5.2 writes into a SparkApplication's status, as pure functions of what it sees. No I/O.

Read from its source (`internal/controller/sparkapplication`): fields, order and wording are its own, because the operator under test
reads them. Left out: executors, web UI, events, and every restart policy but Never, which is the only one that we create.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
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
    """A copy to change; an application that was never touched gets what its CRD demands."""
    return copy.deepcopy(application.get("status") or {"driverInfo": {}})


def driver_pod_name(application: Mapping[str, Any]) -> str:
    spec = application["spec"]
    given = spec.get("driver", {}).get("podName") or spec.get("sparkConf", {}).get("spark.kubernetes.driver.pod.name")
    return str(given or f"{application['metadata']['name']}-driver")


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def said(status: Json, state: State, message: str = "") -> Json:
    """`status` with this state; a message of an earlier state goes, as theirs does when they replace the pair."""
    status["applicationState"] = {"state": state.value, **({"errorMessage": message} if message else {})}
    return status


def moved(status: Json, state: State) -> Json:
    """`status` with this state and the message that it had."""
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
    """In SUBMITTED, RUNNING and UNKNOWN: what its driver pod makes of it. None: nothing new, or a missing pod is still excused."""
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
    """The driver pod was told to go, which says nothing about whether it has gone."""
    status = said(status_of(application), State.SUSPENDED)
    status["sparkApplicationId"] = ""
    status["driverInfo"] = {}
    status.pop("executorState", None)
    return status


def reset(application: Mapping[str, Any]) -> Json:
    """INVALIDATING to PENDING_RERUN: all counters start again."""
    status = said(status_of(application), State.PENDING_RERUN)
    status.update(sparkApplicationId="", submissionAttempts=0, executionAttempts=0, driverInfo={})
    for gone in ("lastSubmissionAttemptTime", "terminationTime", "executorState"):
        status.pop(gone, None)
    return status


_NO_EDIT = ("suspend", "timeToLiveSeconds")


def edited(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """A change of the spec that runs the application again; only seen by whoever saw both."""

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
    """What spark-submit creates, on a node already: there is no scheduler here."""
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
            **({"serviceAccountName": driver["serviceAccount"]} if "serviceAccount" in driver else {}),
        },
    }


_REFERENCE = re.compile(r"\$\$|\$\(([^()]+)\)")


def environment_of(pod: Mapping[str, Any]) -> dict[str, str]:
    """Of the driver container, as a kubelet makes it: `$(NAME)` stands for what was defined before it, `$$` for one dollar sign."""
    [container] = [each for each in pod["spec"]["containers"] if each["name"] == CONTAINER] or pod["spec"][
        "containers"
    ][:1]
    made: dict[str, str] = {}
    for each in container.get("env") or ():

        def value(found: re.Match[str], made: dict[str, str] = made) -> str:
            return "$" if found[0] == "$$" else made.get(found[1], found[0])

        made[each["name"]] = _REFERENCE.sub(value, each.get("value", ""))
    return made
