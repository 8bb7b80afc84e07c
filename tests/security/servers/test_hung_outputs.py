"""A tenant's outputs block whoever reads them: its own keys wait, and no other does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from harness.apiserver import Cluster
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.fleet import rows_of
from harness.kubeflow import Driver, Script
from harness.kubeflow.drivers import assignment_in, writes_outputs
from harness.kubeflow.script import Code
from harness.stage import Stage, rows
from harness.tenants import Liveness, tenants
from sparkonce.sink.protocol import SinkKey
from sparkonce.sink.slotlog import layout

HUNG = 40
"""More keys than a namespace has threads, and more than the controller has workers."""
OTHERS = 12


def plants_a_pipe(table: Path) -> Code:
    """A driver that makes its slot a pipe: who reads it waits until somebody writes. Then it fails, so that it has to be settled."""

    def code(driver: Driver) -> int:
        told = assignment_in(driver)
        key = SinkKey(key_hash=told.key_hash, output="rows", generation=told.generation)
        slot = table / layout.slot_path(key, told.attempt)
        slot.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(slot)
        return 1

    return code


def unplug(table: Path) -> None:
    """Ends every read of the attacker's pipes, so that the test leaves no thread behind."""
    for each in table.rglob("*.json"):
        if each.is_fifo():
            os.close(os.open(each, os.O_RDWR | os.O_NONBLOCK))
            each.unlink()


def finished(stage: Stage, table: Path, prefix: str) -> float:
    """Seconds in which the other team's jobs ended well."""
    began = time.monotonic()
    names = [stage.send(f"{prefix}-{n}", f"{prefix}-{n}", outputs=rows(table)) for n in range(OTHERS)]
    for name in names:
        stage.until(name, "Succeeded")
    return time.monotonic() - began


def test_a_slot_that_is_a_pipe_blocks_its_own_key_alone(
    cluster: Cluster, ledger_server: Etcd, tmp_path: Path, say: Callable[[str], None]
) -> None:
    """40 keys of one namespace hang at their outputs. The operator answers its probe, starts nothing of theirs again, and says why in their
    statuses; another namespace's jobs end as fast as before; and what was hung goes on when its output answers."""
    hung, table = tmp_path / "hung", tmp_path / "table"
    (hung / layout.SLOTS).mkdir(parents=True)
    options = ("--output-seconds", "2", "--slots", str(HUNG))
    with tenants(cluster, ledger_server, tmp_path, options=options) as both, Liveness(both.operators[0]) as probe:
        for number in range(OTHERS):
            for prefix in ("before", "beside"):
                both.other.play(f"{prefix}-{number}", Script(code=writes_outputs(1, 2, 3)))
        before = finished(both.other, table, "before")
        retry = {"maxAttempts": 2, "backoff": {"initial": "0.1s", "max": "0.2s"}}
        for number in range(HUNG):
            both.attacker.play(f"hung-{number}", Script(code=plants_a_pipe(hung)), attempt="g*-a1")
            both.attacker.play(f"hung-{number}", Script(code=writes_outputs(1)), attempt="g*-a2")
            both.attacker.send(f"hung-{number}", f"hung-{number}", outputs=rows(hung), retry=retry)
        assert_eventually(
            lambda: all("not answer" in str(both.attacker.status(f"hung-{n}")) for n in range(HUNG)), 60, interval=0.5
        )
        beside = finished(both.other, table, "beside")
        say(f"{OTHERS} jobs of the other team: {before:.1f} s before, {beside:.1f} s beside {HUNG} hung keys")
        assert beside < 3 * before + 2  # the time of a dozen jobs, not of an output's time limit times forty
        assert rows_of(table) == {1: 2 * OTHERS, 2: 2 * OTHERS, 3: 2 * OTHERS}
        probe.well()
        assert len(both.attacker.kubeflow.runs) == HUNG
        unplug(hung)
        for number in range(HUNG):
            both.attacker.until(f"hung-{number}", "Succeeded", timeout=90)
        assert rows_of(hung) == {1: HUNG}
        probe.well()
    say(f"/healthz answered within {probe.slowest:.2f} s")
