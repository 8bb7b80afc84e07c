"""Text widths that columns of a Delta table declare, and what a commit knows about rows that were staged before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema

from harness.delta_stage import rows_in
from harness.delta_tables import sink_on
from sparkonce.blocking import run
from sparkonce.errors import OutputUnsupported
from sparkonce.sink.delta.widths import (
    CHECKED,
    DECLARED,
    Width,
    of_rows,
    recorded,
    settled,
    unchecked,
    widths,
)
from sparkonce.sink.groups import COLLATIONS
from sparkonce.sink.protocol import Committed, SinkKey, Slot, Stuck

STRINGS: dict[str, Any] = {
    "type": "struct",
    "fields": [
        {"name": "v", "type": "string", "nullable": True, "metadata": {}},
        {"name": "n", "type": "long", "nullable": True, "metadata": {}},
        {
            "name": "l",
            "type": {"type": "array", "elementType": "string", "containsNull": True},
            "nullable": True,
            "metadata": {},
        },
    ],
}
MAP = {"type": "map", "keyType": "string", "valueType": STRINGS, "valueContainsNull": True}


def column(
    name: str, kind: Any, declared: str | None = None, metadata: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    own = {} if declared is None else {DECLARED: declared}
    return {"name": name, "type": kind, "nullable": True, "metadata": {**own, **(metadata or {})}}


def known(*columns: dict[str, Any]) -> tuple[Width, ...]:
    """The widths that columns declare, all of them valid."""
    found = widths(columns)
    assert not isinstance(found, str), found
    return found


def rows(*columns: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(columns)}


@pytest.mark.parametrize(
    ("kind", "declared", "found"),
    [
        ("string", None, {}),
        ("string", "string", {}),
        ("string", "varchar(5)", {"c": (5, "varchar(5)")}),
        ("string", "CHAR(3)", {"c": (3, "char(3)")}),
        ("long", "bigint", {}),
        (STRINGS, "struct<v:char(2),n:decimal(38,0),g:geometry(OGC:CRS84),i:interval day to second,t:time(6)>", {"c.v": (2, "char(2)")}),
        (STRINGS, "struct<v:varchar(4),n:decimal(10,2),l:array<char(2)>>", {"c.v": (4, "varchar(4)"), "c.l.element": (2, "char(2)")}),
        (STRINGS, "struct<gone:string,l:array<string collate UTF8_LCASE>>", {}),
        (MAP, "map<char(1),struct<`v`:varchar(2)>>", {"c.key": (1, "char(1)"), "c.value.v": (2, "varchar(2)")}),
    ],
)  # fmt: skip
def test_widths_are_read_at_any_depth(kind: Any, declared: str | None, found: dict[str, tuple[int, str]]) -> None:
    """Widths are read from the metadata of the top-level column, in the type syntax of Spark's catalogs."""
    assert {each.path: (each.most, each.declared) for each in known(column("c", kind, declared))} == found


def test_a_nested_field_may_declare_its_own_width() -> None:
    """The fields of a struct that was built from columns keep those columns' metadata; a name with a dot is quoted."""
    inner = rows(column("a.b", "string", "varchar(2)"), column("c", "string"))
    (found,) = known(column("s", inner))
    assert (found.path, found.most) == ("s.`a.b`", 2)


@pytest.mark.parametrize(
    "declared",
    [
        "", "varchar", "varchar()", "varchar(x)", "varchar(0)", "varchar(-1)", "varchar(5", "varchar(5))", "varchar(5,3)", "char(1) x",
        "struct<", "struct<>", "struct<v>", "struct<v:>", "array<>", "array<char(1)", "map<char(1)>", "map<a,b,char(1)>", "long<char(1)>",
        "array<" * 5000, "<", ",", 5, None, [], {},
    ],
)  # fmt: skip
def test_a_declaration_that_cannot_be_read_is_refused(declared: Any) -> None:
    """It is refused by the column's name: if the rows went unchecked, the next rewrite of their file would fail."""
    found = widths([{**column("c", "string"), "metadata": {DECLARED: declared}}])
    assert (isinstance(found, str) and "the metadata of its column c" in found) or (declared is None and found == ())


@pytest.mark.parametrize(
    ("kind", "declared"),
    [
        ("long", "varchar(5)"), ("string", "array<char(1)>"), (STRINGS, "char(3)"), (STRINGS, "struct<n:char(1)>"),
        (STRINGS, "struct<V:char(1)>"), (MAP, "array<char(1)>")],
)  # fmt: skip
def test_a_declaration_that_contradicts_its_column_is_refused(kind: Any, declared: str) -> None:
    """A number has no width, and a text has no elements."""
    found = widths([column("c", kind, declared)])
    assert isinstance(found, str)
    assert "correct that metadata" in found


def test_a_commit_takes_rows_that_were_checked_for_the_width_or_a_narrower_one() -> None:
    """Rows that were checked for a wider width, or not checked, are refused by column; columns that the rows lack need no check."""
    declared = known(column("c", STRINGS, "struct<v:varchar(4),l:array<char(2)>>"), column("gone", "string", "char(1)"))
    staged = rows(column("c", STRINGS))
    ours = of_rows(declared, staged)
    assert [each.path for each in ours] == ["c.v", "c.l.element"]
    assert (
        unchecked(declared, staged)
        == "its column c.v is varchar(4), and the rows were not checked for that; run it again"
    )
    checked = recorded(staged, ours)
    assert checked["fields"][0]["metadata"] == {CHECKED: {"v": 4, "l.element": 2}}
    assert unchecked(declared, checked) is None
    narrower = known(column("c", STRINGS, "struct<v:varchar(3)>"))
    assert unchecked(narrower, checked) == (
        "its column c.v is varchar(3), and the rows were checked for 4 characters; run it again"
    )
    forgeries: list[Any] = [5, None, [], {"v": "4"}]
    for forged in forgeries:
        assert unchecked(declared, rows(column("c", STRINGS, metadata={CHECKED: forged}))) is not None


def test_what_rows_claim_counts_only_when_it_was_checked() -> None:
    """Widths that rows declare without a recorded check, as in a slot of an older version, are not put into the table's schema; nor are
    collations."""
    inner = rows(column("a", "string", "char(1)"), column("b", "string", metadata={COLLATIONS: {"b": "icu.UNICODE"}}))
    claimed = rows(column("s", inner, metadata={"comment": "kept"}), column("c", "string", "varchar(5)"))
    found = settled(claimed)
    assert widths(found["fields"]) == ()
    assert COLLATIONS not in json.dumps(found)
    assert found["fields"][0]["metadata"] == {"comment": "kept"}
    declared = known(*claimed["fields"])
    assert widths(settled(recorded(claimed, declared))["fields"]) == declared


@pytest.fixture
def narrow(table: Path) -> Path:
    """A table with a column `code VARCHAR(5)`."""
    field = Field.from_json(json.dumps(column("code", "string", "varchar(5)")))
    DeltaTable.create(str(table), schema=Schema([field]))
    return table


@pytest.mark.parametrize(("most", "outcome"), [(None, Stuck), (6, Stuck), (5, Committed), (4, Committed)])
def test_a_width_that_appears_under_the_write_is_respected(
    key: SinkKey, table: Path, narrow: Path, most: int | None, outcome: type
) -> None:
    """Rows whose texts were not checked for the width that the table declares by now never become visible; a process that rolls forward
    decides the same."""
    elsewhere = sink_on(table.with_name("elsewhere"))
    frame: Any = pa.table({"code": ["A-100-LONG"]})
    slot = elsewhere.stage(frame, key, 1, fingerprint="f")
    (table.with_name("elsewhere") / f"so-{key}").rename(narrow / f"so-{key}")
    if most is not None:
        checked = rows(column("code", "string", metadata={CHECKED: {"": most}}))
        slot = slot.model_copy(update={"data_schema": json.dumps(checked)})
    decision = run(sink_on(narrow).commit(key, Slot.model_validate(slot.dump())))
    assert isinstance(decision, outcome)
    if isinstance(decision, Stuck):
        assert "its column code is varchar(5), and the rows were " in decision.why
        assert rows_in(narrow) == []


def test_a_table_whose_widths_cannot_be_read_is_refused_at_start(table: Path) -> None:
    """One sentence names the table and the column."""
    field = Field.from_json(json.dumps(column("code", "string", "varchar(five)")))
    DeltaTable.create(str(table), schema=Schema([field]))
    with pytest.raises(
        OutputUnsupported, match=r"cannot be written: the metadata of its column code .* 'varchar\(five\)'"
    ):
        run(sink_on(table).check())
