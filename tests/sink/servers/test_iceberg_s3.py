"""An Iceberg table on an S3-compatible server: data, slots and metadata go through the catalog's own file access."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from harness import effort, iceberg_tables
from harness.arrow_stage import table_of
from harness.iceberg_contest import IcebergContest
from harness.iceberg_tables import CATALOG, opened, rows, sql_catalog
from harness.store_servers import ACCESS, SECRET, StoreServer
from sparkonce.blocking import run
from sparkonce.errors import OutputUnavailable
from sparkonce.sink.iceberg.objects import objects_at
from sparkonce.sink.protocol import Committed, Evidence, FencedOff, SinkKey, SlotState

PREFIX = f"PYICEBERG_CATALOG__{CATALOG.upper()}__"
KEYS, PROCESSES = 12, 4


def environment_of(server: StoreServer, folder: Path) -> dict[str, str]:
    """A SQL catalog in a folder, whose warehouse is on the server."""
    return {
        **server.environment,
        **sql_catalog(folder),
        f"{PREFIX}WAREHOUSE": server.url(folder.name),
        f"{PREFIX}S3__ENDPOINT": f"http://{server.address}",
        f"{PREFIX}S3__ACCESS_KEY_ID": ACCESS,
        f"{PREFIX}S3__SECRET_ACCESS_KEY": SECRET,
        f"{PREFIX}S3__REGION": "us-east-1",
    }


@pytest.fixture
def lake(s3_server: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of that warehouse, in this process's environment."""
    settings = environment_of(s3_server, tmp_path)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return settings[f"{PREFIX}WAREHOUSE"]


def test_a_table_on_s3_goes_through_all_verbs(lake: str, key: SinkKey) -> None:
    """Commit, find, probe, fence, replace, abort, sweep and inventory work with `s3://` in the metadata and `s3a://` for Spark."""
    sink = opened()
    first = sink.stage(table_of(1, 2), key, 1, fingerprint="f")
    assert run(sink.commit(key, first)) == Committed(first)
    assert rows() == [1, 2]
    assert run(opened().find(key)) == first
    assert run(sink.probe(key, None)) is Evidence.PRESENT
    second = key.model_copy(update={"generation": 2})
    late, next_one = (sink.stage(table_of(token), second, token, fingerprint="f") for token in (1, 2))
    assert run(sink.fence(second, 2, fingerprint="f", by="settle")) is None
    assert isinstance(run(sink.commit(second, late)), FencedOff)
    assert run(sink.commit(second, next_one)) == Committed(next_one)
    assert rows() == [2]
    assert run(sink.probe(key, None)) is Evidence.REPLACED
    assert run(sink.sweep(second)).folders == 1
    found = run(sink.inventory())
    assert {each.slot.sink_key for each in found.effects} == {str(key), str(second)}
    assert set(found.live) == {file.path for file in next_one.files if file.rows}
    third = key.model_copy(update={"generation": 3})
    assert run(sink.abort(third, sink.stage(table_of(9), third, 1, fingerprint="f"))).state is SlotState.CLOSED
    assert all(
        each.file.file_path.startswith(f"{lake}/sales/orders/data/so-")
        for each in iceberg_tables.table().scan().plan_files()
    )


def test_objects_of_a_table_on_s3(lake: str, s3_server: StoreServer) -> None:
    """Every verb of `Objects`: an object is created once, read whole and from its end, listed and deleted; a missing one is not an
    error."""
    catalog = iceberg_tables.catalog()
    catalog.create_namespace("sales")
    table = catalog.create_table(iceberg_tables.TABLE, schema=iceberg_tables.NUMBERS)
    place = objects_at(table.location(), table.io, durable=True)
    assert place.where("a/b").startswith("s3a://")
    assert run(place.get("a/b")) is None
    assert run(place.tail("a/b", 3)) is None
    assert run(place.list("a")) == ()
    assert run(place.folders("a")) == ()
    assert [run(place.create("a/b", data)) for data in (b"12345", b"x")] == [True, False]
    run(place.create("a/c/d", b"1"))
    assert run(place.get("a/b")) == b"12345"
    tail = run(place.tail("a/b", 3))
    assert tail is not None and (tail.data, tail.bytes) == (b"345", 5)
    assert [(each.path, each.bytes) for each in run(place.list("a"))] == [("a/b", 5), ("a/c/d", 1)]
    assert run(place.folders("a")) == ("a/c",)
    run(place.delete("a/b"))
    run(place.delete("a/b"))
    run(place.delete_folder("a"))
    run(place.delete_folder("a"))
    assert run(place.list("a")) == ()


def test_a_store_that_does_not_answer_is_unavailable(lake: str, key: SinkKey, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog answers and the store does not: the outcome is unknown, said in one sentence."""
    sink = opened()
    slot = sink.stage(table_of(1), key, 1, fingerprint="f")
    assert run(sink.commit(key, slot)) == Committed(slot)
    monkeypatch.setenv(f"{PREFIX}S3__ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv(f"{PREFIX}S3__CONNECT_TIMEOUT", "1")
    with pytest.raises(OutputUnavailable, match="lake"):
        run(opened().find(key))


def test_many_processes_race(
    lake: str, s3_server: StoreServer, tmp_path: Path, started: list[ForkServerProcess], say: Callable[[str], None]
) -> None:
    """The races of the SQL catalog with the warehouse on the server: each key has at most one commit, no process got another one as answer,
    early answers are still true at the end, and the table has each committed row once."""
    seed = effort.seed("iceberg s3")
    say(f"SEED={effort.base()}")
    environment = environment_of(s3_server, tmp_path)
    contest = IcebergContest(tmp_path, "", started, seed=seed, keys=KEYS, processes=PROCESSES, environment=environment)
    rare = contest.run({"died": 2, "freeze": 1, "Committed": 1, "sink.iceberg.commit.before": 1})
    outcome, hits = contest.judge(), contest.hits()
    say(f"{dict(contest.faults)} {dict(outcome)} {dict(hits)}; rare: {rare}")
