"""The Spark operators that docs/install.md supports: the schema of each has every field that we write and read. No server is started."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from harness.apiserver import yaml_document
from harness.binaries import KUBE, SPARK_OPERATOR, SPARK_OPERATOR_TOO_OLD, SPARK_OPERATORS, or_skip, spark_operator_crds
from harness.helm import CHART
from launch.kubeflow_scene import NAMESPACE, UID, assignment_of, job_of, wanting
from sparkonce.launch.kubeflow.labels import API_VERSION
from sparkonce.launch.kubeflow.spec import application, placeholder, settle_run, suspend_patch
from sparkonce.model import text_fields
from sparkonce.model.record import Intent

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "install.md").read_text()
every_version = pytest.mark.parametrize("version", SPARK_OPERATORS)
READ = (
    "status.applicationState.state",
    "status.applicationState.errorMessage",
    "status.driverInfo.podName",
    "status.executionAttempts",
    "status.sparkApplicationId",
    "status.submissionID",
)
"""Fields of a status that `launch/kubeflow/observe.py` decides by."""


@cache
def crd(version: str) -> dict[str, Any]:
    (path,) = (each for each in or_skip(spark_operator_crds, version) if each.name.endswith("_sparkapplications.yaml"))
    found: dict[str, Any] = yaml_document(path)
    return found


def schema(version: str) -> dict[str, Any]:
    """Of SparkApplications."""
    (served,) = crd(version)["spec"]["versions"]
    assert served["name"] == API_VERSION.rpartition("/")[2]
    found: dict[str, Any] = served["schema"]["openAPIV3Schema"]
    return found


def written() -> dict[str, Mapping[str, Any]]:
    """Every document that the launcher writes to a SparkApplication, with all that it adds by itself."""
    job = job_of("orders", template={"driver": {}, "executor": {}})
    assignment = assignment_of(job, gateway="https://gateway.example", gateway_ca="CA")
    settles = assignment.model_copy(
        update={"run": 1, "settle": Intent(token=3, slots={"orders": {"state": "committed"}})}
    )
    objects = [wanting("a")]
    return {
        "application": application(assignment, job, objects, namespace=NAMESPACE, pods_since="17"),
        "placeholder": placeholder(assignment, namespace=NAMESPACE, objects=objects),
        "settle run": settle_run(settles, job, namespace=NAMESPACE, objects=objects),
        "suspend patch": suspend_patch(assignment, uid=UID),
    }


def misfits(value: Any, wanted: Mapping[str, Any], path: str) -> Iterator[str]:
    """Fields of a document that the schema does not have, or that are of another type there. What the schema leaves open passes."""
    kinds = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict}
    kind = kinds.get(wanted.get("type", ""))
    if kind is not None and not (isinstance(value, kind) and (kind is bool or not isinstance(value, bool))):
        yield f"{path} is {value!r}, not {wanted['type']}"
    elif isinstance(value, list):
        for each in value:
            yield from misfits(each, wanted["items"], f"{path}[]")
    elif isinstance(value, dict) and not wanted.get("x-kubernetes-preserve-unknown-fields"):
        fields, more = wanted.get("properties", {}), wanted.get("additionalProperties")
        yield from (f"{path}.{name} is required" for name in wanted.get("required", ()) if name not in value)
        for name, each in value.items():
            below = fields.get(name, more)
            if below is None:
                yield f"{path}.{name} is unknown"
            else:
                yield from misfits(each, below, f"{path}.{name}")


def at(wanted: Mapping[str, Any], path: str) -> Mapping[str, Any] | None:
    """The schema of the field at this path."""
    found: Mapping[str, Any] | None = wanted
    for name in path.split("."):
        found = (found or {}).get("properties", {}).get(name)
    return found


@every_version
@pytest.mark.parametrize("name", ["application", "placeholder", "settle run"])
def test_every_field_that_we_write_is_in_the_schema(version: str, name: str) -> None:
    """With the type that the schema wants, and nothing that it requires is left out."""
    assert list(misfits(written()[name]["spec"], schema(version)["properties"]["spec"], "spec")) == []


@every_version
def test_an_attempt_can_be_suspended(version: str) -> None:
    """The field that ends an attempt without deleting it is in the schema, and the API server keeps a status apart from it."""
    field = at(schema(version), "spec.suspend")
    assert field is not None
    assert field["type"] == "boolean"
    assert written()["suspend patch"]["spec"] == {"suspend": True}
    assert crd(version)["spec"]["versions"][0]["subresources"] == {"status": {}}


@every_version
def test_every_field_that_we_read_is_in_the_schema(version: str) -> None:
    """A status without one of them would look like an application about which nothing is known yet."""
    assert [path for path in READ if at(schema(version), path) is None] == []


@every_version
def test_the_text_fields_are_the_same(version: str) -> None:
    """Where a number in a job file is refused is right for each release: the table of `model/text_fields.py` fits each schema."""
    known = {each for each in text_fields.paths() if not each.startswith(("driver.template.", "executor.template."))}
    assert known == set(texts_of(schema(version)["properties"]["spec"], ""))


def texts_of(wanted: Mapping[str, Any], above: str) -> Iterator[str]:
    """Paths of what must be text, as `text_fields.paths` writes them."""
    if wanted.get("type") == "string":
        yield above
    elif wanted.get("type") == "array":
        yield from texts_of(wanted["items"], f"{above}[]")
    elif isinstance(more := wanted.get("additionalProperties"), dict):
        yield from texts_of(more, f"{above}{{}}")
    else:
        for name, each in wanted.get("properties", {}).items():
            yield from texts_of(each, f"{above}.{name}" if above else name)


def test_an_older_one_cannot_be_used() -> None:
    """The release before lacks exactly the field by which an attempt is stopped, and a placeholder kept from running."""
    older = schema(SPARK_OPERATOR_TOO_OLD)["properties"]["spec"]
    assert list(misfits(written()["placeholder"]["spec"], older, "spec")) == ["spec.suspend is unknown"]


def test_the_check_finds_what_does_not_fit() -> None:
    """A field that the schema does not have, one of another type, and one that is missing, at any depth."""
    spec = {**written()["placeholder"]["spec"], "sparkConf": {"a": 1}, "driver": {"memroy": "1g", "cores": "1"}}
    spec["executor"] = {"env": [{"value": "1"}]}
    del spec["type"]
    assert set(misfits(spec, schema(SPARK_OPERATOR[1])["properties"]["spec"], "spec")) == {
        "spec.type is required",
        "spec.driver.memroy is unknown",
        "spec.driver.cores is '1', not integer",
        "spec.executor.env[].name is required",
        "spec.sparkConf.a is 1, not string",
    }


def test_the_page_supports_what_is_compared() -> None:
    """docs/install.md names each release that is compared, the one that runs in the tests, the one that is too old, and the oldest
    Kubernetes of the chart with that of the tests."""
    rows = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", PAGE, re.MULTILINE))
    assert {f"v{each}" for title in rows for each in re.findall(r"\d+\.\d+\.\d+", title)} == {
        *SPARK_OPERATORS,
        SPARK_OPERATOR_TOO_OLD,
    }
    assert rows[f"Spark operator {SPARK_OPERATOR[1].lstrip('v')}"].startswith("supported; the tests run it")
    older = rows[f"Spark operator {SPARK_OPERATOR_TOO_OLD.lstrip('v')} and earlier"]
    assert older.startswith("not supported")
    assert "`spec.suspend`" in older
    (oldest,) = re.findall(r'kubeVersion: ">=(\d+\.\d+)\.', (CHART / "Chart.yaml").read_text())
    tested = ".".join(KUBE.version.lstrip("v").split(".")[:2])
    assert f"the tests run {tested}" in rows[f"Kubernetes {oldest} and later"]
