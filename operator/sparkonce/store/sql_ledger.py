"""The verbs over SQL statements: what every SQL store does alike, whatever its dialect, its clock and its leases.

A step reads what stands at a key in one look (`see`), asks `rules`, and writes; a dialect brings the transaction that makes this one step,
the clock of a look, and what a living lease is. Statements are named here and spelled out in `sql_tables`, so that this module imports
neither SQLAlchemy nor a driver: a replay on a laptop pays for neither.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from sparkonce.model.record import Address, Beat, Event, Intent, Record, Report, SpecBody, State, Value
from sparkonce.model.result import Result
from sparkonce.store.codec import decode, encode, listed, name, position_of, record_of
from sparkonce.store.ledger import EVENTS, Beside, Changes, HeldLease, Ledger
from sparkonce.store.protocol import Claim, Page, Query, View
from sparkonce.store.rules import RETRY_AFTER
from sparkonce.store.step import Decision, Seen, Write

T = TypeVar("T")
V = TypeVar("V", bound=Value)

Row = Any
"""Of a database: read by column name, which types cannot follow."""


class Look(Protocol):
    """Statements, by their name in `sql_tables`, on one connection."""

    def rows(self, statement: str, parameters: Mapping[str, Any] | None = None) -> list[Row]: ...

    def row(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Row:
        """The first row, by column name; None without one."""
        ...

    def value(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Any:
        """The first column of the first row; None without one."""
        ...


class Database(Protocol):
    def reading(self, *, snapshot: bool = False) -> AbstractContextManager[Look]:
        """One statement is a consistent look by itself; `snapshot` makes several of them one."""
        ...


def at(address: Address) -> dict[str, Any]:
    """To find a row by."""
    return {"at_realm": address.realm, "at_hash": address.key_hash}


def of(address: Address) -> dict[str, Any]:
    """To insert a row with."""
    return {"realm": address.realm, "key_hash": address.key_hash}


class KeyLook:
    """What one transaction reads of one key: `Seen`, and `Beside` for what is asked for besides."""

    def __init__(self, store: SqlLedger, address: Address, look: Look) -> None:
        self._store, self._address, self._look = store, address, look
        self.row: Row = look.row("see", at(address))
        self.now = store.now_of(self.row)

    def seen(self) -> Seen:
        row, address = self.row, self._address
        revision, epoch, record = row["revision"], row["epoch"], None
        if row["body"] is not None:
            record = record_of(address, row["body"], revision=row["record_revision"], epoch=epoch)
        claim, stale = self._store.claim_of(address, row)
        return Seen(
            record=record,
            claim=claim,
            stale=stale,
            floor=row["floor"] or 0,
            at=self.now,
            next=revision + 1,
            epoch=epoch,
        )

    def ended(self, lease: HeldLease) -> bool:
        return self._store.lease_ended(self._look, lease)

    def body(self, kind: type[V], table: str, generation: int) -> V | None:
        text = self._look.value(f"get {table}", at(self._address) | {"of": generation})
        return None if text is None else decode(kind, text, where=name(self._address))

    def result(self, generation: int) -> Result | None:
        return self.body(Result, "results", generation)

    def intent(self, generation: int) -> Intent | None:
        return self.body(Intent, "intents", generation)

    def report(self, generation: int, attempt: int, reporter: str) -> Report | None:
        asked = at(self._address) | {"of": generation, "in_attempt": attempt, "from_reporter": reporter}
        text = self._look.value("get report", asked)
        return None if text is None else decode(Report, text, where=name(self._address))

    def full(self, limit: int) -> float | None:
        if (self.row["at_most"] or 0) < limit:  # ids count up: that many records were never there
            return None
        asked = {"in_realm": self._address.realm, "at": self.now}
        live = self._look.value("count realm", asked) - self._look.value("count expired of realm", asked)
        if live < limit:
            return None
        expires = self._look.value("next expiry", asked)
        return RETRY_AFTER if expires is None else float(expires - self.now)


class SqlLedger(Ledger):
    _database: Database

    def __init__(self, *, max_live_keys: int, tombstones: int, poll: float) -> None:
        super().__init__(max_live_keys=max_live_keys, poll=poll)
        self._tombstones = tombstones

    # --- what a dialect brings

    @abstractmethod
    def _step(self, address: Address, decide: Callable[[Seen, Beside], Decision[T]]) -> T: ...

    @abstractmethod
    def now_of(self, row: Row) -> float:
        """Unix seconds of the store's clock at the look that read `row`, of `see` or `now`."""

    @abstractmethod
    def claim_of(self, address: Address, row: Row) -> tuple[Claim | None, bool]:
        """The claim, unless its lease has ended; and whether anyone may take it."""

    @abstractmethod
    def lease_ended(self, look: Look, lease: HeldLease) -> bool: ...

    @abstractmethod
    def _stamp(self, row: Row) -> dict[str, Any]:
        """`touched` and `boot` of a claim or an attempt's touch that is written now."""

    @abstractmethod
    def _age(self, row: Row) -> float:
        """Seconds since the touch that `row` of `get beats` is."""

    @abstractmethod
    def _clock_in(self, look: Look) -> float:
        """Unix seconds of the store's clock, in a transaction that has not looked at a key."""

    # --- writing

    def _write(self, transaction: Look, key: KeyLook, address: Address, write: Write, *, revision: int) -> None:
        """All of one step; the store's revision has been moved to `revision` if the step moves it."""
        by, row = at(address), key.row
        if write.remove:
            for table in ("records", "specs", "results", "intents", "reports", "beats"):
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
        self._write_beside(transaction, key, address, write, revision)
        if write.event is not None:
            seq = (row["events"] or 0) + 1
            transaction.rows("insert events", of(address) | {"seq": seq, "body": encode(write.event)})
            if seq > EVENTS:
                transaction.rows("remove old events", by | {"up_to": seq - EVENTS})

    def _write_record(self, transaction: Look, address: Address, record: Record, *, exists: bool) -> None:
        body, state, expiry = encode(record), record.state.value, record.expires_at
        if exists:
            values = {"new_revision": record.revision, "new_state": state, "new_expiry": expiry, "new_body": body}
            transaction.rows("change record", at(address) | values)
        else:
            values = {"revision": record.revision, "state": state, "expires_at": expiry, "body": body}
            transaction.rows("insert records", of(address) | values)

    def _write_beside(self, transaction: Look, key: KeyLook, address: Address, write: Write, revision: int) -> None:
        part = of(address) | {"generation": write.generation}
        for table, value in (("specs", write.spec), ("results", write.result), ("intents", write.intent)):
            if value is not None:
                transaction.rows(f"insert {table}", part | {"body": encode(value)})
        if (report := write.report) is not None:
            entry = {"attempt": report.attempt, "reporter": report.reporter, "revision": revision}
            transaction.rows("insert reports", part | entry | {"body": encode(report)})
        if (beat := write.beat) is not None:
            whose = {"of": write.generation, "in_attempt": beat.attempt, "from_whom": beat.by}
            entry = {"attempt": beat.attempt, "by": beat.by, "body": encode(beat), "wall": key.now}
            transaction.rows("remove beat", at(address) | whose)
            transaction.rows("insert beats", part | entry | self._stamp(key.row))

    def _bury(self, transaction: Look, address: Address, revision: int) -> None:
        """For `watch`: something of this key was removed. The oldest removals are forgotten, and that is noted."""
        transaction.rows("remove gone", at(address))
        transaction.rows("insert gone", of(address) | {"revision": revision})
        transaction.rows("raise gap", {"kept": self._tombstones})
        transaction.rows("remove old gone")

    # --- reading

    async def load(self, address: Address) -> View:
        with self._database.reading() as look:
            return KeyLook(self, address, look).seen().view

    async def spec(self, address: Address, generation: int) -> SpecBody | None:
        return self._body(SpecBody, "specs", address, generation)

    async def result(self, address: Address, generation: int) -> Result | None:
        return self._body(Result, "results", address, generation)

    async def intent(self, address: Address, generation: int) -> Intent | None:
        return self._body(Intent, "intents", address, generation)

    def _body(self, kind: type[V], table: str, address: Address, generation: int) -> V | None:
        with self._database.reading() as look:
            text = look.value(f"get {table}", at(address) | {"of": generation})
        return None if text is None else decode(kind, text, where=name(address))

    async def reports(self, address: Address, generation: int) -> Sequence[Report]:
        with self._database.reading() as look:
            rows = look.rows("get reports", at(address) | {"of": generation})
        return [decode(Report, row["body"], where=name(address)) for row in rows]

    async def beats(self, address: Address, generation: int) -> Mapping[tuple[int, str], Beat]:
        with self._database.reading() as look:
            rows = look.rows("get beats", at(address) | {"of": generation})
        beats: dict[tuple[int, str], Beat] = {}
        for row in rows:
            beat = decode(Beat, row["body"], where=name(address))
            beats[row["attempt"], row["by"]] = beat.model_copy(update={"age": self._age(row)})
        return beats

    async def events(self, address: Address) -> Sequence[Event]:
        with self._database.reading() as look:
            rows = look.rows("get events", at(address))
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
        with self._database.reading(snapshot=True) as look:
            rows = look.rows("list", asked)
            epoch = look.row("meta")["epoch"]
        found = [(Address(realm=row["realm"], key_hash=row["key_hash"]), row["body"], row["revision"]) for row in rows]
        return listed(found[: query.limit], epoch=epoch, more=len(found) > query.limit)

    async def count(self, *, realm: str | None = None, live_only: bool = False) -> int:
        asked: dict[str, Any] = {"in_realm": realm}
        all_of, expired_of = ("count", "count expired") if realm is None else ("count realm", "count expired of realm")
        with self._database.reading(snapshot=True) as look:
            number = look.value(all_of, asked)
            expired = look.value(expired_of, asked | {"at": self._clock_in(look)}) if live_only else 0
        return int(number - expired)

    def _changes(self, since: int) -> Changes:
        with self._database.reading(snapshot=True) as look:
            meta = look.row("meta")
            revision = meta["revision"]
            rows = look.rows("changes", {"since": since}) if revision != since else []
            unowned, ended = self._endings(look, since) if rows else (frozenset(), frozenset())
        seen = [(Address(realm=row["realm"], key_hash=row["key_hash"]), row["at"]) for row in rows]
        return Changes(seen, revision, since < meta["gap"] or since > revision, unowned, ended)

    def _endings(self, look: Look, since: int) -> tuple[frozenset[Address], frozenset[Address]]:  # noqa: ARG002 - a default
        """`Changes.unowned` and `Changes.ended`; nothing, where a store does not see claims end."""
        return frozenset(), frozenset()
