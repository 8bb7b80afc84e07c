"""The CRD on a real API server: admission, the wording of refusals, and kubectl's columns."""

from __future__ import annotations

import copy
import ssl
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from harness.apiserver import ADMIN, Cluster
from harness.kube_api import ApiError, path_of
from harness.manifests import changed, document, template
from sparkonce.launch.kubernetes import JOBS
from sparkonce.model.crd import crd
from sparkonce.model.crd_status import UNWRITTEN
from sparkonce.model.identity import fingerprint
from sparkonce.model.spec import IdempotentJob
from sparkonce.model.validation import Loc

pytestmark = pytest.mark.operator

GONE = object()
"""Marks a field to leave out."""
Changes = dict[Loc, Any]

BY_KEY: Changes = {("spec", "operation"): GONE, ("spec", "resource"): GONE, ("spec", "idempotencyKey"): "night-2013-01"}
PLACES: dict[str, dict[str, str]] = {
    "slotLog": {"path": "out/{revision}/flights"},
    "delta": {"path": "out/flights-{revision}"},
    "iceberg": {"catalog": "c", "table": "db.flights_{revision}"},
}
PLAIN: dict[str, dict[str, str]] = {
    "slotLog": {"path": "out/flights"},
    "delta": {"path": "out/flights"},
    "iceberg": {"catalog": "c", "table": "db.flights"},
}

REVISION_MISSING = "each output's location must contain {revision}, because revision is given"
ONE_OF = "must have exactly one of slotLog, delta, iceberg"
ONE_KEY = "must have an idempotencyKey, or operation and resource, or all three"
NOT_WITH_KEY = "revision and keyFrom go with operation and resource, not with idempotencyKey"
NEVER = "spec.restartPolicy.type must be Never or absent: attempts are counted by spec.retry"
NOT_BESIDE_BIND = "outputs must be absent beside bind: that application does not write through sparkonce"
NO_RETRY = "onUnknown must not be Retry beside bind: an application that is followed is never run again"
ONLY_REMOVED = "bind may only be removed: what a generation follows is in its record"
NO_TTL = "spec.timeToLiveSeconds must be absent: spec.applicationTTL says how long applications stay"


def at_revision_2(kind: str, place: dict[str, str]) -> Changes:
    return {("spec", "revision"): "2", ("spec", "outputs"): [{"name": "flights", kind: place}]}


BOUND: Changes = {("spec", "bind"): {"application": "nightly", "uid": "2f1c"}, ("spec", "outputs"): GONE}

ADMITTED: list[Changes] = [
    {},
    BOUND,
    BY_KEY,
    {("spec", "keyFrom"): ["ApplicationFile", "Image"]},
    {("spec", "outputs"): GONE},
    *(at_revision_2(kind, place) for kind, place in PLACES.items()),
    {("spec", "revision"): "2", ("spec", "outputs"): GONE},
    {("spec", "outputs"): [{"name": kind.lower(), kind: place} for kind, place in PLAIN.items()]},
    {template("restartPolicy"): {"type": "Never"}},
    {template("restartPolicy"): {"onFailureRetries": 3}},
    {template("anythingElse"): {"deep": [1, {"er": None}]}},
    {("spec", "idempotencyKey"): "beside-operation-and-resource"},
]

REFUSED: list[tuple[Changes, str]] = [
    # The key.
    ({("spec", "idempotencyKey"): "key", ("spec", "resource"): GONE}, ONE_KEY),
    ({("spec", "resource"): GONE}, ONE_KEY),
    ({("spec", "operation"): GONE, ("spec", "resource"): GONE}, ONE_KEY),
    ({**BY_KEY, ("spec", "revision"): "2", ("spec", "outputs"): GONE}, NOT_WITH_KEY),
    ({**BY_KEY, ("spec", "keyFrom"): ["Image"]}, NOT_WITH_KEY),
    ({**BY_KEY, ("spec", "idempotencyKey"): "k" * 256}, "Too long"),
    ({**BY_KEY, ("spec", "idempotencyKey"): ""}, "at least 1 chars"),
    ({**BY_KEY, ("spec", "idempotencyKey"): "with a blank"}, "should match"),
    ({**BY_KEY, ("spec", "idempotencyKey"): "schlüssel"}, "should match"),
    ({("spec", "keyFrom"): ["Weather"]}, "Unsupported value"),
    ({("spec", "keyFrom"): ["Image", "Image"]}, "Duplicate value"),
    # Outputs.
    *((at_revision_2(kind, place), REVISION_MISSING) for kind, place in PLAIN.items()),
    (
        {
            ("spec", "revision"): "2",
            ("spec", "outputs"): [{"name": "a", "slotLog": PLACES["slotLog"]}, {"name": "b", "delta": PLAIN["delta"]}],
        },
        REVISION_MISSING,
    ),
    ({("spec", "outputs"): [{"name": "none"}]}, ONE_OF),
    ({("spec", "outputs"): [{"name": "two", "slotLog": PLAIN["slotLog"], "delta": PLAIN["delta"]}]}, ONE_OF),
    ({("spec", "outputs"): [{"name": "Upper", "slotLog": PLAIN["slotLog"]}]}, "should match"),
    ({("spec", "outputs"): [{"name": "a", "slotLog": PLAIN["slotLog"]}] * 2}, "Duplicate value"),
    ({("spec", "outputs", 0, "onRerun"): "Merge"}, "Unsupported value"),
    (
        {("spec", "series"): {"name": "daily", "position": "1"}},
        "each output must be a delta or iceberg output, because series is given",
    ),
    (
        {
            ("spec", "outputs"): [{"name": "a", "delta": PLAIN["delta"]}],
            ("spec", "series"): {"name": "a", "position": "May"},
        },
        "should match",
    ),
    ({("spec", "outputs", 0, "mode"): "Upsert"}, "Unsupported value"),
    (
        {("spec", "outputs"): [{"name": "a", "delta": PLAIN["delta"], "mode": "Merge"}]},
        "on must name the columns that identify a row where mode is Merge, and be absent elsewhere",
    ),
    (
        {("spec", "outputs"): [{"name": "a", "delta": PLAIN["delta"], "on": ["id"]}]},
        "on must name the columns that identify a row where mode is Merge, and be absent elsewhere",
    ),
    (
        {("spec", "outputs"): [{"name": "a", "slotLog": {"path": "a"}, "mode": "Merge", "on": ["id"]}]},
        "mode must not be Merge for a slotLog; declare a delta or iceberg output",
    ),
    (
        {("spec", "outputs"): [{"name": "a", "delta": PLAIN["delta"], "mode": "Overwrite", "onRerun": "Append"}]},
        "onRerun must be Replace, or absent, beside a mode that overwrites",
    ),
    # The followed application.
    ({("spec", "bind"): {"application": "nightly", "uid": "2f1c"}}, NOT_BESIDE_BIND),
    ({**BOUND, ("spec", "onUnknown"): "Retry"}, NO_RETRY),
    ({**BOUND, ("spec", "bind"): {"application": "nightly"}}, "Required value"),
    ({**BOUND, ("spec", "bind"): {"application": "nightly", "uid": "a b"}}, "should match"),
    # The template.
    ({template("restartPolicy"): {"type": "Always"}}, NEVER),
    ({template("restartPolicy"): {"type": "OnFailure"}}, NEVER),
    ({template("timeToLiveSeconds"): 3600}, NO_TTL),
    ({template("timeToLiveSeconds"): 0}, NO_TTL),
    ({("spec", "template"): GONE}, "Required value"),
    ({("spec", "template", "kind"): GONE}, "Required value"),
    # Policies.
    ({("spec", "onDuplicate"): "Explode"}, "Unsupported value"),
    ({("spec", "onMismatch"): "Explode"}, "Unsupported value"),
    ({("spec", "onFinalized"): "Explode"}, "Unsupported value"),
    ({("spec", "onResultChanged"): "Explode"}, "Unsupported value"),
    ({("spec", "onUnknown"): "Explode"}, "Unsupported value"),
    ({("spec", "onDelete"): "Explode"}, "Unsupported value"),
    ({("spec", "retry", "maxAttempts"): 0}, "greater than or equal to 1"),
    ({("spec", "retry", "backoff"): {"initial": "soon"}}, "should match"),
    ({("spec", "retry", "retryOn"): ["no such name"]}, "should match"),
    ({("spec", "retry", "retryOn"): ["A"] * 33}, "at most 32 items"),
    ({("spec", "startTimeoutSeconds"): 0}, "greater than or equal to 1"),
    ({("spec", "lingerSeconds"): 0}, "greater than or equal to 1"),
    ({("spec", "tunableArguments"): [""]}, "at least 1 chars"),
]

IMMUTABLE: list[tuple[Changes, Changes, str]] = [
    # the original, the edit, the field that is named
    ({}, {("spec", "operation"): "store"}, "operation"),
    ({}, {("spec", "resource"): "flights/2013-02"}, "resource"),
    ({}, {("spec", "keyFrom"): ["Image"]}, "keyFrom"),
    ({("spec", "outputs"): GONE}, {("spec", "revision"): "2"}, "revision"),
    ({("spec", "outputs"): GONE, ("spec", "revision"): "2"}, {("spec", "revision"): "3"}, "revision"),
    ({("spec", "outputs"): GONE, ("spec", "revision"): "2"}, {("spec", "revision"): GONE}, "revision"),
    (BY_KEY, {("spec", "idempotencyKey"): "another"}, "idempotencyKey"),
    (BY_KEY, {("spec", "idempotencyKey"): GONE, ("spec", "operation"): "load", ("spec", "resource"): "r"}, "operation"),
]
EDITS: list[Changes] = [
    {("spec", "suspend"): True},
    {("spec", "onDelete"): "Detach"},
    {("spec", "revision"): "1", ("spec", "outputs"): GONE},  # the default, written out
    {template("arguments"): ["--month", "2"]},  # a new request, which the operator decides
    {template("executor", "instances"): 9},
    {("metadata", "labels"): {"team": "sea"}},
]


def made_of(changes: Changes, *, original: dict[str, Any] | None = None) -> dict[str, Any]:
    base = document() if original is None else original
    present = {loc: value for loc, value in changes.items() if value is not GONE}
    made = changed(base, present)
    for loc in changes.keys() - present.keys():
        place = made
        for step in loc[:-1]:
            place = place[step]  # type: ignore[index]  # a Loc also has numbers
        place.pop(loc[-1], None)  # type: ignore[arg-type]
    return made


def named(name: str, made: dict[str, Any]) -> dict[str, Any]:
    return {**made, "metadata": {"name": name, "labels": made["metadata"].get("labels", {})}}


def refusal(cluster: Cluster, namespace: str, made: dict[str, Any]) -> str:
    with pytest.raises(ApiError) as refused:
        cluster.api.create(JOBS, made, namespace)
    assert refused.value.code == 422
    return refused.value.message


def rules(schema: dict[str, Any]) -> Iterator[dict[str, str]]:
    yield from schema.get("x-kubernetes-validations", ())
    for below in [*schema.get("properties", {}).values(), schema.get("items")]:
        if isinstance(below, dict):
            yield from rules(below)


RULES = list(rules(crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]))


def test_every_rule_is_tried() -> None:
    """Each CEL rule of the CRD has a job here that it refuses, and each transition rule an edit that it refuses: a new rule without one
    fails this test."""
    refused = (
        {ONLY_REMOVED} | {message for _, message in REFUSED} | {f"{field} is immutable" for *_, field in IMMUTABLE}
    )
    assert len(RULES) > 10
    assert [
        rule["message"]
        for rule in RULES
        if rule["message"].split(":")[0] not in {each.split(":")[0] for each in refused}
    ] == []


@pytest.mark.parametrize("number", range(len(ADMITTED)))
def test_what_the_model_takes_is_admitted(cluster: Cluster, namespace: str, number: int) -> None:
    """A valid job is admitted, is a valid job when read back, and has the same fingerprint as the manifest: defaults change nothing."""
    made = named("good", made_of(ADMITTED[number]))
    stored = cluster.api.create(JOBS, made, namespace)
    sent, back = IdempotentJob.of(copy.deepcopy(made)), IdempotentJob.of(stored)
    assert fingerprint(back) == fingerprint(sent)
    assert stored["spec"]["template"]["spec"].keys() == made["spec"]["template"]["spec"].keys()


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_is_wrong_is_refused_with_its_reason(
    cluster: Cluster, namespace: str, changes: Changes, message: str
) -> None:
    """Each invalid job is refused with a message that names the mistake, and is not stored."""
    assert message in refusal(cluster, namespace, named("bad", made_of(changes)))
    assert cluster.api.list(JOBS, namespace) == []


@pytest.mark.parametrize(("before", "edit", "field"), IMMUTABLE)
def test_identity_cannot_be_edited(
    cluster: Cluster, namespace: str, before: Changes, edit: Changes, field: str
) -> None:
    """An edit of a field that makes the key is refused with the field's name, and the object is unchanged."""
    stored = cluster.api.create(JOBS, named("job", made_of(before)), namespace)
    edited = made_of(edit, original=stored)
    with pytest.raises(ApiError, match=f"{field} is immutable: another key is another IdempotentJob") as refused:
        cluster.api.request("PUT", path_of(JOBS, namespace, "job"), edited)
    assert refused.value.code == 422
    assert cluster.api.get(JOBS, "job", namespace) == stored


def test_a_binding_can_only_be_removed(cluster: Cluster, namespace: str) -> None:
    """Neither another application nor a binding added later is admitted; removing the binding is."""
    stored = cluster.api.create(JOBS, named("bound", made_of(BOUND)), namespace)
    path = path_of(JOBS, namespace, "bound")
    with pytest.raises(ApiError, match=ONLY_REMOVED):
        cluster.api.request("PUT", path, made_of({("spec", "bind", "uid"): "another"}, original=stored))
    plain = cluster.api.request("PUT", path, made_of({("spec", "bind"): GONE}, original=stored))
    assert "bind" not in plain["spec"]
    with pytest.raises(ApiError, match=ONLY_REMOVED):
        cluster.api.request("PUT", path, made_of(BOUND, original=plain))


def test_the_rest_can_be_edited(cluster: Cluster, namespace: str) -> None:
    """Edits of policies, template and labels are admitted, as is one that writes out a default; each counts as a generation, except for
    metadata."""
    stored = cluster.api.create(JOBS, named("job", document()), namespace)
    for edit in EDITS:
        before = stored
        stored = cluster.api.request("PUT", path_of(JOBS, namespace, "job"), made_of(edit, original=stored))
        moved = stored["metadata"]["generation"] - before["metadata"]["generation"]
        assert moved == (0 if next(iter(edit))[0] == "metadata" else 1), edit


def test_a_status_is_the_operators(cluster: Cluster, namespace: str) -> None:
    """A status in the manifest is dropped, and the object says that no generation was observed. A status written to `/status` is kept, does
    not change the generation, and may only have known phases and roles."""
    cluster.api.create(JOBS, {**named("job", document()), "status": {"phase": "Succeeded"}}, namespace)
    stored = cluster.api.get(JOBS, "job", namespace)
    assert stored is not None
    assert stored["status"] == UNWRITTEN
    status = {"phase": "Held", "role": "Leader", "key": "load", "ledgerRevision": 7}
    written = cluster.api.patch(JOBS, "job", {"status": status}, namespace=namespace, subresource="status")
    assert written["status"] == UNWRITTEN | status
    assert written["metadata"]["generation"] == stored["metadata"]["generation"]
    for wrong in ({"phase": "Sleeping"}, {"role": "Boss"}):
        with pytest.raises(ApiError, match="Unsupported value"):
            cluster.api.patch(JOBS, "job", {"status": wrong}, namespace=namespace, subresource="status")


def test_what_kubectl_shows(cluster: Cluster, namespace: str) -> None:
    """`kubectl get` prints name, phase, role, generation, attempt, age and, last, the message; `-o wide` adds key and application."""
    cluster.api.create(JOBS, named("job", document()), namespace)
    status = {
        "phase": "Running",
        "role": "Leader",
        "generation": 1,
        "attempt": 2,
        "key": "load/x",
        "application": "so-1",
        "message": "attempt 2 runs",
    }
    cluster.api.patch(JOBS, "job", {"status": status}, namespace=namespace, subresource="status")
    table = as_table(cluster, path_of(JOBS, namespace))
    columns = [(each["name"], each["priority"] > 0) for each in table["columnDefinitions"]]
    assert columns == [
        ("Name", False),
        ("Phase", False),
        ("Role", False),
        ("Generation", False),
        ("Attempt", False),
        ("Key", True),
        ("Application", True),
        ("Age", False),
        ("Message", False),
    ]
    (row,) = table["rows"]
    *cells, _, message = row["cells"]
    assert cells == ["job", "Running", "Leader", 1, 2, "load/x", "so-1"]
    assert message == "attempt 2 runs"
    discovered = cluster.api.request("GET", f"/apis/{JOBS.api_version}")
    (names,) = (each["shortNames"] for each in discovered["resources"] if each["name"] == JOBS.plural)
    assert names == ["ij", "idemjob"]


def as_table(cluster: Cluster, path: str) -> dict[str, Any]:
    """The table that the API server returns to kubectl."""
    accept = "application/json;as=Table;g=meta.k8s.io;v=v1"
    answer = httpx.get(
        cluster.url + path,
        headers={"Accept": accept, "Authorization": f"Bearer {ADMIN}"},
        verify=ssl.create_default_context(cafile=str(cluster.certificates.ca)),
        trust_env=False,
    )
    table = answer.raise_for_status().json()
    assert isinstance(table, dict)
    return table
