"""One schema for the slots of a table, from the schemas that its writers recorded. Pure.

Columns are merged by name, at any depth of structs; a column that a slot lacks is null there. A column that has two types is refused, and
so are two that differ in case alone: Spark would take one for the other, or fail in the middle of a query with an error about a file.
Widening (int to long) was not taken: whether a reader may widen depends on how the file was encoded, which a schema does not say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from sparkonce.errors import InvalidInput

_NULLS = {"nullable", "containsNull", "valueContainsNull"}


def merged(schemas: Iterable[tuple[str, str]], *, where: str) -> dict[str, Any]:
    """schemas: name of the slot and Spark's JSON of its schema, in the order in which new columns are to appear.

    InvalidInput: they cannot be merged, with the column and both slots."""
    names: dict[str, str] = {}
    result: dict[str, Any] = {"type": "struct", "fields": []}
    before: dict[str, Any] = {}
    for slot, text in schemas:
        if text in before:
            continue
        before[text] = True
        result = _struct(result, json.loads(text), "", (where, slot, names))
    return result


def _struct(
    one: dict[str, Any], other: dict[str, Any], at: str, told: tuple[str, str, dict[str, str]]
) -> dict[str, Any]:
    where, slot, names = told
    fields = {each["name"]: each for each in one["fields"]}
    folded = {name.lower(): name for name in fields}
    for each in other["fields"]:
        name, path = each["name"], f"{at}{each['name']}"
        known = folded.get(name.lower())
        if known is None:
            folded[name.lower()] = name
            fields[name] = {**each, "nullable": True}
            names[path] = slot
        elif known != name:
            raise InvalidInput(
                f"{where} has a column {at}{known} in {_whose(names, f'{at}{known}')} and {path} in {slot}, which Spark takes for "
                "one; rename it in the job that wrote the later one and rerun that"
            )
        else:
            fields[name] = {**fields[name], "type": _type(fields[name]["type"], each["type"], path, told)}
    return {"type": "struct", "fields": list(fields.values())}


def _type(one: Any, other: Any, path: str, told: tuple[str, str, dict[str, str]]) -> Any:
    if isinstance(one, dict) and isinstance(other, dict) and one.get("type") == other.get("type"):
        kind = one["type"]
        if kind == "struct":
            return _struct(one, other, f"{path}.", told)
        if kind == "array":
            return {
                **one,
                "containsNull": True,
                "elementType": _type(one["elementType"], other["elementType"], path, told),
            }
        if kind == "map":
            key = _type(one["keyType"], other["keyType"], path, told)
            value = _type(one["valueType"], other["valueType"], path, told)
            return {**one, "keyType": key, "valueType": value, "valueContainsNull": True}
    if _plain(one) != _plain(other):
        where, slot, names = told
        raise InvalidInput(
            f"{where} has the column {path} as {_said(one)} in {_whose(names, path)} and as {_said(other)} in {slot}; rerun one of "
            "the two jobs with the other's type"
        )
    return one


def _plain(value: Any) -> Any:
    return {k: v for k, v in value.items() if k not in _NULLS} if isinstance(value, dict) else value


def _said(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind.get("type"))


def _whose(names: dict[str, str], path: str) -> str:
    """The slot that a column came from, or the column that it is a part of."""
    while path and path not in names:
        path = path.rpartition(".")[0]
    return names.get(path, "one slot")
