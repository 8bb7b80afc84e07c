"""Measures what an audit costs at 1,000 and 10,000 files, and extrapolates to 1,000,000: `python benchmarks/audit.py`.

The audited slot log has tiny Parquet files, some in slots of their own, some in lists of hundreds. Each size is audited by a fresh process,
because resident memory only ever grows, and the process reports its own time and peak. Sizes alternate: a *pair* is one audit of the
smallest table and one of the largest right after it, so that other load on the machine affects both, and each pair has its own slope. The
output has medians with minimum and maximum. Costs that do not grow with the files (the interpreter, pyarrow) cancel out of the slope; with
`--spark` Spark's start does not, since only the larger table is read by it, and the JVM's memory is not counted. The table is on a local
disk: on an object store each file also costs a round trip, with eight of them in flight at once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from machine import file_system
from sparkonce.blocking import run
from sparkonce.sink.open import open_sink
from sparkonce.sink.protocol import Declared, SinkKey
from sparkonce.sink.staging import StagedRows

SIZES = (1_000, 10_000)
MILLION = 1_000_000
FILES_OF_A_COMMIT = (1, 100)
"""Numbers of files per commit, used in turn: half of the commits are small, and nearly all files are in large ones."""


def made(folder: Path, files: int) -> None:
    """Makes a table of `files` files, committed as a job would."""
    left, number = files, 0
    while left:
        count = min(left, FILES_OF_A_COMMIT[number % 2])
        sink = open_sink(
            Declared(name="t", kind="slotLog", location=str(folder)),
            base=None,
            stage=_stager(number, count),
            durable=False,
        )
        key = SinkKey(key_hash=f"{number:064x}", output="t", generation=1)
        frame: Any = None
        run(sink.commit(key, sink.stage(frame, key, 1, fingerprint="f")))
        left, number = left - count, number + 1


def _stager(commit: int, files: int) -> Any:
    def stage(_frame: Any, folder: str, _partition_by: Sequence[str] = ()) -> StagedRows:
        path = Path(folder.removeprefix("file://"))
        path.mkdir(parents=True)
        for part in range(files):
            rows = pa.table({"commit": [commit] * 3, "part": [part] * 3, "n": [0, 1, 2]})
            parquet.write_table(rows, path / f"part-{part:05d}.parquet")
        return StagedRows(rows=3 * files, data_schema="")

    return stage


def audited(folder: Path, *, spark: bool = False) -> dict[str, Any]:
    """The audit report of a new process. Raises SystemExit if the audit found a defect."""
    command = [sys.executable, "-m", "sparkonce.audit", str(folder)]
    if spark:
        command = [sys.executable, "-m", "sparkonce", "audit", str(folder), "--spark", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"benchmarks: the audit of {folder} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return dict(json.loads(done.stdout))


@dataclass(frozen=True)
class Measured:
    """Cost of one audit, or the slope between two."""

    seconds: float
    octets: float
    """Peak of resident memory; in a slope, its growth."""


def measured(folder: Path, files: int, *, spark: bool) -> Measured:
    """Audits once and asserts the number of files."""
    cost = audited(folder, spark=spark)["cost"]
    if cost["files"] != files:
        sys.exit(f"benchmarks: {cost['files']} files were read of {files}")
    return Measured(cost["seconds"], cost["peakBytes"])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/audit.py", description="What an audit costs.")
    parser.add_argument("--times", type=int, default=5, help="audits of each size; the output has medians (5)")
    parser.add_argument("--files", type=int, action="append", help="a size (1000 and 10000)")
    parser.add_argument("--spark", action="store_true", help="read by a local Spark, from 2,000 files on")
    asked = parser.parse_args(arguments)
    sizes = sorted(asked.files or SIZES)
    runs: dict[int, list[Measured]] = {size: [] for size in sizes}
    with tempfile.TemporaryDirectory(prefix="sparkonce-bench-") as scratch:
        print(f"files on {file_system(Path(scratch).resolve())}, read by {'Spark' if asked.spark else 'threads'}")
        for size in sizes:
            made(Path(scratch, str(size)), size)
        for _ in range(asked.times):
            for size in sizes:
                runs[size].append(measured(Path(scratch, str(size)), size, spark=asked.spark))
    print("\n".join(table(runs)))
    return 0


def table(runs: dict[int, list[Measured]]) -> list[str]:
    """As Markdown: a line per size, the slope per 1,000 files, and what 1,000,000 files would take."""
    lines = ["| files | seconds | peak memory, MB |", "| --- | --- | --- |"]
    lines += (_line(f"{size:,}", each) for size, each in runs.items())
    low, high = min(runs), max(runs)
    if low == high:
        return lines
    slopes = [_slope(one, other, high - low) for one, other in zip(runs[low], runs[high], strict=True)]
    per_thousand = [Measured(each.seconds * 1000, each.octets * 1000) for each in slopes]
    whole = [
        Measured(top.seconds + each.seconds * (MILLION - high), top.octets + each.octets * (MILLION - high))
        for top, each in zip(runs[high], slopes, strict=True)
    ]
    return [*lines, _line("per 1,000 more", per_thousand), _line(f"{MILLION:,} (extrapolated)", whole)]


def _slope(low: Measured, high: Measured, files: int) -> Measured:
    return Measured((high.seconds - low.seconds) / files, (high.octets - low.octets) / files)


def _line(what: str, runs: Sequence[Measured]) -> str:
    return f"| {what} | {_spread([each.seconds for each in runs])} | {_spread([each.octets / 1e6 for each in runs])} |"


def _spread(values: Sequence[float]) -> str:
    """The median with minimum and maximum."""
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
