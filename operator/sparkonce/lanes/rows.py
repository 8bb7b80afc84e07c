"""Turns the rows of an append into Arrow tables of fixed types, and tables into Parquet files that Spark reads as they were written.

A value is never changed: a conversion that could lose something fails, and names the column. Rows that are mappings get the types that
Arrow infers for them; where the lane has had other types before, they are converted to those and compared with what was given.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

from sparkonce.errors import InvalidInput
from sparkonce.lanes.protocol import RowBatch

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP = 1_048_576
"""Rows of a row group at most: a batch is small, and one group per file is read fastest."""
_EXACT = frozenset({bool, int, float, str, bytes, dt.date})
"""Types of which Arrow keeps each value if a column has no other. Those of all other columns are compared with what was given: Arrow takes
the type of the first ones, and converts the rest without a word."""


def arrow_of(rows: Any, known: pa.Schema) -> pa.Table:
    """The rows as a table with types that Spark knows.

    rows: a mapping, an iterable of mappings, or anything with Arrow's stream or array interface (`pyarrow.Table` and `RecordBatch`, frames
    of Polars and pandas, relations of DuckDB). known: the columns that the lane has had, whose types the rows must fit.

    Raises:
        InvalidInput: the rows do not fit, or have a type that cannot be kept; names the column.
    """
    return fitted(_given(rows, known), known)


def fitted(table: pa.Table, known: pa.Schema) -> pa.Table:
    """The table with the types that the lane has for its columns, or will have. Errors as `arrow_of`."""
    _refuse_twins([*known.names, *(name for name in table.schema.names if name not in known.names)])
    for name in table.schema.names:
        table = _with_column(table, name, known)
    return table


def joined(tables: Sequence[pa.Table], known: pa.Schema) -> pa.Table:
    """The tables one after the other. Columns that one lacks are null there."""
    import pyarrow as pa

    names = {name for table in tables for name in table.schema.names}
    schema = pa.schema([field for field in known if field.name in names])
    return pa.concat_tables([_widened(table, schema) for table in tables])


def parquet_of(table: pa.Table) -> bytes:
    """The rows as one Parquet file."""
    import pyarrow as pa
    from pyarrow import parquet

    out = pa.BufferOutputStream()
    parquet.write_table(table, out, row_group_size=ROW_GROUP, write_page_checksum=True)
    return out.getvalue().to_pybytes()


def parquet_batch(tables: Sequence[pa.Table], known: pa.Schema) -> RowBatch:
    """The rows of several appends as one Parquet file. known: the columns of the lane."""
    filled = [table for table in tables if table.num_rows]
    if not filled:
        return RowBatch(b"", 0, "")
    table = joined(filled, known)
    return RowBatch(parquet_of(table), table.num_rows, spark_schema(known))


def with_columns_of(known: pa.Schema, other: pa.Schema) -> pa.Schema:
    """The columns of the lane, with those that the other schema adds; the same object if it adds none."""
    for field in other:
        if field.name not in known.names:
            known = known.append(field)
    return known


def spark_schema(schema: pa.Schema) -> str:
    """Spark's JSON schema of these columns. Every column may be null: appends may leave it out."""
    return json.dumps({"type": "struct", "fields": [_spark_field(field) for field in schema]}, separators=(",", ":"))


def arrow_schema(text: str) -> pa.Schema:
    """The inverse of `spark_schema`.

    Raises:
        InvalidInput: the lane has a type that this version does not write.
    """
    import pyarrow as pa

    return pa.schema([_arrow_field(each) for each in json.loads(text)["fields"]] if text else [])


def normal_schema(schema: pa.Schema) -> pa.Schema:
    """The columns with the types that are written for them.

    Raises:
        InvalidInput: two columns that Spark treats as one, or a type that cannot be kept.
    """
    import pyarrow as pa

    _refuse_twins(schema.names)
    return pa.schema([pa.field(field.name, _normal(field.type, field.name)) for field in schema])


def _given(rows: Any, known: pa.Schema) -> pa.Table:
    import pyarrow as pa

    if isinstance(rows, pa.RecordBatch):
        table = pa.Table.from_batches([rows])
    elif isinstance(rows, pa.Table):
        table = rows
    elif hasattr(rows, "__arrow_c_stream__"):
        table = pa.table(rows)
    else:
        return _from_mappings([rows] if isinstance(rows, Mapping) else rows, known)
    try:  # Arrow trusts its producers: invalid UTF-8 or an offset beyond the data is found only here
        table.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InvalidInput(f"the rows are not valid Arrow data: {_first_line(error)}") from None
    return table


def _from_mappings(rows: Iterable[Any], known: pa.Schema) -> pa.Table:
    import pyarrow as pa

    given = list(rows)
    for number, row in enumerate(given):
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            raise InvalidInput(f"row {number} is {type(row).__name__}, not a mapping of column names to values")
    if not given:
        return pa.table({})
    names = list(dict.fromkeys(name for row in given for name in row))
    columns, fields = [], []
    for name in names:
        values = [row.get(name) for row in given]
        if name not in known.names and all(value is None for value in values):
            continue  # as if the rows did not have it: a reader sees null
        column = _column(name, values, known.field(name).type if name in known.names else None)
        columns.append(column)
        fields.append(pa.field(name, column.type))
    if not fields:
        raise InvalidInput("the rows have no column with a value")
    return pa.table(columns, schema=pa.schema(fields))


def _column(name: str, values: Sequence[Any], known: pa.DataType | None) -> pa.Array[Any]:
    import pyarrow as pa

    inferred: pa.Array[Any] | None = None
    try:
        with nullcontext() if known is None else suppress(pa.ArrowException, OverflowError, ValueError, TypeError):
            inferred = pa.array(values)
        if known is None or (inferred is not None and inferred.type == known):
            column: Any = inferred
            kinds = {type(value) for value in values if value is not None}
            if len(kinds) <= 1 and kinds <= _EXACT:
                return column  # type: ignore[no-any-return]
        else:
            column = pa.array([_pairs(value, known) for value in values], type=known)
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        into = "" if known is None else f", and the lane has it as {known}"
        raise InvalidInput(f"column {name} cannot be written{into}: {_first_line(error)}") from None
    if all(_same(one, other) for one, other in zip(column.to_pylist(), values, strict=True)):
        return column  # type: ignore[no-any-return]
    if known is None:
        raise InvalidInput(
            f"column {name} cannot be written: as {column.type}, which its first values are, others of them would change"
        )
    given = f"some of the values are {inferred.type}" if inferred is not None else "some of the values are not"
    raise InvalidInput(f"column {name} is {known} in this lane, and {given}; convert them, or use another column")


def _pairs(value: Any, kind: pa.DataType) -> Any:
    """The value with a list of pairs for each mapping where the type is a map: Arrow takes no other form."""
    from pyarrow import types as t

    if value is None:
        return None
    if t.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        return [(key, _pairs(item, kind.item_type)) for key, item in pairs]
    if t.is_list(kind) and not isinstance(value, (str, bytes)):
        return [_pairs(each, kind.value_type) for each in value]
    if t.is_struct(kind) and isinstance(value, Mapping):
        types = {kind.field(n).name: kind.field(n).type for n in range(kind.num_fields)}
        return {name: _pairs(each, types[name]) if name in types else each for name, each in value.items()}
    return value


def _same(written: Any, given: Any) -> bool:
    """Whether a value of Arrow is the one that was given."""
    if getattr(given, "ndim", None) == 0 and given.dtype.kind in "bf":  # a scalar of numpy
        given = given.item()
    if isinstance(written, dict):
        if isinstance(given, Mapping):
            return all(_same(written.get(name), given.get(name)) for name in {*written, *given})
        return False
    if isinstance(written, list):
        if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
            return False
        other = list(given.items() if isinstance(given, Mapping) else given)  # a map is a list of pairs to Arrow
        return len(written) == len(other) and all(map(_same, written, other))
    if isinstance(written, float) and isinstance(given, float) and math.isnan(written) and math.isnan(given):
        return True
    if isinstance(written, bool) != isinstance(given, bool):
        return False
    try:
        return bool(written == given)
    except (TypeError, ValueError):
        return False


def _with_column(table: pa.Table, name: str, known: pa.Schema) -> pa.Table:
    import pyarrow as pa

    at = table.schema.get_field_index(name)
    field, column = table.schema.field(at), table.column(at)
    normal = known.field(name).type if name in known.names else _normal(field.type, name)
    written = pa.field(name, normal)
    if field.equals(written, check_metadata=True):
        return table
    if field.type != normal:
        own = field.type if pa.types.is_null(field.type) else _normal(field.type, name)
        if own != normal and not pa.types.is_null(own):
            raise InvalidInput(
                f"column {name} is {field.type}, and the lane has it as {normal}; cast it, or use another column"
            )
        try:
            column = column.cast(normal)
        except pa.ArrowInvalid as error:
            raise InvalidInput(
                f"column {name} is {field.type} and is written as {normal}: {_first_line(error)}; cast it as you want it"
            ) from None
    return table.set_column(at, written, column)


def _widened(table: pa.Table, schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    if table.schema.names == schema.names:
        return table
    columns = [
        table.column(field.name) if field.name in table.schema.names else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _refuse_twins(names: Sequence[str]) -> None:
    """Raises: InvalidInput: Spark would take two of the columns for one."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name or names.count(name) > 1:
            raise InvalidInput(f"the columns {other} and {name} are one to Spark; rename one of them")
        if not name:
            raise InvalidInput("a column has no name")


def _normal(kind: pa.DataType, at: str) -> pa.DataType:
    """The type that is written for values of this one; the cast to it fails where it would change a value."""
    import pyarrow as pa
    from pyarrow import types as t

    if t.is_boolean(kind) or t.is_signed_integer(kind) or t.is_float32(kind) or t.is_float64(kind):
        return kind
    if t.is_string(kind) or t.is_large_string(kind) or kind == pa.string_view():
        return pa.string()
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind) or kind == pa.binary_view():
        return pa.binary()
    if t.is_date(kind):
        return pa.date32()
    if t.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if t.is_decimal(kind) and kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
        return pa.decimal128(kind.precision, kind.scale)
    if t.is_dictionary(kind):
        return _normal(kind.value_type, at)
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", _normal(kind.value_type, f"{at}.element")))
    if t.is_map(kind):
        key, item = _normal(kind.key_type, f"{at}.key"), _normal(kind.item_type, f"{at}.value")
        return pa.map_(key, item)
    if t.is_struct(kind) and kind.num_fields:
        fields = [kind.field(n) for n in range(kind.num_fields)]
        _refuse_twins([field.name for field in fields])
        return pa.struct([pa.field(field.name, _normal(field.type, f"{at}.{field.name}")) for field in fields])
    why = "has only nulls, so its type is not known; pass schema= to the writer" if t.is_null(kind) else ""
    raise InvalidInput(f"column {at} {why or f'is {kind}, which Spark has no type for; cast it'}")


@functools.cache
def _simple() -> Mapping[pa.DataType, str]:
    """Spark's names of the types that are written and have no parts."""
    import pyarrow as pa

    return {
        pa.bool_(): "boolean",
        pa.int8(): "byte",
        pa.int16(): "short",
        pa.int32(): "integer",
        pa.int64(): "long",
        pa.float32(): "float",
        pa.float64(): "double",
        pa.string(): "string",
        pa.binary(): "binary",
        pa.date32(): "date",
        pa.timestamp("us", tz="UTC"): "timestamp",
        pa.timestamp("us"): "timestamp_ntz",
    }


def _spark_field(field: pa.Field[Any]) -> dict[str, Any]:
    return {"name": field.name, "type": _spark_type(field.type), "nullable": True, "metadata": {}}


def _spark_type(kind: pa.DataType) -> Any:
    from pyarrow import types as t

    if t.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if t.is_list(kind):
        return {"type": "array", "elementType": _spark_type(kind.value_type), "containsNull": True}
    if t.is_map(kind):
        key, value = _spark_type(kind.key_type), _spark_type(kind.item_type)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if t.is_struct(kind):
        return {"type": "struct", "fields": [_spark_field(kind.field(n)) for n in range(kind.num_fields)]}
    return _simple()[kind]


def _arrow_field(field: Mapping[str, Any]) -> pa.Field[Any]:
    import pyarrow as pa

    return pa.field(field["name"], _arrow_type(field["type"], field["name"]))


def _arrow_type(kind: Any, at: str) -> pa.DataType:
    import pyarrow as pa

    if isinstance(kind, dict):
        if kind["type"] == "array":
            return pa.list_(pa.field("element", _arrow_type(kind["elementType"], at)))
        if kind["type"] == "map":
            return pa.map_(_arrow_type(kind["keyType"], at), _arrow_type(kind["valueType"], at))
        if kind["type"] == "struct":
            return pa.struct([_arrow_field(each) for each in kind["fields"]])
    elif kind.startswith("decimal("):
        precision, scale = kind[len("decimal(") : -1].split(",")
        return pa.decimal128(int(precision), int(scale))
    elif (found := next((each for each, name in _simple().items() if name == kind), None)) is not None:
        return found
    raise InvalidInput(f"the lane has the column {at} as {kind}, which this version does not write; upgrade sparkonce")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
