"""Begin the table `customers`, which keeps what each customer was and when: the first delivery, valid until further notice."""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import sparkonce


def main() -> None:
    """Reads and appends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--day", required=True, help="of the delivery, such as 1995-01-01")
    parser.add_argument("--landing", required=True, help="folder of the deliveries")
    args = parser.parse_args()

    job = sparkonce.current()
    spark = SparkSession.builder.getOrCreate()
    delivered = spark.read.parquet(f"{args.landing}/customers/{args.day}.parquet")
    valid = {"valid_from": F.lit(args.day).cast("date"), "valid_to": F.lit(None).cast("date")}
    job.write(delivered.withColumns(valid), "customers")


if __name__ == "__main__":
    main()
