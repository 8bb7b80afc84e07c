"""The real Spark job of the crash tests of native blocks: statements that give other rows when one of them runs twice.

native_spark_job.py SHAPE TABLE GATE
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

import sparkonce

MERGE = (
    "MERGE INTO delta.`{t}` t USING (SELECT slow(id) AS id FROM range(5, 15)) s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET v = t.v + 1 WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 100)"
)
UPDATE = "UPDATE delta.`{t}` SET v = v + 10 WHERE id % 2 = 0"
NOTHING = "DELETE FROM delta.`{t}` WHERE id < 0"


def main(shape: str, table: str, gate: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    spark.udf.register("slow", lambda number: slowly(number, gate), "long")
    job = sparkonce.current()
    if shape == "one":
        job.sql(MERGE.format(t=table), "orders")
    elif shape == "write":
        job.write(spark.range(5, 15).selectExpr("slow(id) AS id", "100 AS v"), "orders")
    else:
        with job.native("orders"):
            spark.sql(MERGE.format(t=table))
            spark.sql(NOTHING.format(t=table))
            spark.sql(UPDATE.format(t=table))
            spark.range(100, 103).selectExpr("id", "7 AS v").coalesce(1).write.format("delta").mode("append").save(
                table
            )
    spark.stop()


def slowly(number: int, gate: str) -> int:
    """Waits while the test wants the statement to be under way, and shows that it is."""
    while Path(gate).exists():
        Path(f"{gate}.inside").touch()
        time.sleep(0.05)  # polls until the test removes the gate
    return number


if __name__ == "__main__":
    main(*sys.argv[1:])
