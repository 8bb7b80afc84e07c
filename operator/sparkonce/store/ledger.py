"""A store that decides inside its own transaction: the verbs, and what SQL stores have in common, whatever their dialect, clock and leases.

A verb reads the key, asks `rules` and writes, all in one step; stores differ in `_step` and in how they read. Methods are `async` because
the protocol is, and never suspend (see `sparkonce.blocking`), except `watch`, which polls and sleeps between polls. A store that cannot
hold a transaction open while it decides (etcd) has its own verbs over the same `rules`.

A step of a SQL store (`SqlLedger`) reads everything at a key with one statement (`see`); each store provides the transaction that makes
this atomic, the clock, and what a live lease is. Statements are run by name; each store spells them out in its own `schema`, in its
driver's parameter style. This module imports no driver, so a replay on a laptop loads none but sqlite3.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, TypeVar

from sparkonce.errors import RecordUnreadable
from sparkonce.model.record import (
    Address,
    Beat,
    Event,
    Intent,
    Record,
    Report,
    ReportedSoFar,
    Result,
    SpecBody,
    State,
    StopWanted,
    Value,
)
from sparkonce.store import rules
from sparkonce.store.codec import decode, encode, listed, name, position_of, record_of
from sparkonce.store.live_keys import COUNTED_FROM, LiveKeys
from sparkonce.store.protocol import (
    Attached,
    Changed,
    Claim,
    Conflict,
    Duplicate,
    Finalized,
    Gone,
    KeyChange,
    Lease,
    Lost,
    LostOwnership,
    Mismatch,
    Moved,
    NotFound,
    Owned,
    Page,
    Query,
    Refused,
    Request,
    Sealed,
    Updated,
    View,
)
from sparkonce.store.repair import repair as rules_of_repair
from sparkonce.store.rules import RETRY_AFTER, KeyState, VerbOutcome, Write

T = TypeVar("T")
V = TypeVar("V", bound=Value)

EVENTS = 200
"""Events kept per key, the newest: a key driven for weeks must not fill the ledger."""
LIVE_KEYS = 100_000
"""Unexpired records per realm before new keys are refused."""
REPORT_BYTES = 256 * 1024 * 1024
"""Bytes of reports per realm before further ones are refused: a tenth of what etcd keeps by default, and a hundred thousand keys with
two kilobytes each."""
TOMBSTONES = 1_000
"""Removals that `watch` remembers; a watcher further behind gets a gap."""
POLL = 0.25
"""Seconds between polls of `watch`: a follower notices the end of a job about as soon as a person would."""


REPORTS_SHOWN = 900.0
"""Seconds after which the bytes of a realm's reports are no longer shown: a realm that does not report is not counted again."""


def fullest(reported: Mapping[str, tuple[int, float]], now: float) -> int:
    """The most bytes of any realm, of those counted lately. `reported`: bytes, and monotonic seconds of the count."""
    return max((used for used, at in reported.values() if now - at <= REPORTS_SHOWN), default=0)


class HeldLease(ABC):
    """A lease of this process, as the local stores need it."""

    id: str
    owner: str

    @property
    @abstractmethod
    def ended(self) -> bool: ...

    @property
    def deadline(self) -> float:
        return -math.inf if self.ended else math.inf

    @abstractmethod
    async def keep_alive(self) -> bool: ...

    @abstractmethod
    async def revoke(self) -> None: ...


class Beside(Protocol):
    """What a step may read besides the record, inside the same transaction."""

    def result(self, generation: int) -> Result | None: ...

    def intent(self, generation: int) -> Intent | None: ...

    def report(self, generation: int, attempt: int, reporter: str) -> Report | None: ...

    def reported(self, generation: int, attempt: int) -> ReportedSoFar: ...

    def realm_reported(self) -> int:
        """Bytes of all reports of the realm that are counted."""
        ...

    def full(self, limit: int) -> float | None:
        """None while the realm holds fewer live keys than `limit`; else the seconds until one of them expires."""
        ...

    def ended(self, lease: HeldLease) -> bool:
        """Whether the lease has ended according to the store, not to the process that holds it."""
        ...


@dataclass(frozen=True)
class Changes:
    """The result of one poll of `watch`: each changed key once, at its newest revision, in order."""

    seen: list[tuple[Address, int]]
    revision: int
    gap: bool
    unowned: frozenset[Address] = frozenset()
    """Seen keys whose claim ended while their record did not change."""
    ended: frozenset[Address] = frozenset()
    """Seen keys whose claim ended with a change of their record, or whose record was removed."""


def held(lease: Lease) -> HeldLease:
    if not isinstance(lease, HeldLease):
        raise TypeError(f"a lease of another store ({type(lease).__name__})")
    return lease


def _settled(seen: KeyState, beside: Beside) -> KeyState:
    """The state with the result, if the record is finalized."""
    if seen.record is None or seen.record.state is not State.FINALIZED:
        return seen
    return replace(seen, result=beside.result(seen.record.generation))


class Ledger(ABC):
    def __init__(self, *, max_live_keys: int, max_report_bytes: int, poll: float) -> None:
        self._max_live_keys, self._max_report_bytes = max_live_keys, max_report_bytes
        self._realms_reported: dict[str, tuple[int, float]] = {}
        self._poll = poll

    @abstractmethod
    def _step(self, address: Address, decide: Callable[[KeyState, Beside], VerbOutcome[T]]) -> T:
        """Reads, decides and writes as one step. Raises: RecordUnreadable, RecordTooNew: nothing was decided."""

    @abstractmethod
    def _changes(self, since: int) -> Changes: ...

    def _poll_once(self, since: int) -> Changes:
        """One poll of `watch`; a store whose leases end by a clock first records each claim ended by it as a change."""
        return self._changes(since)

    # ownership

    async def reserve(
        self, request: Request, *, lease: Lease, floor: int
    ) -> Owned | Duplicate | Mismatch | Moved | Refused:
        own = held(lease)

        def decide(seen: KeyState, beside: Beside) -> VerbOutcome[Owned | Duplicate | Mismatch | Moved | Refused]:
            new = seen.record is None and seen.floor == floor
            full = beside.full(self._max_live_keys) if new else None
            return rules.reserve(
                seen, request, lease=own.id, owner=own.owner, ended=beside.ended(own), floor=floor, full=full
            )

        return self._step(request.address, decide)

    async def take_over(self, record: Record, *, lease: Lease, nonce: str) -> Owned | Lost:
        own = held(lease)
        return self._step(
            record.address,
            lambda seen, beside: rules.take_over(
                seen, record, lease=own.id, owner=own.owner, ended=beside.ended(own), nonce=nonce
            ),
        )

    async def heartbeat(self, claim: Claim) -> Updated | Finalized | NotFound | LostOwnership:
        return self._step(claim.address, lambda seen, beside: rules.heartbeat(_settled(seen, beside), claim))

    async def drop(self, claim: Claim) -> None:
        return self._step(claim.address, lambda seen, _: rules.drop(seen, claim))

    async def update(
        self, record: Record, claim: Claim, changed: Record, *, event: Event | None = None
    ) -> Updated | Changed | LostOwnership | NotFound | Finalized:
        return self._step(
            record.address,
            lambda seen, beside: rules.update(_settled(seen, beside), record, claim, changed, event),
        )

    async def finalize(
        self, record: Record, claim: Claim, result: Result, *, retention: float
    ) -> Finalized | Changed | LostOwnership | NotFound | Conflict:
        return self._step(
            record.address,
            lambda seen, beside: rules.finalize(_settled(seen, beside), record, claim, result, retention),
        )

    async def reopen(self, record: Record, request: Request, *, lease: Lease) -> Owned | Duplicate | Lost | Refused:
        own = held(lease)
        return self._step(
            record.address,
            lambda seen, beside: rules.reopen(
                seen, record, request, lease=own.id, owner=own.owner, ended=beside.ended(own)
            ),
        )

    # without a claim

    async def attach(self, record: Record, uid: str) -> Attached | Changed | Finalized | NotFound:
        return self._step(record.address, lambda seen, beside: rules.attach(_settled(seen, beside), record, uid))

    async def request_stop(self, record: Record, stop: StopWanted) -> Updated | Changed | Finalized | NotFound:
        return self._step(record.address, lambda seen, beside: rules.request_stop(_settled(seen, beside), record, stop))

    async def seal(
        self, address: Address, *, generation: int, token: int, nonce: str, intent: Intent
    ) -> Sealed | Refused:
        def decide(seen: KeyState, beside: Beside) -> VerbOutcome[Sealed | Refused]:
            if seen.record is not None and seen.record.intent is not None:
                seen = replace(seen, intent=beside.intent(seen.record.generation))
            return rules.seal(seen, generation=generation, token=token, nonce=nonce, intent=intent)

        return self._step(address, decide)

    async def report(self, address: Address, generation: int, report: Report) -> bool:
        def decide(seen: KeyState, beside: Beside) -> VerbOutcome[bool]:
            existing = beside.report(generation, report.attempt, report.reporter)
            so_far, used = beside.reported(generation, report.attempt), beside.realm_reported()
            outcome, write = rules.report(
                seen, generation, report, existing, so_far, room=self._max_report_bytes - used
            )
            added = write.reported.size - so_far.size if write is not None and write.reported is not None else 0
            self._realms_reported[address.realm] = used + added, time.monotonic()
            return outcome, write

        return self._step(address, decide)

    def reports_ratio(self) -> float:
        """The fullest realm's bytes of reports, divided by the limit; this process counted them at each realm's last report."""
        return fullest(self._realms_reported, time.monotonic()) / self._max_report_bytes

    async def renew(self, address: Address, generation: int, beat: Beat) -> bool:
        return self._step(address, lambda seen, _: rules.renew(seen, generation, beat))

    async def watch(self, since: int) -> AsyncIterator[KeyChange]:
        import asyncio  # here: slow to import, and nothing else in a replay needs it

        while True:
            changes = self._poll_once(since)
            if changes.gap:
                yield KeyChange(None, changes.revision, gap=True)
            else:
                for address, revision in changes.seen:
                    yield KeyChange(
                        address, revision, unowned=address in changes.unowned, ended=address in changes.ended
                    )
            since = changes.revision
            await asyncio.sleep(self._poll)

    # ending

    async def purge(self, record: Record, *, now: float) -> Gone | Changed | Refused | NotFound:
        return self._step(record.address, lambda seen, _: rules.purge(seen, record, now))

    async def forget(self, record: Record, event: Event) -> Gone | Changed | Refused | NotFound:
        return self._step(record.address, lambda seen, _: rules.forget(seen, record, event))


# --- SQL

Row = Any
"""A database row, read by column name."""


class SqlReader(Protocol):
    """Runs statements of the store's `schema` by name on one connection."""

    def rows(self, statement: str, parameters: Mapping[str, Any] | None = None) -> list[Row]: ...

    def row(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Row:
        """The first row, by column name; None without one."""
        ...

    def value(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Any:
        """The first column of the first row; None without one."""
        ...


class Database(Protocol):
    def reading(self, *, snapshot: bool = False) -> AbstractContextManager[SqlReader]:
        """One statement is a consistent read by itself; `snapshot` makes several of them read one state."""
        ...


def at(address: Address) -> dict[str, Any]:
    """Parameters that select the rows of a key."""
    return {"at_realm": address.realm, "at_hash": address.key_hash}


def of(address: Address) -> dict[str, Any]:
    """Parameters that insert a row of a key."""
    return {"realm": address.realm, "key_hash": address.key_hash}


class KeyRow:
    """Reads one key within one transaction: its `KeyState`, and as `Beside` its other values."""

    def __init__(self, store: SqlLedger, address: Address, reader: SqlReader) -> None:
        self._store, self._address, self._reader = store, address, reader
        self.row: Row = reader.row("see", at(address))
        self.now = store.now_of(self.row)

    def seen(self) -> KeyState:
        row = self.row
        record = None
        if row["body"] is not None:
            record = record_of(self._address, row["body"], revision=row["record_revision"], epoch=row["epoch"])
        return self._with(record)

    def damaged(self) -> KeyState:
        """As `seen`; the record is also None where it cannot be read."""
        try:
            return self.seen()
        except RecordUnreadable:
            return self._with(None)

    def _with(self, record: Record | None) -> KeyState:
        row, address = self.row, self._address
        revision, epoch = row["revision"], row["epoch"]
        claim, stale = self._store.claim_of(address, row)
        return KeyState(
            record=record,
            claim=claim,
            stale=stale,
            floor=row["floor"] or 0,
            at=self.now,
            next=revision + 1,
            epoch=epoch,
        )

    def ended(self, lease: HeldLease) -> bool:
        return self._store.lease_ended(self._reader, lease)

    def body(self, kind: type[V], table: str, generation: int) -> V | None:
        text = self._reader.value(f"get {table}", at(self._address) | {"of": generation})
        return None if text is None else decode(kind, text, where=name(self._address))

    def result(self, generation: int) -> Result | None:
        return self.body(Result, "results", generation)

    def intent(self, generation: int) -> Intent | None:
        return self.body(Intent, "intents", generation)

    def report(self, generation: int, attempt: int, reporter: str) -> Report | None:
        asked = at(self._address) | {"of": generation, "in_attempt": attempt, "from_reporter": reporter}
        text = self._reader.value("get report", asked)
        return None if text is None else decode(Report, text, where=name(self._address))

    def reported(self, generation: int, attempt: int) -> ReportedSoFar:
        row = self._reader.row("get report size", at(self._address) | {"of": generation, "in_attempt": attempt})
        return ReportedSoFar() if row is None else ReportedSoFar(reports=row["reports"], size=row["bytes"])

    def realm_reported(self) -> int:
        return int(self._reader.value("reported in realm", {"in_realm": self._address.realm}) or 0)

    def full(self, limit: int) -> float | None:
        if (self.row["at_most"] or 0) < COUNTED_FROM * limit:  # ids count up: there were never that many records
            return None
        return self._full(limit)

    def _full(self, limit: int) -> float | None:
        asked = {"in_realm": self._address.realm, "at": self.now}

        def count() -> int:
            return int(self._reader.value("count realm", asked) - self._reader.value("count expired of realm", asked))

        if not self._store.live_keys.full(self._address.realm, limit, count):
            return None
        expires = self._reader.value("next expiry", asked)
        return RETRY_AFTER if expires is None else float(expires - self.now)


class SqlLedger(Ledger):
    _database: Database

    def __init__(self, *, max_live_keys: int, max_report_bytes: int, tombstones: int, poll: float) -> None:
        super().__init__(max_live_keys=max_live_keys, max_report_bytes=max_report_bytes, poll=poll)
        self._tombstones = tombstones

    @cached_property
    def live_keys(self) -> LiveKeys:
        return LiveKeys()

    def used(self) -> dict[str, float]:
        """`live_keys_ratio`, of the fullest realm, as far as its keys were counted. Reads nothing."""
        most = self.live_keys.most
        return {} if most is None else {"live_keys_ratio": most / self._max_live_keys}

    # --- what each store provides

    @abstractmethod
    def _step(
        self,
        address: Address,
        decide: Callable[[KeyState, Beside], VerbOutcome[T]],
        seen: Callable[[KeyRow], KeyState] = KeyRow.seen,
    ) -> T: ...

    @abstractmethod
    def now_of(self, row: Row) -> float:
        """Unix seconds of the store's clock when `row`, of `see` or `now`, was read."""

    @abstractmethod
    def claim_of(self, address: Address, row: Row) -> tuple[Claim | None, bool]:
        """The claim, unless its lease has ended; and whether anyone may take it."""

    @abstractmethod
    def lease_ended(self, reader: SqlReader, lease: HeldLease) -> bool: ...

    @abstractmethod
    def _stamp(self, row: Row) -> dict[str, Any]:
        """Values of `touched` and `boot` for a claim or an attempt's touch that is written now."""

    @abstractmethod
    def _age(self, row: Row) -> float:
        """Seconds since the touch in `row`, of `get beats`."""

    @abstractmethod
    def _clock_in(self, reader: SqlReader) -> float:
        """Unix seconds of the store's clock, in a transaction that has not read a key."""

    # --- writing

    def _write(self, transaction: SqlReader, key: KeyRow, address: Address, write: Write, *, revision: int) -> None:
        """Writes all of one step; the store's revision has been moved to `revision` if the step moves it."""
        by, row = at(address), key.row
        if write.remove:
            for table in ("records", "specs", "results", "intents", "reports", "report sizes", "beats"):
                transaction.rows(f"remove {table}", by)
        if write.record is not None:
            self._write_record(transaction, address, write.record, exists=row["body"] is not None)
        if row["lease"] is not None and (write.claim is not None or write.drop_claim):
            transaction.rows("remove claims", by)
        if (claim := write.claim) is not None:
            taken = {"lease": claim.lease, "owner": claim.owner, "revision": claim.revision, "nonce": claim.nonce}
            transaction.rows("insert claims", of(address) | taken | self._stamp(row))
        if write.touch:
            stamp = self._stamp(row)
            transaction.rows("touch claim", by | {"new_touch": stamp["touched"], "new_boot": stamp["boot"]})
        if write.floor is not None and write.floor != row["floor"]:
            transaction.rows("remove floors", by)
            transaction.rows("insert floors", of(address) | {"floor": write.floor})
        if write.drop_claim and write.record is None:
            self._bury(transaction, address, revision)
        part = of(address) | {"generation": write.generation}
        for table, value in (("specs", write.spec), ("results", write.result), ("intents", write.intent)):
            if value is not None:
                transaction.rows(f"insert {table}", part | {"body": encode(value)})
        if write.report is not None:
            self._write_report(transaction, address, write, write.report, revision)
        if write.beat is not None:
            self._write_beat(transaction, key, address, write.generation, write.beat)
        if write.event is not None:
            seq = (row["events"] or 0) + 1
            transaction.rows("insert events", of(address) | {"seq": seq, "body": encode(write.event)})
            if seq > EVENTS:
                transaction.rows("remove old events", by | {"up_to": seq - EVENTS})

    def _write_record(self, transaction: SqlReader, address: Address, record: Record, *, exists: bool) -> None:
        body, state, expiry = encode(record), record.state.value, record.expires_at
        if exists:
            values = {"new_revision": record.revision, "new_state": state, "new_expiry": expiry, "new_body": body}
            transaction.rows("change record", at(address) | values)
        else:
            values = {"revision": record.revision, "state": state, "expires_at": expiry, "body": body}
            transaction.rows("insert records", of(address) | values)

    def _write_report(
        self, transaction: SqlReader, address: Address, write: Write, report: Report, revision: int
    ) -> None:
        """A report, and how much its attempt has reported with it."""
        part = of(address) | {"generation": write.generation, "attempt": report.attempt}
        entry = {"reporter": report.reporter, "revision": revision, "body": encode(report)}
        transaction.rows("insert reports", part | entry)
        if (told := write.reported) is not None:
            of_attempt = {"of": write.generation, "in_attempt": report.attempt}
            transaction.rows("remove report size", at(address) | of_attempt)
            transaction.rows("insert report sizes", part | {"reports": told.reports, "bytes": told.size})

    def _write_beat(self, transaction: SqlReader, key: KeyRow, address: Address, generation: int, beat: Beat) -> None:
        whose = {"of": generation, "in_attempt": beat.attempt, "from_whom": beat.by}
        transaction.rows("remove beat", at(address) | whose)
        part = of(address) | {"generation": generation, "attempt": beat.attempt, "by": beat.by}
        transaction.rows("insert beats", part | {"body": encode(beat), "wall": key.now} | self._stamp(key.row))

    def _bury(self, transaction: SqlReader, address: Address, revision: int) -> None:
        """Notes for `watch` that this key lost its record or claim. The oldest notes are dropped and `meta.gap` raised."""
        transaction.rows("remove gone", at(address))
        transaction.rows("insert gone", of(address) | {"revision": revision})
        transaction.rows("raise gap", {"kept": self._tombstones})
        transaction.rows("remove old gone")

    # --- a record that cannot be read

    async def unreadable(self, address: Address) -> str | None:
        with self._database.reading() as reader:
            key = KeyRow(self, address, reader)
        return None if key.damaged().record is not None else key.row["body"]

    async def repair(
        self, address: Address, text: str, *, record: Record | None, generation: int, event: Event
    ) -> bool:
        def decide(seen: KeyState, beside: Beside) -> VerbOutcome[bool]:
            assert isinstance(beside, KeyRow)  # as every SQL store passes
            stored = beside.row["body"]
            return rules_of_repair(seen, stored, text, record=record, generation=generation, event=event)

        return self._step(address, decide, KeyRow.damaged)

    # --- reading

    async def load(self, address: Address) -> View:
        with self._database.reading() as reader:
            return KeyRow(self, address, reader).seen().view

    async def spec(self, address: Address, generation: int) -> SpecBody | None:
        return self._body(SpecBody, "specs", address, generation)

    async def result(self, address: Address, generation: int) -> Result | None:
        return self._body(Result, "results", address, generation)

    async def intent(self, address: Address, generation: int) -> Intent | None:
        return self._body(Intent, "intents", address, generation)

    def _body(self, kind: type[V], table: str, address: Address, generation: int) -> V | None:
        with self._database.reading() as reader:
            text = reader.value(f"get {table}", at(address) | {"of": generation})
        return None if text is None else decode(kind, text, where=name(address))

    async def reports(self, address: Address, generation: int) -> Sequence[Report]:
        with self._database.reading() as reader:
            rows = reader.rows("get reports", at(address) | {"of": generation})
        return [decode(Report, row["body"], where=name(address)) for row in rows]

    async def beats(self, address: Address, generation: int) -> Mapping[tuple[int, str], Beat]:
        with self._database.reading() as reader:
            rows = reader.rows("get beats", at(address) | {"of": generation})
        beats: dict[tuple[int, str], Beat] = {}
        for row in rows:
            beat = decode(Beat, row["body"], where=name(address))
            beats[row["attempt"], row["by"]] = beat.model_copy(update={"age": self._age(row)})
        return beats

    async def events(self, address: Address) -> Sequence[Event]:
        with self._database.reading() as reader:
            rows = reader.rows("get events", at(address))
        return [decode(Event, row["body"], where=name(address)) for row in rows]

    async def list(self, query: Query) -> Page:
        after_realm, after_hash = position_of(query.after)
        asked: dict[str, Any] = {
            "any_realm": int(query.realm is None),
            "in_realm": query.realm,
            "any_state": int(not query.states),
            "prefix": query.hash_prefix,
            "after_realm": after_realm,
            "after_hash": after_hash,
            "at_most": query.limit + 1,
        }
        for number, state in enumerate(State):
            asked[f"state{number}"] = state.value if state in query.states else None
        with self._database.reading(snapshot=True) as reader:
            rows = reader.rows("list", asked)
            epoch = reader.row("meta")["epoch"]
        found = [(Address(realm=row["realm"], key_hash=row["key_hash"]), row["body"], row["revision"]) for row in rows]
        return listed(found[: query.limit], epoch=epoch, more=len(found) > query.limit)

    async def realms(self) -> Sequence[str]:
        with self._database.reading() as reader:
            return [row["realm"] for row in reader.rows("realms")]

    async def count(self, *, realm: str | None = None, live_only: bool = False) -> int:
        asked: dict[str, Any] = {"in_realm": realm}
        all_of, expired_of = ("count", "count expired") if realm is None else ("count realm", "count expired of realm")
        with self._database.reading(snapshot=True) as reader:
            number = reader.value(all_of, asked)
            expired = reader.value(expired_of, asked | {"at": self._clock_in(reader)}) if live_only else 0
        return int(number - expired)

    def _changes(self, since: int) -> Changes:
        return self.changes(since, self._database)

    def changes(self, since: int, database: Database) -> Changes:
        """The changes after a revision, read over this pool of the store's connections."""
        with database.reading(snapshot=True) as reader:
            meta = reader.row("meta")
            revision = meta["revision"]
            rows = reader.rows("changes", {"since": since}) if revision != since else []
            unowned, ended = self._endings(reader, since) if rows else (frozenset(), frozenset())
        seen = [(Address(realm=row["realm"], key_hash=row["key_hash"]), row["at"]) for row in rows]
        return Changes(seen, revision, since < meta["gap"] or since > revision, unowned, ended)

    def _endings(self, reader: SqlReader, since: int) -> tuple[frozenset[Address], frozenset[Address]]:  # noqa: ARG002 - a default
        """`Changes.unowned` and `Changes.ended`; nothing, where a store does not see claims end."""
        return frozenset(), frozenset()
