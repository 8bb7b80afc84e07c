"""Builds commits to an Iceberg table from pyiceberg's parts and sends them with its own requirements.

Iceberg cannot require "this key is not committed". It can require that a tag does not exist, that `main` has not moved and that the key's
fence is the one that was read; so a commit lists everything that its decision was based on in its requirements.

The commit of pyiceberg's own transaction is never used: version 0.12 retries it after a conflict without our checks (thirty commits for ten
keys), and it keeps only one requirement of each kind, which drops the tag's. `tests/sink/test_iceberg_races.py` fails when a version
changes this.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertLastAssignedFieldId,
    AssertLastAssignedPartitionId,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    SetSnapshotRefUpdate,
)

from sparkonce.errors import OutputUnavailable, OutputUnsupported
from sparkonce.failpoints import hit
from sparkonce.sink.iceberg.catalog import CatalogTable, first_line
from sparkonce.sink.iceberg.entries import data_files, staged
from sparkonce.sink.iceberg.evidence import COMMITTED, FENCED, SERIES, KeyEvidence, latest, tagged, with_snapshot
from sparkonce.sink.iceberg.schema import TRANSFORMS, SchemaChange
from sparkonce.sink.protocol import BranchMark, SeriesPlace, SinkKey, Slot, Stuck
from sparkonce.sink.series import is_before
from sparkonce.sink.slotlog.sink import RESEND_AFTER

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestWriter
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate

OVERTAKEN = "older than last sequence number"
"""Text of a refusal by pyiceberg's own check and by Iceberg's Java server: another commit came first that changed nothing in our
requirements, for example the fence of another key. It is an ordinary conflict without its exception type."""
CONFLICTS = 200
"""Conflicts after which a commit gives up. Each costs a read of the table; a table this busy needs fewer writers."""
WAIT = (0.02, 0.5)
"""Minimum and maximum random pause in seconds after a conflict, so that the same writers do not collide again."""
NAME_MAPPING = "schema.name-mapping.default"
SENT_COMMIT, SENT_FENCE, SENT_BRANCH = "sink.iceberg.commit", "sink.iceberg.fence", "sink.iceberg.branch"
SENT_COLUMNS = "sink.iceberg.columns"
"""Failpoints around requests to the catalog."""


@dataclass(frozen=True)
class TableChange:
    """A change to send, and the metadata files written for it."""

    updates: tuple[TableUpdate, ...]
    requirements: tuple[TableRequirement, ...]
    written: tuple[str, ...]
    """Manifests and manifest lists; garbage once the catalog has refused the change."""


def root(table: Table) -> TableChange:
    """Adds a first, empty snapshot to a table without any: from then on each snapshot has a parent, which catalogs check, and tags can
    be required not to exist."""
    transaction = table.transaction()
    with transaction.update_snapshot().fast_append() as empty:
        pass
    uuid = AssertTableUUID(uuid=table.metadata.table_uuid)
    main = AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=None)
    return TableChange(transaction._updates, (uuid, main), _written(empty))  # noqa: SLF001 - see the module


def fence(table: Table, key: SinkKey, at: KeyEvidence, summary: Mapping[str, str]) -> TableChange:
    """Sets the fence of a key; `at` is the evidence that was read from the loaded table."""
    path, updates = tagged(table, table.metadata, f"{FENCED}{key}", summary)
    return TableChange(updates, requirements(table.metadata, key, at), (path,))


def declare(
    table: Table,
    key: SinkKey,
    at: KeyEvidence,
    *,
    columns: Schema,
    partition_by: Sequence[tuple[str, str]],
    properties: Mapping[str, str],
) -> TableChange:
    """Gives a table without columns its columns, partitions and properties. partition_by: transform, as in `TRANSFORMS`, and column."""
    before, transaction = table.metadata, table.transaction()
    with transaction.update_schema(allow_incompatible_changes=True) as schema:  # no row lacks a column that is required
        for each in columns.fields:
            schema.add_column((each.name,), each.field_type, doc=each.doc, required=each.required)
    if partition_by:
        with transaction.update_spec() as spec:
            for transform, column in partition_by:
                spec.add_field(column, TRANSFORMS[transform]())
    transaction.set_properties(dict(properties))
    required = (
        *requirements(before, key, at),
        AssertLastAssignedFieldId(last_assigned_field_id=before.last_column_id),
        AssertLastAssignedPartitionId(last_assigned_partition_id=before.last_partition_id),
    )
    return TableChange(transaction._updates, required, ())  # noqa: SLF001 - see the module


def append(
    table: Table,
    key: SinkKey,
    at: KeyEvidence,
    *,
    summary: Mapping[str, str],
    paths: Sequence[str],
    removed: Iterable[DataFile],
    same_partitions: Iterable[DataFile] = (),
    must_write: Iterable[tuple[object, ...]] = (),
    fitting: SchemaChange,
    partition_by: Sequence[str],
    place: SeriesPlace | None = None,
) -> TableChange:
    """Adds rows with their evidence and new columns, and removes the files that they replace, as one change.

    same_partitions: files that are removed, too, if a file that is added belongs to the same partition.
    must_write: partitions to which the files that are added must belong.

    Raises: ValueError: there is none in one of those."""
    files = staged(table, paths)
    transaction = with_columns(table, fitting, partition_by, mapped=any(not file.has_ids for file in files))
    metadata = transaction.table_metadata
    entries = data_files(metadata, files)
    written = {_partition(entry) for entry in entries}
    removed_files = {file.file_path: file for file in removed}
    if lost := [values for values in must_write if _comparable(values) not in written]:
        raise ValueError(
            f"an earlier generation wrote to the partition {', '.join(map(str, lost[0]))}, to which this one does not write, and its file "
            "there was compacted or changed; delete those rows and declare `onRerun: Append`"
        )
    removed_files |= {file.file_path: file for file in same_partitions if _partition(file) in written}
    if entries or removed_files:
        snapshot_id, manifests = _rows(transaction, summary, entries, list(removed_files.values()))
    else:  # nothing changes for readers: `main` stays where it is
        snapshot_id, manifests = (head.snapshot_id if (head := metadata.current_snapshot()) else 0), ()
    before = table.metadata
    latest_position, series_at = latest(before, place)
    path, updates = tagged(
        table,
        transaction.table_metadata,
        f"{COMMITTED}{key}",
        with_snapshot(summary, snapshot_id),
        also=[f"{SERIES}{place.series}"] if place is not None and not is_before(place, latest_position) else [],
    )
    series = [] if place is None else [AssertRefSnapshotId(ref=f"{SERIES}{place.series}", snapshot_id=series_at)]
    required = (
        *requirements(before, key, at),
        *series,
        AssertLastAssignedFieldId(last_assigned_field_id=before.last_column_id),
        AssertLastAssignedPartitionId(last_assigned_partition_id=before.last_partition_id),
    )
    return TableChange((*transaction._updates, *updates), required, (*manifests, path))  # noqa: SLF001 - see the module


def publish(
    table: Table,
    key: SinkKey,
    at: KeyEvidence,
    *,
    summary: Mapping[str, str],
    branch: BranchMark,
    files: Sequence[DataFile],
) -> TableChange:
    """Makes what a branch holds the state of `main`, with the evidence, and drops the branch.

    files: those that the branch's statements appended, which are added to `main` where it is no longer at the branch's start."""
    before, transaction = table.metadata, table.transaction()
    main = before.refs[MAIN_BRANCH]
    snapshot_id, manifests = main.snapshot_id, tuple[str, ...]()
    updates: tuple[TableUpdate, ...] = ()
    if branch.head != branch.start and main.snapshot_id == int(branch.start):
        # A snapshot of our own, after the last statement's, so that the history of `main` names the key's commit as any other.
        with transaction.update_snapshot(snapshot_properties=dict(summary), branch=branch.name).fast_append() as last:
            pass
        snapshot_id, manifests = last.snapshot_id, _written(last)
        moved = SetSnapshotRefUpdate(
            ref_name=MAIN_BRANCH,
            type=SnapshotRefType.BRANCH,
            snapshot_id=snapshot_id,
            max_ref_age_ms=main.max_ref_age_ms,
            max_snapshot_age_ms=main.max_snapshot_age_ms,
            min_snapshots_to_keep=main.min_snapshots_to_keep,
        )
        updates = (*(each for each in transaction._updates if isinstance(each, AddSnapshotUpdate)), moved)  # noqa: SLF001 - see the module
    elif files:
        snapshot_id, manifests = _rows(transaction, summary, files, [])
        updates = transaction._updates  # noqa: SLF001 - see the module
    path, evidence = tagged(table, transaction.table_metadata, f"{COMMITTED}{key}", with_snapshot(summary, snapshot_id))
    return TableChange(
        (*updates, *evidence, RemoveSnapshotRefUpdate(ref_name=branch.name)),
        (*requirements(before, key, at), AssertRefSnapshotId(ref=branch.name, snapshot_id=int(branch.head))),
        (*manifests, path),
    )


def _partition(file: DataFile) -> tuple[object, ...]:
    """Its values; comparable among files of one partitioning."""
    return _comparable(file.partition[number] for number in range(len(file.partition)))


def _comparable(values: Iterable[object]) -> tuple[object, ...]:
    """Values in which NaNs are equal, and the two zeros are not."""
    return tuple(repr(value) if isinstance(value, float) else value for value in values)


def _rows(
    transaction: Transaction, summary: Mapping[str, str], files: Sequence[DataFile], removed_files: Sequence[DataFile]
) -> tuple[int, tuple[str, ...]]:
    """Id of the snapshot that adds the rows, and the metadata files written for it."""
    snapshot = transaction.update_snapshot(snapshot_properties=dict(summary))
    with snapshot.overwrite() if removed_files else snapshot.fast_append() as producer:
        if removed_files:
            # Beside the predicate below it says nothing, and of a partition of NaN pyiceberg cannot build it.
            producer._build_delete_files_partition_predicate = lambda: None  # type: ignore[method-assign] # noqa: SLF001
            producer.delete_by_predicate(
                AlwaysTrue()
            )  # makes it read every manifest; only the files named below are removed
            producer.new_manifest_writer = partial(_writer, transaction.table_metadata, producer.new_manifest_writer)  # type: ignore[method-assign]
        for file in removed_files:
            producer.delete_data_file(file)
        for file in files:
            producer.append_data_file(file)
    return producer.snapshot_id, _written(producer)


def _writer(
    metadata: TableMetadata, make: Callable[[PartitionSpec], ManifestWriter], spec: PartitionSpec
) -> ManifestWriter:
    """A writer of a manifest, with the newest schema that has the columns of its partition spec: an earlier spec may name columns that were
    dropped since, whose types pyiceberg then does not know.

    Raises:
        ValueError: no schema of the table has them any more.
    """
    writer, sources = make(spec), {field.source_id for field in spec.fields}
    newest_first = (metadata.schema(), *sorted(metadata.schemas, key=lambda each: each.schema_id, reverse=True))
    for schema in newest_first:
        if sources <= schema.field_ids:
            writer._schema = schema  # noqa: SLF001 - `make` takes none
            return writer
    raise ValueError(
        f"files to replace are partitioned by a column that was dropped, and no schema of the table has its type any more (partition spec "
        f"{spec.spec_id})"
    )


class Misfit(OutputUnsupported):
    """The change cannot be built for the table as it is now. It was not sent."""


LOCAL = (ArithmeticError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError)
"""Errors of code in this process. They are no lost replies: building the same change again fails the same way."""


class Sending:
    """Sends one change until it is decided: retries after conflicts, and reads the table again after each lost reply."""

    def __init__(self, place: CatalogTable, what: str) -> None:
        self._place, self._what = place, what
        self._conflicts, self._lost, self._error = 0, 0, ""
        self._doubtful = False
        """Whether a change was sent whose reply was lost: it may be committed, now or later."""

    def load(self) -> Table | None:
        """Loads the table, with retries.

        Raises:
            OutputUnavailable: the catalog did not answer, too often.
        """
        while True:
            try:
                return self._place.load()
            except OutputUnavailable as error:
                self.lost(error)

    def send(self, table: Table, make: Callable[[], TableChange], point: str | None = None) -> bool:
        """Sends the change that `make` builds. True: it is committed. False: load the table and decide again.

        Raises:
            OutputUnavailable: the catalog or the store did not answer, too often; says whether a change may be committed.
            Misfit: the change cannot be built for this table; it was not sent.
        """
        if self._lost > len(RESEND_AFTER):
            raise self._unknown()
        try:
            change = make()
        except LOCAL as error:
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            raise Misfit(f"{kind}{first_line(error)}") from error
        except Exception as error:  # noqa: BLE001 - a staged file is gone, a manifest could not be written: nothing was sent
            self.lost(error)
            return False
        try:
            if point:
                hit(f"{point}.before")
            self._place.catalog.commit_table(table, change.requirements, change.updates)
            if point:
                hit(f"{point}.after")
        except CommitFailedException as error:
            self._conflict(table, change, error)
            return False
        except Exception as error:  # noqa: BLE001 - any other error is not an answer (see `catalog`)
            if OVERTAKEN in str(error):
                self._conflict(table, None, error)
            else:
                self._doubtful = True
                self.lost(error)
            return False
        return True

    def never(self, slot: Slot, why: str) -> Stuck:
        """Stuck, unless a change was sent whose reply was lost.

        Raises:
            OutputUnavailable: that change may still be committed.
        """
        if self._doubtful:
            raise self._unknown()
        return Stuck(slot, why)

    def lost(self, error: BaseException) -> None:
        """Records a request without an answer and pauses before the next try.

        Raises:
            OutputUnavailable: too many had none, and one more read did not find the change.
        """
        self._error = first_line(error)
        if self._lost > len(RESEND_AFTER):
            raise self._unknown() from error
        if self._lost < len(RESEND_AFTER):
            time.sleep(RESEND_AFTER[self._lost])
        self._lost += 1

    def _conflict(self, table: Table, change: TableChange | None, error: Exception) -> None:
        """Pauses after a conflict. change: given if it is certain that it was refused as a whole; its files are deleted."""
        self._conflicts += 1
        # A change whose reply was lost may still be committed, and needs the files written for it.
        if change is not None and not self._doubtful:
            with contextlib.suppress(Exception):  # left to the table's own maintenance
                for path in change.written:
                    table.io.delete(path)
        if self._conflicts > CONFLICTS:
            if self._doubtful:
                raise self._unknown() from error
            raise OutputUnavailable(
                f"{self._what} gave way to {CONFLICTS} other commits to {self._place.uri} ({first_line(error)}); nothing was committed, "
                "run it again when the table is less busy"
            ) from error
        least, most = WAIT
        time.sleep(random.uniform(least, min(most, least * 2 ** min(self._conflicts, 5))))  # noqa: S311 - no secret

    def _unknown(self) -> OutputUnavailable:
        if not self._doubtful:
            return OutputUnavailable(f"{self._error}; {self._what} was not sent to {self._place.uri}")
        return OutputUnavailable(f"{self._error}; whether {self._what} is committed to {self._place.uri} is unknown")


def requirements(metadata: TableMetadata, key: SinkKey, at: KeyEvidence) -> tuple[TableRequirement, ...]:
    """Requires that everything the decision was based on is unchanged. Only for a table that has a snapshot (`root`)."""
    head = metadata.current_snapshot()
    return (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=head.snapshot_id if head else None),
        AssertRefSnapshotId(ref=f"{COMMITTED}{key}", snapshot_id=at.committed.at if at.committed else None),
        AssertRefSnapshotId(ref=f"{FENCED}{key}", snapshot_id=at.fence.at if at.fence else None),
        AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
        AssertDefaultSpecId(default_spec_id=metadata.default_spec_id),
    )


def with_columns(table: Table, fitting: SchemaChange, partition_by: Sequence[str], *, mapped: bool) -> Transaction:
    """A transaction that adds the columns and, to a table without columns, the partitioning. It is not sent.

    mapped: rows come in files without field ids, whose columns readers find by the table's name mapping."""
    transaction = table.transaction()
    first = not transaction.table_metadata.schema().fields
    if fitting.new:
        with transaction.update_schema() as schema:
            for path, kind in fitting.new:
                schema.add_column(path, kind)
    if first and partition_by:
        with transaction.update_spec() as spec:
            for name in partition_by:
                spec.add_identity(name)
    metadata = transaction.table_metadata
    if mapped and metadata.name_mapping() is None and metadata.schema().fields:
        transaction.set_properties({NAME_MAPPING: metadata.schema().name_mapping.model_dump_json()})
    return transaction


def _written(producer: object) -> tuple[str, ...]:
    """Metadata files that a producer wrote. Private names of pyiceberg: used for deletion only, never for a commit's content."""
    return (*getattr(producer, "_written_manifests", ()), *getattr(producer, "_written_manifest_lists", ()))
