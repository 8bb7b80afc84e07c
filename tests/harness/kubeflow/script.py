"""What an application shall do, and how the Spark operator shall behave towards it: said by a test, before or while it runs.

A `Script` describes one application's run, and every default is an honest short success. `Scripts` says which application has which:
by name, labels, annotations or arguments, the last rule that fits. Faults that real Spark operators have are fields here and are
played out, not written down: a second submission meets the name of the first pod, as theirs does.
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
    """What the application's status says against the truth. The pod is right in each case."""

    COMPLETED = "Completed"
    """COMPLETED, however the driver ended."""
    NOT_FOUND = "NotFound"
    """FAILED "driver pod not found" as soon as it was submitted, and the driver lives on."""
    SILENT = "Silent"
    """Nothing, not even SUBMITTED."""


class Moment(StrEnum):
    """Of a driver pod's life."""

    PENDING = "Pending"
    RUNNING = "Running"
    ENDED = "Ended"
    """The driver has done its work, and the pod's status does not say so yet."""


@dataclass(frozen=True)
class Driver:
    """What a driver's code is given; it returns its exit code (None is 0), or raises."""

    application: Json
    """The SparkApplication, as it was when the kubelet saw the pod first."""
    pod: Json
    environment: Mapping[str, str]
    """Of its container, references expanded as a kubelet expands them."""
    stop: threading.Event
    """Set when the pod is being deleted; code that ignores it is killed in Kubernetes, and is a zombie here."""

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
    """Without `code`: how long the driver runs."""
    exit_code: int = 0
    """Without `code`."""
    code: Code | None = None
    """Run as the driver, in a thread of its own."""
    message: str = ""
    """The termination message."""

    # its pod
    pending_seconds: float = 0.0
    """Between the pod and its container."""
    vanishes: Moment | None = None
    """The pod is removed by force, as by a node that is lost and cleaned away; the driver's code is told to stop."""
    cut_off: bool = False
    """Its kubelet hears nothing: a deleted pod stays Terminating, and its driver runs on."""
    twin: bool = False
    """A second pod with the same labels and owner and another name, whose driver runs as well."""

    # the Spark operator
    submits: bool = True
    """False: it never does, and the application stays as it is."""
    submit_seconds: float = 0.0
    """How long spark-submit takes; a write to the application meanwhile makes the Spark operator submit twice."""
    submissions: int = 1
    """2: it submits again after a success, which ends in FAILED "driver pod already exist" while the first driver lives."""
    submission_error: str = ""
    """spark-submit fails with it and makes no pod."""
    dies: bool = False
    """The Spark operator dies when the driver pod exists and before it said so; `restart_operator` starts it again."""
    lag_seconds: float = 0.0
    """It looks at the driver pod that much later."""
    grace_seconds: float = 10.0
    """How long after a submission a driver pod may be missing: theirs is `--driver-pod-creation-grace-period`."""
    lie: Lie | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Script:
        """From JSON, for a fake in a process of its own; code does not travel."""
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
    """A pattern, as file names have."""
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
    """Rules may be added while applications run; each step asks anew, but for the driver's own part, which is fixed at its start."""

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
        """From now on, applications that fit all that is given do this; it goes before all earlier rules."""
        rule = Rule(script=script, name=name, labels=labels or {}, annotations=annotations or {}, argument=argument)
        self._rules = (rule, *self._rules)

    def of(self, application: Mapping[str, Any] | None) -> Script:
        if application is None:
            return self.usual
        return next((rule.script for rule in self._rules if rule.fits(application)), self.usual)
