"""The durable store of a laptop: records in SQLite, leases as file locks beside the ledger.

One step is one write transaction that begins with the only write lock, so "read, decide, write" needs no further compare. Opening
and locking the file is in `database`, tables and statements in `schema`, what both SQL stores do alike in `store.ledger`, every decision in
`rules`.

Ages (of claims and of an attempt's touches) come from the monotonic clock and the boot id: a laptop that slept, or a clock that was set,
makes nothing stale. Expiry and the times in records come from the wall clock, because a person reads them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from sparkonce.model.record import Address
from sparkonce.store.ledger import (
    LIVE_KEYS,
    POLL,
    REPORT_BYTES,
    TOMBSTONES,
    Beside,
    HeldLease,
    KeyRow,
    Row,
    SqlLedger,
    SqlReader,
    at,
)
from sparkonce.store.protocol import Claim
from sparkonce.store.rules import KeyState, VerbOutcome
from sparkonce.store.sqlite.database import BUSY_TIMEOUT, SqliteDatabase
from sparkonce.store.sqlite.lease import FileLease, LeaseFiles

T = TypeVar("T")

STALE_AFTER = 30.0
"""Seconds without a touch after which a claim may be taken although its process holds the lock, because it is frozen or hangs."""


@cache
def boot_id() -> str:
    """Id of this boot: monotonic clocks of different boots cannot be compared."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""  # not Linux: a lock never outlives a boot, so a claim of an older one is dead anyway


class SqliteStore(SqlLedger):
    def __init__(
        self,
        path: Path | str,
        *,
        install: str = "local",
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        stale_after: float = STALE_AFTER,
        max_live_keys: int = LIVE_KEYS,
        max_report_bytes: int = REPORT_BYTES,
        tombstones: int = TOMBSTONES,
        poll: float = POLL,
        synchronous: str = "FULL",
        busy_timeout: float = BUSY_TIMEOUT,
        mounts: str | None = None,
    ) -> None:
        """`synchronous`: other than FULL only in tests; `mounts`: as `SqliteDatabase`. Raises: StoreUnusable, StoreUnavailable."""
        super().__init__(
            max_live_keys=max_live_keys, max_report_bytes=max_report_bytes, tombstones=tombstones, poll=poll
        )
        self._database: SqliteDatabase = SqliteDatabase(
            Path(path), synchronous=synchronous, mounts=mounts, busy_timeout=busy_timeout
        )
        self._database.prepare(install)
        self.path = self._database.path
        self.url = f"sqlite:///{self.path}"
        self.clock = clock
        self._monotonic, self._stale_after = monotonic, stale_after
        self._leases = LeaseFiles(self.path.with_name(self.path.name + ".leases"))

    async def close(self) -> None:
        self._database.close()

    def damage(self) -> str:
        """What is damaged in the ledger's file; empty when nothing is. Reads the whole file: for `sparkonce doctor`."""
        return self._database.damage()

    async def now(self) -> float:
        return self.clock()

    def now_of(self, row: Row) -> float:  # noqa: ARG002 - the clock is this machine's
        return self.clock()

    def _clock_in(self, reader: SqlReader) -> float:  # noqa: ARG002 - as now_of
        return self.clock()

    # --- leases

    async def open_lease(self, *, owner: str) -> FileLease:
        return self._leases.open(owner=owner, touch=self._touch_lease, forget=self._forget_lease)

    def lease_ended(self, reader: SqlReader, lease: HeldLease) -> bool:  # noqa: ARG002 - the kernel knows
        return lease.ended

    def _stamp(self, row: Row) -> dict[str, Any]:  # noqa: ARG002 - as now_of
        return {"touched": self._monotonic(), "boot": boot_id()}

    def _touch_lease(self, lease: str) -> None:
        with self._database.writing() as transaction:
            asked = {"of_lease": lease, "new_touch": self._monotonic(), "new_boot": boot_id()}
            transaction.rows("touch lease", asked)
            transaction.commit()

    def _forget_lease(self, lease: str) -> None:
        with self._database.writing() as transaction:
            rows = transaction.rows("claims of lease", {"of_lease": lease})
            revision = transaction.row("meta")["revision"]
            for row in rows:
                revision += 1
                address = Address(realm=row["realm"], key_hash=row["key_hash"])
                transaction.rows("move", {"next": revision})
                transaction.rows("remove claims", at(address))
                self._bury(transaction, address, revision)
            if rows:
                transaction.commit()

    def claim_of(self, address: Address, row: Row) -> tuple[Claim | None, bool]:
        if row["lease"] is None or row["boot"] != boot_id() or not self._leases.held(row["lease"]):
            return None, False
        claim = Claim(
            address=address, lease=row["lease"], owner=row["owner"], revision=row["claim_revision"], nonce=row["nonce"]
        )
        return claim, self._monotonic() - row["touched"] > self._stale_after

    def _age(self, row: Row) -> float:
        now, touched, wall = self._monotonic(), float(row["touched"]), float(row["wall"])
        if row["boot"] == boot_id():
            return max(0.0, now - touched)
        return max(self.clock() - wall, now)  # at least as old as this boot

    # --- the step

    def _step(
        self,
        address: Address,
        decide: Callable[[KeyState, Beside], VerbOutcome[T]],
        seen: Callable[[KeyRow], KeyState] = KeyRow.seen,
    ) -> T:
        with self._database.writing() as transaction:
            key = KeyRow(self, address, transaction)
            now = seen(key)
            outcome, write = decide(now, key)
            if write is not None:
                if write.moves:
                    transaction.rows("move", {"next": now.next})
                self._write(transaction, key, address, write, revision=now.next)
                transaction.commit()
        return outcome
