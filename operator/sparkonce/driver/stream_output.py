# ruff: noqa: SLF001 - another half of Job, in a file of its own
"""One output of a stream, as one attempt sees it: what is committed, whether a batch may follow, and the commit itself.

It learns the chain once, when the attempt begins, and barring the earlier attempts is part of that look. From then on it keeps the newest
slot in memory: slots never change, so what was seen committed stays, and a twin's or a successor's batch is met at the commit.

Whether a delivered batch is *the* batch that is committed under its number is never guessed from the number: query id and plan must be
equal, else StreamBroken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparkonce import failpoints
from sparkonce.blocking import run
from sparkonce.driver.written import Written
from sparkonce.errors import (
    AttemptEnded,
    Fenced,
    InvalidInput,
    KeyConflict,
    OutputChanged,
    OutputUnavailable,
    OutputUnsupported,
    StreamBroken,
)
from sparkonce.sink import stream
from sparkonce.sink.protocol import (
    AlreadyCommitted,
    Committed,
    Conflicting,
    Decision,
    Slot,
    SlotState,
    StreamMark,
    StreamPart,
    Stuck,
    WriteOptions,
)
from sparkonce.sink.slots import SlotLog
from sparkonce.sink.stream import Chain, Linked, mark
from sparkonce.sink.table import SNAPSHOT_AFTER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkonce.driver.context import Job


class StreamOutput:
    """One output of a stream in one attempt. Not for use from several threads at once."""

    def __init__(self, job: Job, name: str, frame: DataFrame) -> None:
        sink, self._key = job._sink(name)
        if not isinstance(sink, SlotLog | Linked):
            raise OutputUnsupported(
                f"spec.outputs[{name}].{sink.kind}: a stream writes slotLog, delta and iceberg outputs only; declare one of these instead"
            )
        if job._expected and job._expected[name].min_rows:
            raise InvalidInput(
                f"spec.outputs[{name}].expect.minRows counts the rows of one commit, and a stream has one per batch; leave it out"
            )
        self._job, self._frame = job, frame
        self._sink: Any = sink  # a Sink, which is a SlotLog or Linked: Python's types have no word for both
        self._chain: Chain | None = None
        self._query_id, self._checkpoint = "", ""
        self._first: int | None = None

    @property
    def default(self) -> str:
        """Checkpoint location."""
        return str(self._sink.checkpoint(self._key))

    @property
    def ended(self) -> bool:
        return self._chain is not None and self._chain.ended

    @property
    def query_id(self) -> str:
        """Of the checkpoint that the stream was begun with; empty when it was not begun."""
        return self._chain.query_id if self._chain else ""

    @property
    def uri(self) -> str:
        return str(self._sink.uri)

    @property
    def last_batch(self) -> int | None:
        return self._chain.last_batch if self._chain else None

    def look(self) -> None:
        """Bars all earlier attempts, and learns what they committed."""
        job, token = self._job, self._job.attempt
        told: dict[str, Any] = {"fingerprint": job.assignment.fingerprint, "by": f"attempt {token}"}
        opening = run(self._sink.fence(self._key, token, **told))
        if opening is None:
            return
        self._opened(opening)
        self._chain = run(stream.close(self._sink, self._key, opening, token, **told))
        job._rows += mark(self._chain.last).rows

    def bind(self, query_id: str, checkpoint: str) -> None:
        """StreamBroken: the stream was begun with another checkpoint."""
        self._query_id, self._checkpoint = query_id, checkpoint
        if self._chain is not None and self._chain.query_id != query_id:
            raise StreamBroken(
                f"output {self._sink.name} was begun with another checkpoint (query {self._chain.query_id}) than {checkpoint} "
                f"(query {query_id}), which would deliver its rows again; give the old checkpoint back, or "
                f"`sparkonce rerun {self._job.key}` with a new one"
            )

    def begin(self, number: int, plan: str) -> bool:
        """Whether the batch is committed already. StreamBroken; AttemptEnded: the stream has its end."""
        if number < self._first_batch():
            return True  # an earlier key's stream, which used the same checkpoint, has it
        if self._chain is None:
            if number != self._first_batch():
                raise self._gap(number, self._first_batch())
            self._chain = self._open()
        chain = self._chain
        if chain.last_batch is not None and number <= chain.last_batch:
            stands = run(self._sink.find(stream.place(self._key, number)))
            if stands is None:
                raise OutputUnavailable(f"batch {number} of {self._key} is committed and cannot be read now; try again")
            self._same(stands, number, plan)
            return True
        self._open_still(chain)
        if number != chain.next:
            raise self._gap(number, chain.next)
        return False

    def write(self, number: int, plan: str, frame: DataFrame, options: WriteOptions) -> Written:
        """Of a batch that has begun here."""
        key = stream.place(self._key, number)
        if number < self._first_batch():
            return Written(self._sink.name, self._sink.uri, 0, 0, fresh=False)
        chain = self._known()
        if chain.last_batch is not None and number <= chain.last_batch:
            return self._as_written(run(self._sink.find(key)), fresh=False)
        slot = self._job._stage(self._sink, key, frame, options)
        return self._commit(number, plan, stream.batch_of(chain, number, slot, plan=plan))

    def fill(self, number: int, plan: str) -> None:
        """The batch has no rows for this output, unless they were written."""
        chain = self._known()
        if chain.last_batch is None or chain.last_batch < number:
            self._commit(number, plan, stream.empty_batch(chain, self._key, number, self._job.attempt, plan=plan))

    def end(self) -> StreamMark:
        """Ends the stream here, unless it has ended; its totals. Fenced, KeyConflict, OutputUnavailable."""
        job, sink = self._job, self._sink
        if self._chain is None:
            self._chain = self._open()
        failpoints.hit("driver.stream.end.before")
        self._chain, barred = run(
            stream.finish(
                sink,
                self._key,
                self._chain,
                job.attempt,
                by=self._frame.sparkSession.sparkContext.applicationId,
                # A table has the columns of its rows, and those may be others than the stream's.
                data_schema=self._frame.schema.json() if isinstance(sink, SlotLog) else "",
            )
        )
        if barred is not None:
            raise self._barred(barred)
        self._job._committed_slots[sink.name] = self._chain.last
        failpoints.hit("driver.stream.ended")
        return mark(self._chain.last)

    def _first_batch(self) -> int:
        """The number that this stream begins with: 0, unless its checkpoint has served other keys before."""
        if self._first is None:
            if self._chain is not None:
                self._first = mark(self._chain.opening).first_batch
            else:
                try:
                    sink = self._sink
                    there = run(sink.committed() if isinstance(sink, SlotLog) else sink.using(self._query_id))
                    self._first = stream.begins_with(there, self._key, self._query_id)
                except ValueError as refused:
                    raise StreamBroken(
                        f"the checkpoint {self._checkpoint} cannot begin the stream of {self._job.key} in output {self._sink.name}: "
                        f"{refused}"
                    ) from None
        return self._first

    def _open(self) -> Chain:
        failpoints.hit("driver.stream.open.before")
        opening = stream.opening_of(
            self._key,
            self._job.attempt,
            query_id=self._query_id,
            first_batch=self._first_batch(),
            fingerprint=self._job.assignment.fingerprint,
            on_rerun=self._sink.on_rerun,
        )
        decision = run(self._sink.commit(self._key, opening))
        if not isinstance(decision, Committed | AlreadyCommitted):
            raise self._barred(decision)
        self._opened(decision.slot)
        self._chain = Chain(decision.slot, decision.slot)
        self.bind(self._query_id, self._checkpoint)
        failpoints.hit("driver.stream.opened")
        return self._chain

    def _opened(self, slot: Slot) -> None:
        if slot.fingerprint != self._job.assignment.fingerprint:
            self._job._written(self._sink, Conflicting(slot))
        if slot.stream is None:
            raise InvalidInput(
                f"output {self._sink.name} holds a plain write in this generation of {self._job.key}; "
                "`sparkonce rerun` the job to write it as a stream"
            )

    def _commit(self, number: int, plan: str, slot: Slot) -> Written:
        chain, sink = self._known(), self._sink
        decision = self._job._commit(
            sink, stream.place(self._key, number), slot, send=lambda: stream.commit(sink, self._key, chain, slot)
        )
        if not isinstance(decision, Committed | AlreadyCommitted):
            raise self._barred(decision)
        self._chain = chain.followed_by(decision.slot)
        self._open_still(self._chain)
        self._same(decision.slot, number, plan)
        self._job._rows += decision.slot.rows
        if isinstance(sink, SlotLog) and self._chain.batches % SNAPSHOT_AFTER == 0:
            run(sink.snapshot())
        return self._as_written(decision.slot, fresh=isinstance(decision, Committed))

    def _known(self) -> Chain:
        if self._chain is None:
            raise InvalidInput("a batch is written inside the function that was given to foreach_batch()")
        return self._chain

    def _open_still(self, chain: Chain) -> None:
        if chain.ended:
            raise AttemptEnded(
                f"the stream of {self._job.key} in output {self._sink.name} was ended after "
                f"{'no batch' if chain.last_batch is None else f'batch {chain.last_batch}'}; nothing is committed after its end"
            )

    def _same(self, stands: Slot, number: int, plan: str) -> None:
        """What stands in the place of a batch is that batch."""
        told = mark(stands)
        if told.part is not StreamPart.BATCH or (told.query_id, told.input) != (self._query_id, plan):
            raise StreamBroken(
                f"the checkpoint {self._checkpoint} plans batch {number} with other rows than those that are committed to output "
                f"{self._sink.name}: it was put back to an older state; give back the newest one, or `sparkonce rerun {self._job.key}` "
                "with a new one"
            )

    def _gap(self, number: int, expected: int) -> StreamBroken:
        return StreamBroken(
            f"the checkpoint {self._checkpoint} delivers batch {number}, and output {self._sink.name} waits for batch {expected}: what "
            f"lies between would be lost; `sparkonce rerun {self._job.key}` with a new checkpoint, and let nothing else use it"
        )

    def _barred(self, decision: Decision) -> Fenced | KeyConflict | OutputChanged:
        """Why this attempt can never commit here."""
        job, slot = self._job, decision.slot
        if isinstance(decision, Stuck):
            return OutputChanged(
                f"attempt {job.attempt} of {job.key} cannot commit to {self._sink.name}: {decision.why}"
            )
        if slot.fingerprint != job.assignment.fingerprint:
            return KeyConflict(
                f"output {self._sink.name} ({self._sink.uri}) holds a commit of {job.key} for another job; use another key or output"
            )
        by = slot.closed_by if slot.state is SlotState.CLOSED else f"attempt {slot.token}"
        return Fenced(
            f"attempt {job.attempt} of {job.key} can commit nothing more to {self._sink.name}: the stream was taken over by {by}"
        )

    def _as_written(self, stands: Slot | None, *, fresh: bool) -> Written:
        if stands is None:
            raise OutputUnavailable(f"a committed batch of {self._key} cannot be read now; try again")
        return Written(self._sink.name, self._sink.uri, stands.rows, stands.bytes, fresh)
