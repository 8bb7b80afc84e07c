"""One small Spark for the tests of a module: two cores, no web page, no console output.

Import the fixture into a `conftest.py`. Without Java the tests that need it are skipped with that reason (and fail in CI, as every skip
does).
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.patience import completed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Settings with which plans are interpreted: to compile the plans of a few rows takes longer."""
AS_USERS_HAVE_IT: dict[str, Any] = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
"""Spark's defaults, for sessions that many rows of all types pass through."""
FEW_FILES = {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",  # tasks of a VACUUM, which by default are ten thousand
}
"""Settings for tables of a few files."""
PATIENCE = 900.0
"""Seconds; half a minute on free cores."""


def as_options() -> str:
    """These settings as options of a JVM, for each Spark that the tests start on this machine; what a job or session sets itself wins."""
    return " ".join(f"-D{name}={value}" for name, value in {**INTERPRETED, **FEW_FILES}.items())


def java() -> str | None:
    """The `java` that Spark would start; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else shutil.which("java")


def needed_java() -> str:
    """As `java`. Skips the test if there is none, which is a failure in CI."""
    found = java()
    if found is None:
        pytest.skip("no Java: install OpenJDK 17")
    return found


def facts_of(module: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """Runs `python -m MODULE FOLDER ...` in that folder, a Spark in its own process, and returns what it wrote to FOLDER/facts.json. Skips
    without Java."""
    needed_java()
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable}
    done = completed([sys.executable, "-m", module, str(folder), *arguments], PATIENCE, cwd=folder, env=environment)
    assert done.returncode == 0, "\n".join(line for line in done.stderr.splitlines() if not line.startswith("\tat "))
    return dict(json.loads((folder / "facts.json").read_text()))


def facts_once(factory: pytest.TempPathFactory, name: str, gather: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """What `gather` returns for a folder of its own. The first of pytest's workers that asks for this name calls it; the others wait, and
    read the same. If it fails, the next one calls it again."""
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    told = shared / f"{name}.facts.json"
    with (shared / f"{name}.facts.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.exists():
            written = told.with_suffix(".part")
            written.write_text(json.dumps(gather(factory.mktemp(name))))
            written.replace(told)
    return dict(json.loads(told.read_text()))


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session for the module; its warehouse and scratch folders are under pytest's."""
    needed_java()
    from pyspark.sql import SparkSession

    # Workers must use this interpreter; otherwise Spark takes `python3` from PATH, which has no pyspark.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2,3]")  # a task may fail twice: plain `local[2]` never tries again
        .appName("sparkonce-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .config(map=AS_USERS_HAVE_IT)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.local.dir", str(tmp_path_factory.mktemp("scratch")))
        .getOrCreate()
    )
    yield session
    session.stop()
