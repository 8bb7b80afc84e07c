"""`spark.readStream.format("sparkonce")`: the rows of a table's lanes as a stream, by PySpark's Data Source API.

    sparkonce.register(spark)
    spark.readStream.format("sparkonce").load("/data/lake/orders")

An offset is the number of the last batch of each lane. Batches never change, and their numbers have no gap, so the same two offsets are the
same rows whenever a query is planned again: with a checkpoint and a sink that is idempotent, each row takes effect once.

A listing of the table may lack a place that was committed while it was read (`sink.slotlog.visibility`). A batch beyond the last number of
such a listing comes with a later trigger; one before it is in the listing that plans the rows, which begins afterwards. Rows that are not
all there are refused, never left out.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sparkonce import blocking
from sparkonce.errors import FilesMissing, InvalidInput, NothingCommitted
from sparkonce.sink.objects.location import objects_at
from sparkonce.sink.protocol import DataFile
from sparkonce.sink.slotlog.reader import merged, of_batches
from sparkonce.sink.slotlog.snapshot import Table, decided, seen_in
from sparkonce.sink.slotlog.visibility import Shown, path_of, trimmed
from sparkonce.sink.staging import file_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

PARTITION = 64 * 1024 * 1024
"""Bytes of the files that one task reads: a lane has many small ones."""
OPENING = 1024 * 1024
"""Bytes that opening a file counts for, beside its own."""

Offsets = Mapping[str, int]
"""Lane -> number of its last batch."""
Part = tuple[str, Sequence[Mapping[str, Any]]]
"""What one task reads: the table's URI, and its files (`DataFile.dump`) in order."""


def register(spark: SparkSession) -> None:
    """Makes the format `sparkonce` known to a session, for streams.

    Its options are the table (`path`, or the argument of `load`; a local one is relative to the folder in which Spark was started) and, if
    only one lane is to be read, `lane`. A query fails with the sentence of a SparkonceError if its rows are not all there, if a batch has
    a column that the query has not, or if the table has rows of jobs and no lane is named."""
    spark.dataSource.register(_source())


@functools.cache
def _source() -> type[DataSource]:
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.types import StructType

    class LaneSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "sparkonce"

        def schema(self) -> StructType:
            return StructType.fromJson(_columns(self._path(), self.options.get("lane")))

        def streamReader(self, schema: StructType) -> LaneStreamReader:  # noqa: N802 # Spark's name
            return LaneStreamReader(self._path(), self.options.get("lane"), schema)

        def _path(self) -> str:
            path = self.options.get("path")
            if not path:
                raise InvalidInput(
                    "the table is missing; pass it to load(), as in .format('sparkonce').load('lake/orders')"
                )
            return str(path)

    class LaneStreamReader(DataSourceStreamReader):
        def __init__(self, path: str, lane: str | None, schema: StructType) -> None:
            self._path, self._lane, self._schema = path, lane, schema

        def initialOffset(self) -> dict[str, int]:  # noqa: N802 # Spark's name
            return _trimmed(self._path, self._lane)

        def latestOffset(self) -> dict[str, int]:  # noqa: N802 # Spark's name
            return _latest(self._path, self._lane)

        def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
            return [InputPartition(each) for each in _planned(self._path, self._lane, start, end, self._schema.json())]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            from pyspark.sql.pandas.types import to_arrow_schema

            return _batches(partition.value, to_arrow_schema(self._schema))

    return LaneSource


def _columns(path: str, lane: str | None) -> dict[str, Any]:
    """The columns of the lanes, in Spark's JSON."""
    uri, seen, _ = _look(path, lane)
    schemas = _schemas(seen)
    if not schemas:
        which = f"the lane {lane}" if lane else "a lane"
        raise NothingCommitted(f"{uri} has no rows of {which} yet; start the query once it has, or check path and name")
    return merged(schemas, where=uri)


def _schemas(seen: Shown) -> list[tuple[str, str]]:
    """As `merged` takes them."""
    return [(path_of(slot), slot.data_schema) for slot, _ in seen if slot.data_schema]


def _trimmed(path: str, lane: str | None) -> dict[str, int]:
    return _look(path, lane).trimmed


def _latest(path: str, lane: str | None) -> dict[str, int]:
    found = _look(path, lane)
    last = dict(found.trimmed)  # of which there may be no later batch
    for slot, _ in found.seen:
        if slot.lane is not None:
            last[slot.lane.name] = max(last.get(slot.lane.name, 0), slot.lane.last)
    return last


def _planned(path: str, lane: str | None, start: Offsets, end: Offsets, schema: str) -> list[Part]:
    uri, seen, gone = _look(path, lane)
    files: list[DataFile] = []
    for name, last in sorted(end.items()):
        if start.get(name, 0) < gone.get(name, 0):
            raise InvalidInput(
                f"the batches {name}@{start.get(name, 0) + 1}-{gone[name]} of {uri} were trimmed before this query read them; start it "
                "with a new checkpoint, and it begins after them"
            )
        if (first := start.get(name, 0) + 1) <= last:
            found = of_batches(seen, f"{name}@{first}-{last}", where=uri)
            _refuse_columns(found, schema, where=uri)
            files += [file for _, own in found for file in own]
    return [(uri, [file.dump() for file in part]) for part in _packed(files)]


def _batches(part: Part, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    import pyarrow as pa
    from pyarrow import parquet

    uri, files = part
    objects = objects_at(uri, field="path")
    for each in files:
        file = DataFile.model_validate(each)
        data = blocking.run(objects.get(file.path))
        if data is None or file_of(file.path, data, rows=file.rows) != file:
            raise FilesMissing(
                f"{objects.where(file.path)} is missing or changed; restore it from a backup, and the query goes on"
            )
        yield from _shaped(parquet.read_table(pa.BufferReader(data)), schema).to_batches()


def _refuse_columns(found: Shown, schema: str, *, where: str) -> None:
    """schema: of the query, in Spark's JSON. Raises: InvalidInput: these batches have a column that the query has not, or has with another
    type."""
    both = merged([("this query", schema), *_schemas(found)], where=where)
    if added := sorted(_names(both) - _names(json.loads(schema))):
        raise InvalidInput(
            f"{where} has the column {added[0]} since this query was begun; start the query again, and it goes on from its checkpoint with "
            "that column"
        )


def _shaped(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with exactly these columns, in this order; a column, or a field of a struct, that they lack is null."""
    import pyarrow as pa

    columns = [
        table.column(field.name).cast(field.type)
        if field.name in table.schema.names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


class _Lanes(NamedTuple):
    """A table's lanes, or one of them, as one listing shows them."""

    uri: str
    """Of the table."""
    seen: Shown
    """What readers see."""
    trimmed: dict[str, int]
    """Lane -> number of the last batch that readers do not see any more; of lanes that were trimmed."""


def _look(path: str, lane: str | None) -> _Lanes:
    """lane: None for all.

    Raises:
        InvalidInput: the table has rows of jobs, which have no order to follow, and no lane is named.
        SparkonceError: as for `Table.seen`.
    """
    objects = Table(path).objects
    uri, table = objects.uri, blocking.run(decided(objects))
    seen = blocking.run(seen_in(objects, table))
    if lane is None and (jobs := [slot for slot, _ in seen if slot.lane is None]):
        raise InvalidInput(
            f"{uri} also has rows of jobs ({path_of(jobs[0])}), and only lanes can be followed; name one with .option('lane', NAME), or "
            "read the table with sparkonce.read"
        )
    gone = {mark.name: mark.last for _, mark in trimmed(table.committed).values() if lane in (None, mark.name)}
    return _Lanes(uri, [(slot, files) for slot, files in seen if slot.lane and lane in (None, slot.lane.name)], gone)


def _names(schema: Any, at: str = "") -> set[str]:
    """Paths of all columns and fields of a schema in Spark's JSON."""
    if not isinstance(schema, dict):
        return set()
    found = {f"{at}{each['name']}" for each in schema.get("fields", ())}
    for each in schema.get("fields", ()):
        found |= _names(each["type"], f"{at}{each['name']}.")
    for part in ("elementType", "keyType", "valueType"):
        found |= _names(schema.get(part), f"{at}{part}.")
    return found


def _packed(files: Sequence[DataFile]) -> Iterator[list[DataFile]]:
    part: list[DataFile] = []
    size = 0
    for file in files:
        if part and size + file.bytes + OPENING > PARTITION:
            yield part
            part, size = [], 0
        part.append(file)
        size += file.bytes + OPENING
    if part:
        yield part
