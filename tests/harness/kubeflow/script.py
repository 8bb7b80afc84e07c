"""The behaviour of applications and of the Spark operator towards them, set by a test before or while they run.

A `Script` describes one application's run; the defaults are a short run that succeeds and is reported correctly. `Scripts` selects the
script of each application by name, labels, annotations or arguments; the last matching rule wins. Faults of real Spark operators are fields
here and are acted out, not just written to the status: a second submission meets the name of the first pod, as in the real one.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

Json = dict[str, Any]


class Lie(StrEnum):
    """A false statement in the application's status; the pod's status is right in each case."""

    COMPLETED = "Completed"
    """The status is COMPLETED, however the driver ended."""
    NOT_FOUND = "NotFound"
    """The status is FAILED "driver pod not found" as soon as it was submitted, while the driver lives on."""
    SILENT = "Silent"
    """The status stays empty, without even SUBMITTED."""


class Moment(StrEnum):
    """Moments in the life of a driver pod."""

    PENDING = "Pending"
    RUNNING = "Running"
    ENDED = "Ended"
    """The driver has done its work, and the pod's status does not show it yet."""


@dataclass(frozen=True)
class Driver:
    """Arguments for a driver's code, which returns its exit code (None is 0), or raises."""

    application: Json
    """The SparkApplication as it was when the kubelet first saw the pod."""
    pod: Json
    environment: Mapping[str, str]
    """Environment of its container, with references expanded as by a kubelet."""
    stop: threading.Event
    """Set when the pod is being deleted. Code that ignores it would be killed in Kubernetes, and is a zombie here."""

    @property
    def name(self) -> str:
        name = self.pod["metadata"]["name"]
        assert isinstance(name, str)
        return name

    @property
    def uid(self) -> str:
        uid = self.pod["metadata"]["uid"]
        assert isinstance(uid, str)
        return uid


Code = Callable[[Driver], int | None]


@dataclass(frozen=True, kw_only=True)
class Script:
    # the driver
    run_seconds: float = 0.02
    """Duration of the driver without `code`."""
    exit_code: int = 0
    """Exit code of the driver without `code`."""
    code: Code | None = None
    """Run as the driver, in a thread of its own."""
    message: str = ""
    """The termination message."""

    # its pod
    queued_seconds: float = 0.0
    """Seconds for which no node takes the pod."""
    queued_reason: str = "Unschedulable"
    """Why, as its scheduler says it; empty: it says nothing."""
    pending_seconds: float = 0.0
    """Seconds between the pod and the start of its container."""
    pending_reason: str = "ContainerCreating"
    """Why the container waits meanwhile, as a kubelet says it."""
    unmounted: str = ""
    """Why a volume cannot be mounted meanwhile, as a kubelet's Event (FailedMount) says it; the pod's status does not."""
    vanishes: Moment | None = None
    """The pod is removed by force, as with a node that is lost and cleaned up; the driver's code is asked to stop."""
    cut_off: bool = False
    """Its kubelet is unreachable: a deleted pod stays Terminating, and its driver keeps running."""
    twin: bool = False
    """A second pod with the same labels and owner and another name, whose driver runs as well."""

    # the Spark operator
    submits: bool = True
    """False: it never submits, and the application keeps its state."""
    submit_seconds: float = 0.0
    """How long spark-submit takes; a write to the application meanwhile makes the Spark operator submit twice."""
    submissions: int = 1
    """2: it submits again after a success, which ends in FAILED "driver pod already exist" while the first driver lives."""
    submission_error: str = ""
    """spark-submit fails with it and makes no pod."""
    dies: bool = False
    """The Spark operator dies when the driver pod exists and the status does not show it yet; `restart_operator` starts it again."""
    lag_seconds: float = 0.0
    """Delay before it looks at the driver pod."""
    grace_seconds: float = 10.0
    """How long after a submission a driver pod may be missing; the real option is `--driver-pod-creation-grace-period`."""
    lie: Lie | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Script:
        """Reads JSON, for a fake in its own process; code cannot be sent."""
        made = cls(**document)
        return dataclasses.replace(
            made,
            lie=Lie(made.lie) if made.lie else None,
            vanishes=Moment(made.vanishes) if made.vanishes else None,
        )


@dataclass(frozen=True, kw_only=True)
class Rule:
    script: Script
    name: str = "*"
    """A pattern as for file names."""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    argument: str | None = None
    """One of the application's arguments."""

    def fits(self, application: Mapping[str, Any]) -> bool:
        metadata = application["metadata"]
        return (
            fnmatchcase(metadata["name"], self.name)
            and _within(self.labels, metadata.get("labels"))
            and _within(self.annotations, metadata.get("annotations"))
            and (self.argument is None or self.argument in (application.get("spec", {}).get("arguments") or ()))
        )


def _within(wanted: Mapping[str, str], found: Mapping[str, str] | None) -> bool:
    return all((found or {}).get(name) == value for name, value in wanted.items())


class Scripts:
    """Rules may be added while applications run; each step evaluates them anew, except the driver's own part, which is fixed at its
    start."""

    def __init__(self, usual: Script | None = None) -> None:
        self.usual = usual or Script()
        self._rules: tuple[Rule, ...] = ()

    def on(
        self,
        script: Script,
        *,
        name: str = "*",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        argument: str | None = None,
    ) -> None:
        """From now on, applications that match all given conditions have this script; it precedes all earlier rules."""
        rule = Rule(script=script, name=name, labels=labels or {}, annotations=annotations or {}, argument=argument)
        self._rules = (rule, *self._rules)

    def of(self, application: Mapping[str, Any] | None) -> Script:
        if application is None:
            return self.usual
        return next((rule.script for rule in self._rules if rule.fits(application)), self.usual)
