"""Drivers that wait for longer than the API server keeps the history of pods."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from harness.apiserver import ApiServer, Cluster
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.kubeflow import Script
from harness.stage import IN_TIME, Stage, staged
from sparkonce.attempt.drive import LONGEST
from sparkonce.launch.kubeflow.starts import EVERY, WRITTEN

FORGOTTEN = 15.0
"""Seconds after which the test compacts what was written until then, once a step of the proof has been made."""


@pytest.fixture
def stage(cluster: Cluster, ledger_server: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Its operator speaks to an API server without a cache of changes: what etcd has compacted is gone for it, as on a busy cluster."""
    url = f"http://{cluster.etcd.one.address}"
    server = ApiServer(cluster.folder, etcd_url=url, certificates=cluster.certificates, name="forgets")
    server.child.command += ["--watch-cache=false"]
    try:
        server.start()
        kubeconfig, folder = cluster.kubeconfig_for(server.url), tmp_path_factory.mktemp("stage")
        with staged(cluster, ledger_server, folder, kubeconfig=kubeconfig) as one:
            yield one
    finally:
        server.close()


@pytest.mark.soak
@pytest.mark.timeout(600)  # a step of the proof is made once a minute
@pytest.mark.parametrize("taken_over", [False, True])
def test_a_job_that_waited_for_long_is_corrected_without_a_person(stage: Stage, taken_over: bool) -> None:
    """The image of an opaque job cannot be pulled for minutes, and the beginning of its history is gone; its operator may have been killed
    meanwhile. The edited object runs, once."""
    key = f"long-{taken_over}".lower()
    stage.play(key, Script(pending_seconds=3600.0, pending_reason="ImagePullBackOff"), attempt="g1-*")
    stage.send(key, key, "a")
    assert_eventually(lambda: "image cannot be pulled" in str(stage.status(key).get("message")), IN_TIME)
    early = others_run(stage, key, (WRITTEN if taken_over else 1) * EVERY + LONGEST + FORGOTTEN)
    if taken_over:
        stage.operators[0].kill()
        stage.operators[0].start()
    stage.cluster.etcd.compact(early)
    stage.arguments(key, "b")
    stage.until(key, "Succeeded", generation=2, attempt=1)
    assert [run.application for run in stage.runs(key)] == [f"so-{stage.hash20(key)}-g2-a1"]


def others_run(stage: Stage, key: str, seconds: float) -> int:
    """Lets other jobs move the version of pods on for so long. Returns etcd's revision near the beginning."""
    began, early = time.monotonic(), 0
    while (waited := time.monotonic() - began) < seconds:
        other = f"{key}-other-{int(waited)}"
        stage.send(other, other)
        stage.until(other, "Succeeded")
        if not early and waited > FORGOTTEN:
            early = stage.cluster.etcd.revision()
        time.sleep(5)  # a job every few seconds moves the version of pods on and leaves the machine idle
    return early
