"""What Spark's own connector reads of a topic: `python -m harness.kafka_spark FOLDER JARS BROKERS TOPIC COLUMNS` writes FOLDER/facts.json.

The rows of committed transactions by a batch query and by a stream, and how many messages a reader of uncommitted ones sees. COLUMNS is a
schema as `from_json` takes it. A process of its own, because the jars must be there when its JVM starts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def main(folder: Path, jars: str, brokers: str, topic: str, columns: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    common = {"kafka.bootstrap.servers": brokers, "subscribe": topic, "startingOffsets": "earliest"}
    committed = {**common, "kafka.isolation.level": "read_committed"}

    def rows(frame: Any) -> Any:
        return frame.select(F.from_json(F.col("value").cast("string"), columns).alias("row")).select("row.*")

    found: dict[str, Any] = {"messages": spark.read.format("kafka").options(**common).load().count()}
    batch = rows(spark.read.format("kafka").options(**committed).load())
    found["batch"] = [list(map(str, row)) for row in batch.orderBy("n").collect()]
    query = (
        rows(spark.readStream.format("kafka").options(**committed).load())
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "streamed"))
    )
    query.awaitTermination()
    found["stream"] = [
        list(map(str, row)) for row in spark.read.parquet(str(folder / "streamed")).orderBy("n").collect()
    ]
    (folder / "facts.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:6])
