"""A process whose middleware answers a number of new keys, one after the other; prints its resident memory as it goes.

    python http_key_process.py LEDGER KEYS FOLDER

It prints one JSON line for each fortieth of the keys: `keys` so far, `answered` with 201, `refused`, and `resident` in bytes. LEDGER is

* `sqlite` or `memory`: the ledger's clock moves on by a second with each request, and answers live for LIVE seconds, so that about as many
  keys live at any time, however fast the machine is. The coordinator removes expired ones as it does in a service, only more often;
* `full`: the ledger in memory with room for a tenth of the keys, which live for a day: the newest are refused.

SQLite's file is written without fsync here: memory does not depend on it, and a million keys would wait for the disk for an hour.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from http_requests import PATIENCE, BareOrders, SentRequest
from sparkonce.asgi import IdempotencyMiddleware, ReplyPolicy
from sparkonce.replies import coordinator
from sparkonce.replies.open import MEMORY, open_replies
from sparkonce.replies.protocol import ReplyLedger

LIVE = 10_000
"""Keys that live at a time, in seconds of the ledger's clock."""
PURGES = 0.1
"""Seconds between two removals: a minute's worth of keys in a service, a few hundred here."""
SAMPLES = 40
DAY = 86400.0


def resident() -> int:
    """Bytes."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def opened(which: str, keys: int, folder: Path, clock: Callable[[], float]) -> ReplyLedger:
    if which == "full":
        return open_replies(MEMORY, keys=keys // 10, keys_of_caller=keys // 10)
    if which == "memory":
        return open_replies(MEMORY, clock=clock)
    return open_replies(f"sqlite:///{folder / 'replies.db'}", clock=clock, synchronous="OFF")


async def answer(which: str, keys: int, folder: Path) -> None:
    coordinator.PURGES = PURGES
    sent = 0
    ledger = opened(which, keys, folder, lambda: float(sent))
    lifetime = DAY if which == "full" else float(LIVE)
    policy = ReplyPolicy(lifetime=lifetime, grace=0.0, lease=PATIENCE, store_patience=PATIENCE)
    app = IdempotencyMiddleware(BareOrders(), store=ledger, policy=policy)
    found = {201: 0, 503: 0}
    for sent in range(1, keys + 1):
        request = await SentRequest().to(app)
        found[request.status] += 1
        if sent % max(1, keys // SAMPLES) == 0:
            told = {"keys": sent, "answered": found[201], "refused": found[503], "resident": resident()}
            print(json.dumps(told), flush=True)
    await app.close()


if __name__ == "__main__":
    asyncio.run(answer(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
