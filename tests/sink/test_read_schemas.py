"""The schema of a table, merged from the schemas of its slots."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from sparkonce.errors import InvalidInput
from sparkonce.sink.slotlog.reader import merged


def struct(**fields: Any) -> dict[str, Any]:
    listed = [{"name": name, "type": kind, "nullable": False, "metadata": {}} for name, kind in fields.items()]
    return {"type": "struct", "fields": listed}


def array(kind: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": False}


def mapping(kind: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": "string", "valueType": kind, "valueContainsNull": False}


def of(*schemas: dict[str, Any]) -> dict[str, Any]:
    return merged([(f"slot {number}", json.dumps(each)) for number, each in enumerate(schemas, 1)], where="the table")


def names(schema: dict[str, Any]) -> list[str]:
    return [each["name"] for each in schema["fields"]]


def test_columns_appear_in_the_order_of_their_slots() -> None:
    """The first slot's columns come first, followed by the new ones of each later slot; all are nullable."""
    found = of(struct(b="long", a="string"), struct(a="string", c="date"), struct(b="long", a="string"))
    assert names(found) == ["b", "a", "c"]
    assert all(each["nullable"] for each in found["fields"])


def test_structs_merge_at_any_depth() -> None:
    """Fields are merged in structs, in arrays and in values of maps."""
    for wrap in (lambda kind: kind, array, mapping, lambda kind: array(mapping(kind))):
        found = of(struct(x=wrap(struct(a="long"))), struct(x=wrap(struct(b="date"))))
        assert found == of(struct(x=wrap(struct(a="long"))), struct(x=wrap(struct(a="long", b="date"))))
        assert '"b"' in json.dumps(found)


def test_nullability_is_no_difference() -> None:
    """A column that is nullable in one slot is nullable in the table."""
    one, other = struct(x=array("long")), struct(x={**array("long"), "containsNull": True})
    assert of(one, other) == of(other, one)


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        (struct(a="long"), struct(a="integer"), "has the column a as long in slot 1 and as integer in slot 2"),
        (
            struct(a="decimal(10,2)"),
            struct(a="decimal(12,2)"),
            "as decimal(10,2) in slot 1 and as decimal(12,2) in slot 2",
        ),
        (
            struct(x=struct(a="long")),
            struct(x=struct(a="date")),
            "has the column x.a as long in slot 1 and as date in slot 2",
        ),
        (struct(x=array("long")), struct(x=array("date")), "has the column x as long"),
        (struct(x=array("long")), struct(x="long"), "has the column x as array in slot 1 and as long in slot 2"),
        (
            struct(day="date"),
            struct(Day="date"),
            "has a column day in slot 1 and Day in slot 2, which Spark treats as one",
        ),
    ],
)
def test_what_cannot_be_merged(one: dict[str, Any], other: dict[str, Any], why: str) -> None:
    """The refusal is one sentence with the column and both slots."""
    with pytest.raises(
        InvalidInput, match=rf"^the table {re.escape(why) if why.startswith('has') else '.*' + re.escape(why)}.*[a-z]$"
    ):
        of(one, other)
