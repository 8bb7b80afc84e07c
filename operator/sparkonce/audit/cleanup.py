"""Removes staging folders that are proven unreachable, table by table.

The sink decides again for each folder at the moment of deletion; the inventory only selects candidate keys. So a stale inventory, a
concurrent sweep or a crash does no harm: a half-deleted folder is still unreachable, and the next sweep removes the rest. A folder that
an open attempt may commit is never touched, whatever its age: age proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sparkonce.audit.ledger import one_line
from sparkonce.audit.places import AuditedTable
from sparkonce.audit.tables import orphans
from sparkonce.blocking import run
from sparkonce.errors import SparkonceError
from sparkonce.sink.protocol import Inventory, SinkKey


@dataclass(frozen=True, kw_only=True)
class SweptTable:
    """Result of sweeping one table."""

    uri: str
    kind: str
    folders: int = 0
    """Folders removed, or that a dry run would remove."""
    bytes: int = 0
    left: int = 0
    """Folders kept because an attempt may still commit them."""
    problems: tuple[str, ...] = ()
    """One sentence per table or key that could not be listed or swept. Sweeping again is safe."""


def sweep(places: Iterable[AuditedTable], *, dry_run: bool) -> Iterator[SweptTable]:
    """Sweeps table after table; `dry_run` only counts. Errors become `problems` of the table."""
    for place in places:
        try:
            table = run(place.sink.inventory())
        except SparkonceError as error:
            yield SweptTable(uri=place.sink.uri, kind=place.sink.kind, problems=(one_line(error),))
            continue
        yield _counted(table) if dry_run else _swept(place, table)


def _counted(table: Inventory) -> SweptTable:
    left = list(orphans(table))
    unreachable = [each for each in left if each.unreachable]
    return SweptTable(
        uri=table.uri,
        kind=table.kind,
        folders=len(unreachable),
        bytes=sum(each.bytes for each in unreachable),
        left=len(left) - len(unreachable),
    )


def _swept(place: AuditedTable, table: Inventory) -> SweptTable:
    folders = size = 0
    problems = []
    names = list(dict.fromkeys(each.sink_key for each in table.staged if each.unreachable))
    for number, text in enumerate(names, 1):
        key = SinkKey.parse(text)
        if key is None:
            problems.append(f"{table.uri}: {text!r} is not a sink key; its folders are kept")
            continue
        try:
            swept = run(place.sink.sweep(key, more=number < len(names)))
        except SparkonceError as error:
            problems.append(one_line(error))
            continue
        folders, size = folders + swept.folders, size + swept.bytes
    return SweptTable(
        uri=table.uri,
        kind=table.kind,
        folders=folders,
        bytes=size,
        left=sum(not each.unreachable for each in orphans(table)),
        problems=tuple(problems),
    )
