"""Drivers that stop sending heartbeats, with and without a gateway that serves; and reported progress. They reach the ledger directly."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.apiserver import Cluster
from harness.arrow_stage import table_of
from harness.beside import beside
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.fleet import rows_of
from harness.kubeflow import Driver, Script
from harness.kubeflow.drivers import assignment_in, job_of, writes_outputs
from harness.kubeflow.script import Code
from harness.stage import Stage, rows, staged
from sparkonce.attempt.decide import LINGERING
from sparkonce.blocking import run
from sparkonce.controller.drive_tasks import EVERY
from sparkonce.driver.channel import DirectChannel
from sparkonce.model.record import LINGERS
from sparkonce.store.open import open_blocking
from sparkonce.store.roster import ANNOUNCE, SILENT, Gateway, Gateways

BEAT = 0.2
TIMEOUT = 1
"""Seconds: heartbeatTimeoutSeconds."""


@pytest.fixture(scope="module")
def stage(cluster: Cluster, ledger_server: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(cluster, ledger_server, tmp_path_factory.mktemp("stage")) as one:
        yield one


def url(stage: Stage) -> str:
    return f"etcd://{stage.etcd.one.address}"


@contextmanager
def gateway(stage: Stage) -> Iterator[None]:
    """A gateway that, according to the roster, serves while the block lasts."""
    began = time.monotonic()
    ledger = open_blocking(url(stage), install=stage.install, ttl=3)

    def serve(over: threading.Event) -> None:
        lease, nonce = run(ledger.open_lease(owner="a gateway")), uuid.uuid4().hex
        gateways: Gateways = ledger  # type: ignore[assignment]  # etcd's is one
        while True:
            run(lease.keep_alive())
            entry = Gateway(nonce=nonce, owner="a gateway", served=time.monotonic() - began)
            run(gateways.announce_gateway(entry, lease=lease))
            if over.wait(ANNOUNCE / 2):
                run(lease.revoke())
                return

    try:
        with beside(serve):
            yield
    finally:
        run(ledger.close())


class Talking:
    """A driver that sends heartbeats until told to stop, and writes its rows on request, even if it was replaced."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.silent, self.writes, self.done = threading.Event(), threading.Event(), threading.Event()
        self.rows, self.beats = 0, 0

    def __call__(self, driver: Driver) -> int:
        assignment = assignment_in(driver)
        ledger = open_blocking(url(self.stage), install=self.stage.install)
        channel = DirectChannel(ledger, assignment)
        try:
            while not self.writes.wait(BEAT):
                if not self.silent.is_set():
                    channel.renew({"rows": self.rows})
                    self.beats += 1
                    self.rows += 1
            job_of(driver, channel).write(table_of(8), "rows")
        finally:
            run(ledger.close())
            self.done.set()
        return 0


class Lingering:
    """A driver that has written its rows but is kept alive by a thread: it reports for how long, until it is stopped."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.seconds, self.ended = stage, 0.0, False

    def __call__(self, driver: Driver) -> int:
        ledger = open_blocking(url(self.stage), install=self.stage.install)
        channel = DirectChannel(ledger, assignment_in(driver))
        try:
            job = job_of(driver, channel)
            job.write(table_of(7), "rows")
            job.result(rows=1)
            while not driver.stop.wait(BEAT):
                channel.renew({"rows": 1, LINGERS: self.seconds})
        finally:
            run(ledger.close())
        self.ended = True
        return 143


def starts(stage: Stage, key: str, tmp_path: Path, first: Code) -> None:
    stage.play(key, Script(code=writes_outputs(7)))
    stage.play(key, Script(code=first), attempt="g1-a1")
    stage.send(key, key, outputs=rows(tmp_path), heartbeatTimeoutSeconds=TIMEOUT, stopTimeoutSeconds=2)
    stage.until(key, "Running", attempt=1)


@pytest.mark.operator
def test_a_driver_that_falls_silent_is_replaced(stage: Stage, tmp_path: Path) -> None:
    """A hung driver and one that is cut off look the same: its pod still runs, and after the timeout attempt 2 writes the rows. When the
    first one continues and writes, that has no effect."""
    driver = Talking(stage)
    with gateway(stage):
        starts(stage, "silent", tmp_path, driver)
        assert_eventually(lambda: driver.beats > 5, 20)
        driver.silent.set()
        began = time.monotonic()
        stage.until("silent", "Succeeded", attempt=2)
        assert time.monotonic() - began > TIMEOUT
    driver.writes.set()
    assert_eventually(driver.done.is_set, 20)
    assert rows_of(tmp_path) == {7: 1}, "not the eights of the one that woke up"
    assert "no heartbeat" in stage.cli("keys", "history", "silent").stdout


def test_while_no_gateway_serves_nobody_is_replaced(stage: Stage, tmp_path: Path) -> None:
    """All gateways go, and no heartbeat arrives for more than three times the timeout, long enough for any operator to notice: no attempt
    is added. Once a gateway serves again, the driver continues and its own rows count."""
    driver = Talking(stage)
    with gateway(stage):
        starts(stage, "unheard", tmp_path, driver)
        assert_eventually(lambda: driver.beats > 5, 20)
    driver.silent.set()
    quiet_until = time.monotonic() + SILENT + 2 * 3 + 3 * TIMEOUT  # the gateway's entry, its lease, then the silence

    def still() -> bool:
        assert stage.status("unheard").get("attempt") == 1
        return time.monotonic() > quiet_until

    assert_eventually(still, 60, interval=0.2)
    assert stage.attempts("unheard") == ["g1-a1"]
    with gateway(stage):
        driver.silent.clear()
        driver.writes.set()
        stage.until("unheard", "Succeeded", attempt=1)
    assert rows_of(tmp_path) == {8: 1}


@pytest.mark.operator
def test_a_driver_with_nothing_left_to_do_is_stopped(stage: Stage, tmp_path: Path) -> None:
    """Its rows are committed and its program has ended, but its process has not: status and `explain` say so, and after lingerSeconds the
    job has succeeded with the reported result and the driver is stopped."""
    driver = Lingering(stage)
    stage.play("lingers", Script(code=driver))
    with gateway(stage):
        stage.send("lingers", "lingers", outputs=rows(tmp_path))
        assert_eventually(lambda: LINGERING in str(stage.status("lingers").get("message")), 60)
        assert LINGERING in json.loads(stage.cli("keys", "explain", "lingers", "--json").stdout)["evidence"]
        driver.seconds = 61.0
        status = stage.until("lingers", "Succeeded", attempt=1)
    assert status["result"]["values"] == {"rows": 1}
    assert rows_of(tmp_path) == {7: 1}
    assert_eventually(lambda: driver.ended, 20)


def test_progress_is_shown_and_not_more_often_than_people_read(stage: Stage, tmp_path: Path) -> None:
    """The driver reports progress five times a second; its object shows it, at most every ten seconds."""
    driver = Talking(stage)
    starts(stage, "telling", tmp_path, driver)
    seen: list[tuple[float, int]] = []

    def look() -> bool:
        shown = stage.status("telling").get("progress", {}).get("rows")
        if shown is not None and (not seen or seen[-1][1] != shown):
            seen.append((time.monotonic(), shown))
        return len(seen) >= 3

    assert_eventually(look, 90, interval=0.1)
    driver.writes.set()
    stage.until("telling", "Succeeded", attempt=1)
    (first, low), (second, more), (third, most) = seen
    assert low < more < most
    assert min(second - first, third - second) > EVERY - 1.5
