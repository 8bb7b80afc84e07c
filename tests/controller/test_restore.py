"""`accept` rebuilds records in the ledger from applications, then raises the ledger's epoch; it may die at any step and is repeated."""

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
from sparkonce.launch.kubeflow.labels import FINGERPRINT, KEY_HASH, NONCE
from sparkonce.launch.kubeflow.spec import DRIVER_ENVIRONMENT, Wanting, application, placeholder, settle_run
from sparkonce.launch.kubernetes import JOBS, SPARK_APPLICATIONS, Json, Resource
from sparkonce.model.record import ENVIRONMENT, Address, Assignment, Record, SpecBody
from sparkonce.store.etcd.store import EtcdStore
from sparkonce.store.restore import NewestAttempt
from store.backends import Clock
from store.etcd_backend import Etcd

NAMESPACE, INSTALL = "loads", "east"
OUTPUT = "orders"


@dataclass
class Cluster:
    """The objects of an API server."""

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


def accepted(
    etcd: Etcd,
    cluster: Cluster,
    *,
    dies: Callable[[str], bool] = lambda _: False,
    namespaces: tuple[str, ...] | None = (NAMESPACE,),
) -> Accepted:
    """Runs `accept`. `dies` is called before and after each write and decides whether the command dies there."""

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
            return await accept(store, Restorable(), kubernetes, install=INSTALL, namespaces=namespaces, by="ann")
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
    """The key's record and floor, and the ledger's epoch."""
    view = asked(etcd, lambda store: store.load(address))
    return view.record, view.floor, view.epoch


def rebuilt(etcd: Etcd, job: Desired) -> Record:
    record, _, _ = stands(etcd, job.address)
    assert record is not None
    return record


def test_the_newest_attempt_counts(etcd: Etcd, cluster: Cluster) -> None:
    """Of a key's applications the last attempt of the last generation counts, with its nonce, for the live objects that wanted it and with
    their spec. A settle run, another install's application, and one whose name does not match its annotations are ignored."""
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
    """An object that was edited since does not provide the spec; the driver's assignment, which has the outputs, does."""
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
    """Where a stub holds the name of the last attempt, the generation is marked as used and nothing is started for its objects."""
    job = cluster.job("one", "load")
    cluster.application(job, 1, 1, wanting=(job,))
    cluster.stub(job, 1, 2)
    assert accepted(etcd, cluster).epoch == 2
    record, floor, _ = stands(etcd, job.address)
    assert (record, floor) == (None, 1)


def test_again(etcd: Etcd, cluster: Cluster) -> None:
    """Accepting a ledger once more finds the same evidence and opens another epoch."""
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
    """Wherever the command dies, repeating it gives every record as without the crash, written once. Until the last step the old epoch
    stays, and with it the operators' alarm."""
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
    """An object that was deleted and created again under its name did not want the attempt: the record does not name it, but uses its
    spec."""
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
    """No record is rebuilt from objects alone: they expire."""
    job = cluster.job("one", "load")
    done = accepted(etcd, cluster)
    assert (done.epoch, done.rebuilt, done.kept) == (2, (), 0)
    assert stands(etcd, job.address) == (None, 0, 2)


def test_an_application_is_evidence_of_its_own_namespace_alone(etcd: Etcd, cluster: Cluster) -> None:
    """Whoever may create applications may write anything into one: neither one that speaks of another namespace's key, nor one whose
    assignment is for a job elsewhere, makes a record with that job, which an operator would launch there."""
    job = cluster.job("load", "payroll")
    told = assigned(job, 7, 1)
    cluster.api.create(SPARK_APPLICATIONS, "elsewhere", application(told, job.job, [], namespace="elsewhere"))
    assert accepted(etcd, cluster, namespaces=None).rebuilt == ()
    assert stands(etcd, job.address)[:2] == (None, 0)

    document = job.job.document()
    abroad = SpecBody(job={**document, "metadata": {**document["metadata"], "namespace": "elsewhere"}})
    cluster.application(job, 3, 1, spec=abroad)
    accepted(etcd, cluster, namespaces=None)
    assert stands(etcd, job.address)[:2] == (None, 3), "its name is taken, and nothing else is known"


def test_an_application_that_no_operator_made_does_not_stop_the_others(etcd: Etcd, cluster: Cluster) -> None:
    """A tenant's application may hand its driver a job that no ledger can store, or name a key, nonce or fingerprint that none has: its
    name is taken at most, all other keys are rebuilt, and the epoch is raised, so that operators go on."""
    forged, deep, large, other = (cluster.job(name, name) for name in ("forged", "deep", "large", "other"))
    nested: dict[str, Any] = {}
    for _ in range(40):
        nested = {"n": nested}

    def made(job: Desired, generation: int, *, more: Any = None, annotations: dict[str, str] | None = None) -> None:
        told = assigned(job, generation, 1)
        body = application(told, job.job, [], namespace=NAMESPACE)
        document = job.job.document()
        document["metadata"] |= {"namespace": NAMESPACE, "more": more}
        handed = told.model_copy(update={"spec": SpecBody(job=document)})
        body["spec"]["sparkConf"][f"{DRIVER_ENVIRONMENT}{ENVIRONMENT}"] = handed.model_dump_json(by_alias=True)
        body["metadata"]["annotations"] |= annotations or {}
        cluster.api.create(SPARK_APPLICATIONS, NAMESPACE, body)
        cluster.api.delete(JOBS, NAMESPACE, job.ref.name)

    made(deep, 3, more=nested)
    made(large, 3, more="x" * 300_000)
    made(forged, 1, annotations={KEY_HASH: f"{forged.key.key_hash[:20]}/x"})
    made(forged, 2, annotations={NONCE: "n" * 300_000})
    made(forged, 3, annotations={FINGERPRINT: "f" * 300_000})
    told = cluster.application(other, 2, 1)

    done = accepted(etcd, cluster)

    assert done.epoch == 2
    assert (rebuilt(etcd, other).generation, rebuilt(etcd, other).nonce) == (2, told.nonce)
    assert stands(etcd, deep.address)[:2] == stands(etcd, large.address)[:2] == (None, 3)
    assert stands(etcd, forged.address)[:2] == (None, 0)
