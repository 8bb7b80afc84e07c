"""A native block with Spark's real Delta engine, in a process of its own: `python -m harness.native_spark FOLDER JARS`.

It issues statements of each kind, and calls that a block refuses, and prints what each left in the table as one JSON object. It is a
separate process, because the jars must be there when its JVM starts.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from harness.delta_spark import session
from harness.granted import granted


def main(folder: Path, jars: str) -> None:
    place, other = folder / "orders", folder / "other"
    for each in (place, other):
        rows = pa.table({"id": pa.array(range(4), pa.int64()), "v": pa.array([0] * 4, pa.int32())})
        # This engine can neither write nor read checkpoints with this Spark (it calls a removed method), so the test has none.
        write_deltalake(str(each), rows, configuration={"delta.checkpointInterval": "1000"})
    spark = session(folder, jars)
    attempt = granted(folder, outputs=[{"name": "orders", "delta": {"path": "orders"}}])
    facts: dict[str, Any] = {"left": [], "refused": {}}
    one: Any = spark.range(50, 51).selectExpr("id", "1 AS v").coalesce(1)
    table = f"delta.`{place}`"
    spark.sql(f"CREATE TABLE named USING delta LOCATION '{place}'")
    statements: list[Callable[[], object]] = [
        lambda: spark.sql(
            f"MERGE INTO {table} t USING (SELECT * FROM range(3, 5)) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = t.v + 1 "
            "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 9)"
        ),
        lambda: spark.sql(f"UPDATE {table} SET v = v + 10 WHERE id = 0"),
        lambda: spark.sql(f"DELETE FROM {table} WHERE id = -1"),
        lambda: spark.sql("WITH w AS (SELECT 60L AS id, 1 AS v) INSERT INTO named SELECT * FROM w"),
        lambda: spark.sql(f"INSERT INTO {table} REPLACE WHERE id = 1 SELECT 1L, 5"),
        lambda: one.write.format("delta").mode("append").save(str(place)),
        lambda: one.write.insertInto("named"),
        lambda: one.write.saveAsTable("named", format="delta", mode="append"),
        lambda: one.writeTo("named").append(),
    ]
    refused: dict[str, Callable[[], object]] = {
        "another table": lambda: spark.sql(f"INSERT INTO delta.`{other}` SELECT 1L, 1"),
        "relative path": lambda: spark.sql("INSERT INTO delta.`../orders` SELECT 1L, 1"),
        "another path": lambda: one.write.format("delta").mode("append").save(str(other)),
        "several inserts": lambda: spark.sql(
            f"FROM {table} INSERT INTO {table} SELECT 1L, 1 INSERT INTO named SELECT 1L, 1"
        ),
        "optimize": lambda: spark.sql(f"OPTIMIZE {table}"),
        "vacuum": lambda: spark.sql(f"VACUUM {table}"),
        "create": lambda: spark.sql(f"CREATE OR REPLACE TABLE {table} USING delta AS SELECT 1 AS id"),
        "alter": lambda: spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('a' = 'b')"),
        "immediate": lambda: spark.sql("EXECUTE IMMEDIATE 'DELETE FROM named'"),
        "restore": lambda: spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF 0"),
        "script": lambda: spark.sql("BEGIN DELETE FROM named; END"),
        "own identifier": lambda: one.write.format("delta").option("txnAppId", "mine").mode("append").save(str(place)),
        "own identifier, by name": lambda: (
            one.writeTo("named").option("txnAppId", "mine").options(txnVersion=1).append()
        ),
        "createOrReplace": lambda: one.writeTo("named").createOrReplace(),
        "stream": lambda: spark.readStream.format("rate").load().writeStream.format("noop").start(),
        "thread": lambda: threaded(lambda: spark.sql(f"DELETE FROM {table}")),
    }

    def numbers() -> list[list[int]]:
        return sorted([row["id"], row["v"]] for row in DeltaTable(str(place)).to_pyarrow_table().to_pylist())

    with attempt.job().native("orders") as block:
        for statement in statements:
            statement()
            facts["left"].append(numbers())
        version = DeltaTable(str(place)).version()
        for name, call in refused.items():
            try:
                call()
                facts["refused"][name] = None
            except Exception as error:
                facts["refused"][name] = f"{type(error).__name__}: {error}"
        facts["reads"] = spark.sql(f"SELECT count(*) AS n FROM {table}").collect()[0]["n"]
        spark.sql("CREATE OR REPLACE TEMP VIEW some AS SELECT 1")
        facts["written by refused calls"] = DeltaTable(str(place)).version() - version
    facts["other"] = DeltaTable(str(other)).version()
    facts["done"] = block.done
    facts["rows"] = None if block.written is None else block.written.rows
    facts["settings"] = spark.conf.get("spark.databricks.delta.write.txnAppId", None)
    with attempt.job().native("orders"):
        for statement in statements:
            statement()
    facts["issued twice"] = numbers()
    (folder / "facts.json").write_text(json.dumps(facts))
    spark.stop()


def threaded(call: Callable[[], object]) -> None:
    """Runs the call in another thread, and raises its error here."""
    raised: list[Exception] = []

    def run() -> None:
        try:
            call()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
