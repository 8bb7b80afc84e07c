# ruff: noqa: SLF001 - capturing is part of Job, in modules of its own; Spark's sessions have no public state
"""The Iceberg tables of a captured script: which of them a call means, the branch that its statements go to, and how one is made.

A session has one setting for all tables, `spark.wap.branch`, and what the script reads must show what it wrote, in each of them. So the
branches of an attempt have one name, and the setting stays until the script ends; Iceberg reads `main` of a table that has no such branch.

The branches are made when the script makes its session: Iceberg binds a DataFrame to a branch when it is made, and one that was made before
would never show the script's writes. With the first statement on a table its branch moves to where `main` is by then, so that what other
writers commit in the meantime is no conflict: a script that reads for an hour and merges at its end would lose to any of them. What it read
before is as old as it would be without sparkonce.

A table is recognised by its identity, whatever the script's catalog is called; one that does not exist yet by its name.

A table that does not exist is made without rows first, outside of the branch: Spark would make it on `main`, rows and all. Refused for the
same reason is what replaces a table.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from sparkonce.blocking import run
from sparkonce.driver import places
from sparkonce.driver.branch import BRANCH, ID, BranchBlock, Look, ShownTable, shown
from sparkonce.driver.context import Job
from sparkonce.driver.statements import FrameWrite, Statement
from sparkonce.errors import InvalidInput, OutputUnsupported, SparkonceError
from sparkonce.model.spec import Output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkonce.sink.protocol import SinkKey

TAKES = (
    "INSERT, INSERT OVERWRITE, UPDATE, DELETE, MERGE, and of a DataFrame: writeTo with append, overwrite and overwritePartitions, "
    "insertInto, save, saveAsTable in mode append"
)
"""Writes of an Iceberg table."""
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class NamedTable:
    """An Iceberg table that a call names, or an output's that does not exist yet."""

    name: str
    """With its catalog and namespace."""
    output: str | None
    """The output whose table it is."""
    found: ShownTable | None
    """As Spark sees it; None: it does not exist."""


def permanently(fail: Callable[[SparkonceError], NoReturn], call: Callable[[], T]) -> T:
    """Runs the call; what is wrong with the job or its table ends the job by `fail`."""
    try:
        return call()
    except (InvalidInput, OutputUnsupported) as error:
        fail(error)


class ScriptTables:
    """The Iceberg outputs of one script."""

    def __init__(
        self,
        job: Job,
        outputs: Sequence[Output],
        fail: Callable[[SparkonceError], NoReturn],
        *,
        look: Look = shown,
        named: Callable[[SparkSession, str], str] | None = None,
    ) -> None:
        """outputs: those of the job. fail: ends the job. look, named: how Spark sees a table, and its name in full (`full_name`)."""
        self._job, self._fail, self._look, self._named = job, fail, look, named or full_name
        self._uris = {output.name: job._sinks[output.name].uri for output in outputs if output.kind == "iceberg"}
        self._captured = [output.name for output in outputs if output.kind == "iceberg" and output.capture]
        self._nonce = secrets.token_hex(16)
        self._identities: dict[str, str] = {}
        """Of the outputs' tables that were there."""
        self._blocks: dict[str, ScriptBlock] = {}
        self._branch: str | None = None
        """What the session's setting names."""

    @property
    def declared(self) -> bool:
        """Whether the job has any."""
        return bool(self._uris)

    def at(self, session: SparkSession, table: str) -> NamedTable | None:
        """The Iceberg table that a call names. None: it is none, nor the name of an output."""
        found = self._look(session, table)
        name = self._named(session, table)
        by_name = next((output for output, uri in self._uris.items() if uri == name), None)
        if found is None:
            return None if by_name is None else NamedTable(name=name, output=by_name, found=None)
        by_identity = (output for output in self._uris if self._identity(output) == found.identity)
        return NamedTable(name=name, output=next(by_identity, by_name), found=found)

    def begin(self, session: SparkSession) -> None:
        """Opens the blocks of all tables that exist, and lets the session read and write their branches. A later session is given the same
        ones."""
        if self._branch is not None and not session.conf.get(BRANCH, None):
            session.conf.set(BRANCH, self._branch)
        opened = {self._identities.get(each) for each in self._blocks}
        for output in self._captured:
            known = output in self._blocks or output in self._job._outputs_written
            if known or (identity := self._identity(output)) is None or identity in opened:
                continue  # of two outputs with one table, statements are the first one's
            self._opened(output, session)
            opened.add(identity)

    def output_at(self, session: SparkSession, table: str) -> str | None:
        """The output whose table a call names."""
        at = self.at(session, table) if self._uris and table else None
        return None if at is None else at.output

    def new_at(self, statement: Statement) -> str:
        """The name of the Iceberg table that a writer would make; empty: it makes none."""
        name = self._named(statement.session, statement.table)
        return name if _makes(statement) and _is_icebergs(statement.session, name.partition(".")[0]) else ""

    def diverts(self, at: NamedTable) -> bool:
        """Whether `spark.wap.branch` of the session would divert a write to this table, which is not a declared output."""
        return self._branch is not None and at.found is not None and at.found.enabled

    def statement(self, output: str, at: NamedTable, statement: Statement) -> Any:
        """Runs a statement on the branch of a captured output; not at all if the key is committed. Raises: as `BranchBlock.statement`."""
        self._check_session(output, statement.session, statement.kind)
        block = self._blocks.get(output)
        first = block is None or block.is_first
        if (write := statement.write) is not None and (block is None or _makes(statement)):
            made = permanently(self._fail, lambda: self._made(output, at, statement, write))
            if write.mode == "ignore" and not (made and first):
                return None  # the table is there
            statement = self._as_to_run(statement, write, made=made, first=first)
        if block is None:
            block = self._opened(output, statement.session)
        permanently(self._fail, block.renew)
        block.is_first = False
        return block.statement(statement)

    def declare(
        self, output: str, *, schema: str, partition_by: Sequence[tuple[str, str]], properties: dict[str, str]
    ) -> None:
        """Makes the table of a CREATE TABLE IF NOT EXISTS. Does nothing where there is one with columns."""
        sink, key = self._sink(output)
        made = sink.create(
            key, self._job.attempt, schema=schema, partition_by=partition_by, properties=properties, declared=True
        )
        permanently(self._fail, lambda: run(made))

    def block(self, output: str) -> ScriptBlock | None:
        """The block that the script's statements have opened."""
        return self._blocks.get(output)

    def idle(self, output: str) -> ScriptBlock:
        """A block without statements, which needs no Spark session. Raises: InvalidInput: there is no table."""
        block = ScriptBlock(self._job, output, self._fail)
        block.begin()
        return block

    def _opened(self, output: str, session: SparkSession) -> ScriptBlock:
        self._check_session(output, session, "the first one")
        _, named_for = self._sink(self._captured[0])
        block = ScriptBlock(
            self._job, output, self._fail, session=session, look=self._look, named_for=named_for, nonce=self._nonce
        )
        permanently(self._fail, block.begin)
        if block.branch is not None and self._branch is None:
            self._branch = block.branch
            session.conf.set(BRANCH, block.branch)
        self._blocks[output] = block
        return block

    def _made(self, output: str, at: NamedTable, statement: Statement, write: FrameWrite) -> bool:
        """Whether the table was made for this generation of the key, which happens here where there is none, or one without columns."""
        if at.found is None:
            if not _makes(statement):
                raise InvalidInput(
                    f"output {output}: there is no table {at.name} yet, and {statement.call} ({write.mode}) makes none; create it first, "
                    "by saveAsTable or CREATE TABLE IF NOT EXISTS"
                )
            if write.location or not (write.format == "iceberg" or _by_default(write, at)):
                what = f"at {places.shown(write.location)}" if write.location else f"of format {write.format}"
                raise InvalidInput(
                    f"the script makes the table {at.name} of output {output} {what}, and sparkonce makes no such table; create it before "
                    "the job, or leave that out. It was not run"
                )
        sink, key = self._sink(output)
        by = [("identity", column) for column in write.partition_columns]
        return bool(run(sink.create(key, self._job.attempt, schema=write.frame.schema.json(), partition_by=by)))

    def _as_to_run(self, statement: Statement, write: FrameWrite, *, made: bool, first: bool) -> Statement:
        """The statement as it runs on a table that exists by now, although the script may expect to make it. made: for this key."""
        if not _makes(statement) or write.mode == "append":
            return statement
        if write.only_makes:
            if not (made and first):
                self._fail(
                    InvalidInput(
                        f"the script makes the table {statement.table} in mode {write.mode}, and there is one already; it was not run"
                    )
                )
            return replace(statement, kind="append", run=write.append or statement.run)
        if not made:
            self._fail(
                InvalidInput(
                    f"saveAsTable in mode overwrite replaces the Iceberg table {statement.table} with its columns, outside of any "
                    "branch; it was not run. Replace its rows instead: INSERT OVERWRITE, df.writeTo(...).overwrite(lit(True)), or "
                    "df.write.format('iceberg').mode('overwrite').save(...)"
                )
            )
        if write.options:
            self._fail(
                InvalidInput(
                    f"the script makes the table {statement.table} in mode overwrite with the options {', '.join(write.options)}, which "
                    "sparkonce cannot keep; leave them out, or create the table before. It was not run"
                )
            )
        return replace(statement, call="writeTo", run=lambda: _overwritten(write, statement.table))

    def _check_session(self, output: str, session: SparkSession, what: str) -> None:
        """Ends the job if the session sends writes elsewhere. what: the statement."""
        wrong = [
            name
            for name, ours in ((BRANCH, self._branch), (ID, None))
            if (session.conf.get(name, None) or None) != ours
        ]
        if wrong:
            self._fail(
                InvalidInput(
                    f"the script sets or resets {wrong[0]}, which directs the writes and reads of output {output}; leave it alone. The "
                    f"statement ({what}) was not run"
                )
            )

    def _identity(self, output: str) -> str | None:
        if output not in self._identities:
            sink, _ = self._sink(output)
            found = run(sink.table_id())
            if found is None:
                return None
            self._identities[output] = found
        return self._identities[output]

    def _sink(self, output: str) -> tuple[Any, SinkKey]:
        """A sink that also TakesBranch: Python has no intersection types. Not `Job._sink`: the output may be written already."""
        sink = self._job._sinks[output]
        return sink, self._job._key(sink)


class ScriptBlock(BranchBlock):
    """The block of one table, whose statements are handed over."""

    def __init__(
        self,
        job: Job,
        output: str,
        fail: Callable[[SparkonceError], NoReturn],
        *,
        session: SparkSession | None = None,
        look: Look | None = None,
        named_for: SinkKey | None = None,
        nonce: str = "",
    ) -> None:
        """session: None: it has no statement."""
        super().__init__(job, output, session=session, look=look)
        self._fail, self._named_for = fail, named_for
        self.is_first = True
        """Whether no statement of the script has come to it."""
        if session is not None:
            self._application = str(session.sparkContext.applicationId)
        self._nonce = nonce or self._nonce

    @property
    def branch(self) -> str | None:
        """Its name; None if the key is committed."""
        return None if self._opened is None else self._opened.mark.name

    def _forget(self) -> None:
        """The script is over, and its session may be."""

    def refuse(self, what: str, run: object = None, *, target: object = None) -> NoReturn:
        del run, target
        self._fail(unfit(self._output, what))


def unfit(output: str, what: str) -> InvalidInput:
    """What no statement on an Iceberg output is."""
    return InvalidInput(
        f"output {output} takes {TAKES}, and not {what}; it was not run. Replace rows by INSERT OVERWRITE; what alters or replaces the "
        "table is a job of its own"
    )


def _makes(statement: Statement) -> bool:
    """Whether Spark would make the table, or replace it, rather than write one that exists."""
    write = statement.write
    if write is None:
        return False
    return write.makes or (statement.call == "save" and write.only_makes)


def _by_default(write: FrameWrite, at: NamedTable) -> bool:
    """Whether a table of this format is an Iceberg table, since the catalog has no others, with files as Iceberg writes them."""
    return write.format == "parquet" and _is_icebergs(write.frame.sparkSession, at.name.partition(".")[0])


def _overwritten(write: FrameWrite, table: str) -> None:
    """Replaces all rows, as saveAsTable in mode overwrite would with the table."""
    from pyspark.sql.functions import lit

    write.frame.writeTo(table).overwrite(lit(True))


def _is_icebergs(session: SparkSession, catalog: str) -> bool:
    """Whether a catalog of the session is Iceberg's own, with no other tables."""
    return str(session.conf.get(f"spark.sql.catalog.{catalog}", None)) == "org.apache.iceberg.spark.SparkCatalog"


def full_name(session: SparkSession, table: str) -> str:
    """The name of a table with its catalog and namespace, as Spark completes it; as it is written, if Spark cannot read it."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    java: Any = session
    state = java._jsparkSession.sessionState()
    try:
        parts = state.sqlParser().parseMultipartIdentifier(table)
        names = [str(parts.apply(at)) for at in range(parts.size())]
        manager = state.catalogManager()
        if len(names) > 1 and manager.isCatalogRegistered(names[0]):
            return ".".join(names)
        namespace = [str(each) for each in manager.currentNamespace()] if len(names) == 1 else []
        return ".".join((str(manager.currentCatalog().name()), *namespace, *names))
    except (Py4JError, PySparkException):
        return table
