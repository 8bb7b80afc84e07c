"""The output of `sparkonce convert` at a real API server, and what the pods of its CronJobs do there."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.apiserver import Cluster
from harness.binaries import component
from harness.etcd import Etcd
from harness.fleet import Fleet
from harness.kubeflow import FakeKubeflow
from harness.patience import completed
from sparkonce.cli.app import main
from sparkonce.cli.exits import ExitCode
from sparkonce.launch.kubernetes import JOBS, SPARK_APPLICATIONS

APPLICATION = {
    "apiVersion": "sparkoperator.k8s.io/v1beta2",
    "kind": "SparkApplication",
    "metadata": {"name": "nightly", "labels": {"team": "billing"}},
    "spec": {
        "type": "Python",
        "mode": "cluster",
        "sparkVersion": "4.0.0",
        "image": "loader:1",
        "mainApplicationFile": "local:///app/job.py",
        "restartPolicy": {"type": "OnFailure", "onFailureRetries": 2, "onFailureRetryInterval": 900},
        "timeToLiveSeconds": 60,
        "driver": {"cores": 1, "memory": "512m", "podName": "d"},
        "executor": {"instances": 1, "cores": 1, "memory": "512m"},
    },
}


@pytest.mark.parametrize("options", [(), ("--key", "n-1", "--output", "flights=s3://lake/flights")])
def test_an_application_read_from_the_api_server_converts_into_an_admitted_job(
    cluster: Cluster, namespace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    """The CRD's rules admit the printed job, although the application has everything that the API server added (defaults, managed
    fields)."""
    stored = cluster.api.create(SPARK_APPLICATIONS, APPLICATION, namespace)
    (tmp_path / "app.yaml").write_text(yaml.safe_dump(stored))
    assert main(["convert", str(tmp_path / "app.yaml"), *options]) == 0
    job = yaml.safe_load(capsys.readouterr().out)
    made = cluster.api.create(JOBS, job, namespace)
    assert made["metadata"]["namespace"] == namespace
    assert made["spec"]["retry"]["maxAttempts"] == 3
    assert made["spec"]["template"]["spec"]["driver"] == {"cores": 1, "memory": "512m"}
    places = [each["slotLog"]["path"] for each in made["spec"].get("outputs", [])]
    assert places == [each.partition("=")[2] for each in options if "=" in each]


SCHEDULED = {
    "apiVersion": APPLICATION["apiVersion"],
    "kind": "ScheduledSparkApplication",
    "metadata": {"name": "hourly"},
    "spec": {
        "schedule": "@every 1h",
        "timeZone": "Europe/Berlin",
        "concurrencyPolicy": "Forbid",
        "template": APPLICATION["spec"],
    },
}
TICK = "29922000"
"""2026-11-22T04:00Z, in minutes since 1970."""


@dataclass(frozen=True)
class TickPod:
    """A pod of the printed CronJob: its files, its command, and its service account's token."""

    cluster: Cluster
    namespace: str
    folder: Path
    container: dict[str, Any]

    def run(self, job: str) -> tuple[int, str]:
        """Returns the exit code and all output. `job` is the Job's name, which the pod has as a label."""
        mounted = self.container["volumeMounts"][0]["mountPath"]
        script = self.folder / "send.sh"
        script.write_text(script.read_text().replace(mounted, str(self.folder)))
        command = [each.replace(mounted, str(self.folder)) for each in self.container["command"]]
        values = {"metadata.labels['batch.kubernetes.io/job-name']": job, "metadata.namespace": self.namespace}
        given = {each["name"]: values[each["valueFrom"]["fieldRef"]["fieldPath"]] for each in self.container["env"]}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, **given, "PATH": path, "KUBECONFIG": str(self.folder / "kubeconfig")}
        done = completed(command, 120, env=environment)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def tick(cluster: Cluster, namespace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> TickPod:
    """A pod of the CronJob that is printed for a schedule read from the API server; the CronJob passes a dry run, and is applied."""
    metadata = {**SCHEDULED["metadata"], "namespace": namespace}  # type: ignore[dict-item] # a map
    (tmp_path / "app.yaml").write_text(yaml.safe_dump({**SCHEDULED, "metadata": metadata}))
    assert main(["convert", str(tmp_path / "app.yaml")]) == ExitCode.INVALID
    printed = capsys.readouterr().out
    for mode in ("--dry-run=server", "--dry-run=none"):
        command = [
            *component("kubectl"),
            "--kubeconfig",
            str(cluster.kubeconfig),
            "apply",
            "--validate=strict",
            mode,
            "-f",
            "-",
        ]
        done = completed(command, 120, given=printed)
        assert done.returncode == 0, done.stderr
        assert "cronjob.batch/hourly created" in done.stdout
    config, account, *_, cron = yaml.safe_load_all(printed)
    for name, text in config["data"].items():
        (tmp_path / name).write_text(text)
    done = completed(
        [
            *component("kubectl"),
            "--kubeconfig",
            str(cluster.kubeconfig),
            "-n",
            namespace,
            "create",
            "token",
            account["metadata"]["name"],
        ],
        120,
    )
    assert done.returncode == 0, done.stderr
    kubeconfig = json.loads(cluster.kubeconfig_for(cluster.url).read_text())
    kubeconfig["users"][0]["user"] = {"token": done.stdout.strip()}
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))
    [container] = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    return TickPod(cluster, namespace, tmp_path, container)


def test_each_tick_of_a_cron_job_is_a_job_of_its_own(tick: TickPod) -> None:
    """The pod sends one job whose key has the time of the tick, with its service account's rights. A pod started again for the same tick
    sends none; the next tick, or a Job created by hand, has another key."""
    code, said = tick.run(f"hourly-{TICK}")
    assert (code, f"sent: IdempotentJob hourly-{TICK} in namespace {tick.namespace}" in said) == (0, True), said
    first = tick.cluster.api.get(JOBS, f"hourly-{TICK}", tick.namespace)
    assert first is not None
    assert (first["spec"]["operation"], first["spec"]["resource"]) == ("run", "hourly/2026-11-22T04:00Z")
    assert first["spec"]["template"]["spec"]["image"] == "loader:1"
    code, said = tick.run(f"hourly-{TICK}")
    assert (code, "already there: " in said) == (0, True), said
    assert tick.run(f"hourly-{int(TICK) + 60}")[0] == 0
    assert tick.run("by-hand")[0] == 0
    resources = {
        each["metadata"]["name"]: each["spec"]["resource"] for each in tick.cluster.api.list(JOBS, tick.namespace)
    }
    assert resources == {
        f"hourly-{TICK}": "hourly/2026-11-22T04:00Z",
        f"hourly-{int(TICK) + 60}": "hourly/2026-11-22T05:00Z",
        "by-hand": "hourly/by-hand",
    }
    assert tick.cluster.api.get(JOBS, f"hourly-{TICK}", tick.namespace) == first


def test_another_job_of_that_name_is_not_taken_for_it(tick: TickPod) -> None:
    """The pod fails with a sentence, and the object is unchanged."""
    body = yaml.safe_load((tick.folder / "job.yaml").read_text())
    body["metadata"] = {"name": f"hourly-{TICK}"}
    body["spec"]["resource"] = "other"
    made = tick.cluster.api.create(JOBS, body, tick.namespace)
    code, said = tick.run(f"hourly-{TICK}")
    assert (code, f"IdempotentJob hourly-{TICK} of namespace" in said and "is another job" in said) == (2, True), said
    assert tick.cluster.api.get(JOBS, f"hourly-{TICK}", tick.namespace) == made


def test_the_jobs_of_ticks_run_once_each(
    tick: TickPod, own_etcd: Etcd, install: str, kubeflow: FakeKubeflow, tmp_path: Path
) -> None:
    """An operator runs one application for each tick, however often the tick's pod is started."""
    with Fleet(tick.cluster, own_etcd, tick.namespace, install, tmp_path) as fleet:
        fleet.start(1)
        names = [f"hourly-{int(TICK) + 60 * hour}" for hour in (0, 0, 1)]
        assert [tick.run(name)[0] for name in names] == [0, 0, 0]
        fleet.witness.until_ended(names, 90, hint=fleet.tails)
        assert {fleet.witness.phase(name) for name in names} == {"Succeeded"}
        assert len(kubeflow.runs) == 2
