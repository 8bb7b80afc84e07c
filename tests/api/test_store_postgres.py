"""Operators on PostgreSQL: what has no counterpart on etcd. The tests of outages, deaths and restores run on both stores."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import ledgers
from harness.apiserver import Cluster
from harness.eventually import assert_eventually
from harness.fleet import ROWS, Applied, Fleet, failing_once, plain, rows_of, scripted, writing
from harness.jobs import job
from harness.kubeflow import FakeKubeflow, Script
from harness.kubeflow.drivers import waits_for
from harness.operators import OperatorProcess
from harness.patience import completed
from harness.postgres import PostgresPair, PostgresServer
from sparkonce.launch.kubernetes import JOBS, SPARK_APPLICATIONS
from sparkonce.model.identity import explicit
from sparkonce.store.postgres.address import lock_of, schema_of

Say = Callable[[str], None]

SOON = 90.0
"""Seconds for what takes ten on a quiet machine."""
RATE = 8.0
"""Jobs per second."""


@pytest.fixture
def fleet(cluster: Cluster, namespace: str, install: str, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(cluster, ledgers.shared_postgres(), namespace, install, tmp_path) as started:
        yield started


@pytest.fixture
def pair() -> Iterator[PostgresPair]:
    made = PostgresPair()
    yield made
    made.close()


@pytest.fixture
def moving(cluster: Cluster, pair: PostgresPair, namespace: str, install: str, tmp_path: Path) -> Iterator[Fleet]:
    """On a primary with a standby, which is what is read afterwards."""
    with Fleet(cluster, pair.standby, namespace, install, tmp_path, ledger=pair.url) as started:
        yield started


def mixed(count: int, table: Path) -> list[Applied]:
    """Opaque jobs, some that fail once, some with outputs."""
    fifth = count // 5
    kinds = [plain(count - 2 * fifth), failing_once(fifth), writing(fifth, table)]
    return [kind[n] for n in range(max(map(len, kinds))) for kind in kinds if n < len(kind)]


def sparkonce(fleet: Fleet, *command: str, install: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SPARKONCE_STORE": fleet.url, "SPARKONCE_INSTALL": install or fleet.install}
    return completed([sys.executable, "-m", "sparkonce", *command], 60, env=environment, stdin=subprocess.DEVNULL)


@pytest.mark.operator
def test_a_job_runs_once_and_commands_read_its_key(fleet: Fleet, kubeflow: FakeKubeflow, tmp_path: Path) -> None:
    """From `kubectl apply` to the result in `.status`; `sparkonce keys` reads the same ledger, and `sparkonce run` refuses it."""
    fleet.start(1)
    fleet.cluster.api.create(JOBS, job("one", key="path-1"), fleet.namespace)
    fleet.witness.until_ended(["one"], SOON, hint=fleet.tails)
    assert fleet.witness.phase("one") == "Succeeded"
    assert len(fleet.cluster.api.list(SPARK_APPLICATIONS, fleet.namespace)) == 1
    shown = sparkonce(fleet, "keys", "list")
    assert shown.returncode == 0, shown.stderr
    assert "path-1" in shown.stdout and "Succeeded" in shown.stdout
    other = sparkonce(fleet, "keys", "list", install="another")
    assert other.returncode == 0 and "path-1" not in other.stdout
    file = tmp_path / "job.yaml"
    file.write_text("kind: IdempotentJob")
    refused = sparkonce(fleet, "run", str(file))
    assert refused.returncode == 2
    assert "is a cluster's ledger, whose jobs are run by operators" in refused.stderr


def test_the_install_of_commands_is_refused(fleet: Fleet) -> None:
    """An operator on the ledger of `sparkonce run` would take its jobs over: it says so, and ends."""
    process = OperatorProcess(
        fleet.url, "local", fleet.cluster.kubeconfig, [fleet.namespace], fleet.folder, name="local"
    )
    try:
        process.start(wait=False)
        assert process.process is not None
        assert process.process.wait(60) == 2
        assert "is the ledger of `sparkonce run`; give the operator another --install" in process.tail()
    finally:
        process.end()


def test_a_failover_to_a_synchronous_standby_loses_nothing(
    moving: Fleet, pair: PostgresPair, kubeflow: FakeKubeflow, tmp_path: Path, say: Say
) -> None:
    """Three operators under load while the primary dies and the standby is promoted a few seconds later: no job is started twice, and all
    end as they would have."""
    pair.primary.commits_wait_for(pair.standby)
    scripted(kubeflow)
    over = threading.Event()
    kubeflow.on(Script(code=waits_for(over)), argument="waits")
    table = tmp_path / "table"
    moving.start(3)
    running = [Applied(job(f"waits-{n}", key=f"waits-{n}", arguments=("waits",))) for n in range(3)]
    moving.apply(running)
    assert_eventually(lambda: {moving.witness.phase(each.name) for each in running} == {"Running"}, SOON)
    with moving.load(mixed(50, table), per_second=RATE):
        assert_eventually(lambda: moving.ended() >= 8, SOON)
        pair.primary.kill()
        down = time.monotonic()
        assert_eventually(lambda: time.monotonic() > down + 4.0, 60)
        pair.standby.promote()
    over.set()
    say(f"the last of 53 jobs ended {moving.until_ended(SOON):.1f} s after the last was applied")
    moving.audit(kubeflow)
    assert rows_of(table) == Counter(dict.fromkeys(ROWS, 10))


def test_a_failover_that_lost_commits_is_store_rewound(
    moving: Fleet, pair: PostgresPair, kubeflow: FakeKubeflow
) -> None:
    """The standby is behind and the primary is gone: what statuses have seen proves it, nothing starts, and a person's decision ends it;
    then what ran is adopted and no job runs twice."""
    scripted(kubeflow)
    over = threading.Event()
    kubeflow.on(Script(code=waits_for(over)), argument="waits")
    moving.start(2)
    moving.witness.until_ended(moving.apply(plain(2, name="before")), SOON, hint=moving.tails)
    position = "SELECT pg_current_wal_flush_lsn() <= replay_lsn FROM pg_stat_replication"
    with pair.primary.connect() as connection:
        assert_eventually(lambda: connection.execute(position).fetchall() == [(True,)], SOON)
    pair.standby.kill()
    moving.apply([Applied(job("waits", key="waits", arguments=("waits",)))])
    lost = moving.apply(plain(4, name="lost"))
    moving.witness.until_ended(lost, SOON, hint=moving.tails)
    assert_eventually(lambda: moving.witness.phase("waits") == "Running", SOON)
    pair.primary.kill()
    pair.standby.start()
    pair.standby.promote()
    for each in moving.members:
        assert_eventually(lambda each=each: "older than it was" in each.said_ready(), SOON)  # type: ignore[misc]  # the loop's own
    made = set(moving.witness.applications)
    moving.apply(plain(1, name="new"))
    assert_eventually(lambda: moving.witness.phase("new-0000") == "Pending", SOON)
    assert set(moving.witness.applications) == made
    where = ["-n", moving.namespace, "--kubeconfig", str(moving.cluster.kubeconfig)]
    accepted = sparkonce(moving, "doctor", "accept-restore", "--yes", *where)
    assert accepted.returncode == 0, accepted.stderr
    assert "accepted: epoch 2" in accepted.stdout
    over.set()
    moving.witness.until_ended(["waits", "new-0000"], SOON, hint=moving.tails)
    ran = Counter(run.application for run in kubeflow.runs)
    assert set(ran.values()) == {1} and len(ran) == 8


def test_an_operator_whose_pool_is_used_up_goes_on(fleet: Fleet, kubeflow: FakeKubeflow) -> None:
    """With one connection, which waits for keys that another session has locked, requests fail by name and the lease is kept; when the
    locks are free every job ends once, on the operator that had it. Four keys are locked, because a request gives up its wait for a lock
    before those behind it give up theirs for the connection: behind one locked key they would all get their turn."""
    scripted(kubeflow)
    operator = fleet.add(SPARKONCE_POSTGRES_POOL="1")
    operator.wait_ready()
    fleet.witness.until_ended(fleet.apply(plain(2, name="before")), SOON, hint=fleet.tails)
    server = fleet.server
    assert isinstance(server, PostgresServer)
    held = [f"held-{n}" for n in range(4)]
    with server.connect() as other:
        for key in held:
            number = lock_of(schema_of(fleet.install), fleet.namespace, explicit(key, fleet.namespace).key_hash)
            other.execute(f"SELECT pg_advisory_lock({number})".encode())
        fleet.apply([Applied(job(key, key=key)) for key in held])
        fleet.apply(plain(20, name="busy"))
        named = "all 1 connections to the store"
        assert_eventually(lambda: named in operator.log.read_text(errors="replace"), SOON)
        began = time.monotonic()
        assert_eventually(lambda: time.monotonic() > began + 2 * fleet.lease_seconds, SOON)
    fleet.until_ended(SOON)
    fleet.audit(kubeflow)
    assert "no lease is held" not in operator.said_ready()
