"""What an application on kubeflow's Spark operator is doing, in neutral words. Pure: from what the API server returned to `Seen`.

The driver pod says what happened; the Spark operator's status says only what cannot be seen there: what it still means to do, and
how it ended once the pod is gone. Where the two differ the pod is right, because the status lags, is lost in a crash, and says FAILED
of a driver that runs ("driver pod already exist").

| status | no driver pod | evidence |
| --- | --- | --- |
| none, RESUMING | Accepted | |
| SUBMITTED · RUNNING, UNKNOWN | Starting · Running | a noted driver whose pod is not there has vanished: Unknown |
| SUCCEEDING, FAILING, SUBMISSION_FAILED | Finishing | not an end: it moves on |
| COMPLETED | Succeeded | the driver container exited 0 |
| FAILED "driver container failed with ExitCode: N" | FailedKnown | |
| FAILED, anything else | Unknown | also "already exist", "not found", "status missing", a failed submission |
| SUSPENDING, SUSPENDED | Held; with our mark Finishing, Unknown | |
| INVALIDATING, PENDING_RERUN | Accepted, repeated | an edit of its spec runs it again |

A Spark operator that dies while it submits may leave a driver pod whose ConfigMaps nobody will make; its successor says FAILED ("already
exist") of it, as of a driver that runs. Such a pod is Starting, and since when it waits for what it mounts is reported: `half_made`.

After our mark an exit code counts only for the driver that the record names, so a status without that pod proves none. It refuses to
conclude an end without a look at the pod (`pods=None`): the driver may be alive. Read the application first and its pods after it: the
other way round a driver that has just started looks like one that has vanished.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparkonce.launch.kubeflow import (
    QUEUE_LABEL,
    ROLE_LABEL,
    STOPPING,
    Role,
    as_map,
    nonce_of,
    number_of,
    rewound,
    text_of,
)
from sparkonce.launch.kubeflow_pod import LOG_TAIL, MESSAGE, DriverPod, drivers_of
from sparkonce.launch.protocol import ENDED, Phase, Seen
from sparkonce.model.assignment import Assignment
from sparkonce.model.record import Application

_EXIT = re.compile(r"driver container failed with ExitCode: (\d{1,5})(?!\d)(?:, Reason: (\w+))?", re.ASCII)
"""At the beginning of the message: what follows a failed submission is the output of spark-submit, which may say anything."""
_PLAIN: Mapping[str, Phase] = {
    "": Phase.ACCEPTED,
    "RESUMING": Phase.ACCEPTED,
    "INVALIDATING": Phase.ACCEPTED,
    "PENDING_RERUN": Phase.ACCEPTED,
    "SUBMITTED": Phase.STARTING,
    "RUNNING": Phase.RUNNING,
    "UNKNOWN": Phase.RUNNING,  # of a node that is silent; the Spark operator derives it again
    "SUCCEEDING": Phase.FINISHING,
    "FAILING": Phase.FINISHING,
    "SUBMISSION_FAILED": Phase.FINISHING,
}
_MAY_VANISH = frozenset({"", "SUBMITTED", "RUNNING", "UNKNOWN"})
"""States in which a driver that was noted should have a pod."""
_RUNS_AGAIN = frozenset({"INVALIDATING", "PENDING_RERUN"})
_ENDS = frozenset({"COMPLETED", "FAILED"})


@dataclass(frozen=True, kw_only=True)
class _Said:
    """The application, read once."""

    name: str
    uid: str
    nonce: str
    state: str
    message: str
    stopping: bool
    placeholder: bool
    suspended: bool
    queued: bool
    generation: int
    executions: int
    """Submissions that the Spark operator stored as successful."""
    detail: Mapping[str, str]


def observe(
    application: Mapping[str, Any] | None,
    pods: Sequence[Any] | None,
    assignment: Assignment,
    noted: Application | None = None,
) -> Seen | None:
    """None: there is no application. `pods`: what was found under the driver pod's name, [] when nothing was, None when nobody
    looked. `noted`: what the record knows of the application."""
    if application is None:
        return None
    said = _read(application, assignment)
    if said.nonce != assignment.nonce:
        return replace(_as_said(said), rewound=rewound(said.nonce, assignment), exit_code=None)
    drivers = drivers_of(pods or (), assignment, name=said.name, uid=said.uid)
    known = noted.driver if noted is not None and noted.uid == said.uid else None
    other = [each for each in drivers if each.uid != known]
    pod = other[0] if other else drivers[0] if drivers else None
    if pod is not None:
        phase, message, code = _with_pod(said, pod, known)
    else:
        phase, message, code = _without_pod(said, vanished=pods is not None and known is not None)
        if pods is None and phase in ENDED:
            phase, code = Phase.FINISHING, None
    half_made = pod.mounting if pod is not None and phase is Phase.STARTING and said.state == "FAILED" else None
    if half_made is not None:
        message = f"{_failed(said)[1]}, and {message or 'its driver pod has no containers yet'}"
    failed_submit = phase is Phase.UNKNOWN and pod is None and len(said.message) > MESSAGE
    return Seen(
        name=said.name,
        uid=said.uid,
        nonce=said.nonce,
        phase=phase,
        driver=pod.uid if pod else None,
        exit_code=code,
        stopping=said.stopping,
        repeated=_repeated(said) or len(drivers) > 1 or (pod is not None and pod.restarted),
        half_made=half_made,
        message=message,
        log_tail=pod.log_tail if pod else said.message[-LOG_TAIL:] if failed_submit else "",
        detail=said.detail,
    )


def of_others(application: Mapping[str, Any], assignment: Assignment) -> Seen:
    """Of one that somebody else started: as its operator says it."""
    return _as_said(_read(application, assignment))


def _as_said(said: _Said) -> Seen:
    phase, message, code = _without_pod(said, vanished=False)
    return Seen(
        name=said.name,
        uid=said.uid,
        nonce=said.nonce,
        phase=phase,
        exit_code=code,
        message=message,
        detail=said.detail,
    )


def has_ended(application: Mapping[str, Any]) -> bool:
    """In a state that only an edit of its spec leaves: the Spark operator neither submits it any more nor heeds a suspension."""
    return text_of(as_map(as_map(application.get("status")).get("applicationState")).get("state")) in _ENDS


def is_placeholder(application: Mapping[str, Any]) -> bool:
    """Created suspended, by us, and never touched since: nothing was ever submitted under its UID."""
    metadata = as_map(application.get("metadata"))
    placed = as_map(metadata.get("labels")).get(ROLE_LABEL) == Role.PLACEHOLDER
    untouched = (number_of(metadata.get("generation")) or 1) <= 1
    return placed and untouched and as_map(application.get("spec")).get("suspend") is True


def submission_over(application: Mapping[str, Any], assignment: Assignment) -> bool:
    """The Spark operator will not submit it any more: it says so itself, or it never could. Only then is "no pod is left" final."""
    said = _read(application, assignment)
    if is_placeholder(application):
        return True
    return said.state in _ENDS or (said.state == "SUSPENDED" and said.suspended)


def _read(application: Mapping[str, Any], assignment: Assignment) -> _Said:
    metadata, spec, status = (as_map(application.get(part)) for part in ("metadata", "spec", "status"))
    labels, annotations = as_map(metadata.get("labels")), as_map(metadata.get("annotations"))
    state = as_map(status.get("applicationState"))
    name = text_of(metadata.get("name")) or assignment.name
    details = {
        "state": state.get("state"),
        "pod": as_map(status.get("driverInfo")).get("podName"),
        "sparkApplicationId": status.get("sparkApplicationId"),
        "submissionId": status.get("submissionID"),
    }
    return _Said(
        name=name,
        uid=text_of(metadata.get("uid")),
        nonce=nonce_of(application, assignment),
        state=text_of(state.get("state")),
        message=text_of(state.get("errorMessage")),
        stopping=bool(annotations.get(STOPPING)),
        placeholder=labels.get(ROLE_LABEL) == Role.PLACEHOLDER,
        suspended=spec.get("suspend") is True,
        queued=QUEUE_LABEL in labels,
        generation=number_of(metadata.get("generation")) or 1,
        executions=number_of(status.get("executionAttempts")) or 0,
        detail={key: value for key, value in details.items() if isinstance(value, str) and value},
    )


def _repeated(said: _Said) -> bool:
    """Somebody else's hand: each change of the spec counts, and only two are in order, our own suspend and a queue's first start."""
    in_order = 1 + said.stopping + said.queued
    resumed = said.stopping and not said.suspended
    return said.generation > in_order or said.executions > 1 or said.state in _RUNS_AGAIN or resumed


def _with_pod(said: _Said, pod: DriverPod, known: str | None) -> tuple[Phase, str, int | None]:
    if pod.phase in ENDED:
        if known is None and not said.stopping:
            return pod.phase, pod.message, pod.exit_code
        if known != pod.uid:
            return Phase.UNKNOWN, "the exit code is of a driver that the record does not name", None
        return pod.phase, pod.message, pod.exit_code
    if said.state == "COMPLETED" or (said.state == "FAILED" and _EXIT.match(said.message)):
        return Phase.FINISHING, pod.message, None  # here it is our view of the pod that lags
    return pod.phase, pod.message, None


def _without_pod(said: _Said, *, vanished: bool) -> tuple[Phase, str, int | None]:
    match said.state:
        case "COMPLETED" | "FAILED" if said.stopping:
            return Phase.UNKNOWN, f"it is {said.state}, and the driver pod that could prove it is gone", None
        case "COMPLETED":
            return Phase.SUCCEEDED, "", 0
        case "FAILED":
            return _failed(said)
        case _ if said.placeholder and said.suspended and said.generation <= 1:
            return Phase.UNKNOWN, "a placeholder: nothing ever ran under this name", None
        case "SUSPENDED" if said.stopping and said.suspended:
            return Phase.UNKNOWN, "it was stopped", None
        case "SUSPENDING" if said.stopping:
            return Phase.FINISHING, "", None
        case "SUSPENDING" | "SUSPENDED":
            return Phase.HELD, "it is suspended, by its queue or by somebody else", None
        case state if vanished and state in _MAY_VANISH:
            if said.stopping:  # a submission may be in flight
                return Phase.FINISHING, "", None
            return Phase.UNKNOWN, "the driver pod vanished", None
        case state if state in _PLAIN:
            return _PLAIN[state], said.message[:MESSAGE], None
        case state:
            return Phase.ACCEPTED, f"the Spark operator says {state[:MESSAGE]}, which is not known here", None


def _failed(said: _Said) -> tuple[Phase, str, int | None]:
    if (found := _EXIT.match(said.message)) and int(found[1]) != 0:
        why = f" ({found[2]})" if found[2] else ""
        return Phase.FAILED_KNOWN, f"driver container exited with code {found[1]}{why}", int(found[1])
    why = f": {said.message[:MESSAGE]}" if said.message else " and does not say why"
    return Phase.UNKNOWN, f"the Spark operator says FAILED{why}", None
