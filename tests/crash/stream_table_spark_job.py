"""The real streaming job of the tests of tables: one small file per batch, with a time beside each number.

stream_table_spark_job.py FOLDER
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import sparkonce


def main(folder: str) -> None:
    spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    rows = spark.readStream.schema("n long, day long").option("maxFilesPerTrigger", 1).json(folder)
    timed = rows.selectExpr("n", "day", "timestamp_seconds(n) AS at")
    print(sparkonce.current().stream(timed).write("a", partition_by=["day"]))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
