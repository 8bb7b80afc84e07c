"""Lists the effects and staged files of all keys in an Iceberg table, for audits. Never writes.

Rows of other writers are left out: only files in our folders count. A commit whose files were compacted is still visible; its rows are then
in files that this list does not contain.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sparkonce import blocking
from sparkonce.errors import OutputCorrupt
from sparkonce.sink.iceberg.branch import branches, owner, written_by
from sparkonce.sink.iceberg.evidence import (
    DATA,
    MARK,
    KeyEvidence,
    Mark,
    evidence_of,
    history,
    lineage_of,
    marks,
    sink_key_of,
    token_and_nonce,
)
from sparkonce.sink.iceberg.files import live, moved_main, rolled_back, traced
from sparkonce.sink.iceberg.masks import masked_rows, masks
from sparkonce.sink.iceberg.snapshot import TableView
from sparkonce.sink.objects.protocol import Listed
from sparkonce.sink.protocol import (
    CommittedFile,
    Effect,
    Evidence,
    Found,
    Inventory,
    Probed,
    Slot,
    StagedFolder,
    overwritten,
    shown,
)
from sparkonce.sink.slotlog.layout import files_of
from sparkonce.sink.trace import AUDIT_BACK

THREADS = 8
"""Concurrent reads of slots: one round trip after the other would take as long as everything else together."""


@dataclass
class _Folder:
    files: int = 0
    bytes: int = 0
    modified: float = 0.0


async def inventory(view: TableView, *, kind: str) -> Inventory:
    """Everything of ours in the table; evidence that cannot be read becomes one sentence of `unreadable`.

    Raises:
        OutputUnavailable: the catalog or the store did not answer.
    """
    table, objects = view.table, view.objects
    folders = _folders(await objects.list(DATA))
    own = f"{table.location()}/"
    files = live(table)
    rows = {file.file_path: file.record_count for file in files}
    seen = [file.file_path.removeprefix(own) for file in files]
    ordered, unreadable = _effects(view)
    effects = shown(ordered, frozenset(seen))
    evidence: dict[str, KeyEvidence | None] = {}
    staged = []
    for path, folder in folders.items():
        token, nonce = token_and_nonce(path) or (0, "")
        sink_key = sink_key_of(path) or ""
        if sink_key not in evidence:
            evidence[sink_key] = _evidence(view, sink_key)
        staged.append(
            StagedFolder(
                path=path,
                sink_key=sink_key,
                token=token,
                nonce=nonce,
                files=folder.files,
                bytes=folder.bytes,
                unreachable=_unreachable(evidence[sink_key], token, nonce),
                modified=folder.modified,
            )
        )
    for each in branches(table.metadata):
        written, size, modified = written_by(table.metadata, each)
        sink_key = owner(table.metadata, each)
        staged.append(
            StagedFolder(
                path=f"branch {each.name}",
                sink_key=sink_key,
                token=each.token,
                nonce=each.nonce,
                files=written,
                bytes=size,
                unreachable=_unreachable(_evidence(view, sink_key), each.token, each.nonce),
                modified=modified,
            )
        )
    named = {file.path for effect in effects for file in effect.files}
    masked = masked_rows(table)
    hidden, unexplained = _hidden(view, effects, set(rows), masked or {}, overwritten(ordered))
    return Inventory(
        kind=kind,
        uri=view.uri,
        effects=effects,
        staged=tuple(staged),
        live=tuple(path for path in seen if path.startswith(f"{DATA}/{MARK}")),
        unreadable=tuple(unreadable),
        hidden=hidden,
        unexplained=unexplained,
        others={path: count for path, count in rows.items() if path.removeprefix(own) not in named},
        masked=None if masked is None else {path.removeprefix(own): count for path, count in masked.items()},
        commits={
            sink_key: tuple(f"snapshot {snapshot}" for snapshot in snapshots.values())
            for sink_key, snapshots in history(table.metadata).items()
            if len(snapshots) > 1
        },
        location=objects.uri,
    )


def _effects(view: TableView) -> tuple[list[tuple[float, Effect]], list[str]]:
    """The commits, each with its place in their order, and a sentence for each that cannot be read."""
    found: list[Mark] = []
    unreadable: list[str] = []
    for each in marks(view.table.metadata):
        if isinstance(each, Mark):
            found.append(each)
        else:
            unreadable.append(str(each))
    newest: dict[str, int] = {}
    for mark in found:
        lineage, generation = lineage_of(mark.sink_key)
        if mark.replaces:
            newest[lineage] = max(generation, newest.get(lineage, 0))
    sequence = {each.snapshot_id: each.sequence_number or 0 for each in view.table.metadata.snapshots}
    effects: list[tuple[float, Effect]] = []
    with ThreadPoolExecutor(THREADS) as pool:
        for mark, read in zip(found, pool.map(lambda mark: _read(view, mark), found), strict=True):
            if isinstance(read, str):
                unreadable.append(read)
                continue
            lineage, generation = lineage_of(mark.sink_key)
            visible = generation >= newest.get(lineage, 0)
            effect = Effect(slot=read[0], files=read[1], commit=f"snapshot {mark.snapshot}", visible=visible)
            effects.append((sequence[mark.at], effect))
    return effects, unreadable


def _hidden(
    view: TableView, effects: Iterable[Effect], seen: set[str], masked: Mapping[str, int], replaced: Collection[str]
) -> tuple[dict[str, Found], dict[str, int]]:
    """As `Inventory.hidden` and `Inventory.unexplained`. Where delete files may hide more than can be told, what is known of it."""
    table, found, lost = view.table, dict[str, Found](), dict[str, dict[str, int]]()
    hidden = masks(table, table.current_snapshot(), most=AUDIT_BACK)
    for effect in effects:
        sink_key = effect.slot.sink_key
        mark = evidence_of(table.metadata, sink_key).committed
        if mark is None or not effect.visible:
            continue
        files = {f"{mark.location}/{file.path}": file.rows for file in effect.files if file.rows}
        unseen = files.keys() - seen
        if (unseen or moved_main(table.metadata, mark)) and (why := rolled_back(table.metadata, mark)):
            found[sink_key] = Probed(verdict=Evidence.GONE, why=why)
        elif gone := unseen | (files.keys() & hidden.by.keys()):
            lost[sink_key] = {path: masked.get(path, files[path]) for path in gone}
    if not lost:
        return found, {}
    trace = traced(
        table, {path for files in lost.values() for path in files}, seen, hidden, back=AUDIT_BACK, every=True
    )
    found |= {sink_key: trace.probed(files, most=None) or Evidence.PRESENT for sink_key, files in lost.items()}
    counted = {sink_key: files for sink_key, files in lost.items() if sink_key not in replaced}
    return found, {
        sink_key: sum(files[path] for path in trace.unexplained(files)) for sink_key, files in counted.items()
    }


def _read(view: TableView, mark: Mark) -> tuple[Slot, tuple[CommittedFile, ...]] | str:
    """The slot and its files, or why they cannot be read."""
    try:
        slot = view.slot_of(mark)
        if slot.branch is not None:
            return slot, ()  # its files are Spark's, with rows of others in them
        return slot, CommittedFile.all_of(blocking.run(files_of(view.at(mark), slot)))
    except OutputCorrupt as error:
        return str(error)


def _folders(listed: tuple[Listed, ...]) -> dict[str, _Folder]:
    folders: dict[str, _Folder] = {}
    for each in listed:
        path = "/".join(each.path.split("/")[:3])
        if sink_key_of(path) is None or token_and_nonce(path) is None:
            continue
        folder = folders.setdefault(path, _Folder())
        folder.files += 1
        folder.bytes += each.bytes
        folder.modified = max(folder.modified, each.modified)
    return folders


def _evidence(view: TableView, sink_key: str) -> KeyEvidence | None:
    try:
        return evidence_of(view.table.metadata, sink_key)
    except OutputCorrupt:
        return None


def _unreachable(at: KeyEvidence | None, token: int, nonce: str) -> bool:
    if at is None:
        return False
    if at.committed is not None:
        return at.committed.nonce != nonce
    return token < at.barred_below
