"""A real Spark job whose outputs are a Delta table and an Iceberg table.

tables_spark_job.py SHAPE ROWS
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import sparkonce


def main(_shape: str, rows: int) -> None:
    spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    job = sparkonce.current()
    for number, name in enumerate(job.outputs):
        job.write(spark.range(number * rows, (number + 1) * rows, numPartitions=2).withColumnRenamed("id", "n"), name)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
