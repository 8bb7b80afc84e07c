"""The real Spark job of the crash tests of native blocks on Iceberg: statements that give other rows when one of them runs twice.

native_iceberg_job.py SHAPE GATE
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

import sparkonce

NAME = "lake.sales.orders"
MERGE = (
    f"MERGE INTO {NAME} t USING (SELECT slow(id) AS id FROM range(5, 15)) s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET v = t.v + 1 WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 100)"
)
UPDATE = f"UPDATE {NAME} SET v = v + 10 WHERE id % 2 = 0"
ONLY_INSERTS = (
    f"MERGE INTO {NAME} t USING (SELECT slow(id) AS id FROM range(5001, 5004)) s ON t.id = s.id "
    "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 7)"
)
APPEND = f"INSERT INTO {NAME} SELECT id, 7 FROM range(100, 103)"


def main(shape: str, gate: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    spark.udf.register("slow", lambda number: slowly(number, gate), "long")
    job = sparkonce.current()
    if shape in ("sql", "inserts"):
        job.sql(MERGE if shape == "sql" else ONLY_INSERTS, "orders")
    else:
        with job.native("orders"):
            if shape == "many":
                spark.sql(MERGE)
                spark.sql(UPDATE)
            else:
                spark.sql(APPEND.replace("7", "slow(7)"))
            spark.range(100, 103).selectExpr("id + 100 AS id", "7 AS v").coalesce(1).writeTo(NAME).append()
            if shape == "many":
                spark.sql(APPEND)
    spark.stop()


def slowly(number: int, gate: str) -> int:
    """Waits while the test wants the statement to be under way, and shows that it is."""
    while Path(gate).exists():
        Path(f"{gate}.inside").touch()
        time.sleep(0.05)  # polls until the test removes the gate
    return number


if __name__ == "__main__":
    main(*sys.argv[1:])
