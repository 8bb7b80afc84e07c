"""Streams that are refused: a checkpoint or table that does not fit the commits, and unsupported calls; each in one sentence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from driver.streamed import (
    BATCHES,
    LIVES,
    a_kind,
    begin,
    checkpoint_of,
    checkpoints,
    drop,
    dying,
    kind,
    next_attempt,
    rows,
    settled,
    source,
)
from harness.arrow_stage import table_of
from harness.granted import Granted, granted
from harness.stream_source import Writer
from sparkonce.blocking import run
from sparkonce.driver.stream import Streamed
from sparkonce.errors import InvalidInput, OutputChanged, OutputUnsupported, StreamBroken, UndeclaredOutput
from sparkonce.model.spec import Expect
from sparkonce.sink import stream
from sparkonce.sink.protocol import Stuck

__all__ = ["begin", "checkpoints", "kind"]

pytest_generate_tests = a_kind


def test_a_reset_checkpoint_is_refused(begin: Callable[..., Granted]) -> None:
    """Another query id under the same key and generation would deliver every row again: refused before any batch, with what to do."""
    attempt = begin()
    checkpoint = attempt.folder / "checkpoint"
    dying(attempt, 1, checkpoint=str(checkpoint))
    next_attempt(attempt)
    shutil.rmtree(checkpoint)

    with pytest.raises(
        StreamBroken,
        match=r"started with another checkpoint \(query \S+\) than .*use the old checkpoint, or `sparkonce rerun",
    ):
        attempt.job().stream(source()).write("orders", checkpoint=str(checkpoint))

    assert rows(attempt) == [1, 2]


def test_a_checkpoint_that_was_put_back_is_refused(begin: Callable[..., Granted]) -> None:
    """The query id is the same, but a batch was planned again: different rows under the number of a committed batch are never skipped
    silently."""
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


def test_a_batch_that_leaves_a_gap_is_refused(begin: Callable[..., Granted]) -> None:
    """Something else used the checkpoint: the batch in between would be missing, so the next one is not committed."""
    attempt = begin()
    checkpoint = attempt.folder / "checkpoint"
    dying(attempt, 1, checkpoint=str(checkpoint))
    (checkpoint / "commits" / "1").touch()
    next_attempt(attempt)

    with pytest.raises(
        StreamBroken, match="delivers batch 2, and output orders expects batch 1: the batches between would be lost"
    ):
        attempt.job().stream(source()).write("orders", checkpoint=str(checkpoint))

    assert rows(attempt) == [1, 2]


def test_a_key_per_day_goes_on_with_one_checkpoint(begin: Callable[..., Granted]) -> None:
    """On the checkpoint of a stream that has ended, another key's stream begins after its last batch, which is not delivered again. If that
    stream has not ended, or the table lacks the rows before, it is refused."""
    monday = begin(idempotencyKey="monday")
    checkpoint = checkpoint_of(monday)
    dying(monday, 1, committed=True, checkpoint=checkpoint)
    tuesday = begin(idempotencyKey="tuesday")
    with pytest.raises(StreamBroken, match=r"uses it and has not ended; end that one, or give a new one"):
        tuesday.job().stream(source()).write("orders", checkpoint=checkpoint)
    settled(monday, end=True)

    done = tuesday.job().stream(source()).write("orders", checkpoint=checkpoint)

    assert (done.rows, done.batches, rows(tuesday)) == (1, 1, [1, 2, 3, 4, 5, 6])
    elsewhere = begin("others")
    with pytest.raises(StreamBroken, match="delivers batch 3, and output others expects batch 0"):
        elsewhere.job().stream(source(*BATCHES, [7])).write("others", checkpoint=checkpoint)


@pytest.mark.parametrize("lost", ["between two attempts", "between two keys", "by another output"])
def test_rows_that_are_done_in_the_checkpoint_and_not_in_the_table_are_missed(
    begin: Callable[..., Granted], lost: str
) -> None:
    """A checkpoint that has delivered everything delivers no batch whose number would show the gap: the stream is refused all the same,
    and does not end without these rows. A rerun with a new checkpoint writes them."""
    attempt, name = begin("orders", "totals"), "totals" if lost == "by another output" else "orders"
    job, checkpoint = attempt.job(), checkpoint_of(attempt)
    job.stream(source()).write("orders", checkpoint=checkpoint)
    if lost != "by another output":
        drop(attempt)
        job = attempt.job()
    if lost == "between two keys":
        attempt = begin("orders", idempotencyKey="tuesday")
        job = attempt.job()

    with pytest.raises(
        StreamBroken,
        match=rf"delivers batch 3, and output {name} expects batch 0: the batches between would be lost; `sparkonce rerun \S+` "
        "with a new checkpoint",
    ):
        job.stream(source()).write(name, checkpoint=checkpoint)

    assert attempt.committed(name) is None
    attempt.record = attempt.record.changed(generation=2)
    attempt.job(channel=LIVES).stream(source()).write(name, checkpoint=f"{checkpoint}-2")
    assert rows(attempt, name) == [1, 2, 3, 4, 5, 6]


def test_a_batch_that_a_twin_commits_before_the_query_starts_is_no_gap(
    begin: Callable[..., Granted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process of the same attempt ends the stream after this one has read the chain: the chain is read again."""
    attempt, twins = begin(), list[Any]()
    checkpoint = checkpoint_of(attempt)
    start = Writer.start

    def later(writer: Any) -> Any:
        if not twins:
            twins.append("begun")
            twins.append(attempt.job().stream(source()).write("orders", checkpoint=checkpoint))
        return start(writer)

    monkeypatch.setattr(Writer, "start", later)
    done = attempt.job().stream(source()).write("orders", checkpoint=checkpoint)
    assert (done.rows, done.batches, rows(attempt)) == (6, 3, [1, 2, 3, 4, 5, 6])


def test_a_rerun_does_not_go_on_with_the_old_checkpoint(begin: Callable[..., Granted]) -> None:
    """A rerun on the old checkpoint would replace all rows by the ones that follow, so it is refused; with a new checkpoint, the default,
    it writes everything again."""
    attempt = begin()
    checkpoint = str(attempt.folder / "checkpoint")
    attempt.job().stream(source()).write("orders", checkpoint=checkpoint)
    attempt.record = attempt.record.changed(generation=2)

    with pytest.raises(StreamBroken, match="goes on after generation 1, whose rows a rerun replaces; give a new one"):
        attempt.job(channel=LIVES).stream(source(*BATCHES, [7])).write("orders", checkpoint=checkpoint)
    attempt.job(channel=LIVES).stream(source(*BATCHES, [7])).write("orders")

    assert rows(attempt) == [1, 2, 3, 4, 5, 6, 7]


def test_a_stream_and_a_plain_write_do_not_share_a_generation(begin: Callable[..., Granted]) -> None:
    """Neither takes the other's slots for its own: each is refused in one sentence, and the committed rows stay."""
    attempt = begin("orders", "totals")
    job = attempt.job()
    job.stream(source()).write("orders")
    job.write(table_of(1), "totals")
    attempt.update(attempt=2, nonce="nonce-2")
    job = attempt.job()

    with pytest.raises(InvalidInput, match=r"output orders holds a stream .* write it with job.stream\(\)"):
        job.write(table_of(1), "orders")
    with pytest.raises(InvalidInput, match="output totals has a plain write"):
        job.stream(source()).write("totals")
    assert (rows(attempt), rows(attempt, "totals")) == ([1, 2, 3, 4, 5, 6], [1])


@pytest.mark.parametrize("kind", ["delta", "iceberg"], indirect=True)
@pytest.mark.parametrize("again", [False, True])
def test_a_table_that_was_dropped_under_a_stream_takes_no_batch(begin: Callable[..., Granted], again: bool) -> None:
    """Even with another table in its place the next batch is refused, since that table lacks the batches before."""
    attempt = begin()
    other = begin(idempotencyKey="other") if again else None

    def write(batch: Any, frame: Any) -> None:
        if batch.number == 1:
            drop(attempt)
            if other is not None:
                other.job().write(table_of(99), "orders")
        batch.write(frame, "orders")

    with pytest.raises(OutputChanged, match=r"dropped|recreated"):
        attempt.job().stream(source()).foreach_batch(write, checkpoint=checkpoint_of(attempt))

    assert rows(attempt) == ([99] if again else [])


@pytest.mark.parametrize("kind", ["delta", "iceberg"], indirect=True)
def test_a_slot_that_follows_another_table_is_stuck(begin: Callable[..., Granted]) -> None:
    """A batch without rows names no table, so the batch before it determines which table it belongs to."""
    attempt = begin()
    dying(attempt, 1)
    sink: Any = attempt.sinks()["orders"]
    key = attempt.key("orders")
    chain = run(stream.walk(sink, key, run(sink.find(key))))
    drop(attempt)
    begin(idempotencyKey="other").job().write(table_of(99), "orders")
    empty = stream.empty_batch(chain, key, 1, 1, plan="p")
    assert isinstance(run(stream.commit(sink, key, chain, empty)), Stuck)


def test_what_a_stream_does_not_do_is_one_sentence_before_anything_starts(tmp_path: Path) -> None:
    """A table of rows, an unsupported trigger, an undeclared output, minRows, a second write of an output: nothing is created."""
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
    """The refusal has the field of the output; nothing is started."""
    attempt = granted(tmp_path, "orders")
    other: Any = type("Other", (), {"kind": "other", "name": "orders"})()
    with pytest.raises(
        OutputUnsupported, match=r"spec.outputs\[orders\].other: a stream writes slotLog, delta and iceberg outputs"
    ):
        attempt.job(sinks={"orders": other}).stream(source()).write("orders")


def test_the_functions_own_error_is_what_its_author_sees(tmp_path: Path) -> None:
    """The author sees the function's own error instead of Spark's message about it; the batch is not committed, and the stream does not
    end."""
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


def test_a_write_that_failed_is_not_passed_over(begin: Callable[..., Granted], monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that logs the error of its write and goes on would leave a batch without its rows: the batch is not committed, and the
    next attempt runs it again."""
    attempt = begin()
    job = attempt.job()
    stage, tried = job._stage, list[int]()

    def once(*given: Any) -> Any:
        tried.append(len(tried))
        if len(tried) == 2:
            raise OSError("the disk is full")
        return stage(*given)

    monkeypatch.setattr(job, "_stage", once)

    def write(batch: Any, frame: Any) -> None:
        with suppress(OSError):
            batch.write(frame, "orders")

    with pytest.raises(
        InvalidInput, match="the write of orders failed in batch 1, and the function went on; let the error"
    ):
        job.stream(source()).foreach_batch(write)
    assert rows(attempt) == [1, 2]
    next_attempt(attempt)
    attempt.job().stream(source()).foreach_batch(write)
    assert rows(attempt) == [1, 2, 3, 4, 5, 6]
