"""What an Iceberg table says of a sink key: two tags, `idem.<sink key>` and `idem-fence.<sink key>`, and a small snapshot behind each.

A commit moves `main` to a snapshot with the rows and, in the same commit, adds a second snapshot without any file, whose summary is the
evidence, under the key's tag. A fence adds only such a snapshot under its own tag. Tags do not expire (their age is set to the most
there is), so expiry of snapshots keeps the evidence.

A tag on the snapshot with the rows, the obvious way, was not taken: it would hold every file that the table had at that moment, for ever,
and no compaction or replaced generation would ever give its space back. Nor was a fence on `main`: readers would see a change that is none.

A tag of ours that cannot be read is an error, never an absent one.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.manifest import write_manifest_list
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary, ancestors_of
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate

from sparkonce.errors import OutputCorrupt
from sparkonce.sink.protocol import SinkKey, Slot

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableUpdate

COMMITTED = "idem."
FENCED = "idem-fence."
FOREVER = 2**63 - 1
"""Milliseconds; the largest that Iceberg knows."""

_PREFIX = "sparkonce."
_SINK_KEY = re.compile(r"(.+)-g(\d+)(?:-b(\d+))?$")


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A commit of a sink key, as its evidence says it."""

    sink_key: str
    token: int
    nonce: str
    fingerprint: str
    location: str
    """Of the table when it was committed: what the slot's paths are relative to."""
    slot: str
    """Path of the slot's own bytes."""
    digest: str
    """SHA-256 (hex) of those bytes."""
    replaces: bool
    """Readers see its generation in the place of those before it."""
    snapshot: int
    """The one on `main` that brought the rows."""
    at: int
    """The one that holds the evidence."""
    query_id: str = ""
    """Of a stream's checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Fence:
    """Tokens below `token` are barred."""

    token: int
    by: str
    at: int


@dataclass(frozen=True)
class Standing:
    """What a loaded table says of one sink key."""

    committed: Mark | None
    fence: Fence | None

    @property
    def barred_below(self) -> int:
        return self.fence.token if self.fence else 1


def standing(metadata: TableMetadata, key: SinkKey | str) -> Standing:
    """OutputCorrupt."""
    return Standing(_mark(metadata, str(key)), _fence(metadata, str(key)))


def marks(metadata: TableMetadata, wanted: Callable[[str], bool] = lambda _: True) -> Iterator[Mark | OutputCorrupt]:
    """Of all sink keys that are wanted, in the order of their names."""
    names = [name.removeprefix(COMMITTED) for name in sorted(metadata.refs) if name.startswith(COMMITTED)]
    chosen = [sink_key for sink_key in names if wanted(sink_key)]
    if chosen:
        snapshots = {
            each.snapshot_id: each for each in metadata.snapshots
        }  # the library itself looks for one in all of them
        for sink_key in chosen:
            try:
                mark = _mark(metadata, sink_key, snapshots)
            except OutputCorrupt as error:
                yield error
                continue
            if mark is not None:
                yield mark


def history(metadata: TableMetadata) -> dict[str, dict[str, int]]:
    """Sink key -> nonce of each write that the history of `main` says it brought, and its first snapshot; as far back as it is kept."""
    found: dict[str, dict[str, int]] = {}
    head = metadata.current_snapshot()
    for snapshot in reversed(list(ancestors_of(head, metadata) if head else ())):
        said = snapshot.summary.additional_properties if snapshot.summary else {}
        sink_key, nonce = said.get(f"{_PREFIX}sink-key"), said.get(f"{_PREFIX}nonce")
        if sink_key and nonce:
            found.setdefault(sink_key, {}).setdefault(nonce, snapshot.snapshot_id)
    return found


def lineage_of(sink_key: str) -> tuple[str, int]:
    """What a rerun replaces, and the generation. All batches of a stream's generation are one."""
    match = _SINK_KEY.match(sink_key)
    return (match[1], int(match[2])) if match else (sink_key, 0)


def expiring(metadata: TableMetadata) -> str | None:
    """A tag of ours that would not stay, if there is one."""
    default = metadata.properties.get("history.expire.max-ref-age-ms")
    for name, ref in metadata.refs.items():
        if name.startswith((COMMITTED, FENCED)):
            age = ref.max_ref_age_ms
            if (age is not None and age < FOREVER) or (age is None and default is not None):
                return name
    return None


def summary_of(slot: Slot, *, location: str, path: str, digest: str, replaces: bool) -> dict[str, str]:
    """What both snapshots of a commit say."""
    said = {
        "sink-key": slot.sink_key,
        "token": str(slot.token),
        "nonce": slot.nonce,
        "fingerprint": slot.fingerprint,
        "location": location,
        "slot": path,
        "slot-digest": digest,
        "replaces": str(replaces).lower(),
        **({"query-id": slot.stream.query_id} if slot.stream is not None else {}),
    }
    return {f"{_PREFIX}{name}": value for name, value in said.items()}


def fence_summary(key: SinkKey, token: int, *, fingerprint: str, by: str) -> dict[str, str]:
    said = {"sink-key": str(key), "fence": str(token), "fingerprint": fingerprint, "by": by}
    return {f"{_PREFIX}{name}": value for name, value in said.items()}


def tagged(
    table: Table, metadata: TableMetadata, name: str, summary: Mapping[str, str]
) -> tuple[str, tuple[TableUpdate, ...]]:
    """Writes a list of no manifests; its path, and the updates that add a snapshot of no files, behind `metadata`, under the tag."""
    head = metadata.current_snapshot()
    number, snapshot_id = metadata.next_sequence_number(), metadata.new_snapshot_id()
    path = table.location_provider().new_metadata_location(f"snap-{snapshot_id}-0-{uuid.uuid4()}.avro")
    with write_manifest_list(
        format_version=metadata.format_version,
        output_file=table.io.new_output(path),
        snapshot_id=snapshot_id,
        parent_snapshot_id=head.snapshot_id if head else None,
        sequence_number=number,
        avro_compression="deflate",
    ):
        pass
    snapshot = Snapshot(
        snapshot_id=snapshot_id,
        # With a parent a catalog checks that the number is above the last one.
        parent_snapshot_id=head.snapshot_id if head else None,
        sequence_number=number,
        manifest_list=path,
        summary=Summary(operation=Operation.APPEND, **summary),
        schema_id=metadata.current_schema_id,
    )
    return path, (
        AddSnapshotUpdate(snapshot=snapshot),
        SetSnapshotRefUpdate(
            ref_name=name,
            type=SnapshotRefType.TAG,
            snapshot_id=snapshot_id,
            max_ref_age_ms=FOREVER,
            max_snapshot_age_ms=None,
            min_snapshots_to_keep=None,
        ),
    )


def with_snapshot(summary: Mapping[str, str], snapshot: int) -> dict[str, str]:
    """The evidence also names the snapshot that brought the rows."""
    return {**summary, f"{_PREFIX}snapshot": str(snapshot)}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _said(
    metadata: TableMetadata, name: str, snapshots: Mapping[int, Snapshot] | None = None
) -> tuple[int, dict[str, str]] | None:
    ref = metadata.refs.get(name)
    if ref is None:
        return None
    number = ref.snapshot_id
    snapshot = metadata.snapshot_by_id(number) if snapshots is None else snapshots.get(number)
    if snapshot is None or snapshot.summary is None:
        raise _corrupt(metadata, name)
    said = snapshot.summary.additional_properties
    return number, {at.removeprefix(_PREFIX): text for at, text in said.items() if at.startswith(_PREFIX)}


def _mark(metadata: TableMetadata, sink_key: str, snapshots: Mapping[int, Snapshot] | None = None) -> Mark | None:
    name = f"{COMMITTED}{sink_key}"
    found = _said(metadata, name, snapshots)
    if found is None:
        return None
    at, said = found
    try:
        mark = Mark(
            sink_key=said["sink-key"],
            token=int(said["token"]),
            nonce=said["nonce"],
            fingerprint=said["fingerprint"],
            location=said["location"],
            slot=said["slot"],
            digest=said["slot-digest"],
            replaces=said["replaces"] == "true",
            snapshot=int(said["snapshot"]),
            at=at,
            query_id=said.get("query-id", ""),
        )
    except (KeyError, ValueError):
        raise _corrupt(metadata, name) from None
    if mark.sink_key != sink_key:
        raise _corrupt(metadata, name)
    return mark


def _fence(metadata: TableMetadata, sink_key: str) -> Fence | None:
    name = f"{FENCED}{sink_key}"
    found = _said(metadata, name)
    if found is None:
        return None
    at, said = found
    try:
        fence = Fence(token=int(said["fence"]), by=said["by"], at=at)
    except (KeyError, ValueError):
        raise _corrupt(metadata, name) from None
    if said.get("sink-key") != sink_key:
        raise _corrupt(metadata, name)
    return fence


def _corrupt(metadata: TableMetadata, name: str) -> OutputCorrupt:
    return OutputCorrupt(
        f"the tag {name} of the table at {metadata.location} is not as sparkonce writes it; nothing is written to its key until it is "
        "restored, or dropped by somebody who knows what was committed"
    )
