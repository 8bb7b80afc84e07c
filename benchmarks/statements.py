"""Compares writes that Spark's own Delta engine makes inside sparkonce with the same calls outside of it.

Each variant makes the same call, `df.write.format("delta").mode("append").save(path)`, on an existing table: alone, inside `job.native`,
and as a captured script's (`sparkonce.driver.script.writes`). The key is reserved and the block opened and ended on the clock; the
ledger's part is what `reserve` measures, and the start of a driver what `formats: first write` does.

The part is a process of its own, `python statements.py SCRATCH ROWS PAIRS JARS`, because Delta's jars must be there when its JVM starts.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from measure import Row, WrongEffect, by_cpu, measured, pair_text
from spark import end_jvm, frame_of, idle_frame, session

from attempt import OUTPUT, begun, ledger
from machine import Used, metered, used_text
from sparkonce.launch.submit import check_spark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from sparkonce.store.protocol import IdempotencyStore, Lease

PLAIN, BLOCK, CAPTURED = "df.write, delta", "job.native, delta", "captured, delta"


@dataclass
class Statements:
    """The part `statements`; `say` gets a line per round."""

    scratch: Path
    rows: int
    pairs: int
    jars: str
    """Paths, with commas between them."""
    say: Callable[[str], None]
    runs: dict[str, list[Used]] = field(default_factory=dict)
    """Measurements by variant, one for each pair."""

    def measure(self) -> list[Row]:
        """Raises WrongEffect if a table does not hold the rows, InvalidInput if Spark cannot start here."""
        check_spark()
        self.say(f"statements: starting Spark; {self.rows:,} rows, {self.pairs} pairs and one to warm up")
        arguments = [str(self.scratch), str(self.rows), str(self.pairs), self.jars]
        with subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for line in child.stdout:
                told = json.loads(line)
                self._told(told["pair"], {name: Used(**used) for name, used in told["used"].items()})
        if child.returncode != 0:
            raise WrongEffect(f"statements: the process that measures them ended with {child.returncode}")
        runs = {each: self.runs[each] for each in (PLAIN, BLOCK, CAPTURED)}
        return by_cpu("statements", runs, raw=PLAIN)

    def _told(self, pair: int, used: dict[str, Used]) -> None:
        self.say(f"statements: {pair_text(pair, self.pairs)}: {used_text(used)}")
        if pair:
            for name, each in used.items():
                self.runs.setdefault(name, []).append(each)

    def dump(self) -> dict[str, Any]:
        return {"rows": self.rows, "runs": {name: [used.dump() for used in each] for name, each in self.runs.items()}}


def _measured(scratch: Path, rows: int, pairs: int, jars: str) -> None:
    """The child: prints a line of JSON for each round."""
    delta = {
        "spark.jars": jars,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    with ledger(scratch) as opened, session(scratch, delta) as spark:
        empty = frame_of(spark, 1).toArrow().slice(0, 0)
        one = partial(_one, spark=spark, scratch=scratch, empty=empty, rows=rows, opened=opened)
        measured({each: partial(one, each) for each in (PLAIN, BLOCK, CAPTURED)}, pairs, _print)
    end_jvm()


def _print(pair: int, used: dict[str, Used]) -> None:
    fields = ("wall", "cpu", "others", "stolen")
    told = {name: {each: getattr(one, each) for each in fields} for name, one in used.items()}
    print(json.dumps({"pair": pair, "used": told}), flush=True)


def _one(
    variant: str,
    *,
    spark: SparkSession,
    scratch: Path,
    empty: pa.Table,
    rows: int,
    opened: tuple[IdempotencyStore, Lease],
) -> Used:
    from deltalake import DeltaTable, write_deltalake

    path = str(scratch / f"t{uuid4().hex}")
    write_deltalake(path, empty)
    frame = idle_frame(spark, rows)
    _, used = metered(lambda: _write(variant, frame, path, opened))
    added: Any = DeltaTable(path).get_add_actions(flatten=True)
    found = sum(number for number in added.column("num_records").to_pylist() if number is not None)
    shutil.rmtree(path)
    if found != rows:
        raise WrongEffect(f"{variant}: the table holds {found} rows, and {rows} were written")
    return used


def _write(variant: str, frame: Any, path: str, opened: tuple[IdempotencyStore, Lease]) -> None:
    def write() -> None:
        frame.write.format("delta").mode("append").save(path)

    if variant == PLAIN:
        write()
        return
    job = begun(
        *opened, Path(path), place={"delta": {"path": path}, **({"capture": True} if variant == CAPTURED else {})}
    )
    try:
        if variant == BLOCK:
            with job.native(OUTPUT):
                write()
        else:
            _captured(job, path, write)
    finally:
        job.heartbeat.stop()


def _captured(job: Any, path: str, write: Callable[[], None]) -> None:
    from sparkonce.driver.script.writes import ScriptWrites
    from sparkonce.model.spec import Delta, Output

    script = ScriptWrites(job, [Output(name=OUTPUT, delta=Delta(path=path), capture=True)], warn=False, base=path)
    script.watch()
    try:
        write()
        script.end()
    finally:
        script._hooks.__exit__(None, None, None)  # noqa: SLF001 - a script's process never stops watching


if __name__ == "__main__":
    try:
        _measured(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    except WrongEffect as problem:
        sys.exit(f"benchmarks: {problem}")
