"""Unmodified Spark on an Iceberg REST catalog: `python -m harness.keyed_spark FOLDER ICEBERG_JAR URL NUMBER ROUNDS [SHARED]`.

It makes a table of its own and appends to one that others write, too, and writes as one JSON object which statements failed, and how.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from harness.iceberg_rest import EXTENSIONS, lake_at

TRACE = 50_000
"""Characters of an error with its Java stack traces."""


def main(folder: Path, jar: str, url: str, *, number: int, rounds: int, shared: str = "shared") -> None:
    builder = SparkSession.builder.master("local[1]")
    settings = {"spark.jars": jar, "spark.sql.extensions": EXTENSIONS, "spark.ui.enabled": "false", **lake_at(url)}
    settings["spark.sql.pyspark.jvmStacktrace.enabled"] = "true"
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    failed: dict[str, str] = {}

    def runs(statement: str) -> None:
        try:
            spark.sql(statement)
        except (PySparkException, Exception) as error:
            failed[statement] = str(error)[:TRACE]

    own = f"lake.sales.own{number}"
    runs(f"CREATE TABLE {own} (n BIGINT) USING iceberg")
    for each in range(rounds):
        runs(f"INSERT INTO lake.sales.{shared} VALUES ({number * 1000 + each})")
        runs(f"INSERT OVERWRITE {own} VALUES ({each}), ({each})")
    runs(f"DELETE FROM {own} WHERE n < 0")
    (folder / "facts.json").write_text(json.dumps({"failed": failed}))
    spark.stop()


if __name__ == "__main__":
    where, jar_file, catalog, own_number, times, *table = sys.argv[1:]
    main(Path(where), jar_file, catalog, number=int(own_number), rounds=int(times), shared=(*table, "shared")[0])
