"""An end is shown and reported only once the ledger has confirmed it, not when its write was sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attempt.owned import Lossy, Owner, owner
from harness.arrow_stage import table_of
from sparkonce.attempt.drive import Ended
from sparkonce.blocking import run
from sparkonce.errors import StoreUnavailable
from sparkonce.launch.protocol import Phase
from sparkonce.model.record import Assignment, Outcome, Record, State


def writing(folder: Path) -> Owner:
    made = owner(folder, "orders")

    def play(assignment: Assignment) -> Phase:
        made.job(assignment).write(table_of(1, 2, 3), "orders")
        return Phase.SUCCEEDED

    made.applications.plays = [play]
    return made


class Refusing(Lossy):
    """Answers the next finalize as a store does if the record has changed: nothing is written."""

    def __getattr__(self, name: str) -> Any:
        real = super().__getattr__(name)
        if name != "finalize" or self.times == 0:
            return real

        async def moved_on(record: Record, *given: Any, **named: Any) -> Any:
            self.times -= 1
            stale = record.model_copy(update={"revision": record.revision + 100})
            return await self._store.finalize(stale, *given, **named)

        return moved_on


@pytest.mark.parametrize("polled", [True, False])
@pytest.mark.parametrize("kind", ["lost", "refused"])
def test_an_end_that_the_ledger_does_not_have_is_not_shown(tmp_path: Path, kind: str, polled: bool) -> None:
    """A finalize that never arrives raises, and one that is refused is followed by another read. Until the ledger has the result, no record
    that the drive shows (an operator writes those into `.status`) is finalized, and no end is returned."""
    made = writing(tmp_path)
    lossy = Lossy(made.store, "finalize", lands=False) if kind == "lost" else Refusing(made.store, "", times=1)
    drive = made.drive(lossy)
    drive.polled = polled
    records: list[Record] = []

    def show(record: Record) -> None:
        records.append(record)
        assert (record.state is State.FINALIZED) <= (made.granted.now().state is State.FINALIZED)

    drive.on_record = show
    if kind == "lost":
        with pytest.raises(StoreUnavailable, match="no answer to finalize"):
            run(drive.run(made.granted.record, made.granted.claim))
        assert made.granted.now().state is State.IN_PROGRESS
        assert records
        assert {record.state for record in records} == {State.IN_PROGRESS}
    ended = run(drive.run(made.granted.record, made.granted.claim))
    assert isinstance(ended, Ended)
    assert ended.result is not None
    assert ended.result == run(made.store.result(ended.record.address, 1))
    assert (ended.record.state, ended.result.outcome) == (State.FINALIZED, Outcome.SUCCEEDED)
    assert made.applications.launched == [1]
