"""A SparkApplication as `spark-submit --master local[*]` can run it, and the list of what it cannot.

What only a cluster has (images, pods, sizes, scheduling) is skipped and *named*: a field that silently does nothing is worse than
one that is refused. Values that a laptop cannot look up (secrets behind `valueFrom`) are skipped in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from pydantic import JsonValue

from sparkonce.model.fields import argument_texts, as_text
from sparkonce.model.problems import InvalidJob, path_text
from sparkonce.model.spec import IdempotentJob, Template

_USED = {"type", "mainApplicationFile", "mainClass", "arguments", "sparkConf", "hadoopConf"}
_USED_DEPS = {"pyFiles", "jars", "files", "archives", "packages", "excludePackages", "repositories"}
_USED_PARTS: Mapping[str, set[str]] = {
    "deps": _USED_DEPS,
    "driver": {"env", "envVars", "javaOptions"},
    "executor": {"env", "envVars"},
}
_MEANINGLESS = {"restartPolicy", "suspend"}  # they may only say what local mode does anyway
_CLUSTER_CONF = ("spark.kubernetes.", "spark.master", "spark.submit.deployMode")


@dataclass(frozen=True, kw_only=True)
class LocalTemplate:
    """Paths are as written: relative ones are relative to the job file, which the caller knows."""

    type: str
    """Python, Java, Scala or R."""
    main_file: str
    main_class: str | None
    arguments: tuple[str, ...]
    conf: Mapping[str, str]
    """Spark's configuration, Hadoop's (`spark.hadoop.*`) and the executors' environment (`spark.executorEnv.*`) included."""
    env: Mapping[str, str]
    """The driver's environment."""
    py_files: tuple[str, ...]
    jars: tuple[str, ...]
    files: tuple[str, ...]
    archives: tuple[str, ...]
    packages: tuple[str, ...]
    exclude_packages: tuple[str, ...]
    repositories: tuple[str, ...]
    skipped: tuple[str, ...]
    """Field paths that are given and do nothing here."""

    @classmethod
    def of(cls, job: IdempotentJob, *, source: str = "") -> Self:
        """InvalidJob: the template names no application file."""
        spec = job.spec.template.spec
        main_file = spec.get("mainApplicationFile")
        if not isinstance(main_file, str) or not main_file:
            where = "spec.template.spec.mainApplicationFile"
            raise InvalidJob([(where, "is required to run it here; name the script or jar")], source=source)
        driver, executor, deps = (_map(spec.get(part)) for part in ("driver", "executor", "deps"))
        main_class, kind = spec.get("mainClass"), spec.get("type")
        return cls(
            type=kind if isinstance(kind, str) else "Python" if main_file.endswith(".py") else "Java",
            main_file=main_file,
            main_class=main_class if isinstance(main_class, str) else None,
            arguments=tuple(argument_texts(spec.get("arguments"))),
            conf=_conf(spec, driver, executor),
            env=_environment(driver),
            py_files=_texts(deps, "pyFiles"),
            jars=_texts(deps, "jars"),
            files=_texts(deps, "files"),
            archives=_texts(deps, "archives"),
            packages=_texts(deps, "packages"),
            exclude_packages=_texts(deps, "excludePackages"),
            repositories=_texts(deps, "repositories"),
            skipped=tuple(path_text(("spec", "template", "spec", *path)) for path in _skipped(job.spec.template)),
        )


def _map(value: JsonValue) -> Mapping[str, JsonValue]:
    return value if isinstance(value, dict) else {}


def _texts(deps: Mapping[str, JsonValue], name: str) -> tuple[str, ...]:
    return tuple(argument_texts(deps.get(name)))


def _conf(
    spec: Mapping[str, JsonValue], driver: Mapping[str, JsonValue], executor: Mapping[str, JsonValue]
) -> dict[str, str]:
    conf: dict[str, str] = {}
    if isinstance(options := driver.get("javaOptions"), str):
        conf["spark.driver.extraJavaOptions"] = options
    conf.update({f"spark.executorEnv.{name}": value for name, value in _environment(executor).items()})
    conf.update({f"spark.hadoop.{name}": as_text(value) for name, value in _given(spec, "hadoopConf")})
    conf.update({name: as_text(value) for name, value in _given(spec, "sparkConf") if not _of_cluster(name)})
    return conf


def _given(spec: Mapping[str, JsonValue], name: str) -> list[tuple[str, JsonValue]]:
    return [(key, value) for key, value in _map(spec.get(name)).items() if value is not None]


def _of_cluster(name: str) -> bool:
    return name.startswith(_CLUSTER_CONF[0]) or name in _CLUSTER_CONF


def _entries(pod: Mapping[str, JsonValue]) -> list[dict[str, JsonValue]]:
    env = pod.get("env")
    return [entry for entry in env if isinstance(entry, dict)] if isinstance(env, list) else []


def _environment(pod: Mapping[str, JsonValue]) -> dict[str, str]:
    """`envVars` is the older spelling; `env` wins, as it does in the Spark operator."""
    variables = {name: as_text(value) for name, value in _given(pod, "envVars")}
    for entry in _entries(pod):
        if entry.get("valueFrom") is None:
            value = entry.get("value")
            variables[str(entry["name"])] = "" if value is None else as_text(value)
    return variables


def _skipped(template: Template) -> list[tuple[str, ...]]:
    spec = template.spec
    paths: list[tuple[str, ...]] = []
    for name, value in spec.items():
        if name in _USED_PARTS:
            paths += [(name, each) for each, given in _map(value).items() if given and each not in _USED_PARTS[name]]
        elif name not in _USED | _MEANINGLESS and value not in (None, {}, []):
            paths.append((name,))
    paths += [("sparkConf", name) for name, _ in _given(spec, "sparkConf") if _of_cluster(name)]
    for role in ("driver", "executor"):
        entries = _entries(_map(spec.get(role)))
        paths += [(role, "env", str(entry["name"])) for entry in entries if entry.get("valueFrom") is not None]
    return paths
