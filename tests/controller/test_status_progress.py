"""`rounded`: progress is cut to the configured number of digits, so that it seldom changes a status."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkonce.controller.status import rounded


@pytest.mark.parametrize(
    ("value", "digits", "shown"),
    [
        (0, 2, 0),
        (99, 2, 99),
        (26483, 2, 26000),
        (26483, 1, 20000),
        (26483, 9, 26483),
        (-26483, 2, -26000),
        (0.3, 2, 0.3),
        (0.456, 2, 0.45),
        (99.97, 3, 99.9),
        (-0.456, 2, -0.45),
        (1.5e300, 1, 1e300),
        (True, 1, True),
        ("stage 3", 1, "stage 3"),
        ([123, 0.123], 1, [100, 0.1]),
        ({"rows": 123}, 1, {"rows": 100}),
    ],
)
def test_rounded(value: Any, digits: int, shown: Any) -> None:
    """A number keeps its first digits; other values are unchanged."""
    assert rounded({"it": value}, digits=digits) == {"it": shown}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_what_json_cannot_say_is_left_out(value: float | None) -> None:
    """A value that JSON cannot represent, or an empty one, is left out."""
    assert rounded({"it": value, "rows": 1}, digits=2) == {"rows": 1}


def test_no_digits_is_an_error() -> None:
    """Zero digits are refused."""
    with pytest.raises(ValueError, match="at least one digit"):
        rounded({}, digits=0)


ordered = st.integers() | st.floats(allow_nan=False, allow_infinity=False)


@given(ordered, ordered, st.integers(1, 5))
def test_progress_that_goes_up_is_never_shown_to_go_down(one: float, other: float, digits: int) -> None:
    """Rounding keeps the order, never exceeds the number, and leaves a rounded number unchanged."""
    low, high = sorted([one, other])
    shown = [rounded({"it": value}, digits=digits)["it"] for value in (low, high)]
    assert shown[0] <= shown[1]
    assert abs(shown[1]) <= abs(high)
    assert rounded({"it": shown[0]}, digits=digits) == {"it": shown[0]}


@given(st.integers(1, 3))
def test_a_number_that_grows_a_thousandfold_changes_seldom(digits: int) -> None:
    """From 1 to 10,000, one by one, a value with two digits changes at most 90 times per power of ten."""
    shown = {rounded({"rows": rows}, digits=digits)["rows"] for rows in range(1, 10_001)}
    assert len(shown) <= 4 * 9 * 10 ** (digits - 1) + 1
