"""Writes orders that arrive as files of JSON lines to a table: each file is a micro-batch, and each batch is one commit."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import sparkonce

job = sparkonce.current()
spark = SparkSession.builder.getOrCreate()
orders = (
    spark.readStream.schema("id LONG, customer STRING, amount DOUBLE, day STRING")
    .option("maxFilesPerTrigger", 1)
    .json(sys.argv[1])
)
done = job.stream(orders).write("orders", checkpoint="data/checkpoint", partition_by=["day"])
job.result(batches=done.batches)
