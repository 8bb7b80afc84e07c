"""What a write answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Written:
    """What stands in an output now."""

    output: str
    uri: str
    rows: int
    bytes: int
    fresh: bool
    """False: an earlier attempt, or an earlier run of this key, wrote it; the DataFrame was not run, or its rows were thrown away."""
