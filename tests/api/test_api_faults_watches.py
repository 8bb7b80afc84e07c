"""Watches end, expire, fail or report falsely: changes that they missed are found, and false reports stop nothing.

Sweeps are too rare to help here: the watches find everything by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.api_faults import ApiProxy, error_event
from harness.apiserver import Cluster
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.fleet import Fleet, plain
from harness.kubeflow import FakeKubeflow, Script
from sparkonce.launch.kubernetes import JOBS, PODS, SPARK_APPLICATIONS

Hurt = Callable[[ApiProxy, str], int]

NEVER = "600"
"""Seconds between two sweeps."""
KINDS = ("/idempotentjobs$", "/sparkapplications$", "/pods$")
SOON = 30.0
"""Seconds: a failed watch waits ten at most, kopf twenty, and the first failures wait less."""

FAULTS: dict[str, Hurt] = {
    "closed": lambda proxy, path: proxy.close_watches(path=path),
    "410": lambda proxy, path: proxy.expire_watches(path=path),
    "500": lambda proxy, path: proxy.inject(error_event(500), path=path),
    "429": lambda proxy, path: proxy.inject(error_event(429), path=path),
}


@pytest.fixture
def fleet(
    cluster: Cluster, ledger_server: Etcd, namespace: str, install: str, tmp_path: Path, *, api_proxy: ApiProxy
) -> Iterator[Fleet]:
    options = ("--sweep-seconds", NEVER)
    kubeconfig = api_proxy.kubeconfig
    with Fleet(cluster, ledger_server, namespace, install, tmp_path, options=options, kubeconfig=kubeconfig) as started:
        yield started


@pytest.mark.parametrize("fault", FAULTS)
def test_watches_that_end_are_taken_up_again(
    fault: str, fleet: Fleet, kubeflow: FakeKubeflow, api_proxy: ApiProxy
) -> None:
    """All three watches end in this way, twice, while jobs run: the ends of those jobs are seen, and so are jobs applied in between and
    afterwards."""
    kubeflow.scripts.usual = Script(run_seconds=1)
    fleet.start(1)
    for turn in range(2):
        fleet.apply(plain(2, name=f"before-{turn}"))
        assert_eventually(lambda turn=turn: len(kubeflow.runs) >= 4 * turn + 2, SOON)  # type: ignore[misc] # a default in a lambda has no type
        for kind in KINDS:
            assert FAULTS[fault](api_proxy, kind) >= 1, kind
        fleet.apply(plain(2, name=f"after-{turn}"))
        fleet.until_ended(SOON)
        assert_eventually(lambda: all(api_proxy.watching(path=kind) for kind in KINDS), SOON)
    fleet.audit(kubeflow)


@pytest.mark.operator
def test_a_deletion_that_did_not_happen_stops_nothing(
    fleet: Fleet, kubeflow: FakeKubeflow, api_proxy: ApiProxy, cluster: Cluster, namespace: str
) -> None:
    """The watches report the deletion of the object, its application and its driver pod while all three exist: the driver runs to its end,
    and the object gets the result."""
    kubeflow.scripts.usual = Script(run_seconds=4)
    fleet.start(1)
    fleet.apply(plain(2))
    assert_eventually(lambda: len(kubeflow.runs) == 2 and fleet.witness.phases()["Running"] == 2, SOON)
    for resource in (JOBS, PODS, SPARK_APPLICATIONS):
        for found in cluster.api.list(resource, namespace):
            body = {"apiVersion": resource.api_version, "kind": resource.kind, **found}
            assert api_proxy.inject({"type": "DELETED", "object": body}, path=f"/{resource.plural}$") == 1
    fleet.until_ended(SOON)
    assert [run.exit_code for run in kubeflow.runs] == [0, 0]
    assert not stopped(cluster, namespace)
    fleet.audit(kubeflow)


def test_watches_that_are_silent_cost_time_and_nothing_else(
    fleet: Fleet, kubeflow: FakeKubeflow, api_proxy: ApiProxy
) -> None:
    """Watches of applications and pods stay open without events: when they end, the missed changes are found."""
    kubeflow.scripts.usual = Script(run_seconds=0.2)
    fleet.start(1)
    api_proxy.hush(path="/(sparkapplications|pods)$")
    fleet.apply(plain(3))
    assert_eventually(lambda: len(kubeflow.runs) == 3 and all(run.ended for run in kubeflow.runs), SOON)
    assert fleet.ended() == 0
    api_proxy.clear()
    for kind in KINDS[1:]:
        assert api_proxy.close_watches(path=kind) == 1
    fleet.until_ended(SOON)
    fleet.audit(kubeflow)


def stopped(cluster: Cluster, namespace: str) -> list[Any]:
    """Applications that were suspended."""
    return [each for each in cluster.api.list(SPARK_APPLICATIONS, namespace) if each["spec"].get("suspend")]
