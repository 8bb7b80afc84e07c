"""Derives an attempt's state from its driver pod alone. Pure; never raises on any object of the API server.

Pods are read because the Spark operator's status lags by minutes under load and is lost after some of its crashes. Only the driver's
container counts: a failed sidecar proves nothing, nor does the pod's phase when the container's exit code is available.

Exit code 0 proves success only of a pod that is not being ended: a driver that traps SIGTERM and exits 0 was interrupted. A pod with a
deletion or a disruption therefore never shows success, even if the times say that the driver had ended before it: those are of two clocks,
the node's and the API server's. A driver that had ended first was seen without them, in a version of the pod that a watch has.
A silent node does not mean a dead driver; a node that the control plane has given up does, with an unknown outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sparkonce.launch.kubeflow.labels import (
    DRIVER_CONTAINER,
    KIND,
    NONCE,
    ROLE_LABEL,
    Role,
    as_list,
    as_map,
    driver_pod_name,
    labels_of,
    number_of,
    text_of,
)
from sparkonce.launch.kubernetes import time_of
from sparkonce.launch.protocol import Phase
from sparkonce.model.record import Assignment

TERMINATION = 4096
"""Characters of the termination message that are read, which is the kubelet's own limit: informational, never evidence."""
MESSAGE = 300
"""Maximum characters quoted from messages of other systems."""

_PLATFORM = frozenset(
    {"Evicted", "Preempted", "Preempting", "Shutdown", "NodeShutdown", "Terminated"}
    | {"UnexpectedAdmissionError", "NodeAffinity", "OutOfcpu", "OutOfmemory", "OutOfpods", "OutOfephemeral-storage"}
)
"""Values of `status.reason` for pods that the platform ended or never started."""


_OUT_OF_MEMORY = "OOMKilled"
_LOST = "ContainerStatusUnknown"
"""The kubelet's reason, with an exit code of its own, for a container that it does not find: it never started, or its end was not seen."""


@dataclass(frozen=True, kw_only=True)
class DriverPod:
    uid: str
    phase: Phase
    exit_code: int | None = None
    message: str = ""
    log_tail: str = ""
    restarted: bool = False
    """Whether its container ran more than once: driver pods are never restarted, so two drivers ran under one token."""
    waits: str = ""
    unplaced: bool = False
    hopeless: bool = False
    """See `ApplicationState`."""
    mounting: float | None = None
    """Unix seconds since when it is scheduled without being ready for containers: a volume is missing or late. None: it is ready, or its
    kubelet does not report this (before Kubernetes 1.29)."""


def drivers_of(pods: Iterable[Any], assignment: Assignment, *, name: str, uid: str) -> list[DriverPod]:
    """The pods that are drivers of the application `name` with this UID, without stubs."""
    return [look(pod) for pod in map(as_map, pods) if _is_driver(pod, assignment, name=name, uid=uid)]


def _is_driver(pod: Mapping[str, Any], assignment: Assignment, *, name: str, uid: str) -> bool:
    metadata = as_map(pod.get("metadata"))
    labels, annotations = as_map(metadata.get("labels")), as_map(metadata.get("annotations"))
    if metadata.get("name") != driver_pod_name(name) or labels.get(ROLE_LABEL) == Role.STUB:
        return False
    if not text_of(metadata.get("uid")) or annotations.get(NONCE, assignment.nonce) != assignment.nonce:
        return False
    references = [each for each in map(as_map, as_list(metadata.get("ownerReferences"))) if each.get("kind") == KIND]
    if references:
        return any(each.get("uid") == uid for each in references)
    # Spark operators before 2.4 set the owner in their webhook, which could be bypassed.
    return all(labels.get(key) == value for key, value in labels_of(assignment).items())


def belongs(pod: Mapping[str, Any], assignment: Assignment, *, uid: str | None) -> bool:
    """Whether a pod is a driver or executor of the attempt, even of a deleted application: it has our nonce, or the application of this UID
    owns it. uid: None if the application with this name is not ours. Labels do not count, and our stub runs nothing."""
    metadata = as_map(pod.get("metadata"))
    if as_map(metadata.get("labels")).get(ROLE_LABEL) == Role.STUB:
        return False
    return as_map(metadata.get("annotations")).get(NONCE) == assignment.nonce or (
        uid is not None and uid in owners_of(pod)
    )


def owners_of(document: Mapping[str, Any]) -> set[str]:
    """UIDs of an object's owners."""
    references = as_list(as_map(document.get("metadata")).get("ownerReferences"))
    return {text_of(as_map(each).get("uid")) for each in references}


def may_run(pod: Mapping[str, Any]) -> bool:
    """Whether the driver may be running: False only if the pod's phase or the driver's container shows its end, never for a silent node."""
    status = as_map(pod.get("status"))
    terminated = as_map(as_map(_driver_container(status).get("state")).get("terminated"))
    return status.get("phase") not in {"Succeeded", "Failed"} and number_of(terminated.get("exitCode")) is None


def leaves(pod: Mapping[str, Any]) -> bool:
    """Whether the pod's deletion has begun, so that its name will be free."""
    return as_map(pod.get("metadata")).get("deletionTimestamp") is not None


def look(pod: Mapping[str, Any]) -> DriverPod:
    metadata, status = as_map(pod.get("metadata")), as_map(pod.get("status"))
    container = _driver_container(status)
    state = as_map(container.get("state"))
    terminated = as_map(state.get("terminated"))
    code = None if terminated.get("reason") == _LOST else number_of(terminated.get("exitCode"))
    if code is None and status.get("phase") == "Succeeded":
        code = 0  # by definition of the phase
    disruption = _disruption(status)
    if code is not None:
        phase, message = _ended(code, metadata, status, terminated, disruption)
    elif status.get("phase") == "Failed":
        phase, message = _failed(status, disruption)
    else:
        phase, message = _alive(metadata, status, container, disruption)
    unplaced = phase is Phase.STARTING and not as_map(pod.get("spec")).get("nodeName")
    if unplaced and _unscheduled(status) is not None:
        phase = Phase.HELD
    counted = phase in (Phase.SUCCEEDED, Phase.FAILED_KNOWN)
    return DriverPod(
        uid=text_of(metadata.get("uid")),
        phase=phase,
        exit_code=code if counted else None,
        message=message,
        log_tail=text_of(terminated.get("message"))[-TERMINATION:],
        restarted=(number_of(container.get("restartCount")) or 0) > 0,
        waits=_why_it_waits(status, container) if phase in (Phase.STARTING, Phase.HELD) else "",
        unplaced=unplaced,
        hopeless=phase is Phase.STARTING and _waiting(container)[0] in _HOPELESS,
        mounting=_mounting(status) if phase is Phase.STARTING else None,
    )


def unstarted(history: Iterable[tuple[str, Mapping[str, Any]]], *, stub: str) -> frozenset[str] | None:
    """UIDs of the pods in a complete history of the driver pod's name, if no container of any of them ever started or will; else None.

    A deleted pod counts if it was never bound to a node or if its kubelet ended it: a kubelet gives each container a final state before it
    lets a pod go, and one that ran has an ID. Without these states the node may have been lost, or the pod deleted by force, while a
    container ran. stub: UID of our own pod with this name.
    """
    last: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for kind, pod in history:
        uid = text_of(as_map(pod.get("metadata")).get("uid"))
        if uid == stub:
            continue
        if not uid or _has_started(as_map(pod.get("status"))):
            return None
        last[uid] = (kind, pod)
    if all(kind == "DELETED" and _never_starts(pod) for kind, pod in last.values()):
        return frozenset(last)
    return None


def waiting_since(history: Iterable[tuple[str, Mapping[str, Any]]], waiting: str) -> bool:
    """Whether in a history of the driver pod's name, which ends with a pod that is there, nothing has started. waiting: UID of that pod."""
    told = list(history)
    own = [(kind, pod) for kind, pod in told if as_map(pod.get("metadata")).get("uid") == waiting]
    waits = all(kind != "DELETED" and not _has_started(as_map(pod.get("status"))) for kind, pod in own)
    return waits and unstarted(told, stub=waiting) is not None


_CONTAINERS = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")


def _has_started(status: Mapping[str, Any]) -> bool:
    """Whether any container of the pod has run, for however short a time. An init container counts: it is the job's, too."""
    if status.get("phase") not in {None, "", "Pending", "Failed"}:
        return True
    for container in (as_map(each) for kind in _CONTAINERS for each in as_list(status.get(kind))):
        state, before = as_map(container.get("state")), as_map(container.get("lastState"))
        ended = as_map(state.get("terminated"))
        if before or "running" in state or container.get("containerID") or container.get("restartCount"):
            return True
        if container.get("started") or ended.get("containerID") or ended.get("startedAt"):
            return True
    return False


def _never_starts(pod: Mapping[str, Any]) -> bool:
    """Whether a deleted pod that was not seen to start anything cannot have started anything unseen either."""
    spec, status = as_map(pod.get("spec")), as_map(pod.get("status"))
    if not spec.get("nodeName"):
        return True
    ended = {
        text_of(each.get("name"))
        for kind in _CONTAINERS
        for each in map(as_map, as_list(status.get(kind)))
        if as_map(each.get("state")).get("terminated") is not None
    }
    declared = {text_of(as_map(each).get("name")) for each in as_list(spec.get("containers"))}
    return status.get("phase") == "Failed" and bool(declared) and declared <= ended


def _driver_container(status: Mapping[str, Any]) -> Mapping[str, Any]:
    containers = [as_map(each) for each in as_list(status.get("containerStatuses"))]
    named = [each for each in containers if each.get("name") == DRIVER_CONTAINER]
    return named[0] if named else containers[0] if len(containers) == 1 else {}


def _disruption(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The condition by which the control plane or the kubelet announces that it ends the pod."""
    for each in map(as_map, as_list(status.get("conditions"))):
        if each.get("type") == "DisruptionTarget" and each.get("status") == "True":
            return each
    return None


def _ended(
    code: int,
    metadata: Mapping[str, Any],
    status: Mapping[str, Any],
    terminated: Mapping[str, Any],
    disruption: Mapping[str, Any] | None,
) -> tuple[Phase, str]:
    reason = text_of(status.get("reason"))
    exited = f"driver container exited with code {code}" + _because(terminated.get("reason"))
    if disruption is not None:
        return Phase.FAILED_INFRA, f"the platform ended the driver{_because(disruption.get('reason'))}; {exited}"
    if reason in _PLATFORM:
        return Phase.FAILED_INFRA, f"the platform ended the driver{_because(reason)}; {exited}"
    if code != 0:
        return Phase.FAILED_KNOWN, exited
    if metadata.get("deletionTimestamp") is not None:
        return Phase.UNKNOWN, "the driver pod was being deleted when its driver exited with code 0"
    if terminated.get("reason") == _OUT_OF_MEMORY:
        return (
            Phase.SUCCEEDED,
            f"{exited}: the kernel killed one of its processes for lack of memory, and the driver did not fail",
        )
    return Phase.SUCCEEDED, ""


def _failed(status: Mapping[str, Any], disruption: Mapping[str, Any] | None) -> tuple[Phase, str]:
    """A failed pod without an exit code."""
    reason = text_of(status.get("reason"))
    why = _because(reason) + _detail(status.get("message"))
    if reason == "NodeLost":
        return Phase.UNKNOWN, f"the driver's node was lost{why}"
    if disruption is not None or reason in _PLATFORM:
        return (
            Phase.FAILED_INFRA,
            f"the platform ended the driver{_because(disruption.get('reason')) if disruption else why}",
        )
    if reason == "DeadlineExceeded":
        return Phase.FAILED_KNOWN, f"the driver pod ran longer than its own activeDeadlineSeconds allows{why}"
    return Phase.UNKNOWN, f"the driver pod failed and its container's status is missing{why}"


def _alive(
    metadata: Mapping[str, Any],
    status: Mapping[str, Any],
    container: Mapping[str, Any],
    disruption: Mapping[str, Any] | None,
) -> tuple[Phase, str]:
    leaving = metadata.get("deletionTimestamp") is not None
    silent = status.get("reason") == "NodeLost"
    if leaving and (silent or _given_up(status, container, disruption)):
        return Phase.UNKNOWN, "the driver's node does not answer, and its pod was given up"
    if leaving or disruption is not None:
        return Phase.FINISHING, f"the driver pod is being ended{_because((disruption or {}).get('reason'))}"
    if status.get("phase") in {"Running", "Unknown"}:
        return Phase.RUNNING, "the driver's node does not answer" if silent or status["phase"] == "Unknown" else ""
    return Phase.STARTING, _waits_for(status, container)


def _given_up(status: Mapping[str, Any], container: Mapping[str, Any], disruption: Mapping[str, Any] | None) -> bool:
    """Whether the node controller has given up the node: evicted by a taint, and not ready although the kubelet reported ready last."""
    if disruption is None or disruption.get("reason") != "DeletionByTaintManager":
        return False
    ready = [each for each in map(as_map, as_list(status.get("conditions"))) if each.get("type") == "Ready"]
    return bool(ready) and ready[0].get("status") == "False" and container.get("ready") is True


def _waits_for(status: Mapping[str, Any], container: Mapping[str, Any]) -> str:
    reason, message = _waiting(container)
    if reason:
        return f"the driver container waits: {reason}{_detail(message)}"
    why = _unscheduled(status)
    return "" if why is None else f"the driver pod is not scheduled{why}"


def _unscheduled(status: Mapping[str, Any]) -> str | None:
    """Why no node was found for the pod: the scheduler's reason and message; None if it did not say so."""
    for each in map(as_map, as_list(status.get("conditions"))):
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            return f"{_because(each.get('reason'))}{_detail(each.get('message'))}"
    return None


_CAUSES: Mapping[str, str] = {
    "ErrImagePull": "its image cannot be pulled",
    "ImagePullBackOff": "its image cannot be pulled",
    "ErrImageNeverPull": "its image is not on the node, and imagePullPolicy is Never",
    "InvalidImageName": "its image has an invalid name",
    "CreateContainerConfigError": "its container cannot be configured",
    "CreateContainerError": "its container cannot be created",
    "RunContainerError": "its container cannot be started",
}
_HOPELESS = frozenset({"ErrImageNeverPull", "InvalidImageName"})
"""Reasons that nothing outside of the job can change. An image may be pushed, a ConfigMap created and a node added."""


def _waiting(container: Mapping[str, Any]) -> tuple[str, object]:
    waiting = as_map(as_map(container.get("state")).get("waiting"))
    return text_of(waiting.get("reason")), waiting.get("message")


def _why_it_waits(status: Mapping[str, Any], container: Mapping[str, Any]) -> str:
    """One cause for the reasons between which a kubelet alternates, so that it is reported once."""
    reason, message = _waiting(container)
    if cause := _CAUSES.get(reason):
        return f"{cause} ({reason}){_detail(message)}"
    why = _unscheduled(status)
    return "" if why is None else f"no node takes its driver pod{why}"


def _mounting(status: Mapping[str, Any]) -> float | None:
    found = {text_of(each.get("type")): each for each in map(as_map, as_list(status.get("conditions")))}
    placed, made = (as_map(found.get(kind)) for kind in ("PodScheduled", "PodReadyToStartContainers"))
    if placed.get("status") != "True" or made.get("status") != "False":
        return None
    since = time_of(placed.get("lastTransitionTime"))
    return since.timestamp() if since is not None else None


def _because(reason: object) -> str:
    return f" ({text_of(reason)})" if text_of(reason) else ""


def _detail(message: object) -> str:
    return f": {text_of(message)[:MESSAGE]}" if text_of(message) else ""
