"""Writes lose their replies or requests, conflict, or are refused for now: nothing is done twice, and nothing is left undone."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.api_faults import ApiProxy
from harness.apiserver import Cluster
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.fleet import Fleet, plain
from harness.jobs import job
from harness.kube_api import ApiError, path_of
from harness.kubeflow import FakeKubeflow, Script
from sparkonce.launch.kubernetes import JOBS, SPARK_APPLICATIONS, Resource

CREATES = r"/sparkapplications$"
STATUSES = r"/idempotentjobs/[^/]+/status$"
QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
SOON = 40.0
"""Seconds for a handful of jobs: five on a quiet machine, but nine test runs may share two cores."""


@pytest.fixture
def fleet(
    cluster: Cluster, ledger_server: Etcd, namespace: str, install: str, tmp_path: Path, *, api_proxy: ApiProxy
) -> Iterator[Fleet]:
    with Fleet(cluster, ledger_server, namespace, install, tmp_path, kubeconfig=api_proxy.kubeconfig) as started:
        yield started


@pytest.mark.operator
def test_a_create_without_an_answer_makes_one_application(
    fleet: Fleet, kubeflow: FakeKubeflow, api_proxy: ApiProxy
) -> None:
    """Three creates take effect and lose their replies, and six requests never arrive: six jobs have six applications, and no attempt
    beyond the first."""
    faults = [
        api_proxy.lose_reply(method="POST", path=CREATES, times=3),
        api_proxy.lose_request(method="POST", path=CREATES, times=6),
    ]
    fleet.start(1)
    fleet.apply(plain(6))
    fleet.until_ended(SOON)
    assert [fault.hits for fault in faults] == [3, 6]
    assert len(api_proxy.asked(method="POST", path=CREATES)) >= 12
    fleet.audit(kubeflow)


@pytest.mark.operator
def test_a_status_write_without_an_answer_is_repeated_and_never_goes_back(
    fleet: Fleet, kubeflow: FakeKubeflow, api_proxy: ApiProxy
) -> None:
    """Of the first eight status writes half take effect and lose their replies, and half never arrive: every job shows its end, no status
    goes back, and nothing runs twice."""
    faults = [
        api_proxy.lose_reply(method="PATCH", path=STATUSES, times=4),
        api_proxy.lose_request(method="PATCH", path=STATUSES, times=4),
    ]
    fleet.start(1)
    fleet.apply(plain(6))
    fleet.until_ended(SOON)
    assert [fault.hits for fault in faults] == [4, 4]
    fleet.audit(kubeflow)


@contextmanager
def rival(cluster: Cluster, namespace: str, names: list[str]) -> Iterator[Callable[[], float]]:
    """Another client that patches labels and status messages of these objects as fast as the API server allows. What it gives counts how
    often each has been patched."""
    stop = threading.Event()
    failed: list[BaseException] = []
    number = 0

    def work() -> None:
        nonlocal number
        try:
            with cluster.server.client() as api:
                while not stop.is_set():
                    number += 1
                    name = names[number % len(names)]
                    api.patch(JOBS, name, {"metadata": {"labels": {"rival": str(number)}}}, namespace=namespace)
                    said = {"status": {"message": f"rival {number}"}}
                    api.patch(JOBS, name, said, namespace=namespace, subresource="status")
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, name="rival", daemon=True)
    thread.start()
    try:
        yield lambda: number / len(names)
    finally:
        stop.set()
        thread.join()
    if failed:
        raise failed[0]


def test_somebody_else_writes_into_the_objects_all_the_time(
    fleet: Fleet, kubeflow: FakeKubeflow, api_proxy: ApiProxy, cluster: Cluster, namespace: str
) -> None:
    """Twelve status writes are delivered once somebody else has written into all objects: each is refused, computed again from the current
    object and written again, and all jobs show their ends."""
    kubeflow.scripts.usual = Script(run_seconds=0.5)
    names = fleet.apply(plain(6))
    with rival(cluster, namespace, names) as rounds:
        late = api_proxy.delay(2, method="PATCH", path=STATUSES, times=12, clock=rounds)
        fleet.start(1)
        fleet.until_ended(SOON)
    assert late.hits == 12
    assert sum(each.status == 409 for each in api_proxy.asked(method="PATCH", path=STATUSES)) >= 12
    fleet.audit(kubeflow)
    for name in names:
        assert "rival" in fleet.witness.jobs[name]["metadata"]["labels"]  # fields of other writers are kept


def test_statuses_that_cannot_be_written_delay_nobody_else(
    fleet: Fleet, kubeflow: FakeKubeflow, api_proxy: ApiProxy
) -> None:
    """Every status write of forty jobs is answered 500, as by a webhook that is down: the forty run, and three other jobs show their ends
    within ten seconds. Once the webhook is up again, the forty get their statuses."""
    down = api_proxy.answer(500, method="PATCH", path=r"/idempotentjobs/sick-\d+/status$")
    fleet.start(1)
    fleet.apply(plain(40, name="sick"))
    assert_eventually(lambda: len(kubeflow.runs) == 40, SOON)
    assert_eventually(lambda: down.hits >= 80, SOON)
    well = fleet.apply(plain(3, name="well"))
    fleet.witness.until_ended(well, 10, hint=fleet.tails)
    down.clear()
    fleet.until_ended(SOON)
    fleet.audit(kubeflow)


def test_too_many_requests_are_asked_again_when_the_api_server_said(
    fleet: Fleet, kubeflow: FakeKubeflow, api_proxy: ApiProxy
) -> None:
    """Every create is answered 429 with `Retry-After: 2`: each job asks again after two seconds and not before, and then runs once."""
    refused = api_proxy.answer(429, method="POST", path=CREATES, retry_after=2)
    fleet.start(1)
    fleet.apply(plain(1))
    assert_eventually(lambda: refused.hits >= 3, SOON)
    refused.clear()
    fleet.until_ended(SOON)
    asked = [each.at for each in api_proxy.asked(method="POST", path=CREATES)]
    assert all(later - earlier > 1.9 for earlier, later in itertools.pairwise(asked)), asked
    fleet.audit(kubeflow)


def test_a_quota_holds_a_job_up_and_does_not_end_it(
    fleet: Fleet, kubeflow: FakeKubeflow, api_proxy: ApiProxy, cluster: Cluster, namespace: str
) -> None:
    """Creates are answered 403 while a quota allows no application: the status says so, and without the quota the same attempt starts."""
    _forbid_applications(cluster, namespace)
    fleet.start(1)
    names = fleet.apply(plain(2))

    def told() -> None:
        for name in names:
            status = _status(cluster, name, namespace)
            assert status.get("phase") == "Pending", status
            assert "exceeded quota" in status.get("message", ""), status

    assert_eventually(told, SOON)
    assert not kubeflow.runs
    cluster.api.delete(QUOTAS, "none", namespace)
    fleet.until_ended(SOON)
    fleet.audit(kubeflow)


def _forbid_applications(cluster: Cluster, namespace: str) -> None:
    """Forbids applications by a quota. No controller computes quotas here, so this writes the quota's status as well."""
    limits = {f"count/{SPARK_APPLICATIONS.plural}.{SPARK_APPLICATIONS.group}": "0"}
    cluster.api.create(QUOTAS, {"metadata": {"name": "none"}, "spec": {"hard": limits}}, namespace)
    status = {"status": {"hard": limits, "used": limits}}
    cluster.api.patch(QUOTAS, "none", status, namespace=namespace, subresource="status")
    probe = {
        "apiVersion": SPARK_APPLICATIONS.api_version,
        "kind": SPARK_APPLICATIONS.kind,
        "metadata": {"name": "probe"},
        "spec": job("probe", key="probe")["spec"]["template"]["spec"],
    }

    def refused() -> None:
        with pytest.raises(ApiError, match=r"403 Forbidden: .* exceeded quota"):
            cluster.api.request("POST", path_of(SPARK_APPLICATIONS, namespace), probe, dryRun="All")

    assert_eventually(refused, 20)


def _status(cluster: Cluster, name: str, namespace: str) -> dict[str, Any]:
    found = cluster.api.get(JOBS, name, namespace)
    assert found is not None
    status = found.get("status") or {}
    assert isinstance(status, dict)
    return status
