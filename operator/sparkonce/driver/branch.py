# ruff: noqa: SLF001 - native blocks are part of Job, in modules of their own
"""A native block on an Iceberg table: Spark's own engine writes to a branch, and the block's end makes the branch the table's state.

While the block is open the session's `spark.wap.branch` names a branch of this attempt, so that unmodified statements go there and the
session reads its own writes. At the end one commit, under rule R as every other, moves `main` (`sparkonce.sink.iceberg.branch`). So a block
is atomic: nothing of it is visible before its end, and of an attempt that ended inside it nothing remains. All its statements run again
with the next attempt; if the key is committed, none of them does.

A statement that raised ends the block: whether its commit to the branch landed is not known, and nothing would show that it ran twice. One
that Spark refused before it ran, by an AnalysisException, wrote nothing if the branch is where it was: another one may follow.

Refused before they run, beside what every block refuses: what Spark does outside of the branch, which is `saveAsTable` with a mode other
than append (it replaces the table) and a change of the table's columns, and statements that name a branch themselves.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from sparkonce import failpoints
from sparkonce.blocking import run
from sparkonce.driver.channel import Written
from sparkonce.driver.statements import (
    AttemptBlock,
    Statement,
    issue,
    recognised,
    refuse_remote,
    with_settings,
)
from sparkonce.errors import InvalidInput, OutputChanged, OutputUnavailable, SparkonceError
from sparkonce.model.application.script_errors import is_analysis
from sparkonce.sink.native import WAP_ENABLED, OpenBranch
from sparkonce.sink.protocol import AlreadyCommitted, Conflicting, FencedOff, SinkKey

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkonce.driver.context import Job

BRANCH, ID = "spark.wap.branch", "spark.wap.id"
"""Settings of a session that direct Iceberg's writes."""
MERGE_SCHEMA = "spark.sql.iceberg.merge-schema"
"""One that lets them add columns, at once and for all branches."""
SPARK_TABLE = "org.apache.iceberg.spark.source.SparkTable"


@dataclass(frozen=True)
class ShownTable:
    """A table, as Spark's catalog shows it."""

    identity: str
    branch: str | None
    """The branch that its name selects, or the session's setting."""
    enabled: bool
    head: Callable[[str], int | None]
    """The newest snapshot of a branch; None if it has none of this name."""
    columns: int
    """How many it has: a fence makes a table without."""
    forget: Callable[[], object] = lambda: None
    """Makes Spark's catalog read it anew: it caches tables for half a minute."""


Look = Callable[["SparkSession", str], ShownTable | None]


class BranchBlock(AttemptBlock):
    """A block of statements on one output. One thread, one block at a time.

    session: the one that reads its own writes; Spark's active one, unless a test has another.
    look: how Spark sees a table (`shown`)."""

    def __init__(
        self,
        job: Job,
        output: str,
        *,
        merges: bool = False,
        session: SparkSession | None = None,
        look: Look | None = None,
    ) -> None:
        sink, self._key = job._sink(output)
        super().__init__(job, sink, merges=merges)
        self._branches: Any = sink  # a Sink that also TakesBranch: Python has no intersection types
        self._session, self._look = session, look or shown
        self._nonce = secrets.token_hex(16)
        self._named_for: SinkKey | None = None
        """As of `TakesBranch.open_branch`."""
        self._application = ""
        self._opened: OpenBranch | None = None
        """None if the key is committed."""
        self._done = 0
        self._merges: bool | None = None
        self._cached: dict[str, Callable[[], object]] = {}
        """How to make Spark forget the table, by the names that statements called it by."""
        self._failed: str | None = None
        """Kind of the statement that raised."""
        self._open = contextlib.ExitStack()
        self.written: Written | None = None
        """What the block wrote; set when it has ended, or if the key was committed before."""

    @property
    def skips(self) -> bool:
        """Whether statements will not run, since the block is in the table."""
        return self._opened is None

    @property
    def done(self) -> int:
        """Number of statements on the branch of this attempt."""
        return self._done

    def __enter__(self) -> Self:
        if self._job._block is not None:
            raise InvalidInput("a native block, or a transaction, is open already; close it first")
        refuse_remote()
        session = self._session = self._session or _active()
        for name in (BRANCH, ID):
            if session.conf.get(name, None):
                raise InvalidInput(
                    f"the session sets {name}, and a native block has a branch of its own; unset it before"
                )
        self._application = str(session.sparkContext.applicationId)
        self.begin()
        self._job._block = self
        self._open.enter_context(with_settings(session, {} if self._opened is None else self._opened.settings))
        self._open.enter_context(recognised(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._job._block = None
        self._open.close()
        if kind is None:
            self.end()
        elif self._opened is not None:
            self._drop(self._opened)

    def _drop(self, opened: OpenBranch) -> None:
        """Best effort: the next attempt, or a sweep, drops what is left. The error of the block must reach its author."""
        with contextlib.suppress(SparkonceError):
            run(self._branches.drop_branch(opened.mark))

    def begin(self) -> None:
        """Bars all earlier attempts; makes the branch, unless the key is committed. Needs no Spark session."""
        self._hold()
        job, sink = self._job, self._sink
        by, fingerprint = f"attempt {job.attempt}", job.assignment.fingerprint
        slot = run(sink.fence(self._key, job.attempt, fingerprint=fingerprint, by=by))
        if slot is not None:
            if slot.fingerprint != fingerprint:
                job._written(sink, Conflicting(slot))
            if slot.branch is None:
                raise InvalidInput(
                    f"output {sink.name} was written otherwise in this generation of {job.key}; `sparkonce rerun` the job to write it by "
                    "statements"
                )
            self.written = job._recorded(sink, slot, fresh=False)
            return
        failpoints.hit("driver.native.open")
        self._open_branch()

    def renew(self) -> None:
        """Lets the branch begin where the table is now, unless it has a statement."""
        if self._opened is not None and not self._done and self._failed is None:
            self._open_branch(renew=True)

    def _open_branch(self, *, renew: bool = False) -> None:
        given = {"nonce": self._nonce, "named_for": self._named_for, "renew": renew}
        opened = run(self._branches.open_branch(self._key, self._job.attempt, **given))
        if isinstance(opened, FencedOff):
            self._job._written(self._sink, opened)
        self._opened = opened

    def end(self) -> None:
        """Ends a block whose code ran to its end: publishes its branch. Needs no Spark session.

        Raises:
            InvalidInput: a statement failed and the block went on without it.
            TableMoved, OutputChanged, Fenced, KeyConflict: nothing of the block is visible.
            OutputUnavailable: unknown whether it is published.
        """
        if self._opened is None:
            self._finished()
            return
        if self._failed is not None:
            self._drop(self._opened)
            raise InvalidInput(
                f"a statement ({self._failed}) of the native block on {self._sink.name} failed, and the block went on without it: nothing "
                "of the block is visible; let its error end the block"
            )
        self._publish(self._opened)
        self._finished()

    def _publish(self, opened: OpenBranch) -> None:
        job, sink, mark = self._job, self._sink, opened.mark
        failpoints.hit("driver.native.end.before")
        try:
            slot = run(
                self._branches.block_slot(
                    self._key,
                    job.attempt,
                    nonce=self._nonce,
                    branch=mark.model_copy(update={"statements": self._done, "merges": self._merges}),
                    fingerprint=job.assignment.fingerprint,
                    application=self._application,
                )
            )
        except SparkonceError:
            self._drop(opened)
            raise
        decision = job._commit(sink, self._key, slot)
        if isinstance(decision, AlreadyCommitted) and decision.slot.branch is not None:
            self.written = job._recorded(sink, decision.slot, fresh=False)  # of another process of this attempt
        else:
            self.written = job._written(sink, decision)
        self._forget()

    def _forget(self) -> None:
        """Shows the session what is published."""
        for forget in self._cached.values():
            forget()

    def _finished(self) -> None:
        self._job._outputs_written.add(self._sink.name)
        self._job._report_progress()
        failpoints.hit("driver.write.done")

    def statement(self, statement: Statement) -> Any:
        """Runs a statement on the branch, unless the key is committed; returns what it returned, or an empty DataFrame.

        Raises:
            InvalidInput: the block takes no such statement; it was not run.
            OutputChanged: the branch is gone; the statement was not run.
        """
        self._check(statement)
        if self._opened is None:
            return statement.session.createDataFrame([], "num_affected_rows long")
        head = self._on_branch(statement, self._opened)
        self._failed = statement.kind
        self._merges = self._merges or statement.kind == "MERGE" or None
        failpoints.hit("driver.native.before")
        try:
            with with_settings(statement.session, self._opened.settings):
                answer = statement.run()
        except Exception as error:
            if self._refused_by_spark(error, statement, self._opened, head):
                self._failed = None
            raise
        failpoints.hit("driver.native.after")
        self._failed = None
        self._done += 1
        return answer

    def _check(self, statement: Statement) -> None:
        """Whether a block takes the statement. Raises: InvalidInput, AttemptEnded."""
        self._check_caller()
        if self._failed is not None:
            raise InvalidInput(
                f"a statement ({self._failed}) of the native block on {self._sink.name} failed, and whether it wrote to the block's branch "
                f"is not known, so no other one follows it ({statement.kind}); let its error end the block"
            )
        if statement.call in ("save", "saveAsTable") and statement.kind not in _KEPT[statement.call]:
            self.refuse(f"{statement.call} in mode {statement.kind}, which would make the table anew")
        evolves = statement.evolves or self._evolved_by(statement.session)
        if evolves:
            self.refuse(f"{evolves}, which changes the table's columns before the block ends")

    @staticmethod
    def _evolved_by(session: SparkSession) -> str:
        """The session's setting that lets every write add columns; empty: none does."""
        return MERGE_SCHEMA if str(session.conf.get(MERGE_SCHEMA, "")).lower() == "true" else ""

    def _refused_by_spark(self, error: Exception, statement: Statement, opened: OpenBranch, head: int) -> bool:
        """Whether a statement that raised wrote nothing. head: of the branch before it."""
        if not is_analysis(error):
            return False
        with contextlib.suppress(OutputUnavailable):
            found = self._look(statement.session, statement.table)
            return found is not None and found.head(opened.mark.name) == head
        return False

    def _on_branch(self, statement: Statement, opened: OpenBranch) -> int:
        """Checks that Spark will write to the branch; returns its head. Raises: InvalidInput, OutputChanged, OutputUnavailable."""
        found = self._look(statement.session, statement.table)
        if found is None or found.identity != opened.table:
            what = "is no Iceberg table" if found is None else "is another table"
            self.refuse(f"{statement.kind} on {statement.table}, which {what}")
        if found.branch not in (None, opened.mark.name):
            self.refuse(f"{statement.kind} on {statement.table}, which names a branch or tag")
        head = found.head(opened.mark.name)
        if head is None:
            raise OutputChanged(
                f"the branch {opened.mark.name} of {self._sink.uri} is gone: another attempt has taken over, or it was dropped; the "
                f"statement ({statement.kind}) was not run, and nothing of the block is visible"
            )
        self._cached[statement.table] = found.forget
        if not found.enabled:
            raise OutputChanged(
                f"the table {self._sink.uri} no longer has the property {WAP_ENABLED}, without which Spark writes past the block's branch; "
                f"the statement ({statement.kind}) was not run, and nothing of the block is visible: run it again, which sets the property"
            )
        return head


_KEPT = {"save": ("append", "overwrite"), "saveAsTable": ("append",)}
"""Modes in which a writer keeps the table that exists."""


def _active() -> SparkSession:
    from pyspark.sql import SparkSession as Sessions

    return Sessions.getActiveSession() or Sessions.builder.getOrCreate()


def shown(session: SparkSession, table: str) -> ShownTable | None:
    """An Iceberg table as Spark sees it now, not as its catalog cached it; None if it is none, or does not exist.

    Raises: OutputUnavailable: Spark cannot tell."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        issue(session, f"REFRESH TABLE {table}")
        java: Any = session.table(table)
        leaves = java._jdf.queryExecution().analyzed().collectLeaves()
        leaf = leaves.apply(0)
        if leaves.size() != 1 or leaf.getClass().getSimpleName() != "DataSourceV2Relation":
            return None
        found = leaf.table()
        if found.getClass().getName() != SPARK_TABLE:
            return None
        inner = found.table()
        refs = inner.refs()
        enabled = str(inner.properties().get(WAP_ENABLED)).lower() == "true"
        return ShownTable(
            str(inner.uuid().toString()),
            found.branch(),
            enabled,
            lambda name: int(refs.get(name).snapshotId()) if refs.containsKey(name) else None,
            len(found.columns()),
            lambda: _forgotten(session, table),
        )
    except PySparkException:
        return None
    except Py4JError as error:
        raise OutputUnavailable(
            f"Spark cannot read the table {table}: {(str(error).strip().splitlines() or [''])[0]}; the statement was not run"
        ) from error


def _forgotten(session: SparkSession, table: str) -> None:
    """Best effort: what the block did is committed, and the cache ends by itself."""
    from pyspark.errors import PySparkException

    with contextlib.suppress(PySparkException):
        issue(session, f"REFRESH TABLE {table}")
