# ruff: noqa: SLF001 - the other half of Job, in a file of its own
"""`job.stream(df)`: a streaming DataFrame, each of whose micro-batches is one effect.

    job.stream(df).write("orders", trigger={"availableNow": True})
    job.stream(df).foreach_batch(lambda batch, rows: batch.write(rows, "orders"), outputs=["orders"])

Spark delivers each micro-batch at least once: it plans a batch in the checkpoint, hands it to `foreachBatch`, and notes in the checkpoint
that it is done. A driver that dies in between gets the same batch again. Here a batch is committed by one create-once slot in a chain
(`sparkonce.sink.stream`), so a batch that is delivered again is found committed, its DataFrame is not run, and Spark is told that it is
done. The chain is bound to the checkpoint: by Spark's query id, and by a digest of each batch's plan.

Both calls return when the query has ended by itself and the end is committed; with `processingTime` it never does, and cancelling the
job ends it (settling writes the end after the last batch).

In Delta and Iceberg tables the place of the slot is taken by the table's own commit, in the same chain.

Refused with a sentence: a checkpoint that was reset or put back, one that goes on after batches which this table does not have or would
lose, a batch that leaves a gap, a table that was dropped under the stream, `expect.minRows` (a stream has no one commit to count). Not
offered: output modes but append, whose batches would hold the same rows again.
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
from sparkonce.driver.stream_output import StreamOutput
from sparkonce.errors import AttemptEnded, InvalidInput, OutputUnavailable, StreamBroken
from sparkonce.sink.protocol import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkonce.driver.context import Job
    from sparkonce.driver.written import Written

LOOK = 1
"""Seconds between two looks at whether this attempt is over while a query runs: an idle query commits nothing that would tell it."""
TRIGGERS = ("availableNow", "processingTime")
AVAILABLE_NOW: Mapping[str, Any] = {"availableNow": True}


@dataclass(frozen=True)
class Streamed:
    """A stream that has ended, as it stands in one output: all its batches together, of whatever attempts."""

    output: str
    uri: str
    rows: int
    bytes: int
    batches: int | None
    """None in a replay, whose record has the totals alone."""
    last_batch: int | None
    """Spark's number of the last one; None when there was none."""
    fresh: bool
    """False: it had ended before; no query was started."""


class Stream:
    """A streaming DataFrame of a job, which is run once."""

    def __init__(self, job: Job, frame: DataFrame) -> None:
        self._job, self._frame = job, frame

    def write(
        self,
        output: str,
        *,
        checkpoint: str | None = None,
        trigger: Mapping[str, Any] = AVAILABLE_NOW,
        partition_by: Sequence[str] = (),
        merge_schema: bool = False,
    ) -> Streamed:
        """Writes every batch to one output and waits for the end. Arguments and errors as `foreach_batch` and `Job.write`."""

        def one(batch: Batch, rows: DataFrame) -> None:
            batch.write(rows, output, partition_by=partition_by, merge_schema=merge_schema)

        return self.foreach_batch(one, outputs=[output], checkpoint=checkpoint, trigger=trigger)[output]

    def foreach_batch(
        self,
        function: Callable[[Batch, DataFrame], object],
        *,
        outputs: Sequence[str] | None = None,
        checkpoint: str | None = None,
        trigger: Mapping[str, Any] = AVAILABLE_NOW,
    ) -> dict[str, Streamed]:
        """Calls the function with each batch that is not committed to all outputs yet, and waits for the end.

        function: writes the batch's rows with `batch.write(rows, output)`, to each output at most once; an output that it leaves out has
            no rows in that batch. Several outputs of one batch are committed one after the other: each has every batch once in the end.
        outputs: that this stream writes; all declared ones by default.
        checkpoint: Spark's checkpoint location, one per stream (a relative path is relative to the job file's folder); by default a folder
            beside the first output, per key and generation.
        trigger: `{"availableNow": True}` or `{"processingTime": "10 seconds"}`.
        InvalidInput, UndeclaredOutput, OutputUnsupported: nothing was started. StreamBroken: see there. AttemptEnded, Fenced: this attempt
        was taken over, or the stream has been ended. The query's own error, and the function's, pass through."""
        job = self._job
        if not self._frame.isStreaming:
            raise InvalidInput(
                "job.stream() takes a streaming DataFrame (spark.readStream...); write this one with job.write()"
            )
        if len(trigger) != 1 or next(iter(trigger)) not in TRIGGERS:
            raise InvalidInput(
                'trigger is {"availableNow": True} or {"processingTime": "10 seconds"}; '
                "the other triggers of Spark have no batches to commit, or stop half way"
            )
        names = tuple(dict.fromkeys(job.outputs if outputs is None else outputs))
        if not names:
            raise InvalidInput("a stream writes at least one output; declare it under spec.outputs")
        places = {name: StreamOutput(job, name, self._frame) for name in names}
        where = _absolute(checkpoint, job.assignment.spec.base) if checkpoint else next(iter(places.values())).default
        job._outputs_written.update(names)
        return _Run(job, self._frame, places, function, where).run(trigger)


class Batch:
    """One micro-batch, inside the function that writes it."""

    def __init__(self, number: int, plan: str, places: Mapping[str, StreamOutput]) -> None:
        self.number, self._plan, self._places = number, plan, places
        self._written: set[str] = set()

    def write(
        self, frame: DataFrame, output: str, *, partition_by: Sequence[str] = (), merge_schema: bool = False
    ) -> Written:
        """Writes the rows as this batch's one effect on this output; without running them when they are there already.

        InvalidInput: not an output of this stream, or written twice in this batch. Otherwise as `Job.write`."""
        place = self._places.get(output)
        if place is None:
            said = f"output {output!r} is not one of this stream ({', '.join(self._places)}); name it in outputs=[...]"
            raise InvalidInput(said)
        if output in self._written:
            raise InvalidInput(f"output {output!r} is written twice in batch {self.number}; union the DataFrames first")
        self._written.add(output)
        options = WriteOptions(partition_by=tuple(partition_by), merge_schema=merge_schema)
        return place.write(self.number, self._plan, frame, options)


class _Run:
    """One query, from its start to its end. Batches come in on Spark's thread, while the caller's waits."""

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
        """The query's id is known and is the right one, or `_error` says why it is not."""
        self._turn = threading.Lock()
        self._error: BaseException | None = None
        """The first one of a batch: Spark passes on its text alone."""

    def run(self, trigger: Mapping[str, Any]) -> dict[str, Streamed]:
        for place in self._places.values():
            place.look()
        if any(place.ended for place in self._places.values()):
            return self._end_all()
        writer = self._frame.writeStream.foreachBatch(self._batch).option("checkpointLocation", self._checkpoint)
        query = writer.trigger(**trigger).start()
        try:
            self._check(str(query.id))
            while not query.awaitTermination(LOOK):
                self._alive()
        except Exception as error:
            if self._error is not None and self._error is not error:
                raise self._error from None
            raise
        finally:
            self._checked.set()
            with contextlib.suppress(Exception):  # Spark may be gone; what ended the wait is what matters
                if query.isActive:
                    query.stop()
        with self._turn:  # a batch may still be under way when somebody stopped the query
            if self._error is not None:
                raise self._error
            if stopped(self._frame):
                raise AttemptEnded("Spark was stopped under the stream; the next attempt goes on with it")
            return self._end(fresh=True)

    def _check(self, query_id: str) -> None:
        try:
            for place in self._places.values():
                place.bind(query_id, self._checkpoint)
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._checked.set()

    def _alive(self) -> None:
        job = self._job
        if job.heartbeat.over:
            raise AttemptEnded(f"attempt {job.attempt} of {job.key} is over; nothing it writes can be committed")

    def _batch(self, frame: DataFrame, number: int) -> None:
        """What Spark calls. Returning says that the batch is done: the checkpoint then goes on to the next."""
        self._checked.wait()
        with self._turn:
            try:
                if self._error is not None:
                    raise self._error
                self._alive()
                self._commit(frame, int(number))
            except BaseException as error:
                self._error = self._error or error
                raise

    def _commit(self, frame: DataFrame, number: int) -> None:
        plan = plan_of(frame, self._checkpoint, number)
        missing = [place for place in self._places.values() if not place.begin(number, plan)]
        if missing:
            self._function(Batch(number, plan, self._places), frame)
            for place in missing:
                place.fill(number, plan)
        failpoints.hit("driver.stream.batch")

    def _end_all(self) -> dict[str, Streamed]:
        """One output of this stream has its end: no batch comes any more, and the others end where it did."""
        places = list(self._places.values())
        if all(place.ended for place in places):
            return self._end(fresh=False)
        if len({place.last_batch for place in places}) > 1:
            raise StreamBroken(
                f"the stream of {self._job.key} was ended while its outputs ({', '.join(self._places)}) did not have the same batches; "
                f"`sparkonce rerun {self._job.key}` writes all of them anew"
            )
        query_id = next(place.query_id for place in places if place.ended)
        for place in places:
            place.bind(query_id, self._checkpoint)
        return self._end(fresh=True)

    def _end(self, *, fresh: bool) -> dict[str, Streamed]:
        ended = {}
        for name, place in self._places.items():
            told = place.end()
            ended[name] = Streamed(name, place.uri, told.rows, told.bytes, told.batches, told.last_batch, fresh)
        self._job._tell()
        return ended


def plan_of(frame: DataFrame, checkpoint: str, number: int) -> str:
    """SHA-256 (hex) of what the checkpoint says that the batch is made of: written once, before the batch is delivered."""
    context: Any = frame.sparkSession.sparkContext
    try:
        path = context._jvm.org.apache.hadoop.fs.Path(f"{checkpoint}/offsets/{number}")
        file = path.getFileSystem(context._jsc.hadoopConfiguration()).open(path)
        try:
            said = context._jvm.org.apache.commons.io.IOUtils.toString(file, "UTF-8")
        finally:
            file.close()
    except Exception:  # noqa: BLE001 - whatever py4j makes of Hadoop's errors: without the plan nothing can be said of the batch
        raise OutputUnavailable(
            f"the plan of batch {number} cannot be read in the checkpoint {checkpoint}; nothing of the batch was committed"
        ) from None
    return hashlib.sha256(str(said).encode()).hexdigest()


def stopped(frame: DataFrame) -> bool:
    """Whether Spark itself was stopped, which ends queries as if they had ended by themselves."""
    context: Any = frame.sparkSession.sparkContext
    return context._jsc is None or bool(context._jsc.sc().isStopped())


def _absolute(checkpoint: str, base: str | None) -> str:
    if base is None or checkpoint.startswith(("/", "file:")) or "://" in checkpoint:
        return checkpoint
    return str(Path(base, checkpoint))
