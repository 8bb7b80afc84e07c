"""Keeps the departures and the mean delay of each airport, from what the tap writes: `python examples/taps/delays.py TABLE FOLDER`.

Run it again whenever you like: it goes on after the last batch that it has counted. FOLDER gets the result (`delays`) and the state of the
query (`checkpoint`).
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import sparkonce


def main(table: Path, folder: Path) -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    sparkonce.register(spark)
    flights = spark.readStream.format("sparkonce").load(str(table.absolute()))
    delays = flights.groupBy("origin").agg(F.count("*").alias("departures"), F.avg("delay").alias("delay"))

    def keep(frame: DataFrame, _: int) -> None:
        frame.coalesce(1).write.mode("overwrite").parquet(str(folder / "delays"))

    query = delays.writeStream.outputMode("complete").foreachBatch(keep)
    query.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start().awaitTermination()
    spark.read.parquet(str(folder / "delays")).orderBy("origin").show()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
