"""`job.stream`: every batch once, a stream bound to its checkpoint, and one sentence for what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from driver.granted import granted
from driver.streamed import BATCHES, LIVES, Dies, checkpoints, dying, next_attempt, rows, settled, source
from harness.arrow_stage import table_of
from harness.stream_source import Source
from sparkonce.blocking import run
from sparkonce.engine.decide import Finalize
from sparkonce.engine.notebook import Replayed
from sparkonce.engine.outcome import succeeded
from sparkonce.engine.probing import probe
from sparkonce.errors import AttemptEnded, Fenced
from sparkonce.model.record import Outcome
from sparkonce.model.result import Verdict
from sparkonce.sink.protocol import Evidence, StreamPart
from sparkonce.sink.slots import digest_of
from sparkonce.sink.stream import mark, place
from sparkonce.sink.table import Table

__all__ = ["checkpoints"]


def test_every_batch_is_one_commit_and_the_end_has_the_totals(tmp_path: Path) -> None:
    """Three batches: an opening, three slots, an end; the result has all rows, and settling says that all is there."""
    attempt = granted(tmp_path, "orders")

    done = attempt.job().stream(source()).write("orders")

    assert (done.rows, done.batches, done.last_batch, done.fresh) == (6, 3, 2, True)
    assert rows(attempt) == [1, 2, 3, 4, 5, 6]
    assert sorted(p.parent.name[-3:] for p in (tmp_path / "orders").glob("_idem/*/*.json")) == [
        "-b0",
        "-b1",
        "-b2",
        "-b3",
        "-g1",
    ]
    found = settled(attempt)
    assert found.verdict is Verdict.ALL
    assert mark(found.slots["orders"]).part is StreamPart.END  # type: ignore[arg-type]  # ALL: there is one
    assert mark(found.slots["orders"]).rows == 6  # type: ignore[arg-type]  # as above


def test_the_result_of_a_stream_has_the_totals_and_says_what_it_rests_on(tmp_path: Path) -> None:
    """Rows, bytes and files of all batches, whoever wrote them; the last batch is named; the digest is the end's."""
    attempt = granted(tmp_path, "orders")
    dying(attempt, 1, committed=True)
    next_attempt(attempt)
    attempt.job().stream(source()).write("orders")
    found = settled(attempt)
    sinks = list(attempt.sinks().values())

    result = succeeded(attempt.record, Finalize(Outcome.SUCCEEDED, None, ""), found, sinks=sinks, reports=[], now=1.0)

    (output,) = result.outputs
    files = Table(tmp_path / "orders").files()
    assert (output.rows, output.files) == (6, len(files))
    assert output.bytes == sum(Path(file).stat().st_size for file in files)
    assert result.evidence == "slots committed by attempt 2; orders: 3 batches of a stream, the last is 2"
    assert run(probe(attempt.record, result, sinks)) == {"orders": Evidence.PRESENT}


def test_a_replayed_stream_answers_from_the_record(tmp_path: Path) -> None:
    """In a notebook whose key has its result: no query, the recorded totals; the batches are not recorded one by one."""
    attempt = granted(tmp_path, "orders")
    attempt.job().stream(source()).write("orders")
    result = succeeded(
        attempt.record,
        Finalize(Outcome.SUCCEEDED, None, ""),
        settled(attempt),
        sinks=list(attempt.sinks().values()),
        reports=[],
        now=1.0,
    )
    replayed = Replayed(attempt.record, result).stream(None)

    done = replayed.write("orders", trigger={"availableNow": True})

    assert (done.rows, done.batches, done.fresh) == (6, None, False)
    assert replayed.foreach_batch(print) == {"orders": done}


def test_a_batch_that_is_delivered_again_is_skipped_without_running(tmp_path: Path) -> None:
    """Committed, and Spark not told: the next attempt is given the batch again, calls nothing for it, and goes on with the one after."""
    attempt = granted(tmp_path, "orders")
    dying(attempt, 1, committed=True)
    next_attempt(attempt)
    called: list[int] = []

    def write(batch: Any, frame: Any) -> None:
        called.append(batch.number)
        batch.write(frame, "orders")

    done = attempt.job().stream(source()).foreach_batch(write)

    assert called == [2]
    assert (done["orders"].rows, rows(attempt)) == (6, [1, 2, 3, 4, 5, 6])


def test_a_stream_that_lost_its_driver_is_some_and_never_failed(tmp_path: Path) -> None:
    """Batches without an end: Some, so that another attempt goes on; with the wish to end: the end is written and it is All."""
    attempt = granted(tmp_path, "orders")
    dying(attempt, 2)

    assert settled(attempt).verdict is Verdict.SOME
    assert "a stream without its end: orders" in settled(attempt).note
    ended = settled(attempt, end=True)

    assert ended.verdict is Verdict.ALL
    told = mark(ended.slots["orders"])  # type: ignore[arg-type]  # ALL: there is one
    assert (told.part, told.batches, told.rows, told.last_batch) == (StreamPart.END, 2, 5, 1)
    assert settled(attempt) == ended


def test_a_stream_without_a_batch_is_none_even_when_it_was_opened(tmp_path: Path) -> None:
    """The opening is no effect: None, also for a cancel, and then the first batch can never come."""
    attempt = granted(tmp_path, "orders")
    dying(attempt, 0)

    assert settled(attempt, end=True).verdict is Verdict.NONE
    assert settled(attempt).verdict is Verdict.NONE
    with pytest.raises(Fenced, match=r"attempt 1 of load-may can commit nothing more to orders.* taken over by owner"):
        attempt.job().stream(source()).write("orders")
    assert rows(attempt) == []


def test_a_query_without_rows_is_a_result_without_rows(tmp_path: Path) -> None:
    """Nothing to read, and it ended by itself: opened and ended, All with no rows, and the table has its columns."""
    attempt = granted(tmp_path, "orders")

    empty: Any = Source([])
    done = attempt.job().stream(empty).write("orders")

    assert (done.rows, done.batches, done.last_batch) == (0, 0, None)
    assert settled(attempt).verdict is Verdict.ALL
    (shown,) = Table(tmp_path / "orders").slots()
    assert '"n"' in shown.data_schema


def test_a_stream_that_has_its_end_is_not_run_again(tmp_path: Path) -> None:
    """A driver that died after the end: the next attempt starts no query and says what is there."""
    attempt = granted(tmp_path, "orders")
    attempt.job().stream(source()).write("orders")
    attempt.update(attempt=2, nonce="nonce-2")
    never = source()

    done = attempt.job().stream(never).write("orders")

    assert (done.rows, done.batches, done.fresh) == (6, 3, False)
    assert never.queries == []


def test_a_stream_that_was_ended_takes_no_batch(tmp_path: Path) -> None:
    """A driver that lives on after a cancel had written the end: its next batch is refused, and the result stays."""
    attempt = granted(tmp_path, "orders")

    def cancelled(batch: Any, frame: Any) -> None:
        if batch.number == 1:
            settled(attempt, end=True)
        batch.write(frame, "orders")

    with pytest.raises((AttemptEnded, Fenced)):
        attempt.job().stream(source()).foreach_batch(cancelled)

    assert rows(attempt) == [1, 2]
    assert settled(attempt).verdict is Verdict.ALL
    assert len(list((tmp_path / "orders").glob("_data/*-b1/*"))) == 0


def test_an_attempt_that_was_taken_over_commits_nothing_more(tmp_path: Path) -> None:
    """Taken over in the middle of a batch by an attempt that commits it: the zombie is refused there, and its rows are gone."""
    attempt = granted(tmp_path, "orders")
    zombie = attempt.job()

    def overtaken(batch: Any, frame: Any) -> None:
        if batch.number == 1:
            next_attempt(attempt)
            attempt.job().stream(source()).write("orders")
        batch.write(frame, "orders")

    with pytest.raises((AttemptEnded, Fenced)):
        zombie.stream(source()).foreach_batch(overtaken)

    assert rows(attempt) == [1, 2, 3, 4, 5, 6]
    assert len(list((tmp_path / "orders").glob("_data/*/*"))) == 3


def test_a_zombie_that_begins_late_is_refused_in_an_open_place(tmp_path: Path) -> None:
    """Taken over before its first look: no slot of the next batch is closed against it, but the batch before is a later attempt's."""
    attempt = granted(tmp_path, "orders")
    zombie = attempt.job()
    next_attempt(attempt)
    dying(attempt, 2)

    with pytest.raises(
        Fenced, match=r"attempt 1 of load-may can commit nothing more to orders: the stream was taken over by attempt 2"
    ):
        zombie.stream(source()).write("orders")

    assert list((tmp_path / "orders").glob("_idem/*-b2/*")) == []
    assert rows(attempt) == [1, 2, 3, 4, 5]


def test_several_outputs_have_every_batch_once(tmp_path: Path) -> None:
    """A driver that died between two outputs of a batch: the next one writes only what is missing; left out means no rows."""
    attempt = granted(tmp_path, "orders", "totals")

    def write(batch: Any, frame: Any) -> None:
        batch.write(frame, "orders")
        if batch.number == 1 and attempt.record.attempt == 1:
            raise Dies
        if batch.number != 0:
            batch.write(table_of(batch.number), "totals")

    with pytest.raises(Dies):
        attempt.job().stream(source()).foreach_batch(write)
    next_attempt(attempt)
    done = attempt.job().stream(source()).foreach_batch(write)

    assert (rows(attempt, "orders"), rows(attempt, "totals")) == ([1, 2, 3, 4, 5, 6], [1, 2])
    assert [(each.batches, each.rows) for each in done.values()] == [(3, 6), (3, 2)]
    assert settled(attempt).verdict is Verdict.ALL


def test_the_probe_of_a_stream_looks_at_all_its_batches(tmp_path: Path) -> None:
    """Present with its end and all files; gone when one file of one batch is; replaced only when a later generation has its end."""
    attempt = granted(tmp_path, "orders")
    attempt.job().stream(source()).write("orders")
    (end,) = settled(attempt).slots.values()
    sink, key = attempt.sinks()["orders"], attempt.key("orders")
    assert end is not None
    assert run(sink.probe(key, digest_of(end))) is Evidence.PRESENT
    assert run(sink.probe(key, "another")) is Evidence.GONE

    attempt.record = attempt.record.changed(generation=2)
    dying(attempt, 1, channel=LIVES)
    assert run(sink.probe(key, digest_of(end))) is Evidence.PRESENT
    assert rows(attempt) == [1, 2, 3, 4, 5, 6]
    attempt.job(channel=LIVES).stream(source(*BATCHES[:2])).write("orders")
    assert run(sink.probe(key, digest_of(end))) is Evidence.REPLACED
    assert rows(attempt) == [1, 2, 3, 4, 5]

    slot = run(sink.find(place(attempt.key("orders"), 0)))
    assert slot is not None
    (tmp_path / "orders" / slot.files[0].path).unlink()
    (end,) = settled(attempt).slots.values()
    assert end is not None
    assert run(sink.probe(attempt.key("orders"), digest_of(end))) is Evidence.GONE


def test_the_heartbeat_reports_the_rows_so_far(tmp_path: Path) -> None:
    """Those of earlier attempts are counted, those that were skipped are not counted twice."""
    attempt = granted(tmp_path, "orders")
    dying(attempt, 1, committed=True)
    next_attempt(attempt)
    job = attempt.job()

    job.stream(source()).write("orders")

    assert job.heartbeat.progress() == {"rows": 6}


def test_the_sweep_keeps_what_the_batches_hold(tmp_path: Path) -> None:
    """Folders of batches that lost, and of a batch that the end came before, go; every committed row stays."""
    attempt = granted(tmp_path, "orders")
    dying(attempt, 1, committed=True)
    sink, key = attempt.sinks()["orders"], attempt.key("orders")
    for number in (0, 1, 2):
        sink.stage(table_of(9), place(key, number), 1, fingerprint="f")
    settled(attempt, end=True)

    swept = run(sink.sweep(key))

    assert swept.folders == 3
    assert rows(attempt) == [1, 2, 3, 4, 5]


def test_an_attempt_that_is_over_stops_its_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that waits for rows commits nothing that would tell it: the heartbeat's answer ends it, and no end is written."""
    monkeypatch.setattr("sparkonce.driver.stream.LOOK", 0.01)
    attempt = granted(tmp_path, "orders")
    job = attempt.job()
    endless = source(endless=True)

    def over(batch: Any, frame: Any) -> None:
        batch.write(frame, "orders")
        job.heartbeat.over = batch.number == 2

    with pytest.raises(AttemptEnded):
        job.stream(endless).foreach_batch(over, trigger={"processingTime": "1 second"})

    assert not endless.queries[0].isActive
    assert settled(attempt).verdict is Verdict.SOME
