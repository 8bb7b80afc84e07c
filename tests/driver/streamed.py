"""Streams of an attempt that was granted: a source without a JVM, drivers that die in a batch, and what was settled."""

from __future__ import annotations

from typing import Any

import pytest
from pyarrow import parquet

from driver.granted import Granted
from harness.stream_source import Source, installed
from sparkonce.blocking import run
from sparkonce.model.record import Settling, Why
from sparkonce.sink.table import Table
from sparkonce.sink.transaction import Settlement, settle

BATCHES = [[1, 2], [3, 4, 5], [6]]


@pytest.fixture(autouse=True)
def checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)


def source(*batches: list[int], **options: bool) -> Any:
    return Source(batches or BATCHES, **options)


def rows(attempt: Granted, output: str = "orders") -> list[int]:
    """As a reader gets them."""
    files = Table(attempt.folder / output).files()
    return sorted(
        n for file in files for n in parquet.read_table(file, partitioning=None)["n"].to_pylist() if n is not None
    )


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
    """Settled, and granted again."""
    settled(attempt)
    now = attempt.record.attempt
    attempt.update(settling=Settling(attempt=now, why=Why.LOST), attempt=now + 1, nonce=f"nonce-{now + 1}")


class Dies(Exception):
    """The driver's end, in the middle of a stream."""


class _Lives:
    """A ledger that knows of every generation."""

    def renew(self, progress: Any) -> bool:
        return True


LIVES: Any = _Lives()


def dying(attempt: Granted, number: int, *, committed: bool = False, channel: Any = None, **given: Any) -> None:
    """A driver that dies in this batch, before or after its commit."""

    def until(batch: Any, frame: Any) -> None:
        if batch.number == number and not committed:
            raise Dies
        batch.write(frame, "orders")
        if batch.number == number:
            raise Dies

    with pytest.raises(Dies):
        attempt.job(channel=channel).stream(source()).foreach_batch(until, **given)
