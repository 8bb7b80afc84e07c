"""A notebook's job on an S3-compatible server, with Spark's own connector: `s3a_job.py URL LEDGER FOLDER`. Prints its observations as JSON.

It is a separate process, because the connector must be on the class path when the JVM starts. Server and credentials come from the
environment; Spark's other settings are those of docs/outputs.md.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import sparkonce
from harness.store_parts import s3a_resolved
from sparkonce.blocking import run
from sparkonce.sink.objects.location import objects_at
from sparkonce.sink.open import open_sink
from sparkonce.sink.protocol import Declared, SinkKey
from sparkonce.sink.slotlog.sink import SlotLogSink


def session(folder: str) -> Any:
    """Spark with S3A; its scratch files are in `folder`."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.jars": ",".join(map(str, s3a_resolved())),
        "spark.hadoop.fs.s3a.endpoint": os.environ["AWS_ENDPOINT_URL_S3"],
        "spark.hadoop.fs.s3a.endpoint.region": os.environ["AWS_REGION"],
        "spark.hadoop.fs.s3a.path.style.access": "true",
        # In a folder with a single write the faster way to commit tasks is just as safe; the other one copies each file twice.
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
        "spark.ui.enabled": "false",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": folder,
        "spark.hadoop.fs.s3a.buffer.dir": folder,
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main(url: str, ledger: str, folder: str) -> None:
    """Writes, writes again, reads, and fails once."""
    spark = session(folder)
    seen: dict[str, Any] = {"replayed": []}
    frame = spark.range(0, 40, 1, 1).selectExpr(
        "id", "case when id % 4 = 3 then null else concat('a/b%=', id % 4, ' ü+') end as kind", "repeat('x', 9) as wide"
    )
    for _ in range(2):
        with sparkonce.job("k1", outputs={"orders": url}, store=ledger) as job:
            result = job.write(frame, "orders", partition_by=["kind"])
            seen["replayed"].append(not result.fresh)
    query = sparkonce.read(spark, url).where("kind = 'a/b%=1 ü+'").select("id")
    seen["ids"] = sorted(row.id for row in query.collect())
    seen["counts"] = list(sparkonce.read(spark, url).selectExpr("count(*)", "count(*) - count(kind)").first() or [])
    seen["plan"] = query._jdf.queryExecution().executedPlan().toString()
    seen["files"] = sparkonce.files(url)
    sink = open_sink(Declared(name="orders", kind="slotLog", location=url), base=None)
    key = SinkKey(key_hash="k2", output="orders", generation=1)
    try:
        sink.stage(frame.selectExpr("id", "if(id > 30, raise_error('broken'), id) as n"), key, 1, fingerprint="f")
    except Exception as error:
        seen["failed"] = "broken" in str(error)
    staged = sink.stage(frame, key, 1, fingerprint="f")
    run(sink.fence(key, 2, fingerprint="f", by="settle"))
    seen["late"] = type(run(sink.commit(key, staged))).__name__
    seen["swept"] = run(sink.sweep(key)).folders
    seen["left"] = [(each.path, each.bytes) for each in run(objects_at(url, field="url").list(""))]
    inventory = run(sink.inventory())
    seen["inventory"] = [len(inventory.effects), len(inventory.staged), len(inventory.live)]
    assert isinstance(sink, SlotLogSink)
    several = SinkKey(key_hash="k3", output="orders", generation=1)
    part = frame.limit(3).coalesce(1)
    staged_writes = sink.stage_more(part, several, sink.stage_first(part, several, 1, fingerprint="f"))
    seen["several"] = type(run(sink.commit(several, run(sink.together(staged_writes))))).__name__
    seen["rows"] = sparkonce.read(spark, url).count()
    spark.stop()
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
