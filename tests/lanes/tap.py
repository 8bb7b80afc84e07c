"""A tap: reads a source of numbers on from the lane's position, and appends them. Run as `tap.py LAKE NAME COUNT`; LAKE is a folder
or a topic of Kafka, which has one copy if a further argument is given.

Prints each number once it is acknowledged; ends with 3 when another process has acquired the lane.
"""

from __future__ import annotations

import sys
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from sparkonce.errors import WriterFenced
from sparkonce.lanes.kafka_log import KafkaLog
from sparkonce.lanes.kafka_topic import SCHEME
from sparkonce.lanes.protocol import LaneEntry, LaneLog
from sparkonce.lanes.sender import WriterOptions
from sparkonce.lanes.table_log import TableLog
from sparkonce.lanes.writer import Writer
from sparkonce.sink.objects.local import FolderObjects

FENCED = 3


def told(number: int, handle: Future[LaneEntry]) -> None:
    """Prints a number that was acknowledged."""
    if handle.exception() is None:
        print(number, flush=True)


def main(lake: str, name: str, count: int, *, one_copy: bool) -> int:
    log: LaneLog
    if lake.startswith(SCHEME):
        log = KafkaLog(lake, name, client={"transaction.timeout.ms": 5000}, one_copy=one_copy)
    else:
        log = TableLog(FolderObjects(Path(lake), durable=False), name, places=4)
    try:
        with Writer(log, WriterOptions(linger=0.0, batch_size=64)) as writer:
            for n in range((writer.position or 0) + 1, count + 1):
                handle = writer.append({"n": n}, position=n)
                handle.add_done_callback(partial(told, n))
                if n % 3 == 0:
                    writer.flush()
    except WriterFenced:
        return FENCED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), one_copy=len(sys.argv) > 4))
