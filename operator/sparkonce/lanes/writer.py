"""`sparkonce.writer("lake/orders", name="tap-7")`: a long-lived writer of rows, each of which is there once.

    with sparkonce.writer("lake/orders", name="tap-7") as writer:
        for line, row in source.after(writer.position):
            writer.append(row, position=line)

`writer.position` is the position of the last rows in the table, by whichever process wrote them: a source is read on from there. Rows and
position are committed together, so neither is ever ahead of the other. A second writer of the same name takes the lane over, and the first
one's next commit is refused. A writer that has ended never acquires the lane again by itself: two of one name would take it from each other
for ever.
"""

from __future__ import annotations

import asyncio
import json
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from sparkonce import blocking
from sparkonce.errors import BufferFull, Certainty, InvalidInput, LaneError, LibraryMissing, SparkonceError
from sparkonce.lanes import keyed
from sparkonce.lanes import rows as arrow
from sparkonce.lanes.kafka_log import KafkaLog
from sparkonce.lanes.kafka_topic import SCHEME as KAFKA
from sparkonce.lanes.naming import position_text
from sparkonce.lanes.protocol import LaneEntry, LaneLog
from sparkonce.lanes.sender import (
    BATCH_SIZE,
    BUFFER_MEMORY,
    DELIVERY_TIMEOUT,
    MAX_BLOCK,
    MAX_INFLIGHT,
    Sender,
    WriterOptions,
)
from sparkonce.lanes.table_log import TableLog
from sparkonce.sink.delta.log import LOG as DELTA_LOG
from sparkonce.sink.slotlog import layout
from sparkonce.sink.slotlog.snapshot import Table

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.lanes.lease import LaneLease
    from sparkonce.observe.meter import LaneMeter
    from sparkonce.sink.objects.protocol import TableObjects


def writer(
    path: str | Path,
    *,
    name: str,
    keys: Sequence[str] | None = None,
    buffer_memory: int = BUFFER_MEMORY,
    batch_size: int = BATCH_SIZE,
    linger: float | None = None,
    max_inflight: int = MAX_INFLIGHT,
    delivery_timeout: float = DELIVERY_TIMEOUT,
    max_block: float = MAX_BLOCK,
    schema: pa.Schema | None = None,
    meter: LaneMeter | None = None,
    if_busy: str = "take",
    store: str | None = None,
    client: Mapping[str, Any] | None = None,
    begin: bool = False,
    one_copy: bool = False,
) -> Writer:
    """Acquires the lane `name` of the slot log or topic at `path`, and makes the lane if it does not exist.

    path: a local path (relative to the working directory), a URL as in `spec.outputs`, or `kafka://HOST:PORT,HOST:PORT/TOPIC`. keys: names
    of columns that tell what a row is about (`lanes.keyed`); None takes those that the lane has. Options: see `WriterOptions`. if_busy:
    "take" takes the lane from a writer that has it, "refuse" leaves it to one that has a lease in `store`, the address of a reply ledger
    (`lanes.lease`). client, begin, one_copy: for Kafka alone; see `KafkaLog`.

    Raises:
        InvalidInput: not a path, a name or an option; or another kind of table is there, or a lane of it has other keys; or the topic is
            missing, has too few copies, is compacted and the lane has no keys, or has keys and is not, or does not tell whether it is new.
        LaneRetired: the lane takes no writer any more.
        LaneBusy: another writer has its lease.
        StoreUnavailable: the ledger did not answer.
        OutputUnsafe: the store ignores create-if-absent.
        OutputUnavailable: neither the store nor a broker answered.
        OutputUnsupported: a scheme that is not supported; LibraryMissing: pyarrow, or for Kafka `sparkonce[kafka]`, is not installed.
    """
    try:
        import pyarrow as pa  # noqa: F401 - what follows imports it where it is used
    except ImportError:
        raise LibraryMissing("a lane needs pyarrow, which is not installed; run `pip install pyarrow`") from None
    options = WriterOptions(
        buffer_memory=buffer_memory,
        batch_size=batch_size,
        linger=linger,
        max_inflight=max_inflight,
        delivery_timeout=delivery_timeout,
        max_block=max_block,
        schema=schema,
        meter=meter,
    )
    _check_busy(if_busy, store)
    if str(path).startswith(KAFKA):
        topic = KafkaLog(str(path), name, keys=keys, client=client, begin=begin, one_copy=one_copy)
        return _leased(topic, options, store)
    if client or begin or one_copy:
        raise InvalidInput(f"client, begin and one_copy are for a lane on Kafka, and {path} is a table; leave them out")
    objects = Table(path).objects
    log = TableLog(objects, name, keys=keys)
    refuse_other_tables(objects)
    return _leased(log, options, store)


def _check_busy(if_busy: str, store: str | None) -> None:
    if if_busy not in ("take", "refuse"):
        raise InvalidInput(f"if_busy is {if_busy!r}, and must be 'take' or 'refuse'")
    if (if_busy == "refuse") != (store is not None):
        raise InvalidInput(
            "if_busy='refuse' asks a ledger, and store is missing; name one that all writers of the lane reach, such as "
            "store='postgresql://HOST/DATABASE' or, on one machine, store='sqlite:///PATH'"
            if store is None
            else "store is for if_busy='refuse', and the lane would be taken without asking; leave it out, or give if_busy='refuse'"
        )


def _leased(log: LaneLog, options: WriterOptions, store: str | None) -> Writer:
    if store is None:
        return Writer(log, options)
    from sparkonce.lanes.lease import LaneLease

    lease = LaneLease(store, log.uri, log.name)
    try:
        return Writer(log, options, lease=lease)
    except BaseException:
        lease.close()
        raise


def async_writer(path: str | Path, *, name: str, **options: Any) -> AsyncWriter:
    """As `writer`, for an event loop: acquires the lane on entry.

    async with sparkonce.async_writer("lake/orders", name="tap-7") as writer:
        await writer.append(row, position=line)
    """
    return AsyncWriter(lambda: writer(path, name=name, **options))


def refuse_other_tables(objects: TableObjects) -> None:
    """Raises: InvalidInput: the place holds a table of another kind. OutputUnavailable."""
    folders = {each.rpartition("/")[2] for each in blocking.run(objects.folders(""))}
    if layout.SLOTS in folders:
        return
    for folder, kind in ((DELTA_LOG, "a Delta table"), ("metadata", "an Iceberg table")):
        if folder in folders:
            raise InvalidInput(
                f"{objects.uri} is {kind}, and a lane is a slot log; give another path, and load its rows into that table with a job"
            )


@dataclass(frozen=True)
class _PreparedAppend:
    """Rows that a lane could take."""

    table: pa.Table
    packed: pa.Table
    """As the log keeps them."""
    size: int
    """Bytes that they need of the buffer."""
    position: str
    """JSON; empty if the append has none."""
    known: pa.Schema
    """Columns of the lane that they were fitted to."""


class Writer:
    """The owner of a lane. Methods may be called from several threads; appends get their numbers in the order of the calls.

    log: acquired here. lease: released when the writer ends."""

    def __init__(self, log: LaneLog, options: WriterOptions | None = None, *, lease: LaneLease | None = None) -> None:
        self._sender = sender = Sender(log, options or WriterOptions())
        self._lease = lease
        if lease is not None:
            lease.in_use = lambda: sender.ended is None
        self._abandon = weakref.finalize(self, _dropped, sender, lease)

    @property
    def name(self) -> str:
        return self._sender.log.name

    @property
    def epoch(self) -> int:
        """Above that of every earlier writer of the lane."""
        return self._sender.owner.epoch

    @property
    def position(self) -> Any:
        """Of the last rows that are committed: JSON value; None if no append had one."""
        return self._sender.position

    @property
    def last(self) -> int:
        """Number of the last batch that was in the log when the lane was acquired."""
        return self._sender.owner.last

    @property
    def keys(self) -> tuple[str, ...]:
        """Key columns of the lane; empty if it has none."""
        return self._sender.keys

    @property
    def waiting_bytes(self) -> int:
        """Bytes of appends without an outcome."""
        return self._sender.buffer.used

    def append(self, rows: Any, *, position: Any = None) -> Future[LaneEntry]:
        """Takes rows, all of which will be in one place. Returns a handle, whose result is that place; it may be waited for, or left.

        rows: a mapping, an iterable of mappings, or Arrow data (`rows.arrow_of`); none at all to move the position alone.
        position: JSON value, at most 4 KiB: where to read the source on after these rows. None leaves it as it was.

        Raises:
            InvalidInput: the rows or the position do not fit, or the rows are more than the whole buffer; nothing was taken.
            BufferFull: no room became free within `max_block`.
            OutputUnavailable: the rows have new columns, and the table did not say within `max_block` whether they fit; nothing was taken.
            LaneError: the writer has ended; says why.
        """
        return self._taken(self._prepared(rows, position, deleted=False))

    def delete(self, rows: Any, *, position: Any = None) -> Future[LaneEntry]:
        """Appends rows that say that their keys are gone: `rows` with true in the column `_deleted`. Other columns than the keys may be
        left out. Arguments and errors as for `append`.

        Raises:
            InvalidInput: the lane has no keys.
        """
        return self._taken(self._prepared(rows, position, deleted=True))

    def _taken(self, append: _PreparedAppend) -> Future[LaneEntry]:
        with self._sender.changed, self._turn() as turn:
            self._wait_for_room(turn, append.size)
            return self._accepted(append)

    async def _taken_on_loop(self, rows: Any, position: Any, *, deleted: bool) -> asyncio.Future[LaneEntry]:
        """Takes rows once this coroutine goes on, and never in the thread that waits for room: a thread cannot be cancelled."""
        append = await asyncio.to_thread(self._prepared, rows, position, deleted=deleted)
        with self._turn() as turn:
            if not self._has_room(turn, append.size):
                await asyncio.to_thread(self._wait_for_room, turn, append.size)
            handle = self._accepted(append)
        return asyncio.wrap_future(handle)

    def _prepared(self, rows: Any, position: Any, *, deleted: bool) -> _PreparedAppend:
        """Rows and position that fit the lane; nothing is taken yet."""
        sender = self._sender
        if deleted and not self.keys:
            raise InvalidInput(
                f"the lane {self.name} of {sender.log.uri} has no keys, and nothing can be deleted from it"
            )
        text = "" if position is None else position_text(position, sender.log.position_limit)
        self._refuse_if_ended()
        known = sender.known
        table = arrow.arrow_of(rows, known)
        if deleted:
            table = arrow.fitted(keyed.as_deleted(table), known)
        keyed.refuse_rows(table, sender.keys)
        packed = sender.log.packed(table)
        size = max(packed.nbytes, len(text), 1)
        if size > sender.options.buffer_memory:
            raise InvalidInput(
                f"the rows have {size} bytes, and the writer's buffer {sender.options.buffer_memory}; append fewer at a time, or raise "
                "buffer_memory"
            )
        if (columns := arrow.with_columns_of(known, table.schema)) is not known:
            since = time.monotonic() + sender.options.max_block - sender.options.delivery_timeout
            sender.repeated(lambda: sender.log.refuse_columns(arrow.spark_schema(columns)), since)
        return _PreparedAppend(table, packed, size, text, known)

    @contextmanager
    def _turn(self) -> Iterator[object]:
        """A turn in the line for room: once it is the first and its rows fit, no other append can take that room."""
        sender = self._sender
        with sender.changed:
            turn = sender.buffer.ask()
            sender.changed.notify_all()
        try:
            yield turn
        finally:
            with sender.changed:
                sender.buffer.leave(turn)
                sender.changed.notify_all()

    def _has_room(self, turn: object, size: int) -> bool:
        with self._sender.changed:
            return self._sender.buffer.fits(turn, size)

    def _wait_for_room(self, turn: object, size: int) -> None:
        """Also returns, or raises, once the turn was left."""
        sender = self._sender
        with sender.changed:
            sender.changed.wait_for(
                lambda: (
                    sender.ended is not None
                    or sender.closing
                    or not sender.buffer.waits(turn)
                    or sender.buffer.fits(turn, size)
                ),
                sender.options.max_block,
            )
            self._refuse_if_ended()
            if not sender.buffer.fits(turn, size):
                raise BufferFull(
                    f"no room for {size} bytes became free within {sender.options.max_block:g} s: {sender.buffer.used} bytes of the lane "
                    f"{self.name} wait for {sender.log.uri}; the rows were not taken"
                )

    def _accepted(self, append: _PreparedAppend) -> Future[LaneEntry]:
        """Takes rows for which there is room. Waits for nothing: an event loop calls it, too."""
        sender = self._sender
        handle: Future[LaneEntry] = Future()
        handle.set_running_or_notify_cancel()  # rows that were taken are written: it cannot be cancelled
        with sender.changed:
            self._refuse_if_ended()
            table, packed = append.table, append.packed
            if sender.known is not append.known:  # another thread has added columns meanwhile
                table = arrow.fitted(table, sender.known)
                packed = sender.log.packed(table)
            sender.known = arrow.with_columns_of(sender.known, table.schema)
            sender.outstanding.add(handle)
            position = json.loads(append.position) if append.position else None
            sender.buffer.add(packed, append.size, position, handle, now=time.monotonic())
            sender.changed.notify_all()
        return handle

    def _refuse_if_ended(self) -> None:
        if self._sender.ended is not None:
            raise type(self._sender.ended)(str(self._sender.ended), certainty=Certainty.REFUSED)
        if self._sender.closing:
            raise LaneError(f"the writer of the lane {self.name} is closed")

    def flush(self, *, timeout: float | None = None) -> None:
        """Returns once everything appended before is in the table. timeout: in seconds; by default `delivery_timeout`.

        Raises:
            LaneError: something was not written, or has no answer yet; says how many appends, by certainty.
        """
        sender = self._sender
        with sender.changed:
            waiting = list(sender.outstanding)
            sender.flushing += 1
            sender.changed.notify_all()
        try:
            limit = sender.options.delivery_timeout if timeout is None else timeout
            done, late = wait_for(waiting, timeout=limit)
        finally:
            with sender.changed:
                sender.flushing -= 1
        failed = [error for each in done if not each.cancelled() and isinstance(error := each.exception(), LaneError)]
        if failed or late or sender.ended is not None:
            raise _summary(sender.ended, failed, late=len(late), all_of=len(waiting))

    def close(self, *, timeout: float | None = None) -> None:
        """Flushes, and ends the writer whatever comes of it. A second call does nothing.

        Raises:
            LaneError: as for `flush`. Appends that had no answer within the time have failed.
        """
        sender = self._sender
        with sender.changed:
            if sender.closing:
                return
            sender.closing = True
            sender.changed.notify_all()
        try:
            self.flush(timeout=timeout)
        finally:
            self._abandon.detach()
            if sender.outstanding:
                sender.abandon()
            sender.stop()
            if self._lease is not None:
                self._lease.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except SparkonceError as also:
            error.add_note(str(also))


def _dropped(sender: Sender, lease: LaneLease | None) -> None:
    """Of a writer that was dropped without `close`."""
    sender.abandon()
    if lease is not None:
        lease.stop()


def _summary(ended: LaneError | None, failed: list[LaneError], *, late: int, all_of: int) -> LaneError:
    if not all_of and ended is not None:
        return type(ended)(str(ended), certainty=Certainty.REFUSED)
    unknown = late + sum(each.certainty is Certainty.UNKNOWN for each in failed)
    refused = len(failed) - (unknown - late)
    counts = ", ".join(
        f"{count} {what}"
        for count, what in ((refused, "not written"), (unknown - late, "unknown"), (late, "without an answer yet"))
        if count
    )
    first = str(ended or (failed[0] if failed else "the table has not answered in time"))
    kind = type(ended) if ended is not None else LaneError
    certainty = Certainty.UNKNOWN if unknown else Certainty.REFUSED
    return kind(f"of {all_of} appends {counts or 'none failed'}: {first}", certainty=certainty)


class AsyncWriter:
    """A `Writer` for an event loop. `append` suspends while it waits for room, and its handle can be awaited.

    An `append` or `delete` that is cancelled, or runs into a time limit, has taken nothing: its rows are not written."""

    def __init__(self, acquire: Callable[[], Writer]) -> None:
        self._acquire = acquire
        self._writer: Writer | None = None

    @property
    def writer(self) -> Writer:
        """Of which `name`, `epoch`, `position` and `last` are read.

        Raises:
            RuntimeError: the lane is not acquired yet.
        """
        if self._writer is None:
            raise RuntimeError("use `async with`: the lane is acquired on entry")
        return self._writer

    @property
    def position(self) -> Any:
        """As `Writer.position`."""
        return self.writer.position

    async def append(self, rows: Any, *, position: Any = None) -> asyncio.Future[LaneEntry]:
        """As `Writer.append`; the handle belongs to the running loop."""
        return await self.writer._taken_on_loop(rows, position, deleted=False)  # noqa: SLF001 - a thread's `append` in steps

    async def delete(self, rows: Any, *, position: Any = None) -> asyncio.Future[LaneEntry]:
        """As `Writer.delete`; the handle belongs to the running loop."""
        return await self.writer._taken_on_loop(rows, position, deleted=True)  # noqa: SLF001 - as `append`

    async def flush(self, *, timeout: float | None = None) -> None:
        """As `Writer.flush`."""
        await asyncio.to_thread(self.writer.flush, timeout=timeout)

    async def close(self, *, timeout: float | None = None) -> None:
        """As `Writer.close`."""
        await asyncio.to_thread(self.writer.close, timeout=timeout)

    async def __aenter__(self) -> Self:
        self._writer = await asyncio.to_thread(self._acquire)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.writer.__exit__, kind, error, trace)
