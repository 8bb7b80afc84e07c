"""The contract of a ledger of HTTP answers, verb by verb: what is atomic, what an answer proves, what an error proves.

A key is reserved before its request runs and gets its answer afterwards. Each verb is one atomic step, and each write compares the nonce of
the claim that last held the key: a process that was frozen while another took over writes nothing. A lease says who should act. It is a
deadline in the record, by the store's clock, that beats move on: an owner that died or froze is replaced when it passes.

* A lost reply is answered by the same call again: a verb recognises its own nonce.
* `StoreUnavailable` proves nothing: the write may have landed or may still land. Every other error is an answer: nothing was written.
* A record that does not parse is an error of every verb that would read it (`RecordUnreadable`), never absence.
* Unlike the jobs' ledger this one forgets: a record is removed when its lifetime is over, and the key may run again.

The jobs' ledger is not used because it keeps every key's floor and events for ever and has no room for bodies, and because an operator
would take over its unfinished records (docs/decisions.md). Sources: the reserve, beat, reconcile, replay design of the Iceberg REST
idempotency proposal (apache/polaris #3205, #3803) and draft-ietf-httpapi-idempotency-key-header.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True)
class Reply:
    """An HTTP answer."""

    status: int
    """100 to 599."""
    headers: tuple[tuple[str, str], ...] = ()
    """Names in lower case, in the order of the response; a name may occur more than once."""
    body: bytes = b""
    omitted: int = 0
    """Bytes of a body that was too large to be kept; `body` is empty then."""


@dataclass(frozen=True)
class ReplyRecord:
    """What a ledger holds of one key."""

    caller: str
    """Digest that stands for the caller in ceilings; nothing of a credential can be computed from it."""
    fingerprint: str
    """64 hex digits. A request with another one is a mismatch."""
    nonce: str
    """Of the claim that wrote last."""
    takeovers: int
    """Claims that this key's first one was followed by; grows with each, so that it can fence effects."""
    reserved_at: float
    """Seconds since 1970, by the store's clock."""
    expires_at: float
    """Seconds since 1970. A record without a living claim is absent from then on."""
    lease: float
    """Seconds that a beat prolongs the claim by."""
    lease_until: float
    """The claim's end in ticks of the store (`StoreTime`)."""
    reply: Reply | None = None
    """None: not finalized."""


@dataclass(frozen=True)
class StoreTime:
    """The store's clocks, read in the step that they decide."""

    now: float
    """Seconds since 1970."""
    ticks: float
    """Seconds of the store's monotonic clock, or of its only one."""


class KeyStanding(StrEnum):
    """What a request finds at its key."""

    OWNED = "owned"
    """The request holds the claim: it runs."""
    RUNNING = "running"
    """Another claim lives."""
    STALE = "stale"
    """The claim ended without an answer: whether its request took effect is unknown."""
    ANSWERED = "answered"
    MISMATCH = "mismatch"
    """The key was used for another request."""


@dataclass(frozen=True)
class Reservation:
    standing: KeyStanding
    record: ReplyRecord
    left: float
    """Seconds until the claim ends; 0 if it has."""


class WriteOutcome(StrEnum):
    WRITTEN = "written"
    ALREADY = "already"
    """The answer is recorded: for `finalize`, the very same one."""
    CONFLICT = "conflict"
    """Another answer is recorded; it stays."""
    LOST = "lost"
    """Another claim holds the key, or one was taken that could not be."""
    NOT_FOUND = "not found"
    """No record: released, or purged."""


class ReplyLedger(Protocol):
    """Reserves keys and keeps their answers. `key`: 64 hex digits (`keys.key_hash`); `nonce`: unique for each request."""

    @property
    def url(self) -> str:
        """The address for display, without credentials."""
        ...

    async def reserve(
        self, key: str, *, caller: str, fingerprint: str, nonce: str, lease: float, lifetime: float
    ) -> Reservation:
        """Claims an absent or expired key, in one step. Any other is only read: a replay writes nothing.

        `lease`, `lifetime`: seconds until the claim ends, and until the record expires if nothing more is written.
        Raises: StoreFull: the caller, or the ledger, has as many live keys as it may have; StoreUnavailable; RecordUnreadable."""
        ...

    async def look(self, key: str) -> Reservation | None:
        """How a key stands, without its request: RUNNING, STALE or ANSWERED. None: absent or expired."""
        ...

    async def beat(self, key: str, nonce: str, *, lease: float) -> WriteOutcome:
        """Prolongs the claim to `lease` seconds from now. ALREADY: finalized. LOST and NOT_FOUND are definite: the owner must stop."""
        ...

    async def take_over(self, key: str, *, seen: str, nonce: str, lease: float) -> WriteOutcome:
        """Claims a stale key whose last claim is still `seen`: of many that ask, one gets WRITTEN, the others LOST."""
        ...

    async def finalize(self, key: str, nonce: str, reply: Reply, *, lifetime: float) -> WriteOutcome:
        """Records the answer for `lifetime` seconds from now, for the holder of the last claim, whether or not that has ended."""
        ...

    async def release(self, key: str, nonce: str) -> WriteOutcome:
        """Removes an unfinished key, so that the next request runs. For requests that had no effect. ALREADY: finalized, and it stays."""
        ...

    async def abandon(self, key: str, nonce: str, *, pause: float) -> WriteOutcome:
        """Ends the claim of a request whose effect is unknown `pause` seconds from now: the next one reconciles."""
        ...

    async def purge(self, *, limit: int = 1000) -> int:
        """Removes up to `limit` expired records and returns their number. Any number of processes may do so at once."""
        ...

    async def close(self) -> None: ...
