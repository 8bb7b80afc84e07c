"""Measures the cost of a job that writes once: starts Spark, writes, and reports time and CPU.

The part `formats` starts `python first_write.py VARIANT PLACE ROWS SCRATCH`, which prints one line of JSON. CPU is that of this process
and the JVM from their start to the end of the write, including all imports and class loading. The table exists already.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter

BEGAN = perf_counter()


def main(variant: str, place: str, rows: int, scratch: Path) -> None:
    from spark import end_jvm, frame_of, session
    from tables import OURS, WITH_LISTS, by_job, by_library

    from machine import cpu_of_ours

    with session(scratch) as spark, ExitStack() as stack:
        frame = frame_of(spark, rows, lists=variant in WITH_LISTS)
        if variant in OURS:
            from attempt import ledger

            by_job(variant, frame, place, rows, stack.enter_context(ledger(scratch)))
        else:
            by_library(variant, frame, place)
        print(json.dumps({"wall": perf_counter() - BEGAN, "cpu": cpu_of_ours()}), flush=True)
    end_jvm()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
