"""Reply ledgers with clocks that a test moves."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.clocks import Clocks
from harness.etcd_replies import by_clock
from harness.postgres import server
from sparkonce.blocking import run
from sparkonce.replies.ledger.memory import MemoryReplies
from sparkonce.replies.ledger.postgres import PostgresReplies
from sparkonce.replies.ledger.sqlite import SqliteReplies
from sparkonce.replies.protocol import ReplyLedger

PATIENCE = 20.0
"""Seconds for a verb, that no busy machine needs. Tests of a silent server give their own."""


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture(params=["memory", "sqlite", "postgres", "etcd"])
def ledger(request: pytest.FixtureRequest, clocks: Clocks, tmp_path: Path) -> Iterator[ReplyLedger]:
    """Each ledger, with room for 8 keys, 5 of them one caller's."""
    given: dict[str, Any] = {
        "clock": lambda: clocks.now,
        "monotonic": lambda: clocks.ticks,
        "keys": 8,
        "keys_of_caller": 5,
    }
    made: ReplyLedger
    if request.param == "memory":
        made = MemoryReplies(**given)
    elif request.param == "etcd":
        made = by_clock(clocks, **given)
    elif request.param == "postgres":
        made = PostgresReplies(server().url, schema=f"replies_{uuid.uuid4().hex}", timeout=PATIENCE, **given)
    else:
        made = SqliteReplies(tmp_path / "replies.db", synchronous="OFF", **given)
    yield made
    run(made.close())
