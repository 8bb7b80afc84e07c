"""Scenes whose processes end with the test, and a catalog server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from crash.scene import Scene
from harness.iceberg_rest import rest_server


@pytest.fixture
def scenes() -> Iterator[list[Scene]]:
    """Scenes that a test adds; all that still runs of them is killed after it."""
    added: list[Scene] = []
    yield added
    for scene in added:
        scene.clear()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a catalog of Iceberg tables, for a module's tests."""
    with rest_server(tmp_path_factory.mktemp("rest")) as url:
        yield url
