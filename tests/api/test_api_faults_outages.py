"""An API server fails, dies or freezes under load: running applications continue, and afterwards every job has exactly one."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.api_faults import ApiProxy
from harness.apiserver import Cluster
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.fleet import ROWS, Fleet, failing_once, plain, rows_of, scripted, writing
from harness.kubeflow import FakeKubeflow, Script

CREATES = r"/sparkapplications$"
GIVEN_UP = r'(?m)^sparkonce_api_requests_total{kind="SparkApplication",result="unavailable",verb="create"} (\S+)$'
Say = Callable[[str], None]

OUTAGE = 120.0
"""Seconds during which every answer is 500: longer than every patience and every pause between two tries."""
FROZEN = 15.0
"""Seconds: longer than any call waits for its answer."""
AFTERWARDS = 60.0
"""Seconds for the remaining work once the API server is back: the longest pause between two tries is 30."""


@pytest.fixture
def fleet(
    cluster: Cluster, ledger_server: Etcd, namespace: str, install: str, tmp_path: Path, *, api_proxy: ApiProxy
) -> Iterator[Fleet]:
    with Fleet(cluster, ledger_server, namespace, install, tmp_path, kubeconfig=api_proxy.kubeconfig) as started:
        yield started


def passed(seconds: float) -> None:
    end = time.monotonic() + seconds
    assert_eventually(lambda: time.monotonic() >= end, seconds + 5)


@pytest.mark.soak  # the server's death, its silence and single errors are in TIER=all
@pytest.mark.slow
def test_nothing_but_500_for_two_minutes(
    fleet: Fleet, kubeflow: FakeKubeflow, api_proxy: ApiProxy, tmp_path: Path, *, say: Say
) -> None:
    """Jobs that had ended, that run, that end and that are applied during the outage have one application per attempt in the end, and no
    output is written twice. The operator stays alive and becomes ready again by itself."""
    scripted(kubeflow)
    [operator] = fleet.start(1)
    fleet.apply(plain(4, name="before"))
    fleet.until_ended(30)
    kubeflow.scripts.usual = Script(run_seconds=45)  # longer than all of them may take to start
    fleet.apply(plain(6, name="running"))
    assert_eventually(lambda: len(kubeflow.runs) == 10, 30)
    kubeflow.scripts.usual = Script()
    outage = api_proxy.answer(500, seconds=OUTAGE)
    watches = api_proxy.close_watches()
    assert watches >= 3
    fleet.apply([*plain(4, name="new"), *failing_once(2), *writing(3, tmp_path / "table")])
    passed(OUTAGE)
    assert fleet.ended() == 4, fleet.witness.phases()
    took = fleet.until_ended(AFTERWARDS)
    say(f"{outage.hits} requests were answered 500 in {OUTAGE:g} s; all was well {took:.1f} s later")
    assert_eventually(operator.ready, 30)
    fleet.audit(kubeflow)
    assert rows_of(tmp_path / "table") == dict.fromkeys(ROWS, 3)


def test_the_api_server_is_killed_and_started_again_under_load(
    fleet: Fleet, kubeflow: FakeKubeflow, cluster: Cluster, tmp_path: Path, *, say: Say
) -> None:
    """The API server is killed with SIGKILL while thirty jobs start, run and end."""
    scripted(kubeflow)
    kubeflow.scripts.usual = Script(run_seconds=1)
    fleet.start(1)
    fleet.apply([*plain(18), *failing_once(6), *writing(6, tmp_path / "table")])
    assert_eventually(lambda: fleet.ended() >= 2, 30)
    assert fleet.ended() < 30
    with kubeflow.without_submissions():
        cluster.server.restart()
    took = fleet.until_ended(AFTERWARDS)
    say(f"all was well {took:.1f} s after the API server was ready again")
    fleet.audit(kubeflow)
    assert rows_of(tmp_path / "table") == dict.fromkeys(ROWS, 6)


def test_the_api_server_stands_still_for_a_while(
    fleet: Fleet, kubeflow: FakeKubeflow, api_proxy: ApiProxy, cluster: Cluster, *, say: Say
) -> None:
    """The API server gets SIGSTOP for longer than a call may take, with creates in flight. They are given up, but take effect when it
    continues, whatever operators have read or created meanwhile; each job has one application."""
    kubeflow.scripts.usual = Script(run_seconds=1)
    slow = api_proxy.delay(5, method="POST", path=CREATES, times=4)  # so that they arrive while it is frozen
    [operator] = fleet.start(1)
    fleet.apply(plain(12))
    assert_eventually(lambda: slow.hits == 4, 30)
    with cluster.server.frozen():
        passed(FROZEN)
    took = fleet.until_ended(AFTERWARDS)
    creates = api_proxy.asked(method="POST", path=CREATES)
    say(f"{len(creates)} creates; all was well {took:.1f} s after the API server went on")
    given_up = re.search(GIVEN_UP, operator.metrics())
    assert given_up is not None
    assert float(given_up[1]) >= 4
    fleet.audit(kubeflow)
