"""What is removed when it is due, and that one namespace's application holds up no other's."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from harness.memory_store import MemoryStore
from launch.fake_api import FakeApi, FakeKubernetes
from launch.kubeflow_scene import job_of
from sparkonce.controller.garbage_collection import GarbageCollection
from sparkonce.errors import InvalidInput, StoreUnavailable
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
