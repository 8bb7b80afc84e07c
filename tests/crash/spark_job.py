"""The real Spark job of the crash tests.

spark_job.py SHAPE ROWS
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import sparkonce


def main(shape: str, rows: int) -> None:
    spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    job = sparkonce.current()
    a = spark.range(0, rows, numPartitions=2).withColumnRenamed("id", "n")
    b = spark.range(rows, 2 * rows, numPartitions=2).withColumnRenamed("id", "n")
    if shape == "tx":
        with job.transaction() as tx:
            tx.write(a, "a")
            tx.write(b, "b")
    else:
        job.write(a, "a")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
