"""What the store's tests share: the backends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkonce.store.protocol import IdempotencyStore
from store.backends import BACKENDS, Backend, Sqlite
from store.worker import Worker


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest, tmpfs_path: Path) -> Iterator[Backend]:
    """Each store there is, empty."""
    made = BACKENDS[request.param](tmpfs_path)
    yield made
    if isinstance(made, Sqlite):
        made.close()


@pytest.fixture
def store(backend: Backend) -> IdempotencyStore:
    """A handle on it."""
    return backend.open()


@pytest.fixture
def sqlite(tmpfs_path: Path) -> Iterator[Sqlite]:
    """The durable store of a laptop, empty."""
    made = Sqlite(tmpfs_path)
    yield made
    made.close()


@pytest.fixture
def workers(sqlite: Sqlite) -> Iterator[list[Worker]]:
    """Four other processes on the same ledger; they end with the test, whatever their state."""
    sqlite.open()  # the tables are there before anybody is timed
    made = [Worker(sqlite.path) for _ in range(4)]
    yield made
    for worker in made:
        worker.end()


@pytest.fixture
def worker(sqlite: Sqlite) -> Iterator[Worker]:
    """One other process on the same ledger."""
    sqlite.open()  # as for `workers`: the file is there
    made = Worker(sqlite.path)
    yield made
    made.end()
