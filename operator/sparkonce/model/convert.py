"""From a plain SparkApplication to the IdempotentJob that runs it once. Pure: documents in, a document and sentences out.

What sparkonce does itself (retries, the lifetime of applications, suspension, the driver pod's name) moves to the fields that say so;
what the API server wrote is dropped. Each of these is told in a sentence that begins with the field's path, because a conversion that
loses something silently is worse than none. What would not mean the same is refused.

The result is validated as any job is. What the check then finds is told with the path and the line of the *application*, since that is
the file that a person has.

Guessing outputs from a job's arguments was not tried: a job writes through sparkonce or it does not, and only its author knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from sparkonce.model.duration import text_of
from sparkonce.model.manifest import InvalidJob
from sparkonce.model.policy import Backoff
from sparkonce.model.problems import Loc, line_of, path_text
from sparkonce.model.spark_application import DRIVER_POD_NAME
from sparkonce.model.spec import API_VERSION, KIND, IdempotentJob

APPLICATION, SCHEDULED = "SparkApplication", "ScheduledSparkApplication"
GROUP, VERSION = "sparkoperator.k8s.io", "v1beta2"
OPERATION = "run"
"""Of a job that only has a name: the resource tells which."""
ALWAYS = 3
"""Attempts in place of `restartPolicy: Always`, which has no end: as many as a job with outputs gets."""

OPAQUE = (
    "opaque: no --output was given, so it runs once and its result is remembered, but whether an attempt that vanished took effect "
    "nobody can tell: it is then held for a person (spec.onUnknown); with outputs its effects would exist exactly once"
)
FOLLOWED = (
    "spec.bind: this very application is followed, and never stopped, repeated or removed by sparkonce: its restartPolicy and its "
    "timeToLiveSeconds stay its own; what it comes to is the result of the key, also for the same job when it comes without bind"
)
WRITE = (
    "spec.outputs: the script must write them through sparkonce (`sparkonce.current().write(df, NAME)`); "
    "what it writes otherwise is not protected"
)

_OURS = "sparkonce.dev/"
_MANAGED_ANNOTATIONS = "kubectl.kubernetes.io/"
_KEPT_METADATA = ("name", "generateName", "namespace")
_MOVED_METADATA = ("labels", "annotations")
_SCHEDULE = ("concurrencyPolicy", "successfulRunHistoryLimit", "failedRunHistoryLimit", "timeZone")


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What the command line says beside the application."""

    operation: str | None = None
    resource: str | None = None
    key: str | None = None
    outputs: Mapping[str, str] = field(default_factory=dict)
    bind: bool = False
    """The job follows this very application, as it was read from the API server."""


@dataclass(frozen=True, kw_only=True)
class Converted:
    name: str
    """Kind and name of what was converted."""
    document: Mapping[str, Any]
    notes: Sequence[str]
    """What was changed or dropped; each begins with the field's path in the source."""
    template: Loc
    """Where the application's spec stands in the source."""
    dropped: Sequence[Loc]
    """Places in the source that are not in the new template."""


def is_application(document: object) -> bool:
    return isinstance(document, Mapping) and document.get("kind") in {APPLICATION, SCHEDULED}


def convert(
    document: Mapping[str, Any], wish: Wish, *, source: str = "", lines: Mapping[Loc, int] | None = None
) -> Converted:
    """InvalidJob: what cannot be converted, each with its path in `document` and its line in `source`."""
    return _Conversion(document, wish, source=source, lines=lines or {}).converted()


class _Conversion:
    def __init__(self, document: Mapping[str, Any], wish: Wish, *, source: str, lines: Mapping[Loc, int]) -> None:
        self._document, self._wish, self._source, self._lines = document, wish, source, lines
        self._notes: list[str] = []
        self._dropped: list[Loc] = []
        self._scheduled = document.get("kind") == SCHEDULED
        self._at: Loc = ("spec", "template") if self._scheduled else ("spec",)

    def converted(self) -> Converted:
        self._known()
        metadata, labelled = self._metadata()
        if self._scheduled:
            self._schedule()
        given = self._map(self._at)
        told = len(self._notes)
        template, policies = dict(given), self._policies(given)
        if self._wish.bind:
            del self._notes[told:]  # of what sparkonce would do itself
            policies = {"bind": self._bind()}
        for loc in self._dropped:
            _without(template, loc[len(self._at) :])
        if "status" in self._document:
            self._note(("status",), "dropped: it belongs to the application that ran")
        spec: dict[str, Any] = {**self._identity(metadata), **policies}
        if self._wish.outputs:
            spec["outputs"] = [{"name": name, "slotLog": {"path": path}} for name, path in self._wish.outputs.items()]
            self._notes.append(WRITE)
        elif self._wish.bind:
            self._notes.append(FOLLOWED)
        else:
            self._notes.append(OPAQUE)
        kind = {"apiVersion": f"{GROUP}/{VERSION}", "kind": APPLICATION}
        spec["template"] = {**kind, **({"metadata": labelled} if labelled else {}), "spec": template}
        job = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
        self._valid(job)
        name = metadata.get("name") or metadata.get("generateName")
        return Converted(
            name=f"{self._document['kind']} {name}",
            document=job,
            notes=[" ".join(note.split()) for note in self._notes],
            template=self._at,
            dropped=self._dropped,
        )

    # what it is

    def _known(self) -> None:
        version = self._document.get("apiVersion")
        if version != f"{GROUP}/{VERSION}":
            self._refuse(("apiVersion",), f"is {version}; only {GROUP}/{VERSION} can be converted")
        for loc in ((), ("metadata",), ("spec",), self._at):
            self._map(loc)
        labels = {**self._entries(("metadata", "labels")), **self._entries(("metadata", "annotations"))}
        if any(str(name).startswith(_OURS) for name in labels):
            self._refuse(("metadata",), "was made by sparkonce for an IdempotentJob; take that one's own manifest")

    def _metadata(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Of the job, and of its applications."""
        given = self._map(("metadata",))
        kept = {name: given[name] for name in _KEPT_METADATA if given.get(name)}
        if "name" not in kept and "generateName" not in kept:
            self._refuse(("metadata", "name"), "is required")
        moved: dict[str, Any] = {}
        for name in _MOVED_METADATA:
            entries = dict(self._entries(("metadata", name)))
            for managed in [each for each in entries if str(each).startswith(_MANAGED_ANNOTATIONS)]:
                del entries[managed]
                self._note(("metadata", name, managed), "dropped: kubectl writes it")
            if entries:
                moved[name] = entries
                self._note(("metadata", name), "moved to spec.template.metadata: each application gets them")
        for name in given:
            if name not in _KEPT_METADATA and name not in _MOVED_METADATA and not (self._wish.bind and name == "uid"):
                self._note(("metadata", name), "dropped: it belongs to the object that was read")
        return kept, moved

    def _identity(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        wish = self._wish
        if wish.key is not None:
            return {"idempotencyKey": wish.key}
        resource = wish.resource
        if resource is None:
            if "name" not in metadata:
                sentence = (
                    "makes a new name each time, so there is nothing that stays the same; say --resource or --key"
                )
                self._refuse(("metadata", "generateName"), sentence)
            resource = str(metadata["name"])
        return {"operation": wish.operation or OPERATION, "resource": resource}

    def _schedule(self) -> None:
        spec = self._map(("spec",))
        said = f"`{spec.get('schedule')}` is lost: an IdempotentJob runs once for its key; send one for each tick, "
        self._note(("spec", "schedule"), said + "with the tick in its resource or key")
        for name in spec:
            if name in _SCHEDULE:
                self._note(("spec", name), "dropped with the schedule")
            elif name not in {"schedule", "template", "suspend"}:
                self._note(("spec", name), "dropped: it is no part of the application")

    def _bind(self) -> dict[str, str]:
        if self._scheduled:
            self._refuse(("kind",), f"is {SCHEDULED}; bind follows one application, so read one that it has made")
        names = {name: self._value(("metadata", name)) for name in ("name", "uid")}
        for name, value in names.items():
            if not isinstance(value, str) or not value:
                sentence = "is missing; bind reads what `kubectl get sparkapplication NAME -o yaml` prints"
                self._refuse(("metadata", name), sentence)
        if self._value((*self._at, "restartPolicy", "type")) == "Always":
            self._refuse((*self._at, "restartPolicy", "type"), "is Always, so it never ends and has no result")
        return {"application": names["name"], "uid": names["uid"]}

    # what sparkonce does itself

    def _policies(self, given: Mapping[str, Any]) -> dict[str, Any]:
        policies: dict[str, Any] = {}
        suspended = [loc for loc in (("spec", "suspend"), (*self._at, "suspend")) if self._value(loc) is True]
        if suspended:
            policies["suspend"] = True
            self._note(suspended[0], "moved to spec.suspend of the IdempotentJob")
        if "suspend" in given:
            self._drop("suspend")
        if retry := self._retry(given):
            policies["retry"] = retry
        self._legacy(given)
        if "timeToLiveSeconds" in given:
            policies |= self._time_to_live(given["timeToLiveSeconds"])
        driver = given.get("driver")
        if isinstance(driver, Mapping) and "podName" in driver:
            self._drop("driver", "podName", say="dropped: each attempt names its own driver pod")
        conf = given.get("sparkConf")
        if isinstance(conf, Mapping) and DRIVER_POD_NAME in conf:
            self._drop("sparkConf", DRIVER_POD_NAME, say="dropped: each attempt names its own driver pod")
        return policies

    def _retry(self, given: Mapping[str, Any]) -> dict[str, Any]:
        policy = given.get("restartPolicy")
        if policy is None:
            return {}
        if not isinstance(policy, Mapping):
            self._refuse((*self._at, "restartPolicy"), "must be a map with a type")
        kind = policy.get("type") or "Never"
        if kind not in {"Never", "OnFailure", "Always"}:
            self._refuse((*self._at, "restartPolicy", "type"), f"must be Never, OnFailure or Always, not {kind}")
        self._drop("restartPolicy")
        if kind == "Never":
            if policy.keys() - {"type"}:
                self._note((*self._at, "restartPolicy"), "dropped: Never uses none of its other fields")
            return {}
        retries, interval = (self._number(policy, f"onFailure{part}") for part in ("Retries", "RetryInterval"))
        if kind == "Always":
            attempts = ALWAYS
            said = f"Always became spec.retry.maxAttempts: {ALWAYS}: only a failed attempt is repeated, and a job that has succeeded "
            said += "is run again by `sparkonce rerun` alone"
        else:
            attempts = 1 + (retries or 0)
            said = f"OnFailure became spec.retry.maxAttempts: {attempts}, the first one included"
        if attempts > 1 and not self._wish.outputs:
            said += "; each attempt of an opaque job may write again, as it did before"
        self._note((*self._at, "restartPolicy"), said)
        for name in ("onSubmissionFailureRetries", "onSubmissionFailureRetryInterval"):
            if policy.get(name) is not None:
                self._note(
                    (*self._at, "restartPolicy", name), "dropped: a failed submission is an attempt as any other"
                )
        retry: dict[str, Any] = {"maxAttempts": attempts}
        if interval:
            retry["backoff"] = {"initial": text_of(interval)}
            if interval > Backoff().max:
                retry["backoff"]["max"] = text_of(interval)
            said = f"became spec.retry.backoff.initial: {text_of(interval)}, which doubles with each further attempt"
            self._note((*self._at, "restartPolicy", "onFailureRetryInterval"), said)
        return retry

    def _legacy(self, given: Mapping[str, Any]) -> None:
        for name in ("failureRetries", "retryInterval"):
            if name in given:
                self._drop(name, say="dropped: attempts are counted by spec.retry")

    def _time_to_live(self, value: object) -> dict[str, Any]:
        loc = (*self._at, "timeToLiveSeconds")
        self._drop("timeToLiveSeconds")
        if value is None:
            return {}
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            self._refuse(loc, f"must be a number of seconds, not {value}")
        self._note(loc, "became spec.applicationTTL; what the job came to is remembered longer (spec.retention)")
        return {"applicationTTL": {"succeeded": text_of(value), "failed": text_of(value)}}

    def _number(self, policy: Mapping[str, Any], name: str) -> int | None:
        value = policy.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            self._refuse((*self._at, "restartPolicy", name), f"must be a whole number, not {value}")
        return value

    # reading and telling

    def _value(self, loc: Loc) -> Any:
        value: Any = self._document
        for part in loc:
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def _map(self, loc: Loc) -> Mapping[str, Any]:
        value = self._value(loc)
        if not isinstance(value, Mapping):
            self._refuse(loc, "is required, and must be a map of fields")
        return value

    def _entries(self, loc: Loc) -> Mapping[str, Any]:
        return {} if self._value(loc) is None else self._map(loc)

    def _note(self, loc: Loc, sentence: str) -> None:
        self._notes.append(f"{path_text(loc)}: {sentence}")

    def _drop(self, *parts: str, say: str = "") -> None:
        loc: Loc = (*self._at, *parts)
        if say:
            self._note(loc, say)
        siblings = self._value(loc[:-1])
        self._dropped.append(loc if len(parts) == 1 or len(siblings) > 1 else loc[:-1])

    def _refuse(self, loc: Loc, sentence: str) -> NoReturn:
        raise InvalidJob([(path_text(loc), sentence)], source=self._source, lines=[line_of(loc, self._lines)])

    def _valid(self, job: Mapping[str, Any]) -> None:
        """Also as it will be read from YAML. InvalidJob in terms of the source."""
        lines = {("spec", "template", "spec", *rest): line for rest, line in self._below(self._at)}
        try:
            IdempotentJob.of(job, lines=lines)
        except InvalidJob as invalid:
            ours, theirs = "spec.template.spec", path_text(self._at)
            told = [
                (theirs + path.removeprefix(ours) if path.startswith(ours) else _option(path), message)
                for path, message in invalid.problems
            ]
            raise InvalidJob(told, source=self._source, lines=invalid.lines) from None

    def _below(self, at: Loc) -> Iterator[tuple[Loc, int]]:
        for loc, line in self._lines.items():
            if loc[: len(at)] == at:
                yield loc[len(at) :], line


def _option(path: str) -> str:
    """Of our own fields the command line's name says more than the path in a file that is not there yet."""
    options = {"idempotencyKey": "--key", "operation": "--operation", "resource": "--resource", "outputs": "--output"}
    found = next((option for name, option in options.items() if path.startswith(f"spec.{name}")), None)
    return f"{found} ({path})" if found else path


def _without(spec: dict[str, Any], loc: Loc) -> None:
    """Takes one field out, copying the maps on the way: the source stays as it is."""
    *above, last = loc
    here: dict[Any, Any] = spec
    for part in above:
        here[part] = dict(here[part])
        here = here[part]
    here.pop(last, None)
