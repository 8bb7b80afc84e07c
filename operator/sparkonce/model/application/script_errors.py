"""The errors of a script that end a job after its first attempt, by the names that `spec.retry.retryOn` takes. Pure.

A name is a class of Python or Spark (`ImportError`, `AnalysisException`), or an error condition of Spark (`PATH_NOT_FOUND`, or with its
subclass `UNRESOLVED_COLUMN.WITH_SUGGESTION`). A name stands for its subclasses, too. Names that end no job are refused rather than
ignored: `retryOn: [RuntimeError]` would read as if nothing else were repeated. Conditions are not listed here, since each version of
Spark and each table format adds some.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

MISSING_FILE, MISSING_CLASS = "FileNotFoundError", "ClassNotFoundException"
"""The main file, or main class, is missing."""
ANALYSIS = "AnalysisException"
MISSING_INPUT = "PATH_NOT_FOUND"
"""Spark's condition, and our name for the same fault of an RDD, which has none."""
_BASES: Mapping[str, tuple[str, ...]] = {
    "SyntaxError": (),
    "IndentationError": ("SyntaxError",),
    "TabError": ("IndentationError", "SyntaxError"),
    "ImportError": (),
    "ModuleNotFoundError": ("ImportError",),
    ANALYSIS: (),
    "ParseException": (ANALYSIS,),
    MISSING_FILE: (),
    MISSING_CLASS: (),
}
PATTERN = r"^[A-Za-z][A-Za-z0-9_]*(\.[A-Z0-9_]+)?$"
"""What the API server checks of a name."""
CONDITION = r"[A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)?"
"""A Spark error condition, perhaps with its subclass."""
_CONDITION = re.compile(CONDITION, re.ASCII)


def is_analysis(error: BaseException) -> bool:
    """Whether it is an AnalysisException of Spark, or a kind of one. Told by the name, which needs no PySpark."""
    return any(each.__name__ == ANALYSIS for each in type(error).__mro__)


def names_of(error: str, *, condition: str = "") -> tuple[str, ...]:
    """All names of an error, the most specific one first. error: its class."""
    whole, _, subclass = condition.partition(".")
    conditions = (condition, whole) if subclass else (whole,) if whole else ()
    return (*conditions, error, *_BASES.get(error, ()))


def problem_of(name: str) -> str:
    """Why `retryOn` cannot take this name, and what to do; empty: it can."""
    if name in _BASES or _CONDITION.fullmatch(name):
        return ""
    if near := difflib.get_close_matches(name, _BASES, n=1, cutoff=0.8):
        return f"is not an error that ends a job; did you mean {near[0]}?"
    known = ", ".join(_BASES)
    return f"is repeated without being named, or is no error; only these are not: {known}, and Spark's conditions (PATH_NOT_FOUND)"
