"""A captured script's calls on Iceberg tables with the real runtime, beside Delta's, in a process of its own:
`python -m harness.captured_iceberg FOLDER JARS CATALOG_URL`.

It issues writes of each kind on captured outputs, and calls that are refused, and prints what each left, to the session and on `main`, as
one JSON object. It is a separate process, because the jars must be there when its JVM starts.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

from harness.captured_spark import captured, refused
from harness.delta_jars import SESSION
from harness.granted import Granted, granted
from harness.iceberg_rest import EXTENSIONS, lake_at
from harness.iceberg_tables import catalog, rest_catalog
from harness.native_spark import threaded
from sparkonce.driver.statements import with_settings

NAME = "lake.sales.orders"
OLD = "(0, 0, 0), (1, 0, 0), (2, 0, 1), (3, 0, 1)"
TABLES = {
    "orders": "sales.orders",
    "totals": "sales.totals",
    "appended": "sales.appended",
    "made": "sales.made",
    "declared": "sales.declared",
    "idle": "sales.idle",
}
DECLARES = """CREATE TABLE IF NOT EXISTS declared (id BIGINT NOT NULL COMMENT 'the order', at TIMESTAMP, code VARCHAR(5))
USING iceberg PARTITIONED BY (days(at)) TBLPROPERTIES ('write.merge.mode' = 'merge-on-read')"""


def session(jars: str, url: str, folder: Path) -> SparkSession:
    settings = {
        **SESSION,
        "spark.jars": jars,
        "spark.sql.extensions": f"{SESSION['spark.sql.extensions']},{EXTENSIONS}",
        **lake_at(url),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
    }
    builder = SparkSession.builder.master("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main(folder: Path, jars: str, url: str) -> None:
    os.environ.update(rest_catalog(url))
    spark = session(jars, url, folder)
    spark.sql("CREATE NAMESPACE lake.sales")
    for name in ("orders", "appended", "idle", "other"):
        spark.sql(f"CREATE TABLE lake.sales.{name} (id bigint, v int, p int) USING iceberg PARTITIONED BY (p)")
        spark.sql(f"INSERT INTO lake.sales.{name} VALUES {OLD}")
    spark.sql("CREATE TABLE lake.sales.totals (v int, n bigint) USING iceberg")
    spark.sql("INSERT INTO lake.sales.totals VALUES (77, 77)")
    spark.stop()
    facts: dict[str, Any] = {}
    attempt = begun(folder, "kinds")
    spark = session(jars, url, folder)
    each_kind(spark, folder, attempt, facts)  # which stops the session
    spark = session(jars, url, folder)
    again(spark, folder, attempt, facts)
    facts["overtaken"] = overtaken(spark, folder)
    facts["refused"], facts["left by refused calls"] = refusals(spark, folder, warn=False)
    facts["refused beside warn"], facts["left beside warn"] = refusals(spark, folder, warn=True)
    facts["ordered beside warn"] = len(catalog().load_table("sales.other").sort_order().fields)
    (folder / "facts.json").write_text(json.dumps(facts))
    spark.stop()


def begun(folder: Path, key: str, *names: str) -> Granted:
    """An attempt with these of the tables as outputs, or all of them beside a Delta table and a slot log."""
    outputs: list[dict[str, Any]] = [
        {"name": name, "iceberg": {"catalog": "lake", "table": table}, "capture": True}
        for name, table in TABLES.items()
        if name in (names or TABLES)
    ]
    if not names:
        outputs += [
            {"name": "copies", "delta": {"path": "copies"}, "capture": True},
            {"name": "events", "slotLog": {"path": "events"}, "capture": True},
        ]
    return granted(folder, outputs=outputs, idempotencyKey=key)


def rows(table: str, *columns: str) -> list[list[Any]]:
    """Rows of `main`, as pyiceberg reads them."""
    found = catalog().load_table(f"sales.{table}").scan().to_arrow().to_pylist()
    return sorted([row[name] for name in columns or ("id", "v")] for row in found)


def seen(spark: SparkSession, table: str) -> list[list[int]]:
    """Rows that the session reads."""
    return sorted([row["id"], row["v"]] for row in spark.table(f"lake.sales.{table}").collect())


def state() -> dict[str, Any]:
    """All tables with their references, columns and place of `main`."""
    loaded = {name: catalog().load_table(f"sales.{name}").metadata for _, name in catalog().list_tables("sales")}
    return {
        name: [found.current_schema_id, {each: ref.snapshot_id for each, ref in found.refs.items()}]
        for name, found in loaded.items()
    }


def writes(spark: SparkSession, folder: Path) -> list[Callable[[], object]]:
    """What the script does after it has selected the catalog `lake`; the first ones are statements on `orders`."""
    one: Any = spark.range(50, 51).selectExpr("id", "1 AS v", "5 AS p").coalesce(1)
    return [
        lambda: spark.sql(
            f"MERGE INTO {NAME} t USING (SELECT * FROM range(3, 5)) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = t.v + 1 "
            "WHEN NOT MATCHED THEN INSERT (id, v, p) VALUES (s.id, 9, 2)"
        ),
        lambda: spark.sql(f"UPDATE {NAME} SET v = v + 10 WHERE id = 0"),
        lambda: spark.sql("DELETE FROM sales.orders WHERE p = 2"),
        lambda: one.write.format("iceberg").mode("append").save(NAME),
        lambda: one.writeTo("sales.orders").append(),
        lambda: one.write.insertInto("sales.orders"),
        lambda: spark.sql(f"INSERT OVERWRITE {NAME} SELECT id, v, p FROM {NAME} WHERE id < 50 OR v < 2"),
        lambda: spark.sql("INSERT OVERWRITE sales.totals SELECT v, count(*) FROM sales.orders GROUP BY v"),
        lambda: spark.sql("INSERT INTO sales.appended SELECT id + 100, 8, 8 FROM sales.orders WHERE id < 2"),
        lambda: spark.table("sales.orders").select("id", "v").write.format("delta").save(str(folder / "copies")),
        lambda: spark.table("sales.totals").write.parquet(str(folder / "events")),
        lambda: one.write.partitionBy("p").format("iceberg").saveAsTable("sales.made"),
        lambda: one.write.format("iceberg").mode("append").saveAsTable("sales.made"),
        lambda: spark.sql("USE lake.sales"),
        lambda: spark.sql(DECLARES),
        lambda: spark.sql("INSERT INTO declared VALUES (1, TIMESTAMP '2024-05-01 12:00:00', 'abc')"),
    ]


def each_kind(spark: SparkSession, folder: Path, attempt: Granted, facts: dict[str, Any]) -> None:
    spark.catalog.setCurrentCatalog("lake")
    first = captured(attempt)
    first.watch()
    first.session(spark)
    held = spark.table(NAME)  # before the first write, evaluated after each
    facts["left"], facts["held"], facts["main"] = [], [], []
    for number, write in enumerate(writes(spark, folder)):
        write()
        if number < 7:
            facts["left"].append(seen(spark, "orders"))
            facts["held"].append(sorted([row["id"], row["v"]] for row in held.where("id >= 0").collect()))
            facts["main"].append(rows("orders"))
    facts["counted"] = [spark.table(f"lake.{table}").count() for table in TABLES.values()]
    facts["on main"] = [len(rows(name, "v" if name == "totals" else "id")) for name in TABLES]
    found = catalog().load_table("sales.appended")
    found.append(found.scan().to_arrow().slice(0, 1))
    spark.stop()
    first.end()
    first._hooks.__exit__(None, None, None)
    facts["tables"] = tables(folder)
    declared = catalog().load_table("sales.declared")
    facts["declared"] = [
        [[each.name, str(each.field_type), each.required, each.doc] for each in declared.schema().fields],
        [[each.name, str(each.transform)] for each in declared.spec().fields],
        declared.properties["write.merge.mode"],
    ]
    facts["branches"] = [each for _, refs in state().values() for each in refs if "wap" in each]
    facts["ended"] = sorted(name for name in (*TABLES, "copies", "events") if attempt.committed(name) is not None)


def tables(folder: Path) -> dict[str, Any]:
    """What the script has written, by readers that are not Spark."""
    copies = DeltaTable(str(folder / "copies")).to_pyarrow_table().to_pylist()
    return {
        "orders": rows("orders"),
        "totals": rows("totals", "v", "n"),
        "appended": rows("appended"),
        "made": rows("made"),
        "declared": rows("declared", "id", "code"),
        "idle": rows("idle"),
        "copies": sorted([row["id"], row["v"]] for row in copies),
        "events": len(list((folder / "events").glob("_data/*/*/*.parquet"))),
    }


def again(spark: SparkSession, folder: Path, attempt: Granted, facts: dict[str, Any]) -> None:
    """A second driver of the attempt issues the same writes."""
    spark.catalog.setCurrentCatalog("lake")
    before = state()
    second = captured(attempt)
    second.watch()
    second.session(spark)
    for write in writes(spark, folder):
        write()
    facts["setting"] = spark.conf.get("spark.wap.branch", None)
    second.end()
    second._hooks.__exit__(None, None, None)
    facts["issued twice"] = [tables(folder) == facts["tables"], state() == before]


def overtaken(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Another writer commits between a script's statement and its end; the next attempt runs the script again."""
    attempt, said = begun(folder, "overtaken", "orders"), dict[str, Any]()
    before = rows("orders")
    for turn in range(2):
        script = captured(attempt)
        script.watch()
        script.session(spark)
        spark.sql("UPDATE lake.sales.orders SET v = v + 1 WHERE id = 3")
        if turn == 0:
            found = catalog().load_table("sales.orders")
            found.append(found.scan().to_arrow().slice(0, 1))
        said[f"error {turn}"] = refused(script, script.end)
        said[f"after {turn}"] = [row for row in rows("orders") if row not in before]
        script._hooks.__exit__(None, None, None)
        spark.conf.unset("spark.wap.branch")
        if turn == 0:
            attempt.next_attempt()
    return said


def refusals(spark: SparkSession, folder: Path, *, warn: bool) -> tuple[dict[str, str | None], list[Any]]:
    """Calls that must not run, and what differs afterwards. warn: beside `undeclared: Warn`, without those that pass there."""
    one: Any = spark.range(50, 51).selectExpr("id", "1 AS v", "5 AS p").coalesce(1)
    stream: Any = spark.readStream.format("rate").load().writeStream
    insert = f"INSERT INTO {NAME} VALUES (90, 9, 9)"

    def directed(name: str) -> None:
        with with_settings(spark, {name: "mine"}):
            spark.sql(insert)

    calls: dict[str, Callable[[], object]] = {
        "main by its name": lambda: spark.sql(f"INSERT INTO {NAME}.branch_main VALUES (90, 9, 9)"),
        "main by an option": lambda: spark.sql(f"INSERT INTO {NAME} WITH ('branch'='main') VALUES (90, 9, 9)"),
        "main by a writer": lambda: one.write.format("iceberg").option("branch", "main").mode("append").save(NAME),
        "main by its name and a writer": lambda: one.writeTo(NAME).options(BRANCH="main").append(),
        "its setting": lambda: directed("spark.wap.branch"),
        "its identifier": lambda: directed("spark.wap.id"),
        "replace": lambda: spark.sql(f"CREATE OR REPLACE TABLE {NAME} USING iceberg AS SELECT 1 AS id"),
        "createOrReplace": lambda: one.writeTo(NAME).createOrReplace(),
        "replaced": lambda: one.writeTo(NAME).replace(),
        "create": lambda: one.writeTo(NAME).create(),
        "overwrite": lambda: one.write.mode("overwrite").saveAsTable(NAME, format="iceberg"),
        "exists": lambda: one.write.saveAsTable(NAME, format="iceberg"),
        "saved": lambda: one.write.format("iceberg").save(NAME),
        "alter": lambda: spark.sql(f"ALTER TABLE {NAME} DROP COLUMN v"),
        "alter branch": lambda: spark.sql(f"ALTER TABLE {NAME} CREATE OR REPLACE BRANCH main"),
        "order": lambda: spark.sql(f"ALTER TABLE {NAME} WRITE ORDERED BY id"),
        "distribution": lambda: spark.sql(f"ALTER TABLE {NAME} WRITE DISTRIBUTED BY PARTITION"),
        "identifier": lambda: spark.sql(f"ALTER TABLE {NAME} SET IDENTIFIER FIELDS id"),
        "partitions": lambda: spark.sql(f"ALTER TABLE {NAME} ADD PARTITION FIELD v"),
        "drop": lambda: spark.sql(f"DROP TABLE IF EXISTS {NAME}"),
        "truncate": lambda: spark.sql(f"TRUNCATE TABLE {NAME}"),
        "call": lambda: spark.sql("CALL lake.system.rewrite_data_files('sales.orders')"),
        "evolution": lambda: spark.sql(
            f"MERGE WITH SCHEMA EVOLUTION INTO {NAME} t USING (SELECT 1L AS id, 2 AS w) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *"
        ),
        "evolution by a writer": lambda: (
            spark.range(1)
            .selectExpr("id", "2 AS w")
            .alias("s")
            .mergeInto(NAME, expr("s.id = lake.sales.orders.id"))
            .whenNotMatched()
            .insertAll()
            .withSchemaEvolution()
            .merge()
        ),
        "evolution by an option": lambda: (
            one.selectExpr("*", "2 AS w").write.option("mergeSchema", True).insertInto(NAME)
        ),
        "stream": lambda: stream.toTable(NAME),
        "thread": lambda: threaded(lambda: spark.sql(insert)),
        "several": lambda: spark.sql(f"FROM {NAME} INSERT INTO {NAME} SELECT * INSERT INTO lake.sales.other SELECT *"),
        "odd table": lambda: spark.sql(
            "CREATE TABLE IF NOT EXISTS lake.sales.odd (id BIGINT) USING iceberg PARTITIONED BY (bucket(4, id))"
        ),
    }
    undeclared: dict[str, Callable[[], object]] = {
        "other": lambda: spark.sql("INSERT INTO lake.sales.other VALUES (1, 1, 1)"),
        "other by a writer": lambda: one.writeTo("lake.sales.other").append(),
        "new": lambda: one.write.saveAsTable("lake.sales.new"),
        "new by sql": lambda: spark.sql("CREATE TABLE lake.sales.new USING iceberg AS SELECT 1 AS id"),
    }
    outputs = [
        {"name": name, "iceberg": {"catalog": "lake", "table": f"sales.{name}"}, "capture": True}
        for name in ("orders", "odd")
    ]
    script = captured(granted(folder, outputs=outputs, idempotencyKey=f"refused-{warn}"), warn=warn)
    script.watch()
    script.session(spark)
    before = state()
    if warn:
        spark.sql("ALTER TABLE lake.sales.other WRITE ORDERED BY id")
    said = {name: refused(script, call) for name, call in (calls | ({} if warn else undeclared)).items()}
    script._hooks.__exit__(None, None, None)
    spark.conf.unset("spark.wap.branch")
    after = state()
    return said, [
        [name, before.get(name), after.get(name)] for name in {**before, **after} if before.get(name) != after.get(name)
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
