"""Why a real Spark job failed, as `sparkonce run` reports it."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from harness.desk import Desk
from harness.spark import SHORT_LIVED, needed_java

UDF = """
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import udf

    spark = SparkSession.builder.getOrCreate()

    @udf("int")
    def parse(number):
        raise ValueError(f"bad row {number}")

    spark.range(1).select(parse("id")).collect()
"""
COLUMN = """
    from pyspark.sql import SparkSession

    SparkSession.builder.getOrCreate().range(3).select("ident").show()
"""
SYNTAX = """
    from pyspark.sql import SparkSession
    spark = SparkSession.builder.getOrCreate(
"""


@pytest.mark.spark
@pytest.mark.parametrize(
    ("script", "kind", "cause", "line"),
    [
        (UDF, "Exited", "ValueError: bad row 0", 'raise ValueError(f"bad row {number}")'),
        (COLUMN, "Exited", "AnalysisException: [UNRESOLVED_COLUMN.WITH_SUGGESTION]", 'select("ident")'),
        (SYNTAX, "Permanent", "SyntaxError: '(' was never closed", "getOrCreate("),
    ],
)
def test_the_exception_of_a_real_driver(  # noqa: PLR0917 - a row of the table
    desk: Desk, monkeypatch: pytest.MonkeyPatch, script: str, kind: str, cause: str, line: str
) -> None:
    """The sentence ends with the exception, found in either output stream of spark-submit; the excerpt has the script's own line."""
    needed_java()
    monkeypatch.delenv("SPARKONCE_SPARK_SUBMIT")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    conf = {"spark.driver.extraJavaOptions": SHORT_LIVED}
    retry: dict[str, Any] = {"maxAttempts": 2 if kind == "Permanent" else 1}
    desk.job(script, template={"sparkConf": conf}, retry=retry)
    told = desk.here("run", "job.yaml", "--json").told
    failure = told["result"]["failure"]
    assert (failure["class"], told["attempt"]) == (kind, 1)
    assert cause in failure["message"]
    assert line in failure["logTail"]
    assert "INFO" not in failure["logTail"]
