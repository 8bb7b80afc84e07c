"""The NetworkPolicies of the rendered chart: which pods may connect to which port. tests/cluster tests them on a real network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.helm import NAMESPACE, component_of, documented, everything, notes, pod_of, rendered

pytestmark = pytest.mark.operator


def selected(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether a label selector matches. Supports `matchLabels` and the operator `In`, all that the chart and its values use."""
    wanted = [
        {"key": key, "operator": "In", "values": [value]} for key, value in selector.get("matchLabels", {}).items()
    ]
    for each in [*wanted, *selector.get("matchExpressions", [])]:
        assert each["operator"] == "In"
        if labels.get(each["key"]) not in each["values"]:
            return False
    return True


def admitted(objects: list[dict[str, Any]], component: str, port: str, namespace: str, pod: dict[str, str]) -> bool:
    """Whether a pod with these labels, in this namespace, may connect to this port of a component."""
    labels = {"kubernetes.io/metadata.name": namespace}
    (policy,) = (each for each in objects if each["kind"] == "NetworkPolicy" and component_of(each) == component)
    for rule in policy["spec"].get("ingress", []):
        if {"port": port} not in rule["ports"]:
            continue
        for peer in rule["from"]:
            space = peer.get("namespaceSelector")
            there = namespace == NAMESPACE if space is None else selected(space, labels)
            if there and selected(peer.get("podSelector", {}), pod):
                return True
    return False


PROMETHEUS = {"app.kubernetes.io/name": "prometheus"}


def test_the_platform_of_the_guide_admits_its_prometheus(tmp_path: Path) -> None:
    """The values of docs/helm.md admit Prometheus to what it scrapes: its pods only, in its namespace only. Teams reach the gateway and not
    the operators."""
    done = documented()["platform"].template(tmp_path)
    assert done.returncode == 0, done.stderr
    objects = [each for each in yaml.safe_load_all(done.stdout) if each]
    scraped = {component_of(each) for each in objects if each["kind"] == "ServiceMonitor"}
    assert scraped == {"operator", "gateway"}
    for component in scraped:
        assert admitted(objects, component, "http", "monitoring", PROMETHEUS), component
        assert not admitted(objects, component, "http", "monitoring", {"app.kubernetes.io/name": "grafana"}), component
        assert not admitted(objects, component, "http", "other", PROMETHEUS), component
    for team, port in (("team-a", True), ("team-c", False)):
        assert admitted(objects, "gateway", "http", team, {}) is port
        assert not admitted(objects, "operator", "http", team, {})
    assert not admitted(objects, "test", "http", NAMESPACE, PROMETHEUS)


def test_selectors_of_prometheus_hold_for_all_that_is_scraped() -> None:
    """Prometheus' selectors open the metrics ports of operator, gateway, proxy and etcd, and never etcd's port for clients; a pod selector
    alone holds in every namespace."""
    sets = [*everything(), "watch.namespaces={team-a}"]
    ports = {"operator": "http", "gateway": "http", "proxy": "metrics", "etcd": "metrics"}

    def may(*more: str, namespace: str = "monitoring", pod: dict[str, str] = PROMETHEUS) -> set[str]:
        objects = rendered(sets=[*sets, *more])
        assert not admitted(objects, "etcd", "client", namespace, pod)
        return {each for each, port in ports.items() if admitted(objects, each, port, namespace, pod)}

    space = "networkPolicy.prometheusNamespaceSelector.matchLabels.kubernetes\\.io/metadata\\.name=monitoring"
    pods = "networkPolicy.prometheusPodSelector.matchLabels.app\\.kubernetes\\.io/name=prometheus"
    assert may() == {"operator", "proxy", "etcd"}  # as before the chart had a pod selector
    for more in ((space,), (pods,), (space, pods)):
        assert may(*more) == set(ports)
        assert may(*more, namespace="team-b", pod={}) == set()
    assert may(pods, namespace="team-b") == set(ports)
    assert may(space, pods, namespace="team-b") == set()


def labels_of(objects: list[dict[str, Any]], component: str) -> dict[str, str]:
    """The labels of this component's pods."""
    (pod,) = (pod_of(each) for each in objects if each["kind"] == "Deployment" and component_of(each) == component)
    assert pod is not None
    return dict(pod["metadata"]["labels"])


WEB = "networkPolicy.proxyNamespaceSelector.matchLabels.kubernetes\\.io/metadata\\.name=web"


@pytest.mark.parametrize(
    ("sets", "teams"),
    [
        ([], {"team-a", "team-b", "web"}),
        (["watch.namespaces={team-a,team-b}"], {"team-a", "team-b"}),
        (["watch.namespaces={team-a}", WEB], {"web"}),
    ],
)
def test_the_proxy_admits_its_clients_and_no_others(sets: list[str], teams: set[str]) -> None:
    """The selected namespaces, or else the watched ones, reach the proxy's port for requests and not the one for metrics, which `helm test`
    reaches."""
    shut = "networkPolicy.prometheusPodSelector.matchLabels.app\\.kubernetes\\.io/name=prometheus"
    objects = rendered(sets=[*everything(), *sets, shut])
    assert {each for each in ("team-a", "team-b", "web") if admitted(objects, "proxy", "http", each, {})} == teams
    assert not [each for each in teams if admitted(objects, "proxy", "metrics", each, {})]
    (test,) = (each for each in objects if each["kind"] == "Pod")
    assert admitted(objects, "proxy", "metrics", NAMESPACE, test["metadata"]["labels"])


def test_the_releases_etcd_admits_a_proxy_that_uses_it() -> None:
    """The proxy's pods reach etcd's port for clients, and that port alone, unless the proxy has a ledger of its own."""
    ours, own = (rendered(sets=[*everything(), *more]) for more in ([], ["proxy.store.existingSecret=answers"]))
    pod = labels_of(ours, "proxy")
    assert admitted(ours, "etcd", "client", NAMESPACE, pod)
    assert not admitted(ours, "etcd", "peer", NAMESPACE, pod)
    assert not admitted(own, "etcd", "client", NAMESPACE, pod)
    assert admitted(own, "etcd", "client", NAMESPACE, labels_of(own, "gateway"))


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["watch.namespaces={team-a}"], True),
        (["networkPolicy.gatewayNamespaceSelector.matchLabels.a=b"], True),
        ([], False),
        (["watch.namespaces={team-a}", "networkPolicy.prometheusPodSelector.matchLabels.a=b"], False),
        (["watch.namespaces={team-a}", "metrics.serviceMonitor.enabled=false"], False),
    ],
)
def test_the_notes_say_when_prometheus_is_shut_out(sets: list[str], said: bool, tmp_path: Path) -> None:
    """The notes warn when the gateway is scraped, its policy admits only others, and no value selects Prometheus."""
    assert ("shut Prometheus out" in notes(tmp_path, [*everything(), *sets])) is said
