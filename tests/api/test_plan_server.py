"""`sparkonce plan --server`: the cluster's API server says beforehand what it would refuse, and stores nothing."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.apiserver import Cluster
from harness.eventually import assert_eventually
from harness.jobs import job
from harness.kube_api import CRDS, SERVICE_ACCOUNTS, ApiError, path_of
from harness.stage import IN_TIME
from sparkonce.cli.app import main
from sparkonce.cli.exits import ExitCode
from sparkonce.launch.kubernetes import JOBS, SPARK_APPLICATIONS, Resource

CRD = "sparkapplications.sparkoperator.k8s.io"


@dataclass(frozen=True)
class Person:
    """A user with a kubeconfig, a job file, and `sparkonce`."""

    cluster: Cluster
    namespace: str
    folder: Path
    capsys: pytest.CaptureFixture[str]
    kubeconfig: Path

    def plans(self, body: dict[str, Any], *more: str) -> tuple[int, str]:
        """Returns the exit code and all output."""
        file = self.folder / "job.yaml"
        file.write_text(yaml.safe_dump(body))
        where = ["--server", "--namespace", self.namespace, "--kubeconfig", str(self.kubeconfig)]
        code = main(["plan", str(file), *where, *more])
        told = self.capsys.readouterr()
        assert_eventually(lambda: self._stored(JOBS) == self._stored(SPARK_APPLICATIONS) == [], IN_TIME)
        return code, told.out + told.err

    def _stored(self, resource: Resource) -> list[Any]:
        try:
            return list(self.cluster.api.list(resource, self.namespace))
        except ApiError as error:  # a CRD that has just changed is not served for a moment
            raise AssertionError(str(error)) from error


@pytest.fixture
def person(cluster: Cluster, namespace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Person:
    return Person(cluster, namespace, tmp_path, capsys, cluster.kubeconfig)


def with_driver(**fields: Any) -> dict[str, Any]:
    body = copy.deepcopy(job("orders", key="orders"))
    body["spec"]["template"]["spec"]["driver"] |= fields
    return body


def test_a_job_that_the_api_server_takes(person: Person) -> None:
    """The job's script is in an image, and is not needed here."""
    code, said = person.plans(with_driver())
    assert code == 0, said
    assert said.startswith("would be admitted: orders: the API server takes IdempotentJob orders of namespace")
    assert '"plan": "Admitted"' in person.plans(with_driver(), "--json")[1]


def test_a_misspelt_field_is_named_with_its_path(person: Person) -> None:
    """The field is in the template, which only the Spark operator's CRD can check; nothing is dropped silently."""
    code, said = person.plans(with_driver(memroy="2g", retries=2))
    assert code == ExitCode.INVALID
    assert "spec.template.spec.driver.memroy and spec.template.spec.driver.retries are not fields" in said, said


def test_a_field_of_another_version_of_the_spark_operator_passes(person: Person) -> None:
    """Which fields exist is decided by this cluster's CRD, whatever its version."""
    body = with_driver(ofTomorrow="x")
    assert "spec.template.spec.driver.ofTomorrow is not a field" in person.plans(body)[1]
    api, path = person.cluster.api, path_of(CRDS, name=CRD)

    def knows(fields: dict[str, Any]) -> None:
        definition = api.request("GET", path)
        for version in definition["spec"]["versions"]:
            spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
            spec["driver"]["properties"].pop("ofTomorrow", None)
            spec["driver"]["properties"] |= fields
        try:
            api.request("PUT", path, definition)
        except ApiError as conflict:  # the API server writes the CRD's status meanwhile
            raise AssertionError(str(conflict)) from conflict

    assert_eventually(lambda: knows({"ofTomorrow": {"type": "string"}}), IN_TIME)
    try:
        assert_eventually(lambda: person.plans(body)[0] == 0, IN_TIME, interval=0.2)
    finally:
        assert_eventually(lambda: knows({}), IN_TIME)
    assert_eventually(lambda: person.plans(body)[0] == ExitCode.INVALID, IN_TIME, interval=0.2)


def test_what_the_schemas_refuse_is_said_as_at_the_attempt(person: Person) -> None:
    """A value of the wrong type is named by its path in the job."""

    def told() -> None:
        code, said = person.plans(with_driver(cores="many"))
        assert (code, "spec.template.spec.driver.cores" in said) == (ExitCode.INVALID, True), said

    assert_eventually(told, IN_TIME)


def test_a_person_who_may_not_create_applications_is_told_that_they_are_not_checked(
    cluster: Cluster, person: Person
) -> None:
    """With the right to create jobs only, as the chart grants it, the command does not succeed, and says why."""
    api, namespace = cluster.api, person.namespace
    api.create(SERVICE_ACCOUNTS, {"metadata": {"name": "sender"}}, namespace)
    rule = {"apiGroups": [JOBS.group], "resources": [JOBS.plural], "verbs": ["create"]}
    rbac = "rbac.authorization.k8s.io"
    api.create(Resource(rbac, "v1", "roles", "Role"), {"metadata": {"name": "sends"}, "rules": [rule]}, namespace)
    binding = {
        "metadata": {"name": "sends"},
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "sends"},
        "subjects": [{"kind": "ServiceAccount", "name": "sender", "namespace": namespace}],
    }
    api.create(Resource(rbac, "v1", "rolebindings", "RoleBinding"), binding, namespace)
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    path = path_of(SERVICE_ACCOUNTS, namespace, "sender", "token")
    config = cluster.kubeconfig_for(cluster.url, token=api.request("POST", path, body)["status"]["token"])
    sender = replace(person, kubeconfig=config)

    def told() -> None:
        code, said = sender.plans(with_driver(memroy="2g"))
        assert code == ExitCode.INVALID
        assert "the application of its attempts is not checked, because you may not create one here" in said, said

    assert_eventually(told, IN_TIME)
