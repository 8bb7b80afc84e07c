"""Answers of etcd that are late or lost, and drives that die: no key stays owned without being driven."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from harness.apiserver import Cluster
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.fleet import Applied, Fleet, plain
from harness.kubeflow import FakeKubeflow
from harness.ledger_dump import claims, dump
from harness.operators import OperatorProcess
from harness.patience import stretched
from harness.proxy import Flow, Proxy, in_front_of

Json = dict[str, Any]

SOON = 60.0
"""Seconds for what takes a few on a quiet machine."""
POINT = "store.etcd.reserve.before"
LONG_TTL = 30
"""Seconds of a lease that outlives a lost reply."""
SHORT_TTL = 10
"""Of one that does not, and lives when the request is sent, a second after the last answer."""


@pytest.fixture
def fleet(cluster: Cluster, ledger_server: Etcd, namespace: str, install: str, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(cluster, ledger_server, namespace, install, tmp_path) as started:
        yield started


@contextmanager
def reserve_without_a_reply(fleet: Fleet, line: Proxy, one: Applied) -> Iterator[None]:
    """The operator behind the proxy reserves this job's key in etcd and gets no reply; inside the block nothing from etcd reaches it. It
    waits a second before it reserves, and by then the proxy drops replies."""
    fleet.apply([one])
    assert_eventually(lambda: POINT in (fleet.folder / "hits").read_text(), SOON, interval=0.005)
    line.replies = Flow.DROP
    assert_eventually(lambda: len(claims(fleet.etcd, fleet.install)) == 1, SOON)
    yield
    line.cut()
    line.heal()


def slow_to_reserve(fleet: Fleet) -> OperatorProcess:
    hits = fleet.folder / "hits"
    hits.touch()
    operator = fleet.add(SPARKONCE_FAILPOINTS=f"{POINT}=1*sleep(1000)", SPARKONCE_FAILPOINTS_LOG=str(hits))
    operator.wait_ready()
    return operator


def reserved_once(fleet: Fleet) -> str:
    """The nonce of the only claim, that is, of the request that won."""
    (claim,) = claims(fleet.etcd, fleet.install).values()
    return str(claim["nonce"])


@pytest.mark.operator
def test_a_reserve_whose_reply_is_lost_is_driven(fleet: Fleet, kubeflow: FakeKubeflow) -> None:
    """etcd has applied it and the lease lives: the repetition with the same nonce finds that it owns the key, and drives it. There is no
    takeover."""
    fleet.lease_seconds = LONG_TTL
    with in_front_of(fleet.etcd.one.address) as line:
        fleet.ledger = f"etcd://{line.address}"
        operator = slow_to_reserve(fleet)
        with reserve_without_a_reply(fleet, line, plain(1)[0]):
            won = reserved_once(fleet)
            assert not kubeflow.runs
        fleet.until_ended(SOON)
        (record,) = dump(fleet.etcd, fleet.install).records.values()
        assert record.value["nonce"] == won
        metrics = operator.metrics()
        assert 'sparkonce_reservations_total{outcome="Owned"} 1.0' in metrics
        assert "sparkonce_takeovers_total 0.0" in metrics
        fleet.audit(kubeflow)


def test_a_reserve_whose_owner_lost_its_lease_is_released(fleet: Fleet, kubeflow: FakeKubeflow) -> None:
    """etcd has applied it, but the reply and the lease are lost: the claim ends with the lease, the key is taken over under the next one,
    and the attempt that was granted first runs."""
    fleet.lease_seconds = SHORT_TTL
    with in_front_of(fleet.etcd.one.address) as line:
        fleet.ledger = f"etcd://{line.address}"
        slow_to_reserve(fleet)
        with reserve_without_a_reply(fleet, line, plain(1)[0]):
            won = reserved_once(fleet)
            assert_eventually(lambda: not claims(fleet.etcd, fleet.install), SOON)
            assert not kubeflow.runs
        fleet.until_ended(SOON)
        (record,) = dump(fleet.etcd, fleet.install).records.values()
        assert record.value["nonce"] == won
        fleet.audit(kubeflow)


def test_a_drive_that_raised_is_driven_again(fleet: Fleet, kubeflow: FakeKubeflow) -> None:
    """At each of these steps a drive fails with an error: its owner drives the key again soon, without a takeover, and the job ends as
    usual."""
    points = ("engine.launch.before", "engine.launch.after", "engine.note.after", "engine.finalize.before")
    hits = fleet.folder / "hits"
    fleet.lease_seconds = LONG_TTL
    operator = fleet.add(
        SPARKONCE_FAILPOINTS=";".join(f"{point}=1*raise" for point in points), SPARKONCE_FAILPOINTS_LOG=str(hits)
    )
    operator.wait_ready()
    fleet.apply(plain(1))
    fleet.until_ended(SOON)
    assert {f"{point}=raise" for point in points} <= set(hits.read_text().split())
    (events,) = dump(fleet.etcd, fleet.install).events.values()
    gaps = [after["at"] - before["at"] for before, after in pairwise(events)]
    assert max(gaps) < stretched(2.0), events  # includes the time of the job itself
    assert operator.log.read_text().count("trying again") == len(points)
    assert "sparkonce_takeovers_total 0.0" in operator.metrics()
    fleet.audit(kubeflow)
