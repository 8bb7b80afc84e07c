"""Drive tasks: a key that this process owns is driven to its end, whatever error its drive raises."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.patience import within
from sparkonce.attempt.drive import Drive, Ended, NotOurs
from sparkonce.controller.drive_tasks import AGAIN, AGAIN_MAX, OUTPUT_MAX, QUIET, DriveBuilder, DriveTasks, OwnedKey
from sparkonce.controller.lease_guard import LeaseGuard, NotOwner
from sparkonce.errors import LaunchUnavailable, OutputUnavailable, StoreUnavailable
from sparkonce.model.record import Address, Record
from sparkonce.store.protocol import Claim, Owned

KEY = Address(realm="etl", key_hash="ab" * 32)


def _record(revision: int = 5, *, attempt: int = 1) -> Record:
    record = Record(
        realm=KEY.realm,
        key_hash=KEY.key_hash,
        key="k",
        generation=1,
        attempt=attempt,
        nonce="n",
        fingerprint="f",
        fingerprint_version=1,
    )
    return record.changed(revision=revision)


def _owned(nonce: str = "c") -> Owned:
    claim = Claim(address=KEY, lease="l", owner="me", revision=5, nonce=nonce)
    return Owned(_record(), claim)


@dataclass
class _Alive:
    lives: bool = True

    def alive(self, room: float = 0.0) -> bool:
        return self.lives


@dataclass
class _Scene:
    """`play` stands for the drive: called with the number of the run and the OwnedKey."""

    play: Callable[[int, OwnedKey], Awaitable[Any]]
    ownership: _Alive = field(default_factory=_Alive)
    runs: list[float] = field(default_factory=list)
    ends: list[Any] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    def driving(self) -> DriveTasks:
        def make(running: OwnedKey) -> Drive:
            scene = self

            class One:
                async def run(self, record: Record, claim: Claim) -> Any:
                    scene.runs.append(time.monotonic())
                    return await scene.play(len(scene.runs), running)

            return cast(Drive, One())

        return DriveTasks(
            cast(LeaseGuard, self.ownership),
            make=make,
            on_end=lambda address, ended: self.ends.append((address, ended)),
            on_trouble=lambda running: self.troubles.append(running.trouble),
        )


@pytest.mark.parametrize(
    "problem", [StoreUnavailable("no answer"), LaunchUnavailable("no answer"), ValueError("a defect")], ids=repr
)
def test_a_drive_that_raised_is_driven_again_within_a_second_and_the_trouble_is_told(problem: Exception) -> None:
    """This holds for any exception; the end is reported once."""

    async def play(runs: int, _: OwnedKey) -> Any:
        if runs < 3:
            raise problem
        return Ended(_record(), None)

    scene = _Scene(play)

    async def scenario() -> None:
        driving = scene.driving()
        running = driving.start(_owned())
        assert running.task is not None
        await running.task
        assert len(driving) == 0

    asyncio.run(scenario())
    assert len(scene.runs) == 3
    assert max(b - a for a, b in zip(scene.runs, scene.runs[1:], strict=False)) < AGAIN_MAX
    assert len(scene.troubles) == 2
    assert [ended for _, ended in scene.ends] == [Ended(_record(), None)]


def test_the_drives_of_a_process_share_what_it_launched() -> None:
    """A drive that follows one whose claim was lost knows the applications that the record may lack."""
    unused: Any = SimpleNamespace(guard=None)
    builder = DriveBuilder(store=unused, launcher=unused, lease_guard=unused, install="east", owner="me")

    def built(nonce: str) -> Drive:
        owned = _owned(nonce)
        running = OwnedKey(record=owned.record, claim=owned.claim)
        return builder.build(running, describe=unused, edition=unused, on_decision=unused, on_record=unused)

    assert built("c").unnoted is built("of the takeover").unnoted


def test_a_drive_without_a_lease_lets_go_and_nothing_ends() -> None:
    """NotOwner is not reported as an error: another process continues."""

    async def play(_: int, __: OwnedKey) -> Any:
        raise NotOwner("no lease")

    scene = _Scene(play)

    async def scenario() -> None:
        running = scene.driving().start(_owned())
        assert running.task is not None
        await running.task

    asyncio.run(scenario())
    assert (len(scene.runs), scene.ends, scene.troubles) == (1, [(KEY, None)], [])


def test_the_same_claim_is_driven_once_and_another_claim_replaces_the_drive() -> None:
    """A claim that was lost and won again has another nonce, and a drive that knows the old one must not go on."""
    cancelled: list[int] = []

    async def play(runs: int, _: OwnedKey) -> Any:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(runs)
            raise

    scene = _Scene(play)

    async def scenario() -> None:
        driving = scene.driving()
        first = driving.start(_owned())
        await asyncio.sleep(0.01)
        assert driving.start(_owned()) is first
        assert driving.start(_owned("other")) is not first
        await asyncio.sleep(0.01)
        assert cancelled == [1]
        await driving.drain()

    asyncio.run(scenario())
    assert cancelled == [1, 2]
    assert scene.ends == []


def test_a_wake_up_says_whether_the_record_moved_and_our_own_write_is_no_news() -> None:
    """The store reports every write, including our own, often before the answer to it arrives."""

    async def scenario() -> None:
        running = OwnedKey(record=_record(5), claim=_owned().claim)
        running.read(_record(5))
        running.wake(revision=6)
        running.read(_record(6))  # the answer to the write that the watch reported
        began = time.monotonic()
        assert await running.wait(0.05) is True  # our own write wakes nothing: the wait takes its full time
        assert time.monotonic() - began >= 0.05
        running.wake()
        assert await running.wait(1.0) is False  # woken by an application or a pod, not by the record
        running.wake(revision=9)
        assert await running.wait(1.0) is True
        assert await running.wait(0.01) is True  # no wake-up for the whole wait: everything has to be looked at

    asyncio.run(scenario())


def test_what_a_look_wrote_reaches_the_drive_although_nobody_told() -> None:
    """An attach by the same process moves the record while it is driven."""

    async def scenario() -> None:
        running = OwnedKey(record=_record(5), claim=_owned().claim)
        running.read(_record(5))
        assert running.moved(_record(7))
        assert not running.moved(_record(6))
        assert running.record.revision == 7
        assert await running.wait(1.0) is True

    asyncio.run(scenario())


def test_applications_and_pods_wake_by_the_label_that_they_carry() -> None:
    """The label of a key that is not driven here wakes no drive."""
    woken = asyncio.Event()

    async def play(_: int, running: OwnedKey) -> Any:
        while await running.rest(5.0):
            woken.set()
        return NotOurs("")

    scene = _Scene(play)

    async def scenario() -> None:
        driving = scene.driving()
        driving.start(_owned())
        await asyncio.sleep(0.01)
        driving.wake_named("0" * 20)
        await asyncio.sleep(0.01)
        assert not woken.is_set()
        driving.wake_named(KEY.hash20)
        await within(woken.wait(), 1.0)
        assert driving.drop_all() == [KEY]
        driving.wake_named(KEY.hash20)  # the key was dropped: no effect

    asyncio.run(scenario())


def test_an_output_that_stays_silent_is_asked_less_and_less_and_told_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The pauses double up to half a minute; the log has one line per change of the problem, not one per attempt."""
    pauses: list[float] = []
    said = ["no answer", "no answer", "no answer", "refused", "refused"]

    async def rest(_: OwnedKey, seconds: float) -> bool:
        pauses.append(seconds)
        return False

    monkeypatch.setattr(OwnedKey, "rest", rest)

    async def play(turn: int, _: OwnedKey) -> object:
        if turn <= 12:
            raise OutputUnavailable(said[min(turn, len(said)) - 1])
        return NotOurs("over")

    scene = _Scene(play)

    async def story() -> None:
        task = scene.driving().start(_owned()).task
        assert task is not None
        await task

    asyncio.run(story())
    assert pauses[:4] == [0.1, 0.2, 0.4, 0.8]
    assert pauses[-1] == OUTPUT_MAX == max(pauses)
    assert [record.getMessage() for record in caplog.records] == [
        "k: no answer; trying again",
        "k: refused; trying again",
    ]
    assert scene.troubles[-1] == "refused"


def test_trouble_after_a_long_peace_is_tried_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a quiet period the pauses start short again, also where an earlier problem had made them long."""
    pauses: list[float] = []
    clock = [1000.0]

    async def rest(_: OwnedKey, seconds: float) -> bool:
        pauses.append(seconds)
        return False

    monkeypatch.setattr(OwnedKey, "rest", rest)
    monkeypatch.setattr("sparkonce.controller.drive_tasks.time.monotonic", lambda: clock[0])

    async def play(turn: int, _: OwnedKey) -> object:
        if turn <= 9:
            raise OutputUnavailable("no answer")
        if turn == 10:
            raise StoreUnavailable("no answer")
        if turn == 11:
            clock[0] += QUIET + 1
            raise OutputUnavailable("no answer")
        return NotOurs("over")

    scene = _Scene(play)

    async def story() -> None:
        task = scene.driving().start(_owned()).task
        assert task is not None
        await task

    asyncio.run(story())
    assert pauses[8:] == [25.6, AGAIN_MAX, AGAIN]
