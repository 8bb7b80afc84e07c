"""The rights of a tenant and its pods at the API server with the chart's roles: everything in their own namespace that the roles grant, and
nothing elsewhere.

`tests/chart/test_rbac.py` compares the rights of operator and gateway with their calls, `test_gateway_trust.py` covers the audiences of
tokens, and `tests/cluster/test_network_policies.py` the network. This module covers the tenants' own rights: those of a namespace's
administrator and of a driver's pod.
"""

from __future__ import annotations

import ssl
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from harness.apiserver import STRANGER, Cluster
from harness.gateways import ACCOUNT, ROLE_BINDINGS, bound_token
from harness.helm import NAMESPACE, RELEASE, rendered
from harness.jobs import job
from harness.kube_api import SECRETS, SERVICE_ACCOUNTS, Api, ApiError, Json, path_of
from harness.tenants import ADMINISTRATOR
from sparkonce.launch.kubernetes import JOBS, NAMESPACES, PODS, Resource

LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
CERTIFICATES = f"{RELEASE}-sparkonce-etcd-client"
"""A Secret of the release with the ledger's key, as the chart names it."""
KUBERNETES = ("system:aggregate-to-admin", "system:aggregate-to-edit", "system:aggregate-to-view")
"""The roles from which Kubernetes aggregates its role `admin`; the controller that aggregates does not run here."""
CHART = tuple(f"{NAMESPACE}-{RELEASE}-sparkonce-{name}" for name in ("admin", "edit", "view"))
RBAC = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")


@dataclass(frozen=True)
class Teams:
    cluster: Cluster
    own: str
    other: str
    administrator: Api
    """Has Kubernetes' role `admin` and those of the chart in its own namespace."""
    driver: Api
    """Authenticated with the API server's token of a driver's pod."""
    stranger: Api
    tokens: tuple[str, str]
    """Of the administrator and of the driver."""


def account(cluster: Cluster, namespace: str, name: str) -> None:
    cluster.api.create(SERVICE_ACCOUNTS, {"metadata": {"name": name}}, namespace)


def bind(cluster: Cluster, namespace: str, name: str, role: str) -> None:
    binding = {
        "metadata": {"name": f"{name}-{role.replace(':', '-')}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }
    cluster.api.create(ROLE_BINDINGS, binding, namespace)


@pytest.fixture(scope="module")
def teams(cluster: Cluster) -> Iterator[Teams]:
    """Two namespaces that a release watches, with an object, a pod and an account each, and the release's own objects."""
    own, other = (f"t-{role}-{uuid.uuid4().hex[:8]}" for role in ("own", "other"))
    pods: dict[str, Json] = {}
    with ExitStack() as stack:
        for name in (NAMESPACE, own, other):
            cluster.api.create(NAMESPACES, {"metadata": {"name": name}})
            stack.callback(cluster.api.delete, NAMESPACES, name)
        sets = ["etcd.bundled.enabled=true", "crds.install=false", f"watch.namespaces={{{own},{other}}}"]
        for each in rendered(sets=sets):
            if each["kind"] in RBAC:
                cluster.api.apply(each, each["metadata"].get("namespace"))
        for namespace in (own, other):
            account(cluster, namespace, ACCOUNT)
            cluster.api.create(JOBS, job("load", key="load"), namespace)
            container = {"name": "c", "image": "registry.example/c"}
            spec = {"serviceAccountName": ACCOUNT, "containers": [container]}
            pods[namespace] = cluster.api.create(PODS, {"metadata": {"name": "driver"}, "spec": spec}, namespace)
            cluster.api.create(SECRETS, {"metadata": {"name": "lake"}, "stringData": {"key": "k"}}, namespace)
        cluster.api.create(SECRETS, {"metadata": {"name": CERTIFICATES}, "stringData": {"tls.key": "k"}}, NAMESPACE)
        cluster.api.create(LEASES, {"metadata": {"name": "elected"}, "spec": {"holderIdentity": "a"}}, NAMESPACE)
        account(cluster, own, ADMINISTRATOR)
        for role in (*KUBERNETES, *CHART):
            bind(cluster, own, ADMINISTRATOR, role)
        tokens = (
            bound_token(cluster.api, own, ADMINISTRATOR, [], None),
            bound_token(cluster.api, own, ACCOUNT, [], pods[own]),
        )
        administrator, driver, stranger = (
            stack.enter_context(cluster.server.client(token)) for token in (*tokens, STRANGER)
        )
        yield Teams(cluster, own, other, administrator, driver, stranger, tokens)


def rules(api: Api, namespace: str) -> set[tuple[str, str, str, str]]:
    """What the caller may do in the namespace and to cluster-wide objects, as the API server reports it: group, resource, name, verb."""
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": namespace}}
    status = api.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body)["status"]
    assert not status["incomplete"], status
    return {
        (group, resource, name, verb)
        for rule in status["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames") or [""]
        for verb in rule["verbs"]
    }


def refused(api: Api, method: str, path: str, body: Mapping[str, Any] | None = None, **how: Any) -> None:
    with pytest.raises(ApiError) as told:
        api.request(method, path, body, **how)
    assert told.value.code == 403, f"{method} {path}: {told.value}"


def test_a_tenant_has_no_right_outside_its_namespace(teams: Teams) -> None:
    """In other teams' namespaces, in the release's and cluster-wide, a namespace's administrator and its drivers' pods have the rights of a
    user without a role: they may review their own rights."""
    for namespace in (teams.other, NAMESPACE, "kube-system", "default"):
        everybody = rules(teams.stranger, namespace)
        assert rules(teams.administrator, namespace) == everybody, namespace
        assert rules(teams.driver, namespace) == everybody, namespace
    assert {resource for _, resource, _, _ in rules(teams.stranger, teams.other)} <= {
        *("selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"),
    }


def test_a_tenants_rights_at_home_are_those_of_the_chart(teams: Teams) -> None:
    """A namespace's administrator edits jobs and decides about keys, but cannot write statuses. Its drivers' pods have no rights, so a
    compromised image has none."""
    granted = rules(teams.administrator, teams.own)
    ours = {(resource, verb) for group, resource, _, verb in granted if group == "sparkonce.dev"}
    edits = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
    reads = ("get", "list", "watch")
    decisions = ("rerun", "cancel", "resolve", "forget")
    assert ours == {
        *(("idempotentjobs", verb) for verb in edits),
        *(("idempotentjobs/status", verb) for verb in reads),
        *((f"idempotentjobs/{decision}", "update") for decision in decisions),
    }
    assert rules(teams.driver, teams.own) == rules(teams.stranger, teams.own)
    own = path_of(JOBS, teams.own, "load")
    merge = "application/merge-patch+json"
    refused(teams.administrator, "PATCH", f"{own}/status", {"status": {"epoch": 9}}, content_type=merge)
    teams.administrator.request("PATCH", own, {"metadata": {"labels": {"a": "b"}}}, content_type=merge)


def test_a_tenants_requests_to_others_are_refused(teams: Teams) -> None:
    """Each verb on the other team's job, pod, secret and account, on the release's certificates and leases, and reviews of tokens and of
    other users' rights get 403 from the real API server, with both tokens, and every object stays unchanged."""
    merge = "application/merge-patch+json"
    targets = [
        (JOBS, teams.other, "load"),
        (PODS, teams.other, "driver"),
        (SECRETS, teams.other, "lake"),
        (SERVICE_ACCOUNTS, teams.other, ACCOUNT),
        (SECRETS, NAMESPACE, CERTIFICATES),
        (SERVICE_ACCOUNTS, NAMESPACE, f"{RELEASE}-sparkonce-operator"),
        (LEASES, NAMESPACE, "elected"),
    ]

    def versions() -> list[str]:
        found = [teams.cluster.api.get(resource, name, namespace) for resource, namespace, name in targets]
        return [each["metadata"]["resourceVersion"] for each in found if each is not None]

    before = versions()
    assert len(before) == len(targets)
    for api in (teams.administrator, teams.driver):
        for resource, namespace, name in targets:
            one, all_of = path_of(resource, namespace, name), path_of(resource, namespace)
            body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": "mine"}}
            refused(api, "GET", one)
            refused(api, "GET", all_of)
            refused(api, "GET", all_of, watch="true")
            refused(api, "POST", all_of, body)
            refused(api, "PUT", one, {**body, "metadata": {"name": name}})
            refused(api, "PATCH", one, {"metadata": {"labels": {"a": "b"}}}, content_type=merge)
            refused(api, "DELETE", one)
            refused(api, "DELETE", all_of)
        refused(
            api, "PATCH", path_of(JOBS, teams.other, "load", "status"), {"status": {"epoch": 9}}, content_type=merge
        )
        refused(api, "GET", path_of(PODS, teams.other, "driver", "log"))
        for namespace, name in ((teams.other, ACCOUNT), (NAMESPACE, f"{RELEASE}-sparkonce-gateway")):
            request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
            refused(api, "POST", path_of(SERVICE_ACCOUNTS, namespace, name, "token"), request)
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "x"}}
        refused(api, "POST", "/apis/authentication.k8s.io/v1/tokenreviews", review)
        asked = {"user": "admin", "resourceAttributes": {"verb": "get", "resource": "secrets"}}
        access = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": asked}
        refused(api, "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", access)
        refused(api, "GET", path_of(JOBS))
    assert versions() == before


def test_a_tenant_cannot_act_as_another(teams: Teams) -> None:
    """Impersonation of the operator, of the other team's drivers or of an administrator is refused, with both tokens."""
    others = [
        {"Impersonate-User": "admin", "Impersonate-Group": "system:masters"},
        {"Impersonate-User": f"system:serviceaccount:{NAMESPACE}:{RELEASE}-sparkonce-operator"},
        {"Impersonate-User": f"system:serviceaccount:{teams.other}:{ACCOUNT}"},
    ]
    trust = ssl.create_default_context(cafile=str(teams.cluster.certificates.ca))
    with httpx.Client(verify=trust, trust_env=False, base_url=teams.cluster.url) as client:
        for token in teams.tokens:
            for headers in others:
                answer = client.get(
                    path_of(JOBS, teams.own, "load"), headers={**headers, "Authorization": f"Bearer {token}"}
                )
                assert (answer.status_code, "cannot impersonate" in answer.text) == (403, True), answer.text
