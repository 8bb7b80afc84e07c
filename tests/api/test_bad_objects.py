"""Objects that cannot run: each names the wrong field, and the operator continues with all others."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.apiserver import Cluster
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.kube_api import ApiError
from harness.kubeflow import Script
from harness.stage import IN_TIME, Stage, rows, staged
from sparkonce.launch.kubernetes import SPARK_APPLICATIONS

KEYS = 40
"""Live keys that this operator allows: more than the other tests of this module need together."""


@pytest.fixture(scope="module")
def stage(cluster: Cluster, ledger_server: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("stage")
    with staged(cluster, ledger_server, folder, sweep=4.0, options=("--max-live-keys", str(KEYS))) as one:
        yield one


def others_run(stage: Stage, key: str) -> None:
    """Asserts that a job applied now runs."""
    stage.send(key, key)
    stage.until(key, "Succeeded")


def template(**spec: Any) -> dict[str, Any]:
    return {"template": {"spec": spec}}


@pytest.mark.parametrize(
    ("case", "change", "field"),
    [
        ("conf", template(sparkConf={"spark.sparkonce.key": "x"}), "spec.template.spec.sparkConf"),
        ("mode", template(mode="client"), "spec.template.spec.mode"),
        (
            "namespace",
            template(sparkConf={"spark.kubernetes.namespace": "kube-system"}),
            'spec.template.spec.sparkConf["spark.kubernetes.namespace"]: must be absent',
        ),
        (
            "label",
            {"template": {"metadata": {"labels": {"sparkonce.dev/key": "forged"}}}},
            'spec.template.metadata.labels["sparkonce.dev/key"]: must be absent',
        ),
        (
            "number",
            template(arguments=["--month", 8]),
            "spec.template.spec.arguments[1]: must be text, not 8; put it in quotes",
        ),
        (
            "boolean",
            template(sparkConf={"spark.speculation": True}),
            'spec.template.spec.sparkConf["spark.speculation"]: must be text, not true; put it in quotes',
        ),
        ("kind", {"template": {"kind": "FlinkDeployment"}}, "spec.template.kind"),
        ("tunable", {"tunableArguments": ["--threads"]}, "spec.tunableArguments[0]"),
        ("backoff", {"retry": {"backoff": {"initial": "1h", "max": "1s"}}}, "spec.retry.backoff.initial"),
        (
            "output",
            {"outputs": [{"name": "a", "iceberg": {"catalog": "c", "table": "without-a-namespace"}}]},
            "spec.outputs",
        ),
        ("place", {"outputs": [{"name": "a", "slotLog": {"path": "gopher://x/y"}}]}, "spec.outputs"),
    ],
)
def test_a_spec_that_is_not_valid_says_which_field(stage: Stage, case: str, change: dict[str, Any], field: str) -> None:
    """The object is Failed with a condition and an event that name the field; nothing is reserved, no application is created, and other
    jobs run."""
    body = stage.job(f"bad-{case}", f"bad-{case}")
    merge(body["spec"], change)
    stage.apply(body)
    status = stage.until(f"bad-{case}", "Failed")
    failed = stage.condition(f"bad-{case}", "Failed")
    assert (failed["status"], failed["reason"]) == ("True", "InvalidSpec")
    assert field in failed["message"], failed["message"]
    assert field in stage.until_event(f"bad-{case}", "Failed")
    assert "ledgerRevision" not in status
    assert stage.applications(f"bad-{case}") == []
    assert stage.cli("keys", "show", f"bad-{case}").returncode == 2
    others_run(stage, f"beside-{case}")


def merge(into: dict[str, Any], change: dict[str, Any]) -> None:
    for name, value in change.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            merge(into[name], value)
        else:
            into[name] = value


@pytest.mark.operator
def test_a_spec_that_is_mended_runs(stage: Stage) -> None:
    """An edit that makes the spec valid is enough; the conditions then no longer say that it failed."""
    stage.send("mended", "mended", tunableArguments=["--threads"])
    stage.until("mended", "Failed")
    stage.edit("mended", tunableArguments=[])
    stage.until("mended", "Succeeded", role="Leader", attempt=1)
    assert stage.condition("mended", "Failed")["status"] == "False"
    assert stage.condition("mended", "Complete")["status"] == "True"


def test_a_running_job_that_is_edited_to_nonsense_runs_on(stage: Stage) -> None:
    """The object shows what is wrong with the edit; the job is not stopped, and its result is there once the edit is reverted."""
    stage.play("nonsense", Script(run_seconds=1.5))
    stage.send("nonsense", "nonsense")
    stage.until("nonsense", "Running")
    stage.edit("nonsense", tunableArguments=["--threads"])
    assert_eventually(lambda: "tunableArguments" in stage.condition("nonsense", "Reserved").get("message", ""), 20)
    stage.until_record("nonsense", phase="Succeeded")
    stage.edit("nonsense", tunableArguments=[])
    stage.until("nonsense", "Succeeded", attempt=1)
    assert len(stage.runs("nonsense")) == 1


def test_a_key_that_is_too_long_is_refused_by_the_api_server(stage: Stage) -> None:
    """A key of 256 characters is refused at admission: the object is not stored, and the answer names the field."""
    with pytest.raises(ApiError) as refused:
        stage.apply(stage.job("long", "k" * 256))
    assert refused.value.code == 422
    assert "spec.idempotencyKey" in refused.value.message
    assert stage.object("long") is None


@pytest.mark.operator
def test_a_template_that_the_api_server_refuses_fails_for_good(stage: Stage) -> None:
    """An invalid SparkApplication (422) makes the job Failed with the field's path in the IdempotentJob, after one attempt in which nothing
    ran; a duplicate gets the same answer without another attempt."""
    body = stage.job("refused", "refused")
    body["spec"]["template"]["spec"]["driver"] = {"cores": "many"}
    stage.apply(body)
    stage.until("refused", "Failed", attempt=1)
    said = stage.condition("refused", "Failed")["message"]
    assert "spec.template.spec.driver.cores" in said
    assert "unknown" not in said, "nothing was created, and that is known"
    assert "spec.template.spec.driver.cores" in stage.until_event("refused", "Failed")
    assert stage.runs("refused") == []
    assert stage.applications("refused") == []
    body["metadata"]["name"] = "refused-again"
    stage.apply(body)
    stage.until("refused-again", "Failed", role="Replay", replayed=True)
    others_run(stage, "beside-refused")


@pytest.mark.operator
@pytest.mark.parametrize("declares", [False, True], ids=["opaque", "outputs"])
def test_a_misspelt_field_is_refused_with_its_path_and_the_corrected_job_takes_its_key(
    stage: Stage, tmp_path: Path, *, declares: bool
) -> None:
    """`driver.memroy` is not dropped: the job is Failed with the field's path in `.status.message`, and nothing ran. The corrected object
    runs."""
    key = "misspelt-outputs" if declares else "misspelt"
    more = {"outputs": rows(tmp_path / "lake")} if declares else {}
    body = stage.job(key, key, **more)
    body["spec"]["template"]["spec"]["driver"] |= {"memroy": "2g"}
    stage.apply(body)
    status = stage.until(key, "Failed", attempt=1)
    assert (
        "spec.template.spec.driver.memroy is not a field of the SparkApplications of this cluster" in status["message"]
    )
    assert (stage.runs(key), stage.applications(key)) == ([], [])
    stage.edit(key, template={"spec": {"driver": {"memroy": None, "memory": "600m"}}})
    stage.until_runs(key)
    stage.until(key, generation=2)
    assert {each["spec"]["driver"]["memory"] for each in stage.applications(key)} == {"600m"}


@pytest.mark.operator
def test_a_name_that_is_taken_by_a_stranger_costs_nothing(stage: Stage) -> None:
    """A foreign SparkApplication under our name is left alone and the next name is used; the attempt is not counted."""
    stranger(stage, "taken", 1)
    stage.send("taken", "taken", retry={"maxAttempts": 1})
    status = stage.until("taken", "Succeeded", attempt=2)
    assert status["application"].endswith("-g1-a2")
    foreign = stage.cluster.api.get(SPARK_APPLICATIONS, f"so-{stage.hash20('taken')}-g1-a1", stage.namespace)
    assert foreign is not None
    assert "suspend" not in foreign["spec"]
    assert foreign["metadata"]["labels"] == {"whose": "a-stranger"}


def test_three_taken_names_in_a_row_are_held(stage: Stage) -> None:
    """If applications of another client have three of our names in a row, the job is held with a condition and an event; `--retry` tries
    the next name."""
    for attempt in (1, 2, 3):
        stranger(stage, "held", attempt)
    stage.send("held", "held")
    stage.until("held", "Held", attempt=3)
    condition = stage.condition("held", "Held")
    assert (condition["status"], condition["reason"]) == ("True", "NameTaken")
    assert "kubectl sparkonce resolve" in stage.until_event("held", "Held")
    done = stage.cli("keys", "resolve", "held", "--retry", "--reason", "they are gone", "--yes")
    assert done.returncode == 0, done.stderr
    stage.until("held", "Succeeded", attempt=4)
    assert stage.condition("held", "Held")["status"] == "False"
    assert len([run for run in stage.runs("held") if run.application.endswith("-a4")]) == 1


def stranger(stage: Stage, key: str, attempt: int) -> None:
    spec = stage.job("x", key)["spec"]["template"]["spec"]
    metadata = {"name": f"so-{stage.hash20(key)}-g1-a{attempt}", "labels": {"whose": "a-stranger"}}
    stage.cluster.api.create(SPARK_APPLICATIONS, {"metadata": metadata, "spec": spec}, stage.namespace)


def test_an_object_that_is_nested_as_deeply_as_an_api_server_takes_stops_nobody(stage: Stage) -> None:
    """Some 9,000 levels, of which Python's own limit allows a tenth: it is refused, and others run, also after the operator has listed all
    objects anew."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)  # of this test's own JSON
    try:
        deep: Any = "x"
        for _ in range(9_000):
            deep = [deep]
        body = stage.job("deep", "deep")
        body["spec"]["template"]["spec"]["volumes"] = deep
        stage.apply(body)
        stage.until("deep", "Failed")
        assert "nested" in stage.condition("deep", "Failed")["message"]
        others_run(stage, "beside-deep")
        stage.operators[0].kill()
        stage.operators[0].start()
        others_run(stage, "after-deep")
        stage.delete("deep")
        assert_eventually(lambda: stage.object("deep") is None, IN_TIME)
    finally:
        sys.setrecursionlimit(before)


def test_a_full_realm_says_so_and_takes_the_job_when_there_is_room(stage: Stage) -> None:
    """The newest key waits, with a condition and an event, while replays continue; once another key is forgotten, it runs."""
    for number in range(KEYS - live_keys(stage)):
        stage.send(f"fill-{number}", f"fill-{number}")
    assert_eventually(lambda: live_keys(stage) == KEYS, IN_TIME, interval=0.2)
    stage.until("fill-0", "Succeeded")
    stage.send("newest", "newest")
    stage.until("newest", "Pending")
    waits = assert_eventually(lambda: stage.condition("newest", "Reserved"), IN_TIME)
    assert (waits["status"], waits["reason"]) == ("False", "RealmFull")
    assert "live keys" in stage.until_event("newest", "RealmFull")
    stage.send("replayed", "fill-0")
    stage.until("replayed", "Succeeded", role="Replay")
    assert stage.applications("newest") == []
    forget = ("keys", "forget", "fill-0", "--reason", "room is needed", "--yes")
    assert_eventually(
        lambda: stage.cli(*forget, "--kubeconfig", str(stage.cluster.kubeconfig)).returncode == 0, IN_TIME
    )
    stage.until("newest", "Succeeded", role="Leader")


def live_keys(stage: Stage) -> int:
    return len(json.loads(stage.cli("keys", "list", "--json").stdout)["keys"])
