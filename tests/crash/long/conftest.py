"""Scenes whose processes end with the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from crash.scene import Scene


@pytest.fixture
def scenes() -> Iterator[list[Scene]]:
    """Scenes that a test adds; all that still runs of them is killed after it."""
    added: list[Scene] = []
    yield added
    for scene in added:
        scene.clear()
