"""The typed IdempotentJob resource: the one source of the CRD, of the fingerprint and of what local mode reads. Pure.

Refuses what could not be honoured exactly: unknown fields, two kinds in one output, a revision that an output's location does not
contain, a restart policy inside the template. A default that depends on other fields is not filled in: the field stays None, and a
property returns the effective value (`spec.max_attempts`), so that "not given" and "given as the default" stay distinguishable until the
fingerprint equates them.

The template stays free JSON: it belongs to the Spark operator's API, which changes independently. What must be known about it (field
classes, checks) is registered per kind in `model.fields`.

Each output has exactly one kind, without a default and without a fallback: a job that declares Delta never writes a slot log.
`{revision}` in a location stands for the job's revision, so that two revisions write beside each other.

Policies (duplicates, unknown outcomes, retries, retention) are not part of a job's identity: two requests that differ only there are the
same job. They never enter the fingerprint, and the leader's policies rule.

Durations are written as in Kubernetes (`90s`, `1h30m`, `500ms`), plus days (`30d`), and are seconds as a float in Python. A bare number is
refused: `30` could mean seconds or days. ISO 8601 durations are not accepted: the neighbouring fields and kubectl users use Go's format.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    StrictBool,
    StrictInt,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from sparkonce.model.application import script_errors
from sparkonce.model.fields import UnknownTemplateKind, field_classes
from sparkonce.model.validation import Loc, invalid_job, refuse


class ResourceModel(BaseModel):
    """Base model: frozen, unknown fields forbidden, camelCase aliases. A field's docstring is its description in the CRD
    (`kubectl explain`)."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, given: Any) -> Any:
        """Drops null fields: a bare `labels:` is null in YAML, which the API server treats as not given."""
        return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given


REVISION = "{revision}"
NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
NAME_LENGTH = 40  # it is part of sink keys, and of Delta application ids

Location = Annotated[str, Field(min_length=1, max_length=1024)]
ColumnName = Annotated[str, Field(min_length=1, max_length=255)]


class OnRerun(StrEnum):
    REPLACE = "Replace"
    APPEND = "Append"


class WriteMode(StrEnum):
    """What a commit does to the rows that are in the table."""

    APPEND = "Append"
    """Keeps them."""
    OVERWRITE = "Overwrite"
    """Replaces all of them."""
    OVERWRITE_PARTITIONS = "OverwritePartitions"
    """Replaces those of the partitions that it writes rows to."""
    MERGE = "Merge"
    """Replaces those whose key (`Output.on`) its rows have, and keeps the others."""


class SlotLog(ResourceModel):
    """Parquet files that become visible by a create-once slot; read with `sparkonce.read`."""

    path: Location
    """Folder or URL of the table."""


class Delta(ResourceModel):
    """A Delta table."""

    path: Location
    """Folder or URL of the table."""


class Iceberg(ResourceModel):
    """An Iceberg table."""

    catalog: Location
    """Name of the catalog, as Spark knows it."""
    table: Location
    """Name of the table with its namespace, `sales.orders`."""


class Expect(ResourceModel):
    """What a commit must fulfil; otherwise nothing is committed."""

    min_rows: Annotated[StrictInt, Field(ge=0)] = 0
    """Fewer rows are an error."""
    columns: Annotated[tuple[ColumnName, ...], Field(max_length=256)] = ()
    """Columns that must be there; others may."""


class Output(ResourceModel):
    name: Annotated[str, Field(min_length=1, max_length=NAME_LENGTH, json_schema_extra={"pattern": NAME_PATTERN})]
    """What the job calls it: `job.write(df, "orders")`."""
    slot_log: SlotLog | None = None
    """Parquet files behind create-once slots."""
    delta: Delta | None = None
    """A Delta table."""
    iceberg: Iceberg | None = None
    """An Iceberg table."""
    mode: WriteMode | None = None
    """What a commit does to the rows that are there: keeps them (Append), replaces all (Overwrite), replaces those of the partitions
    that it writes to (OverwritePartitions), or replaces those with the same values in the columns `on` (Merge). Without it the job's code
    may choose, and appends if it does not."""
    # Without a default in the CRD, as capture below.
    on: Annotated[tuple[ColumnName, ...], Field(min_length=1, max_length=16)] | None = None
    """Columns that identify a row, for mode Merge: a row that is there with the same values, NULL included, is replaced. Delta and Iceberg
    tables only."""
    on_rerun: OnRerun = OnRerun.REPLACE
    """What readers see after a rerun: the newest generation alone, or all of them."""
    expect: Expect = Expect()
    """What a commit must fulfil."""
    # Without a default in the CRD: the API server would add it to every object, and operators of earlier releases refuse unknown fields.
    capture: StrictBool | None = None
    """Captures a script: sparkonce makes each of the script's own writes to this table once. For Python scripts that do not use
    sparkonce."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = [kind for kind in (self.slot_log, self.delta, self.iceberg) if kind is not None]
        if len(kinds) != 1:
            found = "none is given" if not kinds else f"{len(kinds)} are given"
            refuse("Output", [((), f"must have exactly one of slotLog, delta and iceberg; {found}")])
        if self.capture or self.on is not None or self.mode not in (None, WriteMode.APPEND):
            self._refuse_contradictions()
        return self

    def _refuse_contradictions(self) -> None:
        """Fields beside which the output can neither be captured nor overwritten."""
        problems: list[tuple[Loc, str]] = []
        if self.capture and self.mode is not None:
            problems.append((("mode",), "must be absent beside capture: the script's own writes say what they do"))
        elif self.mode is WriteMode.MERGE or self.on is not None:
            problems += self._problems_of_merge()
        elif self.mode not in (None, WriteMode.APPEND) and self.on_rerun is not OnRerun.REPLACE:
            problems.append((("onRerun",), f"must be Replace, or absent, beside mode {self.mode}"))
        if self.capture and self.slot_log is None and self.expect != Expect():
            kind = "a delta" if self.delta is not None else "an iceberg"
            sentence = f"must be absent beside capture of {kind} table: Spark commits rows before they could be checked"
            problems.append((("expect",), sentence))
        if problems:
            refuse("Output", problems)

    def _problems_of_merge(self) -> list[tuple[Loc, str]]:
        problems: list[tuple[Loc, str]] = []
        if self.mode is not WriteMode.MERGE:
            problems.append((("on",), "must be absent beside any mode but Merge"))
        elif self.on is None:
            problems.append((("on",), "must name the columns that identify a row, since the mode is Merge"))
        elif len({name.lower() for name in self.on}) < len(self.on):
            problems.append((("on",), "must name each column once"))
        if self.mode is WriteMode.MERGE and self.slot_log is not None:
            problems.append((("mode",), "must not be Merge for a slotLog; declare a delta or iceberg output"))
        if self.mode is WriteMode.MERGE and self.expect != Expect():
            problems.append(
                (("expect",), "must be absent beside mode Merge: Spark commits rows before they could be checked")
            )
        return problems

    @property
    def kind(self) -> str:
        """The name of the field that is given: slotLog, delta or iceberg."""
        if self.slot_log is not None:
            return "slotLog"
        return "delta" if self.delta is not None else "iceberg"

    @property
    def location(self) -> str:
        """The path, or catalog and table as one text; unique within the kind."""
        if self.iceberg is not None:
            return f"{self.iceberg.catalog}.{self.iceberg.table}"
        place = self.slot_log or self.delta
        return place.path if place is not None else ""

    @property
    def location_field(self) -> Loc:
        """Path of the field that holds the location, below the output."""
        return ("iceberg", "table") if self.iceberg is not None else (self.kind, "path")

    def with_revision(self, revision: str) -> Self:
        """The same output with `{revision}` filled in."""
        change: dict[str, object] = {}
        if self.iceberg is not None:
            catalog, table = (text.replace(REVISION, revision) for text in (self.iceberg.catalog, self.iceberg.table))
            change["iceberg"] = self.iceberg.model_copy(update={"catalog": catalog, "table": table})
        else:
            change = self._moved(self.location.replace(REVISION, revision))
        return self.model_copy(update=change)

    def at(self, path: str) -> Self:
        """The same output in another folder. Raises: ValueError: an Iceberg table, which is named by a catalog and not by a folder."""
        if self.iceberg is not None:
            raise ValueError("is an Iceberg table, which a folder cannot stand for")
        return self.model_copy(update=self._moved(path))

    def _moved(self, path: str) -> dict[str, object]:
        if self.slot_log is not None:
            return {"slot_log": self.slot_log.model_copy(update={"path": path})}
        return {"delta": self.delta.model_copy(update={"path": path})} if self.delta is not None else {}


OUTPUT_KINDS = ("slotLog", "delta", "iceberg")
_KIND = re.compile(r"([A-Za-z][A-Za-z0-9_+.-]*):(?!//)(.*)", re.DOTALL)


def kind_and_place(text: str) -> tuple[str, str]:
    """Splits `delta:s3a://lake/orders` as written on a command line. The kind is empty where none is given, and may be one that does not
    exist; the scheme of a URL is not taken for a kind."""
    found = _KIND.fullmatch(text)
    return (found[1], found[2]) if found else ("", text)


PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$"
_MAX_LENGTH = 32
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse(text: str) -> float:
    """Parses a duration into seconds. Raises: ValueError: not a duration."""
    if len(text) > _MAX_LENGTH or not re.fullmatch(PATTERN.strip("^$"), text, re.ASCII):
        raise ValueError(f"{text[:_MAX_LENGTH]!r} is not a duration; write it as 90s, 5m, 1h30m or 30d")
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))


def text_of(seconds: float) -> str:
    """Writes seconds in the largest unit that divides them; `parse` reads them back to the millisecond."""
    milliseconds = round(seconds * 1000)
    for unit in ("d", "h", "m", "s"):
        size = round(_SECONDS[unit] * 1000)
        if milliseconds % size == 0 and (milliseconds or unit == "s"):
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


def _read(value: object) -> float:
    if not isinstance(value, str):
        raise PydanticCustomError("sparkonce", "{sentence}", {"sentence": "must be a duration such as 90s, 5m or 30d"})
    try:
        return parse(value)
    except ValueError as refused:
        raise PydanticCustomError("sparkonce", "{sentence}", {"sentence": str(refused)}) from None


Duration = Annotated[
    float,
    BeforeValidator(_read),
    PlainSerializer(text_of, return_type=str),
    WithJsonSchema({"type": "string", "pattern": PATTERN, "maxLength": _MAX_LENGTH}),
]
"""Seconds in Python; text such as `5m` in YAML and JSON."""


HOUR = 3600.0
DAY = 24 * HOUR


class OnDuplicate(StrEnum):
    ATTACH = "Attach"
    REJECT = "Reject"


class OnMismatch(StrEnum):
    REJECT = "Reject"
    SUPERSEDE = "Supersede"
    REJECT_ALWAYS = "RejectAlways"


class OnFinalized(StrEnum):
    REPLAY = "Replay"
    RERUN_IF_FAILED = "RerunIfFailed"


class OnResultChanged(StrEnum):
    REPLAY = "Replay"
    GONE = "Gone"


class OnUnknown(StrEnum):
    HOLD = "Hold"
    RETRY = "Retry"
    FAIL = "Fail"


class OnDelete(StrEnum):
    STOP = "Stop"
    DETACH = "Detach"


class Backoff(ResourceModel):
    initial: Duration = 10.0
    """Wait before the second attempt; it doubles, with jitter, for each further one."""
    max: Duration = 300.0
    """The longest wait between two attempts."""

    @model_validator(mode="after")
    def _ordered(self) -> Backoff:
        if self.initial > self.max:
            refuse("Backoff", [(("initial",), "must not be longer than spec.retry.backoff.max")])
        return self


SUBMISSION_RETRIES_LIMIT = 1000
ErrorName = Annotated[str, Field(min_length=1, max_length=128, json_schema_extra={"pattern": script_errors.PATTERN})]


class Retry(ResourceModel):
    max_attempts: Annotated[StrictInt, Field(ge=1, le=1000)] | None = None
    """Attempts that count within one generation: 3 where outputs are declared, 1 where the job is opaque."""
    submission_retries: Annotated[StrictInt, Field(ge=0, le=SUBMISSION_RETRIES_LIMIT)] | None = None
    """Attempts that are repeated beside maxAttempts because they provably never ran (a failed submission, a pod whose containers never
    started), in a job without outputs: 3. With outputs such an attempt counts like any other."""
    backoff: Backoff = Backoff()
    """How long to wait between attempts."""
    retry_on: Annotated[tuple[ErrorName, ...], Field(max_length=32)] = ()
    """Errors of the script that are repeated although they end a job with outputs after its first attempt: classes (`ImportError`,
    `AnalysisException`) and Spark's error conditions (`PATH_NOT_FOUND`). All other errors are repeated without being named."""

    @model_validator(mode="after")
    def _ends_a_job(self) -> Retry:
        named = [(("retryOn", index), script_errors.problem_of(name)) for index, name in enumerate(self.retry_on)]
        if problems := [(loc, problem) for loc, problem in named if problem]:
            refuse("Retry", problems)
        return self


class Streaming(ResourceModel):
    """What the job's streams may do (`job.stream`)."""

    restart: StrictBool = False
    """Lets a new checkpoint begin beside rows of an earlier stream of the same source, which the table then holds twice. Without it such a
    stream is refused."""


class Undeclared(StrEnum):
    REFUSE = "Refuse"
    WARN = "Warn"


class Capture(ResourceModel):
    """What a captured script may do."""

    undeclared: Undeclared = Undeclared.REFUSE
    """A write to a place that no output declares ends the job before it begins (Refuse), or passes and is named in the result (Warn): it is
    made as often as there are attempts."""


class Retention(ResourceModel):
    """How long a finalized record is remembered: after that the same key is a new job."""

    succeeded: Duration = 30 * DAY
    """From the moment it succeeded."""
    failed: Duration = 7 * DAY
    """From the moment it failed or was cancelled."""


class ApplicationTTL(ResourceModel):
    """How long the Spark application of a finalized job stays, for its logs and its page."""

    succeeded: Duration = HOUR
    """After it succeeded."""
    failed: Duration = 24 * HOUR
    """After it failed or was cancelled."""


API_VERSION = "sparkonce.dev/v1alpha1"
KIND = "IdempotentJob"
DEFAULT_REVISION = "1"
HEARTBEAT_TIMEOUT = 120  # seconds; a driver beats several times a minute

VISIBLE_ASCII = r"^[!-~]+$"
REVISION_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"  # it is put into paths: no slash, and never `..`
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")

Seconds = Annotated[StrictInt, Field(ge=1, le=31_536_000)]
Identity = Annotated[str, Field(min_length=1, max_length=255, json_schema_extra={"pattern": VISIBLE_ASCII})]


CONF_NAME_PATTERN = r"^spark(\.[A-Za-z0-9_-]+)+$"
"""A whole name of a Spark setting: no pattern, which could ignore what the job is."""
ConfName = Annotated[str, Field(min_length=1, max_length=255, json_schema_extra={"pattern": CONF_NAME_PATTERN})]


class KeyFrom(StrEnum):
    """Contents that may be made part of a derived key."""

    APPLICATION_FILE = "ApplicationFile"
    IMAGE = "Image"


class TemplateMetadata(ResourceModel):
    """Metadata of each application, without a name: sparkonce names one application per attempt."""

    labels: dict[str, str] = Field(default_factory=dict)
    """Added to each application; never part of what the job is."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Added to each application; never part of what the job is."""


class Template(ResourceModel):
    api_version: Annotated[str, Field(min_length=1, max_length=253)]
    """Of the application: `sparkoperator.k8s.io/v1beta2`."""
    kind: Annotated[str, Field(min_length=1, max_length=63)]
    """Of the application: `SparkApplication`."""
    metadata: TemplateMetadata = TemplateMetadata()
    """Labels and annotations of each application."""
    spec: dict[str, JsonValue]
    """The application's own spec, as its operator documents it."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        try:
            classes = field_classes(self.api_version, self.kind)
        except UnknownTemplateKind as unknown:
            refuse("Template", [(("kind",), str(unknown))])
        if problems := [(("spec", *loc), sentence) for loc, sentence in classes.check(self.spec)]:
            refuse("Template", problems)
        return self


class OnLate(StrEnum):
    FAIL = "Fail"
    SKIP = "Skip"
    ALLOW = "Allow"


POSITION_PATTERN = r"^([0-9]{1,15}|[0-9]{4}-[0-9]{2}(-[0-9]{2}(T[0-9]{2}(:[0-9]{2}(:[0-9]{2})?)?Z?)?)?)$"


class Series(ResourceModel):
    """Orders the keys that write one table, so that a late run of yesterday does not replace today."""

    name: Annotated[str, Field(min_length=1, max_length=63, json_schema_extra={"pattern": NAME_PATTERN})]
    """Keys of the same name, in the same table, are one series."""
    position: Annotated[str, Field(min_length=1, max_length=20, json_schema_extra={"pattern": POSITION_PATTERN})]
    """Place of this key: a whole number, or a month, day or time in UTC (`2024-05`, `2024-05-01`, `2024-05-01T06:00Z`). Keys of one series
    use one of these forms."""
    on_late: OnLate = OnLate.FAIL
    """If a key of a later position has committed: commit nothing and fail (Fail), succeed without rows (Skip), or commit nevertheless, as a
    backfill does (Allow)."""

    @model_validator(mode="after")
    def _written_as_it_is_read(self) -> Self:
        if not re.fullmatch(NAME_PATTERN.strip("^$"), self.name):
            refuse("Series", [(("name",), "must be lower-case letters, digits and '-', as in a DNS label")])
        if not re.fullmatch(POSITION_PATTERN.strip("^$"), self.position, re.ASCII):
            refuse(
                "Series",
                [(("position",), "must be a whole number, a month, a day or a time in UTC (2024-05-01T06:00Z)")],
            )
        return self


def order_of(position: str) -> int:
    """The place of a position among those of its series: greater is later. At most 15 digits."""
    digits = re.sub("[^0-9]", "", position)
    return int(digits if digits == position else digits.ljust(14, "0"))


class Bind(ResourceModel):
    """An application that runs, or has run, without sparkonce."""

    application: Annotated[str, Field(min_length=1, max_length=253, json_schema_extra={"pattern": VISIBLE_ASCII})]
    """Name of a SparkApplication in the job's namespace."""
    uid: Annotated[str, Field(min_length=1, max_length=63, json_schema_extra={"pattern": VISIBLE_ASCII})]
    """Its metadata.uid: another one under the same name is another application."""


class JobSpec(ResourceModel):
    idempotency_key: Identity | None = None
    """The key, 1-255 visible ASCII characters. Immutable. Instead of operation and resource."""
    operation: Identity | None = None
    """What is done, `load`: with resource (and revision, keyFrom) the key is derived. Immutable."""
    resource: Identity | None = None
    """What it is done to, `flights/2013-01`. Immutable."""
    revision: (
        Annotated[str, Field(min_length=1, max_length=63, json_schema_extra={"pattern": REVISION_PATTERN})] | None
    ) = None
    """Another revision is another job beside this one; output locations then contain `{revision}`. "1" if absent. Immutable."""
    key_from: Annotated[tuple[KeyFrom, ...], Field(max_length=len(KeyFrom))] = ()
    """Contents whose digests are part of the derived key. Immutable."""
    template: Template
    """The Spark application to run."""
    bind: Bind | None = None
    """Follow this application, which was started without sparkonce, and launch none. May be removed, never added or changed."""
    outputs: Annotated[tuple[Output, ...], Field(max_length=32)] = ()
    """Where the effects appear. A job without outputs is opaque: see onUnknown."""
    # Without a default in the CRD: the API server would add it to every object, and operators of earlier releases refuse unknown fields.
    stream: Streaming | None = None
    """What its streams may do. Part of what the job is: another value is another job."""
    series: Series | None = None
    """The order in which keys may write its tables: a key that is late commits nothing."""
    capture: Capture | None = None
    """What a script may do whose writes are captured (outputs[].capture). Part of what the job is."""
    on_duplicate: OnDuplicate = OnDuplicate.ATTACH
    """A duplicate of a running job waits for its result, or is refused."""
    on_mismatch: OnMismatch = OnMismatch.REJECT
    """Another job under the same key is refused, or takes its place in a new generation. Where that job ended and provably took no effect,
    its place is taken in any case, unless this is RejectAlways."""
    on_finalized: OnFinalized = OnFinalized.REPLAY
    """A duplicate of a finished job gets its result; RerunIfFailed runs a failed one again."""
    # Without a default in the CRD, as `stream`: operators of earlier releases refuse a field that they do not know.
    on_result_changed: OnResultChanged | None = None
    """A duplicate of a job whose rows others changed gets its result (Replay, if absent), or ResultGone."""
    on_unknown: OnUnknown = OnUnknown.HOLD
    """Opaque jobs only: what to do when it is unknown whether an attempt took effect."""
    on_delete: OnDelete = OnDelete.STOP
    """Deleting the last object of the job stops it, or lets it run on."""
    retry: Retry = Retry()
    """Attempts within one generation."""
    start_timeout_seconds: Seconds = 1800
    """From creation to a running driver; then the attempt ends. Time in a queue, or without a node, does not count."""
    active_deadline_seconds: Seconds | None = None
    """From reserve to the end, all attempts together; none if absent."""
    heartbeat_timeout_seconds: Seconds | None = None
    """Silence of a driver that ends its attempt; 120 where outputs are declared."""
    stop_timeout_seconds: Seconds = 120
    """How long an attempt may take to stop."""
    # Without a default in the CRD, as `stream`: operators of earlier releases refuse a field that they do not know.
    linger_seconds: Seconds | None = None
    """How long a driver may stay after its program has ended and every output is committed; then the job has succeeded and the driver is
    stopped. 60 if absent. Raise it for a program whose threads do useful work after that."""
    retention: Retention = Retention()
    """How long the key is remembered once the job is finalized."""
    # "TTL" would become "Ttl" by rule.
    application_ttl: ApplicationTTL = Field(default=ApplicationTTL(), alias="applicationTTL")
    """How long the application stays once the job is finalized."""
    ttl_seconds_after_finished: Annotated[StrictInt, Field(ge=0)] | None = None
    """When the IdempotentJob object itself is removed; the record stays for its retention. Never if absent."""
    suspend: StrictBool = False
    """Start no attempt until it is false again; a running one continues."""
    tunable_arguments: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=255)], ...], Field(max_length=64)
    ] = ()
    """Names of arguments (`--threads`) that do not change the result: a duplicate may differ in them."""
    ignored_conf: Annotated[tuple[ConfName, ...], Field(max_length=64)] = ()
    """Names of Spark settings that say who asks, not what is asked (`spark.example.runId`): a duplicate may differ in them, and the
    application gets them. The usual ones of lineage tools are ignored without being named here."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = [*_identity(self), *_outputs(self)]
        for name, check in _CHECKS:
            if getattr(self, name):
                problems += check(self)
        if problems:
            refuse("JobSpec", problems)
        return self

    @property
    def opaque(self) -> bool:
        """Whether no outputs are declared: the outcome is then known only from the application and its exit code."""
        return not self.outputs

    @property
    def effective_revision(self) -> str | None:
        """The revision; None for an explicit key, which has no revisions."""
        return None if self.idempotency_key is not None else self.revision or DEFAULT_REVISION

    @property
    def captured(self) -> bool:
        """Whether the script's own writes are taken for some output."""
        return any(output.capture for output in self.outputs)

    @property
    def restarts_streams(self) -> bool:
        """Whether a stream may begin anew beside rows of an earlier one of the same source."""
        return self.stream is not None and self.stream.restart

    @property
    def max_attempts(self) -> int:
        """Attempts that count, with the default filled in: one for an opaque job, since a second one could repeat its effects."""
        return self.retry.max_attempts or (1 if self.opaque else 3)

    @property
    def submission_retries(self) -> int:
        return 3 if self.retry.submission_retries is None else self.retry.submission_retries

    def heartbeat_timeout(self, default: int = HEARTBEAT_TIMEOUT) -> int | None:
        """Seconds without a heartbeat that end an attempt; None for an opaque job, whose driver sends none."""
        return self.heartbeat_timeout_seconds or (None if self.opaque else default)


class Metadata(BaseModel):
    """metadata of the object: the fields that are read here are typed, all others are kept."""

    model_config = ConfigDict(frozen=True, extra="allow", alias_generator=to_camel, populate_by_name=True)

    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    uid: str | None = None
    generation: int | None = None
    resource_version: str | None = None

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.name is None and self.generate_name is None:
            refuse("Metadata", [(("name",), "is required")])
        if self.name is not None and not (len(self.name) <= 253 and _NAME.fullmatch(self.name)):
            sentence = "must be lower-case letters, digits, '-' and '.', beginning and ending with a letter or digit"
            refuse("Metadata", [(("name",), sentence)])
        return self


class IdempotentJob(ResourceModel):
    """One job that takes effect once, however often it is sent."""

    api_version: Literal["sparkonce.dev/v1alpha1"]
    kind: Literal["IdempotentJob"]
    metadata: Metadata
    spec: JobSpec
    status: dict[str, JsonValue] | None = Field(default=None, exclude=True)
    """As the API server returns it; never part of what is asked for."""

    @classmethod
    def of(cls, document: object, *, source: str = "", lines: Mapping[Loc, int] | None = None) -> Self:
        """Validates parsed YAML or JSON. Raises: InvalidJob: names every problem with its field path."""
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            invalid_job(error, cls, source=source, lines=lines or {})

    def document(self) -> dict[str, Any]:
        """The job as it was given, without defaults; `of` reads it back."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    @property
    def resolved_outputs(self) -> tuple[Output, ...]:
        """The outputs with `{revision}` filled in: where the job writes."""
        revision = self.spec.effective_revision
        if revision is None:
            return self.spec.outputs
        return tuple(o.with_revision(revision) if REVISION in o.location else o for o in self.spec.outputs)

    def relocated(self, locations: Mapping[str, str]) -> Self:
        """The same job with these outputs in other folders, such as relative paths made absolute."""
        moved = tuple(o.at(locations[o.name]) if o.name in locations else o for o in self.spec.outputs)
        return self.model_copy(update={"spec": self.spec.model_copy(update={"outputs": moved})})


def _identity(spec: JobSpec) -> list[tuple[Loc, str]]:
    problems: list[tuple[Loc, str]] = []
    pair = {"operation": spec.operation, "resource": spec.resource}
    given = [name for name, value in pair.items() if value is not None]
    if spec.idempotency_key is None:
        if not given:
            problems.append(((), "must have an idempotencyKey, or operation and resource to derive it from"))
    else:
        also = [*(["revision"] if spec.revision is not None else []), *(["keyFrom"] if spec.key_from else [])]
        problems += [((name,), "must not be given beside idempotencyKey; keep one of the two") for name in also]
    problems += [((name,), f"is required beside {given[0]}") for name in pair if given and name not in given]
    texts = {"idempotencyKey": spec.idempotency_key, **pair}
    problems += [((name,), _NOT_VISIBLE) for name, text in texts.items() if text is not None and not _visible(text)]
    if spec.revision is not None and not re.fullmatch(REVISION_PATTERN.strip("^$"), spec.revision):
        problems.append((("revision",), "must be letters, digits, '.', '_' and '-', beginning with a letter or digit"))
    if len(set(spec.key_from)) != len(spec.key_from):
        problems.append((("keyFrom",), "must not name the same content twice"))
    return problems


_NOT_VISIBLE = "must be visible ASCII characters, without spaces"


def _visible(text: str) -> bool:
    return re.fullmatch(VISIBLE_ASCII.strip("^$"), text) is not None


def _outputs(spec: JobSpec) -> list[tuple[Loc, str]]:
    problems: list[tuple[Loc, str]] = []
    first: dict[str, int] = {}
    for index, output in enumerate(spec.outputs):
        at: Loc = ("outputs", index)
        if not re.fullmatch(NAME_PATTERN.strip("^$"), output.name):
            problems.append(((*at, "name"), "must be lower-case letters, digits and '-', as in a DNS label"))
        if output.name in first:
            problems.append(((*at, "name"), f"is also the name of outputs[{first[output.name]}]"))
        first.setdefault(output.name, index)
        if output.capture:
            problems += _uncaptured(spec, at)
        place = (*at, *output.location_field)
        if spec.revision is not None and REVISION not in output.location:
            sentence = (
                f"must contain {REVISION}, because spec.revision is given: two revisions would share the location"
            )
            problems.append((place, sentence))
        if spec.idempotency_key is not None and REVISION in output.location:
            problems.append((place, f"contains {REVISION}, but a job with an idempotencyKey has no revision"))
    return problems


def _unordered(spec: JobSpec) -> list[tuple[Loc, str]]:
    """Outputs that keep no order of keys."""
    if not spec.outputs:
        return [(("series",), "orders commits to outputs, and the job declares none")]
    problems: list[tuple[Loc, str]] = []
    for index, output in enumerate(spec.outputs):
        if output.slot_log is not None:
            sentence = "must be a delta or iceberg output, because spec.series is given: a slotLog keeps no order"
            problems.append((("outputs", index), sentence))
        elif output.mode is WriteMode.MERGE:
            sentence = "must not be Merge beside spec.series: Spark commits a MERGE and checks no order"
            problems.append((("outputs", index, "mode"), sentence))
    return problems


def _uncaptured(spec: JobSpec, at: Loc) -> list[tuple[Loc, str]]:
    """What keeps the script's writes to the output in this place from being captured."""
    problems: list[tuple[Loc, str]] = []
    template: Loc = ("template", "spec")
    kind = spec.template.spec.get("type")
    if kind not in (None, "Python"):
        sentence = f"must be Python, because an output has capture: true; {kind} is not watched"
        problems.append(((*template, "type"), sentence))
    if spec.template.spec.get("mainClass"):
        problems.append(((*template, "mainClass"), "must be absent, because an output has capture: true"))
    if spec.series is not None:
        sentence = "must be absent beside spec.series: a captured script checks no order"
        problems.append(((*at, "capture"), sentence))
    return problems


def _capturing(spec: JobSpec) -> list[tuple[Loc, str]]:
    if spec.captured:
        return []
    return [(("capture",), "says what a captured script may do; give an output capture: true, or remove it")]


def _bound(spec: JobSpec) -> list[tuple[Loc, str]]:
    bind, problems = spec.bind, list[tuple[Loc, str]]()
    assert bind is not None  # else there is nothing to check
    if spec.outputs:
        problems.append(
            (("outputs",), "must be absent beside spec.bind: that application does not write through sparkonce")
        )
    if spec.on_unknown is OnUnknown.RETRY:
        problems.append(
            (("onUnknown",), "must not be Retry beside spec.bind: an application that is followed is never run again")
        )
    for name, text in (("application", bind.application), ("uid", bind.uid)):
        if not _visible(text):
            problems.append((("bind", name), _NOT_VISIBLE))
    return problems


def _tunable(spec: JobSpec) -> list[tuple[Loc, str]]:
    problems: list[tuple[Loc, str]] = []
    classes = field_classes(spec.template.api_version, spec.template.kind)
    present = classes.argument_names(spec.template.spec)
    for index, name in enumerate(spec.tunable_arguments):
        at: Loc = ("tunableArguments", index)
        if not name.startswith("-") or "=" in name:
            problems.append((at, "must be the name of an argument as it is passed, such as --threads"))
        elif name not in present:
            problems.append((at, f"is not an argument of the job; its template passes {', '.join(present) or 'none'}"))
    return problems


def _ignored(spec: JobSpec) -> list[tuple[Loc, str]]:
    problems: list[tuple[Loc, str]] = []
    for index, name in enumerate(spec.ignored_conf):
        at: Loc = ("ignoredConf", index)
        if not re.fullmatch(CONF_NAME_PATTERN.strip("^$"), name, re.ASCII):
            sentence = (
                "must be the whole name of one Spark setting, such as spark.example.runId; patterns are not allowed"
            )
            problems.append((at, sentence))
        elif f"{name}.".startswith(_COMPUTING):
            problems.append(
                (at, f"must match in duplicates: {name} changes what Spark computes; remove it from the list")
            )
        elif name in spec.ignored_conf[:index]:
            problems.append((at, "is in the list already; remove it"))
    return problems


_CHECKS = (
    ("series", _unordered),
    ("capture", _capturing),
    ("tunable_arguments", _tunable),
    ("ignored_conf", _ignored),
    ("bind", _bound),
)
"""Fields of a job's spec, each with the check that it needs if it is given."""


_COMPUTING = (
    *(
        "spark.sql.",
        "spark.hadoop.",
        "spark.jars.",
        "spark.submit.",
        "spark.driver.",
        "spark.executor.",
        "spark.executorEnv.",
    ),
    *(
        "spark.kubernetes.",
        "spark.pyspark.",
        "spark.python.",
        "spark.files.",
        "spark.archives.",
        "spark.sparkonce.",
        "spark.master.",
    ),
)
"""Prefixes of Spark's own settings, and ours, which decide what runs, where, or what it computes."""


def missing_columns(expect: Expect, columns: Sequence[str]) -> str | None:
    """How these columns violate `expect`, in a few words; None: they do not. Names are compared case-sensitively."""
    missing = [each for each in expect.columns if each not in columns]
    if not missing:
        return None
    return f"it has no column {', '.join(missing)} (its columns are {', '.join(columns) or 'none'})"


def too_few_rows(expect: Expect, rows: int) -> str | None:
    """How this number of rows violates `expect`, in a few words; None: it does not."""
    return f"it has {rows} rows and should have at least {expect.min_rows}" if rows < expect.min_rows else None
