"""Which fields of a template are the job, which only tune it, and which are none of its business: a registry per kind.

A field that is not named is *must match*: forgetting one here refuses a duplicate that could have been served, which a person sees;
the opposite mistake would serve the result of another job, which nobody sees. The lists belong to a fingerprint version and never
change within it: a record's fingerprint is compared by the rules it was made with.

Other kinds join by an entry point of the group `sparkonce.field_classes` that names a `FieldClasses`; the engine is not touched.
Looking up entry points reads installed packages' metadata, the one look outside that `model/` takes, and only for kinds that are
not built in.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import entry_points

from pydantic import JsonValue

from sparkonce.model import spark_application
from sparkonce.model.problems import Loc

ENTRY_POINTS = "sparkonce.field_classes"
_NUMBER = re.compile(r"-[0-9.]+")


class FieldClass(StrEnum):
    IDENTITY = "identity"  # another value is another key
    MUST_MATCH = "must match"  # another value under the same key is refused
    TUNABLE = "tunable"  # the same job; the change serves the next attempt
    IGNORED = "ignored"  # the same job


class UnknownTemplateKind(ValueError):
    """No field classes are registered for this kind: without them there is no fingerprint, and without that no job."""


@dataclass(frozen=True, kw_only=True)
class FieldClasses:
    """Of one template kind, for one fingerprint version. Paths are dotted, below the template's `spec`, and stand for all below them."""

    api_version: str
    kind: str
    version: int = 1
    """The fingerprint version that these lists belong to."""
    tunable: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()
    conf: frozenset[str] = frozenset()
    """Maps of names to values, whose values are text whatever YAML took them for."""
    spark_conf: str = ""
    """The one of these maps whose names are Spark's."""
    tunable_conf: frozenset[str] = frozenset()
    """Names in Spark's map. `x.*` only where the names below are open by nature, such as node labels."""
    ignored_conf: frozenset[str] = frozenset()
    environment: frozenset[str] = frozenset()
    """Lists of environment entries, compared by name."""
    arguments: str = ""
    """The list of the job's arguments, as one top-level field."""
    defaults: Mapping[str, JsonValue] = field(default_factory=dict)
    """What an absent field means, frozen with this version."""
    check: Callable[[Mapping[str, JsonValue]], Iterable[tuple[Loc, str]]] = lambda _: ()
    """Problems of a template's spec, each with its place below it."""

    def of(self, path: Sequence[str]) -> FieldClass:
        """The class of a field of the template's spec. A name inside a conf map is one step, dots and all."""
        prefixes = {dotted(path[:end]) for end in range(1, len(path) + 1)}
        in_conf = len(path) > 1 and path[0] == self.spark_conf
        if not prefixes.isdisjoint(self.ignored) or (in_conf and _listed(path[1], self.ignored_conf)):
            return FieldClass.IGNORED
        if not prefixes.isdisjoint(self.tunable) or (in_conf and _listed(path[1], self.tunable_conf)):
            return FieldClass.TUNABLE
        return FieldClass.MUST_MATCH

    def argument_names(self, template_spec: Mapping[str, JsonValue]) -> list[str]:
        """Names of the arguments that the template passes, each once, in order."""
        names = (text.partition("=")[0] for text in argument_texts(template_spec.get(self.arguments)))
        return list(dict.fromkeys(name for name in names if name.startswith("-") and not _NUMBER.fullmatch(name)))


def dotted(path: Sequence[str]) -> str:
    """As paths are listed in FieldClasses; empty where a step has a dot itself, and so is none of the listed fields."""
    return "" if any("." in step for step in path) else ".".join(path)


def argument_texts(arguments: JsonValue) -> list[str]:
    """As the job gets them: `3` and `true` are text on a command line."""
    return [as_text(each) for each in arguments] if isinstance(arguments, list) else []


def as_text(value: JsonValue) -> str:
    """A configuration value or argument as Spark gets it: `true`, not `True`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)


def tunable_positions(texts: Sequence[str], names: Iterable[str]) -> set[int]:
    """Positions of these arguments and of their values, for `--name value` and `--name=value`.

    The next argument is the value unless it looks like a name itself; whoever declares a flag without a value as tunable
    therefore must not put a positional argument right behind it.
    """
    wanted = set(names)
    positions: set[int] = set()
    for index, text in enumerate(texts):
        name, assigned, _ = text.partition("=")
        if name not in wanted or index in positions:
            continue
        positions.add(index)
        following = texts[index + 1] if index + 1 < len(texts) else "-"
        if not assigned and (not following.startswith("-") or _NUMBER.fullmatch(following)):
            positions.add(index + 1)
    return positions


def _listed(name: str, listed: frozenset[str]) -> bool:
    return name in listed or any(each.endswith("*") and name.startswith(each[:-1]) for each in listed)


def _pod(*fields: str) -> frozenset[str]:
    return frozenset(f"{role}.{each}" for role in ("driver", "executor") for each in fields)


def _both(*names: str) -> frozenset[str]:
    return frozenset(name.format(role) for role in ("driver", "executor") for name in names)


SPARK_APPLICATION = FieldClasses(
    api_version="sparkoperator.k8s.io/v1beta2",
    kind="SparkApplication",
    tunable=_pod("cores", "coreLimit", "coreRequest", "memory", "memoryLimit", "memoryOverhead", "memoryOverheadFactor")
    | _pod("nodeSelector", "tolerations", "affinity", "priorityClassName", "schedulerName")
    | {"executor.instances", "memoryOverheadFactor", "dynamicAllocation", "nodeSelector"}
    | {"batchScheduler", "batchSchedulerOptions"},
    ignored=_pod("labels", "annotations") | {"driver.serviceLabels", "driver.serviceAnnotations", "monitoring"},
    conf=_pod("envVars") | {"sparkConf", "hadoopConf"},
    spark_conf="sparkConf",
    tunable_conf=_both("spark.{}.cores", "spark.{}.memory", "spark.{}.memoryOverhead", "spark.{}.memoryOverheadFactor")
    | _both("spark.{}.minMemoryOverhead", "spark.kubernetes.{}.request.cores", "spark.kubernetes.{}.limit.cores")
    | _both("spark.kubernetes.{}.node.selector.*", "spark.kubernetes.{}.scheduler.name")
    | {"spark.kubernetes.node.selector.*", "spark.kubernetes.scheduler.name", "spark.kubernetes.memoryOverheadFactor"}
    | {"spark.executor.instances"}
    | {
        f"spark.dynamicAllocation.{name}"
        for name in (
            "enabled",
            "minExecutors",
            "maxExecutors",
            "initialExecutors",
            "executorAllocationRatio",
            "executorIdleTimeout",
            "cachedExecutorIdleTimeout",
            "schedulerBacklogTimeout",
            "sustainedSchedulerBacklogTimeout",
            "shuffleTracking.enabled",
            "shuffleTracking.timeout",
        )
    },
    ignored_conf=_both("spark.kubernetes.{}.label.*", "spark.kubernetes.{}.annotation.*")
    | _both("spark.kubernetes.{}.service.label.*", "spark.kubernetes.{}.service.annotation.*"),
    environment=_pod("env"),
    arguments="arguments",
    defaults={"mode": "cluster", "restartPolicy.type": "Never", "suspend": False},
    check=spark_application.check,
)

_BUILT_IN = (SPARK_APPLICATION,)


def field_classes(api_version: str, kind: str, *, version: int = 1) -> FieldClasses:
    """Of this template kind, for this fingerprint version. UnknownTemplateKind: neither built in nor installed."""
    for each in _BUILT_IN:
        if (each.api_version, each.kind, each.version) == (api_version, kind, version):
            return each
    return _installed(api_version, kind, version)


@functools.lru_cache(maxsize=64)
def _installed(api_version: str, kind: str, version: int) -> FieldClasses:
    for point in entry_points(group=ENTRY_POINTS):
        found = point.load()
        if not isinstance(found, FieldClasses):
            raise UnknownTemplateKind(f"the entry point {point.name} of {ENTRY_POINTS} is no FieldClasses")
        if (found.api_version, found.kind, found.version) == (api_version, kind, version):
            return found
    known = ", ".join(f"{each.kind} of {each.api_version}" for each in _BUILT_IN)
    raise UnknownTemplateKind(f"{kind} of {api_version} is not a kind of application known here; built in: {known}")
