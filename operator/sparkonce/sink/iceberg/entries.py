"""Iceberg's entries for staged files: schema, statistics and partition.

Files carry the ids of the table's columns, so that a column that is renamed, or dropped and added again, keeps or loses its values as it
should. Files that an earlier version staged carry no ids: readers find their columns by name, through the table's name mapping.

pyiceberg's `parquet_file_to_data_file` is not used: it takes the partition from statistics, which lack NaN and long texts and do not tell
`-0.0` from `0.0`, and fails on dates that Python cannot represent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.typedef import Record

from sparkonce.sink.iceberg.staging import partition_of
from sparkonce.sink.staging import FOOTER_THREADS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import FileMetaData
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

FIELD_ID = b"PARQUET:field_id"
"""Arrow's metadata of a field that has an id in its Parquet file."""


@dataclasses.dataclass(frozen=True)
class Staged:
    """A staged file and its footer."""

    path: str
    footer: FileMetaData
    bytes: int

    @property
    def schema(self) -> pa.Schema:
        return self.footer.schema.to_arrow_schema()

    @property
    def has_ids(self) -> bool:
        return any(FIELD_ID in (field.metadata or {}) for field in self.schema)


def staged(table: Table, paths: Sequence[str]) -> list[Staged]:
    """Reads the footers of staged files."""
    from pyarrow import parquet

    def read(path: str) -> Staged:
        file = table.io.new_input(path)
        with file.open() as stream:
            source: Any = stream
            return Staged(path, parquet.read_metadata(source), len(file))

    with ThreadPoolExecutor(FOOTER_THREADS) as pool:
        return list(pool.map(read, paths))


def data_files(metadata: TableMetadata, files: Sequence[Staged]) -> list[DataFile]:
    """The entries of files in a table.

    Raises:
        ValueError: a file does not fit the table; says why.
    """
    from pyiceberg.io.pyarrow import compute_statistics_plan, parquet_path_to_id_mapping  # imports pandas

    ids = parquet_path_to_id_mapping(metadata.schema())
    plan = compute_statistics_plan(metadata.schema(), metadata.properties)
    return [_data_file(metadata, file, plan, ids) for file in files]


def _data_file(metadata: TableMetadata, file: Staged, plan: dict[int, Any], ids: dict[str, int]) -> DataFile:
    from pyiceberg.io.pyarrow import _check_pyarrow_schema_compatible, data_file_statistics_from_parquet_metadata

    schema, spec, columns = metadata.schema(), metadata.spec(), file.schema
    if file.has_ids:
        check_ids(columns, schema)
    _check_pyarrow_schema_compatible(schema, columns, format_version=metadata.format_version)
    statistics = data_file_statistics_from_parquet_metadata(file.footer, plan | _counted(file.footer, plan, ids), ids)

    def by_statistics(field: PartitionField) -> Any:
        value = statistics.partition(PartitionSpec(field), schema)[0]
        if value is None and statistics.null_value_counts.get(field.source_id) != file.footer.num_rows:
            raise ValueError(
                f"column {schema.find_column_name(field.source_id)} partitions it and holds a value that Parquet keeps no statistics of "
                "(longer than 4 kB, or NaN in files of an earlier version)"
            )
        return value

    values = partition_of(file.path, spec, schema, too_long=by_statistics)
    if values is None:
        values = [by_statistics(each) for each in spec.fields]
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=file.path,
        file_format=FileFormat.PARQUET,
        partition=Record(*values),
        file_size_in_bytes=file.bytes,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def check_ids(rows: pa.Schema, table: Schema) -> None:
    """Checks that each id in a file is the id of the column of the same name.

    Raises:
        ValueError: one is not, or a part of a column has none; names the column.
    """
    from pyiceberg.io.pyarrow import pyarrow_to_schema

    found = pyarrow_to_schema(rows)
    for field_id in found._lazy_id_to_name:  # noqa: SLF001 - it has no other index of all ids
        name = found.find_column_name(field_id)
        if table.find_column_name(field_id) != name:
            raise ValueError(f"its column {name} is not the one that it was when the rows were staged")


def _counted(footer: FileMetaData, plan: Mapping[int, Any], ids: Mapping[str, int]) -> dict[int, Any]:
    """The plan of the columns whose bounds Python cannot represent (dates and times outside of the years 1 to 9999, text that is not
    UTF-8): counts without bounds."""
    from pyiceberg.io.pyarrow import MetricModeTypes, MetricsMode

    counted = {}
    for group in range(footer.num_row_groups):
        for number in range(footer.num_columns):
            column = footer.row_group(group).column(number)
            try:
                if (bounds := column.statistics) is not None:
                    _ = bounds.min, bounds.max
            except (OverflowError, ValueError):
                field = ids[column.path_in_schema]
                counted[field] = dataclasses.replace(plan[field], mode=MetricsMode(MetricModeTypes.COUNTS))
    return counted
