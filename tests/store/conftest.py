"""Fixtures for the tests of stores: the backends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkonce.store.protocol import IdempotencyStore
from store.backends import BACKENDS, DURABLE, Backend, Durable, Postgres, Sqlite
from store.worker import Worker


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest, tmpfs_path: Path) -> Iterator[Backend]:
    """Each store there is, empty."""
    made = BACKENDS[request.param](tmpfs_path)
    yield made
    made.close()


@pytest.fixture
def store(backend: Backend) -> IdempotencyStore:
    """A handle on it."""
    return backend.open()


@pytest.fixture(params=sorted(DURABLE))
def durable(request: pytest.FixtureRequest, tmpfs_path: Path) -> Iterator[Durable]:
    """Each store that several processes can use, empty."""
    made = DURABLE[request.param](tmpfs_path)
    yield made
    made.close()


@pytest.fixture
def neighbours(durable: Durable) -> Iterator[list[Worker]]:
    """Four other processes on the same store; they end with the test, in whatever state they are."""
    durable.open()  # initialised once before the timed processes start
    made = [Worker(durable.opening()) for _ in range(4)]
    yield made
    for neighbour in made:
        neighbour.end()


@pytest.fixture
def sqlite(tmpfs_path: Path) -> Iterator[Sqlite]:
    """The durable store of a laptop, empty."""
    made = Sqlite(tmpfs_path)
    yield made
    made.close()


@pytest.fixture
def postgres(tmpfs_path: Path) -> Iterator[Postgres]:
    """An empty schema of a PostgreSQL server."""
    made = Postgres(tmpfs_path)
    yield made
    made.close()


@pytest.fixture
def worker(sqlite: Sqlite) -> Iterator[Worker]:
    """One other process on the same ledger."""
    sqlite.open()  # as for `neighbours`: the file is there
    made = Worker(sqlite.opening())
    yield made
    made.end()
