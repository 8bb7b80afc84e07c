"""The kinds of findings, their severity, and what to do about each. Pure.

A *defect* breaks a guarantee: duplicate rows, missing rows, an effect that contradicts the ledger. *Attention* breaks none, but costs
space or waits for a decision. A *note* is information that needs no action. Only defects make an audit fail: a store that survived
kills has staging to sweep and is nevertheless correct.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sparkonce.sink.protocol import Change


class Severity(StrEnum):
    DEFECT = "defect"
    ATTENTION = "attention"
    NOTE = "note"


class Kind(StrEnum):
    DOUBLE_COMMIT = "double commit"
    DUPLICATE_ROWS = "duplicate rows"
    UNKNOWN_ROWS = "unknown rows"
    HIDDEN_ROWS = "hidden rows"
    REMOVED_ROWS = "removed rows"
    MISSING_ROWS = "missing rows"
    MISSING_FILE = "missing file"
    CHANGED_FILE = "changed file"
    WRONG_ROW_COUNT = "wrong row count"
    MISSING_BATCH = "missing batch"
    UNREADABLE = "unreadable"
    SLOT_WITHOUT_RECORD = "slot without record"
    RECORD_WITHOUT_SLOT = "record without slot"
    LEDGER_BEHIND = "ledger behind"
    DIGEST_DIFFERS = "digest differs"
    OTHER_JOB = "other job's commit"
    EFFECT_OF_FAILED = "effect of a failed run"
    MOVED = "moved"
    SAME_ROWS = "same rows"
    UNCOMMITTED_FILES = "uncommitted files"
    ORPHAN_STAGING = "orphan staging"
    HELD = "held"
    RETENTION_DUE = "retention due"
    NOT_SEEN = "not seen"
    NOTHING_THERE = "nothing there"
    OPEN_STAGING = "open staging"
    FOREIGN_FILES = "foreign files"
    REWRITTEN = "rewritten"


SEVERITY = dict.fromkeys(Kind, Severity.DEFECT) | {
    Kind.MOVED: Severity.ATTENTION,
    Kind.SAME_ROWS: Severity.ATTENTION,
    Kind.UNCOMMITTED_FILES: Severity.ATTENTION,
    Kind.ORPHAN_STAGING: Severity.ATTENTION,
    Kind.HELD: Severity.ATTENTION,
    Kind.RETENTION_DUE: Severity.ATTENTION,
    Kind.NOT_SEEN: Severity.ATTENTION,
    Kind.NOTHING_THERE: Severity.ATTENTION,
    Kind.OPEN_STAGING: Severity.NOTE,
    Kind.FOREIGN_FILES: Severity.NOTE,
    Kind.REWRITTEN: Severity.NOTE,
}

STEADY = frozenset({Kind.HELD, Kind.RETENTION_DUE, Kind.NOT_SEEN, Kind.NOTHING_THERE})
"""Kinds that follow from a single answer, so that a second read, meant to rule out steps of running jobs, is not needed."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    kind: Kind
    table: str = ""
    """URI of the table; empty for a finding about the ledger."""
    subject: str
    """A path in the table, a sink key or a key's hash. With kind and table it identifies the finding."""
    what: str
    todo: str
    key_hash: str = ""
    """Hash of the key involved; empty if none."""
    changes: tuple[Change, ...] = ()
    """Later commits that removed or rewrote the rows, all of them."""
    rollback: bool = False
    """The table was put back to an earlier state."""
    rows: int | None = None
    """Rows that are missing at least; only of `MISSING_ROWS`."""
    known: str = ""
    """The reason that a person gave in `--known`; empty if nobody acknowledged it."""

    @property
    def severity(self) -> Severity:
        return Severity.NOTE if self.known else SEVERITY[self.kind]

    @property
    def identity(self) -> tuple[str, str, str]:
        return self.kind, self.table, self.subject

    @property
    def where(self) -> str:
        """Location for display."""
        if "/" in self.subject and ":" not in self.subject:
            return f"{self.table}/{self.subject}"
        return self.table or self.subject

    def dump(self) -> dict[str, Any]:
        """JSON object of the finding."""
        return {
            "severity": str(self.severity),
            "kind": str(self.kind),
            "table": self.table,
            "subject": self.subject,
            "what": self.what,
            "todo": self.todo,
            "keyHash": self.key_hash,
            "commits": [
                {"commit": each.name, "operation": each.operation, "key": each.key, "shared": each.shared}
                for each in self.changes
            ],
            "rollback": self.rollback,
            "rows": self.rows,
            "known": self.known or None,
        }


def in_order(findings: list[Finding]) -> list[Finding]:
    """Sorted by severity, the most severe first."""
    severities, kinds = list(Severity), list(Kind)
    return sorted(findings, key=lambda f: (severities.index(f.severity), kinds.index(f.kind), f.table, f.subject))
