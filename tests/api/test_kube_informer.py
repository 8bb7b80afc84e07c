"""The informer on a real API server: its cache, its callbacks, and the faults that it survives."""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from api.scenes import run, until
from harness.api_faults import ApiProxy, error_event
from harness.apiserver import Cluster
from harness.kube_api import CONFIG_MAPS, CRDS
from sparkonce.kube.client import ApiClient
from sparkonce.kube.login import KubeLogin
from sparkonce.kube.transport import Limits
from sparkonce.kube.watch import Informer, ObjectChange, Pace
from sparkonce.launch.kubernetes import Json, Resource

LABEL = "sparkonce.dev/key"
QUICK = Pace(first=0.05, cap=0.5)
Told = list[tuple[str, str]]


@asynccontextmanager
async def watching(
    kubeconfig: Path,
    namespace: str | list[str] | None,
    *,
    resource: Resource = CONFIG_MAPS,
    pace: Pace = QUICK,
    **more: Any,
) -> AsyncIterator[tuple[Informer, Told]]:
    told: Told = []

    def tell(change: ObjectChange, found: Json) -> None:
        told.append((change.value, found["metadata"]["name"]))

    client = ApiClient(KubeLogin(kubeconfig), limits=Limits(deadline=5, page=2))
    informer = Informer(
        client,
        resource,
        namespaces=[namespace] if isinstance(namespace, str) else namespace,
        index=LABEL,
        on_change=tell,
        pace=pace,
        **more,
    )
    informer.start()
    try:
        yield informer, told
    finally:
        await informer.stop()
        await client.close()


def make(cluster: Cluster, namespace: str, *names: str, labels: dict[str, str] | None = None) -> None:
    for name in names:
        cluster.api.create(CONFIG_MAPS, {"metadata": {"name": name, "labels": labels or {}}}, namespace)


def names(informer: Informer, namespace: str, *known: str) -> list[str]:
    return [name for name in known if informer.get(namespace, name) is not None]


def test_lists_in_pages_then_follows(cluster: Cluster, kubeconfig: Path, namespace: str) -> None:
    """Five objects in pages of two are all reported as added; later creations, changes and deletions are reported once each."""
    make(cluster, namespace, "a", "b", "c", "d", "e", labels={LABEL: "k1"})

    async def scene() -> None:
        async with watching(kubeconfig, namespace, selector=LABEL) as (informer, told):
            await until(lambda: informer.synced)
            assert sorted(told) == [("added", each) for each in "abcde"]
            assert [each["metadata"]["name"] for each in informer.labelled(namespace, LABEL, "k1")] == list("abcde")
            told.clear()

            make(cluster, namespace, "f", labels={LABEL: "k2"})
            cluster.api.patch(CONFIG_MAPS, "a", {"data": {"x": "1"}}, namespace=namespace)
            cluster.api.delete(CONFIG_MAPS, "b", namespace)
            await until(lambda: len(told) == 3)
            assert told == [("added", "f"), ("modified", "a"), ("deleted", "b")]
            assert len(informer) == 5
            assert not informer.labelled(namespace, LABEL, "none")

            cluster.api.patch(CONFIG_MAPS, "f", {"metadata": {"labels": {LABEL: "k1"}}}, namespace=namespace)
            await until(lambda: ("modified", "f") in told)
            assert not informer.labelled(namespace, LABEL, "k2")
            cluster.api.patch(CONFIG_MAPS, "f", {"metadata": {"labels": {LABEL: None}}}, namespace=namespace)
            await until(lambda: ("deleted", "f") in told)  # the object exists, but is no longer selected
            assert informer.get(namespace, "f") is None

    run(scene)


def test_two_namespaces_of_three(cluster: Cluster, kubeconfig: Path, namespace: str) -> None:
    """An informer of two named namespaces has and reports the objects of both, those that were there and those made since, and none of a
    third one."""
    other, third = "default", "kube-public"
    placed = {"a": namespace, "b": other, "c": third, "d": third, "e": namespace, "f": other}

    def made(*wanted: str) -> None:
        for name in wanted:
            make(cluster, placed[name], name, labels={LABEL: "k"})

    async def scene() -> None:
        async with watching(kubeconfig, [namespace, other], selector=LABEL) as (informer, told):
            await until(lambda: informer.synced)
            assert sorted(told) == [("added", "a"), ("added", "b")]
            made("d", "e", "f")
            await until(lambda: len(told) > 3)
            assert sorted(told[2:]) == [("added", "e"), ("added", "f")]
            seen = [name for name in placed if informer.get(placed[name], name) is not None]
            assert (seen, len(informer)) == (["a", "b", "e", "f"], 4)

    try:
        made("a", "b", "c")
        run(scene)
    finally:
        for name, where in placed.items():
            if where != namespace and cluster.api.get(CONFIG_MAPS, name, where) is not None:
                cluster.api.delete(CONFIG_MAPS, name, where)


@pytest.mark.parametrize("event", [None, error_event(410, "Expired"), error_event(500), error_event(429)])
def test_a_broken_stream_loses_nothing(
    cluster: Cluster, api_proxy: ApiProxy, namespace: str, event: dict[str, Any] | None
) -> None:
    """After a closed stream, a 410 or an ERROR event of another code the informer continues, and reports what was created and deleted
    meanwhile."""
    make(cluster, namespace, "a", "b")
    again = Pace(first=0.3, cap=0.5)

    async def scene() -> None:
        async with watching(api_proxy.kubeconfig, namespace, pace=again) as (informer, told):
            await until(lambda: informer.synced and api_proxy.watching())
            told.clear()
            assert (api_proxy.inject(event) if event else api_proxy.close_watches()) == 1
            await until(lambda: not api_proxy.watching())
            make(cluster, namespace, "c")
            cluster.api.delete(CONFIG_MAPS, "a", namespace)
            await until(lambda: ("added", "c") in told and ("deleted", "a") in told)
            await until(lambda: informer.synced)
            assert names(informer, namespace, "a", "b", "c") == ["b", "c"]
            assert (("relisted", "b") in told) == (event is not None)

    run(scene)


@pytest.mark.operator
def test_what_was_deleted_while_the_version_expired_is_told(
    cluster: Cluster, api_proxy: ApiProxy, namespace: str
) -> None:
    """While the API server answers 410 to the watch, one object is deleted and another is deleted and created again under its name: both
    are reported."""
    make(cluster, namespace, "a", "b")

    async def scene() -> None:
        async with watching(api_proxy.kubeconfig, namespace) as (informer, told):
            await until(lambda: informer.synced and api_proxy.watching())
            told.clear()
            down = api_proxy.answer(503)
            api_proxy.close_watches()
            await until(lambda: not informer.synced)
            cluster.api.delete(CONFIG_MAPS, "a", namespace)
            cluster.api.delete(CONFIG_MAPS, "b", namespace)
            make(cluster, namespace, "b")
            down.clear()
            expired = api_proxy.answer(410, watch=True)
            await until(lambda: expired.hits >= 2)
            expired.clear()
            await until(lambda: informer.synced)
            assert [each for each in told if each[0] != "relisted"] == [
                ("deleted", "b"),
                ("added", "b"),
                ("deleted", "a"),
            ]

    run(scene)


@pytest.mark.parametrize("code", [500, 504, 429, 403, 401, 404])
def test_errors_for_a_while(cluster: Cluster, api_proxy: ApiProxy, namespace: str, code: int) -> None:
    """While every call fails the cache is kept and `synced` is False; afterwards it is up to date again."""
    make(cluster, namespace, "a")

    async def scene() -> None:
        async with watching(api_proxy.kubeconfig, namespace) as (informer, told):
            await until(lambda: informer.synced and api_proxy.watching())
            failing = api_proxy.answer(code)
            api_proxy.close_watches()
            await until(lambda: failing.hits > 6)
            assert not informer.synced
            assert informer.get(namespace, "a") is not None
            assert [each for each in told if each[0] == "deleted"] == []
            make(cluster, namespace, "b")
            failing.clear()
            await until(lambda: ("added", "b") in told)
            await until(lambda: informer.synced)

    run(scene)


def test_new_credentials_lose_nothing(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """The credentials change while a watch is open, as a service account's token does every hour: the stream is opened again with the new
    ones within the deadline of a call, and later changes are reported."""
    path = tmp_path / "kubeconfig"
    path.write_bytes(cluster.kubeconfig.read_bytes())

    async def scene() -> None:
        clock = time.monotonic()
        login = KubeLogin(path, clock=lambda: clock)
        client = ApiClient(login, limits=Limits(deadline=1))
        informer = Informer(client, CONFIG_MAPS, namespaces=[namespace], index=LABEL, pace=QUICK)
        informer.start()
        try:
            await until(lambda: informer.synced)
            make(cluster, namespace, "before")
            await until(lambda: names(informer, namespace, "before"))
            document = json.loads(path.read_text())
            document["clusters"][0]["cluster"]["server"] = cluster.url.replace("127.0.0.1", "localhost")
            path.write_text(json.dumps(document))
            clock += 61.0
            assert await client.get(CONFIG_MAPS, namespace, "before") is not None
            opened = informer.quiet
            await until(lambda: informer.quiet < opened, timeout=10)
            make(cluster, namespace, "after")
            await until(lambda: names(informer, namespace, "after"), timeout=10)
        finally:
            await informer.stop()
            await client.close()

    run(scene)


def test_silence_is_noticed(cluster: Cluster, api_proxy: ApiProxy, namespace: str) -> None:
    """A stream without events for `silence` seconds is opened again where it left off, and nothing is missed."""
    pace = Pace(first=0.05, cap=0.5, silence=1.0)

    async def scene() -> None:
        api_proxy.hush()
        async with watching(api_proxy.kubeconfig, namespace, pace=pace) as (_, told):
            await until(api_proxy.watching)
            make(cluster, namespace, "a")
            await until(lambda: api_proxy.count(watch=True) >= 2)
            assert told == []
            api_proxy.clear()
            await until(lambda: told == [("added", "a")])
            assert api_proxy.count(watch=False) == 1  # the watch was resumed, without another list

    run(scene)


def test_an_api_server_that_is_killed_comes_back(cluster: Cluster, kubeconfig: Path, namespace: str) -> None:
    """SIGKILL and a restart: not synced while the server is down, the cache is kept, and later changes are reported."""
    make(cluster, namespace, "a")

    async def scene() -> None:
        async with watching(kubeconfig, namespace) as (informer, told):
            await until(lambda: informer.synced)
            cluster.server.kill()
            try:
                await until(lambda: not informer.synced)
                assert informer.get(namespace, "a") is not None
            finally:
                cluster.server.begin()  # in the main thread, because a child dies with the thread that started it
                await asyncio.to_thread(cluster.server.until_ready)
            cluster.api.delete(CONFIG_MAPS, "a", namespace)
            await until(lambda: ("deleted", "a") in told)
            await until(lambda: informer.synced)

    run(scene)


def test_a_kind_that_is_not_served_yet_is_waited_for(cluster: Cluster, kubeconfig: Path, namespace: str) -> None:
    """Without its CRD an informer is not synced and retries; once the kind is served it is synced. When the CRD is gone, the cache keeps
    what was not reported as deleted, and the informer sees the objects of the next CRD."""
    kind = Resource("tests.sparkonce.dev", "v1", "widgets", "Widget")
    crd = {
        "metadata": {"name": "widgets.tests.sparkonce.dev"},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {"kind": kind.kind, "plural": kind.plural},
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
            ],
        },
    }

    def served() -> bool:
        return cluster.serves(kind)

    async def scene() -> None:
        async with watching(kubeconfig, namespace, resource=kind) as (informer, told):
            await asyncio.sleep(0.3)  # time for a few tries
            assert not informer.synced
            for name in ("first", "second"):
                cluster.api.create(CRDS, crd)
                await until(served)
                await until(lambda: informer.synced)
                cluster.api.create(kind, {"metadata": {"name": name}}, namespace)
                await until(functools.partial(told.__contains__, ("added", name)))
                cluster.api.delete(CRDS, f"{kind.plural}.{kind.group}")
                await until(lambda: not served())
                await until(lambda: not informer.synced)

    run(scene)
