"""Runs SparkApplication templates on this machine: what spark-submit can use of a template, its command line, and Spark and Java.

A template runs as `spark-submit --master local[*]`. Fields that only a cluster has (images, pods, sizes, scheduling) and values that a
laptop cannot look up (secrets behind `valueFrom`) are skipped and *listed*, because a field that is silently ignored is worse than one
that is refused; the command line prints `LocalTemplate.skipped` once.

`check_spark` runs before a job is started, never for a replay: without Java every attempt of the key would fail, and that failure would be
replayed for days. The version comes from `java -version`, because a path says nothing about it. With SPARKONCE_SPARK_SUBMIT set, Java is
the user's responsibility and is not checked.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import unquote, urlsplit

from pydantic import JsonValue

from sparkonce.errors import InvalidInput
from sparkonce.model.application import utf8
from sparkonce.model.application.expansion import FORWARDING, env_entries, expand, expands, template_env_entries
from sparkonce.model.fields import argument_texts, as_text
from sparkonce.model.record import LEDGER_ENVIRONMENT, Assignment
from sparkonce.model.spec import IdempotentJob, Template
from sparkonce.model.validation import InvalidJob, Loc, path_text

if TYPE_CHECKING:
    from sparkonce.launch.local import Command

SUBMIT_ENVIRONMENT = "SPARKONCE_SPARK_SUBMIT"
MASTER_ENVIRONMENT = "SPARKONCE_MASTER"

CAPTURE = str(Path(__file__).parents[1] / "driver" / "capture.py")
"""Main file of a captured script, which is its first argument: an installation need not have programs in a folder that is known here."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")

QUIET = {
    "spark.ui.enabled": "false",  # two attempts on one laptop would compete for its port
    "spark.ui.showConsoleProgress": "false",  # the runner shows progress
}
"""Defaults of local mode; a job's own sparkConf wins."""
JAVA = 17
"""The oldest Java that Spark 4 runs on."""
JAVA_ANSWERS = 20.0
"""Seconds that `java -version` may take: a cold JVM on a busy laptop needs two."""
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

_USED = {"type", "mainApplicationFile", "mainClass", "arguments", "sparkConf", "hadoopConf"}
_USED_DEPS = {"pyFiles", "jars", "files", "archives", "packages", "excludePackages", "repositories"}
_USED_PARTS: Mapping[str, set[str]] = {
    "deps": _USED_DEPS,
    "driver": {"env", "envVars", "javaOptions"},
    "executor": {"env", "envVars"},
}
_MEANINGLESS = {"restartPolicy", "suspend"}  # their only valid values are what local mode does anyway
_CLUSTER_CONF = ("spark.kubernetes.", "spark.master", "spark.submit.deployMode")


@dataclass(frozen=True, kw_only=True)
class LocalTemplate:
    """What spark-submit runs of a template. Paths are as written: relative ones are relative to the job file."""

    type: str
    """Python, Java, Scala or R."""
    main_file: str
    main_class: str | None
    arguments: tuple[str, ...]
    conf: Mapping[str, str]
    """Spark configuration, including Hadoop's (`spark.hadoop.*`) and the executors' environment (`spark.executorEnv.*`)."""
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
    """Paths of given fields that have no effect here."""
    unknown: tuple[tuple[str, str], ...] = ()
    """Fields with a reference whose value only a cluster knows, each with a sentence. They stay as written here; a cluster expands them."""

    @classmethod
    def of(cls, job: IdempotentJob, *, source: str = "") -> Self:
        """What spark-submit can use of a job's template. Raises: InvalidJob: the template names no application file."""
        spec = job.spec.template.spec
        main_file = spec.get("mainApplicationFile")
        if not isinstance(main_file, str) or not main_file:
            where = "spec.template.spec.mainApplicationFile"
            raise InvalidJob([(where, "is required to run it here; name the script or jar")], source=source)
        driver, deps = (_map(spec.get(part)) for part in ("driver", "deps"))
        main_class, kind = spec.get("mainClass"), spec.get("type")
        drivers, executors = Environment.of(spec, "driver"), Environment.of(spec, "executor")
        arguments = [
            drivers.expanded(("arguments", index), text)
            for index, text in enumerate(argument_texts(spec.get("arguments")))
        ]
        unknown = [*drivers.unknown, *executors.unknown]
        if "$" in main_file and expands(main_file):
            unknown.insert(
                0, (("mainApplicationFile",), "is expanded on a cluster; name the file without '$(' and '$$'")
            )
        return cls(
            type=kind if isinstance(kind, str) else "Python" if main_file.endswith(".py") else "Java",
            main_file=main_file,
            main_class=main_class if isinstance(main_class, str) else None,
            arguments=tuple(arguments),
            conf=_conf(spec, driver, executors.values),
            env=drivers.values,
            py_files=_texts(deps, "pyFiles"),
            jars=_texts(deps, "jars"),
            files=_texts(deps, "files"),
            archives=_texts(deps, "archives"),
            packages=_texts(deps, "packages"),
            exclude_packages=_texts(deps, "excludePackages"),
            repositories=_texts(deps, "repositories"),
            skipped=tuple(_path(path) for path in _skipped(job.spec.template)),
            unknown=tuple((_path(loc), said) for loc, said in unknown),
        )


def _path(below: Loc) -> str:
    return path_text(("spec", "template", "spec", *below))


def _map(value: JsonValue) -> Mapping[str, JsonValue]:
    return value if isinstance(value, dict) else {}


def _texts(deps: Mapping[str, JsonValue], name: str) -> tuple[str, ...]:
    return tuple(argument_texts(deps.get(name)))


def _conf(
    spec: Mapping[str, JsonValue], driver: Mapping[str, JsonValue], executors: Mapping[str, str]
) -> dict[str, str]:
    conf: dict[str, str] = {}
    if isinstance(options := driver.get("javaOptions"), str):
        conf["spark.driver.extraJavaOptions"] = options
    conf.update({f"spark.hadoop.{name}": as_text(value) for name, value in _given(spec, "hadoopConf")})
    conf.update({name: as_text(value) for name, value in _given(spec, "sparkConf") if not _of_cluster(name)})
    conf.update({f"{FORWARDING['executor']}{name}": value for name, value in executors.items()})
    return conf


def _given(spec: Mapping[str, JsonValue], name: str) -> list[tuple[str, JsonValue]]:
    return [(key, value) for key, value in _map(spec.get(name)).items() if value is not None]


def _of_cluster(name: str) -> bool:
    return name.startswith(_CLUSTER_CONF[0]) or name in _CLUSTER_CONF


_OF_A_POD = re.compile(
    r"SPARK_\w+|SPARKONCE_\w+|LC_ALL|LC_CTYPE|PYTHONUTF8|\w+_SERVICE_(HOST|PORT\w*)|\w+_PORT(_\d+_\w+)?"
)
"""Names that a pod of Spark has, or may have, without being given them: from Spark, from sparkonce, from services of its namespace."""


@dataclass
class Environment:
    """The environment of driver or executors, expanded as on a cluster: the settings that forward variables and the older `envVars` come
    first, in no order of their own, then `env`, whose entries override them and see what came before."""

    values: dict[str, str] = field(default_factory=dict)
    unknown: list[tuple[Loc, str]] = field(default_factory=list)
    """Fields with references whose values only a cluster knows, each with a sentence."""
    _elsewhere: dict[str, str] = field(default_factory=dict)
    """Names that a cluster gives a value -> from where."""
    _any_name: str = ""
    """A field that may define any name on a cluster."""

    @classmethod
    def of(cls, spec: Mapping[str, JsonValue], role: str) -> Self:
        made, pod = cls(), _map(spec.get(role))
        made._any_name = f"{role}.envFrom" if pod.get("envFrom") else ""
        made._elsewhere = {str(name): f"{role}.envSecretKeyRefs" for name in _map(pod.get("envSecretKeyRefs"))}
        made._elsewhere |= {str(entry.get("name")): f"{role}.template" for entry in template_env_entries(pod)}
        prefix = FORWARDING[role]
        unordered: dict[str, tuple[Loc, JsonValue]] = {}
        for name, value in _given(spec, "sparkConf"):
            if name.startswith(prefix):
                unordered[name.removeprefix(prefix)] = (("sparkConf", name), value)
        unordered |= {name: ((role, "envVars", name), value) for name, value in _given(pod, "envVars")}
        own = made._elsewhere
        made._elsewhere = own | dict.fromkeys(unordered, f"variables without an order (write it under {role}.env)")
        made.values = {name: made.expanded(loc, as_text(value)) for name, (loc, value) in unordered.items()}
        made._elsewhere = own
        for index, entry in enumerate(env_entries(pod)):
            made._add((role, "env", index, "value"), entry)
        return made

    def _add(self, loc: Loc, entry: Mapping[str, JsonValue]) -> None:
        name, value = str(entry["name"]), entry.get("value")
        if entry.get("valueFrom") is not None:
            self.values.pop(name, None)
            self._elsewhere[name] = "valueFrom"
            return
        self.values[name] = "" if value is None else self.expanded(loc, as_text(value))
        self._elsewhere.pop(name, None)

    def expanded(self, loc: Loc, text: str) -> str:
        """The text as a kubelet passes it. A reference that only a cluster can resolve stays, and is noted in `unknown`."""

        def value_of(name: str) -> str | None:
            if name in self.values:
                return self.values[name]
            source = self._elsewhere.get(name) or self._any_name or ("the pod" if _OF_A_POD.fullmatch(name) else "")
            if source:
                said = f"refers to $({name}), whose value on a cluster comes from {source}"
                said += f"; write the value itself, or $$({name}) for the text"
                self.unknown.append((loc, said))
            return None

        return expand(text, value_of)


def _skipped(template: Template) -> list[tuple[str, ...]]:
    spec = template.spec
    paths: list[tuple[str, ...]] = []
    for name, value in spec.items():
        if name in _USED_PARTS:
            paths += [(name, each) for each, given in _map(value).items() if given and each not in _USED_PARTS[name]]
        elif name not in _USED | _MEANINGLESS and value not in (None, {}, []):
            paths.append((name,))
    conf = (name for name, _ in _given(spec, "sparkConf") if not name.startswith(FORWARDING["driver"]))
    paths += [("sparkConf", name) for name in conf if _of_cluster(name)]
    for role in ("driver", "executor"):
        given = env_entries(_map(spec.get(role)))
        paths += [(role, "env", str(entry["name"])) for entry in given if entry.get("valueFrom") is not None]
    return paths


def spark_submit() -> str:
    """Path of spark-submit: from the setting, the installed pyspark package, SPARK_HOME, or PATH.

    Raises:
        InvalidInput: none was found.
    """
    if chosen := os.environ.get(SUBMIT_ENVIRONMENT):
        return chosen
    package = importlib.util.find_spec("pyspark")
    homes = [Path(package.origin).parent] if package and package.origin else []
    homes += [Path(os.environ["SPARK_HOME"])] if "SPARK_HOME" in os.environ else []
    for home in homes:
        if (home / "bin" / "spark-submit").exists():
            return str(home / "bin" / "spark-submit")
    found = shutil.which("spark-submit")
    if found is None:
        raise InvalidInput("no spark-submit was found: install `sparkonce[local]`, or set SPARK_HOME")
    return found


@dataclass(frozen=True)
class Java:
    version: int | None
    said: str
    """What was found, or what is wrong; one line."""

    @property
    def fits(self) -> bool:
        return self.version is not None and self.version >= JAVA


def java() -> Java:
    """The Java that spark-submit would use: JAVA_HOME's, else the first on PATH."""
    home = os.environ.get("JAVA_HOME")
    path = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if path is None:
        return Java(None, "no java is on PATH and JAVA_HOME is not set")
    whose = f"{path} (from JAVA_HOME)" if home else path
    try:
        done = subprocess.run(
            [path, "-version"], capture_output=True, text=True, errors="replace", timeout=JAVA_ANSWERS, check=False
        )
    except OSError as problem:
        return Java(None, f"{whose} cannot be started ({problem.strerror})")
    except subprocess.TimeoutExpired:
        return Java(None, f"{whose} does not answer within {JAVA_ANSWERS:.0f} s")
    said = (done.stderr or done.stdout).strip()
    found = _VERSION.search(said)
    if done.returncode != 0 or found is None:
        return Java(None, f"{whose} fails (exit code {done.returncode}): {' '.join(said.split())[:120]}".rstrip(": "))
    version = int(found[1])
    return Java(version, f"Java {version} at {whose}")


def check_spark() -> None:
    """Checks that Spark can start here. Raises: InvalidInput: no job can be started; nothing was written."""
    spark_submit()
    if SUBMIT_ENVIRONMENT in os.environ:
        return
    found = java()
    if not found.fits:
        raise InvalidInput(
            f"Spark cannot start here: {found.said}; install Java {JAVA} or later, or set JAVA_HOME (`sparkonce doctor` shows more)"
        )


def check_text(job: IdempotentJob, *, application: str | None) -> None:
    """Checks that the job's text arrives here as it would on a cluster. Called before a job is started, never for a replay. application:
    replaces the template's main file.

    Raises: InvalidJob: a reference that only a cluster can resolve. InvalidInput: this machine lacks the locale that carries the text."""
    template = LocalTemplate.of(job)
    main = _path(("mainApplicationFile",))
    if unknown := [each for each in template.unknown if application is None or each[0] != main]:
        raise InvalidJob(unknown)
    if not _ascii(template):
        _check_locale(template)


def _check_locale(template: LocalTemplate) -> None:
    """Raises: InvalidInput: this machine lacks the locale that carries text beyond ASCII to the template's processes."""
    environment = {name: value for name, value in os.environ.items() if not utf8.about_text(name)}
    environment |= {**utf8.pinned(template.env), **template.env}
    try:
        done = subprocess.run(
            ["locale", "charmap"], env=environment, capture_output=True, text=True, timeout=JAVA_ANSWERS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return  # a system without the program, whose C library knows nothing but UTF-8 (musl)
    if done.stdout.strip().upper() not in ("UTF-8", ""):
        chosen = next(
            (template.env[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if template.env.get(name)), utf8.LOCALE
        )
        raise InvalidInput(
            f"the locale {chosen} is not installed here, and without it Java garbles the job's text beyond ASCII; install it "
            "(Debian: the packages libc-bin and locales), or write ASCII"
        )


def _ascii(template: LocalTemplate) -> bool:
    texts = (
        template.main_file,
        *template.arguments,
        *template.conf.values(),
        *template.env.values(),
        *template.py_files,
    )
    return all(text.isascii() for text in (*texts, *template.jars, *template.files, *template.archives))


def absolute(path: str, base: str) -> str:
    """The path for the child process: relative paths are resolved against the job file's folder, URIs stay."""
    if path.startswith("file:"):
        return unquote(urlsplit(path).path)
    return path if _SCHEME.match(path) else str(Path(base, path))


def check_paths(template: LocalTemplate, base: str) -> None:
    """Checks the paths of a template. Raises: InvalidJob: a path or URL names no file on any machine."""
    lists = {
        "pyFiles": template.py_files,
        "jars": template.jars,
        "files": template.files,
        "archives": template.archives,
    }
    named: list[tuple[Loc, str]] = [(("mainApplicationFile",), template.main_file)]
    named += [(("deps", name, index), path) for name, paths in lists.items() for index, path in enumerate(paths)]
    if wrong := [(loc, path) for loc, path in named if not _usable(path, base)]:
        raise InvalidJob([(_path(loc), f"is {path!r}, which is neither a path nor a URL") for loc, path in wrong])


def _usable(path: str, base: str) -> bool:
    try:
        return "\0" not in absolute(path, base)
    except ValueError:  # such as an unclosed bracket, which begins an IPv6 address
        return False


def command_for(*, application: str | None = None, ledger: str = "") -> Callable[[Assignment], Command]:
    """Builds the command of an attempt from the recorded job. application: replaces the template's main file (the CLI's --application).
    ledger: its address, where the assignment's lacks what a driver needs to connect."""

    def build(assignment: Assignment) -> Command:
        from sparkonce.launch.local import Command

        job = IdempotentJob.of(assignment.spec.job)
        template = LocalTemplate.of(job)
        base = assignment.spec.base or str(Path.cwd())
        main = application or absolute(template.main_file or "", base)
        conf = {**QUIET, **template.conf, "spark.app.name": template.conf.get("spark.app.name", assignment.name)}
        submit = spark_submit()
        argv = [submit, "--master", os.environ.get(MASTER_ENVIRONMENT, "local[*]")]
        for name, value in conf.items():
            argv += ["--conf", f"{name}={value}"]
        for option, values in (
            ("--py-files", template.py_files),
            ("--jars", template.jars),
            ("--files", template.files),
            ("--archives", template.archives),
        ):
            if values:
                argv += [option, ",".join(absolute(v, base) for v in values)]
        for option, names in (
            ("--packages", template.packages),
            ("--exclude-packages", template.exclude_packages),
            ("--repositories", template.repositories),
        ):
            if names:
                argv += [option, ",".join(names)]
        if template.main_class:
            argv += ["--class", template.main_class]
        program = [CAPTURE, main] if job.spec.captured else [main]
        return Command(
            argv=[*argv, *program, *template.arguments],
            environment={**_child_environment(submit, template.env), LEDGER_ENVIRONMENT: ledger},
            folder=base,
        )

    return build


def _child_environment(submit: str, env: Mapping[str, str]) -> dict[str, str]:
    """Environment of the child: Python workers use our interpreter, not the first python3 on PATH; spark-submit runs the Spark that it
    belongs to, not another one in SPARK_HOME; text is UTF-8, whatever Java options the sender's environment has."""
    home = Path(submit).parent.parent
    spark = {"SPARK_HOME": str(home)} if (home / "jars").is_dir() else {}
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return {**python, **spark, **utf8.pinned(env), **_java_options(env), **env}


_OPTIONS_OF_A_JVM = ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS")
"""Read by spark-submit for its two JVMs, before the job's own Java options and after JAVA_TOOL_OPTIONS."""


def _java_options(env: Mapping[str, str]) -> dict[str, str]:
    """The sender's Java options with the encoding after them; variables that the job sets itself are not among them."""
    names = [*_OPTIONS_OF_A_JVM, *(["_JAVA_OPTIONS"] if "encoding" in os.environ.get("_JAVA_OPTIONS", "") else [])]
    return {name: f"{os.environ.get(name, '')} {utf8.JVM_OPTION}".strip() for name in names if name not in env}
