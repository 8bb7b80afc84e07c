"""Write the input of this example: orders and customers in the manner of TPC-H, as a shop's systems would deliver them.

    python examples/warehouse/prepare.py [FOLDER]      FOLDER: examples/warehouse/data/landing unless named

    orders/1995-01.parquet ...       the orders of each month
    lines/1995-01.parquet ...        their lines
    customers/1995-01-01.parquet     all customers
    customers/1995-02-01.parquet     what changed since: some moved to another segment, some are new
    customers/1995-03-01.parquet     likewise

The rows come from TPC-H's generator (the PyPI package tpchgen-cli) at scale 0.05: 75,000 orders, 7,500 customers. They are the same on
every machine. A second call has nothing to do.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

LANDING = Path(__file__).resolve().parent / "data" / "landing"
SCALE = "0.05"
DELIVERIES = ("1995-01-01", "1995-02-01", "1995-03-01")
SEGMENTS = ("AUTOMOBILE", "BUILDING", "FURNITURE", "HOUSEHOLD", "MACHINERY")


def generated(folder: Path) -> dict[str, pa.Table]:
    """The tables as the generator writes them, with columns named without TPC-H's prefixes."""
    program = Path(sys.executable).parent / "tpchgen-cli"
    found = str(program) if program.exists() else shutil.which("tpchgen-cli")
    if found is None:
        raise SystemExit("prepare: tpchgen-cli is not installed; run `pip install tpchgen-cli`")
    tables = ("orders", "lineitem", "customer")
    command = [found, "parquet", "-s", SCALE, f"--tables={','.join(tables)}", "--output-dir", str(folder)]
    subprocess.run(command, check=True)
    return {name: plain(pq.read_table(folder / f"{name}.parquet")) for name in tables}


def plain(table: pa.Table) -> pa.Table:
    """Columns without prefix, nullable, of types that every reader knows."""
    columns = {}
    for field in table.schema:
        column = table[field.name]
        columns[field.name.partition("_")[2]] = column.cast(pa.string()) if field.type == pa.string_view() else column
    return pa.table(columns)


def by_month(rows: pa.Table, months: pa.ChunkedArray, folder: Path) -> None:
    """One file per month."""
    folder.mkdir()
    for month in pc.unique(months).to_pylist():
        pq.write_table(rows.filter(pc.equal(months, month)), folder / f"{month}.parquet")


def customers(rows: pa.Table, folder: Path) -> None:
    """The first delivery has all but the last hundred customers; each later one has fifty that moved to the next segment, and fifty new
    ones."""
    folder.mkdir()
    rows = rows.sort_by("custkey").select(["custkey", "name", "nationkey", "mktsegment", "acctbal"])
    known = rows.num_rows - 100
    for number, day in enumerate(DELIVERIES):
        if number == 0:
            delivered = rows.slice(0, known)
        else:
            moved = rows.slice((number - 1) * 50, 50)
            segments = [SEGMENTS[(SEGMENTS.index(each) + number) % 5] for each in moved["mktsegment"].to_pylist()]
            moved = moved.set_column(moved.column_names.index("mktsegment"), "mktsegment", pa.array(segments))
            delivered = pa.concat_tables([moved, rows.slice(known + (number - 1) * 50, 50)])
        pq.write_table(delivered, folder / f"{day}.parquet")


def prepare(landing: Path) -> bool:
    """Fills `landing` unless it exists; returns whether this call filled it."""
    if landing.exists():
        return False
    landing.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{landing.name}-", dir=landing.parent))
    try:
        beside.chmod(0o755)  # mkdtemp's folders are readable by their owner only
        raw = Path(tempfile.mkdtemp(dir=beside))
        tables = generated(raw)
        shutil.rmtree(raw)
        orders, lines = tables["orders"], tables["lineitem"]
        months = pc.strftime(orders["orderdate"], format="%Y-%m")
        by_month(orders, months, beside / "orders")
        place = pc.index_in(lines["orderkey"], orders["orderkey"])
        by_month(lines, months.take(place), beside / "lines")
        customers(tables["customer"], beside / "customers")
        try:
            beside.rename(landing)
        except OSError:
            if not landing.is_dir():
                raise
            return False  # another process was faster, with the same files
        return True
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def main() -> None:
    """Says which of the two happened."""
    parser = argparse.ArgumentParser(description="Write orders, their lines and customers as Parquet.")
    parser.add_argument("folder", nargs="?", type=Path, default=LANDING)
    folder = parser.parse_args().folder
    done = prepare(folder)
    print(f"deliveries {'written to' if done else 'are there already:'} {os.path.relpath(folder)}")


if __name__ == "__main__":
    main()
