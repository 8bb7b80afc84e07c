"""What one driver pod proves, by itself. Pure; never raises on what an API server may return.

We look at pods because the Spark operator's status lags by minutes under load and is lost for good after some of its crashes. The
driver's own container is what counts: a sidecar that fails proves nothing, nor does the pod's phase when the container's exit code
is there to be read.

An exit code 0 proves a good end only if nobody was ending the pod: a driver that traps SIGTERM and exits 0 was interrupted. Times
decide: of the end, and of the deletion or disruption. Where they are missing, or fall into one second, it was interrupted.
A node that is silent is no dead driver; a node that the control plane has given up is, and nobody saw how it ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sparkonce.launch.kubeflow import (
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
from sparkonce.launch.protocol import Phase
from sparkonce.model.assignment import Assignment

LOG_TAIL = 1024
"""Characters of the termination message that are kept: a hint for people, never evidence."""
MESSAGE = 300
"""Characters of somebody else's sentence that go into ours."""

_PLATFORM = frozenset(
    {"Evicted", "Preempted", "Preempting", "Shutdown", "NodeShutdown", "Terminated"}
    | {"UnexpectedAdmissionError", "NodeAffinity", "OutOfcpu", "OutOfmemory", "OutOfpods", "OutOfephemeral-storage"}
)
"""`status.reason` of a pod that its platform ended, or never let start."""


@dataclass(frozen=True, kw_only=True)
class DriverPod:
    uid: str
    phase: Phase
    exit_code: int | None = None
    message: str = ""
    log_tail: str = ""
    restarted: bool = False
    """Its container ran more than once: a driver pod is never restarted, so two drivers ran under one token."""
    mounting: float | None = None
    """Since when (Unix seconds) it is on a node that has not come as far as its containers: a volume that it mounts is missing, or comes
    late. None: it has, or its kubelet does not say (before Kubernetes 1.29)."""


def drivers_of(pods: Iterable[Any], assignment: Assignment, *, name: str, uid: str) -> list[DriverPod]:
    """Those of these pods that are drivers of the application `name` with this UID; no stub, nobody else's."""
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
    # Spark operators before 2.4 wrote the owner by their webhook, which could miss it.
    return all(labels.get(key) == value for key, value in labels_of(assignment).items())


def belongs(pod: Mapping[str, Any], assignment: Assignment, *, uid: str | None) -> bool:
    """A driver or an executor of the attempt, even of an application that is gone: it carries our nonce, or the application of this
    UID owns it. None: whoever has the application's name is not ours. Labels are anybody's, and our stub runs nothing."""
    metadata = as_map(pod.get("metadata"))
    if as_map(metadata.get("labels")).get(ROLE_LABEL) == Role.STUB:
        return False
    owners = [each.get("uid") for each in map(as_map, as_list(metadata.get("ownerReferences")))]
    return as_map(metadata.get("annotations")).get(NONCE) == assignment.nonce or (uid is not None and uid in owners)


def may_run(pod: Mapping[str, Any]) -> bool:
    """Not unless its phase, or the container that counts, says that it has ended; a silent or lost node says nothing."""
    status = as_map(pod.get("status"))
    terminated = as_map(as_map(_driver_container(status).get("state")).get("terminated"))
    return status.get("phase") not in {"Succeeded", "Failed"} and number_of(terminated.get("exitCode")) is None


def leaves(pod: Mapping[str, Any]) -> bool:
    """Its deletion has begun: its name will be free."""
    return as_map(pod.get("metadata")).get("deletionTimestamp") is not None


def look(pod: Mapping[str, Any]) -> DriverPod:
    metadata, status = as_map(pod.get("metadata")), as_map(pod.get("status"))
    container = _driver_container(status)
    state = as_map(container.get("state"))
    terminated = as_map(state.get("terminated"))
    code = number_of(terminated.get("exitCode"))
    if code is None and status.get("phase") == "Succeeded":
        code = 0  # by definition of the phase
    disruption = _disruption(status)
    if code is not None:
        phase, message = _ended(code, metadata, status, terminated, disruption)
    elif status.get("phase") == "Failed":
        phase, message = _failed(status, disruption)
    else:
        phase, message = _alive(metadata, status, container, disruption)
    counted = phase in (Phase.SUCCEEDED, Phase.FAILED_KNOWN)
    return DriverPod(
        uid=text_of(metadata.get("uid")),
        phase=phase,
        exit_code=code if counted else None,
        message=message,
        log_tail=text_of(terminated.get("message"))[-LOG_TAIL:],
        restarted=(number_of(container.get("restartCount")) or 0) > 0,
        mounting=_mounting(status) if phase is Phase.STARTING else None,
    )


def _driver_container(status: Mapping[str, Any]) -> Mapping[str, Any]:
    containers = [as_map(each) for each in as_list(status.get("containerStatuses"))]
    named = [each for each in containers if each.get("name") == DRIVER_CONTAINER]
    return named[0] if named else containers[0] if len(containers) == 1 else {}


def _disruption(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The condition by which the control plane or the kubelet says that it ends this pod."""
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
    finished = time_of(terminated.get("finishedAt"))
    reason = text_of(status.get("reason"))
    said = f"driver container exited with code {code}" + _because(terminated.get("reason"))
    if disruption is not None and not _before(finished, time_of(disruption.get("lastTransitionTime"))):
        return Phase.FAILED_INFRA, f"the platform ended the driver{_because(disruption.get('reason'))}; {said}"
    if disruption is None and reason in _PLATFORM:
        return Phase.FAILED_INFRA, f"the platform ended the driver{_because(reason)}; {said}"
    if code != 0:
        return Phase.FAILED_KNOWN, said
    deleted = "deletionTimestamp" in metadata and metadata["deletionTimestamp"] is not None
    if deleted and not _before(finished, _asked_to_go(metadata)):
        return Phase.UNKNOWN, "the driver pod was being deleted when its driver exited with code 0"
    return Phase.SUCCEEDED, ""


def _failed(status: Mapping[str, Any], disruption: Mapping[str, Any] | None) -> tuple[Phase, str]:
    """No exit code was written."""
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
    """Evicted by a taint, and not ready although the kubelet's last word was that it is: that is the node controller's own mark."""
    if disruption is None or disruption.get("reason") != "DeletionByTaintManager":
        return False
    ready = [each for each in map(as_map, as_list(status.get("conditions"))) if each.get("type") == "Ready"]
    return bool(ready) and ready[0].get("status") == "False" and container.get("ready") is True


def _waits_for(status: Mapping[str, Any], container: Mapping[str, Any]) -> str:
    waiting = as_map(as_map(container.get("state")).get("waiting"))
    if reason := text_of(waiting.get("reason")):
        return f"the driver container waits: {reason}{_detail(waiting.get('message'))}"
    for each in map(as_map, as_list(status.get("conditions"))):
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            return f"the driver pod is not scheduled{_because(each.get('reason'))}{_detail(each.get('message'))}"
    return ""


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


def _asked_to_go(metadata: Mapping[str, Any]) -> datetime | None:
    """The API server writes when the grace period ends."""
    end = time_of(metadata.get("deletionTimestamp"))
    grace = number_of(metadata.get("deletionGracePeriodSeconds")) or 0
    return end - timedelta(seconds=min(max(grace, 0), 86_400 * 365)) if end is not None else None


def _before(first: datetime | None, second: datetime | None) -> bool:
    return first is not None and second is not None and first < second


def time_of(value: object) -> datetime | None:
    """RFC 3339 with a zone, of a year that arithmetic can leave."""
    try:
        moment = datetime.fromisoformat(text_of(value))
    except ValueError:
        return None
    if moment.tzinfo is None or not 1970 <= moment.year <= 9000:
        return None
    return moment.astimezone(UTC)
