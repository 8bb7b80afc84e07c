"""What an audit costs: `python benchmarks/audit.py`, at 1,000 and 10,000 files, and the slope between them.

A slot log is made of tiny Parquet files, some in slots of their own, some in lists of hundreds; each size is audited by a fresh process,
because resident memory only ever grows, and the process reports its own time and peak. What does not grow with the files (the
interpreter, pyarrow) cancels out of the slope. The table is on a local disk: on a store a file costs a round trip besides, of which eight
are under way at once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from machine import file_system
from pyarrow import parquet

from sparkonce.blocking import run
from sparkonce.sink.open import Declared, open_sink
from sparkonce.sink.protocol import SinkKey
from sparkonce.sink.staging import Written

SIZES = (1_000, 10_000)
MILLION = 1_000_000
FILES_OF_A_COMMIT = (1, 100)
"""Every other commit has so many files: half of the commits are small, nearly all files are in large ones."""


def made(folder: Path, files: int) -> None:
    """A table of so many files, committed as a job would."""
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
    def stage(_frame: Any, folder: str, _partition_by: Sequence[str] = ()) -> Written:
        path = Path(folder.removeprefix("file://"))
        path.mkdir(parents=True)
        for part in range(files):
            rows = pa.table({"commit": [commit] * 3, "part": [part] * 3, "n": [0, 1, 2]})
            parquet.write_table(rows, path / f"part-{part:05d}.parquet")
        return Written(rows=3 * files, data_schema="")

    return stage


def audited(folder: Path) -> dict[str, Any]:
    """The report of a fresh process. SystemExit: it found something, or not all files."""
    command = [sys.executable, "-m", "sparkonce.audit", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"benchmarks: the audit of {folder} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return dict(json.loads(done.stdout))


def measured(folder: Path, files: int, times: int) -> dict[str, float]:
    """Medians."""
    runs = [audited(folder)["cost"] for _ in range(times)]
    if any(each["files"] != files for each in runs):
        sys.exit(f"benchmarks: {runs} files were read of {files}")
    return {name: statistics.median(each[name] for each in runs) for name in ("seconds", "peakBytes", "listingSeconds")}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/audit.py", description="What an audit costs.")
    parser.add_argument("--times", type=int, default=3, help="audits per size; medians are told (3)")
    parser.add_argument("--files", type=int, action="append", help="a size (1000 and 10000)")
    asked = parser.parse_args(arguments)
    sizes = sorted(asked.files or SIZES)
    found = {}
    with tempfile.TemporaryDirectory(prefix="sparkonce-bench-") as scratch:
        print(f"files on {file_system(Path(scratch).resolve())}")
        for size in sizes:
            folder = Path(scratch, str(size))
            made(folder, size)
            found[size] = measured(folder, size, asked.times)
            one = found[size]
            print(
                f"{size:>9,} files: {one['seconds']:.2f} s (listing {one['listingSeconds']:.2f} s), "
                f"{size / one['seconds']:,.0f} files/s, peak memory {one['peakBytes'] / 1e6:.0f} MB"
            )
    if len(sizes) > 1:
        print(slope(sizes, found))
    return 0


def slope(sizes: Sequence[int], found: dict[int, dict[str, float]]) -> str:
    """Between the smallest and the greatest size."""
    low, high = sizes[0], sizes[-1]
    seconds, octets = ((found[high][name] - found[low][name]) / (high - low) for name in ("seconds", "peakBytes"))
    whole = found[high]["seconds"] + seconds * (MILLION - high)
    memory = found[high]["peakBytes"] + octets * (MILLION - high)
    return (
        f"slope: {seconds * 1e6:.0f} us and {octets / 1e3:.2f} kB per file; "
        f"1,000,000 files: about {whole / 60:.1f} min and {memory / 1e9:.2f} GB"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
