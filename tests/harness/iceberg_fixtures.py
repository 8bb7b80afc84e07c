"""Outputs on Iceberg catalogs; import the fixtures into a folder's `conftest.py`.

Only the fixtures import pyiceberg, so that the folder's other tests run without it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sparkonce.sink.iceberg.sink import IcebergTableSink


@pytest.fixture(scope="session")
def iceberg_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One REST catalog server for all tests of a process."""
    from harness.iceberg_rest import rest_server

    with rest_server(tmp_path_factory.mktemp("rest")) as url:
        yield url


@pytest.fixture(params=["sql", "rest"])
def iceberg_sink(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[IcebergTableSink]:
    """An output whose table does not exist yet, on each kind of catalog."""
    from harness import iceberg_tables
    from harness.iceberg_tables import opened, rest_catalog, sql_catalog

    sql = request.param == "sql"
    for name, value in (
        sql_catalog(tmp_path) if sql else rest_catalog(request.getfixturevalue("iceberg_server"))
    ).items():
        monkeypatch.setenv(name, value)
    yield opened()
    if iceberg_tables.catalog().table_exists(iceberg_tables.TABLE):
        folder = iceberg_tables.folder_of()
        iceberg_tables.catalog().drop_table(iceberg_tables.TABLE)
        shutil.rmtree(folder)


@pytest.fixture
def sql_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IcebergTableSink:
    """An output on a SQL catalog."""
    from harness.iceberg_tables import opened, sql_catalog

    for name, value in sql_catalog(tmp_path).items():
        monkeypatch.setenv(name, value)
    return opened()
