"""What `sparkonce convert` writes, at a real API server."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from harness.apiserver import Cluster
from sparkonce.cli.app import main
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
    """With everything that the API server adds to it (defaults, managed fields): the CRD's rules take the job as it is printed."""
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
