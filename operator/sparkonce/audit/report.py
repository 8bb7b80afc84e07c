"""The result of an audit and its cost: one value, rendered as table, JSON or page. Pure."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic.alias_generators import to_camel

from sparkonce.audit.findings import Finding, Kind, Severity, in_order
from sparkonce.audit.groups import FindingGroup, Names, grouped, hashes_in
from sparkonce.audit.known import KnownUse
from sparkonce.audit.tables import day_of, orphans
from sparkonce.sink.protocol import Inventory

SCHEMA = 1
MILLION = 1_000_000
ENOUGH = 500
"""Minimum number of files for an extrapolation."""


@dataclass(frozen=True, kw_only=True)
class TableSummary:
    kind: str
    uri: str
    effects: int
    visible: int
    """Commits whose rows readers see."""
    files: int
    """Files of visible commits."""
    rows: int
    bytes: int
    staged: int
    """Folders that no commit names."""
    staged_bytes: int
    days: Mapping[str, int]
    """UTC day -> number of commits."""
    rows_seen: int | None = None
    """Rows that readers see, those of other writers too (`audit.tables.rows_seen`); None: they could not be counted."""

    @classmethod
    def of(cls, table: Inventory, rows_seen: int | None) -> TableSummary:
        shown = [effect for effect in table.effects if effect.visible]
        left = list(orphans(table))
        return cls(
            kind=table.kind,
            uri=table.uri,
            effects=len(table.effects),
            visible=len(shown),
            files=sum(len(effect.files) for effect in shown),
            rows=sum(effect.slot.rows for effect in shown),
            bytes=sum(file.bytes for effect in shown for file in effect.files),
            staged=len(left),
            staged_bytes=sum(each.bytes for each in left),
            days=dict(sorted(Counter(day for effect in table.effects if (day := day_of(effect))).items())),
            rows_seen=rows_seen,
        )


@dataclass(frozen=True, kw_only=True)
class Cost:
    seconds: float
    listing_seconds: float
    """Of these, spent on inventories."""
    reading_seconds: float
    """Of these, spent on data files."""
    files: int
    """Data files read."""
    peak_bytes: int
    """Peak resident memory of this process."""
    base_bytes: int
    """Peak resident memory before the audit began."""

    @property
    def files_per_second(self) -> float:
        return self.files / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_per_million(self) -> float | None:
        """Extrapolated from these files; None if they are too few."""
        return self.seconds / self.files * MILLION if self.files >= ENOUGH else None

    @property
    def bytes_per_million(self) -> float | None:
        """As `seconds_per_million`; only memory above `base_bytes` is extrapolated."""
        if self.files < ENOUGH:
            return None
        return self.base_bytes + (self.peak_bytes - self.base_bytes) / self.files * MILLION

    def dump(self) -> dict[str, Any]:
        return _camel(self) | {
            "filesPerSecond": self.files_per_second,
            "secondsPerMillionFiles": self.seconds_per_million,
            "bytesPerMillionFiles": self.bytes_per_million,
        }


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    started: float
    """Unix seconds."""
    tables: tuple[TableSummary, ...]
    findings: tuple[Finding, ...]
    """By severity, the most severe first."""
    cost: Cost
    ledger: str | None
    """URL of the ledger; None if none was compared."""
    keys: int = 0
    """Number of records compared."""
    unconfirmed: int = 0
    """Findings of the first pass that the second did not confirm."""
    deep: bool = False
    names: Names = field(default_factory=dict)
    """Of the keys that findings name, as far as the ledger knows them."""
    known: tuple[KnownUse, ...] = ()
    """Acknowledged removals, with their use."""

    @property
    def groups(self) -> list[FindingGroup]:
        return grouped(self.findings, self.names)

    @property
    def defects(self) -> tuple[Finding, ...]:
        return tuple(each for each in self.findings if each.severity is Severity.DEFECT)

    @property
    def complete(self) -> bool:
        """True if every requested table was audited and held something."""
        return not any(each.kind in (Kind.NOT_SEEN, Kind.NOTHING_THERE) for each in self.findings)

    @property
    def clean(self) -> bool:
        return self.complete and not self.defects

    def counts(self) -> dict[str, int]:
        """Number of findings per kind, in the order of the findings."""
        return dict(Counter(str(each.kind) for each in in_order(list(self.findings))))

    @property
    def verdict(self) -> str:
        """One-sentence summary."""
        what = f"{len(self.tables)} table(s), {self.effects} commits, {self.rows} rows in {self.cost.files} files"
        if self.ledger is not None:
            what += f", {self.keys} keys"
        if acknowledged := sum(bool(each.known) for each in self.findings):
            what += f"; {acknowledged} known finding(s)"
        if self.defects:
            return f"{len(self.defects)} defect(s) in {what}"
        if self.ledger is None and self.tables and not self.effects:
            return f"nothing is committed, so nothing was compared, in {what}"
        if not self.complete:
            return f"not everything could be audited; no defect in {what}"
        return f"no defect in {what}"

    @property
    def effects(self) -> int:
        return sum(table.effects for table in self.tables)

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)

    def dump(self) -> dict[str, Any]:
        """JSON object, as `--json` prints it."""
        return {
            "schema": SCHEMA,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started)),
            "verdict": self.verdict,
            "clean": self.clean,
            "complete": self.complete,
            "defects": len(self.defects),
            "ledger": self.ledger,
            "keys": self.keys,
            "deep": self.deep,
            "notConfirmed": self.unconfirmed,
            "tables": [_camel(table) for table in self.tables],
            "findings": [self._finding(finding) for finding in self.findings],
            "groups": [group.dump(self.names) for group in self.groups],
            "known": [use.dump() for use in self.known],
            "counts": self.counts(),
            "cost": self.cost.dump(),
        }

    def _finding(self, finding: Finding) -> dict[str, Any]:
        named = self.names.get(finding.key_hash)
        keys = {self.names[each].key: None for each in hashes_in(finding) if each in self.names}
        return finding.dump() | {
            "key": named.key if named else None,
            "realm": named.realm if named else None,
            "keys": list(keys),
        }


def _camel(value: TableSummary | Cost) -> dict[str, Any]:
    return {to_camel(name): each for name, each in asdict(value).items()}
