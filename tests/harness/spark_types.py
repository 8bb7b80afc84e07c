"""Nested types as Spark's JSON has them."""

from __future__ import annotations

from typing import Any


def struct(**types: Any) -> dict[str, Any]:
    """Spark's JSON of a struct; a name that ends in `_` is a field without nulls."""
    fields = [
        {"name": name.rstrip("_"), "type": kind, "nullable": not name.endswith("_"), "metadata": {}}
        for name, kind in types.items()
    ]
    return {"type": "struct", "fields": fields}


def array(element: Any, *, nulls: bool = True) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": nulls}


def mapped(key: Any, value: Any, *, nulls: bool = True) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": nulls}
