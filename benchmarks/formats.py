"""What a write into a Delta or an Iceberg table through sparkonce costs, beside what each library's own writer takes for the same rows.

Ours is `job.write` on a key reserved in a real ledger: Spark writes the files natively, a small commit lists them. Theirs is what a PySpark
job has without JVM packages: the DataFrame as an Arrow table (`toArrow`), which the library writes and commits. Beside both, in the same
round, stands `df.write.parquet`, which makes no table at all: the least that the rows themselves cost.

Every table is new, made before its time begins, so that no run pays for the snapshots of the one before. After it, outside of the time,
the library counts the rows.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from attempt import OUTPUT, begun
from machine import Used, metered
from measure import Goal, Row, WrongEffect, measured
from output import frame_of, session

from sparkonce.blocking import run
from sparkonce.cli.machine import check_spark
from sparkonce.store.open import open_store
from sparkonce.store.protocol import IdempotencyStore, Lease

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NATIVE = "df.write.parquet"
DELTA, THEIR_DELTA = "job.write, delta", "write_deltalake"
ICEBERG, THEIR_ICEBERG = "job.write, iceberg", "pyiceberg append"


@dataclass
class Formats:
    """The part `formats`; `say` gets a line per round."""

    scratch: Path
    rows: int
    pairs: int
    say: Callable[[str], None]
    runs: dict[str, list[Used]] = field(default_factory=dict)

    def measure(self) -> list[Row]:
        """WrongEffect when a table does not hold the rows; InvalidInput when Spark cannot start here."""
        check_spark()
        self.say(f"formats: starting Spark; {self.rows:,} rows, {self.pairs} pairs and one to warm up")
        catalog = {"TYPE": "sql", "URI": f"sqlite:///{self.scratch / 'catalog.db'}"}
        catalog["WAREHOUSE"] = (self.scratch / "warehouse").as_uri()
        os.environ |= {f"PYICEBERG_CATALOG__BENCH__{name}": value for name, value in catalog.items()}
        store = open_store(str(self.scratch / "ledger.db"))
        lease = run(store.open_lease(owner="benchmark"))
        try:
            with session(self.scratch) as spark:
                variants = {
                    NATIVE: lambda: self._native(spark),
                    DELTA: lambda: self._delta(spark, store, lease),
                    THEIR_DELTA: lambda: self._their_delta(spark),
                    ICEBERG: lambda: self._iceberg(spark, store, lease),
                    THEIR_ICEBERG: lambda: self._their_iceberg(spark),
                }
                self.runs = measured(variants, self.pairs, self._told)
        finally:
            run(lease.revoke())
            run(store.close())
        return self._table()

    def _native(self, spark: SparkSession) -> Used:
        frame, table = self._idle(spark), self.scratch / f"native-{uuid4().hex}"
        _, used = metered(lambda: frame.write.parquet(f"file://{table}"))
        shutil.rmtree(table)
        return used

    def _delta(self, spark: SparkSession, store: IdempotencyStore, lease: Lease) -> Used:
        frame, table = self._idle(spark), self._new_delta(spark)
        used = self._ours(frame, store, lease, table, {"delta": {"path": str(table)}})
        self._counted_delta(DELTA, table)
        return used

    def _their_delta(self, spark: SparkSession) -> Used:
        from deltalake import write_deltalake

        frame, table = self._idle(spark), self._new_delta(spark)
        _, used = metered(lambda: write_deltalake(str(table), frame.toArrow(), mode="append"))
        self._counted_delta(THEIR_DELTA, table)
        return used

    def _new_delta(self, spark: SparkSession) -> Path:
        from deltalake import write_deltalake

        table = self.scratch / f"delta-{uuid4().hex}"
        write_deltalake(str(table), frame_of(spark, 1).toArrow().slice(0, 0))
        return table

    def _counted_delta(self, variant: str, table: Path) -> None:
        import pyarrow as pa
        from deltalake import DeltaTable

        adds = pa.table(DeltaTable(str(table)).get_add_actions(flatten=True))
        self._counted(variant, sum(number for number in adds["num_records"].to_pylist() if number is not None))
        shutil.rmtree(table)

    def _iceberg(self, spark: SparkSession, store: IdempotencyStore, lease: Lease) -> Used:
        frame, name = self._idle(spark), self._new_iceberg(spark)
        place = {"iceberg": {"catalog": "bench", "table": name}}
        used = self._ours(frame, store, lease, self.scratch, place)
        self._counted_iceberg(ICEBERG, name)
        return used

    def _their_iceberg(self, spark: SparkSession) -> Used:
        from pyiceberg.catalog import load_catalog

        frame, name = self._idle(spark), self._new_iceberg(spark)
        table = load_catalog("bench").load_table(name)
        _, used = metered(lambda: table.append(frame.toArrow()))
        self._counted_iceberg(THEIR_ICEBERG, name)
        return used

    def _new_iceberg(self, spark: SparkSession) -> str:
        from pyiceberg.catalog import load_catalog

        catalog, name = load_catalog("bench"), f"bench.t{uuid4().hex}"
        catalog.create_namespace_if_not_exists("bench")
        catalog.create_table(name, frame_of(spark, 1).toArrow().schema)
        return name

    def _counted_iceberg(self, variant: str, name: str) -> None:
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("bench")
        tasks = catalog.load_table(name).scan().plan_files()
        self._counted(variant, sum(task.file.record_count for task in tasks))
        catalog.purge_table(name)

    def _ours(
        self, frame: DataFrame, store: IdempotencyStore, lease: Lease, table: Path, place: dict[str, Any]
    ) -> Used:
        job = begun(store, lease, table, place=place)
        try:
            written, used = metered(lambda: job.write(frame, OUTPUT))
        finally:
            job.heartbeat.stop()
        if not written.fresh or written.rows != self.rows:
            raise WrongEffect(f"job.write said {written}, for {self.rows} rows under a fresh key")
        return used

    def _idle(self, spark: SparkSession) -> DataFrame:
        """A frame of its own for each run, as a job has, and nothing left over from the last one."""
        jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - Spark has no public way to collect its heap
        jvm.System.gc()
        os.sync()
        return frame_of(spark, self.rows)

    def _counted(self, variant: str, rows: int) -> None:
        if rows != self.rows:
            raise WrongEffect(f"{variant}: the table holds {rows} rows, and {self.rows} were written")

    def _told(self, pair: int, used: dict[str, Used]) -> None:
        which = f"pair {pair} of {self.pairs}" if pair else "warm-up"
        what = ", ".join(f"{name} {each.wall:.2f} s ({each.cpu:.2f} CPU s)" for name, each in used.items())
        self.say(f"formats: {which}: {what}; others {sum(each.others for each in used.values()):.1f} CPU s")

    def _table(self) -> list[Row]:
        limit, faster, found = Goal(1.05, "<= 1.05x CPU"), Goal(1.0, "faster"), []
        for ours, theirs, kind in ((DELTA, THEIR_DELTA, "delta"), (ICEBERG, THEIR_ICEBERG, "iceberg")):
            for raw, name, goals in ((NATIVE, "parquet", (limit, None)), (theirs, "library", (faster, faster))):
                what = f"formats: {kind} by {name}"
                found += [
                    Row(what=what, unit="CPU s", ours=self._cpu(ours), raw=self._cpu(raw), goal=goals[0]),
                    Row(what=what, unit="s", ours=self._wall(ours), raw=self._wall(raw), goal=goals[1]),
                ]
        return found

    def _cpu(self, variant: str) -> list[float]:
        return [used.cpu for used in self.runs[variant]]

    def _wall(self, variant: str) -> list[float]:
        return [used.wall for used in self.runs[variant]]

    def dump(self) -> dict[str, Any]:
        return {"rows": self.rows, "runs": {name: [used.dump() for used in each] for name, each in self.runs.items()}}
