"""One transaction over a slot log, a Delta table and an Iceberg table; with pyarrow in place of Spark.

kinds_job.py SHAPE ROWS
"""

from __future__ import annotations

import sys

from harness.arrow_stage import arrow_stage, table_of
from sparkonce.driver.current import current


def main(_shape: str, rows: int) -> None:
    job = current(stager=arrow_stage)
    with job.transaction() as tx:
        for number, name in enumerate(job.outputs):
            tx.write(table_of(*range(number * rows, (number + 1) * rows)), name)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
