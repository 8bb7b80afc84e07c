"""`job.stream` into outputs of each kind: every batch once, a stream bound to its checkpoint, and one sentence for whatever does not
fit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from driver.streamed import (
    BATCHES,
    COMMITS,
    KINDS,
    LIVES,
    Dies,
    begin,
    checkpoints,
    dying,
    each_kind,
    kind,
    next_attempt,
    output,
    rows,
    settled,
    source,
)
from harness import iceberg_tables
from harness.arrow_stage import table_of
from harness.granted import Granted, granted
from harness.stream_source import Source
from sparkonce import failpoints
from sparkonce.attempt.decide import Finalize
from sparkonce.attempt.outcome import succeeded
from sparkonce.attempt.probe import probe
from sparkonce.blocking import run
from sparkonce.errors import AttemptEnded, Fenced
from sparkonce.local.notebook import Replayed
from sparkonce.model.record import Outcome, Verdict
from sparkonce.sink import stream
from sparkonce.sink.protocol import AlreadyCommitted, Evidence, FencedOff, StreamPart
from sparkonce.sink.slotlog.sink import digest_of
from sparkonce.sink.slotlog.snapshot import Table
from sparkonce.sink.stream import mark, place

__all__ = ["begin", "checkpoints", "kind"]

pytest_generate_tests = each_kind


def test_every_batch_is_one_commit_and_the_end_has_the_totals(begin: Callable[..., Granted]) -> None:
    """Three batches: every row once and the totals at the end; settling says All, and the probe Present."""
    attempt = begin()

    done = attempt.job().stream(source()).write("orders")

    assert (done.rows, done.batches, done.last_batch, done.fresh) == (6, 3, 2, True)
    assert rows(attempt) == [1, 2, 3, 4, 5, 6]
    found = settled(attempt)
    assert found.verdict is Verdict.ALL
    end = found.slots["orders"]
    assert end is not None
    assert (mark(end).part, mark(end).rows) == (StreamPart.END, 6)
    sinks = list(attempt.sinks().values())
    result = succeeded(attempt.record, Finalize(Outcome.SUCCEEDED, None, ""), found, sinks=sinks, reports=[], now=1.0)
    assert (result.outputs[0].rows, result.outputs[0].kind) == (6, sinks[0].kind)
    assert run(probe(attempt.record, result, sinks)) == {"orders": Evidence.PRESENT}


def test_the_slot_log_has_a_slot_per_part(tmp_path: Path) -> None:
    """On disk there are an opening, three batches and an end, with numbers that sort."""
    attempt = granted(tmp_path, "orders")
    attempt.job().stream(source()).write("orders")
    places = sorted(path.parent.name[-3:] for path in (tmp_path / "orders").glob("_idem/*/*.json"))
    assert places == ["-b0", "-b1", "-b2", "-b3", "-g1"]


def test_the_result_of_a_stream_has_the_totals_and_says_what_it_rests_on(tmp_path: Path) -> None:
    """The result has rows, bytes and files of all batches, of any driver; the evidence names the last batch, and the digest is the
    end's."""
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
    """In a notebook whose key has its result no query starts, and the recorded totals are returned; single batches are not recorded."""
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


def test_a_batch_that_is_delivered_again_is_skipped_without_running(begin: Callable[..., Granted]) -> None:
    """A batch was committed but not recorded by Spark: the next attempt does not run it again, and continues with the next batch."""
    attempt = begin()
    dying(attempt, 1, committed=True)
    next_attempt(attempt)
    called: list[int] = []

    def write(batch: Any, frame: Any) -> None:
        called.append(batch.number)
        batch.write(frame, "orders")

    done = attempt.job().stream(source()).foreach_batch(write)

    assert called == [2]
    assert (done["orders"].rows, rows(attempt)) == (6, [1, 2, 3, 4, 5, 6])


def test_a_stream_that_lost_its_driver_is_some_and_a_cancel_ends_it(begin: Callable[..., Granted]) -> None:
    """Without a cancellation the verdict is Some, and another attempt may continue. With one, the end is written after the last batch, and
    the verdict is All and stays so."""
    attempt = begin()
    dying(attempt, 2)

    found = settled(attempt)
    assert found.verdict is Verdict.SOME
    assert "a stream without its end: orders" in found.note
    ended = settled(attempt, end=True)

    assert ended.verdict is Verdict.ALL
    told = mark(ended.slots["orders"])  # type: ignore[arg-type]  # ALL: there is one
    assert (told.part, told.batches, told.rows, told.last_batch) == (StreamPart.END, 2, 5, 1)
    assert settled(attempt) == ended
    assert attempt.job().stream(source()).write("orders").fresh is False
    assert rows(attempt) == [1, 2, 3, 4, 5]


def test_a_stream_without_a_batch_is_none_even_when_it_was_opened(begin: Callable[..., Granted]) -> None:
    """An opening is no effect: the verdict is None, also after a cancellation, and the first batch can never be committed afterwards."""
    attempt = begin()
    dying(attempt, 0)

    assert settled(attempt, end=True).verdict is Verdict.NONE
    assert settled(attempt).verdict is Verdict.NONE
    with pytest.raises(Fenced, match=r"attempt 1 of load-may can commit nothing more to orders.* taken over by owner"):
        attempt.job().stream(source()).write("orders")
    assert rows(attempt) == []


def test_a_query_without_rows_is_a_result_without_rows(begin: Callable[..., Granted], kind: str) -> None:
    """Opened and ended without a batch: All with no rows; the rows of a later key find a table that accepts their columns."""
    attempt = begin()
    empty: Any = Source([])
    done = attempt.job().stream(empty).write("orders")
    assert (done.rows, done.batches, done.last_batch) == (0, 0, None)
    assert settled(attempt).verdict is Verdict.ALL
    if kind == "slotLog":
        (shown,) = Table(attempt.folder / "orders").slots()
        assert '"n"' in shown.data_schema
    other = begin(idempotencyKey="other")
    other.job().stream(source()).write("orders")
    assert rows(other) == [1, 2, 3, 4, 5, 6]


def test_a_stream_that_has_its_end_is_not_run_again(begin: Callable[..., Granted]) -> None:
    """After a driver died after the end, the next attempt starts no query and returns what is recorded."""
    attempt = begin()
    attempt.job().stream(source()).write("orders")
    attempt.update(attempt=2, nonce="nonce-2")
    never = source()

    done = attempt.job().stream(never).write("orders")

    assert (done.rows, done.batches, done.fresh) == (6, 3, False)
    assert never.queries == []


def test_a_stream_that_was_ended_takes_no_batch(begin: Callable[..., Granted]) -> None:
    """A driver lives on after a cancellation wrote the end: its next batch is refused, and the result stays."""
    attempt = begin()

    def cancelled(batch: Any, frame: Any) -> None:
        if batch.number == 1:
            settled(attempt, end=True)
        batch.write(frame, "orders")

    with pytest.raises((AttemptEnded, Fenced)):
        attempt.job().stream(source()).foreach_batch(cancelled)

    assert rows(attempt) == [1, 2]
    assert settled(attempt).verdict is Verdict.ALL
    assert list(attempt.folder.glob("**/*-b1/**/*.parquet")) == []


def test_an_attempt_that_was_taken_over_commits_nothing_more(begin: Callable[..., Granted]) -> None:
    """An attempt is taken over in the middle of a batch by one that commits that batch: the zombie is refused, and its rows are deleted."""
    attempt = begin()
    zombie = attempt.job()

    def overtaken(batch: Any, frame: Any) -> None:
        if batch.number == 1:
            next_attempt(attempt)
            attempt.job().stream(source()).write("orders")
        batch.write(frame, "orders")

    with pytest.raises((AttemptEnded, Fenced)):
        zombie.stream(source()).foreach_batch(overtaken)

    assert rows(attempt) == [1, 2, 3, 4, 5, 6]
    assert len({file.parent for file in attempt.folder.glob("**/*-b*/*/*.parquet")}) == 3


def test_an_attempt_that_was_taken_over_commits_no_batch_that_was_to_come(begin: Callable[..., Granted]) -> None:
    """An attempt is taken over in the middle of batch 1 by one that dies after batch 1. The zombie is refused at batch 1; a second driver
    of it, which starts over, is refused at batch 2, where nothing was fenced."""
    attempt = begin()
    zombie, late = attempt.job(), attempt.job()

    def overtaken(batch: Any, frame: Any) -> None:
        if batch.number == 1:
            next_attempt(attempt)
            dying(attempt, 1, committed=True)
        batch.write(frame, "orders")

    with pytest.raises(Fenced, match="can commit nothing more to orders"):
        zombie.stream(source()).foreach_batch(overtaken)
    with pytest.raises(Fenced, match="attempt 1 of load-may can commit nothing more to orders"):
        late.stream(source()).write("orders")

    assert rows(attempt) == [1, 2, 3, 4, 5]
    assert settled(attempt).verdict is Verdict.SOME


def test_a_zombie_that_begins_late_is_refused_in_an_open_place(begin: Callable[..., Granted]) -> None:
    """An attempt is taken over before its first read: nothing is closed against it at the next batch, but the batch before belongs to a
    later attempt."""
    attempt = begin()
    zombie = attempt.job()
    next_attempt(attempt)
    dying(attempt, 2)

    with pytest.raises(
        Fenced, match=r"attempt 1 of load-may can commit nothing more to orders: the stream was taken over by attempt 2"
    ):
        zombie.stream(source()).write("orders")

    assert list((attempt.folder / "orders").glob("_idem/*-b2/*")) == []
    assert rows(attempt) == [1, 2, 3, 4, 5]


def test_a_late_batch_of_a_lower_token_is_refused_at_the_table(begin: Callable[..., Granted], kind: str) -> None:
    """A frozen writer that sends its staged batch after a settle is fenced. After its successor continued it is fenced, too; a Delta table
    answers with the successor's batch."""
    attempt = begin()
    dying(attempt, 1)
    sink: Any = attempt.sinks()["orders"]
    key = attempt.key("orders")
    opening = run(sink.find(key))
    chain = run(stream.walk(sink, key, opening))
    assert chain.batches == 1
    staged = sink.stage(table_of(30), place(key, 1), 1, fingerprint=attempt.record.fingerprint)
    late = stream.batch_of(chain, 1, staged, plan="p")
    settled(attempt)
    assert isinstance(run(stream.commit(sink, key, chain, late)), FencedOff)
    next_attempt(attempt)
    dying(attempt, 1, committed=True)
    decided = run(stream.commit(sink, key, chain, late))
    assert (type(decided), decided.slot.token) == ((AlreadyCommitted, 2) if kind == "delta" else (FencedOff, 1))
    assert rows(attempt) == [1, 2, 3, 4, 5]


def test_a_lost_reply_at_a_batchs_commit_is_looked_up(
    begin: Callable[..., Granted], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit took effect and its reply was lost: the batch is there once, and the stream continues in the same attempt."""
    attempt = begin()
    monkeypatch.setenv("SPARKONCE_FAILPOINTS", f"{COMMITS[kind]}.after=2*off->1*raise->off")
    failpoints.reset()
    try:
        done = attempt.job().stream(source()).write("orders")
    finally:
        monkeypatch.delenv("SPARKONCE_FAILPOINTS")
        failpoints.reset()
    assert (done.rows, done.batches, rows(attempt)) == (6, 3, [1, 2, 3, 4, 5, 6])


def test_twins_of_one_token_write_a_batch_once(begin: Callable[..., Granted]) -> None:
    """Two drivers have one assignment: the second finds the first one's batch and continues after it."""
    attempt = begin()
    twin = attempt.job()

    def beside(batch: Any, frame: Any) -> None:
        if batch.number == 1:
            with contextlib.suppress(Dies):
                dying(attempt, 1, committed=True)
        batch.write(frame, "orders")

    done = twin.stream(source()).foreach_batch(beside)["orders"]

    assert (done.rows, rows(attempt)) == (6, [1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize("kind", ["delta", "iceberg"], indirect=True)
def test_a_rerun_replaces_the_stream_with_its_first_batch(begin: Callable[..., Granted]) -> None:
    """Generation 2 of a table removes all batches of generation 1 in the commit of its first batch; each later batch is added once. A slot
    log is replaced at the end: `test_the_probe_of_a_slot_log_knows_the_digest_of_its_end`."""
    attempt = begin()
    attempt.job().stream(source()).write("orders")
    (end,) = settled(attempt).slots.values()
    assert end is not None
    sink, key = attempt.sinks()["orders"], attempt.key("orders")
    attempt.record = attempt.record.changed(generation=2)
    dying(attempt, 0, channel=LIVES)
    assert rows(attempt) == [1, 2, 3, 4, 5, 6]
    dying(attempt, 0, committed=True, channel=LIVES)
    assert rows(attempt) == [1, 2]
    assert run(sink.probe(key, None)) is Evidence.REPLACED

    attempt.job(channel=LIVES).stream(source(*BATCHES[:2])).write("orders")

    assert rows(attempt) == [1, 2, 3, 4, 5]
    attempt.record = attempt.record.changed(generation=3)
    attempt.job(channel=LIVES).stream(source([7], [8])).write("orders")
    assert rows(attempt) == [7, 8]


def test_a_rerun_that_ends_without_a_batch_empties_the_table(begin: Callable[..., Granted]) -> None:
    """Its end slot represents it, and replaces the earlier rows with none."""
    attempt = begin()
    attempt.job().stream(source()).write("orders")
    attempt.record = attempt.record.changed(generation=2)
    empty: Any = Source([])
    attempt.job(channel=LIVES).stream(empty).write("orders")
    assert rows(attempt) == []


def test_appending_streams_are_all_seen(begin: Callable[..., Granted]) -> None:
    """With `onRerun: Append` the batches of both generations stay."""
    attempt = begin(on_rerun="Append")
    attempt.job().stream(source([1], [2])).write("orders")
    attempt.record = attempt.record.changed(generation=2)
    attempt.job(channel=LIVES).stream(source([3], [4])).write("orders", restart=True)
    assert rows(attempt) == [1, 2, 3, 4]


def test_several_outputs_have_every_batch_once(begin: Callable[..., Granted]) -> None:
    """A driver died between two outputs of a batch: the next one writes only the missing output. A batch that omits an output has no rows
    there."""
    attempt = begin("orders", "totals")

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


def test_one_stream_writes_all_three_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot log, a Delta and an Iceberg table get the same batches, and one end each."""
    for name, value in iceberg_tables.sql_catalog(tmp_path).items():
        monkeypatch.setenv(name, value)
    attempt = granted(tmp_path, outputs=[output(kind, kind.lower()) for kind in KINDS])
    names = [kind.lower() for kind in KINDS]

    def write(batch: Any, frame: Any) -> None:
        for name in names:
            batch.write(frame, name)

    done = attempt.job().stream(source()).foreach_batch(write)

    assert [(each.batches, each.rows) for each in done.values()] == [(3, 6)] * 3
    assert [rows(attempt, name) for name in names] == [[1, 2, 3, 4, 5, 6]] * 3
    assert settled(attempt).verdict is Verdict.ALL


def test_the_sweep_keeps_what_the_batches_hold(begin: Callable[..., Granted]) -> None:
    """Folders of batches that lost to another commit, or came after the end, are deleted; every committed row stays."""
    attempt = begin()
    dying(attempt, 1, committed=True)
    sink, key = attempt.sinks()["orders"], attempt.key("orders")
    for number in (0, 1, 2):
        sink.stage(table_of(9), place(key, number), 1, fingerprint="f")
    settled(attempt, end=True)

    assert run(sink.sweep(key)).folders == 3
    assert rows(attempt) == [1, 2, 3, 4, 5]


def test_the_probe_of_a_stream_looks_at_all_its_batches(begin: Callable[..., Granted]) -> None:
    """The result is gone if one file of one batch is, or if the digest is not the end's."""
    attempt = begin()
    attempt.job().stream(source()).write("orders")
    sink, key = attempt.sinks()["orders"], attempt.key("orders")
    assert run(sink.probe(key, None)) is Evidence.PRESENT
    assert run(sink.probe(key, "another")) is Evidence.GONE
    (lost, *_) = sorted(attempt.folder.glob("**/*-b1/*/*.parquet"))
    lost.unlink()
    assert run(sink.probe(key, None)).verdict is Evidence.GONE


def test_the_probe_of_a_slot_log_knows_the_digest_of_its_end(tmp_path: Path) -> None:
    """Present with its end and all files; gone if one file of one batch is; replaced only once a later generation has its end."""
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


def test_the_inventory_has_every_part_of_a_stream(begin: Callable[..., Granted]) -> None:
    """An opening, three batches and an end are one effect each; nothing is unreadable, and the live files are those that they name."""
    attempt = begin()
    attempt.job().stream(source()).write("orders")
    found = run(attempt.sinks()["orders"].inventory())
    parts = sorted(str(mark(each.slot).part) for each in found.effects)
    assert parts == ["batch", "batch", "batch", "end", "opening"]
    assert found.unreadable == ()
    assert {file.path for each in found.effects for file in each.files if file.rows} <= set(found.live)
    assert not any(folder.unreachable for folder in found.staged)


def test_the_heartbeat_reports_the_rows_so_far(tmp_path: Path) -> None:
    """Rows of earlier attempts are counted; a batch that was skipped is not counted twice."""
    attempt = granted(tmp_path, "orders")
    dying(attempt, 1, committed=True)
    next_attempt(attempt)
    job = attempt.job()

    job.stream(source()).write("orders")

    assert job.heartbeat.progress() == {"rows": 6}


def test_an_attempt_that_is_over_stops_its_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that waits for rows commits nothing and so would not notice: the heartbeat's answer stops it, and no end is written."""
    monkeypatch.setattr("sparkonce.driver.stream.POLL", 0.01)
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
