"""Compares a write through sparkonce with `DataFrame.write.parquet`: the same frame, the same session, the same disk.

It times `job.write(frame, output)` as a driver calls it, on a key reserved in a real SQLite ledger, with its heartbeat: look for an
earlier commit, stage with Spark, read the footers, compare the rows, flush everything to disk, create the slot. A second variant does the
same without any fsync (`durable=False`), which is unsafe for data but shows the cost of durability; the plain write does no fsync.

Before each run the heap is collected and the disk made idle (the last run's files are deleted, and the rest flushed), so that no run pays
for an earlier one. After each run, outside of the measured time, the rows of the output are counted.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from measure import Row, WrongEffect, by_cpu, measured, pair_text
from pyarrow import parquet
from spark import PARTITIONS, idle_frame, session

from attempt import OUTPUT, begun, ledger
from machine import Used, metered, used_text
from sparkonce.launch.submit import check_spark
from sparkonce.sink.slotlog.snapshot import Table
from sparkonce.store.protocol import IdempotencyStore, Lease

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAIN, DURABLE, UNSYNCED = "df.write.parquet", "job.write", "job.write, durable=False"


@dataclass
class Output:
    """The part `output`; `say` gets a line per pair."""

    scratch: Path
    rows: int
    pairs: int
    say: Callable[[str], None]
    runs: dict[str, list[Used]] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    """Size of the last run's files, by variant."""

    def measure(self) -> list[Row]:
        """Raises WrongEffect if an output does not hold the rows, InvalidInput if Spark cannot start here."""
        check_spark()
        self.say(f"output: starting Spark; {self.rows:,} rows, {self.pairs} pairs and one to warm up")
        with ledger(self.scratch) as (store, lease), session(self.scratch) as spark:
            self.runs = self._runs(spark, store, lease)
        durable, unsynced = ({PLAIN: self.runs[PLAIN], each: self.runs[each]} for each in (DURABLE, UNSYNCED))
        return [*by_cpu("output", durable, raw=PLAIN), *by_cpu("output", unsynced, raw=PLAIN, goal=None)]

    def _runs(self, spark: SparkSession, store: IdempotencyStore, lease: Lease) -> dict[str, list[Used]]:
        variants = {
            PLAIN: lambda: self._plain(spark),
            DURABLE: lambda: self._ours(spark, store, lease, durable=True),
            UNSYNCED: lambda: self._ours(spark, store, lease, durable=False),
        }
        return measured(variants, self.pairs, self._told)

    def _plain(self, spark: SparkSession) -> Used:
        frame, table = idle_frame(spark, self.rows), self.scratch / f"plain-{uuid4().hex}"
        _, used = metered(lambda: frame.write.parquet(f"file://{table}"))
        self._counted(PLAIN, sorted(table.glob("*.parquet")), table)
        return used

    def _ours(self, spark: SparkSession, store: IdempotencyStore, lease: Lease, *, durable: bool) -> Used:
        frame, table = idle_frame(spark, self.rows), self.scratch / f"ours-{uuid4().hex}"
        job = begun(store, lease, table, durable=durable)
        try:
            written, used = metered(lambda: job.write(frame, OUTPUT))
        finally:
            job.heartbeat.stop()
        if not written.fresh or written.rows != self.rows:
            raise WrongEffect(f"job.write said {written}, for {self.rows} rows under a fresh key")
        self._counted(DURABLE if durable else UNSYNCED, list(map(Path, Table(table).files())), table)
        return used

    def _counted(self, variant: str, files: list[Path], table: Path) -> None:
        """Checks the effect: rows by the footers of the files that a reader of the table gets."""
        rows = sum(parquet.read_metadata(file).num_rows for file in files)
        if rows != self.rows:
            raise WrongEffect(f"{variant}: the files of the table hold {rows} rows, and {self.rows} were written")
        self.bytes[variant] = sum(file.stat().st_size for file in files)
        shutil.rmtree(table)

    def _told(self, pair: int, used: dict[str, Used]) -> None:
        others = sum(each.others for each in used.values())
        self.say(f"output: {pair_text(pair, self.pairs)}: {used_text(used)}; others {others:.1f} CPU s")

    def dump(self) -> dict[str, Any]:
        runs = {name: [used.dump() for used in each] for name, each in self.runs.items()}
        return {"rows": self.rows, "partitions": PARTITIONS, "bytes": self.bytes, "runs": runs}
