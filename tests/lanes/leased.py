"""A tap that leaves the lane to a writer that has it. Run as `leased.py LAKE STORE COUNT PAUSE LEASE`.

Prints each number once it is acknowledged, with PAUSE seconds between two; its lease has LEASE seconds. Ends with 3 when it was fenced, and
with 4 when it was refused.
"""

from __future__ import annotations

import sys
import time

import sparkonce
from lanes.tap import FENCED
from sparkonce.lanes import lease

BUSY = 4


def main(lake: str, store: str, count: int, pause: float, seconds: float) -> int:
    lease.SECONDS = seconds
    try:
        with sparkonce.writer(lake, name="tap", if_busy="refuse", store=store, linger=0.0) as writer:
            for n in range((writer.position or 0) + 1, count + 1):
                writer.append({"n": n}, position=n).result()
                print(n, flush=True)
                time.sleep(pause)  # so that COUNT rows last until the test kills or freezes this process
    except sparkonce.WriterFenced:
        return FENCED
    except sparkonce.LaneBusy as busy:
        print(busy, file=sys.stderr)
        return BUSY
    return 0


if __name__ == "__main__":
    lake, store, count, pause, seconds = sys.argv[1:]
    sys.exit(main(lake, store, int(count), float(pause), float(seconds)))
