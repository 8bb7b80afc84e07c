"""Streams of a granted attempt into outputs of each kind: a source without a JVM, drivers that die in a batch, settling, and what other
readers see."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyarrow import parquet

from harness import effort, iceberg_tables
from harness.delta_stage import numbers_in
from harness.granted import Granted, granted
from harness.stream_source import Source, installed
from sparkonce.blocking import run
from sparkonce.model.record import Settling, Why
from sparkonce.sink.slotlog.snapshot import Table
from sparkonce.sink.transaction import Settlement, settle

BATCHES = [[1, 2], [3, 4, 5], [6]]
KINDS = ("slotLog", "delta", "iceberg")
COMMITS = {"slotLog": "sink.slots.create", "delta": "sink.delta.commit", "iceberg": "sink.iceberg.commit"}
"""The step that makes a batch visible: its failpoints without `.before` and `.after`."""


@pytest.fixture(autouse=True)
def checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)


def source(*batches: list[int], **options: Any) -> Any:
    return Source(batches or BATCHES, **options)


def each_kind(metafunc: pytest.Metafunc) -> None:
    """As a module's `pytest_generate_tests`: each test on outputs of all kinds, unless it names its own."""
    _on(KINDS, metafunc)


def a_kind(metafunc: pytest.Metafunc) -> None:
    """The same, but in the gate each test on outputs of one kind (`effort.rotated`)."""
    _on(effort.rotated(KINDS, metafunc.function.__name__), metafunc)


def _on(kinds: Sequence[str], metafunc: pytest.Metafunc) -> None:
    named = (mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "kind" in metafunc.fixturenames and "kind" not in named:
        metafunc.parametrize("kind", kinds, indirect=True)


@pytest.fixture
def kind(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kind of the output; Iceberg's catalog is a file in the test's folder."""
    for name, value in iceberg_tables.sql_catalog(tmp_path).items():
        monkeypatch.setenv(name, value)
    return str(request.param)


@pytest.fixture
def begin(kind: str, tmp_path: Path) -> Callable[..., Granted]:
    """Grants an attempt with outputs of this kind."""

    def granted_with(*names: str, on_rerun: str = "Replace", **spec: Any) -> Granted:
        return granted(tmp_path, outputs=[output(kind, name, on_rerun) for name in names or ("orders",)], **spec)

    return granted_with


def output(kind: str, name: str, on_rerun: str = "Replace") -> dict[str, Any]:
    where = {"catalog": iceberg_tables.CATALOG, "table": f"sales.{name}"} if kind == "iceberg" else {"path": name}
    return {"name": name, kind: where, "onRerun": on_rerun}


def rows(attempt: Granted, name: str = "orders") -> list[int]:
    """The rows that another reader of the output gets."""
    match attempt.sinks()[name].kind:
        case "iceberg":
            return _rows_of_iceberg(f"sales.{name}")
        case "delta":
            return _rows_of_delta(attempt.folder / name)
        case _:
            files = Table(attempt.folder / name).files()
            found: list[Any] = [parquet.read_table(file, partitioning=None)["n"].to_pylist() for file in files]
            return sorted(n for each in found for n in each if n is not None)


def _rows_of_iceberg(table: str) -> list[int]:
    if not iceberg_tables.catalog().table_exists(table):
        return []
    return iceberg_tables.rows(name=table) if iceberg_tables.table(table).schema().fields else []


def _rows_of_delta(table: Path) -> list[int]:
    if not (table / "_delta_log").exists() or "n" not in {f.name for f in DeltaTable(str(table)).schema().fields}:
        return []
    return numbers_in(table)


def drop(attempt: Granted, name: str = "orders") -> None:
    """Drops the table as another user would."""
    if attempt.sinks()[name].kind == "iceberg":
        iceberg_tables.catalog().drop_table(f"sales.{name}")
    else:
        shutil.rmtree(attempt.folder / name)


def checkpoint_of(attempt: Granted) -> str:
    """A checkpoint that stays when the table is dropped."""
    return str(attempt.folder / "checkpoint")


def settled(attempt: Granted, *, end: bool = False) -> Settlement:
    return run(
        settle(
            list(attempt.sinks().values()),
            key_hash=attempt.record.key_hash,
            generation=attempt.record.generation,
            attempt=attempt.record.attempt,
            fingerprint=attempt.record.fingerprint,
            intent=None,
            by="owner",
            end=end,
        )
    )


def next_attempt(attempt: Granted) -> None:
    """Settles the attempt and grants the next one."""
    settled(attempt)
    now = attempt.record.attempt
    attempt.update(settling=Settling(attempt=now, why=Why.LOST), attempt=now + 1, nonce=f"nonce-{now + 1}")


class Dies(Exception):
    """The driver's death in the middle of a stream."""


class _Lives:
    """A channel whose ledger says that every generation is running."""

    def renew(self, progress: Any) -> bool:
        return True


LIVES: Any = _Lives()


def dying(attempt: Granted, number: int, *, committed: bool = False, channel: Any = None, **given: Any) -> None:
    """Runs a driver that dies in this batch, before or after its commit."""

    def until(batch: Any, frame: Any) -> None:
        if batch.number == number and not committed:
            raise Dies
        batch.write(frame, "orders")
        if batch.number == number:
            raise Dies

    with pytest.raises(Dies):
        attempt.job(channel=channel).stream(source()).foreach_batch(until, **given)
