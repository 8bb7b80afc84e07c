"""The API of a job's code: `Job` and `Transaction`.

    job = sparkonce.current()
    job.write(df, "orders")
    with job.transaction() as tx:
        tx.write(a, "orders"); tx.write(b, "totals")

A write stages natively into a private folder and then commits by creating one slot; if the key is committed already, it returns what is
recorded *without running the DataFrame*. A plain write needs no permission from the ledger, which the driver may not reach: the output
itself refuses an attempt that was superseded (`Fenced`). Only a transaction is sealed in the ledger before it commits.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from sparkonce import failpoints
from sparkonce.blocking import run
from sparkonce.driver.branch import BranchBlock
from sparkonce.driver.channel import Channel, Written
from sparkonce.driver.heartbeat import Heartbeat
from sparkonce.driver.merge import merge
from sparkonce.driver.native import Native
from sparkonce.driver.native import native as native_block
from sparkonce.driver.native import sql as native_sql
from sparkonce.driver.stream import Stream
from sparkonce.errors import (
    AttemptEnded,
    ExpectationUnmet,
    Fenced,
    InvalidInput,
    KeyConflict,
    LateInSeries,
    OutputChanged,
    OutputUnavailable,
    ReportTooLarge,
    SparkonceError,
    StoreUnavailable,
    StoreUnusable,
    TableMoved,
    UndeclaredOutput,
)
from sparkonce.model import masking
from sparkonce.model.application.script_errors import is_analysis
from sparkonce.model.record import COMMITTED, LINGERS, UNCAUGHT, VALUES_LIMIT, Assignment, Why, values_size
from sparkonce.model.spec import Expect, WriteMode, missing_columns, too_few_rows
from sparkonce.sink.protocol import (
    AlreadyCommitted,
    CommitOutcome,
    Committed,
    Conflicting,
    FencedOff,
    Late,
    Overtaken,
    Sink,
    SinkKey,
    Slot,
    SlotState,
    Stuck,
    WriteOptions,
    abort_of,
)
from sparkonce.sink.staging import as_seen
from sparkonce.sink.transaction import commit_all, intent_of, sink_key
from sparkonce.store.protocol import Sealed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")
E = TypeVar("E", bound=SparkonceError)

TRIES = 5
"""Retries of a seal or report whose reply was lost; after that the attempt fails, and a settle run determines its effect."""
COURTESY = 10.0
"""Seconds for which a driver tries to report that all is committed: the report is optional and must not delay the job."""
MESSAGE_LIMIT = 1024
"""Characters of a `job.fail()` message that are kept: records are small."""
TRACE_LIMIT = 6000
"""Characters of a reported traceback, from its beginning: of a longer one the end of Spark's plan is missing, or the exception itself, and
then it is read as no exception."""


class Job:
    """The running attempt, as its own code sees it. Not thread-safe."""

    replayed = False
    """Whether the key has its result already: `sparkonce.job` then returns an object with True instead of a `Job`."""

    def __init__(
        self,
        assignment: Assignment,
        sinks: Mapping[str, Sink],
        channel: Channel,
        *,
        interval: float = 2.0,
        expected: Mapping[str, Expect] | None = None,
        merged_on: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.assignment, self.channel = assignment, channel
        self._sinks = dict(sinks)
        self._expected = dict(expected or {})
        self._merged_on = dict(merged_on or {})
        self._rows = 0
        self._values: dict[str, Any] = {}
        self._outputs_written: set[str] = set()
        self._committed_slots: dict[str, Slot] = {}
        """Final slots by output."""
        self._sequence = 0
        self._transactions = 0
        self._block: object | None = None
        """The transaction or native block that is open."""
        self._process = uuid.uuid4().hex[:12]
        self._idle_since = time.monotonic()
        """When the last report ended; infinity while one is under way."""
        self._program_ended: float | None = None
        """When it was first noticed, monotonic seconds."""
        self.heartbeat = Heartbeat(channel, interval=interval, progress=self._progress)

    @property
    def key(self) -> str:
        return self.assignment.key

    @property
    def generation(self) -> int:
        return self.assignment.generation

    @property
    def attempt(self) -> int:
        """Number of the attempt, which is also its fencing token."""
        return self.assignment.attempt

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self._sinks)

    def write(
        self,
        frame: DataFrame,
        output: str,
        *,
        mode: str | None = None,
        on: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        merge_schema: bool = False,
    ) -> Written:
        """Writes the rows as this job's one effect on this output.

        mode: "append", "overwrite" (replaces all rows of the table), "overwritePartitions" (replaces those of the partitions that these
        rows belong to) or "merge" (replaces those with the same values in the columns `on`), upper or lower case. None: what
        `spec.outputs[].mode` declares, or else append.

        on: columns that identify a row, for mode "merge". Empty: what `spec.outputs[].on` declares.

        partition_by: columns to partition by; readers skip folders that a filter excludes.
        merge_schema: adds columns that a Delta or Iceberg table does not have yet (slot logs merge when they are read).

        Raises:
            UndeclaredOutput: the output is not under `spec.outputs`.
            InvalidInput: this job has written the output already, or the columns do not fit.
            ExpectationUnmet: the rows violate `expect`; nothing of them is visible.
            OutputChanged: the table was changed during the write; nothing of it is visible.
            LateInSeries: a key of a later position of `spec.series` has committed to the table; nothing of this one is visible. With
                `onLate: Skip` the write returns instead (`Written.skipped`).
            Fenced: another attempt took over; nothing of this one is or will be visible.
            KeyConflict: another job has committed this key.
            RowsLost: the files contain another number of rows than were written; nothing was committed.
            OutputUnavailable: unknown whether the write was committed; a settle run or the next attempt determines it.
        """
        sink, key = self._sink(output)
        chosen = _mode(sink, mode)
        if (chosen or sink.mode) is WriteMode.MERGE:
            if partition_by or merge_schema:
                raise InvalidInput(
                    "mode Merge takes neither partition_by nor merge_schema; change the table beforehand"
                )
            return merge(self, sink, key, frame, on)
        if on:
            raise InvalidInput("on=[...] names the columns by which mode Merge replaces rows; leave it out")
        options = WriteOptions(partition_by=tuple(partition_by), merge_schema=merge_schema, mode=chosen)
        written = self._write(sink, key, frame, options)
        self._outputs_written.add(output)
        self._report_progress()
        failpoints.hit("driver.write.done")
        return written

    def _write(self, sink: Sink, key: SinkKey, frame: DataFrame, options: WriteOptions) -> Written:
        if (found := self._committed(sink, key)) is not None:
            return found
        return self._written(sink, self._commit(sink, key, self._stage(sink, key, frame, options)))

    def _commit(
        self,
        sink: Sink,
        key: SinkKey,
        slot: Slot,
        *,
        send: Callable[[], Coroutine[Any, Any, CommitOutcome]] | None = None,
    ) -> CommitOutcome:
        """Commits a staged slot outside a transaction. send: replaces `sink.commit` (streams)."""
        try:
            decision = run(send() if send is not None else sink.commit(key, slot))
        except OutputUnavailable as error:
            # A commit may have been sent; only the slot can show its outcome.
            decision = _outcome_of(run(sink.abort(key, slot)), slot)
            if isinstance(decision, FencedOff) and decision.slot.closed_by == abort_of(slot.token):
                raise OutputUnavailable(
                    f"attempt {slot.token} of {self.key} could not commit to {sink.name}: {error}; its slot is closed now, so nothing "
                    "of it is or will be visible there"
                ) from error
        failpoints.hit("driver.commit.after")
        if not isinstance(decision, Committed) or decision.slot.nonce != slot.nonce:
            # Another write was committed, ours is fenced, or it came late and is skipped: these files can never be committed; a sweep
            # deletes what is left.
            with contextlib.suppress(OutputUnavailable):
                run(sink.discard(key, slot))
        return decision

    def stream(self, frame: DataFrame) -> Stream:
        """Wraps a streaming DataFrame so that each micro-batch is one effect: `job.stream(df).write("orders")`."""
        return Stream(self, frame)

    def sql(self, text: str, output: str, *, args: Any = None) -> Written:
        """Runs one INSERT, UPDATE, DELETE or MERGE on the Delta or Iceberg table of this output by Spark's own engine, once; not at all if
        it is done.

        args: parameters of the text, as for `spark.sql`.

        Raises: as `Native.statement` or `BranchBlock.statement`, and what Spark raises.
        """
        return native_sql(self, text, output, args=args)

    def native(self, output: str, *, atomic: bool = False) -> Native | BranchBlock:
        """A block whose statements on the table of this output Spark commits itself, each once: `with job.native("orders"):`.

        Inside it `spark.sql` and `df.write` are used as ever. Between two statements readers of a Delta table see the first; an Iceberg
        table shows all of them at the block's end, or none.

        atomic: refuses a second statement on a Delta table.
        """
        return native_block(self, output, atomic=atomic)

    def transaction(self) -> Transaction:
        """Writes several outputs, all or none in the end. One per generation.

        Raises:
            InvalidInput: the job has begun a transaction before.
        """
        self._transactions += 1
        if self._transactions > 1:
            raise InvalidInput(
                "a job has one transaction per run: write all its outputs in the one `with job.transaction()`"
            )
        return Transaction(self)

    def result(self, **values: Any) -> None:
        """Records small values, which every duplicate gets with the result.

        Raises:
            InvalidInput: not JSON, or more than 4 KiB of it in all calls together.
            StoreUnavailable: unknown; the values may be recorded.
        """
        together = {**self._values, **values}
        try:
            size = values_size(together)
        except (TypeError, ValueError) as problem:
            raise InvalidInput(f"job.result() takes values that JSON can hold: {problem}") from None
        if size > VALUES_LIMIT:
            raise InvalidInput(
                f"job.result() was given {size} bytes of JSON and records at most {VALUES_LIMIT}; write an output instead"
            )
        self.report("values", values=values, sequence=self._sequence + 1)
        self._values = together

    def report(self, kind: str, **body: Any) -> None:
        """Creates an entry beside the record. An entry that the ledger has no room for is dropped with a line on standard error; the job
        does not fail, because its effects are in the outputs.

        Raises:
            StoreUnavailable: unknown; the entry may exist.
        """
        reporter = self._reporter(kind)
        self._idle_since = math.inf
        try:
            _insist(lambda: self.channel.report(reporter, kind, body))
        except ReportTooLarge as refused:
            sys.stderr.write(f"sparkonce: not reported: {refused}\n")
        finally:
            self._idle_since = time.monotonic()

    def _reporter(self, kind: str) -> str:
        """A unique name for one entry."""
        self._sequence += 1
        return f"{self._process}-{kind}-{self._sequence}"

    def fail(self, message: str) -> NoReturn:
        """Ends the job without a retry: it becomes Failed, unless something of it is committed."""
        self.report("permanent-error", message=message[:MESSAGE_LIMIT])
        sys.exit(f"sparkonce: {message}")

    def report_uncaught(self, error: BaseException) -> None:
        """Reports the exception that ends the program, if Spark refused a query by it: an operator may have no right to read the log, or
        find it cut. For all others the log is enough. Best effort, once: the log may say the same."""
        if not is_analysis(error):
            return
        with contextlib.suppress(Exception):  # whatever fails here, the author must see what ended the program
            trace = "".join(traceback.format_exception(error))
            trace = masking.redacted(trace, masking.values_of(self.assignment.spec.job))  # before it is cut
            self.channel.report(self._reporter(UNCAUGHT), UNCAUGHT, {"trace": trace[:TRACE_LIMIT]}, patience=COURTESY)

    @property
    def complete(self) -> bool:
        """Whether the job declares outputs and this process has found or made a final commit in each of them."""
        return bool(self._sinks) and self._committed_slots.keys() == self._sinks.keys()

    def _progress(self) -> dict[str, Any]:
        """What a heartbeat carries. `lingers`: seconds since the program ended or another thread last committed or reported; only once
        every output is committed."""
        shown: dict[str, Any] = {"rows": self._rows}
        if not threading.main_thread().is_alive():  # it has returned or raised, and Python waits for the other threads
            now = time.monotonic()
            if self._program_ended is None:
                self._program_ended = now
            if self.complete:
                shown[LINGERS] = round(max(0.0, now - max(self._program_ended, self._idle_since)), 1)
        return shown

    def last_beat(self) -> None:
        """Sends a last heartbeat as Python ends, if every output is committed: the process has no work left."""
        if self.complete and not self.heartbeat.over:
            self.heartbeat.beat()

    def _report_progress(self) -> None:
        """Beats after a commit; after the last output's, reports all slots through the gateway. An operator that cannot reach the outputs
        accepts "all committed" from any driver. Best effort: without the report it starts a settle run."""
        self.heartbeat.beat()
        self._idle_since = time.monotonic()
        if self.assignment.gateway and self.complete:
            slots = {name: slot.dump() for name, slot in self._committed_slots.items()}
            with contextlib.suppress(StoreUnavailable, StoreUnusable, ReportTooLarge):
                self.channel.report(self._reporter(COMMITTED), COMMITTED, {"slots": slots}, patience=COURTESY)

    def _sink(self, output: str) -> tuple[Sink, SinkKey]:
        if self.heartbeat.over:
            raise AttemptEnded(f"attempt {self.attempt} of {self.key} is over; nothing it writes can be committed")
        sink = self._sinks.get(output)
        if sink is None:
            declared = ", ".join(self._sinks) or "none"
            said = f"output {output!r} is not declared under spec.outputs (declared: {declared}); declare it there"
            raise self._permanent(UndeclaredOutput(said))
        if output in self._outputs_written:
            raise InvalidInput(
                f"output {output!r} is written twice by one job, which has one effect on it; union the DataFrames first"
            )
        return sink, self._key(sink)

    def _key(self, sink: Sink) -> SinkKey:
        return sink_key(self.assignment.key_hash, self.generation, sink)

    def _committed(self, sink: Sink, key: SinkKey) -> Written | None:
        """The committed write of this key, so that no DataFrame needs to run; None if there is none. Closes lower slots (rule R)."""
        slot = run(sink.fence(key, self.attempt, fingerprint=self.assignment.fingerprint, by=f"attempt {self.attempt}"))
        if slot is None:
            return None
        same = slot.fingerprint == self.assignment.fingerprint
        return self._written(sink, AlreadyCommitted(slot) if same else Conflicting(slot))

    def _stage(self, sink: Sink, key: SinkKey, frame: DataFrame, options: WriteOptions) -> Slot:
        frame = as_seen(frame)
        self._expect_columns(sink, frame)
        failpoints.hit("driver.stage.before")
        try:
            slot = sink.stage(frame, key, self.attempt, fingerprint=self.assignment.fingerprint, options=options)
        except LateInSeries as late:
            raise self._permanent(late) from None
        failpoints.hit("driver.stage.after")
        if slot.skipped is None:  # else it has no rows, whatever was expected of them
            self._expect_rows(sink, key, slot)
        return slot

    def _expect_columns(self, sink: Sink, frame: DataFrame) -> None:
        expected = self._expected.get(sink.name, Expect())
        self._expect(sink, missing_columns(expected, frame.columns) if expected.columns else None)

    def _expect_rows(self, sink: Sink, key: SinkKey, slot: Slot) -> None:
        """Checks the number of staged rows; removes them if they are too few."""
        try:
            self._expect(sink, too_few_rows(self._expected.get(sink.name, Expect()), slot.rows))
        except ExpectationUnmet:
            with contextlib.suppress(OutputUnavailable):
                run(sink.discard(key, slot))
            raise

    def _expect(self, sink: Sink, unmet: str | None) -> None:
        """Ends the job if an expectation is unmet: reports that as a permanent error, then raises it."""
        if unmet is None:
            return
        message = f"output {sink.name} violates spec.outputs[{sink.name}].expect: {unmet}; nothing of it is visible"
        self.report("permanent-error", message=message[:MESSAGE_LIMIT], failure=Why.EXPECTATION)
        raise ExpectationUnmet(message)

    def _permanent(self, error: E) -> E:
        """Reports an error that each further attempt would meet again; returns it."""
        self.report("permanent-error", message=str(error)[:MESSAGE_LIMIT])
        return error

    def _written(self, sink: Sink, decision: CommitOutcome) -> Written:
        match decision:
            case FencedOff(slot):
                raise Fenced(
                    f"attempt {slot.token} of {self.key} can never commit to {sink.name}: its slot was closed by {slot.closed_by}; "
                    "nothing of it is visible there"
                )
            case Late(_, why):
                raise self._permanent(LateInSeries(f"output {sink.name}: {why}"))
            case Overtaken(_, why):
                raise TableMoved(
                    f"attempt {self.attempt} of {self.key} cannot commit to {sink.name}: {why}; nothing of it is visible"
                )
            case Stuck(_, why):
                raise OutputChanged(f"attempt {self.attempt} of {self.key} cannot commit to {sink.name}: {why}")
            case Conflicting():
                raise KeyConflict(
                    f"output {sink.name} ({sink.uri}) holds a commit of {self.key} for another job; use another key or output"
                )
            case AlreadyCommitted(slot) if (kind := _written_as(slot)) and slot.sink_key == str(self._key(sink)):
                how, call = kind
                raise InvalidInput(
                    f"output {sink.name} holds {how} in this generation of {self.key}; write it with {call}, "
                    f"or `sparkonce rerun` the job to begin anew"
                )
            case Committed(slot) | AlreadyCommitted(slot):
                return self._recorded(sink, slot, fresh=isinstance(decision, Committed))

    def _recorded(self, sink: Sink, slot: Slot, *, fresh: bool) -> Written:
        """What a committed slot says; fresh: this call committed it."""
        self._rows += slot.rows
        self._committed_slots[sink.name] = slot
        return Written(sink.name, sink.uri, slot.rows, slot.bytes, fresh, slot.skipped or "")


class Transaction:
    """Stages each write at once; seals and commits all of them when the `with` block completes, none when it raises."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._open = False
        self._broken: set[str] = set()
        """Outputs whose write failed inside the block and was not retried."""
        self._staged: dict[str, Slot] = {}
        self.written: dict[str, Written] = {}
        """By output; complete after the block."""

    def write(
        self,
        frame: DataFrame,
        output: str,
        *,
        mode: str | None = None,
        partition_by: Sequence[str] = (),
        merge_schema: bool = False,
    ) -> None:
        """As `Job.write`; visible once the block has completed."""
        job = self._job
        sink, key = job._sink(output)  # noqa: SLF001 - Transaction is part of Job
        if not self._open:
            raise InvalidInput(
                "a transaction writes inside its own block: `with job.transaction() as tx:`; nothing was staged"
            )
        chosen = _mode(sink, mode)
        if (chosen or sink.mode) is WriteMode.MERGE:
            raise InvalidInput(
                f"output {output} has mode Merge, in which Spark commits by itself and with nothing else; write it outside of the block"
            )
        if sink.kind == "slotLog" and (chosen or sink.mode) not in (None, WriteMode.APPEND):
            raise InvalidInput(
                f"output {output} is a slotLog, which no transaction overwrites: what is replaced would be decided when the transaction is "
                "sealed and not when it is committed; write it outside of the block, or declare a delta or iceberg output"
            )
        self._broken.add(output)
        if (found := job._committed(sink, key)) is not None:  # noqa: SLF001 - see above
            self.written[output] = found
        else:
            options = WriteOptions(partition_by=tuple(partition_by), merge_schema=merge_schema, mode=chosen)
            self._staged[output] = job._stage(sink, key, frame, options)  # noqa: SLF001 - see above
        job._outputs_written.add(output)  # noqa: SLF001 - see above
        self._broken.discard(output)

    def __enter__(self) -> Self:
        if self._job._block is not None:  # noqa: SLF001 - see above
            raise InvalidInput("a native block is open, which is committed by itself; close it first")
        self._job._block = self  # noqa: SLF001 - see above
        self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        self._job._block = None  # noqa: SLF001 - see above
        if kind is not None or self._broken:
            with contextlib.suppress(OutputUnavailable):  # the error of the block must reach its author
                self._discard()
            if kind is None:
                raise InvalidInput(
                    f"the write of {', '.join(sorted(self._broken))} failed inside this transaction, which commits all or none: "
                    "none was committed; let the error end the block"
                )
            return
        if self._staged:
            failpoints.hit("driver.seal.before")
            self._seal()
            failpoints.hit("driver.seal.after")
            self._commit()
        self._job._report_progress()  # noqa: SLF001 - see above
        failpoints.hit("driver.write.done")

    def _seal(self) -> None:
        job = self._job
        intent = intent_of(job.attempt, self._staged)
        # Raises if no reply arrives: the intent may be sealed, so staged files must stay; a settle run determines its fate.
        answer, unanswered = _insist(lambda: job.channel.seal(intent))
        if isinstance(answer, Sealed):
            return
        if not unanswered:
            # Refused on the first try: it is not sealed and never will be. After a lost reply it may have been sealed and rolled
            # forward, and its generation finished since: then the staged files are part of the table.
            with contextlib.suppress(OutputUnavailable):
                self._discard()
        raise Fenced(f"attempt {job.attempt} of {job.key} may not commit its transaction: {answer.reason}")

    def _commit(self) -> None:
        job = self._job
        decisions = run(commit_all(job._sinks, job.assignment.key_hash, job.generation, self._staged))  # noqa: SLF001 - see above
        for name, decision in decisions.items():
            self.written[name] = job._written(job._sinks[name], decision)  # noqa: SLF001 - see above

    def _discard(self) -> None:
        """Deletes the staged files of a block that was not sealed: they can never be committed."""
        for name, slot in self._staged.items():
            sink, job = self._job._sinks[name], self._job  # noqa: SLF001 - see above
            job._outputs_written.discard(name)  # noqa: SLF001 - see above
            run(sink.discard(job._key(sink), slot))  # noqa: SLF001 - see above
        self._staged.clear()


def _written_as(slot: Slot) -> tuple[str, str] | None:
    """What a committed slot is, and the call that wrote it; None for one of `job.write`."""
    if slot.branch is not None or (slot.stream is not None and slot.stream.native):
        return "a native block", "job.native() or job.sql()"
    return None if slot.stream is None else ("a stream", "job.stream()")


def _mode(sink: Sink, asked: str | None) -> WriteMode | None:
    """The mode that a write asks for; None: the declared one. Raises: InvalidInput: it does not exist, or the output does not take it."""
    if asked is None:
        return None
    mode = next((each for each in WriteMode if each.lower() == asked.lower()), None)
    if mode is None:
        raise InvalidInput(f"mode={asked!r} is none of {', '.join(WriteMode)}")
    if sink.mode not in (None, mode):
        raise InvalidInput(
            f"mode={asked!r} contradicts spec.outputs[{sink.name}].mode, which is {sink.mode}; leave one of them out"
        )
    return mode


def _insist(call: Callable[[], T]) -> tuple[T, bool]:
    """Repeats a call until it is answered; returns the answer and whether an earlier reply was lost.

    Raises:
        StoreUnavailable: no reply, too often.
    """
    for tries in range(TRIES):
        with contextlib.suppress(StoreUnavailable):
            return call(), tries > 0
    return call(), True


def _outcome_of(existing: Slot, sent: Slot) -> CommitOutcome:
    """The outcome of a commit whose reply was lost, from the slot that an abort found."""
    if existing.state is SlotState.CLOSED:
        return FencedOff(existing)
    if existing.nonce == sent.nonce:
        return Committed(existing)
    return AlreadyCommitted(existing) if existing.fingerprint == sent.fingerprint else Conflicting(existing)
