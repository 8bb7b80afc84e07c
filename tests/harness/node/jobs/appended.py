"""The job of `gated.py` as it is written without sparkonce: it appends its rows to a folder of Parquet files.

It has the same gates and marks, so that the same faults hit both. It does not know of attempts: a mark has the number of earlier marks.
"""

from __future__ import annotations

import argparse
import time
import uuid
from pathlib import Path

from pyspark.sql import SparkSession


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gate", type=Path, required=True, help="it writes when this file exists")
    parser.add_argument("--end", type=Path, help="it ends when this file exists; at once without one")
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--tasks", type=int, default=1)
    parser.add_argument("--table", required=True)
    parser.add_argument("--local", action="store_true", help="the driver is its own executor")
    args = parser.parse_args()

    spark = (SparkSession.builder.master("local[1]") if args.local else SparkSession.builder).getOrCreate()
    attempt = 1 + len(list(args.gate.parent.glob(f"{args.gate.name}.began-*")))
    mark(args.gate, attempt, "began")
    until(args.gate)
    spark.range(0, args.rows, 1, args.tasks).toDF("n").write.mode("append").parquet(args.table)
    mark(args.gate, attempt, "wrote")
    if args.end is not None:
        until(args.end)
    spark.stop()


def mark(gate: Path, attempt: int, what: str) -> None:
    gate.with_name(f"{gate.name}.{what}-{attempt}-{uuid.uuid4().hex[:8]}").touch()


def until(path: Path) -> None:
    while not path.exists():
        time.sleep(0.1)  # in a pod, without the tests' harness; the test that opens the gate bounds the wait


if __name__ == "__main__":
    main()
