"""Opens a reply ledger from its address."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sparkonce import settings
from sparkonce.errors import InvalidInput
from sparkonce.replies.ledger.memory import MemoryReplies
from sparkonce.replies.protocol import ReplyLedger, Reservation, WriteOutcome
from sparkonce.store.instrumented import metered
from sparkonce.store.open import is_postgres, redacted, without_extra
from sparkonce.store.pooled import pooled

T = TypeVar("T")

MEMORY = "memory:"
THREADS = 4
"""Verbs of a SQLite ledger at a time: one writes, and replays are read meanwhile."""
_KNOWN = f"{MEMORY}, sqlite:///PATH, postgresql://HOST/DATABASE or etcd://HOST:PORT[,HOST:PORT]"


def open_replies(url: str, **options: Any) -> ReplyLedger:
    """The ledger at an address, for callers on an event loop: its verbs suspend. `options`: as of the ledger's class.

    Raises: InvalidInput, StoreUnusable, StoreUnavailable."""
    if url == MEMORY:
        return MemoryReplies(**options)
    if is_postgres(url):
        return _postgres(url, **options)
    if url.lower().startswith("etcd://"):
        return _etcd(url, **options)
    path = url.removeprefix("sqlite:///")
    if path == url or not path or path == ":memory:":
        raise InvalidInput(f"{redacted(url)!r} is no ledger of answers; use {_KNOWN}")
    from sparkonce.replies.ledger.sqlite import SqliteReplies
    from sparkonce.store.sqlite.database import BUSY_TIMEOUT

    return pooled(
        SqliteReplies(Path(path).expanduser(), **options), size=THREADS, patience=BUSY_TIMEOUT, remedy=" later"
    )


def counted(ledger: T, on_request: Callable[[str, str, float], None]) -> T:
    """The ledger; `on_request(verb, result, seconds)` is called after each request. The result is a reservation's standing, a write's
    outcome, `ok`, or the name of the error."""
    return metered(ledger, on_request, result_of=_result)


def _result(done: object) -> str:
    if isinstance(done, Reservation):
        return str(done.standing)
    return str(done) if isinstance(done, WriteOutcome) else "ok"


def _etcd(url: str, **options: Any) -> ReplyLedger:
    try:
        from sparkonce.replies.ledger.etcd import EtcdReplies
    except ModuleNotFoundError as missing:
        raise without_extra("a ledger of answers in etcd", missing, extra="operator") from None
    from sparkonce.store.etcd.address import parsed

    given = parsed(url, os.environ)
    if "ttl" in given:
        raise InvalidInput(
            "the leases of a ledger of answers are as long as the policy says; remove ttl from its address"
        )
    return EtcdReplies(**(given | options))


def _postgres(url: str, **options: Any) -> ReplyLedger:
    try:
        from sparkonce.replies.ledger.postgres import PostgresReplies
    except ModuleNotFoundError as missing:
        raise without_extra("a ledger of answers in PostgreSQL", missing, extra="postgres") from None
    size, timeout = settings.postgres_pool(), settings.postgres_timeout()
    return pooled(PostgresReplies(url, pool=size, timeout=timeout, **options), size=size, patience=timeout)
