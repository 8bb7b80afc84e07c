"""The contract of a record store, verb by verb: what is atomic, what an answer proves, what an error proves.

Every verb that writes is ONE atomic step (a transaction, or one compare-and-set). Outcomes are values; the only errors are
those of `sparkonce.errors`: `StoreUnavailable` (proves nothing: the write may have landed or may still land), `StoreUnusable`,
`StoreFull`, `RecordUnreadable`, `RecordTooNew`, `InvalidInput` (these are answers: nothing was written; `InvalidInput` is for values
that JSON cannot express and for specs that are too large).

* Every write under a claim compares the claim's (revision, nonce) AND the record's revision. The claim is for liveness, the
  record for safety: a driver may have sealed and a client attached or asked to stop since the owner read it.
* A lease says who *should* act. It is held by a process; its claims vanish when it ends. No answer of `heartbeat` makes a later
  write safe; only the compare inside that write does.
* A generation number is never used twice for a key: `purge` and `forget` leave the floor, `reserve` compares the floor it read.
* A lost reply is answered by the same call again: each verb recognises what it wrote, and writes it once.
* Reserving, taking over, sealing, requesting a stop, finalizing, reopening and removing each add an event in the same step; `update` and
  `forget` add the one they are given. A key keeps its 200 newest events.
* Errors are never absence. A record that does not parse is an error of every verb that would read it.
* `Raises:` of a verb lists only errors particular to it. Every verb may also raise StoreUnavailable and StoreUnusable; a verb that reads
  the record may raise RecordUnreadable and RecordTooNew; one that stores its caller's values may raise InvalidInput.

`tests/store/conformance/` states each sentence of this file as a test and runs against every backend.
Sources: docs/design.md, section 4; the reserve-bind-finalize vocabulary of the Iceberg REST idempotency proposal (apache/polaris #3205).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sparkonce.model.record import (
    Address,
    Beat,
    Bound,
    Event,
    Intent,
    Opener,
    Record,
    Report,
    Result,
    SpecBody,
    StopWanted,
)


class Lease(Protocol):
    """Held by one process; claims taken under it vanish when it ends, whether or not its holder notices."""

    @property
    def id(self) -> str: ...

    @property
    def deadline(self) -> float:
        """time.monotonic() seconds until which the store is certain to honour the lease: when the last acknowledged keepalive was SENT,
        plus the TTL; infinite where a lease ends only with its process. After it the holder must act as if the lease had ended."""
        ...

    async def keep_alive(self) -> bool:
        """Renews the lease. False is definite: it has ended, and so have its claims.

        Raises: StoreUnavailable, which proves nothing."""
        ...

    async def revoke(self) -> None:
        """Ends the lease and its claims at once. Idempotent. Called only on fail-stop and exit.

        Raises: StoreUnavailable (it may live until its TTL)."""
        ...


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Proof of ownership of one key; (revision, nonce) are compared by every write under it."""

    address: Address
    lease: str
    owner: str
    """Human-readable: host, pid, command."""
    revision: int
    nonce: str


@dataclass(frozen=True, kw_only=True)
class Request:
    """One reserve or reopen, with its own nonce, by which a retry after a lost reply is recognised."""

    address: Address
    key: str
    by: Opener
    nonce: str
    """Becomes the nonce of the claim and of attempt 1."""
    fingerprints: Mapping[int, str]
    """Algorithm version -> fingerprint, for every live version: a record is compared by its own version and newer ones, a new one gets the
    newest fingerprint, under the oldest version that makes the same one."""
    spec: SpecBody
    operation: str | None = None
    resource: str | None = None
    job_revision: str | None = None
    objects: tuple[str, ...] = ()
    bound: Bound | None = None
    """The generation follows this application instead of launching one."""
    person: str = ""
    """Who asked for the generation, for the history; empty: unknown, and the history names the owner."""
    reason: str = ""
    """Why they asked, for the history."""


@dataclass(frozen=True)
class Owned:
    record: Record
    claim: Claim


@dataclass(frozen=True)
class Duplicate:
    """The key exists with the same fingerprint. `claim` is None while the key has no owner."""

    record: Record
    claim: Claim | None


@dataclass(frozen=True)
class Mismatch:
    """The key exists with another fingerprint. Nothing was written."""

    record: Record
    claim: Claim | None


@dataclass(frozen=True)
class Moved:
    """The generation floor differs from the one passed in: read again."""


@dataclass(frozen=True)
class Lost:
    """Another caller won, or the record changed since it was read; `record` is the current one. Nothing was written."""

    record: Record | None


@dataclass(frozen=True)
class Updated:
    record: Record


@dataclass(frozen=True)
class Changed:
    """The record is at another revision than the one passed in. Nothing was written: read again and decide anew."""

    record: Record


@dataclass(frozen=True)
class LostOwnership:
    """The claim no longer exists. Nothing was written."""


@dataclass(frozen=True)
class NotFound:
    """No record of that generation. Nothing was written."""


@dataclass(frozen=True)
class Finalized:
    """The generation has its result (by this call, or already the same one)."""

    record: Record
    result: Result


@dataclass(frozen=True)
class Conflict:
    """The generation was finalized with another result; `result` is the stored one."""

    record: Record
    result: Result


@dataclass(frozen=True)
class Attached:
    record: Record


@dataclass(frozen=True)
class Sealed:
    record: Record


@dataclass(frozen=True)
class Refused:
    """Definite: not done, and will not be done while the record is as in `record` (None: no record)."""

    record: Record | None
    reason: str


@dataclass(frozen=True)
class Gone:
    """The record is removed; its generation floor stays."""

    floor: int


@dataclass(frozen=True)
class View:
    """One linearizable read of a key."""

    record: Record | None
    claim: Claim | None
    """None also when the claim's lease has ended."""
    floor: int
    revision: int
    """Of the store."""
    epoch: int


@dataclass(frozen=True, kw_only=True)
class Query:
    """Filter and page of a listing."""

    states: Sequence[str] = ()
    """Empty: all."""
    realm: str | None = None
    hash_prefix: str = ""
    after: str = ""
    """Page token: `realm/key_hash` of the last record of the previous page."""
    limit: int = 100


@dataclass(frozen=True)
class Page:
    records: Sequence[Record]
    unreadable: Sequence[tuple[Address, str]] = field(default_factory=tuple)
    """Records of this page that do not parse, each with the reason: listed, never omitted."""
    after: str | None = None
    """None on the last page."""


@dataclass(frozen=True)
class KeyChange:
    """One entry of `watch`: this key was written at this revision. `gap`: earlier changes may be missing."""

    address: Address | None
    revision: int
    gap: bool = False
    unowned: bool = False
    """Its claim ended and its record did not change in the same step: it needs an owner. Reported only by stores that see claims end."""
    ended: bool = False
    """Its claim ended together with a change of its record (finalized, held), or the record was removed. Reported as `unowned` is."""


class IdempotencyStore(Protocol):
    """One install on one store. Time is the store's own clock; nonces and leases are the caller's."""

    url: str
    """For display: without credentials."""

    async def open_lease(self, *, owner: str) -> Lease:
        """Opens a lease for this process. `owner`: human-readable.

        Raises: StoreUnavailable (no lease to use; one that was granted nevertheless expires by itself)."""
        ...

    async def now(self) -> float:
        """Unix seconds of the store's clock."""
        ...

    # ownership
    async def reserve(
        self, request: Request, *, lease: Lease, floor: int
    ) -> Owned | Duplicate | Mismatch | Moved | Refused:
        """Absent, and the floor as read -> record (InProgress, generation floor + 1, attempt 1 with the request's nonce) + spec +
        claim. A repetition whose nonce the claim carries -> Owned again, after comparing fingerprints. Refused: the lease has ended.

        Raises: StoreFull (the realm has reached its limit of live keys; nothing was written), InvalidInput (the spec is too large
        or not JSON; nothing was written)."""
        ...

    async def take_over(self, record: Record, *, lease: Lease, nonce: str) -> Owned | Lost:
        """No live claim, and the record unchanged -> claim. Exactly one of K callers wins; a repetition with its nonce wins again.
        Also of a held record (a person decides), never of a finalized one."""
        ...

    async def heartbeat(self, claim: Claim) -> Updated | Finalized | NotFound | LostOwnership:
        """Whether the claim still holds; touches the claim, never the record."""
        ...

    async def drop(self, claim: Claim) -> None:
        """Gives up the claim and changes nothing else. Idempotent."""
        ...

    async def update(
        self, record: Record, claim: Claim, changed: Record, *, event: Event | None = None
    ) -> Updated | Changed | LostOwnership | NotFound | Finalized:
        """Replaces `record` by `changed` if claim and revision are as read. A changed record that is Held drops the claim in the
        same step. A retry that finds `changed` already stored is Updated.

        Raises: ValueError (another key or generation, an attempt that is neither the record's nor the next one, or state Finalized;
        nothing was written)."""
        ...

    async def finalize(
        self, record: Record, claim: Claim, result: Result, *, retention: float
    ) -> Finalized | Changed | LostOwnership | NotFound | Conflict:
        """Result and expiry (now + retention seconds), claim dropped, in one step. The same result again is a no-op and answers
        Finalized, without a claim; another one is Conflict. "The same" compares everything but the times."""
        ...

    async def reopen(self, record: Record, request: Request, *, lease: Lease) -> Owned | Duplicate | Lost | Refused:
        """A reopenable, unchanged record -> generation + 1, attempt 1, new spec, claim. A repetition with its nonce -> Owned.
        Duplicate: `request.by` has opened a generation already (it opens at most one). Refused: not reopenable, or lease ended.

        Raises: InvalidInput (the spec is too large or not JSON; nothing was written)."""
        ...

    # without a claim
    async def attach(self, record: Record, uid: str) -> Attached | Changed | Finalized | NotFound:
        """Adds a follower of this generation and moves the record's revision. Idempotent."""
        ...

    async def request_stop(self, record: Record, stop: StopWanted) -> Updated | Changed | Finalized | NotFound:
        """Requests cancellation without waiting for it: the first request is kept, the record's revision moves, and the owner or its
        successor carries it out."""
        ...

    async def seal(
        self, address: Address, *, generation: int, token: int, nonce: str, intent: Intent
    ) -> Sealed | Refused:
        """Compare-and-set on the record alone. Refused once `settling` reaches the token, another intent exists, the attempt is not
        the current one with this nonce, or the record is not in progress. The same intent again is Sealed."""
        ...

    async def report(self, address: Address, generation: int, report: Report) -> bool:
        """Create-once by (generation, attempt, reporter); False when another body is stored under it, or the key has no record of that
        generation or a later one. Counted in the same step: what an attempt has reported is limited (`rules.too_large`), and what an
        earlier version stored is not counted.

        Raises: ReportTooLarge, RealmReportsFull (the reports of the realm have used up their room; a verdict is stored all the same);
        nothing was written."""
        ...

    async def renew(self, address: Address, generation: int, beat: Beat) -> bool:
        """Renews the attempt's lease. False when the record has another current attempt or nonce, or is finalized: stop."""
        ...

    # reading: linearizable
    async def load(self, address: Address) -> View:
        """Record, claim and floor of a key at one revision.

        Raises: RecordUnreadable, RecordTooNew (the key exists), StoreUnavailable (unknown)."""
        ...

    async def spec(self, address: Address, generation: int) -> SpecBody | None: ...

    async def result(self, address: Address, generation: int) -> Result | None: ...

    async def intent(self, address: Address, generation: int) -> Intent | None: ...

    async def reports(self, address: Address, generation: int) -> Sequence[Report]: ...

    async def beats(self, address: Address, generation: int) -> Mapping[tuple[int, str], Beat]:
        """(attempt, by) -> the last beat; its age is in seconds."""
        ...

    async def events(self, address: Address) -> Sequence[Event]:
        """Oldest first; kept when the key is forgotten."""
        ...

    async def list(self, query: Query) -> Page: ...

    async def count(self, *, realm: str | None = None, live_only: bool = False) -> int: ...

    async def realms(self) -> Sequence[str]:
        """Every realm that has or had a key, sorted: with a record, or only with floors. Its cost grows with realms, not with keys."""
        ...

    def watch(self, since: int) -> AsyncIterator[KeyChange]:
        """Every change after this revision, in order, without a gap, or one entry that says there was one. A key that changed several
        times may be named once, at its newest revision. The one method that may suspend on a local store."""
        ...

    # ending
    async def purge(self, record: Record, *, now: float) -> Gone | Changed | Refused | NotFound:
        """A finalized record that is expired at `now`, unchanged -> removed. The floor stays."""
        ...

    async def forget(self, record: Record, event: Event) -> Gone | Changed | Refused | NotFound:
        """A finalized record, unchanged -> removed, with an event. The floor stays, the events stay."""
        ...

    async def close(self) -> None: ...
