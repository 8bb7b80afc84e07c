# ruff: noqa: SLF001 - capturing is part of Job, in a module of its own; Spark's writers and sessions have no public state
"""What a captured script writes (`spec.outputs[].capture`): each write of a declared table once, any other one refused before it begins.

The calls of PySpark are recognised while the script runs (`statements`). A write to a captured Delta or Iceberg table is a statement of
that output's native block, which opens with the first one and ends when the script has ended (Iceberg: `script.tables`); Parquet written to
a captured slot log is staged, and committed when the script has ended (`script.slots`). Everything else that would write is the job's
error: it is reported as permanent, since another attempt would do the same, and raised in the script. A script that catches the error does
not get away with it: it is raised again when the script ends.

Reading is not disturbed, nor are temporary views, settings and caches; but what the script reads as Parquet in the folder of a slot log of
the job are the rows that the table shows (`script.reads`).

Spark takes the identifier of a statement from the settings of its session, so that all writes must come from one session and one thread:
two statements at once would exchange their identifiers.

A Delta table that does not exist is created empty before the block opens: a block fences its attempts by entries of the table's log. So
`errorifexists` and `ignore` append to a table that this key has created itself, in this attempt or an earlier one.

Not seen: code that calls the JVM by itself, files that Python writes (`open`, pandas), `foreachPartition`, other programs.
"""

from __future__ import annotations

import functools
import inspect
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from sparkonce.blocking import run
from sparkonce.driver import places
from sparkonce.driver.branch import BranchBlock
from sparkonce.driver.context import Job
from sparkonce.driver.hooks import Hook, HooksOfModules
from sparkonce.driver.native import Native
from sparkonce.driver.script.creates import declared_by
from sparkonce.driver.script.reads import ScriptReads
from sparkonce.driver.script.slots import ScriptSlots
from sparkonce.driver.script.tables import NamedTable, ScriptBlock, ScriptTables, permanently, unfit
from sparkonce.driver.statements import (
    Call,
    FrameWrite,
    Statement,
    Target,
    described,
    issue,
    options_of,
    quoted,
    recognised,
    take_write,
)
from sparkonce.errors import InvalidInput, SparkonceError, UndeclaredOutput
from sparkonce.model.spec import Output, WriteMode
from sparkonce.sink.native import WAP_ENABLED, TakesStatements
from sparkonce.sink.slotlog.snapshot import Table
from sparkonce.sink.staging import CONNECT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WARNINGS = 10
"""Undeclared writes that a result names; it says how many more there were."""
WARNING = 160
"""Characters of each of them: values of a result have 4 KiB together."""
UNDECLARED = "undeclaredWrites"
"""Name of the result's value that lists them."""
_NOTHING = ("noop",)
"""Formats that write nothing."""
_PARQUET = frozenset(
    {
        "compression",
        "header",  # of other formats, as the next three
        "inferschema",
        "sep",
        "delimiter",
        "maxrecordsperfile",
        "mergeschema",
        "parquet.block.size",
        "parquet.compression",
        "parquet.dictionary.page.size",
        "parquet.enable.dictionary",
        "parquet.page.size",
        "parquet.writer.version",
        "partitionoverwritemode",
        "path",
    }
)
"""Options of a Parquet writer that a slot log leaves out: they change neither rows nor what readers see, or are `FrameWrite.dynamic`.
A write with any other option is refused: leaving out one that encrypts files would store them in plain text."""
_BLOOM = "parquet.bloom.filter."
"""Beginning of further ones."""
_SECRETS = re.compile("[?;]")
"""In URLs of JDBC, the beginning of what may hold a password."""


class ScriptWrites:
    """The writes of one script. One per process."""

    def __init__(self, job: Job, outputs: Sequence[Output], *, warn: bool, base: str) -> None:
        """outputs: those of the job. warn: undeclared writes pass. base: the folder that the script runs in."""
        self._job, self._warn, self._base = job, warn, base
        self._kinds = {output.name: output.kind for output in outputs if output.capture}
        self._names = [output.name for output in outputs]
        self._urls = {name: job._sinks[name].uri for name in self._kinds}
        self._declared = {output.name: job._sinks[output.name].uri for output in outputs}
        logs = {output.name: self._declared[output.name] for output in outputs if output.kind == "slotLog"}
        self._slots = None if any(output.kind == "delta" for output in outputs) else ScriptSlots(job)
        """None: what goes to a slot log is committed at once."""
        self.reads = ScriptReads(logs, base=base, fail=self._fail, table=self._table)
        self._tables = ScriptTables(job, outputs, self._fail)
        self._blocks: dict[str, Native] = {}
        self._thread = threading.get_ident()
        self._session: Any = None
        """The JVM's session that has written first."""
        self._own = False
        """Whether sparkonce itself writes at the moment."""
        self._warned: list[str] = []
        self._refused: SparkonceError | None = None
        """The first error that ended the job."""
        self._over = False

    def watch(self) -> None:
        """Recognises writes from now on, for good: threads of the script may outlive it."""
        self._hooks = recognised(self, [*_other_calls(self), *self._of_job()], _of_models(self))
        self._hooks.__enter__()

    def end(self) -> None:
        """Commits what was staged and ends the blocks, after the script ended by itself; needs no Spark session.

        Raises: as `Job.write` and `Native.end`, and what ended the job."""
        self._over = True
        if self._refused is not None:
            raise self._refused
        if self._slots is not None:
            self._slots.commit()
        for name, kind in self._kinds.items():
            if name in self._job._outputs_written:
                continue
            block = self._blocks.get(name) or self._tables.block(name) or self._idle(name, kind)
            block.end()

    # --- what `recognised` hands over ----------------------------------------------------------------------------------------

    def statement(self, statement: Statement) -> Any:
        """A write of a table by name, or to a Delta table's folder."""
        if self._passes():
            return statement.run()
        kind = _shape(statement)
        place = self._place(statement) or self._new_place(statement)
        name = None if place is None else places.output_at(place, self._urls, base=self._base)
        asks = place is None and (self._tables.declared or not self._warn)
        at = self._tables.at(statement.session, statement.table) if asks else None
        if at is not None:
            return self._to_table(kind, at, statement)
        if name is None or self._kinds[name] != "delta":
            return self._undeclared_table(kind, place, statement)
        where = str(place)
        self._in_order(kind, where, statement.session)
        created = self._begun(name, statement.write) if name not in self._blocks else False
        block, to_run = self._blocks[name], self._as_to_run(statement, str(place), created=created)
        return permanently(self._fail, lambda: block.statement(to_run))

    def _undeclared_table(self, kind: str, place: str | None, statement: Statement) -> Any:
        """A write of a table that is no output's, and of another kind than Iceberg if it exists."""
        if place is None and (name := self._tables.new_at(statement)):
            return self._undeclared(kind, name, statement.run, form="iceberg")
        if place is None and (beneath := self._beneath_view(statement)) is not None:
            return self._undeclared(
                f"{kind} through the view {statement.table} (name the table itself)", beneath, statement.run
            )
        where = place or self._catalog_place(statement) or statement.table
        return self._undeclared(kind, where, statement.run, form="delta" if place else "", mode=statement.kind)

    def _to_table(self, kind: str, at: NamedTable, statement: Statement) -> Any:
        """A write of an Iceberg table. kind: for a sentence."""
        if at.output is None or at.output not in self._kinds:
            diverted = self._warn and at.output is None and self._tables.diverts(at)
            if diverted and self._refused is None:
                self._fail(
                    InvalidInput(
                        f"the script writes what no output declares: {kind} to {at.name}. It was not run: that table has the property "
                        f"{WAP_ENABLED}, so it would go to the branch of the captured tables; add "
                        f"`{places.line_for_table(at.name, self._names)}` to spec.outputs"
                    )
                )
            return self._undeclared(kind, at.name, statement.run, form="iceberg", output=at.output)
        self._in_order(kind, at.name, statement.session)
        return self._tables.statement(at.output, at, statement)

    def elsewhere(self, statement: Statement) -> Any:
        """A write of files in another format than Delta's."""
        write = statement.write
        if write is None or write.format in _NOTHING or self._passes():
            return statement.run()
        place = places.qualified(statement.session, write.path) if write.path else None
        name = None if place is None else places.output_at(place, self._urls, base=self._base)
        kind = _shape(statement)
        if name is None or self._kinds[name] != "slotLog" or write.format != "parquet":
            where = place or write.path or ""
            return self._undeclared(kind, where, statement.run, form=write.format, mode=write.mode, told=True)
        self._in_order(kind, str(place), statement.session)
        self._write_slots(name, write)
        return None

    def refuse(self, what: str, run: Callable[[], Any], *, target: Target | None = None) -> Any:
        """A command, or a call that is no statement."""
        if self._passes():
            return run()
        output = self._table_output(target) if target is not None else None
        if target is not None and target.plan is not None and self._harmless(target, output):
            if _class(target.plan) == "CreateTable":
                self._declare(target, output)
            return run()
        return self._undeclared(what, self._target(target) or "" if target else "", run, output=output)

    def other(self, what: str, where: str, run: Callable[[], Any]) -> Any:
        """A call outside of Spark SQL."""
        return run() if self._passes() else self._undeclared(what, where, run)

    def session(self, made: Any) -> Any:
        """A session that the script has made. Raises: InvalidInput: it is one of Spark Connect, whose writes go through other classes."""
        if type(made).__module__.startswith(CONNECT):
            self._fail(
                InvalidInput("a captured script needs a Spark session in this process, and it uses Spark Connect")
            )
        if self._refused is None and not (self._over or self._own or threading.get_ident() != self._thread):
            self._tables.begin(made)
        return made

    # --- where it goes -------------------------------------------------------------------------------------------------------

    def _place(self, statement: Statement) -> str | None:
        """Where a statement's table is; None: it is no Delta table, or does not exist."""
        if statement.write is not None and statement.write.format == "iceberg":
            return None
        if statement.write is not None and statement.write.path is not None:
            return places.qualified(statement.session, statement.write.path) if statement.write.path else None
        if statement.by_path:
            return places.qualified(statement.session, statement.table.partition(".")[2].strip("`").replace("``", "`"))
        return self._of_table(statement.session, statement.table)

    def _new_place(self, statement: Statement) -> str | None:
        """Where `saveAsTable` would make its Delta table; None: it makes none."""
        write = statement.write
        makes = write is not None and write.makes and write.format == "delta"
        return self._catalog_place(statement) if makes and not _is_in_catalog(statement) else None

    def _catalog_place(self, statement: Statement) -> str | None:
        """Where the files of a table of Spark's own catalog are, or would be. None: it is another catalog's."""
        write = statement.write
        location = write.location if write is not None else ""
        place = location or _place_in_catalog(statement.session, statement.table)
        return places.qualified(statement.session, place) if place else None

    def _beneath_view(self, statement: Statement) -> str | None:
        """Where the table is that Delta would change for a statement on a temporary view; empty: that cannot be told. None: it names no
        such view."""
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        if statement.write is not None and (statement.write.makes or statement.write.path is not None):
            return None
        java: Any = statement.session
        state = java._jsparkSession.sessionState()
        if not state.catalog().isTempView(state.sqlParser().parseMultipartIdentifier(statement.table)):
            return None
        try:
            view: Any = statement.session.table(statement.table)
            leaves = view._jdf.queryExecution().analyzed().collectLeaves()
            found = [str(leaves.apply(at).relation().location().rootPaths().apply(0)) for at in range(leaves.size())]
        except (Py4JError, PySparkException):
            return ""
        ours = (place for place in found if places.below(place, self._declared, base=self._base) is not None)
        return next(ours, found[0] if found else "")

    def _of_table(self, session: SparkSession, table: str) -> str | None:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            row = described(session, table)().select("format", "location").first()
        except (PySparkException, Py4JJavaError):  # Delta's own, of a name with four parts
            return None
        return str(row["location"]) if row is not None and row["format"] == "delta" else None

    def _harmless(self, target: Target, output: str | None) -> bool:
        """Whether a command writes no table: of schemas, temporary functions and views, and tables that are there already. output: the
        Iceberg output that it is about."""
        plan, name = target.plan, _class(target.plan)
        if name == "CreateNamespace":
            return True
        if name == "CreateFunctionCommand":
            return bool(plan.isTemp())
        if name == "DropView":
            java: Any = target.session
            parts = plan.children().apply(0).nameParts()
            return bool(java._jsparkSession.sessionState().catalog().isTempView(parts))
        if name != "CreateTable" or not plan.ignoreIfExists():
            return False
        return output in self._kinds or self._delta_output(target) is not None

    def _table_output(self, target: Target) -> str | None:
        """The Iceberg output that a call is about."""
        table = _named_by(target)
        return None if table is None else self._tables.output_at(target.session, table)

    def _delta_output(self, target: Target) -> str | None:
        """The captured Delta table that a command is about."""
        place = self._target(target)
        output = None if place is None else places.output_at(place, self._urls, base=self._base)
        return output if output is not None and self._kinds[output] == "delta" else None

    def _target(self, target: Target) -> str | None:
        """The location, or else the name, of the table that a call is about. None: it cannot be told."""
        plan, session = target.plan, target.session
        if plan is not None and _class(plan) in _MAKES:
            given = plan.tableSpec().location()
            if given.isDefined():
                return places.qualified(session, str(given.get()))
        table = _named_by(target)
        if table is None:
            return None
        schema, _, path = table.partition(".")
        if schema.strip("`") == "delta":
            return places.qualified(session, path.strip("`").replace("``", "`"))
        place = self._of_table(session, table) or _place_in_catalog(session, table)
        return places.qualified(session, place) if place else table.replace("`", "")

    # --- whether it may ------------------------------------------------------------------------------------------------------

    def _passes(self) -> bool:
        """Whether the call belongs to a write of sparkonce's own, or to a statement of a block."""
        return self._own and threading.get_ident() == self._thread

    def _in_order(self, what: str, where: str, session: Any) -> None:
        """Raises: InvalidInput: the write comes from where it has no order among the others."""
        if self._refused is not None:
            raise self._refused
        if self._over:
            self._fail(InvalidInput(f"{what} to {where} came after the script had ended; it was not run"))
        if threading.get_ident() != self._thread:
            self._fail(
                InvalidInput(
                    f"{what} to {where} comes from another thread, and a captured script writes from its main thread, one table after the "
                    "other; it was not run"
                )
            )
        ours = session._jsparkSession
        if self._session is None:
            self._session = ours
        elif not self._session.equals(ours):
            self._fail(
                InvalidInput(
                    f"{what} to {where} comes from a second Spark session, and a captured script writes from one; use the session of "
                    "SparkSession.builder.getOrCreate() throughout. It was not run"
                )
            )

    def _undeclared(
        self,
        what: str,
        where: str,
        run: Callable[[], Any],
        *,
        form: str = "",
        mode: str = "",
        told: bool = False,
        output: str | None = None,
    ) -> Any:
        """Lets a write pass whose place no output declares, or ends the job. form, mode: of a DataFrame's writer. told: it goes to no table
        of Spark's, although it names no place. output: the Iceberg output that it would write."""
        if self._refused is not None:
            raise self._refused
        said = places.shown(f"{what} to {where}" if where else what)
        error = self._refusal(said, where, form, mode, told=told or bool(where), output=output)
        if error is not None:
            self._fail(error)
        self._note(said)
        return run()

    def _refusal(
        self, said: str, where: str, form: str, mode: str, *, told: bool, output: str | None
    ) -> SparkonceError | None:
        """Why a write that no captured output takes must not run; None: the job lets it pass."""
        place = where if form != "iceberg" else ""
        name = output or (places.below(place, self._declared, base=self._base) if place else None)
        if name is not None and name not in self._kinds:
            return InvalidInput(
                f"the script writes output {name}, which is declared without capture: {said}. It was not run; give the output "
                "`capture: true`"
            )
        if name is not None:
            return unfit(name, said) if self._kinds[name] == "iceberg" else _unfit(name, said)
        if self._warn:
            if self._over or threading.get_ident() != self._thread:
                return InvalidInput(f"{said} comes from another thread, or after the script's end; it was not run")
            if told:
                return None
            return InvalidInput(f"what {said} writes cannot be told, and it may be an output; it was not run")
        if form == "iceberg":
            line = places.line_for_table(where, self._names)
        else:
            line = places.line_for(form, where, mode, self._names, base=self._base)
        remedy = f"To make it once, add `{line}` to spec.outputs" if line else "No kind of output takes it"
        passes = "`capture: {undeclared: Warn}` in spec lets it pass" if told else "it belongs in a job of its own"
        return UndeclaredOutput(
            f"the script writes what no output declares: {said}. It was not run. {remedy}; {passes}"
        )

    def _fail(self, error: SparkonceError) -> NoReturn:
        """Ends the job, not only the attempt: the next one would run the same script."""
        if self._refused is None:
            self._refused = self._job._permanent(error)
        raise self._refused

    def _note(self, said: str) -> None:
        """Names an undeclared write in the result, before it begins."""
        short = said if len(said) <= WARNING else f"{said[: WARNING - 3]}..."
        if short in self._warned:
            return
        self._warned.append(short)
        named = self._warned[:WARNINGS]
        if (more := len(self._warned) - len(named)) > 0:
            named = [*named, f"and {more} more"]
        self._job.result(**{UNDECLARED: named})

    # --- blocks --------------------------------------------------------------------------------------------------------------

    def _begun(self, name: str, write: FrameWrite | None) -> bool:
        """Opens the block for its first statement; returns whether this key has created the table that the statement is to make."""
        created = write is not None and permanently(self._fail, lambda: self._created(name, write))
        self._blocks[name] = self._opened(name)
        return created

    def _as_to_run(self, statement: Statement, place: str, *, created: bool) -> Statement:
        """The statement as it runs on a table that exists by now, although the script may expect to make it. created: by this key."""
        write = statement.write
        if write is None:
            return statement
        if write.path is not None:  # which may be relative, and no name of a table is
            table = f"delta.`{place}`"
            statement = replace(statement, table=table, identify=described(statement.session, table))
        if write.makes and not _is_in_catalog(statement):
            if write.only_makes and not created:
                self._fail(
                    InvalidInput(
                        f"the script makes the table {statement.table} in mode {write.mode}, and there is one at {place} already; it was "
                        "not run"
                    )
                )
            location = place.replace("\\", "\\\\").replace("'", "\\'")
            issue(statement.session, f"CREATE TABLE IF NOT EXISTS {statement.table} USING delta LOCATION '{location}'")
        return (
            replace(statement, run=write.append)
            if created and write.only_makes and write.append is not None
            else statement
        )

    def _created(self, name: str, write: FrameWrite) -> bool:
        """Whether the table was made for this generation of the key, which happens here where there is none."""
        sink, key = self._job._sink(name)
        assert isinstance(sink, TakesStatements)  # of kind delta
        by = write.partition_columns
        return run(sink.create(key, self._job.attempt, schema=write.frame.schema.json(), partition_by=by))

    def _declare(self, target: Target, output: str | None) -> None:
        """Makes the table of a CREATE TABLE IF NOT EXISTS where there is none. Spark's engine then finds it and only registers its name: it
        makes no table in a folder that is not empty, and an output's folder holds its checks and fences. output: of kind iceberg."""
        name = output or self._delta_output(target)
        made = declared_by(target)
        if name is None or made is None or (output is None and made.provider != "delta"):
            return
        self._in_order("CREATE TABLE", self._urls[name], target.session)
        odd = made.odd if output is None else made.odd_in_iceberg
        if odd:
            if not self._is_there(target, output):
                self._fail(
                    InvalidInput(
                        f"the script creates the table of output {name} ({self._urls[name]}) with {', '.join(odd)}, and sparkonce makes "
                        "no such table; create it before the job, or leave that out. It was not run"
                    )
                )
            return
        if output is not None:
            self._tables.declare(output, schema=made.schema, partition_by=made.partition_by, properties=made.properties)
            return
        sink, key = self._job._sink(name)
        assert isinstance(sink, TakesStatements)  # of kind delta
        columns = [column for _, column in made.partition_by]
        create = sink.create(key, self._job.attempt, schema=made.schema, partition_by=columns, declared=True)
        permanently(self._fail, lambda: run(create))

    def _is_there(self, target: Target, output: str | None) -> bool:
        """Whether the table of a CREATE TABLE exists. output: of kind iceberg."""
        if output is not None:
            at = self._tables.at(target.session, _named_by(target) or "")
            return at is not None and at.found is not None and at.found.columns > 0
        return self._of_table(target.session, f"delta.`{self._target(target)}`") is not None

    def _idle(self, name: str, kind: str) -> Native | ScriptBlock:
        """A block without statements: the script had nothing to write to this table, and that is its effect. Ends the job where there is no
        table, or none that commits nothing."""
        block: Native | ScriptBlock | None = None
        why = "a slotLog commits rows only"
        try:
            if kind == "iceberg":
                block = self._tables.idle(name)
            elif kind == "delta":
                block = Native(self._job, name)
                block.begin()
        except InvalidInput as error:
            block, why = None, str(error)
        if block is None:
            self._fail(
                InvalidInput(
                    f"the script ended and wrote nothing to output {name} ({self._urls[name]}): {why}. Correct its location, or remove it "
                    "from spec.outputs"
                )
            )
        return block

    def _opened(self, name: str) -> Native:
        """An open block."""

        def begin() -> Native:
            block = Native(self._job, name)
            block.begin()
            return block

        return permanently(self._fail, begin)

    def _write_slots(self, name: str, write: FrameWrite) -> None:
        """Writes a slot log. Raises: as `Job.write`."""
        odd = [each for each in write.options if each not in _PARQUET and not each.startswith(_BLOOM)]
        if odd:
            self._fail(_unfit(name, f"a write of Parquet with the options {', '.join(odd)}"))
        mode = WriteMode.APPEND
        if write.mode == "overwrite":
            mode = WriteMode.OVERWRITE_PARTITIONS if write.dynamic else WriteMode.OVERWRITE
        slots = self._slots
        if write.only_makes:
            if slots is not None and slots.written(name):
                if write.mode == "ignore":
                    return
                self._fail(
                    InvalidInput(
                        f"the script writes Parquet to output {name} in mode {write.mode} after other rows; use mode append or overwrite"
                    )
                )
            sink, key = self._job._sink(name)
            others = run(sink.find(key)) is None and any(run(sink.inventory()).effects)
            if others:
                self._fail(
                    InvalidInput(
                        f"the script writes Parquet to output {name} in mode {write.mode}, and other keys have rows there; a slotLog takes "
                        "it in mode append"
                    )
                )
        by = write.partition_by
        if slots is not None:
            permanently(self._fail, lambda: self._inside(lambda: slots.write(write.frame, name, mode, by)))
        else:
            permanently(self._fail, lambda: self._job.write(write.frame, name, mode=mode, partition_by=by))

    def _table(self, name: str, url: str) -> Table:
        """The table of a slot log, as the script sees it."""
        return Table(url) if self._slots is None or name not in self._kinds else self._slots.table(name)

    def _inside(self, call: Callable[[], Any]) -> Any:
        """Calls what writes by Spark itself."""
        before, self._own = self._own, True
        try:
            return call()
        finally:
            self._own = before

    # --- what the script does with sparkonce itself ----------------------------------------------------------------------------

    def _of_job(self) -> list[Hook]:
        """Calls of `Job` that write by Spark, and those that would number a captured table's statements a second time."""

        def inside(original: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*arguments: Any, **named: Any) -> Any:
                return self._inside(lambda: original(*arguments, **named))

            return wrapped

        def block(original: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*arguments: Any, **named: Any) -> Any:
                output = inspect.signature(original).bind(*arguments, **named).arguments.get("output")
                if output in self._kinds:
                    raise InvalidInput(
                        f"spec.outputs[{output}].capture is true, so its statements are numbered already; write the table by Spark, or "
                        "leave capture out"
                    )
                return original(*arguments, **named)

            return wrapped

        own: list[Hook] = [(Job, "_stage", inside), (Native, "statement", inside), (BranchBlock, "statement", inside)]
        return [*own, (Job, "native", block), (Job, "sql", block)]


_MAKES = ("CreateTable", "CreateTableAsSelect", "ReplaceTable", "ReplaceTableAsSelect")
"""Plans of commands that say where their table is to be."""


def _named_by(target: Target) -> str | None:
    """The table that a call is about, as SQL spells it. None: it cannot be told."""
    from py4j.protocol import Py4JError

    if target.plan is None:
        return target.table or None
    try:
        inserts = _class(target.plan) == "InsertIntoStatement"
        if not inserts and target.plan.children().isEmpty():  # Iceberg's ALTER TABLE
            return quoted(target.plan.table())
        named = target.plan.table() if inserts else target.plan.children().apply(0)
        return quoted(named.nameParts() if _class(named) == "UnresolvedIdentifier" else named.multipartIdentifier())
    except (Py4JError, TypeError):
        return None


def _is_in_catalog(statement: Statement) -> bool:
    return bool(statement.session.catalog.tableExists(statement.table))


def _place_in_catalog(session: SparkSession, table: str) -> str:
    """Where Spark's own catalog has a table, or would put it; empty: it is no table of that catalog, or a view."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    java: Any = session
    state = java._jsparkSession.sessionState()
    try:
        name = state.sqlParser().parseTableIdentifier(table)
        if not state.catalog().tableExists(name):
            return str(state.catalog().defaultTablePath(name).toString())
        at = state.catalog().getTableMetadata(name).storage().locationUri()
        return str(at.get().toString()) if at.isDefined() else ""
    except (PySparkException, Py4JJavaError):
        return ""


def _class(plan: Any) -> str:
    return str(plan.getClass().getSimpleName())


def _shape(statement: Statement) -> str:
    """What a statement is, for a sentence."""
    write = statement.write
    if write is None:
        return statement.kind
    return f"a write ({' '.join(filter(None, (write.format, write.mode)))})"


def _unfit(name: str, what: str) -> InvalidInput:
    return InvalidInput(
        f"output {name} takes INSERT, UPDATE, DELETE, MERGE and writes of a DataFrame to a delta or iceberg table, or Parquet to a "
        f"slotLog, and not {what}; it was not run"
    )


def _other_calls(capture: ScriptWrites) -> list[Hook]:
    """Calls that write and are no concern of a native block: shortcuts of formats, RDDs, tables of the catalog."""
    from pyspark import RDD
    from pyspark.sql.catalog import Catalog
    from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter
    from pyspark.sql.session import SparkSession

    def session(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            return capture.session(original(*arguments, **named))

        return wrapped

    def read(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: Any, *arguments: Any, **named: Any) -> Any:
            given = inspect.signature(original).bind(self, *arguments, **named).arguments
            paths = given.get("paths", given.get("path"))
            if paths is None:  # `option("path", ...).load()`
                paths = options_of(self._jreader).get("path")
            paths = [paths] if isinstance(paths, str) else paths
            form = str(given.get("format") or self._jreader.source()).lower()
            parquet = original.__name__ == "parquet" or form == "parquet"
            if not parquet or not paths or not all(isinstance(path, str) for path in paths):
                return original(self, *arguments, **named)
            reader = self if given.get("schema") is None else self.schema(given["schema"])
            reader = reader.options(
                **{name: each for name, each in given.get("options", {}).items() if each is not None}
            )

            def plainly(found: Sequence[str]) -> Any:
                if found is paths:
                    return original(self, *arguments, **named)
                if original.__name__ == "parquet":
                    return original(reader, *found)
                path = {"path": found[0]} if "path" in given else {}
                return original(reader if path else reader.option("path", found[0]), **path, format="parquet")

            return capture.reads.rows(reader, paths, plainly)

        return wrapped

    def by_name(session_of: Callable[[Any], Any], argument: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def wrapping(original: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(self: Any, *arguments: Any, **named: Any) -> Any:
                text = inspect.signature(original).bind(self, *arguments, **named).arguments.get(argument)
                if isinstance(text, str):
                    capture.reads.refuse_named(session_of(self), text)
                return original(self, *arguments, **named)

            return wrapped

        return wrapping

    def shortcut(form: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def wrapping(original: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(self: Any, *arguments: Any, **named: Any) -> Any:
                call = Call(original, self, *arguments, **named)
                path = call.given.get("path") or _SECRETS.split(str(call.given.get("url", "")))[0]
                return take_write(capture, call, path=path, form=form)

            return wrapped

        return wrapping

    hooks: list[Hook] = [
        (DataFrameWriter, form, shortcut(form))
        for form in ("parquet", "json", "csv", "orc", "text", "xml", "jdbc")
        if form in DataFrameWriter.__dict__
    ]
    hooks += [(DataFrameReader, name, read) for name in ("load", "parquet")]
    hooks += [(SparkSession, "sql", by_name(lambda session: session, "sqlQuery"))]
    hooks += [(SparkSession, "table", by_name(lambda session: session, "tableName"))]
    hooks += [(DataFrameReader, "table", by_name(lambda reader: reader._spark, "tableName"))]
    hooks += [(SparkSession.Builder, name, session) for name in ("getOrCreate", "create")]
    hooks += [
        (RDD, name, _elsewhere(capture, f"RDD.{name}()", "path")) for name in RDD.__dict__ if name.startswith("saveAs")
    ]
    hooks += [
        (Catalog, name, _elsewhere(capture, f"spark.catalog.{name}()", "tableName"))
        for name in ("createTable", "createExternalTable")
    ]
    return hooks


def _elsewhere(capture: ScriptWrites, what: str, place: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Wraps a call outside of Spark SQL. place: its argument that says where it writes."""

    def wrapping(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            where = inspect.signature(original).bind(*arguments, **named).arguments.get(place)
            run = functools.partial(original, *arguments, **named)
            return capture.other(what, where if isinstance(where, str) else "", run)

        return wrapped

    return wrapping


def _of_models(capture: ScriptWrites) -> HooksOfModules:
    """Hooks of the classes by which pyspark.ml and pyspark.mllib save models: mostly the JVM writes them."""

    def hooks(module: Any) -> list[Hook]:
        own = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]
        base = getattr(module, "MLWriter", object)  # in pyspark.ml others have a `save`, too, which calls a writer's
        return [
            (each, "save", _elsewhere(capture, f"{each.__name__}.save()", "path"))
            for each in own
            if "save" in each.__dict__ and issubclass(each, base)
        ]

    return {f"pyspark.{name}": hooks for name in _SAVING}


_SAVING = ("ml.util", "mllib.util", "mllib.classification", "mllib.clustering", "mllib.regression")
"""Modules of PySpark with such classes."""
