"""One of three operators under load is killed, frozen or restarted: each job starts once and ends once, and no status goes back."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import ledgers
from harness.apiserver import Cluster
from harness.eventually import assert_eventually
from harness.fleet import ROWS, TTL, Applied, Fleet, failing_once, plain, rows_of, scripted, writing
from harness.kubeflow import FakeKubeflow
from harness.operators import OperatorProcess

pytestmark = pytest.mark.slow
Say = Callable[[str], None]

STEADY = 600
RATE = 20.0
"""Jobs per second: about what the cluster and three operators can do on two cores, so that work is always under way."""
WRITES_PER_JOB = 8.0
"""Writes of the operators to the API server: creating the application, statuses, events."""


@pytest.fixture
def fleet(cluster: Cluster, store: ledgers.Server, namespace: str, install: str, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(cluster, store, namespace, install, tmp_path) as started:
        yield started


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


def mixed(count: int, table: Path) -> list[Applied]:
    """Opaque jobs, opaque jobs that fail once, and jobs with outputs of which some fail once, in turns."""
    fifth = count // 5
    kinds = [
        plain(count - 3 * fifth),
        failing_once(fifth),
        writing(fifth, table),
        writing(fifth, table, name="late", fails=True),
    ]
    return [kind[n] for n in range(max(map(len, kinds))) for kind in kinds if n < len(kind)]


def of(jobs: list[Applied], *names: str) -> int:
    return sum(each.name.startswith(names) for each in jobs)


def until_busy(fleet: Fleet, *victims: OperatorProcess, ended: int) -> None:
    """Waits until some jobs have ended and each victim owns some that have not."""

    def busy() -> None:
        owners = Counter(fleet.owners().values())
        assert fleet.ended() >= ended, f"{fleet.ended()} have ended\n{fleet.tails()}"
        assert all(owners[each.pid] >= 2 for each in victims), f"{owners}\n{fleet.tails()}"

    assert_eventually(busy, timeout=60)


def all_is_well(fleet: Fleet, kubeflow: FakeKubeflow, jobs: list[Applied], table: Path) -> None:
    fleet.audit(kubeflow)
    assert rows_of(table) == Counter({n: of(jobs, "writes", "late") for n in ROWS})


@pytest.mark.parametrize("store", ["etcd", pytest.param("postgres", marks=pytest.mark.soak)], indirect=True)
def test_a_killed_operator_costs_no_attempt(fleet: Fleet, kubeflow: FakeKubeflow, table: Path, say: Say) -> None:
    """One of three operators is killed under load: its jobs end like all others, on the attempts that they had."""
    scripted(kubeflow)
    victim, *_ = fleet.start(3)
    jobs = mixed(100, table)
    with fleet.load(jobs, per_second=RATE):
        until_busy(fleet, victim, ended=10)
        victim.kill()
    took = fleet.until_ended(timeout=90)
    say(f"{len(jobs)} jobs; the last ended {took:.1f} s after the last was applied")
    all_is_well(fleet, kubeflow, jobs, table)


@pytest.mark.parametrize("store", ["postgres", pytest.param("etcd", marks=pytest.mark.soak)], indirect=True)
def test_all_operators_killed_at_once_cost_no_attempt(
    fleet: Fleet, kubeflow: FakeKubeflow, table: Path, say: Say
) -> None:
    """All three are killed at once, and drivers end while no operator runs: their successors finish the work."""
    scripted(kubeflow)
    fleet.start(3)
    jobs = mixed(50, table)
    with fleet.load(jobs, per_second=RATE):
        until_busy(fleet, *fleet.members, ended=3)
        for each in fleet.members:
            each.send(signal.SIGKILL)
        fleet.start(3)
    took = fleet.until_ended(timeout=90)
    say(f"{len(jobs)} jobs; the last ended {took:.1f} s after the next three were ready")
    all_is_well(fleet, kubeflow, jobs, table)


@pytest.mark.parametrize("store", ["etcd", pytest.param("postgres", marks=pytest.mark.soak)], indirect=True)
def test_a_frozen_operator_wakes_up_and_does_no_harm(
    fleet: Fleet, kubeflow: FakeKubeflow, table: Path, say: Say
) -> None:
    """One of three gets SIGSTOP under load until its lease has expired and its keys are taken, then SIGCONT: its pending writes change
    nothing, and it works again under a new lease."""
    scripted(kubeflow)
    victim, *_ = fleet.start(3)
    jobs = mixed(100, table)
    with fleet.load(jobs, per_second=RATE):
        until_busy(fleet, victim, ended=10)
        victim.freeze()
        frozen = time.monotonic()
        assert_eventually(lambda: victim.pid not in fleet.owners().values(), timeout=TTL + 10)
        assert_eventually(lambda: time.monotonic() > frozen + TTL + 1, timeout=TTL + 10)
        victim.thaw()
        assert_eventually(lambda: victim.pid in fleet.owners().values(), timeout=30)
    took = fleet.until_ended(timeout=90)
    say(f"{len(jobs)} jobs; the last ended {took:.1f} s after the last was applied")
    all_is_well(fleet, kubeflow, jobs, table)


@pytest.mark.soak  # tests/cluster has one with the chart, on etcd
@pytest.mark.parametrize("store", ["postgres", "etcd"], indirect=True)
def test_a_rolling_restart_loses_no_attempt_and_starts_none_twice(
    fleet: Fleet, kubeflow: FakeKubeflow, table: Path, say: Say
) -> None:
    """Each of three gets SIGTERM under load, one after the other, with its successor ready before the next one goes."""
    scripted(kubeflow)
    old = fleet.start(3)
    jobs = mixed(120, table)
    ends = []
    with fleet.load(jobs, per_second=RATE / 2):
        until_busy(fleet, *old, ended=10)
        for each in old:
            ends.append(each.terminate())
            fleet.start(1)
    took = fleet.until_ended(timeout=90)
    say(
        f"{len(jobs)} jobs; each SIGTERM took {max(ends):.1f} s at most; the last ended {took:.1f} s after the last was applied"
    )
    all_is_well(fleet, kubeflow, jobs, table)


def writes(cluster: Cluster) -> Counter[str]:
    """Writes to the API server since it started, by verb and resource, without those of the fake Spark operator, the node and the test."""
    counted: Counter[str] = Counter()
    for labels, value in cluster.api.metric("apiserver_request_total"):
        verb, resource = labels["verb"], "/".join(filter(None, (labels["resource"], labels["subresource"])))
        ours = resource in ("events", "idempotentjobs/status") or (resource == "sparkapplications" and verb != "APPLY")
        if ours and verb in (
            "POST",
            "PUT",
            "PATCH",
            "APPLY",
        ):  # the garbage collector deletes what earlier tests left
            counted[f"{verb} {resource} {labels['code']}"] += int(value)
    return counted


@pytest.mark.soak
@pytest.mark.parametrize("store", ["etcd", "postgres"], indirect=True)
def test_six_hundred_jobs_on_three_operators(fleet: Fleet, cluster: Cluster, kubeflow: FakeKubeflow, say: Say) -> None:
    """All jobs succeed, each with one application and one driver, and with few writes to the API server per job."""
    fleet.start(3)
    before = writes(cluster)
    jobs = plain(STEADY)
    began = time.monotonic()
    fleet.apply(jobs)
    applied = time.monotonic() - began
    fleet.until_ended(timeout=180)
    took = time.monotonic() - began
    for each in fleet.members:
        each.send(signal.SIGTERM)
    for each in fleet.members:
        each.terminated()  # they write their last events before they end
    wrote = writes(cluster) - before
    each_job = sum(wrote.values()) / STEADY
    say(
        f"{STEADY} jobs in {took:.1f} s ({STEADY / took:.1f} jobs/s; applied in {applied:.1f} s), {each_job:.2f} writes for each"
    )
    say(", ".join(f"{what}: {count / STEADY:.2f}" for what, count in sorted(wrote.items())) + " for each job")
    fleet.audit(kubeflow)
    assert each_job <= WRITES_PER_JOB
