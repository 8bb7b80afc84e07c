"""Lists the contents of a Delta table, of one lineage or of all keys, from the evidence beside it and one version of its log.

Audits also read the entries of the log, as far back as it keeps them: a snapshot has one number per key, so that of two commits only the
last would show.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from sparkonce import blocking
from sparkonce.errors import OutputCorrupt
from sparkonce.model.spec import OnRerun
from sparkonce.sink import stream
from sparkonce.sink.delta import evidence
from sparkonce.sink.delta.log import IDEM, LOG
from sparkonce.sink.delta.numbering import numbering, slot_number
from sparkonce.sink.delta.removals import traced
from sparkonce.sink.delta.snapshot import DeltaSnapshot
from sparkonce.sink.objects.protocol import Listed, TableObjects
from sparkonce.sink.protocol import (
    CommittedFile,
    DataFile,
    Effect,
    Evidence,
    Found,
    Inventory,
    SinkKey,
    Slot,
    StagedFolder,
    StreamPart,
    overwritten,
    shown,
)
from sparkonce.sink.slotlog import layout
from sparkonce.sink.slotlog.layout import files_of
from sparkonce.sink.trace import AUDIT_BACK

STAGING = "so-"
"""Prefix of folders with staged rows. Not an underscore: VACUUM must see files there that no version names any more."""
THREADS = 8
"""Objects read concurrently: in sequence, a store's round trips would take as long as everything else together."""

_ENTRY = re.compile(rf"{LOG}/(\d{{20}})\.json$")


def staging_folder(key: SinkKey | str, token: int, nonce: str) -> str:
    """The folder with the staged rows of one write call."""
    return f"{STAGING}{key}/{token:010d}-{nonce}"


async def missing(objects: TableObjects, files: Iterable[DataFile]) -> list[str]:
    """Paths that do not exist with their recorded size; no file is read. One listing per write of ours, and one request for each file
    of another engine, which puts the files of all writers into the same folders."""
    named = {file.path: file.bytes for file in files}
    own = {path: folder for path in named if (folder := _write_of(path)) is not None}
    for folder in dict.fromkeys(own.values()):
        for each in await objects.list(folder):
            if named.get(each.path) == each.bytes:
                del named[each.path]
    return [path for path in named if path in own or await objects.tail(path, 1) is None]


def is_opening(slot: Slot) -> bool:
    """Whether a slot is a stream's opening, which binds it to its checkpoint and is not an effect."""
    return slot.stream is not None and slot.stream.part is StreamPart.OPENING


def is_native(slot: Slot) -> bool:
    """Whether a slot is part of a native block, whose rows Spark commits itself."""
    return slot.stream is not None and slot.stream.native is True


async def is_replaced(objects: TableObjects, table: DeltaSnapshot, key: SinkKey) -> bool:
    """Whether a later, replacing generation of the lineage is committed."""
    for run in await evidence.runs(objects, key.lineage):
        if run.generation > key.generation:
            slot = await _committed(objects, table, run)
            if slot is not None and slot.on_rerun is OnRerun.REPLACE and not is_opening(slot):
                return True
    return False


@dataclass(frozen=True)
class Earlier:
    """What the earlier generations of a lineage wrote and no committed generation has replaced yet."""

    files: tuple[DataFile, ...] = ()
    statements: bool = False
    """Another engine committed rows for one of them, which no commit can replace by files; `files` is then empty."""


async def earlier(objects: TableObjects, table: DeltaSnapshot, key: SinkKey) -> Earlier:
    """What the earlier generations of the lineage wrote.

    A stream's first batch replaces the earlier generations; later batches find nothing left to replace.
    Raises: OutputCorrupt when the files of a committed earlier generation cannot be read any more. The log alone shows that one is
    committed, also where the whole folder with its evidence was deleted."""
    runs = [run for run in await evidence.runs(objects, key.lineage) if run.generation <= key.generation]
    stand = [(run, await _committed(objects, table, run)) for run in runs]
    if any(
        run.generation < key.generation
        and not numbering(run).own_rows
        and slot is not None
        and stream.mark(slot).batches
        for run, slot in stand
    ):
        return Earlier(statements=True)
    slots = [(run.generation, slot) for run, slot in stand if slot is not None]
    replacing = (at for at, slot in slots if slot.on_rerun is OnRerun.REPLACE and not is_opening(slot))
    first = max(replacing, default=0)
    standing = [slot for at, slot in slots if first <= at < key.generation]
    listed = {str(run) for run in runs}
    for generation in range(max(1, first), key.generation):
        _refuse_unless_listed(objects, table, key.whole.model_copy(update={"generation": generation}), listed)
    for slot in standing:
        opened = stream.key_of(slot.sink_key) if is_opening(slot) else None
        places = None if opened is None else stream.within(opened, slot)
        number = slot.stream.first_batch if slot.stream is not None else 0
        while places is not None and _refuse_unless_listed(objects, table, stream.place(places, number), listed):
            number += 1
    return Earlier(tuple([file for slot in standing for file in await files_of(objects, slot)]))


def _refuse_unless_listed(objects: TableObjects, table: DeltaSnapshot, key: SinkKey, listed: Collection[str]) -> bool:
    """Whether the log commits a key. Raises: OutputCorrupt when it does, and the folder with its evidence is gone."""
    committed = table.committed(key) is not None
    if committed and str(key) not in listed:
        raise evidence.lost(objects, key)
    return committed


async def _committed(objects: TableObjects, table: DeltaSnapshot, key: SinkKey) -> Slot | None:
    number = table.committed(key)
    if number is None:
        return None
    slot = await evidence.numbered(objects, key, number)
    if slot is None:
        raise evidence.lost(objects, key)
    return slot


@dataclass
class _Collected:
    committed: list[tuple[str, Slot, tuple[CommittedFile, ...]]] = field(default_factory=list)
    """Path, slot and its files."""
    stands: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Sink key -> token and nonce of its committed slot."""
    barred: dict[str, int] = field(default_factory=dict)
    """Sink key -> lowest token that may commit, for keys with a noted fence."""
    unreadable: list[str] = field(default_factory=list)
    commits: dict[str, dict[int, int]] = field(default_factory=dict)
    """Sink key -> number of each slot that the log commits, and the first version that does."""


async def inventory(objects: TableObjects, table: DeltaSnapshot | None, kind: str) -> Inventory:
    """A slot or list of files that does not parse becomes a sentence in `unreadable`. Raises: OutputUnavailable."""
    everything = await objects.list("")
    listed = [each for each in everything if not each.path.startswith((LOG, "."))]
    rows = [each for each in listed if not each.path.startswith("_")]
    folders: dict[str, list[Listed]] = {}
    for each in rows:
        if (folder := _write_of(each.path)) is not None:
            folders.setdefault(folder, []).append(each)
    commits, damaged = _commits(objects, table, everything)
    found = _evidence(objects, table, listed, {_key_of(folder) for folder in folders}, commits)
    ordered = _effects(found)
    effects = shown(ordered, frozenset() if table is None else table.live.keys())
    named = {file.path for effect in effects for file in effect.files}
    hidden, unexplained = ({}, {}) if table is None else await _hidden(objects, table, effects, overwritten(ordered))
    return Inventory(
        kind=kind,
        uri=objects.uri,
        effects=effects,
        staged=tuple(_staged(table, found, folder, inside) for folder, inside in folders.items()),
        live=() if table is None else tuple(sorted(table.live)),
        unreadable=(*found.unreadable, *damaged),
        hidden=hidden,
        unexplained=unexplained,
        others={} if table is None else {path: rows for path, rows in table.records.items() if path not in named},
        masked={} if table is None else table.masked_rows,
        commits={
            sink_key: tuple(f"version {version}" for version in versions.values())
            for sink_key, versions in found.commits.items()
            if len(versions) > 1
        },
    )


async def _hidden(
    objects: TableObjects, table: DeltaSnapshot, effects: Iterable[Effect], replaced: Collection[str]
) -> tuple[dict[str, Found], dict[str, int]]:
    """As `Inventory.hidden` and `Inventory.unexplained`."""
    masked = table.masked_rows
    unseen: dict[str, dict[str, int]] = {}
    for effect in effects:
        rows = {file.path: file.rows for file in effect.files}
        if effect.visible and (lost := (rows.keys() - table.live.keys()) | (rows.keys() & masked.keys())):
            gone = {path: masked.get(path, rows[path]) for path in lost}
            unseen.setdefault(effect.slot.sink_key, {}).update(gone)
    if not unseen:
        return {}, {}
    trace = await traced(
        objects, table, {path for lost in unseen.values() for path in lost}, back=AUDIT_BACK, every=True
    )
    hidden = {sink_key: trace.probed(lost, most=None) or Evidence.PRESENT for sink_key, lost in unseen.items()}
    counted = {sink_key: lost for sink_key, lost in unseen.items() if sink_key not in replaced}
    return hidden, {sink_key: sum(lost[path] for path in trace.unexplained(lost)) for sink_key, lost in counted.items()}


def _effects(found: _Collected) -> list[tuple[float, Effect]]:
    """The commits, each with its place in their order."""
    newest: dict[str, int] = {}
    for _, slot, _ in found.committed:
        lineage, generation = _lineage(slot.sink_key)
        if slot.on_rerun is OnRerun.REPLACE and not is_opening(slot):
            newest[lineage] = max(generation, newest.get(lineage, 0))
    effects = []
    for path, slot, files in found.committed:
        lineage, generation = _lineage(slot.sink_key)
        visible = generation >= newest.get(lineage, 0)
        effects.append((_order(found, slot), Effect(slot=slot, files=files, commit=path, visible=visible)))
    return effects


def _order(found: _Collected, slot: Slot) -> float:
    """The version that committed a slot; for one whose entry was cleaned up, something between -1 and 0 by the writer's clock."""
    version = found.commits.get(slot.sink_key, {}).get(slot_number(slot))
    return -1 / (1 + max(0.0, slot.committed_at)) if version is None else version


def _staged(table: DeltaSnapshot | None, found: _Collected, folder: str, inside: list[Listed]) -> StagedFolder:
    token, nonce = layout.staged(folder) or (0, "")
    sink_key = _key_of(folder)
    stands = found.stands.get(sink_key)
    barred = found.barred.get(sink_key, 0) if table is None else table.fenced(sink_key)
    return StagedFolder(
        path=folder,
        sink_key=sink_key,
        token=token,
        nonce=nonce,
        files=len(inside),
        bytes=sum(each.bytes for each in inside),
        unreachable=(token, nonce) != stands if stands else token < barred,
        modified=max(each.modified for each in inside),
    )


def _commits(
    objects: TableObjects, table: DeltaSnapshot | None, listed: Iterable[Listed]
) -> tuple[dict[str, dict[int, int]], list[str]]:
    """As `_Collected.commits`, from the entries that still exist, up to the loaded version; and a sentence for each that does not parse.
    Such an entry may lie before a checkpoint, where no reader of the table meets it."""
    if table is None:
        return {}, []
    numbered = ((int(match[1]), each.path) for each in listed if (match := _ENTRY.match(each.path)))
    entries = sorted((version, path) for version, path in numbered if version <= table.version)
    found: dict[str, dict[int, int]] = {}
    damaged: list[str] = []
    with ThreadPoolExecutor(THREADS) as pool:
        for (version, path), entry in zip(
            entries, pool.map(lambda entry: blocking.run(objects.get(entry[1])), entries), strict=True
        ):
            try:
                named = _named(entry)
            except (ValueError, TypeError, AttributeError, LookupError):
                damaged.append(f"{objects.where(path)} does not parse; what it committed is not compared")
                continue
            for sink_key, number in named:
                found.setdefault(sink_key, {}).setdefault(number, version)
    return found, damaged


def _named(entry: bytes | None) -> list[tuple[str, int]]:
    """Sink keys that an entry of the log commits, with the numbers of their slots."""
    told = [json.loads(line).get("txn") or {} for line in (entry or b"").splitlines() if b'"txn"' in line]
    named = [
        (each["appId"].removeprefix(IDEM), each["version"]) for each in told if each.get("appId", "").startswith(IDEM)
    ]
    return [(sink_key, number) for sink_key, number in named if numbering(sink_key).commits(number)]


def _evidence(
    objects: TableObjects,
    table: DeltaSnapshot | None,
    listed: Iterable[Listed],
    staged: Iterable[str],
    commits: dict[str, dict[int, int]],
) -> _Collected:
    found = _Collected(commits=commits)
    paths: dict[str, str] = {}
    for each in listed:
        parts = each.path.split("/")
        if parts[0] != evidence.EVIDENCE or len(parts) < 4:
            continue
        paths[each.path] = sink_key = f"{parts[1]}-{parts[2]}"
        if token := evidence.noted_token(each.path):
            found.barred[sink_key] = max(token, found.barred.get(sink_key, 0))
    stands = {sink_key: None if table is None else table.committed(sink_key) for sink_key in {*staged, *paths.values()}}
    with ThreadPoolExecutor(THREADS) as pool:
        read = pool.map(lambda path: _read(objects, path, {stands[paths[path]], *commits.get(paths[path], ())}), paths)
        for (path, sink_key), slot in zip(paths.items(), read, strict=True):
            if isinstance(slot, str):
                found.unreadable.append(slot)
            elif slot is not None:
                found.committed.append((path, *slot))
                if slot_number(slot[0]) == stands[sink_key]:
                    found.stands[sink_key] = (slot[0].token, slot[0].nonce)
    lost = sorted(
        sink_key
        for sink_key, number in stands.items()
        if number is not None and sink_key not in found.stands and len(commits.get(sink_key, ())) < 2
    )
    found.unreadable += (str(evidence.lost(objects, sink_key)) for sink_key in lost)
    return found


def _read(
    objects: TableObjects, path: str, committed: set[int | None]
) -> tuple[Slot, tuple[CommittedFile, ...]] | str | None:
    """A committed slot and its files; a sentence for one that does not parse; None for anything else."""
    try:
        slot = blocking.run(evidence.read(objects, path))
        if slot is None or slot_number(slot) not in committed:
            return None
        if not numbering(slot.sink_key).own_rows:  # the files have rows of others in them
            return slot, ()
        return slot, CommittedFile.all_of(blocking.run(files_of(objects, slot)))
    except OutputCorrupt as error:
        return str(error)


def _write_of(path: str) -> str | None:
    """The folder of the write call that staged a file; None for a file of another writer."""
    folder = "/".join(path.split("/")[:2])
    return folder if folder.startswith(STAGING) and layout.staged(folder) is not None else None


def _key_of(folder: str) -> str:
    return folder.partition("/")[0].removeprefix(STAGING)


def _lineage(sink_key: str) -> tuple[str, int]:
    return layout.lineage_of(sink_key) or (sink_key, 0)
