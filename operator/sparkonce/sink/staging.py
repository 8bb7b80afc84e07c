"""Staging: run a DataFrame into a private folder, and say exactly what stands there.

Spark writes Parquet by itself, with whatever committer its session has: inside a folder that belongs to one write call alone every
committer is good enough. That a job ended well is not believed: the rows that went by (an Observation, placed last before the write)
must equal the rows in the files' footers, else RowsLost. Drivers that share a folder lose rows without any error, so neither half of
this is optional.

A file's digest covers its footer and its size, not its bytes: the footer names the place, length and statistics of all columns of all
row groups, parquet-mr puts a CRC into every page (its default, and set for this write in case the session turned it off), and reading
the data again would cost as much as the job's own write.

Refused: changing the session's configuration. The job goes on using it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sparkonce import blocking
from sparkonce.errors import Fenced, InvalidInput, OutputUnsupported, RowsLost, SparkonceError
from sparkonce.sink.objects import Listed, Objects
from sparkonce.sink.protocol import DataFile, SinkKey

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

DIGEST = "parquet-footer-sha256"
FOOTER_GUESS = 64 * 1024
"""Bytes read from a file's end at first: most footers fit, so that a store is asked once per file."""
FOOTER_THREADS = 8
"""Footers read at once: thousands of files on a store would otherwise take as many round trips in a row."""

_MAGIC, _MAGIC_ENCRYPTED = b"PAR1", b"PARE"
_TRAILER = 8  # bytes: the footer's length (little-endian) and the magic


@dataclass(frozen=True, kw_only=True)
class Written:
    """What a stager says it wrote."""

    rows: int
    """Counted on the way into the files, not read back from them."""
    data_schema: str
    """Spark's JSON schema."""
    application: str = ""


class Stager(Protocol):
    def __call__(self, frame: Any, folder: str, partition_by: Sequence[str], /) -> Written:
        """Writes `*.parquet` files into a folder that does not exist yet, in Hive's layout (`day=2024-05-01/`) for the columns to
        partition by; `folder` is a URL as Hadoop's file systems read it, not percent-encoded."""
        ...


def stage_with_spark(frame: Any, folder: str, partition_by: Sequence[str] = ()) -> Written:
    """Spark's own errors (duplicate columns, types that Parquet has not, a job that fails, a store that Spark has no access to) pass
    through. InvalidInput: columns to partition by that cannot be."""
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    _check_partitions(frame, partition_by)
    counted = Observation()
    observed = frame.observe(counted, count(lit(1)).alias("rows"))
    writer = observed.write.mode("errorifexists").option("parquet.page.write-checksum.enabled", "true")
    writer.parquet(folder, partitionBy=list(partition_by) or None)
    return Written(
        rows=counted.get["rows"],
        data_schema=frame.schema.json(),
        application=frame.sparkSession.sparkContext.applicationId,
    )


def _check_partitions(frame: Any, partition_by: Sequence[str]) -> None:
    types = {field.name: field.dataType.typeName() for field in frame.schema.fields}
    for name in partition_by:
        if name not in types:
            raise InvalidInput(f"partition_by: the rows have no column {name}; they have {', '.join(types)}")
        if types[name] == "timestamp":
            # A folder's name holds a wall clock time without its zone: another session would read another moment.
            raise InvalidInput(
                f"partition_by: {name} is a timestamp, which means another moment in each time zone; use a date"
            )


@contextmanager
def undone_unless_staged(
    key: SinkKey, token: int, *, delete: Callable[[], Coroutine[Any, Any, None]], barred: Callable[[SinkKey, int], bool]
) -> Iterator[None]:
    """Around one write call. When it fails its folder goes: nothing names its nonce and nobody else knows it, so that those files can never
    be committed. Fenced when the token was barred meanwhile: whoever did that may have swept the files while they were written."""
    try:
        yield
    except BaseException as error:
        with suppress(SparkonceError):
            blocking.run(delete())
        if isinstance(error, Exception) and barred(key, token):
            raise Fenced(f"attempt {token} of {key} was taken over while it wrote; nothing of it is visible") from error
        raise


async def staged_files(
    objects: Objects, folder: str, *, expected: int, seen: Callable[[str, FileMetaData], object] | None = None
) -> tuple[DataFile, ...]:
    """What stands in the folder, flushed to disk. RowsLost when it is not `expected` rows; OutputUnavailable. `seen` gets every path with
    its footer, from several threads."""
    listed = [each for each in await objects.list(folder) if _is_data(each.path.removeprefix(f"{folder}/"))]
    with ThreadPoolExecutor(FOOTER_THREADS) as pool:
        files = tuple(pool.map(lambda each: _data_file(objects, each, seen), listed))
    rows = sum(file.rows for file in files)
    if rows != expected:
        raise RowsLost(
            f"{expected} rows were written and the files in {objects.where(folder)} hold {rows}; nothing was committed, run it again"
        )
    await objects.persist([file.path for file in files])
    return files


def _is_data(path: str) -> bool:
    """Not a committer's leftovers (`_temporary/...`), nor markers and checksums."""
    *folders, name = path.split("/")
    hidden = [*(each for each in folders if "=" not in each), name]  # `_day=2024-05-01` is a partition
    return path.endswith(".parquet") and not any(part.startswith(("_", ".")) for part in hidden)


def _data_file(objects: Objects, listed: Listed, seen: Callable[[str, FileMetaData], object] | None) -> DataFile:
    import pyarrow as pa
    from pyarrow import parquet

    footer = _footer(objects, listed)
    try:
        metadata = parquet.read_metadata(pa.BufferReader(_MAGIC + footer))
    except (pa.ArrowInvalid, OSError):
        raise _not_whole(objects, listed) from None
    if seen is not None:
        seen(listed.path, metadata)
    digest = hashlib.sha256(footer[:-_TRAILER] + listed.bytes.to_bytes(8, "big")).hexdigest()
    return DataFile(path=listed.path, rows=metadata.num_rows, bytes=listed.bytes, digest=f"{DIGEST}:{digest}")


def _footer(objects: Objects, listed: Listed) -> bytes:
    """The footer with its length and magic, as the file ends."""
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


def _not_whole(objects: Objects, listed: Listed) -> RowsLost:
    return RowsLost(f"{objects.where(listed.path)} is not a whole Parquet file; nothing was committed, run it again")
