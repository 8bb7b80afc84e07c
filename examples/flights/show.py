"""Show the table `flights` in a terminal: flights per carrier, read without Spark.

    python examples/flights/show.py [FOLDER]      FOLDER: examples/flights/data/lake/flights unless named

A table's rows are in the files that its committed slots name: `sparkonce.sink.slotlog.snapshot` lists these, and pyarrow reads them. In a
PySpark job `sparkonce.read(spark, path)` does the same. Reading every Parquet file in the folder would be wrong, since files of attempts
that never committed lie there, too.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from rich.console import Console
from rich.table import Table as Shown

from sparkonce.sink.slotlog.snapshot import Table

LAKE = Path(__file__).resolve().parent / "data" / "lake" / "flights"


def per_carrier(files: list[str]) -> pa.Table:
    """Columns: carrier, months, flights, cancelled, delay (mean, minutes); the most flights first."""
    rows = ds.dataset(files).to_table(columns=["date", "carrier", "arr_delay", "cancelled"])
    rows = rows.append_column("month", pc.strftime(rows["date"], format="%Y-%m"))
    rows = rows.set_column(rows.column_names.index("cancelled"), "cancelled", pc.cast(rows["cancelled"], pa.int64()))
    counted = rows.group_by("carrier").aggregate(
        [("month", "count_distinct"), ("carrier", "count"), ("cancelled", "sum"), ("arr_delay", "mean")]
    )
    return counted.sort_by([("carrier_count", "descending")])


def main() -> None:
    """Draws the table."""
    parser = argparse.ArgumentParser(description="Show flights per carrier.")
    parser.add_argument("folder", nargs="?", type=Path, default=LAKE)
    folder = parser.parse_args().folder
    files = Table(folder).files()
    if not files:
        raise SystemExit(f"show: no job has committed anything to {os.path.relpath(folder)}; run `make demo`")
    counted = per_carrier(files)
    total = pc.sum(counted["carrier_count"]).as_py()
    shown = Shown(title=f"{os.path.relpath(folder)}: {total:,} rows in {len(files)} file(s)")
    for header in ("carrier", "months", "flights", "cancelled", "mean delay at arrival (min)"):
        shown.add_column(header, justify="left" if header == "carrier" else "right")
    for row in counted.to_pylist():
        numbers = [row["month_count_distinct"], row["carrier_count"], row["cancelled_sum"]]
        shown.add_row(row["carrier"], *(f"{number:,}" for number in numbers), f"{row['arr_delay_mean'] or 0:.1f}")
    Console().print(shown)


if __name__ == "__main__":
    main()
