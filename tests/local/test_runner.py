"""A leader whose store or launcher is unavailable for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attempt.owned import Applications
from commands.person import desk, writes
from harness.eventually import assert_eventually
from harness.granted import prepared
from harness.patience import promised, stretched
from sparkonce.attempt.request import Answer
from sparkonce.blocking import run
from sparkonce.errors import LaunchUnavailable, StoreUnavailable
from sparkonce.launch.protocol import ApplicationState, Phase
from sparkonce.local import runner as embedded
from sparkonce.local.runner import LocalRunner
from sparkonce.local.waiting import LATE, SOON
from sparkonce.model.record import Address, Application, Assignment, Event, Outcome, Record, State, StopWanted, Why
from sparkonce.store.protocol import Gone, Owned, Updated


class Flaky(Applications):
    """Cannot observe in the looks numbered `bad`; at the 12th look the job has ended."""

    def __init__(self, made: Applications, bad: Collection[int]) -> None:
        super().__init__(Phase.RUNNING)
        self.made, self.bad, self.looks = made, bad, 0

    async def launch(self, assignment: Assignment) -> ApplicationState:
        await self.made.launch(assignment)
        self.by_name = self.made.by_name
        self.become(assignment.name, Phase.RUNNING)
        return self.by_name[assignment.name]

    async def observe(self, assignment: Assignment, noted: Application | None = None) -> ApplicationState | None:
        self.looks += 1
        if self.looks in self.bad:
            raise LaunchUnavailable("it cannot be looked at")
        if self.looks == 12:
            self.become(assignment.name, Phase.SUCCEEDED)
        return await super().observe(assignment, noted)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second passes between two readings of the clock; the runner's patience is one second."""
    ticks = count(1)
    monkeypatch.setattr(embedded, "time", SimpleNamespace(monotonic=lambda: float(next(ticks)), sleep=lambda _: None))


def test_two_troubles_far_apart_are_two_troubles(tmp_path: Path) -> None:
    """A launcher that fails to answer once, and again much later, costs the leader no attempt."""
    made = desk(tmp_path, "a")
    made.applications.plays = [writes(made, "a")]
    made.owner.applications = Flaky(made.applications, bad=(3, 9))

    ending = made.orphaned().submit()

    assert ending.result is not None
    assert (ending.result.outcome, ending.result.attempts) == (Outcome.SUCCEEDED, 1)


def test_a_trouble_that_lasts_ends_the_command_and_loses_nothing(tmp_path: Path) -> None:
    """Once its patience is over the command reports the error; the key stays in progress without an owner, and the next command continues
    it."""
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
    """A store on which another client acts right after the next successful finalize."""

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
    """A request's generation was superseded, and its key was forgotten and reserved again before the request looked: it is answered that
    its place was taken. The new record does not show that this request opened a generation, but the request knows: it neither ends the
    other job nor opens another generation."""
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


def test_a_follower_reads_less_while_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower reads soon after a change, since another one often follows, and later once a second: each read takes time on the machine
    that runs the job."""
    made = desk(tmp_path, "orders")
    made.applications.plays = [writes(made, "orders")]
    pauses: list[float] = []

    async def pause(_: LocalRunner, seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 5:
            claim, running = made.granted.claim, made.record.changed(phase="Running")
            assert isinstance(await made.owner.store.update(made.record, claim, running), Updated)
        if len(pauses) == 10:
            await asyncio.to_thread(made.driven)

    monkeypatch.setattr(LocalRunner, "pause", pause)
    ending = made.submit()
    assert (ending.answer, ending.replayed) == (Answer.REPLAY, True)
    assert pauses == 2 * [SOON, 2 * SOON, LATE, LATE, LATE]
    assert LATE <= 1.0


def test_a_followers_answer_is_a_second_late_at_most(tmp_path: Path) -> None:
    """However long a follower has waited, it has the result at its next read."""
    made = desk(tmp_path, "orders")
    made.applications.plays = [writes(made, "orders")]
    looks: list[float] = []

    class Counted(Interrupted):
        async def load(self, address: Address) -> Any:
            looks.append(time.monotonic())
            return await super().load(address)

    made.store = Counted(made.owner.store, lambda _: asyncio.sleep(0))
    with ThreadPoolExecutor(1) as terminal:
        following = terminal.submit(made.submit)
        assert_eventually(lambda: len(looks) >= 5, 30)
        made.driven()
        ended = time.monotonic()
        assert following.result(stretched(30)).replayed
        assert time.monotonic() - ended < promised(LATE)


class Locked:
    """A store whose first reads find the ledger locked, and that gives no lease."""

    def __init__(self, store: Any, times: int) -> None:
        self._store, self.url, self.left = store, store.url, times

    def __getattr__(self, name: str) -> Any:
        assert name not in ("open_lease", "reserve", "take_over", "reopen", "request_stop"), f"a look called {name}"
        return getattr(self._store, name)

    async def load(self, address: Address) -> Any:
        self.left -= 1
        if self.left >= 0:
            raise StoreUnavailable("the ledger is locked")
        return await self._store.load(address)


def test_a_recorded_answer_needs_no_lease_and_no_event_loop(tmp_path: Path) -> None:
    """A look never suspends and writes nothing, even while it waits for a ledger that does not answer; after its patience it says so.
    What it finds of a finalized key is what `submit` gives."""
    made = desk(tmp_path, "a")
    made.applications.plays = [writes(made, "a")]
    first = made.orphaned().submit()
    locked: Any = Locked(made.owner.store, 1)
    runner = LocalRunner(store=locked, attempts=tmp_path / "attempts", patience=2.0)
    view, said, evidence = run(runner.look(made.requested))
    assert said.answer is Answer.REPLAY
    ending = run(runner.ending(made.requested, said, view.record, evidence, replayed=True))
    assert ending == made.submit()
    assert ending.result == first.result
    locked.left = 9
    with pytest.raises(StoreUnavailable, match="is locked"):
        run(runner.look(made.requested))
    assert locked.left > 0
