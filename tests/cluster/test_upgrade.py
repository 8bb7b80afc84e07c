"""Records outlive releases: a release is uninstalled, installed again from the previous version of the chart, and upgraded."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.eventually import assert_eventually
from harness.kube_api import CRDS
from harness.node.release import Release
from harness.node.scene import LONG, Scene
from sparkonce.launch.kubernetes import JOBS

pytestmark = [pytest.mark.slow, pytest.mark.spark]

CHART = "charts/sparkonce"
ROOT = Path(__file__).resolve().parents[2]


def previous_chart(folder: Path) -> Path:
    """The chart as of the last commit but one that changed it; without such a history, the current one."""
    changed = git("log", "--format=%H", "--", CHART).decode().split()
    commit = changed[1] if len(changed) > 1 else "HEAD"
    with tarfile.open(fileobj=BytesIO(git("archive", "--format=tar", commit, "--", CHART))) as archive:
        archive.extractall(folder, filter="data")
    return folder / CHART


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True).stdout


def known(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Only those values that the older chart defines: its schema refuses the others."""
    return {
        name: known(value, defaults[name])
        if isinstance(value, dict) and defaults[name] and name != "resources"
        else value
        for name, value in values.items()
        if name in defaults
    }


def test_records_outlive_releases(scene: Scene, release: Release, tmp_path: Path) -> None:
    """After uninstalling, objects, applications and their drivers still exist. Installed from the previous chart, the release adopts the
    running job in its first attempt; upgraded to this chart, it does so again. In the end each job took effect once, and a duplicate gets
    the old result."""
    scene.send("done")
    scene.open("done")
    before = scene.until("done", "Succeeded")
    scene.send("runs")
    scene.until_marked("runs", "began")
    (application,) = scene.applications("runs")
    release.uninstall()
    try:
        assert not [each for component in ("operator", "gateway", "etcd") for each in release.pods(component)]
        assert scene.cluster.api.get(CRDS, "idempotentjobs.sparkonce.dev") is not None
        assert scene.status("done") == before
        chart = previous_chart(tmp_path)
        values = known(release.values, yaml.safe_load((chart / "values.yaml").read_text()))
        older = Release(release.cluster, chart=chart, values=values)
        older.install()
        older.until_ready()
        assert_eventually(lambda: owner(scene, "runs").split("/")[0] in names(older), LONG)
    finally:
        release.install()
    release.until_ready()
    assert_eventually(lambda: owner(scene, "runs").split("/")[0] in names(release), LONG)
    assert [each["metadata"]["uid"] for each in scene.applications("runs")] == [application["metadata"]["uid"]]
    scene.open("runs")
    assert scene.until("runs", "Succeeded")["attempt"] == 1
    assert len(scene.marks("runs")) == 1, "one driver in all"
    scene.once("runs")
    again = scene.job("done")
    again["metadata"]["name"] = "again"
    scene.cluster.api.apply(again)
    replayed = scene.until("again", "Succeeded")
    assert (replayed["role"], replayed["result"]["outputs"]) == ("Replay", before["result"]["outputs"])
    scene.once("done")
    assert scene.cluster.api.get(JOBS, "done", scene.namespace) is not None


def owner(scene: Scene, name: str) -> str:
    """The process that drives the job now, according to its status."""
    return str(scene.status(name).get("owner") or "")


def names(release: Release) -> list[str]:
    return [str(each["metadata"]["name"]) for each in release.pods("operator")]
