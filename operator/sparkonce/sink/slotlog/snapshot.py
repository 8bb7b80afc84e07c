"""The visible content of a slot log: the slots that listings show, and snapshots that save readers from reading every slot.

What readers see is a pure function of the slots (`visibility`). The content of `_data` plays no part, but for the lists of files and of
replaced slots that slots name.

Reading every slot of a large table would cost one request each, so readers start from the newest snapshot: committed slots in full, closed
ones by path. Slots never change, so a snapshot may be incomplete but never wrong; slots that it does not contain are read. A process that
resumes after a long pause may write an older list of the same facts, which is harmless. Snapshots that do not parse, or that a later
release wrote, are ignored: they can only save requests. The last few are kept.

Where a slot that is in no snapshot overwrites others, the table is listed again (see `visibility`). A snapshot is written from what all of
these listings showed, so that it has what the overwrites in it have seen. It has a schema of its own then: releases that do not know
overwrites ignore it, read the slots, and refuse.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import rfc8785
from pydantic import ValidationError

from sparkonce import blocking
from sparkonce.errors import OutputChanged, OutputUnavailable
from sparkonce.model.spec import WriteMode
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.objects.location import objects_at
from sparkonce.sink.objects.protocol import TableObjects
from sparkonce.sink.protocol import CHANGES_NAMED, Change, DataFile, Evidence, Probed, Replacement, Slot, SlotState
from sparkonce.sink.slotlog import layout
from sparkonce.sink.slotlog.layout import files_of, replaced_by
from sparkonce.sink.slotlog.visibility import (
    Extent,
    Extents,
    Hiding,
    Shown,
    is_listed,
    misfit,
    of_partitions,
    path_of,
    place,
    replacement,
    trims,
    visible,
)

SNAPSHOT_SCHEMA = 1
OVERWRITTEN_SCHEMA = 2
"""Schema of a snapshot with slots that replace others."""
WITH_LANES_SCHEMA = 3
"""Schema of a snapshot with slots of lanes."""
WITH_TRIMMED_LANES_SCHEMA = 4
"""Schema of a snapshot with lanes that were trimmed."""
READABLE_SCHEMAS = (SNAPSHOT_SCHEMA, OVERWRITTEN_SCHEMA, WITH_LANES_SCHEMA, WITH_TRIMMED_LANES_SCHEMA)
SNAPSHOT_AFTER = 64
"""A new snapshot is written once more than this many slots are in none."""
SNAPSHOTS_KEPT = 3
"""A reader may be about to read an older one; if that was deleted, it reads every slot instead."""
LISTINGS = 20
"""Further listings of a table before a reader gives up: each shows another overwrite, which takes its writer several requests."""
LISTING_THREADS = 8
"""Concurrent listings: each is a round trip to the store."""
SLOT_THREADS = 8
"""Concurrent reads of slots, for the same reason."""
OBJECTS_PER_LISTING = 100
"""The whole table is listed at once when it has fewer objects than this per folder needed: a store returns a thousand per request."""


@dataclass(frozen=True)
class Decided:
    """The decided slots of a table, as one listing and the newest snapshot show them."""

    committed: tuple[Slot, ...]
    closed: frozenset[str]
    """Paths of the closed ones."""
    number: int
    """Number of the newest snapshot, readable or not; 0 if there is none."""
    unlisted: int
    """How many of these slots the snapshot did not contain."""
    extents: Extents
    """Of the overwrites whose slots do not have them."""

    @property
    def visible(self) -> list[Slot]:
        """The slots whose rows readers see, or some of them."""
        return visible(self.committed, self.extents)


async def decided(objects: TableObjects) -> Decided:
    """Every slot that a listing shows now or that the newest snapshot contains.

    Raises:
        OutputUnavailable: the store did not answer.
        OutputCorrupt: a slot does not parse.
    """
    return await _complete(await _listing(objects), objects)


@dataclass(frozen=True)
class _TableListing:
    """One listing combined with the newest snapshot."""

    committed: dict[str, Slot]
    """Slots by path, as the snapshot has them."""
    closed: set[str]
    """Paths, as the snapshot has them."""
    unlisted: tuple[str, ...]
    """Paths of the slots that the snapshot does not contain; not read yet."""
    number: int
    """See `Decided.number`."""


async def _listing(objects: TableObjects) -> _TableListing:
    paths = [each.path for each in await objects.list(layout.SLOTS)]
    numbers = layout.snapshots(paths)
    committed, closed = await newest_snapshot(objects, numbers)
    unlisted = tuple(path for path in paths if layout.is_slot(path) and path not in committed and path not in closed)
    return _TableListing(committed, closed, unlisted, max(numbers, default=0))


async def _complete(listing: _TableListing, objects: TableObjects) -> Decided:
    """Reads the slots that the snapshot does not contain, and all that the overwrites among them saw."""
    read = dict[str, Slot]()

    def overwrites(paths: Sequence[str]) -> bool:
        found = _read_slots(objects, paths)
        read.update(found)
        return any(slot.replaces is not None for slot in found.values())

    await listed_after_overwrites(objects, listing.unlisted, {*listing.committed, *listing.closed}, read=overwrites)
    committed = listing.committed | {path: slot for path, slot in read.items() if slot.state is SlotState.COMMITTED}
    closed = listing.closed | {path for path, slot in read.items() if slot.state is not SlotState.COMMITTED}
    extents = await _extents_in(objects, committed.values())
    return Decided(tuple(committed.values()), frozenset(closed), listing.number, len(read), extents)


async def listed_after_overwrites(
    objects: TableObjects, paths: Sequence[str], known: Collection[str], *, read: Callable[[Sequence[str]], bool]
) -> None:
    """Reads slots that a listing showed, and further ones until a listing shows no overwrite that an earlier one lacked (`visibility`).

    known: paths that need not be read. read: reads these slots, and says whether one of them overwrites.

    Raises:
        OutputUnavailable: the store did not answer, or the table is overwritten all the time.
    """
    seen = {*known, *paths}
    for _ in range(LISTINGS):
        if not read(paths):
            return
        listed = [each.path for each in await objects.list(layout.SLOTS)]
        paths = [path for path in listed if layout.is_slot(path) and path not in seen]
        seen.update(paths)
    raise OutputUnavailable(f"{objects.uri} was overwritten {LISTINGS} times while it was listed; try again")


def _read_slots(objects: TableObjects, paths: Sequence[str]) -> dict[str, Slot]:
    """Slots by path."""
    found = {}
    with ThreadPoolExecutor(SLOT_THREADS) as pool:
        for path, data in zip(paths, pool.map(lambda path: blocking.run(objects.get(path)), paths), strict=True):
            if data is not None:
                key, token = path.split("/")[1], layout.numbered(path) or 0
                found[path] = layout.decode(data, where=objects.where(path), sink_key=key, token=token)
    return found


async def _extents_in(objects: TableObjects, slots: Iterable[Slot]) -> Extents:
    """The extents of those of the slots that do not have them.

    Raises:
        OutputUnavailable: the store did not answer.
        OutputCorrupt: a list is missing or changed.
    """
    listed = [slot for slot in slots if is_listed(slot)]
    with ThreadPoolExecutor(SLOT_THREADS) as pool:
        found = pool.map(lambda slot: blocking.run(_extent(objects, slot)), listed)
        return {path_of(slot): extent for slot, extent in zip(listed, found, strict=True)}


async def _extent(objects: TableObjects, slot: Slot) -> Extent:
    return Extent.of(slot, await replaced_by(objects, slot), await files_of(objects, slot))


async def seen_in(objects: TableObjects, table: Decided) -> Shown:
    """The visible slots with the files that readers see.

    Raises:
        OutputUnavailable: the store did not answer.
        OutputCorrupt: a slot's list of files is missing or changed.
    """
    hiding, slots = Hiding.of(table.committed, table.extents), table.visible
    files = _files_by_slot(objects, slots)
    found = [(slot, hiding.shown(slot, each)) for slot, each in zip(slots, files, strict=True)]
    return [(slot, each) for slot, each in found if each is not None]


def _files_by_slot(objects: TableObjects, slots: Iterable[Slot]) -> list[tuple[DataFile, ...]]:
    """The files of each of the slots. Errors as `files_of`."""
    given = list(slots)
    listed = [slot for slot in given if slot.listing is not None]
    with ThreadPoolExecutor(SLOT_THREADS) as pool:
        read = pool.map(lambda slot: blocking.run(files_of(objects, slot)), listed)
        return [slot.files if slot.listing is None else next(read) for slot in given]


async def overwritten(objects: TableObjects, table: Decided, slots: Iterable[Slot]) -> Probed | None:
    """The verdict on committed slots of one key of whose rows overwrites have hidden some; None: readers see all. Errors as `seen_in`."""
    hiding = Hiding.of(table.committed, table.extents)
    by = [hiding.first(slot, file) for slot in slots for file in await files_of(objects, slot) if file.rows]
    return replaced_verdict(filter(None, by))


def replaced_verdict(by: Iterable[Slot]) -> Probed | None:
    """The verdict on rows that these overwrites have hidden; None without any."""
    overwrites = {path_of(slot): slot for slot in by}.values()
    newest = [
        Change(
            commit=path_of(slot),
            operation=str(slot.mode or ""),
            key=slot.sink_key,
            overwrites=slot.mode is WriteMode.OVERWRITE,
        )
        for slot in sorted(overwrites, key=place, reverse=True)
    ]
    if not newest:
        return None
    return Probed(
        verdict=Evidence.CHANGED,
        why=f"rows of it were replaced by {', '.join(map(str, newest[:CHANGES_NAMED]))}",
        changes=tuple(newest[:CHANGES_NAMED]),
    )


async def committed_slots(objects: TableObjects) -> list[Slot]:
    """All committed slots, also those that a later generation replaced.

    Raises:
        SparkonceError: as for `decided`.
    """
    return list((await decided(objects)).committed)


async def write_snapshot(objects: TableObjects, *, after: int = SNAPSHOT_AFTER) -> bool:
    """Writes the next snapshot, and deletes old ones, once more than `after` slots are in none. Returns whether this call wrote one.

    Raises:
        SparkonceError: as for `decided`.
    """
    listing = await _listing(objects)
    if len(listing.unlisted) <= after:  # decided without reading them
        return False
    known = await _complete(listing, objects)
    return known.unlisted > after and await _write(objects, known)


async def _write(objects: TableObjects, known: Decided) -> bool:
    number = known.number + 1
    body: dict[str, Any] = {
        "schema": max((_schema_for(slot) for slot in known.committed), default=SNAPSHOT_SCHEMA),
        "committed": [slot.dump() for slot in sorted(known.committed, key=lambda slot: (slot.sink_key, slot.token))],
        "closed": sorted(known.closed),
    }
    created = await objects.create(layout.snapshot_path(number), rfc8785.dumps(body))
    for each in await objects.list(layout.SNAPSHOTS):
        old = layout.numbered(each.path)
        if old is not None and old <= number - SNAPSHOTS_KEPT:
            await objects.delete(each.path)
    return created


def _schema_for(slot: Slot) -> int:
    if slot.lane is not None:
        return WITH_TRIMMED_LANES_SCHEMA if trims(slot) else WITH_LANES_SCHEMA
    return OVERWRITTEN_SCHEMA if slot.replaces is not None else SNAPSHOT_SCHEMA


async def newest_snapshot(objects: TableObjects, numbers: list[int]) -> tuple[dict[str, Slot], set[str]]:
    """Committed slots by path, and paths of closed ones, of the newest readable snapshot; both empty if none of `numbers` can be read."""
    for number in reversed(numbers):
        data = await objects.get(layout.snapshot_path(number))
        try:
            body = json.loads(data or b"null")
            if not isinstance(body, dict) or body.get("schema") not in READABLE_SCHEMAS:
                continue
            slots = [Slot.model_validate(each) for each in body["committed"]]
            return {layout.slot_path(slot.sink_key, slot.token): slot for slot in slots}, set(body["closed"])
        except (ValueError, TypeError, KeyError, ValidationError):
            continue
    return {}, set()


async def missing_files(objects: TableObjects, slots: Iterable[Slot], *, writes: int | None = None) -> list[str]:
    """Paths of the slots' files that are missing or have another size. Arguments and errors as `missing_of`.

    Raises:
        OutputCorrupt: a slot's list of files is missing or changed.
    """
    listings = _files_by_slot(objects, slots)
    return await missing_of(objects, (file for files in listings for file in files), writes=writes)


async def missing_of(objects: TableObjects, files: Iterable[DataFile], *, writes: int | None = None) -> list[str]:
    """Paths of the files that are missing or have another size.

    Lists the folder of each write, or all data at once where these writes are much of the table; reads no file.
    writes: number of writes in the table, if known.

    A hint: on some stores a listing may lack an existing object (never on a file system).

    Raises:
        OutputUnavailable: the store did not answer.
    """
    named = {file.path: file.bytes for file in files}
    folders = list(dict.fromkeys("/".join(path.split("/")[: layout.STAGING_DEPTH]) for path in named))
    if writes is not None and folders and writes * len(named) / len(folders) < OBJECTS_PER_LISTING * len(folders):
        folders = [layout.DATA]
    with ThreadPoolExecutor(LISTING_THREADS) as pool:
        for listed in pool.map(lambda folder: blocking.run(objects.list(folder)), folders):
            for each in listed:
                if named.get(each.path) == each.bytes:
                    del named[each.path]
    return list(named)


@dataclass(frozen=True, kw_only=True)
class StagedWrites:
    """Rows of one or several writes that one slot is to hold. They are in none yet, so that only their writer sees them."""

    slot: Slot
    """Without the files."""
    files: tuple[DataFile, ...]


async def replaced_now(
    objects: TableObjects, table: Decided, slot: Slot, files: Sequence[DataFile]
) -> tuple[int, Sequence[str]] | str:
    """Order and paths of the slots that an overwrite replaces in this table, or why it cannot replace that. files: its own.

    Raises:
        SparkonceError: as for `seen_in`.
    """
    order, replaced = replacement(table.committed, table.extents)
    if slot.mode is WriteMode.OVERWRITE_PARTITIONS:
        columns, seen = slot.partition_by or (), await seen_in(objects, table)
        if why := misfit(seen, columns):
            return why
        replaced = of_partitions(table.committed, seen, columns, files)
    return order, replaced


async def with_staged(objects: TableObjects, table: Decided, staged: StagedWrites) -> Decided:
    """The table as it would be if these rows were committed now.

    Raises:
        OutputChanged: it cannot take them any more.
        SparkonceError: as for `seen_in`.
    """
    slot = staged.slot.model_copy(update={"files": staged.files})
    if slot.mode is not None:
        found = await replaced_now(objects, table, slot, staged.files)
        if isinstance(found, str):
            raise OutputChanged(f"the slot log {objects.uri} cannot take what was written to it: {found}")
        slot = slot.model_copy(update={"replaces": Replacement(order=found[0], slots=tuple(found[1]))})
    return replace(table, committed=(*table.committed, slot))


@dataclass(frozen=True)
class Table:
    """A slot log, read anew by each call."""

    place: str | Path
    """A local folder (relative to the working directory) or a URL as in `spec.outputs`."""
    without: str = ""
    """Sink key whose slots are not seen."""
    staged: StagedWrites | None = None
    """Rows to be seen as if they were committed."""

    @property
    def objects(self) -> TableObjects:
        """The objects of the table.

        Raises:
            InvalidInput: not a valid location.
            OutputUnsupported: a scheme that is not supported.
        """
        if isinstance(self.place, Path):
            return FolderObjects(self.place.absolute())
        return objects_at(self.place, base=str(Path.cwd()), field="path")

    def now(self) -> Decided:
        """The decided slots, without those of `without`, and the staged one.

        Raises:
            SparkonceError: as for `decided` and `with_staged`.
        """
        objects = self.objects
        table = blocking.run(decided(objects))
        if self.without:
            others = (slot for slot in table.committed if slot.sink_key != self.without)
            table = replace(table, committed=tuple(others))
        if self.staged is not None:
            table = blocking.run(with_staged(objects, table, self.staged))
        return table

    def seen(self) -> Shown:
        """The visible slots with the files that readers see.

        Raises:
            SparkonceError: as for `decided` and `seen_in`.
        """
        return blocking.run(seen_in(self.objects, self.now()))

    def slots(self) -> list[Slot]:
        """The visible slots. Errors as `seen`."""
        return [slot for slot, _ in self.seen()]

    def files(self) -> list[str]:
        """The files with the table's rows: absolute local paths, or URLs for Spark.

        Raises:
            SparkonceError: as for `seen`.
        """
        objects = self.objects
        paths = [file.path for _, files in self.seen() for file in files]
        return [objects.where(path).removeprefix("file://") for path in paths]
