"""What is known of kubeflow's SparkApplication v1beta2: its field names, and what an idempotent job may not ask of it.

The Spark operator validates its own resource; repeating its schema here would refuse what a newer operator knows. So only these are
refused: what would break the promise (inner retries, a TTL, forged `spark.sparkonce.*`, a driver pod with a fixed name or with no pod at
all), what could not be fingerprinted, and an unknown name *near* a known one, which is a misspelling rather than a newer field.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from sparkonce.model.problems import Loc

RESERVED_CONF = "spark.sparkonce."
RESERVED_ENVIRONMENT = "SPARKONCE_"
DRIVER_POD_NAME = "spark.kubernetes.driver.pod.name"
_FORWARDING = ("spark.kubernetes.driverEnv.", "spark.executorEnv.")  # conf that becomes environment


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


def check(spec: Spec) -> Problems:
    """Problems of a SparkApplication's spec, each with its place below it."""
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


def _misspelt(part: str, fields: Spec, known: frozenset[str]) -> Problems:
    for name in fields:
        near = [] if name in known else difflib.get_close_matches(name, known, n=1, cutoff=0.85)
        if near:
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
    """The driver pod's name, made from the attempt's, is what keeps a second driver of the attempt from starting."""
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
        if not isinstance(spec.get(name), str | None):
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
        if each is None or isinstance(each, dict | list):
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
