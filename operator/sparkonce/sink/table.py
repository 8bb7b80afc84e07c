"""What a reader of a slot log sees: a pure function of the slots.

A table is the union over the outputs of all keys; of one output of a key (a *lineage*) it shows every committed generation that no
later committed generation replaced. Nothing is derived from what lies in `_data`.

Reading every slot of a large table would cost a request each, so readers begin with the newest snapshot: a list of decided slots, committed
ones whole and closed ones by name. A slot never changes, so a snapshot is never wrong, at most short; the slots that it does not name
are read. A process that froze before it wrote one writes, when it wakes, an older list of the same facts. Snapshots that do not parse,
or that a later version wrote, are passed over: all they could do is save requests. The last few are kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rfc8785
from pydantic import ValidationError

from sparkonce import blocking
from sparkonce.sink import layout
from sparkonce.sink.folder_objects import FolderObjects
from sparkonce.sink.listing import files_of
from sparkonce.sink.location import objects_at
from sparkonce.sink.objects import Objects
from sparkonce.sink.protocol import Slot, SlotState
from sparkonce.sink.stream import shown

SNAPSHOT_SCHEMA = 1
SNAPSHOT_AFTER = 64
"""Slots that no snapshot names, above which a new one is worth its write."""
SNAPSHOTS_KEPT = 3
"""A reader may hold the name of an older one for a moment; it copes with a missing one, but then reads every slot."""
LISTING_THREADS = 8
"""Folders listed at once: a store takes a round trip for each."""
SLOT_THREADS = 8
"""Slots read at once, for the same reason."""
WORTH = 100
"""Objects of a table per folder that is asked for, below which all are listed at once: a store gives a thousand per request."""


def visible(slots: Iterable[Slot]) -> list[Slot]:
    """The committed slots whose rows are in the table, in the order of their sink keys' lineage, generation and batch.

    What a rerun replaces, and when: see `stream.shown`."""
    lineages: dict[str, dict[int, list[Slot]]] = {}
    for slot in slots:
        lineage, generation = layout.lineage_of(slot.sink_key) or (slot.sink_key, 0)
        if slot.state is SlotState.COMMITTED:
            lineages.setdefault(lineage, {}).setdefault(generation, []).append(slot)
    return [
        slot
        for _, generations in sorted(lineages.items())
        for slot in shown([committed for _, committed in sorted(generations.items())])
    ]


@dataclass(frozen=True)
class Decided:
    """Slots whose decision is known."""

    committed: tuple[Slot, ...]
    closed: frozenset[str]
    """Paths."""
    number: int
    """Of the newest snapshot there is, readable or not."""
    unlisted: int
    """How many of them no snapshot named."""


async def decided(objects: Objects) -> Decided:
    """Every decided slot that a listing shows now, and every one that the newest snapshot names.

    OutputUnavailable; OutputCorrupt for a slot that does not parse."""
    return _with(await _look(objects), objects)


@dataclass(frozen=True)
class _Look:
    """What one listing and the newest snapshot say."""

    committed: dict[str, Slot]
    """By path."""
    closed: set[str]
    unlisted: tuple[str, ...]
    """Slots that the snapshot does not name."""
    number: int


async def _look(objects: Objects) -> _Look:
    paths = [each.path for each in await objects.list(layout.SLOTS)]
    numbers = layout.snapshots(paths)
    committed, closed = await newest_snapshot(objects, numbers)
    unlisted = tuple(path for path in paths if layout.is_slot(path) and path not in committed and path not in closed)
    return _Look(committed, closed, unlisted, max(numbers, default=0))


def _with(look: _Look, objects: Objects) -> Decided:
    """With the slots that no snapshot names."""
    committed, closed, unlisted = dict(look.committed), set(look.closed), 0
    with ThreadPoolExecutor(SLOT_THREADS) as pool:
        for path, data in zip(
            look.unlisted, pool.map(lambda path: blocking.run(objects.get(path)), look.unlisted), strict=True
        ):
            if data is None:
                continue
            slot = layout.decode(
                data, where=objects.where(path), sink_key=path.split("/")[1], token=layout.numbered(path) or 0
            )
            unlisted += 1
            if slot.state is SlotState.COMMITTED:
                committed[path] = slot
            else:
                closed.add(path)
    return Decided(tuple(committed.values()), frozenset(closed), look.number, unlisted)


async def committed_slots(objects: Objects) -> list[Slot]:
    """Visible or not. Errors as `decided`."""
    return list((await decided(objects)).committed)


async def write_snapshot(objects: Objects, *, after: int = SNAPSHOT_AFTER) -> bool:
    """Writes the next snapshot when more than `after` slots are in none; whether this call did. Old snapshots go."""
    look = await _look(objects)
    if len(look.unlisted) <= after:  # then none of them is read, either
        return False
    known = _with(look, objects)
    return known.unlisted > after and await _write(objects, known)


async def _write(objects: Objects, known: Decided) -> bool:
    number = known.number + 1
    body: dict[str, Any] = {
        "schema": SNAPSHOT_SCHEMA,
        "committed": [slot.dump() for slot in sorted(known.committed, key=lambda slot: (slot.sink_key, slot.token))],
        "closed": sorted(known.closed),
    }
    created = await objects.create(layout.snapshot_path(number), rfc8785.dumps(body))
    for each in await objects.list(layout.SNAPSHOTS):
        old = layout.numbered(each.path)
        if old is not None and old <= number - SNAPSHOTS_KEPT:
            await objects.delete(each.path)
    return created


async def newest_snapshot(objects: Objects, numbers: list[int]) -> tuple[dict[str, Slot], set[str]]:
    """Its committed slots by path, and the paths of the closed ones; nothing when no snapshot of these numbers can be read."""
    for number in reversed(numbers):
        data = await objects.get(layout.snapshot_path(number))
        try:
            body = json.loads(data or b"null")
            if not isinstance(body, dict) or body.get("schema") != SNAPSHOT_SCHEMA:
                continue
            slots = [Slot.model_validate(each) for each in body["committed"]]
            return {layout.slot_path(slot.sink_key, slot.token): slot for slot in slots}, set(body["closed"])
        except (ValueError, TypeError, KeyError, ValidationError):
            continue
    return {}, set()


async def missing_files(objects: Objects, slots: Iterable[Slot], *, writes: int | None = None) -> list[str]:
    """Paths that the slots name and that are not there with their recorded size: one listing per write, or one of all data where these
    writes are much of it; nothing is read. `writes`: how many the table has, where that is known.

    A hint for a person: what a listing does not show may be there all the same on some stores, never on a file system."""
    with ThreadPoolExecutor(LISTING_THREADS) as pool:
        listings = pool.map(lambda slot: blocking.run(files_of(objects, slot)), slots)
        named = {file.path: file.bytes for files in listings for file in files}
        folders = list(dict.fromkeys("/".join(path.split("/")[: layout.STAGING_DEPTH]) for path in named))
        if writes is not None and folders and writes * len(named) / len(folders) < WORTH * len(folders):
            folders = [layout.DATA]
        for listed in pool.map(lambda folder: blocking.run(objects.list(folder)), folders):
            for each in listed:
                if named.get(each.path) == each.bytes:
                    del named[each.path]
    return list(named)


@dataclass(frozen=True)
class Table:
    """A slot log, as it is now."""

    place: str | Path
    """A local folder (a relative one is relative to the working folder), or a URL as outputs declare it."""

    @property
    def objects(self) -> Objects:
        """InvalidInput, OutputUnsupported: it is no such place."""
        if isinstance(self.place, Path):
            return FolderObjects(self.place.absolute())
        return objects_at(self.place, base=str(Path.cwd()), field="path")

    def slots(self) -> list[Slot]:
        """The visible ones. OutputUnavailable, OutputCorrupt."""
        return visible(blocking.run(committed_slots(self.objects)))

    def files(self) -> list[str]:
        """The files that hold the table's rows: absolute paths of local ones, else URLs as Spark takes them. Errors as `slots`."""
        objects = self.objects
        paths = [file.path for slot in self.slots() for file in blocking.run(files_of(objects, slot))]
        return [objects.where(path).removeprefix("file://") for path in paths]
