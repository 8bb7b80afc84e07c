"""Streams in an audit: a chain of batches is one effect, and its opening is none."""

from __future__ import annotations

import shutil
from typing import Any

from audit.scene import Scene, kinds, only
from harness.arrow_stage import table_of
from harness.granted import Granted
from sparkonce.audit.findings import Kind
from sparkonce.blocking import run
from sparkonce.model.record import Outcome
from sparkonce.model.spec import OnRerun
from sparkonce.sink import stream
from sparkonce.sink.protocol import Committed, Evidence
from sparkonce.sink.stream import Chain

BATCHES = 4


def opened(job: Granted) -> tuple[Any, Chain]:
    """Commits the stream's opening, but no batch."""
    sink, key = job.sinks()["orders"], job.key("orders")
    opening = stream.opening_of(
        key, 1, query_id="q", first_batch=0, fingerprint=job.record.fingerprint, on_rerun=OnRerun.REPLACE
    )
    assert isinstance(run(sink.commit(key, opening)), Committed)
    return sink, Chain(opening, opening)


def streamed(job: Granted, *, end: bool = True) -> None:
    """Commits four batches of two rows."""
    sink, chain = opened(job)
    key = job.key("orders")
    for number in range(BATCHES):
        place = stream.place(key, number)
        staged = sink.stage(table_of(number * 2, number * 2 + 1), place, 1, fingerprint=job.record.fingerprint)
        slot = stream.batch_of(chain, number, staged, plan=f"plan {number}")
        assert isinstance(run(stream.commit(sink, key, chain, slot)), Committed)
        chain = chain.followed_by(slot)
    if end:
        chain, barred = run(stream.finish(sink, key, chain, 1, by="driver"))
        assert (chain.ended, barred) == (True, None)


def test_a_whole_stream_is_clean(store: Scene) -> None:
    """A stream with its opening and four batches audits clean, whether it still runs or has ended."""
    streamed(store.granted("ended"))
    streamed(store.granted("running"), end=False)
    report = store.audit()
    assert kinds(report) == [Kind.SAME_ROWS] * BATCHES  # both streams wrote equal rows
    assert (report.clean, report.rows) == (True, 4 * BATCHES)


def test_a_missing_batch(store: Scene) -> None:
    """A missing slot in the middle of the chain is reported with the batch's number."""
    job = store.granted("stream")
    streamed(job)
    lost = stream.place(job.key("orders"), 1)
    shutil.rmtree(store.table() / "_idem" / str(lost))
    shutil.rmtree(store.table() / "_data" / str(lost))
    found = only(store.audit())
    assert (found.kind, found.subject) == (Kind.MISSING_BATCH, str(lost))


def test_a_missing_opening(store: Scene) -> None:
    """Without its opening no batch of a stream is found, so its result is gone: reported with and without the ledger; one that cannot be
    read is reported as that."""
    job = store.granted("stream")
    streamed(job)
    key, opening = job.key("orders"), store.slot_file(job)
    before = opening.read_bytes()
    opening.unlink()
    assert run(job.sinks()["orders"].probe(key, None)) is Evidence.GONE
    for ledger in (True, False):
        found = only(store.audit("orders", ledger=ledger))
        assert (found.kind, found.subject) == (Kind.MISSING_BATCH, str(key))
    opening.write_bytes(before[:-9])
    assert kinds(store.audit()) == [Kind.UNREADABLE]
    opening.write_bytes(before)
    assert kinds(store.audit()) == []


def test_an_opening_is_no_effect(store: Scene) -> None:
    """A stream that failed before its first batch has an opening but no effect, so Failed is correct; with a batch it is not."""
    job = store.granted("failed")
    opened(job)
    now = job.now()
    from sparkonce.attempt.decide import Finalize, Observation
    from sparkonce.attempt.outcome import failed
    from sparkonce.model.record import Why

    result = failed(now, Finalize(Outcome.FAILED, Why.EXITED, ""), Observation(seen=None), None, 0.0)
    run(store.store.finalize(now, job.claim, result, retention=1e6))
    assert kinds(store.audit()) == []
    sink, key = job.sinks()["orders"], stream.place(job.key("orders"), 0)
    opening = job.committed("orders")
    assert opening is not None
    staged = sink.stage(table_of(1), key, 1, fingerprint=job.record.fingerprint)
    slot = stream.batch_of(Chain(opening, opening), 0, staged, plan="plan")
    assert isinstance(run(sink.commit(key, slot)), Committed)
    assert kinds(store.audit()) == [Kind.EFFECT_OF_FAILED]
