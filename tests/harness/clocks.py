"""Clocks that a test moves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Clocks:
    now: float = 1_800_000_000.0
    """Seconds since 1970."""
    ticks: float = 5000.0
    """Seconds of a monotonic clock."""

    def move(self, seconds: float) -> None:
        self.now += seconds
        self.ticks += seconds
