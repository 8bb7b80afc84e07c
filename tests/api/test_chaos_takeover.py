"""How long a key has no owner, measured in etcd from the signal to another process's claim."""

from __future__ import annotations

import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness import ledgers
from harness.apiserver import Cluster
from harness.eventually import assert_eventually
from harness.fleet import TTL, Fleet, plain
from harness.kubeflow import FakeKubeflow, Script
from harness.kubeflow.drivers import waits_for
from harness.operators import OperatorProcess
from harness.patience import promised

pytestmark = pytest.mark.slow
Say = Callable[[str], None]

KEYS, ROUNDS = 10, 5
GRACEFUL, SLACK = 1.0, 3.0
"""Seconds from SIGTERM, and by how much busy neighbours may extend the slowest takeover."""


@pytest.fixture
def fleet(cluster: Cluster, store: ledgers.Server, namespace: str, install: str, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(cluster, store, namespace, install, tmp_path) as started:
        yield started


@dataclass(frozen=True)
class Taken:
    """When a key had a new owner, in seconds after the signal: not yet at `after`, but at `by`, two successive reads of etcd."""

    after: float
    by: float


def takeovers(fleet: Fleet, victim: OperatorProcess, number: signal.Signals) -> list[Taken]:
    """The takeover of each key that the victim owns when it gets this signal."""
    keys = {key for key, owner in fleet.owners().items() if owner == victim.pid}
    began = last = time.monotonic()
    victim.send(number)
    taken: dict[str, Taken] = {}

    def all_taken() -> None:
        nonlocal last
        before, asked = last, time.monotonic()
        owners = fleet.owners()
        last = asked
        for key in keys - set(taken):
            if owners.get(key, victim.pid) != victim.pid:
                taken[key] = Taken(before - began, time.monotonic() - began)
        assert set(taken) == keys, f"{len(keys) - len(taken)} keys have no new owner\n{fleet.tails()}"

    assert_eventually(all_taken, timeout=30, interval=0.01)
    return list(taken.values())


def said(taken: list[Taken]) -> str:
    times = [each.by for each in taken]
    return f"{len(times)} keys: max {max(times):.2f} s, median {statistics.median(times):.2f} s"


@pytest.mark.parametrize("store", ["postgres", pytest.param("etcd", marks=pytest.mark.soak)], indirect=True)
def test_a_dead_owner_is_replaced_within_its_lease_and_a_second(fleet: Fleet, kubeflow: FakeKubeflow, say: Say) -> None:
    """Ten running jobs lose their owner five times to SIGKILL and five times to SIGTERM: each has a new owner in time, and none is started
    again."""
    end = threading.Event()
    kubeflow.scripts.usual = Script(code=waits_for(end))
    (owner,) = fleet.start(1)
    fleet.apply(plain(KEYS))
    assert_eventually(lambda: fleet.witness.phases()["Running"] == KEYS, timeout=30)
    killed: list[Taken] = []
    stopped: list[Taken] = []
    for _ in range(ROUNDS):
        heirs = fleet.start(2)
        assert set(fleet.owners().values()) == {owner.pid}
        killed += takeovers(fleet, owner, signal.SIGKILL)
        shares = Counter(fleet.owners().values())
        owner, leaving = sorted(heirs, key=lambda each: shares[each.pid])
        stopped += takeovers(fleet, leaving, signal.SIGTERM)
        leaving.terminated()
        assert set(fleet.owners().values()) == {owner.pid}
    say(f"after SIGKILL, {said(killed)} (TTL {TTL} s)")
    say(f"after SIGTERM, {said(stopped)}")
    assert len(killed) == KEYS * ROUNDS
    assert max(each.after for each in killed) <= TTL + promised(1.0)
    assert (
        statistics.median(each.by for each in stopped) <= GRACEFUL
    )  # without a hand-over all of them would wait for the lease
    assert max(each.after for each in stopped) <= GRACEFUL * SLACK
    end.set()
    fleet.until_ended(timeout=60)
    fleet.audit(kubeflow)
