"""A script that knows nothing of sparkonce: the crash tests of capture run it as it is.

captured_script.py LAKE GATE [END]

It merges into a Delta table, appends to it, makes a second one and writes Parquet. END: what it does last; `error` raises before the second
table, `1` exits with that code after it, `undeclared` writes somewhere else first.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession


def slowly(number: int, gate: str) -> int:
    """Waits while the test wants the statement to be under way, and shows that it is."""
    while Path(gate).exists():
        Path(f"{gate}.inside").touch()
        time.sleep(0.05)  # polls until the test removes the gate
    return number


def main(lake: str, gate: str, last: str = "") -> None:
    spark = SparkSession.builder.getOrCreate()
    orders, totals = f"{lake}/orders", f"{lake}/totals"
    if last == "undeclared":
        spark.range(3).write.parquet(f"{lake}/undeclared")
    spark.udf.register("slow", lambda number: slowly(number, gate), "long")
    spark.sql("CREATE OR REPLACE TEMP VIEW changes AS SELECT slow(id) AS id FROM range(5, 15)")
    spark.sql(
        f"MERGE INTO delta.`{orders}` t USING changes s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET v = t.v + 1 WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 100)"
    )
    more = spark.range(100, 103).selectExpr("id", "7 AS v").coalesce(1)
    more.write.format("delta").mode("append").save(orders)
    if last == "error":
        spark.read.parquet(f"{lake}/missing")
    read = spark.read.format("delta").load(orders)
    read.groupBy("v").count().coalesce(1).write.format("delta").partitionBy("v").save(totals)
    spark.range(7).withColumnRenamed("id", "n").write.parquet(f"{lake}/events")
    spark.stop()
    if last == "1":
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
