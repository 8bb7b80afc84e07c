"""`job.write` in mode Merge with the real engines of Delta and Iceberg: `python -m harness.merged_spark FOLDER DELTA_JARS ICEBERG_JAR URL`.

It merges into one table of each kind, and tries what is refused, and writes what each left as one JSON object. It is a separate process,
because the jars must be there when its JVM starts.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from pyspark.sql import SparkSession

from harness.delta_jars import SESSION
from harness.granted import granted
from harness.iceberg_rest import EXTENSIONS, lake_at
from harness.iceberg_tables import catalog, rest_catalog
from sparkonce.errors import SparkonceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS = "id long, name string, v int"


def session(folder: Path, jars: str, url: str) -> SparkSession:
    settings = SESSION | {
        "spark.jars": jars,
        "spark.sql.extensions": f"{SESSION['spark.sql.extensions']},{EXTENSIONS}",
        **lake_at(url),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class Play:
    """One table and the jobs that merge into it."""

    def __init__(self, folder: Path, spark: SparkSession, kind: str) -> None:
        self.folder, self.spark, self.kind = folder, spark, kind
        self.place: dict[str, Any] = (
            {"delta": {"path": "lake/people"}}
            if kind == "delta"
            else {"iceberg": {"catalog": "lake", "table": "sales.people"}}
        )

    def frame(self, *rows: tuple[Any, ...], schema: str = ROWS) -> DataFrame:
        return self.spark.createDataFrame(list(rows), schema)

    def merge(
        self, key: str, frame: DataFrame, *, declared: bool = True, died: bool = False, **options: Any
    ) -> list[Any]:
        """Writes once: rows of the result, and whether this call committed them. died: an attempt came before that wrote nothing."""
        mode = {"mode": "Merge", "on": ["ID"]} if declared else {}
        attempt = granted(self.folder, outputs=[{"name": "people", **self.place, **mode}], idempotencyKey=key)
        if died:
            attempt.next_attempt()
        done = attempt.job().write(frame, "people", **options)
        return [done.rows, done.fresh]

    def rows(self) -> list[list[Any]]:
        """As delta-rs and pyiceberg read them."""
        if self.kind == "delta":
            table = self.delta().to_pyarrow_table()
        else:
            table = catalog().load_table("sales.people").scan().to_arrow()
        return sorted(([row["id"], row["name"], row["v"]] for row in table.to_pylist()), key=str)

    def commits(self) -> int:
        if self.kind == "delta":
            return self.delta().version()
        snapshot = catalog().load_table("sales.people").current_snapshot()
        return snapshot.snapshot_id if snapshot is not None else 0

    def delta(self) -> DeltaTable:
        return DeltaTable(str(self.folder / "lake" / "people"))

    def add_column(self) -> None:
        """As another writer does."""
        if self.kind == "delta":
            self.delta().alter.add_columns([Field("more", PrimitiveType("integer"))])
        else:
            self.spark.sql("ALTER TABLE lake.sales.people ADD COLUMNS (more int)")


def refused(play: Play) -> Iterator[tuple[str, Callable[[], object]]]:
    good = play.frame((1, "x", 1))
    yield "same key twice", lambda: play.merge("r1", play.frame((70, "x", 1), (70, "y", 2)))
    yield "column too many", lambda: play.merge("r2", play.frame((1, "x", 1, 2), schema=f"{ROWS}, more int"))
    yield "column too few", lambda: play.merge("r3", play.frame((1, 1), schema="id long, v int"))
    yield "larger type", lambda: play.merge("r4", play.frame((1, "x", 1.5), schema="id long, name string, v double"))
    yield "no such key", lambda: play.merge("r5", good, declared=False, mode="merge", on=["number"])
    yield "no key", lambda: play.merge("r6", good, declared=False, mode="merge")
    yield "another key", lambda: play.merge("r7", good, on=["name"])
    yield "key of an append", lambda: play.merge("r8", good, declared=False, on=["id"])
    yield "partitions", lambda: play.merge("r9", good, partition_by=["v"])


def played(play: Play) -> dict[str, Any]:
    never = play.frame((1, "never", 1)).selectExpr("raise_error('the rows were computed') AS id", "name", "v")
    facts: dict[str, Any] = {"refused": {}}
    facts["first"] = play.merge("a", play.frame((1, "a", 1), (2, "b", 1), (None, "none", 1)), died=True)[1], play.rows()
    if play.kind == "delta":
        # This engine can neither write nor read checkpoints with this Spark (it calls a removed method).
        play.delta().alter.set_table_properties({"delta.checkpointInterval": "1000"})
    facts["second"] = play.merge("b", play.frame((2, "B", 2), (3, "c", 2), (None, "None", 2)))[1], play.rows()
    before = play.commits()
    facts["again"] = [play.merge(key, never)[1] for key in ("a", "b")], play.commits() == before
    # a narrower type of the same kind, columns in another order, and no word of the job file
    narrow = play.frame(("d", 4, 3), schema="name string, id int, v short")
    facts["third"] = play.merge("c", narrow, declared=False, mode="Merge", on=["id"])[1], play.rows()
    before = play.commits()
    for what, call in refused(play):
        try:
            facts["refused"][what] = call()
        except SparkonceError as error:
            facts["refused"][what] = f"{type(error).__name__}: {error}"
    facts["written by refused calls"] = play.rows() != facts["third"][1]
    play.add_column()
    facts["again, with another column"] = play.merge("b", never)[1]
    return facts


def charred(play: Play) -> dict[str, Any]:
    """A table of Spark's own with CHARs: by one as the key, what a job is told, and what it does with the remedy; by another key."""
    play.spark.sql(
        f"CREATE TABLE delta.`{play.folder}/lake/codes` (id CHAR(5), who STRUCT<name: CHAR(3)>, v INT) USING delta "
        "TBLPROPERTIES ('delta.checkpointInterval' = '1000')"
    )
    coded = Play(play.folder, play.spark, "delta")
    coded.place = {"delta": {"path": "lake/codes"}}
    rows = [
        coded.frame(("ab", ("x",), number), schema="id string, who struct<name: string>, v int") for number in (1, 2)
    ]
    facts: dict[str, Any] = {}
    try:
        facts["padded"] = coded.merge("p1", rows[0])
    except Exception as error:
        facts["padded"] = f"{type(error).__name__}: {error}"
    play.spark.conf.set("spark.sql.readSideCharPadding", "false")
    facts["merged"] = [coded.merge(f"p{2 + number}", frame)[1] for number, frame in enumerate(rows)]
    play.spark.conf.unset("spark.sql.readSideCharPadding")
    facts["by another"] = coded.merge(
        "p4",
        coded.frame(("cd", ("z",), 2), schema="id string, who struct<name: string>, v int"),
        declared=False,
        mode="Merge",
        on=["v"],
    )[1]
    facts["rows"] = DeltaTable(f"{play.folder}/lake/codes").to_pyarrow_table().to_pylist()
    return facts


def main(folder: Path, delta: str, iceberg: str, url: str) -> None:
    os.environ.update(rest_catalog(url))
    spark = session(folder, f"{delta},{iceberg}", url)
    facts = {kind: played(Play(folder, spark, kind)) for kind in ("delta", "iceberg")}
    facts["char"] = charred(Play(folder, spark, "delta"))
    (folder / "facts.json").write_text(json.dumps(facts))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
