"""`sparkonce audit --spark`: the command starts Spark and stops it."""

from __future__ import annotations

import pytest

from harness.desk import Desk
from harness.spark import needed_java
from sparkonce.cli.exits import ExitCode


@pytest.mark.spark
def test_many_files_are_read_by_spark(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--spark` the files are read by executors of a Spark session that the command starts and stops; without Java it first says
    so."""
    needed_java()
    desk.here("run", desk.job())
    next((desk.folder / "lake" / "numbers").glob("_data/*/*/*.parquet")).unlink()
    monkeypatch.delenv("SPARKONCE_SPARK_SUBMIT")
    monkeypatch.setattr("sparkonce.cli.audit.MANY", 1)
    said = desk.here("audit", "--spark")
    assert said.code == ExitCode.FAILED
    assert "defect: missing file: it is not there" in said.out
    from pyspark.sql import SparkSession

    assert SparkSession.getActiveSession() is None
    monkeypatch.setenv("JAVA_HOME", str(desk.folder))
    refused = desk.here("audit", "--spark")
    assert (refused.code, "install Java 17" in refused.err) == (ExitCode.INVALID, True)
