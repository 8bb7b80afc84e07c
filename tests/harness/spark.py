"""One small Spark for the tests of a module: two cores, no web page, its console quiet.

Import the fixture into a `conftest.py`. Where there is no Java the tests that need it are skipped with that reason (and fail in CI, as
every skip does).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
