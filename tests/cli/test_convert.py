"""`sparkonce convert`: a plain SparkApplication becomes the job that runs it once, and nothing is lost without a word."""

from __future__ import annotations

import pytest
import yaml

from harness.desk import Desk
from sparkonce.cli.exits import ExitCode
from sparkonce.model import manifest

APPLICATION = """\
apiVersion: sparkoperator.k8s.io/v1beta2
kind: SparkApplication
metadata:
  name: nightly
  namespace: data
  uid: 2f1c
  resourceVersion: "12"
  labels: {team: billing}
  annotations:
    kubectl.kubernetes.io/last-applied-configuration: "{}"
spec:
  # what it is written in
  type: Python
  mode: cluster
  # the operator used to repeat it
  restartPolicy:
    type: OnFailure
    onFailureRetries: 3
    onFailureRetryInterval: 600
    onSubmissionFailureRetries: 5
  timeToLiveSeconds: 3600
  image: "loader:1"   # pinned
  mainApplicationFile: local:///app/job.py
  arguments:
  - "2013-01"
  - |
    # not a comment
      kept
  driver:
    podName: nightly-driver
    cores: 1   # enough
status:
  applicationState: {state: RUNNING}
"""
SCHEDULED = """\
apiVersion: sparkoperator.k8s.io/v1beta2
kind: ScheduledSparkApplication
metadata: {name: hourly}
spec:
  schedule: "@every 1h"
  concurrencyPolicy: Forbid
  suspend: true
  template:
    type: Scala
    mainClass: org.example.Load  # the class
    mainApplicationFile: local:///app/load.jar
    restartPolicy: {type: Always}
"""


def test_an_application_becomes_a_job(desk: Desk) -> None:
    """What the Spark operator repeated, removed and named is now sparkonce's; the rest of the template is as it was."""
    _, job = desk.job_from("convert", APPLICATION)
    assert (job.metadata.name, job.metadata.namespace, job.metadata.uid) == ("nightly", "data", None)
    assert (job.spec.operation, job.spec.resource, job.spec.opaque) == ("run", "nightly", True)
    assert job.spec.retry.max_attempts == 4
    assert (job.spec.retry.backoff.initial, job.spec.retry.backoff.max) == (600.0, 600.0)
    assert (job.spec.application_ttl.succeeded, job.spec.application_ttl.failed) == (3600.0, 3600.0)
    given = yaml.safe_load(APPLICATION)["spec"]
    for moved in ("restartPolicy", "timeToLiveSeconds"):
        del given[moved]
    del given["driver"]["podName"]
    assert job.spec.template.spec == given
    assert job.spec.template.metadata.labels == {"team": "billing"}
    assert not job.spec.template.metadata.annotations


def test_each_change_is_named_in_the_file_and_on_standard_error(desk: Desk) -> None:
    """With the path of the field in the application; so is what "opaque" means."""
    said, _ = desk.job_from("convert", APPLICATION)
    fields = ["metadata.uid", "metadata.resourceVersion", "metadata.labels", "spec.restartPolicy"]
    fields += ["spec.restartPolicy.onFailureRetryInterval", "spec.restartPolicy.onSubmissionFailureRetries"]
    fields += ["spec.timeToLiveSeconds", "spec.driver.podName", "status", "opaque"]
    fields += ['metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"]']
    for name in fields:
        assert f"# - {name}: " in said.out, name
        assert f"sparkonce: SparkApplication nightly: {name}: " in said.err, name


def test_comments_and_order_stay(desk: Desk) -> None:
    """Those of the template, but for what stood above a dropped field; a text that looks like a comment is text."""
    said, _ = desk.job_from("convert", APPLICATION)
    for kept in ("# what it is written in", 'image: "loader:1"   # pinned', "cores: 1   # enough"):
        assert kept in said.out
    assert "used to repeat" not in said.out
    places = [said.out.index(name) for name in ("type: Python", "image:", "arguments:", "driver:")]
    assert places == sorted(places)
    assert "could not be kept" not in said.err


@pytest.mark.parametrize(
    "spec",
    [
        "spec: {type: Python, mainApplicationFile: local:///a.py, timeToLiveSeconds: 5}  # one line\n",
        "spec:\n  type: Python\n  mainApplicationFile: local:///a.py\n  driver: {podName: a, cores: 1}  # here\n",
        "base: &base\n  type: Python  # there\nspec:\n  <<: *base\n  mainApplicationFile: local:///a.py\n",
    ],
)
def test_where_lines_cannot_be_kept_the_meaning_is(desk: Desk, spec: str) -> None:
    """Flow style and anchors from elsewhere: the job is right all the same, and the lost comments are named."""
    head = "apiVersion: sparkoperator.k8s.io/v1beta2\nkind: SparkApplication\nmetadata: {name: a}\n"
    said, job = desk.job_from("convert", head + spec)
    assert job.spec.template.spec["type"] == "Python"
    assert job.spec.template.spec["mainApplicationFile"] == "local:///a.py"
    assert job.spec.template.spec.keys() <= {"type", "mainApplicationFile", "driver"}
    assert "the comments of app.yaml could not be kept" in said.err


def test_a_scheduled_application_loses_its_schedule_aloud(desk: Desk) -> None:
    """Its template is the job; the schedule and what belongs to it are named as lost; `suspend` stays."""
    said, job = desk.job_from("convert", SCHEDULED)
    assert job.spec.template.kind == "SparkApplication"
    assert job.spec.template.spec["mainClass"] == "org.example.Load"
    assert (job.spec.suspend, job.spec.retry.max_attempts) == (True, 3)
    assert "spec.schedule: `@every 1h` is lost" in said.err
    assert "spec.concurrencyPolicy: dropped with the schedule" in said.err
    assert "spec.template.restartPolicy: Always became" in said.err
    assert "# the class" in said.out


def test_key_and_outputs_are_the_commands(desk: Desk) -> None:
    """--key instead of operation and resource; each --output is a slot log, and what the script must do is said."""
    said, job = desk.job_from("convert", APPLICATION, "--key", "n-1", "--output", "flights=s3://lake/flights")
    assert (job.spec.idempotency_key, job.spec.operation) == ("n-1", None)
    [output] = job.spec.outputs
    assert (output.name, output.kind, output.location) == ("flights", "slotLog", "s3://lake/flights")
    assert "through sparkonce" in said.err
    assert "opaque" not in said.out
    _, other = desk.job_from("convert", APPLICATION, "--operation", "load", "--resource", "flights/2013-01")
    assert (other.spec.operation, other.spec.resource) == ("load", "flights/2013-01")


def test_several_documents_and_lists(desk: Desk) -> None:
    """Each application becomes a job of its own; what is no application is named and left out."""
    other = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\n"
    (desk.folder / "app.yaml").write_text(f"{other}---\n{APPLICATION}---\n# nothing\n---\n{SCHEDULED}")
    said = desk.here("convert", "app.yaml")
    assert said.code == 0
    assert [each["metadata"]["name"] for each in yaml.safe_load_all(said.out)] == ["nightly", "hourly"]
    assert "ConfigMap settings is left out" in said.err
    items = [yaml.safe_load(APPLICATION), yaml.safe_load(SCHEDULED)]
    (desk.folder / "app.yaml").write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items}))
    listed = desk.here("convert", "app.yaml")
    assert [each["metadata"]["name"] for each in yaml.safe_load_all(listed.out)] == ["nightly", "hourly"]
    refused = desk.here("convert", "app.yaml", "--key", "k")
    assert (refused.code, "one key cannot be for all" in refused.err) == (ExitCode.INVALID, True)


def test_a_file_is_written_once(desk: Desk) -> None:
    """`-o` makes a new file and never overwrites one."""
    (desk.folder / "app.yaml").write_text(APPLICATION)
    assert desk.here("convert", "app.yaml", "-o", "job.yaml").code == 0
    manifest.load((desk.folder / "job.yaml").read_text(), params={}, source="job.yaml")
    again = desk.here("convert", "app.yaml", "-o", "app.yaml")
    assert (again.code, (desk.folder / "app.yaml").read_text()) == (ExitCode.INVALID, APPLICATION)


REFUSED = {
    "a driver without a pod": ("mode: cluster", "mode: client", "app.yaml:14: spec.mode: must be cluster"),
    "conf of ours": ("mode: cluster", "sparkConf: {spark.sparkonce.x: y}", "is set by sparkonce alone"),
    "an unknown policy": ("type: OnFailure", "type: Sometimes", "app.yaml:17: spec.restartPolicy.type: must be Never"),
    "no number": ("onFailureRetries: 3", "onFailureRetries: many", "spec.restartPolicy.onFailureRetries: must be"),
    "a lifetime that is none": ("timeToLiveSeconds: 3600", "timeToLiveSeconds: 1h", "spec.timeToLiveSeconds: must be"),
    "an older version": ("v1beta2", "v1beta1", "app.yaml:1: apiVersion: is sparkoperator.k8s.io/v1beta1"),
    "made by sparkonce": ("team: billing", "sparkonce.dev/key: a", "metadata: was made by sparkonce"),
    "a new name each time": ("name: nightly", "generateName: nightly-", "say --resource or --key"),
    "another kind": (
        "kind: SparkApplication",
        "kind: Deployment",
        "app.yaml has no SparkApplication; it has Deployment",
    ),
    "a key twice": ("mode: cluster", "type: Scala", "stands here and in line 13"),
    "no spec": ("spec:", "specs:", "spec: is required"),
    "no YAML": ("spec:", "spec: [", "is not readable as YAML"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_converted_is_one_sentence(desk: Desk, case: str) -> None:
    """With the field's path, and where there is one its line in the application; nothing is printed as a job."""
    old, new, told = REFUSED[case]
    assert old in APPLICATION
    (desk.folder / "app.yaml").write_text(APPLICATION.replace(old, new, 1))
    said = desk.here("convert", "app.yaml")
    assert (said.code, said.out) == (ExitCode.INVALID, "")
    assert told in said.err
    assert len(said.err.splitlines()) == 1


def test_values_never_become_yaml(desk: Desk) -> None:
    """A schedule with a line break in it stays within its comment."""
    text = SCHEDULED.replace('"@every 1h"', '"x\\nkind: Secret"')
    said, job = desk.job_from("convert", text)
    assert job.kind == "IdempotentJob"
    assert "`x kind: Secret` is lost" in said.out
