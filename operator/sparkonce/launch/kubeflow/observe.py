"""Derives `ApplicationState` from a SparkApplication and its driver pod, as the API server returns them. Pure.

The driver pod shows what happened; the Spark operator's status is used only for what the pod cannot show: what the operator will do next,
and how the application ended once the pod is gone. Where the two differ the pod is right, because the status lags, is lost in a crash, and
reports FAILED for a running driver ("driver pod already exist").

| status | no driver pod | evidence |
| --- | --- | --- |
| none, RESUMING | Accepted; Held while its queue has it suspended | |
| SUBMITTED · RUNNING, UNKNOWN | Starting · Running | a recorded driver without its pod has vanished: Unknown |
| SUCCEEDING, FAILING, SUBMISSION_FAILED | Finishing | not final |
| COMPLETED | Unknown | the driver container exited 0, perhaps because its pod was being deleted |
| FAILED "driver container failed with ExitCode: N" | FailedKnown | |
| FAILED, anything else | Unknown | also "already exist", "not found", "status missing", a failed submission |
| SUSPENDING, SUSPENDED | Held; with our mark Finishing, Unknown | |
| INVALIDATING, PENDING_RERUN | Accepted, repeated | an edit of its spec runs it again |

A driver pod that a scheduler reports as unschedulable waits in a queue like a suspended application: Held.

A Spark operator that dies during a submission may leave a driver pod whose ConfigMaps will never be created; its successor reports FAILED
("already exist") for it, as for a running driver. Such a pod is Starting, and `half_made` reports since when it waits for its volumes.

The Spark operator says COMPLETED of a driver that was interrupted and exited 0, too. Ended driver pods stay, so one that is gone was
deleted, and only a version of it from before then proves success. After our stop mark an exit code counts only for the driver in the
record, so a status without that pod proves nothing. No end is concluded without reading the pods (`pods=None`): the driver may be alive.
Callers read the application first and its pods after it: in the reverse order a driver that has just started looks like one that has
vanished.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparkonce.launch.driver_log import find
from sparkonce.launch.kubeflow.labels import (
    PODS_SINCE,
    QUEUE_LABEL,
    ROLE_LABEL,
    STOPPING,
    TEMPLATE,
    Role,
    as_map,
    nonce_of,
    number_of,
    rewound,
    text_of,
)
from sparkonce.launch.kubeflow.pod import MESSAGE, DriverPod, drivers_of
from sparkonce.launch.protocol import ENDED, ApplicationState, Phase
from sparkonce.model.record import Application, Assignment

VERSION = 64
"""Characters that are kept of a version of objects, which in an annotation anyone may have edited."""
_NO_PROOF = "the driver pod is gone, and the Spark operator says COMPLETED of an interrupted driver that exited with code 0, too"
_EXIT = re.compile(r"driver container failed with ExitCode: (\d{1,5})(?!\d)(?:, Reason: (\w+))?", re.ASCII)
"""Matched at the beginning of the message: a failed submission is followed by the arbitrary output of spark-submit."""
SUBMISSION = 120
"""Characters of a failed submission's first line, which says that spark-submit failed, before the exception in its output."""
_PLAIN: Mapping[str, Phase] = {
    "": Phase.ACCEPTED,
    "RESUMING": Phase.ACCEPTED,
    "INVALIDATING": Phase.ACCEPTED,
    "PENDING_RERUN": Phase.ACCEPTED,
    "SUBMITTED": Phase.STARTING,
    "RUNNING": Phase.RUNNING,
    "UNKNOWN": Phase.RUNNING,  # the node is silent; the Spark operator derives the state again
    "SUCCEEDING": Phase.FINISHING,
    "FAILING": Phase.FINISHING,
    "SUBMISSION_FAILED": Phase.FINISHING,
}
_MAY_VANISH = frozenset({"", "SUBMITTED", "RUNNING", "UNKNOWN"})
"""States in which a recorded driver should have a pod."""
_RUNS_AGAIN = frozenset({"INVALIDATING", "PENDING_RERUN"})
_ENDS = frozenset({"COMPLETED", "FAILED"})


@dataclass(frozen=True, kw_only=True)
class _Fields:
    """The relevant fields of an application."""

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
    pods_since: str
    template: str
    executions: int
    """Number of submissions that the Spark operator recorded as successful."""
    detail: Mapping[str, str]


def observe(
    application: Mapping[str, Any],
    pods: Sequence[Any] | None,
    assignment: Assignment,
    noted: Application | None = None,
) -> ApplicationState:
    """State of an application.

    pods: the pods with the driver pod's name; None if they were not read. noted: the application as recorded.
    """
    fields = _read(application, assignment)
    if fields.nonce != assignment.nonce:
        return replace(_as_reported(fields), rewound=rewound(fields.nonce, assignment), exit_code=None)
    drivers = drivers_of(pods, assignment, name=fields.name, uid=fields.uid) if pods else []
    known = noted.driver if noted is not None and noted.uid == fields.uid else None
    pod = next((each for each in drivers if each.uid != known), drivers[0] if drivers else None)
    if pod is not None:
        phase, message, code = _with_pod(fields, pod, known)
    else:
        phase, message, code = _without_pod(fields, vanished=pods is not None and known is not None)
        if pods is None and phase in ENDED:
            phase, code = Phase.FINISHING, None
    half_made = pod.mounting if pod is not None and phase is Phase.STARTING and fields.state == "FAILED" else None
    if half_made is not None:
        message = f"{_failed(fields)[1]}, and {message or 'its driver pod has no containers yet'}"
    failed_submit = phase is Phase.UNKNOWN and pod is None and len(fields.message) > MESSAGE
    return ApplicationState(
        name=fields.name,
        uid=fields.uid,
        nonce=fields.nonce,
        phase=phase,
        driver=pod.uid if pod else None,
        exit_code=code,
        stopping=fields.stopping,
        repeated=_repeated(fields) or len(drivers) > 1 or (pod is not None and pod.restarted),
        half_made=half_made,
        waits=pod.waits if pod is not None and phase in (Phase.STARTING, Phase.HELD) else "",
        mounting=pod.mounting if pod is not None and phase is Phase.STARTING else None,
        unplaced=pod is not None and phase in (Phase.STARTING, Phase.HELD) and pod.unplaced,
        pods_since=fields.pods_since or None,
        template=fields.template,
        hopeless=pod is not None and phase is Phase.STARTING and pod.hopeless,
        message=message,
        log_tail=pod.log_tail if pod else find(fields.message).excerpt if failed_submit else "",
        detail=fields.detail,
    )


def of_others(application: Mapping[str, Any], assignment: Assignment) -> ApplicationState:
    """State of an application that another party started, as its operator describes it."""
    return _as_reported(_read(application, assignment))


def _as_reported(fields: _Fields) -> ApplicationState:
    phase, message, code = _without_pod(fields, vanished=False)
    if fields.state == "COMPLETED" and not fields.stopping:
        phase, message, code = Phase.SUCCEEDED, "", 0
    return ApplicationState(
        name=fields.name,
        uid=fields.uid,
        nonce=fields.nonce,
        phase=phase,
        exit_code=code,
        message=message,
        detail=fields.detail,
    )


def has_ended(application: Mapping[str, Any]) -> bool:
    """Whether only an edit of its spec can change its state: the Spark operator neither submits nor suspends it any more."""
    return text_of(as_map(as_map(application.get("status")).get("applicationState")).get("state")) in _ENDS


def is_placeholder(application: Mapping[str, Any]) -> bool:
    """Whether we created it suspended and it was never edited: nothing was ever submitted under its UID."""
    metadata = as_map(application.get("metadata"))
    placed = as_map(metadata.get("labels")).get(ROLE_LABEL) == Role.PLACEHOLDER
    untouched = (number_of(metadata.get("generation")) or 1) <= 1
    return placed and untouched and as_map(application.get("spec")).get("suspend") is True


def submission_over(application: Mapping[str, Any], assignment: Assignment) -> bool:
    """Whether the Spark operator will not submit it any more. Only then is the absence of pods final."""
    fields = _read(application, assignment)
    if is_placeholder(application):
        return True
    return fields.state in _ENDS or (fields.state == "SUSPENDED" and fields.suspended)


def _read(application: Mapping[str, Any], assignment: Assignment) -> _Fields:
    metadata, spec, status = (as_map(application.get(part)) for part in ("metadata", "spec", "status"))
    labels, annotations = as_map(metadata.get("labels")), as_map(metadata.get("annotations"))
    state = as_map(status.get("applicationState"))
    details = {
        "state": state.get("state"),
        "pod": as_map(status.get("driverInfo")).get("podName"),
        "sparkApplicationId": status.get("sparkApplicationId"),
        "submissionId": status.get("submissionID"),
    }
    return _Fields(
        name=text_of(metadata.get("name")) or assignment.name,
        uid=text_of(metadata.get("uid")),
        nonce=nonce_of(application, assignment),
        state=text_of(state.get("state")),
        message=text_of(state.get("errorMessage")),
        stopping=bool(annotations.get(STOPPING)),
        placeholder=labels.get(ROLE_LABEL) == Role.PLACEHOLDER,
        suspended=spec.get("suspend") is True,
        queued=QUEUE_LABEL in labels,
        generation=number_of(metadata.get("generation")) or 1,
        pods_since=text_of(annotations.get(PODS_SINCE))[:VERSION],
        template=text_of(annotations.get(TEMPLATE)),
        executions=number_of(status.get("executionAttempts")) or 0,
        detail={key: value for key, value in details.items() if isinstance(value, str) and value},
    )


def _repeated(fields: _Fields) -> bool:
    """Whether another party changed it: the spec's generation counts edits; only our suspension and a queue's first start are expected."""
    in_order = 1 + fields.stopping + fields.queued
    resumed = fields.stopping and not fields.suspended
    return fields.generation > in_order or fields.executions > 1 or fields.state in _RUNS_AGAIN or resumed


def _with_pod(fields: _Fields, pod: DriverPod, known: str | None) -> tuple[Phase, str, int | None]:
    if pod.phase in ENDED:
        if known is None and not fields.stopping:
            return pod.phase, pod.message, pod.exit_code
        if known != pod.uid:
            return Phase.UNKNOWN, "the exit code is of a driver that the record does not name", None
        return pod.phase, pod.message, pod.exit_code
    if fields.state == "COMPLETED" or (fields.state == "FAILED" and _EXIT.match(fields.message)):
        return Phase.FINISHING, pod.message, None  # our view of the pod lags
    if pod.phase is Phase.HELD and fields.state == "RUNNING":
        return Phase.STARTING, pod.message, None  # the same: a pod that ran has a node
    return pod.phase, pod.message, None


def _without_pod(fields: _Fields, *, vanished: bool) -> tuple[Phase, str, int | None]:
    match fields.state:
        case "COMPLETED" | "FAILED" if fields.stopping:
            return Phase.UNKNOWN, f"it is {fields.state}, and the driver pod that could prove it is gone", None
        case "COMPLETED":
            return Phase.UNKNOWN, _NO_PROOF, None
        case "FAILED":
            return _failed(fields)
        case _ if fields.placeholder and fields.suspended and fields.generation <= 1:
            return Phase.UNKNOWN, "a placeholder: nothing ever ran under this name", None
        case "" if fields.suspended and fields.queued and not fields.stopping:
            return Phase.HELD, "its queue has not admitted it", None
        case "SUSPENDED" if fields.stopping and fields.suspended:
            return Phase.UNKNOWN, "it was stopped", None
        case "SUSPENDING" if fields.stopping:
            return Phase.FINISHING, "", None
        case "SUSPENDING" | "SUSPENDED":
            return Phase.HELD, "it is suspended, by its queue or another party", None
        case state if vanished and state in _MAY_VANISH:
            if fields.stopping:  # a submission may be in flight
                return Phase.FINISHING, "", None
            return Phase.UNKNOWN, "the driver pod vanished", None
        case state if state in _PLAIN:
            return _PLAIN[state], fields.message[:MESSAGE], None
        case state:
            return Phase.ACCEPTED, f"the Spark operator says {state[:MESSAGE]}, which this version does not know", None


def _failed(fields: _Fields) -> tuple[Phase, str, int | None]:
    if (found := _EXIT.match(fields.message)) and int(found[1]) != 0:
        why = f" ({found[2]})" if found[2] else ""
        return Phase.FAILED_KNOWN, f"driver container exited with code {found[1]}{why}", int(found[1])
    why = f": {_submission(fields.message)}" if fields.message else " and does not say why"
    return Phase.UNKNOWN, f"the Spark operator says FAILED{why}", None


def _submission(message: str) -> str:
    """What went wrong in a submission: the message before all the output of spark-submit."""
    if len(message) <= MESSAGE:
        return message
    cause = find(message).cause
    return f"{message.splitlines()[0][:SUBMISSION]}: {cause}" if cause else message[:MESSAGE]
