"""The table of `kubectl sparkonce`'s commands in docs/kubernetes-cli.md, for tests that carry out what it says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sparkonce.gateway.keys import KeyRight

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kubernetes-cli.md"
ROLES = ("view", "edit", "admin")
"""Kubernetes' own; each has what those before it have."""


@dataclass(frozen=True)
class DocumentedCommand:
    text: str
    """As it is printed: `rerun -f FILE --reason TEXT`."""
    rights: frozenset[KeyRight]
    """At the gateway."""
    role: str

    @property
    def name(self) -> str:
        return self.text.split()[0]

    @property
    def by_file(self) -> bool:
        """It goes to the API server alone."""
        return "-f FILE" in self.text

    def is_for(self, role: str) -> bool:
        return ROLES.index(self.role) <= ROLES.index(role)


def documented_commands() -> list[DocumentedCommand]:
    """One for each command that the table's first column names."""
    [table] = re.findall(r"^\| command \|.*\n\| ---.*\n((?:\|.*\n)+)", PAGE.read_text(), re.MULTILINE)
    found = []
    for line in table.splitlines():
        commands, _, rights, role = (cell.strip() for cell in line.strip("|").split("|"))
        parsed = frozenset(
            KeyRight(verb, subresource)
            for verb, subresource in re.findall(r"`(\w+)`(?: on `idempotentjobs/(\w+)`)?", rights)
        )
        named = re.sub(r"\(.*?\)", "", commands)
        found += [DocumentedCommand(text, parsed, role) for text in re.findall(r"`(.*?)`", named)]
    return found
