"""Fields of application templates: the class of each field, per template kind, and the checks of kubeflow's SparkApplication.

A field that is not named is *must match*: forgetting one refuses a duplicate that could have been served, which users see; the opposite
mistake would replay the result of another job unnoticed. The lists belong to a fingerprint version and never change within it: a record's
fingerprint is compared by the rules it was made with.

The Spark operator validates its own resource; repeating its schema here would refuse fields of newer operators. So a SparkApplication is
refused only for what would break the promise (inner retries, a TTL, forged `spark.sparkonce.*`, a driver pod with a fixed name or without
a pod), for what cannot be fingerprinted, and for an unknown name *close to* a known one: a misspelling rather than a newer field.

Other kinds register by an entry point of the group `sparkonce.field_classes` that names a `FieldClasses`. Looking up entry points reads
the metadata of installed packages: the only I/O in `model/`, and only for kinds that are not built in.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import JsonValue

from sparkonce.model import reserved, text_fields
from sparkonce.model.application import expansion, utf8
from sparkonce.model.validation import Loc

ENTRY_POINTS = "sparkonce.field_classes"
COMPARED = 50
"""Unknown names of one map up to which each is compared with all known ones, in 25 microseconds. A map with more of them is not searched
for misspellings: no release of the operator adds as many fields, and if only the first were compared, the order of its fields would decide
whether a job is valid."""
_NUMBER = re.compile(r"-[0-9.]+")


class FieldClass(StrEnum):
    IDENTITY = "identity"  # another value is another key
    MUST_MATCH = "must match"  # another value under the same key is refused
    TUNABLE = "tunable"  # the same job; the change serves the next attempt
    IGNORED = "ignored"  # the same job


class UnknownTemplateKind(ValueError):
    """No field classes are registered for this kind, so its jobs cannot be fingerprinted."""


@dataclass(frozen=True, kw_only=True)
class FieldClasses:
    """Field classes of one template kind for one fingerprint version. Paths are dotted and below the template's `spec`; each includes
    everything below it."""

    api_version: str
    kind: str
    version: int = 1
    """The fingerprint version that these lists belong to."""
    tunable: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()
    conf: frozenset[str] = frozenset()
    """Maps whose values are text, whichever type YAML gave them."""
    spark_conf: str = ""
    """The one of these maps that holds Spark's configuration."""
    tunable_conf: frozenset[str] = frozenset()
    """Names of Spark settings. `x.*` only where the names below are arbitrary, such as node labels."""
    ignored_conf: frozenset[str] = frozenset()
    environment: frozenset[str] = frozenset()
    """Lists of environment entries, compared by name."""
    arguments: str = ""
    """Top-level field with the list of the job's arguments."""
    defaults: Mapping[str, JsonValue] = field(default_factory=dict)
    """Values of absent fields, frozen with this version."""
    check: Callable[[Mapping[str, JsonValue]], Iterable[tuple[Loc, str]]] = lambda _: ()
    """Returns the problems of a template's spec, each with its path below the spec. Applied whenever a spec is read."""
    check_new: Callable[[Mapping[str, JsonValue]], Iterable[tuple[Loc, str]]] = lambda _: ()
    """As `check`, for new jobs only: recorded specs that an earlier version accepted stay readable."""

    def of(self, path: Sequence[str]) -> FieldClass:
        """The class of a field of the template's spec. A name in a conf map is one step, whatever dots it contains."""
        prefixes = {dotted(path[:end]) for end in range(1, len(path) + 1)}
        in_conf = len(path) > 1 and path[0] == self.spark_conf
        if not prefixes.isdisjoint(self.ignored) or (in_conf and _listed(path[1], self.ignored_conf)):
            return FieldClass.IGNORED
        if not prefixes.isdisjoint(self.tunable) or (in_conf and _listed(path[1], self.tunable_conf)):
            return FieldClass.TUNABLE
        return FieldClass.MUST_MATCH

    def argument_names(self, template_spec: Mapping[str, JsonValue]) -> list[str]:
        """Distinct names of the arguments that the template passes, in order."""
        names = (text.partition("=")[0] for text in argument_texts(template_spec.get(self.arguments)))
        return list(dict.fromkeys(name for name in names if name.startswith("-") and not _NUMBER.fullmatch(name)))


def dotted(path: Sequence[str]) -> str:
    """A path as FieldClasses lists it; empty if a step contains a dot, because no listed field does."""
    return "" if any("." in step for step in path) else ".".join(path)


def argument_texts(arguments: JsonValue) -> list[str]:
    """Arguments as the job gets them: `3` and `true` are text on a command line."""
    return [as_text(each) for each in arguments] if isinstance(arguments, list) else []


def as_text(value: JsonValue) -> str:
    """A configuration value or argument as Spark gets it: `true`, not `True`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)


def tunable_positions(texts: Sequence[str], names: Iterable[str]) -> set[int]:
    """Positions of these arguments and of their values, for `--name value` and `--name=value`.

    The next argument is the value unless it looks like a name, so a tunable flag without a value must not be followed by a positional
    argument.
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


# --- kubeflow's SparkApplication v1beta2

RESERVED_CONF = "spark.sparkonce."
RESERVED_ENVIRONMENT = "SPARKONCE_"
DRIVER_POD_NAME = "spark.kubernetes.driver.pod.name"
_FORWARDING = tuple(expansion.FORWARDING.values())  # conf that becomes environment


def _names(words: str) -> frozenset[str]:
    return frozenset(words.split())


_POD = _names(
    "template cores coreLimit coreRequest memory memoryLimit memoryOverhead memoryOverheadFactor gpu "
    "image configMaps secrets env envVars envFrom envSecretKeyRefs labels annotations volumeMounts "
    "affinity tolerations podSecurityContext securityContext schedulerName sidecars initContainers "
    "hostNetwork nodeSelector dnsConfig serviceAccount hostAliases terminationGracePeriodSeconds "
    "shareProcessNamespace javaOptions lifecycle ports priorityClassName"
)
KNOWN: Mapping[str, frozenset[str]] = {
    "": _names(
        "type sparkVersion mode proxyUser image imagePullPolicy imagePullSecrets mainClass "
        "mainApplicationFile arguments sparkConf hadoopConf sparkConfigMap hadoopConfigMap volumes driver "
        "executor deps restartPolicy nodeSelector failureRetries retryInterval pythonVersion "
        "memoryOverheadFactor monitoring batchScheduler batchSchedulerOptions timeToLiveSeconds "
        "sparkUIOptions driverIngressOptions dynamicAllocation suspend driverPodDisruptionBudget"
    ),
    "driver": _POD | {"podName", "kubernetesMaster", "serviceLabels", "serviceAnnotations"},
    "executor": _POD | {"instances", "deleteOnTermination"},
    "deps": _names("jars files pyFiles packages excludePackages repositories archives"),
}
TYPES = ("Python", "Java", "Scala", "R")

Spec = Mapping[str, JsonValue]
Problems = Iterator[tuple[Loc, str]]


def check_spark_application(spec: Spec) -> Problems:
    """Problems of a SparkApplication's spec, each with its path below the spec."""
    for part, known in KNOWN.items():
        fields = spec.get(part) if part else spec
        if isinstance(fields, dict) or fields is spec:
            yield from _misspelt(part, fields, known)
        elif fields is not None:
            yield (part,), "must be a map of fields"
    yield from _kept_from_retrying(spec)
    yield from _a_driver_per_attempt(spec)
    yield from _command(spec)
    for name in ("sparkConf", "hadoopConf"):
        yield from _conf(name, spec.get(name))
    for role in ("driver", "executor"):
        pod = spec.get(role)
        if isinstance(pod, dict):
            yield from _environment(role, pod)


def check_new_spark_application(spec: Spec) -> Problems:
    """Problems of a new job's SparkApplication: what contradicts its attempt, and text that would not arrive as it is written."""
    yield from text_fields.not_text(spec)
    yield from reserved.contradictions(spec)
    if not json.dumps(spec, ensure_ascii=False).isascii():  # no encoding and no kubelet changes ASCII
        yield from expansion.garbled(spec)
        yield from utf8.problems(spec)


def _misspelt(part: str, fields: Spec, known: frozenset[str]) -> Problems:
    unknown = [name for name in fields if name not in known]
    for name in unknown if len(unknown) <= COMPARED else ():
        if near := difflib.get_close_matches(name, known, n=1, cutoff=0.85):
            yield (part, name) if part else (name,), f"is not a field of a SparkApplication; did you mean {near[0]}?"


def _kept_from_retrying(spec: Spec) -> Problems:
    policy = spec.get("restartPolicy")
    if policy is not None and not isinstance(policy, dict):
        yield ("restartPolicy",), "must be a map with type: Never, or absent"
    elif policy and policy.get("type") not in (None, "Never"):
        sentence = "must be Never or absent: attempts are counted and fenced by spec.retry, not inside an application"
        yield ("restartPolicy", "type"), sentence
    if spec.get("timeToLiveSeconds") is not None:
        yield ("timeToLiveSeconds",), "must be absent: spec.applicationTTL says how long applications stay"
    if spec.get("suspend") not in (None, False):
        yield ("suspend",), "must be absent: spec.suspend of the IdempotentJob starts and stops it"


def _a_driver_per_attempt(spec: Spec) -> Problems:
    """The driver pod is named after the attempt, which is what prevents a second driver of the attempt."""
    driver, conf = spec.get("driver"), spec.get("sparkConf")
    named = "must be absent: each attempt names its own driver pod, so that none can start twice"
    if isinstance(driver, dict) and driver.get("podName") not in (None, ""):
        yield ("driver", "podName"), named
    if isinstance(conf, dict) and conf.get(DRIVER_POD_NAME) not in (None, ""):
        yield ("sparkConf", DRIVER_POD_NAME), named
    if spec.get("mode") not in (None, "cluster"):
        yield ("mode",), "must be cluster or absent: a driver inside the Spark operator has no pod to watch or to stop"


def _command(spec: Spec) -> Problems:
    kind = spec.get("type")
    if kind is not None and kind not in TYPES:
        yield ("type",), f"must be {', '.join(TYPES[:-1])} or {TYPES[-1]}"
    for name in ("mainApplicationFile", "mainClass"):
        value = spec.get(name)
        if isinstance(value, bool | int | float):
            yield (name,), text_fields.sentence(value)
        elif not isinstance(value, str | None):
            yield (name,), "must be text"
    yield from _scalars(("arguments",), spec.get("arguments"))
    deps = spec.get("deps")
    if isinstance(deps, dict):
        for name, entries in deps.items():
            if name in KNOWN["deps"]:
                yield from _scalars(("deps", name), entries)


def _scalars(loc: Loc, entries: JsonValue) -> Problems:
    if entries is None:
        return
    if not isinstance(entries, list):
        yield loc, "must be a list"
        return
    for index, each in enumerate(entries):
        if each is None:
            yield (*loc, index), text_fields.sentence(each)
        elif isinstance(each, dict | list):
            yield (*loc, index), "must be text; put it in quotes"


def _conf(field: str, conf: JsonValue) -> Problems:
    if conf is None:
        return
    if not isinstance(conf, dict):
        yield (field,), "must be a map of names to values"
        return
    for name, value in conf.items():
        if isinstance(value, dict | list):
            yield (field, name), "must be one value; names with dots are written as one word"
        forwarded = next((name.removeprefix(each) for each in _FORWARDING if name.startswith(each)), "")
        if name.startswith(RESERVED_CONF) or forwarded.startswith(RESERVED_ENVIRONMENT):
            yield (field, name), "is set by sparkonce alone; remove it"


def _environment(role: str, pod: Spec) -> Problems:
    env = pod.get("env")
    if env is not None and not isinstance(env, list):
        yield (role, "env"), "must be a list of name and value"
        env = []
    for index, entry in enumerate(env or []):
        at: Loc = (role, "env", index)
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            yield at, "must be a map with a name, and a value or valueFrom"
        elif str(entry["name"]).startswith(RESERVED_ENVIRONMENT):
            yield (*at, "name"), "is set by sparkonce alone; remove it"
        elif isinstance(entry.get("value"), dict | list):
            yield (*at, "value"), "must be text"
    variables = pod.get("envVars")
    if variables is not None and not isinstance(variables, dict):
        yield (role, "envVars"), "must be a map of names to values"
        return
    for name, value in (variables or {}).items():
        if name.startswith(RESERVED_ENVIRONMENT):
            yield (role, "envVars", name), "is set by sparkonce alone; remove it"
        elif isinstance(value, dict | list):
            yield (role, "envVars", name), "must be text"


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
    check=check_spark_application,
    check_new=check_new_spark_application,
)

# --- the registry

_BUILT_IN = (SPARK_APPLICATION,)


def field_classes(api_version: str, kind: str, *, version: int = 1) -> FieldClasses:
    """Field classes of a template kind for a fingerprint version. Raises: UnknownTemplateKind: neither built in nor installed."""
    for each in _BUILT_IN:
        if (each.api_version, each.kind, each.version) == (api_version, kind, version):
            return each
    return _installed(api_version, kind, version)


@functools.lru_cache(maxsize=64)
def _installed(api_version: str, kind: str, version: int) -> FieldClasses:
    from importlib.metadata import entry_points

    for point in entry_points(group=ENTRY_POINTS):
        found = point.load()
        if not isinstance(found, FieldClasses):
            raise UnknownTemplateKind(f"the entry point {point.name} of {ENTRY_POINTS} is not a FieldClasses")
        if (found.api_version, found.kind, found.version) == (api_version, kind, version):
            return found
    known = ", ".join(f"{each.kind} of {each.api_version}" for each in _BUILT_IN)
    raise UnknownTemplateKind(f"{kind} of {api_version} is not a kind of application known here; built in: {known}")
