"""What stands in an Iceberg table, of all keys: for an audit. Reads, never writes.

Rows of other writers of the table are left out: a file counts when it lies in a folder of ours. A commit whose files a compaction has
rewritten is visible all the same; its rows are then in files that this list does not name.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sparkonce import blocking
from sparkonce.errors import OutputCorrupt
from sparkonce.sink.iceberg_evidence import Mark, Standing, history, lineage_of, marks, standing
from sparkonce.sink.iceberg_files import live
from sparkonce.sink.iceberg_layout import DATA, MARK, sink_key_of, token_and_nonce
from sparkonce.sink.iceberg_view import View
from sparkonce.sink.listing import files_of
from sparkonce.sink.objects import Listed
from sparkonce.sink.protocol import CommittedFile, Effect, Inventory, Slot, StagedFolder

THREADS = 8
"""Slots read at once: a store's round trips in a row would take as long as everything else together."""


@dataclass
class _Folder:
    files: int = 0
    bytes: int = 0
    modified: float = 0.0


async def inventory(view: View, *, kind: str) -> Inventory:
    """OutputUnavailable. Evidence that cannot be read is one sentence of `unreadable`."""
    table, objects = view.table, view.objects
    effects, unreadable = _effects(view)
    folders = _folders(await objects.list(DATA))
    own = f"{table.location()}/"
    seen = (file.file_path.removeprefix(own) for file in live(table))
    standings: dict[str, Standing | None] = {}
    staged = []
    for path, folder in folders.items():
        token, nonce = token_and_nonce(path) or (0, "")
        sink_key = sink_key_of(path) or ""
        if sink_key not in standings:
            standings[sink_key] = _standing(view, sink_key)
        staged.append(
            StagedFolder(
                path=path,
                sink_key=sink_key,
                token=token,
                nonce=nonce,
                files=folder.files,
                bytes=folder.bytes,
                unreachable=_unreachable(standings[sink_key], token, nonce),
                modified=folder.modified,
            )
        )
    return Inventory(
        kind=kind,
        uri=view.uri,
        effects=tuple(effects),
        staged=tuple(staged),
        live=tuple(path for path in seen if path.startswith(f"{DATA}/{MARK}")),
        unreadable=tuple(unreadable),
        commits={
            sink_key: tuple(f"snapshot {snapshot}" for snapshot in snapshots.values())
            for sink_key, snapshots in history(table.metadata).items()
            if len(snapshots) > 1
        },
        location=objects.uri,
    )


def _effects(view: View) -> tuple[list[Effect], list[str]]:
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
    effects = []
    with ThreadPoolExecutor(THREADS) as pool:
        for mark, read in zip(found, pool.map(lambda mark: _read(view, mark), found), strict=True):
            if isinstance(read, str):
                unreadable.append(read)
                continue
            lineage, generation = lineage_of(mark.sink_key)
            visible = generation >= newest.get(lineage, 0)
            effects.append(Effect(slot=read[0], files=read[1], commit=f"snapshot {mark.snapshot}", visible=visible))
    return effects, unreadable


def _read(view: View, mark: Mark) -> tuple[Slot, tuple[CommittedFile, ...]] | str:
    """The slot and its files, or a sentence."""
    try:
        slot = view.slot_of(mark)
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


def _standing(view: View, sink_key: str) -> Standing | None:
    try:
        return standing(view.table.metadata, sink_key)
    except OutputCorrupt:
        return None


def _unreachable(at: Standing | None, token: int, nonce: str) -> bool:
    if at is None:
        return False
    if at.committed is not None:
        return at.committed.nonce != nonce
    return token < at.barred_below
