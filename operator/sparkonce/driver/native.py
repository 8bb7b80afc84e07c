# ruff: noqa: SLF001 - native blocks are part of Job, in modules of their own
"""`job.native(output)` and `job.sql(text, output)`: statements that Spark's own engine commits to a Delta table, each once. On an Iceberg
table they run on a branch (`sparkonce.driver.branch`).

    job.sql("MERGE INTO orders t USING changes s ON t.id = s.id WHEN MATCHED THEN UPDATE SET *", output="orders")

    with job.native("orders"):
        spark.sql("DELETE FROM orders WHERE day = current_date()")
        df.write.format("delta").mode("append").saveAsTable("orders")

The statements of a block form a chain (`sparkonce.sink.native`). An attempt that comes after another one bars it, reads from the table how
many statements are done, and skips as many without running them; the code between them runs again. So the same script must issue the same
statements in the same order: a text of SQL that differs from the one that was committed in its place is refused.

Between two statements a reader sees the first: a block is complete in the end, not atomic. `atomic=True` refuses a second statement.

A statement that raised may be repeated, by a loop in the job's code too: it keeps its number, so that of all its tries one takes effect.
Another statement after it is refused, because the outcome of the first may still be open.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from sparkonce import failpoints
from sparkonce.blocking import run
from sparkonce.driver.branch import BranchBlock
from sparkonce.driver.channel import Written
from sparkonce.driver.statements import (
    APPLICATION,
    METADATA,
    VERSION,
    AttemptBlock,
    Statement,
    of_sql,
    recognised,
    refuse_remote,
    with_settings,
)
from sparkonce.errors import (
    Fenced,
    InvalidInput,
    OutputUnavailable,
    OutputUnsupported,
    StatementsDiffer,
    TableMoved,
)
from sparkonce.sink import native as sink_native
from sparkonce.sink import stream
from sparkonce.sink.native import TakesBranch, TakesStatements
from sparkonce.sink.protocol import (
    AlreadyCommitted,
    CommitOutcome,
    Committed,
    Conflicting,
    FencedOff,
    StreamPart,
)
from sparkonce.sink.stream import Chain, mark

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from sparkonce.driver.context import Job

STATEMENTS = 1000
"""Statements of one block at most: each leaves an identifier in the table for ever."""
CONFLICTS = 4
"""Runs of one statement of `job.sql` on an Iceberg table that other writers change meanwhile; after that the attempt fails, and the next
one tries again."""


def native(job: Job, output: str, *, atomic: bool = False, merges: bool = False) -> Native | BranchBlock:
    """A block of statements on an output, as its kind takes them. merges: as of `AttemptBlock`. Raises: InvalidInput, OutputUnsupported."""
    sink, _ = job._sink(output)
    if isinstance(sink, TakesBranch):
        return BranchBlock(job, output, merges=merges)
    return Native(job, output, atomic=atomic, merges=merges)


class Native(AttemptBlock):
    """A block of statements on one output. One thread, one block at a time."""

    def __init__(self, job: Job, output: str, *, atomic: bool = False, merges: bool = False) -> None:
        sink, self._key = job._sink(output)
        if not isinstance(sink, TakesStatements):
            raise OutputUnsupported(
                f"spec.outputs[{output}].{sink.kind}: statements of Spark's own engine write delta and iceberg outputs only; write it with "
                "job.write()"
            )
        sink.refuse_statements()
        super().__init__(job, sink, merges=merges)
        self._atomic = atomic
        self._statements: Any = sink  # a Sink that also TakesStatements: Python has no intersection types
        self._nonce = job.assignment.nonce
        self._chain: Chain | None = None
        self._table = ""
        self._own: set[str] = set()
        """Paths by which statements of this block called its table."""
        self._next = 0
        """Number of the statement that the code issues next."""
        self._failed: str | None = None
        """Digest of the statement that raised last, until it is repeated."""
        self._hooks: AbstractContextManager[None] | None = None
        self.written: Written | None = None
        """What the block wrote; set when it has ended."""

    @property
    def skips(self) -> bool:
        """Whether the next statement will not run, since it is in the table."""
        chain = self._require_chain()
        return self._next < chain.batches or chain.ended

    @property
    def done(self) -> int:
        """Number of statements that are in the table, those of earlier attempts included."""
        return 0 if self._chain is None else self._chain.batches

    # --- the block -----------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._job._block is not None:
            raise InvalidInput("a native block, or a transaction, is open already; close it first")
        self.begin()
        self._job._block = self
        self._hooks = recognised(self)
        self._hooks.__enter__()
        return self

    def begin(self) -> None:
        """Opens the block without recognising statements: the caller hands them over, and calls `end`. Errors as `Job.native`."""
        refuse_remote()
        self._hold()
        self._chain = self._opened()
        self._table = self._chain.opening.table or ""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._job._block = None
        if self._hooks is not None:
            self._hooks.__exit__(None, None, None)
        if kind is None:
            self.end()

    def _opened(self) -> Chain:
        """Bars all earlier attempts, and reads what they did; opens the chain where none of them has."""
        job, key, token = self._job, self._key, self._job.attempt
        caller: dict[str, Any] = {"fingerprint": job.assignment.fingerprint, "by": f"attempt {token}"}
        opening = run(self._sink.fence(key, token, **caller))
        if opening is None:
            table = run(self._statements.identity(key))
            failpoints.hit("driver.native.open")
            slot = sink_native.opening_of(
                key,
                token,
                nonce=self._nonce,
                fingerprint=job.assignment.fingerprint,
                on_rerun=self._statements.on_rerun,
                table=table,
            )
            outcome = run(self._sink.commit(key, slot))
            if not isinstance(outcome, Committed | AlreadyCommitted):
                self._refused(outcome)
            opening = outcome.slot
        if opening.fingerprint != job.assignment.fingerprint:
            self._refused(Conflicting(opening))
        if opening.stream is None or not opening.stream.native:
            raise InvalidInput(
                f"output {self._sink.name} was written otherwise in this generation of {job.key}; `sparkonce rerun` the job to write it by "
                "statements"
            )
        return run(stream.close(self._sink, key, opening, token, **caller))

    def end(self) -> None:
        """Ends a block whose code ran to its end. Raises: as `statement`; InvalidInput also if a statement failed and was not repeated."""
        job, chain = self._job, self._require_chain()
        if self._failed is not None:
            raise InvalidInput(
                f"statement {self._next + 1} of the native block on {self._sink.name} failed, and the block went on without it; let its "
                "error end the block, or repeat it"
            )
        if self._next < chain.batches:
            raise self._differs(
                f"the block ended after {self._next} statement(s), and {chain.batches} are in the table"
            )
        failpoints.hit("driver.native.end.before")
        if not chain.ended:
            measured = run(self._statements.measured(self._key))
            slot = sink_native.end_of(chain, self._key, job.attempt, nonce=self._nonce, measured=measured)
            place = stream.place(stream.within(self._key, chain.opening), chain.next)
            slot = run(self._statements.with_added(place, slot, measured.files))
            outcome = run(stream.commit(self._sink, self._key, chain, slot))
            if not isinstance(outcome, Committed | AlreadyCommitted):
                self._refused(outcome)
            fresh = isinstance(outcome, Committed)
            self._chain = chain = chain.followed_by(outcome.slot)
            if not chain.ended:
                raise self._differs(
                    f"the block ended after {self._next} statement(s), and another process of this attempt committed one more"
                )
        else:
            fresh = False
        totals = mark(chain.last)
        job._rows += totals.rows
        job._committed_slots[self._sink.name] = chain.last
        job._outputs_written.add(self._sink.name)
        self.written = Written(self._sink.name, self._sink.uri, totals.rows, totals.bytes, fresh)
        job._report_progress()
        failpoints.hit("driver.write.done")

    # --- one statement -------------------------------------------------------------------------------------------------------

    def statement(self, statement: Statement) -> Any:
        """Runs a statement unless it is done; returns what it returned, or an empty DataFrame.

        Raises:
            InvalidInput: the block takes no such statement; it was not run.
            StatementsDiffer: another statement is committed in its place.
            Fenced, OutputChanged, KeyConflict: this attempt can commit nothing more; the statement took no effect.
            OutputUnavailable: unknown whether it took effect; the next attempt finds out.
        """
        self._check(statement)
        chain, number = self._require_chain(), self._next
        if number < chain.batches:
            return self._skipped(statement, number)
        if chain.ended:
            raise self._differs(
                f"the block ended after {chain.batches} statement(s), and this is one more ({statement.kind})"
            )
        place = stream.place(stream.within(self._key, chain.opening), number)
        slot = sink_native.statement_of(
            chain,
            self._key,
            self._job.attempt,
            nonce=self._nonce,
            statement=statement.kind,
            digest=statement.digest,
        )
        decided = run(self._statements.begin(place, slot, after=chain.last))
        if decided is not None:
            self._advance(decided)
            return self._skipped(statement, number)
        self._failed = statement.digest
        application, version = self._statements.identifier(place, slot.token)
        notes = json.dumps({"sparkonce": {"sinkKey": str(place), "token": slot.token}})
        failpoints.hit("driver.native.before")
        with with_settings(statement.session, {APPLICATION: application, VERSION: str(version), METADATA: notes}):
            answer = statement.run()
        failpoints.hit("driver.native.after")
        outcome = run(self._statements.decided(place, slot, after=chain.last))
        if outcome is None:  # it changed nothing, and Delta wrote no entry
            failpoints.hit("driver.native.empty")
            outcome = run(self._statements.follow(place, slot, after=chain.last))
        self._advance(outcome)
        self._failed = None
        self._next += 1
        return answer

    def _check(self, statement: Statement) -> None:
        """Whether the statement may be the next one. Raises: InvalidInput, AttemptEnded."""
        self._check_caller()
        if self._failed is not None and self._failed != statement.digest:
            raise InvalidInput(
                f"statement {self._next + 1} of the native block on {self._sink.name} failed and another one ({statement.kind}) follows "
                "it; repeat the same one, or let its error end the block"
            )
        if self._atomic and self._next > 0:
            raise InvalidInput(
                f"the native block on {self._sink.name} is atomic and has had its statement; {statement.kind} would be a second one, "
                "before which readers see the first. It was not run"
            )
        if self._next >= STATEMENTS:
            raise InvalidInput(f"a native block has at most {STATEMENTS} statements; join them")
        identity = self._table if statement.table in self._own else statement.identity
        if identity == self._table:
            if statement.by_path:
                self._own.add(statement.table)
        else:
            what = "is no Delta table" if identity is None else "is another table"
            if identity is None and statement.by_relative_path:
                what += " (Delta takes no relative path: give the absolute one)"
            self.refuse(f"{statement.kind} on {statement.table}, which {what}")

    def _skipped(self, statement: Statement, number: int) -> Any:
        key = stream.place(stream.within(self._key, self._require_chain().opening), number)
        slot = run(self._sink.find(key))
        if slot is None:
            raise OutputUnavailable(
                f"statement {number + 1} of {self._key} is committed and cannot be read now; try again"
            )
        found = mark(slot)
        if (found.statement, found.input) != (statement.kind, statement.digest):
            raise self._differs(
                f"statement {number + 1} is {statement.kind} now, and another text or kind, {found.statement}, is committed in its place"
            )
        self._failed = None
        self._next += 1
        return statement.session.createDataFrame([], "num_affected_rows long")

    def _advance(self, outcome: CommitOutcome) -> None:
        """Follows the chain after a place was decided. Raises: as `statement`."""
        if not isinstance(outcome, Committed | AlreadyCommitted):
            self._refused(outcome)
        self._chain = self._require_chain().followed_by(outcome.slot)
        if mark(outcome.slot).part is StreamPart.END:
            raise self._differs("another process of this attempt has ended it")

    def _refused(self, outcome: CommitOutcome) -> NoReturn:
        if isinstance(outcome, FencedOff):
            raise Fenced(
                f"attempt {self._job.attempt} of {self._job.key} was ended by {outcome.slot.closed_by or 'a later attempt'}: it writes no "
                f"further statement to {self._sink.name}, where {self.done} statement(s) of the block are committed"
            )
        self._job._written(self._sink, outcome)
        raise AssertionError(f"{outcome} commits nothing")  # `_written` raises for all of these

    def _differs(self, why: str) -> StatementsDiffer:
        return StatementsDiffer(
            f"native block of {self._job.key} on {self._sink.name}: {why}. Issue the same statements in the same order as before (values "
            "that change belong in a temporary view that the text names), or undo those that are in the table, declare onRerun: Append "
            "and run `sparkonce rerun -f FILE`"
        )

    def _require_chain(self) -> Chain:
        assert self._chain is not None  # statements arrive inside the block
        return self._chain


def sql(job: Job, text: str, output: str, *, args: Any = None, session: SparkSession | None = None) -> Written:
    """See `Job.sql`."""
    from pyspark.sql import SparkSession as Sessions

    refuse_remote()
    spark = session or Sessions.getActiveSession() or Sessions.builder.getOrCreate()
    takes = f"job.sql() takes one INSERT, UPDATE, DELETE or MERGE on output {output}, and not"
    try:
        writes = of_sql(spark, text)
    except InvalidInput as refused:
        raise InvalidInput(f"{takes} {refused}") from None
    if writes is None:
        raise InvalidInput(f"{takes} a query that only reads")
    return run_once(job, output, lambda: spark.sql(text, args))


def run_once(
    job: Job,
    output: str,
    statement: Callable[[], object],
    *,
    before: Callable[[], object] = lambda: None,
    merges: bool = False,
) -> Written:
    """Runs the one statement of a block; again, where other writers changed an Iceberg table meanwhile. before: what is to be checked at
    first, unless the statement is in the table. Raises: as `sql`."""
    for left in reversed(range(CONFLICTS)):
        try:
            with native(job, output, atomic=True, merges=merges) as block:
                if not block.skips:
                    before()
                statement()
        except TableMoved:
            if not left:
                raise
            continue
        assert block.written is not None  # set at the end of the block
        return block.written
    raise AssertionError("the last conflict was raised")
