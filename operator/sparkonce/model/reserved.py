"""What a new job's SparkApplication must not set, because the attempt sets it: name, namespace, owner, labels, account, submission.

The Spark operator appends `sparkConf` after its own settings, and spark-submit takes the last value of a name. So
`spark.kubernetes.namespace` in a template starts the driver in a namespace where no operator looks for it, with the Spark operator's
rights; a fixed prefix of executors collides with the next attempt. The tables below list every such setting of Spark 4.1 and every such
field of SparkApplication v1beta2 with its reason; docs/templates.md repeats them, and a test compares the two.

Applied where a new job enters: job files, `sparkonce convert`, and objects that would open a generation. Not part of the model's
validation, because recorded specs are validated again whenever they are read: one recorded by an earlier version stays readable, and its
next attempt is launched without what contradicts it (`without_reserved`).

Not a policy for pods: host paths, privileged containers and images pass, as they do in a SparkApplication; an admission policy of the
cluster decides about them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from sparkonce.model.application.deployers import on_pods
from sparkonce.model.validation import Loc, value_at

OURS = "sparkonce.dev/"
THEIRS = "sparkoperator.k8s.io/"
"""Prefixes of the labels and annotations by which sparkonce and the Spark operator find the pods of an attempt."""


@dataclass(frozen=True)
class Reserved:
    """A setting or field that a new template may not have."""

    name: str
    """Name of a Spark setting, or dotted path below the template's `spec`. `x.*`: every setting below x."""
    why: str
    """What it would do to the attempt."""
    instead: str = "remove it"
    kept: bool = False
    """A spec that was recorded with it is launched with it: it repeats what a field may name and does not move the attempt."""
    unless: str = ""
    """Values that match this pattern are allowed."""
    per_attempt: bool = False
    """It names something that each attempt names for itself: `sparkonce convert` drops it."""

    def names(self, name: str) -> bool:
        return name.startswith(self.name[:-1]) if self.name.endswith(".*") else name == self.name

    def allows(self, value: object) -> bool:
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return value is None or (bool(self.unless) and re.fullmatch(self.unless, text) is not None)


_PLACE = "the attempt runs in the job's own namespace and cluster, where the operator looks for it"
_DRIVER_POD = "each attempt names its own driver pod, so that none can start twice"
_NAMES = "Spark names the pods of each attempt, so that two attempts never collide"
_CREDENTIALS = (
    "the Spark operator submits with its own credentials, and files are read from its pod, not from the job's"
)
_BUILDS = (
    "the pods of an attempt are built by Spark and the Spark operator alone, and such classes run in the Spark operator"
)
_ACCOUNT = "an account that only this setting names is overlooked by policies for SparkApplications"
_TEMPLATE = "it is read in the Spark operator's pod"
_LOCAL = r"local(\[[0-9*,]+\])?"

CONF: tuple[Reserved, ...] = (
    Reserved("spark.kubernetes.namespace", _PLACE),
    Reserved("spark.kubernetes.context", _PLACE),
    Reserved("spark.master", _PLACE),
    Reserved("spark.submit.deployMode", "a driver inside the Spark operator has no pod to watch or to stop"),
    Reserved("spark.kubernetes.driver.master", f"{_PLACE}; local[N] is allowed", unless=_LOCAL),
    Reserved("spark.kubernetes.driver.pod.name", _DRIVER_POD, per_attempt=True),
    Reserved("spark.kubernetes.driver.resourceNamePrefix", _NAMES, per_attempt=True),
    Reserved("spark.kubernetes.executor.podNamePrefix", _NAMES, per_attempt=True),
    Reserved("spark.app.id", "Spark labels the pods of each attempt with an id of its own", per_attempt=True),
    Reserved("spark.kubernetes.driver.podTemplateFile", _TEMPLATE, "write driver.template"),
    Reserved("spark.kubernetes.executor.podTemplateFile", _TEMPLATE, "write executor.template"),
    Reserved(
        "spark.kubernetes.driver.podTemplateContainerName", "Spark's container has one name, by which it is found"
    ),
    Reserved(
        "spark.kubernetes.executor.podTemplateContainerName", "Spark's container has one name, by which it is found"
    ),
    Reserved("spark.kubernetes.driver.pod.featureSteps", _BUILDS),
    Reserved("spark.kubernetes.driver.pod.excludedFeatureSteps", _BUILDS),
    Reserved("spark.kubernetes.executor.pod.featureSteps", _BUILDS),
    Reserved("spark.kubernetes.executor.pod.excludedFeatureSteps", _BUILDS),
    Reserved(
        "spark.kubernetes.authenticate.driver.serviceAccountName", _ACCOUNT, "write driver.serviceAccount", kept=True
    ),
    Reserved(
        "spark.kubernetes.authenticate.executor.serviceAccountName",
        _ACCOUNT,
        "write executor.serviceAccount",
        kept=True,
    ),
    Reserved("spark.kubernetes.authenticate.*", _CREDENTIALS),
    Reserved("spark.kubernetes.trust.certificates", "the Spark operator checks whom it sends its credentials to"),
    Reserved("spark.kubernetes.file.upload.path", _CREDENTIALS),
    Reserved("spark.kubernetes.kerberos.krb5.path", _CREDENTIALS),
    Reserved(
        "spark.kubernetes.submission.waitAppCompletion",
        "the Spark operator would submit no other job until this one has ended",
        unless="false",
    ),
)
"""Names in `sparkConf`. The first entry that names a setting decides."""

LABELLING_CONF = (
    *(f"spark.kubernetes.{role}.{kind}." for role in ("driver", "executor") for kind in ("label", "annotation")),
    "spark.kubernetes.driver.service.label.",
    "spark.kubernetes.driver.service.annotation.",
)
"""Settings whose name ends with the name of a label or annotation."""
LABELLING_VALUES = ("spark.kubernetes.executor.decommissionLabel",)
"""Settings whose value is the name of a label."""

_OWN = "each attempt names its own pods, in the job's namespace and with its application as owner"
FIELDS: tuple[Reserved, ...] = (
    Reserved("driver.podName", _DRIVER_POD, per_attempt=True),
    Reserved("driver.kubernetesMaster", f"{_PLACE}; local[N] is allowed", unless=_LOCAL),
    *(
        Reserved(f"{role}.template.metadata.{name}", _OWN, per_attempt=name in ("name", "generateName"))
        for role in ("driver", "executor")
        for name in ("name", "generateName", "namespace", "ownerReferences")
    ),
    *(
        Reserved(f"{role}.template.spec.{name}", _ACCOUNT, f"write {role}.serviceAccount", kept=True)
        for role in ("driver", "executor")
        for name in ("serviceAccountName", "serviceAccount")
    ),
)
"""Fields below the template's `spec`."""

PER_ATTEMPT_LABELS = ("kueue.x-k8s.io/prebuilt-workload-name",)
"""Labels of applications whose value names an object for one application alone: each attempt is queued as a workload of its own."""

LABELLING_FIELDS = (
    *(f"{role}.{kind}" for role in ("driver", "executor") for kind in ("labels", "annotations")),
    *(f"{role}.template.metadata.{kind}" for role in ("driver", "executor") for kind in ("labels", "annotations")),
    "driver.serviceLabels",
    "driver.serviceAnnotations",
)
"""Maps below the template's `spec` whose names are those of labels or annotations."""

_LABEL = f"must be absent: labels and annotations of {OURS} and {THEIRS} say which attempt a pod belongs to; remove it"
_UNREADABLE_NAME = re.compile(r"[=\s\x00-\x1f\x7f]")
OPTION = "must not begin with '-': spark-submit would read it, and what follows, as options; write a path or URL"

Spec = Mapping[str, JsonValue]
Problems = Iterator[tuple[Loc, str]]


def reserved_name(label: str) -> bool:
    """Whether a label or annotation of this name is written by sparkonce or the Spark operator alone."""
    return label.startswith((OURS, THEIRS))


def labels(at: Loc, given: object) -> Problems:
    """Problems of a map of labels or annotations."""
    for name in given if isinstance(given, dict) else ():
        if reserved_name(str(name)):
            yield (*at, name), _LABEL


def contradictions(spec: Spec) -> Problems:
    """What contradicts the attempt in a SparkApplication's spec, each with its path below the spec."""
    conf = spec.get("sparkConf")
    for name, value in conf.items() if isinstance(conf, dict) else ():
        if sentence := _conf_problem(name, value):
            yield ("sparkConf", name), sentence
    for field in FIELDS:
        value = value_at(spec, field.name)
        if value not in (None, "", []) and not field.allows(value):
            yield tuple(field.name.split(".")), _sentence(field)
    for path in LABELLING_FIELDS:
        yield from labels(tuple(path.split(".")), value_at(spec, path))
    if is_option(spec.get("mainApplicationFile")):
        yield ("mainApplicationFile",), OPTION


def is_option(main_file: object) -> bool:
    """Whether spark-submit would read the main file as an option: it comes last, where options are still accepted."""
    return isinstance(main_file, str) and main_file.startswith("-")


def without_reserved(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a recorded spec without what contradicts its attempt."""
    made = dict(spec)
    conf = made.get("sparkConf")
    if isinstance(conf, dict):
        made["sparkConf"] = {name: value for name, value in conf.items() if not _removed(name, value)}
    for field in FIELDS:
        if not field.kept and not field.allows(value_at(made, field.name)):
            made = _without(made, field.name.split("."))
    for path in LABELLING_FIELDS:
        for loc, _ in list(labels(tuple(path.split(".")), value_at(made, path))):
            made = _without(made, [str(step) for step in loc])
    return made


def without_deployers(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a spec whose pods carry no label or annotation by which a deployment tool would take them for its own (`deployers`)."""
    made = dict(spec)
    conf = made.get("sparkConf")
    if isinstance(conf, dict):
        made["sparkConf"] = {name: value for name, value in conf.items() if on_pods(_label_of(name))}
    for path in LABELLING_FIELDS:
        given = value_at(made, path)
        for name in given if isinstance(given, dict) else ():
            if not on_pods(str(name)):
                made = _without(made, [*path.split("."), name])
    return made


def per_attempt(spec: Spec) -> Iterator[tuple[Loc, str]]:
    """Names in a spec that each attempt chooses for itself, with the reason: path below the spec."""
    conf = spec.get("sparkConf")
    for name in conf if isinstance(conf, dict) else ():
        found = next((each for each in CONF if each.names(name)), None)
        if found is not None and found.per_attempt:
            yield ("sparkConf", name), found.why
    for field in FIELDS:
        *above, name = field.name.split(".")
        if field.per_attempt and name in (value_at(spec, ".".join(above)) or {}):
            yield (*above, name), field.why


def _label_of(setting: str) -> str:
    """The label or annotation that a setting writes; empty: it writes none."""
    prefix = next((each for each in LABELLING_CONF if setting.startswith(each)), None)
    return "" if prefix is None else setting.removeprefix(prefix)


def _sentence(reserved: Reserved) -> str:
    return f"must be absent: {reserved.why}; {reserved.instead}"


def _conf_problem(name: str, value: object) -> str:
    if _UNREADABLE_NAME.search(name):
        return "must not contain '=' or blanks: spark-submit would read another name; write the name alone"
    if _labels_pods(name, value):
        return _LABEL
    found = _entry(name, value)
    return "" if found is None else _sentence(found)


def _removed(name: str, value: object) -> bool:
    found = _entry(name, value)
    return (found is not None and not found.kept) or _labels_pods(name, value) or bool(_UNREADABLE_NAME.search(name))


def _entry(name: str, value: object) -> Reserved | None:
    found = next((each for each in CONF if each.names(name)), None)
    return None if found is None or found.allows(value) else found


def _labels_pods(name: str, value: object) -> bool:
    prefix = next((each for each in LABELLING_CONF if name.startswith(each)), None)
    if prefix is not None and reserved_name(name.removeprefix(prefix)):
        return True
    return name in LABELLING_VALUES and isinstance(value, str) and reserved_name(value)


def _without(spec: Mapping[str, Any], path: list[str]) -> dict[str, Any]:
    """Copies the maps above the field, so that the given spec is unchanged."""
    first, *rest = path
    made = dict(spec)
    if not rest:
        made.pop(first, None)
    elif isinstance(below := made.get(first), dict):
        made[first] = _without(below, rest)
    return made
