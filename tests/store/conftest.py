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
    """Every kind of store, empty."""
    made = BACKENDS[request.param](tmpfs_path)
    yield made
    made.close()


@pytest.fixture
def store(backend: Backend) -> IdempotencyStore:
    """A handle on the store."""
    return backend.open()


@pytest.fixture(params=sorted(DURABLE))
def durable(request: pytest.FixtureRequest, tmpfs_path: Path) -> Iterator[Durable]:
    """Every kind of store that several processes can share, empty."""
    made = DURABLE[request.param](tmpfs_path)
    yield made
    made.close()


@pytest.fixture
def neighbours(durable: Durable) -> Iterator[list[Worker]]:
    """Four other processes on the same store; they are killed when the test ends, whatever state they are in."""
    durable.open()  # created once before the timed processes start
    made = [Worker(durable.opening()) for _ in range(4)]
    yield made
    for neighbour in made:
        neighbour.end()


@pytest.fixture
def sqlite(tmpfs_path: Path) -> Iterator[Sqlite]:
    """A laptop's durable store, empty."""
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
    """Another process on the same ledger."""
    sqlite.open()  # creates the file first, as for `neighbours`
    made = Worker(sqlite.opening())
    yield made
    made.end()
