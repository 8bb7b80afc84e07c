"""A new job must have text in every field that is text in Kubernetes: a laptop and an object's status give the same sentence, and recorded
jobs continue."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.manifests import changed, document, job, template
from sparkonce.controller.desired import Desired
from sparkonce.model import manifest, text_fields
from sparkonce.model.entrance import check_template
from sparkonce.model.identity import fingerprint
from sparkonce.model.validation import InvalidJob, Loc, path_text

PLACES: list[Loc] = [
    template("arguments", 1),
    template("sparkVersion"),
    template("image"),
    template("mainClass"),
    template("memoryOverheadFactor"),
    template("sparkConf", "spark.sql.shuffle.partitions"),
    template("hadoopConf", "fs.x"),
    template("nodeSelector", "pool"),
    template("deps", "packages", 0),
    template("driver", "memory"),
    template("driver", "env", 0, "value"),
    template("driver", "envVars", "A"),
    template("driver", "labels", "a"),
    template("driver", "serviceAnnotations", "a"),
    template("executor", "coreLimit"),
    template("executor", "annotations", "a"),
    template("executor", "tolerations"),
    template("driver", "sidecars"),
    template("driver", "template", "metadata", "labels", "a"),
    template("executor", "template", "spec", "containers"),
    template("volumes"),
]
NESTED: dict[str, Any] = {
    "tolerations": lambda value: [{"key": "a", "value": value}],
    "sidecars": lambda value: [{"name": "a", "args": ["b", value]}],
    "containers": lambda value: [{"name": "a", "env": [{"name": "a", "value": value}]}],
    "volumes": lambda value: [{"name": "a", "csi": {"driver": "b", "volumeAttributes": {"c": value}}}],
}
BELOW = {
    "tolerations": "[0].value",
    "sidecars": "[0].args[1]",
    "containers": "[0].env[0].value",
    "volumes": "[0].csi.volumeAttributes.c",
}


def with_value(loc: Loc, value: object) -> tuple[dict[str, Any], str]:
    """A document with this value at this place, and the path of the value."""
    last = str(loc[-1])
    nested = NESTED.get(last)
    changes: dict[Loc, Any] = {loc: nested(value) if nested else value, ("metadata", "uid"): "u"}
    made = changed(
        document(), changes | {("spec", "outputs", index, "slotLog", "path"): f"/{index}" for index in (0, 1)}
    )
    return made, path_text(loc) + BELOW.get(last, "")


def refusal_here(made: dict[str, Any]) -> str:
    with pytest.raises(InvalidJob) as refused:
        manifest.load(json.dumps(made), params={}, source="")
    return str(refused.value)


def refusal_on_a_cluster(made: dict[str, Any]) -> str:
    """The sentence by which the operator refuses the object, or by which it opens no generation."""
    try:
        return Desired.of(made, realm="etl").contradiction
    except InvalidJob as refused:
        return str(refused)


@pytest.mark.parametrize("loc", PLACES, ids=path_text)
def test_a_number_or_boolean_is_refused_where_text_is_wanted(loc: Loc) -> None:
    """The laptop and the operator give the same sentence; the value would reach the job as another text than was written."""
    for value, shown in ((8, "8"), (1.1, "1.1"), (True, "true"), (False, "false")):
        made, path = with_value(loc, value)
        sentence = f"{path}: must be text, not {shown}; put it in quotes"
        assert refusal_here(made) == sentence
        assert refusal_on_a_cluster(made) == sentence


@pytest.mark.parametrize("loc", [each for each in PLACES if each != template("mainClass")], ids=path_text)
def test_null_is_refused_in_lists_and_maps_of_texts(loc: Loc) -> None:
    """A missing entry cannot be passed: neither empty text nor nothing was written."""
    made, path = with_value(loc, None)
    if loc[-1] in ("sparkVersion", "image", "memoryOverheadFactor", "memory", "coreLimit"):  # null leaves these out
        manifest.load(json.dumps(made), params={}, source="")
    else:
        assert refusal_here(made) == f"{path}: must be text, not empty; put it in quotes"


def test_fields_that_are_numbers_or_both_pass() -> None:
    """Cores, instances, quantities and ports pass, as do fields that the table does not know."""
    fields: dict[Loc, Any] = {
        template("driver", "cores"): 1,
        template("executor", "instances"): 3,
        template("driver", "gpu"): {"name": "nvidia.com/gpu", "quantity": 1},
        template("driver", "sidecars"): [
            {"name": "a", "resources": {"limits": {"cpu": 1}}, "ports": [{"containerPort": 80}]}
        ],
        template("driver", "securityContext"): {"runAsUser": 1000, "privileged": True},
        template("dynamicAllocation"): {"enabled": True, "maxExecutors": 4},
        template("aFieldToCome"): {"a": 1},
        template("volumes"): [{"name": "a", "emptyDir": None}],
        template("image"): None,
    }
    made = job(fields)
    check_template(made)
    assert made.spec.template.spec["aFieldToCome"] == {"a": 1}


def test_a_recorded_job_with_numbers_is_read_and_compared_as_before() -> None:
    """An earlier version accepted them, and took `8` and `"8"` for the same job."""
    texts, numbers = ["--threads", "1"], ["--threads", 1]
    assert fingerprint(job({template("arguments"): numbers})) == fingerprint(job({template("arguments"): texts}))


def test_a_table_names_each_field_once() -> None:
    """Driver and executor are covered, and every container and volume below them."""
    paths = list(text_fields.paths())
    assert len(paths) == len(set(paths))
    assert {"arguments[]", "sparkConf{}", "driver.env[].value", "executor.template.spec.containers[].args[]"} <= set(
        paths
    )
