"""Re-reads data files and reports those that differ from what their commit recorded.

By default only a file's tail is read: size, footer, and the footer's row count. The footer holds position, length and statistics of
every column chunk, so a file that was truncated, replaced or rewritten has another digest. Bit rot inside a page does not change the
footer: `deep` reads everything, verifies Parquet's page checksums, and counts the decoded rows.

The digest is recomputed from its definition, not by the code that made it: an audit that trusts the writer proves nothing.
Threads and Spark executors run the same function; Spark is for many files, whose footers a cluster reads in parallel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkonce import blocking
from sparkonce.audit.findings import Kind
from sparkonce.sink.objects.protocol import TableObjects, Tail
from sparkonce.sink.protocol import CommittedFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

THREADS = 8
"""Concurrent reads: most of the time is spent waiting for the store."""
CHUNK = 250
"""Files per task: enough to amortise a task's start, few enough to keep all executors busy."""
TAIL = 64 * 1024
"""Bytes of the first read: most footers fit, so that a file costs one request."""
FOOTER_SHA256 = "parquet-footer-sha256"

_MAGIC = b"PAR1"
_TRAILER = 8  # bytes: the footer's length (little-endian) and the magic


@dataclass(frozen=True)
class Wrong:
    """A file that differs from what its commit recorded."""

    path: str
    kind: Kind
    said: str
    rows: int | None = None
    """Rows that it holds now; None: it is missing or cannot be read."""


Reader = Callable[[str, Sequence[CommittedFile]], list[Wrong]]
"""Takes a table's location and files of it; returns those that differ.

Raises:
    OutputUnavailable: some files could not be read, which proves nothing about them.
"""


def with_threads(open_place: Callable[[str], TableObjects], *, deep: bool = False) -> Reader:
    """A reader that uses threads of this process."""
    import pyarrow.parquet  # noqa: F401 - imported early, so that its cost is not counted as reading

    def read(uri: str, files: Sequence[CommittedFile]) -> list[Wrong]:
        objects = open_place(uri)
        with ThreadPoolExecutor(THREADS) as pool:
            found = pool.map(lambda chunk: list(wrong_of(objects, chunk, deep=deep)), _chunks(files))
            return [each for chunk in found for each in chunk]

    return read


def with_spark(spark: SparkSession, open_place: Callable[[str], TableObjects], *, deep: bool = False) -> Reader:
    """A reader that uses Spark's executors, which need this package and the store's credentials."""

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


def wrong_of(objects: TableObjects, files: Sequence[CommittedFile], *, deep: bool = False) -> Iterator[Wrong]:
    """Checks files one after the other and yields those that differ.

    Raises:
        OutputUnavailable: a file could not be read, which proves nothing about it.
    """
    for file in files:
        found = _wrong(objects, file)
        if found is None and deep:
            found = _wrong_inside(objects, file)
        if found is not None:
            yield found


def _wrong(objects: TableObjects, file: CommittedFile) -> Wrong | None:
    tail = _end_of(objects, file.path)
    if tail is None:
        return Wrong(file.path, Kind.MISSING_FILE, "it is not there")
    footer = _footer(tail)
    if tail.bytes != file.bytes:
        said = f"it has {tail.bytes} bytes; {file.bytes} were committed"
        return Wrong(file.path, Kind.CHANGED_FILE, said, _rows(footer))
    if footer is None:
        return Wrong(file.path, Kind.CHANGED_FILE, "it is no longer a complete Parquet file")
    return _wrong_footer(file, footer)


def _end_of(objects: TableObjects, path: str) -> Tail | None:
    """The end of a file, with its footer if it has one; None if it does not exist."""
    tail = blocking.run(objects.tail(path, TAIL))
    if tail is not None and len(tail.data) < (length := _footer_length(tail)) <= tail.bytes:
        tail = blocking.run(objects.tail(path, length))
    return tail


def _footer_length(tail: Tail) -> int:
    return int.from_bytes(tail.data[-_TRAILER:-4], "little") + _TRAILER


def _footer(tail: Tail) -> bytes | None:
    """The footer with its trailer; None if the file does not end with one."""
    length = _footer_length(tail)
    complete = tail.data.endswith(_MAGIC) and len(tail.data) >= length
    return tail.data[-length:] if complete else None


def _rows(footer: bytes | None) -> int | None:
    """Rows that a footer counts, as pyarrow reads it; None if it cannot."""
    import pyarrow as pa
    from pyarrow import parquet

    if footer is None:
        return None
    try:
        return int(parquet.read_metadata(pa.BufferReader(_MAGIC + footer)).num_rows)
    except (pa.ArrowInvalid, OSError):
        return None


def rows_in(objects: TableObjects, paths: Sequence[str]) -> dict[str, int | None]:
    """Rows of each file, as pyarrow reads them from its footer; None for one that is missing or is no Parquet file.

    Raises:
        OutputUnavailable: some files could not be read, which proves nothing about them.
    """

    def rows(path: str) -> int | None:
        tail = _end_of(objects, path)
        return None if tail is None else _rows(_footer(tail))

    with ThreadPoolExecutor(THREADS) as pool:
        return dict(zip(paths, pool.map(rows, paths), strict=True))


def _wrong_footer(file: CommittedFile, footer: bytes) -> Wrong | None:
    algorithm, _, recorded = file.digest.partition(":")
    if algorithm != FOOTER_SHA256:
        return Wrong(file.path, Kind.UNREADABLE, f"this version cannot check digests of kind {algorithm!r}")
    content = footer[:-_TRAILER] + file.bytes.to_bytes(8, "big")
    if hashlib.sha256(content).hexdigest() != recorded:
        return Wrong(file.path, Kind.CHANGED_FILE, "its footer is not the one that was committed", _rows(footer))
    rows = _rows(footer)
    if rows is None:
        return Wrong(file.path, Kind.CHANGED_FILE, "its footer cannot be read")
    if rows != file.rows:
        return Wrong(file.path, Kind.WRONG_ROW_COUNT, f"it holds {rows} rows; {file.rows} were committed", rows)
    return None


def _wrong_inside(objects: TableObjects, file: CommittedFile) -> Wrong | None:
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
        return Wrong(file.path, Kind.WRONG_ROW_COUNT, f"{rows} rows can be read; {file.rows} were committed")
    return None
