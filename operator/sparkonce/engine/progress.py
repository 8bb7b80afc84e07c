"""Progress as a status shows it: numbers of few digits, so that a status changes when a person would say that something changed. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_DOWN, Decimal, localcontext
from typing import Any

from sparkonce.engine.object_view import Json

EVERY = 10.0
"""Seconds between two statuses that differ in their progress alone: each is a write that everybody who watches the object gets."""


@dataclass
class Shown:
    """Of one attempt's progress, what its objects are shown."""

    shown: Mapping[str, Any] | None = None
    _since: float = -math.inf

    def moved(self, progress: Mapping[str, Any], now: float) -> bool:
        """The driver has told this; True: it is time to show it. `now`: monotonic seconds."""
        if not progress or progress == self.shown or now - self._since < EVERY:
            return False
        self.shown, self._since = dict(progress), now
        return True


def rounded(progress: Mapping[str, Any], *, digits: int) -> Json:
    """Every number with at most so many significant digits, towards zero: progress that goes up is never shown to go down. A number
    that JSON cannot say is left out. ValueError: no digits."""
    if digits < 1:
        raise ValueError("progress is shown with at least one digit")
    shown = {str(name): _shown(value, digits) for name, value in progress.items()}
    return {name: value for name, value in shown.items() if value is not None}


def _shown(value: Any, digits: int) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return _whole(value, digits)
    if isinstance(value, float):
        return _real(value, digits) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return rounded(value, digits=digits)
    if isinstance(value, (list, tuple)):
        return [_shown(each, digits) for each in value]
    return str(value)


def _whole(value: int, digits: int) -> int:
    unit: int = 10 ** max(0, len(str(abs(value))) - digits)
    return (abs(value) // unit * unit) * (1 if value >= 0 else -1)


def _real(value: float, digits: int) -> float:
    """By way of its decimal text, so that 0.3 stays 0.3."""
    exact = Decimal(repr(value))
    with localcontext(prec=digits, rounding=ROUND_DOWN):
        return float(+exact)
