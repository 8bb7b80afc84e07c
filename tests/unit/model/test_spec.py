"""The typed spec: effective values, and each refusal as a sentence with the field's path."""

from __future__ import annotations

import re
from typing import Any
from unittest.mock import Mock

import pytest

from harness.manifests import changed, document, job, template
from sparkonce.errors import InvalidInput
from sparkonce.model import validation
from sparkonce.model.spec import IdempotentJob
from sparkonce.model.validation import InvalidJob, Loc

EXPLICIT: dict[Loc, Any] = {
    ("spec", "idempotencyKey"): "k",
    ("spec", "operation"): None,
    ("spec", "resource"): None,
}
TWO_KINDS = {"name": "a", "slotLog": {"path": "p"}, "delta": {"path": "p"}}

REFUSED: list[tuple[dict[Loc, Any], str]] = [
    ({("apiVersion",): "sparkonce.dev/v2"}, "apiVersion: must be sparkonce.dev/v1alpha1, not 'sparkonce.dev/v2'"),
    ({("spec", "outptus"): []}, "spec.outptus: is not a field here; did you mean outputs?"),
    ({("spec", "retry", "maxAttemps"): 2}, "spec.retry.maxAttemps: is not a field here; did you mean maxAttempts?"),
    ({("spec", "outputs", 0, "slotlog"): {}}, "spec.outputs[0].slotlog: is not a field here; did you mean slotLog?"),
    ({("spec", "retry"): 3}, "spec.retry: must be a map of fields, not 3"),
    ({("spec", "template"): None}, "spec.template: is required"),
    ({("spec", "onDuplicate"): "attach"}, "spec.onDuplicate: must be Attach or Reject, not 'attach'"),
    ({("spec", "suspend"): "yes"}, "spec.suspend: must be true or false, not 'yes'"),
    ({("spec", "stopTimeoutSeconds"): "120"}, "spec.stopTimeoutSeconds: must be a whole number, not '120'"),
    ({("spec", "stopTimeoutSeconds"): 0}, "spec.stopTimeoutSeconds: must be at least 1, not 0"),
    ({("spec", "retention", "failed"): 7}, "spec.retention.failed: must be a duration such as 90s, 5m or 30d"),
    ({("spec", "retention", "failed"): "7 d"}, "spec.retention.failed: '7 d' is not a duration; write it as"),
    ({("spec", "retry", "backoff", "initial"): "1h"}, "spec.retry.backoff.initial: must not be longer than"),
    (
        {("spec", "retry", "retryOn"): ["PATH_NOT_FOUND", "RuntimeError"]},
        "spec.retry.retryOn[1]: is repeated without being named",
    ),
    (
        {("spec", "retry", "retryOn"): ["AnalysisExeption"]},
        "spec.retry.retryOn[0]: is not an error that ends a job; did you mean AnalysisException?",
    ),
    ({("spec", "retry", "retryOn"): ["path_not_found"]}, "spec.retry.retryOn[0]: is repeated without being named"),
    ({("spec", "retry", "retryOn"): "ImportError"}, "spec.retry.retryOn: must be a list"),
    ({("spec", "retry", "retryOn"): [""]}, "spec.retry.retryOn[0]: must not be empty"),
    ({("spec", "retry", "retryOn"): ["A"] * 33}, "spec.retry.retryOn: must have at most 32"),
    ({("metadata", "name"): None}, "metadata.name: is required"),
    ({("metadata", "name"): "Flights_1"}, "metadata.name: must be lower-case letters"),
    # identity
    ({**EXPLICIT, ("spec", "idempotencyKey"): None}, "spec: must have an idempotencyKey, or operation and resource"),
    ({("spec", "resource"): None}, "spec.resource: is required beside operation"),
    ({("spec", "idempotencyKey"): "k", ("spec", "resource"): None}, "spec.resource: is required beside operation"),
    ({**EXPLICIT, ("spec", "revision"): "2"}, "spec.revision: must not be given beside idempotencyKey"),
    ({**EXPLICIT, ("spec", "keyFrom"): ["Image"]}, "spec.keyFrom: must not be given beside idempotencyKey"),
    ({**EXPLICIT, ("spec", "idempotencyKey"): 12}, "spec.idempotencyKey: must be text, not 12; put it in quotes"),
    ({**EXPLICIT, ("spec", "idempotencyKey"): "a b"}, "spec.idempotencyKey: must be visible ASCII characters"),
    ({**EXPLICIT, ("spec", "idempotencyKey"): "é"}, "spec.idempotencyKey: must be visible ASCII characters"),
    ({**EXPLICIT, ("spec", "idempotencyKey"): ""}, "spec.idempotencyKey: must not be empty"),
    ({**EXPLICIT, ("spec", "idempotencyKey"): "x" * 256}, "spec.idempotencyKey: must have at most 255 characters"),
    ({("spec", "revision"): "../2"}, "spec.revision: must be letters, digits"),
    ({("spec", "keyFrom"): ["Image", "Image"]}, "spec.keyFrom: must not name the same content twice"),
    ({("spec", "keyFrom"): ["image"]}, "spec.keyFrom[0]: must be ApplicationFile or Image, not 'image'"),
    # the followed application
    ({("spec", "bind"): {"application": "a", "uid": "u"}}, "spec.outputs: must be absent beside spec.bind"),
    (
        {("spec", "bind"): {"application": "a", "uid": "u"}, ("spec", "onUnknown"): "Retry"},
        "spec.onUnknown: must not be Retry beside spec.bind: an application that is followed is never run again",
    ),
    ({("spec", "bind"): {"application": "a"}}, "spec.bind.uid: is required"),
    ({("spec", "bind"): {"application": "a b", "uid": "u"}}, "spec.bind.application: must be visible ASCII characters"),
    # outputs
    (
        {("spec", "outputs", 0): TWO_KINDS},
        "spec.outputs[0]: must have exactly one of slotLog, delta and iceberg; 2 are",
    ),
    (
        {("spec", "outputs", 0): {"name": "a"}},
        "spec.outputs[0]: must have exactly one of slotLog, delta and iceberg; none",
    ),
    ({("spec", "outputs", 0, "mode"): "overwrite"}, "spec.outputs[0].mode: must be"),
    (
        {
            ("spec", "outputs", 0): {
                "name": "a",
                "delta": {"path": "a"},
                "mode": "OverwritePartitions",
                "onRerun": "Append",
            }
        },
        "spec.outputs[0].onRerun: must be Replace, or absent, beside mode OverwritePartitions",
    ),
    (
        {("spec", "series"): {"name": "daily", "position": "2024-05-01"}},
        "spec.outputs[0]: must be a delta or iceberg output, because spec.series is given: a slotLog keeps no order",
    ),
    (
        {("spec", "series"): {"name": "daily", "position": "May"}},
        "spec.series.position: must be a whole number, a month, a",
    ),
    ({("spec", "series"): {"name": "daily"}}, "spec.series.position: is required"),
    ({("spec", "series"): {"name": "Daily", "position": "1"}}, "spec.series.name: must be lower-case letters"),
    (
        {("spec", "series"): {"name": "daily", "position": "1"}, ("spec", "outputs"): []},
        "spec.series: orders commits to outputs, and the job declares none",
    ),
    # capture
    (
        {
            ("spec", "outputs", 0): {
                "name": "a",
                "iceberg": {"catalog": "c", "table": "a.b"},
                "capture": True,
                "expect": {"minRows": 1},
            }
        },
        "spec.outputs[0].expect: must be absent beside capture of an iceberg table",
    ),
    (
        {
            ("spec", "outputs", 0): {
                "name": "a",
                "iceberg": {"catalog": "c", "table": "a.b"},
                "capture": True,
                "mode": "Append",
            }
        },
        "spec.outputs[0].mode: must be absent beside capture",
    ),
    (
        {("spec", "outputs", 0): {"name": "a", "delta": {"path": "a"}, "capture": True, "mode": "Overwrite"}},
        "spec.outputs[0].mode: must be absent beside capture",
    ),
    (
        {("spec", "outputs", 0): {"name": "a", "delta": {"path": "a"}, "capture": True, "expect": {"minRows": 1}}},
        "spec.outputs[0].expect: must be absent beside capture of a delta table",
    ),
    (
        {
            ("spec", "outputs"): [{"name": "a", "delta": {"path": "a"}, "capture": True}],
            ("spec", "series"): {"name": "daily", "position": "1"},
        },
        "spec.outputs[0].capture: must be absent beside spec.series",
    ),
    (
        {("spec", "outputs", 0, "capture"): True, template("type"): "Scala"},
        "spec.template.spec.type: must be Python, because an output has capture: true; Scala is not watched",
    ),
    (
        {("spec", "outputs", 0, "capture"): True, template("mainClass"): "a.B"},
        "spec.template.spec.mainClass: must be absent, because an output has capture: true",
    ),
    ({("spec", "outputs", 0, "capture"): "yes"}, "spec.outputs[0].capture: must be"),
    # Merge
    (
        {("spec", "outputs", 0): {"name": "a", "delta": {"path": "a"}, "mode": "Merge"}},
        "spec.outputs[0].on: must name the columns that identify a row, since the mode is Merge",
    ),
    (
        {("spec", "outputs", 0): {"name": "a", "delta": {"path": "a"}, "mode": "Append", "on": ["id"]}},
        "spec.outputs[0].on: must be absent beside any mode but Merge",
    ),
    (
        {("spec", "outputs", 0): {"name": "a", "delta": {"path": "a"}, "mode": "Merge", "on": ["id", "ID"]}},
        "spec.outputs[0].on: must name each column once",
    ),
    (
        {("spec", "outputs", 0): {"name": "a", "slotLog": {"path": "a"}, "mode": "Merge", "on": ["id"]}},
        "spec.outputs[0].mode: must not be Merge for a slotLog; declare a delta or iceberg output",
    ),
    (
        {
            ("spec", "outputs", 0): {
                "name": "a",
                "delta": {"path": "a"},
                "mode": "Merge",
                "on": ["id"],
                "expect": {"minRows": 1},
            }
        },
        "spec.outputs[0].expect: must be absent beside mode Merge",
    ),
    (
        {
            ("spec", "outputs"): [{"name": "a", "delta": {"path": "a"}, "mode": "Merge", "on": ["id"]}],
            ("spec", "series"): {"name": "daily", "position": "1"},
        },
        "spec.outputs[0].mode: must not be Merge beside spec.series",
    ),
    ({("spec", "capture"): {"undeclared": "Warn"}}, "spec.capture: says what a captured script may do"),
    (
        {("spec", "outputs", 0, "capture"): True, ("spec", "capture"): {"undeclared": "Allow"}},
        "spec.capture.undeclared: must be Refuse or Warn",
    ),
    ({("spec", "outputs", 1, "name"): "flights"}, "spec.outputs[1].name: is also the name of outputs[0]"),
    ({("spec", "outputs", 0, "name"): "Flights"}, "spec.outputs[0].name: must be lower-case letters"),
    ({("spec", "outputs", 0, "name"): "x" * 41}, "spec.outputs[0].name: must have at most 40 characters"),
    ({("spec", "outputs", 0, "slotLog", "path"): ""}, "spec.outputs[0].slotLog.path: must not be empty"),
    (
        {("spec", "revision"): "2"},
        "spec.outputs[0].slotLog.path: must contain {revision}, because spec.revision is given",
    ),
    (
        {**EXPLICIT, ("spec", "outputs", 0, "slotLog", "path"): "a/{revision}"},
        "spec.outputs[0].slotLog.path: contains {revision}, but a job with an idempotencyKey has no revision",
    ),
    # template
    ({("spec", "template", "kind"): "Job"}, "spec.template.kind: Job of sparkoperator.k8s.io/v1beta2 is not a kind"),
    ({("spec", "template", "metadata", "name"): "x"}, "spec.template.metadata.name: is not a field here; known here:"),
    (
        {template("restartPolicy"): {"type": "OnFailure"}},
        "spec.template.spec.restartPolicy.type: must be Never or absent",
    ),
    ({template("restartPolicy"): "Never"}, "spec.template.spec.restartPolicy: must be a map with type: Never"),
    ({template("timeToLiveSeconds"): 60}, "spec.template.spec.timeToLiveSeconds: must be absent"),
    ({template("suspend"): True}, "spec.template.spec.suspend: must be absent"),
    ({template("suspend"): []}, "spec.template.spec.suspend: must be absent"),
    ({template("mode"): "client"}, "spec.template.spec.mode: must be cluster or absent"),
    ({template("driver", "podName"): "mine"}, "spec.template.spec.driver.podName: must be absent: each attempt names"),
    ({template("driver", "podName"): {}}, "spec.template.spec.driver.podName: must be absent"),
    (
        {template("sparkConf", "spark.kubernetes.driver.pod.name"): "mine"},
        'spec.template.spec.sparkConf["spark.kubernetes.driver.pod.name"]: must be absent',
    ),
    (
        {template("sparkConf", "spark.sparkonce.key"): "x"},
        'spec.template.spec.sparkConf["spark.sparkonce.key"]: is set by sparkonce alone',
    ),
    (
        {template("sparkConf", "spark.kubernetes.driverEnv.SPARKONCE_KEY"): "x"},
        'sparkConf["spark.kubernetes.driverEnv.SPARKONCE_KEY"]: is set by sparkonce alone',
    ),
    ({template("driver", "env", 0, "name"): "SPARKONCE_X"}, "spec.driver.env[0].name: is set by sparkonce alone"),
    ({template("driver", "envVars", "SPARKONCE_X"): "1"}, "spec.driver.envVars.SPARKONCE_X: is set by sparkonce alone"),
    ({template("sparkConf", "spark"): {"ui": 1}}, "spec.template.spec.sparkConf.spark: must be one value"),
    ({template("argument"): []}, "spec.template.spec.argument: is not a field of a SparkApplication; did you mean arg"),
    (
        {template("driver", "envs"): []},
        "spec.template.spec.driver.envs: is not a field of a SparkApplication; did you mean",
    ),
    ({template("arguments"): "--month 1"}, "spec.template.spec.arguments: must be a list"),
    ({template("arguments", 0): ["x"]}, "spec.template.spec.arguments[0]: must be text"),
    ({template("type"): "python"}, "spec.template.spec.type: must be Python, Java, Scala or R"),
    ({template("driver"): []}, "spec.template.spec.driver: must be a map of fields"),
    ({template("driver", "env"): {"TZ": "UTC"}}, "spec.template.spec.driver.env: must be a list of name and value"),
    ({("spec", "template", "spec"): "x"}, "spec.template.spec: must be a map of fields, not 'x'"),
    # arguments
    (
        {("spec", "tunableArguments"): ["--thread"]},
        "spec.tunableArguments[0]: is not an argument of the job; its template",
    ),
    ({("spec", "stream"): {"restart": "yes"}}, "spec.stream.restart: must be"),
    ({("spec", "stream"): {"begin": True}}, "spec.stream.begin"),
    ({("spec", "tunableArguments"): ["threads"]}, "spec.tunableArguments[0]: must be the name of an argument as it is"),
]


@pytest.mark.parametrize(("changes", "sentence"), REFUSED, ids=[sentence[:60] for _, sentence in REFUSED])
def test_what_cannot_be_honoured_is_refused_in_a_sentence(changes: dict[Loc, Any], sentence: str) -> None:
    """A problem is one sentence that begins with the field's path as YAML spells it."""
    with pytest.raises(InvalidJob) as refused:
        job(changes)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
    assert isinstance(refused.value, InvalidInput)


def test_problems_are_told_together() -> None:
    """Two independent mistakes are two problems of one error, each with its path."""
    with pytest.raises(InvalidJob) as refused:
        job({("spec", "suspend"): 1, ("spec", "onDelete"): "stop"})
    assert [problem.path for problem in refused.value.problems] == ["spec.onDelete", "spec.suspend"]


def test_many_problems_are_counted() -> None:
    """A manifest full of mistakes gives a sentence that is still readable."""
    with pytest.raises(InvalidJob, match=r"; and 2 more$"):
        job({("spec", f"x{number}"): 1 for number in range(7)})


@pytest.mark.parametrize("at", [("spec",), ("spec", "outputs", 0), ("spec", "template", "spec", "sparkConf")])
def test_only_the_first_of_many_problems_are_spelled_out(monkeypatch: pytest.MonkeyPatch, at: Loc) -> None:
    """Anyone who may create jobs can send tens of thousands of mistakes: the operator counts them, and makes sentences of the first few."""
    made = Mock(wraps=validation.path_text)
    monkeypatch.setattr(validation, "path_text", made)
    with pytest.raises(InvalidJob, match=r"; and 39995 more$") as refused:
        job({(*at, f"spark.sparkonce.{number}"): "1" for number in range(40_000)})
    assert made.call_count == len(refused.value.problems) == len(refused.value.lines) == 50


@pytest.mark.parametrize("document", [None, 3, "x", [], {}])
def test_anything_else_is_no_job(document: object) -> None:
    """Any other YAML raises InvalidJob."""
    with pytest.raises(InvalidJob):
        IdempotentJob.of(document)


def test_attempts_and_heartbeat_depend_on_outputs() -> None:
    """With declared outputs it is safe to repeat an attempt, and drivers send heartbeats; without them a job is tried once and has no
    heartbeat timeout."""
    declared, opaque = job().spec, job({("spec", "outputs"): []}).spec
    assert (declared.opaque, declared.max_attempts, declared.heartbeat_timeout()) == (False, 3, 120)
    assert (opaque.opaque, opaque.max_attempts, opaque.heartbeat_timeout()) == (True, 1, None)
    assert declared.heartbeat_timeout(30) == 30
    given: dict[Loc, Any] = {
        ("spec", "retry", "maxAttempts"): 5,
        ("spec", "heartbeatTimeoutSeconds"): 7,
        ("spec", "outputs"): [],
    }
    assert (job(given).spec.max_attempts, job(given).spec.heartbeat_timeout(30)) == (5, 7)


def test_static_defaults_are_those_of_the_design() -> None:
    """They are those of docs/design.md, section 7, value by value; durations are in seconds."""
    spec = job({("spec", "outputs"): None, ("spec", "tunableArguments"): None}).spec
    policies = (spec.on_duplicate, spec.on_mismatch, spec.on_finalized, spec.on_unknown, spec.on_delete)
    assert policies == ("Attach", "Reject", "Replay", "Hold", "Stop")
    assert (spec.retry.backoff.initial, spec.retry.backoff.max, spec.retry.retry_on) == (10, 300, ())
    assert (spec.start_timeout_seconds, spec.active_deadline_seconds, spec.stop_timeout_seconds) == (1800, None, 120)
    assert (spec.retention.succeeded, spec.retention.failed) == (30 * 86400, 7 * 86400)
    assert (spec.application_ttl.succeeded, spec.application_ttl.failed) == (3600, 86400)
    assert (spec.ttl_seconds_after_finished, spec.suspend, spec.tunable_arguments) == (None, False, ())


def test_null_is_absent() -> None:
    """`labels:` without a value is the same as no `labels`."""
    empty: dict[Loc, Any] = {
        ("spec", "retry"): None,
        ("metadata", "labels"): None,
        ("spec", "template", "metadata"): None,
    }
    assert job(empty).spec.retry == job().spec.retry


def test_what_the_api_server_adds_is_read() -> None:
    """An object that the API server returns with status, uid and managed fields is the same job."""
    live = changed(
        document(),
        {
            ("metadata", "uid"): "u",
            ("metadata", "generation"): 3,
            ("metadata", "managedFields"): [{}],
            ("status",): {"phase": "Running"},
        },
    )
    read = IdempotentJob.of(live)
    assert (read.metadata.uid, read.metadata.generation) == ("u", 3)
    assert read.spec == job().spec
    assert "status" not in read.document()


def test_outputs_tell_where_they_write() -> None:
    """Each kind of output has kind, location and revision; an override moves folders, and is refused for tables."""
    outputs: list[dict[str, Any]] = [
        {"name": "a", "slotLog": {"path": "a/{revision}"}},
        {"name": "b", "delta": {"path": "b_{revision}"}},
        {"name": "c", "iceberg": {"catalog": "lake", "table": "air.c_{revision}"}},
    ]
    made = job({("spec", "outputs"): outputs, ("spec", "revision"): "7"})
    assert [(o.kind, o.location) for o in made.resolved_outputs] == [
        ("slotLog", "a/7"),
        ("delta", "b_7"),
        ("iceberg", "lake.air.c_7"),
    ]
    moved = made.relocated({"a": "/x/{revision}", "b": "/y"})
    assert [o.location for o in moved.resolved_outputs] == ["/x/7", "/y", "lake.air.c_7"]
    assert (
        IdempotentJob.of(moved.relocated({"b": "/y/{revision}"}).document()).spec.outputs[0].location == "/x/{revision}"
    )
    with pytest.raises(ValueError, match=re.escape("is an Iceberg table")):
        made.relocated({"c": "/z"})


@pytest.mark.parametrize(
    "place", [{"slotLog": {"path": "a"}}, {"delta": {"path": "a"}}, {"iceberg": {"catalog": "lake", "table": "air.a"}}]
)
def test_outputs_of_every_kind_are_captured(place: dict[str, Any]) -> None:
    """With `capture: true` and nothing else."""
    [output] = job({("spec", "outputs"): [{"name": "a", **place, "capture": True}]}).resolved_outputs
    assert output.capture


def test_a_job_does_not_change() -> None:
    """The spec is frozen: the job that was fingerprinted is the one that runs."""
    with pytest.raises(ValueError, match="frozen"):
        setattr(job().spec, "suspend", True)  # noqa: B010 - a plain assignment is what mypy refuses already
