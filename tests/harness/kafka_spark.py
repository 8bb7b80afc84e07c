"""What Spark's own connector reads of topics: `python -m harness.kafka_spark FOLDER JARS BROKERS TOPIC COLUMNS KEYED`.

It writes FOLDER/facts.json: the rows of committed transactions by a batch query and by a stream, how many messages a reader of uncommitted
ones sees, and of the topic KEYED, whose rows have keys, the last row of each. COLUMNS is a schema as `from_json` takes it. A process of its
own, because the jars must be there when its JVM starts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def main(folder: Path, jars: str, brokers: str, *, topic: str, columns: str, keyed: str) -> None:
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
    last = (
        spark.read.format("kafka")
        .options(**{**committed, "subscribe": keyed})
        .load()
        .groupBy("key")
        .agg(F.max_by("value", "offset").alias("value"))
        .select(F.from_json(F.col("value").cast("string"), "n long, s string, _deleted boolean").alias("row"))
        .select("row.*")
        .where("not coalesce(_deleted, false)")
    )
    found["latest"] = [[row.n, row.s] for row in last.orderBy("n").collect()]
    (folder / "facts.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    where, jar_files, addresses, plain, schema, with_keys = sys.argv[1:]
    main(Path(where), jar_files, addresses, topic=plain, columns=schema, keyed=with_keys)
