"""One write as people make it today, a plain PySpark script: `write_script.py WRITE PLACE GATE`.

While the file GATE exists it waits inside the write, and while GATE.after exists it waits behind it; GATE.inside and GATE.behind show that.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

MERGE = (
    "MERGE INTO {table} t USING changes s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET v = t.v + 1 WHEN NOT MATCHED THEN INSERT (day, id, v) VALUES (s.day, s.id, s.v)"
)


def held(number: int, gate: str, shown: str) -> int:
    while Path(gate).exists():
        Path(shown).touch()
        time.sleep(0.05)  # polls until the gate is removed
    return number


def write(name: str, place: str, rows: DataFrame) -> None:
    spark = rows.sparkSession
    match name:
        case "Parquet, append":
            rows.write.mode("append").partitionBy("day").parquet(place)
        case "Parquet, dynamic overwrite":
            spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
            rows.write.mode("overwrite").partitionBy("day").parquet(place)
        case "Delta, append":
            rows.write.format("delta").mode("append").save(place)
        case "Delta, append with txnAppId":
            named = rows.write.format("delta").option("txnAppId", "daily").option("txnVersion", "1")
            named.mode("append").save(place)
        case "Delta, replaceWhere":
            rows.write.format("delta").mode("overwrite").option("replaceWhere", "day = 2").save(place)
        case "Delta, MERGE":
            rows.createOrReplaceTempView("changes")
            spark.sql(MERGE.format(table=f"delta.`{place}`"))
        case "Iceberg, append":
            rows.writeTo(place).append()
        case "Iceberg, overwritePartitions":
            rows.writeTo(place).overwritePartitions()
        case "Iceberg, MERGE":
            rows.createOrReplaceTempView("changes")
            spark.sql(MERGE.format(table=place))
        case _:
            raise ValueError(name)


def main(name: str, place: str, gate: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    spark.udf.register("held", lambda number: held(number, gate, f"{gate}.inside"), "long")
    # A MERGE reads its source twice: the rows of day 2 that it changes, and new ones.
    numbers = spark.range(8, 13, 1, 1) if "MERGE" in name else spark.range(100, 105, 1, 1)
    rows = numbers.selectExpr("2 AS day", "held(id) AS id", "1 AS v")
    write(name, place, rows)
    held(0, f"{gate}.after", f"{gate}.behind")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
