"""Evidence of commits and fences in an Iceberg table, and the paths of staged files. Decodes and encodes; `tagged` alone writes a file.

The evidence of a sink key is two tags, `idem.<sink key>` and `idem-fence.<sink key>`, with a small snapshot behind each. A commit moves
`main` to a snapshot with the rows and, in the same commit, adds a second snapshot without any file, whose summary is the evidence, under
the key's tag. A fence adds only such a snapshot under its own tag. Tags do not expire (their age limit is the maximum), so expiry of
snapshots keeps the evidence. A tag of ours that cannot be read is an error and is never treated as absent.

Tagging the snapshot with the rows, the obvious way, was rejected: the tag would retain every file that the table had at that moment, for
ever, and neither compaction nor a replaced generation would free space. So was a fence on `main`: readers would see a change where there is
none.

A native block runs on a branch `idem-wap.<sink key>.<token>-<nonce>` (`sparkonce.sink.iceberg.branch`), which its commit drops.

A key of a series (`spec.series`) also moves the tag `idem-series.<name>` to its evidence, unless a later position has it: the position of
that snapshot is the latest one that was committed.

Paths below the table's location:

    <location>/data/so-<sink key>/<token>-<nonce>/*.parquet             the files of one write
                                                 /_slot-<digest>.json   the slot that was sent in a commit
                                                 /_files.json           its files, when they are many (see `sparkonce.sink.slotlog.layout`)

Iceberg's removal of orphan files skips names with a leading underscore, so it keeps the slots. It deletes staged files that no commit
names once they reach its age limit, which must exceed the longest job.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.manifest import write_manifest_list
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary, ancestors_of
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate

from sparkonce.errors import OutputCorrupt
from sparkonce.model.spec import WriteMode, order_of
from sparkonce.sink.iceberg.objects import is_place
from sparkonce.sink.protocol import SeriesPlace, SinkKey, Slot
from sparkonce.sink.series import noted_place
from sparkonce.sink.slotlog import layout

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableUpdate

DATA = "data"
MARK = "so-"
"""Prefix of our folders among those of other writers."""
COMMITTED = "idem."
FENCED = "idem-fence."
SERIES = "idem-series."
CREATED_FOR = "sparkonce.created-for"
"""Table property: the sink key that gave a new table its columns, for statements of Spark's own engine."""
FOREVER = 2**63 - 1
"""Milliseconds; the maximum in Iceberg."""

_PREFIX = "sparkonce."


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A commit of a sink key, as its evidence records it."""

    sink_key: str
    token: int
    nonce: str
    fingerprint: str
    location: str
    """The table's location at the time of the commit: the slot's paths are relative to it."""
    slot: str
    """Path of the slot's JSON."""
    digest: str
    """SHA-256 (hex) of that JSON."""
    replaces: bool
    """Whether its generation replaces the earlier ones for readers."""
    snapshot: int
    """Id of the snapshot on `main` that added the rows."""
    at: int
    """Id of the snapshot with the evidence."""
    query_id: str = ""
    """Query id of a stream's checkpoint; empty for batch jobs."""
    sources: tuple[str, ...] = ()
    """Digests of the sources that a stream's opening records."""


@dataclass(frozen=True, kw_only=True)
class Fence:
    """Tokens below `token` are barred."""

    token: int
    by: str
    at: int


@dataclass(frozen=True)
class KeyEvidence:
    """The evidence of one sink key in a loaded table."""

    committed: Mark | None
    fence: Fence | None

    @property
    def barred_below(self) -> int:
        return self.fence.token if self.fence else 1


def evidence_of(metadata: TableMetadata, key: SinkKey | str) -> KeyEvidence:
    """Evidence of a sink key.

    Raises:
        OutputCorrupt: a tag of the key cannot be read.
    """
    return KeyEvidence(_mark(metadata, str(key)), _fence(metadata, str(key)))


def latest(metadata: TableMetadata, place: SeriesPlace | None) -> tuple[str | None, int | None]:
    """The latest position that the series of a place has committed, and the snapshot with the evidence; (None, None) if there is none.

    Raises:
        OutputCorrupt: the tag of the series cannot be read.
    """
    if place is None or (found := _summary(metadata, f"{SERIES}{place.series}")) is None:
        return None, None
    at, fields = found
    try:
        order_of(position := fields["position"])
        return position, at
    except (KeyError, ValueError):
        raise _corrupt(metadata, f"{SERIES}{place.series}") from None


def marks(metadata: TableMetadata, wanted: Callable[[str], bool] = lambda _: True) -> Iterator[Mark | OutputCorrupt]:
    """Commits of the sink keys that `wanted` selects, ordered by name; an error in the place of one that cannot be read."""
    names = [name.removeprefix(COMMITTED) for name in sorted(metadata.refs) if name.startswith(COMMITTED)]
    chosen = [sink_key for sink_key in names if wanted(sink_key)]
    if chosen:
        snapshots = {
            each.snapshot_id: each for each in metadata.snapshots
        }  # pyiceberg searches all of them for each lookup
        for sink_key in chosen:
            try:
                mark = _mark(metadata, sink_key, snapshots)
            except OutputCorrupt as error:
                yield error
                continue
            if mark is not None:
                yield mark


def history(metadata: TableMetadata) -> dict[str, dict[str, int]]:
    """Sink key -> nonce of each of its writes in the history of `main`, with the write's first snapshot; as far back as it is kept."""
    found: dict[str, dict[str, int]] = {}
    head = metadata.current_snapshot()
    for snapshot in reversed(list(ancestors_of(head, metadata) if head else ())):
        fields = snapshot.summary.additional_properties if snapshot.summary else {}
        sink_key, nonce = fields.get(f"{_PREFIX}sink-key"), fields.get(f"{_PREFIX}nonce")
        if sink_key and nonce:
            found.setdefault(sink_key, {}).setdefault(nonce, snapshot.snapshot_id)
    return found


def sink_key_in(summary: Summary) -> str:
    """The sink key that a snapshot was committed for; empty for another writer's."""
    return str(summary.additional_properties.get(f"{_PREFIX}sink-key", ""))


def nonce_in(summary: Summary) -> str:
    """The nonce of the write or block that made a snapshot; empty for another writer's."""
    return str(summary.additional_properties.get(f"{_PREFIX}nonce", ""))


def statement_properties(key: SinkKey, token: int, nonce: str) -> dict[str, str]:
    """Properties that Spark is to write into the summaries of the snapshots of a native block."""
    fields = {"sink-key": str(key), "token": str(token), "nonce": nonce, "statement": "true"}
    return {f"{_PREFIX}{name}": value for name, value in fields.items()}


def is_statement(summary: Summary) -> bool:
    """Whether Spark's own engine made a snapshot in a native block: the files that it adds may hold rows of those that it removes."""
    return summary.additional_properties.get(f"{_PREFIX}statement") == "true"


def noted_in(summary: Summary) -> tuple[tuple[str, str], bool]:
    """The place in a series that a snapshot of ours notes (`noted_place`), and whether it replaced all rows of the table, which earlier
    releases did not note."""
    fields = summary.additional_properties
    place = noted_place(fields.get(f"{_PREFIX}series"), fields.get(f"{_PREFIX}position"))
    return place, fields.get(f"{_PREFIX}mode") == WriteMode.OVERWRITE


def lineage_of(sink_key: str) -> tuple[str, int]:
    """Lineage and generation of a sink key, ignoring its batch; the text itself and 0 if it is not a sink key."""
    return layout.lineage_of(sink_key) or (sink_key, 0)


def expiring(metadata: TableMetadata) -> str | None:
    """A tag of ours that would expire, or None."""
    default = metadata.properties.get("history.expire.max-ref-age-ms")
    for name, ref in metadata.refs.items():
        if name.startswith((COMMITTED, FENCED, SERIES)):
            age = ref.max_ref_age_ms
            if (age is not None and age < FOREVER) or (age is None and default is not None):
                return name
    return None


def summary_of(slot: Slot, *, location: str, path: str, digest: str, replaces: bool) -> dict[str, str]:
    """Summary of both snapshots of a commit."""
    read = slot.stream.sources if slot.stream is not None else ()
    fields = {
        "sink-key": slot.sink_key,
        "token": str(slot.token),
        "nonce": slot.nonce,
        "fingerprint": slot.fingerprint,
        "location": location,
        "slot": path,
        "slot-digest": digest,
        "replaces": str(replaces).lower(),
        **({"query-id": slot.stream.query_id} if slot.stream is not None else {}),
        **({"series": slot.place.series, "position": slot.place.position} if slot.place is not None else {}),
        **({"mode": str(slot.mode)} if slot.mode is not None else {}),
        **({"sources": " ".join(source.digest for source in read)} if read else {}),
    }
    return {f"{_PREFIX}{name}": value for name, value in fields.items()}


def fence_summary(key: SinkKey, token: int, *, fingerprint: str, by: str) -> dict[str, str]:
    fields = {"sink-key": str(key), "fence": str(token), "fingerprint": fingerprint, "by": by}
    return {f"{_PREFIX}{name}": value for name, value in fields.items()}


def tagged(
    table: Table, metadata: TableMetadata, name: str, summary: Mapping[str, str], *, also: Sequence[str] = ()
) -> tuple[str, tuple[TableUpdate, ...]]:
    """Writes an empty manifest list. Returns its path, and the updates that add a snapshot without files after `metadata` under a tag.

    also: further tags of that snapshot."""
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
        # Given a parent, a catalog checks that the sequence number is above the last one.
        parent_snapshot_id=head.snapshot_id if head else None,
        sequence_number=number,
        manifest_list=path,
        summary=Summary(operation=Operation.APPEND, **summary),
        schema_id=metadata.current_schema_id,
    )
    return path, (AddSnapshotUpdate(snapshot=snapshot), *(_tag(each, snapshot_id) for each in (name, *also)))


def _tag(name: str, snapshot_id: int) -> SetSnapshotRefUpdate:
    return SetSnapshotRefUpdate(
        ref_name=name,
        type=SnapshotRefType.TAG,
        snapshot_id=snapshot_id,
        max_ref_age_ms=FOREVER,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )


def with_snapshot(summary: Mapping[str, str], snapshot: int) -> dict[str, str]:
    """The summary with the id of the snapshot that added the rows."""
    return {**summary, f"{_PREFIX}snapshot": str(snapshot)}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _summary(
    metadata: TableMetadata, name: str, snapshots: Mapping[int, Snapshot] | None = None
) -> tuple[int, dict[str, str]] | None:
    ref = metadata.refs.get(name)
    if ref is None:
        return None
    number = ref.snapshot_id
    snapshot = metadata.snapshot_by_id(number) if snapshots is None else snapshots.get(number)
    if snapshot is None or snapshot.summary is None:
        raise _corrupt(metadata, name)
    fields = snapshot.summary.additional_properties
    return number, {at.removeprefix(_PREFIX): text for at, text in fields.items() if at.startswith(_PREFIX)}


def _mark(metadata: TableMetadata, sink_key: str, snapshots: Mapping[int, Snapshot] | None = None) -> Mark | None:
    name = f"{COMMITTED}{sink_key}"
    found = _summary(metadata, name, snapshots)
    if found is None:
        return None
    at, fields = found
    try:
        mark = Mark(
            sink_key=fields["sink-key"],
            token=int(fields["token"]),
            nonce=fields["nonce"],
            fingerprint=fields["fingerprint"],
            location=fields["location"],
            slot=fields["slot"],
            digest=fields["slot-digest"],
            replaces=fields["replaces"] == "true",
            snapshot=int(fields["snapshot"]),
            at=at,
            query_id=fields.get("query-id", ""),
            sources=tuple(fields.get("sources", "").split()),
        )
    except (KeyError, ValueError):
        raise _corrupt(metadata, name) from None
    if mark.sink_key != sink_key or not is_place(mark.location):
        raise _corrupt(metadata, name)
    return mark


def _fence(metadata: TableMetadata, sink_key: str) -> Fence | None:
    name = f"{FENCED}{sink_key}"
    found = _summary(metadata, name)
    if found is None:
        return None
    at, fields = found
    try:
        fence = Fence(token=int(fields["fence"]), by=fields["by"], at=at)
    except (KeyError, ValueError):
        raise _corrupt(metadata, name) from None
    if fields.get("sink-key") != sink_key:
        raise _corrupt(metadata, name)
    return fence


def _corrupt(metadata: TableMetadata, name: str) -> OutputCorrupt:
    return OutputCorrupt(
        f"the tag {name} of the table at {metadata.location} cannot be read; nothing is written to its key until the tag is "
        "restored, or dropped by an administrator who knows what was committed"
    )


def staging(key: SinkKey | str) -> str:
    """Folder of all writes of a key."""
    return f"{DATA}/{MARK}{key}"


def staging_folder(key: SinkKey, token: int, nonce: str) -> str:
    """Folder of one write call's files."""
    return f"{staging(key)}/{token:010d}-{nonce}"


def slot_path(key: SinkKey, token: int, nonce: str, digest: str) -> str:
    """Path of a slot's JSON. Its digest is in the name: a slot has other bytes once it is sealed than when it was staged."""
    return f"{staging_folder(key, token, nonce)}/_slot-{digest[:16]}.json"


def token_and_nonce(folder: str) -> tuple[int, str] | None:
    return layout.staged(folder)


def sink_key_of(folder: str) -> str | None:
    """Sink key of a folder of one write call, or of one key; None if the folder is not ours."""
    parts = folder.split("/")
    if len(parts) < 2 or parts[0] != DATA or not parts[1].startswith(MARK):
        return None
    return parts[1].removeprefix(MARK)
