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

from sqlalchemy import Connection, CursorResult, Executable, func, select, tuple_

from sparkonce.model.record import Address, Beat, Event, Intent, Record, Report, SpecBody, State, Value
from sparkonce.model.result import Result
from sparkonce.store import sql_tables as sql
from sparkonce.store.codec import decode, encode, listed, name, position_of, record_of
from sparkonce.store.lease_files import FileLease, LeaseFiles
from sparkonce.store.ledger import EVENTS, LIVE_KEYS, POLL, TOMBSTONES, Beside, Changes, Ledger
from sparkonce.store.protocol import Claim, Page, Query, View
from sparkonce.store.rules import RETRY_AFTER, Decision, Seen, Write
from sparkonce.store.sqlite import SqliteDatabase, Transaction

T = TypeVar("T")
V = TypeVar("V", bound=Value)

STALE_AFTER = 30.0
"""Seconds without a touch after which a claim may be taken although its process holds the lock: it is frozen, or it hangs."""

_Row = Any
"""Rows are read by column name, which types cannot follow through SQLAlchemy."""
Run = Callable[[Executable, Mapping[str, Any]], CursorResult[Any]]


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


class _Look:
    """What one transaction reads of one key: `Seen`, and `Beside` for what is asked for besides."""

    def __init__(self, store: SqlStore, address: Address, run: Run) -> None:
        self._store, self._address, self._run = store, address, run
        self.row: _Row = run(sql.SEE, _at(address)).one()

    def seen(self) -> Seen:
        row, address = self.row, self._address
        record = None
        if row.body is not None:
            record = record_of(address, row.body, revision=row.record_revision, epoch=row.epoch)
        claim, stale = self._store.claim_of(address, row)
        return Seen(
            record=record,
            claim=claim,
            stale=stale,
            floor=row.floor or 0,
            at=self._store.clock(),
            next=row.revision + 1,
            epoch=row.epoch,
        )

    def _body(self, kind: type[V], table: str, generation: int) -> V | None:
        text = self._run(sql.BODY[table], _at(self._address) | {"of": generation}).scalar()
        return None if text is None else decode(kind, text, where=name(self._address))

    def spec(self, generation: int) -> SpecBody | None:
        return self._body(SpecBody, "specs", generation)

    def result(self, generation: int) -> Result | None:
        return self._body(Result, "results", generation)

    def intent(self, generation: int) -> Intent | None:
        return self._body(Intent, "intents", generation)

    def report(self, generation: int, attempt: int, reporter: str) -> Report | None:
        asked = _at(self._address) | {"of": generation, "in_attempt": attempt, "from_reporter": reporter}
        text = self._run(sql.REPORT, asked).scalar()
        return None if text is None else decode(Report, text, where=name(self._address))

    def full(self, limit: int) -> float | None:
        if (self.row.at_most or 0) < limit:  # ids count up: that many records were never there
            return None
        asked = {"in_realm": self._address.realm, "at": self._store.clock()}
        live = self._run(sql.COUNT_REALM, asked).scalar_one() - self._run(sql.COUNT_EXPIRED, asked).scalar_one()
        if live < limit:
            return None
        expires = self._run(sql.NEXT_EXPIRY, asked).scalar()
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

    async def now(self) -> float:
        return self.clock()

    # --- leases

    async def open_lease(self, *, owner: str) -> FileLease:
        return self._leases.open(owner=owner, touch=self._touch_lease, forget=self._forget_lease)

    def _stamp(self) -> dict[str, Any]:
        return {"new_touch": self._monotonic(), "new_boot": boot_id()}

    def _touch_lease(self, lease: str) -> None:
        with self._database.writing() as transaction:
            transaction.run(sql.TOUCH_LEASE, {"of_lease": lease} | self._stamp())
            transaction.commit()

    def _forget_lease(self, lease: str) -> None:
        with self._database.writing() as transaction:
            rows: Sequence[_Row] = transaction.run(sql.CLAIMS_OF_LEASE, {"of_lease": lease}).all()
            revision = transaction.run(sql.META).one().revision
            for row in rows:
                revision += 1
                address = Address(realm=row.realm, key_hash=row.key_hash)
                transaction.run(sql.MOVE, {"next": revision})
                transaction.run(sql.REMOVE["claims"], _at(address))
                self._bury(transaction, address, revision)
            if rows:
                transaction.commit()

    def claim_of(self, address: Address, row: _Row) -> tuple[Claim | None, bool]:
        """The claim, unless its lease has ended; and whether anyone may take it."""
        if row.lease is None or row.boot != boot_id() or not self._leases.held(row.lease):
            return None, False
        claim = Claim(address=address, lease=row.lease, owner=row.owner, revision=row.claim_revision, nonce=row.nonce)
        return claim, self._monotonic() - row.touched > self._stale_after

    # --- the step

    def _step(self, address: Address, decide: Callable[[Seen, Beside], Decision[T]]) -> T:
        with self._database.writing() as transaction:
            look = _Look(self, address, transaction.run)
            seen = look.seen()
            outcome, write = decide(seen, look)
            if write is not None:
                self._write(transaction, address, look.row, write)
                transaction.commit()
        return outcome

    def _write(self, transaction: Transaction, address: Address, row: _Row, write: Write) -> None:
        at, of, revision = _at(address), _of(address), row.revision + 1
        if write.moves:
            transaction.run(sql.MOVE, {"next": revision})
        if write.remove:
            for table in (sql.records, *sql.beside):
                transaction.run(sql.REMOVE[table.name], at)
        if write.record is not None:
            self._write_record(transaction, address, write.record, exists=row.body is not None)
        if row.lease is not None and (write.claim is not None or write.drop_claim):
            transaction.run(sql.REMOVE["claims"], at)
        if (claim := write.claim) is not None:
            taken = {"lease": claim.lease, "owner": claim.owner, "revision": claim.revision, "nonce": claim.nonce}
            stamp = {"touched": self._monotonic(), "boot": boot_id()}
            transaction.run(sql.INSERT["claims"], of | taken | stamp)
        if write.touch:
            transaction.run(sql.TOUCH_CLAIM, at | self._stamp())
        if write.floor is not None and write.floor != row.floor:
            transaction.run(sql.REMOVE["floors"], at)
            transaction.run(sql.INSERT["floors"], of | {"floor": write.floor})
        if write.drop_claim and write.record is None:
            self._bury(transaction, address, revision)
        self._write_beside(transaction, address, write, revision)
        if write.event is not None:
            seq = (row.events or 0) + 1
            transaction.run(sql.INSERT["events"], of | {"seq": seq, "body": encode(write.event)})
            if seq > EVENTS:
                transaction.run(sql.REMOVE_OLD_EVENTS, at | {"up_to": seq - EVENTS})

    def _write_record(self, transaction: Transaction, address: Address, record: Record, *, exists: bool) -> None:
        body, state, expiry = encode(record), record.state.value, record.expires_at
        if exists:
            values = {"new_revision": record.revision, "new_state": state, "new_expiry": expiry, "new_body": body}
            transaction.run(sql.CHANGE_RECORD, _at(address) | values)
        else:
            values = {"revision": record.revision, "state": state, "expires_at": expiry, "body": body}
            transaction.run(sql.INSERT["records"], _of(address) | values)

    def _write_beside(self, transaction: Transaction, address: Address, write: Write, revision: int) -> None:
        part = _of(address) | {"generation": write.generation}
        for table, value in (("specs", write.spec), ("results", write.result), ("intents", write.intent)):
            if value is not None:
                transaction.run(sql.INSERT[table], part | {"body": encode(value)})
        if (report := write.report) is not None:
            entry = {"attempt": report.attempt, "reporter": report.reporter, "revision": revision}
            transaction.run(sql.INSERT["reports"], part | entry | {"body": encode(report)})
        if (beat := write.beat) is not None:
            whose = {"of": write.generation, "in_attempt": beat.attempt, "from_whom": beat.by}
            entry = {"attempt": beat.attempt, "by": beat.by, "body": encode(beat)}
            stamp = {"wall": self.clock(), "touched": self._monotonic(), "boot": boot_id()}
            transaction.run(sql.REMOVE_BEAT, _at(address) | whose)
            transaction.run(sql.INSERT["beats"], part | entry | stamp)

    def _bury(self, transaction: Transaction, address: Address, revision: int) -> None:
        """For `watch`: something of this key was removed. The oldest removals are forgotten, and that is noted."""
        transaction.run(sql.REMOVE["gone"], _at(address))
        transaction.run(sql.INSERT["gone"], _of(address) | {"revision": revision})
        if transaction.run(sql.RAISE_GAP, {"kept": self._tombstones}).rowcount:
            transaction.run(sql.REMOVE_OLD_GONE)

    # --- reading

    def _look(self, connection: Connection, address: Address) -> _Look:
        return _Look(self, address, connection.execute)

    async def load(self, address: Address) -> View:
        with self._database.reading() as connection:
            return self._look(connection, address).seen().view

    async def spec(self, address: Address, generation: int) -> SpecBody | None:
        return self._one(SpecBody, "specs", address, generation)

    async def result(self, address: Address, generation: int) -> Result | None:
        return self._one(Result, "results", address, generation)

    async def intent(self, address: Address, generation: int) -> Intent | None:
        return self._one(Intent, "intents", address, generation)

    def _one(self, kind: type[V], table: str, address: Address, generation: int) -> V | None:
        with self._database.reading() as connection:
            text = connection.execute(sql.BODY[table], _at(address) | {"of": generation}).scalar()
        return None if text is None else decode(kind, text, where=name(address))

    async def reports(self, address: Address, generation: int) -> Sequence[Report]:
        with self._database.reading() as connection:
            texts = connection.execute(sql.REPORTS, _at(address) | {"of": generation}).scalars().all()
        return [decode(Report, text, where=name(address)) for text in texts]

    async def beats(self, address: Address, generation: int) -> Mapping[tuple[int, str], Beat]:
        with self._database.reading() as connection:
            rows = connection.execute(sql.BEATS, _at(address) | {"of": generation}).all()
        return {
            (row.attempt, row.by): decode(Beat, row.body, where=name(address)).model_copy(
                update={"age": self._age(row)}
            )
            for row in rows
        }

    def _age(self, row: _Row) -> float:
        now, touched, wall = self._monotonic(), float(row.touched), float(row.wall)
        if row.boot == boot_id():
            return max(0.0, now - touched)
        return max(self.clock() - wall, now)  # at least as old as this boot

    async def events(self, address: Address) -> Sequence[Event]:
        with self._database.reading() as connection:
            texts = connection.execute(sql.EVENTS, _at(address)).scalars().all()
        return [decode(Event, text, where=name(address)) for text in texts]

    async def list(self, query: Query) -> Page:
        records = sql.records.c
        asked = select(records.realm, records.key_hash, records.body, records.revision)
        if query.states:  # a state that this version does not know is listed as unreadable, never left out
            asked = asked.where(
                records.state.in_(query.states) | records.state.not_in([state.value for state in State])
            )
        if query.realm is not None:
            asked = asked.where(records.realm == query.realm)
        if query.hash_prefix:
            asked = asked.where(records.key_hash.startswith(query.hash_prefix, autoescape=True))
        if query.after:
            asked = asked.where(tuple_(records.realm, records.key_hash) > tuple_(*position_of(query.after)))
        asked = asked.order_by(records.realm, records.key_hash).limit(query.limit + 1)
        with self._database.reading(snapshot=True) as connection:
            rows = connection.execute(asked).all()
            epoch = connection.execute(sql.META).one().epoch
        found = [(Address(realm=row[0], key_hash=row[1]), row[2], row[3]) for row in rows]
        return listed(found[: query.limit], epoch=epoch, more=len(found) > query.limit)

    async def count(self, *, realm: str | None = None, live_only: bool = False) -> int:
        records = sql.records.c
        asked = select(func.count()).select_from(sql.records)
        if realm is not None:
            asked = asked.where(records.realm == realm)
        if live_only:
            asked = asked.where(records.expires_at.is_(None) | (records.expires_at > self.clock()))
        with self._database.reading() as connection:
            return int(connection.execute(asked).scalar_one())

    def _changes(self, since: int) -> Changes:
        with self._database.reading(snapshot=True) as connection:
            meta = connection.execute(sql.META).one()
            rows: Sequence[_Row] = ()
            if meta.revision != since:
                rows = connection.execute(sql.CHANGES, {"since": since}).all()
        seen = [(Address(realm=row.realm, key_hash=row.key_hash), row.at) for row in rows]
        return Changes(seen, meta.revision, since < meta.gap or since > meta.revision)
