"""A leader whose store or launcher does not answer for a while."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from driver.granted import prepared
from engine.owned import Applications
from engine.person import desk, writes
from sparkonce.blocking import run
from sparkonce.engine import embedded
from sparkonce.engine.request import Answer
from sparkonce.errors import LaunchUnavailable
from sparkonce.launch.protocol import Phase, Seen
from sparkonce.model.assignment import Assignment
from sparkonce.model.record import Address, Application, Event, Outcome, Record, State, StopWanted, Why
from sparkonce.store.protocol import Gone, Owned


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


class Interrupted:
    """A store on which somebody else acts right after the next landed finalize."""

    def __init__(self, store: Any, then: Callable[[Record], Awaitable[object]]) -> None:
        self._store, self._then, self.url = store, then, store.url
        self._loads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def load(self, address: Address) -> Any:
        self._loads += 1
        assert self._loads < 200, "it never ends"
        return await self._store.load(address)

    async def finalize(self, record: Record, *given: Any, **named: Any) -> Any:
        reply = await self._store.finalize(record, *given, **named)
        await self._then(reply.record)
        return reply


def test_a_request_opens_one_generation_although_its_record_was_forgotten(tmp_path: Path) -> None:
    """A request whose generation was superseded, and whose key was forgotten and reserved again before it looked, is told that its place
    was taken: the new record does not know that it opened one, it knows so itself. It neither ends the other job nor opens another."""
    made = desk(tmp_path, "orders")
    made.applications.plays = [writes(made, "orders")]
    made.driven()
    store, theirs = made.owner.store, made.requested
    changed = prepared(tmp_path, "orders", onMismatch="Supersede", template={"arguments": ["changed"]})

    def superseded(_: Assignment) -> Phase:
        wish = StopWanted(why=Why.SUPERSEDED, by="ann", reason="another job")
        run(store.request_stop(made.record, wish))
        return Phase.RUNNING

    async def forgotten(record: Record) -> None:
        assert record.outcome is Outcome.CANCELLED
        gone = await store.forget(record, Event(what="Forgotten", by="ann", why="anew", generation=record.generation))
        assert isinstance(gone, Gone)
        lease = await store.open_lease(owner="another command")
        assert isinstance(await store.reserve(theirs.request("another"), lease=lease, floor=gone.floor), Owned)

    made.applications.plays = [superseded]
    made.store, made.requested = Interrupted(store, forgotten), changed

    ending = made.submit()

    assert (ending.answer, made.record.generation) == (Answer.MISMATCH, 3)
    assert made.record.stop_wanted is None
    assert made.record.openers[-1].nonce == "another"
