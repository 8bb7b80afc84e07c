"""`sparkonce bind`: the job that follows a foreign application."""

from __future__ import annotations

import pytest
import yaml

from harness.desk import Desk
from sparkonce.cli.exits import ExitCode
from sparkonce.model import manifest
from sparkonce.model.identity import fingerprint
from sparkonce.model.spec import Bind, IdempotentJob

APPLICATION = """\
apiVersion: sparkoperator.k8s.io/v1beta2
kind: SparkApplication
metadata:
  name: nightly
  namespace: data
  uid: 2f1c
  resourceVersion: "12"
spec:
  type: Python
  mode: cluster
  restartPolicy: {type: OnFailure, onFailureRetries: 3}
  timeToLiveSeconds: 3600
  image: "loader:1"
  mainApplicationFile: local:///app/job.py
  driver: {podName: nightly-driver, cores: 1}
status:
  applicationState: {state: RUNNING}
"""


def test_an_application_becomes_the_job_that_follows_it(desk: Desk) -> None:
    """The job is opaque and bound to the application's name and UID; retries and lifetime stay with the Spark operator."""
    said, job = desk.job_from("bind", APPLICATION)
    assert (job.metadata.name, job.metadata.namespace) == ("nightly", "data")
    assert job.spec.bind == Bind(application="nightly", uid="2f1c")
    assert (job.spec.operation, job.spec.resource, job.spec.opaque) == ("run", "nightly", True)
    assert not {"retry", "applicationTTL", "suspend", "outputs"} & yaml.safe_load(said.out)["spec"].keys()
    assert "spec.bind: this very application is followed" in said.err
    assert "metadata.uid" not in said.err


def test_the_same_job_without_the_binding_is_the_same(desk: Desk) -> None:
    """`convert` of the same application gives the same fingerprint, so the application's outcome is also that job's result."""
    _, followed = desk.job_from("bind", APPLICATION, "--key", "n-1")
    converted = desk.here("convert", "app.yaml", "--key", "n-1")
    plain = manifest.load(converted.out, params={}, source="converted")
    assert (followed.spec.bind is None, plain.spec.bind is None) == (False, True)
    assert fingerprint(followed) == fingerprint(plain)
    assert followed.spec.idempotency_key == plain.spec.idempotency_key == "n-1"


def test_each_application_of_a_list_is_bound(desk: Desk) -> None:
    """For a list, as `kubectl get sparkapplications -o yaml` prints it, each job is bound to its own application."""
    items = [yaml.safe_load(APPLICATION) for _ in range(2)]
    items[1]["metadata"] |= {"name": "hourly", "uid": "3a2d"}
    (desk.folder / "all.yaml").write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items}))
    said = desk.here("bind", "all.yaml")
    jobs = [IdempotentJob.of(each) for each in yaml.safe_load_all(said.out)]
    assert [each.spec.bind for each in jobs] == [
        Bind(application="nightly", uid="2f1c"),
        Bind(application="hourly", uid="3a2d"),
    ]
    assert desk.here("bind", "all.yaml", "--key", "k").code == ExitCode.INVALID


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("  uid: 2f1c\n", "", "metadata.uid: is missing; bind reads what `kubectl get sparkapplication NAME -o yaml`"),
        ("type: OnFailure", "type: Always", "spec.restartPolicy.type: is Always, so it never ends and has no result"),
        ("namespace: data", "annotations: {sparkonce.dev/nonce: n}", "was made by sparkonce for an IdempotentJob"),
    ],
)
def test_what_cannot_be_followed_is_refused(desk: Desk, old: str, new: str, words: str) -> None:
    """The refusal is one sentence with the path in the application's own file; nothing is printed."""
    assert old in APPLICATION
    (desk.folder / "app.yaml").write_text(APPLICATION.replace(old, new))
    said = desk.here("bind", "app.yaml")
    assert (said.code, said.out) == (ExitCode.INVALID, "")
    assert words in said.err


def test_a_schedule_is_refused(desk: Desk) -> None:
    """A schedule is not an application that runs or ran."""
    scheduled = yaml.safe_load(APPLICATION)
    scheduled["kind"] = "ScheduledSparkApplication"
    scheduled["spec"] = {"schedule": "@every 1h", "template": scheduled["spec"]}
    (desk.folder / "app.yaml").write_text(yaml.safe_dump(scheduled))
    said = desk.here("bind", "app.yaml")
    assert said.code == ExitCode.INVALID
    assert "bind follows one application, so read one that it has made" in said.err


@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_laptop_follows_no_application_of_a_cluster(desk: Desk, command: str) -> None:
    """`sparkonce run` refuses such a job in one sentence: it would launch the application that it should follow."""
    said, _ = desk.job_from("bind", APPLICATION)
    (desk.folder / "job.yaml").write_text(said.out)
    (desk.folder / "job.py").write_text("")
    refused = desk.here(command, "job.yaml", "--application", str(desk.folder / "job.py"))
    assert refused.code == ExitCode.INVALID
    assert "spec.bind names application nightly of a cluster" in refused.err
