"""Compares a write into a Delta or Iceberg table through sparkonce with each library's own writer, for the same rows.

Ours is `job.write` on a key reserved in a real ledger: Spark writes the files natively, and a small commit lists them. `tables` describes
the libraries' writers and how tables are made and counted. Each round also runs `df.write.parquet`, which makes no table at all: the
minimum that the rows themselves cost.

A ratio at one size would mix the cost per write with the cost per row, and look better the larger the size. So each round writes at two
sizes, and the line through both separates the fixed part from the growing one.

These writes run in a session that has written before. A job that writes once pays more, for modules, classes and code that is not compiled
yet: `first_write` measures that, in one process per variant.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from measure import CPU_LIMIT, Goal, Line, Row, WrongEffect, measured, pair_text
from spark import frame_of, idle_frame, session
from tables import (
    DELTA,
    ICEBERG,
    ICEBERG_LISTS,
    NATIVE,
    NATIVE_LISTS,
    OURS,
    THEIR_DELTA,
    THEIR_ICEBERG,
    VARIANTS,
    WITH_LISTS,
    Tables,
    by_job,
    by_library,
)

from attempt import ledger
from machine import Used, metered
from sparkonce.launch.submit import check_spark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from sparkonce.store.protocol import IdempotencyStore, Lease

PATIENCE = 600
"""Seconds until a process that writes once is given up; it needs a few."""
LIMIT, LISTS, FASTER = CPU_LIMIT, Goal(1.25, "<= 1.25x CPU"), Goal(1.0, "faster")
COMPARED = (
    (DELTA, NATIVE, "delta by parquet", LIMIT, None),
    (DELTA, THEIR_DELTA, "delta by library", FASTER, FASTER),
    (ICEBERG, NATIVE, "iceberg by parquet", LIMIT, None),
    (ICEBERG, THEIR_ICEBERG, "iceberg by library", FASTER, FASTER),
    (ICEBERG_LISTS, NATIVE_LISTS, "iceberg with a list by parquet", LISTS, None),
)
"""Ours, the raw one, the rows' name, and the goals for CPU and for time."""


@dataclass(frozen=True)
class _Place:
    """Everything that a write in this process needs."""

    spark: SparkSession
    tables: Tables
    empty: dict[str, pa.Table]
    """By variant: its columns without rows."""
    opened: tuple[IdempotencyStore, Lease]

    def one(self, variant: str, rows: int) -> Used:
        place = self.tables.made(variant, self.empty[variant])
        frame = idle_frame(self.spark, rows, lists=variant in WITH_LISTS)
        if variant in OURS:
            used = by_job(variant, frame, place, rows, self.opened)
        else:
            _, used = metered(lambda: by_library(variant, frame, place))
        self.tables.counted(variant, place, rows)
        return used


@dataclass
class Formats:
    """The part `formats`; `say` gets a line per round."""

    scratch: Path
    small: int
    """Rows of the small size."""
    large: int
    pairs: int
    say: Callable[[str], None]
    first_writes: int
    """Number of processes per variant that write once."""
    runs: dict[str, list[tuple[Used, Used]]] = field(default_factory=dict)
    """Measurements by variant: each pair at both sizes."""
    first: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    """Wall time and CPU of processes that write `small` rows once, by variant."""

    def measure(self) -> list[Row]:
        """Raises WrongEffect if a table does not hold the rows, InvalidInput if Spark cannot start here."""
        check_spark()
        self.say(
            f"formats: starting Spark; {self.small:,} and {self.large:,} rows, {self.pairs} pairs and one to warm up"
        )
        tables = Tables(self.scratch)
        tables.configure()
        with ledger(self.scratch) as opened, session(self.scratch) as spark:
            empty = {each: frame_of(spark, 1, lists=each in WITH_LISTS).toArrow().slice(0, 0) for each in VARIANTS}
            place = _Place(spark, tables, empty, opened)
            self.runs = measured({each: partial(self._both, each, place) for each in VARIANTS}, self.pairs, self._told)
        self.say(f"formats: first writes, a process each, {self.first_writes} pairs")
        cold = {each: partial(self._first, each, tables, empty[each]) for each in VARIANTS}
        self.first = measured(cold, self.first_writes, self._told_first, warm_up=False)
        return self._table()

    def _both(self, variant: str, place: _Place) -> tuple[Used, Used]:
        return place.one(variant, self.small), place.one(variant, self.large)

    def _first(self, variant: str, tables: Tables, empty: pa.Table) -> dict[str, float]:
        place = tables.made(variant, empty)
        os.sync()
        with TemporaryDirectory(dir=self.scratch) as scratch:
            command = [sys.executable, str(Path(__file__).with_name("first_write.py"))]
            arguments = [variant, place, str(self.small), scratch]
            done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False)
        if done.returncode != 0:
            raise WrongEffect(
                f"{variant}: a process that writes once ended with {done.returncode}: {done.stderr[-500:]}"
            )
        tables.counted(variant, place, self.small)
        told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return told

    def _told(self, pair: int, used: dict[str, tuple[Used, Used]]) -> None:
        what = ", ".join(
            f"{name} {a.wall:.2f} and {b.wall:.2f} s ({a.cpu:.2f} and {b.cpu:.2f} CPU s)"
            for name, (a, b) in used.items()
        )
        others = sum(each.others for both in used.values() for each in both)
        self.say(f"formats: {pair_text(pair, self.pairs)}: {what}; others {others:.1f} CPU s")

    def _told_first(self, pair: int, used: dict[str, dict[str, float]]) -> None:
        what = ", ".join(f"{name} {each['wall']:.1f} s ({each['cpu']:.2f} CPU s)" for name, each in used.items())
        self.say(f"formats: first writes, {pair_text(pair, self.first_writes)}: {what}")

    def _table(self) -> list[Row]:
        found: list[Row] = []
        for ours, raw, name, cpu, wall in COMPARED:
            for size in (0, 1):
                what = f"formats: {name}, {_short((self.small, self.large)[size])}"
                found += [
                    Row(what=what, unit="CPU s", ours=self._cpu(ours, size), raw=self._cpu(raw, size), goal=cpu),
                    Row(what=what, unit="s", ours=self._wall(ours, size), raw=self._wall(raw, size), goal=wall),
                ]
            found += self._split(ours, raw, f"formats: {name}", cpu)
        return found

    def _split(self, ours: str, raw: str, what: str, goal: Goal) -> list[Row]:
        """The fixed part as a difference, in seconds: its ratio would not hold for a write of another size."""
        a, b = self._lines(ours), self._lines(raw)
        more = [one.fixed - other.fixed for one, other in zip(a, b, strict=True)]
        slopes = [[line.per_row * 1e6 for line in lines] for lines in (a, b)]
        first = [[each["cpu"] for each in self.first.get(variant, ())] for variant in (ours, raw)]
        told = [Row(what=f"{what}, fixed more", unit="CPU s", ours=more)]
        if min(slopes[1]) > 0:  # otherwise the sizes are too close for the clock, and there is nothing to divide by
            told.append(Row(what=f"{what}, per M rows", unit="CPU s", ours=slopes[0], raw=slopes[1], goal=goal))
        if self.first_writes:
            told.append(Row(what=f"{what}, first write", unit="CPU s", ours=first[0], raw=first[1]))
        return told

    def _lines(self, variant: str) -> list[Line]:
        return [Line.through((self.small, a.cpu), (self.large, b.cpu)) for a, b in self.runs[variant]]

    def _cpu(self, variant: str, size: int) -> list[float]:
        return [both[size].cpu for both in self.runs[variant]]

    def _wall(self, variant: str, size: int) -> list[float]:
        return [both[size].wall for both in self.runs[variant]]

    def dump(self) -> dict[str, Any]:
        runs = {name: [[used.dump() for used in both] for both in each] for name, each in self.runs.items()}
        return {"rows": [self.small, self.large], "runs": runs, "firstWrites": self.first}


def _short(rows: int) -> str:
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if rows >= size:
            return f"{rows / size:g}{letter}"
    return str(rows)
