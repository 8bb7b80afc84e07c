"""What a stream refuses: a checkpoint that does not fit what is committed, and what streams do not do. One sentence each."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from driver.granted import granted
from driver.streamed import BATCHES, LIVES, checkpoints, dying, next_attempt, rows, settled, source
from harness.arrow_stage import table_of
from sparkonce.driver.stream import Streamed
from sparkonce.errors import InvalidInput, OutputUnsupported, StreamBroken, UndeclaredOutput
from sparkonce.model.output import Expect

__all__ = ["checkpoints"]


def test_a_reset_checkpoint_is_refused(tmp_path: Path) -> None:
    """Another query id under the same key and generation would deliver every row again: refused before any batch, with what to do."""
    attempt = granted(tmp_path, "orders")
    checkpoint = tmp_path / "checkpoint"
    dying(attempt, 1, checkpoint=str(checkpoint))
    next_attempt(attempt)
    shutil.rmtree(checkpoint)

    with pytest.raises(
        StreamBroken,
        match=r"begun with another checkpoint \(query \S+\) than .*give the old checkpoint back, or `sparkonce rerun",
    ):
        attempt.job().stream(source()).write("orders", checkpoint=str(checkpoint))

    assert rows(attempt) == [1, 2]


def test_a_checkpoint_that_was_put_back_is_refused(tmp_path: Path) -> None:
    """The same query id with a batch planned anew: other rows under the number of a committed batch are never skipped in silence."""
    attempt = granted(tmp_path, "orders")
    checkpoint = tmp_path / "checkpoint"
    dying(attempt, 2, checkpoint=str(checkpoint))
    for at in (1, 2):
        (checkpoint / "offsets" / str(at)).unlink()
        (checkpoint / "commits" / str(at)).unlink(missing_ok=True)
    next_attempt(attempt)

    with pytest.raises(StreamBroken, match="plans batch 1 with other rows than those that are committed"):
        attempt.job().stream(source([1, 2], [30], [60])).write("orders", checkpoint=str(checkpoint))

    assert rows(attempt) == [1, 2, 3, 4, 5]


def test_a_batch_that_leaves_a_gap_is_refused(tmp_path: Path) -> None:
    """Something else ran on the checkpoint: the batch between would be missing, so the next one is not committed."""
    attempt = granted(tmp_path, "orders")
    checkpoint = tmp_path / "checkpoint"
    dying(attempt, 1, checkpoint=str(checkpoint))
    (checkpoint / "commits" / "1").touch()
    next_attempt(attempt)

    with pytest.raises(
        StreamBroken, match="delivers batch 2, and output orders waits for batch 1: what lies between would be lost"
    ):
        attempt.job().stream(source()).write("orders", checkpoint=str(checkpoint))

    assert rows(attempt) == [1, 2]


def test_a_key_per_day_goes_on_with_one_checkpoint(tmp_path: Path) -> None:
    """Another key on the checkpoint of a stream that has ended begins after its last batch, which it is not given twice; on one that
    has not ended, or for a table that lacks the rows before, it is refused."""
    checkpoint = str(tmp_path / "checkpoint")
    monday = granted(tmp_path, "orders", idempotencyKey="monday")
    dying(monday, 1, committed=True, checkpoint=checkpoint)
    tuesday = granted(tmp_path, "orders", idempotencyKey="tuesday")
    with pytest.raises(StreamBroken, match=r"uses it and has not ended; end that one, or give a new one"):
        tuesday.job().stream(source()).write("orders", checkpoint=checkpoint)
    settled(monday, end=True)

    done = tuesday.job().stream(source()).write("orders", checkpoint=checkpoint)

    assert (done.rows, done.batches, rows(tuesday)) == (1, 1, [1, 2, 3, 4, 5, 6])
    elsewhere = granted(tmp_path / "b", "orders")
    with pytest.raises(StreamBroken, match="delivers batch 3, and output orders waits for batch 0"):
        elsewhere.job().stream(source(*BATCHES, [7])).write("orders", checkpoint=checkpoint)


def test_a_rerun_does_not_go_on_with_the_old_checkpoint(tmp_path: Path) -> None:
    """It would replace the rows before it by those after: refused; with a checkpoint of its own, the default, it writes all anew."""
    attempt = granted(tmp_path, "orders")
    checkpoint = str(tmp_path / "checkpoint")
    attempt.job().stream(source()).write("orders", checkpoint=checkpoint)
    attempt.record = attempt.record.changed(generation=2)

    with pytest.raises(StreamBroken, match="goes on after generation 1, whose rows a rerun replaces; give a new one"):
        attempt.job(channel=LIVES).stream(source(*BATCHES, [7])).write("orders", checkpoint=checkpoint)
    attempt.job(channel=LIVES).stream(source(*BATCHES, [7])).write("orders")

    assert rows(attempt) == [1, 2, 3, 4, 5, 6, 7]


def test_what_a_stream_does_not_do_is_one_sentence_before_anything_starts(tmp_path: Path) -> None:
    """A table of rows, an odd trigger, an undeclared output, minRows, a second write of an output: nothing is created."""
    attempt = granted(tmp_path, "orders")
    plain: Any = type("Plain", (), {"isStreaming": False})()
    with pytest.raises(InvalidInput, match=r"write this one with job.write\(\)"):
        attempt.job().stream(plain).write("orders")
    with pytest.raises(InvalidInput, match="trigger is"):
        attempt.job().stream(source()).write("orders", trigger={"continuous": "1 second"})
    with pytest.raises(UndeclaredOutput):
        attempt.job().stream(source()).write("order")
    job = attempt.job()
    job._expected = {"orders": Expect(min_rows=1)}
    with pytest.raises(InvalidInput, match=r"spec.outputs\[orders\].expect.minRows counts the rows of one commit"):
        job.stream(source()).write("orders")
    assert list(tmp_path.iterdir()) == []


def test_outputs_of_another_kind_are_refused_by_field(tmp_path: Path) -> None:
    """What is none of the three kinds names its field; nothing is started."""
    attempt = granted(tmp_path, "orders")
    other: Any = type("Other", (), {"kind": "other", "name": "orders"})()
    with pytest.raises(
        OutputUnsupported, match=r"spec.outputs\[orders\].other: a stream writes slotLog, delta and iceberg outputs"
    ):
        attempt.job(sinks={"orders": other}).stream(source()).write("orders")


def test_a_stream_and_a_plain_write_do_not_share_a_generation(tmp_path: Path) -> None:
    """Neither takes the other's slots for its own: one sentence each, and what is committed stays."""
    attempt = granted(tmp_path, "orders", "totals")
    job = attempt.job()
    job.stream(source()).write("orders")
    job.write(table_of(1), "totals")
    attempt.update(attempt=2, nonce="nonce-2")
    job = attempt.job()

    with pytest.raises(InvalidInput, match=r"output orders holds a stream .* write it with job.stream\(\)"):
        job.write(table_of(1), "orders")
    with pytest.raises(InvalidInput, match="output totals holds a plain write"):
        job.stream(source()).write("totals")
    assert (rows(attempt), rows(attempt, "totals")) == ([1, 2, 3, 4, 5, 6], [1])


def test_the_functions_own_error_is_what_its_author_sees(tmp_path: Path) -> None:
    """Not Spark's text about it; the batch is not committed and nothing is ended."""
    attempt = granted(tmp_path, "orders")

    def wrong(batch: Any, frame: Any) -> None:
        batch.write(frame, "order")

    with pytest.raises(InvalidInput, match=r"'order' is not one of this stream \(orders\)"):
        attempt.job().stream(source()).foreach_batch(wrong)

    def twice(batch: Any, frame: Any) -> None:
        batch.write(frame, "orders")
        batch.write(frame, "orders")

    with pytest.raises(InvalidInput, match="'orders' is written twice in batch 0"):
        attempt.job().stream(source()).foreach_batch(twice)
    assert isinstance(attempt.job().stream(source()).write("orders"), Streamed)
    assert rows(attempt) == [1, 2, 3, 4, 5, 6]
