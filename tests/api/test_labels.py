"""Which labels and annotations of a job reach its applications and pods, and that none come back. One test for each rule of
docs/templates.md ("Where labels and annotations go")."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from harness.apiserver import Cluster
from harness.etcd import Etcd
from harness.kubeflow import Script
from harness.stage import Stage, held, staged
from sparkonce.launch.kubernetes import PODS, SPARK_APPLICATIONS

pytestmark = pytest.mark.operator

OURS = {"sparkonce.dev/key", "sparkonce.dev/generation", "sparkonce.dev/attempt"}


@pytest.fixture(scope="module")
def stage(cluster: Cluster, ledger_server: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(cluster, ledger_server, tmp_path_factory.mktemp("stage")) as one:
        yield one


def sent(stage: Stage, key: str, *, job: str = "", template: str = "", driver: str = "") -> dict[str, Any]:
    """Applies a job with a label and an annotation of the given name at each place. Returns its body."""
    body = stage.job(key, key)
    given = {name: {"labels": {name: "x"}, "annotations": {name: "x"}} for name in (job, template, driver) if name}
    body["metadata"] |= given.get(job, {})
    body["spec"]["template"]["metadata"] = given.get(template, {})
    body["spec"]["template"]["spec"]["driver"] |= given.get(driver, {})
    stage.apply(body)
    return body


def names_on(document: dict[str, Any]) -> set[str]:
    metadata = document["metadata"]
    return {*(metadata.get("labels") or {}), *(metadata.get("annotations") or {})}


def pod_of(stage: Stage, key: str) -> dict[str, Any]:
    (run,) = stage.until_runs(key)
    pod = stage.cluster.api.get(PODS, run.pod, stage.namespace)
    assert pod is not None
    return pod


def test_those_of_the_job_stay_on_it(stage: Stage) -> None:
    """Labels and annotations of the job itself are on no application and no pod."""
    sent(stage, "stays", job="example.com/job")
    stage.until("stays", "Succeeded")
    (application,) = stage.applications("stays")
    assert "example.com/job" not in names_on(application) | names_on(pod_of(stage, "stays"))


def test_those_of_the_template_go_on_each_application(stage: Stage) -> None:
    """They are added to the attempt's three labels; the Spark operator copies labels to the pods, but no annotations."""
    stage.play("goes", Script(exit_code=1), attempt="g1-a1")
    body = stage.job("goes", "goes", retry={"maxAttempts": 2}, onUnknown="Retry")
    body["spec"]["template"]["metadata"] = {"labels": {"team": "x"}, "annotations": {"example.com/owner": "y"}}
    stage.apply(body)
    stage.until("goes", "Succeeded", attempt=2)
    applications = stage.applications("goes")
    assert len(applications) == 2
    for each in applications:
        assert set(each["metadata"]["labels"]) == OURS | {"team"}
        assert each["metadata"]["annotations"]["example.com/owner"] == "y"
    for run in stage.runs("goes"):
        pod = stage.cluster.api.get(PODS, run.pod, stage.namespace)
        assert pod is not None
        assert ("team" in names_on(pod), "example.com/owner" in names_on(pod)) == (True, False)


def test_those_of_the_driver_are_given_to_the_spark_operator(stage: Stage) -> None:
    """They are fields of the driver in the application, not labels of the application."""
    sent(stage, "driven", driver="example.com/pod")
    stage.until("driven", "Succeeded")
    (application,) = stage.applications("driven")
    assert "example.com/pod" not in names_on(application)
    driver = application["spec"]["driver"]
    assert driver["labels"] == {"example.com/pod": "x"}
    assert driver["annotations"]["example.com/pod"] == "x"


def test_nothing_comes_back(stage: Stage) -> None:
    """A label that another program adds to an application or a pod does not reach the job, which keeps those that were applied."""
    end = threading.Event()
    stage.play("back", Script(code=held(end)))
    sent(stage, "back", job="example.com/job")
    stage.until("back", "Running")
    before = names_on(stage.object("back") or {})
    (application,) = stage.applications("back")
    pod = pod_of(stage, "back")
    for resource, each in ((SPARK_APPLICATIONS, application), (PODS, pod)):
        patch = {"metadata": {"labels": {"example.com/late": "x"}, "annotations": {"example.com/late": "x"}}}
        stage.cluster.api.patch(resource, each["metadata"]["name"], patch, namespace=stage.namespace)
    end.set()
    stage.until("back", "Succeeded", attempt=1)
    stage.settled("back")
    assert names_on(stage.object("back") or {}) == before
    assert "example.com/job" in before


def test_an_edit_is_no_mismatch_and_the_next_attempt_has_it(stage: Stage) -> None:
    """This holds for labels of the template and of the driver, edited while an attempt runs; those in a pod template must match."""
    end = threading.Event()
    stage.play("edited", Script(code=held(end, 1)), attempt="g1-a1")
    stage.apply(stage.job("edited", "edited", retry={"maxAttempts": 2}, onUnknown="Retry"))
    stage.until("edited", "Running")
    label = {"labels": {"team": "new"}}
    stage.edit("edited", template={"metadata": label, "spec": {"driver": label}})
    stage.settled("edited")
    end.set()
    stage.until("edited", "Succeeded", generation=1, attempt=2)
    first, second = sorted(stage.applications("edited"), key=lambda each: str(each["metadata"]["name"]))
    assert "team" not in first["metadata"]["labels"]
    assert (second["metadata"]["labels"]["team"], second["spec"]["driver"]["labels"]) == ("new", {"team": "new"})
    stage.edit("edited", template={"spec": {"driver": {"template": {"metadata": label}}}})
    stage.until("edited", "Mismatch")
