"""A script as people write them: overwrites a folder of Parquet. `unchanged_script.py FOLDER ROWS`."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("rows").getOrCreate()
rows = spark.range(0, int(sys.argv[2]), 1, 8).selectExpr(
    "id",
    "cast(id * 7919 % 1000003 as int) as number",
    "(id * 31 % 999983) / 100D as amount",
    "concat('category-', cast(id % 97 as string)) as category",
    "hex(xxhash64(id)) as token",
)
rows.write.mode("overwrite").parquet(sys.argv[1])
spark.stop()
