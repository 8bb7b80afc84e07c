"""The benchmarks' tables, and the ways to write to them: ours, each library's own, and Spark's plain files.

The library's own way is the one open to a PySpark job without JVM packages: the library writes and commits the DataFrame as an Arrow table
(`toArrow`). Every run has a table of its own, created in advance with its columns and one empty commit, so that no run pays for earlier
commits or for being the first. Afterwards the library that owns the format counts the rows.

Imports are inside the functions, so that a fresh process pays only for those of its own way to write.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from measure import WrongEffect

from machine import Used, metered

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from sparkonce.store.protocol import IdempotencyStore, Lease

NATIVE = "df.write.parquet"
DELTA, THEIR_DELTA = "job.write, delta", "write_deltalake"
ICEBERG, THEIR_ICEBERG = "job.write, iceberg", "pyiceberg append"
NATIVE_LISTS, ICEBERG_LISTS = "df.write.parquet, lists", "job.write, iceberg, lists"
PLAIN, IN_CATALOG = (NATIVE, NATIVE_LISTS), (ICEBERG, THEIR_ICEBERG, ICEBERG_LISTS)
OURS, WITH_LISTS = (DELTA, ICEBERG, ICEBERG_LISTS), (NATIVE_LISTS, ICEBERG_LISTS)
VARIANTS = (NATIVE, DELTA, THEIR_DELTA, ICEBERG, THEIR_ICEBERG, NATIVE_LISTS, ICEBERG_LISTS)
CATALOG = "bench"


@dataclass(frozen=True)
class Tables:
    scratch: Path

    def configure(self) -> None:
        """Sets the catalog's address in the environment, as pyiceberg's users do, for this process and its children."""
        properties = {"TYPE": "sql", "URI": f"sqlite:///{self.scratch / 'catalog.db'}"}
        properties["WAREHOUSE"] = (self.scratch / "warehouse").as_uri()
        os.environ |= {f"PYICEBERG_CATALOG__BENCH__{name}": value for name, value in properties.items()}

    def made(self, variant: str, empty: pa.Table) -> str:
        """Creates a table; returns its path, or the name of an Iceberg table. `empty`: its columns without rows."""
        name = f"t{uuid4().hex}"
        if variant in IN_CATALOG:
            from pyiceberg.catalog import load_catalog

            catalog = load_catalog(CATALOG)
            catalog.create_namespace_if_not_exists("bench")
            catalog.create_table(f"bench.{name}", empty.schema).append(empty)
            return f"bench.{name}"
        path = str(self.scratch / name)
        if variant not in PLAIN:
            from deltalake import write_deltalake

            write_deltalake(path, empty)
        return path

    def counted(self, variant: str, place: str, rows: int) -> None:
        """Counts the rows with the format's library, then deletes the table. Raises WrongEffect if the count is wrong."""
        if variant in IN_CATALOG:
            from pyiceberg.catalog import load_catalog

            catalog = load_catalog(CATALOG)
            found = sum(task.file.record_count for task in catalog.load_table(place).scan().plan_files())
            catalog.purge_table(place)
        else:
            found = _in_files(Path(place)) if variant in PLAIN else _in_delta(place)
            shutil.rmtree(place)
        if found != rows:
            raise WrongEffect(f"{variant}: the table holds {found} rows, and {rows} were written")


def _in_files(folder: Path) -> int:
    from pyarrow import parquet

    return sum(parquet.read_metadata(file).num_rows for file in folder.glob("*.parquet"))


def _in_delta(path: str) -> int:
    import pyarrow as pa
    from deltalake import DeltaTable

    adds = pa.table(DeltaTable(path).get_add_actions(flatten=True))
    return sum(number for number in adds["num_records"].to_pylist() if number is not None)


def by_library(variant: str, frame: DataFrame, place: str) -> None:
    """Writes with the format's own library, without sparkonce."""
    if variant in PLAIN:
        frame.write.parquet(f"file://{place}")
    elif variant == THEIR_DELTA:
        from deltalake import write_deltalake

        write_deltalake(place, frame.toArrow(), mode="append")
    else:
        from pyiceberg.catalog import load_catalog

        load_catalog(CATALOG).load_table(place).append(frame.toArrow())


def by_job(variant: str, frame: DataFrame, place: str, rows: int, opened: tuple[IdempotencyStore, Lease]) -> Used:
    """Writes with sparkonce, on a key reserved before the clock starts; `opened`: a ledger. Raises WrongEffect."""
    from attempt import OUTPUT, begun

    where: dict[str, Any] = {"delta": {"path": place}}
    if variant in IN_CATALOG:
        where = {"iceberg": {"catalog": CATALOG, "table": place}}
    job = begun(*opened, Path(place if variant == DELTA else "/"), place=where)
    try:
        told, used = metered(lambda: job.write(frame, OUTPUT))
    finally:
        job.heartbeat.stop()
    if not told.fresh or told.rows != rows:
        raise WrongEffect(f"job.write said {told}, for {rows} rows under a fresh key")
    return used
