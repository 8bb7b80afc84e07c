"""A converted job as YAML text, with the comments and the order of the application's own file where that can be.

The template's lines are taken from the file, shifted, without the lines of what was dropped, and the result is read again: only if it
says exactly what the conversion says is it used. Otherwise (a flow style, anchors from elsewhere) the plain form is written and the
caller is told. A YAML library that keeps comments was not taken: it would read numbers and dates unlike kubectl.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sparkonce.model.convert import Converted
from sparkonce.model.problems import InvalidJob, Loc
from sparkonce.model.yaml_tree import dump, read

INDENT = 6
"""Columns of a field of `spec.template.spec`."""
_MARK = re.compile(r"---(?=\s|$)|\.\.\.(?=\s|$)")
_IDLE = re.compile(r"\s*(#.*)?$")


def documents(text: str) -> Iterator[str]:
    """Each document of a text, with blank lines before it so that its line numbers are the file's."""
    part: list[str] = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if _MARK.match(line):
            if _says_something(part):
                yield "\n".join(part) + "\n"
            part = [*[""] * number, "   " + line[3:]]
        else:
            part.append(line)
    if _says_something(part):
        yield "\n".join(part) + "\n"


def _says_something(part: list[str]) -> bool:
    return any(not _IDLE.match(line) and not line.startswith("%") for line in part)


def written(converted: Converted, text: str, *, lines: Mapping[Loc, int], source: str) -> tuple[str, bool]:
    """The manifest, and whether the file's own lines were kept."""
    head = [f"# From {converted.name} in {source}:", *(f"# - {note}" for note in converted.notes)]
    above = "\n".join(" ".join(line.split()) for line in head) + "\n"
    kept = _kept(converted, text, lines)
    if kept is not None:
        return above + kept, True
    return above + dump(converted.document), "#" not in text


def _kept(converted: Converted, text: str, lines: Mapping[Loc, int]) -> str | None:
    job: Mapping[str, Any] = converted.document
    template = {name: value for name, value in job["spec"]["template"].items() if name != "spec"}
    outer = {**job, "spec": {**{k: v for k, v in job["spec"].items() if k != "template"}, "template": template}}
    rows = text.splitlines()
    fields = [loc for loc in lines if loc[:-1] == converted.template]
    if not fields:
        return None
    first, end = min(lines[loc] for loc in fields), _end(converted.template, lines, len(rows))
    gone: set[int] = set()
    for loc in converted.dropped:
        gone |= _range(loc, rows, lines)
    block = [(number, rows[number - 1]) for number in range(lines[converted.template] + 1, end)]
    own = len(rows[first - 1]) - len(rows[first - 1].lstrip())
    shifted = [_shifted(row, INDENT - own) for number, row in block if number not in gone]
    tried = dump(outer) + "    spec:\n" + "\n".join(shifted).rstrip() + "\n"
    try:
        same = read(tried, source="").data == job
    except InvalidJob:
        return None
    return tried if same else None


def _end(loc: Loc, lines: Mapping[Loc, int], last: int) -> int:
    """The line after its own: of the next field that is not below it."""
    after = [line for other, line in lines.items() if line > lines[loc] and other[: len(loc)] != loc]
    return min(after, default=last + 1)


def _range(loc: Loc, rows: list[str], lines: Mapping[Loc, int]) -> set[int]:
    """Its lines, and the comments right above it; what stands below it belongs to what follows."""
    begin, end = lines[loc], _end(loc, lines, len(rows))
    while end - 1 > begin and _IDLE.match(rows[end - 2]):
        end -= 1
    column = len(rows[begin - 1]) - len(rows[begin - 1].lstrip())
    while rows[begin - 2].startswith(" " * column + "#") and begin > 1:
        begin -= 1
    return set(range(begin, end))


def _shifted(row: str, by: int) -> str:
    if not row.strip():
        return ""
    if by >= 0:
        return " " * by + row
    free = len(row) - len(row.lstrip())
    return row[min(-by, free) :]
