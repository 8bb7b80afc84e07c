"""What is kept in memory of an application and of a pod: the fields that `launch.kubeflow_observe` and `kubeflow_pod` read. Pure.

10,000 finished applications with their pods would be some 200 MB whole and are a tenth of it so. Lists of what to keep, not of what to
drop: what a new version of Kubernetes adds is then no surprise. A test holds both sides together: an observation of the pruned objects
is the observation of the whole ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkonce.launch.kubeflow_pod import LOG_TAIL, MESSAGE
from sparkonce.launch.kubernetes import Json

_IDENTITY = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "labels",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
_ANNOTATIONS = ("sparkonce.dev/", "kueue.x-k8s.io/")
"""Prefixes; others (kubectl keeps the whole manifest in one) are somebody else's."""
_STATUS = ("executionAttempts", "submissionAttempts", "submissionID", "sparkApplicationId", "terminationTime")
_CONDITION = ("type", "status", "reason", "lastTransitionTime")
_TERMINATED = ("exitCode", "reason", "finishedAt", "startedAt")
_OUTPUT = 4096
"""Characters of an application's error message: what spark-submit printed may be long, and its end is what counts."""


def prune_application(found: Json) -> Json:
    """Of a SparkApplication: no template, no configuration."""
    spec, status = found.get("spec"), found.get("status")
    kept = _head(found)
    if isinstance(spec, dict) and "suspend" in spec:
        kept["spec"] = {"suspend": spec["suspend"]}
    if isinstance(status, dict):
        kept["status"] = _only(status, _STATUS)
        state, driver = status.get("applicationState"), status.get("driverInfo")
        if isinstance(state, dict):
            kept["status"]["applicationState"] = _only(state, ("state",)) | _ends(state)
        if isinstance(driver, dict):
            kept["status"]["driverInfo"] = _only(driver, ("podName",))
    return kept


def prune_pod(found: Json) -> Json:
    """Of a driver's or executor's pod: no spec but its node."""
    spec, status = found.get("spec"), found.get("status")
    kept = _head(found)
    if isinstance(spec, dict) and "nodeName" in spec:
        kept["spec"] = {"nodeName": spec["nodeName"]}
    if isinstance(status, dict):
        kept["status"] = _only(status, ("phase", "reason")) | _begins(status)
        for field, prune in (("containerStatuses", _container), ("conditions", _condition)):
            each = status.get(field)
            if isinstance(each, list):
                kept["status"][field] = [prune(one) if isinstance(one, dict) else one for one in each]
    return kept


def _head(found: Json) -> Json:
    kept = _only(found, ("apiVersion", "kind"))
    metadata = found.get("metadata")
    if isinstance(metadata, dict):
        kept["metadata"] = _only(metadata, _IDENTITY)
        annotations, owners = metadata.get("annotations"), metadata.get("ownerReferences")
        if isinstance(annotations, dict):
            ours = {name: value for name, value in annotations.items() if name.startswith(_ANNOTATIONS)}
            kept["metadata"] |= {"annotations": ours} if ours else {}
        if isinstance(owners, list):
            kept["metadata"]["ownerReferences"] = [
                _only(each, ("kind", "name", "uid")) if isinstance(each, dict) else each for each in owners
            ]
    return kept


def _container(found: Mapping[str, Any]) -> Json:
    kept = _only(found, ("name", "ready", "restartCount"))
    state = found.get("state")
    if isinstance(state, dict):
        kept["state"] = {}
        terminated, waiting = state.get("terminated"), state.get("waiting")
        if isinstance(terminated, dict):
            kept["state"]["terminated"] = _only(terminated, _TERMINATED)
            if isinstance(message := terminated.get("message"), str):
                kept["state"]["terminated"]["message"] = message[-LOG_TAIL:]
        if isinstance(waiting, dict):
            kept["state"]["waiting"] = _only(waiting, ("reason",)) | _begins(waiting)
        if "running" in state:
            kept["state"]["running"] = {}
    return kept


def _condition(found: Mapping[str, Any]) -> Json:
    return _only(found, _CONDITION) | _begins(found)


def _begins(found: Mapping[str, Any]) -> Json:
    message = found.get("message")
    return {"message": message[:MESSAGE]} if isinstance(message, str) else {}


def _ends(state: Mapping[str, Any]) -> Json:
    """The beginning says how it ended, the end what was printed last."""
    message = state.get("errorMessage")
    if not isinstance(message, str):
        return {}
    half = _OUTPUT // 2
    return {"errorMessage": message if len(message) <= _OUTPUT else message[:half] + message[-half:]}


def _only(found: Mapping[str, Any], names: tuple[str, ...]) -> Json:
    return {name: found[name] for name in names if name in found}
