"""Operators of two versions on one ledger: no field is dropped, they do not fight over keys, and records that are too new are left alone.

The other version is the previous commit's wheel (`harness/previous_version.py`), or a fixture that acts as a future version
(`harness/next_version.py`).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.apiserver import Cluster
from harness.audit import Expected
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.fleet import SOON as BACKOFF
from harness.fleet import TTL, Applied, Fleet, failing_once, plain, rows_of, scripted, writing
from harness.jobs import job
from harness.kubeflow import FakeKubeflow, Script
from harness.kubeflow.drivers import waits_for
from harness.ledger_dump import dump
from harness.next_version import FIELD, MIN_READER, PROGRAM, VALUE
from harness.operators import OperatorProcess
from harness.previous_version import previous
from sparkonce.launch.kubeflow.labels import ATTEMPT_LABEL
from sparkonce.launch.kubernetes import JOBS
from sparkonce.model.record import READER, SCHEMA

Json = dict[str, Any]

SOON = 60.0
"""Seconds for what takes a few on a quiet machine."""
QUIET = 4.0
"""Seconds; several sweeps take less."""
SWEEP = 1.0
WAITS, FAILS_LATE = "waits", "fails-late"


@pytest.fixture
def fleet(cluster: Cluster, ledger_server: Etcd, namespace: str, install: str, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(cluster, ledger_server, namespace, install, tmp_path, sweep_seconds=SWEEP) as started:
        yield started


@pytest.fixture
def go(kubeflow: FakeKubeflow) -> Iterator[threading.Event]:
    """When set, the drivers of waiting jobs end."""
    scripted(kubeflow)
    event = threading.Event()
    kubeflow.on(Script(code=waits_for(event)), argument=WAITS)
    kubeflow.on(Script(code=waits_for(event)), argument=FAILS_LATE)
    kubeflow.on(Script(code=waits_for(event, lambda _: 1)), argument=FAILS_LATE, labels={ATTEMPT_LABEL: "1"})
    yield event
    event.set()


def waiting(name: str) -> list[Applied]:
    retry = {"maxAttempts": 2, "backoff": BACKOFF}
    fails = job(f"{name}-fails", key=f"{name}-fails", arguments=(FAILS_LATE,), retry=retry)
    return [
        *(Applied(job(f"{name}-{n}", key=f"{name}-{n}", arguments=(WAITS,))) for n in range(3)),
        Applied(fails, Expected(attempts=2)),
    ]


def next_version(fleet: Fleet, *, min_reader: int = 1) -> OperatorProcess:
    return fleet.add(program=PROGRAM, **{MIN_READER: str(min_reader)})


def records(fleet: Fleet) -> dict[str, Json]:
    """All records, by key."""
    return {each.value["key"]: each.value for each in dump(fleet.etcd, fleet.install).records.values()}


def newer(fleet: Fleet) -> set[str]:
    """The keys whose records have everything that only the next version writes."""
    return {
        key for key, record in records(fleet).items() if (record["schema"], record.get(FIELD)) == (SCHEMA + 1, VALUE)
    }


def until_running(fleet: Fleet, jobs: list[Applied]) -> None:
    assert_eventually(lambda: {fleet.witness.phase(each.name) for each in jobs} == {"Running"}, SOON)


def both_own(fleet: Fleet, *members: OperatorProcess) -> list[Applied]:
    """Running jobs, of which each of these operators owns some: on a busy machine one may be first to reserve all of a few, so more are
    added."""
    jobs: list[Applied] = []

    def owned() -> bool:
        more = waiting(f"passed-{len(jobs)}")
        fleet.apply(more)
        jobs.extend(more)
        until_running(fleet, jobs)
        return {each.pid for each in members} <= set(fleet.owners().values())

    assert_eventually(owned, SOON)
    return jobs


def quiet(fleet: Fleet) -> None:
    """Asserts that several sweeps change no record and no object."""

    def stands() -> object:
        objects = fleet.cluster.api.list(JOBS, fleet.namespace)
        entries = dump(fleet.etcd, fleet.install).records
        return (
            {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in objects},
            {key: entry.revision for key, entry in entries.items()},
        )

    before, since = stands(), time.monotonic()
    assert_eventually(lambda: time.monotonic() > since + QUIET, 2 * QUIET)
    assert stands() == before


def test_two_versions_side_by_side(fleet: Fleet, kubeflow: FakeKubeflow, go: threading.Event) -> None:
    """Jobs run on this version and the next at the same time and are handed over from each to the other and back. Fields that the next
    version wrote are kept through attempts, followers and the end; every job ends once, and then both versions are idle."""
    ours = fleet.add()
    theirs = next_version(fleet)
    for each in (ours, theirs):
        each.wait_ready()
    fleet.apply([*plain(8), *failing_once(2)])
    passed = both_own(fleet, ours, theirs)
    before = newer(fleet)
    assert before
    theirs.kill()
    assert_eventually(lambda: Counter(fleet.owners().values()) == {ours.pid: len(passed)}, SOON)
    follower = job("follower", key="passed-0-0", arguments=(WAITS,))
    fleet.cluster.api.create(JOBS, follower, fleet.namespace)
    assert_eventually(lambda: fleet.witness.phase("follower") == "Running", SOON)
    assert newer(fleet) >= before
    successor = next_version(fleet)
    successor.wait_ready()
    ours.kill()
    assert_eventually(lambda: Counter(fleet.owners().values()) == {successor.pid: len(passed)}, SOON)
    heir = fleet.add()
    heir.wait_ready()
    go.set()
    fleet.until_ended(SOON)
    assert newer(fleet) >= before | {each.body["spec"]["idempotencyKey"] for each in passed}
    assert_eventually(lambda: fleet.witness.phase("follower") == "Succeeded", SOON)
    fleet.audit(kubeflow)
    quiet(fleet)


@pytest.mark.operator
def test_the_previous_commit_beside_this_one(
    fleet: Fleet, kubeflow: FakeKubeflow, go: threading.Event, tmp_path: Path, *, say: Callable[[str], None]
) -> None:
    """As in a rolling upgrade that is rolled back, jobs run on both versions and are handed over from the old one to the new one and back.
    Every job ends once, with one application per attempt, and then both are idle."""
    old = previous(tmp_path / "previous")
    ours, theirs = fleet.add(), fleet.add(**old.environment)
    for each in (ours, theirs):
        each.wait_ready()
    fleet.apply(
        [
            *plain(8),
            *failing_once(2),
            *writing(2, tmp_path / "table"),
            *writing(2, tmp_path / "table", fails=True, name="late"),
        ]
    )
    passed = both_own(fleet, ours, theirs)
    theirs.kill()
    assert_eventually(lambda: Counter(fleet.owners().values()) == {ours.pid: len(passed)}, SOON)
    successor = fleet.add(**old.environment)
    successor.wait_ready()
    ours.kill()
    assert_eventually(lambda: Counter(fleet.owners().values()) == {successor.pid: len(passed)}, SOON)
    heir = fleet.add()
    heir.wait_ready()
    go.set()
    fleet.until_ended(SOON)
    fleet.audit(kubeflow)
    assert set(rows_of(tmp_path / "table").values()) == {4}
    quiet(fleet)
    say(
        f"commit {old.commit[:12]} and this one: {len(fleet.applied)} jobs, of which {len(passed)} were handed over twice"
    )


def test_a_record_that_is_too_new(fleet: Fleet, kubeflow: FakeKubeflow, go: threading.Event) -> None:
    """A record that needs a newer reader is left unchanged; this version reports it in its log and to an object without a status, and
    continues with all other keys. Once the next version is back, it finishes the job."""
    theirs = next_version(fleet, min_reader=READER + 1)
    theirs.wait_ready()
    jobs = waiting("theirs")
    fleet.apply(jobs)
    until_running(fleet, jobs)
    ours = fleet.add()
    ours.wait_ready()
    theirs.kill()
    assert_eventually(lambda: not fleet.owners(), TTL + SOON)
    before = records(fleet)
    assert all(record["minReader"] == READER + 1 for record in before.values())

    fleet.apply([*plain(3), *failing_once(1)])
    late = job("late", key="theirs-0", arguments=(WAITS,))
    fleet.cluster.api.create(JOBS, late, fleet.namespace)

    def told() -> None:
        status = (fleet.witness.jobs.get("late") or {}).get("status") or {}
        reserved = [each for each in status.get("conditions", ()) if each["type"] == "Reserved"]
        assert [(each["status"], each["reason"]) for each in reserved] == [("Unknown", "RecordTooNew")]
        assert "upgrade sparkonce" in status["message"]

    assert_eventually(told, SOON)
    assert f"needs a reader of version {READER + 1}, this is {READER}; upgrade sparkonce" in ours.log.read_text()
    others = [name for name in fleet.applied if not name.startswith("theirs")]
    fleet.witness.until_ended(others, SOON, hint=fleet.tails)
    quiet(fleet)
    assert {key: records(fleet)[key] for key in before} == before
    assert not fleet.owners()

    next_version(fleet, min_reader=READER + 1).wait_ready()
    go.set()
    fleet.until_ended(SOON)
    assert_eventually(lambda: fleet.witness.phase("late") == "Succeeded", SOON)
    fleet.audit(kubeflow)
