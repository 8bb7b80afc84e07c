"""One small Spark for the tests of a module: two cores, no web page, its console quiet.

Import the fixture into a `conftest.py`. Where there is no Java the tests that need it are skipped with that reason (and fail in CI, as
every skip does).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For JVMs that live for seconds: without the second compiler, which would spend more on such a job than the job itself."""
PATIENCE = 900.0
"""Seconds: half a minute on free cores, and cores are not always free."""


def java() -> str | None:
    """The `java` that Spark would start."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else shutil.which("java")


def needed_java() -> str:
    """The same. Skips the test where there is none, which is a failure in CI: a laptop may do without Spark."""
    found = java()
    if found is None:
        pytest.skip("no Java: install OpenJDK 17")
    return found


def facts_of(module: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """What `python -m MODULE FOLDER ...`, a Spark in a process of its own, wrote into FOLDER/facts.json. Skips without Java."""
    needed_java()
    done = subprocess.run(
        [sys.executable, "-m", module, str(folder), *arguments],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, "\n".join(line for line in done.stderr.splitlines() if not line.startswith("\tat "))
    return dict(json.loads((folder / "facts.json").read_text()))


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of its own; its warehouse and scratch folders are under pytest's."""
    needed_java()
    from pyspark.sql import SparkSession

    # Workers must be this very Python; Spark takes `python3` from PATH otherwise, which has no pyspark.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2,3]")  # a task may fail twice: plain `local[2]` never tries again
        .appName("sparkonce-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.local.dir", str(tmp_path_factory.mktemp("scratch")))
        .getOrCreate()
    )
    yield session
    session.stop()
