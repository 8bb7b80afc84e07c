"""Settings that identify a caller's try: left out of the fingerprint, never out of the application, and compared as they were recorded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from harness.manifests import changed, document, job, template
from sparkonce.launch.submit import LocalTemplate
from sparkonce.model.application import lineage
from sparkonce.model.identity import (
    UnknownFingerprintVersion,
    differing,
    fingerprint,
    fingerprints,
    path_digests,
    same,
    version_of,
    version_of_digests,
)
from sparkonce.model.spec import IdempotentJob
from sparkonce.model.validation import InvalidJob, Loc

PAGE = Path(__file__).resolve().parents[4] / "docs" / "templates.md"
SECRET = b"of one record"
RUN = template("sparkConf", "spark.openlineage.parentRunId")
OWN = template("sparkConf", "spark.example.runId")
LIST = ("spec", "ignoredConf")


def with_env(role: str, *entries: dict[str, Any]) -> dict[Loc, Any]:
    return {template(role, "env"): list(entries)}


CALLERS: list[dict[Loc, Any]] = [
    *({template("sparkConf", name): "1"} for name in lineage.CONF),
    *(
        {template("sparkConf", f"{prefix}TRACEPARENT"): "1"}
        for prefix in ("spark.kubernetes.driverEnv.", "spark.executorEnv.")
    ),
    *({template(role, "envVars", name): "1"} for role in ("driver", "executor") for name in lineage.ENVIRONMENT),
]


@pytest.mark.parametrize("caller", CALLERS, ids=lambda each: ".".join(map(str, next(iter(each))[3:])))
def test_what_says_who_asks_is_not_part_of_the_job(caller: dict[Loc, Any]) -> None:
    """With such a setting given, changed or absent it is the same job, and no field differs; the application gets the setting all the
    same."""
    (loc,) = caller
    first, second, bare = job(caller), job({loc: "2"}), job()
    assert fingerprint(first) == fingerprint(second) == fingerprint(bare)
    assert differing(path_digests(first, secret=SECRET), second, secret=SECRET) == []
    assert first.spec.template.spec != second.spec.template.spec
    assert first.document()["spec"]["template"]["spec"] == first.spec.template.spec


def test_a_local_application_gets_lineage_settings() -> None:
    """They are passed to spark-submit unchanged."""
    assert LocalTemplate.of(job({RUN: "run-2"})).conf["spark.openlineage.parentRunId"] == "run-2"


def test_trace_context_among_environment_entries_is_left_out() -> None:
    """Only those entries of `env` are left out; order and the other entries still count."""
    keep, trace = {"name": "TZ", "value": "UTC"}, {"name": "TRACEPARENT", "value": "00-a-b-01"}
    plain, traced = job(with_env("driver", keep)), job(with_env("driver", trace, keep))
    assert fingerprint(plain) == fingerprint(traced)
    assert fingerprint(plain) != fingerprint(job(with_env("driver", keep, {"name": "BAGGAGE", "value": "tenant=1"})))


@pytest.mark.parametrize(
    ("given", "loc"),
    [
        ({template("arguments", 1): "$(TRACEPARENT)"}, template("driver", "envVars", "TRACEPARENT")),
        ({template("sparkConf", "spark.example.link"): "${spark.openlineage.parentRunId}"}, RUN),
    ],
)
def test_what_the_template_refers_to_must_match(given: dict[Loc, Any], loc: Loc) -> None:
    """The setting's value is then part of an argument or another setting, which the application may compute with."""
    assert fingerprint(job({**given, loc: "1"})) != fingerprint(job({**given, loc: "2"}))


@pytest.mark.parametrize(
    "name", ["spark.openlineage.namespace", "spark.openlineage.transport.url", "spark.openlineage.parentRunIdX"]
)
def test_a_name_that_resembles_one_of_the_table_must_match(name: str) -> None:
    """Only exact names are left out: the address that lineage is sent to is part of the job."""
    assert fingerprint(job({template("sparkConf", name): "1"})) != fingerprint(job({template("sparkConf", name): "2"}))


def test_a_job_names_further_settings() -> None:
    """A setting listed in `spec.ignoredConf` may differ, others may not; listing it does not change the job."""
    one, two = (job({LIST: ["spark.example.runId"], OWN: run}) for run in ("1", "2"))
    assert (
        fingerprint(one) == fingerprint(two) == fingerprint(job({LIST: ["spark.example.runId"]})) == fingerprint(job())
    )
    assert fingerprint(one) != fingerprint(job({OWN: "1"}))
    assert one.spec.template.spec["sparkConf"]["spark.example.runId"] == "1"  # type: ignore[index,call-overload] # JSON


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("spark.*", "whole name"),
        ("*", "whole name"),
        ("spark", "whole name"),
        ("spark.", "whole name"),
        ("spark.example.", "whole name"),
        ("spark.example.run id", "whole name"),
        ("spark.exämple.run", "whole name"),
        ("spark.sql.shuffle.partitions", "changes what Spark computes"),
        ("spark.hadoop.fs.defaultFS", "changes what Spark computes"),
        ("spark.jars", "changes what Spark computes"),
        ("spark.master", "changes what Spark computes"),
        ("spark.jars.packages", "changes what Spark computes"),
        ("spark.sparkonce.key", "changes what Spark computes"),
    ],
)
def test_only_whole_names_that_compute_nothing_are_ignored(name: str, why: str) -> None:
    """A pattern, or a setting of Spark itself, could make two different jobs one: the sentence names the entry."""
    with pytest.raises(InvalidJob, match=rf"spec\.ignoredConf\[1\]: .*{why}"):
        job({LIST: ["spark.example.runId", name]})


def test_a_name_is_listed_once() -> None:
    """A second mention is probably meant to be another name."""
    with pytest.raises(InvalidJob, match=r"spec\.ignoredConf\[1\]: is in the list already"):
        job({LIST: ["spark.example.runId", "spark.example.runId"]})


def test_a_key_of_the_version_before_keeps_its_identity() -> None:
    """In a record of the earlier version the lineage setting is part of the fingerprint: the same document is the same job, and another run
    id another job, as it was then."""
    recorded = fingerprint(job({RUN: "1"}), version=1)
    again, other = fingerprints(job({RUN: "1"})), fingerprints(job({RUN: "2"}))
    assert same(recorded.digest, 1, again)
    assert not same(recorded.digest, 1, other)
    digests = path_digests(job({RUN: "1"}), secret=SECRET, version=1)
    assert differing(digests, job({RUN: "1"}), secret=SECRET, version=1) == []
    assert differing(digests, job({RUN: "2"}), secret=SECRET, version=1) == [
        'spec.template.spec.sparkConf["spark.openlineage.parentRunId"]'
    ]
    assert version_of(recorded.digest, job({RUN: "1"})) == 1
    assert version_of_digests(digests, job({RUN: "1"}), secret=SECRET) == 1


def test_a_scheduler_that_starts_to_send_lineage_asks_for_the_recorded_job() -> None:
    """A record of the earlier version without such settings equals a request that has them; only real differences are named."""
    recorded, digests = fingerprint(job(), version=1), path_digests(job(), secret=SECRET, version=1)
    assert same(recorded.digest, 1, fingerprints(job({RUN: "1"})))
    changed_too = job({RUN: "1", template("image"): "other"})
    assert differing(digests, changed_too, secret=SECRET, version=1) == ["spec.template.spec.image"]
    assert version_of_digests(digests, job(), secret=SECRET) == 1
    assert version_of_digests(path_digests(job({RUN: "1"}), secret=SECRET), job({RUN: "1"}), secret=SECRET) == 2


def test_a_record_of_a_newer_version_is_not_compared() -> None:
    """It is neither the same nor another job: the reader must be upgraded."""
    with pytest.raises(UnknownFingerprintVersion, match="upgrade sparkonce"):
        same("f" * 64, 3, fingerprints(job()))


def test_no_other_class_of_settings_changes() -> None:
    """Any other setting, even one with a similar name, still distinguishes two jobs."""
    for name in ("spark.sql.shuffle.partitions", "spark.openlineage.appName", "spark.app.id"):
        other = changed(document(), {template("sparkConf", name): "77", RUN: "1"})
        assert fingerprint(IdempotentJob.of(other)) != fingerprint(job({RUN: "1"}))


def test_the_page_has_the_table() -> None:
    """docs/templates.md lists each name with its source, and no other."""
    text = PAGE.read_text(encoding="utf-8")
    section = text.split("\n## What says who asks\n")[1].split("\n## ")[0]
    listed = dict(re.findall(r"^\| `([^`]+)` \|.*\((https://[^)]+)\) \|$", section, re.MULTILINE))
    assert listed == {**lineage.CONF, **lineage.ENVIRONMENT}


@pytest.mark.parametrize("name", ["spark.runId", "spark.example.runId", "spark.a_b-c.D1", "spark.jarsOf.run"])
def test_any_other_whole_name_may_be_ignored(name: str) -> None:
    """Whatever name a scheduler uses, even one that resembles a setting of Spark."""
    one, two = (job({LIST: [name], template("sparkConf", name): run}) for run in ("1", "2"))
    assert fingerprint(one) == fingerprint(two)
