# ruff: noqa: SLF001 - writes are part of Job, in modules of their own
"""`job.write(df, "orders", mode="merge", on=["id"])`: rows replace those of the table with the same key, and the others are added.

It is one MERGE of Spark's own engine, once as every statement of a native block (`sparkonce.driver.native`), and nothing of the DataFrame
is computed if it is done. MERGE by itself alters rows in silence in three cases, which are refused here by name: it takes several rows of
one key as long as the table has none of it, it leaves out columns that the table does not have, and it casts a number to a smaller type.
NULL is a value of a key like any other (`<=>`): by `=`, each job would add its rows without a key once more.

A fourth is refused because it fails without a sentence: Delta's MERGE by a CHAR column, while Spark pads such texts as it reads them.

A table that does not exist is made without rows first, so that two jobs that begin it at once find each other's rows.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from sparkonce.blocking import run
from sparkonce.driver.channel import Written
from sparkonce.driver.native import run_once
from sparkonce.driver.statements import issue, refuse_remote
from sparkonce.errors import InvalidInput, OutputUnsupported
from sparkonce.sink.delta.widths import widths
from sparkonce.sink.groups import quoted
from sparkonce.sink.native import TakesBranch, TakesStatements
from sparkonce.sink.protocol import Sink, SinkKey
from sparkonce.sink.staging import refuse_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

    from sparkonce.driver.context import Job

_ENGINES = {"delta": "io.delta.sql.DeltaSparkSessionExtension", "iceberg": "IcebergSparkSessionExtensions"}
"""By kind of output, the session extension that its MERGE needs."""
_PADDING = "spark.sql.readSideCharPadding"
"""Whether Spark pads the texts of CHAR columns as it reads them; on by default."""
_WIDER = ("tinyint", "smallint", "int", "bigint")
"""A column takes values of its own type, and of a narrower one of these."""


def merge(job: Job, sink: Sink, key: SinkKey, frame: DataFrame, on: Sequence[str]) -> Written:
    """Writes the rows in mode Merge.

    Raises:
        InvalidInput: nothing was written; it says which rows, columns or settings stand against it.
        All others: as `Job.sql`.
    """
    from pyspark.errors import PySparkException

    if sink.kind not in _ENGINES:
        raise OutputUnsupported(
            f"output {sink.name} is a {sink.kind}, which takes no mode Merge; declare a delta or iceberg output"
        )
    refuse_connect(frame, "merge")
    refuse_remote()
    session = frame.sparkSession
    if _ENGINES[sink.kind] not in (session.conf.get("spark.sql.extensions", None) or ""):
        raise InvalidInput(
            f"mode Merge on output {sink.name} is a MERGE of Spark's own {sink.kind} engine, which this session does not have: add its "
            f"package to the job, and {_ENGINES[sink.kind]} to spark.sql.extensions"
        )
    columns, table = _columns(job, frame, on, sink), _name(sink)
    if run(sink.fence(key, job.attempt, fingerprint=job.assignment.fingerprint, by=f"attempt {job.attempt}")) is None:
        _make(job, sink, key, frame)
    view = f"sparkonce_merge_{re.sub('[^a-z0-9]', '_', sink.name)}"
    distinct = f"output {sink.name}: several of the rows to merge have the same {', '.join(columns)}"
    _once_each(frame, columns, distinct).createOrReplaceTempView(view)
    same = " AND ".join(f"t.{quoted(each)} <=> s.{quoted(each)}" for each in columns)
    text = (
        f"MERGE INTO {table} t USING {view} s ON {same} WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    try:
        return run_once(
            job,
            sink.name,
            lambda: session.sql(text),
            before=lambda: _check_columns(job, sink, table, frame, columns),
            merges=True,
        )
    except PySparkException as error:
        if distinct not in str(error):
            raise
        said = f"{distinct}; nothing was written. Keep one row of each key, for instance the latest"
        raise job._permanent(InvalidInput(said)) from None
    finally:
        session.catalog.dropTempView(view)


def _columns(job: Job, frame: DataFrame, asked: Sequence[str], sink: Sink) -> list[str]:
    """The frame's columns that identify a row. Raises: InvalidInput."""
    declared = job._merged_on.get(sink.name, ())
    if asked and declared and {name.lower() for name in asked} != {name.lower() for name in declared}:
        raise InvalidInput(
            f"on={list(asked)} contradicts spec.outputs[{sink.name}].on, which is {list(declared)}; leave one of them out"
        )
    on = asked or declared
    spelled = {name.lower(): name for name in frame.columns}
    missing = [name for name in on if name.lower() not in spelled]
    if missing or not on:
        has = (
            f"the rows have no column {', '.join(missing)} (they have {', '.join(frame.columns)})"
            if on
            else "it is not given"
        )
        raise InvalidInput(f"mode Merge on output {sink.name} needs on=[...], the columns that identify a row: {has}")
    return [spelled[name.lower()] for name in on]


def _once_each(frame: DataFrame, columns: Sequence[str], message: str) -> DataFrame:
    """The same rows, of which Spark fails to compute any if two have the same key."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    window = Window.partitionBy(*(F.col(quoted(each)) for each in columns))
    count = "sparkonce_rows_of_this_key"
    counted = frame.withColumn(count, F.count(F.lit(1)).over(window))
    return counted.where(F.assert_true(F.col(count) == 1, message).isNull()).drop(count)


def _make(job: Job, sink: Sink, key: SinkKey, frame: DataFrame) -> None:
    """Makes the table without rows where there is none."""
    assert isinstance(sink, TakesStatements | TakesBranch)  # mode Merge is of kinds delta and iceberg
    run(sink.create(key, job.attempt, schema=frame.schema.json(), partition_by=()))
    if isinstance(sink, TakesBranch):
        from pyspark.errors import PySparkException

        with contextlib.suppress(PySparkException):  # Spark may have cached it as it was without columns
            issue(frame.sparkSession, f"REFRESH TABLE {_name(sink)}")


def _name(sink: Sink) -> str:
    """The table, as SQL calls it."""
    if isinstance(sink, TakesStatements):
        path = unquote(urlsplit(sink.uri).path) if sink.uri.startswith("file:") else sink.uri
        return f"delta.{quoted(path)}"
    return ".".join(quoted(part) for part in sink.uri.split("."))


def _check_columns(job: Job, sink: Sink, table: str, frame: DataFrame, on: Sequence[str]) -> None:
    """Raises: InvalidInput: MERGE would leave out, add or cast a column, or fail at a key that Spark pads."""
    session = frame.sparkSession
    columns = session.table(table).schema
    if (padded := _padded(session, columns, on)) is not None:
        raise job._permanent(
            InvalidInput(
                f"output {sink.name} cannot be merged into {sink.uri}: its key {padded} is a CHAR, whose texts Spark pads as it reads "
                f"them, and Delta's MERGE fails on that. Set {_PADDING} to false for this job, which then reads and compares texts as they "
                "are stored"
            )
        )
    there = {each.name.lower(): each for each in columns.fields}
    given = {each.name.lower(): each for each in frame.schema.fields}
    problems = [f"the table has no column {given[name].name}" for name in given.keys() - there.keys()]
    problems += [f"the rows have no column {there[name].name}" for name in there.keys() - given.keys()]
    problems += [
        f"{field.name} is {field.dataType.simpleString()} in the rows and {there[name].dataType.simpleString()} in the table"
        for name, field in given.items()
        if name in there and not _takes(there[name].dataType, field.dataType)
    ]
    if problems:
        said = f"output {sink.name} cannot be merged into {sink.uri}: {'; '.join(sorted(problems))}"
        raise job._permanent(InvalidInput(f"{said}. Select and cast the columns as the table has them"))


def _padded(session: SparkSession, columns: StructType, on: Sequence[str]) -> str | None:
    """The first place in a key whose texts Spark pads as it reads the table; None if there is none. Iceberg has no CHAR."""
    if (session.conf.get(_PADDING, None) or "true").lower() == "false":
        return None
    declared, keys = widths(columns.jsonValue()["fields"]), {name.lower() for name in on}
    if isinstance(declared, str):
        return None  # a declaration that Spark cannot read either
    chars = (each for each in declared if each.declared.startswith("char("))
    return next((each.path for each in chars if each.steps[0].lower() in keys), None)


def _takes(column: DataType, given: DataType) -> bool:
    wide, narrow = column.simpleString(), given.simpleString()
    return wide == narrow or (wide in _WIDER and narrow in _WIDER[: _WIDER.index(wide)])
