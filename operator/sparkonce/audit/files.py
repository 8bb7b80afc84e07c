"""Reads data files again, as they stand now, and says which are not what their effect recorded.

A file is looked at by its end: size, footer, and the rows that the footer counts. The footer names the place, the length and the statistics
of all columns, so that a file which was truncated, replaced or written anew has another digest. Bytes that rotted inside a page have not:
for them `deep` reads everything, lets Parquet check the checksum of each page, and counts the rows that come out.

The digest is computed here anew, from its definition, and not by the code that made it: a proof that asks the writer proves nothing.
Threads or Spark's executors run the same function; Spark is for many files, whose footers a cluster reads side by side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkonce import blocking
from sparkonce.audit.findings import Kind
from sparkonce.sink.objects import Objects
from sparkonce.sink.protocol import CommittedFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

THREADS = 8
"""Files read at once: most of the time goes into waiting for the store."""
CHUNK = 250
"""Files per task: long enough that a task's start does not count, short enough to keep all executors busy."""
TAIL = 64 * 1024
"""Bytes asked for at first: most footers fit, so that a file costs one request."""
FOOTER_SHA256 = "parquet-footer-sha256"

_MAGIC = b"PAR1"
_TRAILER = 8  # bytes: the footer's length (little-endian) and the magic


@dataclass(frozen=True)
class Wrong:
    """One file that is not as it was recorded."""

    path: str
    kind: Kind
    said: str


Reader = Callable[[str, Sequence[CommittedFile]], list[Wrong]]
"""From where a table's files lie, and files of it, to those that are wrong.

OutputUnavailable: some could not be read, which proves nothing."""


def with_threads(open_place: Callable[[str], Objects], *, deep: bool = False) -> Reader:
    """Reads in this process."""
    import pyarrow.parquet  # noqa: F401 - now: what it costs to import is no part of what files cost

    def read(uri: str, files: Sequence[CommittedFile]) -> list[Wrong]:
        objects = open_place(uri)
        with ThreadPoolExecutor(THREADS) as pool:
            found = pool.map(lambda chunk: list(wrong_of(objects, chunk, deep=deep)), _chunks(files))
            return [each for chunk in found for each in chunk]

    return read


def with_spark(spark: SparkSession, open_place: Callable[[str], Objects], *, deep: bool = False) -> Reader:
    """Reads on the executors, which need this package and the store's credentials."""

    def read(uri: str, files: Sequence[CommittedFile]) -> list[Wrong]:
        def on_executor(chunks: Iterable[list[CommittedFile]]) -> Iterable[Wrong]:
            objects = open_place(uri)
            for chunk in chunks:
                yield from wrong_of(objects, chunk, deep=deep)

        chunks = list(_chunks(files))
        if not chunks:
            return []
        return spark.sparkContext.parallelize(chunks, len(chunks)).mapPartitions(on_executor).collect()

    return read


def _chunks(files: Sequence[CommittedFile]) -> Iterator[list[CommittedFile]]:
    for start in range(0, len(files), CHUNK):
        yield list(files[start : start + CHUNK])


def wrong_of(objects: Objects, files: Sequence[CommittedFile], *, deep: bool = False) -> Iterator[Wrong]:
    """One file after the other. OutputUnavailable."""
    for file in files:
        found = _wrong(objects, file)
        if found is None and deep:
            found = _wrong_inside(objects, file)
        if found is not None:
            yield found


def _wrong(objects: Objects, file: CommittedFile) -> Wrong | None:
    tail = blocking.run(objects.tail(file.path, TAIL))
    if tail is None:
        return Wrong(file.path, Kind.MISSING_FILE, "it is not there")
    if tail.bytes != file.bytes:
        return Wrong(file.path, Kind.CHANGED_FILE, f"it has {tail.bytes} bytes and had {file.bytes}")
    length = int.from_bytes(tail.data[-_TRAILER:-4], "little") + _TRAILER
    if len(tail.data) < length <= tail.bytes:
        tail = blocking.run(objects.tail(file.path, length))
        if tail is None:
            return Wrong(file.path, Kind.MISSING_FILE, "it is not there")
    if not tail.data.endswith(_MAGIC) or len(tail.data) < length:
        return Wrong(file.path, Kind.CHANGED_FILE, "it is no whole Parquet file any more")
    return _wrong_footer(file, tail.data[-length:])


def _wrong_footer(file: CommittedFile, footer: bytes) -> Wrong | None:
    import pyarrow as pa
    from pyarrow import parquet

    algorithm, _, recorded = file.digest.partition(":")
    if algorithm != FOOTER_SHA256:
        return Wrong(
            file.path, Kind.UNREADABLE, f"its digest is of the kind {algorithm!r}, which this version cannot check"
        )
    content = footer[:-_TRAILER] + file.bytes.to_bytes(8, "big")
    if hashlib.sha256(content).hexdigest() != recorded:
        return Wrong(file.path, Kind.CHANGED_FILE, "its footer is not the one that was committed")
    try:
        rows = parquet.read_metadata(pa.BufferReader(_MAGIC + footer)).num_rows
    except (pa.ArrowInvalid, OSError):
        return Wrong(file.path, Kind.CHANGED_FILE, "its footer cannot be read")
    if rows != file.rows:
        return Wrong(file.path, Kind.WRONG_ROW_COUNT, f"it holds {rows} rows and {file.rows} were committed")
    return None


def _wrong_inside(objects: Objects, file: CommittedFile) -> Wrong | None:
    import pyarrow as pa
    from pyarrow import parquet

    data = blocking.run(objects.get(file.path))
    if data is None:
        return Wrong(file.path, Kind.MISSING_FILE, "it is not there")
    try:
        reader = parquet.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        rows = sum(batch.num_rows for batch in reader.iter_batches())
    except (pa.ArrowException, OSError) as error:
        first = (str(error).splitlines() or ["it cannot be decoded"])[0]
        return Wrong(file.path, Kind.CHANGED_FILE, f"its data cannot be read: {first}")
    if rows != file.rows:
        return Wrong(file.path, Kind.WRONG_ROW_COUNT, f"{rows} rows can be read and {file.rows} were committed")
    return None
