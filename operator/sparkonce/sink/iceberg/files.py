"""Data files of an Iceberg table: which ones readers see, what became of the others (see `sink.trace`), and which ones later generations
replaced."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntryStatus
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from sparkonce.sink.iceberg.catalog import asking
from sparkonce.sink.iceberg.evidence import COMMITTED, Mark, is_statement, lineage_of, marks, sink_key_in
from sparkonce.sink.iceberg.masks import READ, Masks, change_of, masks
from sparkonce.sink.protocol import Change, SinkKey
from sparkonce.sink.stream import place
from sparkonce.sink.trace import AUDIT_BACK, LOOK_BACK, Group, RowTrace, Step

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata


def live(table: Table) -> list[DataFile]:
    """The files that readers of `main` see; a file that is listed twice is here twice.

    Raises:
        OutputUnavailable: a manifest cannot be read.
    """
    return live_and_deletes(table)[0]


def live_and_deletes(table: Table) -> tuple[list[DataFile], bool]:
    """As `live`, and whether there are delete files beside them, which hide rows (see `masks`).

    Raises:
        OutputUnavailable: a manifest cannot be read.
    """
    head = table.metadata.current_snapshot()
    if head is None:
        return [], False
    with asking(f"cannot read the manifests of {table.location()}"):
        manifests = head.manifests(table.io)
        rows = [each for each in manifests if each.content == ManifestContent.DATA]
        files = [
            entry.data_file
            for manifest in rows
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        ]
        return files, len(rows) < len(manifests)


def traced(
    table: Table,
    lost: Iterable[str],
    seen: Collection[str],
    masked: Masks,
    *,
    back: int = LOOK_BACK,
    every: bool = False,
) -> RowTrace:
    """Follows files that readers do not see, or not whole, through the history of `main`: `back` snapshots at most (the list of manifests
    of each, and those of its manifests that remove files), and no further than they are kept. seen: the files that readers see, `masked` of
    them not whole.

    Raises:
        OutputUnavailable: a manifest or a delete file cannot be read.
    """
    trace = RowTrace(lost, set(seen) - masked.by.keys(), every=every)
    for step in _hiding(masked, every=every):
        trace.step(step)
    for snapshot in islice(history_of(table.metadata), back):
        if trace.done:
            break
        step, hidden = _step(table, snapshot, every=every)
        trace.step(step)
        for each in _hiding(hidden, every=every):
            trace.step(each)
    return trace


def _hiding(masked: Masks, *, every: bool) -> Iterator[Step]:
    files: dict[Change, list[str]] = {}
    for path, newest in masked.by.items():
        for change in masked.every[path] if every else (newest,):
            files.setdefault(change, []).append(path)
    for change, paths in files.items():
        yield Step(change=change, marks=paths)


def history_of(metadata: TableMetadata) -> Iterator[Snapshot]:
    """The snapshots of `main`, from its newest back to the first, or to one that has expired."""
    kept = {each.snapshot_id: each for each in metadata.snapshots}  # pyiceberg searches all of them for each lookup
    snapshot = metadata.current_snapshot()
    while snapshot is not None:
        yield snapshot
        snapshot = kept.get(snapshot.parent_snapshot_id) if snapshot.parent_snapshot_id is not None else None


def rolled_back(metadata: TableMetadata, mark: Mark) -> str | None:
    """One clause, if the snapshot of a commit is provably not in the history of `main`; None: it is, or the snapshots that would show it
    have expired.

    Sequence numbers rise along a history, and the evidence of a commit got the one after its rows: the first older snapshot that is met
    must be the commit's. A history that ends before proves nothing: expiry by pyiceberg makes a snapshot whose parent it removed look like
    the first one."""
    evidence = metadata.snapshot_by_id(mark.at)
    if evidence is None or evidence.sequence_number is None:
        return None
    if metadata.current_snapshot() is None:
        return f"snapshot {mark.snapshot}, its commit, is not in the history of main, which has no snapshot"
    for snapshot in history_of(metadata):
        if snapshot.snapshot_id == mark.snapshot:
            return None
        if snapshot.sequence_number is not None and snapshot.sequence_number < evidence.sequence_number:
            went = f"which went back to snapshot {snapshot.snapshot_id}"
            return f"snapshot {mark.snapshot}, its commit, is not in the history of main, {went}"
    return None


def brought_back(metadata: TableMetadata, mark: Mark) -> bool:
    """Whether the rows of a commit may have come into the history of `main` by another snapshot: a cherry-pick names the snapshot that it
    copied. What expired snapshots did is unknown, and then nothing proves a rollback either (`rolled_back`)."""
    picked = str(mark.snapshot)
    return any(
        snapshot.summary is not None and snapshot.summary.additional_properties.get("source-snapshot-id", "") == picked
        for snapshot in history_of(metadata)
    )


def moved_main(metadata: TableMetadata, mark: Mark) -> bool:
    """Whether a commit without files has a snapshot of its own, as one that removes other rows does; False if that has expired."""
    snapshot = metadata.snapshot_by_id(mark.snapshot)
    return snapshot is not None and snapshot.summary is not None and sink_key_in(snapshot.summary) == mark.sink_key


def superseded(metadata: TableMetadata, key: SinkKey) -> list[Mark]:
    """Commits of earlier generations whose rows a Replace of this key removes: those that no Replace in between removed.

    Raises:
        OutputCorrupt: evidence of one cannot be read.
    """
    if key.batch and f"{COMMITTED}{place(key, key.batch - 1)}" in metadata.refs:
        return []  # the stream's first batch has removed them
    generations: dict[int, list[Mark]] = {}
    for mark in of_lineage(metadata, key, lambda generation: generation < key.generation):
        generations.setdefault(lineage_of(mark.sink_key)[1], []).append(mark)
    found: list[Mark] = []
    for _, committed in sorted(generations.items()):
        if any(mark.replaces for mark in committed):
            found = []
        found += committed
    return found


def replaced_by(metadata: TableMetadata, key: SinkKey) -> int | None:
    """The newest later generation that replaced this one's rows, or None.

    Raises:
        OutputCorrupt: evidence of one cannot be read.
    """
    later = [
        lineage_of(mark.sink_key)[1]
        for mark in of_lineage(metadata, key, lambda generation: generation > key.generation)
        if mark.replaces
    ]
    return max(later, default=None)


def of_lineage(metadata: TableMetadata, key: SinkKey, wanted: Callable[[int], bool]) -> Iterable[Mark]:
    """Commits of the key's lineage in the generations that `wanted` selects.

    Raises:
        OutputCorrupt: evidence of one cannot be read.
    """

    def named(sink_key: str) -> bool:
        lineage, generation = lineage_of(sink_key) if sink_key.startswith(f"{key.lineage}-") else ("", 0)
        return lineage == key.lineage and wanted(generation)

    for mark in marks(metadata, named):
        if not isinstance(mark, Mark):
            raise mark
        yield mark


def _replaces_all(summary: Summary) -> bool:
    """Whether the files that a snapshot adds hold no row of those that it removes."""
    own = bool(sink_key_in(summary)) and not is_statement(summary)
    return own or summary.additional_properties.get("replace-partitions") == "true"


def _step(table: Table, snapshot: Snapshot, *, every: bool = False) -> tuple[Step, Masks]:
    """What a snapshot did to data files, and what had been hidden in those whose rows it moved, or removed where every commit is asked
    for."""
    summary = snapshot.summary
    moves = summary is not None and summary.operation == Operation.REPLACE
    rewrites = every and summary is not None and not moves and not _replaces_all(summary)
    removed: dict[str, Group] = {}
    added: dict[str, Group] = {}
    with asking(f"cannot read the manifests of {table.location()}"):
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id != snapshot.snapshot_id or manifest.content != ManifestContent.DATA:
                continue
            if manifest.deleted_files_count == 0 and not ((moves or rewrites) and manifest.added_files_count != 0):
                continue
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                file, of = entry.data_file, {ManifestEntryStatus.DELETED: removed, ManifestEntryStatus.ADDED: added}
                if entry.status in of:
                    of[entry.status][file.file_path] = (manifest.partition_spec_id, file.partition)
    change = change_of(snapshot)
    if not moves and not (every and removed):
        return Step(change=change, removed=removed), Masks()
    parent = snapshot.parent_snapshot_id
    before = table.metadata.snapshot_by_id(parent) if parent is not None else None
    hidden = masks(table, before, of=removed, most=AUDIT_BACK if every else READ)
    marked = removed if hidden.unknown else hidden.by.keys()
    if not moves:
        rest = removed if rewrites and added else {}
        return Step(change=change, removed=removed, added=added, rewritten=rest, marked=marked), hidden
    return Step(change=change, moved=removed, added=added, marked=marked), hidden
