"""etcd is near its quota or beyond it: nothing new is started, started jobs end, and users get the reason."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from harness.apiserver import Cluster, folder_in_memory
from harness.ballast import FLAGS, QUOTA, fill, fill_up, make_room
from harness.etcd import running
from harness.eventually import assert_eventually
from harness.fleet import Applied, Fleet
from harness.jobs import job
from harness.kubeflow import FakeKubeflow, Script
from harness.kubeflow.drivers import waits_for
from harness.ledger_dump import dump
from sparkonce.launch.kubernetes import EVENTS, JOBS

SOON = 60.0
"""Seconds for what takes a few on a quiet machine."""


@pytest.fixture
def fleet(cluster: Cluster, namespace: str, install: str, tmp_path: Path) -> Iterator[Fleet]:
    """A fleet whose operators know the quota and sweep every few seconds instead of once a minute."""
    with (
        folder_in_memory() as folder,
        running(folder, flags=FLAGS) as etcd,
        Fleet(cluster, etcd, namespace, install, tmp_path, sweep_seconds=3.0) as started,
    ):
        started.ledger = f"etcd://{etcd.one.address}?quota={QUOTA}"
        yield started


def status(fleet: Fleet, name: str) -> dict[str, Any]:
    return (fleet.witness.jobs.get(name) or {}).get("status") or {}


def reserved(fleet: Fleet, name: str) -> tuple[str, str]:
    """Status and reason of the condition Reserved."""
    listed = [each for each in status(fleet, name).get("conditions", ()) if each["type"] == "Reserved"]
    return (listed[0]["status"], listed[0]["reason"]) if listed else ("", "")


def refused_now(fleet: Fleet) -> str:
    """The name of a new job that is refused. Jobs before it may be accepted, since operators cache the database's size for five seconds."""
    names = (f"new-{number}" for number in count())

    def answered(name: str) -> bool:
        return fleet.witness.phase(name) == "Succeeded" or reserved(fleet, name) == ("False", "StoreFull")

    def refused() -> str:
        name = next(names)
        fleet.apply([Applied(job(name, key=name))])
        assert_eventually(lambda: answered(name), SOON)
        return name if fleet.witness.phase(name) == "Pending" else ""

    return assert_eventually(refused, 20.0, interval=0.5)


def test_what_was_begun_ends_when_etcd_is_nearly_full(fleet: Fleet, kubeflow: FakeKubeflow) -> None:
    """At 80 % of etcd's quota a new job is refused by its status and an event, while running jobs are finalized, and the same job under
    another name gets the result. When etcd accepts no writes at all, a result waits; once there is room it is written, and the new job
    starts."""
    first, second = threading.Event(), threading.Event()
    kubeflow.on(Script(code=waits_for(first)), argument="first")
    kubeflow.on(Script(code=waits_for(second)), argument="second")
    (operator,) = fleet.start(1)
    begun = [Applied(job(name, key=name, arguments=(name,))) for name in ("first", "second")]
    fleet.apply(begun)
    assert_eventually(lambda: {fleet.witness.phase(each.name) for each in begun} == {"Running"}, SOON)

    fill(fleet.etcd, 0.8)
    new = refused_now(fleet)
    told = status(fleet, new)
    assert told["phase"] == "Pending" and "of its quota" in told["message"] and "defragment" in told["message"]

    def event() -> bool:
        listed = fleet.cluster.api.list(EVENTS, fleet.namespace, fields=f"involvedObject.name={new}")
        return any(each["reason"] == "StoreFull" and each["type"] == "Warning" for each in listed)

    assert_eventually(event, SOON)
    keys = {each.value["key"] for each in dump(fleet.etcd, fleet.install).records.values()}
    assert keys == set(fleet.applied) - {new}
    assert 'sparkonce_reservations_total{outcome="Full"}' in operator.metrics()
    first.set()
    assert_eventually(lambda: fleet.witness.phase("first") == "Succeeded", SOON)
    again = job("first-again", key="first", arguments=("first",))
    fleet.cluster.api.create(JOBS, again, fleet.namespace)
    assert_eventually(lambda: status(fleet, "first-again").get("replayed") is True, SOON)

    fill_up(fleet.etcd)
    second.set()
    assert_eventually(lambda: "quota" in status(fleet, "second").get("message", ""), SOON)
    assert fleet.witness.phase("second") == "Running"
    assert len(kubeflow.runs) == len(fleet.applied) - 1
    make_room(fleet.etcd)
    fleet.until_ended(SOON)
    fleet.audit(kubeflow)
