"""One transaction over all outputs, or with `plain` a write to each; with pyarrow in place of Spark.

kinds_job.py SHAPE ROWS [plain]
"""

from __future__ import annotations

import sys

from harness.arrow_stage import arrow_stage, table_of
from sparkonce.driver.current import current


def main(_shape: str, rows: int, how: str = "tx") -> None:
    job = current(stager=arrow_stage)
    frames = {name: table_of(*range(number * rows, (number + 1) * rows)) for number, name in enumerate(job.outputs)}
    if how == "plain":
        for name, frame in frames.items():
            job.write(frame, name)
        return
    with job.transaction() as tx:
        for name, frame in frames.items():
            tx.write(frame, name)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
