"""Converts a plain SparkApplication to the IdempotentJob that runs it once. Pure: documents in, a document and notes out.

What sparkonce does itself (retries, the lifetime of applications, suspension, the driver pod's name) moves to the corresponding fields;
what the API server wrote is dropped. Each change is reported in a note that begins with the field's path, because a conversion that
silently loses something is worse than none. Fields that cannot keep their meaning are refused.

The result is validated like any job. Its problems are reported with path and line in the *application*, the file that the user has.

Outputs are not guessed from a job's arguments: whether a job writes through sparkonce, only its author knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from sparkonce.errors import InvalidInput
from sparkonce.model import entrance
from sparkonce.model.application.deployers import DeployerMark, mark_of
from sparkonce.model.reserved import OURS, PER_ATTEMPT_LABELS, THEIRS, per_attempt
from sparkonce.model.spec import (
    API_VERSION,
    KIND,
    OUTPUT_KINDS,
    SUBMISSION_RETRIES_LIMIT,
    Backoff,
    kind_and_place,
    text_of,
)
from sparkonce.model.validation import InvalidJob, Loc, line_of, path_text

APPLICATION, SCHEDULED = "SparkApplication", "ScheduledSparkApplication"
GROUP, VERSION = "sparkoperator.k8s.io", "v1beta2"
CRON_NAME = 52
"""Characters of a CronJob's name: Kubernetes appends the tick for the names of its Jobs."""
OPERATION = "run"
"""Operation of a job that only has a name, which becomes the resource."""
ALWAYS = 3
"""Attempts instead of `restartPolicy: Always`, which never ends: the default of a job with outputs."""

OPAQUE = (
    "opaque: no --output was given, so it runs once and its result is remembered, but it is unknown whether an attempt that vanished took "
    "effect: it is then held for a person (spec.onUnknown); with outputs its effects would exist exactly once"
)
FOLLOWED = (
    "spec.bind: this very application is followed, and never stopped, repeated or removed by sparkonce: its restartPolicy and its "
    "timeToLiveSeconds stay its own; its outcome is the result of the key, also for the same job sent without bind"
)
WRITE = (
    "spec.outputs: the script must write them through sparkonce (`sparkonce.current().write(df, NAME)`); "
    "what it writes otherwise is not protected"
)

_MANAGED = {"kubectl.kubernetes.io/": "kubectl", THEIRS: "the Spark operator"}
"""Prefixes of labels and annotations, and who writes them."""
_KEPT_METADATA = ("name", "generateName", "namespace")
_MOVED_METADATA = ("labels", "annotations")
_HISTORY = ("successfulRunHistoryLimit", "failedRunHistoryLimit")
TICK, TICK_NAME = "SPARKONCE-TICK-TIME", "sparkonce-tick-name"
"""Placeholders for the time of a tick and the name of its job, in the job that a schedule sends."""
KEPT_OBJECTS = 7 * 86400
"""Seconds for which the object of a tick stays after its end: the Spark operator kept one or a few. Its key is remembered longer."""


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """Options of the command line."""

    operation: str | None = None
    resource: str | None = None
    key: str | None = None
    outputs: Mapping[str, str] = field(default_factory=dict)
    """Places by name: a path or URL of a slot log, or `KIND:PLACE`."""
    bind: bool = False
    """The job follows this application, as it was read from the API server."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When a job is sent, in the words of a CronJob."""

    name: str
    namespace: str
    cron: str
    time_zone: str | None
    suspend: bool


@dataclass(frozen=True, kw_only=True)
class Converted:
    name: str
    """Kind and name of the converted object."""
    document: Mapping[str, Any]
    notes: Sequence[str]
    """Changes and dropped fields; each note begins with the field's path in the source."""
    template: Loc
    """Location of the application's spec in the source."""
    dropped: Sequence[Loc]
    """Locations in the source that the new template does not have."""
    schedule: Schedule | None = None
    """Of a ScheduledSparkApplication: when the job, with `TICK` and `TICK_NAME` filled in, is to be sent."""


def is_application(document: object) -> bool:
    return isinstance(document, Mapping) and document.get("kind") in (APPLICATION, SCHEDULED)


def convert(
    document: Mapping[str, Any], options: ConvertOptions, *, source: str = "", lines: Mapping[Loc, int] | None = None
) -> Converted:
    """Converts one document. Raises: InvalidJob: names what cannot be converted, with paths in `document` and lines in `source`."""
    return _Conversion(document, options, source=source, lines=lines or {}).converted()


class _Conversion:
    def __init__(
        self, document: Mapping[str, Any], options: ConvertOptions, *, source: str, lines: Mapping[Loc, int]
    ) -> None:
        self._document, self._options, self._source, self._lines = document, options, source, lines
        self._notes: list[str] = []
        self._dropped: list[Loc] = []
        self._scheduled = document.get("kind") == SCHEDULED
        self._at: Loc = ("spec", "template") if self._scheduled else ("spec",)

    def converted(self) -> Converted:
        self._known()
        metadata, labelled = self._metadata()
        schedule = self._schedule(metadata) if self._scheduled else None
        given = self._map(self._at)
        told = len(self._notes)
        template, policies = dict(given), self._policies(given)
        if self._options.bind:
            del self._notes[told:]  # about retries and the like, which a followed application keeps
            policies = {"bind": self._bind()}
        for loc in self._dropped:
            _without(template, loc[len(self._at) :])
        if "status" in self._document:
            self._note(("status",), "dropped: it belongs to the application that ran")
        identity = self._identity(metadata)
        if schedule is not None:
            metadata, identity, policies = self._of_tick(metadata, identity, policies)
        spec: dict[str, Any] = {**identity, **policies}
        if self._options.outputs:
            spec["outputs"] = [{"name": name, **_kind(name, text)} for name, text in self._options.outputs.items()]
            self._notes.append(WRITE)
        elif self._options.bind:
            self._notes.append(FOLLOWED)
        else:
            self._notes.append(OPAQUE)
        kind = {"apiVersion": f"{GROUP}/{VERSION}", "kind": APPLICATION}
        spec["template"] = {**kind, **({"metadata": labelled} if labelled else {}), "spec": template}
        job = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
        self._valid(job)
        name = self._value(("metadata", "name")) or metadata.get("generateName")
        return Converted(
            name=f"{self._document['kind']} {name}",
            document=job,
            notes=[" ".join(note.split()) for note in self._notes],
            template=self._at,
            dropped=self._dropped,
            schedule=schedule,
        )

    # what it is

    def _known(self) -> None:
        version = self._document.get("apiVersion")
        if version != f"{GROUP}/{VERSION}":
            self._refuse(("apiVersion",), f"is {version}; only {GROUP}/{VERSION} can be converted")
        for loc in ((), ("metadata",), ("spec",), self._at):
            self._map(loc)
        labels = {**self._entries(("metadata", "labels")), **self._entries(("metadata", "annotations"))}
        if any(str(name).startswith(OURS) for name in labels):
            self._refuse(("metadata",), "was made by sparkonce for an IdempotentJob; take that one's own manifest")

    def _metadata(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Metadata of the job, and of its applications. Labels and annotations that a deployment tool reads stay on the job."""
        given = self._map(("metadata",))
        kept = {name: given[name] for name in _KEPT_METADATA if given.get(name)}
        if "name" not in kept and "generateName" not in kept:
            self._refuse(("metadata", "name"), "is required")
        moved: dict[str, Any] = {}
        for name in _MOVED_METADATA:
            entries = dict(self._entries(("metadata", name)))
            for each in list(entries):
                writer = next((by for prefix, by in _MANAGED.items() if str(each).startswith(prefix)), None)
                if writer is not None:
                    del entries[each]
                    self._note(("metadata", name, each), f"dropped: {writer} writes it")
                elif each in PER_ATTEMPT_LABELS:
                    del entries[each]
                    self._note(
                        ("metadata", name, each),
                        "dropped: it names an object for one application, and each attempt is one",
                    )
                elif (mark := mark_of(str(each))) is not None:
                    self._note(("metadata", name, each), self._of_deployer(mark, kept, name, each, entries.pop(each)))
            if entries:
                moved[name] = entries
                self._note(("metadata", name), "moved to spec.template.metadata: each application gets them")
        for name in given:
            if (
                name not in _KEPT_METADATA
                and name not in _MOVED_METADATA
                and not (self._options.bind and name == "uid")
            ):
                self._note(("metadata", name), "dropped: it belongs to the object that was read")
        return kept, moved

    def _of_deployer(self, mark: DeployerMark, kept: dict[str, Any], kind: str, name: str, value: object) -> str:
        """Leaves a tool's label or annotation on the job that takes the application's place in the tool's source; returns what to say."""
        if self._options.bind or self._scheduled:
            made = "this job is" if self._options.bind else "the jobs of a schedule are"
            return f"dropped: {mark.tool} reads it on what it has applied, and {made} not applied by it"
        kept.setdefault(kind, {})[name] = value
        return f"stays on the IdempotentJob, where {mark.tool} reads it; applications go without it"

    def _identity(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        options = self._options
        if options.key is not None:
            return {"idempotencyKey": options.key}
        resource = options.resource
        if resource is None:
            if "name" not in metadata:
                sentence = "makes a new name each time, so there is no fixed resource; give --resource or --key"
                self._refuse(("metadata", "generateName"), sentence)
            resource = str(metadata["name"])
        return {"operation": options.operation or OPERATION, "resource": resource}

    def _schedule(self, metadata: Mapping[str, Any]) -> Schedule:
        spec, name = self._map(("spec",)), metadata.get("name")
        if not isinstance(name, str) or len(name) > CRON_NAME:
            self._refuse(("metadata", "name"), f"is the CronJob's, too, so it has {CRON_NAME} characters at most")
        cron, zone = spec.get("schedule"), spec.get("timeZone")
        if not isinstance(cron, str) or not cron.strip():
            self._refuse(("spec", "schedule"), "is required: when the job is sent")
        if zone is not None and not isinstance(zone, str):
            self._refuse(("spec", "timeZone"), "must be the name of a time zone")
        self._note(
            ("spec", "schedule"),
            f"became that of CronJob {name}, which sends one job for each tick, with the tick in its key; the job's object is removed "
            f"{text_of(KEPT_OBJECTS)} after its end (spec.ttlSecondsAfterFinished), its key is remembered longer (spec.retention)",
        )
        if zone in (None, "", "Local"):
            zone = None
            said = "is not given, so the schedule is read in the time zone of Kubernetes' controller manager, not the Spark operator's"
            self._note(("spec", "timeZone"), said)
        else:
            self._note(("spec", "timeZone"), "became the CronJob's")
        policy = spec.get("concurrencyPolicy") or "Allow"
        if policy != "Allow":
            self._note(
                ("spec", "concurrencyPolicy"),
                f"{policy} is lost: each tick's job is one of its own, and may run beside the one before",
            )
        for each in _HISTORY:
            if each in spec:
                self._note(("spec", each), f"became spec.ttlSecondsAfterFinished: {KEPT_OBJECTS}")
        for each in spec:
            if each not in {"schedule", "template", "suspend", "timeZone", "concurrencyPolicy", *_HISTORY}:
                self._note(("spec", each), "dropped: it is not part of the application")
        if spec.get("suspend") is True:
            self._note(("spec", "suspend"), "became the CronJob's")
        if "namespace" not in metadata:
            said = "is not given, so the CronJob and all beside it name default: the binding of its service account must name one"
            self._note(("metadata", "namespace"), said)
        return Schedule(
            name=name,
            namespace=str(metadata.get("namespace", "default")),
            cron=cron,
            time_zone=zone,
            suspend=spec.get("suspend") is True,
        )

    def _of_tick(
        self, metadata: Mapping[str, Any], identity: Mapping[str, Any], policies: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Metadata, identity and policies of one tick's job."""
        ticked = "idempotencyKey" if "idempotencyKey" in identity else "resource"
        return (
            {**metadata, "name": TICK_NAME},
            {**identity, ticked: f"{identity[ticked]}/{TICK}"},
            {**policies, "ttlSecondsAfterFinished": KEPT_OBJECTS},
        )

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
        if given.get("suspend") is True:
            policies["suspend"] = True
            self._note((*self._at, "suspend"), "moved to spec.suspend of the IdempotentJob")
        if "suspend" in given:
            self._drop("suspend")
        if retry := self._retry(given):
            policies["retry"] = retry
        self._legacy(given)
        if "timeToLiveSeconds" in given:
            policies |= self._time_to_live(given["timeToLiveSeconds"])
        for loc, why in list(per_attempt(given)):
            self._drop(*(str(part) for part in loc), say=f"dropped: {why}")
        return policies

    def _retry(self, given: Mapping[str, Any]) -> dict[str, Any]:
        policy = given.get("restartPolicy")
        if "restartPolicy" in given:
            self._drop("restartPolicy")
        if policy is None:
            return self._never("is not given, which means Never, and")
        if not isinstance(policy, Mapping):
            self._refuse((*self._at, "restartPolicy"), "must be a map with a type")
        kind = policy.get("type") or "Never"
        if kind not in ("Never", "OnFailure", "Always"):
            self._refuse((*self._at, "restartPolicy", "type"), f"must be Never, OnFailure or Always, not {kind}")
        if kind == "Never":
            if policy.keys() - {"type"}:
                self._note((*self._at, "restartPolicy"), "dropped: Never uses none of its other fields")
            return self._never("Never")
        retries, interval = (self._number(policy, f"onFailure{part}") for part in ("Retries", "RetryInterval"))
        if kind == "Always":
            attempts = ALWAYS
            said = f"Always became spec.retry.maxAttempts: {ALWAYS}: only a failed attempt is repeated, and a job that has succeeded "
            said += "is run again by `sparkonce rerun` alone"
        else:
            attempts = 1 + (retries or 0)
            said = f"OnFailure became spec.retry.maxAttempts: {attempts}, the first one included"
        if attempts > 1 and not self._options.outputs:
            said += "; each attempt of an opaque job may write again, as it did before"
        if attempts > 1 and not interval:
            pause = Backoff()
            said += f"; between attempts it waits {text_of(pause.initial)}, doubling up to {text_of(pause.max)} (spec.retry.backoff)"
        self._note((*self._at, "restartPolicy"), said)
        retry: dict[str, Any] = {"maxAttempts": attempts, **self._submissions(policy)}
        if interval:
            retry["backoff"] = {"initial": text_of(interval)}
            if interval > Backoff().max:
                retry["backoff"]["max"] = text_of(interval)
            said = f"became spec.retry.backoff.initial: {text_of(interval)}, which doubles with each further attempt"
            said += (
                f" up to {text_of(max(interval, Backoff().max))}; the Spark operator adds it once more for each attempt"
            )
            self._note((*self._at, "restartPolicy", "onFailureRetryInterval"), said)
        return retry

    def _never(self, given: str) -> dict[str, Any]:
        said = f"{given} became spec.retry.maxAttempts: 1: an attempt that fails is not repeated"
        if self._options.outputs:
            said += "; with outputs further attempts are safe, so raise it if you want them"
        else:
            said += ", unless it provably never ran (spec.retry.submissionRetries)"
        self._note((*self._at, "restartPolicy"), said)
        return {"maxAttempts": 1}

    def _submissions(self, policy: Mapping[str, Any]) -> dict[str, Any]:
        """What becomes of a submission that fails, which the Spark operator counts apart."""
        retries, _ = (self._number(policy, f"onSubmissionFailure{part}") for part in ("Retries", "RetryInterval"))
        at = (*self._at, "restartPolicy")
        kept: dict[str, Any] = {}
        if retries is not None and not self._options.outputs:
            kept = {"submissionRetries": min(retries, SUBMISSION_RETRIES_LIMIT)}
            said = f"became spec.retry.submissionRetries: {kept['submissionRetries']}: attempts that provably never ran, beside maxAttempts"
            self._note((*at, "onSubmissionFailureRetries"), said)
        elif retries is not None:
            said = "dropped: submissions are not counted apart; one that fails ends its attempt, which counts for spec.retry.maxAttempts"
            self._note((*at, "onSubmissionFailureRetries"), said)
        if "onSubmissionFailureRetryInterval" in policy:
            said = "dropped: between all attempts it waits as spec.retry.backoff says"
            self._note((*at, "onSubmissionFailureRetryInterval"), said)
        return kept

    def _legacy(self, given: Mapping[str, Any]) -> None:
        for name in ("failureRetries", "retryInterval"):
            if name in given:
                self._drop(name, say="dropped: the Spark operator does not read it; attempts are counted by spec.retry")

    def _time_to_live(self, value: object) -> dict[str, Any]:
        loc = (*self._at, "timeToLiveSeconds")
        self._drop("timeToLiveSeconds")
        if value is None:
            return {}
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            self._refuse(loc, f"must be a number of seconds, not {value}")
        self._note(loc, "became spec.applicationTTL; the job's result is remembered longer (spec.retention)")
        return {"applicationTTL": {"succeeded": text_of(value), "failed": text_of(value)}}

    def _number(self, policy: Mapping[str, Any], name: str) -> int | None:
        value = policy.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            self._refuse((*self._at, "restartPolicy", name), f"must be a whole number, not {value}")
        return value

    # reading and reporting

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
        """Validates the job as it will be read from YAML. Raises: InvalidJob, with paths and lines of the source."""
        lines = {("spec", "template", "spec", *rest): line for rest, line in self._below(self._at)}
        try:
            entrance.check_template(entrance.admit(job, lines=lines), lines=lines)
        except InvalidJob as invalid:
            ours, theirs = "spec.template.spec", path_text(self._at)
            told = [
                (theirs + path.removeprefix(ours) if path.startswith(ours) else _option(path), message)
                for path, message in invalid.problems
            ]
            raise InvalidJob(told, source=self._source, lines=invalid.lines, more=invalid.more) from None

    def _below(self, at: Loc) -> Iterator[tuple[Loc, int]]:
        for loc, line in self._lines.items():
            if loc[: len(at)] == at:
                yield loc[len(at) :], line


def _kind(name: str, text: str) -> dict[str, Any]:
    """The field of an output that says what it is. Raises: InvalidInput: no place, or a kind that does not exist."""
    kind, place = kind_and_place(text)
    if kind and kind not in OUTPUT_KINDS:
        raise InvalidInput(
            f"--output {name}={text}: {kind} is not a kind of output; write slotLog:PATH, delta:PATH or iceberg:CATALOG.TABLE"
        )
    if kind != "iceberg":
        if not place:
            raise InvalidInput(f"--output {name}={text}: the path is missing; write {kind}:PATH")
        return {kind or "slotLog": {"path": place}}
    catalog, _, table = place.partition(".")
    if not (catalog and table):
        raise InvalidInput(f"--output {name}={text}: an Iceberg table has a catalog; write iceberg:CATALOG.TABLE")
    return {kind: {"catalog": catalog, "table": table}}


def _option(path: str) -> str:
    """Our own fields are named by their option: the file with their path does not exist yet."""
    options = {"idempotencyKey": "--key", "operation": "--operation", "resource": "--resource", "outputs": "--output"}
    found = next((option for name, option in options.items() if path.startswith(f"spec.{name}")), None)
    return f"{found} ({path})" if found else path


def _without(spec: dict[str, Any], loc: Loc) -> None:
    """Removes one field; copies the maps above it, so that the source is unchanged."""
    *above, last = loc
    here: dict[Any, Any] = spec
    for part in above:
        here[part] = dict(here[part])
        here = here[part]
    here.pop(last, None)
