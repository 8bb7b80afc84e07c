"""The slot log: Parquet files that Spark wrote, made visible by one object that is created only if absent.

A slot (`_idem/<sink key>/<token>.json`) is `committed` or `closed`, for ever. Rule R: commit in slot t only after every lower slot is
filled and none is committed. At most one slot of a key is therefore committed: suppose two, a < b. Before b was written, its writer
read slot a filled and not committed; slots never change; so a is not committed. The proof does not mention time, so no decision here reads
a clock. It does not rely on listings either: a slot that looks empty is filled, which settles it.

A lost reply proves nothing. The slot is read, and if it is still empty the same create is sent again; the nonce, drawn per write,
distinguishes our own slot from that of a process with the same token.

An overwrite (`Slot.mode`) looks at the table once its lower slots are filled, and its slot says what it replaces (`visibility`). Each
attempt and each call of `commit` looks anew; within one call a create is repeated with the same bytes. If one write has sent several, the
one that is in the slot holds.

Locks, leases and renames were rejected: a frozen process still believes it holds the lock, and a rename replaces an existing object.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from functools import partial
from typing import TYPE_CHECKING

from sparkonce import blocking
from sparkonce.errors import InvalidInput, OutputUnavailable, RowsLost, SparkonceError
from sparkonce.failpoints import FailpointError, hit
from sparkonce.model.spec import OnRerun, WriteMode
from sparkonce.sink import stream
from sparkonce.sink.groups import split, texts_of
from sparkonce.sink.objects.protocol import TableObjects, refuse_unless_absent
from sparkonce.sink.protocol import (
    PLAIN,
    AlreadyCommitted,
    CommitOutcome,
    Committed,
    Conflicting,
    Evidence,
    FencedOff,
    Found,
    Inventory,
    SeriesPlace,
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
from sparkonce.sink.slotlog import layout
from sparkonce.sink.slotlog.inventory import inventory, recorded
from sparkonce.sink.slotlog.layout import files_of, mark_overwritten, with_files, with_replaced
from sparkonce.sink.slotlog.reader import one_schema
from sparkonce.sink.slotlog.snapshot import (
    StagedWrites,
    committed_slots,
    decided,
    missing_files,
    missing_of,
    overwritten,
    replaced_now,
    seen_in,
    write_snapshot,
)
from sparkonce.sink.slotlog.visibility import misfit
from sparkonce.sink.staging import Stager, columns_of, is_spark, stage_with_spark, staged_files, undone_unless_staged

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pyspark.sql import DataFrame

RESEND_AFTER = (0.02, 0.1, 0.3)
"""Seconds before each retry of a create whose reply was lost. Short: the caller waits, and retries in its own way."""
PATIENCE = 10.0
"""Seconds after which nothing is retried: a silent store has by then exhausted its client's own timeout."""


class SlotLogSink:
    """A `Sink` over the objects of one table.

    stage: writes the rows, also into a folder that exists; Spark, unless a test injects something lighter."""

    kind = "slotLog"
    place: SeriesPlace | None = None

    def __init__(
        self,
        objects: TableObjects,
        *,
        name: str,
        on_rerun: OnRerun = OnRerun.REPLACE,
        mode: WriteMode | None = None,
        stage: Stager | None = None,
    ) -> None:
        self.name, self.uri, self.mode = name, objects.uri, mode
        self._objects, self.on_rerun, self._stage = objects, on_rerun, stage or stage_with_spark

    async def check(self) -> None:
        await refuse_unless_absent(self._objects, layout.SLOTS)

    async def find(self, key: SinkKey) -> Slot | None:
        listed = await self._objects.list(layout.slots_folder(key))
        for token in sorted(filter(None, (layout.numbered(each.path) for each in listed)), reverse=True):
            slot = await self._read(key, token)
            if slot is not None and slot.state is SlotState.COMMITTED:
                return slot
        return None

    async def probe(self, key: SinkKey, slot_digest: str | None) -> Found:
        folders = await self._objects.folders(layout.SLOTS)
        if await self._replaced(key, folders):
            return Evidence.REPLACED
        slot = await self.find(key)
        slots, writes = [slot] if slot else [], None
        if slot is not None and slot.stream is not None:
            chain = await recorded(self._objects, key, slot)
            slots, writes = list(chain.slots), chain.writes
            slot = (
                await self.find(stream.place(key, chain.end)) if slots else None
            )  # a stream's result is its last slot
        if slot is None or (slot_digest is not None and digest_of(slot) != slot_digest):
            return Evidence.GONE
        if layout.OVERWRITTEN in folders and (
            found := await overwritten(self._objects, await decided(self._objects), slots)
        ):
            return found
        return Evidence.GONE if await missing_files(self._objects, slots, writes=writes) else Evidence.PRESENT

    async def fence(self, key: SinkKey, token: int, *, fingerprint: str, by: str, lowest: int = 1) -> Slot | None:
        """As `Sink.fence`. lowest: the caller guarantees that tokens below it are barred already (the chain rule of a stream)."""
        found = await self._close_below(key, token, lowest=lowest, fingerprint=fingerprint, by=by)
        if found is None:
            found = await self.find(
                key
            )  # a higher token, granted by a store that has since been restored to an older state
            if found is not None:
                await self._objects.persist([layout.slot_path(key, found.token)])
        return found

    def stage(
        self, frame: DataFrame, key: SinkKey, token: int, *, fingerprint: str, options: WriteOptions = PLAIN
    ) -> Slot:
        nonce = secrets.token_hex(16)
        with self._undone(key, token, layout.staging_folder(key, token, nonce)):
            staged = self._staged(frame, key, token, nonce, fingerprint=fingerprint, options=options)
            return blocking.run(self._slot_of(staged))

    def stage_first(
        self, frame: DataFrame, key: SinkKey, token: int, *, fingerprint: str, options: WriteOptions = PLAIN
    ) -> StagedWrites:
        """As `stage`, for the first of several writes that one slot is to hold."""
        nonce = secrets.token_hex(16)
        with self._undone(key, token, layout.staging_folder(key, token, nonce)):
            return self._staged(frame, key, token, nonce, fingerprint=fingerprint, options=options)

    def _staged(
        self, frame: DataFrame, key: SinkKey, token: int, nonce: str, *, fingerprint: str, options: WriteOptions
    ) -> StagedWrites:
        mode = replacing(options, self.mode)
        if mode is WriteMode.OVERWRITE_PARTITIONS:
            self._refuse_partitions(options.partition_by)
        folder = layout.staging_folder(key, token, nonce)
        rows, folders = _laid_out(frame, options.partition_by)
        written = self._stage(rows, self._objects.where(folder), folders)
        files = blocking.run(staged_files(self._objects, folder, written))
        slot = Slot(
            state=SlotState.COMMITTED,
            sink_key=str(key),
            token=token,
            nonce=nonce,
            fingerprint=fingerprint,
            rows=written.rows,
            on_rerun=self.on_rerun,
            mode=mode,
            data_schema=columns_of(frame, written),
            partition_by=options.partition_by or None,
            application=written.application,
            committed_at=time.time(),
        )
        return StagedWrites(slot=slot, files=files)

    def stage_more(self, frame: DataFrame, key: SinkKey, before: StagedWrites) -> StagedWrites:
        """Stages further rows into the slot of earlier writes, in the same partition columns.

        Raises:
            InvalidInput: they have other columns. Otherwise as `stage`; the earlier writes are as they were.
        """
        slot = before.slot
        folder = layout.staging_folder(key, slot.token, slot.nonce)
        if is_spark(frame):  # before its query runs
            one_schema(slot.data_schema, str(frame.schema.json()), where=self.uri)
        known = {each.path for each in blocking.run(self._objects.list(folder))}
        with self._undone(key, slot.token, folder, but=known):
            rows, folders = _laid_out(frame, slot.partition_by or ())
            stage = partial(stage_with_spark, more=True) if self._stage is stage_with_spark else self._stage
            written = stage(rows, self._objects.where(folder), folders)
            files = blocking.run(staged_files(self._objects, folder, written, known=known))
            schema = one_schema(slot.data_schema, columns_of(frame, written), where=self.uri)
        slot = slot.model_copy(update={"rows": slot.rows + written.rows, "data_schema": schema})
        return StagedWrites(slot=slot, files=(*before.files, *files))

    async def together(self, staged: StagedWrites) -> Slot:
        """The slot of several writes, to be committed.

        Raises:
            RowsLost: files of an earlier write are gone: committers of some stores can be told to replace what a folder holds.
            OutputUnavailable: the store did not answer.
        """
        if missing := await missing_of(self._objects, staged.files):
            raise RowsLost(
                f"{len(missing)} staged file(s) are gone, the first is {self._objects.where(missing[0])}; nothing was committed, run it "
                "again, with a committer that keeps what a folder holds"
            )
        return await self._slot_of(staged)

    async def _slot_of(self, staged: StagedWrites) -> Slot:
        slot = staged.slot
        folder = layout.staging_folder(slot.sink_key, slot.token, slot.nonce)
        return await with_files(self._objects, slot, folder, staged.files)

    def _undone(
        self, key: SinkKey, token: int, folder: str, *, but: Collection[str] = ()
    ) -> contextlib.AbstractContextManager[None]:
        """See `undone_unless_staged`. but: files that stay."""

        async def delete() -> None:
            if not but:
                await self._objects.delete_folder(folder)
                return
            for each in await self._objects.list(folder):
                if each.path not in but:
                    await self._objects.delete(each.path)

        return undone_unless_staged(key, token, delete=delete, barred=self._is_closed)

    def _refuse_partitions(self, columns: Sequence[str]) -> None:
        """Raises: InvalidInput: the table's partitions cannot be replaced by rows with these partition columns, as it is now."""
        why: str | None = "it has no partition columns; pass partition_by, or use mode Overwrite"
        if columns:
            why = misfit(blocking.run(seen_in(self._objects, blocking.run(decided(self._objects)))), columns)
        if why is not None:
            raise InvalidInput(
                f"output {self.name} cannot be written to the slot log {self.uri} in mode {WriteMode.OVERWRITE_PARTITIONS}: {why}"
            )

    async def commit(self, key: SinkKey, slot: Slot, *, lowest: int = 1) -> CommitOutcome:
        """As `Sink.commit`. lowest: as for `fence`."""
        if slot.sink_key != str(key) or slot.state is not SlotState.COMMITTED:
            raise ValueError(f"{slot.state} slot of {slot.sink_key} is not a commit of {key}")
        by = f"attempt {slot.token}"
        existing = await self._close_below(key, slot.token, lowest=lowest, fingerprint=slot.fingerprint, by=by)
        if existing is None:
            # A commit that is there already stays what it is, whatever the table is now.
            known = slot.mode is not None and await self._read(key, slot.token) is not None
            looked = slot if known else await self._replacing(key, slot)
            if isinstance(looked, str):
                return Stuck(slot, f"the slot log {self.uri} cannot take it: {looked}")
            existing = await self._fill(key, looked, "sink.slots.create")
        if existing.state is SlotState.CLOSED:
            return FencedOff(existing)
        if existing.nonce == slot.nonce:
            return Committed(existing)
        return AlreadyCommitted(existing) if existing.fingerprint == slot.fingerprint else Conflicting(existing)

    async def _replacing(self, key: SinkKey, slot: Slot) -> Slot | str:
        """The slot of an overwrite with what it replaces as of now, or why it cannot replace that. Nothing may be done between this and the
        create that could wait.

        Raises:
            SparkonceError: as for `snapshot.decided`; the slot is empty, as far as this call knows.
        """
        if slot.mode is None:
            return slot
        await mark_overwritten(self._objects)
        own = await files_of(self._objects, slot) if slot.mode is WriteMode.OVERWRITE_PARTITIONS else ()
        table = await decided(self._objects)
        found = await replaced_now(self._objects, table, slot, own)
        if isinstance(found, str):
            return found
        order, replaced = found
        folder = layout.staging_folder(key, slot.token, slot.nonce)
        looked = await with_replaced(self._objects, slot, folder, order=order, replaced=replaced)
        hit("sink.slots.looked")
        return looked

    async def abort(self, key: SinkKey, slot: Slot) -> Slot:
        closed = _closed(key, slot.token, fingerprint=slot.fingerprint, by=abort_of(slot.token))
        existing = await self._fill(key, closed, "sink.slots.close")
        if existing.state is SlotState.CLOSED:
            hit("driver.abort.closed")
            await self.discard(key, slot)
        return existing

    async def discard(self, key: SinkKey, slot: Slot) -> None:
        await self._objects.delete_folder(layout.staging_folder(key, slot.token, slot.nonce))

    async def inventory(self) -> Inventory:
        return await inventory(self._objects, self.kind)

    async def sweep(self, key: SinkKey, *, more: bool = False) -> Swept:
        committed = await self.find(key)
        keys = [key]
        if committed is not None and committed.stream is not None:
            keys += stream.places(key, await self._objects.folders(layout.DATA))
        swept = [await self._sweep(each) for each in keys]
        if not more:
            await self.snapshot()
        return Swept(sum(each.folders for each in swept), sum(each.bytes for each in swept))

    async def _sweep(self, key: SinkKey) -> Swept:
        folders = size = 0
        committed = await self.find(key)
        for folder in await self._objects.folders(f"{layout.DATA}/{key}"):
            token_and_nonce = layout.staged(folder)
            if token_and_nonce is None or not await self._never_commits(key, *token_and_nonce, committed):
                continue
            staged = sum(each.bytes for each in await self._objects.list(folder))
            size += staged
            folders += (
                staged > 0
            )  # as `inventory` counts: empty objects are markers, or what a killed writer had opened
            hit("sink.slots.sweep.before")
            await self._objects.delete_folder(folder)
        return Swept(folders, size)

    async def _never_commits(self, key: SinkKey, token: int, nonce: str, committed: Slot | None) -> bool:
        """Whether staged files can never be committed: another write is committed (rule R bars all others), their slot is closed, or theirs
        is a place in which tokens as low are barred."""
        if committed is not None:
            return (token, nonce) != (committed.token, committed.nonce)
        slot = await self._read(key, token)
        return slot.nonce != nonce if slot is not None else token < await self._lowest(key)

    async def _lowest(self, key: SinkKey) -> int:
        """The chain rule bars the tokens below this one from a place without closing their slots (`sink.stream`)."""
        for each in stream.before(key):
            if (found := await self.find(each)) is not None:
                return found.token
        return 0

    async def _close_below(self, key: SinkKey, token: int, *, lowest: int, fingerprint: str, by: str) -> Slot | None:
        """First half of rule R: the committed slot below `token`, or None once all lower ones are closed."""
        for lower in range(lowest, token):
            existing = await self._fill(key, _closed(key, lower, fingerprint=fingerprint, by=by), "sink.slots.close")
            if existing.state is SlotState.COMMITTED:
                return existing
        return None

    async def _fill(self, key: SinkKey, slot: Slot, point: str) -> Slot:
        """Creates the slot if it is empty; returns its durable content.

        Raises:
            OutputUnavailable: unknown; the slot may have been created.
        """
        path, data = layout.slot_path(key, slot.token), layout.encode(slot)
        lost: Exception | None = None
        patience = time.monotonic() + PATIENCE
        for wait in (*RESEND_AFTER, None):
            try:
                hit(f"{point}.before")
                created = await self._objects.create(path, data)
                hit(f"{point}.after")
                if created:
                    return slot
            except (OutputUnavailable, FailpointError) as error:
                lost = error
            try:
                existing = await self._read(key, slot.token)
                if existing is not None:
                    await self._objects.persist([path])
                    return existing
            except OutputUnavailable as error:
                lost = error
            if time.monotonic() > patience:
                break
            if wait is not None:
                time.sleep(wait)  # noqa: ASYNC251 - verbs of a sink block and never suspend: drivers run them without an event loop
        raise OutputUnavailable(
            f"{lost or 'a slot vanished'}; whether slot {slot.token} of {key} is {slot.state} is unknown"
        )

    async def _read(self, key: SinkKey, token: int) -> Slot | None:
        path = layout.slot_path(key, token)
        data = await self._objects.get(path)
        if data is None:
            return None
        return layout.decode(data, where=self._objects.where(path), sink_key=str(key), token=token)

    def _is_closed(self, key: SinkKey, token: int) -> bool:
        with contextlib.suppress(SparkonceError):
            slot = blocking.run(self._read(key, token))
            return slot is not None and slot.state is SlotState.CLOSED
        return False

    async def _replaced(self, key: SinkKey, folders: Sequence[str]) -> bool:
        for folder in folders:
            name = folder.rpartition("/")[2]
            parsed = layout.lineage_of(name)
            if parsed is None or layout.batch_of(name) is not None or parsed[0] != key.lineage:
                continue
            later = key.model_copy(update={"generation": parsed[1]})
            if parsed[1] > key.generation and await stream.replaces(self, later):
                return True
        return False

    async def snapshot(self) -> None:
        """Writes a snapshot for readers if one is due. Ignores errors: it is only a cache, of the whole table, and another key's corrupt
        slot must not fail this key."""
        with contextlib.suppress(SparkonceError):
            await write_snapshot(self._objects)

    async def using(self, query_id: str) -> list[Slot]:
        """As `stream.Linked.using`, with all committed slots of those streams.

        Raises:
            SparkonceError: as for `snapshot.decided`.
        """
        return [
            slot for slot in await committed_slots(self._objects) if slot.stream and slot.stream.query_id == query_id
        ]

    async def reading(self, sources: Sequence[StreamSource]) -> list[Slot]:
        """As `stream.Linked.reading`, with the committed slots of all streams: batches name no sources. Errors as `using`."""
        del sources
        return [slot for slot in await committed_slots(self._objects) if slot.stream]

    def checkpoint(self, key: SinkKey) -> str:
        """Default location of a stream's checkpoint, as a URL for Hadoop's file systems."""
        return self._objects.where(f"{layout.CHECKPOINTS}/{key}")


def _laid_out(frame: DataFrame, partition_by: Sequence[str]) -> tuple[DataFrame, Sequence[str]]:
    """The rows with the columns after which the folders are named, and those columns."""
    return split(frame, texts_of(frame, partition_by)) if is_spark(frame) else (frame, partition_by)


def digest_of(slot: Slot) -> str:
    """Digest of a slot, as results record it."""
    return slot_digest(layout.encode(slot))


def _closed(key: SinkKey, token: int, *, fingerprint: str, by: str) -> Slot:
    return Slot(state=SlotState.CLOSED, sink_key=str(key), token=token, fingerprint=fingerprint, closed_by=by)
