"""Operators come and go, sometimes all at once, while drivers run: successors continue what runs and start nothing again."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.apiserver import Cluster
from harness.audit import Expected
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.fleet import ROWS, Applied, Fleet, plain, rows_of
from harness.fleet import SOON as BACKOFF
from harness.jobs import job
from harness.kubeflow import FakeKubeflow, Script
from harness.kubeflow.drivers import waits_for, writes_outputs
from harness.ledger_dump import dump
from sparkonce.launch.kubeflow.labels import ATTEMPT_LABEL

SOON = 60.0
"""Seconds for what takes a few on a quiet machine."""
WAITS, FAILS_LATE, WRITES_LATE = "waits", "fails-late", "writes-late"


@pytest.fixture
def fleet(cluster: Cluster, ledger_server: Etcd, namespace: str, install: str, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(cluster, ledger_server, namespace, install, tmp_path) as started:
        yield started


@pytest.fixture
def go(kubeflow: FakeKubeflow) -> Iterator[threading.Event]:
    """When set, the drivers below continue and end."""
    event = threading.Event()
    kubeflow.on(Script(code=waits_for(event)), argument=WAITS)
    kubeflow.on(Script(code=waits_for(event)), argument=FAILS_LATE)
    kubeflow.on(Script(code=waits_for(event, lambda _: 1)), argument=FAILS_LATE, labels={ATTEMPT_LABEL: "1"})
    kubeflow.on(Script(code=waits_for(event, writes_outputs(*ROWS))), argument=WRITES_LATE)
    yield event
    event.set()


def waiting(name: str) -> Applied:
    return Applied(job(name, key=name, arguments=(WAITS,)))


def failing_late(name: str) -> Applied:
    retry = {"maxAttempts": 2, "backoff": BACKOFF}
    return Applied(job(name, key=name, arguments=(FAILS_LATE,), retry=retry), Expected(attempts=2))


def writing_late(name: str, table: Path) -> Applied:
    outputs = [{"name": "rows", "slotLog": {"path": str(table)}}]
    return Applied(job(name, key=name, arguments=(WRITES_LATE,), outputs=outputs))


def until_running(fleet: Fleet, *jobs: Applied) -> None:
    phases = {each.name: fleet.witness.phase(each.name) for each in jobs}

    def running() -> None:
        phases.update({name: fleet.witness.phase(name) for name in phases})
        assert set(phases.values()) == {"Running"}, f"{phases}\n{fleet.tails()}"

    assert_eventually(running, SOON)


@pytest.mark.operator
def test_all_operators_killed_while_drivers_run(
    fleet: Fleet, kubeflow: FakeKubeflow, go: threading.Event, tmp_path: Path
) -> None:
    """All operators are killed: drivers run on, and some end while no operator runs. Operators started afterwards adopt what runs and
    conclude what has ended: no driver is started twice, and no attempt is added."""
    table = tmp_path / "table"
    jobs = [waiting("waits-1"), waiting("waits-2"), failing_late("fails"), writing_late("writes", table)]
    victims = fleet.start(2)
    ended = fleet.apply(plain(2))
    fleet.apply(jobs)
    until_running(fleet, *jobs)
    fleet.witness.until_ended(ended, SOON, hint=fleet.tails)
    for each in victims:
        each.kill()
    unseen = [waiting("unseen")]
    fleet.apply(unseen)
    assert len(kubeflow.runs) == len(jobs) + len(ended)
    go.set()
    assert_eventually(lambda: all(run.ended is not None for run in kubeflow.runs), SOON)
    fleet.start(2)
    fleet.until_ended(SOON)
    fleet.audit(kubeflow)
    assert rows_of(table) == Counter(dict.fromkeys(ROWS, 1))


@pytest.mark.operator
def test_operators_that_know_nothing_adopt(fleet: Fleet, kubeflow: FakeKubeflow, go: threading.Event) -> None:
    """Operators are killed while drivers run, and a new one is ready before any has ended: it owns each job, and each runs on."""
    jobs = [waiting(f"waits-{number}") for number in range(5)]
    victims = fleet.start(2)
    fleet.apply(jobs)
    until_running(fleet, *jobs)
    for each in victims:
        each.kill()
    fleet.start(1)
    (heir,) = [each for each in fleet.members if each not in victims]
    assert_eventually(lambda: Counter(fleet.owners().values()) == {heir.pid: len(jobs)}, SOON)
    taken = re.search(r"^sparkonce_takeovers_total (\S+)", heir.metrics(), re.MULTILINE)
    assert taken is not None and float(taken[1]) >= len(jobs)  # more if its own lease expired on a busy machine
    go.set()
    fleet.until_ended(SOON)
    fleet.audit(kubeflow)


def test_a_full_replica_takes_over(fleet: Fleet, kubeflow: FakeKubeflow, go: threading.Event) -> None:
    """A replica whose only slot is taken starts nothing new, but takes over everything that a dead one leaves."""
    full = fleet.add(options=("--slots", "1"))
    full.wait_ready()
    mine = waiting("mine")
    fleet.apply([mine])
    until_running(fleet, mine)
    other = fleet.add()
    other.wait_ready()
    orphans = [waiting(f"orphan-{number}") for number in range(4)]
    fleet.apply(orphans)
    until_running(fleet, *orphans)
    assert Counter(fleet.owners().values()) == {full.pid: 1, other.pid: 4}
    other.kill()
    late = plain(1, name="late")
    fleet.apply(late)
    assert_eventually(lambda: Counter(fleet.owners().values()) == {full.pid: 5}, SOON)
    records = dump(fleet.etcd, fleet.install).records.values()
    assert "late-0" not in {each.value["key"] for each in records}, "a new key was reserved without a slot"
    go.set()
    fleet.until_ended(SOON)
    fleet.audit(kubeflow)
