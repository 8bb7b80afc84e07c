"""Rows as JSON texts, one per row, for logs whose records are bytes: Kafka.

The forms are those that Spark's `from_json` reads back to the same value with the schema of the rows: a decimal is a number with all its
digits, a float that is no number is one of the texts NaN, Infinity and -Infinity, bytes are base64, a timestamp has six decimals and, if it
is an instant, a Z. A column that is null is left out. Types and values without such a form are refused, with the name of the column.
Source: Spark's JacksonParser.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sparkonce.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

Form = Callable[[Any], str]
"""The JSON text of a value that is not null."""

_ODD_FLOATS = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
_text = json.JSONEncoder(ensure_ascii=False).encode


def json_texts(table: pa.Table) -> list[bytes]:
    """One JSON object per row, without line breaks, in UTF-8.

    Raises:
        InvalidInput: a type or a value that has no form in JSON; names the column.
    """
    names = [_text(name) for name in table.schema.names]
    forms = [_form(field.type, field.name) for field in table.schema]
    columns = []
    for name, column in zip(table.schema.names, table.columns, strict=True):
        try:
            columns.append(column.to_pylist())
        except (ValueError, OverflowError, ArithmeticError) as error:
            raise InvalidInput(f"column {name} has a value outside of the years 1 to 9999: {error}") from None
    rows = zip(*columns, strict=True) if columns else iter([()] * table.num_rows)
    return [
        (
            "{"
            + ",".join(
                f"{name}:{form(value)}"
                for name, form, value in zip(names, forms, row, strict=True)
                if value is not None
            )
            + "}"
        ).encode()
        for row in rows
    ]


def _form(kind: pa.DataType, at: str) -> Form:
    """Raises: InvalidInput."""
    from pyarrow import types as t

    if t.is_boolean(kind):
        return lambda value: "true" if value else "false"
    if t.is_integer(kind):
        return str
    if t.is_floating(kind):
        return _float
    if t.is_string(kind):
        return _text
    if t.is_binary(kind):
        return lambda value: f'"{base64.b64encode(value).decode()}"'
    if t.is_decimal(kind):
        return lambda value: format(value, "f")
    if t.is_date(kind):
        return lambda value: f'"{value.isoformat()}"'
    if t.is_timestamp(kind):
        zone = "Z" if kind.tz else ""
        return lambda value: f'"{value.replace(tzinfo=None).isoformat(timespec="microseconds")}{zone}"'
    if t.is_list(kind):
        return _list(_or_null(_form(kind.value_type, f"{at}.element")))
    if t.is_map(kind):
        if not t.is_string(kind.key_type):
            raise InvalidInput(f"column {at} is a map whose keys are {kind.key_type}, and JSON has texts; convert them")
        return _map(_or_null(_form(kind.item_type, f"{at}.value")), at)
    if t.is_struct(kind):
        fields = [kind.field(n) for n in range(kind.num_fields)]
        return _struct({field.name: _form(field.type, f"{at}.{field.name}") for field in fields})
    raise InvalidInput(f"column {at} is {kind}, which has no form in JSON; cast it")


def _float(value: float) -> str:
    return repr(value) if math.isfinite(value) else _ODD_FLOATS[repr(value)]


def _or_null(form: Form) -> Form:
    return lambda value: "null" if value is None else form(value)


def _list(element: Form) -> Form:
    return lambda values: f"[{','.join(map(element, values))}]"


def _map(item: Form, at: str) -> Form:
    def form(pairs: Any) -> str:
        if len({key for key, _ in pairs}) < len(pairs):
            raise InvalidInput(f"column {at} has a map with one key twice, of which a reader of JSON sees one")
        return "{" + ",".join(f"{_text(key)}:{item(value)}" for key, value in pairs) + "}"

    return form


def _struct(fields: Mapping[str, Form]) -> Form:
    named = [(name, _text(name), form) for name, form in fields.items()]
    return lambda value: (
        "{" + ",".join(f"{text}:{form(value[name])}" for name, text, form in named if value[name] is not None) + "}"
    )
