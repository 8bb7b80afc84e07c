"""An Iceberg table as an output: Spark stages Parquet natively, one conditional commit of the catalog makes it visible.

What decides is what the catalog checks in the commit itself: the key's tag must not exist, its fence must be the one that was read, `main` must be
where it was. So at most one commit of a key stands, and a token below the fence never commits, whoever froze for however long. Rule R
of the slot log is that check: a fence at t is a `closed` in every slot below t, and a commit of t bars the lower ones as well.

The slot's own bytes lie beside its data (`<location>/data/so-<sink key>/<token>-<nonce>/_slot.json`), put there before the commit; the
evidence names them with their digest. The underscore keeps them out of what Iceberg's clean-up of orphan files takes.

Refused: format versions other than 2, bucket partitions (Spark's own writer cannot compute them), schema changes that nobody asked for, replacing
files that a compaction has rewritten. Never done: pyiceberg's own retries (see `iceberg_commit`).

Source: research notes on exactly-once output, section 7.3; the Iceberg table and REST catalog specifications.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkonce import blocking
from sparkonce.errors import (
    Fenced,
    InvalidInput,
    OutputCorrupt,
    OutputUnavailable,
    OutputUnsafe,
    OutputUnsupported,
    SparkonceError,
)
from sparkonce.failpoints import hit
from sparkonce.sink import iceberg_commit, layout
from sparkonce.sink.iceberg_catalog import Place, said
from sparkonce.sink.iceberg_commit import Change, Sending, data_files, unplaced
from sparkonce.sink.iceberg_evidence import (
    Mark,
    Standing,
    expiring,
    fence_summary,
    sha256,
    standing,
    summary_of,
)
from sparkonce.sink.iceberg_files import live, replaced_by, rewritten, superseded
from sparkonce.sink.iceberg_inventory import inventory
from sparkonce.sink.iceberg_layout import SLOT, staging, staging_folder, token_and_nonce
from sparkonce.sink.iceberg_objects import objects_at
from sparkonce.sink.iceberg_schema import Fit, fit, identity_columns, schema_of, unmapped, unwritable
from sparkonce.sink.iceberg_stage import in_microseconds, is_spark, laid_out
from sparkonce.sink.listing import files_of, with_files
from sparkonce.sink.protocol import (
    PLAIN,
    AlreadyCommitted,
    Committed,
    Conflicting,
    Decision,
    Evidence,
    FencedOff,
    Inventory,
    OnRerun,
    SinkKey,
    Slot,
    SlotState,
    Stuck,
    Swept,
    WriteOptions,
)
from sparkonce.sink.staging import Stager, stage_with_spark, staged_files

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame

    from sparkonce.sink.objects import Objects


def open_iceberg(
    location: str,
    *,
    name: str,
    field: str,
    on_rerun: OnRerun = OnRerun.REPLACE,
    stage: Stager | None = None,
    durable: bool = True,
) -> IcebergTable:
    """location: `<catalog>.<namespace>.<table>`. InvalidInput names the field; nothing is asked or touched."""
    catalog, *identifier = location.split(".")
    if len(identifier) < 2 or not all((catalog, *identifier)):
        raise InvalidInput(f"{field}: {location} is not a catalog and a table in a namespace, as `lake` and `sales.orders`")
    place = Place(catalog, tuple(identifier))
    return IcebergTable(place, name=name, on_rerun=on_rerun, stage=stage, durable=durable)


@dataclass(frozen=True)
class _Ready:
    """What one commit needs, as one loaded table has it."""

    files: list[str]
    """Locations, without the empty ones: a file without rows has no place in a partition."""
    removed: list[DataFile]
    fitting: Fit


class IcebergTable:
    """A `Sink`. `stage` writes the rows: Spark, unless a test injects something lighter."""

    kind = "iceberg"

    def __init__(
        self,
        place: Place,
        *,
        name: str,
        on_rerun: OnRerun = OnRerun.REPLACE,
        stage: Stager | None = None,
        durable: bool = True,
    ) -> None:
        self.name, self.uri = name, place.uri
        self._place, self._on_rerun, self._stage, self._durable = place, on_rerun, stage or stage_with_spark, durable

    async def check(self) -> None:
        table = self._place.load()
        if table is None:
            self._place.reachable()
            return
        self._usable(table)
        if (tag := expiring(table.metadata)) is not None:
            raise OutputUnsafe(
                f"the tag {tag} of {self.uri} would expire, and with it the evidence of what was committed; set its retention to the most "
                "there is, and unset history.expire.max-ref-age-ms"
            )
        self._place.honours(table)

    async def find(self, key: SinkKey) -> Slot | None:
        table = self._place.load()
        return None if table is None else self._committed(table, standing(table.metadata, key))

    async def probe(self, key: SinkKey, slot_digest: str | None) -> Evidence:
        table = self._place.load()
        if table is None:
            return Evidence.GONE
        if replaced_by(table.metadata, key) is not None:
            return Evidence.REPLACED
        mark = standing(table.metadata, key).committed
        if mark is None or (slot_digest is not None and mark.digest != slot_digest):
            return Evidence.GONE
        objects = objects_at(mark.location, table.io, durable=self._durable)
        try:
            slot = self._slot_of(table, mark)
            named = {file.path: file.bytes for file in await files_of(objects, slot) if file.rows}
        except OutputCorrupt:
            return Evidence.GONE
        seen = {file.file_path for file in live(table)}
        unseen = {path for path in named if f"{mark.location}/{path}" not in seen}
        if unseen:
            moved = rewritten(table, {f"{mark.location}/{path}" for path in unseen})
            if moved is None:
                return Evidence.NOT_CHECKED
            if len(moved) < len(unseen):
                return Evidence.GONE
        listed = {each.path: each.bytes for each in await objects.list(mark.slot.rpartition("/")[0])}
        there = all(listed.get(path) == size for path, size in named.items() if path not in unseen)
        return Evidence.PRESENT if there else Evidence.GONE

    async def fence(self, key: SinkKey, token: int, *, fingerprint: str, by: str) -> Slot | None:
        if token <= 1:
            return await self.find(key)
        sending = Sending(self._place, f"the fence of {key} at {token}")
        while True:
            table = self._rooted(sending)
            at = standing(table.metadata, key)
            if at.committed is not None:
                return self._committed(table, at)
            if at.barred_below >= token:
                return None
            summary = fence_summary(key, token, fingerprint=fingerprint, by=by)
            change = iceberg_commit.fence(table, key, at, summary)
            if sending.send(table, change, "sink.iceberg.fence"):
                return None

    def stage(
        self, frame: DataFrame, key: SinkKey, token: int, *, fingerprint: str, options: WriteOptions = PLAIN
    ) -> Slot:
        table = self._rooted(Sending(self._place, "the first snapshot"))
        self._usable(table)
        data_schema = frame.schema.json() if is_spark(frame) else None
        if data_schema is not None:
            self._fits(table, schema_of(data_schema), options)
        self._takes(table, key, options)
        nonce = secrets.token_hex(16)
        folder = staging_folder(key, token, nonce)
        objects = self._objects(table)
        try:
            rows, helpers = self._laid_out(frame, table, options)
            written = self._stage(rows, objects.where(folder), helpers)
            if data_schema is None:
                data_schema = written.data_schema
                self._fits(table, schema_of(data_schema), options)
            files = blocking.run(staged_files(objects, folder, expected=written.rows))
            slot = Slot(
                state=SlotState.COMMITTED,
                sink_key=str(key),
                token=token,
                nonce=nonce,
                fingerprint=fingerprint,
                rows=written.rows,
                on_rerun=self._on_rerun,
                data_schema=data_schema,
                table=str(table.metadata.table_uuid),
                partition_by=options.partition_by or None,
                merge_schema=options.merge_schema or None,
                application=written.application,
                committed_at=time.time(),
            )
            slot = blocking.run(with_files(objects, slot, folder, files))
            self._placed(table, [f"{table.location()}/{file.path}" for file in files if file.rows])
            data = layout.encode(slot)
            if not blocking.run(objects.create(f"{folder}/{SLOT}", data)):
                raise OutputUnavailable(f"{objects.where(folder)} holds a slot already; nothing was committed, run it again")
            hit("sink.iceberg.staged")
            return slot
        except BaseException as error:
            # No commit names the nonce and nobody else knows it: these files can never be committed.
            with contextlib.suppress(SparkonceError):
                blocking.run(objects.delete_folder(folder))
            if isinstance(error, Exception) and self._is_barred(key, token):
                raise Fenced(f"attempt {token} of {key} was taken over while it wrote; nothing of it is visible") from error
            raise

    async def commit(self, key: SinkKey, slot: Slot) -> Decision:
        if slot.sink_key != str(key) or slot.state is not SlotState.COMMITTED:
            raise ValueError(f"{slot.state} slot of {slot.sink_key} is no commit of {key}")
        sending = Sending(self._place, f"slot {slot.token} of {key}")
        suspect = ""
        while True:
            table = sending.load()
            if table is None:
                return Stuck(slot, f"the table {self.uri} was dropped; rerun the job")
            if str(table.metadata.table_uuid) != slot.table:
                return Stuck(slot, f"the table {self.uri} was dropped and made anew since the rows were staged; rerun the job")
            at = standing(table.metadata, key)
            if (decided := self._decided(table, at, slot)) is not None:
                return decided
            ready = await self._ready(table, key, slot)
            if isinstance(ready, str):
                if ready == suspect:
                    return Stuck(slot, ready)
                suspect = ready  # whoever decided the key meanwhile may have swept the files: look at the table once more
                continue
            change = await self._change(table, key, at, slot, ready)
            if isinstance(change, Change) and sending.send(table, change, "sink.iceberg.commit"):
                return Committed(slot)

    async def abort(self, key: SinkKey, slot: Slot) -> Slot:
        stands = await self.fence(key, slot.token + 1, fingerprint=slot.fingerprint, by=f"abort of attempt {slot.token}")
        if stands is not None:
            return stands
        hit("driver.abort.closed")
        await self.discard(key, slot)
        return _closed(slot, f"abort of attempt {slot.token}")

    async def discard(self, key: SinkKey, slot: Slot) -> None:
        if (table := self._place.load()) is not None:
            await self._objects(table).delete_folder(staging_folder(key, slot.token, slot.nonce))

    async def inventory(self) -> Inventory:
        table = self._place.load()
        if table is None:
            return Inventory(kind=self.kind, uri=self.uri, effects=(), staged=(), present={}, live=())
        return await inventory(table, self._objects(table), kind=self.kind, uri=self.uri)

    async def sweep(self, key: SinkKey) -> Swept:
        table = self._place.load()
        if table is None:
            return Swept(0, 0)
        at = standing(table.metadata, key)
        objects = self._objects(table)
        folders = size = 0
        for folder in await objects.folders(staging(key)):
            written = token_and_nonce(folder)
            if written is None or not await self._hopeless(table, objects, folder, at, *written):
                continue
            size += sum(each.bytes for each in await objects.list(folder))
            folders += 1
            hit("sink.iceberg.sweep.before")
            await objects.delete_folder(folder)
        return Swept(folders, size)

    # --- what a loaded table says ------------------------------------------------------------------------------------

    def _decided(self, table: Table, at: Standing, slot: Slot) -> Decision | None:
        if at.committed is not None:
            if at.committed.token > slot.token:
                return FencedOff(_closed(slot, f"attempt {at.committed.token}"))
            stands = self._slot_of(table, at.committed)
            if stands.nonce == slot.nonce:
                return Committed(stands)
            return AlreadyCommitted(stands) if stands.fingerprint == slot.fingerprint else Conflicting(stands)
        if at.fence is not None and at.fence.token > slot.token:
            return FencedOff(_closed(slot, at.fence.by))
        return None

    def _committed(self, table: Table, at: Standing) -> Slot | None:
        return None if at.committed is None else self._slot_of(table, at.committed)

    def _slot_of(self, table: Table, mark: Mark) -> Slot:
        """OutputCorrupt: the bytes that the evidence names are gone or changed. They exist: the key is committed."""
        objects = objects_at(mark.location, table.io, durable=self._durable)
        data = blocking.run(objects.get(mark.slot))
        where = objects.where(mark.slot)
        if data is None or sha256(data) != mark.digest:
            what = "is gone" if data is None else "is not the one that was committed"
            raise OutputCorrupt(f"the slot {where} {what}; restore it from a backup, nothing is written to its key until then")
        return layout.decode(data, where=where, sink_key=mark.sink_key, token=mark.token)

    async def _ready(self, table: Table, key: SinkKey, slot: Slot) -> _Ready | str:
        """What the commit needs; or why it can never be."""
        objects = self._objects(table)
        if (why := unwritable(table.metadata)) is not None:
            return f"the table {self.uri} was changed: {why}"
        later = replaced_by(table.metadata, key)
        if later is not None:
            return f"generation {later} of this job has replaced what it would write to {self.uri}"
        fitting = fit(schema_of(slot.data_schema), table.schema())
        first = not table.schema().fields
        if (why := fitting.problem(merge=first or bool(slot.merge_schema))) is not None:
            return f"the table {self.uri} was changed since the rows were staged: {why}; rerun the job"
        if not first and slot.partition_by and slot.partition_by != identity_columns(table.spec(), table.schema()):
            return f"the table {self.uri} is partitioned in another way than the rows were staged; rerun the job"
        try:
            named = {file.path: file for file in await files_of(objects, slot)}
        except OutputCorrupt as error:
            return str(error)
        folder = staging_folder(key, slot.token, slot.nonce)
        listed = {each.path: each.bytes for each in await objects.list(folder)}
        lost = [path for path, file in named.items() if listed.get(path) != file.bytes]
        if lost or f"{folder}/{SLOT}" not in listed:
            return f"{len(lost) or 1} staged file(s) in {objects.where(folder)} are not there as they were written; rerun the job"
        removed = self._removed(table, key, slot.on_rerun)
        if isinstance(removed, str):
            return removed
        return _Ready([f"{table.location()}/{path}" for path, file in named.items() if file.rows], removed, fitting)

    async def _change(self, table: Table, key: SinkKey, at: Standing, slot: Slot, ready: _Ready) -> Change | None:
        """None: a staged file went while the change was made; look again."""
        path = f"{staging_folder(key, slot.token, slot.nonce)}/{SLOT}"
        summary = summary_of(slot, location=table.location(), path=path, digest=sha256(layout.encode(slot)))
        try:
            return iceberg_commit.append(
                table,
                key,
                at,
                summary=summary,
                paths=ready.files,
                removed=ready.removed,
                fitting=ready.fitting,
                partition_by=slot.partition_by or (),
            )
        except FileNotFoundError:
            return None
        except Exception as error:
            raise OutputUnavailable(
                f"the commit of {key} to {self.uri} cannot be put together: {said(error)}; nothing was sent"
            ) from error

    def _removed(self, table: Table, key: SinkKey, on_rerun: OnRerun) -> list[DataFile] | str:
        """The earlier generation's files; or why they cannot be taken out."""
        if on_rerun is not OnRerun.REPLACE or not (marks := superseded(table.metadata, key)):
            return []
        named: set[str] = set()
        for mark in marks:
            objects = objects_at(mark.location, table.io, durable=self._durable)
            files = blocking.run(files_of(objects, self._slot_of(table, mark)))
            named |= {f"{mark.location}/{file.path}" for file in files if file.rows}
        seen = {file.file_path: file for file in live(table)}
        if gone := sorted(named - set(seen)):
            return (
                f"{len(gone)} file(s) of an earlier generation of this job are no longer in {self.uri} as it wrote them (compacted, or "
                "changed row by row), so a rerun cannot replace them; delete those rows and declare `onRerun: Append`"
            )
        return [seen[path] for path in named]

    async def _hopeless(
        self, table: Table, objects: Objects, folder: str, at: Standing, token: int, nonce: str
    ) -> bool:
        """Whether nobody can commit what was staged."""
        if at.committed is not None and at.committed.nonce == nonce:
            return False
        if at.committed is None and token >= at.barred_below:
            return False
        data = await objects.get(f"{folder}/{SLOT}")
        if data is None:
            return True  # its writer died, or is told that it was fenced
        with contextlib.suppress(SparkonceError):
            slot = layout.decode(data, where=folder, sink_key=folder.split("/")[-2].removeprefix("so-"), token=token)
            # Of a table that was dropped from this very place: its files are not ours to delete.
            return slot.table == str(table.metadata.table_uuid)
        return False

    # --- before the rows are written ---------------------------------------------------------------------------------

    def _rooted(self, sending: Sending) -> Table:
        """The table, made if there is none, with at least one snapshot."""
        while True:
            try:
                table = self._place.make()
            except OutputUnavailable as error:
                sending.lost(error)
                continue
            if table.metadata.current_snapshot() is not None:
                return table
            hit("sink.iceberg.created")
            sending.send(table, iceberg_commit.root(table))

    def _objects(self, table: Table) -> Objects:
        return objects_at(table.location(), table.io, durable=self._durable)

    def _usable(self, table: Table) -> None:
        if (why := unwritable(table.metadata)) is not None:
            raise OutputUnsupported(f"the table {self.uri} cannot be an output: {why}")

    def _takes(self, table: Table, key: SinkKey, options: WriteOptions) -> None:
        """InvalidInput: the table's layout, or what a rerun would have to replace, stands against this write."""
        columns = identity_columns(table.spec(), table.schema())
        if table.schema().fields and options.partition_by and options.partition_by != columns:
            kept = ", ".join(str(each) for each in table.spec().fields) or "nothing"
            raise InvalidInput(
                f"the table {self.uri} is partitioned by {kept}, and partition_by={list(options.partition_by)} differs; leave it out"
            )
        if missing := unmapped(table.metadata):
            raise InvalidInput(
                f"the property {iceberg_commit.NAME_MAPPING} of {self.uri} lacks {', '.join(missing)}, so readers would see nulls there; "
                "unset it"
            )
        removed = self._removed(table, key, self._on_rerun)
        if isinstance(removed, str):
            raise InvalidInput(removed)

    def _fits(self, table: Table, rows: Schema, options: WriteOptions) -> None:
        first = not table.schema().fields
        why = fit(rows, table.schema()).problem(merge=first or options.merge_schema)
        if why is not None:
            raise InvalidInput(f"the rows do not fit the table {self.uri}: {why}")
        if missing := [name for name in options.partition_by if first and rows.find_type(name) is None]:
            raise InvalidInput(f"partition_by names {', '.join(missing)}, which the rows do not have")

    def _laid_out(self, frame: Any, table: Table, options: WriteOptions) -> tuple[Any, tuple[str, ...]]:
        if not is_spark(frame):
            return frame, ()
        rows, helpers = laid_out(frame, table.spec(), table.schema(), options.partition_by)
        return in_microseconds(rows), helpers

    def _placed(self, table: Table, paths: list[str]) -> None:
        """InvalidInput: a file whose statistics do not show which partition it belongs to."""
        if not table.spec().fields:
            return
        try:
            column = unplaced(table.metadata, data_files(table, table.metadata, paths))
        except ValueError as error:
            raise InvalidInput(f"the rows cannot be partitioned as {self.uri} is: {said(error)}") from error
        if column is not None:
            raise InvalidInput(
                f"column {column} partitions {self.uri} and holds a value that Parquet keeps no statistics of (NaN, or longer than 4 kB); "
                "clean it"
            )

    def _is_barred(self, key: SinkKey, token: int) -> bool:
        with contextlib.suppress(SparkonceError):
            table = self._place.load()
            if table is not None:
                at = standing(table.metadata, key)
                return at.barred_below > token or (at.committed is not None and at.committed.token > token)
        return False


def _closed(slot: Slot, by: str) -> Slot:
    """As a slot log would show it: a fence, or a higher commit, closes every lower slot."""
    return Slot(
        state=SlotState.CLOSED,
        sink_key=slot.sink_key,
        token=slot.token,
        fingerprint=slot.fingerprint,
        table=slot.table,
        closed_by=by,
    )
