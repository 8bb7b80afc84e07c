"""How long a key has no owner: measured in etcd, from the signal to the claim of another process."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from harness.apiserver import Cluster
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.fleet import TTL, Fleet, plain
from harness.kubeflow import FakeKubeflow, Script
from harness.operators import OperatorProcess

pytestmark = pytest.mark.slow
Say = Callable[[str], None]

KEYS, ROUNDS = 10, 5
GRACEFUL, SLACK = 1.0, 3.0
"""Seconds from SIGTERM, and by how much nine busy neighbours may stretch them."""


@pytest.fixture
def fleet(cluster: Cluster, ledger_server: Etcd, namespace: str, install: str, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(cluster, ledger_server, namespace, install, tmp_path) as started:
        yield started


def takeovers(fleet: Fleet, victim: OperatorProcess, end: Callable[[], object]) -> Mapping[str, float]:
    """Seconds from `end` of the victim until each of its keys is claimed by another process, by key."""
    keys = {key for key, owner in fleet.owners().items() if owner == victim.pid}
    began = time.monotonic()
    end()
    taken: dict[str, float] = {}

    def all_taken() -> None:
        owners = fleet.owners()
        now = time.monotonic()
        for key in keys - set(taken):
            if owners.get(key, victim.pid) != victim.pid:
                taken[key] = now - began
        assert set(taken) == keys, f"{len(keys) - len(taken)} keys have no new owner\n{fleet.tails()}"

    assert_eventually(all_taken, timeout=30, interval=0.01)
    return taken


def test_a_dead_owner_is_replaced_within_its_lease_and_a_second(fleet: Fleet, kubeflow: FakeKubeflow, say: Say) -> None:
    """Ten running jobs lose their owner to SIGKILL five times, and to SIGTERM five times: each has the next one in time, and none is
    started again."""
    kubeflow.scripts.usual = Script(run_seconds=3600)
    (owner,) = fleet.start(1)
    fleet.apply(plain(KEYS))
    assert_eventually(lambda: fleet.witness.phases()["Running"] == KEYS, timeout=30)
    killed: list[float] = []
    stopped: list[float] = []
    for _ in range(ROUNDS):
        one, other = fleet.start(2)
        assert set(fleet.owners().values()) == {owner.pid}
        killed += takeovers(fleet, owner, owner.kill).values()
        stopped += takeovers(fleet, other, lambda other=other: other.send(signal.SIGTERM)).values()  # type: ignore[misc]
        other.terminated()
        owner = one
        assert_eventually(lambda owner=owner: set(fleet.owners().values()) == {owner.pid}, timeout=10)  # type: ignore[misc] # a default in a lambda has no type
    say(
        f"{len(killed)} keys after SIGKILL: max {max(killed):.2f} s, median {statistics.median(killed):.2f} s (TTL {TTL} s)"
    )
    say(f"{len(stopped)} keys after SIGTERM: max {max(stopped):.2f} s, median {statistics.median(stopped):.2f} s")
    assert len(killed) >= KEYS * ROUNDS
    assert max(killed) <= TTL + 1.0
    assert max(stopped) <= GRACEFUL * SLACK
