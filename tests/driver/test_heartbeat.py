"""The attempt lease: a thread renews it, a missing answer never ends the attempt, and the answer that the attempt is over is noted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.arrow_stage import table_of
from harness.eventually import assert_eventually
from harness.granted import Granted, granted
from harness.patience import stretched
from sparkonce.blocking import run
from sparkonce.driver.channel import DirectChannel
from sparkonce.driver.context import Job
from sparkonce.errors import AttemptEnded, StoreUnavailable
from sparkonce.model.record import LINGERS

PATIENCE = 10  # seconds; heartbeats are a hundredth of a second apart


class Scripted(DirectChannel):
    """Calls `script` before each renewal; it may raise."""

    def __init__(self, attempt: Granted, script: Callable[[], object]) -> None:
        super().__init__(attempt.store, attempt.assignment)
        self.script, self.beats = script, 0

    def renew(self, progress: Mapping[str, Any]) -> bool:
        self.beats += 1
        self.script()
        return super().renew(progress)


@contextmanager
def beating(attempt: Granted, script: Callable[[], object] = lambda: None) -> Iterator[tuple[Job, Scripted]]:
    channel = Scripted(attempt, script)
    job = Job(attempt.assignment, attempt.sinks(), channel, interval=0.01)
    job.heartbeat.start()
    try:
        yield job, channel
    finally:
        job.heartbeat.stop()
        job.heartbeat._thread.join(stretched(PATIENCE))
        assert not job.heartbeat._thread.is_alive()


def test_the_attempt_is_touched_with_the_rows_committed_so_far(tmp_path: Path) -> None:
    """After a write the driver's heartbeat carries the number of its rows."""
    attempt = granted(tmp_path, "orders")

    def progress() -> object:
        beats = run(attempt.store.beats(attempt.record.address, 1))
        return (1, "driver") in beats and beats[1, "driver"].progress["rows"] == 3

    with beating(attempt) as (job, _):
        job.write(table_of(1, 2, 3), "orders")
        assert_eventually(progress, PATIENCE)


def test_an_answer_that_the_attempt_is_over_ends_the_next_write(tmp_path: Path) -> None:
    """After the next attempt was granted a write raises AttemptEnded and stages nothing; the thread sends no more heartbeats."""
    attempt = granted(tmp_path, "orders")
    with beating(attempt) as (job, channel):
        attempt.update(attempt=2, nonce="nonce-2")
        assert_eventually(lambda: job.heartbeat.over, PATIENCE)
        with pytest.raises(AttemptEnded):
            job.write(table_of(1), "orders")
        assert_eventually(lambda: not job.heartbeat._thread.is_alive(), PATIENCE)
        asked = channel.beats
    assert (channel.beats, attempt.staged("orders")) == (asked, [])


@pytest.mark.parametrize("error", [StoreUnavailable("no answer"), RuntimeError("a defect of a store")])
def test_silence_is_no_answer(tmp_path: Path, error: Exception) -> None:
    """However the store fails, the attempt continues and the thread lives: heartbeats resume when the store answers."""
    attempt = granted(tmp_path, "orders")
    lost = [error] * 5

    def fails() -> None:
        if lost:
            raise lost.pop()

    with beating(attempt, fails) as (job, channel):
        assert_eventually(lambda: not lost and channel.beats > 5, PATIENCE)
        assert not job.heartbeat.over
        assert job.write(table_of(1), "orders").fresh


def beats_said(attempt: Granted) -> Mapping[str, Any]:
    beats = run(attempt.store.beats(attempt.record.address, attempt.record.generation))
    return beats[attempt.record.attempt, "driver"].progress if beats else {}


def test_the_last_beat_says_that_nothing_is_left_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sent when Python exits, after the program has ended, since what may remain of the process (a JVM) sends no more heartbeats. It
    does not say so before every output is committed, nor while the program runs."""
    attempt = granted(tmp_path, "orders", "totals")
    job = attempt.job()
    job.write(table_of(1), "orders")
    monkeypatch.setattr(threading.main_thread(), "is_alive", lambda: False)
    job.last_beat()
    assert LINGERS not in beats_said(attempt)
    monkeypatch.undo()
    job.write(table_of(1), "totals")
    job.last_beat()
    assert LINGERS not in beats_said(attempt)
    monkeypatch.setattr(threading.main_thread(), "is_alive", lambda: False)
    job.last_beat()
    assert 0 <= beats_said(attempt)[LINGERS] < PATIENCE


def test_a_report_under_way_is_something_left_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the ledger takes to store a report, heartbeats meanwhile say that the driver was active just now."""
    attempt = granted(tmp_path, "orders")
    said: list[float] = []

    class Slow(DirectChannel):
        def report(self, *given: Any, **named: Any) -> bool:
            clock.at += 500.0
            job.heartbeat.beat()
            said.append(beats_said(attempt)[LINGERS])
            return super().report(*given, **named)

    clock = SimpleNamespace(at=1000.0)
    monkeypatch.setattr("sparkonce.driver.context.time", SimpleNamespace(monotonic=lambda: clock.at))
    monkeypatch.setattr(threading.main_thread(), "is_alive", lambda: False)
    job = attempt.job(channel=Slow(attempt.store, attempt.assignment))
    job.write(table_of(1), "orders")
    clock.at += 30.0
    job.heartbeat.beat()
    assert beats_said(attempt)[LINGERS] == 30.0
    job.result(rows=1)
    job.heartbeat.beat()
    assert (said, beats_said(attempt)[LINGERS]) == ([0.0], 0.0)
