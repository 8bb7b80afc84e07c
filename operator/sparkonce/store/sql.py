"""The durable store: records in SQL, leases as file locks beside the ledger.

One step is one write transaction that begins with the only write lock, so "read, decide, write" needs no further compare. Everything that
is a dialect's own is in `sqlite`, everything that is a table in `sql_tables`, every decision in `rules`; PostgreSQL joins with a database
and leases of its own.

Ages (of claims and of an attempt's touches) come from the monotonic clock and the boot id: a laptop that slept, or a clock that was set,
makes nothing stale. Expiry and the times in records come from the wall clock, because a person reads them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from sparkonce.model.record import Address, Beat, Event, Intent, Record, Report, SpecBody, State, Value
from sparkonce.model.result import Result
from sparkonce.store.codec import decode, encode, listed, name, position_of, record_of
from sparkonce.store.lease_files import FileLease, LeaseFiles
from sparkonce.store.ledger import EVENTS, LIVE_KEYS, POLL, TOMBSTONES, Beside, Changes, Ledger
from sparkonce.store.protocol import Claim, Page, Query, View
from sparkonce.store.rules import RETRY_AFTER
from sparkonce.store.sqlite import Look, SqliteDatabase, Transaction
from sparkonce.store.step import Decision, Seen, Write

T = TypeVar("T")
V = TypeVar("V", bound=Value)

STALE_AFTER = 30.0
"""Seconds without a touch after which a claim may be taken although its process holds the lock: it is frozen, or it hangs."""

_Row = Any
"""Of a database: read by column name, which types cannot follow."""


@cache
def boot_id() -> str:
    """Monotonic clocks of different boots cannot be compared."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""  # not Linux: a lock never outlives a boot, so a claim of an older one is dead anyway


def _at(address: Address) -> dict[str, Any]:
    """To find a row by."""
    return {"at_realm": address.realm, "at_hash": address.key_hash}


def _of(address: Address) -> dict[str, Any]:
    """To insert a row with."""
    return {"realm": address.realm, "key_hash": address.key_hash}


class _KeyLook:
    """What one transaction reads of one key: `Seen`, and `Beside` for what is asked for besides."""

    def __init__(self, store: SqlStore, address: Address, look: Look) -> None:
        self._store, self._address, self._look = store, address, look
        self.row: _Row = look.row("see", _at(address))

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
            at=self._store.clock(),
            next=revision + 1,
            epoch=epoch,
        )

    def body(self, kind: type[V], table: str, generation: int) -> V | None:
        text = self._look.value(f"get {table}", _at(self._address) | {"of": generation})
        return None if text is None else decode(kind, text, where=name(self._address))

    def result(self, generation: int) -> Result | None:
        return self.body(Result, "results", generation)

    def intent(self, generation: int) -> Intent | None:
        return self.body(Intent, "intents", generation)

    def report(self, generation: int, attempt: int, reporter: str) -> Report | None:
        asked = _at(self._address) | {"of": generation, "in_attempt": attempt, "from_reporter": reporter}
        text = self._look.value("get report", asked)
        return None if text is None else decode(Report, text, where=name(self._address))

    def full(self, limit: int) -> float | None:
        if (self.row["at_most"] or 0) < limit:  # ids count up: that many records were never there
            return None
        asked = {"in_realm": self._address.realm, "at": self._store.clock()}
        live = self._look.value("count realm", asked) - self._look.value("count expired of realm", asked)
        if live < limit:
            return None
        expires = self._look.value("next expiry", asked)
        return RETRY_AFTER if expires is None else float(expires - asked["at"])


class SqlStore(Ledger):
    def __init__(
        self,
        path: Path | str,
        *,
        install: str = "local",
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        stale_after: float = STALE_AFTER,
        max_live_keys: int = LIVE_KEYS,
        tombstones: int = TOMBSTONES,
        poll: float = POLL,
        synchronous: str = "FULL",
        busy_timeout: float | None = None,
        mounts: str | None = None,
    ) -> None:
        """StoreUnusable, StoreUnavailable. `synchronous`: other than FULL for tests alone; `mounts`: as `SqliteDatabase`."""
        super().__init__(max_live_keys=max_live_keys, poll=poll)
        patience = {} if busy_timeout is None else {"busy_timeout": busy_timeout}
        self._database = SqliteDatabase(Path(path), synchronous=synchronous, mounts=mounts, **patience)
        self._database.prepare(install)
        self.path = self._database.path
        self.url = f"sqlite:///{self.path}"
        self.clock = clock
        self._monotonic, self._stale_after, self._tombstones = monotonic, stale_after, tombstones
        self._leases = LeaseFiles(self.path.with_name(self.path.name + ".leases"))

    async def close(self) -> None:
        self._database.close()

    def damage(self) -> str:
        """What is wrong in the ledger's file; empty when nothing is. Reads all of it: for `sparkonce doctor`."""
        return self._database.damage()

    async def now(self) -> float:
        return self.clock()

    # --- leases

    async def open_lease(self, *, owner: str) -> FileLease:
        return self._leases.open(owner=owner, touch=self._touch_lease, forget=self._forget_lease)

    def _stamp(self) -> dict[str, Any]:
        return {"new_touch": self._monotonic(), "new_boot": boot_id()}

    def _touch_lease(self, lease: str) -> None:
        with self._database.writing() as transaction:
            transaction.rows("touch lease", {"of_lease": lease} | self._stamp())
            transaction.commit()

    def _forget_lease(self, lease: str) -> None:
        with self._database.writing() as transaction:
            rows = transaction.rows("claims of lease", {"of_lease": lease})
            revision = transaction.row("meta")["revision"]
            for row in rows:
                revision += 1
                address = Address(realm=row["realm"], key_hash=row["key_hash"])
                transaction.rows("move", {"next": revision})
                transaction.rows("remove claims", _at(address))
                self._bury(transaction, address, revision)
            if rows:
                transaction.commit()

    def claim_of(self, address: Address, row: _Row) -> tuple[Claim | None, bool]:
        """The claim, unless its lease has ended; and whether anyone may take it."""
        if row["lease"] is None or row["boot"] != boot_id() or not self._leases.held(row["lease"]):
            return None, False
        claim = Claim(
            address=address, lease=row["lease"], owner=row["owner"], revision=row["claim_revision"], nonce=row["nonce"]
        )
        return claim, self._monotonic() - row["touched"] > self._stale_after

    # --- the step

    def _step(self, address: Address, decide: Callable[[Seen, Beside], Decision[T]]) -> T:
        with self._database.writing() as transaction:
            look = _KeyLook(self, address, transaction)
            seen = look.seen()
            outcome, write = decide(seen, look)
            if write is not None:
                self._write(transaction, address, look.row, write)
                transaction.commit()
        return outcome

    def _write(self, transaction: Transaction, address: Address, row: _Row, write: Write) -> None:
        at, of, revision = _at(address), _of(address), row["revision"] + 1
        if write.moves:
            transaction.rows("move", {"next": revision})
        if write.remove:
            for table in ("records", "specs", "results", "intents", "reports", "beats"):
                transaction.rows(f"remove {table}", at)
        if write.record is not None:
            self._write_record(transaction, address, write.record, exists=row["body"] is not None)
        if row["lease"] is not None and (write.claim is not None or write.drop_claim):
            transaction.rows("remove claims", at)
        if (claim := write.claim) is not None:
            taken = {"lease": claim.lease, "owner": claim.owner, "revision": claim.revision, "nonce": claim.nonce}
            stamp = {"touched": self._monotonic(), "boot": boot_id()}
            transaction.rows("insert claims", of | taken | stamp)
        if write.touch:
            transaction.rows("touch claim", at | self._stamp())
        if write.floor is not None and write.floor != row["floor"]:
            transaction.rows("remove floors", at)
            transaction.rows("insert floors", of | {"floor": write.floor})
        if write.drop_claim and write.record is None:
            self._bury(transaction, address, revision)
        self._write_beside(transaction, address, write, revision)
        if write.event is not None:
            seq = (row["events"] or 0) + 1
            transaction.rows("insert events", of | {"seq": seq, "body": encode(write.event)})
            if seq > EVENTS:
                transaction.rows("remove old events", at | {"up_to": seq - EVENTS})

    def _write_record(self, transaction: Transaction, address: Address, record: Record, *, exists: bool) -> None:
        body, state, expiry = encode(record), record.state.value, record.expires_at
        if exists:
            values = {"new_revision": record.revision, "new_state": state, "new_expiry": expiry, "new_body": body}
            transaction.rows("change record", _at(address) | values)
        else:
            values = {"revision": record.revision, "state": state, "expires_at": expiry, "body": body}
            transaction.rows("insert records", _of(address) | values)

    def _write_beside(self, transaction: Transaction, address: Address, write: Write, revision: int) -> None:
        part = _of(address) | {"generation": write.generation}
        for table, value in (("specs", write.spec), ("results", write.result), ("intents", write.intent)):
            if value is not None:
                transaction.rows(f"insert {table}", part | {"body": encode(value)})
        if (report := write.report) is not None:
            entry = {"attempt": report.attempt, "reporter": report.reporter, "revision": revision}
            transaction.rows("insert reports", part | entry | {"body": encode(report)})
        if (beat := write.beat) is not None:
            whose = {"of": write.generation, "in_attempt": beat.attempt, "from_whom": beat.by}
            entry = {"attempt": beat.attempt, "by": beat.by, "body": encode(beat)}
            stamp = {"wall": self.clock(), "touched": self._monotonic(), "boot": boot_id()}
            transaction.rows("remove beat", _at(address) | whose)
            transaction.rows("insert beats", part | entry | stamp)

    def _bury(self, transaction: Transaction, address: Address, revision: int) -> None:
        """For `watch`: something of this key was removed. The oldest removals are forgotten, and that is noted."""
        transaction.rows("remove gone", _at(address))
        transaction.rows("insert gone", _of(address) | {"revision": revision})
        transaction.rows("raise gap", {"kept": self._tombstones})
        transaction.rows("remove old gone")

    # --- reading

    async def load(self, address: Address) -> View:
        with self._database.reading() as look:
            return _KeyLook(self, address, look).seen().view

    async def spec(self, address: Address, generation: int) -> SpecBody | None:
        return self._body(SpecBody, "specs", address, generation)

    async def result(self, address: Address, generation: int) -> Result | None:
        return self._body(Result, "results", address, generation)

    async def intent(self, address: Address, generation: int) -> Intent | None:
        return self._body(Intent, "intents", address, generation)

    def _body(self, kind: type[V], table: str, address: Address, generation: int) -> V | None:
        with self._database.reading() as look:
            text = look.value(f"get {table}", _at(address) | {"of": generation})
        return None if text is None else decode(kind, text, where=name(address))

    async def reports(self, address: Address, generation: int) -> Sequence[Report]:
        with self._database.reading() as look:
            rows = look.rows("get reports", _at(address) | {"of": generation})
        return [decode(Report, row["body"], where=name(address)) for row in rows]

    async def beats(self, address: Address, generation: int) -> Mapping[tuple[int, str], Beat]:
        with self._database.reading() as look:
            rows = look.rows("get beats", _at(address) | {"of": generation})
        beats: dict[tuple[int, str], Beat] = {}
        for row in rows:
            beat = decode(Beat, row["body"], where=name(address))
            beats[row["attempt"], row["by"]] = beat.model_copy(update={"age": self._age(row)})
        return beats

    def _age(self, row: _Row) -> float:
        now, touched, wall = self._monotonic(), float(row["touched"]), float(row["wall"])
        if row["boot"] == boot_id():
            return max(0.0, now - touched)
        return max(self.clock() - wall, now)  # at least as old as this boot

    async def events(self, address: Address) -> Sequence[Event]:
        with self._database.reading() as look:
            rows = look.rows("get events", _at(address))
        return [decode(Event, row["body"], where=name(address)) for row in rows]

    async def list(self, query: Query) -> Page:
        after_realm, after_hash = position_of(query.after)
        asked: dict[str, Any] = {
            "any_realm": query.realm is None,
            "in_realm": query.realm,
            "any_state": not query.states,
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
        asked = {"in_realm": realm, "at": self.clock()}
        of = "" if realm is None else " of realm"
        with self._database.reading(snapshot=True) as look:
            number = look.value("count" if realm is None else "count realm", asked)
            expired = look.value(f"count expired{of}", asked) if live_only else 0
        return int(number - expired)

    def _changes(self, since: int) -> Changes:
        with self._database.reading(snapshot=True) as look:
            meta = look.row("meta")
            revision = meta["revision"]
            rows = look.rows("changes", {"since": since}) if revision != since else []
        seen = [(Address(realm=row["realm"], key_hash=row["key_hash"]), row["at"]) for row in rows]
        return Changes(seen, revision, since < meta["gap"] or since > revision)
