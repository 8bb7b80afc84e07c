"""Iceberg's own REST server, and one before it that fails on demand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.catalog_faults import FaultyCatalog, faulty
from harness.iceberg_rest import rest_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with rest_server(tmp_path_factory.mktemp("rest")) as url:
        yield url


@pytest.fixture
def upstream(server: str) -> Iterator[FaultyCatalog]:
    with faulty(server) as made:
        yield made
