"""Sends what a writer takes: forms batches when they are due, uploads them ahead, commits places in order.

Two threads. One takes batches, encodes each once and starts its upload; the other commits places in order. A commit without an answer is
sent again with the same bytes, with pauses, until `delivery_timeout`; then its place is closed, which decides it. A sender that was
refused, or has no answer, ends: its outstanding appends fail with what is known of each.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any

from sparkonce.errors import Certainty, InvalidInput, LaneError, OutputUnavailable, SparkonceError, WriterFenced
from sparkonce.failpoints import hit
from sparkonce.lanes import rows as arrow
from sparkonce.lanes.accumulator import Accumulator, OpenBatch
from sparkonce.lanes.protocol import AppendKind, LaneEntry, LaneLog, LanePlace
from sparkonce.observe.meter import LaneMeter, NoLaneMeter

if TYPE_CHECKING:
    import pyarrow as pa

BUFFER_MEMORY = 64 * 1024 * 1024
BATCH_SIZE = 2 * 1024 * 1024
MAX_INFLIGHT = 5
DELIVERY_TIMEOUT = 120.0
MAX_BLOCK = 60.0
TIDY_AFTER = 512
"""Places after which the log may tidy up."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds before a request is repeated that had no answer: doubled each time, half of it by chance."""


@dataclass(frozen=True, kw_only=True)
class WriterOptions:
    """Names and defaults are those of Fluss and Kafka, where they have the option. Times in seconds, sizes in bytes."""

    buffer_memory: int = BUFFER_MEMORY
    """Of appends without an outcome. `append` waits for room."""
    batch_size: int = BATCH_SIZE
    """Of Arrow data at which a batch is sent without waiting for more rows."""
    linger: float | None = None
    """For which rows wait for more; by default the log's own (`LaneLog.linger`)."""
    max_inflight: int = MAX_INFLIGHT
    """Places that are uploaded ahead of the oldest one without an outcome."""
    delivery_timeout: float = DELIVERY_TIMEOUT
    """From the append on, after which an append without an answer is decided, and fails unless it was written."""
    max_block: float = MAX_BLOCK
    """For which `append` waits for room in the buffer."""
    meter: LaneMeter | None = None
    """Called with the outcome of each append; `sparkonce.observe.lane_metrics.LaneMetrics` exports it to Prometheus."""
    schema: Any = None
    """`pyarrow.Schema` of the rows. Otherwise the lane's own columns, and for new ones the types of the first rows that have them."""

    def __post_init__(self) -> None:
        for name in ("buffer_memory", "batch_size", "max_inflight"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise InvalidInput(f"{name} is {getattr(self, name)!r}, and must be a whole number above 0")
        for name in ("linger", "delivery_timeout", "max_block"):
            value = getattr(self, name)
            if value is None and name == "linger":
                continue
            if not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
                raise InvalidInput(f"{name} is {value!r}, and must be a number of seconds")
        if self.batch_size > self.buffer_memory:
            raise InvalidInput(
                f"batch_size is {self.batch_size}, more than buffer_memory, which is {self.buffer_memory}"
            )


@dataclass(eq=False)
class _Flight:
    """A place under way."""

    place: LanePlace
    batches: list[OpenBatch]
    uploads: list[Future[None]] = field(default_factory=list)
    sent: bool = False
    """Whether a commit may have reached the store."""

    @property
    def since(self) -> float:
        return min(batch.since for batch in self.batches)


class Sender:
    """The part of a writer that works in the background. It does not refer to the writer, so that one that is dropped ends."""

    def __init__(self, log: LaneLog, options: WriterOptions) -> None:
        self.log, self.options = log, options
        self.changed = Condition()
        self.owner = log.acquire()
        self.keys = self.owner.keys
        self.known = arrow.arrow_schema(self.owner.data_schema)
        if options.schema is not None:
            self.known = _declared(options.schema, self.known)
        self.position = self.owner.position
        linger = log.linger if options.linger is None else options.linger
        self.buffer = Accumulator(memory=options.buffer_memory, batch_size=options.batch_size, linger=linger)
        self.flights: deque[_Flight] = deque()
        self.next = self.owner.last + 1
        self.outstanding: set[Future[LaneEntry]] = set()
        self.flushing = 0
        self.closing = False
        self.committed = 0
        """Places."""
        self.ended: LaneError | None = None
        """Why the writer takes nothing more."""
        self._uploads = ThreadPoolExecutor(options.max_inflight, thread_name_prefix=f"lane-upload-{log.name}")
        self._threads = [
            Thread(target=self._guarded, args=(work,), name=f"lane-{log.name}", daemon=True)
            for work in (self._send, self._commit)
        ]
        self.meter = options.meter or NoLaneMeter()
        self.meter.opened(log.name, self.waiting)
        for thread in self._threads:
            thread.start()

    def waiting(self) -> tuple[int, float]:
        """Bytes of appends without an outcome, and the age of the oldest one in seconds."""
        with self.changed:
            since = [flight.since for flight in self.flights] + [
                each for each in (self.buffer.oldest,) if each is not None
            ]
            return self.buffer.used, time.monotonic() - min(since) if since else 0.0

    # Threads.

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, every caller that waits must get it
            self.end(LaneError(f"{self._who} ended: {type(error).__name__}: {error}", certainty=Certainty.UNKNOWN))

    def _send(self) -> None:
        """Forms places of the batches that are due."""
        while True:
            with self.changed:
                while (taken := self._take()) is None:
                    if self.ended is not None or (self.closing and not self.outstanding):
                        return
                    due = self.buffer.due(now=time.monotonic(), hurry=self._hurry)
                    self.changed.wait(None if self._window_full or due is None else due)
            flight = self._formed(taken)
            with self.changed:
                if self.ended is not None:
                    return
                flight.uploads += [
                    self._uploads.submit(self._upload, flight, number) for number in range(len(flight.batches))
                ]
                self.flights.append(flight)
                self.changed.notify_all()

    @property
    def _hurry(self) -> bool:
        return self.flushing > 0 or self.closing

    @property
    def _window_full(self) -> bool:
        return len(self.flights) >= self.options.max_inflight

    def _take(self) -> list[OpenBatch] | None:
        if self.ended is not None or self._window_full:
            return None
        if self.buffer.due(now=time.monotonic(), hurry=self._hurry) != 0.0:
            return None
        return self.buffer.take(self.log.batches_limit)

    def _formed(self, taken: list[OpenBatch]) -> _Flight:
        sealed = []
        for batch in taken:
            each = self.log.encoded(batch.tables, self.known)
            batch.tables.clear()
            sealed.append(each)
            with self.changed:
                self.buffer.resize(batch, len(each.data))
                self.changed.notify_all()
        position = next((batch.position for batch in reversed(taken) if batch.position is not None), None)
        place = self.log.next_place(sealed, first=self.next, position=position)
        self.next = place.last + 1
        return _Flight(place, taken)

    def _upload(self, flight: _Flight, number: int) -> None:
        self.repeated(lambda: self.log.upload(flight.place, number), flight.since)

    def _commit(self) -> None:
        """Commits places in order, and tells their callers."""
        while True:
            with self.changed:
                while not self.flights:
                    if self.ended is not None or (self.closing and not self.outstanding):
                        return
                    self.changed.wait()
                flight = self.flights[0]
            if not self._uploaded(flight) or not self._committed(flight):
                return

    def _uploaded(self, flight: _Flight) -> bool:
        try:
            for upload in flight.uploads:
                upload.result()
        except SparkonceError as error:
            self.end(
                LaneError(
                    f"{self._who} could not upload its rows, and they are not written: {error}; open the lane again"
                )
            )
            return False
        hit("lanes.uploaded")
        return True

    def _committed(self, flight: _Flight) -> bool:
        try:
            outcome = self.repeated(lambda: self._send_commit(flight), flight.since)
        except OutputUnavailable as error:
            try:
                outcome = self.log.abandon(flight.place)
            except SparkonceError:
                self.end(
                    LaneError(
                        f"whether {self._who} has written its rows is unknown, because the table did not answer: {error}; open the lane "
                        "again, its position says it",
                        certainty=Certainty.UNKNOWN,
                    )
                )
                return False
            if outcome.kind is AppendKind.FENCED:
                self.end(
                    LaneError(
                        f"{self._who} had no answer in time, and its rows are not written: {error}; open the lane again"
                    )
                )
                return False
        if outcome.certainty is not Certainty.APPLIED or outcome.entry is None:
            why = outcome.why or "another one has acquired the lane, or it was retired"
            self.end(WriterFenced(f"{self._who} was fenced: {why}; what has no answer yet is not written"))
            return False
        entry = outcome.entry
        with self.changed:
            if self.ended is not None:
                return False
            self.flights.popleft()
            self.position = entry.position
            for batch in flight.batches:
                self.buffer.resize(batch, 0)
            handles = [handle for batch in flight.batches for handle in batch.handles]
            self.outstanding.difference_update(handles)
            self.changed.notify_all()
        self.meter.ended(
            self.log.name,
            len(handles),
            outcome=Certainty.APPLIED,
            rows=entry.rows,
            seconds=time.monotonic() - flight.since,
        )
        for handle in handles:
            handle.set_result(entry)
        self.committed += 1
        if self.committed % TIDY_AFTER == 0:
            self._uploads.submit(self.log.tidy)
        return True

    def _send_commit(self, flight: _Flight) -> Any:
        with self.changed:
            if self.ended is not None:
                raise self.ended
            flight.sent = True
        return self.log.commit(flight.place)

    def repeated(self, request: Callable[[], Any], since: float) -> Any:
        """The request's answer. Repeated while it has none, until `delivery_timeout` after `since`.

        Raises:
            OutputUnavailable: no answer in time.
        """
        pause = FIRST_PAUSE
        while True:
            try:
                return request()
            except OutputUnavailable:
                left = since + self.options.delivery_timeout - time.monotonic()
                with self.changed:
                    if left <= 0 or self.ended is not None:
                        raise
                    self.changed.wait_for(
                        lambda: self.ended is not None,
                        min(left, pause * random.uniform(0.5, 1.0)),  # noqa: S311 - jitter
                    )
            pause = min(LONGEST_PAUSE, pause * 2)

    # The end.

    @property
    def _who(self) -> str:
        return f"the writer of the lane {self.log.name} of {self.log.uri}"

    def end(self, why: LaneError) -> None:
        """Takes nothing more, and fails what has no outcome: as `why` says where a commit may have reached the store, else as refused."""
        with self.changed:
            if self.ended is not None:
                return
            self.ended = why
            maybe = {
                handle for flight in self.flights if flight.sent for batch in flight.batches for handle in batch.handles
            }
            outstanding = self.outstanding
            self.outstanding = set()
            self.buffer.clear()
            self.flights.clear()
            self.changed.notify_all()
        fenced = "fenced" if isinstance(why, WriterFenced) else None
        for count, certainty in (
            (len(outstanding & maybe), why.certainty),
            (len(outstanding - maybe), Certainty.REFUSED),
        ):
            if count:
                self.meter.ended(self.log.name, count, outcome=fenced or certainty, rows=0, seconds=0.0)
        for handle in outstanding:
            certainty = why.certainty if handle in maybe else Certainty.REFUSED
            handle.set_exception(type(why)(str(why), certainty=certainty))
        self._uploads.shutdown(wait=False, cancel_futures=True)

    def abandon(self) -> None:
        """Of a writer that was dropped without `close`."""
        with self.changed:
            unknown = any(flight.sent for flight in self.flights)
        self.end(
            LaneError(
                f"{self._who} was dropped without close(), with {len(self.outstanding)} appends that had no answer",
                certainty=Certainty.UNKNOWN if unknown else Certainty.REFUSED,
            )
        )

    def stop(self) -> None:
        """Of a writer that was closed and has nothing outstanding."""
        with self.changed:
            self.closing = True
            self.changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=LONGEST_PAUSE)
        self._uploads.shutdown(wait=False, cancel_futures=True)


def _declared(schema: Any, known: pa.Schema) -> pa.Schema:
    """The columns of a writer that names them. Raises: InvalidInput."""
    import pyarrow as pa

    if not isinstance(schema, pa.Schema):
        raise InvalidInput(f"schema is {type(schema).__name__}, not a pyarrow.Schema")
    declared = arrow.normal_schema(schema)
    for each in declared:
        if each.name in known.names and known.field(each.name).type != each.type:
            raise InvalidInput(
                f"schema has the column {each.name} as {each.type}, and the lane has it as {known.field(each.name).type}"
            )
    return arrow.with_columns_of(known, declared)
