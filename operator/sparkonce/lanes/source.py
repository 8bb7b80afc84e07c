"""`spark.readStream.format("sparkonce")`: the rows of a table's lanes as a stream, by PySpark's Data Source API.

    spark.dataSource.register(LaneSource)
    spark.readStream.format("sparkonce").load("/data/lake/orders")

An offset is the number of the last batch of each lane. Batches never change, and their numbers have no gap, so the same two offsets are the
same rows whenever a query is planned again: with a checkpoint and a sink that is idempotent, each row takes effect once.

A listing of the table may lack a place that was committed while it was read (`sink.slotlog.visibility`). A batch beyond the last number of
such a listing comes with a later trigger; one before it is in the listing that plans the rows, which begins afterwards. Rows that are not
all there are refused, never left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from sparkonce import blocking
from sparkonce.errors import FilesMissing, InvalidInput, NothingCommitted
from sparkonce.sink.objects.location import objects_at
from sparkonce.sink.protocol import DataFile
from sparkonce.sink.slotlog.reader import merged, of_batches
from sparkonce.sink.slotlog.snapshot import Table
from sparkonce.sink.slotlog.visibility import Shown, path_of
from sparkonce.sink.staging import file_of

if TYPE_CHECKING:
    import pyarrow as pa

PARTITION = 64 * 1024 * 1024
"""Bytes of the files that one task reads: a lane has many small ones."""
OPENING = 1024 * 1024
"""Bytes that opening a file counts for, beside its own."""

Offsets = Mapping[str, int]
"""Lane -> number of its last batch."""


@dataclass
class LaneFiles(InputPartition):
    """Files that one task reads, in this order."""

    uri: str
    """Of the table."""
    files: tuple[dict[str, Any], ...]
    """As `DataFile.dump`."""


class LaneSource(DataSource):
    """The format `sparkonce`, for streams. Its options are the table (`path`) and, if only one is to be read, `lane`.

    Its methods raise SparkonceError, which Spark reports as the reason for which the query failed.
    """

    @classmethod
    def name(cls) -> str:
        return "sparkonce"

    def schema(self) -> StructType:
        _, seen = self._found()
        return StructType.fromJson(_columns(seen, where=self._path()))

    def streamReader(self, schema: StructType) -> LaneStreamReader:  # noqa: N802 # Spark's name
        return LaneStreamReader(self._path(), self.options.get("lane"), schema)

    def _path(self) -> str:
        path = self.options.get("path")
        if not path:
            raise InvalidInput(
                "the table is missing; pass it to load(), as in .format('sparkonce').load('lake/orders')"
            )
        return str(path)

    def _found(self) -> tuple[str, Shown]:
        lane = self.options.get("lane")
        uri, seen = _seen(self._path(), lane)
        if not any(slot.data_schema for slot, _ in seen):
            which = f"the lane {lane}" if lane else "a lane"
            raise NothingCommitted(
                f"{uri} has no rows of {which} yet; start the query once it has, or check path and name"
            )
        return uri, seen


class LaneStreamReader(DataSourceStreamReader):
    def __init__(self, path: str, lane: str | None, schema: StructType) -> None:
        self._path, self._lane, self._schema = path, lane, schema

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 # Spark's name
        return {}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802 # Spark's name
        last: dict[str, int] = {}
        for slot, _ in _seen(self._path, self._lane)[1]:
            if slot.lane is not None:
                last[slot.lane.name] = max(last.get(slot.lane.name, 0), slot.lane.last)
        return last

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[LaneFiles]:
        uri, seen = _seen(self._path, self._lane)
        files: list[DataFile] = []
        for lane, last in sorted(end.items()):
            if (first := start.get(lane, 0) + 1) <= last:
                found = of_batches(seen, f"{lane}@{first}-{last}", where=uri)
                self._refuse_columns(found, where=uri)
                files += [file for _, own in found for file in own]
        return [LaneFiles(uri, tuple(file.dump() for file in part)) for part in _packed(files)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyarrow import parquet
        from pyspark.sql.pandas.types import to_arrow_schema

        assert isinstance(partition, LaneFiles)  # of `partitions`
        schema = to_arrow_schema(self._schema)
        objects = objects_at(partition.uri, field="path")
        for each in partition.files:
            file = DataFile.model_validate(each)
            data = blocking.run(objects.get(file.path))
            if data is None or file_of(file.path, data, rows=file.rows) != file:
                raise FilesMissing(
                    f"{objects.where(file.path)} is missing or changed; restore it from a backup, and the query goes on"
                )
            yield from shaped(parquet.read_table(pa.BufferReader(data)), schema).to_batches()

    def _refuse_columns(self, found: Shown, *, where: str) -> None:
        """Raises: InvalidInput: these batches have a column that the query has not, or has with another type."""
        known = json.loads(self._schema.json())
        both = merged(
            [
                ("this query", json.dumps(known)),
                *((path_of(slot), slot.data_schema) for slot, _ in found if slot.data_schema),
            ],
            where=where,
        )
        if added := sorted(_names(both) - _names(known)):
            raise InvalidInput(
                f"{where} has the column {added[0]} since this query was begun; start the query again, and it goes on from its checkpoint "
                "with that column"
            )


def shaped(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with exactly these columns, in this order; a column, or a field of a struct, that they lack is null."""
    import pyarrow as pa

    columns = [
        table.column(field.name).cast(field.type)
        if field.name in table.schema.names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _seen(path: str, lane: str | None) -> tuple[str, Shown]:
    """The table's URI, and what its readers see of the lane, or of all lanes.

    Raises:
        InvalidInput: the table has rows of jobs, which have no order to follow, and no lane is named.
        SparkonceError: as for `Table.seen`.
    """
    table = Table(path)
    uri, seen = table.objects.uri, table.seen()
    if lane is None and (jobs := [slot for slot, _ in seen if slot.lane is None]):
        raise InvalidInput(
            f"{uri} also has rows of jobs ({path_of(jobs[0])}), and only lanes can be followed; name one with .option('lane', NAME), or "
            "read the table with sparkonce.read"
        )
    return uri, [(slot, files) for slot, files in seen if slot.lane and lane in (None, slot.lane.name)]


def _columns(seen: Shown, *, where: str) -> dict[str, Any]:
    return merged([(path_of(slot), slot.data_schema) for slot, _ in seen if slot.data_schema], where=where)


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
