"""The kopf trigger on a real API server: it reports changes, writes nothing, and survives every fault."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from api.scenes import job, run, until
from harness.api_faults import ApiProxy, error_event
from harness.apiserver import Cluster
from harness.kube_api import CRDS
from sparkonce.kube.login import KubeLogin
from sparkonce.kube.trigger import Trigger
from sparkonce.launch.kubernetes import JOBS, Json, Resource

Told = list[tuple[str | None, str]]
KOPFS = "kopf.zalando.org/KopfFinalizerMarker"


@asynccontextmanager
async def triggered(kubeconfig: Path, *namespaces: str, **more: Any) -> AsyncIterator[tuple[Trigger, Told]]:
    told: Told = []
    here = threading.get_ident()

    def hand_over(kind: str | None, body: Json) -> None:
        assert threading.get_ident() == here
        told.append((kind, body["metadata"]["name"]))

    trigger = Trigger(KubeLogin(kubeconfig), hand_over, namespaces=namespaces or None, first=0.05, cap=0.5, **more)
    trigger.start()
    try:
        yield trigger, told
    finally:
        await trigger.stop()


def test_tells_what_is_there_and_what_happens(cluster: Cluster, kubeconfig: Path, namespace: str) -> None:
    """Existing objects are reported with type None, then each change of an object in order; other namespaces are not reported."""
    cluster.api.create(JOBS, job("a"), namespace)

    async def scene() -> None:
        async with triggered(kubeconfig, namespace) as (trigger, told):
            assert not trigger.seen_first_list
            await until(lambda: trigger.seen_first_list and told)
            assert told == [(None, "a")]
            cluster.api.patch(JOBS, "a", {"spec": {"suspend": True}}, namespace=namespace)
            cluster.api.patch(JOBS, "a", {"status": {"phase": "Running"}}, namespace=namespace, subresource="status")
            cluster.api.create(JOBS, job("elsewhere"), "default")
            cluster.api.delete(JOBS, "elsewhere", "default")
            cluster.api.delete(JOBS, "a", namespace)
            await until(lambda: len(told) == 4)
            assert told[1:] == [("MODIFIED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
            assert trigger.restarts == 0
            assert trigger.quiet < 20

    run(scene)


@pytest.mark.operator
def test_three_triggers_write_nothing(cluster: Cluster, api_proxy: ApiProxy, namespace: str) -> None:
    """Three triggers see objects created, changed, finalized and deleted, some with kopf's own finalizer: the API server gets no write from
    them, and no object has a version that the test did not give it."""
    cluster.api.create(JOBS, job("before", finalizers=[KOPFS, "tests.sparkonce.dev/ours"]), namespace)

    async def scene() -> None:
        async with (
            triggered(api_proxy.kubeconfig) as (one, of_one),
            triggered(api_proxy.kubeconfig) as (two, of_two),
            triggered(api_proxy.kubeconfig, namespace) as (three, of_three),
        ):
            told = [of_one, of_two, of_three]
            await until(lambda: all(each.seen_first_list for each in (one, two, three)))
            versions = {}
            for name in (f"job-{number}" for number in range(10)):
                cluster.api.create(JOBS, job(name, finalizers=[KOPFS]), namespace)
                cluster.api.patch(JOBS, name, {"spec": {"suspend": True}}, namespace=namespace)
                last = {"status": {"phase": "Running"}}
                stored = cluster.api.patch(JOBS, name, last, namespace=namespace, subresource="status")
                versions[name] = stored["metadata"]["resourceVersion"]
            cluster.api.delete(JOBS, "before", namespace)
            await until(lambda: all(set(versions) <= {name for _, name in each} for each in told))
            await until(lambda: all(("MODIFIED", "before") in each for each in told))  # it is being deleted
            await asyncio.sleep(1.5)  # longer than kopf's workers live, whose final writes would have happened by then
            assert api_proxy.asked(method="^(?!GET$)") == []
            assert {method for each in (one, two, three) for method in each.requests} == {"GET"}
            stored_now = {each["metadata"]["name"]: each["metadata"] for each in cluster.api.list(JOBS, namespace)}
            assert {name: stored_now[name]["resourceVersion"] for name in versions} == versions
            assert stored_now["before"]["finalizers"] == [KOPFS, "tests.sparkonce.dev/ours"]

    try:
        run(scene)
    finally:
        for each in cluster.api.list(JOBS, namespace):
            cluster.api.patch(JOBS, each["metadata"]["name"], {"metadata": {"finalizers": None}}, namespace=namespace)


@pytest.mark.parametrize("event", [None, error_event(410, "Expired"), error_event(500), error_event(429)])
def test_a_broken_stream_ends_nothing(
    cluster: Cluster, api_proxy: ApiProxy, namespace: str, event: dict[str, Any] | None
) -> None:
    """After a closed stream, a 410 or ERROR events that end kopf itself, later changes are reported."""
    cluster.api.create(JOBS, job("a"), namespace)

    async def scene() -> None:
        async with triggered(api_proxy.kubeconfig, namespace) as (trigger, told):
            await until(lambda: trigger.seen_first_list and api_proxy.watching())
            assert (api_proxy.inject(event) if event else api_proxy.close_watches()) == 1
            await until(lambda: api_proxy.count(watch=True) >= 2)
            cluster.api.create(JOBS, job("b"), namespace)
            await until(lambda: any(name == "b" for _, name in told))
            listed_again = told.count((None, "a")) == 2
            assert listed_again == (event is not None)
            assert trigger.restarts == (0 if event is None or event["object"]["code"] == 410 else 1)
            assert trigger.seen_first_list

    run(scene)


@pytest.mark.parametrize("code", [500, 429, 403, 401, 404])
def test_errors_for_a_while_end_nothing(cluster: Cluster, api_proxy: ApiProxy, namespace: str, code: int) -> None:
    """While every call fails nothing is reported; afterwards everything is. Each error occurred more than once."""

    async def scene() -> None:
        async with triggered(api_proxy.kubeconfig, namespace) as (trigger, told):
            await until(lambda: trigger.seen_first_list and api_proxy.watching())
            failing = api_proxy.answer(code)
            api_proxy.close_watches()
            await until(lambda: failing.hits >= 2)
            cluster.api.create(JOBS, job("a"), namespace)
            assert told == []
            failing.clear()
            await until(lambda: any(name == "a" for _, name in told), 30)

    run(scene)


def test_an_api_server_that_is_killed_comes_back(cluster: Cluster, kubeconfig: Path, namespace: str) -> None:
    """After SIGKILL and a restart of the API server later objects are reported."""

    async def scene() -> None:
        async with triggered(kubeconfig, namespace) as (trigger, told):
            await until(lambda: trigger.seen_first_list)
            cluster.server.kill()
            cluster.server.begin()
            await asyncio.to_thread(cluster.server.until_ready)
            cluster.api.create(JOBS, job("a"), namespace)
            await until(lambda: any(name == "a" for _, name in told), 40)

    run(scene)


def test_a_watch_that_is_not_opened_again_is_dead(api_proxy: ApiProxy, namespace: str) -> None:
    """If kopf's watch has not been opened again for `silence` seconds, kopf is ended and started again."""

    async def scene() -> None:
        async with triggered(api_proxy.kubeconfig, namespace, silence=1.5) as (trigger, _):
            await until(lambda: trigger.restarts >= 2, 30)
            assert trigger.seen_first_list

    run(scene)


def test_waits_for_its_kind_to_be_served(cluster: Cluster, kubeconfig: Path, namespace: str) -> None:
    """Started before its CRD exists, the trigger waits and does not report that it has seen a list; it also survives the CRD's deletion and
    return."""
    kind = Resource("tests.sparkonce.dev", "v1", "gadgets", "Gadget")
    schema = {"openAPIV3Schema": {"type": "object"}}
    crd = {
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {"kind": kind.kind, "plural": kind.plural},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }

    async def scene() -> None:
        async with triggered(kubeconfig, namespace, resource=kind) as (trigger, told):
            await until(lambda: trigger.quiet > 0.5)
            assert not trigger.seen_first_list
            for name in ("first", "second"):
                cluster.api.create(CRDS, crd)
                await until(lambda: cluster.serves(kind))
                await until(lambda: _made(cluster, kind, namespace, "probe"))
                cluster.api.create(kind, {"metadata": {"name": name}}, namespace)
                await until(lambda: told and told[-1][1] == name, 40)  # noqa: B023  # it is waited for in the same turn
                assert trigger.seen_first_list
                cluster.api.delete(CRDS, f"{kind.plural}.{kind.group}")
                await until(lambda: not cluster.serves(kind))

    run(scene)


def _made(cluster: Cluster, kind: Resource, namespace: str, name: str) -> bool:
    if cluster.api.get(kind, name, namespace) is None:
        cluster.api.create(kind, {"metadata": {"name": name}}, namespace)
    return True


def test_stopped_it_tells_nothing_more(cluster: Cluster, kubeconfig: Path, namespace: str) -> None:
    """After `stop` its thread is gone and a new object is not reported; a trigger that never connected can be stopped as well."""

    async def scene() -> None:
        async with triggered(kubeconfig, namespace) as (trigger, told):
            await until(lambda: trigger.seen_first_list)
            await trigger.stop()
            assert not any(each.name == "kopf" for each in threading.enumerate())
            cluster.api.create(JOBS, job("late"), namespace)
        assert told == []
        async with triggered(cluster.kubeconfig_for("https://127.0.0.1:1"), namespace) as (trigger, _):
            await until(lambda: trigger.quiet > 0.3)
        assert not any(each.name == "kopf" for each in threading.enumerate())

    run(scene)
