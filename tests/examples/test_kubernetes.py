"""The manifests of examples/kubernetes without a cluster: each is a valid job, and it is the same job wherever its data is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.patience import completed

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
JOBS = {"load-month.yaml": ["--param=month=01"], "delays.yaml": []}


def rendered(path: Path, *params: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "sparkonce", "render", str(path), *params]
    done = completed(command, 60)
    assert done.returncode == 0, done.stderr
    job = yaml.safe_load(done.stdout)
    assert isinstance(job, dict)
    return job


@pytest.mark.parametrize("name", JOBS)
def test_one_job_in_three_places(name: str) -> None:
    """On one machine, on a volume and in a bucket the job has one key, outputs with the same names, and the same script with arguments of
    the same names; no manifest has credentials."""
    local, volume, bucket = (rendered(EXAMPLES / place / name, *JOBS[name]) for place in PLACES)
    for job in (volume, bucket):
        assert (job["spec"]["operation"], job["spec"]["resource"]) == (
            local["spec"]["operation"],
            local["spec"]["resource"],
        )
        assert [each["name"] for each in job["spec"]["outputs"]] == [each["name"] for each in local["spec"]["outputs"]]
        script = Path(application(job)["mainApplicationFile"]).name
        assert script == application(local)["mainApplicationFile"]
        assert (EXAMPLES / "flights" / script).is_file()
        assert application(job)["image"] == "sparkonce/spark:0.1.0"
    assert flags(volume) == flags(bucket) >= flags(local)
    assert {"AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL_S3"} <= {
        setting.rpartition(".")[2] for setting in application(bucket)["sparkConf"] if ".driver.secretKeyRef." in setting
    }
    assert not [
        setting for setting in application(bucket)["sparkConf"] if setting.endswith((".access.key", ".secret.key"))
    ]


PLACES = ("flights", "kubernetes", "kubernetes/s3")


def application(job: dict[str, Any]) -> dict[str, Any]:
    spec = job["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def flags(job: dict[str, Any]) -> set[str]:
    return {each for each in application(job)["arguments"] if each.startswith("--")}
