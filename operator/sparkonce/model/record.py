"""The record of one key and the values stored beside it: result, spec, reports, heartbeats; and the assignment that a driver gets. Pure.

A record is the durable truth; `.status` and the command line are projections of it. It is small (4 KiB) because each of its writes is a
compare-and-set of the whole; specs, results, intents and events are stored beside it under (key, generation).

Unknown fields are kept (`extra="allow"`): an older process that updates a record written by a newer one must not drop fields. A record
whose `min_reader` is above `READER` is refused, neither read nor written.

An `Assignment` is all that a driver knows of the ledger. It is one JSON text in the driver's environment (`SPARKONCE_ASSIGNMENT`), so that
no webhook and no file is needed to deliver it. It holds no credentials: the attempt's nonce only identifies the grant it belongs to.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from sparkonce.errors import RecordTooNew, RecordUnreadable

SCHEMA = 1
"""Schema version of the records that this version writes."""
READER = 2
"""The highest `minReader` that this version understands."""
FOLLOWING = 2
"""`minReader` of a record with `bound`: a reader that ignored the field would launch an application instead of following one."""


class State(StrEnum):
    """State of a generation."""

    IN_PROGRESS = "InProgress"
    HELD = "Held"
    FINALIZED = "Finalized"


class Why(StrEnum):
    """Why an attempt ends. Written with `settling`, so that a new owner concludes the same as the one before it."""

    COMPLETED = "Completed"  # the application reported success
    EXITED = "Exited"  # the driver exited non-zero
    PERMANENT = "Permanent"  # the driver reported a permanent error, or the application was refused as invalid
    EXPECTATION = "Expectation"  # what the driver wrote violates spec.outputs[].expect
    LOST = "Lost"  # its application vanished, or its end was not observed
    PREEMPTED = "Preempted"  # its platform ended it, or an edit of its job before it had a node; not counted
    STALE = "Stale"  # no heartbeat, or no driver within startTimeoutSeconds
    NAME_TAKEN = "NameTaken"  # another program's application has our name: the attempt never ran, and is not counted
    TIMEOUT = "Timeout"  # activeDeadlineSeconds
    CANCELLED = "Cancelled"
    SUPERSEDED = "Superseded"
    RESOLVED = "Resolved"  # `keys resolve --succeeded` or `--failed`


class Outcome(StrEnum):
    """Outcome of a finalized generation."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


class HeldReason(StrEnum):
    """Why a key is held for a person."""

    PARTIAL = "Partial"  # some outputs are committed, and no further attempt may follow
    UNKNOWN = "Unknown"  # opaque: whether it took effect is unknown
    NAME_TAKEN = "NameTaken"
    STILL_THERE = "StillThere"  # opaque: it could not be stopped
    KEY_CONFLICT = "KeyConflict"
    STUCK = "Stuck"  # a sealed intent met a closed slot, or a table that was dropped
    CANNOT_SETTLE = "CannotSettle"
    CANNOT_PLACE = "CannotPlace"


class Value(BaseModel):
    """Base model of stored values: frozen, camelCase aliases, unknown fields kept."""

    model_config = ConfigDict(
        frozen=True, extra="allow", alias_generator=to_camel, populate_by_name=True, ser_json_inf_nan="constants"
    )

    def dump(self) -> dict[str, Any]:
        """As JSON values, camelCase, without None."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Address(BaseModel):
    """The address of a record within one install."""

    model_config = ConfigDict(frozen=True)

    realm: str
    key_hash: str
    """SHA-256, 64 hex digits."""

    @property
    def hash20(self) -> str:
        return self.key_hash[:20]


class Opener(Value):
    """The request that opened a generation: an object's (uid, number, fingerprint, rerun), or a command's (nonce)."""

    nonce: str | None = None
    uid: str | None = None
    number: int | None = None
    fingerprint: str | None = None
    rerun: str | None = None
    """Digest of the text of the annotation `sparkonce.dev/rerun` that the object had (`attempt/rerun.py`)."""


class Application(Value):
    """The application of the current attempt, once observed."""

    name: str
    uid: str
    driver: str | None = None
    """Identity of the driver (pod UID; locally pid, start time and boot id), once observed."""
    pods_since: str | None = None
    """On Kubernetes: a version of the namespace's pods from before the application existed. The history of its driver pod's name from there
    shows whether a driver ever started, also once the application is gone."""


class Bound(Value):
    """An application that sparkonce did not start and that a generation follows: only ever observed."""

    application: str
    """Its name, in the job's namespace."""
    uid: str


class Settling(Value):
    """The end of an attempt has begun: from now on no transaction of it can be sealed."""

    attempt: int
    why: Why
    note: str = ""
    """One sentence for a person: the exit code, who cancelled, how old the last heartbeat was."""


class StopWanted(Value):
    """A request to stop the running generation: written without a claim, carried out by the owner."""

    why: Why
    """CANCELLED or SUPERSEDED."""
    by: str
    reason: str = ""


class Intent(Value):
    """A sealed transaction: the exact slots that any later owner or settle run commits for it."""

    token: int
    slots: dict[str, dict[str, Any]]
    """Output name -> the slot's JSON, exactly as it will be committed."""


class NoEffect(Value):
    """Proof that no attempt of a generation, up to this one, took effect. It names the generation because a process of an earlier version
    keeps the field when it opens another one."""

    generation: int
    attempt: int


FENCED_EMPTY = "every output is fenced and holds no commit"
NEVER_RAN = "no container of any attempt ever started"
"""Evidence of a result that is such a proof; no other one is."""


MOST_OBJECTS = 256
"""Objects that one generation names, of up to 400 bytes each: a record that is full could not be ended."""


class Record(Value):
    """The idempotency record of one key."""

    schema_: int = Field(default=SCHEMA, alias="schema")
    min_reader: int = 1
    realm: str
    key_hash: str
    key: str
    """The key's text."""
    operation: str | None = None
    resource: str | None = None
    job_revision: str | None = None
    generation: int
    attempt: int
    """Also the fencing token: 1, 2, 3, ... within the generation."""
    nonce: str
    """Of the current attempt, drawn at random when it was granted."""
    fingerprint: str
    fingerprint_version: int
    openers: tuple[Opener, ...] = ()
    objects: tuple[str, ...] = ()
    """The objects that want this generation; each a UID, or UID/namespace/name/created (see `ObjectRef`)."""
    state: State = State.IN_PROGRESS
    phase: str | None = None
    """The application's phase, as last observed."""
    held: HeldReason | None = None
    note: str = ""
    """One sentence that explains `held` or `outcome`."""
    bound: Bound | None = None
    """None: the generation launches its own applications."""
    application: Application | None = None
    settling: Settling | None = None
    intent: int | None = None
    """Token of the sealed intent, which is stored beside the record."""
    settle_runs: int = 0
    """Settle runs of the current attempt, counted before each is created."""
    uncounted: int = 0
    """Attempts of this generation that do not count against maxAttempts."""
    no_effect: NoEffect | None = None
    not_before: float | None = None
    """Unix seconds (store's clock): the current attempt is not launched earlier (backoff)."""
    stop_wanted: StopWanted | None = None
    outcome: Outcome | None = None
    created_at: float = 0.0
    """Unix seconds (store's clock): when this generation was opened."""
    granted_at: float = 0.0
    """When the current attempt was granted."""
    queued_until: float | None = None
    """Unix seconds (store's clock): when an attempt was last seen to have left its queue; before `granted_at`: an earlier attempt."""
    finalized_at: float | None = None
    expires_at: float | None = None
    """Unix seconds (store's clock); only a finalized record expires."""

    revision: int = Field(default=0, exclude=True)
    """The store's revision at which this record was last written."""
    epoch: int = Field(default=0, exclude=True)
    """The store's epoch when this record was read."""

    @property
    def address(self) -> Address:
        return Address(realm=self.realm, key_hash=self.key_hash)

    @property
    def reopenable(self) -> bool:
        """Whether a new generation may follow: this one is finalized, or held with every attempt settled."""
        return self.state is State.FINALIZED or (
            self.state is State.HELD and self.held in (HeldReason.PARTIAL, HeldReason.NAME_TAKEN)
        )

    @property
    def effectless(self) -> bool:
        """Whether the generation ended and provably took no effect, so that nothing has to be protected from another job."""
        proof = self.no_effect
        if proof is None or self.state is not State.FINALIZED or self.outcome is Outcome.SUCCEEDED:
            return False
        return (proof.generation, proof.attempt) == (self.generation, self.attempt)

    @property
    def counted(self) -> int:
        """Attempts that count against maxAttempts, the current one included."""
        return self.attempt - self.uncounted

    def changed(self, **change: Any) -> Self:
        """A copy with these fields changed. Raises: TypeError: an unknown field, which model_copy would keep as an extra one."""
        unknown = set(change) - set(type(self).model_fields)
        if unknown:
            raise TypeError(f"a record has no field {sorted(unknown)}")
        return self.model_copy(update=change)


REASON_LIMIT = 1000
"""Characters of a person's reason, which is kept in a record or in its history."""


class Event(Value):
    """One entry of a key's append-only history: who, what, when, why."""

    what: str
    by: str = ""
    why: str = ""
    generation: int = 0
    attempt: int = 0
    at: float = 0.0
    """Unix seconds, the store's clock (set by the store)."""


class SpecBody(Value):
    """What a generation runs; stored beside the record, at most 256 KiB."""

    job: dict[str, Any]
    """The IdempotentJob, with its parameters filled in."""
    digests: dict[str, str] = Field(default_factory=dict)
    """Must-match path -> 8-byte digest, keyed with `secret`."""
    secret: str = ""
    """Key of `digests`, hex; new for each record, so that digests of two records cannot be compared."""
    contents: dict[str, str] = Field(default_factory=dict)
    """Local mode: must-match content digests, from a file as the user names it to its SHA-256."""
    base: str | None = None
    """Local mode: the folder that relative paths start from."""

    @property
    def template_digest(self) -> str:
        """SHA-256 of the job's template, which tells whether an application was made from it."""
        return hashlib.sha256(json.dumps(self.job["spec"].get("template"), sort_keys=True).encode()).hexdigest()


LINGERS = "lingers"
"""In a heartbeat's progress: for how many seconds the driver has had nothing left to do. Its program has ended, every output is committed,
and a thread keeps the process."""
COMMITTED = "committed"
"""Kind of the report in which a driver names the committed slot of every declared output."""
UNCAUGHT = "uncaught"
"""Kind of the report of the exception that ends a driver's program: `trace` is its traceback, as Python prints it."""


class Report(Value):
    """A create-once entry that a driver or a settle run stores beside the record."""

    attempt: int
    reporter: str
    """Unique per process and entry; authenticated by the channel."""
    kind: str
    """permanent-error, values, committed, uncaught, verdict."""
    body: dict[str, Any] = Field(default_factory=dict)


class ReportedSoFar(Value):
    """What one attempt has reported, kept beside its reports and written with each of them. Reports of ledgers that earlier versions wrote
    are not counted: an attempt without this entry has reported nothing."""

    reports: int = 0
    size: int = 0
    """Bytes of JSON."""


class Beat(Value):
    """A heartbeat: an attempt's latest sign of life, with its progress."""

    attempt: int
    nonce: str
    by: str
    """driver or owner."""
    age: float = 0.0
    """Seconds since it was written, by the store's clock (set by the store when read)."""
    progress: dict[str, Any] = Field(default_factory=dict)


def parse_record(text: str | bytes, *, where: str) -> Record:
    """Parses a record's JSON. `where`: the record's place, for messages.

    Raises: RecordTooNew, RecordUnreadable: the record exists; neither may be taken for an absent one."""
    try:
        record = Record.model_validate_json(text)
    except ValidationError as invalid:
        _check_reader(_min_reader(text), where)  # a newer record need not parse here
        first = invalid.errors()[0]
        path = ".".join(map(str, first["loc"])) or "JSON"
        raise RecordUnreadable(
            f"the record {where} cannot be read ({path}: {first['msg']}); {repairing(where)}"
        ) from None
    _check_reader(record.min_reader, where)
    return record


def repairing(where: str) -> str:
    """What to do about a record that cannot be read: part of a sentence. `where`: its place, which ends with digits of its hash."""
    return f"rebuild it: sparkonce keys repair {where.rpartition('/')[2]} --reason TEXT"


def _check_reader(needed: int, where: str) -> None:
    if needed > READER:
        raise RecordTooNew(
            f"the record {where} needs a reader of version {needed}, this is {READER}; upgrade sparkonce"
        )


def _min_reader(text: str | bytes) -> int:
    """`minReader` of a record whose other fields do not parse; 0 if that does not parse either."""
    try:
        needed = json.loads(text)["minReader"]
    except (ValueError, TypeError, KeyError):
        return 0
    return needed if isinstance(needed, int) else 0


VALUES_LIMIT = 4096
"""Bytes of JSON that `job.result()` may record: a result is replayed to every duplicate and lives beside the record."""


def values_size(values: Mapping[str, Any]) -> int:
    """Bytes of these values as JSON. Raises: TypeError, ValueError: JSON cannot hold them."""
    return len(json.dumps(values, allow_nan=False))


class Verdict(StrEnum):
    """What settling an attempt found. The first five are read from outputs; CANNOT_SETTLE: no process could read them; the others come from
    stopping an opaque attempt, of which NONE says that it never ran."""

    ALL = "All"
    SOME = "Some"
    NONE = "None"
    STUCK = "Stuck"
    KEY_CONFLICT = "KeyConflict"
    CANNOT_SETTLE = "CannotSettle"
    COMPLETED = "Completed"
    EXITED = "Exited"
    UNKNOWN = "Unknown"
    STILL_THERE = "StillThere"
    CANNOT_PLACE = "CannotPlace"


class OutputResult(Value):
    """One output of a result."""

    name: str
    kind: str
    uri: str
    commit: str
    """Names the sink's commit: the slot's path."""
    rows: int
    bytes: int
    files: int
    digest: str
    """SHA-256 of the committed slot."""
    skipped: str | None = None
    """Position of its series that had been committed (`onLate: Skip`): nothing was written."""


class Failure(Value):
    """Why a generation did not succeed."""

    class_: str = Field(alias="class")
    """Exit, Permanent, NoEffect, Timeout, Lost, ..."""
    message: str
    log_tail: str = ""
    """At most 1 KiB."""


class Result(Value):
    """The finalized result of one generation, as every duplicate gets it."""

    outcome: Outcome
    generation: int
    attempts: int
    outputs: tuple[OutputResult, ...] = ()
    values: dict[str, Any] = Field(default_factory=dict)
    evidence: str
    """What the outcome rests on: slots, an exit code, a person's decision."""
    started_at: float = 0.0
    finished_at: float = 0.0
    failure: Failure | None = None


ENVIRONMENT = "SPARKONCE_ASSIGNMENT"
"""The driver's assignment, as JSON."""
FOLDER_ENVIRONMENT = "SPARKONCE_ATTEMPT_FOLDER"
"""Local mode: the attempt's folder, whose lock the driver takes."""
CAPTURING = "sparkonce-driver"
"""Program that runs a captured script in place of the driver's Python (`driver.capture`)."""
PYTHON_ENVIRONMENT = "SPARKONCE_DRIVER_PYTHON"
"""The interpreter that a job names for its driver, where that program has taken its place."""
LEDGER_ENVIRONMENT = "SPARKONCE_LEDGER"
"""Local mode: the ledger's address with user, password and options, which an assignment leaves out; empty: the assignment's is complete."""
NONCE_ENVIRONMENT = "SPARKONCE_NONCE"
"""The attempt's nonce once more, by which a stop identifies the attempt's processes."""

TOKEN_ENVIRONMENT = "SPARKONCE_TOKEN_FILE"
"""File with the token that a driver sends to the gateway; default: the pod's own."""


@dataclass(frozen=True)
class GatewayAddress:
    """The gateway through which drivers in pods reach the ledger."""

    url: str
    """https://HOST:PORT"""
    ca: str = ""
    """PEM text, or the path of such a file inside the job's image; empty: the image's own authorities."""


def gateway_audience(install: str) -> str:
    """The audience of tokens for the gateways of this install, as operators, gateways and `kubectl sparkonce` derive it.

    It contains the install, so that the gateway of another release in the same cluster cannot use a token that it was sent.
    """
    return f"gateway.sparkonce.dev/{install}"


class Assignment(Value):
    """One attempt, or one settle run, as its process gets it; see the module."""

    install: str
    realm: str
    key_hash: str
    key: str
    generation: int
    attempt: int
    nonce: str
    fingerprint: str
    spec: SpecBody
    store: str = ""
    """Store URL for the direct control channel; empty where drivers use the gateway."""
    gateway: str = ""
    """URL of the gateway; set instead of `store`."""
    gateway_ca: str = ""
    """As in `GatewayAddress`."""
    settle: Intent | None = None
    """Only for settle runs: the sealed intent to roll forward."""
    run: int | None = None
    """Only for settle runs: its number within the attempt."""
    why: Why | None = None
    """Only for settle runs: why the attempt ends. Cancelled and Superseded: what a stream has committed by then is its result."""

    @classmethod
    def of(
        cls, record: Record, spec: SpecBody, *, install: str, store: str = "", gateway: str = "", gateway_ca: str = ""
    ) -> Self:
        """The current attempt of a record."""
        return cls(
            install=install,
            realm=record.realm,
            key_hash=record.key_hash,
            key=record.key,
            generation=record.generation,
            attempt=record.attempt,
            nonce=record.nonce,
            fingerprint=record.fingerprint,
            spec=spec,
            store=store,
            gateway=gateway,
            gateway_ca=gateway_ca,
        )

    @property
    def address(self) -> Address:
        return Address(realm=self.realm, key_hash=self.key_hash)

    @property
    def namespace(self) -> str:
        """The namespace of the job's object and its pods."""
        metadata = self.spec.job.get("metadata")
        return str((metadata.get("namespace") if isinstance(metadata, dict) else None) or "default")

    @property
    def name(self) -> str:
        return application_name(self.address, self.generation, self.attempt)

    @property
    def settle_run_name(self) -> str:
        assert self.run is not None  # only settle runs have this name
        return f"{self.name}-s{self.run}"


def application_name(address: Address, generation: int, attempt: int) -> str:
    """The name of an attempt's application: a DNS label of at most 40 characters, used once."""
    return f"so-{address.hash20}-g{generation}-a{attempt}"
