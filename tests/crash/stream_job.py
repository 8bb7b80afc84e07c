"""The small streaming driver of the crash tests: the real `driver/` and `sink/`, with a source that needs no JVM.

stream_job.py SHAPE ROWS BATCHES [endless]
"""

from __future__ import annotations

import sys

import pytest

from harness import stream_source
from harness.arrow_stage import arrow_stage
from sparkonce.driver.current import current


def main(shape: str, rows: int, batches: int, *options: str) -> None:
    job = current(stager=arrow_stage)
    numbers = [list(range(at * rows, (at + 1) * rows)) for at in range(batches)]
    source: object = stream_source.Source(numbers, endless="endless" in options)
    stream = job.stream(source)  # type: ignore[arg-type]  # it has the methods of a DataFrame that `stream` uses
    if shape == "two":
        stream.foreach_batch(lambda batch, frame: (batch.write(frame, "a"), batch.write(frame, "b")))
    else:
        stream.write("a")


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        stream_source.installed(patch)
        main(sys.argv[1], *map(int, sys.argv[2:4]), *sys.argv[4:])  # type: ignore[arg-type]  # the first arguments are numbers
