"""Ownership: what a process concludes from its lease by its own monotonic clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import pytest

from sparkonce.controller.lease_guard import LeaseGuard, NotOwner
from sparkonce.errors import SparkonceError, StoreUnavailable, StoreUnusable
from sparkonce.store.protocol import IdempotencyStore


@dataclass
class _Lease:
    id: str
    deadline: float
    revoked: int = 0
    answers: bool = True
    failure: SparkonceError = field(default_factory=lambda: StoreUnavailable("no answer"))

    async def keep_alive(self) -> bool:
        return True

    async def revoke(self) -> None:
        self.revoked += 1
        if not self.answers:
            raise self.failure


@dataclass
class _Store:
    leases: list[_Lease]
    opened: int = 0
    failures: int = 0
    failure: SparkonceError = field(default_factory=lambda: StoreUnavailable("no answer"))

    async def open_lease(self, *, owner: str) -> _Lease:
        if self.failures:
            self.failures -= 1
            raise self.failure
        self.opened += 1
        return self.leases[min(self.opened, len(self.leases)) - 1]


@dataclass
class _World:
    """A clock that moves when a task sleeps."""

    store: _Store
    now: float = 100.0
    lost: int = 0
    held: int = 0
    slept: list[float] = field(default_factory=list)

    def ownership(self) -> LeaseGuard:
        def gone() -> None:
            self.lost += 1

        def got() -> None:
            self.held += 1

        return LeaseGuard(
            cast(IdempotencyStore, self.store),
            owner="me",
            on_lost=gone,
            on_held=got,
            margin=1.0,
            clock=lambda: self.now,
            sleep=self.sleep,
        )

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


async def _until(ownership: LeaseGuard, fact: Callable[[], bool]) -> None:
    task = asyncio.create_task(ownership.keep())
    for _ in range(10_000):
        if fact():
            break
        await asyncio.sleep(0)
    task.cancel()
    assert fact()


def test_it_acts_up_to_the_deadline_less_the_margin_and_not_beyond() -> None:
    """A step that needs `room` must fit before the deadline less the margin."""
    world = _World(_Store([_Lease("a", deadline=110.0)]))
    ownership = world.ownership()
    with pytest.raises(NotOwner):
        ownership.guard()
    asyncio.run(_until(ownership, ownership.alive))
    world.now = 108.9
    ownership.guard()
    assert not ownership.alive(room=0.2)
    world.now = 109.0
    with pytest.raises(NotOwner):
        _ = ownership.lease


def test_past_the_deadline_it_fail_stops_once_revokes_the_old_lease_and_opens_another() -> None:
    """A new lease is opened even if the store does not answer the revocation; the old one then expires by itself."""
    old, new = _Lease("a", deadline=101.5, answers=False), _Lease("b", deadline=10_000.0)
    world = _World(_Store([old, new]))
    ownership = world.ownership()

    async def play() -> None:
        await _until(ownership, lambda: world.held == 2)
        await asyncio.sleep(0)

    asyncio.run(play())
    assert (world.lost, world.store.opened, old.revoked, new.revoked) == (1, 2, 1, 0)
    assert ownership.lease.id == "b"


def test_a_process_that_was_frozen_past_its_deadline_finds_so_before_it_acts() -> None:
    """The guard compares the clock itself and refuses before the keeper has run again."""
    world = _World(_Store([_Lease("a", deadline=110.0)]))
    ownership = world.ownership()
    asyncio.run(_until(ownership, ownership.alive))
    world.now += 3600
    with pytest.raises(NotOwner):
        ownership.guard()
    assert ownership.left < 0


def test_a_store_without_an_answer_is_asked_again_until_it_gives_a_lease() -> None:
    """Until a lease is granted nothing is owned."""
    world = _World(_Store([_Lease("a", deadline=10_000.0)], failures=3))
    ownership = world.ownership()
    asyncio.run(_until(ownership, ownership.alive))
    assert world.slept[:3] == [0.5, 0.5, 0.5]


def test_a_store_that_refuses_is_asked_again_and_the_reason_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Credentials may be renewed while an operator runs: that must not end the process, and with it every drive."""
    refusal = StoreUnusable("the store refuses this user")
    world = _World(_Store([_Lease("a", deadline=10_000.0)], failures=3, failure=refusal))
    ownership = world.ownership()
    asyncio.run(_until(ownership, ownership.alive))
    assert caplog.messages == ["no lease is opened, so no key is driven: the store refuses this user; trying again"]


def test_a_graceful_stop_ends_also_where_the_store_refuses_the_revocation() -> None:
    """The lease then expires by itself."""
    lease = _Lease("a", deadline=10_000.0, answers=False, failure=StoreUnusable("the store refuses this user"))
    ownership = _World(_Store([lease])).ownership()

    async def play() -> None:
        await _until(ownership, ownership.alive)
        await ownership.revoke()

    asyncio.run(play())
    assert lease.revoked == 1


def test_a_graceful_stop_revokes_and_owns_nothing_afterwards() -> None:
    """The revoke is the last thing that this process does with the lease."""
    lease = _Lease("a", deadline=10_000.0)
    world = _World(_Store([lease]))
    ownership = world.ownership()

    async def play() -> None:
        await _until(ownership, ownership.alive)
        await ownership.revoke()

    asyncio.run(play())
    assert lease.revoked == 1
    assert not ownership.alive()
