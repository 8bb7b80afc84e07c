"""The CRD is up to date and structural, and its defaults are the model's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from harness.manifests import document
from sparkonce.model.crd import HEADER, crd, spec_schema
from sparkonce.model.identity import fingerprint
from sparkonce.model.manifest import dump
from sparkonce.model.spec import IdempotentJob, JobSpec

COMMITTED = Path(__file__).parents[3] / "crds" / "idempotentjobs.yaml"
SCHEMA = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def nodes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for below in [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]:
        if isinstance(below, dict):
            yield from nodes(below)


def defaulted(value: Any, schema: dict[str, Any]) -> Any:
    """The object as the API server stores it: nulls pruned, and defaults filled in from the outermost level inwards."""
    if isinstance(value, dict) and "properties" in schema:
        filled = {name: each for name, each in value.items() if each is not None}
        for name, below in schema["properties"].items():
            if "default" in below:
                filled.setdefault(name, json.loads(json.dumps(below["default"])))
        return {name: defaulted(each, schema["properties"].get(name, {})) for name, each in filled.items()}
    return (
        [defaulted(each, schema["items"]) for each in value] if isinstance(value, list) and "items" in schema else value
    )


def test_the_committed_crd_is_fresh() -> None:
    """The committed file equals the output of `make crd`, byte for byte."""
    printed = subprocess.run([sys.executable, "-m", "sparkonce.model.crd"], capture_output=True, text=True, check=True)
    assert printed.stdout == HEADER + dump(crd())
    assert COMMITTED.read_text() == printed.stdout, "crds/idempotentjobs.yaml is stale: run `make crd`"


def test_the_schema_is_structural() -> None:
    """Every node has a type, and nothing is used that apiextensions refuses: references, unions, titles, null."""
    for node in nodes(SCHEMA):
        assert isinstance(node.get("type"), str), node
        assert not {"$ref", "$defs", "anyOf", "oneOf", "allOf", "const", "title", "nullable"} & node.keys(), node
        assert not ("properties" in node and "additionalProperties" in node), node
        assert set(node.get("required", ())) <= node.get("properties", {}).keys(), node


def test_every_field_of_the_model_is_in_the_crd() -> None:
    """The API server prunes fields that the CRD lacks, so a missing one would be silently lost."""
    fields = {field.alias or name for name, field in JobSpec.model_fields.items()}
    assert SCHEMA["properties"]["spec"]["properties"].keys() == fields


def test_defaults_of_the_crd_are_the_models() -> None:
    """An object as the API server stores it is the same job as the manifest without defaults: same values, same fingerprint."""
    stored = IdempotentJob.of(defaulted(document(), SCHEMA))
    bare = IdempotentJob.of(document())
    assert stored.model_dump(by_alias=True) == bare.model_dump(by_alias=True)
    assert stored.document() != bare.document(), "no default was filled in"
    assert fingerprint(stored) == fingerprint(bare)


def test_everything_that_is_read_is_explained() -> None:
    """`kubectl explain` has a description for every field of the spec."""
    for node in nodes(spec_schema()):
        for name, below in node.get("properties", {}).items():
            if "x-kubernetes-preserve-unknown-fields" not in node:  # below it are the application's own fields
                assert below.get("description"), name


def test_names_and_columns() -> None:
    """The CRD has its short names, the status subresource, and the columns of `kubectl get ij`."""
    spec = yaml.safe_load(COMMITTED.read_text())["spec"]
    (version,) = spec["versions"]
    assert spec["names"]["shortNames"] == ["ij", "idemjob"]
    assert version["subresources"] == {"status": {}}
    shown = [column["name"] for column in version["additionalPrinterColumns"] if not column.get("priority")]
    assert shown == ["Phase", "Role", "Generation", "Attempt", "Age", "Message"]


def test_the_template_keeps_what_it_does_not_know() -> None:
    """Fields of the application pass unchanged; the two that the CRD's rules refer to are declared."""
    template = SCHEMA["properties"]["spec"]["properties"]["template"]["properties"]["spec"]
    assert template["x-kubernetes-preserve-unknown-fields"] is True
    assert template["properties"].keys() == {"restartPolicy", "timeToLiveSeconds"}


def test_identity_is_immutable_by_rule() -> None:
    """Each identity field, and the application that `bind` names, has a transition rule that names the field."""
    rules = SCHEMA["properties"]["spec"]["x-kubernetes-validations"]
    immutable = {rule["message"].split(" ", 1)[0] for rule in rules if "oldSelf" in rule["rule"]}
    assert immutable == {"idempotencyKey", "operation", "resource", "revision", "keyFrom", "bind"}
