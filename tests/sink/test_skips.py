"""`onLate: Skip`: a late key commits that it wrote nothing. What dies or is lost on the way: long/test_skip_faults.py; what follows:
long/test_after_a_skip.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.lakes import Lake, days, lake_of
from harness.late_keys import KEYS, LATE, TODAY, TOMORROW, YESTERDAY, load, sink_of, skipped_once
from sparkonce.audit.tables import of_table
from sparkonce.blocking import run
from sparkonce.errors import LateInSeries
from sparkonce.model.spec import OnLate
from sparkonce.sink.protocol import LATE_INSTEAD, AlreadyCommitted, Committed, Evidence, SinkKey

NEVER: Any = object()
"""A frame that cannot be staged."""


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    return lake_of(request.param, tmp_path, monkeypatch)


def test_a_key_that_is_in_time_writes_its_rows(lake: Lake) -> None:
    """The policy changes nothing for it."""
    load(lake, YESTERDAY, 1)
    slot = load(lake, TODAY, 2)
    assert (lake.rows(), slot.skipped, slot.rows) == ({"mon": [2]}, None, 1)


def test_a_key_that_is_late_before_its_rows_run_is_skipped(lake: Lake) -> None:
    """Nothing is staged, the frame is not touched, and the slot that is committed names the position that barred it."""
    load(lake, TODAY, 2)
    sink = sink_of(lake, YESTERDAY)
    slot = lake.stage(sink, LATE, NEVER)
    assert (slot.skipped, slot.place and slot.place.position) == (TODAY, YESTERDAY)
    assert run(sink.commit(LATE, slot)) == Committed(slot)
    skipped_once(lake)
    found = run(sink.probe(LATE, None))
    assert (found.verdict, found.remedy) == (Evidence.PRESENT, LATE_INSTEAD)
    assert f"position {TODAY} of the series daily had been committed" in found.why
    assert of_table(run(sink.inventory()), now=0.0) == []


def test_a_key_that_becomes_late_after_it_was_staged_is_skipped(lake: Lake) -> None:
    """No commit names its files, and a sweep deletes them."""
    sink = sink_of(lake, YESTERDAY)
    staged = lake.stage(sink, LATE, days(mon=1))
    load(lake, TODAY, 2)
    decided = run(sink.commit(LATE, staged))
    assert isinstance(decided, Committed) and decided.slot.skipped == TODAY
    skipped_once(lake)
    assert run(sink.commit(LATE, staged)) == AlreadyCommitted(decided.slot), "sent again, it is what it was"
    assert run(sink.sweep(LATE)).folders == 1
    skipped_once(lake)


def test_a_skipped_key_does_not_move_the_series(lake: Lake) -> None:
    """Keys between it and the latest position are still late, and today may be written again."""
    load(lake, TODAY, 2)
    load(lake, YESTERDAY, 1)
    with pytest.raises(LateInSeries, match=f"late: {TODAY} has been committed"):
        lake.stage(sink_of(lake, YESTERDAY, OnLate.FAIL), KEYS[TOMORROW], NEVER)
    load(lake, TODAY, 3, key=SinkKey(key_hash="dddd", output="orders", generation=1))
    skipped_once(lake, 3)
