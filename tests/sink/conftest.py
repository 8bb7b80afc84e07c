"""What the tests of the slot log share: a Spark, and a table on either kind of place."""

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
from sparkonce.sink.folder_objects import FolderObjects
from sparkonce.sink.objects import Objects, StoreObjects
from sparkonce.sink.protocol import OnRerun, SinkKey
from sparkonce.sink.slots import SlotLog

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
def sink(table: Path) -> SlotLog:
    """On a local folder, durable; stages pyarrow tables."""
    return SlotLog(FolderObjects(table), name="orders", stage=arrow_stage)


@pytest.fixture
def appending(table: Path) -> SlotLog:
    """The same table, for a job that says `onRerun: Append`."""
    return SlotLog(FolderObjects(table), name="orders", on_rerun=OnRerun.APPEND, stage=arrow_stage)


@pytest.fixture(params=["folder", "store"])
def objects(request: pytest.FixtureRequest, table: Path) -> Objects:
    """Each kind of place: a local folder, and a store that has create-if-absent of its own."""
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
    """Processes that end with the test, whatever their state."""
    processes: list[ForkServerProcess] = []
    yield processes
    for process in processes:
        process.kill()
        process.join()
        process.close()
