"""What is removed when it is due, and that one namespace's application holds up no other's."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from harness.memory_store import MemoryStore
from launch.fake_api import Died, FakeApi, FakeKubernetes, Fault
from launch.kubeflow_scene import job_of
from sparkonce.controller.garbage_collection import LATE_CREATE, GarbageCollection
from sparkonce.errors import InvalidInput, LaunchUnavailable, StoreUnavailable
from sparkonce.launch.kubeflow.spec import application
from sparkonce.launch.kubernetes import SPARK_APPLICATIONS, ApiRefused
from sparkonce.model.identity import derive, fingerprints
from sparkonce.model.record import Address, Assignment, Opener, Outcome, Result, SpecBody
from sparkonce.store.protocol import Owned, Request

TEAMS = ("team-a", "team-b")
OVER = 10_000.0
"""Seconds after which retention and applicationTTL of these keys are over."""


class World:
    """A ledger with finished opaque jobs of two teams, and their ended applications."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.api, self.store = FakeApi(*TEAMS), MemoryStore(clock=lambda: self.now)
        self.api.clock = self.now
        anything: Any = SimpleNamespace(replicas=self._nobody)
        self.garbage = GarbageCollection(
            store=self.store,
            roster=anything,
            kubernetes=FakeKubernetes(self.api),
            launcher=anything,
            install="prod",
            namespaces=None,
            leads=lambda: True,
            relist=self._nobody,
            reported_all=lambda _: True,
        )

    async def _nobody(self) -> Any:
        return []

    async def finished(self, key: str, namespace: str) -> None:
        job = job_of(idempotencyKey=key)
        document = {**job.document(), "metadata": {"name": key, "namespace": namespace}}
        request = Request(
            address=Address(realm=namespace, key_hash=derive(job.spec, namespace).key_hash),
            key=key,
            by=Opener(nonce=key),
            nonce=f"nonce-{key}",
            fingerprints=fingerprints(job),
            spec=SpecBody(job=document),
        )
        done = await self.store.reserve(request, lease=await self.store.open_lease(owner="op"), floor=0)
        assert isinstance(done, Owned)
        succeeded = Result(outcome=Outcome.SUCCEEDED, generation=1, attempts=1, evidence="exit code 0")
        await self.store.finalize(done.record, done.claim, succeeded, retention=100.0)
        told = Assignment.of(done.record, SpecBody(job=document), install="prod")
        self.api.create(SPARK_APPLICATIONS, namespace, application(told, job, [], namespace=namespace))
        self.api.patch(
            SPARK_APPLICATIONS,
            namespace,
            told.name,
            {"status": {"applicationState": {"state": "COMPLETED"}}},
            status=True,
        )

    def left(self, namespace: str) -> int:
        """How many ended applications of this team are there."""
        return sum("status" in each for each in self.api.list(SPARK_APPLICATIONS, namespace))

    def placeholders(self) -> int:
        return sum("status" not in each for each in self.api.list(SPARK_APPLICATIONS))

    async def swept_after(self, seconds: float) -> int:
        """Placeholders that are left by a sweep some time later."""
        self.now += seconds
        self.api.clock = self.now
        await self.garbage.sweep()
        return self.placeholders()


def swept(problem: Exception | None, monkeypatch: pytest.MonkeyPatch) -> World:
    """After a sweep in which the API server refuses to delete what team-b has, or the ledger answers its key so."""
    world = World()

    async def play() -> None:
        for number in range(3):
            for namespace in TEAMS:
                await world.finished(f"{namespace}-{number}", namespace)
        world.now += OVER
        load = world.store.load

        async def answers(address: Address) -> Any:
            if address.realm == "team-b" and problem is not None and not isinstance(problem, ApiRefused):
                raise problem
            return await load(address)

        monkeypatch.setattr(world.store, "load", answers)
        if isinstance(problem, ApiRefused):
            world.api.refusing = lambda verb, _, body: (
                problem if verb == "delete" and body["metadata"]["namespace"] == "team-b" else None
            )
        await world.garbage.sweep()

    asyncio.run(play())
    return world


@pytest.mark.parametrize(
    "problem",
    [None, ApiRefused("a policy keeps history", code=403), InvalidInput("a null character in a name")],
    ids=["none", "delete refused", "not to be stored"],
)
def test_an_application_that_cannot_be_removed_holds_up_nobody_else(
    problem: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy of its namespace may refuse that, or what a tenant wrote into it: all others go, and all records that have expired."""
    world = swept(problem, monkeypatch)
    assert (world.left("team-a"), world.left("team-b")) == (0, 0 if problem is None else 3)
    assert asyncio.run(world.store.count()) == 0


def test_a_ledger_that_does_not_answer_ends_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no matter of one application: the sweep is made again."""
    with pytest.raises(StoreUnavailable):
        swept(StoreUnavailable("no answer"), monkeypatch)


def test_a_placeholder_goes_once_its_record_was_purged() -> None:
    """Not before a day: until then a create that a frozen process sent late must find the name taken. Each one that stayed for ever would
    cost a read of the ledger in every sweep."""
    world = World()

    async def play() -> list[int]:
        await world.finished("load", "team-a")
        left = [await world.swept_after(OVER)]
        assert await world.store.count() == 0
        return [*left, await world.swept_after(LATE_CREATE - 1), await world.swept_after(1)]

    assert asyncio.run(play()) == [1, 1, 0]


@pytest.mark.parametrize("fault", [each for each in Fault if "freezes" not in each])
def test_the_removal_of_a_placeholder_is_gone_on_with_by_any_process(fault: Fault) -> None:
    """A fault hits each of its calls; two others sweep afterwards, at once."""

    async def play(call: int) -> int:
        world = World()
        await world.finished("load", "team-a")
        await world.swept_after(OVER)
        world.now += LATE_CREATE
        world.garbage.kubernetes = FakeKubernetes(world.api, {call: fault})
        with contextlib.suppress(LaunchUnavailable, Died):
            await world.garbage.applications()
        world.garbage.kubernetes = FakeKubernetes(world.api)
        await asyncio.gather(world.garbage.applications(), world.garbage.applications())
        for late in world.api.late:
            late()
        return world.placeholders()

    assert [asyncio.run(play(call)) for call in range(5)] == [0] * 5


def test_a_placeholder_stays_where_the_ledger_was_rolled_back() -> None:
    """Such a ledger does not know the generation at all: what it knew of the key is in a newer backup, or in the placeholder."""
    world = World()

    async def play() -> int:
        await world.finished("load", "team-a")
        await world.swept_after(OVER)
        world.garbage.store = MemoryStore(clock=lambda: world.now)
        return await world.swept_after(2 * LATE_CREATE)

    assert asyncio.run(play()) == 1
