"""Bring a delivery of changed and new customers into the table `customers`, by a MERGE of Spark's own engine: a slowly changing dimension
of type 2. The row of a customer who moved to another segment ends, and another one begins."""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import sparkonce

MERGE = """
MERGE INTO {table} t
USING (
    SELECT custkey AS same, * FROM delivered
    UNION ALL
    SELECT NULL AS same, d.* FROM delivered d JOIN {table} c ON d.custkey = c.custkey
    WHERE c.valid_to IS NULL AND c.mktsegment <> d.mktsegment
) s
ON t.custkey = s.same AND t.valid_to IS NULL
WHEN MATCHED AND t.mktsegment <> s.mktsegment THEN UPDATE SET valid_to = s.day
WHEN NOT MATCHED THEN INSERT (custkey, name, nationkey, mktsegment, acctbal, valid_from, valid_to)
    VALUES (s.custkey, s.name, s.nationkey, s.mktsegment, s.acctbal, s.day, NULL)
"""


def main() -> None:
    """Merges."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--day", required=True, help="of the delivery, such as 1995-02-01")
    parser.add_argument("--landing", required=True, help="folder of the deliveries")
    parser.add_argument("--table", required=True, help="the table `customers`, as SQL names it")
    args = parser.parse_args()

    job = sparkonce.current()
    spark = SparkSession.builder.getOrCreate()
    delivered = spark.read.parquet(f"{args.landing}/customers/{args.day}.parquet")
    delivered.withColumn("day", F.lit(args.day).cast("date")).createOrReplaceTempView("delivered")
    job.sql(MERGE.format(table=args.table), "customers")


if __name__ == "__main__":
    main()
