"""A leader whose store or launcher does not answer for a while."""

from __future__ import annotations

from collections.abc import Collection
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.owned import Applications
from engine.person import desk, writes
from sparkonce.blocking import run
from sparkonce.engine import embedded
from sparkonce.errors import LaunchUnavailable
from sparkonce.launch.protocol import Phase, Seen
from sparkonce.model.assignment import Assignment
from sparkonce.model.record import Application, Outcome, State


class Flaky(Applications):
    """Cannot be looked at in some of its looks; at its 12th look the job has ended."""

    def __init__(self, made: Applications, bad: Collection[int]) -> None:
        super().__init__(Phase.RUNNING)
        self.made, self.bad, self.looks = made, bad, 0

    async def launch(self, assignment: Assignment) -> Seen:
        await self.made.launch(assignment)
        self.by_name = self.made.by_name
        self.become(assignment.name, Phase.RUNNING)
        return self.by_name[assignment.name]

    async def observe(self, assignment: Assignment, noted: Application | None = None) -> Seen | None:
        self.looks += 1
        if self.looks in self.bad:
            raise LaunchUnavailable("it cannot be looked at")
        if self.looks == 12:
            self.become(assignment.name, Phase.SUCCEEDED)
        return await super().observe(assignment, noted)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second passes between two looks at the clock; patience is one second."""
    ticks = count(1)
    monkeypatch.setattr(embedded, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))


def test_two_troubles_far_apart_are_two_troubles(tmp_path: Path) -> None:
    """A launcher that failed to answer once, and once more much later, costs a leader nothing."""
    made = desk(tmp_path, "a")
    made.applications.plays = [writes(made, "a")]
    made.owner.applications = Flaky(made.applications, bad=(3, 9))

    ending = made.orphaned().submit()

    assert ending.result is not None
    assert (ending.result.outcome, ending.result.attempts) == (Outcome.SUCCEEDED, 1)


def test_a_trouble_that_lasts_ends_the_command_and_loses_nothing(tmp_path: Path) -> None:
    """After its patience the command says so; the key is in progress and unowned, and the next command goes on there."""
    made = desk(tmp_path, "a")
    made.applications.plays = [writes(made, "a")]
    flaky = Flaky(made.applications, bad=range(3, 12))
    made.owner.applications = flaky

    with pytest.raises(LaunchUnavailable):
        made.orphaned().submit()

    assert made.record.state is State.IN_PROGRESS
    assert run(made.owner.store.load(made.record.address)).claim is None
    flaky.bad = ()
    ending = made.submit()
    assert ending.result is not None
    assert (ending.result.outcome, ending.result.attempts) == (Outcome.SUCCEEDED, 1)
