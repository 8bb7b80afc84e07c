"""The ledger is restored to an older state, or is empty: operators do nothing until a person accepts it, and then no job runs twice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import backup, ledgers
from harness.apiserver import Cluster
from harness.audit import Expected
from harness.chart_etcd import etcd_programs
from harness.eventually import assert_eventually
from harness.fleet import ROWS, Applied, Fleet, failing_once, plain, rows_of, scripted, writing
from harness.fleet import SOON as BACKOFF
from harness.jobs import job
from harness.kubeflow import FakeKubeflow, Script
from harness.kubeflow.drivers import waits_for
from harness.ledger_dump import dump
from harness.patience import completed
from sparkonce.launch.kubeflow.labels import ATTEMPT_LABEL
from sparkonce.launch.kubernetes import EVENTS, JOBS, SPARK_APPLICATIONS
from sparkonce.model.identity import explicit

Json = dict[str, Any]

WAITS, FAILS_LATE = "waits", "fails-late"
SOON = 60.0
"""Seconds for what takes a few on a quiet machine."""
QUIET = 3.0
"""Seconds within which operators would have started something: a look takes a tenth of one."""


@pytest.fixture
def fleet(cluster: Cluster, own_store: ledgers.Server, namespace: str, install: str, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(cluster, own_store, namespace, install, tmp_path) as started:
        yield started


@pytest.fixture
def go(kubeflow: FakeKubeflow) -> Iterator[threading.Event]:
    """When set, the drivers of `waiting` jobs end."""
    scripted(kubeflow)
    event = threading.Event()
    kubeflow.on(Script(code=waits_for(event)), argument=WAITS)
    yield event
    event.set()


def waiting(name: str) -> Applied:
    return Applied(job(name, key=name, arguments=(WAITS,)))


def started(fleet: Fleet, *jobs: Applied) -> None:
    """Applies the jobs and waits until their drivers run and are noted."""
    fleet.apply(jobs)
    assert_eventually(lambda: {fleet.witness.phase(one.name) for one in jobs} == {"Running"}, SOON)


def until_alarmed(fleet: Fleet) -> None:
    """Waits until all operators say that the ledger is older than it was, and what to do; each has counted it once."""
    for each in fleet.members:

        def said(each: Any = each) -> None:
            ready = each.said_ready()
            assert "older than it was" in ready and "accept-restore" in ready, f"{ready}\n{each.tail()}"

        assert_eventually(said, SOON)
        assert "sparkonce_store_rewound_total 1.0" in each.metrics()


def nothing_starts(fleet: Fleet, name: str) -> None:
    """A new job waits with the reason and an event, without a record or an application; no record changes."""
    before = dump(fleet.server, fleet.install).records
    made = set(fleet.witness.applications)
    fleet.apply(plain(1, name=name))
    name = f"{name}-0000"

    def told() -> None:
        status = (fleet.witness.jobs.get(name) or {}).get("status") or {}
        reserved = [each for each in status.get("conditions", ()) if each["type"] == "Reserved"]
        assert status.get("phase") == "Pending", f"{status}\n{fleet.tails()}"
        assert [(each["status"], each["reason"]) for each in reserved] == [("Unknown", "StoreRewound")]
        assert "accept-restore" in status["message"]

    assert_eventually(told, SOON)

    def event() -> bool:
        listed = fleet.cluster.api.list(EVENTS, fleet.namespace, fields=f"involvedObject.name={name}")
        return any(each["reason"] == "StoreRewound" and each["type"] == "Warning" for each in listed)

    assert_eventually(event, SOON)
    since = time.monotonic()
    assert_eventually(lambda: time.monotonic() > since + QUIET, 2 * QUIET)
    assert dump(fleet.server, fleet.install).records == before
    assert set(fleet.witness.applications) == made


def accept(fleet: Fleet, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["doctor", "accept-restore", "--yes", "--store", fleet.url, "--install", fleet.install]
    command += ["--namespace", fleet.namespace, "--kubeconfig", str(fleet.cluster.kubeconfig)]
    return completed(
        [sys.executable, "-m", "sparkonce", *command], SOON, env={**os.environ, **environment}, stdin=subprocess.DEVNULL
    )


def until_accepted(fleet: Fleet) -> None:
    done = accept(fleet)
    assert done.returncode == 0, done.stderr
    assert "accepted: epoch 2" in done.stdout
    for each in fleet.members:
        each.wait_ready(SOON)


def until_told(fleet: Fleet, phases: dict[str, str]) -> None:
    """Waits until every object has this phase, written in the new epoch."""

    def told() -> None:
        statuses = {name: (fleet.witness.jobs.get(name) or {}).get("status") or {} for name in phases}
        wrong = {
            name: (status.get("phase"), status.get("epoch"), status.get("message"))
            for name, status in statuses.items()
            if (status.get("phase"), status.get("epoch")) != (phases[name], 2)
        }
        assert not wrong, f"{len(wrong)} of {len(phases)}: {dict(list(wrong.items())[:5])}\n{fleet.tails()}"

    assert_eventually(told, SOON)


def ran(kubeflow: FakeKubeflow) -> Counter[str]:
    """The number of drivers by application."""
    return Counter(run.application for run in kubeflow.runs)


def applications_of(fleet: Fleet, key: str) -> list[str]:
    """All applications of this key that were ever created, as "g1-a1"."""
    start = f"so-{explicit(key, fleet.namespace).hash20}-"
    names = [each["metadata"]["name"] for each in fleet.witness.applications.values()]
    return sorted(name.removeprefix(start) for name in names if name.startswith(start))


def each_ran_once(fleet: Fleet, kubeflow: FakeKubeflow) -> None:
    """Asserts that every job has one application and one driver for each of its attempts, and no other."""
    assert set(ran(kubeflow).values()) == {1}
    for name, expected in fleet.applied.items():
        key = fleet.witness.jobs[name]["spec"]["idempotencyKey"]
        wanted = [f"g1-a{number}" for number in range(1, expected.attempts + 1)]
        assert applications_of(fleet, key) == wanted, name


@pytest.mark.parametrize("last", [20, pytest.param(100, marks=pytest.mark.soak)])
def test_a_restored_ledger_is_accepted_and_no_job_runs_twice(
    fleet: Fleet, kubeflow: FakeKubeflow, go: threading.Event, tmp_path: Path, last: int
) -> None:
    """A backup from before the last jobs is restored: nothing starts until it is accepted, by a command that is killed the first time. Then
    every job has the result of the one run that it had, whether the backup knew that run, an earlier attempt, or neither."""
    fail = threading.Event()
    kubeflow.on(Script(code=waits_for(go)), argument=FAILS_LATE)
    kubeflow.on(Script(code=waits_for(fail, lambda _: 1)), argument=FAILS_LATE, labels={ATTEMPT_LABEL: "1"})
    retry = {"maxAttempts": 2, "backoff": BACKOFF}
    _, victim = fleet.start(2)
    fleet.apply(plain(3, name="early"))
    fails_late = Applied(
        job("fails-late", key="fails-late", arguments=(FAILS_LATE,), retry=retry), Expected(attempts=2)
    )
    started(fleet, waiting("early-long"), fails_late)
    fleet.witness.until_ended([f"early-{n:04d}" for n in range(3)], SOON, hint=fleet.tails)
    kept = ledgers.take(fleet.server, tmp_path / "backup")
    fifth = last // 5
    table = tmp_path / "table"
    jobs = plain(last - 3 * fifth) + failing_once(fifth)
    jobs += writing(fifth, table) + writing(fifth, table, name="late", fails=True)
    names = fleet.apply(jobs)
    started(fleet, waiting("late-long"))
    fail.set()
    assert_eventually(lambda: fleet.witness.jobs["fails-late"]["status"]["attempt"] == 2, SOON)
    fleet.witness.until_ended(names, SOON, hint=fleet.tails)
    assert_eventually(lambda: fleet.witness.phase("fails-late") == "Running", SOON)
    newest = ledgers.revision(fleet.server, fleet.install)

    victim.kill()
    fleet.members.remove(victim)
    ledgers.put_back(fleet.server, kept)
    assert ledgers.revision(fleet.server, fleet.install) < newest
    fleet.add()
    until_alarmed(fleet)
    nothing_starts(fleet, "new")
    killed = accept(fleet, SPARKONCE_FAILPOINTS=ledgers.midway(fleet.server))
    assert killed.returncode < 0
    assert "older than it was" in fleet.members[0].said_ready()
    until_accepted(fleet)
    go.set()

    until_told(fleet, dict.fromkeys(fleet.applied, "Succeeded"))
    each_ran_once(fleet, kubeflow)
    assert rows_of(table) == Counter(dict.fromkeys(ROWS, 2 * fifth))
    found = dump(fleet.server, fleet.install)
    assert not found.unfinished and not found.claims


@pytest.mark.parametrize("own_store", ["etcd"], indirect=True)
def test_a_snapshot_is_restored_as_documented_and_nothing_is_lost(
    fleet: Fleet, kubeflow: FakeKubeflow, go: threading.Event, tmp_path: Path
) -> None:
    """The chart's script takes a snapshot while operators work; more jobs run; the data is lost, and the documented pod restores it: the
    ledger has every record of the snapshot. The operators say StoreRewound and start nothing until `accept-restore`; then the jobs of
    before and those that the snapshot had never seen have their results, each from its one run."""
    programs = etcd_programs(tmp_path / "bin")
    fleet.start(2)
    early = fleet.apply(plain(3, name="early"))
    started(fleet, waiting("long"))
    fleet.witness.until_ended(early, SOON, hint=fleet.tails)
    held = dump(fleet.etcd, fleet.install).records
    taken = backup.snapshot(fleet.etcd.one, tmp_path / "backup")
    table = tmp_path / "table"
    late = fleet.apply(plain(3, name="late") + writing(2, table))
    fleet.witness.until_ended(late, SOON, hint=fleet.tails)
    newest, data = fleet.etcd.revision(), fleet.etcd.one.data

    for each in fleet.members:
        each.kill()
    fleet.members.clear()
    fleet.etcd.one.kill()
    lost = data.rename(data.with_name("lost"))
    backup.restore(fleet.etcd.one, taken, programs)
    assert fleet.etcd.revision() < newest
    assert dump(fleet.etcd, fleet.install).records == held
    assert len(held) == 4
    shutil.rmtree(lost)

    for _ in range(2):
        fleet.add()
    until_alarmed(fleet)
    nothing_starts(fleet, "new")
    until_accepted(fleet)
    go.set()
    until_told(fleet, dict.fromkeys(fleet.applied, "Succeeded"))
    each_ran_once(fleet, kubeflow)
    assert rows_of(table) == Counter(dict.fromkeys(ROWS, 2))
    found = dump(fleet.etcd, fleet.install)
    assert not found.unfinished and not found.claims


@pytest.mark.operator
def test_an_empty_ledger_is_accepted_and_outputs_are_found(
    fleet: Fleet, kubeflow: FakeKubeflow, go: threading.Event, tmp_path: Path
) -> None:
    """The ledger has forgotten everything, and so has Kubernetes of the jobs that ended: nothing starts until it is accepted, and then what
    runs is adopted, old objects show Expired and run nothing; the same job, sent again, gets what its first run had committed."""
    table = tmp_path / "table"
    fleet.start(1)
    ended = fleet.apply(plain(3) + writing(3, table))
    fleet.witness.until_ended(ended, SOON, hint=fleet.tails)
    for each in fleet.witness.applications.values():
        fleet.cluster.api.delete(SPARK_APPLICATIONS, each["metadata"]["name"], fleet.namespace)
    started(fleet, waiting("long"))
    rows = rows_of(table)

    ledgers.put_back(fleet.server, None)
    until_alarmed(fleet)
    nothing_starts(fleet, "new")
    until_accepted(fleet)
    go.set()

    until_told(fleet, dict.fromkeys(ended, "Expired") | {"long": "Succeeded", "new-0000": "Succeeded"})
    each_ran_once(fleet, kubeflow)
    again = writing(1, table)[0].body
    again["metadata"]["name"] = "again"
    fleet.cluster.api.create(JOBS, again, fleet.namespace)
    until_told(fleet, {"again": "Succeeded"})
    assert rows_of(table) == rows == Counter(dict.fromkeys(ROWS, 3))
    result = fleet.witness.jobs["again"]["status"]["result"]
    assert result["outputs"][0]["rows"] == len(ROWS), result
    ended.remove("writes-0000")  # its key has its result again
    until_told(fleet, dict.fromkeys(ended, "Expired") | {"writes-0000": "Succeeded"})
