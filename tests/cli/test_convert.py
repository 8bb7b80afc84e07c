"""`sparkonce convert` turns a plain SparkApplication into the job that runs it once, and says what it drops."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from harness.desk import Desk, Said
from sparkonce import __version__
from sparkonce.cli.exits import ExitCode
from sparkonce.model import manifest
from sparkonce.model.identity import derive
from sparkonce.model.spec import IdempotentJob

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
    """Sparkonce takes over retries, removal and names from the Spark operator; the rest of the template is unchanged."""
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
    """Each change is listed with the path of the field in the application; the meaning of "opaque" is explained, too."""
    said, _ = desk.job_from("convert", APPLICATION)
    fields = ["metadata.uid", "metadata.resourceVersion", "metadata.labels", "spec.restartPolicy"]
    fields += ["spec.restartPolicy.onFailureRetryInterval", "spec.restartPolicy.onSubmissionFailureRetries"]
    fields += ["spec.timeToLiveSeconds", "spec.driver.podName", "status", "opaque"]
    fields += ['metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"]']
    for name in fields:
        assert f"# - {name}: " in said.out, name
        assert f"sparkonce: SparkApplication nightly: {name}: " in said.err, name


def test_comments_and_order_stay(desk: Desk) -> None:
    """Comments of the template are kept, except those above a dropped field; text that only looks like a comment is kept as text."""
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
    """For flow style, and for anchors defined elsewhere, the job is still right, and the message says that comments were lost."""
    head = "apiVersion: sparkoperator.k8s.io/v1beta2\nkind: SparkApplication\nmetadata: {name: a}\n"
    said, job = desk.job_from("convert", head + spec)
    assert job.spec.template.spec["type"] == "Python"
    assert job.spec.template.spec["mainApplicationFile"] == "local:///a.py"
    assert job.spec.template.spec.keys() <= {"type", "mainApplicationFile", "driver"}
    assert "the comments of app.yaml could not be kept" in said.err


def scheduled(desk: Desk, text: str = SCHEDULED, *options: str) -> tuple[Said, list[dict[str, Any]]]:
    """The output for a schedule, as a list of documents."""
    (desk.folder / "app.yaml").write_text(text)
    said = desk.here("convert", "app.yaml", *options)
    return said, list(yaml.safe_load_all(said.out))


def job_of(config: dict[str, Any], tick: str = "2026-11-24T20:00Z", name: str = "hourly-29922000") -> IdempotentJob:
    return manifest.load(config["data"]["job.yaml"], params={"tick": tick, "name": name}, source="job.yaml")


def test_a_schedule_is_no_job_that_runs_once(desk: Desk) -> None:
    """It is refused (exit 2), and a CronJob that sends one job per tick is printed with everything that it needs."""
    said, documents = scheduled(desk)
    assert said.code == ExitCode.INVALID
    assert (
        "ScheduledSparkApplication hourly would run once and never again as an IdempotentJob"
        in said.err.splitlines()[-1]
    )
    kinds = ["ConfigMap", "ServiceAccount", "Role", "RoleBinding", "CronJob"]
    assert [each["kind"] for each in documents] == kinds
    config, *_, cron = documents
    assert (cron["metadata"]["name"], cron["spec"]["schedule"], cron["spec"]["suspend"]) == (
        "hourly",
        "@every 1h",
        True,
    )
    [container] = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"sparkonce/operator:{__version__}"
    job = job_of(config)
    assert (job.metadata.name, job.spec.resource) == ("hourly-29922000", "hourly/2026-11-24T20:00Z")
    assert job.spec.template.spec["mainClass"] == "org.example.Load"
    assert (job.spec.suspend, job.spec.retry.max_attempts) == (False, 3)
    assert derive(job.spec, "n").key_hash != derive(job_of(config, "2026-11-24T21:00Z").spec, "n").key_hash
    for told in (
        "spec.schedule: became that of CronJob hourly",
        "spec.concurrencyPolicy: Forbid is lost",
        "spec.suspend: became the CronJob's",
        "spec.timeZone: is not given",
        "metadata.namespace: is not given",
        "spec.template.restartPolicy: Always became",
    ):
        assert told in said.err
        assert told in said.out
    assert "# the class" in config["data"]["job.yaml"]


def test_a_schedule_keeps_its_place_and_time(desk: Desk) -> None:
    """Namespace, time zone, history limits, key and image are kept."""
    text = SCHEDULED.replace("{name: hourly}", "{name: hourly, namespace: data}").replace(
        "concurrencyPolicy: Forbid", "timeZone: Europe/Berlin\n  successfulRunHistoryLimit: 3"
    )
    said, documents = scheduled(desk, text, "--key", "load", "--image", "registry.example.com/sparkonce:1")
    assert {each["metadata"]["namespace"] for each in documents} == {"data"}
    config, _, _, binding, cron = documents
    assert binding["subjects"][0]["namespace"] == "data"
    assert cron["spec"]["timeZone"] == "Europe/Berlin"
    assert "registry.example.com/sparkonce:1" in said.out
    job = job_of(config)
    assert (job.spec.idempotency_key, job.metadata.namespace) == ("load/2026-11-24T20:00Z", "data")
    assert job.spec.ttl_seconds_after_finished == 604800
    assert "spec.successfulRunHistoryLimit: became spec.ttlSecondsAfterFinished: 604800" in said.err


def test_a_template_of_each_tick_is_the_application(desk: Desk) -> None:
    """This holds even for text that looks like a parameter, ends in blanks, or is longer than a line."""
    arguments = ["${params.x}", "$${y}", "$${params.z}", "$$$${", "a  \n b\t\n", "SPARKONCE", "x" * 300]
    text = (
        SCHEDULED
        + f"    arguments: {json.dumps(arguments)}\n    sparkConf:\n      a.b: |\n        kept  \n\n        # too\n"
    )
    _, [config, *_] = scheduled(desk, text)
    spec = job_of(config).spec.template.spec
    assert spec["arguments"] == arguments
    assert spec["sparkConf"] == {"a.b": "kept  \n\n# too\n"}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("name: hourly", f"name: {53 * 'h'}", "metadata.name: is the CronJob's, too, so it has 52 characters at most"),
        ('schedule: "@every 1h"', "schedule: 5", "app.yaml:5: spec.schedule: is required: when the job is sent"),
        ("name: hourly", "generateName: hourly-", "metadata.name: is the CronJob's"),
        ("suspend: true", "timeZone: [UTC]", "spec.timeZone: must be the name of a time zone"),
    ],
)
def test_a_schedule_that_no_cron_job_can_have(desk: Desk, old: str, new: str, told: str) -> None:
    """It is refused in one sentence, and nothing is printed."""
    said, documents = scheduled(desk, SCHEDULED.replace(old, new))
    assert (said.code, documents) == (ExitCode.INVALID, [])
    assert told in said.err


def test_a_schedule_in_a_file_of_its_own(desk: Desk) -> None:
    """`-o` writes the CronJob, and the sentence names the file."""
    said, documents = scheduled(desk, SCHEDULED, "-o", "cron.yaml")
    assert (said.code, documents) == (ExitCode.INVALID, [])
    assert "look at it in cron.yaml" in said.err
    assert [each["kind"] for each in yaml.safe_load_all((desk.folder / "cron.yaml").read_text())][-1] == "CronJob"


def test_key_and_outputs_are_the_commands(desk: Desk) -> None:
    """--key replaces operation and resource; each --output is a slot log, and the necessary change of the script is printed."""
    said, job = desk.job_from("convert", APPLICATION, "--key", "n-1", "--output", "flights=s3://lake/flights")
    assert (job.spec.idempotency_key, job.spec.operation) == ("n-1", None)
    [output] = job.spec.outputs
    assert (output.name, output.kind, output.location) == ("flights", "slotLog", "s3://lake/flights")
    assert "through sparkonce" in said.err
    assert "opaque" not in said.out
    _, other = desk.job_from("convert", APPLICATION, "--operation", "load", "--resource", "flights/2013-01")
    assert (other.spec.operation, other.spec.resource) == ("load", "flights/2013-01")


KINDS = {
    "lake/t": ("slotLog", "lake/t"),
    "s3a://lake/t": ("slotLog", "s3a://lake/t"),
    "slotLog:s3://lake/t": ("slotLog", "s3://lake/t"),
    "delta:s3a://x": ("delta", "s3a://x"),
    "delta:/lake/t": ("delta", "/lake/t"),
    "iceberg:prod.sales.orders": ("iceberg", "prod.sales.orders"),
}


@pytest.mark.parametrize("place", KINDS)
def test_an_output_has_a_kind(desk: Desk, place: str) -> None:
    """`KIND:PLACE` gives the kind; a path or URL alone is a slot log."""
    _, job = desk.job_from("convert", APPLICATION, "--output", f"t={place}")
    [output] = job.spec.outputs
    assert (output.kind, output.location) == KINDS[place]


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("parquet:s3a://x", "parquet is not a kind of output; write slotLog:PATH, delta:PATH or iceberg:CATALOG.TABLE"),
        ("Delta:/x", "Delta is not a kind of output"),
        ("delta:", "the path is missing; write delta:PATH"),
        ("iceberg:orders", "an Iceberg table has a catalog; write iceberg:CATALOG.TABLE"),
    ],
)
def test_a_kind_that_does_not_exist_is_named(desk: Desk, place: str, told: str) -> None:
    """An unknown kind never counts as the start of a path; no job is printed."""
    (desk.folder / "app.yaml").write_text(APPLICATION)
    said = desk.here("convert", "app.yaml", "--output", f"t={place}")
    assert (said.code, said.out) == (ExitCode.INVALID, "")
    assert f"--output t={place}: {told}" in said.err


@pytest.mark.parametrize("place", ["delta:s3a://x", "parquet:/x"])
@pytest.mark.parametrize("command", ["run", "plan", "render"])
def test_a_job_files_outputs_keep_their_kind(desk: Desk, command: str, place: str) -> None:
    """For a job file `--output` gives only the place: a kind before it is refused, and the remedy works."""
    desk.job()
    said = desk.here(command, "job.yaml", "--output", f"numbers={place}")
    assert (said.code, said.out) == (ExitCode.INVALID, "")
    assert "the job file declares what kind of output numbers is" in said.err
    assert "write --output numbers=" in said.err
    assert desk.here("plan", "job.yaml", "--output", f"numbers=./{place.replace('://', '-')}").code == 0


NEVER = "restartPolicy:\n    type: OnFailure\n    onFailureRetries: 3\n    onFailureRetryInterval: 600\n    onSubmissionFailureRetries: 5"


@pytest.mark.parametrize("options", [(), ("--output", "t=s3://lake/t")])
@pytest.mark.parametrize("policy", ["", "restartPolicy: {type: Never}", "restartPolicy: {}", "restartPolicy:"])
def test_what_ran_once_runs_once(desk: Desk, policy: str, options: tuple[str, ...]) -> None:
    """`Never`, explicit or by default, becomes one attempt, also for a job with outputs, and the message says so."""
    assert NEVER in APPLICATION
    said, job = desk.job_from("convert", APPLICATION.replace(NEVER, policy), *options)
    assert job.spec.max_attempts == 1
    assert "maxAttempts: 1" in said.out
    assert "sparkonce: SparkApplication nightly: spec.restartPolicy: " in said.err
    assert "became spec.retry.maxAttempts: 1: an attempt that fails is not repeated" in said.err
    assert ("raise it if you want them" in said.err) == bool(options)
    assert "restartPolicy" not in job.spec.template.spec


def test_fields_of_a_policy_that_never_restarts(desk: Desk) -> None:
    """With `Never` the Spark operator uses no other field of the policy, and neither does the job."""
    said, job = desk.job_from("convert", APPLICATION.replace("type: OnFailure", "type: Never"))
    assert (job.spec.max_attempts, job.spec.retry.backoff.initial) == (1, 10.0)
    assert "spec.restartPolicy: dropped: Never uses none of its other fields" in said.err


@pytest.mark.parametrize(
    ("options", "told", "retries"),
    [
        ((), "became spec.retry.submissionRetries: 5", 5),
        (("--output", "t=s3://lake/t"), "ends its attempt, which counts for spec.retry.maxAttempts", None),
    ],
)
def test_failed_submissions_are_told_truthfully(
    desk: Desk, options: tuple[str, ...], told: str, retries: int | None
) -> None:
    """The Spark operator counts failed submissions separately. So does an opaque job; in a job with outputs each counts as an attempt."""
    said, job = desk.job_from("convert", APPLICATION, *options)
    [line] = [line for line in said.err.splitlines() if "onSubmissionFailureRetries: " in line]
    assert told in line
    assert job.spec.retry.submission_retries == retries
    wrong = APPLICATION.replace("onSubmissionFailureRetries: 5", "onSubmissionFailureRetries: many")
    (desk.folder / "app.yaml").write_text(wrong)
    assert "onSubmissionFailureRetries: must be a whole number" in desk.here("convert", "app.yaml").err


@pytest.mark.parametrize("policy", ["{type: OnFailure, onFailureRetries: 2}", "{type: Always}"])
def test_the_wait_between_attempts_is_named(desk: Desk, policy: str) -> None:
    """If the application has no interval, the message names the job's default."""
    said, job = desk.job_from("convert", APPLICATION.replace(NEVER, f"restartPolicy: {policy}"))
    assert job.spec.max_attempts == 3
    assert "between attempts it waits 10s, doubling up to 5m (spec.retry.backoff)" in said.err


def test_several_documents_and_lists(desk: Desk) -> None:
    """Each application becomes a job of its own; other documents are left out by name."""
    other = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\n"
    (desk.folder / "app.yaml").write_text(f"{other}---\n{APPLICATION}---\n# nothing\n---\n{SCHEDULED}")
    said = desk.here("convert", "app.yaml")
    assert said.code == ExitCode.INVALID
    printed = ["nightly", *4 * ["hourly-tick"], "hourly"]
    assert [each["metadata"]["name"] for each in yaml.safe_load_all(said.out)] == printed
    assert "ConfigMap settings is left out" in said.err
    items = [yaml.safe_load(APPLICATION), yaml.safe_load(SCHEDULED)]
    (desk.folder / "app.yaml").write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items}))
    listed = desk.here("convert", "app.yaml")
    assert [each["metadata"]["name"] for each in yaml.safe_load_all(listed.out)] == printed
    refused = desk.here("convert", "app.yaml", "--key", "k")
    assert (refused.code, "one key cannot be for all" in refused.err) == (ExitCode.INVALID, True)


def test_a_file_is_written_once(desk: Desk) -> None:
    """`-o` creates a new file and never overwrites one."""
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
    "a new name each time": ("name: nightly", "generateName: nightly-", "give --resource or --key"),
    "another kind": (
        "kind: SparkApplication",
        "kind: Deployment",
        "app.yaml has no SparkApplication; it has Deployment",
    ),
    "a kind that is no text": (
        "kind: SparkApplication",
        "kind: [SparkApplication]",
        "app.yaml has no SparkApplication",
    ),
    "a policy that is no text": ("type: OnFailure", "type: [OnFailure]", "spec.restartPolicy.type: must be Never"),
    "a key twice": ("mode: cluster", "type: Scala", "duplicate key, first on line 13"),
    "no spec": ("spec:", "specs:", "spec: is required"),
    "another namespace": (
        "mode: cluster",
        "sparkConf: {spark.kubernetes.namespace: other}",
        'app.yaml:14: spec.sparkConf["spark.kubernetes.namespace"]: must be absent',
    ),
    "no YAML": ("spec:", "spec: [", "is not readable as YAML"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_converted_is_one_sentence(desk: Desk, case: str) -> None:
    """The sentence has the field's path and, where possible, its line in the application; no job is printed."""
    old, new, told = REFUSED[case]
    assert old in APPLICATION
    (desk.folder / "app.yaml").write_text(APPLICATION.replace(old, new, 1))
    said = desk.here("convert", "app.yaml")
    assert (said.code, said.out) == (ExitCode.INVALID, "")
    assert told in said.err
    assert len(said.err.splitlines()) == 1


def test_what_the_spark_operator_writes_is_dropped(desk: Desk) -> None:
    """A label that the Spark operator added to its application is not copied to the job; the note says so."""
    (desk.folder / "app.yaml").write_text(
        APPLICATION.replace("{team: billing}", "{team: billing, sparkoperator.k8s.io/scheduled-app-name: n}")
    )
    said = desk.here("convert", "app.yaml")
    assert (said.code, "the Spark operator writes it" in said.err) == (ExitCode.SUCCEEDED, True)
    assert yaml.safe_load(said.out)["spec"]["template"]["metadata"]["labels"] == {"team": "billing"}


def test_values_never_become_yaml(desk: Desk) -> None:
    """A line break in a key stays inside its comment, one in a schedule inside its value."""
    text = SCHEDULED.replace('"@every 1h"', '"x\\nkind: Secret"').replace(
        "concurrencyPolicy: Forbid", '"x\\nkind: Secret": 1'
    )
    said, documents = scheduled(desk, text)
    assert [each["kind"] for each in documents][-1] == "CronJob"
    assert documents[-1]["spec"]["schedule"] == "x\nkind: Secret"
    assert "kind: Secret: dropped" in said.out.replace('"', "").replace("]", "")


DEPLOYED = """\
apiVersion: sparkoperator.k8s.io/v1beta2
kind: SparkApplication
metadata:
  name: parcels
  uid: 2f1c
  labels: {app.kubernetes.io/instance: apps, kustomize.toolkit.fluxcd.io/name: apps, team: parcels}
  annotations: {argocd.argoproj.io/sync-wave: "5", helm.sh/hook: post-install, example.com/owner: people}
spec:
  type: Python
  mainApplicationFile: local:///app/job.py
  driver: {cores: 1}
"""


def test_marks_of_deployment_tools_stay_on_the_job(desk: Desk) -> None:
    """A tool that prunes by these marks would delete a running attempt if its application had them. People's own labels are copied to the
    application. Both are mentioned."""
    said, job = desk.job_from("convert", DEPLOYED)
    assert job.metadata.labels == {"app.kubernetes.io/instance": "apps", "kustomize.toolkit.fluxcd.io/name": "apps"}
    assert job.metadata.annotations == {"argocd.argoproj.io/sync-wave": "5", "helm.sh/hook": "post-install"}
    assert job.spec.template.metadata.labels == {"team": "parcels"}
    assert job.spec.template.metadata.annotations == {"example.com/owner": "people"}
    assert '# - metadata.annotations["helm.sh/hook"]: stays on the IdempotentJob, where Helm reads it' in said.out
    assert "# - metadata.labels: moved to spec.template.metadata" in said.out


@pytest.mark.parametrize(
    ("verb", "text"),
    [
        ("bind", DEPLOYED),
        ("convert", SCHEDULED.replace("{name: hourly}", "{name: hourly, labels: {helm.sh/chart: c-1, team: x}}")),
    ],
)
def test_a_job_that_no_tool_has_applied_has_none_of_its_marks(desk: Desk, verb: str, text: str) -> None:
    """A job that follows an application, or that a schedule sends, is in no tool's source: with these marks the tool would prune it."""
    (desk.folder / "app.yaml").write_text(text)
    said = desk.here(verb, "app.yaml")
    marks = (
        "app.kubernetes.io/instance",
        "kustomize.toolkit.fluxcd.io/name",
        "argocd.argoproj.io/sync-wave",
        "helm.sh/",
    )
    written = "\n".join(line for line in said.out.splitlines() if not line.lstrip().startswith("#"))
    assert not [mark for mark in marks if mark in written]
    assert "team: " in written
    assert "dropped: Helm reads it on what it has applied" in said.err


def test_names_that_each_attempt_chooses_are_dropped(desk: Desk) -> None:
    """Two attempts with the same name for a pod or service would collide: each such name is dropped with its reason, and the rest stays."""
    conf = ["spark.app.id", "spark.kubernetes.driver.pod.name", "spark.kubernetes.driver.resourceNamePrefix"]
    conf += ["spark.kubernetes.executor.podNamePrefix"]
    lines = "".join(f"    {name}: parcels\n" for name in conf)
    text = DEPLOYED.replace("  driver: {cores: 1}\n", f"  sparkConf:\n    spark.speculation: 'false'\n{lines}") + (
        "  driver:\n    podName: parcels\n    template: {metadata: {name: a, labels: {b: c}}}\n"
        "  executor:\n    template: {metadata: {generateName: a-, labels: {b: c}}}\n"
    )
    text = text.replace("team: parcels}", "team: parcels, kueue.x-k8s.io/prebuilt-workload-name: w}")
    said, job = desk.job_from("convert", text)
    spec: Any = job.spec.template.spec
    assert spec["sparkConf"] == {"spark.speculation": "false"}
    assert spec["driver"]["template"] == spec["executor"]["template"] == {"metadata": {"labels": {"b": "c"}}}
    assert job.spec.template.metadata.labels == {"team": "parcels"}
    dropped = [f'spec.sparkConf["{name}"]' for name in conf]
    dropped += [
        "spec.driver.podName",
        "spec.driver.template.metadata.name",
        "spec.executor.template.metadata.generateName",
    ]
    for name in [*dropped, 'metadata.labels["kueue.x-k8s.io/prebuilt-workload-name"]']:
        assert f"# - {name}: dropped: " in said.out, name
