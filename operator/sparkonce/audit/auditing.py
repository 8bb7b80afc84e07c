"""One audit: look at everything once, look again at what seemed wrong, and tell what both looks saw.

Jobs go on committing while it runs, so one look may see half of a step: a folder before its slot, a slot before its record. Nothing is
called wrong for that. Tables with something suspicious are listed again, suspicious files are read again, and the keys that have a part in
it are loaded again, in this order, so that a ledger is always younger than the table it is compared with; what is really wrong is still
there, and the same. It writes nothing, anywhere, and takes no lock.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sparkonce.audit import ledger as ledgers
from sparkonce.audit.files import Reader, Wrong
from sparkonce.audit.findings import STEADY, Finding, Kind, in_order
from sparkonce.audit.ledger import Ledger
from sparkonce.audit.places import Place, not_seen, of_specs
from sparkonce.audit.records import of_ledger, unknown_keys
from sparkonce.audit.report import Cost, Report, TableSummary
from sparkonce.audit.tables import of_files, of_table, sink_keys_in, to_read
from sparkonce.blocking import run
from sparkonce.errors import SparkonceError
from sparkonce.sink.protocol import CommittedFile, Inventory
from sparkonce.store.protocol import IdempotencyStore

LOCAL_PURGE = "`sparkonce keys purge` removes it"
FILE_KINDS = frozenset({Kind.MISSING_FILE, Kind.CHANGED_FILE, Kind.WRONG_ROW_COUNT})


@dataclass
class _Look:
    """What is known of one table."""

    place: Place
    inventory: Inventory
    wrong: list[Wrong] = field(default_factory=list)

    def findings(self, now: float) -> list[Finding]:
        return [*of_table(self.inventory, now=now), *of_files(self.inventory, self.wrong)]


@dataclass(kw_only=True)
class Audit:
    """`places` None: all tables of the ledger's jobs. `store` None: no ledger is compared."""

    read_files: Reader
    places: Sequence[Place] | None = None
    store: IdempotencyStore | None = None
    purges: str = LOCAL_PURGE
    """Who removes records whose retention is over."""
    deep: bool = False
    _listing: float = 0.0
    _reading: float = 0.0
    _files: int = 0

    def run(self) -> Report:
        """StoreUnavailable, StoreUnusable: the ledger cannot be read. What is wrong with a table is a finding."""
        started, began, base = time.time(), time.monotonic(), _peak()
        ledger, places, findings = self._asked()
        looks = []
        for place in places:
            try:
                looks.append(self._look(place))
            except SparkonceError as error:
                findings.append(not_seen(place.sink.uri, ledgers.told(error)))
        first = self._compare(looks, ledger)
        suspicious = {each.identity: each for each in first if each.kind not in STEADY}
        findings += [each for each in first if each.kind in STEADY]
        confirmed = self._again(looks, ledger, suspicious) if suspicious else []
        findings += confirmed + [
            _nothing(each)
            for each in looks
            if each.place.named and not (each.inventory.effects or each.inventory.staged)
        ]
        return Report(
            started=started,
            tables=tuple(TableSummary.of(look.inventory) for look in looks),
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
            looked_again=len(set(suspicious) - {each.identity for each in confirmed}),
            deep=self.deep,
        )

    def _asked(self) -> tuple[Ledger | None, Sequence[Place], list[Finding]]:
        """The ledger is read before the tables: what it says had happened must then be there."""
        if self.store is None:
            return None, self.places or (), []
        ledger, specs = ledgers.read(self.store)
        if self.places is not None:
            return ledger, self.places, []
        return ledger, *of_specs(specs)

    def _look(self, place: Place) -> _Look:
        look = _Look(place, self._inventory(place))
        files = to_read(look.inventory)
        self._files += len(files)
        look.wrong = self._wrong(look.inventory, files)
        return look

    def _inventory(self, place: Place) -> Inventory:
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

    def _compare(self, looks: Sequence[_Look], ledger: Ledger | None) -> list[Finding]:
        now = time.time()
        found = [finding for look in looks for finding in look.findings(now)]
        if ledger is not None and self.store is not None:
            tables = [look.inventory for look in looks]
            ledgers.reread(self.store, ledger, unknown_keys(ledger, tables))
            found += of_ledger(ledger, tables, purges=self.purges)
        return _told_once(found)

    def _again(
        self, looks: Sequence[_Look], ledger: Ledger | None, suspicious: Mapping[tuple[str, str, str], Finding]
    ) -> list[Finding]:
        """Those that are still there."""
        tables = {finding.table for finding in suspicious.values()}
        paths = {(each.table, each.subject) for each in suspicious.values() if each.kind in FILE_KINDS}
        unseen, seen = [], []
        for look in looks:
            uri = look.inventory.uri
            if uri not in tables:
                seen.append(look)
                continue
            try:
                look.inventory = self._inventory(look.place)
                files = [file for file in to_read(look.inventory) if (uri, file.path) in paths]
                look.wrong = self._wrong(look.inventory, files)
                seen.append(look)
            except SparkonceError as error:
                unseen.append(not_seen(uri, ledgers.told(error)))
        if ledger is not None and self.store is not None:
            ledgers.reread(self.store, ledger, {each.key_hash for each in suspicious.values() if each.key_hash})
        return unseen + [each for each in self._compare(seen, ledger) if each.identity in suspicious]


def _told_once(findings: Sequence[Finding]) -> list[Finding]:
    """A folder whose commit is gone, as its record says, belongs to no attempt that writes."""
    lost = {(each.table, each.subject) for each in findings if each.kind is Kind.RECORD_WITHOUT_SLOT}
    return [
        each
        for each in findings
        if each.kind is not Kind.OPEN_STAGING
        or not any((each.table, name) in lost for name in sink_keys_in(f"{each.subject}/"))
    ]


def _nothing(look: _Look) -> Finding:
    return Finding(
        kind=Kind.NOTHING_THERE,
        table=look.inventory.uri,
        subject=look.inventory.uri,
        what=f"{look.inventory.uri} holds no commit and nothing staged",
        todo="check the path, or say its kind: slotLog:PATH, delta:PATH, iceberg:CATALOG.TABLE",
    )


def _peak() -> int:
    """Bytes of resident memory at most, so far. Not getrusage's: that begins with what the parent had when it started us."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # KiB on Linux
