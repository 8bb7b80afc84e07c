"""Lays a DataFrame out for an Iceberg table before it is written natively, and finds the partition of each file afterwards.

A file of a partitioned table contains one value of each partition field. So rows are split by helper columns that hold the text of the
field's transform (see `sink.groups`), and only those become folder names: the columns themselves stay in the files, where all readers of
the table find them. The partition of a file is read back from the names of its folders: statistics do not distinguish `-0.0` from `0.0`,
and lack NaN and long texts.

Iceberg computes years to hours in UTC, Spark in the session's time zone; the helpers compute in UTC. They raise no arithmetic error: where
a truncated value leaves its type's range, the row is refused by name.

Source: the Iceberg table specification, sections on partition transforms and truncation.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, HourTransform, MonthTransform, TruncateTransform, YearTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from sparkonce.sink import groups

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FIELD_ID = "parquet.field.id"
"""Metadata of a field by which Spark's Parquet writer gives it an id."""

_DAY, _HOUR = 86_400_000_000, 3_600_000_000
"""Microseconds."""
_PYTHON_DAYS = (dt.date.min - dt.date(1970, 1, 1)).days, (dt.date.max - dt.date(1970, 1, 1)).days
_RANGE = {"int": (-(2**31), 2**31 - 1), "long": (-(2**63), 2**63 - 1)}


def laid_out(frame: DataFrame, spec: PartitionSpec, schema: Schema) -> tuple[DataFrame, tuple[str, ...]]:
    """The frame with its helper columns, and their names. spec, schema: of the table, with all columns of the rows.

    Raises:
        InvalidInput: a column has the name of a helper column.
    """
    return groups.split(frame, {str(number): _text(each, schema) for number, each in enumerate(spec.fields)})


def identified(frame: DataFrame, schema: Schema) -> DataFrame:
    """The same rows, with the ids of the table's columns in the metadata of their fields, from where Spark's writer takes them."""
    from pyspark.sql import functions as F
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame
    from pyspark.sql.types import StructType as SparkStruct

    numbered = _numbered(frame.schema.jsonValue(), schema.as_struct())
    struct = SparkStruct.fromJson(numbered)
    columns = [F.col(groups.quoted(each.name)).alias(each.name, metadata=each.metadata) for each in struct.fields]
    rows = frame.to(struct).select(*columns)  # `to` reaches the fields of structs
    plan = rows._jdf.queryExecution()  # noqa: SLF001 - PySpark has no other access to the plan
    if _ids(json.loads(plan.optimizedPlan().schema().json())) == _ids(numbered):
        return rows
    # The optimizer drops the metadata of constant columns.
    session: Any = rows.sparkSession
    computed = session._jsparkSession.internalCreateDataFrame(plan.toRdd(), rows._jdf.schema(), False)  # noqa: SLF001 - see above
    return ClassicFrame(computed, session)


def _ids(kind: Any) -> Any:
    """The ids of the fields of a struct, at any depth."""
    if not isinstance(kind, dict) or kind["type"] != "struct":
        return None
    return [(each["metadata"].get(FIELD_ID), _ids(each["type"])) for each in kind["fields"]]


def _numbered(rows: dict[str, Any], table: StructType) -> dict[str, Any]:
    """A struct of Spark's JSON with the ids of a table's fields."""
    ids = {field.name: field for field in table.fields}
    fields = []
    for each in rows["fields"]:
        field = ids[each["name"]]
        kind = each["type"]
        if isinstance(kind, dict) and kind["type"] == "struct" and isinstance(field.field_type, StructType):
            kind = _numbered(kind, field.field_type)
        fields.append({**each, "type": kind, "metadata": {**each["metadata"], FIELD_ID: field.field_id}})
    return {"type": "struct", "fields": fields}


def partition_of(
    path: str, spec: PartitionSpec, schema: Schema, *, too_long: Callable[[PartitionField], Any] | None = None
) -> list[Any] | None:
    """The value of each partition field that a file's folders are named after, in pyiceberg's representation; None if the file lies in
    folders of an earlier version. too_long: finds a value that is too long for a name.

    Raises:
        groups.TooLong: a value is, and `too_long` is not given.
        ValueError: the folders are those of another partition spec.
    """
    named = groups.named(path)
    if not named:
        return None
    if list(named) != [str(number) for number in range(len(spec.fields))]:
        raise ValueError(f"it is partitioned by {len(spec.fields)} field(s), and the rows were staged by {len(named)}")
    values = []
    for name, field in zip(named.values(), spec.fields, strict=True):
        try:
            text = groups.value_of(name)
        except groups.TooLong:
            if too_long is None:
                raise
            values.append(too_long(field))
        else:
            values.append(_value(text, field.transform.result_type(schema.find_type(field.source_id))))
    return values


def _value(text: str | None, kind: IcebergType) -> Any:
    """What a text stands for, in pyiceberg's representation: days and microseconds since 1970 as numbers."""
    if text is None:
        return None
    parse: Callable[[str], Any] = _PARSED.get(type(kind), int)
    return parse(text)


_PARSED: dict[type[IcebergType], Callable[[str], Any]] = {
    BooleanType: lambda text: text == "true",
    FloatType: groups.single,
    DoubleType: float,
    DecimalType: Decimal,
    StringType: str,
    BinaryType: bytes.fromhex,
}


def _text(each: PartitionField, schema: Schema) -> Column:
    from pyspark.sql import functions as F

    name = schema.find_column_name(each.source_id) or ""
    column = F.col(".".join(groups.quoted(part) for part in name.split(".")))
    kind = schema.find_type(each.source_id)
    match each.transform:
        case TruncateTransform():
            return _truncated(column, kind, each.transform.width, name)
        case YearTransform():
            return (F.year(_date(column, kind)) - 1970).cast("string")
        case MonthTransform():
            date = _date(column, kind)
            return ((F.year(date) - 1970) * 12 + F.month(date) - 1).cast("string")
        case DayTransform():
            return _dated(F.unix_date(_date(column, kind)), column, kind, name)
        case HourTransform():
            return _dated(_hours(column, kind), column, kind, name)
    match kind:
        case BinaryType():
            return F.hex(column)
        case DateType():
            return _dated(F.unix_date(column), column, kind, name)
        case TimestampType() | TimestamptzType():
            return _dated(_micros(column, kind), column, kind, name)
    return column.cast("string")


def _dated(number: Column, column: Column, kind: IcebergType, name: str) -> Column:
    """The text of a number of days, hours or microseconds, or an error for a row whose partition pyiceberg cannot represent: it uses
    Python's dates, whose years are 1 to 9999."""
    from pyspark.sql import functions as F

    why = f"column {name} partitions the table and holds a year outside of 1 to 9999, which pyiceberg cannot represent; clean it"
    return groups.refuse(~F.unix_date(_date(column, kind)).between(*_PYTHON_DAYS), why, number.cast("string"))


def _micros(column: Column, kind: IcebergType) -> Column:
    """Microseconds since 1970, of a time without zone as if it were UTC."""
    from pyspark.sql import functions as F

    if isinstance(kind, TimestamptzType):
        return F.unix_micros(column)
    days = F.unix_date(column.cast("date")).cast("long")
    seconds = (F.hour(column) * 3600 + F.minute(column) * 60).cast("long")
    within = (F.date_part(F.lit("SECONDS"), column) * 1_000_000).cast("long") + seconds * 1_000_000
    # The first day that a long holds begins before the long's range does.
    return F.when(days < 0, (days + 1) * F.lit(_DAY) + (within - F.lit(_DAY))).otherwise(days * F.lit(_DAY) + within)


def _hours(column: Column, kind: IcebergType) -> Column:
    from pyspark.sql import functions as F

    if isinstance(kind, TimestamptzType):
        return _floored(F.unix_micros(column), _HOUR)
    return F.unix_date(column.cast("date")).cast("long") * 24 + F.hour(column)


def _date(column: Column, kind: IcebergType) -> Column:
    from pyspark.sql import functions as F

    if isinstance(kind, DateType):
        return column
    if not isinstance(kind, TimestamptzType):
        return column.cast("date")  # a time without zone
    return F.date_from_unix_date(_floored(F.unix_micros(column), _DAY).cast("int"))


def _floored(number: Column, unit: int) -> Column:
    """The quotient of whole numbers, rounded down; no intermediate result exceeds the operands."""
    from pyspark.sql import functions as F

    quotient = F.call_function("div", number, F.lit(unit))
    return F.when(F.pmod(number, F.lit(unit)) != number % F.lit(unit), quotient - 1).otherwise(quotient)


def _truncated(column: Column, kind: IcebergType, width: int, name: str) -> Column:
    from pyspark.sql import functions as F

    if isinstance(kind, StringType):
        return F.substring(column, 1, width)
    if isinstance(kind, BinaryType):
        return F.hex(F.substring(column, 1, width))
    if isinstance(kind, DecimalType):
        unit, least = F.lit(Decimal(f"{width}E-{kind.scale}")), F.lit(Decimal(f"-{'9' * kind.precision}E-{kind.scale}"))
    else:
        unit, least = F.lit(width).cast("long"), F.lit(_RANGE[str(kind)][0])
        column = column.cast("long")
    rest = F.pmod(column, unit)
    return groups.refuse(
        column < least + rest,
        f"column {name} is partitioned by truncate[{width}] and holds a value so low that, truncated, it does not fit {kind}; clean it",
        (column - rest).cast("string"),
    )
