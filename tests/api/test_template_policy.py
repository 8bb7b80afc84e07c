"""The admission policy of docs/templates.md: a real API server accepts it, and refuses the pods that it describes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.apiserver import Cluster
from harness.eventually import assert_eventually
from harness.kube_api import ApiError
from sparkonce.launch.kubernetes import NAMESPACES, PODS, Resource

pytestmark = pytest.mark.operator

PAGE = Path(__file__).resolve().parents[2] / "docs" / "templates.md"
POLICIES, BINDINGS = (
    Resource("admissionregistration.k8s.io", "v1", f"{kind.lower()[:-1]}{ending}", kind, namespaced=False)
    for kind, ending in (("ValidatingAdmissionPolicy", "ies"), ("ValidatingAdmissionPolicyBinding", "gs"))
)
LABEL = {"spark-tenants": "true"}


@pytest.fixture
def tenant(cluster: Cluster, namespace: str) -> Iterator[str]:
    """A namespace with the policy."""
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    policy, binding = yaml.safe_load_all(block)
    made = [(POLICIES, policy), (BINDINGS, binding)]
    for resource, document in made:
        cluster.api.create(resource, document)
    cluster.api.patch(NAMESPACES, namespace, {"metadata": {"labels": LABEL}})
    yield namespace
    for resource, document in made:
        cluster.api.delete(resource, document["metadata"]["name"])


def pod(name: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "spark-kubernetes-driver", "image": "registry.example/spark:1", **spec.pop("container", {})}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


ATTACKS: dict[str, dict[str, Any]] = {
    "hostPath volumes": {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]},
    "privileged containers": {"container": {"securityContext": {"privileged": True}}},
    "the host's network": {"hostNetwork": True},
    "images come from": {"container": {"image": "docker.example/miner"}},
}


def test_the_policy_of_the_page_refuses_what_it_names(cluster: Cluster, tenant: str) -> None:
    """Each pod that the page describes is refused with the page's sentence; an ordinary job's driver is created."""

    def refusal(spec: dict[str, Any]) -> str:
        try:
            cluster.api.create(PODS, pod("attack", **spec), tenant)
        except ApiError as refused:
            return refused.message
        cluster.api.delete(PODS, "attack", tenant)  # the policy is not enforced yet
        return ""

    for message, spec in ATTACKS.items():
        assert message in assert_eventually(partial(refusal, spec), 30)
    cluster.api.create(PODS, pod("driver", volumes=[{"name": "scratch", "emptyDir": {}}]), tenant)
    cluster.api.delete(PODS, "driver", tenant)
