"""The real kubectl is the oracle for our document reader: a drawn file is the same job for both, or refused by both.

kubectl is lenient in a few ways that lose part of a file or read it in two ways. Those are refused here and listed in docs/templates.md; a
refusal that is not in the list is a defect, as is any file that kubectl refuses and we read.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from harness.apiserver import Cluster, yaml_document
from harness.binaries import component, or_skip, spark_operator_crds
from harness.documents import draw
from harness.effort import seed, size
from harness.kube_api import ApiError
from harness.kubectl_oracle import read_by_kubectl
from harness.manifests import changed, document
from sparkonce.errors import InvalidInput
from sparkonce.launch.kubernetes import JOBS
from sparkonce.model import entrance, text_fields
from sparkonce.model.document.reader import decoded, read
from sparkonce.model.manifest import dump
from sparkonce.model.validation import InvalidJob, Loc

pytestmark = pytest.mark.operator

CAMPAIGN = "documents for kubectl"
REFUSED = "refused"
LENIENT = (
    "duplicate key, first on line",
    "which YAML does not read as text",
    "which is also set above it, and kubectl takes the merged value",
    "does not keep digit by digit",
    "has the YAML tag",
    "has a key with the YAML tag",
    "documents; keep one IdempotentJob per file",
    "where kubectl stops reading",
    "is not text in UTF-",
    "not valid Unicode text",
    "is a YAML directive",
    "has a byte order mark within the file",
    # libyaml refuses what kubectl's older copy of it reads
    "while scanning a plain scalar found unexpected ':'",
    "found unknown escape character",
    "while scanning a tag",
    "while parsing a tag",
)
"""Parts of the sentences that refuse a file which kubectl reads."""


def ours(data: bytes) -> Any:
    """The value that our reader gets from a file, or the sentence with which it refuses the file."""
    try:
        return read(decoded(data, source="job.yaml"), source="job.yaml").data
    except InvalidInput as problem:
        return str(problem)


def test_a_file_is_one_job_for_kubectl_and_for_us() -> None:
    """Files of every kind are read alike, number by number and text by text; at least a quarter of them can be read, so that something is
    compared."""
    files = dict(draw(seed(CAMPAIGN), size(CAMPAIGN)))
    theirs = read_by_kubectl(component("kubectl"), files)
    counted: Counter[str] = Counter()
    wrong: list[str] = []
    for name, data in files.items():
        found, other = ours(data), theirs.get(name, REFUSED)
        if isinstance(found, str):
            lenient = next((each for each in LENIENT if each in found), "")
            counted["refused here alone" if other != REFUSED else "refused in both"] += 1
            if other != REFUSED and not lenient:
                wrong.append(f"{data!r}: kubectl reads {other}, and we say {found}")
        elif json.dumps(found, sort_keys=True) != json.dumps(other, sort_keys=True):
            wrong.append(f"{data!r}: kubectl reads {other}, and we read {found}")
        else:
            counted["the same"] += 1
    print(f"{len(files)} files: {dict(counted)}")
    assert not wrong, "\n".join(wrong[:5])
    assert counted["the same"] > len(files) / 4


def test_kubectl_reads_what_we_write() -> None:
    """`render` and `convert` write YAML for kubectl: every document that was read gives the same value after it was written."""
    read_here = {
        name: found for name, data in draw(seed(CAMPAIGN), size(CAMPAIGN)) if isinstance(found := ours(data), dict)
    }
    files = {name: dump(found).encode() for name, found in read_here.items()}
    theirs = read_by_kubectl(component("kubectl"), files)
    wrong = [f"{files[name]!r}: {theirs.get(name)}" for name, found in read_here.items() if theirs.get(name) != found]
    assert not wrong, "\n".join(wrong[:5])


def texts_of(schema: dict[str, Any], above: str) -> set[str]:
    """The paths at which a schema requires text, as `text_fields.paths` writes them."""
    if schema.get("type") == "string":
        return {above}
    if schema.get("type") == "array":
        return texts_of(schema["items"], f"{above}[]")
    if isinstance(more := schema.get("additionalProperties"), dict):
        return texts_of(more, f"{above}{{}}")
    fields = schema.get("properties", {})
    return set().union(*(texts_of(each, f"{above}.{name}" if above else name) for name, each in fields.items()))


@pytest.mark.parametrize(
    "loc",
    [
        ("spec", "resource"),
        ("spec", "outputs", 0, "slotLog", "path"),
        ("spec", "template", "metadata", "labels", "team"),
        ("spec", "template", "metadata", "annotations", "release"),
    ],
)
@pytest.mark.parametrize("value", [8, 1.1, True])
def test_the_api_server_refuses_what_is_no_text(cluster: Cluster, namespace: str, loc: Loc, value: object) -> None:
    """It is refused with the same field as on a laptop: no value is converted to text."""
    made = changed(document(), {loc: value, ("metadata", "namespace"): namespace})
    with pytest.raises(ApiError) as refused:
        cluster.api.create(JOBS, made, namespace)
    assert refused.value.code == 422
    assert "must be of type string" in refused.value.message
    shown = json.dumps(value)
    with pytest.raises(InvalidJob, match=f"must be text, not {shown}; put it in quotes") as ours_refused:
        entrance.admit(made)
    assert ours_refused.value.problems[0].path.replace("[0]", "") in refused.value.message.replace("[0]", "")


def test_the_text_fields_are_those_of_the_spark_operators_crd() -> None:
    """Every field that this CRD requires to be text is in our table, and the table has no other outside the pod template, which the CRD
    leaves open."""
    (path,) = (each for each in or_skip(spark_operator_crds) if each.name.endswith("_sparkapplications.yaml"))
    crd = yaml_document(path)
    theirs = texts_of(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"], "")
    known = {each for each in text_fields.paths() if not each.startswith(("driver.template.", "executor.template."))}
    assert known == theirs
