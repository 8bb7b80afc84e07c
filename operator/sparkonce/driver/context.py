"""What a job's code holds: its outputs, and one way to write each.

    job = sparkonce.current()
    job.write(df, "orders")
    with job.transaction() as tx:
        tx.write(a, "orders"); tx.write(b, "totals")

A write stages natively into a private folder and then commits by creating one slot; if the key is committed already, it returns what is
recorded *without running the DataFrame*. It knows nothing of the ledger but what it was told, and asks nobody for leave to commit: the
output itself refuses an attempt that was taken over (`Fenced`).
"""

from __future__ import annotations

import contextlib
import json
import sys
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from sparkonce import failpoints
from sparkonce.blocking import run
from sparkonce.driver.channel import Channel
from sparkonce.driver.heartbeat import Heartbeat
from sparkonce.driver.stream import Stream
from sparkonce.driver.written import Written
from sparkonce.errors import (
    AttemptEnded,
    ExpectationUnmet,
    Fenced,
    InvalidInput,
    KeyConflict,
    OutputChanged,
    OutputUnavailable,
    StoreUnavailable,
    StoreUnusable,
    UndeclaredOutput,
)
from sparkonce.model.assignment import Assignment
from sparkonce.model.expect import missing_columns, too_few_rows
from sparkonce.model.output import Expect
from sparkonce.model.record import COMMITTED, Why
from sparkonce.model.result import VALUES_LIMIT
from sparkonce.sink.protocol import (
    AlreadyCommitted,
    Committed,
    Conflicting,
    Decision,
    FencedOff,
    Sink,
    SinkKey,
    Slot,
    SlotState,
    Stuck,
    WriteOptions,
)
from sparkonce.sink.transaction import commit_all, intent_of, sink_key
from sparkonce.store.protocol import Sealed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")

TRIES = 5
"""A seal or a report whose answer is lost is sent again, so often; after that the attempt ends and settle finds out."""
COURTESY = 10.0
"""Seconds for which a driver tries to tell that all is committed: no job is held up for long by what it can do without."""
MESSAGE_LIMIT = 1024
"""Characters of a message of `job.fail()`: it is kept in the record, which is small."""


class Job:
    """One attempt, seen from its own code. Not for use from several threads at once."""

    replayed = False
    """In the place of a job whose key has its result (`sparkonce.job`) stands one that says True."""

    def __init__(
        self,
        assignment: Assignment,
        sinks: Mapping[str, Sink],
        channel: Channel,
        *,
        interval: float = 2.0,
        expected: Mapping[str, Expect] | None = None,
    ) -> None:
        self.assignment, self.channel = assignment, channel
        self._sinks = dict(sinks)
        self._expected = dict(expected or {})
        self._rows = 0
        self._values: dict[str, Any] = {}
        self._outputs_written: set[str] = set()
        self._committed_slots: dict[str, Slot] = {}
        """What is final, by output."""
        self._sequence = 0
        self._transactions = 0
        self._process = uuid.uuid4().hex[:12]
        self.heartbeat = Heartbeat(channel, interval=interval, progress=lambda: {"rows": self._rows})

    @property
    def key(self) -> str:
        return self.assignment.key

    @property
    def generation(self) -> int:
        return self.assignment.generation

    @property
    def attempt(self) -> int:
        """Also the fencing token."""
        return self.assignment.attempt

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self._sinks)

    def write(
        self, frame: DataFrame, output: str, *, partition_by: Sequence[str] = (), merge_schema: bool = False
    ) -> Written:
        """Writes the rows as this job's one effect on this output.

        partition_by: columns; folders of the table are named after them, and readers skip those that a filter rules out.
        merge_schema: adds columns that a Delta or Iceberg table does not have yet (slot logs merge when they are read).
        UndeclaredOutput; InvalidInput: this job has written the output already, or the columns do not fit; ExpectationUnmet;
        OutputChanged: the table was changed under the write; Fenced: its slot is closed, nothing is or will be
        visible; KeyConflict; RowsLost; OutputUnavailable: unknown, whoever comes next finds out."""
        sink, key = self._sink(output)
        options = WriteOptions(partition_by=tuple(partition_by), merge_schema=merge_schema)
        written = self._write(sink, key, frame, options)
        self._outputs_written.add(output)
        self._tell()
        failpoints.hit("driver.write.done")
        return written

    def _write(self, sink: Sink, key: SinkKey, frame: DataFrame, options: WriteOptions) -> Written:
        if (found := self._committed(sink, key)) is not None:
            return found
        return self._written(sink, self._commit(sink, key, self._stage(sink, key, frame, options)))

    def _commit(
        self, sink: Sink, key: SinkKey, slot: Slot, *, send: Callable[[], Coroutine[Any, Any, Decision]] | None = None
    ) -> Decision:
        """What became of a staged slot that no transaction holds. `send` commits it in another way than the sink's own."""
        try:
            decision = run(send() if send is not None else sink.commit(key, slot))
        except OutputUnavailable:
            # A commit was sent: only its slot can say how that ended.
            decision = _decided(run(sink.abort(key, slot)), slot)
        failpoints.hit("driver.commit.after")
        if not isinstance(decision, Committed):
            # Decided without us: what was staged here can never be committed, and what is not deleted now is swept.
            with contextlib.suppress(OutputUnavailable):
                run(sink.discard(key, slot))
        return decision

    def stream(self, frame: DataFrame) -> Stream:
        """A streaming DataFrame, each of whose micro-batches is one effect: `job.stream(df).write("orders")`."""
        return Stream(self, frame)

    def transaction(self) -> Transaction:
        """Several outputs, all or nothing in the end. One per generation."""
        self._transactions += 1
        if self._transactions > 1:
            raise InvalidInput(
                "a job has one transaction per run: write all its outputs in the one `with job.transaction()`"
            )
        return Transaction(self)

    def result(self, **values: Any) -> None:
        """Records small values, which every duplicate gets with the result. InvalidInput beyond 4 KiB of JSON, all calls together."""
        together = {**self._values, **values}
        try:
            size = len(json.dumps(together, allow_nan=False))
        except (TypeError, ValueError) as problem:
            raise InvalidInput(f"job.result() takes values that JSON can hold: {problem}") from None
        if size > VALUES_LIMIT:
            raise InvalidInput(
                f"job.result() was given {size} bytes of JSON and records at most {VALUES_LIMIT}; write an output instead"
            )
        self.report("values", values=values, sequence=self._sequence + 1)
        self._values = together

    def report(self, kind: str, **body: Any) -> None:
        """A create-once entry beside the record; each call makes one. StoreUnavailable: it may be there, or not."""
        reporter = self._reporter(kind)
        _insist(lambda: self.channel.report(reporter, kind, body))

    def _reporter(self, kind: str) -> str:
        """A name for one entry."""
        self._sequence += 1
        return f"{self._process}-{kind}-{self._sequence}"

    def fail(self, message: str) -> NoReturn:
        """Ends the job for good: trying again cannot help. It is Failed, unless something of it is committed."""
        self.report("permanent-error", message=message[:MESSAGE_LIMIT])
        sys.exit(f"sparkonce: {message}")

    def _tell(self) -> None:
        """After a commit. With the last output's, an owner that does not reach the outputs is told what stands in them: it believes "all
        committed" from any driver, and otherwise has to send somebody to look. A courtesy: without it that is what happens."""
        self.heartbeat.beat()
        if self.assignment.gateway and self._committed_slots.keys() == self._sinks.keys():
            slots = {name: slot.dump() for name, slot in self._committed_slots.items()}
            with contextlib.suppress(StoreUnavailable, StoreUnusable):
                self.channel.report(self._reporter(COMMITTED), COMMITTED, {"slots": slots}, patience=COURTESY)

    def _sink(self, output: str) -> tuple[Sink, SinkKey]:
        if self.heartbeat.over:
            raise AttemptEnded(f"attempt {self.attempt} of {self.key} is over; nothing it writes can be committed")
        sink = self._sinks.get(output)
        if sink is None:
            declared = ", ".join(self._sinks) or "none"
            raise UndeclaredOutput(
                f"output {output!r} is not declared under spec.outputs (declared: {declared}); declare it there"
            )
        if output in self._outputs_written:
            raise InvalidInput(
                f"output {output!r} is written twice by one job, which has one effect on it; union the DataFrames first"
            )
        return sink, self._key(sink)

    def _key(self, sink: Sink) -> SinkKey:
        return sink_key(self.assignment.key_hash, self.generation, sink)

    def _committed(self, sink: Sink, key: SinkKey) -> Written | None:
        """What is recorded, if anything: then no DataFrame needs to run. Closes lower slots on the way (rule R)."""
        slot = run(sink.fence(key, self.attempt, fingerprint=self.assignment.fingerprint, by=f"attempt {self.attempt}"))
        if slot is None:
            return None
        same = slot.fingerprint == self.assignment.fingerprint
        return self._written(sink, AlreadyCommitted(slot) if same else Conflicting(slot))

    def _stage(self, sink: Sink, key: SinkKey, frame: DataFrame, options: WriteOptions) -> Slot:
        expected = self._expected.get(sink.name, Expect())
        self._expect(sink, missing_columns(expected, frame.columns) if expected.columns else None)
        failpoints.hit("driver.stage.before")
        slot = sink.stage(frame, key, self.attempt, fingerprint=self.assignment.fingerprint, options=options)
        failpoints.hit("driver.stage.after")
        try:
            self._expect(sink, too_few_rows(expected, slot.rows))
        except ExpectationUnmet:
            with contextlib.suppress(OutputUnavailable):
                run(sink.discard(key, slot))
            raise
        return slot

    def _expect(self, sink: Sink, unmet: str | None) -> None:
        """Tells the ledger that the job's own expectation ends it, then its author."""
        if unmet is None:
            return
        said = (
            f"output {sink.name} is not as spec.outputs[{sink.name}].expect wants it: {unmet}; nothing of it is visible"
        )
        self.report("permanent-error", message=said[:MESSAGE_LIMIT], failure=Why.EXPECTATION)
        raise ExpectationUnmet(said)

    def _written(self, sink: Sink, decision: Decision) -> Written:
        match decision:
            case FencedOff(slot):
                raise Fenced(
                    f"attempt {slot.token} of {self.key} can never commit to {sink.name}: its slot was closed by {slot.closed_by}; "
                    "nothing of it is visible there"
                )
            case Stuck(_, why):
                raise OutputChanged(f"attempt {self.attempt} of {self.key} cannot commit to {sink.name}: {why}")
            case Conflicting():
                raise KeyConflict(
                    f"output {sink.name} ({sink.uri}) holds a commit of {self.key} for another job; use another key or output"
                )
            case AlreadyCommitted(slot) if slot.stream is not None and slot.sink_key == str(self._key(sink)):
                raise InvalidInput(
                    f"output {sink.name} holds a stream in this generation of {self.key}; write it with job.stream(), "
                    f"or `sparkonce rerun` the job to begin anew"
                )
            case Committed(slot) | AlreadyCommitted(slot):
                self._rows += slot.rows
                self._committed_slots[sink.name] = slot
                return Written(sink.name, sink.uri, slot.rows, slot.bytes, isinstance(decision, Committed))


class Transaction:
    """Stages each write at once; seals and commits all of them when the `with` block ends well, none when it does not."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._open = False
        self._broken: set[str] = set()
        """Outputs whose write failed inside the block and was not repeated."""
        self._staged: dict[str, Slot] = {}
        self.written: dict[str, Written] = {}
        """By output; complete after the block."""

    def write(
        self, frame: DataFrame, output: str, *, partition_by: Sequence[str] = (), merge_schema: bool = False
    ) -> None:
        """As `Job.write`, visible when the block has ended well."""
        job = self._job
        sink, key = job._sink(output)  # noqa: SLF001 - one module, two halves of one thing
        if not self._open:
            raise InvalidInput(
                "a transaction writes inside its own block: `with job.transaction() as tx:`; nothing was staged"
            )
        self._broken.add(output)
        if (found := job._committed(sink, key)) is not None:  # noqa: SLF001 - see above
            self.written[output] = found
        else:
            options = WriteOptions(partition_by=tuple(partition_by), merge_schema=merge_schema)
            self._staged[output] = job._stage(sink, key, frame, options)  # noqa: SLF001 - see above
        job._outputs_written.add(output)  # noqa: SLF001 - see above
        self._broken.discard(output)

    def __enter__(self) -> Self:
        self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        if kind is not None or self._broken:
            with contextlib.suppress(OutputUnavailable):  # the block's own error is what its author must see
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
        self._job._tell()  # noqa: SLF001 - see above
        failpoints.hit("driver.write.done")

    def _seal(self) -> None:
        job = self._job
        intent = intent_of(job.attempt, self._staged)
        # Raises when it stays unanswered: it may be sealed, so nothing staged may be deleted; settle finds out.
        answer, unanswered = _insist(lambda: job.channel.seal(intent))
        if isinstance(answer, Sealed):
            return
        if not unanswered:
            # Refused, and never sent before: it is not sealed and never will be. After a lost answer it may have been, and rolled
            # forward, and its generation may be over since: then the staged files are the table.
            with contextlib.suppress(OutputUnavailable):
                self._discard()
        raise Fenced(f"attempt {job.attempt} of {job.key} may not commit its transaction: {answer.reason}")

    def _commit(self) -> None:
        job = self._job
        decisions = run(commit_all(job._sinks, job.assignment.key_hash, job.generation, self._staged))  # noqa: SLF001 - see above
        for name, decision in decisions.items():
            self.written[name] = job._written(job._sinks[name], decision)  # noqa: SLF001 - see above

    def _discard(self) -> None:
        """Nothing of this block was sealed: its folders can never be committed."""
        for name, slot in self._staged.items():
            sink, job = self._job._sinks[name], self._job  # noqa: SLF001 - see above
            job._outputs_written.discard(name)  # noqa: SLF001 - see above
            run(sink.discard(job._key(sink), slot))  # noqa: SLF001 - see above
        self._staged.clear()


def _insist(call: Callable[[], T]) -> tuple[T, bool]:
    """The answer, and whether one was lost before it. StoreUnavailable: there was none."""
    for tries in range(TRIES):
        with contextlib.suppress(StoreUnavailable):
            return call(), tries > 0
    return call(), True


def _decided(stands: Slot, sent: Slot) -> Decision:
    """What an abort found, as a commit would have said it."""
    if stands.state is SlotState.CLOSED:
        return FencedOff(stands)
    if stands.nonce == sent.nonce:
        return Committed(stands)
    return AlreadyCommitted(stands) if stands.fingerprint == sent.fingerprint else Conflicting(stands)
