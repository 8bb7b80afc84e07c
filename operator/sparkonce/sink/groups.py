"""Names of the folders of a partitioned write, from which the values can be recovered.

Spark names the folders of a partitioned write after the values: `''` and null become the same folder, as does the text that stands for
null there; bytes become characters, timestamps lose their zone, and on a file system that ignores case `a` and `A` meet. So the rows are
split by helper columns of text instead, one per partition column:

    so-group-region=north        a text of lower-case letters, digits and `-+._`: the value's text as it is
    so-group-region=_x4E53       any other: the UTF-8 of its text in hexadecimal
    so-group-region=_s<SHA-256>  one of more than `LONGEST` bytes; the value is in the files alone
    so-group-region=__HIVE_DEFAULT_PARTITION__   null (Spark's own name for it)

A folder therefore holds the rows of one tuple of values, and a name stands for one value.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

from sparkonce.errors import InvalidInput
from sparkonce.sink.protocol import GROUPED_SCHEMA, REPLACING_SCHEMA, DataFile, Slot

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

HELPER = "so-group-"
"""Prefix of helper columns. It has no leading underscore, because staging skips such folders as a committer's own."""
NULL = "__HIVE_DEFAULT_PARTITION__"
"""Spark's name for the folder of rows whose partition value is null."""
COLLATIONS = "__COLLATIONS"
"""Spark's key in the metadata of a text column whose values are not compared byte by byte."""
LONGEST = 100
"""Bytes of UTF-8 that a name can hold: in hexadecimal and with the column's name they fit into the 255 bytes of a file name."""

_HEX, _HASH = "_x", "_s"
_PLAIN = f"[a-z0-9+-][a-z0-9.+_-]{{0,{LONGEST - 1}}}"
_NO_TEXT = ("array", "map", "struct", "variant")


class TooLong(ValueError):
    """The value is longer than `LONGEST` bytes, so its folder is named by a hash."""


def split(frame: DataFrame, texts: Mapping[str, Column]) -> tuple[DataFrame, tuple[str, ...]]:
    """The frame with a helper column for each text (column name or number -> text of the value), and the helpers' names.

    Raises:
        InvalidInput: a column has the name of a helper column.
    """
    helpers = {f"{HELPER}{name}": _folder_name(text) for name, text in texts.items()}
    if taken := [name for name in helpers if name in frame.columns]:
        raise InvalidInput(f"column {taken[0]} has a name that staging needs; rename it")
    return frame.withColumns(helpers) if helpers else frame, tuple(helpers)


def texts_of(frame: DataFrame, partition_by: Sequence[str]) -> dict[str, Column]:
    """The text of each partition column's value. Equal values have equal texts, and unequal values have unequal ones, but for NaNs.

    Raises:
        InvalidInput: a partition column does not exist, or its type has no text form.
    """
    from pyspark.sql import functions as F

    types = {field.name: field.dataType for field in frame.schema.fields}
    texts = {}
    for name in partition_by:
        if name not in types:
            raise InvalidInput(f"partition_by: the rows have no column {name}; they have {', '.join(types)}")
        if types[name].typeName() in _NO_TEXT:
            raise InvalidInput(
                f"partition_by: {name} is of type {types[name].simpleString()}, which no folder can be named after; use a column of a "
                "simple type"
            )
        texts[name] = text(F.col(quoted(name)), types[name])
    return texts


def text(column: Column, kind: DataType) -> Column:
    """The text of a value: hexadecimal digits for bytes, microseconds since 1970 (UTC) for instants, and what a cast to text gives for
    any other type."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import BinaryType, StringType, TimestampType

    if isinstance(kind, BinaryType):
        return F.hex(column)
    if isinstance(kind, TimestampType):
        return F.unix_micros(column).cast("string")
    if isinstance(kind, StringType) and not kind.isUTF8BinaryCollation():
        return F.collate(column, "UTF8_BINARY")  # texts that a collation calls equal differ
    return column.cast("string")


def single(text: str) -> float:
    """The value of a text of Spark's type float, whose nearest double is another number than the one in the table."""
    return float(struct.unpack("<f", struct.pack("<f", float(text)))[0])


def quoted(name: str) -> str:
    """A column's name, quoted for an expression."""
    return f"`{name.replace('`', '``')}`"


def _folder_name(value: Column) -> Column:
    from pyspark.sql import functions as F

    return (
        F.when(value.isNull(), F.lit(None).cast("string"))
        .when(value.rlike(rf"^(?:{_PLAIN})\z"), value)
        .when(F.octet_length(value) <= LONGEST, F.concat(F.lit(_HEX), F.hex(value)))
        .otherwise(F.concat(F.lit(_HASH), F.sha2(value.cast("binary"), 256)))
    )


def named(path: str) -> dict[str, str]:
    """The names of a file's folders by helper (column name or number), in their order; empty if the file lies in no such folder."""
    parts = (part.partition("=") for part in path.split("/")[:-1] if part.startswith(HELPER))
    return {unquote(helper.removeprefix(HELPER)): unquote(name) for helper, _, name in parts}


def as_grouped(slot: Slot, files: Iterable[DataFile]) -> Slot:
    """The slot of a Delta or Iceberg table, marked for releases that do not know these names if its files lie in such folders, or that do
    not know its mode or place."""
    if slot.mode is not None or slot.place is not None:
        return slot.model_copy(update={"schema_": REPLACING_SCHEMA})
    if any(named(file.path) for file in files):
        return slot.model_copy(update={"schema_": GROUPED_SCHEMA})
    return slot


def value_of(name: str) -> str | None:
    """The text that a folder's name stands for; None for null.

    Raises:
        TooLong: the name is a hash.
        ValueError: `split` never produces that name.
    """
    if name == NULL:
        return None
    if name.startswith(_HASH):
        raise TooLong(name)
    if name.startswith(_HEX):
        return bytes.fromhex(name.removeprefix(_HEX)).decode()
    return name


def nameless(names: Iterable[str], *, hashes: bool) -> str | None:
    """The first of the folders' names that stands for no value; None if each stands for one. hashes: whether a hash does, because the
    files hold its value."""
    for name in names:
        try:
            value_of(name)
        except TooLong:
            if not hashes:
                return name
        except ValueError:
            return name
    return None


def is_plain(name: str) -> bool:
    """Whether a folder's name is the text of its value."""
    return re.fullmatch(_PLAIN, name) is not None


def refuse(unfit: Column, why: str, otherwise: Column) -> Column:
    """The column, or an error where a row is unfit."""
    from pyspark.sql import functions as F

    return F.when(unfit, refusal(F.lit(why)).cast("string")).otherwise(otherwise)


def refusal(why: Column) -> Column:
    """An error for a row; `refusal_in` finds its sentence in what Spark raises."""
    from pyspark.sql import functions as F

    return F.raise_error(F.concat(F.lit(_BEGIN), why, F.lit(_END)))


_BEGIN, _END = "<<sparkonce: ", ">>"


def refusal_in(error: BaseException) -> str | None:
    """The sentence with which a row was refused, in an error of Spark; None if it is another error."""
    _, begun, rest = str(error).partition(_BEGIN)
    return rest.partition(_END)[0] if begun else None
