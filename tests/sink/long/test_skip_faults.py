"""`onLate: Skip` where drivers die, replies are lost, and several processes skip one key: it is skipped once, and no row changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.lakes import Lake, days, lake_of
from harness.late_keys import LATE, TODAY, TOMORROW, YESTERDAY, commits_of, load, sink_of, skipped_once
from sparkonce import failpoints
from sparkonce.blocking import run
from sparkonce.failpoints import FailpointError
from sparkonce.sink.delta import sink as delta_sink
from sparkonce.sink.iceberg import commit as iceberg_commit
from sparkonce.sink.iceberg import sink as iceberg_sink
from sparkonce.sink.protocol import AlreadyCommitted, Committed, FencedOff

NEVER: Any = object()
"""A frame that cannot be staged."""


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    return lake_of(request.param, tmp_path, monkeypatch)


class Died(BaseException):
    """The process is gone: no handler of the code that runs may act on it."""


@contextmanager
def dying_at(point: str) -> Iterator[None]:
    """Ends what runs inside, the first time that it comes to a failpoint."""

    def hit(name: str) -> None:
        try:
            failpoints.hit(name)
        except FailpointError as error:
            raise Died(point) from error  # which no handler takes for a lost reply

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARKONCE_FAILPOINTS", f"{point}=1*raise")
        failpoints.reset()
        for module in (delta_sink, iceberg_sink, iceberg_commit):
            patch.setattr(module, "hit", hit)
        try:
            yield
        except Died:
            return
        finally:
            patch.undo()
            failpoints.reset()
        pytest.fail(f"it did not come to {point}")


@pytest.mark.parametrize("when", ["before its rows ran", "after they were staged"])
@pytest.mark.parametrize("point", ["sink.skipping", "commit.before", "commit.after"])
def test_a_driver_that_dies_while_it_skips(lake: Lake, point: str, when: str) -> None:
    """Between each pair of writes: the slot, and the commit that names it. The next attempt finds the skip or makes it, and the dead one,
    if it only slept, adds nothing."""
    early = when == "after they were staged"
    sink = sink_of(lake, YESTERDAY)
    frozen = lake.stage(sink, LATE, days(mon=1)) if early else None
    load(lake, TODAY, 2)
    slot = frozen or lake.stage(sink, LATE, NEVER)
    if point == "sink.skipping" and not early:
        assert commits_of(lake, LATE) == 0  # the slot was made without a write: there is nothing to die between
    else:
        with dying_at(point if point == "sink.skipping" else f"sink.{sink.kind}.{point}"):
            run(sink.commit(LATE, slot))
    landed = point == "commit.after"
    assert (lake.rows(), commits_of(lake, LATE)) == ({"mon": [2]}, int(landed))
    successor = sink_of(lake, YESTERDAY)
    found = run(successor.fence(LATE, 2, fingerprint="f", by="attempt 2"))
    assert (found is not None) == landed
    if found is None:
        assert isinstance(run(successor.commit(LATE, lake.stage(successor, LATE, NEVER, token=2))), Committed)
    skipped_once(lake)
    woken = run(sink.commit(LATE, slot))
    assert (
        isinstance(woken, Committed | AlreadyCommitted) if landed else isinstance(woken, FencedOff | AlreadyCommitted)
    )
    run(successor.sweep(LATE))
    skipped_once(lake)


@pytest.mark.parametrize("landed", [True, False], ids=["reply lost", "request lost"])
@pytest.mark.parametrize("when", ["before its rows ran", "after they were staged"])
def test_a_lost_reply_skips_once(lake: Lake, failpoint: Callable[[str], None], landed: bool, when: str) -> None:
    """The table is read again, and shows the skip or takes it."""
    sink = sink_of(lake, YESTERDAY)
    staged = lake.stage(sink, LATE, days(mon=1)) if when == "after they were staged" else None
    load(lake, TODAY, 2)
    slot = staged or lake.stage(sink, LATE, NEVER)
    failpoint(f"sink.{sink.kind}.commit.{'after' if landed else 'before'}=1*raise->off")
    decided = run(sink.commit(LATE, slot))
    assert isinstance(decided, Committed | AlreadyCommitted) and decided.slot.skipped == TODAY
    skipped_once(lake)


def test_two_processes_that_skip_after_different_positions(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver and a settle run roll one sealed slot forward; tomorrow commits while the first is about to. One skip is committed, and
    both get it."""
    sink, other = sink_of(lake, YESTERDAY), sink_of(lake, YESTERDAY)
    sealed = lake.stage(sink, LATE, days(mon=1))
    load(lake, TODAY, 2)
    between: list[Any] = []

    def hit(name: str) -> None:
        if name == f"sink.{sink.kind}.commit.before" and not between:
            between.append("")
            load(lake, TOMORROW, 3)
            between[0] = run(other.commit(LATE, sealed))

    for module in (delta_sink, iceberg_commit):
        monkeypatch.setattr(module, "hit", hit)
    decided = run(sink.commit(LATE, sealed))
    assert isinstance(between[0], Committed) and between[0].slot.skipped == TOMORROW
    assert decided == AlreadyCommitted(between[0].slot)
    skipped_once(lake, 3)


def test_two_senders_of_a_late_key(lake: Lake) -> None:
    """Each found that it is late by itself: one skip, which both get."""
    load(lake, TODAY, 2)
    one, other = sink_of(lake, YESTERDAY), sink_of(lake, YESTERDAY)
    first, second = lake.stage(one, LATE, NEVER), lake.stage(other, LATE, NEVER)
    assert run(other.commit(LATE, second)) == Committed(second)
    assert run(one.commit(LATE, first)) == AlreadyCommitted(second)
    skipped_once(lake)


def test_a_skip_that_was_fenced_is_not_committed(lake: Lake) -> None:
    """A settle run barred the attempt and called it without effect: nothing may appear later."""
    load(lake, TODAY, 2)
    sink = sink_of(lake, YESTERDAY)
    slot = lake.stage(sink, LATE, NEVER)
    assert run(sink.fence(LATE, 2, fingerprint="f", by="settle")) is None
    assert isinstance(run(sink.commit(LATE, slot)), FencedOff)
    assert (lake.rows(), commits_of(lake, LATE)) == ({"mon": [2]}, 0)
