"""Load one month of orders into the table `orders`."""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import sparkonce


def main() -> None:
    """Reads, joins and appends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--month", required=True, help="such as 1995-01")
    parser.add_argument("--landing", required=True, help="folder of the deliveries")
    args = parser.parse_args()

    job = sparkonce.current()
    spark = SparkSession.builder.getOrCreate()
    orders = spark.read.parquet(f"{args.landing}/orders/{args.month}.parquet")
    lines = spark.read.parquet(f"{args.landing}/lines/{args.month}.parquet")
    sums = lines.groupBy("orderkey").agg(
        F.count("*").alias("lines"),
        F.sum(F.expr("extendedprice * (1 - discount)")).cast("decimal(18,2)").alias("revenue"),
    )
    job.write(orders.join(sums, "orderkey").drop("comment", "clerk"), "orders")


if __name__ == "__main__":
    main()
