"""Why a real Spark job failed, as `sparkonce run` reports it."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from harness.desk import Desk
from harness.spark import needed_java
from harness.spark_archive import SHORT_LIVED
from sparkonce.blocking import run
from sparkonce.launch.driver_log import find
from sparkonce.model.record import UNCAUGHT

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
PATH = """
    from pyspark.sql import SparkSession
    import sparkonce

    job = sparkonce.current()
    job.write(SparkSession.builder.getOrCreate().read.parquet("/no/such/place"), "numbers")
"""
WORDS = """
    from pyspark.sql import SparkSession

    print(SparkSession.builder.getOrCreate().sparkContext.textFile("/no/such/words").count())
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
        (
            PATH,
            "Permanent",
            "AnalysisException: [PATH_NOT_FOUND] Path does not exist",
            'read.parquet("/no/such/place")',
        ),
        (WORDS, "Permanent", "Input path does not exist: file:/no/such/words", 'textFile("/no/such/words")'),
        (COLUMN, "Permanent", "AnalysisException: [UNRESOLVED_COLUMN.WITH_SUGGESTION]", 'select("ident")'),
        (SYNTAX, "Permanent", "SyntaxError: '(' was never closed", "getOrCreate("),
    ],
)
def test_the_exception_of_a_real_driver(  # noqa: PLR0917 - a row of the table
    desk: Desk, monkeypatch: pytest.MonkeyPatch, script: str, kind: str, cause: str, line: str
) -> None:
    """The sentence ends with the exception, found in either output stream of spark-submit; the excerpt has the script's own line. An error
    of the script is not repeated."""
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


@pytest.mark.spark
def test_a_real_driver_reports_why_spark_refused_its_query(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside its log, which says the same: the traceback of Spark's own exception is in the ledger, once."""
    needed_java()
    monkeypatch.delenv("SPARKONCE_SPARK_SUBMIT")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    desk.job(PATH, template={"sparkConf": {"spark.driver.extraJavaOptions": SHORT_LIVED}}, retry={"maxAttempts": 2})
    failure = desk.here("run", "job.yaml", "--json").told["result"]["failure"]
    with desk.store() as store:
        [report] = run(store.reports(desk.prepared().address, 1))
    assert (report.kind, report.attempt, failure["class"]) == (UNCAUGHT, 1, "Permanent")
    assert find(report.body["trace"], exit_code=1).script_error == ("PATH_NOT_FOUND", "AnalysisException")
