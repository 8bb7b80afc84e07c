"""A scene for each test; whatever it leaves running is ended afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.eventually import assert_eventually
from launch.local_scene import PATIENCE, LocalScene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[LocalScene]:
    made = LocalScene.of(tmp_path)
    yield made
    made.clear()
    assert_eventually(lambda: not made.running(), PATIENCE)
