"""Lays a DataFrame out for an Iceberg table, before Spark writes it natively.

A file of a partitioned table contains one value of each partition field. So rows are split by helper columns that compute the field's
transform, and only those become folder names: the columns themselves stay in the files, where all readers of the table find them.
Iceberg computes years to hours in UTC, Spark in the session's time zone; the helpers compute in UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, HourTransform, MonthTransform, TruncateTransform, YearTransform
from pyiceberg.types import BinaryType, DateType, DecimalType, IcebergType, StringType, TimestamptzType

from sparkonce.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HELPER = "so-partition-"
"""Prefix of helper columns; no leading underscore, because staging skips such folders as a committer's own."""

_DAY, _HOUR = 86_400_000_000, 3_600_000_000


def is_spark(frame: Any) -> bool:
    """Whether the frame is a DataFrame of Spark; tests stage other objects."""
    return hasattr(frame, "sparkSession")


def laid_out(
    frame: DataFrame, spec: PartitionSpec, schema: Schema, partition_by: Sequence[str]
) -> tuple[DataFrame, tuple[str, ...]]:
    """The frame with its helper columns, and their names. partition_by: used for a table that has no columns yet.

    Raises:
        InvalidInput: a column has the name of a helper column.
    """
    from pyspark.sql import functions as F

    values = [F.col(_quoted(name)) for name in partition_by] if not schema.fields else _values(spec, schema)
    helpers = {f"{HELPER}{number}": value for number, value in enumerate(values)}
    if taken := [name for name in helpers if name in frame.columns]:
        raise InvalidInput(f"column {taken[0]} has a name that staging needs; rename it")
    return frame.withColumns(helpers) if helpers else frame, tuple(helpers)


def _values(spec: PartitionSpec, schema: Schema) -> list[Column]:
    return [_value(each, schema) for each in spec.fields]


def _value(each: PartitionField, schema: Schema) -> Column:
    from pyspark.sql import functions as F

    column = F.col(".".join(_quoted(part) for part in (schema.find_column_name(each.source_id) or "").split(".")))
    kind = schema.find_type(each.source_id)
    match each.transform:
        case TruncateTransform():
            return _truncated(column, kind, each.transform.width)
        case YearTransform():
            return F.year(_date(column, kind))
        case MonthTransform():
            return F.year(_date(column, kind)) * 12 + F.month(_date(column, kind))
        case DayTransform():
            return _date(column, kind)
        case HourTransform():
            if isinstance(kind, TimestamptzType):
                micros = F.unix_micros(column)
                return micros - F.pmod(micros, F.lit(_HOUR))
            return F.concat_ws("-", column.cast("date").cast("string"), F.hour(column).cast("string"))
    return column


def _date(column: Column, kind: IcebergType) -> Column:
    from pyspark.sql import functions as F

    if isinstance(kind, DateType):
        return column
    if not isinstance(kind, TimestamptzType):
        return column.cast("date")  # a timestamp without time zone
    micros = F.unix_micros(column)
    days = ((micros - F.pmod(micros, F.lit(_DAY))) / F.lit(_DAY)).cast(
        "int"
    )  # a whole number of days: the division is exact
    return F.date_add(F.lit("1970-01-01").cast("date"), days)


def _truncated(column: Column, kind: IcebergType, width: int) -> Column:
    from pyspark.sql import functions as F

    if isinstance(kind, StringType | BinaryType):
        start = F.substring(column, 1, width)
        return F.hex(start) if isinstance(kind, BinaryType) else start
    unit = F.lit(width)
    if isinstance(kind, DecimalType):
        unit = F.lit(width).cast(f"decimal({kind.precision},0)") * F.lit(10**-kind.scale).cast(
            f"decimal({max(kind.precision, kind.scale + 1)},{kind.scale})"
        )
    return column - F.pmod(column, unit)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
