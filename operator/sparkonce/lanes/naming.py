"""The name and the position of a lane, as its log stores them."""

from __future__ import annotations

import json
from typing import Any

from sparkonce.errors import InvalidInput
from sparkonce.model.identity import explicit_text


def lane_name(name: Any) -> str:
    """The one spelling of a lane's name: as an idempotency key, 1 to 255 visible ASCII characters.

    Raises:
        InvalidInput: not a name.
    """
    try:
        return explicit_text(name)
    except (ValueError, TypeError):
        raise InvalidInput(
            f"the name of a lane has 1 to 255 visible ASCII characters, without spaces, and {name!r} has not"
        ) from None


DEPTH_LIMIT = 32
"""Nesting of a position. JSON parsers differ in the depth at which they fail, and the next writer must be able to read it."""


def position_text(position: Any, limit: int) -> str:
    """A position as it is stored: JSON, of at most so many bytes.

    Raises:
        InvalidInput: not a JSON value, nested too deeply or too long.
    """
    try:
        text = json.dumps(position, separators=(",", ":"), sort_keys=True, allow_nan=False, ensure_ascii=False)
        again = json.loads(text)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"the position is not a JSON value: {error}") from None
    if again != position:
        raise InvalidInput(
            "the position would not be read back as it is (tuples and numbers as keys are not JSON); use lists and texts"
        )
    parts = [(0, position)]
    while parts:
        depth, each = parts.pop()
        if depth > DEPTH_LIMIT:
            raise InvalidInput(f"the position is nested more than {DEPTH_LIMIT} deep; use a text")
        if isinstance(each, dict | list):
            parts += [(depth + 1, inner) for inner in (each.values() if isinstance(each, dict) else each)]
    if size > limit:
        raise InvalidInput(f"the position has {size} bytes of JSON, and may have {limit}")
    return text
