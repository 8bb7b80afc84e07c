"""Lays a DataFrame out by the partition columns of a Delta table, whose log holds their values as text.

Readers take these columns from the log, and staged files lack them. Values that the log cannot hold are refused while the rows are
computed: an empty text is null there, and readers interpret years of more than four digits differently.

Source: the Delta transaction log protocol, section on partition value serialization.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparkonce.sink import groups

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


def laid_out(frame: DataFrame, partition_by: Sequence[str], where: str) -> tuple[DataFrame, tuple[str, ...]]:
    """The rows with helper columns in place of the partition columns, and the helpers' names.

    Raises:
        InvalidInput: a partition column does not exist, or its type has no text form.
    """
    from pyspark.sql import functions as F

    kinds = {field.name: field.dataType for field in frame.schema.fields}
    texts = groups.texts_of(frame, partition_by)
    split, helpers = groups.split(
        frame, {name: _held(text, name, kinds[name], f"the Delta table {where}") for name, text in texts.items()}
    )
    kept = [F.col(groups.quoted(name)) for name in split.columns if name not in partition_by]
    return split.select(*kept), helpers


def _held(text: Column, name: str, kind: DataType, table: str) -> Column:
    """The text of a value, or an error where the log cannot hold it."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import DateType, DecimalType, StringType, TimestampNTZType

    unfit: list[tuple[Column, str]] = []
    if isinstance(kind, DateType | TimestampNTZType):
        years = ~text.rlike(r"^[0-9]{4}-") | text.startswith("0000")
        unfit = [(years, "a year outside of 1 to 9999, which readers of the log misread; clean it")]
    elif isinstance(kind, DecimalType):
        why = "a negative value with a fraction, which delta-rs cannot read as a partition; clean it, or partition by whole numbers"
        unfit = [(text.rlike(r"^-.*\.0*[1-9]"), why)]
    elif isinstance(kind, StringType):
        long = f"a value of more than {groups.LONGEST} bytes; partition by something shorter"
        null = "an empty text, which its log cannot tell from null; write null or another text there"
        unfit = [
            (F.octet_length(text) > groups.LONGEST, long),
            (text == groups.NULL, f"{groups.NULL}, which stands for null in it; clean it"),
            (~F.is_valid_utf8(text), "text that is not UTF-8; clean it"),
            (F.octet_length(text) == 0, null),
        ]
    for where, what in unfit:
        text = groups.refuse(where, f"column {name} partitions {table} and holds {what}", text)
    return text
