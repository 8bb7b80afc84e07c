"""Runs the tests on an existing cluster instead of the harness's own: `SPARKONCE_TEST_KUBECONFIG=FILE`, or `=kind`.

A file is a kubeconfig whose current context has all rights. Its nodes must have the images of `make images` under the names in
`harness.node.images`, and must see the folder `SPARKONCE_TEST_SHARED` (default: the system's temporary folder) under the same path, as with
kind's `extraMounts`, k3d's `--volume` or a node that is this machine: scripts, gates and tables are there. If it has no Spark operator, one
runs beside the tests while they run.

`kind` makes such a cluster with kind and deletes it. **That way was never run**: it needs a Docker engine.

Tests that kill, freeze or cut a part of a node are skipped, because they must not damage a cluster that they do not own.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

from harness.apiserver import established, yaml_document
from harness.binaries import SPARK_OPERATOR_PROGRAM, binary, spark_operator_crds
from harness.child import Child, NotStarted
from harness.kube_api import CRDS, Api
from harness.node.cluster import RealCluster, spark_environment, spark_operator, started_cluster

KUBECONFIG, SHARED = "SPARKONCE_TEST_KUBECONFIG", "SPARKONCE_TEST_SHARED"
KIND = "sparkonce-tests"
_PARTS = ("children", "network", "cgroups", "containers")


class GivenCluster(RealCluster):
    """The access that a user of a cluster has."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        self.folder, self.kubeconfig = folder, kubeconfig
        self.api, self.url = _api(kubeconfig, folder)

    def __getattr__(self, name: str) -> NoReturn:
        if name in _PARTS:
            why = f"it takes hold of a node's {name}, and {KUBECONFIG} lends a cluster from outside"
            pytest.skip(why)  # CI never sets the variable: there a skip is a failure
        raise AttributeError(name)

    def collect_logs(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "cluster.txt").write_text(self.kubectl("get", "all,ij,sparkapp,events", "-A", "-o", "wide", check=False))


@contextlib.contextmanager
def cluster(images: Callable[[], Mapping[str, Path]]) -> Iterator[RealCluster]:
    """The cluster of the tests: an existing one, one of kind, or the harness's own."""
    told = os.environ.get(KUBECONFIG)
    if not told:
        with started_cluster(images) as made:
            yield made
        return
    folder = Path(tempfile.mkdtemp(prefix="sparkonce-given-", dir=os.environ.get(SHARED)))
    try:
        with contextlib.ExitStack() as stack:
            if told == "kind":
                told = str(stack.enter_context(_kind(folder, images)))
            given = GivenCluster(folder, Path(told))
            stack.callback(given.api.close)
            if given.api.get(CRDS, "sparkapplications.sparkoperator.k8s.io") is None:
                stack.enter_context(_spark_operator(given))
            yield given
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # files of the drivers' user if this process is not root


@contextlib.contextmanager
def _kind(folder: Path, images: Callable[[], Mapping[str, Path]]) -> Iterator[Path]:
    kubeconfig = folder / "kubeconfig"
    mounts = [{"hostPath": str(folder), "containerPath": str(folder)}]
    config = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "nodes": [{"role": "control-plane", "extraMounts": mounts}],
    }
    _run("kind", "create", "cluster", f"--name={KIND}", f"--kubeconfig={kubeconfig}", "--config=-", given=config)
    try:
        for archive in images().values():
            _run("kind", "load", "image-archive", str(archive), f"--name={KIND}")
        yield kubeconfig
    finally:
        _run("kind", "delete", "cluster", f"--name={KIND}")


def _run(*command: str, given: Any = None) -> None:
    text = yaml.safe_dump(given) if given is not None else None
    try:
        subprocess.run(command, input=text, text=True, check=True, timeout=900)
    except FileNotFoundError:
        raise NotStarted(f"there is no {command[0]}: install it, or give a kubeconfig in {KUBECONFIG}") from None
    except subprocess.CalledProcessError as failed:
        raise NotStarted(
            f"{' '.join(command)} ended with {failed.returncode}; does a Docker engine run here?"
        ) from None


@contextlib.contextmanager
def _spark_operator(given: GivenCluster) -> Iterator[None]:
    """Runs a Spark operator beside the tests, with the rights of the kubeconfig."""
    for path in spark_operator_crds():
        given.api.apply(yaml_document(path))
    given.api.wait(CRDS, "sparkapplications.sparkoperator.k8s.io", until=established, timeout=60)
    host, _, port = given.url.partition("://")[2].partition(":")
    environment = spark_environment(given.kubeconfig, host, port or "443")
    command = [str(binary(SPARK_OPERATOR_PROGRAM)), *spark_operator()]
    child = Child("spark-operator", command, given.folder / "spark-operator.log", environment)
    child.start()
    try:
        yield
    finally:
        child.kill()


def _api(kubeconfig: Path, scratch: Path) -> tuple[Api, str]:
    """A client for its current context, with a token or a client certificate. Raises NotStarted if it has neither, or cannot be read."""
    try:
        document = yaml.safe_load(kubeconfig.read_text())
        context = _named(document["contexts"], document["current-context"])["context"]
        server = _named(document["clusters"], context["cluster"])["cluster"]
        user = _named(document["users"], context["user"])["user"]
        ca = _file(server, "certificate-authority", scratch)
        token = user.get("token", "")
        known = None if token else (_file(user, "client-certificate", scratch), _file(user, "client-key", scratch))
        return Api(server["server"], ca=ca, token=token, certificate=known), server["server"]
    except (OSError, KeyError, TypeError, StopIteration) as problem:
        raise NotStarted(
            f"{kubeconfig} names no cluster with a CA and a token or a client certificate ({problem!r}); {KUBECONFIG} wants one"
        ) from None


def _named(entries: Any, name: str) -> Any:
    return next(each for each in entries if each["name"] == name)


def _file(entry: Mapping[str, str], name: str, scratch: Path) -> Path:
    if path := entry.get(name):
        return Path(path)
    made = scratch / name
    made.touch(mode=0o600)
    made.write_bytes(base64.b64decode(entry[f"{name}-data"]))
    return made
