"""The harness of the api tier itself: its API server is real, and can be disturbed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness import binaries
from harness.apiserver import STRANGER, Cluster, folder_in_memory
from harness.binaries import KUBE, PartMissing, binary, component
from harness.eventually import assert_eventually
from harness.kube_api import CONFIG_MAPS, ApiError
from harness.replay import replay
from sparkonce.launch.kubernetes import PODS, SPARK_APPLICATIONS

SPEC = {"type": "Python", "sparkVersion": "4.1.1", "mainApplicationFile": "local:///x.py", "driver": {}, "executor": {}}
POD = {"spec": {"containers": [{"name": "c", "image": "i"}]}}


def test_every_part_knows_its_version() -> None:
    """One binary is all of the parts, and reports the version that our go.mod pins."""
    for name, flag in (("kube-apiserver", "--version"), ("kubelet", "--version"), ("kubectl", "version")):
        client = ["--client"] if name == "kubectl" else []
        said = subprocess.run([*component(name), flag, *client], capture_output=True, text=True, check=True).stdout
        assert KUBE.version in said
    assert "3.6" in subprocess.run([*component("etcd"), "--version"], capture_output=True, text=True, check=True).stdout


def test_parts_of_a_given_folder_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part in KUBEBUILDER_ASSETS is used; one that is missing there comes from the build."""
    (tmp_path / "etcd").touch(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    assert component("etcd") == [str(tmp_path / "etcd")]
    assert component("kube-scheduler")[-1] == "kube-scheduler"


def test_without_go_and_without_a_cache_one_sentence_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a cached build and without Go, the reason names both remedies, and the test is skipped with it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(PartMissing, match=r"install Go .* or set KUBEBUILDER_ASSETS"):
        binary(KUBE)
    with pytest.raises(pytest.skip.Exception):
        component("etcd")


def test_a_build_that_fails_leaves_nothing_that_looks_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a module does not compile, the compiler's words are reported and the next try builds it again."""
    module = tmp_path / "modules" / "broken"
    module.mkdir(parents=True)
    (tmp_path / "pinned").mkdir()
    (tmp_path / "pinned" / "go.mod").write_text("module example.test/pinned\n")
    needs = f"require (\n\texample.test/pinned v1.2.3\n)\n\nreplace example.test/pinned => {tmp_path / 'pinned'}\n"
    (module / "go.mod").write_text(f"module broken\n\ngo 1.21\n\n{needs}")
    (module / "main.go").write_text("package main\n\nfunc main() { nonsense\n")
    go_cache = subprocess.run(["go", "env", "GOCACHE"], capture_output=True, text=True, check=True).stdout.strip()
    monkeypatch.setenv("GOCACHE", go_cache)  # by default it is below the folder that this test replaces
    monkeypatch.setattr(binaries, "MODULES", tmp_path / "modules")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for _ in range(2):
        with pytest.raises(PartMissing, match=r"main\.go"):
            binary(binaries.Module("broken", "example.test/pinned"), say=lambda _: None)


@pytest.mark.parametrize("step", ["build", "env"])
def test_a_build_that_takes_too_long_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """A Go command that was ended at its limit is reported with the limit and the remedy, not as silent."""
    module = tmp_path / "modules" / "slow"
    module.mkdir(parents=True)
    (module / "go.mod").write_text("module slow\n")
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(f'#!/bin/sh\n[ "$1" = {step} ] && exec sleep 600\necho go1.99\n')
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(binaries, "MODULES", tmp_path / "modules")
    monkeypatch.setattr(binaries, "PATIENCE", 0.1)
    monkeypatch.setattr(binaries, "BUILD_TIMEOUT", 1.0)
    with pytest.raises(PartMissing, match=r"was ended at its limit of 1 s.*run `sh scripts/cluster-parts`") as ended:
        binary(binaries.Module("slow", ""), say=lambda _: None)
    assert "it said nothing" not in str(ended.value)


def test_what_an_object_owns_is_collected_with_it(cluster: Cluster, namespace: str) -> None:
    """Deleting a SparkApplication deletes the pod that it owns: the garbage collector knows both CRDs."""
    owner = cluster.api.create(SPARK_APPLICATIONS, {"metadata": {"name": "a"}, "spec": SPEC}, namespace)
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": "a", "uid": owner["metadata"]["uid"]}
    cluster.api.create(PODS, {**POD, "metadata": {"name": "p", "ownerReferences": [reference]}}, namespace)
    cluster.api.delete(SPARK_APPLICATIONS, "a", namespace)
    cluster.api.gone(PODS, "p", namespace, timeout=30)


def test_writes_are_checked(cluster: Cluster, namespace: str) -> None:
    """The API refuses objects that violate a schema, a second create, a stale revision and a user without rights, each by its code."""
    codes = []
    refusals: list[Callable[[], object]]
    cluster.api.create(CONFIG_MAPS, {"metadata": {"name": "c"}}, namespace)
    stale = {"metadata": {"resourceVersion": "1"}, "data": {"a": "b"}}
    with cluster.server.client(STRANGER) as stranger:
        refusals = [
            lambda: cluster.api.create(SPARK_APPLICATIONS, {"metadata": {"name": "b"}, "spec": {}}, namespace),
            lambda: cluster.api.create(CONFIG_MAPS, {"metadata": {"name": "c"}}, namespace),
            lambda: cluster.api.patch(CONFIG_MAPS, "c", stale, namespace=namespace),
            lambda: stranger.get(CONFIG_MAPS, "c", namespace),
        ]
        for refused in refusals:
            with pytest.raises(ApiError) as error:
                refused()
            codes.append(error.value.code)
    assert codes == [422, 409, 409, 403]


def test_an_api_server_can_be_killed_frozen_and_doubled(cluster: Cluster, namespace: str) -> None:
    """Killed it answers nothing, and after a restart has the stored objects; frozen it holds requests; a second one sees the same
    objects."""
    cluster.api.create(CONFIG_MAPS, {"metadata": {"name": "c"}}, namespace)
    cluster.server.kill()
    assert not cluster.api.healthy()
    cluster.server.start()
    assert cluster.api.get(CONFIG_MAPS, "c", namespace) is not None

    with cluster.server.frozen(), pytest.raises(httpx.TimeoutException):
        httpx.get(f"{cluster.url}/livez", verify=False, timeout=0.5, trust_env=False)
    assert_eventually(cluster.api.healthy, 10)

    second = cluster.another_server()
    with second.client() as api:
        assert api.get(CONFIG_MAPS, "c", namespace) is not None
    second.close()
    assert cluster.api.healthy()


def test_what_the_api_server_forgets_its_etcd_knows(cluster: Cluster, namespace: str) -> None:
    """Each write of a custom resource between two revisions is returned in order, also for a deleted object, and none outside of them."""
    first = cluster.api.create(SPARK_APPLICATIONS, {"metadata": {"name": "a"}, "spec": SPEC}, namespace)
    written = [
        cluster.api.create(SPARK_APPLICATIONS, {"metadata": {"name": "b"}, "spec": SPEC}, namespace),
        cluster.api.patch(SPARK_APPLICATIONS, "a", {"metadata": {"labels": {"x": "1"}}}, namespace=namespace),
        cluster.api.patch(SPARK_APPLICATIONS, "b", {"metadata": {"labels": {"x": "2"}}}, namespace=namespace),
    ]
    cluster.api.delete(SPARK_APPLICATIONS, "b", namespace)
    last = cluster.api.patch(SPARK_APPLICATIONS, "a", {"metadata": {"labels": {"x": "3"}}}, namespace=namespace)
    cluster.api.patch(SPARK_APPLICATIONS, "a", {"metadata": {"labels": {"x": "4"}}}, namespace=namespace)
    after, until = (each["metadata"]["resourceVersion"] for each in (first, last))
    told = replay(cluster.etcd, SPARK_APPLICATIONS, namespace, after=after, until=until)
    assert [_at(each) for each in told] == [_at(each) for each in [*written, last]]
    assert replay(cluster.etcd, SPARK_APPLICATIONS, namespace, after=until, until=until) == []


def _at(found: dict[str, Any]) -> tuple[object, ...]:
    return tuple(found["metadata"].get(name) for name in ("name", "uid", "resourceVersion", "labels"))


def test_the_ledger_is_not_the_clusters_etcd(cluster: Cluster, ledger: str) -> None:
    """The ledger's etcd is separate from the cluster's, and serves."""
    assert not ledger.endswith(cluster.etcd.one.address)
    assert httpx.get(f"{ledger}/health", trust_env=False).json()["health"] == "true"


def test_what_a_killed_run_left_in_memory_is_removed() -> None:
    """The folder of a process that is gone is removed by the next one; that of a living process is kept."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    memory = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
    left, used = memory / f"sparkonce-cluster-{gone.pid}-x", memory / f"sparkonce-cluster-{os.getpid()}-x"
    for each in (left, used):
        each.mkdir()
    try:
        with folder_in_memory() as fresh:
            assert not left.exists()
            assert used.exists()
            assert list(fresh.iterdir()) == []
        assert not fresh.exists()
    finally:
        used.rmdir()
