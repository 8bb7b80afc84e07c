"""The command line of a local attempt: how a SparkApplication template becomes `spark-submit --master local[*]`.

Pure but for one look at where Spark is. Fields that only mean something to the Spark operator on Kubernetes are skipped here; the command
line names them once (`LocalTemplate.skipped`).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sparkonce.errors import InvalidInput
from sparkonce.launch.local import Command
from sparkonce.model.assignment import Assignment
from sparkonce.model.local_template import LocalTemplate

SUBMIT_ENVIRONMENT = "SPARKONCE_SPARK_SUBMIT"
MASTER_ENVIRONMENT = "SPARKONCE_MASTER"

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")

QUIET = {
    "spark.ui.enabled": "false",  # two attempts on one laptop would fight for its port
    "spark.ui.showConsoleProgress": "false",  # the runner shows progress
}
"""Defaults of local mode; a job's own sparkConf wins."""


def spark_submit() -> str:
    """Path of spark-submit: the setting, the pyspark package beside us, SPARK_HOME, or PATH. InvalidInput when there is none."""
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


def absolute(path: str, base: str) -> str:
    """As the child sees it: relative paths are relative to the job file, URIs stay."""
    if path.startswith("file:"):
        return unquote(urlsplit(path).path)
    return path if _SCHEME.match(path) else str(Path(base, path))


def command_for(
    template_of: Callable[[Assignment], LocalTemplate], *, application: str | None = None
) -> Callable[[Assignment], Command]:
    """`application` replaces the main file of the template (the CLI's --application)."""

    def build(assignment: Assignment) -> Command:
        template = template_of(assignment)
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
        return Command(
            argv=[*argv, main, *template.arguments], environment=_environment(submit, template.env), folder=base
        )

    return build


def _environment(submit: str, env: Mapping[str, str]) -> dict[str, str]:
    """Python workers start with the interpreter that runs us, not with whatever python3 is first on PATH; and spark-submit runs the
    Spark that it belongs to, not another one that SPARK_HOME names."""
    home = Path(submit).parent.parent
    spark = {"SPARK_HOME": str(home)} if (home / "jars").is_dir() else {}
    return {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, **spark, **env}
