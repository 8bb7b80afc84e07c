"""A desk per test: a new current folder in memory with a ledger in it, without a JVM."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.desk import TESTS, Desk
from harness.planted import no_secret_is_told

__all__ = ["desk", "no_secret_is_told"]


@pytest.fixture
def desk(tmpfs_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    folder = tmpfs_path / "desk"
    folder.mkdir()
    environment = {
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent / "operator")]),
        "SPARKONCE_PATIENCE": "2",
        "SPARKONCE_SPARK_SUBMIT": str(TESTS / "harness" / "fake_submit.py"),
        "SPARKONCE_STORE": str(folder / "ledger.db"),
        "XDG_DATA_HOME": str(tmpfs_path / "data"),
        "COLUMNS": "100",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    desk = Desk(folder, capsys, environment)
    yield desk
    desk.close()
