"""Statistics of a file for readers of a Delta table, from the footer that staging reads anyway. Pure.

A reader skips a file whose bounds exclude what it looks for, so a wrong bound loses rows in silence. Left out is therefore whatever engines
do not all order and write alike: floats (NaN, and two zeros), timestamps (zones, INT96), decimals (JSON has no exact numbers), booleans and
bytes, what is nested, dates before the calendar's reform, and text that is long or reaches beyond the characters which every engine orders
alike. A column without bounds is read, never skipped.

Statistics are no part of a slot: they are in the entry that a driver sends, who has read the footers, and not in that of somebody who rolls
a sealed slot forward. Nothing that is decided rests on them.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyarrow.parquet import ColumnChunkMetaData, FileMetaData

COLUMNS = 32
"""At most so many, the first ones of the rows: as many as Delta's own writer has. The log holds them once per file."""
TEXT = 32
"""Characters of the longest text that is a bound."""

_BOUNDED = ("byte", "short", "integer", "long", "date", "string")
_REFORM = dt.date(1583, 1, 1)
_SURROGATES = "\ud800"
"""From here on engines that compare UTF-16 order text in another way than those that compare bytes."""


def of_file(footer: FileMetaData, rows: Mapping[str, Any]) -> str:
    """As an `add` has it. rows: Spark's schema of them."""
    wanted = {field["name"]: field["type"] for field in rows["fields"][:COLUMNS] if "." not in field["name"]}
    found: dict[str, list[ColumnChunkMetaData]] = {}
    for group in range(footer.num_row_groups):
        for number in range(footer.num_columns):
            chunk = footer.row_group(group).column(number)
            if isinstance(wanted.get(chunk.path_in_schema), str):
                found.setdefault(chunk.path_in_schema, []).append(chunk)
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name, chunks in found.items():
        said: list[tuple[Any, int]] = [(chunk.statistics, chunk.num_values) for chunk in chunks]
        counts = [each.null_count for each, _ in said if each is not None and each.has_null_count]
        if len(counts) < len(chunks):
            continue
        nulls[name] = sum(count or 0 for count in counts)
        filled = [each for each, values in said if each is not None and (each.null_count or 0) < values]
        if wanted[name] in _BOUNDED and filled and all(each.has_min_max for each in filled):
            bounds = _bounds(wanted[name], filled)
            if bounds is not None:
                least[name], most[name] = bounds
    stats: dict[str, Any] = {"numRecords": footer.num_rows}
    if nulls:
        stats |= {"minValues": least, "maxValues": most, "nullCount": nulls}
    return json.dumps(stats, separators=(",", ":"), ensure_ascii=False)


def _bounds(kind: str, statistics: list[Any]) -> tuple[Any, Any] | None:
    try:
        values = [value for each in statistics for value in (each.min, each.max)]
    except ValueError:  # text that is no UTF-8
        return None
    if kind == "string":
        if not all(
            isinstance(each, str) and len(each) <= TEXT and all(c < _SURROGATES for c in each) for each in values
        ):
            return None
    elif kind == "date":
        if not all(isinstance(each, dt.date) and each >= _REFORM for each in values):
            return None
        return min(values).isoformat(), max(values).isoformat()
    elif not all(type(each) is int for each in values):
        return None
    return min(values), max(values)
