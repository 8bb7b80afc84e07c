"""From the tables `orders` and `customers`: revenue of a month per day and segment. It replaces the partition of that month."""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import sparkonce


def main() -> None:
    """Reads both tables and overwrites one partition of the third."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--month", required=True, help="such as 1995-01")
    parser.add_argument("--orders", required=True, help="the table `orders`, as SQL names it")
    parser.add_argument("--customers", required=True, help="the table `customers`, as SQL names it")
    args = parser.parse_args()

    job = sparkonce.current()
    spark = SparkSession.builder.getOrCreate()
    orders = spark.table(args.orders).where(F.date_format("orderdate", "yyyy-MM") == args.month)
    if orders.isEmpty():
        job.fail(f"{args.orders} has no orders of {args.month}; load them first")
    then = (F.col("orderdate") >= F.col("valid_from")) & (
        F.col("valid_to").isNull() | (F.col("orderdate") < F.col("valid_to"))
    )
    customers = spark.table(args.customers).select("custkey", "mktsegment", "valid_from", "valid_to")
    revenue = (
        orders.join(customers, "custkey")
        .where(then)
        .groupBy(F.lit(args.month).alias("month"), "orderdate", "mktsegment")
        .agg(F.count("*").alias("orders"), F.sum("revenue").cast("decimal(18,2)").alias("revenue"))
    )
    job.write(revenue, "revenue", partition_by=["month"])


if __name__ == "__main__":
    main()
