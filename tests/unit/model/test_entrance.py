"""Rules that hold for new jobs but not for jobs already recorded."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from harness.manifests import document
from sparkonce.model import entrance, validation
from sparkonce.model.identity import fingerprint
from sparkonce.model.record import SpecBody
from sparkonce.model.spec import IdempotentJob
from sparkonce.model.validation import InvalidJob
from sparkonce.store import codec


def job(template: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    made = document()
    made["spec"].update(spec)
    made["spec"]["template"]["spec"].update(template or {})
    return made


LATER: list[tuple[dict[str, Any], str]] = [
    (job({"sparkConf": {"a=b": "x"}}), 'spec.template.spec.sparkConf["a=b"]'),
    (job({"driver": {"envVars": {"": "x"}}}), 'spec.template.spec.driver.envVars[""]'),
    (job({"executor": {"env": [{"name": "a=b"}]}}), "spec.template.spec.executor.env[0].name"),
    (job({"mainClass": "a\0b"}), "spec.template.spec.mainClass"),
    (job({"volumes": [{"a\0b": 1}]}), "spec.template.spec.volumes[0]"),
    (job({"volumes": 10**308}), "spec.template.spec.volumes"),
    (job(retention={"failed": "36501d"}), "spec.retention.failed"),
]


@pytest.mark.parametrize(("made", "path"), LATER, ids=[path for _, path in LATER])
def test_a_rule_that_came_later_holds_for_new_jobs_alone(made: dict[str, Any], path: str) -> None:
    """A job recorded by an earlier version can be read unchanged; a new job with the same spec is refused with the field's path."""
    assert IdempotentJob.of(made).document() == made
    with pytest.raises(InvalidJob) as refused:
        entrance.admit(made)
    assert [problem.path for problem in refused.value.problems] == [path]


def test_what_is_fine_enters_unchanged() -> None:
    """A job with control characters other than NUL, `=` in values, the longest duration and the deepest nesting is admitted unchanged."""
    deep: Any = 1
    for _ in range(entrance.DEPTH_LIMIT - 4):
        deep = [deep]
    template = {"mainClass": "\x01\x1b[0m\ta=b", "sparkConf": {"a": "b=c\n"}, "volumes": deep}
    made = job(template, retention={"failed": "36500d"})
    assert entrance.admit(made).document() == made
    assert fingerprint(entrance.admit(made)) == fingerprint(IdempotentJob.of(made))


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("\ud800", "is '\\ud800', which is not valid Unicode text; write it in UTF-8"),
        ({"\udcff": 1}, "has the key '\\udcff', which is not valid Unicode text; write it in UTF-8"),
        (float("inf"), "is inf, which is not a JSON number; put it in quotes"),
        ({1: 2}, "has the key 1, which is not text"),
        (-(10**400), "is a number of more than 308 digits; put it in quotes"),
    ],
)
def test_what_json_does_not_have(value: object, sentence: str) -> None:
    """This also covers values built in Python, which no YAML reader has checked. The sentence itself is ASCII."""
    with pytest.raises(InvalidJob) as refused:
        entrance.admit(job({"volumes": value}))
    assert refused.value.problems == (("spec.template.spec.volumes", sentence),)
    str(refused.value).encode("ascii")


def test_only_the_first_of_many_problems_are_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `validation`: tens of thousands of mistakes are counted, and the first few become sentences."""
    made = Mock(wraps=validation.path_text)
    monkeypatch.setattr(validation, "path_text", made)
    with pytest.raises(InvalidJob, match=r"; and 39995 more$"):
        entrance.admit(job({"volumes": ["a\0b"] * 40_000}))
    assert made.call_count == 50


def test_what_enters_fits_into_a_ledger() -> None:
    """The limits for depth and digits are those of the ledger, less the level that the record adds above the job."""
    assert (entrance.DEPTH_LIMIT + 1, entrance.DIGITS_LIMIT) == (codec.DEPTH_LIMIT, codec.DIGITS_LIMIT)
    deep: Any = 10**308 - 1
    for _ in range(entrance.DEPTH_LIMIT - 4):
        deep = [deep]
    made = entrance.admit(job({"volumes": deep}))
    assert codec.encode(SpecBody(job=made.document()))
    with pytest.raises(InvalidJob, match="is nested more than 31 levels deep"):
        entrance.admit(job({"volumes": [deep]}))
