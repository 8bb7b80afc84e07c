"""Text beyond ASCII through both JVMs of a real spark-submit, sent from a terminal without a locale."""

from __future__ import annotations

import json
import sys

import pytest

from harness.desk import Desk
from harness.spark import needed_java
from harness.spark_archive import SHORT_LIVED

SCRIPT = """
    import json, os, sys
    import sparkonce
    from pyspark.sql import SparkSession

    job = sparkonce.current()
    spark = SparkSession.builder.getOrCreate()
    worker = spark.sparkContext.parallelize([1], 1).map(lambda _: os.environ["CITY"]).collect()
    job.write(spark.range(1), "numbers")
    told = [sys.argv[1:], os.environ["CITY"], spark.conf.get("spark.example.city"), worker, open("Łódź.txt").read()]
    job.result(told=json.dumps(told))
"""
CITY = "東京 → Łódź 😀"


@pytest.mark.spark
def test_text_arrives_from_a_terminal_without_a_locale(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments, environment, settings and file names are those of the job file, whatever locale the sender, Python and Java have."""
    needed_java()
    (desk.folder / "Łódź.txt").write_text(CITY, encoding="utf-8")
    template = {
        "mainApplicationFile": "jöb.py",
        "arguments": ["Zürich", CITY, "", "$(CITY)"],
        "sparkConf": {"spark.driver.extraJavaOptions": SHORT_LIVED, "spark.example.city": CITY},
        "driver": {"env": [{"name": "CITY", "value": CITY}]},
    }
    desk.job(SCRIPT, template=template)
    (desk.folder / "job.py").rename(desk.folder / "jöb.py")
    monkeypatch.delenv("SPARKONCE_SPARK_SUBMIT")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    del desk.environment["SPARKONCE_SPARK_SUBMIT"]
    said = desk.start(
        "run",
        "job.yaml",
        "--json",
        LC_ALL="C",
        PYTHONIOENCODING="latin-1",
        JAVA_TOOL_OPTIONS="-Dfile.encoding=ISO-8859-1",
    ).end()
    assert said.code == 0, said.err
    told = json.loads(said.told["result"]["values"]["told"])
    assert told == [["Zürich", CITY, "", CITY], CITY, CITY, [CITY], CITY]
