"""Recognises the statements by which a job's code writes Delta and Iceberg tables through Spark itself, while a native block is open.

Python's classes of Spark are wrapped for the time of a block: `spark.sql` and the writers of a DataFrame. A wrapped
call is described (`Statement`) and handed to the block, which numbers it, fences it and runs it. Calls that cannot be numbered are refused
before they run, by name: commands of SQL other than INSERT, UPDATE, DELETE and MERGE, Delta's own `DeltaTable`, other tables, threads,
streams.

A listener of Spark's was not taken: it hears of a query after it ran. Settings for the whole block were not taken either: Delta reads them
once per statement, and with one number for two statements the second is skipped.

Not seen: code that calls the JVM by itself (`spark._jvm`, a Scala library). It writes as it would without sparkonce.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from sparkonce.driver.hooks import Hook, HooksOfModules, hooked
from sparkonce.errors import AttemptEnded, InvalidInput
from sparkonce.model import masking
from sparkonce.model.spec import WriteMode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparkonce.driver.context import Job
    from sparkonce.sink.protocol import Sink

APPLICATION, VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
"""Settings of a session from which Delta takes the transaction identifier of its next commit."""
METADATA = "spark.databricks.delta.commitInfo.userMetadata"
"""Text of the next commit that `DESCRIBE HISTORY` shows."""

_HARMLESS = re.compile(
    r"(Show|Describe|Explain|Reset|Cache|Uncache|ClearCache|Refresh)[A-Z]|Set(Command|CatalogCommand|CatalogAndNamespace|NamespaceCommand"
    r"|Variable)$|CreateViewCommand|CreateTempViewUsing|CreateVariable|DropVariable|AddJarsCommand"
)
"""Spark's commands that write no table, by the names of their plans."""
_WRITES = {
    "InsertIntoStatement": "INSERT",
    "OverwriteByExpression": "INSERT",
    "MergeIntoTable": "MERGE",
    "UpdateTable": "UPDATE",
    "DeleteFromTable": "DELETE",
}
_EVOLVES = re.compile(r"\bWITH\s+SCHEMA\s+EVOLUTION\b", re.IGNORECASE)
_EVOLUTION = "WITH SCHEMA EVOLUTION"
_QUERIES = frozenset(
    "Project Filter Aggregate Sort GlobalLimit LocalLimit Limit Offset Distinct Union Except Intersect UnresolvedRelation "  # noqa: SIM905 - names
    "UnresolvedInlineTable LocalRelation UnresolvedHaving WithWindowDefinition SubqueryAlias OneRowRelation Join "
    "RepartitionByExpression Repartition Pivot Unpivot Sample Generate UnresolvedWith UnresolvedTableValuedFunction "
    "UnresolvedHint LateralJoin UnresolvedSubqueryColumnAliases RelationTimeTravel Window".split()
)
"""Plans of queries. Everything else is refused: some plans that write are no commands for Spark (EXECUTE IMMEDIATE, RESTORE)."""


@dataclass(frozen=True, kw_only=True)
class FrameWrite:
    """What a writer of a DataFrame was told to write."""

    frame: DataFrame
    format: str
    mode: str
    """append, overwrite, errorifexists, ignore; of `writeTo` the call's name."""
    path: str | None = None
    """None: it writes a table by its name."""
    makes: bool = False
    """Whether it makes a table of that name where there is none (`saveAsTable`)."""
    location: str = ""
    """Where that table would be; empty: where the catalog puts tables."""
    partition_by: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """Names of the options that were set on the writer, in lower case."""
    dynamic: bool = False
    """Whether mode overwrite replaces only the partitions that it has rows of (Spark's `partitionOverwriteMode`)."""
    append: Callable[[], Any] | None = None
    """The same write in mode append; None: of `writeTo`."""

    @property
    def only_makes(self) -> bool:
        """Whether its mode writes no table that is there."""
        return self.mode in ("errorifexists", "ignore")

    @property
    def partition_columns(self) -> list[str]:
        """Columns of `partition_by`, as the frame spells them."""
        spelled = {column.lower(): column for column in self.frame.columns}
        return [spelled.get(column.lower(), column) for column in self.partition_by]


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A call that would write a table."""

    session: SparkSession
    kind: str
    """What it does (`MERGE`, `append`)."""
    table: str
    """The table it writes, as the code names it."""
    identify: Callable[[], Any]
    """Spark's description of that table: a DataFrame as of `DESCRIBE DETAIL`."""
    digest: str
    """SHA-256 (hex) of what is known of it before it runs: SQL's text; of other calls their kind alone."""
    run: Callable[[], Any]
    write: FrameWrite | None = None
    """None: it is SQL."""
    call: str = "sql"
    """Python's name of the call; of writers their last method (`saveAsTable`)."""
    evolves: str = ""
    """What lets it add columns to an Iceberg table, or change them, outside of any branch (`mergeSchema`); empty: nothing."""

    @property
    def by_path(self) -> bool:
        """Whether its name means one table whatever the session's catalog and database are."""
        return self.table.startswith(("delta.`", "`delta`.`"))

    @property
    def by_relative_path(self) -> bool:
        """Whether it names its table by a relative path, which Delta takes for no table."""
        return self.by_path and "`/" not in self.table and ":/" not in self.table

    @property
    def identity(self) -> str | None:
        """Identity of the Delta table that it writes; None if that is no Delta table, or does not exist."""
        from pyspark.errors import PySparkException

        try:
            row = self.identify().select("format", "id").first()
        except PySparkException:
            return None
        return None if row is None or row["format"] != "delta" else str(row["id"])


class TakesCalls(Protocol):
    """Runs the statements of a block, one after the other."""

    def statement(self, statement: Statement, /) -> Any:
        """Returns what the call returns."""
        ...

    def elsewhere(self, statement: Statement, /) -> Any:
        """A write that is to no Delta table, by its format; returns what the call returns."""
        ...

    def refuse(self, what: str, run: Callable[[], Any], /, *, target: Target | None = None) -> Any:
        """A call that is no statement. target: what it would write, where that can be told. Raises: InvalidInput: the block takes no such
        call. Returns what the call returns, where it is harmless."""
        ...


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a call that is no statement would write."""

    session: SparkSession
    table: str = ""
    """As SQL names it."""
    plan: Any = None
    """Spark's, of a command of SQL."""


class StatementBlock:
    """What every native block does with calls that are no statements of its own."""

    def __init__(self, output: str) -> None:
        self._output = output

    def elsewhere(self, statement: Statement) -> Any:
        return statement.run()

    def refuse(self, what: str, run: object = None, *, target: object = None) -> NoReturn:
        del run, target
        raise InvalidInput(
            f"a native block on {self._output} takes INSERT, UPDATE, DELETE, MERGE and writes of a DataFrame to its own table, and not "
            f"{what}; do that outside of the block"
        )


class AttemptBlock(StatementBlock):
    """A native block of a running attempt: one thread, while the attempt lasts.

    merges: it is the MERGE by which `job.write` writes in that mode.

    Raises: InvalidInput: the output declares what no native block keeps."""

    def __init__(self, job: Job, sink: Sink, *, merges: bool = False) -> None:
        super().__init__(sink.name)
        if sink.mode not in (None, WriteMode.MERGE if merges else WriteMode.APPEND):
            raise InvalidInput(
                f"spec.outputs[{sink.name}].mode is {sink.mode}, and the statements of a native block say what they do; leave it out"
            )
        if sink.place is not None:
            raise InvalidInput(
                "spec.series orders jobs that write a table once, and Spark checks no order; leave it out"
            )
        expected = job._expected.get(sink.name)  # noqa: SLF001 - native blocks are part of Job, in modules of their own
        if expected is not None and (expected.min_rows or expected.columns):
            raise InvalidInput(
                f"spec.outputs[{sink.name}].expect is checked before rows become visible, and statements commit their own; leave it out"
            )
        self._job, self._sink = job, sink
        self._thread = 0

    def _hold(self) -> None:
        """Makes the calling thread the block's."""
        self._thread = threading.get_ident()

    def _check_caller(self) -> None:
        """Raises: InvalidInput: another thread calls. AttemptEnded: nothing that this attempt writes can be committed."""
        if threading.get_ident() != self._thread:
            self.refuse("statements of another thread, which have no order")
        if self._job.heartbeat.over:
            raise AttemptEnded(
                f"attempt {self._job.attempt} of {self._job.key} is over; nothing it writes can be committed"
            )


class NoStatement(InvalidInput):
    """A text of SQL that is neither a statement nor a query. `plan`: Spark's, as parsed."""

    def __init__(self, said: str, plan: Any) -> None:
        super().__init__(said)
        self.plan = plan


def refuse_remote() -> None:
    """Raises: InvalidInput: this process uses Spark Connect, whose sessions have no settings that one statement could be given alone."""
    from pyspark.sql.utils import is_remote

    if is_remote():
        raise InvalidInput("a native block needs a Spark session in this process, and this one uses Spark Connect")


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@contextlib.contextmanager
def _filled_in(session: SparkSession, text: str, arguments: Mapping[str, Any]) -> Iterator[str]:
    """The text with `spark.sql`'s keyword arguments in place of its braces. DataFrames among them are temporary views meanwhile. Errors of
    PySpark pass through."""
    from pyspark.sql.sql_formatter import SQLStringFormatter

    formatter = SQLStringFormatter(session)
    try:
        yield formatter.format(text, **arguments) if arguments else text
    finally:
        formatter.clear()


def of_sql(session: SparkSession, text: str, *, given: str = "") -> tuple[str, str] | None:
    """What a text of SQL writes: the kind of statement and the table's name. None: it only reads. given: the text as an error shows it, if
    it was another one before its braces were filled in.

    Raises: NoStatement: a command that a block does not take. Errors of Spark's parser pass through."""
    said = _shown(given or text)
    java: Any = session
    plan = java._jsparkSession.sessionState().sqlParser().parsePlan(text)  # noqa: SLF001 - Python's API has no parser
    if _name(plan) == "UnresolvedWith":
        plan = plan.child()
    name = _name(plan)
    children = plan.children()
    # a Union is a query, or several INSERTs in one text
    several = [_name(children.apply(at)) for at in range(children.size())] if name == "Union" else []
    if name in _QUERIES and all(each in _QUERIES for each in several):
        return None
    if _HARMLESS.match(name):
        return None
    if name not in _WRITES:
        raise NoStatement(f"{said} ({name})", plan)
    target = plan.table() if name in ("InsertIntoStatement", "OverwriteByExpression") else plan.children().apply(0)
    while _name(target) == "SubqueryAlias":
        target = target.child()
    if _name(target) != "UnresolvedRelation":
        raise NoStatement(f"{said} (whose table has no plain name)", plan)
    # They may name another branch, or a transaction of their own. Spark has one for itself.
    if any(name != "__required_write_privileges__" for name in target.options().keySet()):
        raise NoStatement(f"{said} (whose table has options)", plan)
    return _WRITES[name], quoted(target.multipartIdentifier())


def _name(plan: Any) -> str:
    return str(plan.getClass().getSimpleName())


def quoted(parts: Any) -> str:
    """SQL's spelling of a name of several parts, given as Scala's sequence."""
    return ".".join("`" + str(parts.apply(at)).replace("`", "``") + "`" for at in range(parts.size()))


def _shown(text: str) -> str:
    line = masking.quotable(" ".join(text.split()))
    return line if len(line) <= 60 else f"{line[:60]}..."


def described(session: SparkSession, table: str) -> Callable[[], Any]:
    """Describes a table that SQL names so."""
    return lambda: issue(session, f"DESCRIBE DETAIL {table}")


def issue(session: SparkSession, text: str) -> Any:
    """`session.sql` as Spark has it."""
    method = type(session).sql
    untouched: Callable[..., Any] = getattr(method, "__wrapped__", method)
    return untouched(session, text)


@contextlib.contextmanager
def with_settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Sets settings of the session and restores what was there before, whatever happens."""
    before = {name: session.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            session.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, old)


def recognised(
    block: TakesCalls, others: Sequence[Hook] = (), modules: HooksOfModules | None = None
) -> contextlib.AbstractContextManager[None]:
    """Hands the statements of this process to the block while the context is open. others, modules: further calls to hand over."""
    delta = functools.partial(_of_delta, block)
    return hooked([*_of_spark(block), *others], {"delta.tables": delta, **(modules or {})})


def _of_spark(block: TakesCalls) -> list[Hook]:
    from pyspark.sql.merge import MergeIntoWriter
    from pyspark.sql.readwriter import DataFrameWriter, DataFrameWriterV2
    from pyspark.sql.session import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    def sql(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: SparkSession, sqlQuery: str, args: Any = None, **kwargs: Any) -> Any:  # noqa: N803 - Spark's name
            def run() -> Any:
                return original(self, sqlQuery, args, **kwargs)

            with _filled_in(self, sqlQuery, kwargs) as text:
                try:
                    found = of_sql(self, text, given=sqlQuery)
                except NoStatement as refused:
                    return block.refuse(str(refused), run, target=Target(session=self, plan=refused.plan))
                if found is None:
                    return run()
                kind, table = found
                return block.statement(
                    Statement(
                        session=self,
                        kind=kind,
                        table=table,
                        identify=described(self, table),
                        digest=_digest("sql", sqlQuery),
                        run=run,
                        evolves=_EVOLUTION if _EVOLVES.search(sqlQuery) else "",
                    )
                )

        return wrapped

    def save(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: Any, *arguments: Any, **named: Any) -> Any:
            call = Call(original, self, *arguments, **named)
            return take_write(block, call, path=_path_of(call))

        return wrapped

    def into(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: Any, *arguments: Any, **named: Any) -> Any:
            call = Call(original, self, *arguments, **named)
            makes = "name" in call.given
            location = _path_of(call) if makes else ""
            table = str(call.given["name" if makes else "tableName"])
            return take_write(block, call, table=table, makes=makes, location=location)

        return wrapped

    def v2(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: Any, *arguments: Any, **named: Any) -> Any:
            run = functools.partial(original, self, *arguments, **named)
            table, options = quoted(self._jwriter.tableName()), _options_by_name(self._jwriter)
            if (own := _own_option(options)) is not None:
                return block.refuse(own, run, target=Target(session=self._spark, table=table))
            write = FrameWrite(frame=self._df, format="", mode=original.__name__, options=tuple(options))
            return block.statement(_statement(self._spark, write, table, run, call="writeTo", options=options))

        return wrapped

    def begins(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: Any, df: Any, table: str, condition: Any) -> None:
            original(self, df, table, condition)
            self._target = table  # its JVM's side keeps the name to itself

        return wrapped

    def merge(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: Any) -> Any:
            table, run = getattr(self, "_target", None), functools.partial(original, self)
            if table is None:
                return block.refuse("a DataFrame.mergeInto() that began before", run)
            identify = described(self._spark, table)
            kind, digest = "MERGE", _digest("writer")
            return block.statement(
                Statement(
                    session=self._spark,
                    kind=kind,
                    table=table,
                    identify=identify,
                    digest=digest,
                    run=run,
                    call="mergeInto",
                    evolves=_EVOLUTION if self._jwriter.schemaEvolutionEnabled() else "",
                )
            )

        return wrapped

    def creator(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: Any) -> Any:
            at = Target(session=self._spark, table=quoted(self._jwriter.tableName()))
            return block.refuse(f"writeTo(...).{original.__name__}()", functools.partial(original, self), target=at)

        return wrapped

    return [
        (SparkSession, "sql", sql),
        (DataFrameWriter, "save", save),
        (DataFrameWriter, "saveAsTable", into),
        (DataFrameWriter, "insertInto", into),
        *((DataFrameWriterV2, name, v2) for name in ("append", "overwrite", "overwritePartitions")),
        *((DataFrameWriterV2, name, creator) for name in ("create", "replace", "createOrReplace")),
        (MergeIntoWriter, "__init__", begins),
        (MergeIntoWriter, "merge", merge),
        (DataStreamWriter, "start", _refused(block, "a stream (writeStream)")),
        (DataStreamWriter, "toTable", _refused(block, "a stream (writeStream)")),
    ]


def _refused(block: TakesCalls, what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Wraps a call that is no statement."""

    def wrapping(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            return block.refuse(what, functools.partial(original, *arguments, **named))

        return wrapped

    return wrapping


class Call:
    """A call of a writer of a DataFrame."""

    def __init__(self, original: Callable[..., Any], writer: Any, *arguments: Any, **named: Any) -> None:
        from pyspark.sql.utils import to_str

        self.writer, self._original = writer, original
        self._bound = inspect.signature(original).bind(writer, *arguments, **named)
        given = dict(self._bound.arguments)
        options = given.pop("options", {})
        self.given: dict[str, Any] = {**given, **options}
        """The arguments by name, its options among them."""
        self.options = {name.lower(): str(to_str(value)) for name, value in options.items() if value is not None}
        """The options that it gives itself, which its writer gets inside the call only, by their names in lower case."""
        self.name = str(original.__name__)

    def run(self) -> Any:
        return self._original(*self._bound.args, **self._bound.kwargs)

    def append(self) -> Any:
        """Runs it in mode append, whatever it was given."""
        self._bound.arguments.pop("mode", None)
        self.writer.mode("append")
        return self.run()


def take_write(
    block: TakesCalls, call: Call, *, path: str | None = None, table: str = "", form: str = "", **made: Any
) -> Any:
    """Hands a call of `df.write` to the block. path: where it writes files, empty where it does not say;
    None: `table`, by its name. form: its format, where the call
    does not say it. made: further fields of `FrameWrite`."""
    writer, given = call.writer, call.given
    jvm: Any = writer._jwrite  # noqa: SLF001 - Python's writer has no public state
    form = form or str(given.get("format") or jvm.source()).lower()
    by_table = path is None or form in TABLES
    named_so = table if path is None else path if form == "iceberg" else f"{form}.`{path}`"
    options = {**options_of(jvm), **call.options}
    if by_table and (own := _own_option(options)) is not None:
        at = Target(session=writer._spark, table=named_so)  # noqa: SLF001 - see above
        return block.refuse(own, call.run, target=at)
    into = given.get("overwrite") if "tableName" in given else None  # of insertInto
    mode = str(given.get("mode") or (("append", "overwrite")[into] if into is not None else jvm.curmode())).lower()
    by, named = given.get("partitionBy"), jvm.partitioningColumns()
    columns = [by] if isinstance(by, str) else by or (_items(named.get()) if named.isDefined() else ())
    write = FrameWrite(
        frame=writer._df,  # noqa: SLF001 - see above
        format=form,
        mode=_MODES.get(mode, mode),
        path=path,
        partition_by=tuple(map(str, columns)),
        options=tuple(options),
        dynamic=bool(columns) and _partition_mode(writer, options) == "dynamic",
        append=call.append,
        **made,
    )
    spark = writer._spark  # noqa: SLF001 - see above
    statement = _statement(spark, write, named_so, call.run, call=call.name, options=options)
    return block.statement(statement) if by_table else block.elsewhere(statement)


TABLES = ("delta", "iceberg")
"""Formats of tables. Iceberg takes a table's name for its path."""
_OWN = {"txnAppId": "which numbers it already (leave it out)", "branch": "which sends it elsewhere (leave it out)"}
"""Options of a writer that take the place of what a block sets."""


def _own_option(options: Mapping[str, str]) -> str | None:
    """The first such option among these, for a sentence."""
    return next((f"a write with its own {name}, {why}" for name, why in _OWN.items() if name.lower() in options), None)


_MODES = {"error": "errorifexists", "default": "errorifexists"}


def _items(sequence: Any) -> list[Any]:
    """A sequence of Scala's."""
    return [sequence.apply(at) for at in range(sequence.size())]


def options_of(jvm: Any) -> dict[str, str]:
    """The options of a reader or writer of DataFrames, given as its object in the JVM, by their names in lower case."""
    return _named(jvm.extraOptions())


def _options_by_name(jvm: Any) -> dict[str, str]:
    """The same of a writer of `df.writeTo`, which has no public way to ask for them."""
    field = jvm.getClass().getDeclaredField("options")
    field.setAccessible(True)
    return _named(field.get(jvm))


def _named(options: Any) -> dict[str, str]:
    pairs = _items(options.toSeq())
    return {str(each._1()).lower(): str(each._2()) for each in pairs}  # noqa: SLF001 - pairs of Scala's


def _statement(
    session: SparkSession,
    write: FrameWrite,
    table: str,
    run: Callable[[], Any],
    *,
    call: str,
    options: Mapping[str, str],
) -> Statement:
    evolves = any(options.get(name, "").lower() == "true" for name in ("mergeschema", "merge-schema"))
    return Statement(
        session=session,
        kind=write.mode,
        table=table,
        identify=described(session, table),
        digest=_digest("writer"),
        run=run,
        write=write,
        call=call,
        evolves="mergeSchema" if evolves else "",
    )


def _partition_mode(writer: Any, options: Mapping[str, str]) -> str:
    """Which rows of a partitioned folder mode overwrite replaces: the writer's own option comes before the session's setting."""
    asked = options.get("partitionoverwritemode")
    setting = writer._spark.conf.get("spark.sql.sources.partitionOverwriteMode", "static")  # noqa: SLF001 - see `take_write`
    return str(asked if asked is not None else setting).lower()


def _path_of(call: Call) -> str:
    return str(call.given.get("path") or options_of(call.writer._jwrite).get("path", ""))  # noqa: SLF001 - see `take_write`


_OF_DELTA = (
    "vacuum optimize restoreToVersion restoreToTimestamp upgradeTableProtocol addFeatureSupport dropFeatureSupport generate convertToDelta "  # noqa: SIM905 - names
    "clone cloneAtVersion cloneAtTimestamp".split()
)
"""Methods of `DeltaTable` that are no statements in SQL either."""


def _of_delta(block: TakesCalls, tables: Any) -> list[Hook]:
    """The hooks of the Python package delta-spark, given as its module `delta.tables`."""
    builder = "DeltaTableBuilder.execute(), whose SQL is CREATE TABLE IF NOT EXISTS"
    others = [name for name in _OF_DELTA if name in tables.DeltaTable.__dict__]
    return [
        (tables.DeltaMergeBuilder, "execute", _refused(block, "DeltaTable.merge(); write it as SQL")),
        (tables.DeltaTableBuilder, "execute", _refused(block, builder)),
        *(
            (tables.DeltaTable, name, _refused(block, f"DeltaTable.{name}(); write it as SQL"))
            for name in ("update", "delete")
        ),
        *((tables.DeltaTable, name, _refused(block, f"DeltaTable.{name}()")) for name in others),
    ]
