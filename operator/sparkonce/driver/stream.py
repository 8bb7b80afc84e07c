# ruff: noqa: SLF001 - streams are part of Job, in a module of their own
"""`job.stream(df)`: streaming DataFrames, each of whose micro-batches is one effect.

    job.stream(df).write("orders", trigger={"availableNow": True})
    job.stream(df).foreach_batch(lambda batch, rows: batch.write(rows, "orders"), outputs=["orders"])

Spark delivers each micro-batch at least once: it plans a batch in the checkpoint, passes it to `foreachBatch`, and records in the
checkpoint that it is done. After a crash in between, the next driver gets the same batch again. Here a batch is committed by one
create-once slot in a chain (`sparkonce.driver.stream_output`), so a batch that is delivered again is found committed, its DataFrame is not
run, and Spark records it as done.

This module is the query: its checks before it starts, the function that Spark calls with each batch, and the wait for its end. Both calls
return when the query has ended and the end is committed; with `processingTime` it never ends by itself, and cancelling the job ends it
(settling writes the end after the last batch).

Output modes other than append are not offered: their batches would contain the same rows again.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkonce import failpoints
from sparkonce.driver.channel import Written
from sparkonce.driver.stream_output import StreamOutput
from sparkonce.errors import AttemptEnded, InvalidInput, OutputUnavailable, StreamBroken
from sparkonce.model.spec import IdempotentJob, OnRerun
from sparkonce.sink.protocol import WriteOptions
from sparkonce.sink.staging import refuse_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkonce.driver.context import Job


POLL = 1
"""Seconds between checks whether this attempt is over while a query runs: an idle query commits nothing that would reveal it."""
TRIGGERS = ("availableNow", "processingTime")
AVAILABLE_NOW: Mapping[str, Any] = {"availableNow": True}


@dataclass(frozen=True)
class Streamed:
    """An ended stream in one output: the totals of its batches, of all attempts."""

    output: str
    uri: str
    rows: int
    bytes: int
    batches: int | None
    """Number of batches; None in a replay, whose record has only rows and bytes."""
    last_batch: int | None
    """Spark's number of the last batch; None without any."""
    fresh: bool
    """False: the stream had ended before; no query was started."""


class Stream:
    """A streaming DataFrame of a job; runs one query."""

    def __init__(self, job: Job, frame: DataFrame) -> None:
        self._job, self._frame = job, frame

    def write(
        self,
        output: str,
        *,
        checkpoint: str | None = None,
        trigger: Mapping[str, Any] = AVAILABLE_NOW,
        restart: bool = False,
        partition_by: Sequence[str] = (),
        merge_schema: bool = False,
    ) -> Streamed:
        """Writes every batch to one output and waits for the end of the query. Arguments and errors as `foreach_batch` and `Job.write`."""

        def one(batch: Batch, rows: DataFrame) -> None:
            batch.write(rows, output, partition_by=partition_by, merge_schema=merge_schema)

        return self.foreach_batch(one, outputs=[output], checkpoint=checkpoint, trigger=trigger, restart=restart)[
            output
        ]

    def foreach_batch(
        self,
        function: Callable[[Batch, DataFrame], object],
        *,
        outputs: Sequence[str] | None = None,
        checkpoint: str | None = None,
        trigger: Mapping[str, Any] = AVAILABLE_NOW,
        restart: bool = False,
    ) -> dict[str, Streamed]:
        """Calls the function with each batch that is not committed to all outputs yet, and waits for the end of the query.

        function: writes the batch's rows with `batch.write(rows, output)`, to each output at most once; an output that it does not
            write has no rows in that batch. Several outputs of one batch are committed one after the other: each has every batch once at
            the end.
        outputs: outputs that this stream writes; all declared ones by default.
        checkpoint: Spark's checkpoint location, one per stream (a relative path is relative to the job file's folder); by default a folder
            beside the first output, per key and generation.
        trigger: `{"availableNow": True}` or `{"processingTime": "10 seconds"}`.
        restart: lets a new checkpoint begin beside rows of another stream of the same source, which the table then holds twice. As
            `stream: {restart: true}` in the spec.

        Errors of the query and of the function pass through.

        Raises:
            InvalidInput, UndeclaredOutput, OutputUnsupported: the query was not started.
            StreamBroken: the checkpoint does not match what is committed, or would deliver its rows again.
            AttemptEnded, Fenced: another attempt took over, or the stream was ended.
            OutputUnavailable: unknown whether the last batch was committed; the next attempt continues the stream.
        """
        job = self._job
        refuse_connect(self._frame, "write a stream")
        if not self._frame.isStreaming:
            raise InvalidInput(
                "job.stream() takes a streaming DataFrame (spark.readStream...); write this one with job.write()"
            )
        if len(trigger) != 1 or next(iter(trigger)) not in TRIGGERS:
            raise InvalidInput(
                'trigger is {"availableNow": True} or {"processingTime": "10 seconds"}; '
                "Spark's other triggers have no batches to commit, or stop half way"
            )
        names = tuple(dict.fromkeys(job.outputs if outputs is None else outputs))
        if not names:
            raise InvalidInput("a stream writes at least one output; declare it under spec.outputs")
        restart = restart or IdempotentJob.of(job.assignment.spec.job).spec.restarts_streams
        places = {name: StreamOutput(job, name, self._frame, restart=restart) for name in names}
        where = _absolute(checkpoint, job.assignment.spec.base) if checkpoint else next(iter(places.values())).default
        job._outputs_written.update(names)
        return _Run(job, self._frame, places, function, where).run(trigger)


class Batch:
    """One micro-batch, inside the function that writes it."""

    def __init__(
        self, number: int, plan: str, places: Mapping[str, StreamOutput], open_all: Callable[[], None]
    ) -> None:
        self.number, self._plan, self._places, self._open_all = number, plan, places, open_all
        self._written: set[str] = set()
        self.broken: set[str] = set()
        """Outputs whose write has not succeeded."""

    def write(
        self, frame: DataFrame, output: str, *, partition_by: Sequence[str] = (), merge_schema: bool = False
    ) -> Written:
        """Writes the rows as this batch's one effect on this output; does not run them if the batch is committed.

        Raises:
            InvalidInput: not an output of this stream, or written twice in this batch.
            SparkonceError: as for `Job.write`.
        """
        place = self._places.get(output)
        if place is None:
            raise InvalidInput(
                f"output {output!r} is not one of this stream ({', '.join(self._places)}); name it in outputs=[...]"
            )
        if output in self._written:
            raise InvalidInput(f"output {output!r} is written twice in batch {self.number}; union the DataFrames first")
        self._written.add(output)
        self.broken.add(output)
        options = WriteOptions(partition_by=tuple(partition_by), merge_schema=merge_schema)
        written = place.write(self.number, self._plan, frame, options, before=self._open_all)
        self.broken.discard(output)
        return written


class _Run:
    """One query, from its start to its end. Batches arrive on Spark's thread while the caller's waits."""

    def __init__(
        self,
        job: Job,
        frame: DataFrame,
        places: Mapping[str, StreamOutput],
        function: Callable[[Batch, DataFrame], object],
        checkpoint: str,
    ) -> None:
        self._job, self._frame, self._places, self._function = job, frame, places, function
        self._checkpoint = checkpoint
        self._checked = threading.Event()
        """Set once the query's id is accepted, or `_error` says why it is not."""
        self._turn = threading.Lock()
        self._error: BaseException | None = None
        """The first error of a batch: Spark passes on only its text."""

    def run(self, trigger: Mapping[str, Any]) -> dict[str, Streamed]:
        for place in self._places.values():
            place.read_chain()
        if any(place.ended for place in self._places.values()):
            return self._end_all()
        writer = self._frame.writeStream.foreachBatch(self._batch).option("checkpointLocation", self._checkpoint)
        query = writer.trigger(**trigger).start()
        try:
            self._check(str(query.id))
            while not query.awaitTermination(POLL):
                self._require_current()
        except Exception as error:
            if self._error is not None and self._error is not error:
                raise self._error from None
            raise
        finally:
            self._checked.set()
            with contextlib.suppress(Exception):  # Spark may be gone; the error that ended the wait matters
                if query.isActive:
                    query.stop()
        with self._turn:  # a batch may still be running after the query was stopped
            if self._error is not None:
                raise self._error
            if stopped(self._frame):
                raise AttemptEnded("Spark was stopped while the stream ran; the next attempt continues it")
            return self._end(fresh=True)

    def _check(self, query_id: str) -> None:
        try:
            done = done_in(self._frame, self._checkpoint)
            for place in self._places.values():
                place.bind(query_id, self._checkpoint)
                if done is not None:
                    place.require(done)
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._checked.set()

    def _require_current(self) -> None:
        job = self._job
        if job.heartbeat.over:
            raise AttemptEnded(f"attempt {job.attempt} of {job.key} is over; nothing it writes can be committed")

    def _batch(self, frame: DataFrame, number: int) -> None:
        """Called by Spark. Returning means that the batch is done: the checkpoint then moves on to the next."""
        self._checked.wait()
        with self._turn:
            try:
                if self._error is not None:
                    raise self._error
                self._require_current()
                self._commit(frame, int(number))
            except BaseException as error:
                self._error = self._error or error
                raise

    def _commit(self, frame: DataFrame, number: int) -> None:
        plan = plan_of(frame, self._checkpoint, number)
        missing = [place for place in self._places.values() if not place.begin(number, plan)]
        if missing:

            def open_all() -> None:
                """All outputs, before any of them has rows: a refusal of one leaves none with the batch."""
                for place in missing:
                    place.open()

            batch = Batch(number, plan, self._places, open_all)
            self._function(batch, frame)
            if batch.broken:
                raise InvalidInput(
                    f"the write of {', '.join(sorted(batch.broken))} failed in batch {number}, and the function went on; let the error "
                    "end it, so that the batch is run again"
                )
            open_all()
            for place in missing:
                place.fill(number, plan)
        failpoints.hit("driver.stream.batch")

    def _end_all(self) -> dict[str, Streamed]:
        """One output of this stream has ended: no batch follows, and the others end at the same batch."""
        places = list(self._places.values())
        if all(place.ended for place in places):
            return self._end(fresh=False)
        if len({place.last_batch for place in places}) > 1:
            keeps = next((place for place in places if place.on_rerun is OnRerun.APPEND), places[0])
            raise StreamBroken(
                f"the stream of {self._job.key} was ended while its outputs ({', '.join(self._places)}) did not have the same batches; "
                f"{keeps.anew('a new checkpoint')} writes all of them anew"
            )
        query_id = next(place.query_id for place in places if place.ended)
        for place in places:
            place.bind(query_id, self._checkpoint)
        return self._end(fresh=True)

    def _end(self, *, fresh: bool) -> dict[str, Streamed]:
        ended = {}
        for name, place in self._places.items():
            total = place.end()
            ended[name] = Streamed(name, place.uri, total.rows, total.bytes, total.batches, total.last_batch, fresh)
        self._job._report_progress()
        return ended


def plan_of(frame: DataFrame, checkpoint: str, number: int) -> str:
    """SHA-256 (hex) of the checkpoint's plan of a batch, which Spark writes once, before it delivers the batch.

    Raises:
        OutputUnavailable: the plan cannot be read.
    """
    context: Any = frame.sparkSession.sparkContext
    try:
        path = context._jvm.org.apache.hadoop.fs.Path(f"{checkpoint}/offsets/{number}")
        file = path.getFileSystem(context._jsc.hadoopConfiguration()).open(path)
        try:
            plan = context._jvm.org.apache.commons.io.IOUtils.toString(file, "UTF-8")
        finally:
            file.close()
    except Exception:  # noqa: BLE001 - py4j wraps Hadoop's errors in several types; without the plan the batch cannot be identified
        raise OutputUnavailable(
            f"the plan of batch {number} cannot be read in the checkpoint {checkpoint}; nothing of the batch was committed"
        ) from None
    return hashlib.sha256(str(plan).encode()).hexdigest()


def done_in(frame: DataFrame, checkpoint: str) -> int | None:
    """Number of the last batch that the checkpoint records as done; None without any. Spark never delivers it again.

    Raises:
        OutputUnavailable: the checkpoint cannot be read.
    """
    context: Any = frame.sparkSession.sparkContext
    try:
        path = context._jvm.org.apache.hadoop.fs.Path(f"{checkpoint}/commits")
        files = path.getFileSystem(context._jsc.hadoopConfiguration())
        names = [str(each.getPath().getName()) for each in files.listStatus(path)] if files.exists(path) else []
    except Exception:  # noqa: BLE001 - py4j wraps Hadoop's errors in several types
        raise OutputUnavailable(
            f"the batches that are done cannot be read in the checkpoint {checkpoint}; nothing was committed"
        ) from None
    return max((int(name) for name in names if name.isdecimal()), default=None)


def stopped(frame: DataFrame) -> bool:
    """Whether Spark itself was stopped, which ends queries as if they had finished."""
    context: Any = frame.sparkSession.sparkContext
    return context._jsc is None or bool(context._jsc.sc().isStopped())


def _absolute(checkpoint: str, base: str | None) -> str:
    if base is None or checkpoint.startswith(("/", "file:")) or "://" in checkpoint:
        return checkpoint
    return str(Path(base, checkpoint))
