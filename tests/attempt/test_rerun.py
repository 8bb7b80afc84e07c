"""The text of the annotation `sparkonce.dev/rerun`: which are accepted, which refused, and how it is shown."""

from __future__ import annotations

import pytest

from sparkonce.attempt.rerun import ANNOTATION, LIMIT, problem_of, quoted


@pytest.mark.parametrize("text", ["again", "2026-11-25", 'the "source" \\ was mended', "Ωμέγα ☃", "x" * LIMIT])
def test_a_text_that_people_can_read_is_valid(text: str) -> None:
    """Any letters are valid, up to the limit of length."""
    assert problem_of(text) == ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is empty"),
        ("  ", "it is empty"),
        ("x" * (LIMIT + 1), "257 characters"),
        ("two\nlines", "U+000A"),
        ("a\tb", "U+0009"),
        ("a\x1b[2Jb", "U+001B"),
        ("a\x00b", "U+0000"),
        ("\u202eevil", "U+202E"),
        ("a\u200bb", "U+200B"),
        ("a\u2028b", "U+2028"),
        ("a\udc80b", "U+DC80"),
    ],
)
def test_what_cannot_be_shown_is_refused_by_name(text: str, why: str) -> None:
    """The sentence says what is wrong and what to do, without repeating the text."""
    said = problem_of(text)
    assert ANNOTATION in said and why in said and said.isprintable()


def test_a_quoted_text_cannot_end_its_quotation() -> None:
    """Quotes and backslashes are escaped, so that the text cannot pretend to be a part of the sentence around it."""
    assert quoted('a" by root: "b\\') == '"a\\" by root: \\"b\\\\"'
