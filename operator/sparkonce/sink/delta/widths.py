"""CHAR(n) and VARCHAR(n): the widths of text that a table's columns declare, checked while rows are staged.

Delta has no such types. Spark stores text as `string`, and a column's declared type, as catalogs write it, in its metadata:

    code VARCHAR(5)                         {"__CHAR_VARCHAR_TYPE_STRING": "varchar(5)"}
    who STRUCT<name: CHAR(3), age: INT>     {"__CHAR_VARCHAR_TYPE_STRING": "struct<name:char(3),age:int>"}

Delta's own writer for Spark (observed: 4.1.0) stores texts as they are: it neither cuts trailing blanks nor pads CHAR, which
its readers pad. It refuses texts with more characters than the width, trailing blanks included. Rows staged here are treated the same way.

Widths may change between staging and commit, and a commit does not read rows. So the schema of staged rows records the widths for which
they were checked, and a commit compares them with the table's.

Tables whose declarations cannot be parsed, or contradict the column, are refused: rows that are too long make Spark's next rewrite fail.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkonce.sink.groups import COLLATIONS, quoted, refusal

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DECLARED = "__CHAR_VARCHAR_TYPE_STRING"
"""Spark's key of a column's metadata."""
CHECKED = "sparkonce.widths"
"""Our key, in the schema of staged rows only: an object of paths inside the column and the widths for which they were checked."""

_ELEMENT, _KEY, _VALUE = "element", "key", "value"
_NESTED = {"array": (_ELEMENT,), "map": (_KEY, _VALUE)}
_TOKEN = re.compile(r"[<>():,]|`(?:[^`]|``)*`|[^<>():,`]+")

Field = dict[str, Any]


@dataclass(frozen=True)
class Width:
    """The most characters that one place in a row may hold."""

    steps: tuple[str, ...]
    """From the column inwards: names of struct fields; `element`, `key` and `value` of arrays and maps."""
    most: int
    """Unicode code points."""
    declared: str
    """The declared type: `varchar(5)`."""

    @property
    def path(self) -> str:
        return spelled(self.steps)


def spelled(steps: Sequence[str]) -> str:
    """A path; names with a dot are quoted, so that two paths never have one spelling."""
    return ".".join(f"`{each.replace('`', '``')}`" if "." in each or "`" in each else each for each in steps)


def widths(columns: Sequence[Field]) -> tuple[Width, ...] | str:
    """The widths that columns declare, at any depth; or, in one sentence, why a declaration cannot be checked."""
    try:
        return tuple(each for column in columns for each in _of_field(column, None, (column["name"],)))
    except ValueError as error:
        return str(error)


def of_rows(declared: Sequence[Width], rows: Field) -> tuple[Width, ...]:
    """Those of the declared widths whose places these rows have."""
    return tuple(each for each in declared if _has(rows, each.steps))


def unchecked(declared: Sequence[Width], rows: Field) -> str | None:
    """Why staged rows may be longer than the declared widths; None if they were checked against these widths, or narrower ones."""
    proven = {column["name"]: (column.get("metadata") or {}).get(CHECKED) for column in rows["fields"]}
    for each in of_rows(declared, rows):
        own = proven.get(each.steps[0])
        most = own.get(spelled(each.steps[1:])) if isinstance(own, dict) else None
        if not isinstance(most, int):
            return f"its column {each.path} is {each.declared}, and the rows were not checked for that; run it again"
        if most > each.most:
            return f"its column {each.path} is {each.declared}, and the rows were checked for {most} characters; run it again"
    return None


def settled(rows: Field) -> Field:
    """The schema of staged rows as a commit takes it: without declarations for which the rows were not checked, and without collations,
    which staging refuses where they matter. Older versions checked neither, and dropped both."""
    columns = []
    for column in rows["fields"]:
        metadata = column.get("metadata") or {}
        dropped = {COLLATIONS} if CHECKED in metadata else {COLLATIONS, DECLARED}
        columns.append(_without(column, dropped))
    return {**rows, "fields": columns}


def _without(node: Any, dropped: set[str]) -> Any:
    """Part of a schema without some keys of metadata, at any depth."""
    if isinstance(node, list):
        return [_without(each, dropped) for each in node]
    if not isinstance(node, dict):
        return node
    return {
        name: {key: value for key, value in each.items() if key not in dropped}
        if name == "metadata" and isinstance(each, dict)
        else _without(each, dropped)
        for name, each in node.items()
    }


def recorded(rows: Field, checked: Sequence[Width]) -> Field:
    """The schema of staged rows with the widths for which they were checked."""
    found: dict[str, dict[str, int]] = {}
    for each in checked:
        found.setdefault(each.steps[0], {})[spelled(each.steps[1:])] = each.most
    columns = [
        {**column, "metadata": {**(column.get("metadata") or {}), CHECKED: found[column["name"]]}}
        if column["name"] in found
        else column
        for column in rows["fields"]
    ]
    return {**rows, "fields": columns}


def _has(kind: Any, steps: Sequence[str]) -> bool:
    """Whether a type has a place; also of a whole schema, whose first steps are the columns' names."""
    if not steps:
        return True
    if isinstance(kind, dict) and kind["type"] == "struct":
        return any(_has(each["type"], steps[1:]) for each in kind["fields"] if each["name"] == steps[0])
    if isinstance(kind, dict) and steps[0] in _NESTED.get(kind["type"], ()):
        return _has(kind[f"{steps[0]}Type"], steps[1:])
    return False


# --- with Spark ----------------------------------------------------------------------------------------------------------


def checked(frame: DataFrame, limits: Sequence[Width], what: str) -> DataFrame:
    """The same rows; running them fails on the first text that is too long, with a sentence (`groups.refusal`) that begins with
    `what`."""
    from pyspark.sql import functions as F

    kinds = {each["name"]: each["type"] for each in frame.schema.jsonValue()["fields"]} if limits else {}
    columns: dict[str, Column] = {}
    for each in limits:
        name, *inner = each.steps
        own = F.col(quoted(name))
        longest = _longest(own, inner, kinds[name])
        before = f"{what}: its column {each.path} is {each.declared}, and a row has a text of "
        after = " characters there; shorten it, widen the column, or cast it to string if the rows brought the width"
        error = refusal(F.concat(F.lit(before), longest.cast("string"), F.lit(after)))
        columns[name] = F.when(longest > each.most, error).otherwise(columns.get(name, own))
    return frame.withColumns(columns) if columns else frame


def _longest(place: Column, steps: Sequence[str], kind: Any) -> Column:
    """Length of the longest text at a path; null where there is none. kind: the type of the place, as Spark's JSON."""
    from pyspark.sql import functions as F

    if not steps:
        return F.length(place)
    step, inner = steps[0], steps[1:]
    if kind["type"] == "struct":
        of = next(each["type"] for each in kind["fields"] if each["name"] == step)
        return _longest(place.getField(step), inner, of)
    if kind["type"] == "array":
        of, places = kind["elementType"], place
    elif step == _KEY:
        of, places = kind["keyType"], F.map_keys(place)
    else:
        of, places = kind["valueType"], F.map_values(place)
    return F.array_max(F.transform(places, lambda each: _longest(each, inner, of)))


# --- declarations --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _DeclaredType:
    """A node of a declared type."""

    kind: str
    """Its first word: `varchar`, `struct`, `array`, `decimal`."""
    most: int | None = None
    """The width of text; None for other types."""
    inner: Mapping[str, _DeclaredType] = field(default_factory=dict)

    @property
    def has_widths(self) -> bool:
        return self.most is not None or any(each.has_widths for each in self.inner.values())


def _of_field(column: Field, outer: _DeclaredType | None, steps: tuple[str, ...]) -> Iterator[Width]:
    own = (column.get("metadata") or {}).get(DECLARED)
    yield from _of_type(column["type"], outer if own is None else _parsed(own, steps), steps)


def _of_type(kind: Any, declared: _DeclaredType | None, steps: tuple[str, ...]) -> Iterator[Width]:
    name = kind if isinstance(kind, str) else kind["type"]
    if declared is not None and declared.has_widths:
        if (said := _contradiction(kind, declared)) is not None:
            raise ValueError(
                f"its column {spelled(steps)} is {name}, and its metadata ({DECLARED}) says {said}; correct that metadata"
            )
        if declared.most is not None:
            yield Width(steps, declared.most, f"{declared.kind}({declared.most})")
    if isinstance(kind, dict):
        inner: Mapping[str, _DeclaredType] = {} if declared is None else declared.inner
        match name:
            case "struct":
                for each in kind["fields"]:
                    yield from _of_field(each, inner.get(each["name"]), (*steps, each["name"]))
            case "array":
                yield from _of_type(kind["elementType"], inner.get(_ELEMENT), (*steps, _ELEMENT))
            case "map":
                yield from _of_type(kind["keyType"], inner.get(_KEY), (*steps, _KEY))
                yield from _of_type(kind["valueType"], inner.get(_VALUE), (*steps, _VALUE))


def _contradiction(kind: Any, declared: _DeclaredType) -> str | None:
    """How a declaration with widths contradicts a type; None if it does not."""
    if isinstance(kind, str):
        return declared.kind if declared.most is None or kind != "string" else None
    if declared.kind != kind["type"]:
        return declared.kind
    if declared.kind == "struct":
        known = {each["name"] for each in kind["fields"]}
        unknown = [name for name, of in declared.inner.items() if of.has_widths and name not in known]
        return f"that it has a field {unknown[0]}" if unknown else None
    return None


def _parsed(text: Any, steps: tuple[str, ...]) -> _DeclaredType:
    left = [each[0] for each in _TOKEN.finditer(str(text))][::-1]  # the next one is the last
    with suppress(IndexError, ValueError, RecursionError):
        declared = _parse(left)
        if not left:
            return declared
    raise ValueError(
        f"the metadata of its column {spelled(steps)} ({DECLARED}) says {str(text)[:100]!r}, which this version cannot read; correct it"
    )


def _parse(left: list[str]) -> _DeclaredType:
    """Takes one type off the tokens. Raises IndexError, ValueError: it is none."""
    kind = left.pop().strip().lower()
    inner: dict[str, _DeclaredType] = {}
    if left and left[-1] == "<":
        left.pop()
        for step in _steps(kind, left):
            inner[step] = _parse(left)
        _take(left, ">")
        return _DeclaredType(kind, inner=inner)
    size = ""
    if left and left[-1] == "(":
        left.pop()
        while (token := left.pop()) != ")":
            size += token
    if kind in ("char", "varchar"):
        most = int(size)
        if most < 1:
            raise ValueError(most)
        return _DeclaredType(kind, most=most)
    if not re.fullmatch(r"[a-z_][a-z_0-9 ]*", kind) or kind in (*_NESTED, "struct"):
        raise ValueError(kind)
    return _DeclaredType(kind)


def _steps(kind: str, left: list[str]) -> Iterator[str]:
    """The steps into a nested type, each before its type is taken off the tokens."""
    if kind == "struct":
        while True:
            name = left.pop().strip()
            _take(left, ":")
            yield name[1:-1].replace("``", "`") if name.startswith("`") else name
            if left[-1] != ",":
                return
            left.pop()
    for number, step in enumerate(_NESTED.get(kind, ())):
        if number:
            _take(left, ",")
        yield step


def _take(left: list[str], token: str) -> None:
    if left.pop() != token:
        raise ValueError(token)
