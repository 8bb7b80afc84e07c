"""Clocks that a test moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Clocks:
    now: float = 1_800_000_000.0
    """Seconds since 1970."""
    ticks: float = 5000.0
    """Seconds of a monotonic clock."""

    moved: list[Callable[[], None]] = field(default_factory=list)
    """Called after each move."""

    def move(self, seconds: float) -> None:
        self.now += seconds
        self.ticks += seconds
        for each in self.moved:
            each()
