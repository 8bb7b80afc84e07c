"""For every attack of this folder: no output contains a planted secret."""

from __future__ import annotations

from harness.planted import no_secret_is_told

__all__ = ["no_secret_is_told"]
