"""A script that writes Iceberg tables and knows nothing of sparkonce: the crash tests of capture run it as it is.

captured_tables_script.py LAKE GATE

It merges into a table, updates it and appends to it, makes a second table of what it reads there, and writes Parquet.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

ORDERS, TOTALS = "lake.sales.orders", "lake.sales.totals"


def slowly(number: int, gate: str) -> int:
    """Waits while the test wants the statement to be under way, and shows that it is."""
    while Path(gate).exists():
        Path(f"{gate}.inside").touch()
        time.sleep(0.05)  # polls until the test removes the gate
    return number


def main(lake: str, gate: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    spark.udf.register("slow", lambda number: slowly(number, gate), "long")
    orders = spark.table(ORDERS)
    assert orders.count() >= 10
    spark.sql(
        f"MERGE INTO {ORDERS} t USING (SELECT slow(id) AS id FROM range(5, 15)) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET v = t.v + 1 WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 100)"
    )
    spark.sql(f"UPDATE {ORDERS} SET v = v + 10 WHERE id % 2 = 0")
    spark.range(100, 103).selectExpr("id", "7 AS v").coalesce(1).writeTo(ORDERS).append()
    totals = orders.groupBy("v").count().coalesce(1)
    totals.write.format("iceberg").saveAsTable(TOTALS)
    spark.table(TOTALS).selectExpr("v AS n").coalesce(1).write.parquet(f"{lake}/events")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
