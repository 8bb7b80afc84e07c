"""Rows of an Iceberg table that delete files hide while their data file stays in it (merge-on-read).

pyiceberg matches position deletes with data files, by their bounds of paths; where these are no single path, the paths are read from the
delete file. Equality deletes hide rows by value, and pyiceberg does not read them: nothing is claimed of a table that has some.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, cast

from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.schema import Schema

from sparkonce.sink.iceberg.catalog import asking
from sparkonce.sink.iceberg.evidence import noted_in, sink_key_in
from sparkonce.sink.protocol import Change
from sparkonce.sink.trace import operation_name

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

READ = 20
"""Delete files read at most for one answer, each one request: it is on the path of every replay."""
FILE_PATH = 2147483546
"""Iceberg's field id of `file_path` in a position delete file."""


@dataclass(frozen=True)
class Masks:
    """Data files of which rows are hidden."""

    by: Mapping[str, Change] = field(default_factory=dict)
    """Location of the file -> the newest snapshot that hides rows of it."""
    every: Mapping[str, tuple[Change, ...]] = field(default_factory=dict)
    """Location of the file -> all snapshots that hide rows of it."""
    unknown: str = ""
    """Why this is not all, as a clause; empty: it is."""


def masks(table: Table, snapshot: Snapshot | None, *, of: Collection[str] | None = None, most: int = READ) -> Masks:
    """What delete files hide in a snapshot. of: the files to look at; None: all. Where the snapshot has no delete files nothing is read but
    its list of manifests. most: delete files to read.

    Raises:
        OutputUnavailable: a manifest or a delete file cannot be read.
    """
    if snapshot is None:
        return Masks()
    with asking(f"cannot read the delete files of {table.location()}"):
        manifests = [each for each in snapshot.manifests(table.io) if each.content == ManifestContent.DELETES]
        entries = [
            each for manifest in manifests for each in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        ]
        if not entries:
            return Masks()
        try:
            tasks = list(table.scan(snapshot_id=snapshot.snapshot_id).plan_files())
        except (ValueError, NotImplementedError):
            return Masks(unknown="delete files of the table hide rows by their values")
        added = {entry.data_file.file_path: entry.snapshot_id or 0 for entry in entries}
        kept = {each.snapshot_id: each for each in table.metadata.snapshots}
        found: dict[str, Change] = {}
        every: dict[str, tuple[Change, ...]] = {}
        named: dict[str, Collection[str]] = {}
        for task in tasks:
            path = task.file.file_path
            if of is not None and path not in of:
                continue
            hiding = []
            for delete in task.delete_files:
                if delete.file_path not in named and len(named) >= most:
                    return Masks(found, every, f"more than {most} delete files may hide rows of it")
                if delete.file_path not in named:
                    named[delete.file_path] = _paths_in(table, delete)
                if path in named[delete.file_path]:
                    hiding.append(added[delete.file_path])
            if hiding:
                numbers = sorted(set(hiding), key=lambda number: _sequence(kept, number), reverse=True)
                every[path] = tuple(_change(kept, number) for number in numbers)
                found[path] = every[path][0]
        return Masks(found, every)


def masked_rows(table: Table) -> dict[str, int] | None:
    """Data files of the newest snapshot -> their rows that position deletes hide, as pyiceberg reads the files; None: it cannot, because
    the table has equality deletes, or a file is missing.

    Raises:
        OutputUnavailable: a manifest cannot be read.
    """
    head = table.current_snapshot()
    if head is None:
        return {}
    with asking(f"cannot read the delete files of {table.location()}"):
        if all(each.content == ManifestContent.DATA for each in head.manifests(table.io)):
            return {}
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    schema = table.schema()
    column = Schema(*schema.fields[:1], schema_id=schema.schema_id)
    found: dict[str, int] = {}
    try:
        for task in table.scan().plan_files():
            if task.delete_files:
                rows = ArrowScan(table.metadata, table.io, column, AlwaysTrue()).to_table([task])
                found[task.file.file_path] = task.file.record_count - len(rows)
    except (OSError, ValueError, NotImplementedError):
        return None
    return found


def change_of(snapshot: Snapshot) -> Change:
    """A snapshot, as a change is named."""
    summary, commit = snapshot.summary, f"snapshot {snapshot.snapshot_id}"
    if summary is None:
        return Change(commit=commit)
    key, operation = sink_key_in(summary), operation_name(summary.operation.value)
    (series, position), overwrites = noted_in(summary) if key else (("", ""), False)
    return Change(commit=commit, operation=operation, key=key, series=series, position=position, overwrites=overwrites)


def _change(kept: Mapping[int, Snapshot], number: int) -> Change:
    return change_of(kept[number]) if number in kept else Change(commit=f"snapshot {number}")


def _sequence(kept: Mapping[int, Snapshot], number: int) -> int:
    return (kept[number].sequence_number or 0) if number in kept else 0


def _paths_in(table: Table, delete: DataFile) -> Collection[str]:
    """The data files that a position delete file names."""
    lower, upper = ((bounds or {}).get(FILE_PATH) for bounds in (delete.lower_bounds, delete.upper_bounds))
    if lower is not None and lower == upper:
        return {lower.decode()}
    from pyarrow import parquet

    with table.io.new_input(delete.file_path).open() as stream:
        rows = parquet.read_table(cast("IO[Any]", stream), columns=["file_path"])
    return {str(path) for path in rows["file_path"].to_pylist()}
