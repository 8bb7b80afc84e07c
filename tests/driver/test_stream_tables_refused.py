"""What a stream into a Delta or Iceberg table refuses: a checkpoint or a table that does not fit what is committed. One sentence each."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from driver.granted import Granted
from driver.streamed import checkpoints, dying, next_attempt, settled, source
from driver.tabled import begin, checkpoint_of, drop, kind, rows
from harness.arrow_stage import table_of
from sparkonce.blocking import run
from sparkonce.errors import InvalidInput, OutputChanged, StreamBroken
from sparkonce.sink import stream
from sparkonce.sink.protocol import Stuck

__all__ = ["begin", "checkpoints", "kind"]


def test_a_reset_checkpoint_is_refused(begin: Callable[..., Granted]) -> None:
    """Another query id under the same key and generation would deliver every row again: refused before any batch."""
    attempt = begin()
    dying(attempt, 1, checkpoint=checkpoint_of(attempt))
    next_attempt(attempt)
    shutil.rmtree(checkpoint_of(attempt))

    with pytest.raises(
        StreamBroken, match=r"begun with another checkpoint \(query \S+\) than .*give the old checkpoint"
    ):
        attempt.job().stream(source()).write("orders", checkpoint=checkpoint_of(attempt))

    assert rows(attempt) == [1, 2]


def test_a_checkpoint_that_was_put_back_is_refused(begin: Callable[..., Granted]) -> None:
    """The same query id with a batch planned anew: other rows under the number of a committed batch are never skipped in silence."""
    attempt = begin()
    checkpoint = attempt.folder / "checkpoint"
    dying(attempt, 2, checkpoint=str(checkpoint))
    for at in (1, 2):
        (checkpoint / "offsets" / str(at)).unlink()
        (checkpoint / "commits" / str(at)).unlink(missing_ok=True)
    next_attempt(attempt)

    with pytest.raises(StreamBroken, match="plans batch 1 with other rows than those that are committed"):
        attempt.job().stream(source([1, 2], [30], [60])).write("orders", checkpoint=str(checkpoint))

    assert rows(attempt) == [1, 2, 3, 4, 5]


def test_a_key_per_day_goes_on_with_one_checkpoint(begin: Callable[..., Granted]) -> None:
    """Another key on the checkpoint of a stream that has ended begins after its last batch; on one that has not ended it is refused."""
    monday = begin(idempotencyKey="monday")
    checkpoint = checkpoint_of(monday)
    dying(monday, 1, committed=True, checkpoint=checkpoint)
    tuesday = begin(idempotencyKey="tuesday")
    with pytest.raises(StreamBroken, match=r"uses it and has not ended; end that one, or give a new one"):
        tuesday.job().stream(source()).write("orders", checkpoint=checkpoint)
    settled(monday, end=True)

    done = tuesday.job().stream(source()).write("orders", checkpoint=checkpoint)

    assert (done.rows, done.batches, rows(tuesday)) == (1, 1, [1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize("again", [False, True])
def test_a_table_that_was_dropped_under_a_stream_takes_no_batch(begin: Callable[..., Granted], again: bool) -> None:
    """Also where another one was made in its place: the batches before are not in it, so the next one is refused."""
    attempt = begin()
    other = begin(idempotencyKey="other") if again else None

    def write(batch: Any, frame: Any) -> None:
        if batch.number == 1:
            drop(attempt)
            if other is not None:
                other.job().write(table_of(99), "orders")
        batch.write(frame, "orders")

    with pytest.raises(OutputChanged, match=r"dropped|made anew"):
        attempt.job().stream(source()).foreach_batch(write, checkpoint=checkpoint_of(attempt))

    assert rows(attempt) == ([99] if again else [])


def test_a_slot_that_follows_another_table_is_stuck(begin: Callable[..., Granted]) -> None:
    """A batch without rows names no table: the place before it is what binds it."""
    attempt = begin()
    dying(attempt, 1)
    sink: Any = attempt.sinks()["orders"]
    key = attempt.key("orders")
    chain = run(stream.walk(sink, key, run(sink.find(key))))
    drop(attempt)
    begin(idempotencyKey="other").job().write(table_of(99), "orders")
    empty = stream.empty_batch(chain, key, 1, 1, plan="p")
    assert isinstance(run(stream.commit(sink, key, chain, empty)), Stuck)


def test_a_stream_and_a_plain_write_do_not_share_a_generation(begin: Callable[..., Granted]) -> None:
    """Neither takes the other's commits for its own."""
    attempt = begin("orders", "totals")
    job = attempt.job()
    job.stream(source()).write("orders")
    job.write(table_of(1), "totals")
    attempt.update(attempt=2, nonce="nonce-2")
    job = attempt.job()

    with pytest.raises(InvalidInput, match=r"output orders holds a stream .* write it with job.stream\(\)"):
        job.write(table_of(1), "orders")
    with pytest.raises(InvalidInput, match="output totals holds a plain write"):
        job.stream(source()).write("totals")
