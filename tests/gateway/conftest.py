"""What every test of this room starts from: no secret may be told."""

from __future__ import annotations

from harness.planted import no_secret_is_told

__all__ = ["no_secret_is_told"]
