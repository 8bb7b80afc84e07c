"""Rows as JSON texts. That Spark reads them back with every type is tested in `jvm/test_json.py`."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lanes.test_rows import NONE
from sparkonce.errors import InvalidInput
from sparkonce.lanes.json_rows import json_texts
from sparkonce.lanes.rows import arrow_of


def test_the_forms_of_values() -> None:
    """As a consumer of the topic finds them; what is null is left out, inside of structs, too."""
    row = {
        "n": 2**63 - 1,
        "f": 0.1,
        "odd": float("-inf"),
        "s": 'ä"\n\u2028',
        "b": b"\x00\xff",
        "d": Decimal("1.50"),
        "day": dt.date(1, 2, 3),
        "at": dt.datetime(2024, 5, 6, 7, 8, 9, tzinfo=dt.UTC),
        "local": dt.datetime(2024, 5, 6, 7, 8, 9, 5),  # noqa: DTZ001 - of no zone
        "list": [{"a": 1, "b": None}, None, {"a": None, "b": 2}],
    }
    text = json_texts(arrow_of([row, {"n": 1}], NONE))[0]
    assert b"\n" not in text
    assert json.loads(text) == {
        **row,
        "odd": "-Infinity",
        "b": "AP8=",
        "d": 1.5,
        "day": "0001-02-03",
        "at": "2024-05-06T07:08:09.000000Z",
        "local": "2024-05-06T07:08:09.000005",
        "list": [{"a": 1}, None, {"b": 2}],
    }
    assert b'"d":1.50' in text
    assert json_texts(arrow_of([row, {"n": 1}], NONE))[1] == b'{"n":1}'


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (
            pa.array([[(1, "a")]], pa.map_(pa.int64(), pa.string())),
            "column c is a map whose keys are int64, and JSON has texts",
        ),
        (
            pa.array([[[(b"a", 1)]]], pa.list_(pa.map_(pa.binary(), pa.int64()))),
            "column c.element is a map whose keys are binary",
        ),
        (pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64())), "column c has a map with one key twice"),
        (pa.array([2**53], pa.timestamp("us")), None),
        (pa.array([2**62], pa.timestamp("us")), "column c has a value outside of the years 1 to 9999"),
        (pa.array([3_000_000], pa.date32()), "column c has a value outside of the years 1 to 9999"),
        (pa.array([[2**62]], pa.list_(pa.timestamp("us"))), "column c has a value outside of the years 1 to 9999"),
    ],
)
def test_what_has_no_form_is_refused(column: Any, said: str | None) -> None:
    """Keys that are no texts, one key twice, and instants that JSON readers do not know."""
    table = arrow_of(pa.table({"c": column}), NONE)
    if said is None:
        assert len(json_texts(table)) == 1
        return
    with pytest.raises(InvalidInput, match=said):
        json_texts(table)
