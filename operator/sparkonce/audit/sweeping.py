"""Removes staging that is proven unreachable, table by table.

What may go is decided by the sink, again, folder by folder, when it is deleted: an inventory only says which keys are worth asking. So it
does not matter how old the list is, who else sweeps, or where this process dies: a folder that is half deleted is unreachable still, and
the next sweep takes the rest. What an open attempt may commit is never touched, whatever its age: age proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sparkonce.audit.findings import sink_key_of
from sparkonce.audit.ledger import told
from sparkonce.audit.places import Place
from sparkonce.audit.tables import orphans
from sparkonce.blocking import run
from sparkonce.errors import SparkonceError
from sparkonce.sink.protocol import Inventory


@dataclass(frozen=True, kw_only=True)
class Done:
    """One table."""

    uri: str
    kind: str
    folders: int = 0
    """That were removed, or would be."""
    bytes: int = 0
    left: int = 0
    """Folders that an attempt may still commit."""
    problems: tuple[str, ...] = ()
    """A sentence each: what could not be looked at or removed. Sweeping again is safe."""


def sweep(places: Iterable[Place], *, dry_run: bool) -> Iterator[Done]:
    """One table after the other. With `dry_run` nothing is written."""
    for place in places:
        try:
            table = run(place.sink.inventory())
        except SparkonceError as error:
            yield Done(uri=place.sink.uri, kind=place.sink.kind, problems=(told(error),))
            continue
        yield _counted(table) if dry_run else _swept(place, table)


def _counted(table: Inventory) -> Done:
    left = list(orphans(table))
    unreachable = [each for each in left if each.unreachable]
    return Done(
        uri=table.uri,
        kind=table.kind,
        folders=len(unreachable),
        bytes=sum(each.bytes for each in unreachable),
        left=len(left) - len(unreachable),
    )


def _swept(place: Place, table: Inventory) -> Done:
    folders = size = 0
    problems = []
    names = list(dict.fromkeys(each.sink_key for each in table.staged if each.unreachable))
    for number, text in enumerate(names, 1):
        key = sink_key_of(text)
        if key is None:
            problems.append(f"{table.uri}: {text!r} is the name of no key; its folders are left")
            continue
        try:
            swept = run(place.sink.sweep(key, more=number < len(names)))
        except SparkonceError as error:
            problems.append(told(error))
            continue
        folders, size = folders + swept.folders, size + swept.bytes
    return Done(
        uri=table.uri,
        kind=table.kind,
        folders=folders,
        bytes=size,
        left=sum(not each.unreachable for each in orphans(table)),
        problems=tuple(problems),
    )
