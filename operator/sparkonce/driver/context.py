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
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from sparkonce import failpoints
from sparkonce.blocking import run
from sparkonce.driver.channel import Channel
from sparkonce.driver.heartbeat import Heartbeat
from sparkonce.errors import (
    AttemptEnded,
    Fenced,
    InvalidInput,
    KeyConflict,
    OutputUnavailable,
    StoreUnavailable,
    UndeclaredOutput,
)
from sparkonce.model.assignment import Assignment
from sparkonce.model.record import Intent
from sparkonce.model.result import VALUES_LIMIT
from sparkonce.sink.protocol import AlreadyCommitted, Committed, Conflicting, Decision, FencedOff, Sink, SinkKey, Slot
from sparkonce.sink.transaction import commit_all, intent_of, sink_key
from sparkonce.store.protocol import Refused, Sealed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SEAL_TRIES = 5
"""A seal whose answer is lost is asked again, so often; after that the attempt ends and settle finds out."""


@dataclass(frozen=True)
class Written:
    """What stands in an output now."""

    output: str
    uri: str
    rows: int
    bytes: int
    fresh: bool
    """False: an earlier attempt, or an earlier run of this key, wrote it; the DataFrame was not run, or its rows were thrown away."""


class Job:
    """One attempt, seen from its own code. Not for use from several threads at once."""

    def __init__(
        self, assignment: Assignment, sinks: Mapping[str, Sink], channel: Channel, *, interval: float = 2.0
    ) -> None:
        self.assignment, self.channel = assignment, channel
        self._sinks = dict(sinks)
        self._rows = 0
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

    def write(self, frame: DataFrame, output: str) -> Written:
        """Writes the rows as this job's one effect on this output.

        UndeclaredOutput; Fenced: a later attempt owns the output, nothing is visible; KeyConflict; RowsLost; OutputUnavailable: unknown,
        whoever comes next finds out."""
        sink, key = self._sink(output)
        if (found := self._committed(sink, key)) is not None:
            return found
        slot = self._stage(sink, key, frame)
        try:
            decision = run(sink.commit(key, slot))
        except OutputUnavailable:
            stands = run(sink.abort(key, slot))  # a commit was sent: only its slot can say how that ended
            decision = (
                Committed(stands) if stands.nonce == slot.nonce and stands.state == "committed" else FencedOff(stands)
            )
        failpoints.hit("driver.commit.after")
        if isinstance(decision, FencedOff | Conflicting | AlreadyCommitted):
            run(sink.discard(key, slot))  # decided by somebody else: what was staged here can never be committed
        written = self._written(sink, decision)
        failpoints.hit("driver.write.done")
        return written

    def transaction(self) -> Transaction:
        """Several outputs, all or nothing in the end. One per generation."""
        self._transactions += 1
        if self._transactions > 1:
            raise InvalidInput(
                "a job has one transaction per run: write all its outputs in the one `with job.transaction()`"
            )
        return Transaction(self)

    def result(self, **values: Any) -> None:
        """Records small values, which every duplicate gets with the result. InvalidInput beyond 4 KiB of JSON."""
        try:
            size = len(json.dumps(values))
        except (TypeError, ValueError) as problem:
            raise InvalidInput(f"job.result() takes values that JSON can hold: {problem}") from None
        if size > VALUES_LIMIT:
            raise InvalidInput(
                f"job.result() was given {size} bytes of JSON and records at most {VALUES_LIMIT}; write an output instead"
            )
        self._sequence += 1
        self.report("values", values=values, sequence=self._sequence)

    def report(self, kind: str, **body: Any) -> None:
        """A create-once entry beside the record."""
        self.channel.report(f"{self._process}-{kind}-{self._sequence}", kind, body)

    def fail(self, message: str) -> NoReturn:
        """Ends the job for good: trying again cannot help. It is Failed, unless something of it is committed."""
        self.report("permanent-error", message=message)
        sys.exit(f"sparkonce: {message}")

    def _sink(self, output: str) -> tuple[Sink, SinkKey]:
        if self.heartbeat.over:
            raise AttemptEnded(f"attempt {self.attempt} of {self.key} is over; nothing it writes can be committed")
        sink = self._sinks.get(output)
        if sink is None:
            declared = ", ".join(self._sinks) or "none"
            raise UndeclaredOutput(
                f"output {output!r} is not declared under spec.outputs (declared: {declared}); declare it there"
            )
        return sink, sink_key(self.assignment.key_hash, self.generation, sink)

    def _committed(self, sink: Sink, key: SinkKey) -> Written | None:
        """What is recorded, if anything: then no DataFrame needs to run. Closes lower slots on the way (rule R)."""
        slot = run(sink.fence(key, self.attempt, fingerprint=self.assignment.fingerprint, by=f"attempt {self.attempt}"))
        if slot is None:
            return None
        same = slot.fingerprint == self.assignment.fingerprint
        return self._written(sink, AlreadyCommitted(slot) if same else Conflicting(slot))

    def _stage(self, sink: Sink, key: SinkKey, frame: DataFrame) -> Slot:
        failpoints.hit("driver.stage.before")
        slot = sink.stage(frame, key, self.attempt, fingerprint=self.assignment.fingerprint)
        failpoints.hit("driver.stage.after")
        return slot

    def _written(self, sink: Sink, decision: Decision) -> Written:
        match decision:
            case FencedOff(slot):
                raise Fenced(
                    f"attempt {slot.token} of {self.key} was taken over (closed by {slot.closed_by}); nothing of it is in {sink.name}"
                )
            case Conflicting():
                raise KeyConflict(
                    f"output {sink.name} ({sink.uri}) holds a commit of {self.key} for another job; use another key or output"
                )
            case Committed(slot) | AlreadyCommitted(slot):
                self._rows += slot.rows
                return Written(sink.name, sink.uri, slot.rows, slot.bytes, isinstance(decision, Committed))


class Transaction:
    """Stages each write at once; seals and commits all of them when the `with` block ends well, none when it does not."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._staged: dict[str, Slot] = {}
        self.written: dict[str, Written] = {}
        """By output; complete after the block."""

    def write(self, frame: DataFrame, output: str) -> None:
        job = self._job
        sink, key = job._sink(output)  # noqa: SLF001 - one module, two halves of one thing
        if output in self._staged or output in self.written:
            raise InvalidInput(f"output {output!r} is written twice in one transaction; union the DataFrames first")
        if (found := job._committed(sink, key)) is not None:  # noqa: SLF001 - see above
            self.written[output] = found
            return
        self._staged[output] = job._stage(sink, key, frame)  # noqa: SLF001 - see above

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._discard()
            return
        if self._staged:
            failpoints.hit("driver.seal.before")
            self._seal()
            failpoints.hit("driver.seal.after")
            self._commit()
        failpoints.hit("driver.write.done")

    def _seal(self) -> None:
        job = self._job
        intent = intent_of(job.attempt, self._staged)
        answer = self._sealed(intent)
        if not isinstance(answer, Sealed):
            self._discard()  # refused for good: our intent is not sealed and never will be
            raise Fenced(f"attempt {job.attempt} of {job.key} may not commit its transaction: {answer.reason}")

    def _sealed(self, intent: Intent) -> Sealed | Refused:
        for _ in range(SEAL_TRIES):
            with contextlib.suppress(StoreUnavailable):
                return self._job.channel.seal(intent)
        return self._job.channel.seal(
            intent
        )  # raises: it may be sealed, so nothing staged may be deleted; settle finds out

    def _commit(self) -> None:
        job = self._job
        decisions = run(commit_all(job._sinks, job.assignment.key_hash, job.generation, self._staged))  # noqa: SLF001 - see above
        for name, decision in decisions.items():
            self.written[name] = job._written(job._sinks[name], decision)  # noqa: SLF001 - see above

    def _discard(self) -> None:
        """Nothing of this block was sealed: its folders can never be committed."""
        for name, slot in self._staged.items():
            sink, job = self._job._sinks[name], self._job  # noqa: SLF001 - see above
            run(sink.discard(sink_key(job.assignment.key_hash, job.generation, sink), slot))
        self._staged.clear()
