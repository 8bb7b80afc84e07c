"""One commit to an Iceberg table, put together from pyiceberg's parts and sent by ourselves.

Iceberg cannot require "this key is not committed". It can require that a tag does not exist, that `main` is where it was and that the key's
fence is the one that was read; so everything that a decision rests on is named in the requirements of the commit that carries it out.

Never the transaction's own commit: pyiceberg 0.12 sends it again after a conflict without any check of ours (thirty commits for ten keys),
and it keeps one requirement of each kind, so the tag's would be dropped. `tests/sink/test_iceberg_races.py` fails when a version
changes this.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import (
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertLastAssignedFieldId,
    AssertLastAssignedPartitionId,
    AssertRefSnapshotId,
    AssertTableUUID,
)

from sparkonce.errors import OutputUnavailable
from sparkonce.failpoints import hit
from sparkonce.sink.iceberg_catalog import Place, said
from sparkonce.sink.iceberg_evidence import COMMITTED, FENCED, Standing, tagged, with_snapshot
from sparkonce.sink.iceberg_schema import Fit
from sparkonce.sink.protocol import SinkKey, Slot, Stuck
from sparkonce.sink.slots import RESEND_AFTER

if TYPE_CHECKING:
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate

OVERTAKEN = "older than last sequence number"
"""Words of a refusal (pyiceberg's own check, and Iceberg's Java server): another commit came in between which moved nothing that we name in
our requirements, as the fence of another key does. It is a conflict like any other, under another name."""
CONFLICTS = 200
"""Commits of others that one commit gives way to. Each costs a read of the table; a table that is this busy needs fewer writers."""
WAIT = (0.02, 0.5)
"""Seconds, drawn from at least up to at most, after a conflict: those who met once should not meet again."""
NAME_MAPPING = "schema.name-mapping.default"
FOOTER_THREADS = 8
"""Footers read at once, as in staging."""
SENT_COMMIT, SENT_FENCE = "sink.iceberg.commit", "sink.iceberg.fence"
"""Failpoints around what is sent."""


@dataclass(frozen=True)
class Change:
    """What is sent, and the files that were written for it."""

    updates: tuple[TableUpdate, ...]
    requirements: tuple[TableRequirement, ...]
    written: tuple[str, ...]
    """Manifests and their lists: of no use to anybody once the catalog has refused the change."""


def root(table: Table) -> Change:
    """A first, empty snapshot of a table that has none: from then on each snapshot has a parent, which catalogs check, and tags can be
    required not to exist."""
    transaction = table.transaction()
    with transaction.update_snapshot().fast_append() as empty:
        pass
    uuid = AssertTableUUID(uuid=table.metadata.table_uuid)
    main = AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=None)
    return Change(transaction._updates, (uuid, main), _written(empty))  # noqa: SLF001 - see the module


def fence(table: Table, key: SinkKey, at: Standing, summary: Mapping[str, str]) -> Change:
    """Sets the fence that a loaded table was seen without."""
    path, updates = tagged(table, table.metadata, f"{FENCED}{key}", summary)
    return Change(updates, _requirements(table.metadata, key, at), (path,))


def append(
    table: Table,
    key: SinkKey,
    at: Standing,
    *,
    summary: Mapping[str, str],
    paths: Sequence[str],
    removed: Iterable[DataFile],
    fitting: Fit,
    partition_by: Sequence[str],
) -> Change:
    """Rows, their evidence, the columns that they bring and what they replace, as one change."""
    transaction = table.transaction()
    _take_columns(transaction, fitting, partition_by)
    metadata = transaction.table_metadata
    files = data_files(table, metadata, paths)
    taken_out = list(removed)
    if files or taken_out:
        brought, written = _rows(transaction, summary, files, taken_out)
    else:  # nothing for readers to see: `main` stays where it is
        brought, written = (head.snapshot_id if (head := metadata.current_snapshot()) else 0), ()
    path, updates = tagged(table, transaction.table_metadata, f"{COMMITTED}{key}", with_snapshot(summary, brought))
    before = table.metadata
    requirements = (
        *_requirements(before, key, at),
        AssertLastAssignedFieldId(last_assigned_field_id=before.last_column_id),
        AssertLastAssignedPartitionId(last_assigned_partition_id=before.last_partition_id),
    )
    return Change((*transaction._updates, *updates), requirements, (*written, path))  # noqa: SLF001 - see the module


def _rows(
    transaction: Transaction, summary: Mapping[str, str], files: Sequence[DataFile], taken_out: Sequence[DataFile]
) -> tuple[int, tuple[str, ...]]:
    """The snapshot that brings the rows, and what was written for it."""
    snapshot = transaction.update_snapshot(snapshot_properties=dict(summary))
    with snapshot.overwrite() if taken_out else snapshot.fast_append() as producer:
        if taken_out:
            producer.delete_by_predicate(AlwaysTrue())  # looks into every manifest; what goes is what is named
        for file in taken_out:
            producer.delete_data_file(file)
        for file in files:
            producer.append_data_file(file)
    return producer.snapshot_id, _written(producer)


def data_files(table: Table, metadata: TableMetadata, paths: Sequence[str]) -> list[DataFile]:
    """As the table lists them, with statistics and partition from their footers."""
    from pyiceberg.io.pyarrow import parquet_file_to_data_file  # brings pandas along

    with ThreadPoolExecutor(FOOTER_THREADS) as pool:
        return list(pool.map(lambda path: parquet_file_to_data_file(table.io, metadata, path), paths))


def unplaced(table: Table, paths: Sequence[str], *, fitting: Fit, partition_by: Sequence[str]) -> str | None:
    """A partition column whose value a file's statistics do not show: they leave out NaN and what is very long.

    ValueError: a file holds several values of a partition."""
    transaction = table.transaction()
    _take_columns(transaction, fitting, partition_by)
    metadata = transaction.table_metadata
    for file in data_files(table, metadata, paths) if metadata.spec().fields else ():
        nulls = file.null_value_counts or {}
        for number, each in enumerate(metadata.spec().fields):
            if file.partition[number] is None and nulls.get(each.source_id) != file.record_count:
                return metadata.schema().find_column_name(each.source_id)
    return None


class Misfit(Exception):
    """The staged files cannot be listed in the table as it is now. Nothing was sent."""


class Sending:
    """One change, until it is decided: it gives way to others, and reads after each answer that did not come."""

    def __init__(self, place: Place, what: str) -> None:
        self._place, self._what = place, what
        self._conflicts, self._lost, self._error = 0, 0, ""

    def load(self) -> Table | None:
        """The table, however often it must be asked for. OutputUnavailable."""
        while True:
            try:
                return self._place.load()
            except OutputUnavailable as error:
                self.lost(error)

    def send(self, table: Table, make: Callable[[], Change], point: str | None = None) -> bool:
        """True: it stands. False: look again. OutputUnavailable: it may stand, or come to stand. Misfit."""
        if self._lost > len(RESEND_AFTER):
            raise self._unknown()
        try:
            change = make()
        except ValueError as error:
            raise Misfit(said(error)) from error
        except Exception as error:  # noqa: BLE001 - a staged file that went, a manifest that could not be written: nothing was sent
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
        except Exception as error:  # noqa: BLE001 - whatever else it is, it is no answer (see iceberg_catalog)
            if OVERTAKEN in str(error):
                self._conflict(table, None, error)
            else:
                self.lost(error)
            return False
        return True

    def never(self, slot: Slot, why: str) -> Stuck:
        """Stuck, unless a change was sent that nobody answered: that one may still land. OutputUnavailable."""
        if self._lost:
            raise self._unknown()
        return Stuck(slot, why)

    def lost(self, error: BaseException) -> None:
        """An answer did not come. OutputUnavailable once that was so too often, and one more look found nothing."""
        self._error = said(error)
        if self._lost > len(RESEND_AFTER):
            raise self._unknown() from error
        if self._lost < len(RESEND_AFTER):
            time.sleep(RESEND_AFTER[self._lost])
        self._lost += 1

    def _conflict(self, table: Table, change: Change | None, error: Exception) -> None:
        """`change`: one of which it is certain that it was refused as a whole."""
        self._conflicts += 1
        if (
            change is not None and self._lost == 0
        ):  # what was never answered may still land, and needs what was written for it
            with contextlib.suppress(Exception):  # left to the table's own clean-up
                for path in change.written:
                    table.io.delete(path)
        if self._conflicts > CONFLICTS:
            raise OutputUnavailable(
                f"{self._what} gave way to {CONFLICTS} other commits to {self._place.uri} ({said(error)}); nothing of it is there, "
                "run it again when the table is less busy"
            ) from error
        least, most = WAIT
        time.sleep(random.uniform(least, min(most, least * 2 ** min(self._conflicts, 5))))  # noqa: S311 - no secret

    def _unknown(self) -> OutputUnavailable:
        return OutputUnavailable(f"{self._error}; whether {self._what} stands in {self._place.uri} is unknown")


def _requirements(metadata: TableMetadata, key: SinkKey, at: Standing) -> tuple[TableRequirement, ...]:
    """That the table is as it was seen, in everything that was looked at. Only for a table that has a snapshot (`root`)."""
    head = metadata.current_snapshot()
    return (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=head.snapshot_id if head else None),
        AssertRefSnapshotId(ref=f"{COMMITTED}{key}", snapshot_id=at.committed.at if at.committed else None),
        AssertRefSnapshotId(ref=f"{FENCED}{key}", snapshot_id=at.fence.at if at.fence else None),
        AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
        AssertDefaultSpecId(default_spec_id=metadata.default_spec_id),
    )


def _take_columns(transaction: Transaction, fitting: Fit, partition_by: Sequence[str]) -> None:
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
    if metadata.name_mapping() is None and metadata.schema().fields:
        transaction.set_properties({NAME_MAPPING: metadata.schema().name_mapping.model_dump_json()})


def _written(producer: object) -> tuple[str, ...]:
    """Private names: they tell what may be deleted again, and nothing that a commit rests on."""
    return (*getattr(producer, "_written_manifests", ()), *getattr(producer, "_written_manifest_lists", ()))
