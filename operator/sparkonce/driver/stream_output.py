# ruff: noqa: SLF001 - streams are part of Job, in modules of their own
"""One output of a stream in one attempt: whether a batch is committed already, whether it may follow, and its commit.

A batch is committed by one create-once slot in a chain (`sparkonce.sink.stream`; in Delta and Iceberg tables by the table's own commit).
Whether a delivered batch is *the* batch committed under its number is never guessed from the number: Spark's query id and a digest of the
checkpoint's plan of the batch must be equal, else StreamBroken. An attempt reads the chain once, when it begins, and bars the earlier
attempts with that. From then on it keeps the newest slot in memory: slots never change, and a batch of another process with the same token,
or of a successor, is found at the commit.

A stream is opened with its first commit, after its rows are staged: a batch that fails before leaves nothing in the table. Between the
opening and that commit the driver looks for streams of other checkpoints that read the same source (`sparkonce.sink.stream`).

Refused: a checkpoint that was reset or restored, one that begins anew beside rows of another stream of the same source unless `restart` is
given, one that continues after batches which this table does not have or would lose, a batch that leaves a gap, a table that was dropped
under the stream, `expect.minRows` (a stream has no single commit to count).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sparkonce import failpoints
from sparkonce.blocking import run
from sparkonce.driver.channel import Written
from sparkonce.driver.source import sources_of, without_password
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
from sparkonce.model.spec import OnRerun, WriteMode
from sparkonce.sink import stream
from sparkonce.sink.protocol import (
    AlreadyCommitted,
    CommitOutcome,
    Committed,
    Conflicting,
    Evidence,
    Slot,
    SlotState,
    StreamMark,
    StreamOrigin,
    StreamPart,
    StreamSource,
    Stuck,
    WriteOptions,
)
from sparkonce.sink.slotlog.sink import SlotLogSink
from sparkonce.sink.slotlog.snapshot import SNAPSHOT_AFTER
from sparkonce.sink.stream import Chain, Linked, OtherStream, mark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkonce.driver.context import Job


class StreamOutput:
    """The chain of one output. Not thread-safe."""

    def __init__(self, job: Job, name: str, frame: DataFrame, *, restart: bool) -> None:
        sink, self._key = job._sink(name)
        if not isinstance(sink, SlotLogSink | Linked):
            raise OutputUnsupported(
                f"spec.outputs[{name}].{sink.kind}: a stream writes slotLog, delta and iceberg outputs only; declare one of these instead"
            )
        if sink.mode not in (None, WriteMode.APPEND):
            raise InvalidInput(
                f"spec.outputs[{name}].mode is {sink.mode}, and a stream adds its batches one after the other; leave it out"
            )
        if sink.place is not None:
            raise InvalidInput(
                "spec.series orders jobs that write a table once, and a stream has many batches; leave it out"
            )
        if job._expected and job._expected[name].min_rows:
            raise InvalidInput(
                f"spec.outputs[{name}].expect.minRows counts the rows of one commit, and a stream has one per batch; leave it out"
            )
        self._job, self._frame, self._restart = job, frame, restart
        self._sources: tuple[StreamSource, ...] | None = None
        self._begun: int | None = None
        """Number of the batch that `begin` found uncommitted last."""
        self._looked = False
        """Whether no other stream of these sources was found after the opening was committed."""
        self._sink: Any = sink  # a Sink that is also a SlotLogSink or Linked: Python has no intersection types
        self._chain: Chain | None = None
        self._query_id, self._checkpoint = "", ""
        self._first: int | None = None

    @property
    def default(self) -> str:
        """Default checkpoint location."""
        return str(self._sink.checkpoint(self._key))

    @property
    def ended(self) -> bool:
        return self._chain is not None and self._chain.ended

    @property
    def query_id(self) -> str:
        """Query id of the checkpoint that the stream started with; empty if it has not started."""
        return self._chain.query_id if self._chain else ""

    @property
    def uri(self) -> str:
        return str(self._sink.uri)

    @property
    def last_batch(self) -> int | None:
        return self._chain.last_batch if self._chain else None

    @property
    def on_rerun(self) -> OnRerun:
        return OnRerun(self._sink.on_rerun)

    def read_chain(self) -> None:
        """Bars all earlier attempts and reads the chain that they committed.

        Raises:
            KeyConflict: another job has committed this key.
            InvalidInput: the output contains a plain write of this generation.
            OutputUnavailable: unknown whether the call took effect; it may be repeated.
        """
        self._close_earlier()
        if self._chain is not None:
            self._job._rows += mark(self._chain.last).rows

    def _close_earlier(self) -> None:
        token = self._job.attempt
        caller: dict[str, Any] = {"fingerprint": self._job.assignment.fingerprint, "by": f"attempt {token}"}
        opening = run(self._sink.fence(self._key, token, **caller))
        if opening is not None:
            self._check_opening(opening)
            self._chain = run(stream.close(self._sink, self._key, opening, token, **caller))

    def bind(self, query_id: str, checkpoint: str) -> None:
        """Sets the checkpoint of the query.

        Raises:
            StreamBroken: the stream started with another checkpoint.
        """
        self._query_id, self._checkpoint = query_id, checkpoint
        if self._chain is not None and self._chain.query_id != query_id:
            raise StreamBroken(
                f"output {self._sink.name} started with another checkpoint (query {self._chain.query_id}) than {checkpoint} "
                f"(query {query_id}), which would deliver its rows again; use the old checkpoint, or {self.anew('a new one')}"
            )

    def require(self, done: int) -> None:
        """Checks that the table has every batch up to `done`, the last one that the checkpoint records as done and never delivers again.

        Raises:
            StreamBroken: it has not, or the checkpoint cannot begin a stream here.
            KeyConflict, InvalidInput, OutputUnavailable: as `read_chain`.
        """
        if done >= self._next():
            self._close_earlier()  # another process may have committed since the chain was read
            self.bind(self._query_id, self._checkpoint)
        if done >= self._next():
            raise self._gap(done + 1, self._next())

    def _next(self) -> int:
        return self._first_batch() if self._chain is None else self._chain.next

    def begin(self, number: int, plan: str) -> bool:
        """Whether the batch is committed already.

        Raises:
            StreamBroken: the checkpoint does not match the chain, or begins anew beside rows of its source.
            AttemptEnded: the stream has ended.
            OutputUnavailable: the committed batch cannot be read now.
        """
        if number < self._first_batch():
            return True  # committed by an earlier key's stream with the same checkpoint
        chain = self._chain
        if chain is None:
            if number != self._first_batch():
                raise self._gap(number, self._first_batch())
            self._refuse_beside()  # saves work; the check after the opening is the one that decides
        elif chain.last_batch is not None and number <= chain.last_batch:
            existing = run(self._sink.find(stream.place(self._key, number)))
            if existing is None:
                raise OutputUnavailable(f"batch {number} of {self._key} is committed and cannot be read now; try again")
            self._same(existing, number, plan)
            return True
        else:
            self._require_open(chain)
            if number != chain.next:
                raise self._gap(number, chain.next)
        self._begun = number
        return False

    def open(self) -> None:
        """Makes the stream ready for its first batch: opens it unless it is open, then looks for streams that its rows would repeat.

        Raises:
            StreamBroken: the stream started with another checkpoint, or begins anew beside rows of its source.
            Fenced, KeyConflict, InvalidInput: as `write`.
            OutputUnavailable: unknown whether the call took effect; it may be repeated.
        """
        chain = self._chain or self._open()
        if not self._looked and not chain.batches:
            self._refuse_beside()
        self._looked = True

    def write(
        self, number: int, plan: str, frame: DataFrame, options: WriteOptions, *, before: Callable[[], None]
    ) -> Written:
        """Writes a batch for which `begin` was called; returns the committed slot's content if there is one. before: called between
        staging and commit; opens all outputs of the stream. Errors as `Job.write`."""
        key = stream.place(self._key, number)
        if number < self._first_batch():
            return Written(self._sink.name, self._sink.uri, 0, 0, fresh=False)
        chain = self._chain
        if chain is not None and chain.last_batch is not None and number <= chain.last_batch:
            return self._as_written(run(self._sink.find(key)), fresh=False)
        if self._begun != number:
            raise InvalidInput("a batch is written inside the function that was given to foreach_batch()")
        slot = self._job._stage(self._sink, key, frame, options)
        try:
            before()
        except BaseException:
            with contextlib.suppress(OutputUnavailable):  # the error that refused the stream matters
                run(self._sink.discard(key, slot))
            raise
        return self._commit(number, plan, stream.batch_of(self._require_chain(), number, slot, plan=plan))

    def fill(self, number: int, plan: str) -> None:
        """Commits the batch without rows, unless it was written. Errors as `Job.write`."""
        chain = self._require_chain()
        if chain.last_batch is None or chain.last_batch < number:
            self._commit(number, plan, stream.empty_batch(chain, self._key, number, self._job.attempt, plan=plan))

    def end(self) -> StreamMark:
        """Ends the stream, unless it has ended; returns its totals.

        Raises:
            Fenced: another attempt took over.
            KeyConflict: another job has committed this key.
            OutputUnavailable: unknown whether the call took effect; it may be repeated.
        """
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
                # A table keeps its own schema, which may differ from the stream's.
                data_schema=self._frame.schema.json() if isinstance(sink, SlotLogSink) else "",
            )
        )
        if barred is not None:
            raise self._barred(barred)
        self._job._committed_slots[sink.name] = self._chain.last
        failpoints.hit("driver.stream.ended")
        return mark(self._chain.last)

    def _first_batch(self) -> int:
        """Number of the stream's first batch: 0, unless earlier keys used its checkpoint."""
        if self._first is None:
            if self._chain is not None:
                self._first = mark(self._chain.opening).first_batch
            else:
                try:
                    used = run(self._sink.using(self._query_id))
                    self._first = stream.begins_with(used, self._key, self._query_id)
                except ValueError as refused:
                    raise StreamBroken(
                        f"the checkpoint {self._checkpoint} cannot begin the stream of {self._job.key} in output {self._sink.name}: "
                        f"{refused}"
                    ) from None
        return self._first

    def _read_sources(self) -> tuple[StreamSource, ...]:
        if self._sources is None:
            self._sources = sources_of(self._frame)
        return self._sources

    def _refuse_beside(self) -> None:
        """Refuses a stream that begins anew beside rows that it would write again.

        Raises:
            StreamBroken: there are such rows, and no restart is wanted.
            OutputUnavailable: the table cannot be read now.
        """
        if self._restart or self._first_batch() > 0:
            return
        sink, sources = self._sink, self._read_sources()
        slots = run(sink.reading(sources))
        others = stream.beside(slots, self._key, query_id=self._query_id, sources=sources, on_rerun=sink.on_rerun)
        for other in reversed(others):
            of = stream.key_of(other.opening.sink_key)
            if of is None or run(sink.probe(of, None)) is not Evidence.REPLACED:
                raise StreamBroken(self._repeats(other))

    def _repeats(self, other: OtherStream) -> str:
        """The sentence for a stream that would repeat the rows of another one, with what can be done about it."""
        has = f"committed {other.rows} rows" if other.rows else "has begun and may yet commit rows"
        go_on = "" if self._chain is not None else self._to_go_on(other)
        return (
            f"the stream of {self._job.key} (generation {self._key.generation}, checkpoint {self._checkpoint}, query {self._query_id}) "
            f"would begin anew in output {self._sink.name}, where the stream of {other} {has} of the same source, {other.source}: they "
            f"would be there twice; {go_on}set `stream: {{restart: true}}` in the spec, or restart=True in the call, to write them again"
        )

    def _to_go_on(self, other: OtherStream) -> str:
        """How to continue after the other stream: part of a sentence, empty where its checkpoint cannot be used here."""
        try:
            stream.begins_with(run(self._sink.using(other.query_id)), self._key, other.query_id)
        except ValueError:
            return "" if other.ended else "wait for its end (or cancel it) and then use its checkpoint, or "
        restored = mark(other.opening).origin
        same_place = restored is not None and restored.checkpoint == without_password(self._checkpoint)
        return (
            "restore its checkpoint to go on after it, or "
            if same_place
            else "use its checkpoint to go on after it, or "
        )

    def anew(self, checkpoint: str) -> str:
        """How to write the stream anew, with the checkpoint that it then needs: part of a sentence."""
        if self.on_rerun is OnRerun.REPLACE:
            return f"`sparkonce rerun {self._job.key}` with {checkpoint}"
        return (
            f"`sparkonce rerun` the job with {checkpoint} and `stream: {{restart: true}}` (onRerun: Append keeps the old rows, "
            "so the table then holds them twice)"
        )

    def _open(self) -> Chain:
        failpoints.hit("driver.stream.open.before")
        origin = StreamOrigin(
            key=self._job.key, checkpoint=without_password(self._checkpoint), sources=self._read_sources()
        )
        opening = stream.opening_of(
            self._key,
            self._job.attempt,
            query_id=self._query_id,
            first_batch=self._first_batch(),
            fingerprint=self._job.assignment.fingerprint,
            on_rerun=self._sink.on_rerun,
            origin=origin,
        )
        decision = run(self._sink.commit(self._key, opening))
        if not isinstance(decision, Committed | AlreadyCommitted):
            raise self._barred(decision)
        self._check_opening(decision.slot)
        self._chain = Chain(decision.slot, decision.slot)
        self.bind(self._query_id, self._checkpoint)
        failpoints.hit("driver.stream.opened")
        return self._chain

    def _check_opening(self, slot: Slot) -> None:
        if slot.fingerprint != self._job.assignment.fingerprint:
            self._job._written(self._sink, Conflicting(slot))
        if slot.stream is None or slot.stream.native:
            kind = "a plain write" if slot.stream is None else "a native block"
            raise InvalidInput(
                f"output {self._sink.name} has {kind} in this generation of {self._job.key}; "
                "`sparkonce rerun` the job to write it as a stream"
            )

    def _commit(self, number: int, plan: str, slot: Slot) -> Written:
        chain, sink = self._require_chain(), self._sink
        decision = self._job._commit(
            sink, stream.place(self._key, number), slot, send=lambda: stream.commit(sink, self._key, chain, slot)
        )
        if not isinstance(decision, Committed | AlreadyCommitted):
            raise self._barred(decision)
        self._chain = chain.followed_by(decision.slot)
        self._require_open(self._chain)
        self._same(decision.slot, number, plan)
        self._job._rows += decision.slot.rows
        if isinstance(sink, SlotLogSink) and self._chain.batches % SNAPSHOT_AFTER == 0:
            run(sink.snapshot())
        return self._as_written(decision.slot, fresh=isinstance(decision, Committed))

    def _require_chain(self) -> Chain:
        assert self._chain is not None  # the stream is opened before anything is committed to it
        return self._chain

    def _require_open(self, chain: Chain) -> None:
        if chain.ended:
            raise AttemptEnded(
                f"the stream of {self._job.key} in output {self._sink.name} was ended after "
                f"{'no batch' if chain.last_batch is None else f'batch {chain.last_batch}'}; nothing is committed after its end"
            )

    def _same(self, existing: Slot, number: int, plan: str) -> None:
        """Checks that the slot in the place of a batch is that batch.

        Raises:
            StreamBroken: it has another query id or plan.
        """
        found = mark(existing)
        if found.part is not StreamPart.BATCH or (found.query_id, found.input) != (self._query_id, plan):
            raise StreamBroken(
                f"the checkpoint {self._checkpoint} plans batch {number} with other rows than those that are committed to output "
                f"{self._sink.name}: it was restored to an older state; restore the newest one, or {self.anew('a new one')}"
            )

    def _gap(self, number: int, expected: int) -> StreamBroken:
        return StreamBroken(
            f"the checkpoint {self._checkpoint} delivers batch {number}, and output {self._sink.name} expects batch {expected}: the "
            f"batches between would be lost; {self.anew('a new checkpoint')}, and let nothing else use it"
        )

    def _barred(self, decision: CommitOutcome) -> Fenced | KeyConflict | OutputChanged:
        """The error that says why this attempt can never commit here."""
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

    def _as_written(self, existing: Slot | None, *, fresh: bool) -> Written:
        if existing is None:
            raise OutputUnavailable(f"a committed batch of {self._key} cannot be read now; try again")
        return Written(self._sink.name, self._sink.uri, existing.rows, existing.bytes, fresh)
