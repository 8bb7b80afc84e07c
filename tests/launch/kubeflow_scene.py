"""A job on kubeflow's Spark operator: its assignment, and objects as its API server would return them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from harness.granted import document
from sparkonce.launch.kubeflow.spec import Wanting, application, placeholder
from sparkonce.model.record import Application, Assignment, SpecBody
from sparkonce.model.spec import IdempotentJob, OnDelete

NAMESPACE = "loads"
UID = "app-uid"
DRIVER = "driver-uid"
NOTED = Application(name="so", uid=UID, driver=DRIVER)
TEMPLATE: Mapping[str, Any] = {"sparkVersion": "4.1.1", "image": "localhost/jobs:1"}


def job_of(
    *outputs: str, folder: str = "s3://tables", metadata: Mapping[str, Any] | None = None, **spec: Any
) -> IdempotentJob:
    made = document({name: f"{folder}/{name}" for name in outputs}, **spec)
    made["spec"]["template"]["spec"] = {**TEMPLATE, **made["spec"]["template"]["spec"]}
    made["spec"]["template"]["metadata"] = dict(metadata or {})
    return IdempotentJob.of(made)


def assignment_of(job: IdempotentJob, **change: Any) -> Assignment:
    made = Assignment(
        install="east",
        realm=NAMESPACE,
        key_hash="0123456789abcdef" * 4,
        key="load-may",
        generation=2,
        attempt=3,
        nonce="nonce-3",
        fingerprint="f" * 64,
        spec=SpecBody(job=job.document(), digests={"spec.template": "00"}, secret="5ec3e7"),
    )
    return made.model_copy(update=change)


def wanting(name: str, *, on_delete: OnDelete = OnDelete.STOP, namespace: str = NAMESPACE) -> Wanting:
    return Wanting(name=name, namespace=namespace, uid=f"uid-of-{name}", on_delete=on_delete)


JOB = job_of("orders")
ASSIGNMENT = assignment_of(JOB)


def stored(
    state: str | None, message: str = "", *, document: Mapping[str, Any] | None = None, **change: Any
) -> dict[str, Any]:
    """An application as the API server stores it. `change`: generation, executions, annotations, labels, suspend."""
    made = copy.deepcopy(dict(document or application(ASSIGNMENT, JOB, [], namespace=NAMESPACE)))
    made["metadata"] |= {"uid": UID, "generation": change.get("generation", 1)}
    made["metadata"]["annotations"] |= change.get("annotations", {})
    made["metadata"]["labels"] |= change.get("labels", {})
    if "suspend" in change:
        made["spec"]["suspend"] = change["suspend"]
    if state is not None:
        said = {"state": state} | ({"errorMessage": message} if message else {})
        made["status"] = {"applicationState": said, "executionAttempts": change.get("executions", 1)}
    return made


def placed(state: str | None) -> dict[str, Any]:
    return stored(state, document=placeholder(ASSIGNMENT, namespace=NAMESPACE))


def pod(
    phase: str, *, code: int | None = None, reason: str = "", status: Mapping[str, Any] | None = None, **metadata: Any
) -> dict[str, Any]:
    """The driver pod; with an exit code, its container ended at 12:00:10."""
    container: dict[str, Any] = {"name": "spark-kubernetes-driver", "ready": phase == "Running", "restartCount": 0}
    if code is not None:
        terminated = {"exitCode": code, "reason": reason or "Error", "finishedAt": at(10)}
        container |= {"state": {"terminated": terminated}, "ready": False}
    elif phase == "Running":
        container |= {"state": {"running": {}}}
    return {
        "metadata": {
            "name": f"{ASSIGNMENT.name}-driver",
            "uid": DRIVER,
            "labels": {"spark-role": "driver"},
            "annotations": {"sparkonce.dev/nonce": ASSIGNMENT.nonce},
            "ownerReferences": [{"kind": "SparkApplication", "name": ASSIGNMENT.name, "uid": UID}],
            **metadata,
        },
        "status": {"phase": phase, "containerStatuses": [container], **(status or {})},
    }


def at(second: int) -> str:
    return f"2026-05-01T12:00:{second:02d}Z"


def disrupted(reason: str, *, second: int) -> dict[str, Any]:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "lastTransitionTime": at(second)}
    return {"conditions": [condition]}
