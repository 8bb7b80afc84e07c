"""The branch on which a native block runs: its name, what its statements did to the table, and the changes that open, publish and drop it.

    idem-wap.<sink key>.<token>-<nonce>     one block of one attempt

The branches of a captured script have one name in all its tables, since a session has one setting: it names the sink key of the first. In
the other tables it belongs to the sink key of the same generation that has evidence there (`owner`).

Spark writes there while the table has the property `write.wap.enabled` and the session the setting `spark.wap.branch`. Statements move
the branch and nothing else, so no reader sees them. One change, like every commit of ours, then makes what the branch holds the state of
`main`, writes the evidence and drops the branch; its requirements are rule R. A driver that dies leaves a branch, which the key's next
attempt drops, or a sweep. A process that wakes after it was barred may write to a branch, and even make it anew, which changes nothing that
readers see.

If `main` moved meanwhile, the block can be published only if it did nothing but append: its files are then added to the newest state of
`main`. Every other statement may have read rows that are different now, so the block has to run again; so may an INSERT have, but what it
read is not known. The rows of `INSERT INTO t SELECT ... FROM t` stay as they were computed, from `main` as it was when the block began,
which is what Iceberg's own commit of such an INSERT does. A MERGE that only inserts is not taken for an append. Rebasing by Iceberg's own
rules (conflicting files and filters) was not taken: a branch keeps no filters of its statements.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
)

from sparkonce.sink.iceberg.catalog import asking
from sparkonce.sink.iceberg.commit import TableChange, requirements
from sparkonce.sink.iceberg.evidence import COMMITTED, FENCED, FOREVER, KeyEvidence, nonce_in
from sparkonce.sink.native import WAP_ENABLED
from sparkonce.sink.protocol import BranchMark, DataFile, SinkKey
from sparkonce.sink.slotlog import layout

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableUpdate

BRANCH = "idem-wap."
SESSION = "spark.wap.branch"
"""Spark's setting that names the branch."""
PROPERTY = "spark.sql.iceberg.snapshot-property."
"""Prefix of Spark's settings that Iceberg copies into the summaries of snapshots, but for those of a DELETE of whole files."""
PATHS = ("write.data.path", "write.object-storage.path", "write.folder-storage.path")
"""Table properties that put data files outside of the table's location, where a slot cannot name them."""
DIGEST = "path"
"""Kind of a digest that identifies a file of Spark by its location, which has a UUID in it: its content is not read."""


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A branch of ours, as its name tells."""

    name: str
    sink_key: str
    token: int
    nonce: str


@dataclass(frozen=True, kw_only=True)
class BranchContent:
    """What the statements on a branch did."""

    files: tuple[IcebergFile, ...]
    """Data files with rows that they added and that the branch still has."""
    appends: bool
    """They did nothing but append, by the table's snapshots, in which a MERGE that only inserts is an append (`BranchMark.merges`)."""


def name_of(key: SinkKey, token: int, nonce: str) -> str:
    return f"{BRANCH}{key}.{token:010d}-{nonce}"


def settings(name: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Settings of a session whose statements go to a branch. properties: for the summaries of their snapshots."""
    return {SESSION: name} | {f"{PROPERTY}{each}": text for each, text in properties.items()}


def branches(metadata: TableMetadata, wanted: Callable[[str], bool] = lambda _: True) -> Iterator[Branch]:
    """The branches of the sink keys that `wanted` selects, ordered by name."""
    for name in sorted(metadata.refs):
        sink_key, _, block = name.removeprefix(BRANCH).rpartition(".")
        staged = layout.staged(block) if name.startswith(BRANCH) else None
        if staged is not None and wanted(sink_key):
            yield Branch(name=name, sink_key=sink_key, token=staged[0], nonce=staged[1])


def of_generation(key: SinkKey) -> Callable[[str], bool]:
    """Selects the sink keys of a key's generation, whatever their output: a branch may be named after another one."""

    def wanted(sink_key: str) -> bool:
        found = SinkKey.parse(sink_key)
        return found is not None and (found.key_hash, found.generation) == (key.key_hash, key.generation)

    return wanted


def owner(metadata: TableMetadata, branch: Branch) -> str:
    """The sink key whose evidence in this table decides whether the branch can be published."""
    tagged = {
        name.removeprefix(prefix) for prefix in (COMMITTED, FENCED) for name in metadata.refs if name.startswith(prefix)
    }
    named = SinkKey.parse(branch.sink_key)
    if branch.sink_key in tagged or named is None:
        return branch.sink_key
    return min(filter(of_generation(named), tagged), default=branch.sink_key)


def unpublished(metadata: TableMetadata, key: SinkKey, at: KeyEvidence) -> list[str]:
    """Names of the branches of a key that can never be published."""
    return [
        each.name
        for each in branches(metadata, of_generation(key))
        if at.committed is not None or each.token < at.barred_below
    ]


def outside(metadata: TableMetadata) -> str | None:
    """The property that puts data files outside of the table's location; None if none does."""
    below = f"{metadata.location.rstrip('/')}/"
    return next(
        (
            name
            for name in PATHS
            if (path := metadata.properties.get(name)) and not f"{path.rstrip('/')}/".startswith(below)
        ),
        None,
    )


def opening(table: Table, key: SinkKey, at: KeyEvidence, name: str, *, stale: Sequence[str]) -> TableChange:
    """Makes a branch at the head of `main`, or moves one there; lets Spark write to it, and drops branches of attempts that are barred."""
    metadata = table.metadata
    head = metadata.current_snapshot()
    assert head is not None  # see `commit.root`
    enabled = metadata.properties.get(WAP_ENABLED, "").lower() == "true"
    updates: tuple[TableUpdate, ...] = (
        *(RemoveSnapshotRefUpdate(ref_name=each) for each in stale),
        *(() if enabled else (SetPropertiesUpdate(updates={WAP_ENABLED: "true"}),)),
        SetSnapshotRefUpdate(
            ref_name=name,
            type=SnapshotRefType.BRANCH,
            snapshot_id=head.snapshot_id,
            max_ref_age_ms=FOREVER,
            max_snapshot_age_ms=FOREVER,  # expiry must not cut the way back to where it began
            min_snapshots_to_keep=None,
        ),
    )
    there = metadata.refs.get(name)
    as_read = AssertRefSnapshotId(ref=name, snapshot_id=there.snapshot_id if there else None)
    return TableChange(updates, (*requirements(metadata, key, at), as_read), ())


def dropping(table: Table, names: Sequence[str]) -> TableChange:
    """Drops branches, provided that they are as they were loaded."""
    metadata = table.metadata
    return TableChange(
        tuple(RemoveSnapshotRefUpdate(ref_name=each) for each in names),
        (
            AssertTableUUID(uuid=metadata.table_uuid),
            *(AssertRefSnapshotId(ref=each, snapshot_id=metadata.refs[each].snapshot_id) for each in names),
        ),
        (),
    )


def content(table: Table, branch: BranchMark) -> BranchContent | str:
    """What the statements on a branch did; or, as a clause, why it is not known.

    Raises:
        OutputUnavailable: a manifest cannot be read.
    """
    made = _made(table.metadata, branch)
    if made is None:
        return "its snapshots are no longer in the table"
    numbers = {each.snapshot_id for each in made}
    files: dict[str, IcebergFile] = {}
    appends = all(each.summary is not None and each.summary.operation == Operation.APPEND for each in made)
    with asking(f"cannot read the manifests of {table.location()}"):
        for manifest in made[0].manifests(table.io) if made else ():
            # Only their own manifests can name files that they added.
            if manifest.added_snapshot_id not in numbers or manifest.content != ManifestContent.DATA:
                continue
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                if (
                    entry.snapshot_id in numbers
                    and entry.status != ManifestEntryStatus.DELETED
                    and entry.data_file.record_count
                ):
                    files[entry.data_file.file_path] = entry.data_file
    return BranchContent(files=tuple(files[path] for path in sorted(files)), appends=appends)


def spelled(files: Sequence[IcebergFile], location: str) -> str | None:
    """The table's location as the paths of these files spell it; None if one of them is not below it. Hadoop spells local paths its own
    way."""
    path = urlsplit(location).path.rstrip("/")
    local = (f"file:{path}", f"file://{path}", path) if urlsplit(location).scheme in ("", "file") else ()
    candidates = (location.rstrip("/"), *local)
    return next((each for each in candidates if all(file.file_path.startswith(f"{each}/") for file in files)), None)


def named(files: Sequence[IcebergFile], location: str) -> tuple[DataFile, ...]:
    """Files as a slot names them. location: as `spelled`."""
    return tuple(
        DataFile(
            path=file.file_path.removeprefix(f"{location}/"),
            rows=file.record_count,
            bytes=file.file_size_in_bytes,
            digest=f"{DIGEST}:{hashlib.sha256(file.file_path.encode()).hexdigest()}",
        )
        for file in files
    )


def written_by(metadata: TableMetadata, branch: Branch) -> tuple[int, int, float]:
    """Files and bytes that a branch's own statements added, and when the newest of them ended (Unix seconds; 0 without any)."""
    files = size = 0
    newest = 0.0
    kept = {each.snapshot_id: each for each in metadata.snapshots}
    snapshot = kept.get(metadata.refs[branch.name].snapshot_id)
    while snapshot is not None and snapshot.summary is not None and nonce_in(snapshot.summary) == branch.nonce:
        fields = snapshot.summary.additional_properties
        files += int(fields.get("added-data-files", 0))
        size += int(fields.get("added-files-size", 0))
        newest = max(newest, snapshot.timestamp_ms / 1000)
        snapshot = kept.get(snapshot.parent_snapshot_id) if snapshot.parent_snapshot_id is not None else None
    return files, size, newest


def _made(metadata: TableMetadata, branch: BranchMark) -> list[Snapshot] | None:
    """The snapshots that statements made, newest first; None if one of them is missing."""
    kept = {each.snapshot_id: each for each in metadata.snapshots}  # pyiceberg searches all of them for each lookup
    made: list[Snapshot] = []
    number: int | None = int(branch.head)
    while number != int(branch.start):
        snapshot = kept.get(number) if number is not None else None
        if snapshot is None:
            return None
        made.append(snapshot)
        number = snapshot.parent_snapshot_id
    return made
