"""The ledger's server is unreachable, or dies under load: running jobs continue, nothing is started twice, and everything ends."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import ledgers
from harness.apiserver import Cluster, folder_in_memory
from harness.etcd import Member, running
from harness.eventually import assert_eventually
from harness.fleet import ROWS, Applied, Fleet, Json, failing_once, plain, rows_of, scripted, writing
from harness.jobs import job
from harness.kubeflow import FakeKubeflow, Script
from harness.kubeflow.drivers import waits_for
from harness.patience import stretched

pytestmark = pytest.mark.slow
Say = Callable[[str], None]

SOON = 90.0
"""Seconds for what takes ten on a quiet machine."""
WAITS = "waits"
LOAD = 50
RATE = 12.0
"""Jobs per second."""


@pytest.fixture
def fleet(cluster: Cluster, own_store: ledgers.Server, namespace: str, install: str, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(cluster, own_store, namespace, install, tmp_path) as started:
        yield started


@pytest.fixture
def three(cluster: Cluster, namespace: str, install: str, tmp_path: Path) -> Iterator[Fleet]:
    """An etcd cluster of three members, and a fleet on it."""
    with (
        folder_in_memory() as folder,
        running(folder, members=3) as etcd,
        Fleet(cluster, etcd, namespace, install, tmp_path) as started,
    ):
        yield started


def mixed(count: int, table: Path) -> list[Applied]:
    """Opaque jobs, some that fail once, and some with outputs."""
    fifth = count // 5
    kinds = [plain(count - 2 * fifth), failing_once(fifth), writing(fifth, table)]
    return [kind[n] for n in range(max(map(len, kinds))) for kind in kinds if n < len(kind)]


def killed(member: Member) -> None:
    member.kill()


def back(member: Member) -> None:
    member.thaw()
    if not member.child.running:
        member.start()
    member.until_ready()


@contextmanager
def away(member: Member, how: Callable[[Member], None]) -> Iterator[None]:
    how(member)
    try:
        yield
    finally:
        back(member)


MEMBER_AWAY = {"killed": killed, "frozen": Member.freeze}
AWAY = {"killed": ledgers.killed, "frozen": ledgers.frozen}


@pytest.mark.parametrize(
    ("own_store", "how", "seconds"),
    [
        ("etcd", "killed", 8.0),
        pytest.param("etcd", "frozen", 40.0, marks=pytest.mark.soak),
        pytest.param("postgres", "killed", 8.0, marks=pytest.mark.soak),
        ("postgres", "frozen", 40.0),
    ],
    indirect=["own_store"],
)
def test_an_outage_under_running_jobs(
    fleet: Fleet, kubeflow: FakeKubeflow, tmp_path: Path, how: str, seconds: float
) -> None:
    """The ledger is down for longer than leases live: no running job is stopped, jobs that are applied meanwhile wait, and when it is back
    every job is concluded from its single run, also those whose drivers ended meanwhile."""
    scripted(kubeflow)
    over, later = threading.Event(), threading.Event()
    kubeflow.on(Script(code=waits_for(over)), argument="ends-meanwhile")
    kubeflow.on(Script(code=waits_for(later)), argument="ends-later")
    table = tmp_path / "table"
    fleet.start(2)
    first = fleet.apply(plain(3))
    running = [
        Applied(job(f"{said}-{n}", key=f"{said}-{n}", arguments=(said,)))
        for said in ("ends-meanwhile", "ends-later")
        for n in range(3)
    ]
    fleet.apply(running)
    fleet.witness.until_ended(first, SOON, hint=fleet.tails)
    assert_eventually(lambda: {fleet.witness.phase(each.name) for each in running} == {"Running"}, SOON)
    with ledgers.away(fleet.server, AWAY[how]):
        began = time.monotonic()
        over.set()
        waits = fleet.apply(failing_once(2) + writing(2, table))
        assert_eventually(lambda: not any(each.ready() for each in fleet.members), SOON)
        assert_eventually(lambda: time.monotonic() - began > seconds, 2 * seconds)
        assert {fleet.witness.phase(name) for name in waits} <= {"", "Pending"}
        assert len(kubeflow.runs) == len(first) + len(running)
    later.set()
    for each in fleet.members:
        each.wait_ready(SOON)
    took = fleet.until_ended(SOON)
    assert took < stretched(SOON)
    fleet.audit(kubeflow)
    assert rows_of(table) == Counter(dict.fromkeys(ROWS, 2))


def patches(fleet: Fleet) -> int:
    """The number of status writes that the operators have sent for IdempotentJobs."""
    lines = [line for each in fleet.members for line in each.metrics().splitlines()]
    wanted = [
        line for line in lines if line.startswith("sparkonce_api_requests_total{") and 'kind="IdempotentJob"' in line
    ]
    return int(sum(float(line.rpartition(" ")[2]) for line in wanted if 'verb="patch"' in line))


def reserved(status: Json) -> tuple[str, str]:
    [found] = [each for each in status["conditions"] if each["type"] == "Reserved"]
    return found["status"], found["reason"]


@pytest.mark.parametrize(
    ("own_store", "how"),
    [
        pytest.param("etcd", "killed", marks=pytest.mark.soak),
        ("etcd", "frozen"),
        ("postgres", "killed"),
        pytest.param("postgres", "frozen", marks=pytest.mark.soak),
    ],
    indirect=["own_store"],
)
def test_an_object_that_comes_during_an_outage_says_why_it_waits(
    fleet: Fleet, kubeflow: FakeKubeflow, how: str
) -> None:
    """It is Pending and its reservation unknown, because the ledger does not answer: one write for each new object however long this lasts,
    and none for an object that has its answer. Once the ledger answers, each job runs once without being sent again."""
    scripted(kubeflow)
    fleet.start(2)
    before = fleet.apply(plain(2, name="before"))
    fleet.witness.until_ended(before, SOON, hint=fleet.tails)
    told = {name: fleet.witness.jobs[name]["status"] for name in before}
    with ledgers.away(fleet.server, AWAY[how]):
        assert_eventually(lambda: not any(each.ready() for each in fleet.members), SOON)
        sent = patches(fleet)
        waits = fleet.apply(plain(5, name="waits"))
        assert_eventually(lambda: {fleet.witness.phase(name) for name in waits} == {"Pending"}, SOON)
        told_at = time.monotonic()
        for name in waits:
            status = fleet.witness.jobs[name]["status"]
            assert reserved(status) == ("Unknown", "StoreUnavailable")
            assert status["message"].startswith(
                "the ledger does not answer, so nothing is started; the job continues by itself"
            )
            assert status["keyHash"]
        assert_eventually(lambda: time.monotonic() - told_at > 5.0, 60)
        assert patches(fleet) - sent <= len(fleet.members) * len(waits)
        for name in waits:
            statuses = fleet.witness.statuses[fleet.witness.jobs[name]["metadata"]["uid"]]
            assert len([each for each in statuses if "phase" in each]) == 1, (
                "beside the default that the API server fills in"
            )
        assert {name: fleet.witness.jobs[name]["status"] for name in before} == told
    for each in fleet.members:
        each.wait_ready(SOON)
    fleet.until_ended(SOON)
    assert {reserved(fleet.witness.jobs[name]["status"]) for name in waits} == {("True", "Leader")}
    fleet.audit(kubeflow)


@pytest.mark.operator
def test_an_operator_that_starts_during_an_outage_says_why_objects_wait(fleet: Fleet, kubeflow: FakeKubeflow) -> None:
    """This includes an operator that has never reached the ledger."""
    scripted(kubeflow)
    with ledgers.away(fleet.server, ledgers.killed):
        fleet.add()
        [name] = fleet.apply(plain(1))
        assert_eventually(lambda: fleet.witness.phase(name) == "Pending", SOON)
        assert reserved(fleet.witness.jobs[name]["status"]) == ("Unknown", "StoreUnavailable")
    fleet.until_ended(SOON)
    fleet.audit(kubeflow)


@pytest.mark.parametrize("own_store", ["postgres", pytest.param("etcd", marks=pytest.mark.soak)], indirect=True)
def test_the_ledger_is_killed_under_load(fleet: Fleet, kubeflow: FakeKubeflow, tmp_path: Path, say: Say) -> None:
    """SIGKILL of the server and start again, three times while jobs are applied and run: each job has the one application per attempt and
    the one end that it would have had."""
    scripted(kubeflow)
    table = tmp_path / "table"
    fleet.start(3)
    jobs = mixed(LOAD, table)
    with fleet.load(jobs, per_second=RATE):
        for ended in (5, 15, 25):
            assert_eventually(lambda ended=ended: fleet.ended() >= ended, SOON)  # type: ignore[misc]  # the loop's own
            ledgers.restart(fleet.server)
    ended_well(fleet, kubeflow, say, table)


def ended_well(fleet: Fleet, kubeflow: FakeKubeflow, say: Say, table: Path) -> None:
    say(f"{LOAD} jobs; the last ended {fleet.until_ended(SOON):.1f} s after the last was applied")
    fleet.audit(kubeflow)
    leads = {name: fleet.witness.jobs[name]["status"]["role"] for name in fleet.applied}
    assert set(leads.values()) == {"Leader"}, leads
    assert rows_of(table) == Counter(dict.fromkeys(ROWS, LOAD // 5))


@pytest.mark.parametrize("how", ["killed", pytest.param("frozen", marks=pytest.mark.soak)])
def test_the_leader_of_three_members(three: Fleet, kubeflow: FakeKubeflow, tmp_path: Path, how: str, say: Say) -> None:
    """The leading member is killed or frozen under load, another one becomes the leader, and the old one comes back later: no operator
    loses a key that it had won, and no job is started twice."""
    scripted(kubeflow)
    table = tmp_path / "table"
    three.start(3)
    jobs = mixed(LOAD, table)
    with three.load(jobs, per_second=RATE):
        assert_eventually(lambda: three.ended() >= 5, SOON)
        leader = three.etcd.leader()
        with away(leader, MEMBER_AWAY[how]):
            assert three.etcd.leader(but=leader) is not leader
            since = three.ended()
            assert_eventually(lambda: three.ended() >= since + 10, SOON)
    ended_well(three, kubeflow, say, table)
