"""`kubectl sparkonce` as a data engineer uses it: a real kubectl, her own token, and the rights that the chart gives to `edit`."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.binaries import find
from harness.kube_api import SERVICE_ACCOUNTS
from harness.node.release import NAMESPACE, Release
from harness.node.scene import Scene
from harness.patience import completed

pytestmark = [pytest.mark.slow, pytest.mark.spark]

GROUP = "rbac.authorization.k8s.io"
ANN = "ann"


@pytest.fixture
def kubectl(scene: Scene, release: Release, tmp_path: Path) -> Callable[..., str]:
    """Output of kubectl as the user. Raises AssertionError with its output if it fails."""
    api, subject = scene.cluster.api, {"kind": "ServiceAccount", "name": ANN, "namespace": scene.namespace}
    api.create(SERVICE_ACCOUNTS, {"metadata": {"name": ANN}}, scene.namespace)
    forwards = [
        {"apiGroups": [""], "resources": ["services", "pods"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["create"]},
    ]
    name = f"{ANN}-{scene.namespace}"
    for body in (
        {"kind": "Role", "metadata": {"name": name, "namespace": NAMESPACE}, "rules": forwards},
        bound(name, NAMESPACE, subject, "Role", name),
        bound(name, scene.namespace, subject, "ClusterRole", "edit"),
    ):
        api.apply({"apiVersion": f"{GROUP}/v1", **body})
    programs = tmp_path / "bin"
    programs.mkdir()
    real = programs / "kubectl"
    real.write_text(f'#!/bin/sh\nexec {shlex.join(find("kubectl"))} "$@"\n')
    real.chmod(real.stat().st_mode | stat.S_IXUSR)
    kubeconfig = tmp_path / "kubeconfig"
    shutil.copy(scene.cluster.kubeconfig, kubeconfig)
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "KUBECONFIG": str(kubeconfig)}

    def say(*arguments: str) -> str:
        command = ["kubectl", *arguments]
        done = completed(command, 120, env=environment)
        assert done.returncode == 0, f"{shlex.join(command)}: {done.stderr.strip() or done.stdout}"
        return done.stdout

    token = scene.cluster.kubectl("create", "token", ANN, "-n", scene.namespace).strip()
    say("config", "set-credentials", ANN, f"--token={token}")
    say("config", "set-context", "--current", f"--user={ANN}", f"--namespace={scene.namespace}")
    return say


def bound(name: str, namespace: str, subject: dict[str, str], kind: str, role: str) -> dict[str, object]:
    return {
        "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": namespace},
        "subjects": [subject],
        "roleRef": {"apiGroup": GROUP, "kind": kind, "name": role},
    }


def test_a_key_is_looked_at_and_run_again(scene: Scene, kubectl: Callable[..., str]) -> None:
    """A user lists and explains a running key and reads its driver's log. After her rerun, generation 2 has replaced generation 1, each row
    exists once, and the history has the rerun under her name."""
    gateway = ("--gateway-namespace", NAMESPACE, "--service", "sparkonce-gateway")
    scene.send("looked-at")
    scene.until_marked("looked-at", "began")
    key = scene.status("looked-at")["key"]
    assert key in kubectl("sparkonce", "list", *gateway)
    assert "running" in kubectl("sparkonce", "explain", key, *gateway).lower()
    assert "SparkContext" in kubectl("sparkonce", "logs", key, *gateway)

    scene.open("looked-at")
    scene.until("looked-at", "Succeeded")
    assert "Succeeded" in kubectl("sparkonce", "show", key, *gateway)

    kubectl("sparkonce", "rerun", key, *gateway)
    scene.until_generation("looked-at", 2, "Succeeded")
    scene.once("looked-at")
    who = f"system:serviceaccount:{scene.namespace}:{ANN}"
    asked = [line for line in kubectl("sparkonce", "history", key, *gateway).splitlines() if who in line]
    assert len(asked) == 1, "the rerun is on record as hers, and nothing else is"
