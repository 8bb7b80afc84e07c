"""Durations as Kubernetes writes them (`90s`, `1h30m`, `500ms`), and days (`30d`); seconds as a float in Python.

A bare number is refused: nobody can tell whether `30` means seconds or days. ISO 8601 durations are not read: the fields beside
these, and kubectl users, speak Go's spelling.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$"
_MAX_LENGTH = 32
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse(text: str) -> float:
    """Seconds. ValueError when it is no duration."""
    if len(text) > _MAX_LENGTH or not re.fullmatch(PATTERN.strip("^$"), text, re.ASCII):
        raise ValueError(f"{text[:_MAX_LENGTH]!r} is not a duration; write it as 90s, 5m, 1h30m or 30d")
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))


def text_of(seconds: float) -> str:
    """In the largest unit that divides it; read back by `parse` to the millisecond."""
    milliseconds = round(seconds * 1000)
    for unit in ("d", "h", "m", "s"):
        size = round(_SECONDS[unit] * 1000)
        if milliseconds % size == 0 and (milliseconds or unit == "s"):
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


def _read(value: object) -> float:
    if not isinstance(value, str):
        raise PydanticCustomError("sparkonce", "{sentence}", {"sentence": "must be a duration such as 90s, 5m or 30d"})
    try:
        return parse(value)
    except ValueError as refused:
        raise PydanticCustomError("sparkonce", "{sentence}", {"sentence": str(refused)}) from None


Duration = Annotated[
    float,
    BeforeValidator(_read),
    PlainSerializer(text_of, return_type=str),
    WithJsonSchema({"type": "string", "pattern": PATTERN, "maxLength": _MAX_LENGTH}),
]
"""Seconds in Python, text such as `5m` outside."""
