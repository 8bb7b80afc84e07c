"""The names by which `spec.retry.retryOn` takes errors of a script."""

from __future__ import annotations

import re

import pytest

from sparkonce.model.application.script_errors import PATTERN, names_of, problem_of


@pytest.mark.parametrize(
    ("error", "condition", "names"),
    [
        ("SyntaxError", "", ("SyntaxError",)),
        ("TabError", "", ("TabError", "IndentationError", "SyntaxError")),
        ("ModuleNotFoundError", "", ("ModuleNotFoundError", "ImportError")),
        ("AnalysisException", "PATH_NOT_FOUND", ("PATH_NOT_FOUND", "AnalysisException")),
        ("ParseException", "A.B_2", ("A.B_2", "A", "ParseException", "AnalysisException")),
    ],
)
def test_an_error_has_the_names_of_its_bases(error: str, condition: str, names: tuple[str, ...]) -> None:
    """The most specific name comes first; `retryOn` takes each of them."""
    assert names_of(error, condition=condition) == names
    assert [problem_of(each) for each in names] == [""] * len(names)


@pytest.mark.parametrize(
    "name",
    ["RuntimeError", "Exception", "analysisexception", "A.b", "PATH-NOT-FOUND", "a", "A.", "A.B.C", "\N{DIGIT ONE}"],
)
def test_a_name_that_ends_no_job_is_refused(name: str) -> None:
    """What is repeated in any case, and what no error is called, is refused with a sentence that says what is not repeated."""
    assert "SyntaxError" in problem_of(name) or "did you mean" in problem_of(name)


@pytest.mark.parametrize(
    "name", ["SyntaxError", "PATH_NOT_FOUND", "UNRESOLVED_COLUMN.WITH_SUGGESTION", "DELTA_TABLE_NOT_FOUND"]
)
def test_the_api_server_takes_what_the_operator_takes(name: str) -> None:
    """The pattern in the CRD admits every name that `retryOn` may have."""
    assert problem_of(name) == ""
    assert re.search(PATTERN, name)
