"""`accept`: what applications show is written into the ledger, then its epoch is raised; it may die anywhere and is done again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from launch.fake_api import Died, FakeApi
from launch.kubeflow_scene import job_of
from sparkonce.controller.desired import Desired
from sparkonce.controller.objects import ObjectRef
from sparkonce.controller.restore import Accepted, accept
from sparkonce.launch.kubeflow.spec import Wanting, application, placeholder, settle_run
from sparkonce.launch.kubernetes import JOBS, SPARK_APPLICATIONS, Json, Resource
from sparkonce.model.record import Address, Assignment, Record, SpecBody
from sparkonce.store.etcd.store import EtcdStore
from sparkonce.store.restore import NewestAttempt
from store.backends import Clock
from store.etcd_backend import Etcd

NAMESPACE, INSTALL = "loads", "east"
OUTPUT = "orders"


@dataclass
class Cluster:
    """The API server's objects."""

    api: FakeApi = field(default_factory=lambda: FakeApi(NAMESPACE, "elsewhere"))

    def job(self, name: str, key: str, *, arguments: tuple[str, ...] = ()) -> Desired:
        document = job_of(
            OUTPUT, folder="/tables", idempotencyKey=key, template={"arguments": list(arguments)}
        ).document()
        body = {**document, "metadata": {"name": name, "namespace": NAMESPACE}}
        return Desired.of(self.api.create(JOBS, NAMESPACE, body), realm=NAMESPACE)

    def application(
        self, job: Desired, generation: int, attempt: int, *, wanting: tuple[Desired, ...] = (), **change: Any
    ) -> Assignment:
        told = assigned(job, generation, attempt, **change)
        objects = [
            Wanting(name=each.ref.name, namespace=NAMESPACE, uid=each.ref.uid, on_delete=each.policy.on_delete)
            for each in wanting
        ]
        body = application(told, job.job, objects, namespace=NAMESPACE)
        self.api.create(SPARK_APPLICATIONS, NAMESPACE, body)
        return told

    def stub(self, job: Desired, generation: int, attempt: int) -> Assignment:
        told = assigned(job, generation, attempt)
        self.api.create(SPARK_APPLICATIONS, NAMESPACE, placeholder(told, namespace=NAMESPACE))
        return told

    async def list(self, resource: Resource, namespace: str | None, **_: Any) -> list[Json]:
        return self.api.list(resource, namespace)


def assigned(job: Desired, generation: int, attempt: int, **change: Any) -> Assignment:
    made = Assignment(
        install=INSTALL,
        realm=NAMESPACE,
        key_hash=job.key.key_hash,
        key=job.key.text,
        generation=generation,
        attempt=attempt,
        nonce=f"nonce-{generation}-{attempt}",
        fingerprint=job.fingerprint(),
        spec=SpecBody(job=job.job.document()),
    )
    return made.model_copy(update=change)


@pytest.fixture
def etcd() -> Iterator[Etcd]:
    made = Etcd(Clock(), members=1)
    yield made
    made.close()


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def accepted(etcd: Etcd, cluster: Cluster, *, dies: Callable[[str], bool] = lambda _: False) -> Accepted:
    """`dies`: called before and after each write."""

    class Restorable:
        async def rebuild(self, shown: NewestAttempt, *, by: str) -> bool:
            return bool(await step(f"rebuild {shown.key}", lambda: store.rebuild(shown, by=by)))

        async def raise_epoch(self, *, seen: int) -> int:
            return int(await step("raise", lambda: store.raise_epoch(seen=seen)))

    async def step(what: str, do: Callable[[], Any]) -> Any:
        if dies(f"before {what}"):
            raise Died
        done = await do()
        if dies(f"after {what}"):
            raise Died
        return done

    store = opened(etcd)

    async def done() -> Accepted:
        try:
            kubernetes: Any = cluster
            return await accept(store, Restorable(), kubernetes, install=INSTALL, namespaces=[NAMESPACE], by="ann")
        finally:
            await store.close()

    return asyncio.run(done())


def opened(etcd: Etcd) -> EtcdStore:
    return EtcdStore(etcd.cluster.endpoints, install=etcd.install, ttl=60, timeout=30.0, clock=etcd.clock)


def asked(etcd: Etcd, ask: Callable[[EtcdStore], Any]) -> Any:
    async def done() -> Any:
        store = opened(etcd)
        try:
            return await ask(store)
        finally:
            await store.close()

    return asyncio.run(done())


def stands(etcd: Etcd, address: Address) -> tuple[Record | None, int, int]:
    """Record, floor and epoch."""
    view = asked(etcd, lambda store: store.load(address))
    return view.record, view.floor, view.epoch


def rebuilt(etcd: Etcd, job: Desired) -> Record:
    record, _, _ = stands(etcd, job.address)
    assert record is not None
    return record


def test_the_newest_attempt_counts(etcd: Etcd, cluster: Cluster) -> None:
    """Of a key's applications that of the last generation's last attempt, with its nonce, for those live objects that wanted it; its spec
    is theirs. A settle run, an application of another install, and one whose name is not that of its annotations say nothing."""
    one, other = cluster.job("one", "load"), cluster.job("two", "load")
    for generation, attempt in ((1, 2), (2, 1), (1, 1)):
        cluster.application(one, generation, attempt, wanting=(one,))
    told = assigned(one, 2, 1)
    run = settle_run(told.model_copy(update={"run": 1}), one.job, namespace=NAMESPACE)
    cluster.api.create(SPARK_APPLICATIONS, NAMESPACE, run)
    cluster.application(one, 3, 1, install="west")
    forged = application(assigned(one, 9, 9), one.job, [], namespace=NAMESPACE)
    forged["metadata"]["name"] = "forged"
    cluster.api.create(SPARK_APPLICATIONS, NAMESPACE, forged)

    done = accepted(etcd, cluster)
    assert (done.epoch, done.rebuilt, done.kept) == (2, ("load",), 0)
    record = rebuilt(etcd, one)
    assert (record.generation, record.attempt, record.nonce) == (2, 1, "nonce-2-1")
    assert record.objects == (str(one.ref),)
    assert other.ref.uid not in str(record.objects)
    assert (record.fingerprint, record.fingerprint_version) == (one.fingerprint(), 1)
    spec = asked(etcd, lambda store: store.spec(one.address, 2))
    assert spec.job == one.job.document() and spec.digests
    assert stands(etcd, one.address)[2] == 2


def test_objects_that_want_something_else(etcd: Etcd, cluster: Cluster) -> None:
    """An object that was edited since does not provide the spec: the driver's assignment does, which names the outputs."""
    before = cluster.job("one", "load")
    edited = cluster.job("two", "load", arguments=("other",))
    cluster.application(before, 1, 1, wanting=(before, edited))
    cluster.api.delete(JOBS, NAMESPACE, "one")
    accepted(etcd, cluster)
    assert rebuilt(etcd, before).objects == ()
    spec = asked(etcd, lambda store: store.spec(before.address, 1))
    assert [each["name"] for each in spec.job["spec"]["outputs"]] == [OUTPUT]
    assert spec.job["spec"]["template"]["spec"] == {}


def test_a_name_that_is_kept_taken(etcd: Etcd, cluster: Cluster) -> None:
    """After an end, or for an attempt that was given up: the generation is marked as used, and nothing is started for its objects."""
    job = cluster.job("one", "load")
    cluster.application(job, 1, 1, wanting=(job,))
    cluster.stub(job, 1, 2)
    assert accepted(etcd, cluster).epoch == 2
    record, floor, _ = stands(etcd, job.address)
    assert (record, floor) == (None, 1)


def test_again(etcd: Etcd, cluster: Cluster) -> None:
    """A ledger that is accepted once more gets the same evidence, and another epoch."""
    jobs = [cluster.job(f"job-{n}", f"load-{n}") for n in range(3)]
    for job in jobs:
        cluster.application(job, 1, 1, wanting=(job,))
    assert accepted(etcd, cluster).kept == 0
    before = [rebuilt(etcd, job) for job in jobs]
    done = accepted(etcd, cluster)
    assert (done.epoch, done.rebuilt, done.kept) == (3, (), 3)
    after = [rebuilt(etcd, job) for job in jobs]
    assert [each.dump() for each in after] == [each.dump() for each in before]


STEPS = [f"{when} {what}" for what in ("rebuild load-0", "rebuild load-1", "raise") for when in ("before", "after")]


@pytest.mark.parametrize("step", STEPS)
def test_it_dies_and_is_done_again(etcd: Etcd, cluster: Cluster, step: str) -> None:
    """Wherever the command died and was repeated: every record is as if it had not, written once, and until the last step the old epoch
    stays, which keeps operators in their alarm."""
    jobs = [cluster.job(f"job-{n}", f"load-{n}") for n in range(2)]
    for job in jobs:
        cluster.application(job, 2, 3, wanting=(job,))
    hits: list[str] = []

    def dies(at: str) -> bool:
        hits.append(at)
        return at == step

    with pytest.raises(Died):
        accepted(etcd, cluster, dies=dies)
    assert hits[-1] == step
    raised = step == "after raise"
    assert stands(etcd, jobs[0].address)[2] == 1 + raised
    assert accepted(etcd, cluster).epoch == 2 + raised
    for job in jobs:
        record = rebuilt(etcd, job)
        assert (record.generation, record.attempt, record.nonce) == (2, 3, "nonce-2-3")
        events = asked(etcd, partial(EtcdStore.events, address=job.address))
        assert [event.what for event in events] == ["Rebuilt"]


def test_an_object_of_a_name_is_looked_up_by_its_uid(etcd: Etcd, cluster: Cluster) -> None:
    """An object that was deleted and made anew under its name did not want the attempt: it is not named, and lends its spec."""
    old = cluster.job("one", "load")
    cluster.application(old, 1, 1, wanting=(old,))
    cluster.api.delete(JOBS, NAMESPACE, "one")
    new = cluster.job("one", "load")
    assert new.ref != old.ref and ObjectRef.parse(str(new.ref)).name == old.ref.name
    accepted(etcd, cluster)
    assert rebuilt(etcd, old).objects == ()
    spec = asked(etcd, lambda store: store.spec(old.address, 1))
    assert spec.job == new.job.document()


def test_nothing_to_see(etcd: Etcd, cluster: Cluster) -> None:
    """Objects alone bring no record back: they expire."""
    job = cluster.job("one", "load")
    done = accepted(etcd, cluster)
    assert (done.epoch, done.rebuilt, done.kept) == (2, (), 0)
    assert stands(etcd, job.address) == (None, 0, 2)
