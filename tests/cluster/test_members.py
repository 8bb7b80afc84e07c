"""The bundled etcd loses members, with one member or three as the chart offers it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from harness.eventually import assert_eventually
from harness.node.release import Release, values
from harness.node.scene import LONG, Scene
from sparkonce.launch.kubernetes import JOBS

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.fixture(params=(pytest.param(1, marks=pytest.mark.soak), 3), ids=lambda members: f"{members} members")
def ledger(scene: Scene, release: Release, request: pytest.FixtureRequest) -> Iterator[Release]:
    """The release, or one with three members in a namespace of its own; the first is uninstalled meanwhile, since both would serve the same
    objects."""
    if request.param == 1:
        yield release
        return
    # A namespace of an earlier test may still be terminating; a ledger without its jobs would rightly be reported as rewound.
    assert_eventually(lambda: not scene.cluster.api.list(JOBS), LONG)
    three = merged(values(), {"etcd": {"bundled": {"replicas": request.param}}, "crds": {"install": False}})
    made = Release(scene.cluster, values=three, namespace="trio", members=request.param)
    release.uninstall()
    try:
        made.install()
        yield made
        # To the other ledger, statuses of this one would prove that it had been rewound, and it would rightly stop.
        scene.cluster.kubectl("delete", "ij", "--all", "-n", scene.namespace, "--timeout=60s")
        made.uninstall()
    finally:
        release.install()


def merged(known: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    deep = {name: merged(known[name], each) for name, each in more.items() if isinstance(each, dict) and name in known}
    return {**known, **more, **deep}


def test_a_ledger_outlives_its_members(scene: Scene, ledger: Release) -> None:
    """One member is killed while a job runs, another before its duplicate arrives: one attempt, one driver, each row once, and a replay."""
    ledger.until_ready()
    scene.send("outlives")
    scene.until_marked("outlives", "began")
    os.kill(ledger.process(ledger.pods("etcd")[0]), signal.SIGKILL)
    scene.open("outlives")
    assert scene.until("outlives", "Succeeded")["attempt"] == 1
    ledger.until_ready()
    os.kill(ledger.process(ledger.pods("etcd")[-1]), signal.SIGKILL)
    again = scene.job("outlives")
    again["metadata"]["name"] = "again"
    scene.cluster.api.apply(again)
    assert scene.until("again", "Succeeded")["role"] == "Replay"
    scene.once("outlives")
    assert len(scene.marks("outlives")) == 1
