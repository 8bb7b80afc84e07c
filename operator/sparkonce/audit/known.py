"""Removals of rows that a person has acknowledged, so that an audit does not fail for them again. Pure, except for `read_file`.

An entry names one commit of one table, or a number of rows that are missing from one. It covers a finding about removed rows only where
every commit that removed rows is named, and one about missing rows only up to its number; it covers no other kind of finding. The finding
stays in the report as a note with the reason. Entries by key or by day were not built: they would also cover what happens later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator

from sparkonce.audit.findings import Finding, Kind
from sparkonce.errors import InvalidInput
from sparkonce.model.record import REASON_LIMIT, Value

LIMIT = 1 << 20
"""Bytes of the file: thousands of entries."""


class KnownRemoval(Value, extra="forbid"):
    """One entry of the file."""

    table: str
    """URI of the table, as a report has it."""
    commit: str | None = Field(default=None, max_length=200)
    """Name of the commit that removed the rows (`Change.name`)."""
    rows: int | None = Field(default=None, ge=1)
    """Rows that may be missing where the table's history does not show any more which commit removed them."""
    reason: str = Field(min_length=1, max_length=REASON_LIMIT)

    @model_validator(mode="after")
    def _names_one(self) -> KnownRemoval:
        if (self.commit is None) == (self.rows is None):
            raise ValueError("give either commit or rows")
        return self


@dataclass(frozen=True)
class KnownUse:
    """An entry, and how many findings of a report it covers or helps to cover."""

    entry: KnownRemoval
    findings: int

    def dump(self) -> dict[str, Any]:
        """JSON object of the entry."""
        entry = self.entry
        named = {"commit": entry.commit} if entry.rows is None else {"rows": entry.rows}
        return {"table": entry.table, **named, "reason": entry.reason, "findings": self.findings}


def read_file(path: Path) -> tuple[KnownRemoval, ...]:
    """The entries of a file, YAML or JSON: an object with the list `known`.

    Raises:
        InvalidInput: it is not such a file.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LIMIT + 1)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > LIMIT:
        raise InvalidInput(f"{path} is longer than {LIMIT} bytes")
    return read(data, source=str(path))


def read(data: bytes, *, source: str) -> tuple[KnownRemoval, ...]:
    """As `read_file`, of bytes."""
    try:
        from sparkonce.model.document import reader
    except ImportError:
        raise InvalidInput(f"{source} cannot be read without PyYAML; install sparkonce[cli]") from None
    body = reader.read(reader.decoded(data, source=source), source=source).data
    entries = body.get("known") if isinstance(body, dict) else None
    if not isinstance(entries, list) or set(body) != {"known"}:
        raise InvalidInput(f"{source} must hold one list, `known:`, of entries with table, commit or rows, and reason")
    found = []
    for number, entry in enumerate(entries):
        try:
            found.append(KnownRemoval.model_validate(entry))
        except ValidationError as invalid:
            first = invalid.errors()[0]
            field = "".join(f".{each}" for each in first["loc"])
            raise InvalidInput(f"{source}: known[{number}]{field}: {first['msg']}") from None
    return tuple(found)


def covered(findings: Sequence[Finding], entries: Sequence[KnownRemoval]) -> tuple[list[Finding], tuple[KnownUse, ...]]:
    """The findings, with those that entries cover marked as known, and the use of each entry."""
    commits: dict[str, dict[str, int]] = defaultdict(dict)
    for number, entry in enumerate(entries):
        if entry.commit is not None:
            commits[entry.table].setdefault(entry.commit, number)
    uses = dict.fromkeys(range(len(entries)), 0)
    result = []
    for finding in findings:
        used = _covering(finding, entries, commits.get(finding.table, {}))
        for number in used:
            uses[number] += 1
        result.append(replace(finding, known="; ".join(dict.fromkeys(entries[n].reason for n in used))))
    return result, tuple(KnownUse(entry, uses[number]) for number, entry in enumerate(entries))


def _covering(finding: Finding, entries: Sequence[KnownRemoval], commits: dict[str, int]) -> list[int]:
    """The entries that cover a finding together; empty if they do not."""
    if finding.kind is Kind.REMOVED_ROWS:
        names = [each.name for each in finding.changes if not each.key]  # what a job of sparkonce replaced is no defect
        return sorted({commits[name] for name in names}) if names and all(name in commits for name in names) else []
    if finding.kind is Kind.MISSING_ROWS and finding.rows is not None:
        enough = (
            number
            for number, entry in enumerate(entries)
            if entry.table == finding.table and entry.rows is not None and entry.rows >= finding.rows
        )
        return list(enough)[:1]
    return []
