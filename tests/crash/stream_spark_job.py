"""The real streaming job of the crash tests: one small file per batch.

stream_spark_job.py FOLDER
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import sparkonce


def main(folder: str) -> None:
    spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    rows = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(folder)
    print(sparkonce.current().stream(rows).write("a"))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
