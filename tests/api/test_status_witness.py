"""A tenant forges the status of its own object: its namespace is frozen, and another tenant's jobs run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.apiserver import ADMIN, Cluster
from harness.eventually import assert_eventually
from harness.jobs import job
from harness.kube_api import ApiError
from harness.kubeflow import FakeKubeflow
from harness.operators import OperatorProcess
from harness.patience import completed
from sparkonce.launch.kubernetes import EVENTS, JOBS, NAMESPACES

IN_TIME = 45.0
"""Seconds for what takes one or two on a quiet machine."""


@dataclass
class Tenants:
    cluster: Cluster
    ledger: str
    install: str
    operator: OperatorProcess
    one: str
    other: str

    def send(self, namespace: str, name: str) -> None:
        self.cluster.api.create(JOBS, job(name, key=name), namespace)

    def status(self, namespace: str, name: str) -> dict[str, Any]:
        found = self.cluster.api.get(JOBS, name, namespace)
        return dict((found or {}).get("status") or {})

    def until(self, namespace: str, name: str, phase: str) -> dict[str, Any]:
        def there() -> dict[str, Any]:
            status = self.status(namespace, name)
            assert status.get("phase") == phase, f"{status}\n{self.operator.tail()}"
            return status

        return assert_eventually(there, IN_TIME)

    def forge(self, namespace: str, name: str, **status: Any) -> None:
        """Writes a status, as anyone with the right to write statuses in the namespace can."""
        self.cluster.api.patch(JOBS, name, {"status": status}, namespace=namespace, subresource="status")


@pytest.fixture
def tenants(cluster: Cluster, ledger: str, install: str, namespace: str, tmp_path: Path) -> Iterator[Tenants]:
    other = f"{namespace}-other"
    cluster.api.create(NAMESPACES, {"metadata": {"name": other}})
    operator = OperatorProcess(ledger, install, cluster.kubeconfig, [namespace, other], tmp_path, sweep_seconds=2.0)
    with ExitStack() as stack:
        stack.callback(cluster.api.delete, NAMESPACES, other)
        for each in (namespace, other):
            stack.enter_context(FakeKubeflow(cluster.url, ca=cluster.certificates.ca, token=ADMIN, namespace=each))
        stack.callback(operator.end)
        operator.start()
        yield Tenants(cluster, ledger, install, operator, namespace, other)


@pytest.mark.operator
def test_a_forged_status_freezes_its_own_namespace(tenants: Tenants) -> None:
    """Revision and epoch of an object's status are forged: new jobs of its namespace wait with a condition that names the object, while the
    other tenant's jobs run and the operator is ready. One `accept-restore` ends this for good, although the forged epoch is ahead."""
    for namespace in (tenants.one, tenants.other):
        tenants.send(namespace, "first")
        tenants.until(namespace, "first", "Succeeded")
    tenants.forge(tenants.one, "first", ledgerRevision=10**12, epoch=9)
    assert_eventually(lambda: f"{tenants.one}/first" in tenants.operator.tail(), IN_TIME)
    tenants.send(tenants.one, "second")
    waits = tenants.until(tenants.one, "second", "Pending")
    [reserved] = [each for each in waits["conditions"] if each["type"] == "Reserved"]
    assert (reserved["status"], reserved["reason"]) == ("Unknown", "StoreRewound")
    assert f"{tenants.one}/first" in reserved["message"]
    for number in range(3):
        tenants.send(tenants.other, f"more-{number}")
    for number in range(3):
        tenants.until(tenants.other, f"more-{number}", "Succeeded")
    assert tenants.operator.said_ready().strip() == "ok"

    namespaces = [part for each in (tenants.one, tenants.other) for part in ("--namespace", each)]
    done = completed(
        [
            tenants.operator.python, "-m", "sparkonce", "doctor", "accept-restore", "--yes", *namespaces,
            "--kubeconfig", str(tenants.cluster.kubeconfig),
            "--store", tenants.ledger.replace("http://", "etcd://"), "--install", tenants.install,
        ],
        120.0,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tenants.until(tenants.one, "second", "Succeeded")
    tenants.send(tenants.one, "third")
    assert tenants.until(tenants.one, "third", "Succeeded")["epoch"] == 10


def test_a_status_beyond_all_bounds_proves_nothing(tenants: Tenants) -> None:
    """The API server refuses an epoch of 2^62; an epoch that no restore explains is reported as an event, overwritten, and freezes
    nothing."""
    tenants.send(tenants.one, "first")
    tenants.until(tenants.one, "first", "Succeeded")
    for field in ("epoch", "ledgerRevision"):
        for value in (2**62, -1):
            with pytest.raises(ApiError) as refused:
                tenants.forge(tenants.one, "first", **{field: value})
            assert refused.value.code == 422
    tenants.forge(tenants.one, "first", epoch=1000)
    assert_eventually(lambda: tenants.status(tenants.one, "first")["epoch"] == 1, IN_TIME)
    assert_eventually(
        lambda: any(
            each.get("reason") == "ImplausibleStatus" for each in tenants.cluster.api.list(EVENTS, tenants.one)
        ),
        IN_TIME,
    )
    tenants.send(tenants.one, "second")
    tenants.until(tenants.one, "second", "Succeeded")
