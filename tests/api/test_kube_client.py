"""The client on a real API server: the meaning of each answer, and of none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from api.scenes import job, run
from harness.api_faults import ApiProxy
from harness.apiserver import STRANGER, Cluster
from harness.kube_api import CONFIG_MAPS
from harness.patience import Patience, promised
from sparkonce.kube.client import ApiClient
from sparkonce.kube.login import KubeLogin
from sparkonce.kube.transport import Limits
from sparkonce.launch.kubernetes import (
    JOBS,
    NAMESPACES,
    PODS,
    AlreadyExists,
    ApiConflict,
    ApiRefused,
    ApiUnavailable,
    Kubernetes,
    Resource,
)
from sparkonce.model.crd_status import UNWRITTEN

NOWHERE = Resource("nowhere.sparkonce.dev", "v1", "things", "Thing")
UNSERVED = Resource("sparkonce.dev", "v1alpha1", "things", "Thing")
"""A kind whose group and version are served."""
Calls = list[tuple[str, str, str]]


@asynccontextmanager
async def client_of(kubeconfig: Path, **limits: Any) -> AsyncIterator[tuple[ApiClient, Calls]]:
    calls: Calls = []
    client = ApiClient(KubeLogin(kubeconfig), limits=Limits(**limits), on_call=lambda *call: calls.append(call))
    try:
        yield client, calls
    finally:
        await client.close()


def document(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": JOBS.api_version, "kind": JOBS.kind, **job(name, **spec)}


def test_a_life(kubeconfig: Path, namespace: str) -> None:
    """One object is created, read, listed, patched and deleted; each call is reported with its verb, kind and result."""

    async def scene() -> None:
        async with client_of(kubeconfig) as (client, calls):
            kubernetes: Kubernetes = client
            made = await kubernetes.create(JOBS, namespace, document("a"))
            uid, version = made["metadata"]["uid"], made["metadata"]["resourceVersion"]
            assert await kubernetes.get(JOBS, namespace, "a") == made
            assert await kubernetes.list(JOBS, namespace) == [made]
            assert await kubernetes.list(JOBS, namespace, labels={"no": "such"}) == []
            change = {"metadata": {"uid": uid, "resourceVersion": version}, "status": {"phase": "Running"}}
            changed = await kubernetes.patch(JOBS, namespace, "a", change, subresource="status")
            assert changed is not None
            assert changed["status"] == UNWRITTEN | {"phase": "Running"}
            assert await kubernetes.delete(JOBS, namespace, "a", uid=uid) is True
            assert await kubernetes.delete(JOBS, namespace, "a", uid=uid) is False
            assert await kubernetes.get(JOBS, namespace, "a") is None
            assert await kubernetes.patch(JOBS, namespace, "a", change, subresource="status") is None
            verbs = ["create", "get", "list", "list", "patch", "delete", "delete", "get", "patch"]
            results = ["ok"] * 6 + ["absent"] * 3
            assert calls == [(verb, "IdempotentJob", result) for verb, result in zip(verbs, results, strict=True)]

    run(scene)


def test_a_list_is_read_in_pages(kubeconfig: Path, namespace: str, cluster: Cluster) -> None:
    """Seven objects in pages of three take three calls and give one list; each has the kind, which the API server omits in lists."""
    for number in range(7):
        cluster.api.create(CONFIG_MAPS, {"metadata": {"name": f"c{number}"}}, namespace)

    async def scene() -> None:
        async with client_of(kubeconfig, page=3) as (client, calls):
            found = await client.list(CONFIG_MAPS, namespace)
            assert [each["metadata"]["name"] for each in found] == [f"c{number}" for number in range(7)]
            assert {(each["apiVersion"], each["kind"]) for each in found} == {("v1", "ConfigMap")}
            assert len(calls) == 3

    run(scene)


def test_what_is_taken_and_what_is_invalid(kubeconfig: Path, namespace: str) -> None:
    """A taken name is AlreadyExists. An invalid object is refused for good and names its fields once each; a missing namespace is a
    refusal, too, but not as invalid."""

    async def scene() -> None:
        async with client_of(kubeconfig) as (client, calls):
            await client.create(JOBS, namespace, document("a"))
            with pytest.raises(AlreadyExists) as taken:
                await client.create(JOBS, namespace, document("a"))
            assert (taken.value.code, taken.value.reason) == (409, "AlreadyExists")
            with pytest.raises(ApiRefused) as invalid:
                await client.create(JOBS, namespace, document("b", idempotencyKey="", onDelete="Explode"))
            assert invalid.value.invalid
            assert set(invalid.value.fields) == {"spec.idempotencyKey", "spec.onDelete"}
            assert "create IdempotentJob" in str(invalid.value)
            with pytest.raises(ApiRefused, match="there is no namespace nowhere") as nowhere:
                await client.create(JOBS, "nowhere", document("a"))
            assert not nowhere.value.invalid
            assert [result for *_, result in calls] == ["ok", "exists", "refused", "refused"]

    run(scene)


def test_preconditions(kubeconfig: Path, namespace: str) -> None:
    """Another version or another UID is a conflict and changes nothing; a deletion for another UID deletes nothing."""

    async def scene() -> None:
        async with client_of(kubeconfig) as (client, calls):
            made = await client.create(JOBS, namespace, document("a"))
            old = {"resourceVersion": "1", "uid": made["metadata"]["uid"]}
            with pytest.raises(ApiConflict):
                await client.patch(
                    JOBS, namespace, "a", {"metadata": old, "status": {"phase": "Held"}}, subresource="status"
                )
            with pytest.raises(ApiConflict):
                await client.patch(JOBS, namespace, "a", {"metadata": {"uid": "another"}, "spec": {"suspend": True}})
            assert await client.delete(JOBS, namespace, "a", uid="another") is False
            assert await client.get(JOBS, namespace, "a") == made
            assert [result for *_, result in calls[1:4]] == ["conflict"] * 3
            with pytest.raises(ValueError, match="not a precondition"):  # the API server would ignore it there
                await client.patch(JOBS, namespace, "a", {"metadata": {"uid": "another"}}, subresource="status")
            with pytest.raises(ValueError, match="not a name"):  # without a name it would be a list
                await client.get(JOBS, namespace, "")

    run(scene)


def test_not_there_is_not_the_same_as_not_served(kubeconfig: Path, namespace: str) -> None:
    """None means that this object does not exist. A kind that is not served, with or without its group, is no answer; `served`
    distinguishes the two."""

    async def scene() -> None:
        async with client_of(kubeconfig) as (client, _):
            assert await client.get(JOBS, namespace, "none") is None
            assert await client.get(JOBS, "nowhere", "none") is None
            assert await client.get(NAMESPACES, None, "nowhere") is None
            for kind in (NOWHERE, UNSERVED):
                assert not await client.served(kind)
                for call in (
                    client.get(kind, namespace, "none"),
                    client.list(kind, namespace),
                    client.patch(kind, namespace, "none", {"spec": {}}),
                    client.delete(kind, namespace, "none", uid="u"),
                    client.create(kind, namespace, {"metadata": {"name": "none"}}),
                ):
                    with pytest.raises(ApiUnavailable, match="CustomResourceDefinition"):
                        await call
            assert await client.served(JOBS)
            assert await client.served(PODS)

    run(scene)


def test_who_may_not_is_refused(cluster: Cluster, namespace: str) -> None:
    """Missing permission is 403 and an unknown token 401: both are answers, and `get` never returns None for them."""

    async def scene() -> None:
        for token, code in ((STRANGER, 403), ("unknown", 401)):
            async with client_of(cluster.kubeconfig_for(cluster.url, token=token)) as (client, _):
                for call in (client.get(JOBS, namespace, "a"), client.create(JOBS, namespace, document("a"))):
                    with pytest.raises(ApiRefused) as refused:
                        await call
                    assert refused.value.code == code

    run(scene)


def test_a_new_token_is_found(cluster: Cluster, namespace: str) -> None:
    """After a 401 the kubeconfig is read again: once its token is right, the same client is accepted."""
    kubeconfig = cluster.kubeconfig_for(cluster.url, token="unknown")

    async def scene() -> None:
        async with client_of(kubeconfig) as (client, _):
            with pytest.raises(ApiRefused):
                await client.get(JOBS, namespace, "a")
            kubeconfig.write_text(cluster.kubeconfig.read_text())
            patience = Patience(10)
            while not patience.over():
                try:
                    assert await client.get(JOBS, namespace, "a") is None
                except ApiRefused:
                    await asyncio.sleep(0.1)
                else:
                    return
            raise AssertionError("the new token was never used")

    run(scene)


@pytest.mark.operator
def test_a_create_whose_reply_was_lost_has_landed(api_proxy: ApiProxy, namespace: str) -> None:
    """The caller gets an unknown outcome, the create was sent once, and the object exists: repeating the create finds it."""

    async def scene() -> None:
        async with client_of(api_proxy.kubeconfig) as (client, calls):
            lost = api_proxy.lose_reply(method="POST", times=None)
            with pytest.raises(ApiUnavailable):
                await client.create(JOBS, namespace, document("a"))
            assert api_proxy.count(method="POST") == 1
            lost.clear()
            with pytest.raises(AlreadyExists):
                await client.create(JOBS, namespace, document("a"))
            assert [result for *_, result in calls] == ["unavailable", "exists"]

    run(scene)


@pytest.mark.parametrize("code", [500, 502, 503, 504])
def test_a_server_error_proves_nothing(api_proxy: ApiProxy, namespace: str, code: int) -> None:
    """5xx is unknown for every verb, and no request is sent twice."""

    async def scene() -> None:
        async with client_of(api_proxy.kubeconfig) as (client, _):
            api_proxy.answer(code)
            for call in (
                client.create(JOBS, namespace, document("a")),
                client.get(JOBS, namespace, "a"),
                client.patch(JOBS, namespace, "a", {"spec": {}}),
                client.delete(JOBS, namespace, "a", uid="u"),
                client.list(JOBS, namespace),
                client.served(JOBS),
            ):
                with pytest.raises(ApiUnavailable, match=str(code)):
                    await call
            assert api_proxy.count() == 6

    run(scene)


def test_a_frozen_api_server_is_no_answer(cluster: Cluster, kubeconfig: Path, namespace: str) -> None:
    """With the API server stopped by SIGSTOP each call ends at its deadline, even one that waits for a slot; once it continues, so does the
    client."""

    async def scene() -> None:
        async with client_of(kubeconfig, deadline=1.0, writes=2) as (client, _):
            assert await client.get(JOBS, namespace, "a") is None
            loop = asyncio.get_running_loop()
            with cluster.server.frozen():
                began = loop.time()
                calls = [client.create(JOBS, namespace, document(f"j{number}")) for number in range(6)]
                ended = await asyncio.gather(*calls, return_exceptions=True)
                assert [type(each) for each in ended] == [ApiUnavailable] * 6
                assert loop.time() - began < promised(1.0)
            patience = Patience(20)
            while not patience.over():
                try:
                    await client.get(JOBS, namespace, "a")
                except ApiUnavailable:
                    continue
                return
            raise AssertionError("it never went on")

    run(scene)


def test_at_most_so_many_writes_at_a_time(api_proxy: ApiProxy, namespace: str) -> None:
    """Of twenty concurrent creates at most `writes` are under way, and all succeed."""
    api_proxy.delay_reply(0.1, method="POST")
    most = 0

    async def count() -> None:
        nonlocal most
        while True:
            most = max(most, sum(each.status is None for each in api_proxy.asked(method="POST")))
            await asyncio.sleep(0.005)

    async def scene() -> None:
        counting = asyncio.create_task(count())
        async with client_of(api_proxy.kubeconfig, writes=3) as (client, _):
            await asyncio.gather(*(client.create(JOBS, namespace, document(f"j{number}")) for number in range(20)))
            assert len(await client.list(JOBS, namespace)) == 20
        counting.cancel()

    run(scene)
    assert most == 3
