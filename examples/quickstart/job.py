"""Writes the squares of the first thousand numbers to a table."""

from __future__ import annotations

from pyspark.sql import SparkSession

import sparkonce

job = sparkonce.current()
spark = SparkSession.builder.getOrCreate()
squares = spark.range(1000).selectExpr("id", "id * id AS square")
job.write(squares, "squares")
