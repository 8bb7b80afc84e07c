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
import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sparkonce.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APPLICATION, VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
"""Settings of a session from which Delta takes the transaction identifier of its next commit."""
METADATA = "spark.databricks.delta.commitInfo.userMetadata"
"""Text of the next commit that `DESCRIBE HISTORY` shows."""

_HARMLESS = re.compile(
    r"(Show|Describe|Explain|Set|Reset|Cache|Uncache|ClearCache|Refresh)[A-Z]|(Show|Describe|Explain|Set|Reset)$"
    r"|CreateViewCommand|CreateTempViewUsing|CreateVariable|DropVariable|AddJarsCommand"
)
"""Spark's commands that write no table, by the names of their plans."""
_NOT_HARMLESS = re.compile(r"SetTable|SetView|SetNamespace(Properties|Location|Collation)|SetColumn")
_WRITES = {
    "InsertIntoStatement": "INSERT",
    "OverwriteByExpression": "INSERT",
    "MergeIntoTable": "MERGE",
    "UpdateTable": "UPDATE",
    "DeleteFromTable": "DELETE",
}
_QUERIES = frozenset(
    "Project Filter Aggregate Sort GlobalLimit LocalLimit Limit Offset Distinct Union Except Intersect UnresolvedRelation "  # noqa: SIM905 - names
    "UnresolvedInlineTable LocalRelation UnresolvedHaving WithWindowDefinition SubqueryAlias OneRowRelation Join "
    "RepartitionByExpression Repartition Pivot Unpivot Sample Generate UnresolvedWith UnresolvedTableValuedFunction".split()
)
"""Plans of queries. Everything else is refused: some plans that write are no commands for Spark (EXECUTE IMMEDIATE, RESTORE)."""


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
    call: str = "sql"
    """Python's name of the call; of writers their last method (`saveAsTable`)."""
    text: str = ""
    """SQL as it was given; empty for other calls."""

    @property
    def by_path(self) -> bool:
        """Whether its name means one table whatever the session's catalog and database are."""
        return self.table.startswith(("delta.`", "`delta`.`"))

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

    def refuse(self, what: str, /) -> None:
        """Raises InvalidInput: the block takes no such call."""
        ...


def refuse_remote() -> None:
    """Raises: InvalidInput: this process uses Spark Connect, whose sessions have no settings that one statement could be given alone."""
    from pyspark.sql.utils import is_remote

    if is_remote():
        raise InvalidInput("a native block needs a Spark session in this process, and this one uses Spark Connect")


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def of_sql(session: SparkSession, text: str, arguments: dict[str, Any]) -> tuple[str, str] | None:
    """What a text of SQL writes: the kind of statement and the table's name. None: it only reads.

    arguments: `spark.sql`'s own, of which each name in braces is taken for an identifier.

    Raises: InvalidInput: a command that a block does not take. Errors of Spark's parser pass through."""
    parsed = text.format(**{name: name for name in arguments}) if arguments else text
    java: Any = session
    plan = java._jsparkSession.sessionState().sqlParser().parsePlan(parsed)  # noqa: SLF001 - Python's API has no parser
    if _name(plan) == "UnresolvedWith":
        plan = plan.child()
    name = _name(plan)
    children = plan.children()
    # a Union is a query, or several INSERTs in one text
    several = [_name(children.apply(at)) for at in range(children.size())] if name == "Union" else []
    if name in _QUERIES and all(each in _QUERIES for each in several):
        return None
    if _HARMLESS.match(name) and not _NOT_HARMLESS.match(name):
        return None
    if name not in _WRITES:
        raise InvalidInput(f"{_shown(text)} ({name})")
    target = plan.table() if name in ("InsertIntoStatement", "OverwriteByExpression") else plan.children().apply(0)
    while _name(target) == "SubqueryAlias":
        target = target.child()
    if _name(target) != "UnresolvedRelation":
        raise InvalidInput(f"{_shown(text)} (whose table has no plain name)")
    # They may name another branch, or a transaction of their own. Spark has one for itself.
    if any(name != "__required_write_privileges__" for name in target.options().keySet()):
        raise InvalidInput(f"{_shown(text)} (whose table has options)")
    return _WRITES[name], _quoted(target.multipartIdentifier())


def _name(plan: Any) -> str:
    return str(plan.getClass().getSimpleName())


def _quoted(parts: Any) -> str:
    """SQL's spelling of a name of several parts, given as Scala's sequence."""
    return ".".join("`" + str(parts.apply(at)).replace("`", "``") + "`" for at in range(parts.size()))


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:60]}..."


def _described(session: SparkSession, table: str) -> Callable[[], Any]:
    """Describes a table that SQL names so, by `session.sql` as Spark has it."""
    return lambda: untouched_sql(session, f"DESCRIBE DETAIL {table}")


def untouched_sql(session: SparkSession, text: str) -> Any:
    """As `session.sql`, past a block that is open."""
    method = type(session).sql
    return getattr(method, "__wrapped__", method)(session, text)


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


@contextlib.contextmanager
def recognised(block: TakesCalls) -> Iterator[None]:
    """Hands the statements of this process to the block while the context is open."""
    with contextlib.ExitStack() as undo:
        for owner, name, wrapper in [*_of_spark(block), *_of_delta(block)]:
            original = owner.__dict__[name]
            setattr(owner, name, functools.wraps(original)(wrapper(original)))
            undo.callback(setattr, owner, name, original)
        yield


Hook = tuple[type, str, Callable[[Callable[..., Any]], Callable[..., Any]]]


def _of_spark(block: TakesCalls) -> list[Hook]:
    from pyspark.sql.readwriter import DataFrameWriter, DataFrameWriterV2
    from pyspark.sql.session import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    def sql(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: SparkSession, sqlQuery: str, args: Any = None, **kwargs: Any) -> Any:  # noqa: N803 - Spark's name
            def run() -> Any:
                return original(self, sqlQuery, args, **kwargs)

            try:
                found = of_sql(self, sqlQuery, kwargs)
            except InvalidInput as refused:
                block.refuse(str(refused))
                raise
            if found is None:
                return run()
            kind, table = found
            digest = _digest("sql", sqlQuery)
            identify = _described(self, table)
            return block.statement(
                Statement(
                    session=self, kind=kind, table=table, identify=identify, digest=digest, run=run, text=sqlQuery
                )
            )

        return wrapped

    def save(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: Any, *arguments: Any, **named: Any) -> Any:
            given = _given(original, self, *arguments, **named)
            source = str(given.get("format") or self._jwrite.source()).lower()
            if source not in ("delta", "iceberg"):
                return original(self, *arguments, **named)
            path = given.get("path") or _option(self, "path")
            run = functools.partial(original, self, *arguments, **named)
            table = f"delta.`{path}`" if source == "delta" else str(path)  # Iceberg takes a table's name for its path
            return block.statement(_of_writer(self, given, table, run, call="save"))

        return wrapped

    def into(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: Any, *arguments: Any, **named: Any) -> Any:
            given = _given(original, self, *arguments, **named)
            run = functools.partial(original, self, *arguments, **named)
            table = str(given.get("name") or given.get("tableName"))
            return block.statement(_of_writer(self, given, table, run, call=original.__name__))

        return wrapped

    def v2(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: Any, *arguments: Any, **named: Any) -> Any:
            run = functools.partial(original, self, *arguments, **named)
            given = {"mode": original.__name__}
            table = _quoted(self._jwriter.tableName())
            return block.statement(_of_writer(self, given, table, run, call="writeTo"))

        return wrapped

    creators = ("create", "replace", "createOrReplace")
    return [
        (SparkSession, "sql", sql),
        (DataFrameWriter, "save", save),
        (DataFrameWriter, "saveAsTable", into),
        (DataFrameWriter, "insertInto", into),
        *((DataFrameWriterV2, name, v2) for name in ("append", "overwrite", "overwritePartitions")),
        *((DataFrameWriterV2, name, _refused(block, f"writeTo(...).{name}()")) for name in creators),
        (DataStreamWriter, "start", _refused(block, "a stream (writeStream)")),
        (DataStreamWriter, "toTable", _refused(block, "a stream (writeStream)")),
    ]


def _refused(block: TakesCalls, what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrapping(_: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*_: Any, **__: Any) -> None:
            block.refuse(what)

        return wrapped

    return wrapping


def _given(original: Callable[..., Any], *arguments: Any, **named: Any) -> dict[str, Any]:
    """The arguments of a call by name, its options among them."""
    given = dict(inspect.signature(original).bind(*arguments, **named).arguments)
    return {**given, **given.pop("options", {})}


def _of_writer(writer: Any, given: Mapping[str, Any], table: str, run: Callable[[], Any], *, call: str) -> Statement:
    writes = getattr(
        writer, "_jwrite", None
    )  # of `df.write`; `writeTo` has its mode in the call, and keeps its options
    for option in ("txnAppId", "branch"):
        if given.get(option) is not None or (writes is not None and _option(writer, option) is not None):
            raise InvalidInput(
                f"{option}: sparkonce sets it for the statements of a native block; leave the option out"
            )
    mode = given.get("mode") or ("overwrite" if given.get("overwrite") else None) or writer._jwrite.curmode()  # noqa: SLF001 - as above
    session = writer._spark  # noqa: SLF001 - see above
    identify = _described(session, table)
    kind = str(mode).lower()
    digest = _digest("writer")
    return Statement(session=session, kind=kind, table=table, identify=identify, digest=digest, run=run, call=call)


def _option(writer: Any, name: str) -> str | None:
    found = writer._jwrite.extraOptions().get(name)  # noqa: SLF001 - see `_of_writer`
    return str(found.get()) if found.isDefined() else None


def _of_delta(block: TakesCalls) -> list[Hook]:
    """Of the Python package delta-spark, where a job uses it."""
    try:
        tables = importlib.import_module("delta.tables")
    except ModuleNotFoundError:
        return []
    DeltaMergeBuilder, DeltaTable = tables.DeltaMergeBuilder, tables.DeltaTable  # noqa: N806 - classes

    writes = "update delete vacuum optimize restoreToVersion restoreToTimestamp upgradeTableProtocol addFeatureSupport dropFeatureSupport"
    return [
        (DeltaMergeBuilder, "execute", _refused(block, "DeltaTable.merge(); write it as SQL")),
        *(
            (DeltaTable, name, _refused(block, f"DeltaTable.{name}(); write it as SQL"))
            for name in writes.split()
            if name in DeltaTable.__dict__
        ),
    ]
