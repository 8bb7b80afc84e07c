"""The record: what the store knows of one key, and the small values that stand beside it.

Pure. A record is the durable truth; `.status` and the command line are projections of it. It is small (4 KiB) because each of
its writes is a compare-and-set of the whole; specs, results, intents and events stand beside it under (key, generation).

Unknown fields are kept (`extra="allow"`): an older process that updates a record of a newer one must not drop what it does not
know. A record whose `min_reader` is above `READER` is not ours to touch.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from sparkonce.errors import RecordTooNew, RecordUnreadable

SCHEMA = 1
"""Of the records that this version writes."""
READER = 2
"""The highest `minReader` that this version understands."""
FOLLOWING = 2
"""`minReader` of a record with `bound`: a reader that did not know the field would launch what is to be followed."""


class State(StrEnum):
    IN_PROGRESS = "InProgress"
    HELD = "Held"
    FINALIZED = "Finalized"


class Why(StrEnum):
    """Why an attempt ends. Written with `settling`, so that a successor concludes what its predecessor would have."""

    COMPLETED = "Completed"  # the application says it ended well
    EXITED = "Exited"  # the driver exited non-zero
    PERMANENT = "Permanent"  # the driver reported a permanent error, or the application was refused as invalid
    EXPECTATION = "Expectation"  # the driver wrote something else than spec.outputs[].expect demands
    LOST = "Lost"  # it vanished, or was never seen
    PREEMPTED = "Preempted"  # its platform ended it; not counted
    STALE = "Stale"  # no heartbeat
    NAME_TAKEN = "NameTaken"  # a foreign application has our name: the attempt never ran, and is not counted
    TIMEOUT = "Timeout"  # activeDeadlineSeconds or startTimeoutSeconds
    CANCELLED = "Cancelled"
    SUPERSEDED = "Superseded"
    RESOLVED = "Resolved"  # a person said --failed


class Outcome(StrEnum):
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


class HeldReason(StrEnum):
    PARTIAL = "Partial"  # some outputs committed and there is a reason to end
    UNKNOWN = "Unknown"  # opaque: nobody can tell
    NAME_TAKEN = "NameTaken"
    STILL_THERE = "StillThere"  # opaque: it could not be stopped
    KEY_CONFLICT = "KeyConflict"
    STUCK = "Stuck"  # a sealed intent met a closed slot or a table that is gone
    CANNOT_SETTLE = "CannotSettle"
    CANNOT_PLACE = "CannotPlace"


class Value(BaseModel):
    """Frozen, camelCase outside, unknown fields kept."""

    model_config = ConfigDict(
        frozen=True, extra="allow", alias_generator=to_camel, populate_by_name=True, ser_json_inf_nan="constants"
    )

    def dump(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Address(BaseModel):
    """Where a record lives inside one install."""

    model_config = ConfigDict(frozen=True)

    realm: str
    key_hash: str
    """SHA-256, 64 hex digits."""

    @property
    def hash20(self) -> str:
        return self.key_hash[:20]


class Opener(Value):
    """Who opened a generation: an object's request (uid, number, fingerprint), or a request nonce of a command."""

    nonce: str | None = None
    uid: str | None = None
    number: int | None = None
    fingerprint: str | None = None


class Application(Value):
    """The application of the current attempt, once seen."""

    name: str
    uid: str
    driver: str | None = None
    """Identity of the driver (pod UID; locally pid, start time and boot id), once seen."""


class Bound(Value):
    """An application that was there without us, which a generation follows: it is looked at, and nothing else is ever done to it."""

    application: str
    """Its name, in the namespace of the job."""
    uid: str


class Settling(Value):
    attempt: int
    why: Why
    note: str = ""
    """One sentence for a person: the exit code, who cancelled, how old the heartbeat was."""


class StopWanted(Value):
    """A wish that the running generation ends: written by anyone, carried out by the owner."""

    why: Why
    """CANCELLED or SUPERSEDED."""
    by: str
    reason: str = ""


class Intent(Value):
    """A sealed transaction: the exact slots that whoever comes next commits for it."""

    token: int
    slots: dict[str, dict[str, Any]]
    """Output name -> the slot's JSON, as it will stand in the output."""


class Record(Value):
    schema_: int = Field(default=SCHEMA, alias="schema")
    min_reader: int = 1
    realm: str
    key_hash: str
    key: str
    """As the user knows it."""
    operation: str | None = None
    resource: str | None = None
    job_revision: str | None = None
    generation: int
    attempt: int
    """Also the fencing token: 1, 2, 3, ... within the generation."""
    nonce: str
    """Of the current attempt, drawn when it was granted."""
    fingerprint: str
    fingerprint_version: int
    openers: tuple[Opener, ...] = ()
    objects: tuple[str, ...] = ()
    """UIDs of the objects that want this generation."""
    state: State = State.IN_PROGRESS
    phase: str | None = None
    """Of the application, as observed last."""
    held: HeldReason | None = None
    note: str = ""
    """One sentence beside `held` or `outcome`."""
    bound: Bound | None = None
    """None: the generation's applications are ours."""
    application: Application | None = None
    settling: Settling | None = None
    intent: int | None = None
    """Token of the sealed intent, which stands beside the record."""
    settle_runs: int = 0
    uncounted: int = 0
    """Attempts of this generation that do not count against maxAttempts."""
    not_before: float | None = None
    """Unix seconds (store's clock): the current attempt is not launched earlier (backoff)."""
    stop_wanted: StopWanted | None = None
    outcome: Outcome | None = None
    created_at: float = 0.0
    """Unix seconds (store's clock): when this generation was opened."""
    granted_at: float = 0.0
    """When the current attempt was granted."""
    finalized_at: float | None = None
    expires_at: float | None = None
    """Unix seconds (store's clock); only a finalized record expires."""

    revision: int = Field(default=0, exclude=True)
    """Of the store, when this record was last written."""
    epoch: int = Field(default=0, exclude=True)

    @property
    def address(self) -> Address:
        return Address(realm=self.realm, key_hash=self.key_hash)

    @property
    def reopenable(self) -> bool:
        """A new generation may follow: this one is settled."""
        return self.state is State.FINALIZED or (
            self.state is State.HELD and self.held in (HeldReason.PARTIAL, HeldReason.NAME_TAKEN)
        )

    @property
    def counted(self) -> int:
        """Attempts that count against maxAttempts, the current one included."""
        return self.attempt - self.uncounted

    def changed(self, **change: Any) -> Self:
        """A copy with these fields; typos are refused (model_copy alone would keep them as extra fields)."""
        unknown = set(change) - set(type(self).model_fields)
        if unknown:
            raise TypeError(f"a record has no field {sorted(unknown)}")
        return self.model_copy(update=change)


class Event(Value):
    """One line of a key's history: who, what, when, why. Append-only."""

    what: str
    by: str = ""
    why: str = ""
    generation: int = 0
    attempt: int = 0
    at: float = 0.0
    """Unix seconds, the store's clock (set by the store)."""


class SpecBody(Value):
    """What a generation runs; beside the record, at most 256 KiB."""

    job: dict[str, Any]
    """The IdempotentJob, parameters filled in."""
    digests: dict[str, str] = Field(default_factory=dict)
    """Must-match path -> 8-byte digest, keyed with `secret`."""
    secret: str = ""
    contents: dict[str, str] = Field(default_factory=dict)
    """Content digests that are must-match in local mode: path as the user knows it -> SHA-256."""
    base: str | None = None
    """Local mode: the folder that relative paths are relative to."""


COMMITTED = "committed"
"""Kind of the report in which a driver names the committed slot of every declared output."""


class Report(Value):
    """A create-once entry of a driver or a settle run beside the record."""

    attempt: int
    reporter: str
    """Unique per process and entry; authenticated by the channel."""
    kind: str
    """permanent-error, values, verdict."""
    body: dict[str, Any] = Field(default_factory=dict)


class Beat(Value):
    """The attempt lease: who touched the attempt last, and how far it is."""

    attempt: int
    nonce: str
    by: str
    """driver or owner."""
    age: float = 0.0
    """Seconds since it was written, by the store's clock (set by the store when read)."""
    progress: dict[str, Any] = Field(default_factory=dict)


def parse_record(text: str | bytes, *, where: str) -> Record:
    """RecordTooNew, RecordUnreadable: the record exists; neither is ever read as absence."""
    try:
        record = Record.model_validate_json(text)
    except ValidationError as invalid:
        _check_reader(_min_reader(text), where)  # a newer record may well say things that do not parse here
        first = invalid.errors()[0]
        path = ".".join(map(str, first["loc"])) or "JSON"
        raise RecordUnreadable(
            f"the record {where} cannot be read ({path}: {first['msg']}); restore the ledger from a backup"
        ) from None
    _check_reader(record.min_reader, where)
    return record


def _check_reader(needed: int, where: str) -> None:
    if needed > READER:
        raise RecordTooNew(
            f"the record {where} needs a reader of version {needed}, this is {READER}; upgrade sparkonce"
        )


def _min_reader(text: str | bytes) -> int:
    """Of a record whose other fields do not parse; 0 when it does not even say that."""
    try:
        needed = json.loads(text)["minReader"]
    except (ValueError, TypeError, KeyError):
        return 0
    return needed if isinstance(needed, int) else 0
