"""A tenant's outputs never answer: its own keys wait, and no other team's do."""

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
    """A driver that makes its slot a pipe, so that reading it waits for a writer, and then fails, so that the attempt has to be settled."""

    def code(driver: Driver) -> int:
        told = assignment_in(driver)
        key = SinkKey(key_hash=told.key_hash, output="rows", generation=told.generation)
        slot = table / layout.slot_path(key, told.attempt)
        slot.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(slot)
        return 1

    return code


def unplug(table: Path) -> None:
    """Ends all reads of the attacker's pipes, so that the test leaves no thread behind."""
    for each in table.rglob("*.json"):
        if each.is_fifo():
            os.close(os.open(each, os.O_RDWR | os.O_NONBLOCK))
            each.unlink()


def finished(stage: Stage, table: Path, prefix: str) -> float:
    """Seconds until all of the other team's jobs have succeeded."""
    began = time.monotonic()
    names = [stage.send(f"{prefix}-{n}", f"{prefix}-{n}", outputs=rows(table)) for n in range(OTHERS)]
    for name in names:
        stage.until(name, "Succeeded")
    return time.monotonic() - began


def test_a_slot_that_is_a_pipe_blocks_its_own_key_alone(
    cluster: Cluster, ledger_server: Etcd, tmp_path: Path, say: Callable[[str], None]
) -> None:
    """40 keys of one namespace hang at their outputs. The operator answers its probe, starts no further attempt of theirs and shows the
    reason in their statuses; another namespace's jobs take no more than three times as long. Once the outputs answer, the hung keys go
    on."""
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
        assert beside < 3 * before + 2  # a dozen jobs take this long; forty time limits in a row would take far longer
        assert rows_of(table) == {1: 2 * OTHERS, 2: 2 * OTHERS, 3: 2 * OTHERS}
        probe.well()
        assert len(both.attacker.kubeflow.runs) == HUNG
        unplug(hung)
        for number in range(HUNG):
            both.attacker.until(f"hung-{number}", "Succeeded", timeout=90)
        assert rows_of(hung) == {1: HUNG}
        probe.well()
    say(f"/healthz answered within {probe.slowest:.2f} s")
