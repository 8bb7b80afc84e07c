"""A scene per test, in memory; creates whose answer was lost are sent again at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from audit.scene import ROWS, Kinds, Scene, scene
from harness.spark import spark
from harness.store_fixtures import running, s3_server, server

__all__ = ["running", "s3_server", "server", "spark"]


@pytest.fixture
def store(tmpfs_path: Path) -> Iterator[Scene]:
    """A ledger without keys."""
    with scene(tmpfs_path) as empty:
        yield empty


@pytest.fixture
def clean(store: Scene) -> Scene:
    """Three jobs that succeeded on one table, one that succeeded with two outputs, and one that failed; no defect."""
    for number in range(3):
        store.ran(f"day-{number}", *range(number * 10, number * 10 + 7))
    store.ran("two", 100, 101, outputs=("orders", "totals"))
    from sparkonce.model.record import Outcome

    store.finalize(store.granted("failed"), Outcome.FAILED)
    return store


@pytest.fixture(params=["slotLog", "delta", "iceberg"])
def full(request: pytest.FixtureRequest, tmpfs_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kinds]:
    if request.param == "iceberg":
        from harness.iceberg_tables import sql_catalog

        for name, value in sql_catalog(tmpfs_path).items():
            monkeypatch.setenv(name, value)
    with scene(tmpfs_path) as store:
        made = Kinds(request.param, store)
        for number, rows in enumerate(ROWS):
            made.ran(f"day-{number}", *rows)
        yield made
