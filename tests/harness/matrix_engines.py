"""Reads tables of the matrix with the formats' own engines for Spark: `python -m harness.matrix_engines FOLDER JARS`.

FOLDER/tables.json lists what to read, as `Listed`; what is wrong goes to FOLDER/facts.json. It is a separate process, because the jars
must be there when its JVM starts, and because its session has none of the settings that jobs write under.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyarrow import parquet

from harness.matrix import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KINDS = ("delta", "iceberg")
"""Kinds whose format has an engine; Spark's data source has the same name."""


@dataclass(frozen=True)
class Listed:
    """A table to read, and the Parquet file with the rows that were written to it."""

    case: str
    kind: str
    source: str
    table: str
    """Folder of a Delta table, metadata file of an Iceberg table."""
    partition: str | None
    texts: bool
    """Whether the partition column holds texts."""


def wrong(spark: SparkSession, listed: Listed) -> list[str]:
    """What the engine finds otherwise than it was written: rows, and rows that a filter on the partition selects."""
    source = parquet.read_table(listed.source)
    written, names = rows_of(source), source.column_names
    table = spark.read.format(listed.kind).load(listed.table)
    found = rows_of(table.select(*names).toArrow())
    if found != written:
        differing = [(mine, theirs) for mine, theirs in zip(written, found, strict=False) if mine != theirs]
        return [f"{len(found)} rows; written and found: {differing[:2]}"]
    if listed.partition is None:
        return []
    column = source[listed.partition]
    rows: dict[str | None, list[int]] = {
        None: [n for n, valid in enumerate(column.is_valid().to_pylist()) if not valid]
    }
    for n, text in enumerate(column.to_pylist() if listed.texts else ()):
        if text is not None:
            rows.setdefault(text, []).append(n)
    found_by = {text: _numbers(table, listed.partition, text) for text in rows}
    return [
        f"a filter on {text!r} finds {found_by[text]}, not {there}"
        for text, there in rows.items()
        if found_by[text] != there
    ]


def _numbers(table: DataFrame, column: str, text: str | None) -> list[int]:
    from pyspark.sql import functions

    where = functions.col(column).eqNullSafe(functions.lit(text).cast("string"))
    return sorted(row.n for row in table.where(where).select("n").collect())


def main(folder: Path, jars: str) -> None:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .getOrCreate()
    )
    tables = [Listed(**each) for each in json.loads((folder / "tables.json").read_text())]
    said = []
    for listed in tables:
        try:
            said += [{"case": listed.case, "wrong": why} for why in wrong(spark, listed)]
        except Exception as error:
            said.append({"case": listed.case, "wrong": f"{type(error).__name__}: {error}"[:1000]})
    spark.stop()
    (folder / "facts.json").write_text(json.dumps({"read": len(tables), "wrong": said}))


def write_list(folder: Path, tables: list[Listed]) -> None:
    """Says what to read."""
    (folder / "tables.json").write_text(json.dumps([asdict(each) for each in tables]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
