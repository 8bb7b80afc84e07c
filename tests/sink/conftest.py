"""Fixtures for the tests of the slot log: a Spark session, and a table on each kind of place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from harness.arrow_stage import arrow_stage
from harness.iceberg_fixtures import iceberg_server, iceberg_sink, sql_sink
from harness.spark import spark
from harness.store_fixtures import running, s3_server, server
from sparkonce import failpoints
from sparkonce.model.spec import OnRerun
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.objects.protocol import StoreObjects, TableObjects
from sparkonce.sink.protocol import SinkKey
from sparkonce.sink.slotlog.sink import SlotLogSink

__all__ = ["iceberg_server", "iceberg_sink", "running", "s3_server", "server", "spark", "sql_sink"]

KEY = SinkKey(key_hash="a1b2", output="orders", generation=1)


@pytest.fixture
def key() -> SinkKey:
    return KEY


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The folder of a table that does not exist yet."""
    return tmp_path / "lake" / "orders"


@pytest.fixture
def sink(table: Path) -> SlotLogSink:
    """A slot log in a local folder, with fsync; it stages pyarrow tables."""
    return SlotLogSink(FolderObjects(table), name="orders", stage=arrow_stage)


@pytest.fixture
def appending(table: Path) -> SlotLogSink:
    """The same table, for a job with `onRerun: Append`."""
    return SlotLogSink(FolderObjects(table), name="orders", on_rerun=OnRerun.APPEND, stage=arrow_stage)


@pytest.fixture(params=["folder", "store"])
def objects(request: pytest.FixtureRequest, table: Path) -> TableObjects:
    """Each kind of place: a local folder, and a store with a native create-if-absent."""
    if request.param == "folder":
        return FolderObjects(table)
    return StoreObjects(MemoryStore(), "lake/orders", uri="memory:///lake/orders")


@pytest.fixture
def failpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets SPARKONCE_FAILPOINTS for this process until the test ends."""

    def plan(text: str) -> None:
        monkeypatch.setenv("SPARKONCE_FAILPOINTS", text)
        failpoints.reset()

    yield plan
    monkeypatch.delenv("SPARKONCE_FAILPOINTS", raising=False)
    failpoints.reset()


@pytest.fixture
def started() -> Iterator[list[ForkServerProcess]]:
    """Processes that are killed when the test ends, whatever state they are in."""
    processes: list[ForkServerProcess] = []
    yield processes
    for process in processes:
        process.kill()
        process.join()
        process.close()
