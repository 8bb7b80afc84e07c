"""A script from before sparkonce, and without it: how long orders wait by priority, as Parquet that is overwritten, and a Delta table of
late orders that is brought up to date by MERGE."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

landing, month, lake = sys.argv[1:4]
spark = SparkSession.builder.getOrCreate()

orders = spark.read.parquet(f"{landing}/orders/{month}.parquet")
lines = spark.read.parquet(f"{landing}/lines/{month}.parquet")
waits = lines.join(orders, "orderkey").withColumn("days", F.datediff("receiptdate", "orderdate"))

waits.groupBy("orderpriority").agg(F.avg("days").alias("days")).write.mode("overwrite").parquet(f"{lake}/waits")
slowest = spark.read.parquet(f"{lake}/waits").agg(F.max("days")).first()[0]

spark.sql(
    f"CREATE TABLE IF NOT EXISTS late (orderkey BIGINT, linenumber INT, days INT) USING delta LOCATION '{lake}/late'"
)
late = waits.where("receiptdate > commitdate").select("orderkey", "linenumber", "days")
late.createOrReplaceTempView("found")
spark.sql(
    "MERGE INTO late t USING found s ON t.orderkey = s.orderkey AND t.linenumber = s.linenumber "
    "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
)
print(f"slowest priority: {slowest:.1f} days")
