"""A script that knows nothing of sparkonce: it appends to a folder of Parquet in a loop, and sums up what it reads there.

captured_loop_script.py LAKE
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(lake: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    for part in range(3):
        spark.range(10 * part, 10 * part + 4).withColumnRenamed("id", "n").write.mode("append").parquet(f"{lake}/parts")
    spark.read.parquet(f"{lake}/parts").selectExpr("sum(n) AS n").coalesce(1).write.parquet(f"{lake}/sums")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
