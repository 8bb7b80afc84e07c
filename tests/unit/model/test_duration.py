"""Durations are written as in Kubernetes, with days in addition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkonce.model.spec import parse, text_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10), ("5m", 300), ("1h30m", 5400), ("30d", 2592000), ("500ms", 0.5), ("1.5h", 5400), ("0s", 0)],
)
def test_durations_read_as_kubernetes_reads_them(text: str, seconds: float) -> None:
    """Units add up; days are an addition of ours."""
    assert parse(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "s", "-1s", "1 s", "1s ", "1w", "1S", "1e3s", "٣s", "1s\n", "1s" * 20])
def test_anything_else_is_no_duration(text: str) -> None:
    """In particular not a bare number, whose unit would be unknown."""
    with pytest.raises(ValueError, match="is not a duration"):
        parse(text)


@given(st.integers(min_value=0, max_value=10**12))
def test_durations_survive_being_written(milliseconds: int) -> None:
    """A duration that is stored with a job reads back to the millisecond."""
    assert round(parse(text_of(milliseconds / 1000)) * 1000) == milliseconds
