"""Data files of an Iceberg table: which ones readers see, which ones compactions rewrote and later generations replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntryStatus
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of

from sparkonce.sink.iceberg.catalog import asking
from sparkonce.sink.iceberg.evidence import COMMITTED, Mark, lineage_of, marks
from sparkonce.sink.protocol import SinkKey
from sparkonce.sink.stream import place

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata


def live(table: Table) -> list[DataFile]:
    """The files that readers of `main` see; a file that is listed twice is here twice.

    Raises:
        OutputUnavailable: a manifest cannot be read.
    """
    head = table.metadata.current_snapshot()
    if head is None:
        return []
    with asking(f"cannot read the manifests of {table.location()}"):
        return [
            entry.data_file
            for manifest in head.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            if entry.data_file.content == DataFileContent.DATA
        ]


def rewritten(table: Table, paths: Iterable[str]) -> set[str] | None:
    """Those of the paths whose rows a compaction moved to other files; None if the snapshots needed to decide have expired.

    Raises:
        OutputUnavailable: a manifest cannot be read.
    """
    left = set(paths)
    moved: set[str] = set()
    head = table.metadata.current_snapshot()
    for snapshot in ancestors_of(head, table.metadata):
        if not left:
            return moved
        gone = _removed_by(table, snapshot) & left
        left -= gone
        if snapshot.summary is not None and snapshot.summary.operation == Operation.REPLACE:
            moved |= gone
    return None if left else moved


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
        lineage, generation = lineage_of(sink_key)
        return lineage == key.lineage and wanted(generation)

    for mark in marks(metadata, named):
        if not isinstance(mark, Mark):
            raise mark
        yield mark


def _removed_by(table: Table, snapshot: Snapshot) -> set[str]:
    with asking(f"cannot read the manifests of {table.location()}"):
        return {
            entry.data_file.file_path
            for manifest in snapshot.manifests(table.io)
            if manifest.added_snapshot_id == snapshot.snapshot_id and manifest.deleted_files_count != 0
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
            if entry.status == ManifestEntryStatus.DELETED
        }
