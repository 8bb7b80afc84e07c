"""What a commit must fulfil, checked: `spec.outputs[].expect`. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from sparkonce.model.output import Expect


def missing_columns(expect: Expect, columns: Sequence[str]) -> str | None:
    """What is wrong with these columns, in a few words; None: nothing. Names are compared as they are written."""
    missing = [each for each in expect.columns if each not in columns]
    if not missing:
        return None
    return f"it has no column {', '.join(missing)} (its columns are {', '.join(columns) or 'none'})"


def too_few_rows(expect: Expect, rows: int) -> str | None:
    """What is wrong with this number of rows, in a few words; None: nothing."""
    return f"it has {rows} rows and should have at least {expect.min_rows}" if rows < expect.min_rows else None
