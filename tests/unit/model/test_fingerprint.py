"""Fingerprints: golden values, equality of jobs, and the exact names of differing fields."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from harness.manifests import changed, document, job, template
from sparkonce.model import fingerprint_v1
from sparkonce.model.document.reader import read
from sparkonce.model.identity import UnknownFingerprintVersion, differing, fingerprint, fingerprints, path_digests
from sparkonce.model.spec import IdempotentJob, JobSpec, Output
from sparkonce.model.validation import Loc, path_text

GOLDEN = Path(__file__).parents[1] / "golden"
SECRET = b"of one record"
CONTENTS = {"application file flights.py": "ab" * 32, "--py-files lib.py": "cd" * 32}

MUST_MATCH = [
    (template("image"), "spec.template.spec.image"),
    (template("mainApplicationFile"), "spec.template.spec.mainApplicationFile"),
    (template("sparkVersion"), "spec.template.spec.sparkVersion"),
    (template("proxyUser"), "spec.template.spec.proxyUser"),
    (template("arguments", 1), "spec.template.spec.arguments[1]"),
    (template("arguments", 4), "spec.template.spec.arguments[4]"),
    (
        template("sparkConf", "spark.sql.shuffle.partitions"),
        'spec.template.spec.sparkConf["spark.sql.shuffle.partitions"]',
    ),
    (
        template("sparkConf", "spark.driver.extraJavaOptions"),
        'spec.template.spec.sparkConf["spark.driver.extraJavaOptions"]',
    ),
    (template("hadoopConf", "spark.executor.memory"), 'spec.template.spec.hadoopConf["spark.executor.memory"]'),
    (template("deps", "pyFiles", 0), "spec.template.spec.deps.pyFiles[0]"),
    (template("deps", "packages", 0), "spec.template.spec.deps.packages[0]"),
    (template("driver", "serviceAccount"), "spec.template.spec.driver.serviceAccount"),
    (template("driver", "javaOptions"), "spec.template.spec.driver.javaOptions"),
    (template("driver", "env", 0, "value"), "spec.template.spec.driver.env.TZ"),
    (
        template("driver", "env", 1, "valueFrom", "secretKeyRef", "key"),
        "spec.template.spec.driver.env.TOKEN.valueFrom.secretKeyRef.key",
    ),
    (template("driver", "volumeMounts", 0, "mountPath"), "spec.template.spec.driver.volumeMounts[0].mountPath"),
    (template("executor", "image"), "spec.template.spec.executor.image"),
    (template("executor", "envVars", "LANG"), "spec.template.spec.executor.envVars.LANG"),
    (template("serviceAccountOfTomorrow"), "spec.template.spec.serviceAccountOfTomorrow"),
    (template("driver.memory"), 'spec.template.spec["driver.memory"]'),
    (("spec", "outputs", 0, "slotLog", "path"), "spec.outputs.flights.slotLog.path"),
    (("spec", "outputs", 0, "expect", "columns", 0), "spec.outputs.flights.expect.columns[0]"),
]
TUNABLE = [
    *(
        template(role, name)
        for role in ("driver", "executor")
        for name in ("coreLimit", "coreRequest", "memory", "memoryLimit", "memoryOverhead", "priorityClassName")
    ),
    template("executor", "schedulerName"),
    template("driver", "nodeSelector", "kubernetes.io/arch"),
    template("nodeSelector", "disk"),
    template("batchScheduler"),
    template("batchSchedulerOptions", "queue"),
    template("dynamicAllocation", "maxExecutors"),
    template("memoryOverheadFactor"),
    template("sparkConf", "spark.executor.memory"),
    template("sparkConf", "spark.driver.cores"),
    template("sparkConf", "spark.dynamicAllocation.maxExecutors"),
    template("sparkConf", "spark.kubernetes.executor.node.selector.disk"),
    template("arguments", 3),
]
IGNORED = [
    ("metadata", "name"),
    ("metadata", "labels", "team"),
    ("metadata", "annotations", "note"),
    ("spec", "template", "metadata", "labels", "queue"),
    template("executor", "labels", "tier"),
    template("driver", "annotations", "note"),
    template("monitoring", "prometheus"),
    template("sparkConf", "spark.kubernetes.driver.label.team"),
]
POLICIES: list[tuple[Loc, Any]] = [
    (("spec", "onDuplicate"), "Reject"),
    (("spec", "onMismatch"), "Supersede"),
    (("spec", "onFinalized"), "RerunIfFailed"),
    (("spec", "onResultChanged"), "Gone"),
    (("spec", "onUnknown"), "Retry"),
    (("spec", "onDelete"), "Detach"),
    (("spec", "retry", "maxAttempts"), 7),
    (("spec", "retry", "retryOn"), ["PATH_NOT_FOUND"]),
    (("spec", "retention", "succeeded"), "3d"),
    (("spec", "applicationTTL", "failed"), "3d"),
    (("spec", "startTimeoutSeconds"), 7),
    (("spec", "activeDeadlineSeconds"), 7),
    (("spec", "heartbeatTimeoutSeconds"), 7),
    (("spec", "stopTimeoutSeconds"), 7),
    (("spec", "lingerSeconds"), 7),
    (("spec", "ttlSecondsAfterFinished"), 7),
    (("spec", "suspend"), True),
]
DEFAULTS: list[tuple[Loc, Any]] = [
    (template("mode"), "cluster"),
    (template("restartPolicy"), {"type": "Never"}),
    (template("suspend"), False),
    (("spec", "outputs", 0, "onRerun"), "Replace"),
    (("spec", "outputs", 0, "mode"), "Append"),
    (("spec", "outputs", 1, "expect"), {"minRows": 0, "columns": []}),
    (("spec", "outputs", 0, "expect", "minRows"), 0),
    (template("hadoopConf"), {}),
    (template("deps", "jars"), []),
    (template("imagePullSecrets"), None),
    (template("driver", "envVars"), {}),
    (template("executor", "env"), []),
    (template("driver", "securityContext"), {"capabilities": {"drop": []}}),
    (("spec", "outputs", 0, "delta"), None),
]

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("a.[]0", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('ab.[0"', max_size=3), inner, max_size=3),
    max_leaves=6,
)


def told(before: IdempotentJob, after: IdempotentJob) -> list[str]:
    return differing(path_digests(before, secret=SECRET), after, secret=SECRET)


@pytest.mark.parametrize(
    "golden", json.loads((GOLDEN / "fingerprints.json").read_text()), ids=lambda each: str(each["of"])
)
def test_golden_fingerprints_never_change(golden: dict[str, Any]) -> None:
    """Ledgers hold these values: a changed one would refuse every honest repetition. A job without lineage settings has the same digest in
    both versions."""
    text = (GOLDEN / golden["of"]).read_text()
    for name, value in golden["params"].items():
        text = text.replace(f"${{params.{name}}}", value)
    job_of_then = IdempotentJob.of(read(text, source=golden["of"]).data)  # has numbers that a new job may not have
    made = fingerprints(job_of_then, contents=golden["contents"])
    assert made == {1: golden["digest"], 2: golden["digest"]}


def test_golden_path_digests_never_change() -> None:
    """Ledgers also hold digests of fields."""
    golden = json.loads((GOLDEN / "paths.json").read_text())
    assert path_digests(job(), secret=SECRET, contents=CONTENTS) == golden


@pytest.mark.parametrize(("loc", "path"), MUST_MATCH, ids=lambda each: each if isinstance(each, str) else "")
def test_a_changed_must_match_field_is_named(loc: Loc, path: str) -> None:
    """Another value in such a field is another job, and exactly that field is named, whether changed, added or removed."""
    one, other = (job({loc: f"{value}.py"}) for value in ("some", "another"))
    assert fingerprint(one) != fingerprint(other)
    assert told(one, other) == [path]
    if isinstance(loc[-1], str) and loc[-1] not in {"mainApplicationFile", "path", "value"}:
        without = job({loc: None})
        assert told(without, one)[0] == told(one, without)[0] == path


@pytest.mark.parametrize("loc", TUNABLE + IGNORED, ids=path_text)
def test_tuning_and_labels_are_the_same_job(loc: Loc) -> None:
    """Another value in such a field, or none, gives the same fingerprint."""
    assert fingerprint(job({loc: "7"})) == fingerprint(job())
    assert told(job(), job({loc: "7"})) == []


@pytest.mark.parametrize(
    ("loc", "value"), POLICIES, ids=lambda each: path_text(each) if isinstance(each, tuple) else ""
)
def test_policies_are_the_same_job(loc: Loc, value: object) -> None:
    """Policies are about a run, not part of the job's identity."""
    assert job({loc: value}).spec != job().spec
    assert fingerprint(job({loc: value})) == fingerprint(job())


def test_what_a_clients_key_is_for_must_match() -> None:
    """Beside a client's key, operation and resource are part of the job and are named if they differ or are missing. If the key is derived
    from them, they are part of the key only."""

    def of(**identity: str) -> IdempotentJob:
        made = document()
        kept = {name: value for name, value in made["spec"].items() if name in ("template", "retry")}
        return IdempotentJob.of({**made, "spec": {**kept, **identity}})

    bare, ours = of(idempotencyKey="k"), of(idempotencyKey="k", operation="load", resource="orders")
    assert told(ours, of(idempotencyKey="k", operation="load", resource="parts")) == ["spec.resource"]
    assert told(ours, bare) == told(bare, ours) == ["spec.operation", "spec.resource"]
    assert fingerprint(bare) == fingerprint(of(operation="load", resource="orders")) != fingerprint(ours)
    assert fingerprint(ours) == fingerprint(of(idempotencyKey="another", operation="load", resource="orders"))


def test_every_field_of_the_spec_has_a_class() -> None:
    """A new field of the spec must match until it gets a class; version 1 names all fields that exist today."""
    fields = {field.alias or name for name, field in JobSpec.model_fields.items()}
    assert fields == set(fingerprint_v1.SPEC_CLASSES)


def test_a_field_that_is_not_named_must_match(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its entry in the classes, a policy takes part in the fingerprint."""
    classes = dict(fingerprint_v1.SPEC_CLASSES)
    del classes["stopTimeoutSeconds"]
    monkeypatch.setattr(fingerprint_v1, "SPEC_CLASSES", classes)
    assert told(job(), job({("spec", "stopTimeoutSeconds"): 7})) == ["spec.stopTimeoutSeconds"]


def test_frozen_defaults_agree_with_the_models() -> None:
    """Version 1's table of defaults is a permanent copy, which today agrees with the model."""
    model = Output.model_validate({"name": "a", "slotLog": {"path": "a"}}).model_dump(mode="json", by_alias=True)
    for dotted, frozen in fingerprint_v1.OUTPUT_DEFAULTS.items():
        value: Any = model
        for step in dotted.split("."):
            value = value[step]
        assert value == frozen, dotted


def shuffled(value: Any, rng: random.Random) -> Any:
    """The document with keys in another order everywhere, and with other orders of the lists whose entries have names."""
    if isinstance(value, dict):
        items = [(name, shuffled(each, rng)) for name, each in value.items()]
        rng.shuffle(items)
        for name, each in items:
            if name in {"outputs", "env"}:
                rng.shuffle(each)
        return dict(items)
    return [shuffled(each, rng) for each in value] if isinstance(value, list) else value


@given(st.randoms(use_true_random=False), st.lists(st.sampled_from(DEFAULTS), unique_by=lambda each: each[0]))
def test_order_and_spelled_out_defaults_are_the_same_job(rng: random.Random, defaults: list[tuple[Loc, Any]]) -> None:
    """Whatever the order of keys, and whichever defaults are written out, null or empty, the fingerprint is the same and no field
    differs."""
    spelled = IdempotentJob.of(shuffled(changed(document(), dict(copy.deepcopy(defaults))), rng))
    assert fingerprint(spelled) == fingerprint(job())
    assert told(job(), spelled) == []


@given(
    st.sets(st.sampled_from(MUST_MATCH), min_size=1, max_size=4),
    st.sets(st.sampled_from(TUNABLE + IGNORED), max_size=4),
    st.lists(st.sampled_from(DEFAULTS), max_size=3),
)
def test_exactly_the_changed_fields_are_named(
    changes: set[tuple[Loc, str]], harmless: set[Loc], defaults: list[tuple[Loc, Any]]
) -> None:
    """Whatever is tuned or written out besides, a mismatch names the must-match fields that differ, and no others."""
    # A default written over a changed field would undo the change.
    spelled = {loc: value for loc, value in defaults if not any(loc[: len(at)] == at[: len(loc)] for at, _ in changes)}
    after = job({**dict.fromkeys(harmless, "7"), **spelled, **{loc: "another.py" for loc, _ in changes}})
    assert sorted(told(job(), after)) == sorted(path for _, path in changes)
    assert fingerprint(after) != fingerprint(job())


@given(JSON, JSON)
@example(9007199254740993, 9007199254740992)
@example([{}], [])
@example({"a": {"b": 1}}, {"a.b": 1})
@example([[1]], {"0": {"0": 1}})
@example({"a[0]": 1}, {"a": [1]})
def test_fields_differ_exactly_where_fingerprints_do(one: Any, other: Any) -> None:
    """For arbitrary JSON in an unknown field, fingerprints are equal if and only if no field differs, in either direction."""
    first, second = job({template("extra"): one}), job({template("extra"): other})
    equal = fingerprint(first) == fingerprint(second)
    assert equal == (not told(first, second)) == (not told(second, first))


@given(JSON, JSON)
def test_other_json_is_another_job(one: Any, other: Any) -> None:
    """Two values within a list's entry that are different JSON numbers, texts or structures never share a fingerprint."""
    assume(not _same(one, other))
    assert fingerprint(job({template("extra"): [one]})) != fingerprint(job({template("extra"): [other]}))


def _same(one: Any, other: Any) -> bool:
    """Equality as JSON: 1 equals 1.0 and not true, null in a map is absence, and integers beyond doubles are text."""
    if isinstance(one, dict) and isinstance(other, dict):
        one, other = ({k: v for k, v in each.items() if v is not None} for each in (one, other))
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return float(one) == float(other)
    return bool(one == other) or str(one) == str(other)


def test_values_that_are_text_anyway_are_compared_as_text() -> None:
    """Spark gets `true` and `3` in a conf, an argument or the environment as text."""
    conf, arguments = template("sparkConf", "spark.ui.enabled"), template("arguments", 1)
    env, variable = template("driver", "env", 0, "value"), template("executor", "envVars", "N")
    plain = job({conf: True, arguments: 1, env: 3, variable: 3})
    quoted = job({conf: "true", arguments: "1", env: "3", variable: "3"})
    assert fingerprint(plain) == fingerprint(quoted)
    assert told(plain, job({conf: "false", arguments: "1", env: "3", variable: "3"})) == [
        'spec.template.spec.sparkConf["spark.ui.enabled"]'
    ]


def test_an_empty_member_of_a_union_is_a_choice() -> None:
    """`emptyDir: {}` in a volume differs from no volume source and from any other."""
    volumes = [[{"name": "a", kind: {}}] for kind in ("emptyDir", "downwardAPI")] + [[{"name": "a"}]]
    assert len({fingerprint(job({template("volumes"): each})).digest for each in volumes}) == 3


def test_environment_that_refers_to_itself_keeps_its_order() -> None:
    """`$(A)` is expanded only if A comes first, so the order of these entries is part of the job."""
    entries = [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)"}]
    one, other = (job({template("driver", "env"): env}) for env in (entries, entries[::-1]))
    assert fingerprint(one) != fingerprint(other)
    assert told(one, other)


def test_tunable_arguments_leave_with_their_values() -> None:
    """No argument, `--threads 8` and `--threads=8` are one job; paths of other arguments count positions in the manifest."""
    tail = ["--month", "1", "--strict"]
    variants = (["--threads", "8", *tail], ["--threads=8", *tail], [*tail, "--threads", "-1"])
    jobs = [job({template("arguments"): each}) for each in variants]
    assert {fingerprint(each).digest for each in jobs} == {fingerprint(job()).digest}
    moved = job({template("arguments"): ["--threads", "8", "--month", "2", "--strict"]})
    assert told(job(), moved) == ["spec.template.spec.arguments[3]"]
    assert told(moved, job()) == ["spec.template.spec.arguments[1]"]
    longer = job({template("arguments"): ["--threads=8", *tail, "--more"]})
    assert told(job(), longer) == ["spec.template.spec.arguments[4]"]
    assert told(longer, jobs[0]) == ["spec.template.spec.arguments[5]"]


def test_a_stream_that_may_begin_anew_is_another_job() -> None:
    """`stream: {restart: true}` changes what is written, so it must match; false or an empty map is the same as its absence."""
    restarting = job({("spec", "stream"): {"restart": True}})
    for same in ({}, {"restart": False}):
        assert fingerprint(job({("spec", "stream"): same})) == fingerprint(job())
    assert told(job(), restarting) == ["spec.stream.restart"]
    assert told(restarting, job()) == ["spec.stream.restart"]


def test_what_a_job_does_to_the_rows_that_are_there_must_match() -> None:
    """A job that overwrites is another one than the same job that appends; the field is named."""
    outputs = [{"name": "flights", "delta": {"path": "lake/flights"}}]
    overwrites = job({("spec", "outputs"): [{**outputs[0], "mode": "Overwrite"}]})
    assert told(job({("spec", "outputs"): outputs}), overwrites) == ["spec.outputs.flights.mode"]


def test_a_captured_job_is_another_one_and_its_defaults_are_not() -> None:
    """Whether writes are captured, and whether others pass, decides what a job does. A job that says neither keeps its fingerprint."""

    def captured(capture: bool = True, **undeclared: str) -> IdempotentJob:
        outputs = [{"name": "flights", "delta": {"path": "lake/flights"}, "capture": capture}]
        return job({("spec", "outputs"): outputs, **({("spec", "capture"): undeclared} if undeclared else {})})

    plain = job({("spec", "outputs"): [{"name": "flights", "delta": {"path": "lake/flights"}}]})
    assert fingerprint(captured(capture=False)) == fingerprint(plain)
    assert fingerprint(captured(undeclared="Refuse")) == fingerprint(captured())
    assert told(plain, captured()) == ["spec.outputs.flights.capture"]
    assert told(captured(), captured(undeclared="Warn")) == ["spec.capture.undeclared"]


def test_the_place_in_a_series_must_match_and_its_lateness_does_not() -> None:
    """Whether a late key commits nevertheless is a policy: a backfill of the same job is the same job."""
    outputs = [{"name": "flights", "delta": {"path": "lake/flights"}}]

    def at(**series: str) -> IdempotentJob:
        return job({("spec", "outputs"): outputs, ("spec", "series"): {"name": "daily", "position": "1", **series}})

    assert fingerprint(at(onLate="Allow")) == fingerprint(at())
    assert told(at(), at(position="2")) == ["spec.series.position"]
    assert told(at(), at(name="weekly")) == ["spec.series.name"]


def test_an_argument_declared_tunable_no_longer_must_match() -> None:
    """Declaring `--month` tunable changes the job, because the argument is no longer part of it."""
    declared = job({("spec", "tunableArguments"): ["--threads", "--month"]})
    assert fingerprint(declared) != fingerprint(job())


def test_a_changed_script_is_named_by_its_file() -> None:
    """In local mode the script's content must match; the message names the file."""
    before = path_digests(job(), secret=SECRET, contents=CONTENTS)
    after = {**CONTENTS, "application file flights.py": "ef" * 32}
    assert fingerprint(job(), contents=CONTENTS) != fingerprint(job(), contents=after)
    assert differing(before, job(), secret=SECRET, contents=after) == ["application file flights.py"]
    assert differing(before, job(), secret=SECRET, contents=CONTENTS) == []
    assert sorted(differing(before, job(), secret=SECRET)) == sorted(CONTENTS)


def test_another_kind_of_output_at_the_same_place_is_another_job() -> None:
    """A slot log and a Delta table in one folder are two effects."""
    outputs = [[{"name": "a", kind: {"path": "p"}}] for kind in ("slotLog", "delta")]
    one, other = (job({("spec", "outputs"): each}) for each in outputs)
    assert told(one, other) == ["spec.outputs.a.delta.path", "spec.outputs.a.slotLog.path"]


def test_the_place_that_is_compared_has_its_revision_filled_in() -> None:
    """If the location contains the revision, revision 1 is one job whether written out or not."""
    outputs = [{"name": "a", "slotLog": {"path": "out/{revision}"}}]
    absent = job({("spec", "outputs"): outputs})
    written = job({("spec", "outputs"): outputs, ("spec", "revision"): "1"})
    literal = job({("spec", "outputs"): [{"name": "a", "slotLog": {"path": "out/1"}}]})
    assert fingerprint(absent) == fingerprint(written) == fingerprint(literal)


def test_digests_of_fields_tell_nothing_without_the_secret() -> None:
    """Two records of one job have no digest in common, so a guessed value cannot be tested against another's record."""
    one, other = (path_digests(job(), secret=secret) for secret in (b"one", b"other"))
    assert one.keys() == other.keys()
    assert not set(one.values()) & set(other.values())
    assert all(len(digest) == 16 for digest in one.values())
    with pytest.raises(ValueError, match="keyed with a secret"):
        path_digests(job(), secret=b"")


def test_equal_values_of_two_fields_have_different_digests() -> None:
    """A digest covers its path: a record does not reveal which fields have the same value."""
    digests = path_digests(job({template("a"): "x", template("b"): "x"}), secret=SECRET)
    assert digests["spec.template.spec.a"] != digests["spec.template.spec.b"]


def test_an_unknown_version_is_no_answer() -> None:
    """A record of a newer fingerprint version is neither equal nor different: the caller must be upgraded."""
    with pytest.raises(UnknownFingerprintVersion, match="upgrade sparkonce"):
        fingerprint(job(), version=3)


def test_a_stored_job_has_the_same_fingerprint() -> None:
    """The job stored beside the record reads back as the same job, with all defaults filled in or none."""
    stored = IdempotentJob.of(json.loads(json.dumps(job().document())))
    full = IdempotentJob.of(job().model_dump(mode="json", by_alias=True))
    assert stored == job()
    assert fingerprint(stored) == fingerprint(full) == fingerprint(job())
