"""How rows with nested columns fit an Iceberg table: which schema change they need, and the sentence when none is possible."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import MapType, StructType

from harness import iceberg_tables
from harness.spark_types import array, mapped, struct
from sparkonce.sink.iceberg.schema import fit, optional, schema_of
from sparkonce.sink.iceberg.sink import IcebergTableSink


def schema(**columns: Any) -> Schema:
    return assign_fresh_schema_ids(schema_of(json.dumps(struct(**columns))))


AB, BA = struct(a="long", b="string"), struct(b="string", a="long")


def test_struct_fields_are_matched_by_name_at_any_depth() -> None:
    """The order of fields makes no difference, nor does it in arrays or in keys and values of maps."""
    table = schema(s=AB, l=array(array(AB)), m=mapped(AB, AB))
    rows = schema(m=mapped(BA, BA), l=array(array(BA)), s=BA)
    found = fit(rows, table)
    assert (found.new, found.problem(merge=False)) == ([], None)


@pytest.mark.parametrize(
    ("table", "rows", "why"),
    [
        (struct(age="long"), struct(age="string"), "who.age is long in the table and string in the rows; cast them"),
        (array("long"), array("string"), "who.element is long in the table and string in the rows"),
        (array(struct(x="long")), array(struct(x="double")), "who.element.x is long in the table and double in the rows"),
        (mapped("string", "long"), mapped("long", "long"), "who.key is string in the table and long in the rows"),
        (mapped("string", "long"), mapped("string", "date"), "who.value is long in the table and date in the rows"),
        (struct(age="long"), "string", "who is a struct in the table and string in the rows"),
        (array("long"), mapped("string", "long"), "who is a list in the table and a map in the rows"),
        (struct(x_="long"), struct(x="long"), "required there, and the rows may hold nulls in them: who.x"),
        (struct(x_="long", y="long"), struct(y="long"), "required there, and the rows may hold nulls in them: who.x"),
        (array(struct(x_="long")), array(struct(x="long")), "required there, and the rows may hold nulls in them: who.element.x"),
        (
            mapped(struct(x_="long"), "long"),
            mapped(struct(x="long"), "long"),
            "required there, and the rows may hold nulls in them: who.key.x",
        ),
        (array("long", nulls=False), array("long"), "required there, and the rows may hold nulls in them: who.element"),
    ],
)  # fmt: skip
def test_a_difference_is_named_by_its_path_and_both_types(table: Any, rows: Any, why: str) -> None:
    """The sentence names the nested field and its two types, not the enclosing struct's."""
    assert why in (fit(schema(who=rows), schema(who=table)).problem(merge=True) or "")


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (mapped(struct(a="long", b="long"), "long"), "m.key.b"),
        (mapped(struct(b="long"), "long"), "m.key.a, m.key.b"),
        (mapped(struct(a="long", b=struct(c="long")), "long"), "m.key.b"),
    ],
)
def test_the_fields_of_a_key_never_change(rows: Any, named: str) -> None:
    """Iceberg adds no field to the keys of a map, and a key that lacks a field is another key: refused before the rows run, even with
    merge_schema."""
    found = fit(schema(m=rows), schema(m=mapped(struct(a="long"), "long")))
    assert found.problem(merge=True) == (
        f"keys of a map must have the same fields in the table and in the rows, and {named} differ; cast the keys"
    )


def test_a_new_column_requires_nothing_of_later_rows() -> None:
    """New fields are optional at every depth, also in keys of maps: the next job's rows may hold nulls there."""
    (kind,) = (each.field_type for each in schema(m_=mapped(struct(a_="long"), struct(b_="long"))).fields)
    loose = optional(kind)
    assert isinstance(loose, MapType)
    for part in (loose.key_type, loose.value_type):
        assert isinstance(part, StructType)
        assert not any(each.required for each in part.fields)


def test_new_fields_are_added_at_any_depth(sql_sink: IcebergTableSink) -> None:
    """pyiceberg accepts each path: structs in lists of lists, in lists of maps, and fields with the names of a list's own parts."""
    del sql_sink  # sets the catalog up
    before = {
        "ll": array(array(struct(a="long"))),
        "lm": array(mapped("string", struct(a="long"))),
        "e": struct(element="long"),
    }
    after = {
        "ll": array(array(struct(a="long", b="long"))),
        "lm": array(mapped("string", struct(a="long", b="long"))),
        "e": struct(element="long", value="long"),
    }
    catalog: Catalog = iceberg_tables.catalog()
    catalog.create_namespace("sales")
    table = catalog.create_table("sales.nested", schema(**before))
    change = fit(schema(**after), table.schema())
    assert change.problem(merge=True) is None
    with table.update_schema() as update:
        for path, kind in change.new:
            update.add_column(path, kind)
    assert fit(schema(**after), table.schema()).new == []
