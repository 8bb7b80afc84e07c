"""A Spark with Delta's own engine, in a process of its own: `python -m harness.delta_spark FOLDER JARS`.

It acts in turns as a job (Spark stages, we commit) and as other users of the engine on one table, and prints what each of them saw as one
JSON object. It is a separate process, because the jars must be there when its JVM starts.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from sparkonce.blocking import run
from sparkonce.model.spec import OnRerun
from sparkonce.sink.delta import log as delta_log
from sparkonce.sink.delta import schema as delta_fit
from sparkonce.sink.open import open_sink
from sparkonce.sink.protocol import Declared, Sink, SinkKey, WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXTS = ["a b", "x:y/%=", "ü", "100%25", "Ä", None]
SCHEMA = "d string, n long, at timestamp, day date, price decimal(9,2), tags array<string>, m struct<x:int>"


def session(scratch: Path, jars: str) -> SparkSession:
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2]")
        .appName("sparkonce-delta-tests")
        .config("spark.jars", jars)
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        .config("spark.sql.session.timeZone", "America/New_York")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", str(scratch / "local"))
        .getOrCreate()
    )


class Play:
    """One table, its users, and what they saw."""

    def __init__(self, spark: SparkSession, table: Path) -> None:
        self.spark, self.table = spark, table

    def sink(self, on_rerun: OnRerun = OnRerun.REPLACE) -> Sink:
        return open_sink(
            Declared(name="orders", kind="delta", location=str(self.table), on_rerun=on_rerun), base=None, durable=False
        )

    def job(self, key: SinkKey, rows: list[Any], schema: str = SCHEMA, **options: Any) -> str:
        sink = self.sink()
        frame = self.spark.createDataFrame(rows, schema)
        slot = sink.stage(frame, key, 1, fingerprint="f", options=WriteOptions(**options))
        return type(run(sink.commit(key, slot))).__name__

    def sql(self, text: str) -> list[Any]:
        return [row.asDict() for row in self.spark.sql(text.format(t=f"delta.`{self.table}`")).collect()]

    def numbers(self) -> list[int]:
        return sorted(row["n"] for row in self.sql("SELECT n FROM {t}"))


def key_of(name: str, generation: int = 1) -> SinkKey:
    return SinkKey(key_hash=name, output="orders", generation=generation)


def row(text: str | None, number: int) -> tuple[Any, ...]:
    from datetime import date, datetime
    from decimal import Decimal

    return (text, number, datetime(2024, 5, 1, 12, number), date(2024, 5, 1), Decimal("1.50"), ["t", None], (number,))  # noqa: DTZ001 - of the session's zone


def play(spark: SparkSession, table: Path, facts: dict[str, Any]) -> None:
    """Runs the steps of the table's life in order; each fact is what one of the users saw."""
    it = Play(spark, table)
    rows = [row(text, number) for number, text in enumerate(TEXTS)]
    facts["created"] = it.job(key_of("aa"), rows, partition_by=("d",))
    # This engine can neither write nor read checkpoints with this Spark (it calls a removed method), so the test has none.
    DeltaTable(str(table)).alter.set_table_properties({"delta.checkpointInterval": "1000"})
    seen = it.sql("SELECT *, cast(at AS string) AS text FROM {t} ORDER BY n")
    facts["rows"] = [
        [each["d"], each["n"], each["text"], str(each["price"]), each["tags"], each["m"]["x"]] for each in seen
    ]
    facts["pruned"] = len(spark.read.format("delta").load(str(table)).where("d = 'ü'").inputFiles())

    it.sql("INSERT INTO {t} (d, n) VALUES ('spark', 100)")
    facts["after the engine's insert"] = it.job(key_of("bb"), [row("a b", 10)])
    facts["merged"] = it.job(key_of("cc"), [("a b", 11, "new")], "d string, n long, extra string", merge_schema=True)
    facts["extra"] = it.sql("SELECT n, extra FROM {t} WHERE extra IS NOT NULL")
    facts["replaced"] = it.job(key_of("bb", 2), [row("a b", 12)])
    facts["numbers"] = it.numbers()
    facts["engine's own history"] = [each["userMetadata"] for each in it.sql("DESCRIBE HISTORY {t}")]

    it.sql("DELETE FROM {t} WHERE n = 100")
    it.sql("OPTIMIZE {t}")
    it.sql("VACUUM {t} RETAIN 0 HOURS")
    facts["after optimize and vacuum"] = it.numbers()
    sink = it.sink()
    facts["probes"] = {name: str(run(sink.probe(key_of(name), None))) for name in ("aa", "bb", "cc")}
    facts["found"] = (found := run(sink.find(key_of("aa")))) is not None and found.rows == len(TEXTS)
    try:
        it.job(key_of("aa", 2), rows)
    except Exception as error:
        facts["replace after optimize"] = str(error)

    zombie = sink.stage(spark.createDataFrame([row("a b", 50)], SCHEMA), key_of("zz"), 1, fingerprint="f")
    facts["fence"] = run(sink.fence(key_of("zz"), 2, fingerprint="f", by="settle"))
    it.sql("INSERT INTO {t} (d, n) VALUES ('spark', 200)")
    it.sql("INSERT INTO {t} (d, n) VALUES ('spark', 201)")
    facts["zombie"] = type(run(sink.commit(key_of("zz"), zombie))).__name__
    facts["at last"] = it.numbers()

    made = Play(spark, table.with_name("made"))
    spark.createDataFrame([("p", 0)], "d string, n long").write.format("delta").partitionBy("d").save(str(made.table))
    facts["into the engine's table"] = made.job(key_of("aa"), [("q", 1), (None, 2)], "d string, n long")
    facts["of the engine's table"] = made.numbers()

    widths = Play(spark, table.with_name("widths"))
    widths.sql(
        "CREATE TABLE {t} (n BIGINT, code VARCHAR(5), plant CHAR(3), who STRUCT<name: CHAR(4), age: INT>) USING delta"
    )
    widths.sql("INSERT INTO {t} VALUES (0, 'A-100', 'D', named_struct('name', 'Ada', 'age', 36))")
    columns = "who struct<age:int,name:string>, n long, code string, plant string"
    facts["into widths"] = widths.job(key_of("aa"), [((36, "Ada"), 1, "A-100", "D")], columns)
    facts["stored under widths"] = DeltaTable(str(widths.table)).to_pyarrow_table().sort_by("n").to_pylist()
    facts["read under widths"] = widths.sql(
        "SELECT n, code, plant, who.name AS name, who.age AS age FROM {t} ORDER BY n"
    )
    facts["too long"] = []
    for long in (((36, "Ada  "), 2, "A", "D"), ((36, "Ada"), 2, "A-100 ", "D"), ((36, "Ada"), 2, "A", "DE  ")):
        try:
            widths.job(key_of("bb"), [long], columns)
        except Exception as error:
            facts["too long"].append(str(error))
    widths.sql("UPDATE {t} SET code = 'B' WHERE n < 5")  # rewrites the job's file, which checks each of its texts again
    facts["rewritten under widths"] = widths.numbers()

    blank = Play(spark, table.with_name("blank"))
    log = blank.table / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_bytes(
        delta_log.new_table(delta_fit.BLANK, (), protocol=delta_fit.new_protocol(()), now=0)
    )
    noon = datetime(2024, 5, 1, 12)  # noqa: DTZ001 - of no zone
    facts["into a table without columns"] = blank.job(key_of("bb"), [(1, noon)], "n long, at timestamp_ntz")
    blank.sql("INSERT INTO {t} VALUES (2, TIMESTAMP_NTZ '2024-05-01 12:00:00')")
    facts["noons"] = [str(row["at"]) for row in blank.sql("SELECT at FROM {t}")]


def main() -> None:
    folder, jars = Path(sys.argv[1]), sys.argv[2]
    spark = session(folder, jars)
    facts: dict[str, Any] = {}
    try:
        play(spark, folder / "lake" / "orders", facts)
        spark.stop()
    finally:
        (folder / "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
