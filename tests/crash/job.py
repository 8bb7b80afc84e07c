"""The small driver of the crash tests: the real `driver/` and `sink/`, with pyarrow in place of Spark.

job.py SHAPE ROWS [fail-once]
"""

from __future__ import annotations

import sys

from harness.arrow_stage import arrow_stage, table_of
from sparkonce.driver.current import current


def main(shape: str, rows: int, *options: str) -> None:
    job = current(stager=arrow_stage)
    if "fail-once" in options and job.attempt == 1:
        sys.exit("the first attempt fails")
    a, b = table_of(*range(rows)), table_of(*range(rows, 2 * rows))
    if shape in ("tx", "mixed"):
        with job.transaction() as tx:
            tx.write(a, "a")
            tx.write(b, "b")
    else:
        job.write(a, "a")
    if shape == "two":
        job.write(b, "b")
    if shape == "mixed":
        job.write(table_of(*range(2 * rows, 3 * rows)), "c")
    job.result(rows=rows)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
