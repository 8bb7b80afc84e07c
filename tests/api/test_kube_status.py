"""Statuses, deletions and Events on a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from api.scenes import SCENE, job, run, until
from harness.api_faults import ApiProxy
from harness.apiserver import Cluster
from harness.kube_api import CRDS
from harness.patience import stretched
from sparkonce.controller.objects import Fate, ObjectRef
from sparkonce.kube.client import ApiClient
from sparkonce.kube.events import EventRecorder, Level
from sparkonce.kube.jobs import fate_of
from sparkonce.kube.login import KubeLogin
from sparkonce.kube.status import Left, NoObject, StatusStored, StatusWriter
from sparkonce.launch.kubernetes import EVENTS, JOBS, NAMESPACES, ApiUnavailable, Json, Resource
from sparkonce.model.crd_status import UNWRITTEN


@asynccontextmanager
async def client_of(kubeconfig: Path) -> AsyncIterator[ApiClient]:
    client = ApiClient(KubeLogin(kubeconfig))
    try:
        yield client
    finally:
        await client.close()


def forward(revision: int, **status: Any) -> Any:
    """Like `controller.status`: a newer revision replaces an older one, and nothing else is written."""

    def make(live: Json) -> Json | None:
        if (live.get("status") or {}).get("ledgerRevision", 0) >= revision:
            return None
        return {"ledgerRevision": revision, **status}

    return make


def status_of(cluster: Cluster, namespace: str, name: str = "a") -> Json:
    found = cluster.api.get(JOBS, name, namespace)
    assert found is not None
    return found.get("status") or {}


def test_a_status_is_replaced_as_a_whole(cluster: Cluster, kubeconfig: Path, namespace: str) -> None:
    """Keys that the new status lacks are removed, also nested ones; the same status again causes no write."""
    uid = cluster.api.create(JOBS, job("a"), namespace)["metadata"]["uid"]

    async def scene() -> None:
        async with client_of(kubeconfig) as client:
            writer = StatusWriter(client)
            first = {"phase": "Running", "owner": "r1", "progress": {"stages": 3, "rows": 10}, "mismatch": ["a"]}
            assert isinstance(await writer.write(namespace, "a", uid, forward(1, **first)), StatusStored)
            second = {"phase": "Succeeded", "progress": {"rows": 20}}
            written = await writer.write(namespace, "a", uid, forward(2, **second))
            assert isinstance(written, StatusStored)
            assert written.stored["status"] == {"ledgerRevision": 2, **second} == status_of(cluster, namespace)
            same = await writer.write(namespace, "a", uid, lambda _: {"ledgerRevision": 2, **second})
            assert isinstance(same, Left)
            assert same.stored["metadata"]["resourceVersion"] == written.stored["metadata"]["resourceVersion"]

    run(scene)


@pytest.mark.operator
def test_twenty_writers_never_go_back(cluster: Cluster, kubeconfig: Path, namespace: str) -> None:
    """Of twenty concurrent writers of twenty revisions, each with an old body, the newest wins, and no version of the object is older than
    the one before it."""
    made = cluster.api.create(JOBS, job("a"), namespace)
    uid = made["metadata"]["uid"]
    revisions: list[int] = []

    async def scene() -> None:
        async with (
            client_of(kubeconfig) as client,
            client.watch(JOBS, namespace, since=made["metadata"]["resourceVersion"]) as events,
        ):

            async def note() -> None:
                async for _, found in events:
                    revisions.append(found["status"]["ledgerRevision"])

            noting = asyncio.create_task(note())
            writer = StatusWriter(client, patience=SCENE, first=0.01, cap=0.1)  # its patience is not tested here
            await asyncio.gather(
                *(
                    writer.write(namespace, "a", uid, forward(each, phase="Running"), fresh=made)
                    for each in range(1, 21)
                )
            )
            await until(lambda: 20 in revisions or noting.done())
            assert noting.cancel(), noting.exception()

    run(scene)
    assert status_of(cluster, namespace)["ledgerRevision"] == 20
    assert revisions == sorted(revisions)


def test_a_frozen_writer_gives_up(cluster: Cluster, kubeconfig: Path, namespace: str) -> None:
    """A writer reads the object and is frozen while another replica writes a newer status: its patch is refused, it reads again, and leaves
    the newer status."""
    uid = cluster.api.create(JOBS, job("a"), namespace)["metadata"]["uid"]
    asked: list[Json] = []

    def frozen(live: Json) -> Json | None:
        asked.append(live)
        if len(asked) == 1:  # what happens while it is frozen
            newer = {"status": {"ledgerRevision": 9, "phase": "Succeeded"}}
            cluster.api.patch(JOBS, "a", newer, namespace=namespace, subresource="status")
        made: Json | None = forward(5, phase="Running")(live)
        return made

    async def scene() -> None:
        async with client_of(kubeconfig) as client:
            assert isinstance(await StatusWriter(client).write(namespace, "a", uid, frozen), Left)

    run(scene)
    assert len(asked) == 2
    assert status_of(cluster, namespace) == UNWRITTEN | {"ledgerRevision": 9, "phase": "Succeeded"}


def test_a_lost_reply_is_one_write(cluster: Cluster, api_proxy: ApiProxy, namespace: str) -> None:
    """The status is written and its reply lost: the repeated patch is refused for its old version, and the next read finds nothing to
    do."""
    made = cluster.api.create(JOBS, job("a"), namespace)
    lost = api_proxy.lose_reply(method="PATCH")

    async def scene() -> None:
        async with client_of(api_proxy.kubeconfig) as client:
            writer = StatusWriter(client, first=0.01)
            make = forward(1, phase="Running")
            assert isinstance(await writer.write(namespace, "a", made["metadata"]["uid"], make, fresh=made), Left)

    run(scene)
    assert lost.hits == 1
    assert api_proxy.count(method="PATCH") == 2
    assert status_of(cluster, namespace) == {"ledgerRevision": 1, "phase": "Running"}


def test_patience_ends(cluster: Cluster, api_proxy: ApiProxy, namespace: str) -> None:
    """If the API server answers 500 or 429 for longer than the writer's patience, the write ends with that error after several tries."""
    uid = cluster.api.create(JOBS, job("a"), namespace)["metadata"]["uid"]

    async def scene() -> None:
        async with client_of(api_proxy.kubeconfig) as client:
            api_proxy.answer(500)
            writer = StatusWriter(client, patience=stretched(0.5), first=0.05, cap=0.1)
            with pytest.raises(ApiUnavailable):
                await writer.write(namespace, "a", uid, forward(1))
            assert api_proxy.count() > 3

    run(scene)


def test_another_object_of_the_name_is_not_written(cluster: Cluster, kubeconfig: Path, namespace: str) -> None:
    """A status meant for an object is not written once it was deleted, nor to another object under its name."""
    made = cluster.api.create(JOBS, job("a"), namespace)
    cluster.api.delete(JOBS, "a", namespace)

    async def scene() -> None:
        async with client_of(kubeconfig) as client:
            writer = StatusWriter(client)
            for _ in range(2):
                for fresh in (None, made):
                    written = await writer.write(namespace, "a", made["metadata"]["uid"], forward(1), fresh=fresh)
                    assert written == NoObject()
                if cluster.api.get(JOBS, "a", namespace) is None:
                    cluster.api.create(JOBS, job("a"), namespace)

    run(scene)
    assert status_of(cluster, namespace) == UNWRITTEN


def test_gone_is_an_answer(cluster: Cluster, kubeconfig: Path, namespace: str) -> None:
    """An existing object is not gone. One that was deleted, or created again under its name, is gone. Outside the scope, or in a namespace
    that cannot be seen, nothing counts as gone."""
    uid = cluster.api.create(JOBS, job("a"), namespace)["metadata"]["uid"]

    async def scene() -> None:
        async with client_of(kubeconfig) as client:
            assert await fate_of(client, ObjectRef(uid, namespace, "a")) is Fate.THERE
            cluster.api.delete(JOBS, "a", namespace)
            assert await fate_of(client, ObjectRef(uid, namespace, "a")) is Fate.GONE
            assert await fate_of(client, ObjectRef(uid, namespace, "a"), scope=[namespace]) is Fate.GONE
            assert await fate_of(client, ObjectRef(uid, namespace, "a"), scope=["another"]) is Fate.THERE
            assert await fate_of(client, ObjectRef(uid, "nowhere", "a")) is Fate.THERE
            cluster.api.create(JOBS, job("a"), namespace)
            assert await fate_of(client, ObjectRef(uid, namespace, "a")) is Fate.GONE

    run(scene)


def test_in_a_namespace_that_is_deleted_objects_are_gone_until_it_is(cluster: Cluster, kubeconfig: Path) -> None:
    """In a namespace that is being deleted an object that this deleted is gone; once the namespace does not exist, nothing is known."""
    namespace = "to-be-deleted"
    cluster.api.create(NAMESPACES, {"metadata": {"name": namespace, "finalizers": ["tests.sparkonce.dev/held"]}})
    made = cluster.api.create(JOBS, job("a"), namespace)

    async def scene() -> None:
        async with client_of(kubeconfig) as client:
            cluster.api.delete(NAMESPACES, namespace)
            await until(lambda: cluster.api.get(JOBS, "a", namespace) is None, 40)
            assert await fate_of(client, ObjectRef(made["metadata"]["uid"], namespace, "a")) is Fate.GONE
            cluster.api.patch(NAMESPACES, namespace, {"metadata": {"finalizers": None}})
            await until(lambda: cluster.api.get(NAMESPACES, namespace) is None, 40)
            assert await fate_of(client, ObjectRef(made["metadata"]["uid"], namespace, "a")) is Fate.THERE

    run(scene)


def test_a_crd_that_goes_takes_nothing_with_it(cluster: Cluster, kubeconfig: Path, namespace: str) -> None:
    """While a CRD is being deleted its objects are deleted one by one and the kind is still served: none of them counts as gone, not even
    when the CRD is back. An object that was created and deleted under the new CRD does."""
    kind = Resource("tests.sparkonce.dev", "v1", "gizmos", "Gizmo")
    name = f"{kind.plural}.{kind.group}"
    schema = {"openAPIV3Schema": {"type": "object"}}
    crd = {
        "metadata": {"name": name},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {"kind": kind.kind, "plural": kind.plural},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }
    cluster.api.create(CRDS, crd)
    held = {"metadata": {"name": "held", "finalizers": ["tests.sparkonce.dev/held"]}}

    async def scene() -> None:
        async with client_of(kubeconfig) as client:
            await until(lambda: cluster.serves(kind))
            swept_away = ObjectRef.of(cluster.api.create(kind, {"metadata": {"name": "a"}}, namespace))
            cluster.api.create(kind, held, namespace)
            assert await fate_of(client, swept_away, resource=kind) is Fate.THERE
            assert await fate_of(client, ObjectRef("u", namespace, "b"), resource=kind) is Fate.GONE
            cluster.api.delete(CRDS, name)
            await until(lambda: cluster.api.get(kind, "a", namespace) is None)
            assert await fate_of(client, swept_away, resource=kind) is Fate.THERE
            await until_not_served(client, kind)
            cluster.api.patch(kind, "held", {"metadata": {"finalizers": None}}, namespace=namespace)
            await until(lambda: cluster.api.get(CRDS, name) is None)
            await until(lambda: not cluster.serves(kind))
            with pytest.raises(ApiUnavailable):
                await fate_of(client, swept_away, resource=kind)
            await until(lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") > swept_away.created)
            cluster.api.create(CRDS, crd)
            await until(lambda: cluster.serves(kind))
            assert await fate_of(client, swept_away, resource=kind) is Fate.SWEPT_AWAY
            made = cluster.api.create(kind, {"metadata": {"name": "a"}}, namespace)
            assert await fate_of(client, swept_away, resource=kind) is Fate.SWEPT_AWAY
            assert await fate_of(client, ObjectRef.of(made), resource=kind) is Fate.THERE
            cluster.api.delete(kind, "a", namespace)
            assert await fate_of(client, ObjectRef.of(made), resource=kind) is Fate.GONE
            cluster.api.delete(CRDS, name)

    run(scene)


async def until_not_served(client: ApiClient, kind: Resource) -> None:
    for _ in range(500):
        if not await client.served(kind):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it is served although it is being deleted")


def test_events_are_counted_by_reason(cluster: Cluster, kubeconfig: Path, namespace: str) -> None:
    """A reason that repeats is one Event with a rising count; another reason or another object has its own."""
    one = cluster.api.create(JOBS, job("a"), namespace)
    two = cluster.api.create(JOBS, job("b"), namespace)

    async def scene() -> None:
        async with client_of(kubeconfig) as client:
            events = EventRecorder(client, host="replica-1")
            events.start()
            for number in range(5):
                events.record(one, "Waiting", f"for the {number}th time")
            events.record(one, "Failed", "it failed", level=Level.WARNING)
            events.record(two, "Waiting", "once")
            await events.stop(10)
            events.start()
            events.record(one, "Waiting", "and again")
            await events.stop(10)

    run(scene)
    found = {
        (each["involvedObject"]["name"], each["reason"]): (each["type"], each["count"], each["message"])
        for each in cluster.api.list(EVENTS, namespace)
    }
    assert found == {
        ("a", "Waiting"): ("Normal", 6, "and again"),
        ("a", "Failed"): ("Warning", 1, "it failed"),
        ("b", "Waiting"): ("Normal", 1, "once"),
    }
    (shown,) = cluster.api.list(EVENTS, namespace, fields=f"involvedObject.uid={two['metadata']['uid']}")
    assert shown["reportingInstance"] == "replica-1"
