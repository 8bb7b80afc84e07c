"""Folder names and the partition values that they encode. Spark's own names for them are in tests/sink/test_matrix.py."""

from __future__ import annotations

import pytest

from sparkonce.sink.delta.log import partition_values
from sparkonce.sink.groups import NULL, TooLong, is_plain, named, value_of

FOLDER = "so-k-o-g1/0000000001-a"


def test_a_folder_has_the_name_of_its_column_and_value() -> None:
    """A folder is named after its column and value, escaped as Spark does; other folders have no value."""
    path = f"{FOLDER}/so-group-a%2Fb%3D=_x4E/so-group-day=2024-05-01/part-0.parquet"
    assert named(path) == {"a/b=": "_x4E", "day": "2024-05-01"}
    assert named(f"{FOLDER}/day=2024-05-01/part-0.parquet") == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [("north", "north"), ("-5", "-5"), ("_x", ""), ("_x4E", "N"), ("_xC3BC00", "ü\0"), (NULL, None)],
)
def test_a_name_stands_for_one_value(name: str, value: str | None) -> None:
    """Plain text encodes itself, any other text is in hexadecimal."""
    assert value_of(name) == value
    assert is_plain(name) == (name == value)


@pytest.mark.parametrize("name", ["_xZZ", "_x4", "_xFF"])
def test_a_name_that_was_never_given_is_refused(name: str) -> None:
    """A name that no value encodes to is refused instead of being read as some other value."""
    with pytest.raises(ValueError, match=r"hex|codec"):
        value_of(name)


def test_a_hash_does_not_tell_the_value() -> None:
    """The value is read from the files instead."""
    with pytest.raises(TooLong):
        value_of("_s" + "0" * 64)


def test_partition_values_of_a_delta_log_come_from_names_of_both_versions() -> None:
    """An earlier version put the plain values into folder names, and the same name for null and for empty text."""
    path = f"{FOLDER}/so-group-d=_x612F62/so-group-n={NULL}/part-0.parquet"
    assert partition_values(path, ("d", "n", "lacking")) == {"d": "a/b", "n": None, "lacking": None}
    path = f"{FOLDER}/d=a%2Fb/n={NULL}/part-0.parquet"
    assert partition_values(path, ("d", "n", "lacking")) == {"d": "a/b", "n": None, "lacking": None}
