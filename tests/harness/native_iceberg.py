"""A native block with Iceberg's real runtime: `python -m harness.native_iceberg FOLDER JAR CATALOG_URL`.

It issues statements of each kind, and calls that a block refuses, and prints what each left on the branch and in `main` as one JSON object.
It is a separate process, because the jar must be there when its JVM starts.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from harness.granted import Granted, granted
from harness.iceberg_rest import EXTENSIONS, lake_at
from harness.iceberg_tables import catalog, rest_catalog
from harness.native_spark import threaded
from sparkonce.blocking import run
from sparkonce.driver.statements import with_settings
from sparkonce.errors import SparkonceError, TableMoved

NAME = "lake.sales.orders"


def session(jar: str, url: str, folder: Path | str) -> SparkSession:
    settings = {
        "spark.jars": jar,
        "spark.local.dir": str(folder),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.extensions": EXTENSIONS,
        **lake_at(url),
    }
    builder = SparkSession.builder.master("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main(folder: Path, jar: str, url: str) -> None:
    os.environ.update(rest_catalog(url))
    spark = session(jar, url, folder)
    spark.sql("CREATE NAMESPACE lake.sales")
    for name in ("orders", "other", "merged"):
        mode = "merge-on-read" if name == "merged" else "copy-on-write"
        spark.sql(
            f"CREATE TABLE lake.sales.{name} (id bigint, v int, p int) USING iceberg PARTITIONED BY (p) TBLPROPERTIES "
            f"('write.delete.mode'='{mode}', 'write.update.mode'='{mode}', 'write.merge.mode'='{mode}')"
        )
        spark.sql(f"INSERT INTO lake.sales.{name} VALUES (0, 0, 0), (1, 0, 0), (2, 0, 1), (3, 0, 1)")
    spark.catalog.setCurrentCatalog("lake")
    facts: dict[str, Any] = {"left": [], "main": [], "refused": {}}
    block_of_each_kind(folder, spark, facts)
    facts["merge on read"] = merge_on_read(folder, spark)
    facts["overtaken"] = overtaken(folder, spark)
    facts["expired"] = expired(folder, spark)
    (folder / "facts.json").write_text(json.dumps(facts))
    spark.stop()


def attempt_of(folder: Path, table: str, key: str) -> Granted:
    outputs = [{"name": "orders", "iceberg": {"catalog": "lake", "table": f"sales.{table}"}}]
    return granted(folder, outputs=outputs, idempotencyKey=key)


def numbers(table: str) -> list[list[int]]:
    """Rows of `main`, as pyiceberg reads them."""
    found = catalog().load_table(f"sales.{table}").scan().to_arrow().to_pylist()
    return sorted([row["id"], row["v"]] for row in found)


def seen(spark: SparkSession, table: str) -> list[list[int]]:
    """Rows that the session reads."""
    return sorted([row["id"], row["v"]] for row in spark.table(f"sales.{table}").collect())


def block_of_each_kind(folder: Path, spark: SparkSession, facts: dict[str, Any]) -> None:
    one: Any = spark.range(50, 51).selectExpr("id", "1 AS v", "5 AS p").coalesce(1)
    wide = one.selectExpr("*", "2 AS w")
    plain = f"INSERT INTO {NAME} VALUES (90, 9, 9)"

    def with_setting(name: str) -> None:
        with with_settings(spark, {name: "true"}):
            spark.sql(plain)

    statements: list[Callable[[], object]] = [
        lambda: spark.sql(
            f"MERGE INTO {NAME} t USING (SELECT * FROM range(3, 5)) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = t.v + 1 "
            "WHEN NOT MATCHED THEN INSERT (id, v, p) VALUES (s.id, 9, 2)"
        ),
        lambda: spark.sql(f"UPDATE {NAME} SET v = v + 10 WHERE id = 0"),
        lambda: spark.sql(f"DELETE FROM {NAME} WHERE id = -1"),
        lambda: spark.sql("DELETE FROM sales.orders WHERE p = 2"),
        lambda: spark.sql("WITH w AS (SELECT 60L AS id, 1 AS v, 6 AS p) INSERT INTO sales.orders SELECT * FROM w"),
        lambda: spark.sql(f"INSERT INTO {NAME} REPLACE WHERE p = 6 SELECT 61L, 5, 6"),
        lambda: one.write.format("iceberg").mode("append").save(NAME),
        lambda: one.write.insertInto("sales.orders"),
        lambda: one.write.saveAsTable("sales.orders", format="iceberg", mode="append"),
        lambda: one.writeTo("sales.orders").append(),
        lambda: one.writeTo("sales.orders").overwrite(F.col("p") == 5),
        lambda: one.writeTo("sales.orders").overwritePartitions(),
        lambda: spark.sql(f"INSERT OVERWRITE {NAME} SELECT id, v, p FROM {NAME} WHERE id < 60"),
        lambda: spark.table(NAME).where("id < 50").coalesce(1).write.format("iceberg").mode("overwrite").save(NAME),
    ]
    refused: dict[str, Callable[[], object]] = {
        "another table": lambda: spark.sql("INSERT INTO sales.other VALUES (1, 1, 1)"),
        "another table by a writer": lambda: one.writeTo("sales.other").append(),
        "a folder": lambda: one.write.format("iceberg").mode("append").save(str(folder / "x")),
        "a delta table": lambda: one.write.format("delta").mode("append").save(str(folder / "x")),
        "main by its name": lambda: spark.sql(f"INSERT INTO {NAME}.branch_main VALUES (90, 9, 9)"),
        "main by an option": lambda: spark.sql(f"INSERT INTO {NAME} WITH ('branch'='main') VALUES (90, 9, 9)"),
        "main by a writer's option": lambda: (
            one.write.format("iceberg").option("branch", "main").mode("append").save(NAME)
        ),
        "several inserts": lambda: spark.sql(
            f"FROM {NAME} INSERT INTO {NAME} SELECT * INSERT INTO sales.other SELECT *"
        ),
        "create": lambda: spark.sql(f"CREATE OR REPLACE TABLE {NAME} USING iceberg AS SELECT 1 AS id"),
        "create another": lambda: spark.sql("CREATE TABLE sales.new USING iceberg AS SELECT 1 AS id"),
        "alter": lambda: spark.sql(f"ALTER TABLE {NAME} DROP COLUMN v"),
        "alter branch": lambda: spark.sql(f"ALTER TABLE {NAME} CREATE OR REPLACE BRANCH main"),
        "call": lambda: spark.sql("CALL lake.system.rewrite_data_files('sales.orders')"),
        "truncate": lambda: spark.sql(f"TRUNCATE TABLE {NAME}"),
        "drop": lambda: spark.sql(f"DROP TABLE {NAME}"),
        "evolution": lambda: spark.sql(
            f"MERGE WITH SCHEMA EVOLUTION INTO {NAME} t USING (SELECT 1L AS id, 2 AS w) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *"
        ),
        "evolution by an option": lambda: wide.writeTo("sales.orders").option("mergeSchema", "true").append(),
        "evolution by another": lambda: wide.write.option("MERGE-SCHEMA", True).insertInto("sales.orders"),
        "evolution by a setting": lambda: with_setting("spark.sql.iceberg.merge-schema"),
        "createOrReplace": lambda: one.writeTo("sales.orders").createOrReplace(),
        "saveAsTable": lambda: one.write.mode("overwrite").saveAsTable("sales.orders"),
        "save": lambda: one.write.format("iceberg").mode("ignore").save(NAME),
        "stream": lambda: spark.readStream.format("rate").load().writeStream.format("noop").start(),
        "thread": lambda: threaded(lambda: spark.sql(plain)),
    }
    attempt = attempt_of(folder, "orders", "kinds")
    before = catalog().load_table("sales.orders")
    with attempt.job().native("orders") as block:
        for statement in statements:
            statement()
            facts["left"].append(seen(spark, "orders"))
            facts["main"].append(numbers("orders"))
        snapshots = len(catalog().load_table("sales.orders").metadata.snapshots)
        for name, call in refused.items():
            try:
                call()
                facts["refused"][name] = None
            except Exception as error:
                facts["refused"][name] = f"{type(error).__name__}: {error}"
        after = catalog().load_table("sales.orders")
        facts["written by refused calls"] = len(after.metadata.snapshots) - snapshots
        facts["main at the end"] = numbers("orders")
        facts["schema"] = after.metadata.current_schema_id - before.metadata.current_schema_id
    facts["done"] = block.done
    facts["rows"] = None if block.written is None else block.written.rows
    facts["settings"] = spark.conf.get("spark.wap.branch", None)
    facts["at the end"] = numbers("orders")
    facts["other"] = numbers("other")
    facts["tables"] = sorted(name for _, name in catalog().list_tables("sales"))
    with attempt.job().native("orders") as again:
        for statement in statements:
            statement()
    facts["issued twice"] = numbers("orders")
    facts["fresh"] = [each.written is not None and each.written.fresh for each in (block, again)]
    facts["branches"] = [name for name in catalog().load_table("sales.orders").metadata.refs if "wap" in name]


def merge_on_read(folder: Path, spark: SparkSession) -> dict[str, Any]:
    """A table whose engine writes delete files."""
    attempt = attempt_of(folder, "merged", "merge-on-read")
    job = attempt.job()
    wrote = job.sql("UPDATE sales.merged SET v = v + 1 WHERE id % 2 = 0", "orders")
    return {"rows": numbers("merged"), "read": seen(spark, "merged"), "wrote": wrote.rows}


def overtaken(folder: Path, spark: SparkSession) -> dict[str, Any]:
    """Another writer commits to the table between a block's statement and its end; and while `job.sql` runs, once."""
    said: dict[str, Any] = {}
    attempt = attempt_of(folder, "other", "overtaken")

    def foreign(number: int) -> None:
        table = catalog().load_table("sales.other")
        rows = table.scan().to_arrow().slice(0, 1)
        table.append(rows.set_column(0, rows.schema.field("id"), [[number]]))

    try:
        with attempt.job().native("orders"):
            spark.sql("UPDATE sales.other SET v = v + 1 WHERE id = 3")
            foreign(70)
    except TableMoved as error:
        said["error"] = str(error)
    said["after"] = numbers("other")
    spark.udf.register("late", lambda number: _once(folder, number, foreign), "long")
    try:
        attempt.job().sql("UPDATE sales.other SET v = v + late(id) WHERE id = 3", "orders")
    except SparkonceError as error:
        said["sql"] = str(error)
    said["then"] = numbers("other")
    said["branches"] = [name for name in catalog().load_table("sales.other").metadata.refs if "wap" in name]
    return said


def expired(folder: Path, spark: SparkSession) -> dict[str, Any]:
    """A block of appends is put on top of another writer's commit; then Iceberg's own maintenance removes what nothing refers to."""
    with attempt_of(folder, "merged", "appends").job().native("orders"):
        spark.sql("INSERT INTO sales.merged VALUES (80, 8, 8)")
        spark.range(81, 83).selectExpr("id", "8 AS v", "8 AS p").writeTo("sales.merged").append()
        found = catalog().load_table("sales.merged")
        found.append(found.scan().to_arrow().slice(0, 1))
    with attempt_of(folder, "other", "moved").job().native("orders"):
        spark.sql("UPDATE sales.other SET v = 8 WHERE id = 0")
    for name in ("merged", "other"):
        spark.sql(f"REFRESH TABLE sales.{name}")
        spark.sql(
            f"CALL lake.system.expire_snapshots(table => 'sales.{name}', older_than => timestamp'2100-01-01 00:00:00', retain_last => 1)"
        )
        spark.sql(
            f"CALL lake.system.remove_orphan_files(table => 'sales.{name}', older_than => timestamp'2000-01-01 00:00:00')"
        )
    probes = {}
    for table, key in (("merged", "appends"), ("other", "moved")):
        attempt = attempt_of(folder, table, key)
        probes[key] = str(run(attempt.sinks()["orders"].probe(attempt.key("orders"), None)))
    return {"merged": numbers("merged"), "other": numbers("other"), "probes": probes}


def _once(folder: Path, number: int, foreign: Callable[[int], None]) -> int:
    """Runs in the statement, the first time it is tried."""
    mark = folder / "once"
    if not mark.exists():
        mark.touch()
        foreign(71)
    return number


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
