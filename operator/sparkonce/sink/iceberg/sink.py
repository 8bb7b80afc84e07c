"""Iceberg tables as outputs: Spark stages Parquet natively, one conditional commit of the catalog makes it visible.

The catalog decides in the commit itself: the key's tag must not exist, its fence must be the one that was read, `main` must not have moved.
So a key has at most one commit, and a token below the fence never commits, however long its process was frozen. This check is rule R of the
slot log: a fence at t is a `closed` in every slot below t, and a commit of t bars the lower tokens too.

The slot's JSON is written beside its data before the commit; the evidence in the table names its path and digest.

It refuses format versions other than 2, bucket partitions (Spark's own writer cannot compute them), schema changes without `merge_schema`,
replacing files that were compacted. pyiceberg's own retries are not used (see `commit`).

Source: research notes on exactly-once output, section 7.3; the Iceberg table and REST catalog specifications.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from pyiceberg.table.refs import MAIN_BRANCH

from sparkonce import blocking
from sparkonce.errors import (
    Fenced,
    InvalidInput,
    LateInSeries,
    OutputCorrupt,
    OutputUnavailable,
    OutputUnsafe,
    OutputUnsupported,
    SparkonceError,
)
from sparkonce.failpoints import hit
from sparkonce.model.spec import OnRerun, WriteMode
from sparkonce.sink.groups import as_grouped
from sparkonce.sink.iceberg import branch as table_branch
from sparkonce.sink.iceberg import commit as table_commit
from sparkonce.sink.iceberg import stream as table_stream
from sparkonce.sink.iceberg.arrow import ArrowStager, needs_arrow
from sparkonce.sink.iceberg.catalog import CatalogTable, first_line, is_absolute
from sparkonce.sink.iceberg.commit import (
    SENT_BRANCH,
    SENT_COLUMNS,
    SENT_COMMIT,
    SENT_FENCE,
    Misfit,
    Sending,
    TableChange,
    with_columns,
)
from sparkonce.sink.iceberg.entries import Staged, data_files
from sparkonce.sink.iceberg.evidence import (
    CREATED_FOR,
    KeyEvidence,
    Mark,
    evidence_of,
    expiring,
    fence_summary,
    latest,
    staging,
    staging_folder,
    statement_properties,
    summary_of,
    token_and_nonce,
)
from sparkonce.sink.iceberg.files import live_and_deletes, moved_main, replaced_by, rolled_back, traced
from sparkonce.sink.iceberg.inventory import inventory
from sparkonce.sink.iceberg.masks import Masks, masks
from sparkonce.sink.iceberg.schema import (
    declared_of,
    fit,
    identity_columns,
    nullable,
    reused,
    schema_of,
    unmapped,
    unwritable,
)
from sparkonce.sink.iceberg.snapshot import PreparedCommit, TableView, closed
from sparkonce.sink.iceberg.staging import identified, laid_out
from sparkonce.sink.native import ROWS_STAND, OpenBranch
from sparkonce.sink.protocol import (
    APPEND_INSTEAD,
    BRANCH_SCHEMA,
    LATE_INSTEAD,
    PLAIN,
    BranchMark,
    CommitOutcome,
    Committed,
    Declared,
    Evidence,
    FencedOff,
    Found,
    Inventory,
    Late,
    Overtaken,
    Probed,
    SinkKey,
    Slot,
    SlotState,
    StreamSource,
    Stuck,
    Swept,
    WriteOptions,
    abort_of,
    replacing,
)
from sparkonce.sink.series import lateness, place_of, skipped_result, skipped_unstaged, skipping, skips
from sparkonce.sink.slotlog import layout
from sparkonce.sink.slotlog.layout import with_files
from sparkonce.sink.staging import (
    StagedRows,
    Stager,
    columns_of,
    is_connect,
    is_spark,
    stage_with_spark,
    staged_files,
    undone_unless_staged,
)
from sparkonce.sink.stream import is_opening

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyarrow.parquet import FileMetaData
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyspark.sql import DataFrame


def open_iceberg(output: Declared, *, stage: Stager | None = None, durable: bool = True) -> IcebergTableSink:
    """The sink of a table; sends no request.

    Raises:
        InvalidInput: its location is not `<catalog>.<namespace>.<table>`; names the field.
    """
    catalog, *identifier = output.location.split(".")
    if len(identifier) < 2 or not all((catalog, *identifier)):
        raise InvalidInput(
            f"spec.outputs[{output.name}].iceberg: {output.location} is not a catalog and a table in a namespace, as `lake` and "
            "`sales.orders`"
        )
    return IcebergTableSink(output, CatalogTable(catalog, tuple(identifier)), stage=stage, durable=durable)


class IcebergTableSink:
    """A `Sink`, and `stream.Linked`, over one table.

    stage: writes the rows; Spark, unless a test injects something lighter."""

    kind = "iceberg"

    def __init__(
        self, output: Declared, at: CatalogTable, *, stage: Stager | None = None, durable: bool = True
    ) -> None:
        self.name, self.uri, self.mode = output.name, at.uri, output.mode
        self.on_rerun, self._stage = output.on_rerun, stage or stage_with_spark
        self._place, self._durable = at, durable
        self.place = place_of(output.series)

    async def check(self) -> None:
        table = self._place.load()
        if table is None:
            self._place.reachable()
            self._place.placed()
            return
        self._check_writable(table)
        if (tag := expiring(table.metadata)) is not None:
            raise OutputUnsafe(
                f"the tag {tag} of {self.uri} would expire, and with it the evidence of what was committed; set its retention to the "
                "maximum, and unset history.expire.max-ref-age-ms"
            )
        self._place.honours(table)

    async def find(self, key: SinkKey) -> Slot | None:
        view = self._view()
        return None if view is None else view.committed(evidence_of(view.table.metadata, key))

    async def probe(self, key: SinkKey, slot_digest: str | None) -> Found:
        view = self._view()
        if view is None:
            return Evidence.GONE
        if replaced_by(view.table.metadata, key) is not None:
            return Evidence.REPLACED
        try:
            marks = table_stream.recorded(view, key)
            if not marks or (slot_digest is not None and marks[-1].digest != slot_digest):
                return Evidence.GONE
            found = skipped_result(view.slot_of(marks[-1])) or self._visible(view, marks)
        except OutputCorrupt as error:
            found = Probed(verdict=Evidence.GONE, why=str(error))
        return found if found.verdict is Evidence.PRESENT else self._explained(view, key, found)

    async def fence(self, key: SinkKey, token: int, *, fingerprint: str, by: str) -> Slot | None:
        if token <= 1:
            return await self.find(key)
        sending = Sending(self._place, f"the fence of {key} at {token}")
        while True:
            view = self._rooted(sending)
            at = evidence_of(view.table.metadata, key)
            if at.committed is not None:
                return view.slot_of(at.committed)
            if at.barred_below >= token:
                return None
            summary = fence_summary(key, token, fingerprint=fingerprint, by=by)
            if sending.send(view.table, partial(table_commit.fence, view.table, key, at, summary), SENT_FENCE):
                return None

    def stage(
        self, frame: DataFrame, key: SinkKey, token: int, *, fingerprint: str, options: WriteOptions = PLAIN
    ) -> Slot:
        view = self._rooted(Sending(self._place, "the first snapshot"))
        self._check_writable(view.table)
        position = latest(view.table.metadata, self.place)[0]
        if (why := lateness(self.place, position)) is not None:
            if (barring := skips(self.place, position)) is None:
                raise LateInSeries(f"output {self.name}, the table {self.uri}: {why}")
            at = str(view.table.metadata.table_uuid)
            return skipped_unstaged(key, token, fingerprint=fingerprint, place=self.place, table=at, committed=barring)
        mode = replacing(options, self.mode)
        self._check_layout(view, key, options, mode, named=not is_spark(frame))
        wider = self._wider(view.table, frame.schema.json(), options) if is_spark(frame) else None
        write = self._writer(frame, view, wider)
        nonce = secrets.token_hex(16)
        folder, objects = staging_folder(key, token, nonce), view.objects
        with undone_unless_staged(key, token, delete=lambda: objects.delete_folder(folder), barred=self._is_barred):
            written = write(folder)
            data_schema = columns_of(frame, written)
            footers: dict[str, FileMetaData] = {}
            files = blocking.run(staged_files(objects, folder, written, seen=footers.__setitem__))
            found = [
                Staged(f"{view.table.location()}/{file.path}", footers[file.path], file.bytes)
                for file in files
                if file.rows
            ]
            self._check_files(wider or self._wider(view.table, data_schema, options), found)
            slot = Slot(
                state=SlotState.COMMITTED,
                sink_key=str(key),
                token=token,
                nonce=nonce,
                fingerprint=fingerprint,
                rows=written.rows,
                on_rerun=self.on_rerun,
                mode=mode,
                place=self.place,
                data_schema=data_schema,
                table=str(view.table.metadata.table_uuid),
                spec_id=view.table.metadata.default_spec_id if view.table.schema().fields else None,
                partition_by=options.partition_by or None,
                merge_schema=options.merge_schema or None,
                application=written.application,
                committed_at=time.time(),
            )
            slot = as_grouped(blocking.run(with_files(objects, slot, folder, files)), files)
            hit("sink.iceberg.staged")
            return slot

    async def commit(self, key: SinkKey, slot: Slot) -> CommitOutcome:
        return self._commit(key, slot, after=None)

    async def follow(self, key: SinkKey, slot: Slot, *, after: Slot) -> CommitOutcome:
        """See `stream.Linked`."""
        return self._commit(key, slot, after=after)

    async def using(self, query_id: str) -> list[Slot]:
        """See `stream.Linked`."""
        view = self._view()
        return [] if view is None else table_stream.using(view, query_id)

    async def reading(self, sources: Sequence[StreamSource]) -> list[Slot]:
        """See `stream.Linked`."""
        view = self._view()
        return [] if view is None else table_stream.reading(view, sources)

    def checkpoint(self, key: SinkKey) -> str:
        """See `stream.Linked`. The leading underscore hides it from Iceberg's removal of orphan files."""
        view = self._rooted(Sending(self._place, "the first snapshot"))
        return view.objects.where(f"{layout.CHECKPOINTS}/{key}")

    def _commit(self, key: SinkKey, slot: Slot, *, after: Slot | None) -> CommitOutcome:
        if slot.sink_key != str(key) or slot.state is not SlotState.COMMITTED:
            raise ValueError(f"{slot.state} slot of {slot.sink_key} is not a commit of {key}")
        sending = Sending(self._place, f"slot {slot.token} of {key}")
        suspect = ""
        while True:
            view = self._rooted(sending) if is_opening(slot) else self._loaded(sending)
            if view is None:
                return Stuck(slot, f"the table {self.uri} was dropped; rerun the job")
            if slot.table != str(view.table.metadata.table_uuid) and not (
                slot.table is None and slot.stream is not None
            ):
                return Stuck(
                    slot, f"the table {self.uri} was dropped and recreated since the rows were staged; rerun the job"
                )
            if after is not None and (why := table_stream.lost(view, after)) is not None:
                return Stuck(slot, why)
            at = evidence_of(view.table.metadata, key)
            if (decided := view.decided(at, slot)) is not None:
                return decided
            position = latest(view.table.metadata, slot.place)[0]
            if slot.skipped is None and (why := lateness(slot.place, position)) is not None:
                if (barring := skips(slot.place, position)) is None:
                    sending.never(slot, why)
                    return Late(slot, f"the table {self.uri} takes no rows: {why}")
                # A change that was sent before without a reply fails at the tag of the series, which has moved.
                slot = skipping(slot, barring)
                hit("sink.skipping")
            ready = view.ready(key, slot)
            if isinstance(ready, str):
                if ready == suspect:
                    stuck = sending.never(slot, ready)
                    return Overtaken(slot, ready) if view.overtaken(slot) else stuck
                suspect = (
                    ready  # the process that decided the key meanwhile may have swept the files: load the table again
                )
                continue
            try:
                if sending.send(view.table, partial(self._change, view, key, at, slot, ready), SENT_COMMIT):
                    return Committed(slot)
            except Misfit as misfit:
                return sending.never(
                    slot, f"the rows do not fit the table {self.uri} as it is now ({misfit}); rerun the job"
                )

    async def abort(self, key: SinkKey, slot: Slot) -> Slot:
        by = abort_of(slot.token)
        existing = await self.fence(key, slot.token + 1, fingerprint=slot.fingerprint, by=by)
        if existing is not None:
            return existing
        hit("driver.abort.closed")
        await self.discard(key, slot)
        return closed(slot, by)

    async def discard(self, key: SinkKey, slot: Slot) -> None:
        if (view := self._view()) is not None:
            await view.objects.delete_folder(staging_folder(key, slot.token, slot.nonce))
        if slot.branch is not None:
            await self.drop_branch(slot.branch)

    async def table_id(self) -> str | None:
        """See `TakesBranch.table_id`."""
        view = self._view()
        return None if view is None or not view.table.schema().fields else str(view.table.metadata.table_uuid)

    async def create(
        self,
        key: SinkKey,
        token: int,
        *,
        schema: str,
        partition_by: Sequence[tuple[str, str]] = (),
        properties: Mapping[str, str] | None = None,
        declared: bool = False,
    ) -> bool:
        """See `TakesBranch.create`."""
        columns = declared_of(schema) if declared else nullable(schema_of(schema))
        if missing := [name for _, name in partition_by if name not in columns.column_names]:
            raise InvalidInput(
                f"the table {self.uri} cannot be partitioned by {', '.join(missing)}, which it does not have"
            )
        sending = Sending(self._place, f"the columns of {self.uri}")
        while True:
            table = self._rooted(sending).table
            if table.schema().fields:
                return table.properties.get(CREATED_FOR) == str(key)
            at = evidence_of(table.metadata, key)
            if at.barred_below > token:
                raise Fenced(f"attempt {token} of {key} was ended by a later one; it gives {self.uri} no columns")
            change = partial(
                table_commit.declare,
                table,
                key,
                at,
                columns=columns,
                partition_by=partition_by,
                properties={**(properties or {}), CREATED_FOR: str(key)},
            )
            sending.send(table, change, SENT_COLUMNS)

    async def open_branch(
        self, key: SinkKey, token: int, *, nonce: str, named_for: SinkKey | None = None, renew: bool = False
    ) -> OpenBranch | FencedOff:
        """See `TakesBranch.open_branch`."""
        name = table_branch.name_of(named_for or key, token, nonce)
        sending = Sending(self._place, f"the branch {name}")
        table = sending.load()
        if table is None or not table.schema().fields:  # a fence makes a table without columns
            raise InvalidInput(
                f"output {self.name}: there is no table {self.uri} yet, and statements write tables that exist; create it first"
            )
        while True:
            view = self._rooted(sending)
            metadata = view.table.metadata
            self._check_writable(view.table)
            if (path := table_branch.outside(metadata)) is not None:
                raise OutputUnsupported(
                    f"the table {self.uri} has the property {path}, which puts files outside of {metadata.location}; a native block needs "
                    "them below it: unset the property, or write with job.write()"
                )
            ref = metadata.refs.get(name)
            if ref is not None and (not renew or ref.snapshot_id == metadata.refs[MAIN_BRANCH].snapshot_id):
                start = str(ref.snapshot_id)
                return OpenBranch(
                    mark=BranchMark(name=name, start=start, head=start, statements=0),
                    table=str(metadata.table_uuid),
                    settings=table_branch.settings(name, statement_properties(key, token, nonce)),
                )
            at_key = evidence_of(metadata, key)
            if at_key.committed is not None or at_key.barred_below > token:
                by = at_key.fence.by if at_key.fence else "a later attempt"
                return FencedOff(Slot(state=SlotState.CLOSED, sink_key=str(key), token=token, closed_by=by))
            older = view.removed(key) if self.on_rerun is OnRerun.REPLACE else []
            if older:
                why = older if isinstance(older, str) else ROWS_STAND
                raise InvalidInput(f"output {self.name} cannot replace its rows in the table {self.uri}: {why}")
            ours = table_branch.branches(metadata, table_branch.of_generation(key))
            stale = [each.name for each in ours if each.token < token]
            change = partial(table_branch.opening, view.table, key, at_key, name, stale=stale)
            sending.send(view.table, change, SENT_BRANCH)

    async def block_slot(
        self, key: SinkKey, token: int, *, nonce: str, branch: BranchMark, fingerprint: str, application: str
    ) -> Slot:
        """See `TakesBranch.block_slot`."""
        view = self._loaded(Sending(self._place, f"the block of {key}"))
        ref = None if view is None else view.table.metadata.refs.get(branch.name)
        head = branch.model_copy(update={"head": "" if ref is None else str(ref.snapshot_id)})
        slot = Slot(
            schema_=BRANCH_SCHEMA,
            state=SlotState.COMMITTED,
            sink_key=str(key),
            token=token,
            nonce=nonce,
            fingerprint=fingerprint,
            on_rerun=self.on_rerun,
            table=None if view is None else str(view.table.metadata.table_uuid),
            branch=head,
            application=application,
            committed_at=time.time(),
        )
        found = table_branch.content(view.table, head) if view is not None and ref is not None else ""
        if view is None or isinstance(found, str):
            return slot  # its commit says why it is none
        location = table_branch.spelled(found.files, view.table.location())
        if location is None:
            raise OutputUnsupported(
                f"the block wrote files that are not below the location of the table {self.uri}, {view.table.location()}; nothing of it is "
                "visible"
            )
        files = table_branch.named(found.files, location)
        slot = slot.model_copy(update={"branch": head.model_copy(update={"location": location if files else ""})})
        rows = sum(file.rows for file in files)
        named = await with_files(view.objects, slot, staging_folder(key, token, nonce), files)
        return named.model_copy(update={"schema_": BRANCH_SCHEMA, "rows": rows})

    async def drop_branch(self, branch: BranchMark) -> None:
        """See `TakesBranch.drop_branch`."""
        self._drop([branch.name])

    def _drop(self, names: Sequence[str]) -> int:
        """Drops branches that exist; their number."""
        sending = Sending(self._place, f"the end of {', '.join(names)}")
        while True:
            view = self._loaded(sending)
            there = [] if view is None else [name for name in names if name in view.table.metadata.refs]
            if view is None or not there or sending.send(view.table, partial(table_branch.dropping, view.table, there)):
                return len(there)

    async def inventory(self) -> Inventory:
        view = self._view()
        if view is None:
            return Inventory(kind=self.kind, uri=self.uri, effects=(), staged=(), live=())
        return await inventory(view, kind=self.kind)

    async def sweep(self, key: SinkKey, *, more: bool = False) -> Swept:
        del more  # Iceberg needs no work on the whole table
        view = self._view()
        if view is None:
            return Swept(0, 0)
        keys = await table_stream.swept(view, key)
        swept = [await self._sweep(view, each) for each in keys]
        stale = table_branch.unpublished(view.table.metadata, key, evidence_of(view.table.metadata, key))
        dropped = self._drop(stale) if stale else 0
        return Swept(dropped + sum(each.folders for each in swept), sum(each.bytes for each in swept))

    async def _sweep(self, view: TableView, key: SinkKey) -> Swept:
        at = evidence_of(view.table.metadata, key)
        folders = size = 0
        for folder in await view.objects.folders(staging(key)):
            written = token_and_nonce(folder)
            if written is not None and view.never_commits(folder, at, *written):
                size += sum(listed.bytes for listed in await view.objects.list(folder))
                folders += 1
                hit("sink.iceberg.sweep.before")
                await view.objects.delete_folder(folder)
        return Swept(folders, size)

    # --- reading the table ---------------------------------------------------------------------------------------------

    def _view(self) -> TableView | None:
        table = self._place.load()
        return None if table is None else TableView(table, self.uri, self._durable)

    def _loaded(self, sending: Sending) -> TableView | None:
        table = sending.load()
        return None if table is None else TableView(table, self.uri, self._durable)

    def _visible(self, view: TableView, marks: Sequence[Mark]) -> Found:
        """Whether readers see the rows of these commits, in the original files or in compacted ones."""
        table, (files_seen, deletes) = view.table, live_and_deletes(view.table)
        seen = {file.file_path for file in files_seen}
        named = {mark: view.located(mark) for mark in marks}
        unseen = {path for files in named.values() for path in files} - seen
        for mark, files in named.items():
            doubtful = not unseen.isdisjoint(files) if files else moved_main(table.metadata, mark)
            if doubtful and (why := rolled_back(table.metadata, mark)) is not None:
                return Probed(verdict=Evidence.GONE, why=why)
        for mark, files in named.items():
            if gone := view.missing(mark, [file for path, file in files.items() if path in seen]):
                why = f"{len(gone)} file(s) that the table names are missing, the first is {gone[0]}"
                return Probed(verdict=Evidence.GONE, why=why)
        own = {path for files in named.values() for path in files}
        hidden = masks(table, table.current_snapshot(), of=None if unseen else own) if deletes else Masks()
        if lost := unseen | (hidden.by.keys() & own):
            place = view.slot_of(marks[-1]).place
            found = traced(table, lost, seen, hidden).probed(lost, place=place, whole=own <= unseen)
            if found is not None and found.verdict in (Evidence.CHANGED, Evidence.SUPERSEDED):
                return found
        else:
            found = None
        if hidden.unknown:
            return Probed(verdict=Evidence.NOT_CHECKED, why=hidden.unknown)
        return found or Evidence.PRESENT

    def _explained(self, view: TableView, key: SinkKey, found: Found) -> Probed:
        """A verdict with what to do where the table would refuse to replace the rows."""
        again, remedy = key.model_copy(update={"generation": key.generation + 1, "batch": None}), ""
        try:
            slot = view.committed(evidence_of(view.table.metadata, key))
            if lateness(self.place, latest(view.table.metadata, self.place)[0]) is not None:
                remedy = LATE_INSTEAD
            elif self.on_rerun is OnRerun.REPLACE and (slot is None or slot.mode is None):
                remedy = APPEND_INSTEAD if isinstance(view.removed(again), str) else ""
        except OutputCorrupt as error:
            remedy = str(error)
        return Probed(verdict=found.verdict, why=found.why, changes=found.changes, remedy=remedy)

    def _change(self, view: TableView, key: SinkKey, at: KeyEvidence, slot: Slot, ready: PreparedCommit) -> TableChange:
        path, digest = view.put(key, slot)
        summary = summary_of(slot, location=view.table.location(), path=path, digest=digest, replaces=ready.replaces)
        if slot.branch is not None:
            return table_commit.publish(view.table, key, at, summary=summary, branch=slot.branch, files=ready.appended)
        return table_commit.append(
            view.table,
            key,
            at,
            summary=summary,
            paths=ready.files,
            removed=ready.removed,
            same_partitions=ready.same_partitions,
            must_write=ready.must_write,
            fitting=ready.fitting,
            partition_by=slot.partition_by or (),
            place=slot.place,
        )

    # --- before the rows are written ---------------------------------------------------------------------------------

    def _rooted(self, sending: Sending) -> TableView:
        """The table with at least one snapshot; created if it does not exist.

        Raises:
            OutputUnavailable: the catalog did not answer.
            OutputUnsafe: the catalog ignores requirements.
        """
        while True:
            try:
                table = self._place.make()
            except OutputUnavailable as error:
                sending.lost(error)
                continue
            if table.metadata.current_snapshot() is not None:
                return TableView(table, self.uri, self._durable)
            hit("sink.iceberg.created")
            sending.send(table, partial(table_commit.root, table))

    def _check_writable(self, table: Table) -> None:
        if (why := unwritable(table.metadata)) is not None:
            raise OutputUnsupported(f"the table {self.uri} cannot be an output: {why}")
        if not is_absolute(table.location()):
            raise OutputUnsupported(
                f"the table {self.uri} cannot be an output: its location {table.location()} is not absolute, so Spark and pyiceberg would "
                "write to different folders; create it anew under an absolute warehouse"
            )

    def _check_layout(
        self, view: TableView, key: SinkKey, options: WriteOptions, mode: WriteMode | None, *, named: bool
    ) -> None:
        """Checks the table's layout, and that a rerun can replace the earlier files. named: readers find the rows' columns by name.

        Raises:
            InvalidInput: this write cannot succeed.
        """
        table = view.table
        columns = identity_columns(table.spec(), table.schema())
        if table.schema().fields and options.partition_by and options.partition_by != columns:
            kept = ", ".join(str(each) for each in table.spec().fields) or "nothing"
            raise InvalidInput(
                f"the table {self.uri} is partitioned by {kept}, and partition_by={list(options.partition_by)} differs; leave it out"
            )
        if named and (missing := unmapped(table.metadata)):
            raise InvalidInput(
                f"the property {table_commit.NAME_MAPPING} of {self.uri} lacks {', '.join(missing)}, so readers would see nulls there; "
                "unset it"
            )
        if mode is WriteMode.OVERWRITE_PARTITIONS:
            new = not table.schema().fields
            if (why := None if new and options.partition_by else view.unpartitioned()) is not None:
                raise InvalidInput(why)
        elif mode is None and self.on_rerun is OnRerun.REPLACE and isinstance(older := view.removed(key), str):
            raise InvalidInput(older)

    def _wider(self, table: Table, data_schema: str, options: WriteOptions) -> TableMetadata:
        """The table as it will be with the rows' columns.

        Raises:
            InvalidInput: the rows do not fit the table.
        """
        first = not table.schema().fields
        rows = schema_of(data_schema)
        change = fit(rows, table.schema())
        why = change.problem(merge=first or options.merge_schema) or reused(change, table.metadata)
        if why is not None:
            raise InvalidInput(f"the rows do not fit the table {self.uri}: {why}")
        if missing := [name for name in options.partition_by if first and rows.find_type(name) is None]:
            raise InvalidInput(f"partition_by names {', '.join(missing)}, which the rows do not have")
        try:
            return with_columns(table, change, options.partition_by, mapped=False).table_metadata
        except ValueError as error:
            raise InvalidInput(f"the rows do not fit the table {self.uri}: {first_line(error)}") from error

    def _writer(self, frame: Any, view: TableView, wider: TableMetadata | None) -> Callable[[str], StagedRows]:
        """What writes the rows into a folder, with the ids of the table's columns and split by partition.

        wider: None for a frame that is not Spark's, which is left as it is."""
        where = view.objects.where
        if wider is None:
            return lambda folder: self._stage(frame, where(folder), ())
        schema, spec = wider.schema(), wider.spec()
        if is_connect(frame) or needs_arrow(schema_of(frame.schema.json())):
            rows, helpers = laid_out(frame, spec, schema)
            arrow = ArrowStager(view.table, schema)
            return lambda folder: arrow.stage(rows, folder, helpers)
        rows, helpers = laid_out(identified(frame, schema), spec, schema)
        return lambda folder: self._stage(rows, where(folder), helpers)

    def _check_files(self, wider: TableMetadata, files: Sequence[Staged]) -> None:
        """Checks that each file fits the table and belongs to one partition.

        Raises:
            InvalidInput: one does not.
        """
        try:
            data_files(wider, files)
        except ValueError as error:
            raise InvalidInput(f"the rows cannot be added to the table {self.uri}: {first_line(error)}") from error

    def _is_barred(self, key: SinkKey, token: int) -> bool:
        with contextlib.suppress(SparkonceError):
            if (view := self._view()) is not None:
                at = evidence_of(view.table.metadata, key)
                return at.barred_below > token or (at.committed is not None and at.committed.token > token)
        return False
