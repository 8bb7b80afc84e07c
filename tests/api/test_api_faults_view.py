"""A kind, a permission or a namespace is lost to an operator: what runs continues, and so does the operator once it is back."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.api_faults import ApiProxy
from harness.apiserver import STRANGER, Cluster
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.fleet import Fleet, plain
from harness.kube_api import CRDS
from harness.kubeflow import FakeKubeflow, Script
from harness.kubeflow.drivers import waits_for, waits_unless_stopped
from harness.ledger_dump import dump
from harness.operators import OperatorProcess
from sparkonce.launch.kubernetes import JOBS, NAMESPACES, SPARK_APPLICATIONS

Json = dict[str, Any]

SOON = 40.0
"""Seconds: kopf may wait fifteen before it is started again."""
OFTEN = ("--sweep-seconds", "1")
"""Frequent sweeps, so that a mistake in a sweep shows during the test."""
LISTS = r"/namespaces/[^/]+/idempotentjobs$"
RBAC = "rbac.authorization.k8s.io"
EVERYTHING = ["get", "list", "watch", "create", "patch", "delete"]


@pytest.fixture
def fleet(
    cluster: Cluster, ledger_server: Etcd, namespace: str, install: str, tmp_path: Path, *, api_proxy: ApiProxy
) -> Iterator[Fleet]:
    kubeconfig = api_proxy.kubeconfig
    with Fleet(cluster, ledger_server, namespace, install, tmp_path, options=OFTEN, kubeconfig=kubeconfig) as started:
        yield started


@pytest.fixture
def end(kubeflow: FakeKubeflow) -> Iterator[threading.Event]:
    """Drivers run until this event is set, even if their pods are gone."""
    event = threading.Event()
    kubeflow.scripts.usual = Script(code=waits_for(event))
    yield event
    event.set()


@pytest.fixture
def crd(cluster: Cluster) -> Iterator[str]:
    """The name of our CRD, which is restored after the test."""
    yield f"{JOBS.plural}.{JOBS.group}"
    cluster.apply_crds()


def sweeps(api_proxy: ApiProxy, more: int) -> None:
    """Waits for this many more answered lists of IdempotentJobs; one of them may be kopf's, when it is started again."""

    def answered() -> int:
        return sum(each.status is not None for each in api_proxy.asked(method="GET", path=LISTS) if not each.watch)

    before = answered()
    assert_eventually(lambda: answered() >= before + more, SOON)


def stopped(cluster: Cluster, namespace: str) -> list[str]:
    """Applications that were suspended or deleted."""
    return [
        each["metadata"]["name"]
        for each in cluster.api.list(SPARK_APPLICATIONS, namespace)
        if each["spec"].get("suspend") or each["metadata"].get("deletionTimestamp")
    ]


def phase(cluster: Cluster, name: str, namespace: str) -> str:
    found = cluster.api.get(JOBS, name, namespace)
    return str(((found or {}).get("status") or {}).get("phase", ""))


def test_the_crd_is_deleted_and_comes_back(
    fleet: Fleet, kubeflow: FakeKubeflow, api_proxy: ApiProxy, cluster: Cluster, *, crd: str, end: threading.Event
) -> None:
    """Three applications continue although all objects vanish with their kind, and also when the kind is back without objects. Two objects
    are applied again: one is then deleted, which counts as a request, and the other gets the result of the earlier run. The job that has no
    object ends in the ledger. Each has one application."""
    kubeflow.scripts.usual = Script(code=waits_unless_stopped(end))
    [operator] = fleet.start(1)
    jobs = {each.name: each.body for each in plain(3)}
    withdrawn, awaited, _ = jobs
    fleet.apply(plain(3))
    assert_eventually(lambda: len(kubeflow.runs) == 3 and fleet.witness.phases()["Running"] == 3, SOON)
    cluster.api.delete(CRDS, crd)
    cluster.api.gone(CRDS, crd, timeout=SOON)
    assert_eventually(lambda: "idempotentjobs is not served" in operator.tail(), SOON)
    sweeps(api_proxy, 2)
    assert not stopped(cluster, fleet.namespace)

    cluster.apply_crds()
    sweeps(api_proxy, 3)
    assert not stopped(cluster, fleet.namespace)
    for name in (withdrawn, awaited):
        cluster.api.create(JOBS, jobs[name], fleet.namespace)
    assert_eventually(lambda: phase(cluster, awaited, fleet.namespace) == "Running", SOON)
    assert_eventually(lambda: phase(cluster, withdrawn, fleet.namespace) == "Running", SOON)
    cluster.api.delete(JOBS, withdrawn, fleet.namespace)

    def outcomes() -> list[str]:
        records = dump(fleet.etcd, fleet.install).records.values()
        return sorted(str(each.value["outcome"]) for each in records if each.value.get("outcome"))

    assert_eventually(lambda: outcomes() == ["Cancelled"], SOON)
    assert len(stopped(cluster, fleet.namespace)) == 1
    end.set()
    assert_eventually(lambda: phase(cluster, awaited, fleet.namespace) == "Succeeded", SOON)
    assert_eventually(lambda: outcomes() == ["Cancelled", "Succeeded", "Succeeded"], SOON)
    assert len(fleet.witness.applications) == 3
    assert len(kubeflow.runs) == 3


def test_permissions_are_taken_away_and_given_back(
    fleet: Fleet, kubeflow: FakeKubeflow, api_proxy: ApiProxy, cluster: Cluster, *, end: threading.Event
) -> None:
    """The API server answers 403 to everything in the namespace while jobs run, end and are applied: nothing is stopped or taken for lost,
    and the operator is not ready. With the permission restored all jobs end, each with one application."""
    fleet.kubeconfig = cluster.kubeconfig_for(api_proxy.url, token=STRANGER)
    with permitted(cluster, fleet.namespace):
        [operator] = fleet.start(1)
        fleet.apply(plain(3, name="running"))
        assert_eventually(lambda: len(kubeflow.runs) == 3 and fleet.witness.phases()["Running"] == 3, SOON)
    refused = len(statuses(api_proxy, 403))
    assert api_proxy.close_watches() == 3
    fleet.apply(plain(2, name="new"))
    sweeps(api_proxy, 2)
    assert_eventually(lambda: not operator.ready(), SOON)
    end.set()
    sweeps(api_proxy, 2)
    assert len(statuses(api_proxy, 403)) >= refused + 5
    assert not stopped(cluster, fleet.namespace)
    assert fleet.witness.phases() == {"Running": 3, "": 2}
    with permitted(cluster, fleet.namespace):
        fleet.until_ended(SOON)
        assert_eventually(operator.ready, SOON)
    fleet.audit(kubeflow)


def statuses(api_proxy: ApiProxy, code: int) -> list[str]:
    return [each.path for each in api_proxy.asked() if each.status == code]


@contextlib.contextmanager
def permitted(cluster: Cluster, namespace: str) -> Iterator[None]:
    """Grants an operator's rights in one namespace, and those by which it distinguishes a deleted object from a deleted kind."""
    who = {"kind": "User", "name": "stranger", "apiGroup": RBAC}
    there = [
        {"apiGroups": [JOBS.group], "resources": ["idempotentjobs", "idempotentjobs/status"], "verbs": EVERYTHING},
        {"apiGroups": [SPARK_APPLICATIONS.group], "resources": ["sparkapplications"], "verbs": EVERYTHING},
        {"apiGroups": [""], "resources": ["pods", "events"], "verbs": EVERYTHING},
    ]
    everywhere = [
        {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]},
        {"apiGroups": [CRDS.group], "resources": ["customresourcedefinitions"], "verbs": ["get"]},
    ]
    name = f"operator-{namespace}"
    bodies: list[tuple[str, Json, str | None]] = [
        ("Role", {"rules": there}, namespace),
        ("RoleBinding", {"roleRef": role("Role", name), "subjects": [who]}, namespace),
        ("ClusterRole", {"rules": everywhere}, None),
        ("ClusterRoleBinding", {"roleRef": role("ClusterRole", name), "subjects": [who]}, None),
    ]
    version = f"{RBAC}/v1"
    for kind, body, place in bodies:
        cluster.api.create(cluster.api.resource(version, kind), {"metadata": {"name": name}, **body}, place)
    try:
        yield
    finally:
        for kind, _, place in reversed(bodies):
            cluster.api.delete(cluster.api.resource(version, kind), name, place)


def role(kind: str, name: str) -> Json:
    return {"apiGroup": RBAC, "kind": kind, "name": name}


def test_an_operator_that_does_not_serve_the_namespace_stops_nothing_in_it(
    fleet: Fleet, kubeflow: FakeKubeflow, api_proxy: ApiProxy, cluster: Cluster, *, end: threading.Event
) -> None:
    """The install's next operator serves another namespace: it owns the unfinished keys, sees none of their objects and stops none of their
    applications. An operator that serves the first namespace again ends the jobs."""
    elsewhere = f"t-{uuid.uuid4().hex[:10]}"
    cluster.api.create(NAMESPACES, {"metadata": {"name": elsewhere}})
    [first] = fleet.start(1)
    fleet.apply(plain(2))
    assert_eventually(lambda: len(kubeflow.runs) == 2 and fleet.witness.phases()["Running"] == 2, SOON)
    first.kill()
    ledger = f"http://{fleet.etcd.one.address}"
    second = OperatorProcess(
        ledger, fleet.install, api_proxy.kubeconfig, [elsewhere], fleet.folder, name="elsewhere", options=OFTEN
    )
    fleet.members.append(second.start())
    assert_eventually(lambda: set(fleet.owners().values()) == {second.pid}, SOON)
    sweeps(api_proxy, 3)
    assert not stopped(cluster, fleet.namespace)
    second.terminate()
    fleet.start(1)
    end.set()
    fleet.until_ended(SOON)
    fleet.audit(kubeflow)
    cluster.api.delete(NAMESPACES, elsewhere)
