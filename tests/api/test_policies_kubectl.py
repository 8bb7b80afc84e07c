"""What people and scripts see that have only kubectl: wait, get, describe."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.apiserver import Cluster
from harness.binaries import component
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.kube_api import CONFIG_MAPS
from harness.kubeflow import Moment, Script
from harness.patience import completed, output_of
from harness.stage import IN_TIME, Stage, held, staged
from harness.verdicts import HEALTH

ROOT = Path(__file__).resolve().parents[2]

VANISHES = Script(code=held(threading.Event()), vanishes=Moment.RUNNING)
"""Nothing shows what this driver did."""


@pytest.fixture(scope="module")
def stage(cluster: Cluster, ledger_server: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(cluster, ledger_server, tmp_path_factory.mktemp("stage")) as one:
        yield one


def kubectl(stage: Stage, *command: str) -> subprocess.Popen[str]:
    where = ("--kubeconfig", str(stage.cluster.kubeconfig), "--namespace", stage.namespace)
    return subprocess.Popen(
        [*component("kubectl"), *where, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def said(process: subprocess.Popen[str], *, code: int = 0) -> str:
    """The command's output, after it has ended."""
    out, _ = output_of(process, 60)
    assert process.returncode == code, out
    return out


def wait_for(stage: Stage, name: str, condition: str, seconds: int = 40) -> subprocess.Popen[str]:
    return kubectl(stage, "wait", f"idempotentjob/{name}", f"--for=condition={condition}", f"--timeout={seconds}s")


@pytest.mark.operator
def test_kubectl_wait_returns_when_the_job_has_its_result(stage: Stage) -> None:
    """It does not return earlier; it returns for the leader, for a follower, and at once for an object of a finished job."""
    done = threading.Event()
    stage.play("waits", Script(code=held(done)))
    stage.send("waits-1", "waits")
    stage.send("waits-2", "waits")
    stage.until("waits-1", "Running")
    stage.until("waits-2", "Running")
    waiting = [wait_for(stage, name, "Complete") for name in ("waits-1", "waits-2")]
    stage.settled("waits-1", "waits-2")
    assert [each.poll() for each in waiting] == [None, None]
    done.set()
    for each in waiting:
        assert "condition met" in said(each)
    stage.send("waits-3", "waits")
    assert "condition met" in said(wait_for(stage, "waits-3", "Complete"))


def test_kubectl_wait_returns_when_the_job_failed(stage: Stage) -> None:
    """`--for=condition=Failed` is met by a failed job and by one with an invalid spec; `Complete` is not met by a failed job."""
    stage.play("fails", Script(exit_code=1))
    stage.send("fails", "fails")
    stage.send("invalid", "invalid", tunableArguments=["--threads"])
    assert "condition met" in said(wait_for(stage, "fails", "Failed"))
    assert "condition met" in said(wait_for(stage, "invalid", "Failed"))
    assert "timed out" in said(wait_for(stage, "fails", "Complete", 1), code=1)


def test_kubectl_wait_for_held_and_for_mismatch(stage: Stage) -> None:
    """A client can wait for states that need a person, not only for a job's end."""
    stage.play("held", VANISHES)
    stage.send("held", "held")
    stage.send("other", "held", "another")
    assert "condition met" in said(wait_for(stage, "other", "Mismatch"))
    assert "condition met" in said(wait_for(stage, "held", "Held"))


def commands(page: str, about: str) -> str:
    """The one block of shell commands on this documentation page that contains these words."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)
    (found,) = (each for each in blocks if about in each)
    return str(found)


def as_printed(stage: Stage, script: str) -> subprocess.CompletedProcess[str]:
    """Runs the documentation's shell commands in the root of the checkout, with kubectl on the PATH."""
    folder = stage.folder / "bin"
    folder.mkdir(exist_ok=True)
    where = ("--kubeconfig", str(stage.cluster.kubeconfig), "--namespace", stage.namespace)
    (folder / "kubectl").write_text(f'#!/bin/sh\nexec {shlex.join([*component("kubectl"), *where])} "$@"\n')
    (folder / "kubectl").chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    return completed(["sh", "-ec", script], 60, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL)


def test_the_documented_wait_ends_on_failure_too(stage: Stage) -> None:
    """The commands of docs/operator.md wait while the job runs. They exit with 0 once it has its result; if it failed, is held or was
    refused, they print phase and message and exit with 1."""
    script = commands("operator.md", "--for=condition=Ready").replace("2h", "40s")
    done = threading.Event()
    stage.play("recipe", Script(code=held(done)))
    stage.play("recipe-fails", Script(exit_code=1))
    stage.play("recipe-held", VANISHES)
    stage.send("recipe", "recipe")
    stage.send("recipe-fails", "recipe-fails")
    stage.send("recipe-held", "recipe-held")
    stage.send("recipe-other", "recipe", "another")
    stage.until("recipe", "Running")
    early = as_printed(stage, script.replace("40s", "1s").replace("load-flights", "recipe"))
    assert (early.returncode, early.stdout) == (1, ""), early
    done.set()
    waited = as_printed(stage, script.replace("load-flights", "recipe"))
    assert waited.returncode == 0, waited
    ends = {"recipe-fails": "Failed", "recipe-held": "Held", "recipe-other": "Mismatch"}
    for name, phase in ends.items():
        waited = as_printed(stage, script.replace("load-flights", name))
        assert waited.returncode == 1, waited
        assert waited.stdout.splitlines()[-1] == f"{phase}: {stage.status(name)['message']}"


def test_the_documented_health_check_of_argo_cd(stage: Stage) -> None:
    """The command of docs/helm.md adds the chart's script to Argo CD's settings, can be repeated, and keeps the other settings."""
    script = commands("helm.md", "argocd-cm").replace("--namespace argocd", f"--namespace {stage.namespace}")
    settings = {"metadata": {"name": "argocd-cm", "labels": {"a": "b"}}, "data": {"url": "https://argo.example.com"}}
    stage.cluster.api.create(CONFIG_MAPS, settings, stage.namespace)
    for _ in range(2):
        done = as_printed(stage, script)
        assert done.returncode == 0, done
    found = stage.cluster.api.get(CONFIG_MAPS, "argocd-cm", stage.namespace)
    assert found is not None
    name = "resource.customizations.health.sparkonce.dev_IdempotentJob"
    assert found["data"] == {"url": "https://argo.example.com", name: HEALTH.read_text()}
    assert found["metadata"]["labels"] == {"a": "b"}


def test_kubectl_get_shows_what_became_of_each_job(stage: Stage) -> None:
    """The columns include phase and role, with the message last; `-o wide` adds the key."""
    stage.send("shown-1", "shown")
    stage.until("shown-1", "Succeeded")
    stage.send("shown-2", "shown")
    stage.until("shown-2", "Succeeded")
    head, *lines = said(kubectl(stage, "get", "ij", "shown-1", "shown-2", "-o", "wide")).splitlines()
    columns = head.split()
    assert {"NAME", "PHASE", "ROLE", "AGE", "KEY"} <= set(columns), head
    assert columns[-1] == "MESSAGE"
    assert lines[0].endswith(stage.status("shown-1")["message"])
    told = {line.split()[0]: dict(zip(columns, line.split(), strict=False)) for line in lines}
    assert (told["shown-1"]["PHASE"], told["shown-1"]["ROLE"]) == ("Succeeded", "Leader")
    assert (told["shown-2"]["PHASE"], told["shown-2"]["ROLE"]) == ("Succeeded", "Replay")


def test_kubectl_describe_shows_the_transitions(stage: Stage) -> None:
    """Events of ours are listed under the object, with the command that runs it again. kubectl takes that command as it is printed."""
    stage.play("described", Script(exit_code=9))
    stage.send("described", "described")
    stage.until("described", "Failed")

    def looks() -> None:
        text = said(kubectl(stage, "describe", "idempotentjob", "described"))
        events = text.partition("Events:")[2]
        assert "Failed" in events, text
        assert "described sparkonce.dev/rerun=REASON" in events
        assert "Warning" in events
        assert " sparkonce" in events

    assert_eventually(looks, IN_TIME, interval=0.3)
    again = stage.status("described")["message"].partition("; to run it again: kubectl ")[2]
    assert "annotated" in said(kubectl(stage, *shlex.split(again)))
    stage.until("described", "Failed", generation=2)


def test_kubectl_apply_twice_is_unchanged(stage: Stage) -> None:
    """With a user's client-side apply the object is created once and unchanged the second time, and the job has run once."""
    manifest = stage.folder / "applied.yaml"
    manifest.write_text(json.dumps(stage.job("applied", "applied")))
    assert "created" in said(kubectl(stage, "apply", "-f", str(manifest)))
    stage.until("applied", "Succeeded")
    assert "unchanged" in said(kubectl(stage, "apply", "-f", str(manifest)))
    stage.settled("applied")
    assert len(stage.runs("applied")) == 1
