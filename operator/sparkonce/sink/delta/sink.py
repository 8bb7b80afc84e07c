"""Writes a Delta table as an output: Spark stages Parquet natively, one entry of the log makes it visible.

    <table>/so-<sink key>/<token>-<nonce>/*.parquet    files staged by one write; VACUUM treats them like any other data
    <table>/_sparkonce/...                             slots and notes of fences (`evidence`)
    <table>/_delta_log/<n>.json                        the decision (`log`)

A commit is decided on ONE loaded version: the key is not committed, its fence is not above the token, the rows fit. Then exactly the next
version is created, if absent. Any entry in between, ours or not, is a conflict, after which the table is loaded again. After every create
the table is loaded once more, and it alone shows what happened. So a lost answer, a roll-forward by another process and an entry created
where log cleanup had freed its number (by a process frozen for weeks) are handled alike.

Entries are written here and not by delta-rs's `create_write_transaction`, although that takes staged files, both transaction identifiers
and `max_commit_retries=0`. Three facts forbid it, each shown by a test in test_delta_library.py: it escapes letters beyond ASCII in paths,
so the `remove` of a replaced file misses its `add` and both generations show; in append mode, the only one that takes removals, it ignores
a wider schema, so rows and new columns cannot become visible together; and it refuses tables with features that our rows never touch. On
local folders it also links an entry without an fsync before (`objects.local`). delta-rs is used for what it knows better: the state of a
table at a version, and checkpoints.

Spark's `txnAppId` was rejected as well: it skips silently, has no fence, and with the token as its version writes twice.

Refused in one sentence, before the DataFrame runs: tables that demand what we do not write (`schema`), tables that expire transaction
identifiers, and `onRerun: Replace` after another writer rewrote the older generation's files, because its rows no longer have files of
their own.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from typing import TYPE_CHECKING, Any

import deltalake

from sparkonce import blocking
from sparkonce.errors import (
    Fenced,
    InvalidInput,
    LateInSeries,
    OutputCorrupt,
    OutputUnavailable,
    OutputUnsupported,
    SparkonceError,
)
from sparkonce.failpoints import FailpointError, hit
from sparkonce.model.spec import OnRerun, WriteMode
from sparkonce.sink.delta import commit as plan
from sparkonce.sink.delta import evidence
from sparkonce.sink.delta import log as delta_log
from sparkonce.sink.delta import log as delta_stats
from sparkonce.sink.delta import native as delta_native
from sparkonce.sink.delta import schema as delta_fit
from sparkonce.sink.delta import stream as delta_stream
from sparkonce.sink.delta import widths as delta_widths
from sparkonce.sink.delta.inventory import inventory, is_opening, is_replaced, missing, staging_folder
from sparkonce.sink.delta.numbering import numbering, statement_number
from sparkonce.sink.delta.partitions import laid_out
from sparkonce.sink.delta.removals import traced
from sparkonce.sink.delta.snapshot import DeltaSnapshot, Log
from sparkonce.sink.groups import as_grouped
from sparkonce.sink.native import ROWS_STAND, UNMEASURED, Measured
from sparkonce.sink.objects.protocol import TableObjects, refuse_unless_absent
from sparkonce.sink.protocol import (
    APPEND_INSTEAD,
    LATE_INSTEAD,
    PLAIN,
    AlreadyCommitted,
    Change,
    CommitOutcome,
    Committed,
    Conflicting,
    DataFile,
    Declared,
    Evidence,
    FencedOff,
    Found,
    Inventory,
    Late,
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
    slot_digest,
)
from sparkonce.sink.series import lateness, place_of, skipped_result, skipped_unstaged, skipping, skips
from sparkonce.sink.slotlog import layout
from sparkonce.sink.slotlog.layout import files_of, with_files
from sparkonce.sink.staging import Stager, columns_of, is_spark, stage_with_spark, staged_files, undone_unless_staged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyarrow.parquet import FileMetaData
    from pyspark.sql import DataFrame

RESENDS = 4
"""Creates without an answer before the outcome is reported as unknown."""
CONFLICTS = 500
"""Conflicts in a row before we give up; each is progress of another writer."""
UNSEEN = 3
"""Entries that one call may create although the log, read again, shows none of them."""
PAUSE = 0.2
"""Longest pause between two tries, in seconds; drawn at random, so that writers do not collide again."""


def open_delta(output: Declared, objects: TableObjects, *, stage: Stager | None = None) -> DeltaTableSink:
    """The sink of a table. Raises: InvalidInput when delta-rs cannot read tables at such a path."""
    if "%25" in objects.uri:
        raise InvalidInput(
            f"spec.outputs[{output.name}].delta.path: delta-rs cannot read tables at paths with a percent sign, as {objects.uri} is; "
            "rename it"
        )
    return DeltaTableSink(output, objects, stage=stage)


class DeltaTableSink:
    """A `Sink`. stage: writes the rows; Spark, unless a test injects a lighter stager."""

    kind = "delta"

    def __init__(self, output: Declared, objects: TableObjects, *, stage: Stager | None = None) -> None:
        self.name, self.uri, self.mode = output.name, objects.uri, output.mode
        self._objects, self._log, self.place = objects, Log(objects), place_of(output.series)
        self.on_rerun, self._stage = output.on_rerun, stage or stage_with_spark
        self._stats: dict[str, str] = {}  # of the files staged last, by path

    async def check(self) -> None:
        await refuse_unless_absent(self._objects, evidence.EVIDENCE)
        if (table := await self._log.load()) is not None and (why := plan.unwritable(table)):
            raise OutputUnsupported(f"the Delta table {self.uri} cannot be written: {why}")

    async def find(self, key: SinkKey) -> Slot | None:
        table = await self._log.load()
        return None if table is None else await self._standing(table, key)

    async def probe(self, key: SinkKey, slot_digest: str | None) -> Found:
        table = await self._log.load()
        if table is None:
            return Evidence.GONE
        if await is_replaced(self._objects, table, key):
            return Evidence.REPLACED
        number = table.committed(key)
        slot = None if number is None else await evidence.numbered(self._objects, key, number)
        slots = () if slot is None else await delta_stream.recorded(self._objects, table, key, slot)
        if number is not None and slot is None:
            # A rerun would not see what it has to replace, and add the rows a second time.
            backup = (
                f"restore {evidence.folder_of(key)} in {self.uri} from a backup"
                if self.on_rerun is OnRerun.REPLACE
                else ""
            )
            return Probed(verdict=Evidence.GONE, why="its slot is gone", remedy=backup)
        if not slots or (slot_digest is not None and digest_of(slots[-1]) != slot_digest):
            return Evidence.GONE
        if (skipped := skipped_result(slots[-1])) is not None:
            return skipped
        if slots[-1].stream is not None and slots[-1].stream.input == UNMEASURED:
            return Evidence.NOT_CHECKED
        files = [file for each in slots for file in await files_of(self._objects, each)]
        unseen = {file.path for file in files if file.path not in table.live}
        if gone := await missing(self._objects, [file for file in files if file.path not in unseen]):
            why = f"{len(gone)} file(s) that the table names are missing, the first is {gone[0]}"
            if not unseen:
                return Evidence.GONE
            return await self._explained(table, key, Evidence.GONE, why, mode=slots[-1].mode)
        if lost := unseen | (table.masked & {file.path for file in files}):
            whole = {file.path for file in files if file.rows} <= unseen
            trace = await traced(self._objects, table, lost)
            found = trace.probed(lost, place=slots[-1].place, whole=whole)
            if found is not None:
                return await self._explained(table, key, found.verdict, found.why, found.changes, mode=slots[-1].mode)
        return Evidence.PRESENT

    async def _explained(
        self,
        table: DeltaSnapshot,
        key: SinkKey,
        verdict: Evidence,
        why: str,
        changes: tuple[Change, ...] = (),
        *,
        mode: WriteMode | None,
    ) -> Probed:
        """A verdict with what to do where the table would refuse to replace the rows. mode: of the slot."""
        if lateness(self.place, table.latest(self.place)) is not None:
            return Probed(verdict=verdict, why=why, changes=changes, remedy=LATE_INSTEAD)
        if mode is not None:
            return Probed(verdict=verdict, why=why, changes=changes)  # a rerun replaces whatever is there
        again = key.whole.model_copy(update={"generation": key.generation + 1})
        try:
            older = await plan.older(self._objects, table, again, self.on_rerun, explained=False)
            refused = isinstance(older, str)
            remedy = APPEND_INSTEAD if refused else ""
        except OutputCorrupt as error:
            remedy = str(error)
        return Probed(verdict=verdict, why=why, changes=changes, remedy=remedy)

    async def fence(self, key: SinkKey, token: int, *, fingerprint: str, by: str) -> Slot | None:
        if token <= 1:  # no token is below: nothing to bar, nothing is written
            return await self.find(key)
        await evidence.put_note(self._objects, key, token, fingerprint=fingerprint, by=by)
        hit("sink.delta.noted")
        return await self._bar(key, token)

    def stage(
        self, frame: DataFrame, key: SinkKey, token: int, *, fingerprint: str, options: WriteOptions = PLAIN
    ) -> Slot:
        mode, now = replacing(options, self.mode), blocking.run(self._log.load())
        latest = None if now is None else now.latest(self.place)
        if now is not None and (why := lateness(self.place, latest)) is not None:
            if (barring := skips(self.place, latest)) is None:
                raise LateInSeries(f"output {self.name}, the Delta table {self.uri}: {why}")
            at = now.identity
            return skipped_unstaged(key, token, fingerprint=fingerprint, place=self.place, table=at, committed=barring)
        table, partition_by, limits = blocking.run(self._prepare(now, frame, key, options, mode))
        nonce = secrets.token_hex(16)
        folder = staging_folder(key, token, nonce)
        with undone_unless_staged(key, token, delete=lambda: self._delete(key, token, nonce), barred=self._is_barred):
            staged, folders = frame, partition_by
            if is_spark(frame):
                unfit = f"output {self.name} does not fit the Delta table {self.uri}"
                staged, folders = laid_out(delta_widths.checked(frame, limits, unfit), partition_by, self.uri)
            written = self._stage(staged, self._objects.where(folder), folders)
            data_schema = columns_of(frame, written)
            rows, stats = json.loads(data_schema), dict[str, str]()

            def seen(path: str, footer: FileMetaData) -> None:
                stats[path] = delta_stats.of_file(footer, rows)

            files = blocking.run(staged_files(self._objects, folder, written, seen=seen))
            self._stats = stats
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
                data_schema=json.dumps(delta_widths.recorded(_schema_of(frame), limits)) if limits else data_schema,
                table=table,
                partition_by=partition_by,
                merge_schema=options.merge_schema or None,
                application=written.application,
                committed_at=time.time(),
            )
            slot = blocking.run(with_files(self._objects, slot, evidence.write_folder(key, token, nonce), files))
            return as_grouped(slot, files)

    async def commit(self, key: SinkKey, slot: Slot) -> CommitOutcome:
        return await self._commit(key, slot, after=None)

    async def follow(self, key: SinkKey, slot: Slot, *, after: Slot) -> CommitOutcome:
        """See `stream.Linked`."""
        return await self._commit(key, slot, after=after)

    async def create(
        self, key: SinkKey, token: int, *, schema: str, partition_by: Sequence[str], declared: bool = False
    ) -> bool:
        """See `TakesStatements.create`."""
        self.refuse_statements()
        slot = Slot(
            state=SlotState.COMMITTED,
            sink_key=str(key),
            token=token,
            data_schema=schema,
            partition_by=tuple(partition_by),
        )
        tries = _Tries(f"whether the Delta table {self.uri} was created")
        while await self._log.load() is None:
            if await evidence.noted(self._objects, key) > token:
                raise Fenced(f"attempt {token} of {key} was ended by a later one; it creates no table at {self.uri}")
            await self._create_table(slot, tries, notes={"sinkKey": str(key)}, declared=declared)
        return delta_log.created_for(await self._objects.get(delta_log.entry_path(0))) == str(key)

    def refuse_statements(self) -> None:
        """See `TakesStatements.refuse_statements`."""
        if self.uri.startswith(("s3://", "s3a://")):
            raise OutputUnsupported(
                f"spec.outputs[{self.name}].delta.path: Spark's Delta engine may overwrite entries of a log on S3, so no attempt can be "
                "barred there; write it with job.write() in another mode than Merge, or keep the table on Azure or Google Cloud Storage"
            )

    async def identity(self, key: SinkKey) -> str:
        """See `TakesStatements.identity`."""
        table = await self._log.load()
        if table is None:
            raise InvalidInput(
                f"output {self.name}: there is no Delta table at {self.uri} yet, and statements write tables that exist; create it first"
            )
        if why := plan.unfenceable(table):
            raise OutputUnsupported(f"statements at the Delta table {self.uri} cannot be barred: {why}")
        older = await plan.older(self._objects, table, key, self.on_rerun)
        if older:
            why = older if isinstance(older, str) else ROWS_STAND
            raise InvalidInput(f"output {self.name} cannot replace its rows in the Delta table {self.uri}: {why}")
        return table.identity

    def identifier(self, key: SinkKey, token: int) -> tuple[str, int]:
        """See `TakesStatements.identifier`."""
        return delta_log.idem(key), statement_number(token)

    async def begin(self, key: SinkKey, slot: Slot, *, after: Slot) -> CommitOutcome | None:
        """See `TakesStatements.begin`."""
        found = await self.decided(key, slot, after=after)
        if found is None and not await evidence.put_slot(self._objects, slot):
            raise OutputUnavailable(f"the slot of {key} was deleted at {self.uri} while it was stored; nothing was run")
        return found

    async def decided(self, key: SinkKey, slot: Slot, *, after: Slot) -> CommitOutcome | None:
        """See `TakesStatements.decided`."""
        table = await self._log.load()
        if (why := delta_stream.lost(table, after)) is not None or table is None:
            return Stuck(slot, f"the Delta table {self.uri} cannot take it: {why}")
        if (number := table.committed(key)) is not None:
            return await self._decided(table, key, slot, number)
        if table.fenced(key) > slot.token:
            return FencedOff(await self._closed(table, key, slot))
        return None

    async def measured(self, key: SinkKey) -> Measured:
        """See `TakesStatements.measured`."""
        table = await self._log.load()
        if table is None:
            return Measured(rows=0, files=(), complete=False)
        return await delta_native.measured(self._objects, table, key)

    async def with_added(self, key: SinkKey, slot: Slot, files: tuple[DataFile, ...]) -> Slot:
        """See `TakesStatements.with_added`."""
        named = await with_files(self._objects, slot, evidence.write_folder(key, slot.token, slot.nonce), files)
        return named.model_copy(update={"schema_": slot.schema_})

    async def using(self, query_id: str) -> list[Slot]:
        """See `stream.Linked`."""
        return await delta_stream.using(self._objects, await self._log.load(), query_id)

    async def reading(self, sources: Sequence[StreamSource]) -> list[Slot]:
        """See `stream.Linked`."""
        return await delta_stream.reading(self._objects, await self._log.load(), sources)

    def checkpoint(self, key: SinkKey) -> str:
        """See `stream.Linked`. The underscore hides it from VACUUM."""
        return self._objects.where(f"{layout.CHECKPOINTS}/{key}")

    async def _commit(self, key: SinkKey, slot: Slot, *, after: Slot | None) -> CommitOutcome:
        if slot.sink_key != str(key) or slot.state is not SlotState.COMMITTED:
            raise ValueError(f"{slot.state} slot of {slot.sink_key} is not a commit of {key}")
        files: tuple[DataFile, ...] | None = None
        looked, suspect = False, ""
        tries = _Tries(f"whether attempt {slot.token} of {key} is committed to {self.uri}")
        while True:
            table = await self._log.load()
            if after is not None and (why := delta_stream.lost(table, after)) is not None:
                return Stuck(slot, f"the Delta table {self.uri} cannot take it: {why}")
            if table is not None and (number := table.committed(key)) is not None:
                return await self._decided(table, key, slot, number)
            if table is not None and table.fenced(key) > slot.token:
                return FencedOff(await self._closed(table, key, slot))
            if not looked and (noted := await evidence.noted(self._objects, key)) > slot.token:
                if table is None:
                    return FencedOff(await self._closed(None, key, slot))
                await self._bar(key, noted)  # its author may have crashed between note and log: write the entry
                continue
            latest = None if table is None else table.latest(slot.place)
            if slot.skipped is None and (why := lateness(slot.place, latest)) is not None:
                if (barring := skips(slot.place, latest)) is None:
                    return Late(slot, f"the Delta table {self.uri} takes no rows: {why}")
                slot, files = skipping(slot, barring), None
                hit("sink.skipping")
            looked = table is not None  # notes put after the table exists are followed by an entry
            why = plan.unfit(table, slot)
            if not numbering(key).own_rows:
                files = ()  # Spark has committed them
            if why is None and files is None:
                found = await plan.staged(self._objects, slot)
                files, why = (None, found) if isinstance(found, str) else (found, None)
            removed: Sequence[str] = ()
            if why is None and files is not None and table is not None:
                replaced = await plan.replaced(self._objects, table, key, slot, files)
                removed, why = ((), replaced) if isinstance(replaced, str) else (replaced, None)
            if why is not None or files is None:
                if why == suspect:
                    return Stuck(slot, f"the Delta table {self.uri} cannot take it: {why}")
                suspect = why or ""  # a process that decided the key meanwhile may have swept the files: look once more
                continue
            if table is None:
                await self._create_table(slot, tries)
                continue
            if is_opening(slot):
                await delta_stream.note(self._objects, slot)
            if not await evidence.put_slot(self._objects, slot):
                tries.conflict()
                continue
            entry = plan.commit_entry(table, key, slot, files, removed=removed, stats=self._stats)
            await self._append(table, entry, "sink.delta.commit", tries)

    async def abort(self, key: SinkKey, slot: Slot) -> Slot:
        by = abort_of(slot.token)
        stands = await self.fence(key, slot.token + 1, fingerprint=slot.fingerprint, by=by)
        if stands is not None:
            return stands
        hit("driver.abort.closed")
        await self.discard(key, slot)
        return _closed(key, slot.token, fingerprint=slot.fingerprint, by=by)

    async def discard(self, key: SinkKey, slot: Slot) -> None:
        await self._delete(key, slot.token, slot.nonce)

    async def inventory(self) -> Inventory:
        return await inventory(self._objects, await self._log.load(), self.kind)

    async def sweep(self, key: SinkKey, *, more: bool = False) -> Swept:
        del more  # Delta needs no work on the whole table
        table = await self._log.load()
        stands = None if table is None else await self._standing(table, key)
        keys = await delta_stream.swept(self._objects, key, stands)
        swept = [await self._sweep(table, each) for each in keys]
        return Swept(sum(each.folders for each in swept), sum(each.bytes for each in swept))

    async def _sweep(self, table: DeltaSnapshot | None, key: SinkKey) -> Swept:
        folders = size = 0
        committed = None if table is None else await self._standing(table, key)
        barred = await evidence.noted(self._objects, key) if table is None else table.fenced(key)
        for folder in await self._objects.folders(f"so-{key}"):
            token_and_nonce = layout.staged(folder)
            if token_and_nonce is None:
                continue
            token, nonce = token_and_nonce
            kept = token >= barred if committed is None else (token, nonce) == (committed.token, committed.nonce)
            if kept:
                continue
            size += sum(each.bytes for each in await self._objects.list(folder))
            folders += 1
            hit("sink.delta.sweep.before")
            await self._delete(key, token, nonce)
        return Swept(folders, size)

    # --- before the DataFrame runs ---------------------------------------------------------------------------------------

    async def _prepare(
        self, table: DeltaSnapshot | None, frame: Any, key: SinkKey, options: WriteOptions, mode: WriteMode | None
    ) -> tuple[str | None, tuple[str, ...], tuple[delta_widths.Width, ...]]:
        """The table's identity, the columns to partition by, and the widths of texts. Raises: InvalidInput, OutputUnsupported; nothing was
        run or written."""
        rows = _schema_of(frame)
        if mode is not None and (why := plan.unable(table, mode, options.partition_by)):
            raise InvalidInput(
                f"output {self.name} cannot be written to the Delta table {self.uri} in mode {mode}: {why}"
            )
        if table is None:
            schema = delta_fit.new_schema(rows, options.partition_by)
            if isinstance(schema, str):
                raise InvalidInput(f"output {self.name} cannot become a Delta table at {self.uri}: {schema}")
            return None, options.partition_by, _limits(schema, rows)
        if why := plan.unwritable(table):
            raise OutputUnsupported(f"the Delta table {self.uri} cannot be written: {why}")
        fit = plan.fit(table, rows, options.partition_by, merge=options.merge_schema)
        if isinstance(fit, str):
            raise InvalidInput(f"output {self.name} does not fit the Delta table {self.uri}: {fit}")
        older = await plan.older(self._objects, table, key, self.on_rerun) if mode is None else ()
        if isinstance(older, str):
            raise InvalidInput(f"output {self.name} cannot replace its rows in the Delta table {self.uri}: {older}")
        return table.identity, fit.staged_by, _limits(fit.schema or table.schema, rows)

    # --- deciding on one loaded table --------------------------------------------------------------------------------------

    async def _standing(self, table: DeltaSnapshot, key: SinkKey) -> Slot | None:
        number = table.committed(key)
        return None if number is None else await self._slot(table, key, number)

    async def _slot(self, table: DeltaSnapshot, key: SinkKey, number: int) -> Slot:
        """The committed slot, durably. Raises: OutputCorrupt when the key is committed and its slot cannot be read."""
        slot = await evidence.numbered(self._objects, key, number)
        if slot is None:
            raise evidence.lost(self._objects, key)
        await self._objects.persist([delta_log.entry_path(table.version)])
        return slot

    async def _decided(self, table: DeltaSnapshot, key: SinkKey, slot: Slot, number: int) -> CommitOutcome:
        if numbering(key).names(number, slot):
            await self._objects.persist([delta_log.entry_path(table.version)])
            return Committed(slot)
        stands = await self._slot(table, key, number)
        if stands == slot:
            return Committed(slot)
        return AlreadyCommitted(stands) if stands.fingerprint == slot.fingerprint else Conflicting(stands)

    async def _closed(self, table: DeltaSnapshot | None, key: SinkKey, slot: Slot) -> Slot:
        if table is not None:
            await self._objects.persist([delta_log.entry_path(table.version)])
        by = await evidence.closed_by(self._objects, key, slot.token)
        return _closed(key, slot.token, fingerprint=slot.fingerprint, by=by)

    # --- writing -----------------------------------------------------------------------------------------------------------

    async def _bar(self, key: SinkKey, token: int) -> Slot | None:
        """Completes a fence whose note exists: the committed slot, or None once the tokens below are barred."""
        tries = _Tries(f"whether the tokens of {key} below {token} are barred at {self.uri}")
        while True:
            table = await self._log.load()
            if table is None:
                return None
            if (stands := await self._standing(table, key)) is not None:
                return stands
            if table.fenced(key) >= token:
                await self._objects.persist([delta_log.entry_path(table.version)])
                return None
            if why := plan.unfenceable(table):
                raise OutputUnsupported(f"attempts at the Delta table {self.uri} cannot be barred: {why}")
            entry = plan.fence_entry(key, token)
            await self._append(table, entry, "sink.delta.fence", tries)

    async def _append(self, table: DeltaSnapshot, entry: bytes, point: str, tries: _Tries) -> None:
        """Creates the next version of the log. Returns nothing: only the reloaded table shows whether it landed."""
        tries.check()
        try:
            hit(f"{point}.before")
            created = await self._objects.create(delta_log.entry_path(table.version + 1), entry)
            hit(f"{point}.after")
        except (OutputUnavailable, FailpointError) as error:
            tries.lost(error)
            return
        if not created:
            tries.conflict()
            return
        tries.created += 1
        if (table.version + 1) % table.checkpoint_interval == 0:
            hit("sink.delta.checkpoint.before")
            await self._log.checkpoint(table)

    async def _create_table(
        self, slot: Slot, tries: _Tries, *, notes: Mapping[str, Any] | None = None, declared: bool = False
    ) -> None:
        """Creates version 0, with the schema of the rows and without files; of several writers one succeeds."""
        entry = plan.table_entry(slot, notes=notes, declared=declared)
        if isinstance(entry, str):
            raise InvalidInput(f"output {self.name} cannot become a Delta table at {self.uri}: {entry}")
        try:
            hit("sink.delta.table.before")
            await self._objects.create(delta_log.entry_path(0), entry)
            hit("sink.delta.table.after")
        except (OutputUnavailable, FailpointError) as error:
            tries.lost(error)

    async def _delete(self, key: SinkKey, token: int, nonce: str) -> None:
        """Deletes rows first: a slot without rows is a few bytes, and names their owner."""
        await self._objects.delete_folder(staging_folder(key, token, nonce))
        await self._objects.delete_folder(evidence.write_folder(key, token, nonce))

    def _is_barred(self, key: SinkKey, token: int) -> bool:
        with contextlib.suppress(SparkonceError):
            table = blocking.run(self._log.load())
            barred = blocking.run(evidence.noted(self._objects, key)) if table is None else table.fenced(key)
            return barred > token
        return False


class _Tries:
    """Counts repeated creates; raises OutputUnavailable with one sentence at the limit."""

    def __init__(self, unknown: str) -> None:
        self._unknown, self._lost, self._conflicts, self.created = unknown, 0, 0, 0

    def lost(self, error: Exception) -> None:
        self._lost += 1
        if self._lost >= RESENDS:
            raise OutputUnavailable(f"{error}; {self._unknown} is unknown") from error
        _pause(self._lost)

    def check(self) -> None:
        """Raises: OutputUnavailable: entries of ours that the log, read again, does not show may not fill it."""
        if self.created >= UNSEEN:
            raise OutputUnavailable(
                f"the log does not show {UNSEEN} entries that were created in it; {self._unknown} is unknown, look at the newest entries"
            )

    def conflict(self) -> None:
        self._conflicts += 1
        if self._conflicts >= CONFLICTS:
            raise OutputUnavailable(
                f"other writers came first {CONFLICTS} times in a row; {self._unknown} is unknown, try again when they write less"
            )
        _pause(self._conflicts)


def _pause(count: int) -> None:
    most = min(PAUSE, 0.005 * 2 ** min(count, 8))
    time.sleep(most * secrets.randbelow(1000) / 1000)


def digest_of(slot: Slot) -> str:
    """The digest that results record."""
    return slot_digest(layout.encode(slot))


def _closed(key: SinkKey, token: int, *, fingerprint: str, by: str) -> Slot:
    return Slot(state=SlotState.CLOSED, sink_key=str(key), token=token, fingerprint=fingerprint, closed_by=by)


def _limits(schema: dict[str, Any], rows: dict[str, Any]) -> tuple[delta_widths.Width, ...]:
    """The widths of texts that a table declares for these rows. Raises: InvalidInput when it declares them in a way that cannot be read."""
    declared = delta_widths.widths(schema["fields"])
    if isinstance(declared, str):
        raise InvalidInput(declared)
    return delta_widths.of_rows(declared, rows)


def _schema_of(frame: Any) -> dict[str, Any]:
    """The schema of a DataFrame, or of an Arrow table, as Spark's JSON."""
    schema = frame.schema
    text = schema.json() if callable(getattr(schema, "json", None)) else deltalake.Schema.from_arrow(schema).to_json()
    return dict(json.loads(text))
