"""Runs one audit in two passes: read everything, re-read what looks wrong, and report what both passes found.

Jobs keep committing while it runs, so one pass may see half of a step: a folder before its slot, a slot before its record. Such states
are not defects. Suspicious tables are listed again, suspicious files read again, and the keys involved loaded again, in this order, so
that the ledger is always read after the table it is compared with; a real defect is still there, unchanged. An audit writes nothing
and takes no lock.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sparkonce.audit import ledger as ledgers
from sparkonce.audit.comparison import of_ledger, unknown_keys
from sparkonce.audit.files import Reader, Wrong, rows_in
from sparkonce.audit.findings import STEADY, Finding, Kind, in_order
from sparkonce.audit.groups import KeyName, hashes_in
from sparkonce.audit.known import KnownRemoval, covered
from sparkonce.audit.ledger import LedgerContents
from sparkonce.audit.places import AuditedTable, not_seen, of_specs, open_place
from sparkonce.audit.report import AuditReport, Cost, TableSummary
from sparkonce.audit.tables import of_files, of_table, rows_seen, sink_keys_in, to_read, uncounted
from sparkonce.blocking import run
from sparkonce.errors import SparkonceError
from sparkonce.sink.protocol import CommittedFile, Inventory
from sparkonce.store.protocol import IdempotencyStore

LOCAL_PURGE = "`sparkonce keys purge` removes it"
FOOTERS = 1000
"""Footers of other writers' files that are read to count their rows. Most tables' metadata has these counts."""


@dataclass
class _TableState:
    """One table as last read."""

    place: AuditedTable
    inventory: Inventory
    wrong: list[Wrong] = field(default_factory=list)
    footers: dict[str, int | None] = field(default_factory=dict)
    """Rows of live files that are not among those to read, and whose rows the table's metadata does not have."""

    @property
    def rows_seen(self) -> int | None:
        return rows_seen(self.inventory, self.wrong, self.footers)

    def findings(self, now: float) -> list[Finding]:
        return [*of_table(self.inventory, now=now), *of_files(self.inventory, self.wrong)]


@dataclass(kw_only=True)
class Audit:
    """An audit of `places` (None: all tables of the ledger's jobs) against the ledger in `store` (None: tables only)."""

    read_files: Reader
    places: Sequence[AuditedTable] | None = None
    store: IdempotencyStore | None = None
    purges: str = LOCAL_PURGE
    """What to do about records whose retention has ended."""
    deep: bool = False
    known: Sequence[KnownRemoval] = ()
    """Removals of rows that are acknowledged."""
    _listing: float = 0.0
    _reading: float = 0.0
    _files: int = 0

    def run(self) -> AuditReport:
        """Runs both passes and returns the report. Errors of a table become findings.

        Raises:
            StoreUnavailable, StoreUnusable: the ledger cannot be read.
        """
        started, began, base = time.time(), time.monotonic(), _peak()
        ledger, places, findings = self._scope()
        states = []
        for place in places:
            try:
                states.append(self._read(place))
            except SparkonceError as error:
                findings.append(not_seen(place.sink.uri, ledgers.one_line(error)))
        first = self._compare(states, ledger)
        suspicious = {each.identity: each for each in first if each.kind not in STEADY}
        findings += [each for each in first if each.kind in STEADY]
        confirmed = self._confirm(states, ledger, suspicious) if suspicious else []
        findings += confirmed + [
            _nothing(each)
            for each in states
            if each.place.named and not each.inventory.effects and (ledger is None or not each.inventory.staged)
        ]
        findings, uses = covered(findings, self.known)
        return AuditReport(
            started=started,
            tables=tuple(TableSummary.of(state.inventory, state.rows_seen) for state in states),
            findings=tuple(in_order(findings)),
            cost=Cost(
                seconds=time.monotonic() - began,
                listing_seconds=self._listing,
                reading_seconds=self._reading,
                files=self._files,
                peak_bytes=_peak(),
                base_bytes=base,
            ),
            ledger=ledger.url if ledger else None,
            keys=len(ledger.keys) if ledger else 0,
            unconfirmed=len(set(suspicious) - {each.identity for each in confirmed}),
            deep=self.deep,
            names=_names(ledger, findings),
            known=uses,
        )

    def _scope(self) -> tuple[LedgerContents | None, Sequence[AuditedTable], list[Finding]]:
        """Reads the ledger before the tables: every effect that it has recorded must then be found in them."""
        if self.store is None:
            return None, self.places or (), []
        ledger, specs = ledgers.read(self.store)
        if self.places is not None:
            return ledger, self.places, []
        return ledger, *of_specs(specs)

    def _read(self, place: AuditedTable) -> _TableState:
        state = _TableState(place, self._inventory(place))
        files = to_read(state.inventory)
        self._files += len(files)
        state.wrong = self._wrong(state.inventory, files)
        self._count(state)
        return state

    def _count(self, state: _TableState) -> None:
        """Reads the footers that `rows_seen` lacks, up to `FOOTERS`."""
        paths = [path for path in uncounted(state.inventory) if path not in state.footers]
        if not paths or len(paths) > FOOTERS:
            return
        began = time.monotonic()
        try:
            state.footers |= rows_in(open_place(state.inventory.location or state.inventory.uri), paths)
        finally:
            self._reading += time.monotonic() - began

    def _inventory(self, place: AuditedTable) -> Inventory:
        began = time.monotonic()
        try:
            return run(place.sink.inventory())
        finally:
            self._listing += time.monotonic() - began

    def _wrong(self, table: Inventory, files: Sequence[CommittedFile]) -> list[Wrong]:
        if not files:
            return []
        began = time.monotonic()
        try:
            return self.read_files(table.location or table.uri, files)
        finally:
            self._reading += time.monotonic() - began

    def _compare(self, states: Sequence[_TableState], ledger: LedgerContents | None) -> list[Finding]:
        now = time.time()
        found = [finding for state in states for finding in state.findings(now)]
        if ledger is not None and self.store is not None:
            tables = [state.inventory for state in states]
            ledgers.reread(self.store, ledger, unknown_keys(ledger, tables))
            found += of_ledger(ledger, tables, purges=self.purges)
        return _without_repeats(found)

    def _confirm(
        self,
        states: Sequence[_TableState],
        ledger: LedgerContents | None,
        suspicious: Mapping[tuple[str, str, str], Finding],
    ) -> list[Finding]:
        """Second pass: the suspicious findings that persist."""
        tables = {finding.table for finding in suspicious.values()}
        unseen, seen = [], []
        for state in states:
            uri = state.inventory.uri
            if uri not in tables:
                seen.append(state)
                continue
            try:
                state.inventory = self._inventory(state.place)
                wrong = {each.path for each in state.wrong}
                files = [file for file in to_read(state.inventory) if file.path in wrong]
                state.wrong = self._wrong(state.inventory, files)
                self._count(state)
                seen.append(state)
            except SparkonceError as error:
                unseen.append(not_seen(uri, ledgers.one_line(error)))
        if ledger is not None and self.store is not None:
            ledgers.reread(self.store, ledger, {each.key_hash for each in suspicious.values() if each.key_hash})
        return unseen + [each for each in self._compare(seen, ledger) if each.identity in suspicious]


def _without_repeats(findings: Sequence[Finding]) -> list[Finding]:
    """Drops the note on staging whose commit is missing: that is already reported as a record without slot."""
    lost = {(each.table, each.subject) for each in findings if each.kind is Kind.RECORD_WITHOUT_SLOT}
    return [
        each
        for each in findings
        if each.kind is not Kind.OPEN_STAGING
        or not any((each.table, name) in lost for name in sink_keys_in(f"{each.subject}/"))
    ]


def _nothing(state: _TableState) -> Finding:
    staged = state.inventory.staged
    todo = "check the path, or give its kind: slotLog:PATH, delta:PATH, iceberg:CATALOG.TABLE"
    return Finding(
        kind=Kind.NOTHING_THERE,
        table=state.inventory.uri,
        subject=state.inventory.uri,
        what=f"{state.inventory.uri} holds no commit" + ("" if staged else " and nothing staged"),
        todo="name the ledger (--store), which knows whether a commit should be there" if staged else todo,
    )


def _names(ledger: LedgerContents | None, findings: Sequence[Finding]) -> dict[str, KeyName]:
    if ledger is None:
        return {}
    found = {key_hash: ledger.keys.get(key_hash) for each in findings for key_hash in hashes_in(each)}
    return {at: KeyName(known.record.realm, known.record.key) for at, known in found.items() if known is not None}


def _peak() -> int:
    """Peak resident memory in bytes. Not from getrusage, whose value starts at the parent's size at the fork."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # KiB on Linux
