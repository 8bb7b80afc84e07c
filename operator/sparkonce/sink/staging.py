"""Staging: writes a DataFrame into a private folder and verifies the files.

Spark writes the Parquet files with whatever committer its session has: in a folder that belongs to one write call any committer is good
enough. A successful Spark job is not proof: the number of rows written (an Observation right before the write) must equal the number in the
files' footers, else RowsLost. Drivers that share a folder lose rows without any error, so both the private folder and the count are needed.

A file's digest covers its footer and its size, not its content: the footer has the offset, length and statistics of every column chunk,
parquet-mr puts a CRC into every page (its default, and set for this write in case the session turned it off), and reading the data again
would cost as much as the job's own write.

Files do not depend on the session: readers must find the values that were written, and settings made for other tables change them (an
old calendar, INT96, layouts of lists for Hive). So the rows are planned again in a clone of the session with the settings in `PINNED`. The
job's own session is never changed, because the job goes on using it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sparkonce import blocking
from sparkonce.errors import Fenced, InvalidInput, OutputUnsupported, RowsLost, SparkonceError
from sparkonce.sink.groups import refusal_in
from sparkonce.sink.objects.protocol import Listed, TableObjects
from sparkonce.sink.protocol import DataFile, SinkKey

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData
    from pyspark.sql import DataFrame

DIGEST = "parquet-footer-sha256"
FOOTER_GUESS = 64 * 1024
"""Bytes of the first read at a file's end: most footers fit, so that each file costs one request."""
FOOTER_THREADS = 8
"""Concurrent reads of footers: thousands of files on a store would otherwise take as many sequential round trips."""

PINNED: Mapping[str, str] = {
    # INT96, the default, is excluded by the specifications of Delta and Iceberg: Arrow reads its 9999-12-31 as 1816.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # LEGACY moves dates before 1582 by days, for readers of Hive; both specifications have the proleptic Gregorian calendar only.
    # EXCEPTION, the default of old releases, refuses such dates.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    # Lists and decimals in the layout of Spark 1.4: other names inside lists, and no standard for readers.
    "spark.sql.parquet.writeLegacyFormat": "false",
    # Iceberg finds columns by these ids; a session may switch them off.
    "spark.sql.parquet.fieldId.write.enabled": "true",
    # Without Parquet in this list (a session that prefers the second version of data sources) a write into a new folder is refused.
    "spark.sql.sources.useV1SourceList": "avro,csv,json,kafka,orc,parquet,text",
}
"""Settings of Spark SQL under which files are written, for tables of every kind and for streams, whatever the session says."""
CONNECT = "pyspark.sql.connect."
"""Beginning of the modules whose DataFrames belong to Spark Connect."""

_MAGIC, _MAGIC_ENCRYPTED = b"PAR1", b"PARE"
_TRAILER = 8  # bytes: the footer's length (little-endian) and the magic


@dataclass(frozen=True, kw_only=True)
class StagedRows:
    """What a stager reports to have written."""

    rows: int
    """Counted while writing, not read back from the files."""
    data_schema: str = ""
    """Spark's JSON schema of rows that are not Spark's (`columns_of`)."""
    application: str = ""
    files: tuple[str, ...] | None = None
    """The files that belong to the write, relative to its folder; None if all in the folder do."""


class Stager(Protocol):
    def __call__(self, frame: Any, folder: str, partition_by: Sequence[str], /) -> StagedRows:
        """Writes `*.parquet` files of new names into a folder, in Hive layout (`name=value/`) for the columns in `partition_by`, which
        the files lack. The folder does not exist yet, or holds what the same process has staged for the same slot (`StagedWrites`); it is
        a URL for Hadoop's file systems, not percent-encoded."""
        ...


def stage_with_spark(frame: Any, folder: str, partition_by: Sequence[str] = (), *, more: bool = False) -> StagedRows:
    """The default `Stager`. Spark's own errors pass through: duplicate columns, types that Parquet lacks, failed jobs, access denied.

    partition_by: helper columns of `groups`. more: the folder exists.

    Raises:
        InvalidInput: a row holds a value that the table cannot; names the column.
    """
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    counted = Observation()
    with pinned(frame) as rows, translated():
        observed = rows.observe(counted, count(lit(1)).alias("rows"))
        writer = observed.write.mode("append" if more else "error").option(
            "parquet.page.write-checksum.enabled", "true"
        )
        writer.parquet(folder, partitionBy=list(partition_by) or None)
    return StagedRows(rows=counted.get["rows"], application=application_of(frame))


@contextmanager
def translated() -> Iterator[None]:
    """Raises InvalidInput in place of Spark's error about a row that was refused (`groups.refuse`)."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        if (why := refusal_in(error)) is not None:
            raise InvalidInput(why) from error
        raise


def is_spark(frame: Any) -> bool:
    """Whether the frame is a DataFrame of Spark; tests stage other objects."""
    return hasattr(frame, "sparkSession")


def columns_of(frame: Any, written: StagedRows) -> str:
    """Spark's JSON schema of the rows that a job wrote, without what was added to lay them out."""
    return str(frame.schema.json()) if is_spark(frame) else written.data_schema


def application_of(frame: Any) -> str:
    """Spark's identifier of the application that computes the rows."""
    session = frame.sparkSession
    return str(session.conf.get("spark.app.id") if is_connect(frame) else session.sparkContext.applicationId)


def is_connect(frame: Any) -> bool:
    """Whether the rows belong to a session of Spark Connect."""
    return type(frame).__module__.startswith(CONNECT)


def refuse_connect(frame: Any, what: str) -> None:
    """Checks that the rows belong to a classic session.

    Raises:
        InvalidInput: they belong to Spark Connect, from which sparkonce cannot do `what`.
    """
    if is_connect(frame):
        raise InvalidInput(
            f"the rows belong to a session of Spark Connect, from which sparkonce can append and overwrite, and not {what}; start the "
            "session without remote(), SPARK_REMOTE and spark.api.mode=connect, inside the driver"
        )


def as_seen(frame: Any) -> Any:
    """The rows with the columns that the frame has now. A client of Spark Connect sends its plan with every request, and each time the
    server looks up anew what the plan names: without this, the files could have other columns than those that were checked."""
    return frame.to(frame.schema) if is_connect(frame) else frame


@contextmanager
def pinned(frame: Any) -> Iterator[DataFrame]:
    """The same rows in a session with the settings in `PINNED`; the frame itself if its own session has them already."""
    session: Any = frame.sparkSession
    if all(session.conf.get(name, None) == value for name, value in PINNED.items()):
        yield frame
    elif is_connect(frame):
        with _in_connect_clone(frame, session) as rows:
            yield rows
    else:
        yield _in_clone(frame, session)


@contextmanager
def _in_connect_clone(frame: Any, session: Any) -> Iterator[DataFrame]:
    """The rows of a session of Spark Connect in a clone of it, which the server forgets afterwards."""
    from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator
    from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame

    clone = session.cloneSession()
    try:
        for name, value in PINNED.items():
            clone.conf.set(name, value)
        yield ConnectFrame(frame._plan, clone)  # noqa: SLF001 - plans of Connect name no session
    finally:
        # The rows are written, or not: a server that is gone by now changes nothing about that. It logs errors about calls that are
        # under way when their session is released.
        with suppress(Exception):
            ExecutePlanResponseReattachableIterator.shutdown()
            clone.client.release_session()
            clone.client.close()


def _in_clone(frame: DataFrame, session: Any) -> DataFrame:
    """The rows of a classic session, planned again in a clone of it."""
    from pyspark.sql import SparkSession
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

    clone = session._jsparkSession.cloneSession()  # noqa: SLF001 - PySpark has no public clone, and newSession forgets the configuration
    for name, value in PINNED.items():
        clone.conf().set(name, value)
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - see above
    rows = session._jvm.org.apache.spark.sql.classic.Dataset.ofRows(clone, plan)  # noqa: SLF001 - see above
    return ClassicFrame(rows, SparkSession(session.sparkContext, clone))


@contextmanager
def undone_unless_staged(
    key: SinkKey, token: int, *, delete: Callable[[], Coroutine[Any, Any, None]], barred: Callable[[SinkKey, int], bool]
) -> Iterator[None]:
    """Wraps one write call; when it fails, deletes its folder. No slot names its nonce, so those files can never be committed.

    Raises:
        Fenced: the write failed and its token was barred meanwhile, so a sweep may have deleted files during the write.
    """
    try:
        yield
    except BaseException as error:
        with suppress(SparkonceError):
            blocking.run(delete())
        if isinstance(error, Exception) and barred(key, token):
            raise Fenced(f"attempt {token} of {key} was taken over while it wrote; nothing of it is visible") from error
        raise


async def staged_files(
    objects: TableObjects,
    folder: str,
    written: StagedRows,
    *,
    known: Collection[str] = (),
    seen: Callable[[str, FileMetaData], object] | None = None,
) -> tuple[DataFile, ...]:
    """The data files of a write, flushed to disk; deletes files in its folder that do not belong to it.

    known: files that were there before the write. seen: called with each path and footer, from several threads.

    Raises:
        RowsLost: the files do not contain as many rows as were written.
        OutputUnavailable: the store did not answer.
        OutputUnsupported: a file has an encrypted footer.
    """
    listed = [
        each
        for each in await objects.list(folder)
        if _is_data(each.path.removeprefix(f"{folder}/")) and each.path not in known
    ]
    if written.files is not None:
        own = {f"{folder}/{path}" for path in written.files}
        for each in listed:
            if each.path not in own:  # written by a task attempt that failed, or lost to a speculative one
                await objects.delete(each.path)
        listed = [each for each in listed if each.path in own]
    with ThreadPoolExecutor(FOOTER_THREADS) as pool:
        files = tuple(pool.map(lambda each: _data_file(objects, each, seen), listed))
    rows = sum(file.rows for file in files)
    if rows != written.rows:
        raise RowsLost(
            f"{written.rows} rows were written and the files in {objects.where(folder)} hold {rows}; nothing was committed, run it again"
        )
    await objects.persist([file.path for file in files])
    return files


def _is_data(path: str) -> bool:
    """Whether a path is a data file: not a committer's leftover (`_temporary/...`), marker or checksum."""
    *folders, name = path.split("/")
    hidden = [*(each for each in folders if "=" not in each), name]  # `_day=2024-05-01` is a partition
    return path.endswith(".parquet") and not any(part.startswith(("_", ".")) for part in hidden)


def _data_file(objects: TableObjects, listed: Listed, seen: Callable[[str, FileMetaData], object] | None) -> DataFile:
    import pyarrow as pa
    from pyarrow import parquet

    footer = _footer(objects, listed)
    try:
        metadata = parquet.read_metadata(pa.BufferReader(_MAGIC + footer))
    except (pa.ArrowInvalid, OSError):
        raise _not_whole(objects, listed) from None
    if seen is not None:
        seen(listed.path, metadata)
    return _described(listed.path, footer, rows=metadata.num_rows, size=listed.bytes)


def file_of(path: str, data: bytes, *, rows: int) -> DataFile:
    """The entry of a Parquet file with this content."""
    length = int.from_bytes(data[-_TRAILER:-4], "little") + _TRAILER
    return _described(path, data[-length:], rows=rows, size=len(data))


def _described(path: str, footer: bytes, *, rows: int, size: int) -> DataFile:
    digest = hashlib.sha256(footer[:-_TRAILER] + size.to_bytes(8, "big")).hexdigest()
    return DataFile(path=path, rows=rows, bytes=size, digest=f"{DIGEST}:{digest}")


def _footer(objects: TableObjects, listed: Listed) -> bytes:
    """The footer with its trailing length and magic."""
    tail = blocking.run(objects.tail(listed.path, FOOTER_GUESS))
    data = tail.data if tail is not None and tail.bytes == listed.bytes else b""
    length = int.from_bytes(data[-_TRAILER:-4], "little") + _TRAILER
    if len(data) < length <= listed.bytes:
        tail = blocking.run(objects.tail(listed.path, length))
        data = tail.data if tail is not None else b""
    if data.endswith(_MAGIC_ENCRYPTED):
        raise OutputUnsupported(
            f"{objects.where(listed.path)} has an encrypted footer, whose rows cannot be counted; set parquet.encryption.plaintext.footer"
        )
    if not data.endswith(_MAGIC) or len(data) < length:
        raise _not_whole(objects, listed)
    return data[-length:]


def _not_whole(objects: TableObjects, listed: Listed) -> RowsLost:
    return RowsLost(f"{objects.where(listed.path)} is not a whole Parquet file; nothing was committed, run it again")
