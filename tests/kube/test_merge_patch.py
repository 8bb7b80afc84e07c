"""Merge patches, and their effect on the stored object."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sparkonce.kube.status import difference

scalars = st.booleans() | st.integers(0, 2) | st.floats(0, 2) | st.sampled_from(["", "a", "b"])
names = st.sampled_from("abcd")
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(names, values, max_size=4)


def merged(stored: Any, patch: Any) -> Any:
    """RFC 7386, section 2."""
    if not isinstance(patch, dict):
        return patch
    result = dict(stored) if isinstance(stored, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


@given(objects, objects)
def test_the_patch_makes_the_one_of_the_other(stored: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Applied to the stored object, the patch gives exactly the desired one; True and 1, which are equal in Python, are distinguished."""
    assert repr_of(merged(stored, difference(stored, wanted))) == repr_of(wanted)


@given(objects)
def test_the_same_needs_no_patch(stored: dict[str, Any]) -> None:
    """Without a difference the patch is empty, and nothing is written."""
    assert difference(stored, stored) == {}


def test_what_goes_is_null() -> None:
    """A key that is no longer desired is sent as null, also inside a map; a desired null is the same as a missing key."""
    assert difference({"a": 1, "b": {"c": 1, "d": 2}}, {"b": {"d": 3}}) == {"a": None, "b": {"c": None, "d": 3}}
    assert difference({"a": 1}, {"a": None, "b": None}) == {"a": None}
    assert difference({"a": [1, 2]}, {"a": {}}) == {"a": {}}
    assert difference({"a": {"b": 1}}, {"a": {}}) == {"a": {"b": None}}


def repr_of(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{repr_of(value[name])}" for name in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(repr_of, value)) + "]"
    if isinstance(value, float) and value.is_integer():
        return repr(int(value))  # JSON has one kind of number
    return repr(value)
