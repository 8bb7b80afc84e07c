"""The chart's NetworkPolicies, enforced: exactly the intended callers get through."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from harness.eventually import assert_eventually
from harness.node import given
from harness.node.policies import LONG, Caller, caller, enforced
from harness.node.release import Release, values
from harness.node.scene import Scene
from sparkonce.launch.kubernetes import NAMESPACES

pytestmark = [pytest.mark.slow, pytest.mark.spark]

WATCHERS, STRANGERS = "watchers", "strangers"
"""Namespaces; Prometheus runs in the first."""
HTTP, CLIENT, PEER, METRICS = 8080, 2379, 2380, 2381
PLACES = {
    "operator": ("operator", HTTP),
    "gateway": ("gateway", HTTP),
    "ledger": ("etcd", CLIENT),
    "ledger's members": ("etcd", PEER),
    "ledger's metrics": ("etcd", METRICS),
}


@pytest.fixture
def callers(scene: Scene) -> Iterator[dict[str, Caller]]:
    """A pod for each kind of caller: in a namespace that runs jobs, in Prometheus' namespace, and in an unrelated one."""
    if given.KUBECONFIG in os.environ:
        pytest.skip("policies on a cluster of yours are its network's")  # never in CI, where a skip fails
    api = scene.cluster.api
    for name in (WATCHERS, STRANGERS):
        api.create(NAMESPACES, {"metadata": {"name": name}})
    yield {name: caller(scene.cluster, name) for name in (scene.namespace, WATCHERS, STRANGERS)}
    for name in (WATCHERS, STRANGERS):
        api.delete(NAMESPACES, name)


def reached(caller: Caller, release: Release) -> set[str]:
    """The places where every pod answers this caller."""

    def answers(component: str, port: int) -> bool:
        return all(caller.reaches(each["status"]["podIP"], port) for each in release.pods(component))

    return {place for place, (component, port) in PLACES.items() if answers(component, port)}


def test_only_who_is_meant_gets_through(scene: Scene, release: Release, callers: dict[str, Caller]) -> None:
    """Without policies every pod reaches everything. With them, teams reach the gateway, Prometheus reaches the metrics, and other pods
    reach nothing; a job still takes effect, its driver reports through the gateway, and `helm test` passes."""
    for each in callers.values():
        assert reached(each, release) == set(PLACES)

    def label(namespace: str) -> dict[str, object]:
        return {"matchLabels": {"kubernetes.io/metadata.name": namespace}}

    policies = {
        "enabled": True,
        "gatewayNamespaceSelector": label(scene.namespace),
        "prometheusNamespaceSelector": label(WATCHERS),
    }
    expected = {scene.namespace: {"gateway"}, WATCHERS: {"operator", "gateway", "ledger's metrics"}, STRANGERS: set()}
    with enforced(scene.cluster):
        Release(release.cluster, values={**values(), "networkPolicy": policies}).install()
        try:
            release.until_ready()
            for name, places in expected.items():
                assert_eventually(lambda n=name, p=places: reached(callers[n], release) == p, LONG)  # type: ignore[misc] # a default in a lambda has no type
            scene.send("guarded", end=True)
            scene.until_marked("guarded", "began")
            scene.open("guarded")
            scene.until_marked("guarded", "wrote")
            assert_eventually(lambda: scene.status("guarded").get("progress"), LONG)
            scene.gate("guarded.end").touch()
            assert scene.until("guarded", "Succeeded")["attempt"] == 1
            scene.once("guarded")
            assert "Phase:          Succeeded" in release.test()
            for name, places in expected.items():
                assert reached(callers[name], release) == places
        finally:
            release.install()
