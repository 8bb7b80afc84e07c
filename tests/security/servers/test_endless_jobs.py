"""A tenant sends more endless jobs than the operator has slots: the other team's jobs start as before."""

from __future__ import annotations

import threading
from pathlib import Path

from harness.apiserver import Cluster
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.kubeflow import Script
from harness.kubeflow.drivers import waits_unless_stopped
from harness.stage import IN_TIME
from harness.tenants import tenants
from sparkonce.controller.status import SLOTS_TAKEN
from sparkonce.controller.status_writer import NO_SLOT

SLOTS = 5
SENT = 8


def test_endless_jobs_of_one_team_leave_slots_for_another(
    cluster: Cluster, ledger_server: Etcd, tmp_path: Path
) -> None:
    """Of five slots the attacker's eight jobs get four, and those that wait say for what; the other team's jobs run in the fifth, one after
    the other. When a job of the attacker ends, its next one starts."""
    names = [f"endless-{number}" for number in range(SENT)]
    over = {name: threading.Event() for name in names}
    with tenants(cluster, ledger_server, tmp_path, options=("--slots", str(SLOTS))) as both:

        def running() -> list[str]:
            return [name for name in names if both.attacker.runs(name)]

        for name in names:
            both.attacker.play(name, Script(code=waits_unless_stopped(over[name])))
            both.attacker.send(name, name)
        assert_eventually(lambda: len(running()) >= SLOTS - 1, IN_TIME)
        for number in range(3):
            both.other.send(f"well-{number}", f"well-{number}")
            both.other.until(f"well-{number}", "Succeeded")
        first = running()
        assert len(first) == SLOTS - 1
        for name in set(names) - set(first):
            both.attacker.until(name, "Pending", message=NO_SLOT)
            assert both.attacker.condition(name, "Reserved")["reason"] == SLOTS_TAKEN
            assert both.attacker.events(name) == {}
        over[first[0]].set()
        both.attacker.until(first[0], "Succeeded")
        assert_eventually(lambda: len(running()) == SLOTS, IN_TIME)
        for each in over.values():
            each.set()
