"""What people and scripts see who have nothing but kubectl: wait, get, describe."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator

import pytest

from harness.apiserver import Cluster
from harness.binaries import component
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.kubeflow import Script
from harness.stage import IN_TIME, Stage, held, staged


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
    """What it printed, once it has ended."""
    out, _ = process.communicate(timeout=60)
    assert process.returncode == code, out
    return out


def wait_for(stage: Stage, name: str, condition: str, seconds: int = 40) -> subprocess.Popen[str]:
    return kubectl(stage, "wait", f"idempotentjob/{name}", f"--for=condition={condition}", f"--timeout={seconds}s")


def test_kubectl_wait_returns_when_the_job_has_its_result(stage: Stage) -> None:
    """Not before; for the leader, for a follower, and at once for an object of a finished job."""
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
    """`--for=condition=Failed`, of a job that failed and of one whose spec is not valid; `Complete` is not met by either."""
    stage.play("fails", Script(exit_code=1))
    stage.send("fails", "fails")
    stage.send("invalid", "invalid", tunableArguments=["--threads"])
    assert "condition met" in said(wait_for(stage, "fails", "Failed"))
    assert "condition met" in said(wait_for(stage, "invalid", "Failed"))
    assert "timed out" in said(wait_for(stage, "fails", "Complete", 1), code=1)


def test_kubectl_wait_for_held_and_for_mismatch(stage: Stage) -> None:
    """Whoever waits for the end of a job can wait for what needs a person, too."""
    stage.play("held", Script(submits=False))
    stage.send("held", "held", startTimeoutSeconds=1)
    stage.send("other", "held", "another")
    assert "condition met" in said(wait_for(stage, "other", "Mismatch"))
    assert "condition met" in said(wait_for(stage, "held", "Held"))


def test_kubectl_get_shows_what_became_of_each_job(stage: Stage) -> None:
    """Columns of phase, role, generation and attempt; `-o wide` has the key."""
    stage.send("shown-1", "shown")
    stage.until("shown-1", "Succeeded")
    stage.send("shown-2", "shown")
    stage.until("shown-2", "Succeeded")
    head, *lines = said(kubectl(stage, "get", "ij", "shown-1", "shown-2", "-o", "wide")).splitlines()
    columns = head.split()
    assert {"NAME", "PHASE", "ROLE", "AGE", "KEY"} <= set(columns), head
    told = {line.split()[0]: dict(zip(columns, line.split(), strict=False)) for line in lines}
    assert (told["shown-1"]["PHASE"], told["shown-1"]["ROLE"]) == ("Succeeded", "Leader")
    assert (told["shown-2"]["PHASE"], told["shown-2"]["ROLE"]) == ("Succeeded", "Replay")


def test_kubectl_describe_shows_the_transitions(stage: Stage) -> None:
    """Events under the object, by us, with the sentence that says what to do."""
    stage.play("described", Script(exit_code=9))
    stage.send("described", "described")
    stage.until("described", "Failed")

    def looks() -> None:
        text = said(kubectl(stage, "describe", "idempotentjob", "described"))
        events = text.partition("Events:")[2]
        assert "Failed" in events, text
        assert "sparkonce rerun described" in events
        assert "Warning" in events
        assert " sparkonce" in events

    assert_eventually(looks, IN_TIME, interval=0.3)


def test_kubectl_apply_twice_is_unchanged(stage: Stage) -> None:
    """The client-side apply of a person: created once, unchanged the second time, and the job has run once."""
    manifest = stage.folder / "applied.yaml"
    manifest.write_text(json.dumps(stage.job("applied", "applied")))
    assert "created" in said(kubectl(stage, "apply", "-f", str(manifest)))
    stage.until("applied", "Succeeded")
    assert "unchanged" in said(kubectl(stage, "apply", "-f", str(manifest)))
    stage.settled("applied")
    assert len(stage.runs("applied")) == 1
