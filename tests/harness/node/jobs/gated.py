"""A job whose every step a test can hold: it waits for a file before it writes, and for another one before it ends.

Beside its gate it leaves a file for each attempt that began, so that a test knows when to strike, and may count drivers.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from pyspark.sql import SparkSession

import sparkonce


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gate", type=Path, required=True, help="it writes when this file exists")
    parser.add_argument("--end", type=Path, help="it ends when this file exists; at once without one")
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--tasks", type=int, default=1)
    parser.add_argument("--failpoints", default="", help="as SPARKONCE_FAILPOINTS, once in all attempts")
    parser.add_argument("--once", default="", help="the folder that remembers which were hit")
    parser.add_argument("--local", action="store_true", help="the driver is its own executor")
    args = parser.parse_args()

    # No job may set these for itself; its code may, before sparkonce reads them.
    os.environ.update(SPARKONCE_FAILPOINTS=args.failpoints, SPARKONCE_FAILPOINTS_ONCE=args.once)
    job = sparkonce.current()
    spark = (SparkSession.builder.master("local[1]") if args.local else SparkSession.builder).getOrCreate()
    mark(args.gate, job.attempt, "began")
    until(args.gate)
    job.write(spark.range(0, args.rows, 1, args.tasks).toDF("n"), "rows")
    mark(args.gate, job.attempt, "wrote")
    if args.end is not None:
        until(args.end)
    spark.stop()


def mark(gate: Path, attempt: int, what: str) -> None:
    gate.with_name(f"{gate.name}.{what}-{attempt}-{os.environ.get('HOSTNAME', '')}").touch()


def until(path: Path) -> None:
    while not path.exists():
        time.sleep(0.1)  # in a pod, without the tests' harness; the test that opens the gate bounds the wait


if __name__ == "__main__":
    main()
