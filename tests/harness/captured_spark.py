"""A captured script's calls with Spark's real Delta engine, in a process of its own: `python -m harness.captured_spark FOLDER JARS`.

It issues writes of each kind on captured outputs, and calls that are refused, and prints what each left as one JSON object. It is a
separate process, because the jars must be there when its JVM starts.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

import sparkonce
from harness.delta_spark import session
from harness.granted import Granted, granted
from harness.native_spark import threaded
from sparkonce.driver.script.writes import ScriptWrites
from sparkonce.model.spec import IdempotentJob
from sparkonce.sink.open import sinks_of
from sparkonce.sink.slotlog.snapshot import Table

READING = (
    "SELECT /*+ BROADCAST(a) */ * FROM {t} a JOIN {t} b USING (id)",
    "SELECT * FROM {t} VERSION AS OF 0",
    "SELECT * FROM {t} TABLESAMPLE (1 ROWS)",
    "SELECT * FROM range(2) r, LATERAL (SELECT r.id + 1)",
    "SELECT id, row_number() OVER w FROM {t} WINDOW w AS (ORDER BY id)",
    "SELECT v, count(*) FROM {t} GROUP BY v HAVING count(*) > 0 ORDER BY v LIMIT 1 OFFSET 0",
    "WITH w AS (SELECT 1 AS a) SELECT * FROM w UNION ALL SELECT 2",
    "FROM {t} |> WHERE id > 0 |> SELECT id",
    "SELECT * FROM (VALUES (1)) AS x(a)",
    "VALUES (1), (2)",
    "TABLE known",
    "SELECT id FROM {t} CLUSTER BY id",
    "SELECT explode(array(1)) AS e",
    "EXPLAIN SELECT 1",
    "DESCRIBE DETAIL {t}",
    "DESCRIBE HISTORY {t}",
    "SHOW TBLPROPERTIES {t}",
    "USE default",
)
FORMATTED = {
    "SELECT {t.id} FROM {t} WHERE {t[v]} >= {low}": [[50]],
    "SELECT id FROM {t} WHERE id IN {ids}": [[50]],
    "SELECT {name} AS name, count(*) AS n FROM {t} a JOIN {t} b USING (id)": [["a'b", 1]],
}
"""Queries whose braces PySpark fills in, and their rows."""
DELTA = ("orders", "made", "named", "managed", "declared")
DECLARES = """CREATE TABLE IF NOT EXISTS declared (id BIGINT NOT NULL COMMENT 'the order', v INT, code VARCHAR(5), day DATE)
USING delta PARTITIONED BY (day) LOCATION '{place}'"""
ODD = (
    "(id BIGINT) USING delta LOCATION '{place}' TBLPROPERTIES ('a' = 'b')",
    "(id BIGINT, v INT DEFAULT 7) USING delta LOCATION '{place}'",
    "(id BIGINT) USING delta CLUSTER BY (id) LOCATION '{place}'",
)


def captured(attempt: Granted, *, warn: bool = False) -> ScriptWrites:
    """The capture of a driver of this attempt, with Spark as its stager."""
    job = IdempotentJob.of(attempt.assignment.spec.job)
    ours = attempt.job(sinks=sinks_of(job, str(attempt.folder)))
    return ScriptWrites(ours, job.resolved_outputs, warn=warn, base=str(attempt.folder))


def main(folder: Path, jars: str) -> None:
    orders = folder / "orders"
    rows = pa.table({"id": pa.array(range(4), pa.int64()), "v": pa.array([0] * 4, pa.int32())})
    # This engine can neither write nor read checkpoints with this Spark (it calls a removed method), so the test has none.
    write_deltalake(str(orders), rows, configuration={"delta.checkpointInterval": "1000"})
    # What the overwriting write of the script replaces.
    earlier = granted(folder, "days", idempotencyKey="load-april").job()
    day: Any = pa.table({"id": pa.array([1], pa.int64()), "v": pa.array([1], pa.int32())})
    earlier.write(day, "days")
    spark = session(folder, jars)
    from pyspark.sql.functions import expr, lit

    paths = {
        "orders": "orders",
        "made": "made",
        "named": "tables/named",
        "managed": "warehouse/managed",
        "declared": "declared",
    }
    outputs: list[dict[str, Any]] = [
        {"name": name, "delta": {"path": path}, "capture": True} for name, path in paths.items()
    ]
    outputs += [
        {"name": "events", "slotLog": {"path": "events"}, "capture": True},
        {"name": "days", "slotLog": {"path": "days"}, "capture": True},
        {"name": "parts", "slotLog": {"path": "parts"}, "capture": True},
        {"name": "other", "slotLog": {"path": "other"}},
    ]
    attempt = granted(folder, outputs=outputs)
    one: Any = spark.range(50, 51).selectExpr("id", "1 AS v").coalesce(1)
    table = f"delta.`{orders}`"
    loaded = granted(folder, "parts", idempotencyKey="load-april")
    parts = loaded.job(sinks=sinks_of(loaded.prepared.job, str(folder)))
    parts.write(spark.range(2).selectExpr("id", "CAST(id AS INT) AS v"), "parts", partition_by=["v"])
    steps: list[Callable[[], object]] = [
        lambda: spark.sql("CREATE DATABASE IF NOT EXISTS more"),
        lambda: spark.sql(f"CREATE TABLE IF NOT EXISTS known USING delta LOCATION '{orders}'"),
        lambda: spark.sql(
            "MERGE INTO known t USING (SELECT * FROM range(3, 5)) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 9)"
        ),
        lambda: spark.sql("UPDATE {t} SET v = {v} WHERE id = 0", t=expr("known"), v=7),
        lambda: one.write.insertInto("known"),
        lambda: one.writeTo("known").append(),
        lambda: one.alias("s").mergeInto("known", expr("s.id = known.id")).whenMatched().update({"v": lit(2)}).merge(),
        lambda: one.write.format("delta").partitionBy("V").save("made"),
        lambda: one.write.save("made", format="delta", mode="overwrite"),
        lambda: one.write.format("delta").option("path", str(folder / "tables" / "named")).saveAsTable("more.named"),
        lambda: one.write.format("delta").mode("append").saveAsTable("more.named"),
        lambda: one.write.saveAsTable("managed", format="delta", mode="overwrite"),
        lambda: spark.sql(DECLARES.format(place=folder / "declared")),
        lambda: spark.sql("INSERT INTO declared SELECT 50L, 1, 'abc', DATE '2024-05-01'"),
        lambda: one.write.parquet("events", compression="gzip"),
        lambda: one.write.mode("overwrite").format("parquet").partitionBy("v").save("days"),
        lambda: one.write.option("partitionOverwriteMode", "dynamic").parquet("parts", "overwrite", "v"),
        lambda: one.write.format("noop").mode("overwrite").save(),
    ]
    tables = {name: folder / path for name, path in paths.items()}

    def numbers() -> dict[str, list[list[int]]]:
        read = {name: DeltaTable(str(at)).to_pyarrow_table().to_pylist() for name, at in tables.items()}
        return {name: sorted([row["id"], row["v"]] for row in found) for name, found in read.items()}

    def versions() -> dict[str, int]:
        return {name: DeltaTable(str(at)).version() for name, at in tables.items()}

    def names(beginning: str) -> list[str]:
        return sorted(path.name for path in folder.iterdir() if path.name.startswith(beginning))

    facts: dict[str, Any] = {}
    first = captured(attempt)
    first.watch()
    for step in steps:
        step()
    facts["left"] = numbers()
    facts["partitioned by"] = [
        DeltaTable(str(tables[name])).metadata().partition_columns for name in ("made", "declared")
    ]
    facts["declared as"] = json.loads(DeltaTable(str(tables["declared"])).schema().to_json())["fields"]
    first.end()
    facts["events"] = len(list((folder / "events").glob("_data/*/*/*.parquet")))
    for name in ("days", "parts"):
        found = sparkonce.read(spark, str(folder / name)).select("id", "v").collect()
        facts[name] = sorted(tuple(row) for row in found)
    given = spark.read.schema("v INT, more STRING").load("days")
    facts["read by the script"] = [
        sorted(tuple(row) for row in spark.read.parquet("parts").select("id", "v").collect()),
        sorted(
            tuple(row) for row in spark.read.format("parquet").load(str(folder / "days")).select("id", "v").collect()
        ),
        [given.columns, sorted(tuple(row) for row in given.collect())],
        refused(first, lambda: spark.read.parquet("other")),
    ]
    facts["by pattern"] = {name: table_of(call) for name, call in patterns(spark, folder).items()}
    facts["patterns refused"] = {name: refused(first, call) for name, call in unreadable(spark, folder).items()}
    facts["spelled otherwise"] = [row[0] for row in spark.read.schema("V INT").load("days").collect()]
    facts["ended"] = sorted(name for name in (*DELTA, "events", "days", "parts") if attempt.committed(name) is not None)
    before = versions()
    second = captured(attempt)
    replayed(first, second)
    for step in steps:
        step()
    second.end()
    facts["issued twice"] = (numbers() == facts["left"], versions() == before)
    third = captured(attempt)
    replayed(second, third)
    calls = undeclared(spark, one, folder, table)
    facts["refused"] = {name: refused(third, call) for name, call in calls.items()}
    # Delta's package for Python, which a driver may have only once its session is there.
    sys.path.append(jars.partition(",")[0])
    calls = by_packages(spark, folder)
    facts["refused, of packages"] = {name: refused(third, call) for name, call in calls.items()}
    facts["written by refused calls"] = (
        versions() == before,
        sorted(path.name for path in folder.iterdir() if path.name.startswith("no-")),
    )
    third._refused = None
    facts["formatted"] = {text: refused(third, functools.partial(formatted, spark, one, text)) for text in FORMATTED}
    facts["reads"] = spark.sql(f"SELECT count(*) AS n FROM {table}").collect()[0]["n"]
    for text in READING:
        spark.sql(text.format(t=table)).collect()
    spark.sql("CREATE OR REPLACE TEMP VIEW some AS SELECT 1")
    spark.sql("DROP VIEW some")
    spark.sql("CACHE TABLE cached AS SELECT 1")
    spark.sql("SHOW TABLES").collect()
    spark.sql("SET spark.sql.shuffle.partitions=1")
    one.createOrReplaceTempView("two")
    facts["reading refused"] = third._refused is not None
    fourth = captured(attempt, warn=True)
    replayed(third, fourth)
    from pyspark.ml.feature import Tokenizer

    one.write.csv(str(folder / "yes-csv"))
    Tokenizer().save(str(folder / "yes-model"))
    spark.sql(f"CREATE TABLE passes USING parquet LOCATION '{folder}/yes-table' AS SELECT 1 AS a")
    one.write.format("delta").save(str(folder / "yes-delta"))
    spark.read.format("delta").load(str(folder / "yes-delta")).createOrReplaceTempView("other_rows")
    spark.sql("DELETE FROM other_rows")
    facts["passed"] = names("yes-")
    facts["passed, of a view"] = [fourth._warned[-1], DeltaTable(str(folder / "yes-delta")).version()]
    spark.table("known").createOrReplaceTempView("known_rows")
    spark.read.format("delta").load(str(orders)).createGlobalTempView("some_rows")
    unseen: dict[str, Callable[[], object]] = {
        "a view": lambda: spark.sql("UPDATE known_rows SET v = 9 WHERE id = 1"),
        "a global view": lambda: spark.sql("DELETE FROM global_temp.some_rows WHERE id = 1"),
        "a view, merged": lambda: (
            one.alias("s").mergeInto("known_rows", expr("s.id = known_rows.id")).whenMatched().delete().merge()
        ),
        "a DataFrame": lambda: spark.sql("DELETE FROM {t} WHERE id = 1", t=spark.table("known")),
        "model": lambda: Tokenizer().write().overwrite().save(str(orders / "model")),
        "folder": lambda: one.write.csv(str(orders / "x")),
        "replace": lambda: one.writeTo("known").createOrReplace(),
        "immediate": lambda: spark.sql("EXECUTE IMMEDIATE 'DELETE FROM known'"),
        "directory": lambda: spark.sql(f"INSERT OVERWRITE DIRECTORY '{orders}' USING parquet SELECT 1 AS a"),
        "drop": lambda: spark.sql("DROP TABLE known"),
        "table in it": lambda: one.write.option("path", str(orders / "y")).saveAsTable("inside"),
        "stream": lambda: spark.readStream.format("rate").load().writeStream.format("delta").start(str(orders)),
        "thread": lambda: threaded(lambda: one.write.csv(str(folder / "no-thread"))),
    }
    facts["refused beside warn"] = {name: refused(fourth, call) for name, call in unseen.items()}
    facts["written beside warn"] = (versions() == before, names("no-"))
    unmade = granted(folder, outputs=[{"name": "odd", "delta": {"path": "odd"}, "capture": True}], idempotencyKey="odd")
    fifth = captured(unmade)
    replayed(fourth, fifth)
    creates = [
        functools.partial(spark.sql, f"CREATE TABLE IF NOT EXISTS odd {text.format(place=folder / 'odd')}")
        for text in ODD
    ]
    facts["no table for"] = [refused(fifth, each) for each in creates]
    facts["and none was made"] = not DeltaTable.is_deltatable(str(folder / "odd"))
    facts["in a loop"] = in_a_loop(spark, folder, fifth)
    (folder / "facts.json").write_text(json.dumps(facts))
    spark.stop()


def in_a_loop(spark: Any, folder: Path, last: ScriptWrites) -> dict[str, Any]:
    """A script that writes a folder of Parquet month by month and reads it in between, by three drivers: the first ends before its end, the
    second does not, the third finds all of it done."""
    earlier = granted(folder, "months", idempotencyKey="of-last-year")
    written = earlier.job(sinks=sinks_of(earlier.prepared.job, str(folder)))
    written.write(spark.range(5).selectExpr("id", "CAST(12 AS INT) AS month"), "months", partition_by=["month"])
    outputs = [{"name": name, "slotLog": {"path": name}, "capture": True} for name in ("months", "sums")]
    attempt = granted(folder, outputs=outputs, idempotencyKey="months")

    def rows(name: str) -> list[list[int]]:
        files = Table(folder / name).files()
        found: Any = pq.read_table(files, partitioning=None) if files else pa.table({})
        return sorted(list(row.values()) for row in found.to_pylist())

    facts: dict[str, Any] = {"seen": [], "rows": [], "staged": []}
    for end in (False, True, True):
        script = captured(attempt)
        replayed(last, script)
        last = script
        facts["seen"].append(months(spark))
        facts["staged"].append(len(list((folder / "months").glob("_data/*months-g1/*"))))
        facts["rows"].append([rows("months"), rows("sums")])
        if end:
            script.end()
        else:
            attempt.next_attempt()
    facts["rows"].append([rows("months"), rows("sums")])
    facts["slots"] = [len(Table(folder / name).slots()) for name in ("months", "sums")]
    other = granted(folder, outputs=outputs[:1], idempotencyKey="of-another-kind")
    script = captured(other)
    replayed(last, script)
    one = spark.range(1)
    one.write.mode("append").parquet("months")
    facts["refused"] = {
        "other columns": refused(script, lambda: spark.range(1).toDF("n").write.mode("append").parquet("months")),
        "other types": refused(script, lambda: one.selectExpr("'a' AS id").write.mode("append").parquet("months")),
        "other partitions": refused(script, lambda: one.write.mode("append").partitionBy("id").parquet("months")),
        "made again": refused(script, lambda: one.write.parquet("months")),
    }
    return facts


def months(spark: Any) -> list[Any]:
    """The script; what it saw of its folder."""
    seen = []
    for month in (1, 2, 3):
        rows = spark.range(month).selectExpr("id", f"CAST({month} AS INT) AS month")
        if month == 3:
            rows = rows.selectExpr("month", "coalesce(id, 0) AS id")  # another order, and no nulls
        mode = "overwrite" if month == 1 else "append"
        rows.write.mode(mode).partitionBy("month").option("compression", "gzip").parquet("months")
        first = spark.read.parquet("months/month=1")
        seen.append([spark.read.parquet("months").count(), first.columns, first.count()])
    sums = spark.read.parquet("months").groupBy("month").count()
    sums.coalesce(1).write.parquet("sums")
    sums.limit(0).write.mode("append").parquet("sums")
    return seen


def replayed(last: ScriptWrites, following: ScriptWrites) -> None:
    """Another driver of the attempt takes the place of the last one."""
    last._hooks.__exit__(None, None, None)
    following.watch()


def refused(watched: ScriptWrites, call: Callable[[], object]) -> str | None:
    watched._refused = None
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def patterns(spark: Any, folder: Path) -> dict[str, Callable[[], Any]]:
    """Reads of partitions of a slot log, as of a plain folder of Parquet that is partitioned by v."""

    def reader() -> Any:
        return spark.read.option("basePath", "parts")

    return {
        "all, with v": lambda: reader().parquet("parts/*"),
        "all, by load": lambda: reader().format("parquet").load(f"{folder}/parts/*/"),
        "all, by option": lambda: reader().option("path", "parts/v=*").load(format="parquet"),
        "all, without v": lambda: spark.read.parquet("parts/*"),
        "files": lambda: spark.read.parquet("parts/*/*.parquet"),
        "one": lambda: spark.read.parquet("parts/v=1"),
        "one, with v": lambda: reader().parquet("parts/V=1/"),
        "both": lambda: reader().parquet("parts/v=0", "parts/v=1"),
        "none": lambda: reader().parquet("parts/v=7"),
    }


def unreadable(spark: Any, folder: Path) -> dict[str, Callable[[], object]]:
    """Reads that would show files of the slot logs that no reader sees, or leave rows out."""
    uncommitted = folder / "other" / "_data" / "k" / "0000000001-n"
    uncommitted.mkdir(parents=True)
    pq.write_table(pa.table({"id": [13]}), uncommitted / "a.parquet")
    others = folder / "plain"
    pq.write_table(pa.table({"id": [14]}), others)
    return {
        "levels": lambda: spark.read.parquet("parts/*/*/*/*"),
        "uncommitted": lambda: spark.read.parquet("other/*/*/*/*"),
        "alternatives": lambda: spark.read.parquet("parts/v={0,1}"),
        "another column": lambda: spark.read.parquet("parts/id=1"),
        "above": lambda: spark.read.parquet(f"{folder}/p*"),
        "beside": lambda: spark.read.parquet("parts", str(others)),
        "option": lambda: spark.read.parquet("parts", pathGlobFilter="*.parquet"),
        "recursive": lambda: spark.read.option("recursiveFileLookup", True).parquet(str(folder)),
        "base": lambda: spark.read.option("basePath", "parts/v=1").parquet("parts/v=1"),
        "by SQL": lambda: spark.sql("SELECT * FROM parquet.`parts/*/*/*/*`"),
        "by SQL, uncommitted": lambda: spark.sql("INSERT INTO orders SELECT id FROM parquet.`other/*/*/*/*`"),
        "as a table": lambda: spark.table("parquet.`parts/*/*/*/*`"),
        "as a table, by a reader": lambda: spark.read.table("parquet.`parts`"),
        "as a view": lambda: spark.sql("CREATE TEMPORARY VIEW r USING parquet OPTIONS (path 'parts/*/*/*/*')"),
    }


def table_of(call: Callable[[], Any]) -> list[Any]:
    """Columns and rows."""
    frame = call()
    return [frame.columns, sorted(list(row) for row in frame.collect())]


def undeclared(spark: Any, one: Any, folder: Path, table: str) -> dict[str, Callable[[], object]]:
    """Calls that must not run; what they would write is named `no-...`."""
    at = {
        each: str(folder / f"no-{each}")
        for each in ("delta", "csv", "json", "orc", "text", "parquet", "rdd", "dir", "table", "stream")
    }
    other = spark.newSession()
    text = one.selectExpr("CAST(id AS string)")
    return {
        "delta": lambda: one.write.format("delta").save(at["delta"]),
        "delta by sql": lambda: spark.sql(f"CREATE TABLE delta.`{at['delta']}` USING delta AS SELECT 1 AS a"),
        "csv": lambda: one.write.csv(at["csv"], mode="overwrite"),
        "json": lambda: one.write.json(at["json"]),
        "orc": lambda: one.write.format("orc").save(at["orc"]),
        "text": lambda: text.write.text(at["text"]),
        "parquet": lambda: one.write.parquet(at["parquet"]),
        "jdbc": lambda: one.write.jdbc("jdbc:postgresql://me:secret@nowhere/db", "t"),
        "kafka": lambda: one.write.format("kafka").option("topic", "t").save(),
        "rdd": lambda: one.rdd.saveAsTextFile(at["rdd"]),
        "pickles": lambda: one.rdd.saveAsPickleFile(at["rdd"]),
        "directory": lambda: spark.sql(f"INSERT OVERWRITE DIRECTORY '{at['dir']}' USING parquet SELECT 1 AS a"),
        "table as": lambda: spark.sql(f"CREATE TABLE made_up USING parquet LOCATION '{at['table']}' AS SELECT 1 AS a"),
        "saved as": lambda: one.write.option("path", at["table"]).saveAsTable("made_up"),
        "catalog": lambda: spark.catalog.createTable("made_up", at["table"], "parquet"),
        "stream": lambda: spark.readStream.format("rate").load().writeStream.format("noop").start(),
        "drop": lambda: spark.sql("DROP TABLE known"),
        "truncate": lambda: spark.sql(f"TRUNCATE TABLE {table}"),
        "alter": lambda: spark.sql("ALTER TABLE known SET TBLPROPERTIES ('a' = 'b')"),
        "optimize": lambda: spark.sql(f"OPTIMIZE {table}"),
        "vacuum": lambda: spark.sql(f"VACUUM {table}"),
        "replace": lambda: spark.sql(f"CREATE OR REPLACE TABLE {table} USING delta AS SELECT 1 AS a"),
        "createOrReplace": lambda: one.writeTo("known").createOrReplace(),
        "immediate": lambda: spark.sql("EXECUTE IMMEDIATE 'DELETE FROM known'"),
        "own identifier": lambda: one.write.format("delta").option("txnAppId", "a").mode("append").save("orders"),
        "own identifier, by name": lambda: (
            one.writeTo("known").option("txnAppId", "a").options(txnVersion=1).overwritePartitions()
        ),
        "parquet twice": lambda: [one.write.mode("append").parquet("events") for _ in range(2)],
        "parquet option": lambda: one.write.mode("append").option("maxRecordsPerFile", "1").parquet("events"),
        "other output": lambda: one.write.mode("append").parquet("other"),
        "partition": lambda: one.write.mode("append").parquet("events/v=1"),
        "folder above": lambda: one.write.mode("overwrite").json(str(folder)),
        "thread": lambda: threaded(lambda: one.write.format("delta").mode("append").save("orders")),
        "session": lambda: other.sql(f"INSERT INTO {table} SELECT 1L, 1"),
    }


def by_packages(spark: Any, folder: Path) -> dict[str, Callable[[], object]]:
    """Calls of packages that are imported late; none of them may run. What Delta's would ask the JVM a stand-in answers: the JVM's part of
    that package needs another version of Spark."""
    from pyspark.ml.feature import Tokenizer
    from pyspark.ml.util import DefaultParamsWriter
    from pyspark.mllib.regression import LinearRegressionModel

    delta: Any = importlib.import_module("delta.tables")
    known, builder = delta.DeltaTable(spark, Mock()), delta.DeltaTableBuilder(spark, Mock())
    weights: Any = [1.0]
    plain = str(folder / "no-model")
    return {
        "merge": lambda: known.merge(spark.range(1), "known.id = 7").whenMatchedDelete().execute(),
        "delete": lambda: known.delete("id = 7"),
        "generate": lambda: known.generate("symlink_format_manifest"),
        "clone": lambda: known.clone("other", isShallow=True),
        "clone of a version": lambda: known.cloneAtVersion(0, "other", isShallow=True),
        "clone of a time": lambda: known.cloneAtTimestamp("2024-05-01", "other", isShallow=True),
        "convert": lambda: delta.DeltaTable.convertToDelta(spark, f"parquet.`{folder}/plain`"),
        "create": lambda: builder.location("other").execute(),
        "model": lambda: Tokenizer().save(plain),
        "model over another": lambda: Tokenizer().write().overwrite().save(plain),
        "model of Python's": lambda: DefaultParamsWriter(Tokenizer()).overwrite().save(plain),
        "model of mllib": lambda: LinearRegressionModel(weights, 0.0).save(spark.sparkContext, plain),
    }


def formatted(spark: Any, one: Any, text: str) -> None:
    found = [list(row) for row in spark.sql(text, t=one, low=1, ids=(50, 2), name="a'b").collect()]
    assert found == FORMATTED[text], found


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
