"""Writes rows with lists or maps: Arrow's Parquet writer gives an id to every part of a column, Spark's to the fields of structs alone.
Rows of Spark Connect, too, whose clients do not see whether a plan has kept the ids.

Each task writes its files under names of its own and reports them; only what the successful attempt of a task reported is part of the
write. Files that other attempts left behind are deleted, or stay unnamed in the folder.

Executors need pyarrow and pyiceberg for it, in the interpreter that runs the job's Python functions; sparkonce itself is sent to them.
"""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import quote, urlsplit

from sparkonce.errors import OutputUnsupported
from sparkonce.sink.groups import HELPER, NULL, quoted
from sparkonce.sink.iceberg.entries import FIELD_ID
from sparkonce.sink.staging import StagedRows, application_of, translated

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame

Codec = Literal["none", "snappy", "gzip", "zstd"]

ROW_GROUP_BYTES = 128 * 1024 * 1024
"""Bytes of Arrow data that become one row group; a task holds as many in memory."""
_CODECS: Mapping[str, Codec] = {
    "none": "none",
    "uncompressed": "none",
    "snappy": "snappy",
    "gzip": "gzip",
    "zstd": "zstd",
}
"""Spark's name of a codec -> Arrow's. Any other becomes Snappy, Spark's default."""


def needs_arrow(rows: Schema) -> bool:
    """Whether a column of the rows contains a list or a map."""
    from pyiceberg.types import ListType, MapType

    return any(isinstance(each.field_type, ListType | MapType) for each in rows._lazy_id_to_field.values())  # noqa: SLF001 - as in entries


@dataclass(frozen=True)
class ArrowStager:
    """Writes rows for a table."""

    table: Table
    schema: Schema
    """The table's, with all columns of the rows."""

    def stage(self, frame: DataFrame, folder: str, helpers: Sequence[str]) -> StagedRows:
        """Writes the files of a frame that was laid out for the table. folder: relative to the table's location.

        Raises:
            InvalidInput: a row holds a value that the table cannot; names the column.
        """
        from pyspark.sql import Observation
        from pyspark.sql.functions import count, lit

        counted = Observation()
        rows = frame.observe(counted, count(lit(1)).alias("rows"))
        if helpers:
            rows = rows.sortWithinPartitions(*map(quoted, helpers))
        codec = str(frame.sparkSession.conf.get("spark.sql.parquet.compression.codec")).lower()
        location, properties = f"{self.table.location()}/{folder}", dict(self.table.io.properties)
        task = _Task(location, properties, self.schema, tuple(helpers), _CODECS.get(codec, "snappy"))
        with translated(), _sent(), _needing_packages():
            reported = rows.mapInArrow(task.write, "path string").collect()
        return StagedRows(
            rows=counted.get["rows"],
            application=application_of(frame),
            files=tuple(row["path"] for row in reported),
        )


@contextmanager
def _sent() -> Iterator[None]:
    """Functions of this module are pickled with their code, so that executors need not have it installed."""
    from pyspark import cloudpickle

    module, pickle = sys.modules[__name__], cast("Any", cloudpickle)  # it has no annotations
    pickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        pickle.unregister_pickle_by_value(module)


@contextmanager
def _needing_packages() -> Iterator[None]:
    from pyspark.errors import PythonException

    try:
        yield
    except PythonException as error:
        missing = re.search(r"No module named '(pyarrow|pyiceberg)|PyArrow >= \S+ must be installed", str(error))
        if missing is None:
            raise
        raise OutputUnsupported(
            f"the executors' Python lacks {missing[1] or 'pyarrow'}, with which rows with lists or maps are written to an Iceberg table; "
            "install sparkonce[iceberg] there, or set PYSPARK_PYTHON to an interpreter that has it"
        ) from error


@dataclass(frozen=True)
class _Task:
    """What a task needs to write its rows."""

    location: str
    properties: Mapping[str, str]
    """Of the table's file access."""
    schema: Schema
    helpers: tuple[str, ...]
    codec: Codec

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Writes the rows; yields the files' paths, relative to the location."""
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        part = f"part-{context.partitionId() if context else 0:05d}-{secrets.token_hex(8)}"
        paths: list[str] = []
        file: _File | None = None
        for batch in batches:
            for group, rows in _runs(batch, self.helpers):
                if file is None or file.group != group:
                    if file is not None:
                        file.close()
                    folders = "".join(
                        f"{name}={_escaped(value)}/" for name, value in zip(self.helpers, group, strict=True)
                    )
                    paths.append(f"{folders}{part}-{len(paths):05d}.parquet")
                    file = _File(self, group, paths[-1], rows.schema)
                file.add(rows)
        if file is not None:
            file.close()
        yield pa.RecordBatch.from_pydict({"path": pa.array(paths, pa.string())})


class _File:
    """One file that is being written."""

    def __init__(self, task: _Task, group: tuple[str | None, ...], path: str, rows: pa.Schema) -> None:
        from pyarrow import parquet
        from pyiceberg.io.pyarrow import PyArrowFileIO

        self.group = group
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self._schema = with_ids(rows, task.schema)
        location = f"{task.location}/{path}"
        if urlsplit(location).scheme in ("", "file"):
            location = f"file://{urlsplit(location).path}"
        self._stream = PyArrowFileIO(dict(task.properties)).new_output(location).create(overwrite=False)
        sink: Any = self._stream
        self._writer: ParquetWriter = parquet.ParquetWriter(
            sink,
            self._schema,
            compression=task.codec,
            store_schema=False,
            store_decimal_as_integer=True,
            write_page_checksum=True,
        )

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        # Not `nbytes`, which crashes where Spark sent a list without offsets, as inside of lists that are all empty. Of a slice this counts
        # all buffers; a file takes one slice of each batch.
        self._bytes += rows.get_total_buffer_size()
        if self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()
        self._stream.close()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._waiting:
            table = pa.Table.from_batches(self._waiting).combine_chunks()
            self._writer.write_table(table.cast(self._schema), row_group_size=max(1, table.num_rows))
        self._waiting, self._bytes = [], 0


def with_ids(rows: pa.Schema, table: Schema) -> pa.Schema:
    """The schema of rows with the ids of the table's columns, at any depth."""
    import pyarrow as pa

    return pa.schema([_with_id(field, table.as_struct()) for field in rows if not field.name.startswith(HELPER)])


def _with_id(field: pa.Field[Any], within: Any) -> pa.Field[Any]:
    theirs = next(each for each in within.fields if each.name == field.name)
    return _numbered(field, theirs.field_id, theirs.field_type)


def _numbered(field: pa.Field[Any], field_id: int, kind: Any) -> pa.Field[Any]:
    import pyarrow as pa
    from pyiceberg.types import ListType, MapType, StructType

    arrow: Any = field.type
    if isinstance(kind, StructType):
        arrow = pa.struct([_with_id(each, kind) for each in arrow])
    elif isinstance(kind, ListType):
        arrow = pa.list_(_numbered(arrow.value_field.with_name("element"), kind.element_id, kind.element_type))
    elif isinstance(kind, MapType):
        key = _numbered(arrow.key_field, kind.key_id, kind.key_type)
        arrow = pa.map_(key, _numbered(arrow.item_field, kind.value_id, kind.value_type))
    return pa.field(field.name, arrow, nullable=field.nullable, metadata={FIELD_ID: str(field_id).encode()})


def _runs(batch: pa.RecordBatch, helpers: Sequence[str]) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """The runs of rows of one group in a batch that is sorted by its helper columns, without those columns."""
    columns = [batch.column(name) for name in helpers]
    bare = batch.drop_columns(list(helpers)) if helpers else batch

    def group(row: int) -> tuple[str | None, ...]:
        return tuple(column[row].as_py() for column in columns)

    begin = 0
    while begin < batch.num_rows:
        first, end = group(begin), batch.num_rows
        if group(end - 1) != first:  # find the first row of another group: sorted rows of one group are adjacent
            low, high = begin, end - 1
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if group(middle) == first else (low, middle)
            end = high
        yield first, bare.slice(begin, end - begin)
        begin = end


def _escaped(name: str | None) -> str:
    return NULL if name is None else quote(name, safe="+")
