"""A store for several machines in an existing PostgreSQL database: its rows, its clock, leases as rows.

One verb is one transaction at READ COMMITTED. It begins with an advisory lock of the key, because a record that does not exist yet has no
row to lock; then it reads, asks `rules`, and writes. SERIALIZABLE was rejected: it would make concurrent verbs on different keys retry, and
only verbs on one key must be serialized. Locks are taken in one order (key, lease, revision), so verbs never deadlock.

Revisions are one counter in one row, raised inside the transaction that gets the number. The row stays locked until the commit, so
revisions are ordered as commits are, and a read that sees revision N sees every change up to N: `watch` cannot pass over a change that
commits late. A sequence was rejected because it hands out numbers before it is known which transaction commits first. The price is that
changes of all keys commit one after another; heartbeats, touches and refusals do not queue there. Because the number is known only then, a
decision is made once more (`rules` are pure) when the counter has moved since the read.

A lease that ran out ends for good when a transaction acts on that: the row is deleted under its lock first, so a later keepalive is
refused. Watchers make changes of claims that ended, so that a dead owner is seen within a sweep of its lease's end.

Its verbs block the thread that calls them; `store.pooled` runs them for an event loop. Leases and watches have connections of their own.
"""

from __future__ import annotations

import itertools
import json
import time
import uuid
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, TypeVar

from sparkonce import settings
from sparkonce.errors import StoreUnavailable, StoreUnusable
from sparkonce.model.record import Address
from sparkonce.store.ledger import (
    LIVE_KEYS,
    REPORT_BYTES,
    TOMBSTONES,
    Beside,
    Changes,
    HeldLease,
    KeyRow,
    Row,
    SqlLedger,
    SqlReader,
    at,
    held,
)
from sparkonce.store.postgres.address import parsed, schema_of
from sparkonce.store.postgres.database import POOL, PostgresDatabase, PostgresTransaction, RolledBack
from sparkonce.store.postgres.lease import PostgresLease
from sparkonce.store.postgres.watch import SWEEP, watch
from sparkonce.store.protocol import Claim, KeyChange, Lease, LostOwnership
from sparkonce.store.restore import NewestAttempt, rebuild
from sparkonce.store.roster import Gateway, GatewayUptime, Replica, gateway_of, replica_of
from sparkonce.store.rules import KeyState, VerbOutcome

T = TypeVar("T")

TIMEOUT = 2.0
"""Seconds for one verb, waiting included: verbs block the thread that calls them, and keepalives must not be late for it."""
ENDED_AT_ONCE = 50
"""Ended claims that one transaction records as changes. Each takes a millisecond, in which no other change is committed."""


class PostgresStore(SqlLedger):
    def __init__(
        self,
        url: str,
        *,
        install: str = "local",
        schema: str | None = None,
        ttl: float | None = None,
        keep: bool = True,
        timeout: float = TIMEOUT,
        max_live_keys: int = LIVE_KEYS,
        max_report_bytes: int = REPORT_BYTES,
        tombstones: int = TOMBSTONES,
        poll: float = SWEEP,
        pool: int = POOL,
        at_first_use: bool = False,
        clock: Callable[[], float] | None = None,
        monotonic: Callable[[], float] | None = None,
    ) -> None:
        """`schema`: None for the install's own; `ttl`: seconds of a lease, None for the setting; `poll`: seconds between two sweeps of
        a watch; `pool`: connections that are kept; `at_first_use`: connects with the first verb, so that a process may start before its
        database. For tests: `keep`, whether leases are kept alive; `clock` and `monotonic`, instead of the database's clock in records
        and in ages of touches.

        Raises: InvalidInput, StoreUnusable, StoreUnavailable."""
        super().__init__(
            max_live_keys=max_live_keys, max_report_bytes=max_report_bytes, tombstones=tombstones, poll=poll
        )
        address = parsed(url, timeout=timeout)
        self.url = address.shown
        self._ttl = settings.lease_seconds() if ttl is None else ttl
        self._service = GatewayUptime(monotonic or time.monotonic)
        self._keep, self._leases = keep, weakref.WeakSet[PostgresLease]()
        self._clock, self._monotonic = clock, monotonic
        self._database: PostgresDatabase = PostgresDatabase(
            address,
            schema=schema or schema_of(install),
            install=install,
            timeout=timeout,
            pool=pool,
        )
        self._keeper = self._database.own_connection()
        """Of the leases: keepalives wait for no verb."""
        if not at_first_use:
            self._database.prepare()

    async def close(self) -> None:
        """Closes the connections. Leases that were not revoked end by themselves."""
        for lease in list(self._leases):
            lease.stop()
        self._keeper.close()
        self._database.close()

    # --- the clock

    async def now(self) -> float:
        with self._database.reading() as reader:
            return self._clock_in(reader)

    def _clock_in(self, reader: SqlReader) -> float:
        return self.now_of(reader.row("now"))

    def now_of(self, row: Row) -> float:
        return float(row["now"]) if self._clock is None else self._clock()

    def _ticks(self, row: Row) -> float:
        return float(row["now"]) if self._monotonic is None else self._monotonic()

    def _stamp(self, row: Row) -> dict[str, Any]:
        return {"touched": self._ticks(row), "boot": ""}

    def _age(self, row: Row) -> float:
        return max(0.0, self._ticks(row) - float(row["touched"]))

    # --- leases

    async def open_lease(self, *, owner: str) -> PostgresLease:
        with self._keeper.writing() as transaction:
            transaction.rows("end leases that are over")
            name, sent = uuid.uuid4().hex, time.monotonic()
            transaction.rows("open lease", {"of_lease": name, "owner": owner, "seconds": self._ttl})
            transaction.commit()
        lease = PostgresLease(
            name=name, owner=owner, seconds=self._ttl, sent=sent, prolong=self._prolong, end=self._end_lease
        )
        self._leases.add(lease)
        if self._keep:
            lease.keep()
        return lease

    def _prolong(self, lease: str) -> bool:
        with self._keeper.writing() as transaction:
            lives = transaction.rows("prolong lease", {"of_lease": lease, "seconds": self._ttl})
            transaction.commit()
        return bool(lives)

    def _end_lease(self, lease: str) -> None:
        with self._keeper.writing() as transaction:
            transaction.rows("end lease", {"of_lease": lease})
            transaction.commit()
        with suppress(StoreUnavailable):  # its claims have ended; recording that only notifies watchers sooner
            with self._keeper.reading() as reader:
                rows = reader.rows("claims of lease", {"of_lease": lease})
            for first in range(0, len(rows), ENDED_AT_ONCE):
                self._end_claims(rows[first : first + ENDED_AT_ONCE], self._keeper)

    def lease_ended(self, reader: SqlReader, lease: HeldLease) -> bool:
        return lease.ended or reader.value("lease lives", {"of_lease": lease.id}) is None

    def claim_of(self, address: Address, row: Row) -> tuple[Claim | None, bool]:
        if row["lease"] is None or not row["lives"]:
            return None, False
        claim = Claim(
            address=address, lease=row["lease"], owner=row["owner"], revision=row["claim_revision"], nonce=row["nonce"]
        )
        return claim, False  # a frozen process sends no keepalives: its lease ends

    def _end_for_good(self, transaction: PostgresTransaction, lease: str) -> None:
        """Deletes a lease that seemed to have ended. Raises: RolledBack if a keepalive was faster."""
        transaction.rows("end lease if over", {"of_lease": lease})
        if transaction.value("lease is there", {"of_lease": lease}) is not None:
            raise RolledBack(f"the store {self.url} prolonged a lease just now; try again")

    # --- the step

    def _step(
        self,
        address: Address,
        decide: Callable[[KeyState, Beside], VerbOutcome[T]],
        seen: Callable[[KeyRow], KeyState] = KeyRow.seen,
    ) -> T:
        return self._database.repeated(lambda: self._step_once(address, decide, seen))

    def _step_once(
        self,
        address: Address,
        decide: Callable[[KeyState, Beside], VerbOutcome[T]],
        read: Callable[[KeyRow], KeyState],
    ) -> T:
        with self._database.writing(address.realm, address.key_hash) as transaction:
            key = KeyRow(self, address, transaction)
            seen = read(key)
            outcome, write = decide(seen, key)
            if write is not None and write.touch:
                write = None  # a claim lives by its lease
            over = key.row["lease"] is not None and not key.row["lives"]
            if over and ((write is not None and write.claim is not None) or isinstance(outcome, LostOwnership)):
                self._end_for_good(transaction, key.row["lease"])
                if write is None:
                    transaction.commit()
            if write is not None and write.moves:
                moved = transaction.advance()
                if (moved["revision"], moved["epoch"]) != (seen.next, seen.epoch):
                    seen = replace(seen, next=moved["revision"], epoch=moved["epoch"])
                    outcome, write = decide(seen, key)
            if write is not None:
                self._write(transaction, key, address, write, revision=seen.next)
                transaction.commit()
        return outcome

    # --- changes

    def watch(self, since: int) -> AsyncIterator[KeyChange]:
        """See `store.postgres.watch`. Waits through outages."""
        return watch(self, self._database.own_connection(listens=True), since, sweep=self._poll)

    def sweep(self, database: PostgresDatabase) -> None:
        """Records the end of every claim whose lease has ended by the database's clock as a change."""
        while True:
            with database.reading() as reader:
                rows = reader.rows("claims that ended", {"at_most": ENDED_AT_ONCE})
            done = 0
            for _, of_lease in itertools.groupby(rows, key=lambda row: row["lease"]):
                done += self._end_claims(list(of_lease), database)
            if done < ENDED_AT_ONCE:
                return

    def _poll_once(self, since: int) -> Changes:
        self.sweep(self._database)
        return self._changes(since)

    def _end_claims(self, rows: Sequence[Row], database: PostgresDatabase) -> int:
        """Removes claims of one lease that has ended, each as a change that watchers see; however many do this, it is one change. Returns
        how many this call removed: a key that is being written is left to the next sweep."""
        return database.repeated(lambda: self._end_claims_once(rows, database))

    def _end_claims_once(self, rows: Sequence[Row], database: PostgresDatabase) -> int:
        named = {database.lock_of(row["realm"], row["key_hash"]): row for row in rows}
        done = 0
        with database.writing() as transaction:
            locks = transaction.rows("try locks", {"numbers": list(named)})
            for claimed in (named[lock["number"]] for lock in locks if lock["locked"]):
                address = Address(realm=claimed["realm"], key_hash=claimed["key_hash"])
                row = transaction.row("see", at(address))
                if row["lease"] is None or row["lives"]:
                    continue
                self._end_for_good(transaction, row["lease"])
                revision = transaction.advance()["revision"]
                transaction.rows("remove claims", at(address))
                self._bury(transaction, address, revision)
                done += 1
            if done:
                transaction.commit()
        return done

    def _endings(self, reader: SqlReader, since: int) -> tuple[frozenset[Address], frozenset[Address]]:
        unowned, ended = (
            frozenset(
                Address(realm=row["realm"], key_hash=row["key_hash"])
                for row in reader.rows(statement, {"since": since})
            )
            for statement in ("unowned", "ended")
        )
        return unowned, ended

    # --- after a restore

    async def rebuild(self, shown: NewestAttempt, *, by: str) -> bool:
        return self._database.repeated(lambda: self._rebuild_once(shown, by))

    def _rebuild_once(self, shown: NewestAttempt, by: str) -> bool:
        address = shown.address
        with self._database.writing(address.realm, address.key_hash) as transaction:
            key = KeyRow(self, address, transaction)
            moved = transaction.advance()
            seen = replace(key.seen(), next=moved["revision"], epoch=moved["epoch"])
            done, write = rebuild(seen, shown, by=by)
            if write is None:
                return done
            if write.record is not None:
                record = write.record.model_copy(update={"revision": seen.next, "epoch": seen.epoch})
                for table in ("specs", "results", *(("intents",) if record.intent is None else ())):
                    transaction.rows(f"remove {table} of generation", at(address) | {"of": write.generation})
                write = replace(write, record=record)
            self._write(transaction, key, address, write, revision=seen.next)
            transaction.commit()
        return done

    async def raise_epoch(self, *, seen: int) -> int:
        with self._database.writing() as transaction:
            transaction.rows("raise epoch", {"seen": seen})
            stored = transaction.row("meta")["epoch"]
            if stored <= seen:
                raise StoreUnusable(f"the epoch of {self.url} is not the one that was read; run the command again")
            transaction.commit()
        return seen + 1

    # --- the roster

    async def announce(self, replica: Replica, *, lease: Lease) -> None:
        self._announce(replica.nonce, asdict(replica), lease)

    def _announce(self, nonce: str, said: Mapping[str, object], lease: Lease) -> None:
        with self._database.writing() as transaction:
            transaction.rows("remove replicas that ended")
            transaction.rows("announce", {"nonce": nonce, "lease": held(lease).id, "body": json.dumps(said)})
            transaction.commit()

    def _announced(self) -> Sequence[str]:
        """Entries of replicas and gateways; their fields say which an entry is."""
        with self._database.reading() as reader:
            return [str(row["body"]) for row in reader.rows("replicas")]

    async def replicas(self) -> Sequence[Replica]:
        return [replica for body in self._announced() if (replica := replica_of(body)) is not None]

    async def announce_gateway(self, gateway: Gateway, *, lease: Lease) -> None:
        self._announce(gateway.nonce, asdict(gateway), lease)

    async def gateways_serving_for(self) -> float | None:
        return self._service.serving_for(
            [entry for body in self._announced() if (entry := gateway_of(body)) is not None]
        )
