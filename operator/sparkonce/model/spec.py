"""The IdempotentJob resource, typed: the one source of the CRD, of the fingerprint and of what local mode reads.

Refuses what could not be honoured exactly: unknown fields, two kinds of one output, a revision whose output does not contain it,
an inner restart policy. Does not default what depends on other fields: such a field stays None here, and a property tells the
effective value (`spec.max_attempts`), so that "not given" and "given as the default" stay distinguishable until the fingerprint
decides that they are the same.

The template stays free JSON: it belongs to the Spark operator's own API, which changes without us. What must be known of it
(field classes, checks) is registered per kind in `model.fields`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StrictBool, StrictInt, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from sparkonce.model.fields import UnknownTemplateKind, field_classes
from sparkonce.model.output import NAME_PATTERN, REVISION, Output
from sparkonce.model.part import Part
from sparkonce.model.policy import (
    ApplicationTTL,
    OnDelete,
    OnDuplicate,
    OnFinalized,
    OnMismatch,
    OnUnknown,
    Retention,
    Retry,
)
from sparkonce.model.problems import Loc, invalid_job, refuse

API_VERSION = "sparkonce.dev/v1alpha1"
KIND = "IdempotentJob"
DEFAULT_REVISION = "1"
HEARTBEAT_TIMEOUT = 120  # seconds; a driver beats several times a minute

VISIBLE_ASCII = r"^[!-~]+$"
REVISION_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"  # it is put into paths: no slash, and never `..`
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")

Seconds = Annotated[StrictInt, Field(ge=1, le=31_536_000)]
Identity = Annotated[str, Field(min_length=1, max_length=255, json_schema_extra={"pattern": VISIBLE_ASCII})]


class KeyFrom(StrEnum):
    """Contents that may be made part of a derived key."""

    APPLICATION_FILE = "ApplicationFile"
    IMAGE = "Image"


class TemplateMetadata(Part):
    """Names are given by sparkonce: one application per attempt."""

    labels: dict[str, str] = Field(default_factory=dict)
    """Added to each application; never part of what the job is."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Added to each application; never part of what the job is."""


class Template(Part):
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
        else:
            refuse("Template", [(("spec", *loc), sentence) for loc, sentence in classes.check(self.spec)])
        return self


class Bind(Part):
    """An application that runs, or has run, without sparkonce."""

    application: Annotated[str, Field(min_length=1, max_length=253, json_schema_extra={"pattern": VISIBLE_ASCII})]
    """Name of a SparkApplication in the job's namespace."""
    uid: Annotated[str, Field(min_length=1, max_length=63, json_schema_extra={"pattern": VISIBLE_ASCII})]
    """Its metadata.uid: another one under the same name is another application."""


class JobSpec(Part):
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
    on_duplicate: OnDuplicate = OnDuplicate.ATTACH
    """A duplicate of a running job waits for its result, or is refused."""
    on_mismatch: OnMismatch = OnMismatch.REJECT
    """Another job under the same key is refused, or takes its place in a new generation."""
    on_finalized: OnFinalized = OnFinalized.REPLAY
    """A duplicate of a finished job gets its result; RerunIfFailed runs a failed one again."""
    on_unknown: OnUnknown = OnUnknown.HOLD
    """Opaque jobs only: what to do when nobody can tell whether an attempt took effect."""
    on_delete: OnDelete = OnDelete.STOP
    """Deleting the last object of the job stops it, or lets it run on."""
    retry: Retry = Retry()
    """Attempts within one generation."""
    start_timeout_seconds: Seconds = 1800
    """From creation to a running driver; then the attempt ends."""
    active_deadline_seconds: Seconds | None = None
    """From reserve to the end, all attempts together; none if absent."""
    heartbeat_timeout_seconds: Seconds | None = None
    """Silence of a driver that ends its attempt; 120 where outputs are declared."""
    stop_timeout_seconds: Seconds = 120
    """How long an attempt may take to stop."""
    retention: Retention = Retention()
    """How long the key is remembered once the job is finalized."""
    # "TTL" would become "Ttl" by rule.
    application_ttl: ApplicationTTL = Field(default=ApplicationTTL(), alias="applicationTTL")
    """How long the application stays once the job is finalized."""
    ttl_seconds_after_finished: Annotated[StrictInt, Field(ge=0)] | None = None
    """When the IdempotentJob object itself is removed; the record stays for its retention. Never if absent."""
    suspend: StrictBool = False
    """Start no attempt until it is false again; one that runs goes on."""
    tunable_arguments: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=255)], ...], Field(max_length=64)
    ] = ()
    """Names of arguments (`--threads`) that do not change the result: a duplicate may differ in them."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        refuse("JobSpec", [*_identity(self), *_outputs(self), *_tunable(self), *_bound(self)])
        return self

    @property
    def opaque(self) -> bool:
        """No outputs are declared: only exit codes and applications tell what happened."""
        return not self.outputs

    @property
    def effective_revision(self) -> str | None:
        """None where the key is explicit: such a job has no revisions."""
        return None if self.idempotency_key is not None else self.revision or DEFAULT_REVISION

    @property
    def max_attempts(self) -> int:
        """An opaque job is tried once: a second try could repeat its effects."""
        return self.retry.max_attempts or (1 if self.opaque else 3)

    def heartbeat_timeout(self, default: int = HEARTBEAT_TIMEOUT) -> int | None:
        """Seconds of silence that end an attempt; None: only declared outputs make a driver beat."""
        return self.heartbeat_timeout_seconds or (None if self.opaque else default)


class Metadata(BaseModel):
    """Of the object: what we read is typed, what the API server adds is kept."""

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


class IdempotentJob(Part):
    """One job that takes effect once, however often it is sent."""

    api_version: Literal["sparkonce.dev/v1alpha1"]
    kind: Literal["IdempotentJob"]
    metadata: Metadata
    spec: JobSpec
    status: dict[str, JsonValue] | None = Field(default=None, exclude=True)
    """As the API server returns it; never part of what is asked for."""

    @classmethod
    def of(cls, document: object, *, source: str = "", lines: Mapping[Loc, int] | None = None) -> Self:
        """From parsed YAML or JSON. InvalidJob: every problem as a sentence with its field path."""
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            invalid_job(error, cls, source=source, lines=lines or {})

    def document(self) -> dict[str, Any]:
        """What was asked for, without defaults that nobody wrote; `of` reads it back."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    @property
    def resolved_outputs(self) -> tuple[Output, ...]:
        """The outputs with `{revision}` filled in: where the job really writes."""
        revision = self.spec.effective_revision
        return self.spec.outputs if revision is None else tuple(o.with_revision(revision) for o in self.spec.outputs)

    def relocated(self, locations: Mapping[str, str]) -> Self:
        """The same job with these outputs in other folders (a relative path made absolute, say)."""
        moved = tuple(o.at(locations[o.name]) if o.name in locations else o for o in self.spec.outputs)
        return self.model_copy(update={"spec": self.spec.model_copy(update={"outputs": moved})})


def _identity(spec: JobSpec) -> list[tuple[Loc, str]]:
    problems: list[tuple[Loc, str]] = []
    pair = {"operation": spec.operation, "resource": spec.resource}
    given = [name for name, value in pair.items() if value is not None]
    if spec.idempotency_key is None:
        if not given:
            problems.append(((), "must have an idempotencyKey, or operation and resource to derive it from"))
        problems += [((name,), "is required beside its pair") for name in pair if given and name not in given]
    else:
        also = [*given, *(["revision"] if spec.revision is not None else []), *(["keyFrom"] if spec.key_from else [])]
        problems += [((name,), "must not stand beside idempotencyKey; keep one of the two") for name in also]
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
        place = (*at, *output.location_field)
        if spec.revision is not None and REVISION not in output.location:
            sentence = f"must contain {REVISION}, because spec.revision is given: two revisions would share the place"
            problems.append((place, sentence))
        if spec.idempotency_key is not None and REVISION in output.location:
            problems.append((place, f"contains {REVISION}, but a job with an idempotencyKey has no revision"))
    return problems


def _bound(spec: JobSpec) -> list[tuple[Loc, str]]:
    if spec.bind is None:
        return []
    problems: list[tuple[Loc, str]] = []
    if spec.outputs:
        problems.append(
            (("outputs",), "must be absent beside spec.bind: that application does not write through sparkonce")
        )
    if spec.on_unknown is OnUnknown.RETRY:
        problems.append(
            (("onUnknown",), "must not be Retry beside spec.bind: an application that is followed is never run again")
        )
    for name, text in (("application", spec.bind.application), ("uid", spec.bind.uid)):
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
            problems.append((at, f"is no argument of the job; its template passes {', '.join(present) or 'none'}"))
    return problems
