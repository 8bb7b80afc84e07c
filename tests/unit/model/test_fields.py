"""Field classes: the registry, and how a new kind is added without changing it."""

from __future__ import annotations

import difflib
from importlib.metadata import EntryPoint
from typing import Any
from unittest.mock import Mock

import pytest

from harness.manifests import changed, document, template
from sparkonce.model import fields
from sparkonce.model.fields import SPARK_APPLICATION, FieldClass, FieldClasses, UnknownTemplateKind, field_classes
from sparkonce.model.identity import fingerprint
from sparkonce.model.spec import IdempotentJob

KETTLE = FieldClasses(
    api_version="kettle.example/v1",
    kind="KettleApplication",
    tunable=frozenset({"heat"}),
    check=lambda spec: [(("lid",), "must be closed")] if spec.get("lid") == "open" else [],
)
"""What another package would register."""


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (("image",), FieldClass.MUST_MATCH),
        (("driver",), FieldClass.MUST_MATCH),
        (("driver", "memory"), FieldClass.TUNABLE),
        (("driver", "tolerations", "key"), FieldClass.TUNABLE),
        (("driver", "javaOptions"), FieldClass.MUST_MATCH),
        (("driver", "template"), FieldClass.MUST_MATCH),
        (("driver", "labels", "a.b/c"), FieldClass.IGNORED),
        (("driver.memory",), FieldClass.MUST_MATCH),
        (("memory",), FieldClass.MUST_MATCH),
        (("sparkConf", "spark.executor.memory"), FieldClass.TUNABLE),
        (("sparkConf", "spark.executor.memoryFraction"), FieldClass.MUST_MATCH),
        (("sparkConf", "spark.executor.extraJavaOptions"), FieldClass.MUST_MATCH),
        (("sparkConf", "spark.executor.extraClassPath"), FieldClass.MUST_MATCH),
        (("sparkConf", "spark.kubernetes.driver.container.image"), FieldClass.MUST_MATCH),
        (("sparkConf", "spark.kubernetes.node.selector.disk"), FieldClass.TUNABLE),
        (("sparkConf", "spark.kubernetes.executor.label.team"), FieldClass.IGNORED),
        (("hadoopConf", "spark.executor.memory"), FieldClass.MUST_MATCH),
    ],
)
def test_class_of_a_field(path: tuple[str, ...], found: FieldClass) -> None:
    """The lists are exact: a name that merely resembles a tunable one must match."""
    assert SPARK_APPLICATION.of(path) is found


def test_nothing_that_changes_a_result_is_tunable() -> None:
    """docs/design.md, section 3: at no path are env, images, javaOptions or class paths tunable."""
    names = SPARK_APPLICATION.tunable | SPARK_APPLICATION.tunable_conf
    assert not [name for name in names if any(word in name.lower() for word in ("env", "image", "options", "class", "path"))
                and name not in {"batchSchedulerOptions", "driver.priorityClassName", "executor.priorityClassName"}]  # fmt: skip


def test_many_unknown_names_are_no_misspellings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing a name with all known ones is slow: no name of tens of thousands is compared, whichever map has them and wherever a
    similar one is."""
    compared = Mock(wraps=difflib.get_close_matches)
    monkeypatch.setattr(difflib, "get_close_matches", compared)
    unknown: dict[str, Any] = {f"field{number}": 1 for number in range(40_000)}
    assert list(SPARK_APPLICATION.check({**unknown, "mainClas": "a", "driver": {**unknown, "core": 1}})) == []
    assert compared.call_count == 0
    few = dict(list(unknown.items())[:49])
    assert [loc for loc, _ in SPARK_APPLICATION.check({**few, "mainClas": "a"})] == [("mainClas",)]
    assert compared.call_count == 50


def test_a_kind_joins_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of a kind that another package registers is checked and fingerprinted by that package's classes."""
    point = EntryPoint("kettle", f"{__name__}:KETTLE", fields.ENTRY_POINTS)
    monkeypatch.setattr(EntryPoint, "load", lambda _: KETTLE)
    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda *, group: [point] if group == fields.ENTRY_POINTS else []
    )
    fields._installed.cache_clear()
    kettle = changed(
        document(),
        {
            ("spec", "template"): {"apiVersion": "kettle.example/v1", "kind": "KettleApplication", "spec": {"heat": 1}},
            ("spec", "tunableArguments"): [],
        },
    )
    try:
        cold, hot = (IdempotentJob.of(changed(kettle, {template("heat"): heat})) for heat in (1, 100))
        assert fingerprint(cold) == fingerprint(hot)
        assert fingerprint(cold) != fingerprint(IdempotentJob.of(changed(kettle, {template("water"): 1})))
        with pytest.raises(ValueError, match=r"spec\.template\.spec\.lid: must be closed"):
            IdempotentJob.of(changed(kettle, {template("lid"): "open"}))
    finally:
        fields._installed.cache_clear()


def test_a_kind_without_classes_is_unknown() -> None:
    """Without classes there is no fingerprint, and so no job; the same holds for a known kind in a version that does not exist yet."""
    with pytest.raises(UnknownTemplateKind, match="built in: SparkApplication"):
        field_classes("batch/v1", "Job")
    with pytest.raises(UnknownTemplateKind):
        field_classes("sparkoperator.k8s.io/v1beta2", "SparkApplication", version=2)
