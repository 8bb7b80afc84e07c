"""Findings of a report that have one cause, taken together, so that a person can read them: a compaction rewrites the files of every
commit, and a thousand damaged files of one tenant must not hide one of another. Pure.

A group has one kind, table and realm. Groups are ordered by severity; within one, the first group of each kind and realm comes before the
second of any, so that a list that is cut shows every tenant.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkonce.audit.findings import Finding, Kind, Severity
from sparkonce.sink.protocol import SinkKey

NAMED = 3
"""Members that a group names."""
HASH = 12
"""Digits of a key's hash that are shown: enough for every command that takes a KEY."""

_HASH = re.compile(r"(?<![\w/])([0-9a-f]{64})(?=$|[^\w/])(?!\S*/)")


@dataclass(frozen=True)
class KeyName:
    """How the ledger names a key."""

    realm: str
    key: str


Names = Mapping[str, KeyName]
"""By key hash."""


@dataclass(frozen=True)
class FindingGroup:
    """Findings of one kind in one table and realm, in the report's order; never empty."""

    findings: tuple[Finding, ...]
    realm: str
    """Empty: the ledger does not know the keys, or was not read."""

    @property
    def first(self) -> Finding:
        return self.findings[0]

    @property
    def commits(self) -> list[str]:
        """The later commits that the findings are due to."""
        return list(dict.fromkeys(str(change) for each in self.findings for change in each.changes))

    def names(self, names: Names) -> str:
        """As text: the first members, and how many more there are."""
        shown = ", ".join(name_of(each, names) for each in self.findings[:NAMED])
        more = len(self.findings) - NAMED
        return f"{shown} and {more} more" if more > 0 else shown

    def dump(self, names: Names) -> dict[str, Any]:
        """JSON object of the group."""
        first = self.first
        return {
            "severity": str(first.severity),
            "kind": str(first.kind),
            "table": first.table,
            "realm": self.realm or None,
            "count": len(self.findings),
            "first": [name_of(each, names) for each in self.findings[:NAMED]],
            "what": first.what,
            "todo": first.todo,
            "rollback": any(each.rollback for each in self.findings),
            "known": first.known or None,
        }


def grouped(findings: Sequence[Finding], names: Names) -> list[FindingGroup]:
    """The groups of a report's findings, in the order in which they are shown."""
    members: dict[tuple[Severity, Kind, str, str, str], list[Finding]] = {}
    for each in findings:
        named = names.get(each.key_hash)
        realm = named.realm if named else ""
        members.setdefault((each.severity, each.kind, each.table, realm, each.known), []).append(each)
    rank: Counter[tuple[Kind, str]] = Counter()
    ranked = []
    for at, ((severity, kind, _, realm, _), found) in enumerate(members.items()):
        ranked.append((list(Severity).index(severity), rank[kind, realm], at, FindingGroup(tuple(found), realm)))
        rank[kind, realm] += 1
    return [group for *_, group in sorted(ranked, key=lambda each: each[:3])]


def name_of(finding: Finding, names: Names) -> str:
    """A finding among others of its group: the key as its owner wrote it, or the path."""
    key = SinkKey.parse(finding.subject)
    if key is None or "/" in finding.subject:
        return names[finding.subject].key if finding.subject in names else finding.subject
    named = names.get(key.key_hash)
    said = named.key if named else f"{key.key_hash[:HASH]}-{key.output}"
    batch = "" if key.batch is None else f" batch {key.batch}"
    return said + (f" generation {key.generation}" if key.generation > 1 else "") + batch


def with_keys(text: str, names: Names) -> str:
    """The text with the key beside each of its hashes that the ledger knows. Hashes in paths stay as they are."""

    def named(match: re.Match[str]) -> str:
        found = names.get(match[1])
        return f"{found.key} = {match[1][:HASH]}" if found else match[1]

    return _HASH.sub(named, text)


def hashes_in(finding: Finding) -> Iterator[str]:
    """Every key hash that a finding names."""
    if finding.key_hash:
        yield finding.key_hash
    yield from re.findall(r"[0-9a-f]{64}", f"{finding.subject} {finding.what}")
